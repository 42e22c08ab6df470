"""Shared prefixes as structure: which earlier request a prompt goes on from, and for how many blocks.

    PrefixLinks      block ids in order of arrival → blocks, prefix_ref, prefix_blocks (`ProfileRow`)
    PrefixTree       those three columns → ids again, isomorphic to the first ones; no digest is left to attack
    hit_rates        what a prefix cache makes of ids

Ids are *chained*: an id stands for its block and all blocks before it, so it occurs at one depth only. Mooncake's
`hash_ids` and the blocks of a hashed capture are. A file with other ids is noticed (`PrefixLinks.unchained`); `chain`
makes chained ones of them.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

type Ints = NDArray[np.int64]
type Words = NDArray[np.uint64]

# Block ids that are looked up together: large enough that numpy does the work, small beside what is remembered.
BATCH_BLOCKS: Final = 1 << 19
# A run of remembered blocks is merged with the one before it once it is not much smaller.
_MERGE_RATIO: Final = 4
_WORD_DIGITS: Final = 16  # of an id in hexadecimal, those that are kept: 64 bits


class PrefixLinks:
    """Reads prompts in order of arrival and says of each where its longest earlier prefix is.

    Remembers the distinct blocks: 64 bits of the id, the depth and the last request that held it, 16 bytes in all.
    Only the first block that a request does not share can be taken for another. So the probability of any wrong link
    is requests × distinct blocks / 2⁶⁴ (10⁷ × 10⁸: 5 in 100,000).
    """

    def __init__(self, batch_blocks: int = BATCH_BLOCKS) -> None:
        self._batch_blocks = batch_blocks
        self._groups: dict[Hashable, Words] = {}
        self._odd_ids: dict[Hashable, int] = {}
        self._runs: list[_Run] = []  # sorted by id each, no id twice, the largest first
        self._pieces: list[Words] = []
        self._waiting = 0
        self._row = 0
        self._sizes: list[int] = []
        self._refs: list[Ints] = []
        self._shared: list[Ints] = []
        self._all_sizes: list[Ints] = []
        self.unchained = 0  # how often an id came at another depth than before: above 0 the links mean nothing

    def add(self, ids: Sequence[Hashable] | Words | Ints, group: Hashable = None) -> None:
        """The block ids of the next request. Requests of different groups share nothing: give (cache_group, model)."""
        words = self._words(ids)
        if group is not None:
            salt = self._groups.get(group)
            if salt is None:
                salt = self._groups[group] = mix(np.array([len(self._groups) + 1], np.uint64))
            words = words ^ salt
        self._pieces.append(words)
        self._sizes.append(len(words))
        self._waiting += len(words)
        if self._waiting >= self._batch_blocks:
            self._flush()

    def columns(self) -> "LinkColumns":
        """What was found so far, a row per request."""
        self._flush()
        join = np.concatenate if self._refs else lambda _: np.empty(0, np.int64)
        return LinkColumns(join(self._all_sizes), join(self._refs), join(self._shared))

    @property
    def distinct(self) -> int:
        """Distinct blocks so far: those that each request brought."""
        found = self.columns()
        return int((found.blocks - found.prefix_blocks).sum())

    @property
    def nbytes(self) -> int:
        """Memory of what is remembered of them. A block that came again may be remembered up to a third more often."""
        return sum(run.ids.nbytes + run.rows.nbytes + run.depths.nbytes for run in self._runs)

    def _words(self, ids: Sequence[Hashable] | Words | Ints) -> Words:
        if isinstance(ids, np.ndarray):
            return ids.astype(np.uint64)
        first = ids[0] if len(ids) else 0
        if isinstance(first, str) and len(first) % _WORD_DIGITS == 0 and first:
            try:
                data = bytes.fromhex("".join(ids))  # type: ignore[arg-type]  # a mixed list raises TypeError
            except (ValueError, TypeError):
                data = b""
            if 2 * len(data) == len(first) * len(ids):
                return np.frombuffer(data, np.uint64)[:: len(first) // _WORD_DIGITS]
        elif isinstance(first, int):
            try:
                return np.array(ids, np.uint64)
            except (OverflowError, TypeError, ValueError):
                pass
        known = self._odd_ids
        return np.array([known.setdefault(each, len(known)) for each in ids], np.uint64)

    def _flush(self) -> None:
        sizes = np.array(self._sizes, np.int64)
        ids = np.concatenate(self._pieces) if self._pieces else np.empty(0, np.uint64)
        self._pieces, self._sizes, self._waiting = [], [], 0
        if not len(sizes):
            return
        ends = np.cumsum(sizes)
        starts = ends - sizes
        rows = np.repeat(np.arange(self._row, self._row + len(sizes), dtype=np.int64), sizes)
        depths = np.arange(len(ids), dtype=np.int64) - np.repeat(starts, sizes)
        held = self._last_held(ids, rows, depths)
        # The run of blocks that were seen: up to the first that was not, or to the end.
        missed = np.concatenate((np.flatnonzero(held < 0), [len(ids)]))
        first_miss = missed[np.searchsorted(missed, starts)]
        shared = np.minimum(first_miss, ends) - starts
        refs = np.full(len(sizes), -1, np.int64)
        some = shared > 0
        refs[some] = held[starts[some] + shared[some] - 1]
        self._all_sizes.append(sizes)
        self._shared.append(shared)
        self._refs.append(refs)
        self._row += len(sizes)

    def _last_held(self, ids: Words, rows: Ints, depths: Ints) -> Ints:
        """For each block the last earlier request that held it, or −1. Remembers the blocks."""
        order = np.argsort(ids, kind="stable")
        ids, rows, depths = ids[order], rows[order], depths[order]
        again = np.zeros(len(ids), bool)
        again[1:] = ids[1:] == ids[:-1]
        before = np.full(len(ids), -1, np.int64)
        before[1:][again[1:]] = rows[:-1][again[1:]]
        first = np.flatnonzero(~again)
        last = np.append(first[1:], len(ids)) - 1 if len(first) else first
        self.unchained += int(np.count_nonzero(depths[1:][again[1:]] != depths[:-1][again[1:]]))
        for run in self._runs:
            at = np.searchsorted(run.ids, ids[first])
            at[at == len(run.ids)] = 0
            found = run.ids[at] == ids[first]
            # The latest of all runs: an id that came again stands in a younger run as well.
            older = first[found]
            before[older] = np.maximum(before[older], run.rows[at[found]])
            self.unchained += int(np.count_nonzero(run.depths[at[found]] != depths[older]))
        # A request that holds an id twice (not a chained one, then) must not be sent to itself.
        before[before == rows] = -1
        self._remember(_Run(ids[first], rows[last].astype(np.uint32), depths[first].astype(np.uint32)))
        held = np.empty(len(ids), np.int64)
        held[order] = before
        return held

    def _remember(self, run: "_Run") -> None:
        while self._runs and len(self._runs[-1].ids) < _MERGE_RATIO * len(run.ids):
            run = _merge(self._runs.pop(), run)
        self._runs.append(run)


@dataclass(frozen=True, slots=True)
class _Run:
    ids: Words
    rows: NDArray[np.uint32]
    depths: NDArray[np.uint32]


def _merge(older: _Run, younger: _Run) -> _Run:
    ids = np.concatenate((younger.ids, older.ids))
    order = np.argsort(ids, kind="stable")  # of equal ids the younger comes first, and stays
    keep = np.ones(len(ids), bool)
    keep[1:] = ids[order][1:] != ids[order][:-1]
    order = order[keep]
    rows = np.concatenate((younger.rows, older.rows))[order]
    return _Run(ids[order], rows, np.concatenate((younger.depths, older.depths))[order])


@dataclass(frozen=True, slots=True)
class LinkColumns:
    """Columns of `ProfileRow`, one entry per request. `prefix_ref` is −1 where nothing is shared."""

    blocks: Ints
    prefix_ref: Ints
    prefix_blocks: Ints


def link(
    prompts: Iterable[Sequence[Hashable] | Words | Ints], groups: Iterable[Hashable] = repeat(None)
) -> PrefixLinks:
    """Read all prompts. `groups` has (cache_group, model) of each; left out, all are of one group."""
    links = PrefixLinks()
    for ids, group in zip(prompts, groups, strict=False):
        links.add(ids, group)
    return links


def chain(ids: Iterable[Hashable], known: dict[tuple[int, Hashable], int]) -> list[int]:
    """Chained ids of ids that each stand for their own block alone. `known` is kept for all prompts of a file."""
    out: list[int] = []
    before = -1
    for each in ids:
        before = known.setdefault((before, each), len(known))
        out.append(before)
    return out


def mix(values: Words) -> Words:
    """A bijection of 64 bits in which each bit of the result depends on all bits (the finaliser of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class PrefixTree(Sequence[list[int]]):
    """The ids of every request, dense in order of first appearance, from the three columns.

    A request brings the blocks behind its prefix; those before belong to the request that brought them, its *owner*.
    So a request costs three numbers here, however many blocks it has.

    Raises ValueError for columns that no prompts can have, with the row.
    """

    def __init__(self, blocks: Any, prefix_ref: Any, prefix_blocks: Any) -> None:
        """Three arrays, lists or Series of one length. −1, None or NaN in `prefix_ref` is no reference."""
        self.blocks = _whole(blocks, 0)
        self.start = _whole(prefix_blocks, 0)  # the first block that the request brings itself
        self.owner = _whole(prefix_ref, -1)  # for now the reference; the loop below finds who brought that block
        rows = np.arange(len(self.blocks))
        self.owner[self.start == 0] = -1
        known = np.clip(self.owner, 0, None)
        wrong = (self.start > self.blocks) | (self.start < 0) | (self.blocks < 0)
        linked = self.start > 0
        wrong |= linked & ((self.owner < 0) | (self.owner >= rows))
        wrong |= linked & (self.start > self.blocks[np.minimum(known, max(len(rows) - 1, 0))])
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"request {row} cannot share {self.start[row]} of its {self.blocks[row]} blocks"
                f" with request {self.owner[row]}"
            )
        brought = self.blocks - self.start
        self.first_id = np.cumsum(brought) - brought
        start, owner = self.start, self.owner
        # An item of an array costs more than one of a memoryview of it.
        starts, owners = memoryview(start), memoryview(owner)
        for row in np.flatnonzero(linked).tolist():
            wanted, at = starts[row], owners[row]
            while starts[at] >= wanted:
                at = owners[at]
            owners[row] = at

    @property
    def distinct(self) -> int:
        """Distinct blocks."""
        return int((self.blocks - self.start).sum())

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self.ids(at).tolist() for at in range(*row.indices(len(self)))]
        return self.ids(range(len(self))[row]).tolist()

    def __iter__(self) -> Iterator[list[int]]:
        return (self.ids(row).tolist() for row in range(len(self)))

    def owners(self, row: int) -> list[int]:
        """Who brought the blocks of a request, from its head on; the last one is the request itself."""
        out = [row]
        while (at := int(self.owner[out[-1]])) >= 0:
            out.append(at)
        return out[::-1]

    def ids(self, row: int) -> Ints:
        """The ids of one request, as an array."""
        owners = self.owners(row)
        if len(owners) == 1:
            return np.arange(self.first_id[row], self.first_id[row] + self.blocks[row])
        starts = self.start[owners]
        sizes = np.diff(np.append(starts, self.blocks[row]))
        # The block at depth d is the owner's (d − start)th.
        return np.repeat(self.first_id[owners] - starts, sizes) + np.arange(self.blocks[row])


def _whole(values: Any, missing: int) -> Ints:
    try:
        array = np.asarray(values)
        if array.dtype == object:
            array = np.array([missing if each is None else each for each in values])
        elif array.dtype.kind == "f":
            array = np.where(np.isnan(array), missing, array)
        return array.astype(np.int64)  # a copy: ours to write into
    except (TypeError, ValueError) as error:
        raise ValueError(f"not a column of whole numbers ({error})") from None


def rebuild_ids(blocks: Any, prefix_ref: Any, prefix_blocks: Any) -> PrefixTree:
    """Ids per request, shared exactly where the first ones were; dense in order of first appearance."""
    return PrefixTree(blocks, prefix_ref, prefix_blocks)


@dataclass(frozen=True, slots=True)
class HitRate:
    """Share of the input (tokens, or what `lengths` counts) that a prefix cache spares.

    `cold` is over all requests with an empty cache at the start, `second_half` over those from n // 2 on with the
    cache that the first half left. None where there is no input.
    """

    cold: float | None
    second_half: float | None


def hit_rates(
    prompts: Iterable[Sequence[int]], lengths: Sequence[int], block: int, *, capacity: int | None = None
) -> HitRate:
    """Hit rates of prompts in order of arrival in a cache of `capacity` blocks, least recently used out first.

    A hit is the leading run of blocks that are there, min(run · block, length) of it. A request touches its blocks
    tail first, so that a prefix outlives what follows it. None is a cache without a limit.
    """
    if capacity is None:
        return infinite_hit_rate(link(prompts).columns().prefix_blocks, lengths, block)
    cache: OrderedDict[int, None] = OrderedDict()
    runs: list[int] = []
    for ids in prompts:
        run = 0
        for each in ids:
            if each not in cache:
                break
            run += 1
        runs.append(run)
        for each in reversed(ids):
            if each in cache:
                cache.move_to_end(each)
            else:
                cache[each] = None
        while len(cache) > capacity:
            cache.popitem(last=False)
    return infinite_hit_rate(runs, lengths, block)


def infinite_hit_rate(prefix_blocks: Any, lengths: Any, block: int) -> HitRate:
    """Hit rates of the column `prefix_blocks`: what a cache without a limit would spare."""
    lengths = _whole(lengths, 0)
    hits = np.minimum(_whole(prefix_blocks, 0) * block, lengths)
    half = len(lengths) // 2
    return HitRate(_share(hits, lengths), _share(hits[half:], lengths[half:]))


def _share(part: Ints, whole: Ints) -> float | None:
    total = int(whole.sum())
    return int(part.sum()) / total if total else None
