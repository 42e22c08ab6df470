"""Acceptance of speculative decoding per class, from `single` windows, and per window.

Three sources, the first that an engine has: its counters around a window (vLLM, llama.cpp), a gauge looked at while the
window ran (SGLang), the answers themselves (vLLM's, where it was told to; llama.cpp's timings, for the rate alone).
Formulas: `profiles.counters`.

Over a profile without the recorded text it is not measurable: the counters then tell of the text that was made up.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from profiles.counters import Acceptance, acceptance, acceptance_told, generated_tokens, pooled
from profiles.measurable import ACCEPTANCE
from profiles.runs import Boot, Run, WindowFacts

LENGTH_GAUGE: Final = "sglang:spec_accept_length"
RATE_GAUGE: Final = "sglang:spec_accept_rate"
NEARLY_ALL: Final = 0.9  # of the steps have a draft


@dataclass(frozen=True, slots=True)
class AcceptanceFinding:
    """Acceptance over one or more windows; None where its source does not tell.

    `length` is 1 + accepted / drafts, `rate` accepted of drafted tokens, which is not comparable between draft lengths,
    `position_rates` the share of drafts that held up to each position.
    """

    length: float | None
    rate: float | None
    position_rates: tuple[float, ...] | None
    source: Literal["counters", "gauge", "answers"]
    problem: str | None = None  # why the counters contradict each other
    per_step: float | None = None  # tokens of a step of the engine, where many steps have no draft; None: the length

    @property
    def tokens(self) -> float | None:
        """Tokens that a step of the engine brings, whether it had a draft or not."""
        return self.per_step if self.per_step is not None else self.length


def acceptance_by_class(boots: Iterable[Boot]) -> dict[str, AcceptanceFinding]:
    """Class → acceptance over the `single` windows of these boots. A class that shows nothing has no entry."""
    return _grouped(
        (window.workload, boot, window)
        for boot in boots
        for window in boot.facts.windows
        if window.kind == "single" and window.workload is not None
    )


def acceptance_by_window(boots: Iterable[Boot]) -> dict[str, AcceptanceFinding]:
    """Window → acceptance over these boots, of whatever mix the window plays."""
    return _grouped((window.name, boot, window) for boot in boots for window in boot.facts.windows)


def acceptance_lengths(boots: Iterable[Boot]) -> dict[str, float]:
    """Class → mean acceptance length over these boots. A class without usable counters has no entry, never a 0."""
    found = acceptance_by_class(boots)
    return {name: finding.length for name, finding in found.items() if finding.length is not None}


def _grouped(items: Iterable[tuple[str, Boot, WindowFacts]]) -> dict[str, AcceptanceFinding]:
    groups: dict[str, list[tuple[Boot, WindowFacts]]] = {}
    for name, boot, window in items:
        groups.setdefault(name, []).append((boot, window))
    found = {name: _by_counters(group) or _by_gauge(group) or _by_answers(group) for name, group in groups.items()}
    return {name: finding for name, finding in found.items() if finding is not None}


def _by_counters(group: list[tuple[Boot, WindowFacts]]) -> AcceptanceFinding | None:
    sound = [window for _, window in group if window.counters is not None and not window.counters_void]
    parts = [part for window in sound if (part := acceptance(window.counters or {})) is not None]
    whole = pooled(parts)
    if whole is None:
        return None
    problem = next((part.problem for part in parts if part.problem is not None), None)
    return AcceptanceFinding(
        whole.length, whole.rate, whole.position_rates, "counters", problem, _per_step(whole, sound)
    )


def _per_step(whole: Acceptance, windows: list[WindowFacts]) -> float | None:
    """Output tokens that a step brings over all of these windows, the steps without a draft included.

    The first token of a request comes out of its prefill, and each accepted one saves a step. None where nearly every
    step has a draft: what is missing then are the last steps of the answers, and the mean acceptance length is it.
    """
    decoded = -float(sum(window.requests for window in windows))
    for window in windows:
        generated = generated_tokens(window.counters or {})
        if generated is None:
            return None
        decoded += generated
    steps = decoded - whole.accepted
    return decoded / steps if steps > 0 and whole.drafts < NEARLY_ALL * steps else None


def _by_gauge(group: list[tuple[Boot, WindowFacts]]) -> AcceptanceFinding | None:
    """The mean over the boots: a gauge has no counts to pool."""
    lengths = [window.gauges[LENGTH_GAUGE] for _, window in group if LENGTH_GAUGE in window.gauges]
    rates = [window.gauges[RATE_GAUGE] for _, window in group if RATE_GAUGE in window.gauges]
    if not lengths:
        return None
    return AcceptanceFinding(sum(lengths) / len(lengths), sum(rates) / len(rates) if rates else None, None, "gauge")


def _by_answers(group: list[tuple[Boot, WindowFacts]]) -> AcceptanceFinding | None:
    answers = [o.response for boot, window in group for o in boot.outcomes if o.window == window.name]
    whole = acceptance_told(answers)
    if whole is not None:
        return AcceptanceFinding(whole.length, whole.rate, whole.position_rates, "answers")
    drafted = accepted = 0
    for response in answers:
        if response.draft_tokens and response.accepted_tokens is not None:
            drafted += response.draft_tokens
            accepted += response.accepted_tokens
    return AcceptanceFinding(None, accepted / drafted, None, "answers") if drafted else None


def not_measurable(run: Run) -> tuple[str, ...]:
    """What the replayed profile cannot answer, by name, as its manifest said before the first boot."""
    return tuple((run.manifest.get("profile") or {}).get("not_measurable") or ())


def is_measurable(run: Run) -> bool:
    """Whether acceptance means something in this run."""
    return ACCEPTANCE not in not_measurable(run)
