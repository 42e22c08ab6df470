"""The key of a capture's hashes: who holds it and the capture can try guesses, so it is the one secret we keep.

It lives beside the segments and outlasts a restart, so that prefixes stay visible over all windows of a capture, and a
sampled session stays whole; several recorders of one fleet may be given one key.

It ends with its use. `profile build` destroys it once the profile is written, and `capture purge --bodies` with the
digests, both only while no recorder holds the capture: one that goes on needs it. A recorder that comes later makes
another one, so its ids cannot be compared with those before. A file that was given with --hash-key is its owner's and
stays.
"""

import os
import stat
from pathlib import Path
from typing import Final

from profiles.capture_folder import HASH_KEY
from profiles.errors import UsageError
from profiles.files import FILE_MODE

KEY_BYTES: Final = 32
SHORTEST_KEY_BYTES: Final = 16
LONGEST_KEY_FILE_BYTES: Final = 4096
_REMAKE = "Make one with: (umask 077; openssl rand -hex 32 > FILE)"


def open_key(folder: Path, given: Path | None = None) -> bytes:
    """The key of a capture: that of the file `given`, else of `folder`/hash.key, which is made where it is missing.

    A file holds the key in hexadecimal, or as plain bytes. Raises UsageError where it is no private file of ours or
    too short to be a key.
    """
    if given is not None:
        return _read_key(given)
    path = folder / HASH_KEY
    made = os.urandom(KEY_BYTES).hex().encode() + b"\n"
    try:
        # Under another name first: a kill in the middle leaves no half key behind.
        fresh = folder / f"{HASH_KEY}.{os.getpid()}"
        if not path.is_symlink() and not path.exists():
            _write_new(fresh, made)
            try:
                os.link(fresh, path)  # fails where another recorder was faster: its key is taken
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
    except OSError as problem:
        raise UsageError(f"{path}: cannot make the hash key: {problem.strerror}", "Check the directory.") from None
    return _read_key(path)


def _write_new(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # left by a process that died and had our number
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read_key(path: Path) -> bytes:
    try:
        # Not to block: a pipe by that name would never open.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        link = path.is_symlink()
        why = "is a symbolic link, which is not followed" if link else f"cannot be read: {problem.strerror}"
        raise UsageError(f"{path}: the hash key {why}", "Name the file itself." if link else _REMAKE) from None
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise UsageError(f"{path}: the hash key is not a regular file", _REMAKE)
        if stat.S_IMODE(state.st_mode) & 0o077:
            raise UsageError(f"{path}: the hash key can be read or changed by others", f"Do: chmod 600 {path}")
        content = os.read(descriptor, LONGEST_KEY_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > LONGEST_KEY_FILE_BYTES:
        raise UsageError(f"{path}: a hash key has at most {LONGEST_KEY_FILE_BYTES} bytes", _REMAKE)
    try:
        key = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        key = content
    if len(key) < SHORTEST_KEY_BYTES:
        raise UsageError(f"{path}: a hash key has at least {SHORTEST_KEY_BYTES} bytes, this one {len(key)}", _REMAKE)
    return key
