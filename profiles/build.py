"""CAPTURE directories to one PROFILE directory.

1. `read_traffic`  reads the captures and lays them on one wall clock: windows, requests, who was in flight
2. `measure_all`   concurrency of all requests, and of each class
3. `build_profile` writes the tables and the manifest into a sibling directory and renames it: whole or not at all;
   then it destroys the captures' hash keys

Only POST requests are traffic. A gateway that polls /health or /v1/models puts no load on the engine, and would make
the concurrency look busier than it is; such requests are counted as dropped.
"""

import io
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from profiles.capture_folder import HASH_KEY, key_files, readable, segment_paths
from profiles.captures import Capture, Interval, body_fields, read_capture
from profiles.classify import Workload, classify
from profiles.concurrency import COVER, Concurrency, Window, censor, is_observed, measure, others_in_flight, union
from profiles.dialects import EMBEDDINGS
from profiles.errors import FirsttokenError, FormatError, UsageError
from profiles.files import (
    FILE_MODE,
    FOLDER_MODE,
    encode,
    lock_folder,
    make_folder,
    read_document,
    sha256_of,
    tool_version,
    write_document,
    write_whole,
)
from profiles.profile import ALL, BODIES, CONCURRENCY, FILES, FORMAT, MANIFEST, REQUESTS, VERSION, ProfileRow
from profiles.records import Exchange

if TYPE_CHECKING:
    import polars

# What a profile without bodies cannot answer: the effect depends on the text, not on its length.
NEEDS_CONTENT = ("acceptance", "guided decoding cost", "output equality")


@dataclass(frozen=True, slots=True)
class Request:
    """One recorded request among those of all captures."""

    exchange: Exchange
    body: bytes | None
    workload: Workload
    capture: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Captures laid over each other on the wall clock."""

    captures: list[Capture]
    windows: list[Window]  # disjoint, in order
    requests: list[Request]  # in order of arrival
    stays: list[Interval]  # of the requests, in the same order, then of those whose end nobody saw
    dropped: dict[str, int]
    warnings: list[str]


def read_traffic(paths: Sequence[Path]) -> Traffic:
    """Read captures and merge them. Raises FormatError where there is nothing to look at."""
    _refuse_twice(paths)
    captures = [read_capture(path) for path in paths]
    windows = union(window for capture in captures for window in capture.windows)
    found: list[tuple[int, Exchange, bytes | None]] = []
    unfinished: list[Interval] = []
    dropped: Counter[str] = Counter(recorder=0, not_post=0, unfinished=0)
    for index, capture in enumerate(captures):
        for exchange, body in zip(capture.exchanges, capture.bodies, strict=True):
            if exchange.method == "POST":
                found.append((index, exchange, body))
            else:
                dropped["not_post"] += 1
        # Censored before the merge: an open end reaches to the end of its own capture's window.
        waiting = [Interval(start.at_ns, None) for start in capture.open if start.method == "POST"]
        unfinished += censor(waiting, capture.windows)
        dropped["unfinished"] += len(waiting)
        dropped["recorder"] += capture.dropped
    if not found and not unfinished:
        raise _empty(captures, dropped["not_post"])
    if not windows:
        raise FormatError(paths[0], "no observed time: the capture has no window", hint="Record again.")
    found.sort(key=lambda each: each[1].arrival_ns)
    workloads = [classify(exchange.endpoint, exchange.request, exchange.response) for _, exchange, _ in found]
    stays = [
        Interval(exchange.arrival_ns, exchange.end_ns, workload.name)
        for (_, exchange, _), workload in zip(found, workloads, strict=True)
    ]
    stays += unfinished
    requests = [
        Request(exchange, body, workload, index, in_flight)
        for (index, exchange, body), workload, in_flight in zip(found, workloads, others_in_flight(stays), strict=False)
    ]
    return Traffic(captures, windows, requests, stays, dict(dropped), _warnings(captures, dropped))


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


def _warnings(captures: Sequence[Capture], dropped: Counter[str]) -> list[str]:
    warnings = []
    for one, other in combinations(captures, 2):
        if any(a[0] < b[1] and b[0] < a[1] for a in one.windows for b in other.windows):
            warnings.append(
                f"{one.path} and {other.path} overlap in time: their requests in flight are added up over the union"
                " of their windows. That is right for recorders in front of one engine whose clocks agree; where only"
                " one of them was watching, the count is a lower bound."
            )
    if dropped["recorder"]:
        warnings.append(f"the recorder dropped {dropped['recorder']} records: the concurrency is a lower bound")
    return warnings


def measure_all(traffic: Traffic) -> dict[str, Concurrency]:
    """Concurrency of all requests (`all`), then of each class.

    Of a class, time counts its own requests in flight; arrivals count its requests by the *total* they met.
    """
    measured = {ALL: measure(traffic.stays, traffic.windows)}
    for name in sorted({request.workload.name for request in traffic.requests}):
        own = measure([stay for stay in traffic.stays if stay.workload == name], traffic.windows)
        met = Counter(
            request.in_flight + 1
            for request in traffic.requests
            if request.workload.name == name and is_observed(request.exchange.arrival_ns, traffic.windows)
        )
        measured[name] = Concurrency(own.time_ns_at, dict(sorted(met.items())), own.observed_ns, own.duration_sum_ns)
    return measured


def build_profile(
    paths: Sequence[Path], out: Path, *, force: bool = False, now_wall_ns: Callable[[], int] = time.time_ns
) -> Traffic:
    """Write the profile of `paths` to the new directory `out`. Returns the traffic that went in, with its warnings.

    Then the hash keys of the captures are destroyed, except where a recorder goes on, and a warning names each.

    Raises UsageError where `out` exists, unless `force` is given and it holds a profile and nothing else,
    FormatError for a capture that cannot be read or is empty, and FirsttokenError where `out` cannot be written.
    Nothing is destroyed then.
    """
    with readable(out, "Give another path with -o."):
        _check_free(out, force)
    traffic = read_traffic(paths)
    if not traffic.requests:
        raise FormatError(paths[0], "no request was seen to end", hint="Stop the recorder, or wait for an answer.")
    try:
        _make(traffic, out, now_wall_ns())
    except OSError as problem:
        raise FirsttokenError(
            f"{problem.filename or out}: cannot be written ({problem.strerror})", "Give another path with -o."
        ) from None
    traffic.warnings.extend(warning for path in paths for warning in _without_key(path))
    return traffic


def _make(traffic: Traffic, out: Path, created_wall_ns: int) -> None:
    make_folder(out.parent)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    unfinished.mkdir(mode=FOLDER_MODE)
    try:
        _write(traffic, unfinished, created_wall_ns)
        if out.exists():
            _remove_profile(out)
        unfinished.rename(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _without_key(folder: Path) -> Iterator[str]:
    """Destroy a capture's hash key and say so, in one sentence. A key in a file of the user's own is not ours."""
    key = folder / HASH_KEY
    try:
        if not key_files(folder):
            return
        lock = lock_folder(folder)
        if lock is None:
            yield f"{key} is kept, for a recorder goes on with it; the next build after it destroys it"
            return
        try:
            for path in key_files(folder):
                path.unlink()
        finally:
            os.close(lock)
        yield f"{key} was destroyed: nobody can try guesses on this capture any more, and new records get another key"
    except OSError as problem:
        yield f"{key} could not be destroyed ({problem.strerror}); who has it and the capture can try guesses"


def _check_free(out: Path, force: bool) -> None:
    if not out.exists() and not out.is_symlink():
        return
    other_name = "Give another name with -o."
    try:
        read_document(out / MANIFEST, FORMAT)
    except FormatError:
        raise UsageError(f"{out} exists and is not a profile", other_name) from None
    if not force:
        raise UsageError(f"{out} exists", "Give another name with -o, or --force to replace this profile.")
    foreign = sorted(entry.name for entry in out.iterdir() if entry.name not in FILES or not entry.is_file())
    if foreign or out.is_symlink():
        what = f"holds {foreign[0]}, which no profile has" if foreign else "is a symbolic link"
        raise UsageError(f"{out} {what}: it is not replaced", other_name)


def _remove_profile(out: Path) -> None:
    """Moved aside first, so that a kill in between leaves no half of the old one under its name."""
    aside = out.with_name(f".{out.name}.{os.getpid()}.old")
    out.rename(aside)
    for name in FILES:
        (aside / name).unlink(missing_ok=True)
    aside.rmdir()


def _write(traffic: Traffic, folder: Path, created_wall_ns: int) -> None:
    zero_ns = traffic.windows[0][0]
    rows = [_row(at, request, zero_ns) for at, request in enumerate(traffic.requests)]
    measured = measure_all(traffic)
    _write_table(folder / REQUESTS, _requests_table(rows))
    _write_table(folder / CONCURRENCY, _concurrency_table(measured))
    bodies = sum(row.body for row in rows)
    if bodies:
        _write_bodies(folder / BODIES, traffic.requests)
    not_measurable = [] if bodies else list(NEEDS_CONTENT)
    uncounted = sum(row.outcome == "ok" and row.output_tokens is None and row.endpoint != EMBEDDINGS for row in rows)
    if uncounted:
        traffic.warnings.append(
            f"{uncounted} of {len(rows)} answers carry no usage: their output length is unknown, and a replay cannot"
            " cap it. Clients ask for it with stream_options.include_usage."
        )
        not_measurable.append("output length")
    point = measured[ALL].operating_point(COVER)
    workloads = Counter(row.workload for row in rows)
    write_document(
        folder / MANIFEST,
        {
            "format": FORMAT,
            "version": VERSION,
            "tool": tool_version(),
            "created_wall_ns": created_wall_ns,
            "zero_wall_ns": zero_ns,
            "inputs": [_input(capture) for capture in traffic.captures],
            "windows": [[opened - zero_ns, close - zero_ns] for opened, close in traffic.windows],
            "observed_ns": measured[ALL].observed_ns,
            "requests": len(rows),
            "outcomes": dict(Counter(row.outcome for row in rows).most_common()),
            "dropped": traffic.dropped,
            "content": "full" if bodies else "none",
            "bodies": bodies,
            "models": dict(Counter(row.model or "" for row in rows).most_common()),
            "workloads": {
                name: {"requests": count, "share": count / len(rows)} for name, count in workloads.most_common()
            },
            "operating_point": asdict(point) | {"max": measured[ALL].max},
            "not_measurable": not_measurable,
            "warnings": traffic.warnings,
            "files": {path.name: sha256_of(path) for path in sorted(folder.iterdir())},
        },
    )


def _input(capture: Capture) -> dict[str, Any]:
    with readable(capture.path):
        segments = {path.name: sha256_of(path) for path in segment_paths(capture.path)}
    return {"name": capture.path.resolve().name, "segments": segments}


def _row(at: int, request: Request, zero_ns: int) -> ProfileRow:
    exchange, asked, got = request.exchange, request.exchange.request, request.exchange.response

    def since_zero(instant_ns: int | None) -> int | None:
        return None if instant_ns is None else instant_ns - zero_ns

    return ProfileRow(
        request=at,
        arrival_ns=exchange.arrival_ns - zero_ns,
        dispatch_ns=since_zero(exchange.dispatch_ns),
        first_token_ns=since_zero(got.first_token_ns),
        end_ns=exchange.end_ns - zero_ns,
        ttft_ns=None if got.first_token_ns is None else got.first_token_ns - exchange.arrival_ns,
        status=exchange.status,
        outcome=exchange.outcome,
        origin=exchange.origin,
        endpoint=exchange.endpoint,
        path=exchange.path,
        model=asked.model,
        stream=asked.stream,
        prompt_tokens=got.prompt_tokens,
        output_tokens=got.output_tokens,
        cached_tokens=got.cached_tokens,
        reasoning_tokens=got.reasoning_tokens,
        finish=got.finish,
        input_chars=asked.input_chars,
        messages=asked.messages,
        user_turns=asked.user_turns,
        tools=asked.tools,
        response_format=asked.response_format,
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        workload=request.workload.name,
        workload_rule=request.workload.rule,
        language=asked.language,
        in_flight=request.in_flight,
        capture=request.capture,
        body=request.body is not None,
        late_ns=exchange.late_ns,
    )


def _requests_table(rows: Sequence[ProfileRow]) -> "polars.DataFrame":
    import msgspec
    import polars

    types: dict[Any, Any] = {int: polars.Int64, float: polars.Float64, str: polars.String, bool: polars.Boolean}
    # `int | None` is a nullable column of the type that stands first.
    schema = {each.name: types[(get_args(each.type) or (each.type,))[0]] for each in msgspec.structs.fields(ProfileRow)}
    schema["request"] = polars.UInt32
    return polars.DataFrame({name: [getattr(row, name) for row in rows] for name in schema}, schema=schema)


def _concurrency_table(measured: dict[str, Concurrency]) -> "polars.DataFrame":
    import polars

    levels = [
        (scope, c, one.time_ns_at.get(c, 0), one.arrivals_at.get(c, 0))
        for scope, one in measured.items()
        for c in sorted(one.time_ns_at.keys() | one.arrivals_at.keys())
    ]
    schema = {"scope": polars.String(), "c": polars.Int64(), "time_ns": polars.Int64(), "arrivals": polars.Int64()}
    return polars.DataFrame(levels, schema=schema, orient="row")


def _write_table(path: Path, table: "polars.DataFrame") -> None:
    data = io.BytesIO()
    table.write_parquet(data)
    write_whole(path, data.getvalue())


def _write_bodies(path: Path, requests: Sequence[Request]) -> None:
    import zstandard

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed:
            for line in _body_lines(requests):
                packed.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _body_lines(requests: Sequence[Request]) -> Iterator[bytes]:
    """OpenAI Batch lines, except that a body which is not one line of JSON stands as text or base64 beside it."""
    for at, request in enumerate(requests):
        if request.body is not None:
            line = {"custom_id": str(at), "method": request.exchange.method, "url": request.exchange.path}
            yield encode(line | body_fields(request.body))
