"""PROFILE/: what was asked, when, and at which concurrency. Written by `build`, read back here.

    PROFILE/
      manifest.json        format firsttoken/profile: inputs, windows, outcomes, classes, operating point, and the
                           sha256 of every other file, so that the manifest's own names the whole profile
      requests.parquet     one row per request in order of arrival, the fields of `ProfileRow`
      concurrency.parquet  scope, c, time_ns, arrivals (see `Profile.concurrency`)
      segments.parquet     only if prompts were read, as keyed ids or bodies: request, seq, role, chars of a message
      bodies.jsonl.zst     only with content `full` or `synthetic`: OpenAI Batch lines, custom_id is the row

Instants are nanoseconds from the profile's zero, which is the opening of its first window. `zero_wall_ns` is its wall
clock, or null where an imported trace does not tell it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from profiles.captures import body_of
from profiles.concurrency import Concurrency
from profiles.errors import FormatError, UsageError
from profiles.files import decode_line, read_document, read_lines, sha256_of
from profiles.measurable import NO_CONCURRENCY
from profiles.records import Record

if TYPE_CHECKING:
    import polars

    from profiles.sweep import Stays

FORMAT = "firsttoken/profile"
VERSION = 1
MANIFEST = "manifest.json"
REQUESTS = "requests.parquet"
CONCURRENCY = "concurrency.parquet"
SEGMENTS = "segments.parquet"
BODIES = "bodies.jsonl.zst"
FILES = (MANIFEST, REQUESTS, CONCURRENCY, SEGMENTS, BODIES)

# The scope of concurrency.parquet that counts every request; the others are class names.
ALL = "all"


# What this module's callers read without asking.
_MANIFEST_KEYS: dict[str, type] = {
    "observed_ns": int,
    "requests": int,
    "windows": list,
    "outcomes": dict,
    "dropped": dict,
    "models": dict,
    "workloads": dict,
    "content": str,
    "not_measurable": list,
    "operating_point": dict,
    "files": dict,
}


class ProfileRow(Record, frozen=True, kw_only=True):
    """One request of a profile. Counts of tokens are the engine's; None where nobody said.

    A request that was recorded has all instants. One from an imported trace has an arrival, and what else its file
    holds.
    """

    request: int  # dense, in order of arrival
    arrival_ns: int
    dispatch_ns: int | None = None
    first_token_ns: int | None = None
    end_ns: int | None = None
    ttft_ns: int | None = None  # first_token_ns − arrival_ns
    status: int | None = None
    outcome: str | None = None
    origin: str | None = None
    endpoint: str | None = None
    path: str | None = None
    model: str | None = None
    stream: bool | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    token_source: str | None = None  # usage, imported, estimated; of prompt_tokens and output_tokens
    finish: str | None = None
    # What was asked for: all that a class is told by (`classes.toml`).
    input_chars: int | None = None
    system_chars: int | None = None
    messages: int | None = None
    user_turns: int | None = None
    last_role: str | None = None
    tools: int | None = None
    tool_results: int | None = None
    images: int | None = None
    audios: int | None = None
    videos: int | None = None
    response_format: str | None = None
    schema: int | None = None  # dense id: requests with one id must follow one schema
    max_tokens: int | None = None
    temperature: float | None = None
    n: int | None = None
    reasoning: bool | None = None  # it was asked for
    code_share: float | None = None
    language: str | None = None
    unread: str | None = None  # why its body could not be read; then what was asked for is not known
    workload: str
    workload_rule: str  # which rule spoke
    in_flight: int | None = None  # others at arrival
    # Conversations (`sessions`). Ids are dense, in order of first appearance.
    session: int | None = None
    session_source: str | None = None  # header, body, prefix, answer, imported
    turn: int | None = None  # from 0
    parent: int | None = None  # the request that it continues
    link: str | None = None  # root, exact_reply, assistant_differs, declared, retry, identical, branch, compaction
    deps: list[int] | None = None  # other requests whose answers it holds
    think_ns: int | None = None  # from the parent's end to its arrival; None where they overlap
    think_kind: str | None = None  # human, tool
    # Shared prefixes (`prefixes`), in blocks of the manifest's `prefix`.
    blocks: int | None = None  # of its own prompt
    prefix_ref: int | None = None  # the latest earlier request with the longest common prefix
    prefix_blocks: int | None = None  # how much of it they share
    cache_group: int | None = None  # requests of different groups share no prefix in the engine's cache
    tenant: int | None = None
    capture: int = 0  # index into the manifest's inputs
    body: bool = False  # its body is in bodies.jsonl.zst
    late_ns: int = 0  # how late the recorder's own event loop was


class _BodyLine(Record, frozen=True, kw_only=True):
    custom_id: str
    body: msgspec.Raw = msgspec.Raw()
    body_text: str | None = None
    body_base64: str | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile directory whose manifest has been read. The tables are read when they are asked for."""

    path: Path
    manifest: dict[str, Any]
    sha256: str  # of manifest.json, which holds the sha256 of every other file

    def rows(self) -> list[ProfileRow]:
        """Every request, in order of arrival."""
        path = self.path / REQUESTS
        try:
            return msgspec.convert(_read_table(path), list[ProfileRow])
        except msgspec.ValidationError as error:
            raise FormatError(path, str(error), hint="Build the profile again from its captures.") from None

    def frame(self, columns: Sequence[str] | None = None) -> "polars.LazyFrame":
        """Every request in order of arrival, as a lazy frame of `table.SCHEMA` or of some of its columns.

        A column that a profile of an earlier version lacks is null.
        """
        import polars

        from profiles.table import SCHEMA

        path = self.path / REQUESTS
        try:
            present = polars.read_parquet_schema(path)
        except FileNotFoundError:
            raise FormatError(path, "no such file") from None
        except (polars.exceptions.PolarsError, OSError) as error:
            raise FormatError(path, f"not a readable Parquet file ({error})") from None
        wanted = SCHEMA if columns is None else columns
        return polars.scan_parquet(path).select(
            name if name in present else polars.lit(None, dtype=SCHEMA[name]).alias(name) for name in wanted
        )

    def segments(self) -> "polars.DataFrame | None":
        """The messages of each prompt, request, seq, role and chars, where the profile has them."""
        import polars

        path = self.path / SEGMENTS
        return polars.read_parquet(path) if SEGMENTS in self.manifest["files"] else None

    def bodies(self) -> dict[int, bytes]:
        """Request bodies byte for byte, by row. Empty for a profile without bodies."""
        return dict(self.read_bodies())

    def read_bodies(self) -> Iterator[tuple[int, bytes]]:
        """Row and body, one after another, so that they need not all be in memory."""
        if BODIES not in self.manifest["files"]:
            return
        path = self.path / BODIES
        for number, data in read_lines(path):
            line: _BodyLine = decode_line(path, number, data, _BodyLine)
            body = body_of(line)
            if body is None or not line.custom_id.isascii() or not line.custom_id.isdigit():
                raise FormatError(path, "needs a row number as custom_id and a body", line=number)
            yield int(line.custom_id), body

    def stays(self) -> "Stays":
        """Who was in flight from when to when: the requests, and those whose end nobody saw. Raises UsageError where
        the profile has no ends, or no window."""
        import numpy
        import polars

        from profiles.concurrency import union
        from profiles.sweep import Stays, in_order_of_start

        rows = self.frame(["arrival_ns", "end_ns", "workload"]).collect()
        windows = union((opened, close) for opened, close in self.manifest["windows"])
        if rows["end_ns"].null_count() or not windows:
            raise _no_concurrency(self.path)
        names = tuple(sorted(self.manifest["workloads"]))
        code = {name: at for at, name in enumerate(names)}
        start_ns, end_ns, order = in_order_of_start(
            rows["arrival_ns"].to_numpy(), rows["end_ns"].to_numpy(), self.manifest.get("unfinished", [])
        )
        group = numpy.full(len(start_ns), -1, dtype=numpy.int32)
        group[: rows.height] = rows["workload"].replace_strict(code, return_dtype=polars.Int32).to_numpy()
        return Stays(start_ns, end_ns, group[order], names, windows, self.manifest.get("zero_wall_ns"))

    def concurrency(self, scope: str = ALL) -> Concurrency:
        """Concurrency as it was observed. For a class, time counts its own requests in flight, and arrivals its
        requests by the *total* that they met: that decides the class's operating point.

        Raises UsageError where it is not known: an imported trace without ends, or load that nobody produced.
        """
        if NO_CONCURRENCY in self.manifest["not_measurable"]:
            raise _no_concurrency(self.path)
        levels = [level for level in _read_table(self.path / CONCURRENCY) if level["scope"] == scope]
        time_ns_at = {level["c"]: level["time_ns"] for level in levels if level["time_ns"]}
        return Concurrency(
            time_ns_at=time_ns_at,
            arrivals_at={level["c"]: level["arrivals"] for level in levels if level["arrivals"]},
            observed_ns=self.manifest["observed_ns"],
            duration_sum_ns=sum(k * time_ns for k, time_ns in time_ns_at.items()),
        )

    def verify(self) -> None:
        """Hold every file against its sha256 in the manifest. Raises FormatError that names the first that differs."""
        for name, expected in self.manifest["files"].items():
            path = self.path / name
            if not path.is_file():
                raise FormatError(path, "no such file, but the manifest lists it")
            if sha256_of(path) != expected:
                raise FormatError(path, "its sha256 is not the one in the manifest", hint="Build the profile again.")


def _no_concurrency(path: Path) -> UsageError:
    return UsageError(
        f"{path} holds no ends of requests, so nobody knows how many were in flight",
        "State a service time with --service-time, or record the traffic.",
    )


def read_profile(path: Path) -> Profile:
    """A profile directory, its manifest checked. Raises FormatError."""
    hint = "A profile is the directory that `firsttoken profile build` made."
    if not path.is_dir():
        raise FormatError(path, "not a directory" if path.exists() else "no such directory", hint=hint)
    if not (path / MANIFEST).exists():
        raise FormatError(path / MANIFEST, "no such file", hint=hint)
    manifest = read_document(path / MANIFEST, FORMAT, (VERSION,))
    for key, kind in _MANIFEST_KEYS.items():
        if not isinstance(manifest.get(key), kind):
            raise FormatError(path / MANIFEST, f"its key {key} is missing or is not {kind.__name__}")
    return Profile(path, manifest, sha256_of(path / MANIFEST))


def _read_table(path: Path) -> list[dict[str, Any]]:
    import polars

    try:
        return polars.read_parquet(path.read_bytes()).to_dicts()
    except FileNotFoundError:
        raise FormatError(path, "no such file") from None
    except polars.exceptions.PolarsError as error:
        raise FormatError(path, f"not a readable Parquet file ({error})") from None
