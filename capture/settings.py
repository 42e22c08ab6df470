"""What a recording was asked to do: one value, handed by the proxy to its scribe as JSON."""

import msgspec

from profiles.units import SECOND_NS

NONE = "none"  # lengths and parameters
HASHED = "hashed"  # and keyed digests of blocks, from which shared prefixes and sessions can be seen
FULL = "full"  # and the request body as sent
BODY_MODES = (NONE, HASHED, FULL)

ROTATE_BYTES = 256 * 1024 * 1024
ROTATE_NS = 3600 * SECOND_NS


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`folder` is the capture's directory, `prefix` makes the ids of this recorder unique."""

    folder: str
    upstream: str
    prefix: str
    listen: str = ""
    bodies: str = NONE
    hash_key: str | None = None  # a file; without it the capture has its own
    sample_bodies: float = 1.0  # share of the sessions whose bodies are kept
    tenants: bool = False
    rotate_bytes: int = ROTATE_BYTES
    rotate_ns: int = ROTATE_NS
    keep_ns: int | None = None
    keep_bytes: int | None = None
    quiet: bool = False
    metrics_listen: str | None = None  # host:port
    again: bool = False  # the scribe before died: this one goes on even where it cannot write yet
    taken: int = 0  # ends that the scribes before this one have taken,
    written: int = 0  # and written
