"""Mean acceptance length of speculative decoding, per class, from the engine's counters around `single` windows.

Mean acceptance length = 1 + accepted / drafts, the bonus token included. The plain rate (accepted of drafted tokens) is
not comparable between draft lengths: a longer draft lowers it even where it helps.
"""

from collections.abc import Iterable
from typing import Final

from profiles.runs import Boot

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
