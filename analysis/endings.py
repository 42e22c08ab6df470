"""How boots ended, in words: why one failed, and what one that was measured to its end left behind."""

from collections import Counter

from profiles.runs import DISCARDED, DONE, BootFacts, Run

# These say no more than the status and the reason do.
_PLAIN = frozenset({"failed", "spoilt"})


def ending(facts: BootFacts) -> str:
    """`stalled: no token for 300 s`: the diagnosis in words, and the reason."""
    reason = facts.reason or "no reason recorded"
    if facts.diagnosis is None or facts.diagnosis in _PLAIN:
        return reason
    return f"{words(facts.diagnosis)}: {reason}"


def words(diagnosis: str) -> str:
    """`died_in_boot` as it is read."""
    return diagnosis.replace("_", " ")


def remarks(run: Run, arm: str) -> tuple[str, ...]:
    """What boots left behind that were measured to their end: a worker, memory, a SIGTERM that was ignored.

    Nothing of it bears on what was measured.
    """
    boots = [boot.facts for boot in run.boots if boot.facts.arm == arm and boot.facts.status != DISCARDED]
    told = [facts for facts in boots if facts.status == DONE and facts.diagnosis is not None]
    counts = Counter(facts.diagnosis for facts in told)
    first = {facts.diagnosis: facts for facts in reversed(told)}
    return tuple(
        f"{words(diagnosis or '')} in {count} of {len(boots)} boots: {first[diagnosis].reason or 'no reason recorded'}"
        for diagnosis, count in counts.items()
    )
