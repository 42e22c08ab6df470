"""Output-length parity: an arm that answers at another length does other work, and its numbers say less."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from analysis.bench import Bench
from analysis.contrasts import Contrast
from analysis.stats import Estimate
from profiles.experiment import Arm


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """Output tokens of an arm against the baseline's, the same requests: log ratio over blocks."""

    estimate: Estimate | None
    arm_tokens: int
    base_tokens: int
    status: Literal["same", "differs", "not known"]


def output_lengths(bench: Bench, against: Contrast) -> OutputLengths | None:
    """None where no usage tells the output tokens of both sides."""
    return None


def length_blockers(found: OutputLengths | None, arm: Arm) -> list[str]:
    """Why an undeclared difference (`changes = ["output"]` declares it) blocks adopt."""
    return []


def parity_document(found: OutputLengths | None) -> dict[str, Any] | None:
    """For verdict.json."""
    return None


def parity_lines(found: OutputLengths | None) -> Iterator[str]:
    """For a person."""
    yield from ()
