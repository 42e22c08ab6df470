"""What an engine's counters around a window say: acceptance of drafts, cached tokens, preemptions. Pure.

Names are an engine's own, such as `vllm:spec_decode_num_drafts_total`, as `replay.metrics` writes them: with `_total`,
today's name where there was an older one, and `{position="N"}` behind it where the engine gives one. What is absent is
None and never 0: an engine without speculation has no series for it (llama.cpp has, and they stay at 0).

Formulas: vLLM's documentation of its acceptance metrics. The plain rate is not comparable between draft lengths, since
a longer draft lowers it even where it helps; the mean acceptance length is.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Final

from profiles.records import ResponseFacts

DRAFTS: Final = "spec_decode_num_drafts_total"
DRAFTED: Final = "spec_decode_num_draft_tokens_total"
ACCEPTED: Final = "spec_decode_num_accepted_tokens_total"
PER_POSITION: Final = "spec_decode_num_accepted_tokens_per_pos_total"
ENGINES: Final = ("vllm", "sglang", "llamacpp")


def counter(counters: Mapping[str, float], name: str) -> float | None:
    """A counter by its name without the engine's prefix, or None."""
    return next((counters[key] for prefix in ENGINES if (key := f"{prefix}:{name}") in counters), None)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Drafts and what became of them. `drafts` are verification steps that had a draft."""

    drafts: float
    accepted: float
    drafted: float | None = None  # tokens
    per_position: tuple[float, ...] | None = None  # accepted tokens at each draft position

    @property
    def length(self) -> float:
        """Mean acceptance length, 1 + accepted / drafts: the bonus token is included."""
        return 1 + self.accepted / self.drafts

    @property
    def rate(self) -> float | None:
        """Accepted of drafted tokens."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def position_rates(self) -> tuple[float, ...] | None:
        """For each position the share of drafts that were accepted up to it."""
        return None if self.per_position is None else tuple(count / self.drafts for count in self.per_position)

    @property
    def problem(self) -> str | None:
        """Why these counters contradict each other, or None."""
        if self.drafted is not None and self.accepted > self.drafted:
            return f"{self.accepted:g} accepted tokens of {self.drafted:g} drafted ones"
        if self.per_position is not None and not math.isclose(sum(self.per_position), self.accepted, abs_tol=0.5):
            return f"the positions hold {sum(self.per_position):g} accepted tokens, the total is {self.accepted:g}"
        return None


def acceptance(counters: Mapping[str, float]) -> Acceptance | None:
    """Acceptance over one window, or None where nothing was drafted or the engine does not say."""
    drafts, accepted = counter(counters, DRAFTS), counter(counters, ACCEPTED)
    if not drafts or accepted is None:
        return None
    return Acceptance(drafts, accepted, counter(counters, DRAFTED), _positions(counters))


def acceptance_told(answers: Iterable[ResponseFacts]) -> Acceptance | None:
    """The same by the answers' own words (vLLM's --per-request-spec-decode-metrics), to hold against the counters.

    None where one of them does not tell, or nothing was drafted.
    """
    steps: list[int] = []
    drafted = accepted = 0
    for answer in answers:
        if answer.draft_steps is None or answer.draft_tokens is None or answer.accepted_tokens is None:
            return None
        steps = [a + b for a, b in zip_longest(steps, answer.draft_steps, fillvalue=0)]
        drafted += answer.draft_tokens
        accepted += answer.accepted_tokens
    # A draft that held up to its second token held up to its first one too.
    held = list(accumulate(reversed(steps)))[::-1]
    return Acceptance(held[0], accepted, drafted, tuple(held[1:])) if held and held[0] else None


def pooled(parts: Iterable[Acceptance]) -> Acceptance | None:
    """Several windows together, by their counts. The positions are None unless each window has as many of them."""
    found = list(parts)
    if not found:
        return None
    lengths = {None if part.per_position is None else len(part.per_position) for part in found}
    same = len(lengths) == 1 and None not in lengths
    drafted = [part.drafted for part in found]
    return Acceptance(
        drafts=sum(part.drafts for part in found),
        accepted=sum(part.accepted for part in found),
        drafted=None if None in drafted else sum(part or 0.0 for part in drafted),
        per_position=tuple(map(sum, zip(*(part.per_position or () for part in found), strict=True))) if same else None,
    )


def _positions(counters: Mapping[str, float]) -> tuple[float, ...] | None:
    counts: list[float] = []
    while (found := counter(counters, f'{PER_POSITION}{{position="{len(counts)}"}}')) is not None:
        counts.append(found)
    return tuple(counts) or None


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Prompt tokens that were found in the prefix cache, of those that were looked up."""

    cached: float
    asked: float

    @property
    def share(self) -> float | None:
        return self.cached / self.asked if self.asked else None


def cached_tokens(counters: Mapping[str, float]) -> CachedTokens | None:
    """Cached prompt tokens over one window, or None where the engine does not say.

    With its prefix cache off, vLLM's queries stay at 0: nothing was asked, and the share is None.
    """
    hits, queries = counter(counters, "prefix_cache_hits_total"), counter(counters, "prefix_cache_queries_total")
    if hits is not None and queries is not None:
        return CachedTokens(hits, queries)
    prompt = counter(counters, "prompt_tokens_total")
    if "llamacpp:prompt_tokens_cached_total" in counters:  # its prompt tokens are those that were computed
        cached = counters["llamacpp:prompt_tokens_cached_total"]
        return CachedTokens(cached, cached + (prompt or 0.0))
    found = counter(counters, "prompt_tokens_cached_total")
    if found is None:
        found = counter(counters, "cached_tokens_total")
    return None if found is None or prompt is None else CachedTokens(found, prompt)


def generated_tokens(counters: Mapping[str, float]) -> float | None:
    """Output tokens over one window, or None where the engine does not say."""
    found = counter(counters, "generation_tokens_total")
    return found if found is not None else counter(counters, "tokens_predicted_total")


def preemptions(counters: Mapping[str, float]) -> float | None:
    """Requests that lost their place in the KV cache, or None where the engine does not say."""
    found = counter(counters, "num_preemptions_total")
    return found if found is not None else counter(counters, "num_retracted_requests_total")
