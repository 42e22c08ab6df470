"""Clocks of recording hosts that were not in step: what the user says of them."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from profiles.errors import UsageError
from profiles.units import parse_duration

_SKEW = re.compile(r"(?P<name>.+)=(?P<sign>[+\-−]?)(?P<amount>[^+\-−]+)")
_FORM = "Write the name of a capture and a time, such as --skew tuesday=+2s or --skew tuesday=-150ms."


def read_skews(stated: Iterable[str], captures: Sequence[Path]) -> dict[Path, int]:
    """`NAME=+2s` of several captures, as nanoseconds by which the clock of each was ahead.

    NAME is a capture's path as given, or the name of its directory. Raises UsageError.
    """
    skews: dict[Path, int] = {}
    for text in stated:
        match = _SKEW.fullmatch(text)
        if match is None:
            raise UsageError(f"--skew {text}: not a name and a time", _FORM)
        named = [path for path in captures if match["name"] in (str(path), path.name, path.resolve().name)]
        if len(named) != 1:
            known = ", ".join(str(path) for path in captures)
            which = "no capture" if not named else "more than one capture"
            raise UsageError(f"--skew {text}: {which} of this name is given", f"Given are: {known}.")
        if named[0] in skews:
            raise UsageError(f"--skew {text}: this capture has a skew already", "Say it once.")
        try:
            amount_ns = parse_duration(match["amount"])
        except ValueError as problem:
            raise UsageError(f"--skew {text}: {problem}", _FORM) from None
        skews[named[0]] = -amount_ns if match["sign"] in ("-", "−") else amount_ns
    return skews
