"""Which requests are turns of one conversation: found in the order of evidence, from keyed ids and instants alone.

    1 header   a header names the session (`session_names`)
    2 body     a field of the body names it, or the response that it continues
    3 prefix   its list of messages begins with the whole list of an earlier request, and its answer or another follows
    4 answer   it holds an answer that another request got: an edge between them, and a session where nothing else tells

Rule 3, the longest earlier list first: a request continues one that has finished where a message of the assistant comes
next, `exact_reply` where that is the answer which was given, else `assistant_differs` (it was stripped, edited or cut).
Of equals the one with the exact answer wins, else the latest that finished. Where no assistant comes next it is a
`retry`, and the same list again is `identical`; neither is a turn. System messages alone are no evidence: everybody
shares them. Requests of different models or tenants never match, except that a declared session may change its model.

A declared session is taken at its word, and rule 3 looks for the parent inside it. Where it finds none, the parent is
the latest of that session, agent and model that finished: `declared`, or `compaction` where its list was longer. A
sub-agent is a thread of its own, with an edge from the request that came before it.

A request whose sibling has not finished did not wait for it: it is a `branch`. Time between requests counts as think
time only from a parent that has finished.

Pure. Requests come in order of arrival, one by one; what is remembered of them is let go CONTINUED_NS after their end,
so memory goes with the requests of two hours, MOST_REMEMBERED at most, and not with their number. Only the names of
declared sessions stay: who comes back later is in the same session again, but continues nothing.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from profiles.records import KeyedAnswer, KeyedFacts, KeyedMessage
from profiles.session_memory import (
    BRANCH,
    COMPACTION,
    DECLARED,
    IDENTICAL,
    LINKS,
    NONE,
    RETRY,
    SYSTEM_ROLES,
    Memory,
    Past,
)
from profiles.session_names import stood_in_header
from profiles.units import SECOND_NS

if TYPE_CHECKING:
    import polars

# What can still be continued.
CONTINUED_NS: Final = 2 * 3600 * SECOND_NS

SOURCES: Final = ("header", "body", "prefix", "answer")
_HEADER, _BODY, _PREFIX, _ANSWER = range(4)
THINK_KINDS: Final = ("human", "tool")
_HUMAN, _TOOL = range(2)
_TOOL_ROLES: Final = frozenset(("tool", "function"))


class Turn(NamedTuple):
    """One request, as sessions are told by it. `end_ns` is None where no end was seen."""

    arrival_ns: int
    end_ns: int | None
    model: str | None = None
    keyed: KeyedFacts | None = None  # None for what is no conversation: embeddings
    answer: KeyedAnswer | None = None
    last_role: str | None = None  # needed only where `keyed` lists no messages


@dataclass(frozen=True, slots=True)
class SessionColumns:
    """The columns of a profile that tell of conversations, one entry per request in the order given.

    -1 stands for none; `frame` makes it null. `session` is dense, in order of first appearance.
    """

    session: "array[int]" = field(default_factory=lambda: array("i"))
    source: "array[int]" = field(default_factory=lambda: array("b"))  # index into SOURCES
    turn: "array[int]" = field(default_factory=lambda: array("i"))
    parent: "array[int]" = field(default_factory=lambda: array("i"))
    link: "array[int]" = field(default_factory=lambda: array("b"))  # index into LINKS
    think_ns: "array[int]" = field(default_factory=lambda: array("q"))
    think_kind: "array[int]" = field(default_factory=lambda: array("b"))  # index into THINK_KINDS
    deps: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by request, only where there are any

    def __len__(self) -> int:
        return len(self.session)

    def frame(self) -> "polars.DataFrame":
        """As columns of `ProfileRow`: session, session_source, turn, parent, link, deps, think_ns, think_kind."""
        import polars as pl

        position = pl.DataFrame({"row": pl.int_range(len(self), eager=True)})
        held = pl.DataFrame(
            {"row": list(self.deps), "deps": list(self.deps.values())},
            schema={"row": pl.Int64, "deps": pl.List(pl.Int64)},
        )
        return pl.DataFrame(
            {
                "session": _numbers(self.session),
                "session_source": _words(self.source, SOURCES),
                "turn": _numbers(self.turn),
                "parent": _numbers(self.parent),
                "link": _words(self.link, LINKS),
                "deps": position.join(held, on="row", how="left", maintain_order="left")["deps"],
                "think_ns": _numbers(self.think_ns),
                "think_kind": _words(self.think_kind, THINK_KINDS),
            }
        )

    def counts(self) -> dict[str, int]:
        """How many requests each evidence placed; `alone` are those that nothing joins, `unknown` those without ids."""
        counts = {word: self.source.count(at) for at, word in enumerate(SOURCES)}
        unknown = self.session.count(NONE)
        return counts | {"alone": len(self) - unknown - sum(counts.values()), "unknown": unknown}

    def sentence(self) -> str:
        """What was found, in one sentence, or why nothing could be."""
        counts = self.counts()
        if counts["unknown"] == len(self):
            return (
                "sessions: unknown, for the requests carry neither the id of a session nor digests of their messages;"
                " `firsttoken record --bodies hashed` keeps them"
            )
        placed = [(counts[word], f"by {word}") for word in SOURCES]
        placed += [(counts["alone"], "alone"), (counts["unknown"], "unknown")]
        (number, how), *others = [each for each in placed if each[0]]
        return ", ".join((f"sessions: {number} of {len(self)} requests {how}", *(f"{n} {how}" for n, how in others)))


def find_sessions(turns: Iterable[Turn], *, continued_ns: int = CONTINUED_NS) -> SessionColumns:
    """The sessions among requests given in order of arrival. Raises ValueError where one arrives before the last."""
    finding = _Finding(continued_ns)
    for turn in turns:
        finding.take(turn)
    return finding.columns


class _Finding:
    """Takes requests one by one."""

    def __init__(self, continued_ns: int) -> None:
        self.columns = SessionColumns()
        self._memory = Memory()
        self._continued_ns = continued_ns
        self._sessions = 0
        self._declared: dict[str, int] = {}
        self._last_ns: int | None = None

    def take(self, turn: Turn) -> None:
        arrival_ns, end_ns, model, keyed, answer, last_role = turn
        if self._last_ns is not None and arrival_ns < self._last_ns:
            raise ValueError(f"a request that arrives at {arrival_ns} ns stands behind one at {self._last_ns} ns")
        self._last_ns = arrival_ns
        if keyed is None or not (keyed.messages or keyed.session or keyed.previous_response):
            self._write_unknown()
            return
        self._memory.forget(arrival_ns)
        messages = keyed.messages
        new = Past(len(self.columns), arrival_ns, end_ns, model, self._continued_ns)
        new.tenant, new.agent = keyed.tenant, keyed.agent
        first = _system_messages(messages)
        if first < len(messages):
            new.messages, new.listed = len(messages), messages[-1].chain
        source = self._declare(new, keyed)
        parent, link, fresh = self._parent(new, keyed, first)
        if source == NONE and parent is not None:
            source = _PREFIX
        self._place(new, keyed, parent)
        deps = self._memory.answers_in(messages, fresh, new, parent)
        if parent is None and (spawner := self._spawner(new, keyed)) is not None:
            deps[spawner.number] = spawner
        if new.session == NONE:
            source = self._place_by_answers(new, deps)
        elif parent is not None:
            self._join(parent, _BODY if source == _BODY else _PREFIX)
        new.deps = tuple(sorted(deps))
        self._write(new, parent, link, source, _adds_tool_result(messages, fresh, last_role))
        if answer is not None:
            new.response = answer.response
            if new.listed:  # not a greeting behind a system prompt that everybody shares
                new.replied, new.said = answer.chain, answer.own
        self._memory.keep(new)

    def _declare(self, new: Past, keyed: KeyedFacts) -> int:
        """The source by rules 1 and 2, and the session where it is known by its name."""
        if keyed.session is None:
            return NONE if keyed.previous_response is None else _BODY
        new.declared = _name(keyed.session, keyed)
        new.session = self._declared.get(new.declared, NONE)
        return _HEADER if stood_in_header(keyed.session_source or "") else _BODY

    def _parent(self, new: Past, keyed: KeyedFacts, first: int) -> tuple[Past | None, int, int]:
        """What it goes on from, how, and the first message that is new."""
        memory, link, fresh = self._memory, DECLARED, 0
        past = None if keyed.previous_response is None else memory.response(keyed.previous_response, new)
        if past is None:
            past, link, fresh = memory.prefix_of(new, keyed.messages, first)
        if past is None and new.session != NONE:
            past = memory.latest_of(new.session, new.agent, new.arrival_ns, new.model)
            if past is not None:
                shorter = 0 < new.messages < past.messages and keyed.previous_response is None
                link = COMPACTION if shorter else DECLARED
        if past is not None and link not in (RETRY, IDENTICAL):
            if past.busy_until_ns > new.arrival_ns:
                link = BRANCH
            past.busy_until_ns = max(past.busy_until_ns, new.end_ns)
        return past, link, fresh

    def _place(self, new: Past, keyed: KeyedFacts, parent: Past | None) -> None:
        """The session, unless only answers could tell."""
        name = new.declared
        if name is None and keyed.previous_response is not None and parent is None:
            name = f"{_name(keyed.previous_response, keyed)} answered"  # siblings of a turn that nobody saw
            new.session = self._declared.get(name, NONE)
        if new.session == NONE:
            if parent is not None:
                new.session = parent.session
            elif name is not None:
                new.session = self._new_session()
            else:
                return
        if name is not None:
            self._declared[name] = new.session

    def _place_by_answers(self, new: Past, deps: dict[int, Past]) -> int:
        """The session of the latest answer that it holds, or one of its own. Returns the source."""
        if not deps:
            new.session = self._new_session()
            return NONE
        latest = max(deps.values(), key=lambda past: (past.end_ns, past.number))
        new.session = latest.session
        self._join(latest, _ANSWER)
        return _ANSWER

    def _join(self, past: Past, source: int) -> None:
        """A request that stood alone is no longer alone: what joined it is its evidence too."""
        if self.columns.source[past.number] == NONE:
            self.columns.source[past.number] = source

    def _spawner(self, new: Past, keyed: KeyedFacts) -> Past | None:
        """What came before the first request of a sub-agent: the latest of its parent that finished."""
        if new.agent is not None or keyed.parent_agent is not None:
            return self._memory.latest_of(new.session, keyed.parent_agent, new.arrival_ns)
        if keyed.parent_session is None:
            return None
        parent = self._declared.get(_name(keyed.parent_session, keyed), NONE)
        return self._memory.latest_of(parent, None, new.arrival_ns)

    def _write_unknown(self) -> None:
        columns = self.columns
        for column in (columns.session, columns.source, columns.turn, columns.parent, columns.link):
            column.append(NONE)
        columns.think_ns.append(NONE)
        columns.think_kind.append(NONE)

    def _new_session(self) -> int:
        self._sessions += 1
        return self._sessions - 1

    def _write(self, new: Past, parent: Past | None, link: int, source: int, tool: bool) -> None:
        columns = self.columns
        think_ns = kind = NONE
        if parent is not None:
            new.parent = parent.number
            repeats = link in (RETRY, IDENTICAL)
            new.turn = parent.turn if repeats else parent.turn + 1
            if not repeats:
                think_ns = new.arrival_ns - parent.end_ns
                kind = _TOOL if tool else _HUMAN
        if new.deps:
            columns.deps[new.number] = new.deps
        columns.session.append(new.session)
        columns.source.append(source)
        columns.turn.append(new.turn)
        columns.parent.append(new.parent)
        columns.link.append(link)
        columns.think_ns.append(think_ns)
        columns.think_kind.append(kind)


def _name(id: str, keyed: KeyedFacts) -> str:
    """An id that tenants may share, made unique."""
    return id if keyed.tenant is None else f"{id} {keyed.tenant}"


def _system_messages(messages: Sequence[KeyedMessage]) -> int:
    """How many messages of the system open a list."""
    for at, message in enumerate(messages):
        if message.role not in SYSTEM_ROLES:
            return at
    return len(messages)


def _adds_tool_result(messages: Sequence[KeyedMessage], fresh: int, last_role: str | None) -> bool:
    """Whether it waited for a tool and not for a person: the last of the two among what is new."""
    for at in range(len(messages) - 1, fresh - 1, -1):
        role = messages[at].role
        if role == "user" or role in _TOOL_ROLES:
            return role != "user"
    return last_role in _TOOL_ROLES


def _numbers(numbers: "array[int]") -> "polars.Series":
    import numpy as np
    import polars as pl

    series = pl.Series(np.array(numbers, dtype=np.int64))
    return pl.select(pl.when(series >= 0).then(series)).to_series()


def _words(numbers: "array[int]", words: Sequence[str]) -> "polars.Series":
    import polars as pl

    codes = _numbers(numbers)
    return codes.replace_strict(dict(enumerate(words)), default=None, return_dtype=pl.String)
