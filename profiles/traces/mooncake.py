"""Mooncake: JSON lines of `timestamp`, `input_length`, `output_length`, `hash_ids`, and what AIPerf adds to them.

Times are milliseconds from the start. An id stands for 512 tokens and all before them; the last one may be partial.
"""

from pathlib import Path
from typing import Final

from profiles.traces.imported import Asked, Imported
from profiles.traces.json_trace import read_trace

NAME: Final = "mooncake"
BLOCK: Final = 512


def read(path: Path, asked: Asked) -> Imported:
    """Raises FormatError and UsageError."""
    unit = asked.unit or "ms"
    said = "" if asked.unit else ", as the format has it (--unit)"
    notes = [f"unit: {unit}{said}", "zone: not known, nor the date"]
    return read_trace(path, asked, NAME, unit=unit, block=asked.block or BLOCK, labels={}, notes=notes)
