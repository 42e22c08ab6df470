"""Deleting what a capture should no longer hold: old segments, or the bodies in them.

Segments go whole, oldest first. Bodies go line by line: request bodies and whatever was computed from them with a key;
instants, lengths and outcomes stay byte for byte. Each segment is replaced atomically and keeps its age. A line that
cannot be read is left out of the replacement, since nobody can say what it holds. The hash key goes with the bodies: it
is there to compare digests that are no more.

While a recorder holds the directory its newest segment is left alone; the others are closed and may change.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from capture.segments import (
    Purged,
    Segment,
    claim,
    list_segments,
    outlived,
    pack,
    purged,
    read_pieces,
    remove_segment,
    replace_segment,
    sync_folder,
    unpack,
)
from capture.settings import BODY_MODES, FULL, HASHED, NONE
from capture.shelf import SAME, compare
from profiles.capture_folder import AS_ITS_OWNER, MANIFEST, key_files, read_manifest, readable, require_folder
from profiles.captures import SegmentLine
from profiles.errors import FirsttokenError
from profiles.files import lock_folder, write_document
from profiles.records import RequestFacts

BODY_KEYS = ("body", "body_text", "body_base64")
# What `request` may go on to say: lengths and parameters. A key that we do not know may have been made of the text.
KEPT_FACTS = frozenset(RequestFacts.__struct_fields__) - {"keyed"}

Lines = dict[str, msgspec.Raw]


@dataclass(slots=True)
class Stripped:
    """What the removal of bodies did, or would do."""

    segments: int = 0  # that hold something to remove
    bodies: int = 0  # requests whose body or keyed facts went
    unreadable: int = 0  # lines that were left out
    freed_bytes: int = 0
    key: bool = False  # the hash key goes too
    busy: list[str] = field(default_factory=list)  # segments that another process is at work on, and why we know
    damaged: list[str] = field(default_factory=list)  # segments that cannot be unpacked, and why


@dataclass(frozen=True, slots=True)
class Held:
    """A capture that is open for purging."""

    folder: Path
    segments: list[Segment]
    closed: int  # segments up to this number may be purged
    live: str | None  # name of the segment that a recorder is writing


@contextmanager
def hold(folder: Path) -> Iterator[Held]:
    """Take a capture, so that no recorder starts on it meanwhile; one that runs keeps its newest segment.

    Raises FormatError where there is no capture, and FirsttokenError where it cannot be read.
    """
    with readable(folder):
        require_folder(folder)
        read_manifest(folder)
        descriptor = lock_folder(folder)
    try:
        segments = list_segments(folder)
        newest = segments[-1] if segments else None
        if descriptor is not None or newest is None:
            yield Held(folder, segments, newest.number if newest else 0, None)
        else:
            yield Held(folder, segments, newest.number - 1, newest.path.name)
    except OSError as problem:
        hint = AS_ITS_OWNER if isinstance(problem, PermissionError) else ""
        raise FirsttokenError(f"{folder}: cannot be purged ({problem.strerror})", hint) from None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def old_segments(
    held: Held, *, now_wall_ns: int, keep_ns: int | None = None, keep_bytes: int | None = None
) -> list[Segment]:
    """The segments to delete by age or by total size."""
    return outlived(held.segments, held.closed, now_wall_ns=now_wall_ns, keep_ns=keep_ns, keep_bytes=keep_bytes)


def delete(held: Held, segments: Iterable[Segment]) -> Purged:
    """Delete segments, oldest first, and say so in the manifest unless a recorder writes that. Raises OSError."""
    gone: list[Segment] = []
    try:
        for segment in segments:
            with suppress(FileNotFoundError):
                remove_segment(segment)
                gone.append(segment)
    finally:
        total = purged(gone)
        if gone and held.live is None:  # a recorder sees by itself that they are gone
            left = {} if list_segments(held.folder) else {"bodies": NONE}
            _tell_manifest(
                held.folder, lambda found: left | {"purged": (Purged.of(found.get("purged")) + total).document()}
            )
    return total


def strip_bodies(held: Held, *, really: bool) -> Stripped:
    """Take bodies and keyed facts out of all closed segments, and the hash key where no recorder needs it.

    Where not `really`, only count them. Raises OSError.
    """
    done = Stripped()
    left: set[str | None] = {NONE}  # None stands for a mode that cannot be read
    for segment in held.segments:
        if segment.number > held.closed:
            continue
        try:
            _strip_segment(segment, done, really)
        except FileNotFoundError:
            continue  # its compressed form is listed too, or it was purged
        except BlockingIOError as problem:
            done.busy.append(f"{segment.path.name}: {problem.strerror or 'another process is at work on it'}")
            left.add(_mode_of(segment))
        except zstandard.ZstdError as problem:
            done.damaged.append(f"{segment.path.name}: damaged ({problem})")
            left.add(_mode_of(segment))
    if held.live is not None:
        return done
    keys = key_files(held.folder)
    done.key = bool(keys)
    if really:
        for path in keys:
            path.unlink()
        if None not in left:
            _tell_manifest(
                held.folder, lambda found: {"bodies": next(mode for mode in (FULL, HASHED, NONE) if mode in left)}
            )
    return done


def _mode_of(segment: Segment) -> str | None:
    """What the head of a segment says of its bodies; None where that cannot be read."""
    try:
        descriptor = os.open(segment.path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            text = next(iter(unpack(descriptor) if segment.packed else read_pieces(descriptor)), b"")
        finally:
            os.close(descriptor)
        mode = msgspec.json.decode(text.partition(b"\n")[0], type=SegmentLine).bodies
    except (OSError, zstandard.ZstdError, msgspec.DecodeError):
        return None
    return mode if mode in BODY_MODES else None


def _strip_segment(segment: Segment, done: Stripped, really: bool) -> None:
    with claim(segment.path) as source:
        state = os.fstat(source)
        packed_twin = segment.path.with_name(segment.path.name + ".zst")
        if not segment.packed and packed_twin.exists() and compare(packed_twin, source) == SAME:
            # A kill left both forms. The compressed one comes next; were this one kept, its bodies would be too.
            if really:
                segment.path.unlink()
                done.freed_bytes += state.st_size
            return
        before = done.bodies, done.unreadable
        pieces = unpack(source) if segment.packed else read_pieces(source)
        # First a count: most segments of a capture without bodies need no new file, and a frame says its size first.
        size = sum(len(line) for line in _stripped(pieces, done))
        if (done.bodies, done.unreadable) == before:
            return
        done.segments += 1
        if really:
            again = unpack(source) if segment.packed else read_pieces(source)
            lines = _stripped(again, Stripped())
            new_bytes = replace_segment(segment.path, pack(lines, size) if segment.packed else lines, state.st_mtime_ns)
            done.freed_bytes += state.st_size - new_bytes
    sync_folder(segment.path.parent)


def _stripped(pieces: Iterable[bytes], done: Stripped) -> Iterator[bytes]:
    """The lines of a segment without what is to go, each with its newline."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in filter(None, lines):
            kept = strip_line(line)
            if kept is None:
                done.unreadable += 1
            else:
                done.bodies += kept is not line and not line.startswith(b'{"line":"segment"')
                yield kept + b"\n"
    if rest:
        done.unreadable += 1  # torn


def strip_line(line: bytes) -> bytes | None:
    """A line without bodies and keyed facts: the same object where there are none, None where it cannot be read."""
    try:
        keys = msgspec.json.decode(line, type=Lines)
        kind = msgspec.json.decode(keys["line"], type=str)
        if kind == "segment":
            if "bodies" not in keys or msgspec.json.decode(keys["bodies"]) == NONE:
                return line
            return msgspec.json.encode(keys | {"bodies": NONE})
        kept: dict[str, Any] = {key: value for key, value in keys.items() if key not in BODY_KEYS}
        changed = len(kept) < len(keys)
        if "request" in kept:
            facts = msgspec.json.decode(kept["request"], type=Lines)
            kept["request"] = {
                key: value for key, value in facts.items() if key in KEPT_FACTS or bytes(value) == b"null"
            }
            changed = changed or len(kept["request"]) < len(facts)
    except (msgspec.DecodeError, KeyError):
        return None
    return msgspec.json.encode(kept) if changed else line


def _tell_manifest(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    found = read_manifest(folder)
    write_document(folder / MANIFEST, found | change(found))
