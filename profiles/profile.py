"""PROFILE/: what was asked, when, and at which concurrency. Written by `build`, read back here.

    PROFILE/
      manifest.json        format firsttoken/profile: inputs, windows, outcomes, classes, operating point, and the
                           sha256 of every other file, so that the manifest's own names the whole profile
      requests.parquet     one row per request in order of arrival, the fields of `ProfileRow`
      concurrency.parquet  scope, c, time_ns, arrivals (see `Profile.concurrency`)
      bodies.jsonl.zst     only if bodies were recorded: OpenAI Batch lines, custom_id is the row

Instants are nanoseconds from the profile's zero, which is the opening of its first window (`zero_wall_ns`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from profiles.captures import body_of
from profiles.concurrency import Concurrency
from profiles.errors import FormatError
from profiles.files import decode_line, read_document, read_lines, sha256_of
from profiles.records import Record

FORMAT = "firsttoken/profile"
VERSION = 1
MANIFEST = "manifest.json"
REQUESTS = "requests.parquet"
CONCURRENCY = "concurrency.parquet"
BODIES = "bodies.jsonl.zst"
FILES = (MANIFEST, REQUESTS, CONCURRENCY, BODIES)

# The scope of concurrency.parquet that counts every request; the others are class names.
ALL = "all"


# What this module's callers read without asking.
_MANIFEST_KEYS: dict[str, type] = {
    "zero_wall_ns": int,
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
    """One request of a profile. Token counts are the engine's; None where it said nothing."""

    request: int  # dense, in order of arrival
    arrival_ns: int
    dispatch_ns: int | None = None
    first_token_ns: int | None = None
    end_ns: int
    ttft_ns: int | None = None  # first_token_ns − arrival_ns
    status: int | None = None
    outcome: str
    origin: str | None = None
    endpoint: str
    path: str
    model: str | None = None
    stream: bool
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    finish: str | None = None
    input_chars: int
    messages: int
    user_turns: int
    tools: int
    response_format: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    workload: str
    workload_rule: str
    language: str | None = None
    in_flight: int  # others at arrival
    capture: int  # index into the manifest's inputs
    body: bool  # its body is in bodies.jsonl.zst
    late_ns: int  # how late the recorder's own event loop was


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

    def bodies(self) -> dict[int, bytes]:
        """Request bodies byte for byte, by row. Empty for a profile without content."""
        if self.manifest.get("content") != "full":
            return {}
        path = self.path / BODIES
        bodies: dict[int, bytes] = {}
        for number, data in read_lines(path):
            line: _BodyLine = decode_line(path, number, data, _BodyLine)
            body = body_of(line)
            if body is None or not line.custom_id.isascii() or not line.custom_id.isdigit():
                raise FormatError(path, "needs a row number as custom_id and a body", line=number)
            bodies[int(line.custom_id)] = body
        return bodies

    def concurrency(self, scope: str = ALL) -> Concurrency:
        """Concurrency as it was observed. For a class, time counts its own requests in flight, and arrivals its
        requests by the *total* that they met: that decides the class's operating point."""
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


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """What a class asked for and got, by nearest-rank quantiles. None where nothing was measured."""

    workload: str
    requests: int
    prompt_tokens_p50: int | None
    prompt_tokens_p90: int | None
    output_tokens_p50: int | None
    output_tokens_p90: int | None
    measured_ttft: int  # requests with a first token
    ttft_p50_ns: int | None
    ttft_p90_ns: int | None


def summarise(rows: Iterable[ProfileRow]) -> list[ClassSummary]:
    """One summary per class, the most frequent first."""
    classes: dict[str, list[ProfileRow]] = {}
    for row in rows:
        classes.setdefault(row.workload, []).append(row)
    ordered = sorted(classes.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_summary(workload, members) for workload, members in ordered]


def _summary(workload: str, members: list[ProfileRow]) -> ClassSummary:
    prompts = [row.prompt_tokens for row in members if row.prompt_tokens is not None]
    outputs = [row.output_tokens for row in members if row.output_tokens is not None]
    ttfts = [row.ttft_ns for row in members if row.ttft_ns is not None]
    return ClassSummary(
        workload=workload,
        requests=len(members),
        prompt_tokens_p50=quantile(prompts, 0.5),
        prompt_tokens_p90=quantile(prompts, 0.9),
        output_tokens_p50=quantile(outputs, 0.5),
        output_tokens_p90=quantile(outputs, 0.9),
        measured_ttft=len(ttfts),
        ttft_p50_ns=quantile(ttfts, 0.5),
        ttft_p90_ns=quantile(ttfts, 0.9),
    )


def quantile(values: Sequence[int], share: float) -> int | None:
    """The nearest-rank quantile, always one of the values. None of an empty list."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
