"""Tasks on code: a Python module of real functions, and something to be done to it.

The functions are those of `sources`: each runs, and each stands alone but for the imports at the top. Words that
begin with `$` are names, which differ from module to module.
"""

from dataclasses import dataclass
from string import Template

from profiles.builtin.draws import Draw
from profiles.builtin.sources import SOURCES, Source

SYSTEM = "You are a careful Python programmer. You answer with code and a few sentences of explanation."

_NAMES = {
    "items": ("records", "rows", "entries", "samples", "readings", "events"),
    "item": ("record", "row", "entry", "sample", "reading", "event"),
    "key": ("name", "label", "code", "tag", "token"),
    "Store": ("Ledger", "Registry", "Catalogue", "Inventory", "Archive", "Directory"),
    "total": ("total", "amount", "balance", "score", "weight"),
}
_DOMAINS = (
    *("tide gauges", "bus timetables", "seed orders", "lift maintenance", "library loans", "weather stations"),
    *("parcel tracking", "allotment gardens", "ferry bookings", "beehive sensors", "choir rehearsals", "well pumps"),
)
_IMPORTS = """import heapq
from bisect import bisect_left
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
"""
_TASKS = (
    (
        "complete",
        "The body of `{name}` is missing from this module. Write it so that it does what its docstring says."
        " Return the whole function, then say in two sentences why it is correct.",
    ),
    (
        "review",
        "Review this module. One line in `{name}` is wrong: find it, explain the fault with a small input that shows"
        " it, and return the corrected function.",
    ),
    (
        "test",
        "Write pytest tests for `{name}`: the usual case, the edge cases that its docstring implies, and one that"
        " would fail if a comparison in it were turned round. Return one complete test module.",
    ),
    (
        "extend",
        "Add an optional keyword argument `limit: int | None = None` to `{name}` which bounds how many results it"
        " produces, and update its docstring. Return the whole changed function and nothing else.",
    ),
    (
        "log",
        "Rewrite `{name}` so that it logs each step at debug level through the module's logger, without any change of"
        " its result. Return the import lines that are needed and the whole function.",
    ),
)


# Characters that a module must have left before its last function is chosen by how well it fits.
_ROOM = 600


@dataclass(frozen=True, slots=True)
class CodeTask:
    """What is asked, the module as it is shown, and the function as it should be."""

    text: str
    module: str
    answer: str


def code_task(draw: Draw, chars: int) -> CodeTask:
    """A task whose text has about so many characters: at least one function, as many as fit best."""
    kind, wanted = draw.one(_TASKS)
    pool = [source for source in draw.some(SOURCES, len(SOURCES)) if kind != "review" or source.fault is not None]
    subject = pool[0]
    place = draw.whole(0, len(_NAMES["items"]) - 1)
    names = {
        word: choices[place] if word in ("items", "item") else draw.one(choices) for word, choices in _NAMES.items()
    }
    domain, number = draw.one(_DOMAINS), draw.whole(2, 9)
    head = f'"""Tools for {domain}, part {number}."""\n\n{_IMPORTS}\nCHUNK = {draw.whole(4, 64) * 16}\n'
    asked = wanted.format(name=Template(subject.name).substitute(names))
    answer = _plain(subject, names)
    shown = {subject.name: _changed(kind, subject, answer, names)}
    left = chars - len(asked) - len(head) - len("\n\n```python\n\n```") - len(shown[subject.name]) - 2
    others = {source.name: _plain(source, names) for source in draw.some(SOURCES, len(SOURCES))}
    del others[subject.name]
    while others:
        # Any that leaves room for more, so that modules differ; the one that fits best at the end.
        roomy = (name for name, text in others.items() if left - len(text) > _ROOM)
        name = next(roomy, "") or min(others, key=lambda name: abs(left - len(others[name]) - 2))
        text = others.pop(name)
        if abs(left - len(text) - 2) >= abs(left):
            break
        shown[name] = text
        left -= len(text) + 2
    module = head + "".join(f"\n\n{shown[name]}" for name in draw.some(list(shown), len(shown)))
    return CodeTask(f"{asked}\n\n```python\n{module}\n```", module, answer)


def _changed(kind: str, subject: Source, text: str, names: dict[str, str]) -> str:
    """The function as the module shows it."""
    if kind == "complete":
        return _without_body(text)
    if kind == "review" and subject.fault is not None:
        right, wrong = (Template(part).substitute(names) for part in subject.fault)
        return text.replace(right, wrong, 1)
    return text


def _plain(source: Source, names: dict[str, str]) -> str:
    return Template(source.text).substitute(names).strip() + "\n"


def _without_body(text: str) -> str:
    """A function or class cut after its docstring."""
    close = text.index('"""', text.index('"""') + 3) + 3
    return text[:close] + "\n    ...\n"
