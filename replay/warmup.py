"""Warm-up: every shape that will be measured, in rounds of its own, none of it measured.

How many rounds are enough is found once, by a pilot boot of the baseline, and then holds for every boot of every arm
(DESIGN §10.8): a warm-up that each boot chose for itself would be a difference between arms.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median

from profiles.records import OK, Outcome

# Beyond this many rounds a trend is not warm-up any more.
MOST_ROUNDS = 8
# Rounds of one boot differ by this much without meaning anything (reference: verdict, noise within a boot).
FLAT = 0.03


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of warm-up showed."""

    ttft_ns: int | None  # median of its requests; None without a token
    slowest_ns: int | None  # what a first use cost: kernels that were compiled for it
    slow_lines: int  # lines of compilation while serving


def describe_round(outcomes: Sequence[Outcome], slow_lines: int) -> Round:
    """Reduce the outcomes of a round."""
    waits = [
        outcome.response.first_token_ns - outcome.send_started_ns
        for outcome in outcomes
        if outcome.outcome == OK and outcome.response.first_token_ns is not None and outcome.send_started_ns is not None
    ]
    return Round(round(median(waits)) if waits else None, max(waits, default=None), slow_lines)


def settled(rounds: Sequence[Round]) -> bool:
    """Warm enough: the last round compiled nothing and was no faster than the one before it.

    The first round is never enough: there is nothing to hold it against.
    """
    if len(rounds) >= MOST_ROUNDS:
        return True
    if len(rounds) < 2 or rounds[-1].slow_lines:
        return False
    before, last = rounds[-2].ttft_ns, rounds[-1].ttft_ns
    return before is None or last is None or last >= before * (1 - FLAT)


async def find_rounds(play: Callable[[int], Awaitable[Round]]) -> list[Round]:
    """Play rounds 0, 1, 2, ... until they have settled. Their number is the warm-up of the run."""
    rounds: list[Round] = []
    while not settled(rounds):
        rounds.append(await play(len(rounds)))
    return rounds
