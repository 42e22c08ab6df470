"""A comparison of two loads as text for an 80-column terminal, and as the document of `profile diff --json`."""

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from profiles.drift import CANNOT_TELL, CHANGED, KEEP, NOT_KNOWN, OPEN, REOPEN, SAME, Comparison, Finding, Load
from profiles.histogram import WIDTH, bound, unbound

# As everywhere: 0 is settled, 3 is open. A load that has changed is no failure, and a script must tell it from both.
EXIT_CODES = {KEEP: 0, CANNOT_TELL: 3, REOPEN: 5}

_SENTENCES = {
    KEEP: "The load has not changed enough to reopen a decision.",
    REOPEN: "The load has changed: a decision made on A is open again.",
    CANNOT_TELL: "There is too little to tell whether the load has changed.",
}
_MATTERS = {CHANGED: "yes", SAME: "no", NOT_KNOWN: "not known", OPEN: "cannot tell"}
_NAME, _SIDE, _CHANGE = 28, 14, 12
_REASONS = 5  # in the text; the table has the rest


def render_diff(compared: Comparison, a: Load, b: Load) -> str:
    """The whole text, without a final newline: the verdict, why, then every quantity."""
    parts = [
        [_filled(f"{compared.verdict}: {_SENTENCES[compared.verdict]}")],
        [
            *(_filled(f"- {reason}", "  ") for reason in compared.reasons[:_REASONS]),
            *([f"- and {len(compared.reasons) - _REASONS} more"] if len(compared.reasons) > _REASONS else []),
            *(_filled(f"To settle it: {way}.", "  ") for way in compared.settle),
        ],
        [_filled(f"{side}  {load.name}{_origin(load)}", "   ") for side, load in (("A", a), ("B", b))],
        [*_table(compared)] if compared.findings else [],
        [_filled(f"note: {caution}", "  ") for caution in compared.cautions],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _origin(load: Load) -> str:
    return f" ({load.origin})" if load.origin else ""


def diff_document(compared: Comparison, a: Load, b: Load) -> dict[str, Any]:
    """Verdict, reasons and findings, and the character of both sides: strict JSON."""
    return asdict(compared) | {
        side: {"path": load.name, "synthetic": load.synthetic, "character": asdict(load.character)}
        for side, load in (("a", a), ("b", b))
    }


def _table(compared: Comparison) -> Iterator[str]:
    yield f"{'quantity':{_NAME}}{'A':>{_SIDE}}{'B':>{_SIDE}}{'change':>{_CHANGE}}  matters?"
    for finding in compared.findings:
        name = _cut(finding.quantity, _NAME - 1)
        a, b = _cut(finding.a, _SIDE - 1), _cut(finding.b, _SIDE - 1)
        yield f"{name:{_NAME}}{a:>{_SIDE}}{b:>{_SIDE}}{finding.change:>{_CHANGE}}  {_matters(finding)}"


def _matters(finding: Finding) -> str:
    # Brackets: it is said, and the verdict does not wait for it.
    return "(open)" if finding.found == OPEN and not finding.decides else _MATTERS[finding.found]


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: columns - 1]}…"


def _filled(text: str, indent: str = "") -> str:
    return unbound(textwrap.fill(bound(text), WIDTH, subsequent_indent=indent, break_on_hyphens=False))
