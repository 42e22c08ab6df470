"""Timed trace of vLLM's benchmark: JSON lines as Mooncake's, with names, block size and unit set by options there.

Its own defaults are 16 tokens per id and times in seconds, which fit neither a Mooncake file nor most others.
"""

from pathlib import Path
from typing import Final

from profiles.errors import UsageError
from profiles.traces.imported import Asked, Imported
from profiles.traces.json_trace import FIELDS, read_trace

NAME: Final = "vllm-timed-trace"
BLOCK: Final = 16


def read(path: Path, asked: Asked) -> Imported:
    """Raises FormatError and UsageError."""
    labels = dict(asked.labels)
    if unknown := sorted(labels.keys() - set(FIELDS)):
        raise UsageError(f"--label {unknown[0]}=…: not a field", f"Fields are {', '.join(FIELDS)}.")
    unit, block = asked.unit or "s", asked.block or BLOCK
    said = "" if asked.unit else ", vLLM's default (--unit)"
    notes = [f"unit: {unit}{said}", "zone: not known, nor the date"]
    return read_trace(path, asked, NAME, unit=unit, block=block, labels=labels, notes=notes)
