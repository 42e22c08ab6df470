"""Request bodies of a trace: what they ask for as columns, and the bodies themselves without credentials."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import orjson
import polars as pl

from profiles.answers import Answer
from profiles.credentials import TooManyValues, clean_json
from profiles.digests import Digests, keyed_facts_of
from profiles.requests import describe
from profiles.scan import KEYED, Keyed
from profiles.table import ASKED, HEADS, SCHEMA, facts_row

# Columns that a body fills.
FACTS: Final = (*HEADS, *ASKED)


def body_columns(bodies: Sequence[bytes | None]) -> pl.DataFrame:
    """A row per body; all null where there is none."""
    none = dict.fromkeys(FACTS)
    rows = [none if body is None else facts_row(describe(body)) for body in bodies]
    schema = {name: SCHEMA[name] for name in FACTS}
    return pl.DataFrame({name: [row[name] for row in rows] for name in schema}, schema=schema)


def cleaned(bodies: Mapping[int, bytes]) -> tuple[dict[int, bytes], int]:
    """The bodies without what looks like a credential, and how many there were. What cannot be cleaned is left out."""
    kept: dict[int, bytes] = {}
    removed = 0
    for at, body in bodies.items():
        try:
            document = orjson.loads(body)
            if not isinstance(document, dict):
                continue
            clean, found = clean_json(body, document)
        except (orjson.JSONDecodeError, TooManyValues):
            continue
        removed += found
        if clean is not None:
            kept[at] = clean
    return kept, removed


class Keyer:
    """Keyed ids of bodies and answers, of which `structure` makes shared prefixes and sessions. Neither they nor the
    key get into a file.
    """

    def __init__(self, key: bytes) -> None:
        self._digests = Digests(key)

    def pack(
        self,
        body: bytes,
        headers: Mapping[str, bytes] | None = None,
        answer: Answer | None = None,
        tools_chars: int = 0,
    ) -> bytes | None:
        """The column `scan.KEYED` of one request; None where its body cannot be read. `headers` may hold any, of which
        only those of `session_names` are looked at."""
        facts = keyed_facts_of(body, self._digests, headers or {})
        if facts is None:
            return None
        known = None
        if answer is not None and facts.messages:
            known = self._digests.answer(answer, facts.messages[-1].chain)
        return msgspec.msgpack.encode(Keyed(facts, known, tools_chars))


def keyed_column(packed: Sequence[bytes | None]) -> pl.Series:
    """The column of what `Keyer.pack` gave."""
    return pl.Series(KEYED, packed, dtype=pl.Binary)
