"""A run as one tidy frame: a row per measured request of every boot that counts.

Facts only; `measures` derives from them. Warm-up lines and boots that failed or were discarded have no row, and neither
has a window that only describes and that the client would have shaped. The pair key of a request is (window, index),
the same in all arms. `c` is 0 in a window at the recorded pace: nobody holds a concurrency there.
"""

import polars as pl

from profiles.records import Outcome
from profiles.runs import DONE, Boot, Run

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


def counting_boots(run: Run) -> dict[tuple[str, int], Boot]:
    """The boots that count, by arm and block: done, and the last attempt where a place has several."""
    done = sorted((boot for boot in run.boots if boot.facts.status == DONE), key=lambda boot: boot.facts.attempt)
    return {(boot.facts.arm, boot.facts.block): boot for boot in done}


def load_frame(run: Run) -> pl.DataFrame:
    """One row per measured request, columns as in `SCHEMA`. Instants are ns on the replaying process's clock."""
    deciding = {window["name"]: bool(window.get("deciding")) for window in run.manifest.get("windows", [])}
    rows = []
    for boot in counting_boots(run).values():
        left_out = {window.name for window in boot.facts.windows if window.invalid is not None and not window.deciding}
        rows += [
            _row(boot, outcome, deciding)
            for outcome in boot.outcomes
            if outcome.measured and outcome.window not in left_out
        ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _row(boot: Boot, outcome: Outcome, deciding: dict[str, bool]) -> tuple[object, ...]:
    response = outcome.response
    kind = next((window.kind for window in boot.facts.windows if window.name == outcome.window), None)
    return (
        boot.facts.arm,
        boot.facts.block,
        outcome.window,
        kind,
        deciding.get(outcome.window, False),
        outcome.c,
        outcome.index,
        outcome.request,
        outcome.workload,
        outcome.outcome,
        outcome.origin,
        outcome.due_ns,
        outcome.send_started_ns,
        response.first_token_ns,
        response.last_token_ns,
        outcome.end_ns,
        response.token_events,
        response.first_event_tokens,
        response.prompt_tokens,
        response.output_tokens,
        response.cached_tokens,
    )
