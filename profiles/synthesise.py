"""Prompts rebuilt from a profile without text: as many words as they had tokens, with the prefix sharing recorded.

1. `Lengths`   tokens of each prompt: the engine's count, else from its characters by a ratio learned from the others
2. `Prompts`   where words stand on the axis of a prompt's characters, and which words
3. `bodies`    request bodies around them (`shapes`)
4. `measure`   what was kept: length error, and the hit share of a prefix cache on both sides

A common English word is one token (`words`), so no tokenizer is needed. On the axis a request brings the blocks behind
its prefix, and with them the tokens that the prefix leaves over, spread evenly over the characters left over: so each
language keeps its own density inside one conversation. A word is drawn from (seed, block, place in the block) and word
positions come from rounding a sum over the blocks, so a shared block has the same words everywhere. Characters behind
the last full block are of their request alone.

    tokens
      ▲            ╱ own blocks: what is left over
      │      ___,-´
      │  ,-´´  blocks of the request that brought them
      └──────────────▶ characters
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from profiles.prefixes import Ints, PrefixLinks, PrefixTree, Words, mix
from profiles.ratios import Ratio, estimate, learn_ratios
from profiles.segments import SegmentTable, extent
from profiles.words import WORDS

ESTIMATED: Final = "estimated"
# Of vLLM, and of what `measure` compares.
CACHE_BLOCK_TOKENS: Final = 16

# Columns that a rebuilt prompt is made from. Any may be missing.
COLUMNS: Final = (
    *("endpoint", "model", "stream", "prompt_tokens", "output_tokens", "token_source", "input_chars", "system_chars"),
    *("messages", "tools", "images", "response_format", "max_tokens", "temperature", "n", "workload", "language"),
    *("blocks", "prefix_ref", "prefix_blocks"),
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What an engine makes of words: tokens that its chat template adds to a prompt, and tokens per word."""

    template_tokens: int = 0
    tokens_per_word: float = 1.0

    def words(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Words to send for prompts of so many tokens, at least one."""
        return np.maximum(1.0, np.rint((tokens - self.template_tokens) / self.tokens_per_word))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens and characters of each prompt. `tokens` is NaN where neither is known; such a request has no body."""

    tokens: NDArray[np.float64]
    chars: NDArray[np.float64]
    estimated: NDArray[np.bool_]  # tokens from characters
    ratios: tuple[Ratio, ...]


def read_lengths(requests: pl.DataFrame, segments: SegmentTable | None, prefix: Mapping[str, Any] | None) -> Lengths:
    """Lengths of all prompts. `prefix` is the manifest's: with `unit` tokens, blocks are cut from tokens."""
    rows = len(requests)
    tokens = requests["prompt_tokens"].cast(pl.Float64).to_numpy().copy()
    block, by_chars = _block_of(prefix)
    chars = requests["input_chars"].cast(pl.Float64).to_numpy().copy()
    if segments is not None:
        for row in range(rows):
            if known := extent(segments[row]):
                chars[row] = known
    if by_chars:
        # Blocks are cut from the text with its role marks, which input_chars leaves out.
        chars = np.fmax(chars, block * requests["blocks"].fill_null(0).cast(pl.Float64).to_numpy())
        chars[chars == 0] = np.nan
    keyed = requests.select("model", "workload", "language", pl.Series("tokens", tokens), pl.Series("chars", chars))
    ratios = learn_ratios(keyed)
    estimated = np.isnan(tokens) & ~np.isnan(chars)
    if estimated.any():
        tokens[estimated] = estimate(keyed.filter(estimated), ratios)
    return Lengths(tokens, tokens if not by_chars else np.where(np.isnan(chars), tokens, chars), estimated, ratios)


def _block_of(prefix: Mapping[str, Any] | None) -> tuple[int, bool]:
    if not prefix:
        return 64, True
    return int(prefix["block"]), prefix["unit"] != "tokens"


class Prompts:
    """The words of every prompt of a profile. `requests` has COLUMNS, rows in order of arrival.

    Raises ValueError where its columns of shared prefixes contradict each other.
    """

    def __init__(
        self,
        requests: pl.DataFrame,
        segments: pl.DataFrame | None,
        prefix: Mapping[str, Any] | None,
        *,
        seed: int,
        calibration: Calibration | None = None,
    ) -> None:
        requests = with_columns(requests)
        self.requests = requests
        self.segments = None if segments is None else SegmentTable(segments, len(requests))
        self.linked = requests["blocks"].null_count() < requests.height  # shared prefixes are known at all
        self.block, self.by_chars = _block_of(prefix)
        self.calibration = calibration or Calibration()
        self.lengths = read_lengths(requests, self.segments, prefix)
        self.tree = PrefixTree(requests["blocks"], requests["prefix_ref"], requests["prefix_blocks"])
        self._seed = mix(np.array([seed & (2**64 - 1)], np.uint64))
        known = ~np.isnan(self.lengths.tokens)
        self.asked = np.where(known, self.calibration.words(np.where(known, self.lengths.tokens, 1.0)), 0.0)
        self._axis = np.where(known, self.lengths.chars, 0.0) if self.by_chars else self.asked.copy()
        # Words in front of the first block that a request brings itself, and words per character behind it.
        self._before = np.zeros(len(requests))
        self._density = np.ones(len(requests))
        self._lay_out()

    def _lay_out(self) -> None:
        start = self.tree.start
        if not self.by_chars:  # a block of tokens has as many words, whoever brings it
            self._before = (start * self.block).astype(np.float64)
            return
        left = self._axis - start * self.block
        root = start == 0
        self._density[root] = np.divide(
            self.asked[root], left[root], out=np.zeros(int(root.sum())), where=left[root] > 0
        )
        # An item of an array costs more than one of a memoryview of it.
        before: Any = memoryview(self._before)
        density: Any = memoryview(self._density)
        asked, starts, owners = memoryview(self.asked), memoryview(start), memoryview(self.tree.owner)
        over = memoryview(left)
        for row in np.flatnonzero(~root).tolist():
            owner = owners[row]
            words = before[owner] + density[owner] * ((starts[row] - starts[owner]) * self.block)
            before[row] = words
            density[row] = max(0.0, asked[row] - words) / over[row] if over[row] > 0 else 0.0

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def shared(self) -> NDArray[np.float64]:
        """Words of each prompt that an earlier one has too, by the recorded structure."""
        return np.minimum(np.where(self.tree.start > 0, self._before, 0.0), self.asked)

    def at(self, row: int, chars: Any) -> Ints:
        """How many words stand in front of places on a prompt's axis."""
        owners = self.tree.owners(row)
        starts = self.tree.start[owners] * self.block
        chars = np.minimum(np.asarray(chars, np.float64), self._axis[row])
        piece = np.searchsorted(starts, chars, side="right") - 1
        owner = np.asarray(owners)[piece]
        words: Ints = np.rint(self._before[owner] + self._density[owner] * (chars - starts[piece])).astype(np.int64)
        return words

    def draw(self, row: int) -> Ints:
        """The words of a prompt, as places in `WORDS`. Empty where its length is not known."""
        axis = self._axis[row]
        if not self.asked[row]:
            return np.empty(0, np.int64)
        nodes = self.tree.ids(row).astype(np.uint64)
        edges = self.at(row, np.append(np.arange(len(nodes) + 1) * self.block, axis))
        counts = np.diff(edges)
        nodes = np.append(nodes, np.uint64((1 << 63) + row))  # what is behind the last full block
        places = np.arange(edges[-1]) - np.repeat(edges[:-1], counts)
        drawn = mix(mix(np.repeat(nodes, counts) ^ self._seed) + places.astype(np.uint64))
        return (drawn % np.uint64(len(WORDS))).astype(np.int64)

    def cuts(self, row: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Which words stand in pieces of these sizes, in characters, that follow one another. The last one has the
        rest."""
        edges = self.at(row, np.cumsum([0, *sizes]))
        edges[-1] = self.at(row, self._axis[row])
        return list(zip(edges[:-1].tolist(), np.maximum(edges[1:], edges[:-1]).tolist(), strict=True))


def with_columns(requests: pl.DataFrame) -> pl.DataFrame:
    """The same rows with all of COLUMNS, null where they were missing."""
    missing = [name for name in COLUMNS if name not in requests.columns]
    text = ("endpoint", "model", "workload", "language", "response_format", "token_source")
    return requests.with_columns(
        pl.lit(None, dtype=pl.String() if name in text else pl.Int64()).alias(name) for name in missing
    )


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """What the rebuilt prompts kept. Hit shares are of all words, in a prefix cache without a limit."""

    prompts: int
    words: int
    error_mean: float  # words − tokens asked for, where they are; 0 is exact
    error_max: int
    hit_recorded: float | None  # by the recorded structure
    hit_rebuilt: float | None  # of the rebuilt words, in blocks of 16


def measure(prompts: Prompts) -> RoundTrip:
    """Draw every prompt once and hold it against what was recorded."""
    links = PrefixLinks()
    sizes = np.zeros(len(prompts), np.int64)
    for row in range(len(prompts)):
        drawn = prompts.draw(row)
        sizes[row] = len(drawn)
        links.add(block_ids(drawn))
    known = prompts.asked > 0
    errors = sizes[known] - prompts.asked[known]
    words = int(sizes.sum())
    hits = int(links.columns().prefix_blocks.sum()) * CACHE_BLOCK_TOKENS
    return RoundTrip(
        prompts=int(known.sum()),
        words=words,
        error_mean=float(np.abs(errors).mean()) if len(errors) else 0.0,
        error_max=int(np.abs(errors).max()) if len(errors) else 0,
        hit_recorded=float(prompts.shared.sum() / prompts.asked.sum()) if known.any() and prompts.linked else None,
        hit_rebuilt=hits / words if words else None,
    )


_RADIX: Final = np.uint64(0x9DDFEA08EB382D69)  # odd: powers of it run through many values


def block_ids(words: Any, block: int = CACHE_BLOCK_TOKENS) -> Words:
    """Chained ids of the full blocks of a list of word numbers: equal where all words up to there are equal."""
    words = np.asarray(words, np.int64).astype(np.uint64)
    if len(words) < block:
        return np.empty(0, np.uint64)
    powers = np.cumprod(np.full(len(words), _RADIX))
    ends = np.cumsum((mix(words) | np.uint64(1)) * powers)[block - 1 :: block]
    return mix(ends + np.arange(len(ends), dtype=np.uint64))
