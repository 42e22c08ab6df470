"""Which boots of a run are still to come: pure, from its order, what has ended, and which arms are out.

An arm is out once a boot of it failed, or once a declared look decided it. A decided arm is booted on as long as an arm
that is not out leans on it: the step of that arm is judged against its predecessor, boot by boot.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from profiles.experiment import Experiment
from profiles.runs import DECIDED


@dataclass(slots=True)
class Standing:
    """`order` are the names that each block boots, `copies` the baseline and its second copy, `arms` those that are to
    be judged, `leans` an arm's predecessor.

    `done` are (block, arm) of boots that count, `failed` arms with the reason, `decided` arms with the look, counted in
    blocks.
    """

    order: Sequence[Sequence[str]]
    copies: frozenset[str]
    arms: frozenset[str]
    leans: Mapping[str, str]
    done: set[tuple[int, str]] = field(default_factory=set)
    failed: dict[str, str | None] = field(default_factory=dict)
    decided: dict[str, int] = field(default_factory=dict)

    @property
    def live(self) -> frozenset[str]:
        """Arms that are not out."""
        return self.arms - self.failed.keys() - self.decided.keys()

    @property
    def over(self) -> bool:
        """Looks have decided what there was to decide: not even the baseline is booted again."""
        return bool(self.decided) and not self.live

    def needed_by(self, arm: str) -> list[str]:
        """Arms that are not out and lean on this one."""
        return sorted(name for name in self.live if self.leans.get(name) == arm)

    def is_due(self, block: int, arm: str) -> bool:
        """Whether this boot is still to come. `block` counts from 1."""
        if (block, arm) in self.done or arm in self.failed or self.over:
            return False
        return block <= self.decided.get(arm, block) or bool(self.needed_by(arm))

    def left(self) -> int:
        """How many boots are still to come, as far as is known now."""
        return sum(self.is_due(block, arm) for block, arms in enumerate(self.order, start=1) for arm in arms)


def predecessors(experiment: Experiment) -> dict[str, str]:
    """Arm → the arm against which its step is judged. Empty where steps are not attributed."""
    if experiment.file.design.contrast.attribute != "previous":
        return {}
    return {arm.name: arm.extends for arm in experiment.arms if arm.extends is not None}


def newly_decided(verdicts: Mapping[str, str], standing: Standing) -> dict[str, str]:
    """Of the verdicts of a look, those that end an arm: its word by arm. A failed arm is out for another reason."""
    return {arm: word for arm, word in verdicts.items() if word in DECIDED and arm in standing.live}


def decided_before(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Arm → the look that decided it, from the events of a run."""
    return {str(event["arm"]): int(event["look"]) for event in events if event.get("event") == "arm_decided"}
