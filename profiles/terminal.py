"""Lines for people: as wide as their terminal, and 80 columns where the output goes to a file or a pipe."""

import os
import textwrap
from typing import Final, TextIO

PLAIN_COLUMNS: Final = 80
# Below this nothing is gained by folding.
_LEAST_COLUMNS: Final = 40


def columns(stream: TextIO) -> int:
    """How wide a line may be on this stream."""
    try:
        wide = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):  # a stream without a file behind it, or one that is closed
        wide = 0
    return max(wide, _LEAST_COLUMNS) if wide else PLAIN_COLUMNS


def fold(text: str, wide: int) -> str:
    """The same with lines of at most `wide` columns. What goes on stands two columns deeper; a word that is longer,
    such as a path, is left whole."""
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line.strip(),
            wide,
            initial_indent=indent,
            subsequent_indent=indent + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)
