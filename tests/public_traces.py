"""The public traces and the values that were computed from them, which lie beside the repository."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TRACES = Path(__file__).parents[2] / "shared" / "traces"
DATA = TRACES / "data"
PRESENT = (TRACES / "reference" / "reference_values.json").is_file()
needs_traces = pytest.mark.skipif(not PRESENT, reason=f"the public traces are not at {TRACES}")


@cache
def expected(trace: str) -> dict[str, Any]:
    """The reference values of one trace."""
    text = (TRACES / "reference" / "reference_values.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)["traces"][trace]
    return values
