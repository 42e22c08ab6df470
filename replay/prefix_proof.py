"""What proves that two passes share nothing in the prefix cache. Pure; `isolation` sends the requests.

Two ways keep passes apart (DESIGN §10.12): another salt per pass, which an engine may silently ignore, and a reset,
whose endpoint may answer 200 without resetting anything. Neither is taken on trust.

The probe: one prompt of at least `probe_tokens` tokens that nothing else shares, sent three times, one after the other,
on an engine at rest:

    1  with salt A
    2  with salt B    found in the cache now: the salt is ignored
    3  with salt B    found in the cache now, as it should be: the cache works at this length, so 2 means something
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from profiles.counters import cached_tokens

# The largest block that is known: vLLM's hybrid models with an fp8 KV cache and speculation (reference: engines §10).
LARGEST_BLOCK_TOKENS: Final = 2128
# Of a prompt that is sent again, engines find all but the last block or token. A chat template may be shared too, and
# that is no harm: it costs no time that could be saved.
LEAST_SHARE: Final = 0.25

type Word = Literal["proved", "ignored", "not shown"]


class Judgement(NamedTuple):
    """`why` in words, for the step's proof or for the report."""

    word: Word
    why: str


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What one request of the probe found in the cache. None where the engine did not say."""

    prompt_tokens: int | None = None
    usage_cached: int | None = None  # by the answer's usage
    counters: Mapping[str, float] | None = None  # deltas around this request alone

    @property
    def cached(self) -> int | None:
        """Cached tokens, by the counter where there is one: usage may leave out a 0, and is off by default in vLLM."""
        found = cached_tokens(self.counters) if self.counters is not None else None
        if found is not None and found.asked:
            return round(found.cached)
        return self.usage_cached


def probe_tokens(selection: Mapping[str, Any]) -> int:
    """The least length of the probe's prompt: two blocks of the prefix cache, and one more so that none is cut short.

    `selection` is what is known of the boot (`profiles.selection`): a hybrid model prints its block.
    """
    block = int(selection.get("attention_block_tokens") or LARGEST_BLOCK_TOKENS)
    return 2 * max(block, LARGEST_BLOCK_TOKENS) + LARGEST_BLOCK_TOKENS // 2


def judge_salt(first: ProbeAnswer, other: ProbeAnswer, again: ProbeAnswer | None = None) -> Judgement:
    """Whether the engine keeps salts apart. `first` has salt A, `other` the same prompt with salt B, `again` B again.

    Without `again` a cache that is off looks like one that keeps salts apart: then nothing is shown.
    """
    length = other.prompt_tokens or first.prompt_tokens
    limit = LEAST_SHARE * length if length else LARGEST_BLOCK_TOKENS / 2
    found = other.cached
    if found is not None and found >= max(1.0, limit):
        of = f" of {length}" if length else ""
        return Judgement("ignored", f"with another salt {found}{of} prompt tokens were still found in the cache")
    repeat = again.cached if again is not None else None
    if repeat is not None and repeat >= max(1.0, limit):
        # An engine that reports the repeat reports 0 as well; vLLM's usage leaves a 0 out.
        with_other = found or 0
        return Judgement(
            "proved", f"{with_other} prompt tokens cached with another salt, {repeat} of {length} with the same salt"
        )
    if found is None and repeat is None:
        return Judgement("not shown", "the engine reports no cached tokens, neither in usage nor in its counters")
    if again is None:
        return Judgement(
            "not shown", f"{found} prompt tokens cached with another salt, and no repeat with the same salt"
        )
    return Judgement(
        "not shown",
        f"the same prompt with the same salt found {repeat or 0} of {length or 'its'} tokens in the cache: "
        "the prefix cache is off, or its block is larger than the prompt",
    )


# What the log says (rows P23, P24, S11, S12 of the table), in bytes: a log need not be text.
_RESET_OK: Final = (b"Successfully reset prefix cache", b"Cache flushed successfully")
_RESET_FAILED: Final = (b"Failed to reset prefix cache", b"Cache not flushed because")


def judge_reset(new_log: bytes, *, status: int | None = None, answer: Any = None) -> Judgement:
    """Whether a reset happened. `new_log` is what the engine logged since it was asked; `answer` its JSON, if any.

    vLLM answers 200 whether or not it reset anything, so only its log counts. llama.cpp answers for the slot with the
    number of tokens that it erased.
    """
    text = new_log.replace(b"\r", b"\n")
    said = [line for line in text.split(b"\n") if any(mark in line for mark in (*_RESET_OK, *_RESET_FAILED))]
    if said:
        last = said[-1].decode("utf-8", "replace").strip()[-160:]
        failed = any(mark in said[-1] for mark in _RESET_FAILED)
        return Judgement("ignored" if failed else "proved", f'the log says "{last}"')
    if isinstance(answer, Mapping) and isinstance(answer.get("n_erased"), int) and status == 200:
        return Judgement("proved", f"slot {answer.get('id_slot', '?')}: {answer['n_erased']} tokens erased")
    if status is not None and status != 200:
        return Judgement("ignored", f"the engine refused the reset (HTTP {status})")
    return Judgement("not shown", "the log does not say that the prefix cache was reset")
