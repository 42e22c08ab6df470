"""Exports of whole request bodies: OpenAI Batch, and AIPerf's Mooncake with a `payload` in each line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from profiles.captures import body_fields
from profiles.errors import UsageError
from profiles.profile import BODIES, Profile
from profiles.traces.export import ExportAsked, Written, write_lines
from profiles.units import MILLISECOND_NS

# Limits of the OpenAI Batch API.
MOST_LINES: Final = 50_000
MOST_BYTES: Final = 200_000_000


def write_openai_batch(profile: Profile, out: Path, asked: ExportAsked) -> Written:
    """`custom_id` (the row), `method`, `url`, `body`. Raises UsageError."""
    if asked.payload or asked.block is not None:
        raise UsageError("--payload and --block make no sense for openai-batch: it holds bodies", "Leave them out.")
    _require_bodies(profile)
    skipped: list[int] = []
    size = 0

    def lines() -> Iterator[bytes]:
        nonlocal size
        paths = profile.frame(["path"]).collect()["path"]
        for row, body in _json_bodies(profile, skipped):
            head = orjson.dumps({"custom_id": str(row), "method": "POST", "url": paths[row] or ""})
            line = head[:-1] + b',"body":' + body + b"}"
            size += len(line) + 1
            yield line

    count = write_lines(out, lines(), force=asked.force)
    lost = [*_missing(profile, count, skipped), "arrivals, sessions, answers, classes"]
    if count > MOST_LINES or size > MOST_BYTES:
        lost.append(f"the Batch API takes {MOST_LINES} lines and 200 MB; this has {count} and {size / 1e6:.0f} MB")
    return Written(count, lost)


def write_payloads(profile: Profile, out: Path, asked: ExportAsked) -> Written:
    """Mooncake lines of AIPerf: `timestamp` in ms, `session_id`, and the body as `payload`. Raises UsageError."""
    if asked.block is not None:
        raise UsageError("--block makes no sense with --payload: whole bodies have no block ids", "Leave it out.")
    _require_bodies(profile)
    skipped: list[int] = []

    def lines() -> Iterator[bytes]:
        rows = profile.frame(["arrival_ns", "session", "output_tokens"]).collect()
        first = rows["arrival_ns"][0]
        for row, body in _json_bodies(profile, skipped):
            session, answer = rows["session"][row], rows["output_tokens"][row]
            line: dict[str, Any] = {} if session is None else {"session_id": f"s{session}"}
            line["timestamp"] = (rows["arrival_ns"][row] - first) // MILLISECOND_NS
            if answer:
                line["output_length"] = answer
            yield orjson.dumps(line)[:-1] + b',"payload":' + body + b"}"

    count = write_lines(out, lines(), force=asked.force)
    lost = [*_missing(profile, count, skipped), "think times (turns go by their times), answers, classes"]
    return Written(count, lost, "dataset type mooncake_trace; each turn holds its whole context")


def _require_bodies(profile: Profile) -> None:
    if BODIES not in profile.manifest["files"]:
        content = profile.manifest["content"]
        raise UsageError(
            f"{profile.path} holds no bodies (content {content})",
            "Record with --bodies full, or rebuild prompts with `firsttoken profile synthesise`.",
        )


def _json_bodies(profile: Profile, skipped: list[int]) -> Iterator[tuple[int, bytes]]:
    """Row and body, of those that can stand inside a line."""
    for row, body in profile.read_bodies():
        if "body" in body_fields(body):
            yield row, body
        else:
            skipped.append(row)


def _missing(profile: Profile, count: int, skipped: list[int]) -> list[str]:
    missing = profile.manifest["requests"] - count - len(skipped)
    lost = [f"{missing} requests without a body"] if missing else []
    return [*lost, f"{len(skipped)} bodies that are not one line of JSON"] if skipped else lost
