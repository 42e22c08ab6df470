"""Exports of lengths: Mooncake, vLLM's timed trace, AIPerf, GuideLLM. Names and units of fields are theirs."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import polars as pl
from numpy.typing import NDArray

from profiles.errors import FormatError, UsageError
from profiles.prefixes import PrefixTree, rebuild_ids
from profiles.profile import Profile
from profiles.traces.export import ExportAsked, Written, write_lines
from profiles.traces.imported import CEIL
from profiles.units import MILLISECOND_NS, SECOND_NS

BLOCK: Final = 512
_COLUMNS: Final = (
    *("arrival_ns", "end_ns", "prompt_tokens", "output_tokens", "outcome", "session", "turn", "parent", "think_ns"),
    *("blocks", "prefix_ref", "prefix_blocks", "cached_tokens", "model"),
)
# Where the profile was made by characters, a prompt's last block ends somewhere: on average in its middle.
_HALF_BLOCK: Final = 0.5
_ROWS_AT_ONCE: Final = 100_000


type Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Load:
    """The requests of a profile whose lengths are known, in order of arrival; `row` is their number in the profile."""

    rows: pl.DataFrame
    all: pl.DataFrame
    lost: list[str]


def write_mooncake(profile: Profile, out: Path, asked: ExportAsked) -> Written:
    """`timestamp` ms, `input_length`, `output_length`, `hash_ids`. Raises UsageError and FormatError."""
    _no_payload(asked, "mooncake")
    load = _load(profile)
    block = asked.block or BLOCK
    tree = _tree(profile, load, block)

    def lines() -> Iterator[bytes]:
        for row, at_ms, prompt, answer in _rows(load, MILLISECOND_NS):
            yield orjson.dumps(
                {"timestamp": at_ms, "input_length": prompt, "output_length": answer, "hash_ids": tree.ids(row)},
                option=orjson.OPT_SERIALIZE_NUMPY,
            )

    count = write_lines(out, lines(), force=asked.force)
    lost = [*load.lost, "arrivals below a millisecond", *_sessions(load), "ends, classes, parameters, outcomes"]
    return Written(count, lost, f"times in ms, {block} tokens per block id, the last one may be partial")


def write_timed_trace(profile: Profile, out: Path, asked: ExportAsked) -> Written:
    """The same with `timestamp` in seconds, and the options that vLLM needs. Raises UsageError and FormatError."""
    _no_payload(asked, "vllm-timed-trace")
    load = _load(profile)
    block = asked.block or BLOCK
    tree = _tree(profile, load, block)

    def lines() -> Iterator[bytes]:
        for row, at_ns, prompt, answer in _rows(load, 1):
            yield orjson.dumps(
                {
                    "timestamp": at_ns / SECOND_NS,
                    "input_length": prompt,
                    "output_length": answer,
                    "hash_ids": tree.ids(row),
                },
                option=orjson.OPT_SERIALIZE_NUMPY,
            )

    count = write_lines(out, lines(), force=asked.force)
    use = (
        f"vllm bench serve --dataset-name timed_trace --dataset-path {out} --num-prompts {count} --self-timed"
        f" --timed-trace-chunk-hash-size {block} --timed-trace-sec-multiplier 1 --ignore-eos"
    )
    return Written(count, [*load.lost, *_sessions(load), "ends, classes, parameters, outcomes"], use)


def write_guidellm(profile: Profile, out: Path, asked: ExportAsked) -> Written:
    """`trace_synthetic`: `timestamp` in seconds, `input_length`, `output_length`. Raises UsageError and FormatError."""
    _no_payload(asked, "guidellm")
    if asked.block is not None:
        raise UsageError("--block makes no sense for guidellm: its trace_synthetic has no block ids", "Leave it out.")
    load = _load(profile)

    def lines() -> Iterator[bytes]:
        for _, at_ns, prompt, answer in _rows(load, 1):
            yield orjson.dumps({"timestamp": at_ns / SECOND_NS, "input_length": prompt, "output_length": answer})

    count = write_lines(out, lines(), force=asked.force)
    lost = [*load.lost, "shared prefixes (its mooncake format takes those: export mooncake)", *_sessions(load)]
    return Written(count, [*lost, "ends, classes, parameters, outcomes"], "type trace_synthetic, times in seconds")


def write_aiperf(profile: Profile, out: Path, asked: ExportAsked) -> Written:
    """Mooncake with `session_id` and `delay`. A later turn gives only what is new in it, for AIPerf puts the turns
    before it and its own answers in front. Raises UsageError and FormatError.
    """
    load = _load(profile)
    block = asked.block or BLOCK
    tree = _tree(profile, load, block)
    turns = _turns(load)

    def lines() -> Iterator[bytes]:
        think_ns = load.rows["think_ns"]
        for at, (row, at_ms, prompt, answer) in enumerate(_rows(load, MILLISECOND_NS)):
            session, before = turns[at]
            line: dict[str, Any] = {} if session is None else {"session_id": f"s{session}"}
            if before is None:
                line |= {"timestamp": at_ms, "input_length": prompt, "output_length": answer}
                line["hash_ids"] = tree.ids(row)
            else:
                think = think_ns[at]
                line |= {"timestamp": at_ms} if think is None else {"delay": think // MILLISECOND_NS}
                line |= {"input_length": prompt - before, "output_length": answer}
            yield orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY)

    count = write_lines(out, lines(), force=asked.force)
    later = sum(before is not None for _, before in turns)
    lost = [*load.lost, "arrivals below a millisecond", "ends, classes, parameters, outcomes"]
    if later:
        lost.append(f"our answers before {later} later turns: AIPerf puts those of its own run there")
        if profile.manifest.get("prefix"):
            lost.append(f"what {later} later turns share with others than the turns before")
    return Written(count, lost, f"dataset type mooncake_trace, {block} tokens per block id")


def _no_payload(asked: ExportAsked, name: str) -> None:
    if asked.payload:
        raise UsageError(f"--payload makes no sense for {name}", "It is for aiperf.")


def _load(profile: Profile) -> _Load:
    every = profile.frame(list(_COLUMNS)).collect().with_row_index("row")
    known = pl.col("prompt_tokens").is_not_null() & (pl.col("prompt_tokens") > 0)
    rows = every.filter(known & (pl.col("output_tokens") > 0))
    if not rows.height:
        raise FormatError(
            profile.path, "no request of it has both lengths", hint="Export its bodies: openai-batch, aiperf --payload."
        )
    left = every.height - rows.height
    return _Load(rows, every, [f"{left} of {every.height} requests, whose lengths are not known"] if left else [])


def _rows(load: _Load, unit_ns: int) -> Iterator[tuple[int, int, int, int]]:
    """Row, arrival since the first in units rounded down, prompt and output tokens."""
    first = int(load.rows["arrival_ns"][0])
    wanted = load.rows.select("row", "arrival_ns", "prompt_tokens", "output_tokens")
    for batch in wanted.iter_slices(_ROWS_AT_ONCE):
        for row, arrival_ns, prompt, answer in batch.iter_rows():
            yield row, (arrival_ns - first) // unit_ns, prompt, answer


def _sessions(load: _Load) -> list[str]:
    return ["sessions and think times"] if load.rows["session"].null_count() < load.rows.height else []


def _tree(profile: Profile, load: _Load, block: int) -> PrefixTree:
    """Block ids of every request, `block` tokens each, the last one partial. Raises FormatError.

    In blocks of another size, a shared prefix is cut to whole blocks.
    """
    if block < 1:
        raise UsageError(f"--block {block}: a block has at least 1 token")
    rows = load.all
    tokens = rows["prompt_tokens"].fill_null(0).to_numpy()
    wanted: Ints = -(-tokens // block)
    prefix = profile.manifest.get("prefix")
    refs = rows["prefix_ref"].fill_null(-1).to_numpy().astype(np.int64)
    shared = rows["prefix_blocks"].fill_null(0).to_numpy()
    if not prefix or rows["blocks"].null_count() == rows.height:
        load.lost.append("shared prefixes: this profile does not know them, so that each block id occurs once")
        return rebuild_ids(wanted, np.full(len(wanted), -1), np.zeros(len(wanted)))
    same = prefix["unit"] == "tokens" and prefix["block"] == block and prefix["tail"] == CEIL
    if not same:
        load.lost.append(f"shared prefixes are counted anew, in whole blocks of {block} tokens{_how(prefix)}")
        shared = np.where(
            _same_prompt(prefix, rows, tokens, refs, shared),
            wanted,
            _shared_tokens(prefix, rows, tokens, shared) // block,
        )
    at = np.maximum(refs, 0)
    shared = np.where(refs >= 0, np.minimum(np.minimum(shared, wanted), wanted[at]), 0)
    try:
        return rebuild_ids(wanted, np.where(shared > 0, refs, -1), shared)
    except ValueError as error:
        raise FormatError(profile.path, f"its shared prefixes make no sense: {error}") from None


def _same_prompt(
    prefix: dict[str, Any], rows: pl.DataFrame, tokens: Ints, refs: Ints, shared: Ints
) -> NDArray[np.bool_]:
    """Whether a prompt is the one that it shares with, to its last token; then it shares its partial block as well."""
    own, at = rows["blocks"].fill_null(0).to_numpy(), np.maximum(refs, 0)
    same = (shared == own) & (own == own[at]) & (tokens == tokens[at]) & (refs >= 0)
    return np.asarray(same & (prefix["tail"] == CEIL))


def _how(prefix: dict[str, Any]) -> str:
    if prefix["unit"] == "tokens":
        return f" instead of {prefix['block']}"
    return f" instead of {prefix['block']} characters, by the characters per token of each request"


def _shared_tokens(prefix: dict[str, Any], rows: pl.DataFrame, tokens: Ints, shared: Ints) -> Ints:
    if prefix["unit"] == "tokens":
        return np.minimum(shared * int(prefix["block"]), tokens)
    own = rows["blocks"].fill_null(0).to_numpy()
    return np.floor(tokens * (shared / np.maximum(own + _HALF_BLOCK, 1))).astype(np.int64)


def _turns(load: _Load) -> list[tuple[int | None, int | None]]:
    """Of each request its session, and the tokens that stand before what it adds; None for a first turn.

    AIPerf's sessions are chains that only grow. A branch, or a turn that is shorter than what went before, begins a new
    one.
    """
    last: dict[int, tuple[int, int]] = {}  # last row of a chain: its session, prompt and answer together
    found: list[tuple[int | None, int | None]] = []
    sessions = 0
    columns = load.rows.select("row", "session", "parent", "prompt_tokens", "output_tokens")
    for row, session, parent, prompt, answer in columns.iter_rows():
        if session is None:
            found.append((None, None))
            continue
        chain = last.pop(parent, None) if parent is not None else None
        if chain is not None and prompt > chain[1]:
            found.append((chain[0], chain[1]))
            last[row] = (chain[0], prompt + answer)
        else:
            found.append((sessions, None))
            last[row] = (sessions, prompt + answer)
            sessions += 1
    return found
