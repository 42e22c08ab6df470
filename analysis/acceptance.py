"""Mean acceptance length of speculative decoding, per class, from the engine's counters around `single` windows.

Mean acceptance length = 1 + accepted / drafts, the bonus token included. The plain rate (accepted of drafted tokens) is
not comparable between draft lengths: a longer draft lowers it even where it helps.

Over a profile without the recorded text it is not measurable: the counters then tell of the text that was made up.
"""

from collections.abc import Iterable
from typing import Final

from profiles.measurable import ACCEPTANCE
from profiles.runs import Boot, Run

DRAFTS: Final = "vllm:spec_decode_num_drafts_total"
ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"


def acceptance_lengths(boots: Iterable[Boot]) -> dict[str, float]:
    """Class → mean acceptance length over these boots. A class without usable counters has no entry, never a 0."""
    drafts: dict[str, float] = {}
    accepted: dict[str, float] = {}
    for boot in boots:
        for window in boot.facts.windows:
            counters = window.counters
            if window.kind != "single" or window.workload is None or counters is None or window.counters_void:
                continue
            if DRAFTS in counters and ACCEPTED in counters:
                drafts[window.workload] = drafts.get(window.workload, 0.0) + counters[DRAFTS]
                accepted[window.workload] = accepted.get(window.workload, 0.0) + counters[ACCEPTED]
    return {name: 1 + accepted[name] / count for name, count in drafts.items() if count > 0}


def not_measurable(run: Run) -> tuple[str, ...]:
    """What the replayed profile cannot answer, by name, as its manifest said before the first boot."""
    return tuple((run.manifest.get("profile") or {}).get("not_measurable") or ())


def is_measurable(run: Run) -> bool:
    """Whether acceptance means something in this run."""
    return ACCEPTANCE not in not_measurable(run)
