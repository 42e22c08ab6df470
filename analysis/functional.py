"""The functional guard: an arm may not break what clients rely on, judged against the A/A copy's own disagreement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.bench import Bench
from profiles.experiment import Arm


@dataclass(frozen=True, slots=True)
class FunctionalFinding:
    """One trait of the answers to the fixed prompts: `finish_reason`, `tool_call`, `streamed_arguments`, `json_schema`,
    `reasoning_apart`, `output_length`, `identical_output`.

    `own` of `own_asked` probes of the arm agree with the baseline or are right; `copy` of `copy_asked` those of the
    baseline's second copy. `not offered`: the baseline cannot do it either.
    """

    trait: str
    status: Literal["kept", "broken", "not shown", "not offered", "not measured"]
    own: int
    own_asked: int
    copy: int
    copy_asked: int
    sentence: str
    probes: tuple[str, ...] = ()  # names of those that differ


def judge_functional(bench: Bench, arm: Arm) -> tuple[FunctionalFinding, ...]:
    """One finding per trait; empty where the run made no functional probes."""
    return ()


def functional_rejections(bench: Bench, found: Sequence[FunctionalFinding]) -> list[str]:
    """A sentence per broken function, if the rule lets it reject."""
    return []


def functional_document(found: Sequence[FunctionalFinding]) -> list[dict[str, Any]]:
    """For verdict.json."""
    return []


def functional_lines(found: Sequence[FunctionalFinding]) -> Iterator[str]:
    """For a person."""
    yield from ()
