"""A run as one tidy frame: a row per measured request of every boot that counts.

Facts only; `measures` derives from them. Warm-up lines and boots that failed or were discarded have no row, and neither
has a window that only describes and that the client would have shaped. The pair key of a request is (window, index),
the same in all arms. `c` is 0 in a window at the recorded pace: nobody holds a concurrency there.
"""

from operator import attrgetter

import polars as pl

from profiles.measured import MeasuredAnswer, MeasuredOutcome, read_measured
from profiles.runs import DONE, OUTCOMES, Boot, Run

SCHEMA = {
    "arm": pl.String,
    "block": pl.Int64,
    "window": pl.String,
    "kind": pl.String,
    "deciding": pl.Boolean,
    "c": pl.Int64,
    "index": pl.Int64,
    "request": pl.Int64,
    "workload": pl.String,
    "outcome": pl.String,
    "origin": pl.String,
    "due_ns": pl.Int64,
    "send_started_ns": pl.Int64,
    "first_token_ns": pl.Int64,
    "last_token_ns": pl.Int64,
    "end_ns": pl.Int64,
    "token_events": pl.Int64,
    "first_event_tokens": pl.Int64,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
}
# Columns that stand in the files under the same names.
_OF_REQUEST = [name for name in SCHEMA if name in MeasuredOutcome.__struct_fields__]
_OF_ANSWER = [name for name in SCHEMA if name in MeasuredAnswer.__struct_fields__ or name == "token_events"]


def counting_boots(run: Run) -> dict[tuple[str, int], Boot]:
    """The boots that count, by arm and block: done, and the last attempt where a place has several."""
    done = sorted((boot for boot in run.boots if boot.facts.status == DONE), key=lambda boot: boot.facts.attempt)
    return {(boot.facts.arm, boot.facts.block): boot for boot in done}


def load_frame(run: Run) -> pl.DataFrame:
    """One row per measured request, columns as in `SCHEMA`. Instants are ns on the replaying process's clock."""
    deciding = {window["name"]: bool(window.get("deciding")) for window in run.manifest.get("windows", [])}
    parts = [_boot_frame(boot, deciding) for boot in counting_boots(run).values()]
    return pl.concat(parts, rechunk=True) if parts else pl.DataFrame(schema=SCHEMA)


def _boot_frame(boot: Boot, deciding: dict[str, bool]) -> pl.DataFrame:
    """The rows of one boot. Column by column: a row of Python objects costs several times as much."""
    left_out = {window.name for window in boot.facts.windows if window.invalid is not None and not window.deciding}
    kinds = {window.name: window.kind for window in reversed(boot.facts.windows)}
    asked = [item for item in read_measured(boot.path / OUTCOMES) if item.measured and item.window not in left_out]
    answers = [item.response for item in asked]
    columns: dict[str, object] = {name: list(map(attrgetter(name), asked)) for name in _OF_REQUEST}
    columns |= {name: list(map(attrgetter(name), answers)) for name in _OF_ANSWER}
    columns |= {
        "arm": [boot.facts.arm] * len(asked),
        "block": [boot.facts.block] * len(asked),
        "kind": [kinds.get(item.window) for item in asked],
        "deciding": [deciding.get(item.window, False) for item in asked],
    }
    return pl.DataFrame({name: columns[name] for name in SCHEMA}, schema=SCHEMA)
