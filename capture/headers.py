"""The few headers of a request that are looked at, and the words that are kept of them.

A list of what may be read, never of what may not: an unknown header is not handed over at all. What is kept is a word
of a fixed list, or a keyed id made by `redact`; never a value.
"""

from collections.abc import Iterable
from typing import Final

from profiles.requests import OTHER
from profiles.session_names import AGENT_HEADER, PARENT_AGENT_HEADER, PARENT_HEADERS, SESSION_HEADERS

# What tells tenants apart: read only where tenants are asked for, and kept only as a keyed id.
TENANT_HEADERS: Final = ("authorization", "api-key", "x-api-key")

_PLAIN_HEADERS: Final = ("content-type", "content-encoding", "accept", "user-agent")
# The names that the recorder hands over, in lower case. The three that hold credentials are not among them.
HEADERS_READ: Final = frozenset(
    name.encode() for name in (*_PLAIN_HEADERS, *SESSION_HEADERS, *PARENT_HEADERS, AGENT_HEADER, PARENT_AGENT_HEADER)
)

MEDIA_TYPES: Final = frozenset(
    "application/json text/event-stream application/x-ndjson application/octet-stream text/plain multipart/form-data "
    "application/x-www-form-urlencoded */*".split()
)
# A part of the user agent, in lower case, and the client that it means. The first that is found counts.
CLIENTS: Final = (
    ("litellm", "litellm"),
    ("langchain", "langchain"),
    ("openai/python", "openai-python"),
    ("asyncopenai/python", "openai-python"),
    ("openai/js", "openai-node"),
    ("anthropic/python", "anthropic-python"),
    ("python-httpx", "httpx"),
    ("aiohttp", "aiohttp"),
    ("python-requests", "requests"),
    ("node-fetch", "node-fetch"),
    ("undici", "node-fetch"),
    ("go-http-client", "go"),
    ("okhttp", "java"),
    ("java", "java"),
    ("curl/", "curl"),
    ("mozilla/", "browser"),
)

_LONGEST_AGENT_BYTES = 500


def headers_read(*, tenants: bool) -> frozenset[bytes]:
    """The headers that a recording needs, in lower case: the recorder passes on no others."""
    return HEADERS_READ | {name.encode() for name in TENANT_HEADERS} if tenants else HEADERS_READ


def first_of_each(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, bytes]:
    """The first value of each header that has one, by its name in lower case."""
    found: dict[str, bytes] = {}
    for name, value in headers:
        plain = value.strip()
        if plain:
            found.setdefault(name.decode("latin-1").lower(), plain)
    return found


def encoding_of(value: bytes | None) -> str:
    """The content coding of a request, "" for none. An unknown one is returned as it is; it is not to be stored."""
    coding = value.decode("latin-1").lower() if value else ""
    return "" if coding == "identity" else coding.removeprefix("x-")


def media_type_of(value: bytes | None) -> str | None:
    """One of MEDIA_TYPES, of several the first; else "other"."""
    if value is None:
        return None
    first = value.decode("latin-1").partition(",")[0].partition(";")[0].strip().lower()
    return first if first in MEDIA_TYPES else OTHER


def client_of(value: bytes | None) -> str | None:
    """The client that a user agent means, of CLIENTS; else "other"."""
    if value is None:
        return None
    agent = value[:_LONGEST_AGENT_BYTES].decode("latin-1").lower()
    return next((client for mark, client in CLIENTS if mark in agent), OTHER)
