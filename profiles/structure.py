"""Keyed ids of a recording to columns: who continues whom, and who shares how much of a prompt. The ids end here.

The requests come in order of arrival, a batch at a time, each with its `Keyed` in the column `scan.KEYED`. Only rows of
other requests and lengths are left of it, so that no id is in a profile that anybody could try guesses on.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from profiles.dialects import EMBEDDINGS
from profiles.prefixes import PrefixLinks
from profiles.records import BLOCK_CHARS, KeyedFacts
from profiles.scan import KEYED, Keyed, unpack_keyed
from profiles.segments import segments_frame, segments_of_keyed
from profiles.sessions import Turn, find_sessions
from profiles.table import SCHEMA

# How `blocks` and `prefix_blocks` of a recording count; a last block that is not full has no id.
PREFIX: Final = {"unit": "chars", "block": BLOCK_CHARS, "tail": "floor"}


@dataclass(frozen=True, slots=True)
class Structure:
    """What the keyed ids of all requests tell, in order of arrival."""

    columns: pl.DataFrame  # sessions, shared prefixes, dense ids; references are rows
    segments: pl.DataFrame | None  # roles and sizes of the messages, where any prompt was read (`profiles.segments`)
    prefix: dict[str, Any] | None  # how blocks are counted, where there are any
    sentence: str  # about sessions


class _Dense:
    """Ids as numbers, in order of first appearance."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, id: str | None) -> int | None:
        return None if id is None else self._known.setdefault(id, len(self._known))


def find_structure(batches: Iterable[pl.DataFrame]) -> Structure:
    """Read all requests once. The batches have the columns of `_READ`."""
    links = PrefixLinks()
    schemas, groups, tenants = _Dense(), _Dense(), _Dense()
    read: list[bool] = []  # whether the prompt was
    dense: dict[str, list[int | None]] = {"schema": [], "cache_group": [], "tenant": []}
    prompts: list[tuple[int, list[tuple[str, int]]]] = []

    def turns() -> Iterator[Turn]:
        for batch in batches:
            for packed, endpoint, model, arrival_ns, end_ns, last_role in batch.select(_READ).iter_rows():
                told = Keyed() if packed is None else unpack_keyed(packed)
                keyed = told.facts or KeyedFacts()
                group = groups.of(keyed.cache_salt)
                links.add(keyed.blocks, (group, model))
                if keyed.messages:
                    segments = segments_of_keyed(keyed, endpoint=endpoint, tools_chars=told.tools_chars)
                    prompts.append((len(read), segments))
                read.append(bool(keyed.blocks or keyed.prompt_chars))
                dense["schema"].append(schemas.of(keyed.schema))
                dense["cache_group"].append(group)
                dense["tenant"].append(tenants.of(keyed.tenant))
                talk = None if endpoint == EMBEDDINGS else told.facts  # embeddings are no conversation
                yield Turn(arrival_ns, end_ns, model, talk, told.answer, last_role)

    sessions = find_sessions(turns())
    found = links.columns()
    known = pl.Series("known", read, dtype=pl.Boolean)
    shared = pl.DataFrame(
        {"blocks": found.blocks, "prefix_ref": found.prefix_ref, "prefix_blocks": found.prefix_blocks}
    ).with_columns(
        # Of a request whose prompt nobody read it is not known that it shares nothing.
        pl.when(known).then("blocks").alias("blocks"),
        pl.when(known & (pl.col("prefix_ref") >= 0)).then("prefix_ref").alias("prefix_ref"),
        pl.when(known).then("prefix_blocks").alias("prefix_blocks"),
    )
    ids = pl.DataFrame([pl.Series(name, values, dtype=SCHEMA[name]) for name, values in dense.items()])
    return Structure(
        columns=pl.concat([sessions.frame(), shared, ids], how="horizontal"),
        segments=segments_frame(prompts) if prompts else None,
        prefix=dict(PREFIX) if any(read) else None,
        sentence=sessions.sentence(),
    )


_READ: Final = (KEYED, "endpoint", "model", "arrival_ns", "end_ns", "last_role")
