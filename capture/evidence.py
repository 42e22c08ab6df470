"""What lies in a capture directory, read to the end whatever is wrong with it: the input of `check`.

`profiles.captures.read_capture` stops at the first line that it cannot read, because a profile of half a capture would
be wrong. Here such a line becomes a `Flaw` with its place, and reading goes on.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zstandard

from capture.segments import SEGMENT, Segment, abandoned, list_segments, read_pieces, unpack
from profiles.capture_folder import FORMAT, IS_A_CAPTURE, MANIFEST, VERSION, read_manifest, readable, require_folder
from profiles.captures import EndLine, Line, SegmentLine
from profiles.errors import FormatError
from profiles.files import check_format, lock_folder

PROBLEM_CHARS = 120  # of a decoder's message

_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something in a segment that could not be read. Never holds what the line said."""

    problem: str
    torn: bool = False  # an unfinished last line, which a kill or a full disk leaves


class Sighting(NamedTuple):
    """A line of a segment, or what was wrong there. `shift_ns` moves its instants to the wall clock."""

    place: str  # file:line
    line: Line | Flaw
    shift_ns: int


@dataclass(frozen=True, slots=True)
class Folder:
    """A capture directory without its lines."""

    path: Path
    manifest: dict[str, Any] | None
    segments: list[Segment]
    mode: int
    modes: dict[str, int]  # of manifest and segments
    links: list[str]  # symbolic links where a file of ours should be
    abandoned: dict[str, int]  # unfinished files of dead writers, and their bytes
    recording: bool  # a recorder holds it

    @property
    def numbers(self) -> list[int]:
        """The numbers of the segments that are here, in order."""
        return sorted({segment.number for segment in self.segments})


def look_at(path: Path) -> Folder:
    """The state of a capture directory. Raises FormatError where there is none or it cannot be read."""
    with readable(path):
        require_folder(path)
        segments = list_segments(path)
        manifest = read_manifest(path) if (path / MANIFEST).exists() else None
        if manifest is None and not segments:
            raise FormatError(path / MANIFEST, "no such file", hint=IS_A_CAPTURE)
        modes = {segment.path.name: segment.mode for segment in segments}
        if manifest is not None:
            modes[MANIFEST] = stat.S_IMODE((path / MANIFEST).stat().st_mode)
        return Folder(
            path,
            manifest,
            segments,
            stat.S_IMODE(path.stat().st_mode),
            modes,
            sorted(entry.name for entry in path.iterdir() if _is_ours(entry.name) and entry.is_symlink()),
            {left.name: left.stat().st_size for left in abandoned(path)},
            is_recording(path),
        )


def is_recording(path: Path) -> bool:
    """Whether a recorder holds the directory. Takes the lock for a moment; a recorder that starts tries again."""
    descriptor = lock_folder(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def read_sightings(segments: Iterable[Segment]) -> Iterator[Sighting]:
    """Every line of the segments in order. A compressed segment replaces its plain twin."""
    chosen = {segment.number: segment for segment in segments}  # the compressed form is listed last
    for number in sorted(chosen):
        yield from _sightings_of(chosen[number].path)


def _sightings_of(path: Path) -> Iterator[Sighting]:
    shift_ns: int | None = None
    number = 0
    try:
        for number, data in enumerate(_lines_of(path), start=1):
            if isinstance(data, Flaw):
                yield Sighting(f"{path.name}:{number}", data, shift_ns or 0)
                continue
            line = _decoded(path, number, data, shift_ns is None)
            if isinstance(line, SegmentLine):
                shift_ns = line.wall_ns - line.mono_ns
            yield Sighting(f"{path.name}:{number}", line, shift_ns or 0)
    except OSError as problem:
        yield Sighting(f"{path.name}:{number + 1}", Flaw(f"cannot be read ({problem.strerror})"), shift_ns or 0)


def _decoded(path: Path, number: int, data: bytes, first: bool) -> Line | Flaw:
    try:
        line: Line = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        return Flaw(str(error)[:PROBLEM_CHARS])
    if isinstance(line, SegmentLine):
        try:
            check_format(path, {"format": line.format, "version": line.version}, FORMAT, (VERSION,))
        except FormatError as error:
            return Flaw(error.problem.removeprefix(f"{path}: "))
    elif first:
        return Flaw("it comes before the segment line, so its clock is not known")
    elif isinstance(line, EndLine):
        dispatch_ns = line.arrival_ns if line.dispatch_ns is None else line.dispatch_ns
        if not line.arrival_ns <= dispatch_ns <= line.end_ns:
            return Flaw(f"the instants of request {line.id} are out of order")
    return line


def _lines_of(path: Path) -> Iterator[bytes | Flaw]:
    """The lines without their newline; then a flaw where the last one has none or the file is damaged."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        if path.suffix != ".zst":
            yield from _lines_of(path.with_name(path.name + ".zst"))  # it was compressed since it was listed
        return  # or purged
    rest = b""
    try:
        for piece in unpack(descriptor) if path.suffix == ".zst" else read_pieces(descriptor):
            *lines, rest = (rest + piece).split(b"\n")
            yield from filter(None, lines)
    except zstandard.ZstdError as error:
        yield Flaw(f"damaged, what follows is lost ({error})"[:PROBLEM_CHARS])
    finally:
        os.close(descriptor)
    if rest:
        yield Flaw("torn last line", torn=True)


def _is_ours(name: str) -> bool:
    return name == MANIFEST or SEGMENT.fullmatch(name) is not None
