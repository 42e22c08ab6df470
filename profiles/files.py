"""Reading and writing the project's files. Owner-only, strict JSON, whole or not at all.

Rules of this module:

* A file of ours is 0600 and a directory of ours 0700: captures hold what users asked.
* A document (manifest, verdict) is replaced atomically; a journal (JSON lines) is only appended to.
* JSON is strict: a NaN or an infinity is an error here, never a silent null.
"""

import errno
import fcntl
import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import orjson

from profiles.errors import FirsttokenError, FormatError, UsageError
from profiles.version import __version__

# What a mistyped path leads to. Anything else, such as a full disk, is a failure and not wrong usage.
MISTAKEN_PATH = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM),
    *(errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
}
FILE_MODE = 0o600
FOLDER_MODE = 0o700


def tool_version() -> str:
    """The name and version that every file of ours carries."""
    return f"firsttoken {__version__}"


def encode(document: Any) -> bytes:
    """One line of strict JSON. Raises ValueError for a number that JSON cannot hold."""
    _refuse_non_finite(document)
    return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)


def encode_pretty(document: Any) -> bytes:
    """The same document, indented, with a final newline, for people and for diffs."""
    _refuse_non_finite(document)
    layout = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | layout)


def _refuse_non_finite(value: Any, key: str = "$") -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{key} is {value}, which JSON cannot hold")
    elif isinstance(value, dict):
        for name, item in value.items():
            _refuse_non_finite(item, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_non_finite(item, f"{key}[{index}]")
    elif hasattr(value, "tolist"):  # numpy: orjson would write a NaN of it as null
        _refuse_non_finite(value.tolist(), key)
    elif is_dataclass(value):
        for field in fields(value):
            _refuse_non_finite(getattr(value, field.name), f"{key}.{field.name}")


def make_folder(path: Path) -> None:
    """Create a directory of ours, 0700, with its parents. One that exists keeps its mode.

    Raises UsageError where the system refuses: the path is what a user gave, or lies below it.
    """
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise UsageError(f"{path}: cannot be made ({reason})", "Give another directory.") from None


def lock_folder(path: Path) -> int | None:
    """Take a directory for this process: the descriptor that holds the lock until it is closed, or None if it is taken.

    The kernel gives it back when the process ends, however it ends.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass  # a filesystem without locks
    return descriptor


@contextmanager
def writable(path: Path, hint: str = "Give another path with -o.") -> Iterator[None]:
    """Turn what the system refuses in the block into a FirsttokenError that names `path`, as the user gave it.

    A path that cannot be is a UsageError.
    """
    try:
        yield
    except OSError as problem:
        # Where we write is often a sibling, whose name tells nobody anything.
        reason = problem.strerror or str(problem)
        kind = UsageError if problem.errno in MISTAKEN_PATH else FirsttokenError
        raise kind(f"{path}: cannot be written ({reason})", hint) from None


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON document so that a reader sees the old one or the new one, never a half."""
    write_whole(path, encode_pretty(document))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: a sibling is written, synced and renamed over it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def append_line(path: Path, document: Any, *, sync: bool = False) -> None:
    """Append one JSON line in one write, so that a kill leaves at most one torn line.

    With `sync` it outlives a power cut.
    Call `cut_torn_line` once when a journal is taken up again: what follows a torn line is lost with it.
    """
    data = (document if isinstance(document, bytes) else encode(document)) + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    try:
        while data:  # a nearly full disk takes a part; the next write then says why
            data = data[os.write(descriptor, data) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cut_torn_line(path: Path) -> int:
    """Cut an unfinished last line off a journal. Returns how many bytes were cut."""
    if not path.exists():
        return 0
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        start = size
        while start > 0:
            step = min(65536, start)
            file.seek(start - step)
            found = file.read(step).rfind(b"\n")
            if found >= 0:
                keep = start - step + found + 1
                break
            start -= step
        else:
            keep = 0
        if keep < size:
            file.truncate(keep)
        return size - keep


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The finished lines of a journal, plain or `.zst`, as (line number from 1, bytes without the newline).

    An unfinished last line is what a kill leaves behind; it is not yielded.
    """
    for number, line in enumerate(_open_lines(path), start=1):
        if line.endswith(b"\n"):
            text = line[:-1]
            if text:
                yield number, text


def _open_lines(path: Path) -> Iterator[bytes]:
    with opened(path) as raw:
        yield from _unpacked_lines(path, raw) if path.suffix == ".zst" else raw


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file that a user named, to be read. Raises FormatError where it is none or may not be read."""
    try:
        with path.open("rb") as raw:
            yield raw
    except FileNotFoundError:
        raise FormatError(path, "no such file") from None
    except IsADirectoryError:
        raise FormatError(path, "is a directory, a file was expected") from None
    except PermissionError:
        raise FormatError(path, "may not be read by this user") from None


def unpack(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The content of a zstd file, given in pieces. Raises zstandard.ZstdError where it is damaged or cut.

    A stream reader of the library would take a file that was cut for one that ended.
    """
    import zstandard

    reader: zstandard.ZstdDecompressionObj | None = None
    frames = 0
    for piece in pieces:
        rest = piece
        while rest:
            reader = reader or zstandard.ZstdDecompressor().decompressobj()
            if text := reader.decompress(rest):
                yield text
            rest = b""
            if reader.eof:
                rest, reader = reader.unused_data, None
                frames += 1
    if reader is not None or not frames:
        raise zstandard.ZstdError("the file ends inside a frame")


def _unpacked_lines(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    import zstandard

    rest = b""
    try:
        for text in unpack(iter(lambda: raw.read(1 << 16), b"")):
            *lines, rest = (rest + text).split(b"\n")
            yield from (line + b"\n" for line in lines)
    except zstandard.ZstdError as error:
        raise FormatError(path, f"not a readable zstd file ({error})") from None
    if rest:
        yield rest


def decode_line(path: Path, line: int, data: bytes, form: Any) -> Any:
    """One line as a record of the type `form`, which may be a union of tagged structs.

    Raises FormatError with file, line and the key that is wrong.
    """
    try:
        return msgspec.json.decode(data, type=form)
    except msgspec.DecodeError as error:  # a ValidationError is one, and names the key
        raise FormatError(path, str(error), line=line) from None


def read_document(path: Path, format_name: str, versions: tuple[int, ...] = (1,)) -> dict[str, Any]:
    """A JSON document of ours, its `format` and `version` checked. Raises FormatError."""
    try:
        document = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise FormatError(path, "no such file") from None
    except (NotADirectoryError, IsADirectoryError):
        raise FormatError(path, "not a file") from None
    except PermissionError:
        raise FormatError(path, "may not be read by this user") from None
    except OSError as error:  # a name that is too long, a loop of links
        raise FormatError(path, f"cannot be read ({error.strerror})") from None
    except orjson.JSONDecodeError as error:
        raise FormatError(path, f"not JSON ({error})") from None
    check_format(path, document, format_name, versions)
    return dict(document)


def check_format(path: Path, document: Any, format_name: str, versions: tuple[int, ...] = (1,), line: int = 0) -> None:
    """Raise FormatError unless `document` says that it is `format_name` in a version we can read."""
    found = document.get("format") if isinstance(document, dict) else None
    if found != format_name:
        said = f"its format is {found!r}" if found else "it has no format key"
        raise FormatError(path, f"not a {format_name} file: {said}", line=line)
    number = document.get("version")
    if number not in versions:
        readable = ", ".join(map(str, versions))
        raise FormatError(
            path,
            f"{format_name} version {number} cannot be read; this {tool_version()} reads version {readable}",
            line=line,
            hint="Use the firsttoken that wrote it, or make the file again with this one.",
        )


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes, as sha256sum prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
