"""RUN/ on disk. Everything is appended or written whole, so a kill leaves a run that can be read and resumed.

The journal is synced line by line and the outcomes at the end of each window, so a power cut costs the boot that it
hits and nothing before it. Form: `profiles.runs`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson

from profiles.errors import FormatError, UsageError
from profiles.files import (
    FILE_MODE,
    append_line,
    cut_torn_line,
    encode,
    lock_folder,
    make_folder,
    read_document,
    write_document,
    write_whole,
)
from profiles.records import Outcome
from profiles.runs import (
    BOOT,
    BOOTS,
    DONE,
    EVENTS,
    FORMAT,
    FUNCTIONAL,
    LOG,
    MANIFEST,
    OUTCOMES,
    PILOTS,
    RULE,
    TELEMETRY,
    VERSION,
    BootFacts,
    boot_folder_name,
    read_boot_facts,
    read_run,
)
from replay.clock import Clock

ENGINE = "engine.json"
ENDED = "ended"  # a key of it: what an interrupted boot left is gone


class RunFolder:
    """A run being written."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Takes the directory for itself until this process ends. Raises UsageError if another replay has it."""
        self.path = path
        self.manifest: dict[str, Any] = {}
        self._clock = clock
        self._lock = lock_folder(path)
        if self._lock is None:
            raise UsageError(f"{path}: another replay is writing to it", "Wait for its end, or stop it.")

    @classmethod
    def create(cls, path: Path, clock: Clock, manifest: Mapping[str, Any], rule: bytes) -> "RunFolder":
        """A new run. Raises UsageError if the path is taken."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise _taken(path)
        make_folder(path)
        make_folder(path / BOOTS)
        run = cls(path, clock)
        write_whole(path / RULE, rule)
        write_document(path / MANIFEST, dict(manifest))
        run.manifest = dict(manifest)
        return run

    @classmethod
    def resume(cls, path: Path, clock: Clock) -> "RunFolder":
        """Take up a run: cut what a kill tore."""
        run = cls(path, clock)  # first: whoever writes to it now is no leftover
        for name in (OUTCOMES, FUNCTIONAL, TELEMETRY):
            for journal in path.glob(f"*/*/{name}"):
                cut_torn_line(journal)
        cut_torn_line(path / EVENTS)
        run.manifest = read_document(path / MANIFEST, FORMAT, (VERSION,))
        return run

    def close(self) -> None:
        """Give the directory back: another replay may have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def event(self, event: str, **fields: Any) -> None:
        """Append one event with its instant on both clocks."""
        line = {"at_ns": self._clock.now_ns(), "wall_ns": self._clock.wall_ns(), "event": event, **fields}
        append_line(self.path / EVENTS, line, sync=True)

    def amend(self, rule: bytes, kept_as: str, manifest: Mapping[str, Any]) -> None:
        """Replace the rule. The old one is kept byte for byte under another name, and the manifest comes last: a kill
        before it leaves a run to which the same amendment can be made again."""
        kept = self.path / kept_as
        if not kept.exists():
            write_whole(kept, (self.path / RULE).read_bytes())
        write_whole(self.path / RULE, rule)
        write_document(self.path / MANIFEST, dict(manifest))
        self.manifest = dict(manifest)

    def boot(self, block: int, slot: int, arm: str) -> "BootFolder":
        """A fresh folder for a boot; a second attempt at the same place gets a number."""
        return self._fresh(BOOTS, lambda attempt: boot_folder_name(block, slot, arm, attempt))

    def pilot(self, arm: str) -> "BootFolder":
        """A fresh folder for a boot that is never measured."""
        return self._fresh(PILOTS, lambda attempt: f"{arm}-r{attempt}" if attempt > 1 else arm)

    def _fresh(self, kind: str, name: Callable[[int], str]) -> "BootFolder":
        attempt = 1
        while (self.path / kind / name(attempt)).exists():
            attempt += 1
        path = self.path / kind / name(attempt)
        make_folder(path)
        return BootFolder(path, attempt)

    def pilots(self) -> dict[str, BootFacts]:
        """The unmeasured boots that ran through, by arm."""
        folders = [folder for folder in (self.path / PILOTS).glob("*") if (folder / BOOT).exists()]
        return {facts.arm: facts for facts in map(read_boot_facts, sorted(folders)) if facts.status == DONE}

    def done(self) -> dict[tuple[int, str], BootFacts]:
        """The boots that count, by block and arm."""
        facts = (boot.facts for boot in read_run(self.path).boots)
        return {(item.block, item.arm): item for item in facts if item.status == DONE}

    def boots(self) -> list[BootFacts]:
        """Every boot that ended, however it ended."""
        return [boot.facts for boot in read_run(self.path).boots]

    def leftovers(self) -> dict[Path, dict[str, Any]]:
        """Engines whose boot was interrupted and that may be alive: their identity (`engines.Engine.identity`) by the
        file that it stands in."""
        found = [folder / ENGINE for folder in self.path.glob("*/*") if not (folder / BOOT).exists()]
        read = {engine: orjson.loads(engine.read_bytes()) for engine in sorted(found) if engine.exists()}
        return {engine: identity for engine, identity in read.items() if not identity.get(ENDED)}

    def interrupted(self) -> list[Path]:
        """Folders of boots that never ended."""
        return list(read_run(self.path).interrupted)

    def host_restarted(self, boot_id: str | None) -> bool:
        """The machine was restarted since the run last went on."""
        resumed = self.last_event("run_resumed") or {}
        before = resumed.get("boot_id") or self.manifest["environment"].get("boot_id")
        return boot_id is not None and before is not None and boot_id != before

    def events(self) -> tuple[dict[str, Any], ...]:
        """Everything that was written down so far, in its order."""
        return read_run(self.path).events

    def last_event(self, name: str) -> dict[str, Any] | None:
        """The latest event of this name."""
        found = [event for event in self.events() if event["event"] == name]
        return found[-1] if found else None


def _taken(path: Path) -> UsageError:
    """Why a new run cannot have this path: by what is there."""
    if (path / EVENTS).is_file() and not (path / MANIFEST).exists():
        return UsageError(
            f"{path}: a run is there, and its {MANIFEST} is missing",
            "Without it the run can be neither resumed nor judged: put it back, or give another directory.",
        )
    try:
        read_document(path / MANIFEST, FORMAT, (VERSION,))
    except FormatError:
        return UsageError(f"{path}: already exists", "Give another directory.")
    return UsageError(f"{path}: already exists", "Add --resume to go on with it, or give another directory.")


class BootFolder:
    """One boot being written."""

    def __init__(self, path: Path, attempt: int) -> None:
        self.path = path
        self.attempt = attempt
        self._outcomes: int | None = None

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def telemetry(self) -> Path:
        return self.path / TELEMETRY

    def remember_engine(self, identity: Mapping[str, Any]) -> None:
        """Write down which engine this is, so that a later run can find an orphan of a killed one."""
        write_whole(self.path / ENGINE, encode(dict(identity)))

    def sync(self) -> None:
        """Make what was written outlive a power cut. It may wait for the disk: call it between windows, in a thread."""
        if self._outcomes is not None:
            os.fsync(self._outcomes)

    def outcome(self, outcome: Outcome) -> None:
        """Append an outcome in one write."""
        if self._outcomes is None:
            self._outcomes = os.open(self.path / OUTCOMES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        os.write(self._outcomes, msgspec.json.encode(outcome) + b"\n")

    def metrics(self, number: int, text: str) -> None:
        """Keep /metrics as it was after window `number`; 0 is before the first one."""
        write_whole(self.path / f"metrics-{number:02d}.prom", text.encode("utf-8"))

    def finish(self, facts: BootFacts) -> None:
        """Write boot.json: from now on the boot has ended."""
        if self._outcomes is not None:
            os.close(self._outcomes)
            self._outcomes = None
        write_document(self.path / BOOT, msgspec.to_builtins(facts))
