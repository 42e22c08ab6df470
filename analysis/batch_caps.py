"""How many requests an arm runs at once. At a higher concurrency its windows measure its queue (DESIGN §10.13)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from profiles.measurable import flags_of
from profiles.runs import BootFacts

# vLLM, SGLang, llama.cpp: the flag on a command line, and what a boot log calls it.
FLAGS: Final = ("--max-num-seqs", "--max-running-requests", "--parallel", "-np", "--n-parallel")
SETTINGS: Final = ("max_num_seqs", "max_running_requests")


def batch_cap(argv: Sequence[str], boots: Iterable[BootFacts]) -> int | None:
    """The cap as the boot logs say it, the lowest of them; else as the command line asks; None where neither does."""
    logged = [cap for facts in boots for cap in _logged(facts.selection)]
    if logged:
        return min(logged)
    asked = None
    for flag, value in flags_of(argv):
        if flag in FLAGS:
            asked = _count(value) or asked  # the last one wins, as it does for the engine
    return asked


def queue_note(cap: int | None, windows: Iterable[Mapping[str, Any]]) -> str | None:
    """Which planned levels are above the cap, in a sentence; None where none is, or the cap is not known."""
    if cap is None:
        return None
    above = sorted({int(window["c"]) for window in windows if int(window.get("c") or 0) > cap})
    if not above:
        return None
    levels = ", ".join(map(str, above))
    return f"runs at most {cap} requests at once: c = {levels} measures its queue"


def _logged(selection: Mapping[str, Any]) -> Iterator[int]:
    for settings in (selection.get("config") or {}, selection.get("arguments") or {}):
        for name in SETTINGS:
            cap = _count(str(settings.get(name, "")))
            if cap is not None:
                yield cap
    slots = selection.get("slots")
    if isinstance(slots, int) and slots > 0:
        yield slots


def _count(text: str) -> int | None:
    text = text.strip("'\" ")
    return int(text) if text.isascii() and text.isdigit() and int(text) else None
