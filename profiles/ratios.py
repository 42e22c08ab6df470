"""Characters per token, learned from the requests whose tokens an engine counted.

Per (model, class, language) a line of prompt tokens on characters is fitted by least squares. Its intercept is what
the chat template adds. English has about 5 characters a token, Hungarian 2.5, JSON 2: one ratio for all is wrong by a
factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

# A line through fewer points is a guess.
MIN_REQUESTS: Final = 8
# Where no request has a count: of the tokenizers tried, between English and Hungarian prose.
FALLBACK_CHARS_PER_TOKEN: Final = 4.0

# From the particular to the general; the first that has enough requests is taken.
_LEVELS: Final = (("model", "workload", "language"), ("model", "language"), ("model",), ())


@dataclass(frozen=True, slots=True)
class Ratio:
    """tokens = intercept + chars / chars_per_token, of requests of one kind; None stands for any."""

    model: str | None
    workload: str | None
    language: str | None
    level: int  # into _LEVELS
    chars_per_token: float
    intercept: float
    requests: int


def learn_ratios(requests: pl.DataFrame) -> tuple[Ratio, ...]:
    """All lines that the data carry. `requests` has model, workload, language, and tokens and chars, NaN if unknown."""
    known = requests.filter(pl.col("tokens").is_not_nan() & pl.col("chars").is_not_nan() & (pl.col("chars") > 0))
    found: list[Ratio] = []
    for level, keys in enumerate(_LEVELS):
        groups: Any = known.group_by(*keys, maintain_order=True) if keys else [((), known)]
        for values, rows in groups:
            line = _line(rows["chars"].to_numpy(), rows["tokens"].to_numpy())
            if line is not None:
                key = dict(zip(keys, values, strict=True))
                names = (key.get("model"), key.get("workload"), key.get("language"))
                found.append(Ratio(*names, level, *line, len(rows)))
    return tuple(found)


def _line(chars: NDArray[np.float64], tokens: NDArray[np.float64]) -> tuple[float, float] | None:
    """Characters per token and intercept. Without a usable slope, or below 0, the line goes through the origin."""
    if len(chars) < MIN_REQUESTS or not tokens.sum():
        return None
    spread = float(((chars - chars.mean()) ** 2).sum())
    slope = float(((chars - chars.mean()) * (tokens - tokens.mean())).sum()) / spread if spread else 0.0
    intercept = float(tokens.mean() - slope * chars.mean())
    if slope <= 0 or intercept < 0:
        return float(chars.sum() / tokens.sum()), 0.0
    return 1 / slope, intercept


def estimate(requests: pl.DataFrame, ratios: Sequence[Ratio]) -> NDArray[np.float64]:
    """Tokens of requests from their `chars`, by the most particular line there is; by 4 characters a token without."""
    lines = {(ratio.level, ratio.model, ratio.workload, ratio.language): ratio for ratio in ratios}
    chosen: dict[tuple[Any, ...], Ratio | None] = {}
    out = np.empty(len(requests))
    for at, (*kind, chars) in enumerate(requests.select("model", "workload", "language", "chars").iter_rows()):
        key = tuple(kind)
        if key not in chosen:
            chosen[key] = _choose(lines, *kind)
        line = chosen[key]
        out[at] = chars / FALLBACK_CHARS_PER_TOKEN if line is None else line.intercept + chars / line.chars_per_token
    return np.maximum(1.0, np.rint(out))


def _choose(lines: dict[tuple[Any, ...], Ratio], model: Any, workload: Any, language: Any) -> Ratio | None:
    own = {"model": model, "workload": workload, "language": language}
    for level, keys in enumerate(_LEVELS):
        wanted = [own[name] if name in keys else None for name in ("model", "workload", "language")]
        if (level, *wanted) in lines:
            return lines[(level, *wanted)]
    return None


@dataclass(frozen=True, slots=True)
class SlopeCheck:
    """What an engine counted of prompts whose words are known: tokens = template_tokens + tokens_per_word · words.

    `warning` is empty where a word is a token, so that rebuilt prompts have the right length.
    """

    template_tokens: int
    tokens_per_word: float
    warning: str = ""


SLOPE_TOLERANCE: Final = 0.02


def check_slope(pairs: Sequence[tuple[int, int]]) -> SlopeCheck:
    """The template's constant from pairs of (words sent, `usage.prompt_tokens`), and whether a word is a token.

    A slope within 2 % of 1 is taken as 1. Beyond it the ratio is given, and the words are not right for this tokenizer.
    Raises ValueError for no pairs.
    """
    if not pairs:
        raise ValueError("no answer with usage.prompt_tokens to learn from")
    words, tokens = np.array(pairs, np.float64).T
    spread = float(((words - words.mean()) ** 2).sum())
    if not spread:
        constant = max(0, round(float((tokens - words).mean())))
        return SlopeCheck(constant, 1.0, "all prompts had one length, so nobody knows whether a word is a token")
    slope = float(((words - words.mean()) * (tokens - tokens.mean())).sum()) / spread
    if abs(slope - 1) <= SLOPE_TOLERANCE:
        return SlopeCheck(max(0, round(float((tokens - words).mean()))), 1.0)
    constant = max(0, round(float(tokens.mean() - slope * words.mean())))
    return SlopeCheck(
        constant,
        slope,
        f"a word is {slope:.3f} tokens here, not 1: the words of firsttoken do not suit this tokenizer, so lengths are"
        " right on average only, with this ratio",
    )
