"""What refers to other requests, kept true while rows are picked, moved and copied. Pure, columns in and out.

parent, deps         point to rows: renumbered; a pointer to a row that has gone is taken away
turn, session        count from 0 and are dense again
prefix_ref           the latest earlier row with the longest common prefix, which may be another one by now
"""

from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from profiles.prefixes import PrefixLinks, rebuild_ids

type Ints = NDArray[np.int64]

_INSTANTS: Final = ("arrival_ns", "dispatch_ns", "first_token_ns", "end_ns")


def session_keys(frame: pl.DataFrame) -> tuple[Ints, int]:
    """The session of each row, dense in order of first appearance, and how many there are.

    A row without a session is one of its own.
    """
    if "session" not in frame.columns:
        return np.arange(frame.height, dtype=np.int64), frame.height
    keys = frame["session"].cast(pl.Int64).fill_null(-1).to_numpy().copy()
    alone = frame["session"].is_null().to_numpy()
    keys[alone] = -1 - np.arange(int(alone.sum()))
    return dense(keys)


def dense(keys: Ints) -> tuple[Ints, int]:
    """Numbers from 0 in order of first appearance, and how many there are."""
    if not len(keys):
        return keys, 0
    low, high = int(keys.min()), int(keys.max())
    if high - low > 8 * len(keys):  # too far apart for a table of all that lies between
        keys = np.unique(keys, return_inverse=True)[1]
        low, high = 0, int(keys.max())
    first = np.empty(high - low + 1, np.int64)
    first[keys[::-1] - low] = np.arange(len(keys))[::-1]  # the first of each is written last
    first_of = first[keys - low]
    number = np.cumsum(first_of == np.arange(len(keys))) - 1
    return number[first_of], int(number[-1]) + 1


def pick(frame: pl.DataFrame, rows: Ints) -> pl.DataFrame:
    """Some rows of a frame, in the order given, none twice. A row whose parent is not among them starts anew."""
    place = np.full(frame.height, -1, np.int64)
    place[rows] = np.arange(len(rows))
    picked = frame[rows] if len(rows) else frame.clear()
    if "parent" in picked.columns:
        parent = _placed(picked["parent"], place)
        lost = parent.is_null() & picked["parent"].is_not_null()
        picked = _started_anew(picked.with_columns(parent), lost)
    if "deps" in picked.columns:
        flat = _flat(picked["deps"])
        kept = flat.with_columns(_placed(flat["deps"], place)).drop_nulls("deps")
        picked = picked.with_columns(_lists(kept, picked.height))
    return _renumbered(picked)


def shifted(frame: pl.DataFrame, by_ns: Ints) -> pl.DataFrame:
    """The frame with all instants of each row moved. Durations stay, and so do TTFT and think times."""
    by = pl.Series(by_ns, dtype=pl.Int64)
    return frame.with_columns([(frame[name] + by).alias(name) for name in _INSTANTS if name in frame.columns])


def raised(frame: pl.DataFrame, rows: int, sessions: int) -> pl.DataFrame:
    """The frame with its pointers raised by `rows` and its sessions by `sessions`, to stand behind other rows."""
    moved = []
    if "parent" in frame.columns:
        moved.append(pl.col("parent") + rows)
    if "deps" in frame.columns:
        moved.append(pl.col("deps").list.eval(pl.element() + rows))
    if "session" in frame.columns:
        moved.append(pl.col("session") + sessions)
    return frame.with_columns(moved)


def split(frame: pl.DataFrame, by_ns: Ints) -> tuple[pl.DataFrame, int]:
    """The frame with each session cut where its turns are not to be moved by the same time, and how many were cut."""
    if "session" not in frame.columns:
        return frame, 0
    session, count = session_keys(frame)
    start_by = np.empty(count, np.int64)
    start_by[session[::-1]] = by_ns[::-1]  # the first row of each is written last
    away = np.flatnonzero(by_ns != start_by[session])
    if not len(away):
        return frame, 0
    pairs = pl.DataFrame({"session": session[away], "by": by_ns[away]})
    pieces = pairs.select(pl.struct("session", "by").rank("dense")).to_series().to_numpy().astype(np.int64)
    named = session.copy()
    named[away] = count - 1 + pieces
    known = frame["session"].is_not_null()
    frame = frame.with_columns(pl.Series("session", named).set(~known, None))
    if "parent" in frame.columns:
        parent = frame["parent"].fill_null(-1).to_numpy()
        lost = pl.Series((parent >= 0) & (by_ns[parent] != by_ns))
        frame = _started_anew(frame.with_columns(frame["parent"].set(lost, None)), lost)
    if "deps" in frame.columns:
        flat = _flat(frame["deps"])
        same = pl.Series(by_ns[flat["at"].to_numpy()] == by_ns[flat["deps"].to_numpy()])
        frame = frame.with_columns(_lists(flat.filter(same), frame.height))
    return frame, pairs["session"].n_unique()


def relink(origin: pl.DataFrame, row_of: Ints, copy: Ints, block_chars: int | None) -> pl.DataFrame:
    """Columns `blocks`, `prefix_ref`, `prefix_blocks` of a new load, made from those of the profile it came from.

    `origin` has these columns and `system_chars`, a row per request of the profile; request i of the new load is made
    of `row_of[i]`. Different copies share the blocks of their system prompts and nothing else: none, where
    `block_chars` does not say how long those are.
    """
    tree = rebuild_ids(*(origin[name] for name in ("blocks", "prefix_ref", "prefix_blocks")))
    system = np.zeros(origin.height, np.int64)
    if block_chars and "system_chars" in origin.columns:
        system = origin["system_chars"].fill_null(0).to_numpy() // block_chars
    links = PrefixLinks()
    for row, number in zip(row_of.tolist(), copy.tolist(), strict=True):
        ids = tree.ids(row)
        if number:
            ids[system[row] :] += number * tree.distinct
        links.add(ids)
    found = links.columns()
    told = origin["blocks"].is_not_null().to_numpy()[row_of]
    columns = {"blocks": found.blocks, "prefix_ref": found.prefix_ref, "prefix_blocks": found.prefix_blocks}
    return pl.DataFrame(
        [pl.Series(name, values).set(pl.Series(~told | (values < 0)), None) for name, values in columns.items()]
    )


def _placed(positions: pl.Series, place: Ints) -> pl.Series:
    known = positions.is_not_null().to_numpy()
    found = np.full(len(positions), -1, np.int64)
    found[known] = place[positions.drop_nulls().to_numpy()]
    return pl.Series(positions.name, found).set(pl.Series(found < 0), None)


def _flat(lists: pl.Series) -> pl.DataFrame:
    """A row per item of the lists: `at`, the row that it stands in, and the item."""
    rows = pl.DataFrame({"at": pl.int_range(len(lists), eager=True), "deps": lists})
    return rows.explode("deps").drop_nulls("deps")


def _lists(flat: pl.DataFrame, height: int) -> pl.Series:
    kept = flat.group_by("at", maintain_order=True).agg("deps")
    rows = pl.DataFrame({"at": pl.int_range(height, eager=True)})
    return rows.join(kept, on="at", how="left", maintain_order="left")["deps"]


def _started_anew(frame: pl.DataFrame, lost: pl.Series) -> pl.DataFrame:
    """The frame whose rows that lost their parent continue nothing and wait for nobody."""
    if not lost.any():
        return frame
    made: list[Any] = []
    if "link" in frame.columns:
        made.append(pl.when(lost).then(pl.lit("root")).otherwise("link").alias("link"))
    made += [pl.when(~lost).then(name).alias(name) for name in ("think_ns", "think_kind") if name in frame.columns]
    return frame.with_columns(made)


def _renumbered(frame: pl.DataFrame) -> pl.DataFrame:
    if "session" not in frame.columns:
        return frame
    known = frame["session"].is_not_null().to_numpy()
    session = np.full(frame.height, -1, np.int64)
    session[known] = dense(frame["session"].drop_nulls().to_numpy())[0]
    frame = frame.with_columns(pl.Series("session", session).set(pl.Series(~known), None))
    if "turn" not in frame.columns:
        return frame
    turn = (
        pl.when(pl.col("session").is_null())
        .then("turn")
        .otherwise(pl.col("turn") - pl.col("turn").min().over("session"))
    )
    return frame.with_columns(turn.alias("turn"))
