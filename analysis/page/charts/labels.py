"""Where the labels of points stand, so that none hides another or a point. Pure: data in, data out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

type Align = Literal["left", "right"]

_CHAR: Final = 6.0  # of a label, in pixels
_LINE: Final = 13.0
_BESIDE: Final = 8.0  # from the middle of a point
_MARK: Final = 5.0


@dataclass(frozen=True, slots=True)
class Frame:
    """What a panel shows, in units of the data, and its size in pixels."""

    left: float
    right: float
    bottom: float
    top: float
    width: float
    height: float

    def pixels(self, x: float, y: float) -> tuple[float, float]:
        """From the upper left corner."""
        across = (x - self.left) / (self.right - self.left) * self.width
        return across, (self.top - y) / (self.top - self.bottom) * self.height

    def data(self, across: float, down: float) -> tuple[float, float]:
        """The place of these pixels."""
        x = self.left + across / self.width * (self.right - self.left)
        return x, self.top - down / self.height * (self.top - self.bottom)


@dataclass(frozen=True, slots=True)
class Box:
    """Pixels that something covers."""

    left: float
    right: float
    top: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def place_labels(points: Sequence[tuple[float, float, str]], frame: Frame) -> list[tuple[float, float, str, Align]]:
    """x, y and name of each point → place, name and alignment of its label, in the order of the points.

    Each takes the first free place: beside its point on the right, then on the left, then further up and down. Where
    all are taken it stands on the right, as without this.
    """
    marks = [_around(*frame.pixels(x, y)) for x, y, _ in points]
    taken: list[Box] = []
    placed: list[tuple[float, float, str, Align]] = []
    for at, (x, y, name) in enumerate(points):
        others = [mark for number, mark in enumerate(marks) if number != at]
        spots = list(_spots(*frame.pixels(x, y), name))
        free = (
            spot
            for spot in spots
            if _inside(spot[0], frame) and not any(spot[0].overlaps(box) for box in (*taken, *others))
        )
        box, across, align = next(free, spots[0])
        taken.append(box)
        placed.append((*frame.data(across, (box.top + box.bottom) / 2), name, align))
    return placed


def _spots(across: float, down: float, name: str) -> Iterator[tuple[Box, float, Align]]:
    """Candidates: what each covers, where its text begins or ends, and on which side it is."""
    wide = _CHAR * len(name)
    for lines in (-0.5, 0.5, 0.0, -1.5, 1.5, -2.5, 2.5, -3.5, 3.5):
        middle = down + lines * _LINE
        top, bottom = middle - _LINE / 2, middle + _LINE / 2
        yield Box(across + _BESIDE, across + _BESIDE + wide, top, bottom), across + _BESIDE, "left"
        yield Box(across - _BESIDE - wide, across - _BESIDE, top, bottom), across - _BESIDE, "right"


def _around(across: float, down: float) -> Box:
    return Box(across - _MARK, across + _MARK, down - _MARK, down + _MARK)


def _inside(box: Box, frame: Frame) -> bool:
    return box.left >= 0 and box.right <= frame.width and box.top >= 0 and box.bottom <= frame.height
