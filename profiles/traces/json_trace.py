"""JSON lines with arrivals, lengths and block ids: what `mooncake` and `timed_trace` share.

A line has `timestamp`, `input_length`, `output_length` and `hash_ids`, perhaps under other names. AIPerf adds
`session_id`, `delay` and the prompt itself, as `text_input`, `messages` and `tools`, or `payload`.
"""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl

from profiles.dialects import CHAT
from profiles.errors import FormatError, UsageError
from profiles.files import encode
from profiles.traces.bodies import body_columns, cleaned
from profiles.traces.imported import CEIL, FLOOR, Asked, Ids, Imported
from profiles.traces.instants import decimal_ns
from profiles.traces.rows import Tally, read_json
from profiles.traces.timeline import Clock, arrange, windows_of
from profiles.units import format_percent

FIELDS: Final = ("timestamp", "input_length", "output_length", "hash_ids")
# Rows whose instants are read together.
_BATCH: Final = 50_000
_MOST_ID: Final = 2**64 - 1
# Share of rows whose number of block ids may not fit the block size.
_MOST_ODD: Final = 0.01
FULL_CONTEXT: Final = "message_array_with_responses"

type Row = Any  # a msgspec.Struct made by `_form`


def _form(labels: Mapping[str, str]) -> Any:
    none: Any = None
    fields: list[Any] = [
        ("timestamp", msgspec.Raw, msgspec.field(default_factory=msgspec.Raw)),
        ("input_length", int | None, none),
        ("output_length", int | None, none),
        ("hash_ids", list[int] | None, none),
        ("session_id", str | int | None, none),
        ("delay", msgspec.Raw, msgspec.field(default_factory=msgspec.Raw)),
        ("context_mode", str | None, none),
        ("text_input", str | None, none),
        ("messages", msgspec.Raw, msgspec.field(default_factory=msgspec.Raw)),
        ("tools", msgspec.Raw, msgspec.field(default_factory=msgspec.Raw)),
        ("payload", msgspec.Raw, msgspec.field(default_factory=msgspec.Raw)),
    ]
    return msgspec.defstruct("TraceRow", fields, rename=lambda name: labels.get(name, name), gc=False)


@dataclass(slots=True)
class _Columns:
    """Columns of a file while it is read."""

    unit: str
    frames: list[pl.DataFrame] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    flat: "array[int]" = field(default_factory=lambda: array("Q"))
    lengths: "array[int]" = field(default_factory=lambda: array("q"))
    bodies: list[bytes | None] = field(default_factory=list)
    with_ids: int = 0

    def add(self, line: int, row: Row) -> None:
        prompt = _prompt(row)
        whole = row.context_mode == FULL_CONTEXT or (prompt is not None and row.text_input is None)
        texts = bytes(row.timestamp) or None, bytes(row.delay) or None
        self.rows.append((line, *texts, row.input_length, row.output_length, row.session_id, whole))
        ids = row.hash_ids or ()
        self.flat.extend(ids)
        self.lengths.append(len(ids))
        self.with_ids += row.hash_ids is not None
        self.bodies.append(prompt)
        if len(self.rows) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        names = ("line", "timestamp", "delay", "prompt_tokens", "output_tokens", "session_key", "full")
        columns = dict(zip(names, zip(*self.rows, strict=True), strict=True)) if self.rows else dict.fromkeys(names, ())
        self.rows.clear()
        texts = {
            name: pl.Series(name, [None if each is None else each.decode() for each in columns[name]], dtype=pl.String)
            for name in ("timestamp", "delay")
        }
        self.frames.append(
            pl.DataFrame(
                {
                    "line": pl.Series(columns["line"], dtype=pl.Int64),
                    "at_ns": decimal_ns(texts["timestamp"], self.unit),
                    "prompt_tokens": pl.Series(columns["prompt_tokens"], dtype=pl.Int64),
                    "output_tokens": pl.Series(columns["output_tokens"], dtype=pl.Int64),
                    "session_key": pl.Series(
                        [None if key is None else str(key) for key in columns["session_key"]], dtype=pl.String
                    ),
                    "delay_ns": decimal_ns(texts["delay"], self.unit),
                    "full": pl.Series(columns["full"], dtype=pl.Boolean),
                }
            )
        )


def read_trace(
    path: Path, asked: Asked, format_name: str, *, unit: str, block: int, labels: Mapping[str, str], notes: list[str]
) -> Imported:
    """Raises FormatError and UsageError."""
    if len({labels.get(name, name) for name in FIELDS}) < len(FIELDS):
        raise UsageError("two fields cannot have one name", "Give each --label another name.")
    tally = Tally(path)
    columns = _Columns(unit)
    for line, row in _sound_rows(path, labels, tally):
        columns.add(line, row)
    columns.flush()
    rows = pl.concat(columns.frames)
    rows = rows.with_columns(pl.Series("at", np.arange(rows.height)))
    placed = _placed(rows, notes)
    kept = tally.keep(placed, {f"{labels.get('timestamp', 'timestamp')} is no number": pl.col("at_ns").is_null()})
    tally.check(asked.max_bad)
    order = kept["at"].to_numpy()
    starts = np.concatenate([[0], np.cumsum(np.frombuffer(columns.lengths, np.int64))]).astype(np.int64)
    ids = None
    if columns.with_ids:
        raw = Ids(_dense(np.frombuffer(columns.flat, np.uint64), notes), starts, block, CEIL).take(order)
        ids = _with_tail(path, raw, kept, notes)
    else:
        notes.append("no block ids: shared prefixes are not known")
    kept, ids = _whole_contexts(kept, ids, notes)
    bodies = {new: body for new, old in enumerate(order.tolist()) if (body := columns.bodies[old]) is not None}
    kept, held = _with_bodies(kept, bodies, asked, notes)
    notes.append("missing: end and first token (no concurrency, no TTFT), model" + _no_sessions(kept))
    rows = kept.drop("at", "delay_ns", "full").with_columns(
        pl.when(pl.col("prompt_tokens").is_not_null()).then(pl.lit("imported")).alias("token_source"),
        pl.when(pl.col("output_tokens") > 0).then(pl.lit("ok")).alias("outcome"),
    )
    return arrange(
        path, format_name, rows, Clock(unit, doubtful=True), tally, asked, notes,
        ids=ids, windows=windows_of(asked, unit), bodies=held,
    )  # fmt: skip


def _no_sessions(rows: pl.DataFrame) -> str:
    return "" if "session_key" in rows.columns and rows["session_key"].null_count() < rows.height else ", sessions"


def _sound_rows(path: Path, labels: Mapping[str, str], tally: Tally) -> Iterator[tuple[int, Row]]:
    def name(field_name: str) -> str:
        return labels.get(field_name, field_name)

    for line, row in read_json(path, _form(labels), tally):
        reason = None
        if not row.timestamp and not (row.session_id is not None and (row.delay or _prompt(row) or row.input_length)):
            reason = f"no {name('timestamp')}"
        elif row.input_length is None and _prompt(row) is None:
            reason = f"no {name('input_length')}"
        elif (row.input_length or 0) < 0 or (row.output_length or 0) < 0:
            reason = "a length below 0"
        elif row.hash_ids and not 0 <= min(row.hash_ids) <= max(row.hash_ids) <= _MOST_ID:
            reason = f"an id in {name('hash_ids')} below 0 or above 64 bits"
        if reason is None:
            yield line, row
        else:
            tally.drop(line, reason)


def _prompt(row: Row) -> bytes | None:
    """The request body that a row holds, in whatever form. The row's own output length is its limit."""
    if row.payload and row.payload != b"null":
        return bytes(row.payload)
    made: dict[str, Any] = {}
    if row.messages and row.messages != b"null":
        made["messages"] = msgspec.json.decode(row.messages)
        if row.tools and row.tools != b"null":
            made["tools"] = msgspec.json.decode(row.tools)
    elif row.text_input is not None:
        made["messages"] = [{"role": "user", "content": row.text_input}]
    else:
        return None
    if row.output_length:
        made["max_tokens"] = row.output_length
    return encode(made)


def _placed(rows: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Turns that have a delay instead of a time stand after the turn before them; how long that took is not known."""
    loose = rows["at_ns"].is_null() & rows["session_key"].is_not_null()
    if not loose.any():
        return rows if rows["session_key"].null_count() < rows.height else rows.drop("session_key")
    last: dict[str, int] = {}
    at: list[int | None] = []
    for key, at_ns, delay_ns in rows.select("session_key", "at_ns", "delay_ns").iter_rows():
        if at_ns is None and key is not None:
            # A first turn without a time starts with the trace.
            at_ns = last.get(key, 0) + (delay_ns or 0)
        if key is not None and at_ns is not None:
            last[key] = at_ns
        at.append(at_ns)
    notes.append(
        f"{int(loose.sum())} turns have a delay and no timestamp: they are placed that long after the arrival of the"
        " turn before, whose duration is not known"
    )
    follows = pl.when(pl.Series(loose)).then("delay_ns").alias("follows_ns")
    return rows.with_columns(pl.Series("at_ns", at, dtype=pl.Int64), follows)


def _dense(ids: np.ndarray, notes: list[str]) -> np.ndarray:
    """Ids as 0, 1, … in order of first appearance."""
    values, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    if len(values) and int(values[-1]) >= 2**32:
        notes.append("block ids above 32 bits: numbered anew, none is cut")
    rank = np.empty(len(values), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(values))
    return np.asarray(rank[inverse])


def _with_tail(path: Path, ids: Ids, rows: pl.DataFrame, notes: list[str]) -> Ids:
    """The ids with the rule of their tail. Raises FormatError where neither fits the block size."""
    block = ids.block
    tokens = rows["prompt_tokens"].fill_null(0).to_numpy()
    told = (ids.lengths > 0) & rows["prompt_tokens"].is_not_null().to_numpy()
    ceil, floor = -(-tokens // block) == ids.lengths, tokens // block == ids.lengths
    odd = {CEIL: int((~ceil & told).sum()), FLOOR: int((~floor & told).sum())}
    tail = min(odd, key=lambda rule: odd[rule])
    if odd[tail] > _MOST_ODD * max(1, int(told.sum())):
        # A prompt that fills its blocks has as many tokens to an id as a block has.
        fits = float((tokens[told] / ids.lengths[told]).max())
        raise FormatError(
            path,
            f"{odd[tail]} of {int(told.sum())} rows do not have one block id per {block} tokens",
            hint=f"An id stands for about {fits:.0f} tokens here; give the size of a block with --block.",
        )
    rest = f" ({format_percent(odd[tail] / told.sum(), 2)} of the rows do not fit)" if odd[tail] else ""
    what = "the last one may be partial" if tail == CEIL else "a tail after the last whole one has none"
    notes.append(f"block ids: {block} tokens each, {tail}: {what}{rest}")
    return Ids(ids.flat, ids.starts, block, tail)


def _whole_contexts(rows: pl.DataFrame, ids: Ids | None, notes: list[str]) -> tuple[pl.DataFrame, Ids | None]:
    """Lengths of whole prompts, where the turns of a session give only what is new in them.

    AIPerf puts the turns before and their answers in front of such a turn. Read as whole prompts they would hide most
    of the work; whole ones read as such would double it.
    """
    if "session_key" not in rows.columns:
        return rows, ids
    later = rows["session_key"].is_not_null() & ~rows["session_key"].is_first_distinct() & ~rows["full"]
    if not later.any():
        return rows, ids
    before: dict[str, tuple[int, int, int]] = {}  # row, prompt, answer of the turn before
    tokens: list[int | None] = []
    parents: list[int] = []
    for at, (key, prompt, answer, full) in enumerate(
        rows.select("session_key", "prompt_tokens", "output_tokens", "full").iter_rows()
    ):
        parent = -1
        if key is not None:
            if key in before and not full and prompt is not None:
                parent, earlier, said = before[key]
                prompt += earlier + said
            before[key] = (at, prompt or 0, answer or 0)
        tokens.append(prompt)
        parents.append(parent)
    notes.append(f"{int(later.sum())} later turns of sessions give only what is new: the turns before are added")
    whole = rows.with_columns(pl.Series("prompt_tokens", tokens, dtype=pl.Int64))
    return whole, None if ids is None else _grown(ids, whole["prompt_tokens"].fill_null(0).to_list(), parents)


def _grown(ids: Ids, tokens: list[int], parents: list[int]) -> Ids:
    """Ids of whole prompts: the full blocks of the turn before, then new ones."""
    fresh = int(ids.flat.max(initial=-1)) + 1
    out: list[np.ndarray] = []
    for row, parent in enumerate(parents):
        own = ids.flat[ids.starts[row] : ids.starts[row + 1]]
        if parent >= 0:
            shared = out[parent][: tokens[parent] // ids.block]
            more = max(0, -(-tokens[row] // ids.block) - len(shared))
            own = np.concatenate([shared, np.arange(fresh, fresh + more)])
            fresh += more
        out.append(own)
    starts = np.concatenate([[0], np.cumsum([len(own) for own in out])]).astype(np.int64)
    return Ids(np.concatenate(out), starts, ids.block, ids.tail)


def _with_bodies(
    rows: pl.DataFrame, bodies: dict[int, bytes], asked: Asked, notes: list[str]
) -> tuple[pl.DataFrame, dict[int, bytes]]:
    if not bodies:
        return rows, {}
    held: dict[int, bytes] = {}
    if asked.bodies:
        held, removed = cleaned(bodies)
        notes.append(f"{len(held)} prompts are kept, {removed} credentials taken out")
    else:
        notes.append(f"{len(bodies)} rows hold their prompt: only lengths are kept (--bodies full keeps the text)")
    facts = body_columns([bodies.get(row) for row in range(rows.height)])
    facts = facts.with_columns(
        pl.when(pl.col("messages").is_not_null()).then(pl.lit(CHAT)).alias("endpoint"),
        pl.when(pl.col("messages").is_not_null()).then(pl.lit("/v1/chat/completions")).alias("path"),
        pl.Series("body", [row in held for row in range(rows.height)], dtype=pl.Boolean),
    )
    return pl.concat([rows, facts], how="horizontal"), held
