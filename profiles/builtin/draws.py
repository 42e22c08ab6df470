"""Seeded draws. They use nothing of Python's generator but `random()`, whose sequence is kept between versions."""

from collections.abc import Sequence
from random import Random


class Draw:
    """Draws that follow from the parts of a seed alone."""

    def __init__(self, *seed: str | int) -> None:
        self._random = Random("/".join(map(str, seed)))

    def real(self, low: float, high: float) -> float:
        """Evenly from [low, high)."""
        return low + (high - low) * self._random.random()

    def whole(self, low: int, high: int) -> int:
        """Evenly from low to high, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def one[T](self, choices: Sequence[T]) -> T:
        """One of the choices."""
        return choices[int(self._random.random() * len(choices))]

    def some[T](self, choices: Sequence[T], count: int) -> list[T]:
        """So many of the choices in random order, none twice; all of them where there are fewer."""
        left = list(choices)
        for at in range(min(count, len(left))):
            other = self.whole(at, len(left) - 1)
            left[at], left[other] = left[other], left[at]
        return left[:count]

    def chance(self, share: float) -> bool:
        """True with the probability `share`."""
        return self._random.random() < share
