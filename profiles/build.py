"""CAPTURE directories to one PROFILE directory.

1. `scan`   reads the captures line by line and lays them on one wall clock
2. `write`  puts them in order, finds sessions and shared prefixes, names classes, sweeps the concurrency
3. the captures' hash keys are destroyed: from here on nobody can try guesses on what was recorded

`read_stays` is the same without the last step, into a directory that is gone again: `concurrency` looks at captures so.
"""

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from profiles.capture_folder import HASH_KEY, key_files, readable, segment_paths
from profiles.captures import Capture, Interval
from profiles.classify import Rules
from profiles.concurrency import union
from profiles.errors import FormatError, UsageError
from profiles.files import lock_folder, sha256_of
from profiles.profile import Profile
from profiles.profile_folder import check_free
from profiles.scan import KeyBodies, Scanned, read_bodies, scan_captures
from profiles.sweep import Stays
from profiles.units import format_duration
from profiles.write import write_profile


@dataclass(frozen=True, slots=True)
class Built:
    """A profile that was made, and what there is to say about it."""

    profile: Profile
    warnings: list[str]
    notes: list[str]  # what was done as it should be


def build_profile(
    paths: Sequence[Path],
    out: Path,
    *,
    skews_ns: Mapping[Path, int] | None = None,
    rules: Rules | None = None,
    force: bool = False,
    now_wall_ns: Callable[[], int] = time.time_ns,
) -> Built:
    """Write the profile of the captures `paths` to the new directory `out`.

    `skews_ns` says of a capture how far the clock of its host was ahead. Afterwards the hash keys of the captures are
    destroyed, except where a recorder goes on, and a note or a warning names each.

    Raises UsageError where `out` exists, unless `force` is given and it holds a profile and nothing else,
    FormatError for a capture that cannot be read or is empty, and FirsttokenError where `out` cannot be written.
    Nothing is destroyed then.
    """
    with readable(out, "Give another path with -o."):
        check_free(out, force=force)
    built = _build(paths, out, skews_ns or {}, rules=rules, force=force, now_wall_ns=now_wall_ns)
    for path in paths:
        _destroy_key(path, built)
    return built


def read_stays(
    paths: Sequence[Path], skews_ns: Mapping[Path, int] | None = None, *, rules: Rules | None = None
) -> tuple[Stays, list[str]]:
    """The stays of all requests of the captures, and warnings. Raises as `build_profile`; destroys nothing."""
    with tempfile.TemporaryDirectory(prefix="firsttoken-") as folder:
        built = _build(paths, Path(folder) / "profile", skews_ns or {}, rules=rules, keep_bodies=False)
        return built.profile.stays(), built.warnings


def _build(
    paths: Sequence[Path],
    out: Path,
    skews_ns: Mapping[Path, int],
    *,
    rules: Rules | None,
    force: bool = False,
    keep_bodies: bool = True,
    now_wall_ns: Callable[[], int] = time.time_ns,
) -> Built:
    _refuse_twice(paths)
    with tempfile.TemporaryDirectory(prefix=".firsttoken-", dir=_existing(out.parent)) as spill:
        key_body = _key_bodies() if keep_bodies else None
        scanned = scan_captures(paths, Path(spill), skews_ns=skews_ns, keep_bodies=keep_bodies, key_body=key_body)
        _refuse_empty(scanned, may_wait=not keep_bodies)
        zero_ns = union(scanned.windows)[0][0]
        scanned.pieces.zero_ns = zero_ns
        warnings = _warnings(scanned, skews_ns)
        profile = write_profile(
            out,
            scanned.pieces,
            # Of captures that are only looked at nobody asks for the sha256, which reads every byte again.
            source={"kind": "capture"}
            | ({"inputs": [_input(each, skews_ns) for each in scanned.captures]} if keep_bodies else {}),
            windows=[(opened - zero_ns, close - zero_ns) for opened, close in scanned.windows],
            zero_wall_ns=zero_ns,
            unfinished=[_moved(stay, zero_ns) for stay in scanned.unfinished],
            dropped=scanned.dropped,
            bodies=read_bodies(scanned.bodies) if scanned.bodies is not None else (),
            content="full" if scanned.bodies is not None else "none",
            warnings=warnings,
            rules=rules,
            force=force,
            now_wall_ns=now_wall_ns,
        )
        return Built(profile, warnings, [])


def _existing(folder: Path) -> Path | None:
    """Where the pieces of a build wait: beside what is made of them, so that they need no second disk."""
    return folder if folder.is_dir() and os.access(folder, os.W_OK) else None


def _key_bodies() -> KeyBodies:
    """Keyed ids of recorded bodies, under a key that is gone when the build ends."""
    from profiles.digests import Digests, keyed_facts_of

    digests = Digests(secrets.token_bytes(32))
    return lambda body: keyed_facts_of(body, digests)


def _moved(stay: Interval, zero_ns: int) -> Interval:
    return Interval(stay.start_ns - zero_ns, None if stay.end_ns is None else stay.end_ns - zero_ns)


def _refuse_empty(scanned: Scanned, *, may_wait: bool) -> None:
    captures = scanned.captures
    if not scanned.pieces.rows and not scanned.unfinished:
        raise _empty(captures, scanned.dropped["not_post"])
    if not any(opened < close for opened, close in scanned.windows):
        raise FormatError(captures[0].path, "no observed time: the capture has no window", hint="Record again.")
    if not scanned.pieces.rows and not may_wait:
        hint = "Stop the recorder, or wait for an answer."
        raise FormatError(captures[0].path, "no request was seen to end", hint=hint)


def _empty(captures: Sequence[Capture], not_post: int) -> FormatError:
    seen = f" ({not_post} that are not POST)" if not_post else ""
    for capture in captures:
        if gone := (capture.manifest.get("purged") or {}).get("segments", 0):
            segments = "1 of its segments was" if gone == 1 else f"{gone} of its segments were"
            return FormatError(
                capture.path,
                f"no requests are left in this capture{seen}: {segments} purged",
                hint="Name another capture. `firsttoken record --keep-days` and `--keep-gb` say how much is kept.",
            )
    return FormatError(
        captures[0].path, f"no requests in this capture{seen}", hint="Send traffic through the recorder."
    )


def _refuse_twice(paths: Sequence[Path]) -> None:
    seen: set[str] = set()
    for path in paths:
        if (real := os.path.realpath(path)) in seen:
            raise UsageError(f"{path} is given twice", "Name each capture once: its requests would be counted double.")
        seen.add(real)


def _warnings(scanned: Scanned, skews_ns: Mapping[Path, int]) -> list[str]:
    warnings = []
    for one, other in combinations(scanned.captures, 2):
        if any(a[0] < b[1] and b[0] < a[1] for a in one.windows for b in other.windows):
            warnings.append(
                f"{one.path} and {other.path} overlap in time: their requests in flight are added up over the union"
                " of their windows. That is right for recorders in front of one engine whose clocks agree; where only"
                " one of them was watching, the count is a lower bound."
            )
    for path, skew_ns in skews_ns.items():
        ahead = "ahead" if skew_ns > 0 else "behind"
        warnings.append(f"the clock of {path} is taken to be {format_duration(abs(skew_ns))} {ahead}, as you said")
    if scanned.dropped["recorder"]:
        dropped = scanned.dropped["recorder"]
        warnings.append(f"the recorder dropped {dropped} records: the concurrency is a lower bound")
    return warnings


def _input(capture: Capture, skews_ns: Mapping[Path, int]) -> dict[str, Any]:
    with readable(capture.path):
        segments = {path.name: sha256_of(path) for path in segment_paths(capture.path)}
    return {
        "name": capture.path.resolve().name,
        "segments": segments,
        "skew_ns": skews_ns.get(capture.path, 0),
    }


def _destroy_key(folder: Path, built: Built) -> None:
    """Destroy a capture's hash key and say so, in one sentence. A key in a file of the user's own is not ours."""
    key = folder / HASH_KEY
    try:
        if not key_files(folder):
            return
        lock = lock_folder(folder)
        if lock is None:
            built.warnings.append(f"{key} is kept, for a recorder goes on with it; the next build after it destroys it")
            return
        try:
            for path in key_files(folder):
                path.unlink()
        finally:
            os.close(lock)
        built.notes.append(
            f"{key} was destroyed: nobody can try guesses on this capture any more, and new records get another key"
        )
    except OSError as problem:
        reason = problem.strerror
        built.warnings.append(f"{key} could not be destroyed ({reason}); who has it and the capture can try guesses")
