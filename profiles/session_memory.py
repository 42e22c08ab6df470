"""What is remembered of earlier requests, and which of them a new one goes on from. See `sessions` for the rules."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from profiles.records import KeyedMessage
from profiles.units import SECOND_NS

# The same list again later than this is another person with the same question, or a probe.
RETRIED_NS: Final = 5 * SECOND_NS
# Requests remembered under one id: of many with the same list, the latest.
MOST_ALIKE: Final = 32
# About 1 kB each. Where more arrive in two hours, the oldest are forgotten sooner.
MOST_REMEMBERED: Final = 500_000
# Edges of one request. A list with more answers of others is a history that was put together anew each time.
MOST_DEPS: Final = 64
NONE: Final = -1
NEVER_NS: Final = 1 << 62

LINKS: Final = (
    *("root", "exact_reply", "assistant_differs", "declared"),
    *("retry", "identical", "branch", "compaction"),
)
ROOT, EXACT_REPLY, ASSISTANT_DIFFERS, DECLARED, RETRY, IDENTICAL, BRANCH, COMPACTION = range(8)

SYSTEM_ROLES: Final = frozenset(("system", "developer"))


class Past:
    """A request: first as the new one that looks for what it goes on from, then as it is remembered."""

    __slots__ = (
        "agent",
        "arrival_ns",
        "busy_until_ns",
        "declared",
        "deps",
        "end_ns",
        "listed",
        "messages",
        "model",
        "number",
        "parent",
        "replied",
        "response",
        "said",
        "session",
        "tenant",
        "turn",
        "until_ns",
    )

    def __init__(self, number: int, arrival_ns: int, end_ns: int | None, model: str | None, continued_ns: int) -> None:
        self.number = number
        self.arrival_ns = arrival_ns
        self.end_ns = NEVER_NS if end_ns is None else end_ns
        self.until_ns = (arrival_ns if end_ns is None else end_ns) + continued_ns  # forgotten afterwards
        self.model = model
        self.tenant: str | None = None
        self.declared: str | None = None  # name of its session, made unique by its tenant
        self.agent: str | None = None
        self.session = NONE
        self.turn = 0
        self.parent = NONE
        self.deps: tuple[int, ...] = ()
        self.messages = 0
        self.listed = ""  # chain of its whole list
        self.busy_until_ns = 0  # when the last of those that go on from it has finished
        self.replied: str | None = None  # chain of its list with its answer
        self.said: Sequence[str] = ()  # ids of the messages of its answer
        self.response: str | None = None


class Memory:
    """Requests of the last while, by the ids under which a later one may name them."""

    def __init__(self) -> None:
        self._all: deque[Past] = deque()  # in order of arrival
        self._lists: dict[str, list[Past]] = {}  # by the chain of their whole list
        self._replied: dict[str, list[Past]] = {}  # by the chain of their list and the answer
        self._said: dict[str, list[Past]] = {}  # by each message of their answer
        self._responses: dict[str, list[Past]] = {}
        self._threads: dict[tuple[int, str | None], list[Past]] = {}  # of declared sessions, by session and agent

    def __len__(self) -> int:
        return len(self._all)

    def forget(self, now_ns: int) -> None:
        """Let go of what can no longer be continued, and of the oldest where there are too many."""
        waiting = self._all
        while waiting and (waiting[0].until_ns < now_ns or len(waiting) > MOST_REMEMBERED):
            past = waiting.popleft()
            if past.listed:
                _remove(self._lists, past.listed, past)
            if past.replied is not None:
                _remove(self._replied, past.replied, past)
            for own in past.said:
                _remove(self._said, own, past)
            if past.response is not None:
                _remove(self._responses, past.response, past)
            if past.declared is not None:
                _remove(self._threads, (past.session, past.agent), past)

    def keep(self, new: Past) -> None:
        """Remember a request by its list, its answer, and its place in its session."""
        self._all.append(new)
        if new.listed:
            _place(self._lists, new.listed, new)
        if new.replied is not None:
            _place(self._replied, new.replied, new)
        for own in new.said:
            _place(self._said, own, new)
        if new.response is not None:
            _place(self._responses, new.response, new)
        if new.declared is not None:
            _place(self._threads, (new.session, new.agent), new)

    def response(self, id: str, new: Past) -> Past | None:
        """The request whose answer has this id."""
        return _latest((past for past in self._responses.get(id, ()) if past.tenant == new.tenant), new.arrival_ns)

    def latest_of(self, session: int, agent: str | None, now_ns: int, model: str | None = None) -> Past | None:
        """The request of a session and an agent that finished last, of one model or of any."""
        thread = self._threads.get((session, agent), ())
        return _latest((past for past in thread if model is None or past.model == model), now_ns)

    def prefix_of(self, new: Past, messages: Sequence[KeyedMessage], first: int) -> tuple[Past | None, int, int]:
        """What a list goes on from by rule 3: the request, the link, and the first message that is new since then.

        `first` is how many system messages open the list.
        """
        now_ns, count = new.arrival_ns, len(messages)
        lists, replies = self._lists, self._replied
        exact: Past | None = None
        behind = 0  # where the answer of `exact` ends
        for at in range(count, first, -1):
            chain = messages[at - 1].chain
            if exact is None and chain in replies and messages[at - 1].role == "assistant":
                exact, behind = _latest(self._fitting(replies[chain], new), now_ns), at
            if exact is not None and exact.messages > at:  # its list is no longer known by itself
                return exact, EXACT_REPLY, behind
            if chain not in lists:
                continue
            alike = self._fitting(lists[chain], new)
            if at < count and messages[at].role == "assistant":
                if exact is not None and exact.messages == at:
                    return exact, EXACT_REPLY, behind
                past = _latest(alike, now_ns)
                if past is not None:
                    return past, ASSISTANT_DIFFERS, at + 1
            else:
                repeated = [past for past in alike if _may_repeat(past, new)]
                if repeated:
                    return repeated[-1], IDENTICAL if at == count else RETRY, at
        return (None, ROOT, 0) if exact is None else (exact, EXACT_REPLY, behind)

    def answers_in(
        self, messages: Sequence[KeyedMessage], fresh: int, new: Past, parent: Past | None
    ) -> dict[int, Past]:
        """The requests whose answers stand among the messages from `fresh` on, without those that these imply.

        An answer that several strangers got tells nothing, unless one of them is of the same session.
        """
        found: dict[int, Past] = {}
        implied = set() if parent is None else {parent.number, parent.parent, *parent.deps}
        for at in range(len(messages) - 1, fresh - 1, -1):
            own = messages[at].own
            if own is None or own not in self._said:
                continue
            past = self._who_said(own, new)
            if past is None:
                continue
            if past.number not in implied:
                found[past.number] = past
                if len(found) == MOST_DEPS:
                    break
            implied.update((past.number, past.parent, *past.deps))
        return found

    def _who_said(self, own: str, new: Past) -> Past | None:
        now_ns = new.arrival_ns
        alike = [
            past for past in self._said[own] if past.end_ns <= now_ns <= past.until_ns and past.tenant == new.tenant
        ]
        near = [past for past in alike if past.session == new.session] if new.session != NONE else []
        if not near and len({past.listed for past in alike}) > 1:
            return None
        return _latest(near or alike, now_ns)

    def _fitting(self, alike: Sequence[Past], new: Past) -> Iterator[Past]:
        """Those that a new request may go on from: of its session where it declares one, else of its model."""
        for past in alike:
            if past.tenant != new.tenant or past.until_ns < new.arrival_ns:
                continue
            if new.session != NONE:
                if past.session == new.session:
                    yield past
            elif past.model == new.model and (new.declared is None or past.declared is None):
                yield past


def _place[Key](index: dict[Key, list[Past]], key: Key, new: Past) -> None:
    alike = index.setdefault(key, [])
    alike.append(new)
    if len(alike) > MOST_ALIKE:
        # Of those that have finished, only the latest can be gone on from.
        latest = _latest(alike, new.arrival_ns)
        alike[:] = [past for past in alike if past is latest or past.end_ns > new.arrival_ns][-MOST_ALIKE:]


def _remove[Key](index: dict[Key, list[Past]], key: Key, past: Past) -> None:
    alike = index.get(key)
    if alike is None:
        return
    if past in alike:
        alike.remove(past)
    if not alike:
        del index[key]


def _may_repeat(past: Past, new: Past) -> bool:
    return past.end_ns == NEVER_NS or new.arrival_ns <= past.end_ns + RETRIED_NS or new.session != NONE


def _latest(alike: "Iterator[Past] | Sequence[Past]", now_ns: int) -> Past | None:
    """The one that finished last, of those that have finished and are not forgotten."""
    latest: Past | None = None
    for past in alike:
        if past.end_ns <= now_ns <= past.until_ns and (latest is None or past.end_ns >= latest.end_ns):
            latest = past
    return latest
