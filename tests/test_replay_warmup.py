"""How long warm-up is: as long as something compiles or gets faster, bounded, and the same for all boots."""

import asyncio

import pytest

from replay.warmup import MOST_ROUNDS, Round, find_rounds, settled


def rounds(*ttft_ms: int, slow: int = 0) -> list[Round]:
    return [Round(ms * 1_000_000, ms * 1_000_000, slow) for ms in ttft_ms]


@pytest.mark.parametrize(
    ("seen", "enough"),
    [
        (rounds(), False),
        (rounds(100), False),  # nothing to hold it against
        (rounds(100, 100), True),
        (rounds(100, 98), True),  # within the noise of a boot
        (rounds(100, 90), False),  # still getting faster
        (rounds(100, 90, 90), True),
        (rounds(100, 120), True),
        (rounds(100, 100, slow=1), False),  # it compiled to the end
        (rounds(*range(100, 100 - 10 * MOST_ROUNDS, -10)), True),  # bounded
        ([Round(None, None, 0), Round(None, None, 0)], True),  # no token: nothing to wait for
    ],
)
def test_warm_up_ends_when_nothing_compiles_and_nothing_gets_faster(seen: list[Round], enough: bool) -> None:
    assert settled(seen) is enough


def test_a_pilot_plays_rounds_until_they_settle() -> None:
    script = [*rounds(12_000, slow=3), *rounds(400, 210, 208)]

    async def play(number: int) -> Round:
        return script[number]

    assert asyncio.run(find_rounds(play)) == script
