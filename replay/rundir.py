"""RUN/ on disk. Everything is appended or written whole, so a kill leaves a run that can be read and resumed.

Form: `profiles.runs`.
"""

import os
from collections.abc import Mapping
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
    LOG,
    MANIFEST,
    OUTCOMES,
    RULE,
    VERSION,
    BootFacts,
    boot_folder_name,
    read_run,
)
from replay.clock import Clock

ENGINE_PID = "engine.pid"


class RunFolder:
    """A run being written."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Takes the directory for itself until this process ends. Raises UsageError if another replay has it."""
        self.path = path
        self._clock = clock
        self._lock = lock_folder(path)
        if self._lock is None:
            raise UsageError(f"{path}: another replay is writing to it", "Wait for its end, or stop it.")

    @classmethod
    def create(cls, path: Path, clock: Clock, manifest: Mapping[str, Any], rule: bytes) -> "RunFolder":
        """A new run. Raises UsageError if the path is taken."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            ours = _is_run(path)
            hint = "Add --resume to go on with it, or give another directory." if ours else "Give another directory."
            raise UsageError(f"{path}: already exists", hint)
        make_folder(path)
        make_folder(path / BOOTS)
        run = cls(path, clock)
        write_whole(path / RULE, rule)
        write_document(path / MANIFEST, dict(manifest))
        return run

    @classmethod
    def resume(cls, path: Path, clock: Clock) -> "RunFolder":
        """Take up a run: cut what a kill tore."""
        run = cls(path, clock)  # first: whoever writes to it now is no leftover
        for journal in (path / EVENTS, *(path / BOOTS).glob(f"*/{OUTCOMES}")):
            cut_torn_line(journal)
        return run

    def event(self, event: str, **fields: Any) -> None:
        """Append one event with its instant on both clocks."""
        line = {"at_ns": self._clock.now_ns(), "wall_ns": self._clock.wall_ns(), "event": event, **fields}
        append_line(self.path / EVENTS, line)

    def boot(self, block: int, slot: int, arm: str) -> "BootFolder":
        """A fresh folder for a boot; a second attempt at the same place gets a number."""
        attempt = 1
        while (self.path / BOOTS / boot_folder_name(block, slot, arm, attempt)).exists():
            attempt += 1
        path = self.path / BOOTS / boot_folder_name(block, slot, arm, attempt)
        make_folder(path)
        return BootFolder(path, attempt)

    def done(self) -> dict[tuple[int, str], BootFacts]:
        """The boots that count, by block and arm."""
        facts = (boot.facts for boot in read_run(self.path).boots)
        return {(item.block, item.arm): item for item in facts if item.status == DONE}

    def boots(self) -> list[BootFacts]:
        """Every boot that ended, however it ended."""
        return [boot.facts for boot in read_run(self.path).boots]

    def leftovers(self) -> list[tuple[int, float]]:
        """Pid and start time of engines whose boot was interrupted."""
        found = []
        for folder in read_run(self.path).interrupted:
            file = folder / ENGINE_PID
            if file.exists():
                known = orjson.loads(file.read_bytes())
                found.append((int(known["pid"]), float(known["started_at"])))
        return found


def _is_run(path: Path) -> bool:
    try:
        read_document(path / MANIFEST, FORMAT, (VERSION,))
    except FormatError:
        return False
    return True


class BootFolder:
    """One boot being written."""

    def __init__(self, path: Path, attempt: int) -> None:
        self.path = path
        self.attempt = attempt
        self._outcomes: int | None = None

    @property
    def log(self) -> Path:
        return self.path / LOG

    def remember_engine(self, pid: int, started_at: float | None) -> None:
        """Write down which process this is, so that a later run can find an orphan of a killed one."""
        if started_at is not None:
            write_whole(self.path / ENGINE_PID, encode({"pid": pid, "started_at": started_at}))

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
