"""A small production for the demo: three users with thinking time, so never more than three requests in flight.

One user always works; the second and the third join now and then, while the first still waits for an answer. That is
where the concurrency of most small installations comes from, and why most requests find the engine idle. What is asked
and when it is due follows from a seed; how many requests overlap follows from how fast they are answered.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from profiles.errors import FirsttokenError
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.clock import Clock, SystemClock

USERS: Final = 3
# Share of the occasions on which 1, 2 or 3 users ask: two requests of three find nobody else.
_TOGETHER: Final = (0.76, 0.16, 0.08)
# A user who joins does so this long after the first one asked.
_JOINS_AFTER_NS: Final = (5 * MILLISECOND_NS, 30 * MILLISECOND_NS)

_SUBJECTS = (
    "the harbour office|the night train|the bakery on the corner|our supplier in the north|the regional library|"
    "the repair workshop|the water company|a visitor from abroad|the second shift|the new warehouse|the school board|"
    "the ferry operator|the insurance desk|a driver with a full van|the weather station|the accounting team"
).split("|")
_VERBS = (
    "reported|confirmed|delayed|ordered|returned|measured|counted|cancelled|described|shipped|repaired|moved|received|"
    "inspected|promised|compared"
).split("|")
_OBJECTS = (
    "forty crates of apples|the annual balance|two broken pumps|a letter without a date|the price of copper|"
    "seven boxes of paper|the last delivery|an open invoice|the winter timetable|a set of spare keys|"
    "the depth of the river|one pallet of glass|the list of members|a contract for three years|the monthly reading|"
    "a complaint about noise"
).split("|")
_ENDINGS = (
    "before the end of March|in spite of the rain|after a long call with the customer|for the third time this year|"
    "at a cost of 240 euros|without giving a reason|as agreed in the spring|on the evening of the fourth|"
    "while the bridge was closed|under the old conditions|with help from a neighbour|at half past six"
).split("|")
_QUESTIONS = (
    "Can you tell me in a few plain sentences what happens when {subject} {verb} {object}, and what to check first?",
    "What is the simplest way to explain to a new colleague why {subject} {verb} {object}?",
    "I read that {subject} {verb} {object}. Is that usual at this time of the year, and who has to be told about it?",
)
_EXTRACTION_RULE = (
    "You extract facts from reports. Read the report to its end before you write. Answer with one JSON object and "
    "nothing else: no greeting, no explanation, no code fence. Use the keys who, what, when and cost. Who is the party "
    "that acts, in the words of the report. What is the thing that the action is about, without its number. When is "
    "the time that the report names, and null where it names none. Cost is a number in euros without a unit, and null "
    "where the report tells no amount. Never guess a value, and never leave a key out."
)
# Kinds of request and their shares.
_MIX: Final = {"extraction": 0.38, "document": 0.20, "question": 0.42}


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of one user, due this long after the start; later if the user still waits for an answer."""

    due_ns: int
    body: dict[str, Any]


def plan_traffic(
    *, seed: int, requests: int = 90, seconds: float = 9.0, model: str = "simulated"
) -> tuple[tuple[Visit, ...], ...]:
    """What each of the three users will ask, and when: the same for the same arguments."""
    draws = random.Random(seed)
    manual = _sentences(draws, 970)
    kinds = _kinds(draws, requests)
    occasions: list[int] = []
    while sum(occasions) < requests:
        together = draws.choices((1, 2, 3), weights=_TOGETHER)[0]
        occasions.append(min(together, requests - sum(occasions)))
    spacing_ns = seconds * SECOND_NS / len(occasions)
    users: tuple[list[Visit], ...] = tuple([] for _ in range(USERS))
    for number, together in enumerate(occasions):
        due_ns = round((number + draws.uniform(0.0, 0.5)) * spacing_ns)
        for user in range(together):
            users[user].append(Visit(due_ns, _body(draws, kinds.pop(), manual, model)))
            due_ns += round(draws.uniform(*_JOINS_AFTER_NS))
    return tuple(map(tuple, users))


async def send_traffic(
    base_url: str,
    *,
    seed: int,
    requests: int = 90,
    seconds: float = 9.0,
    model: str = "simulated",
    headers: dict[str, str] | None = None,
    clock: Clock | None = None,
) -> int:
    """Send `requests` chat requests over about `seconds` and read every answer. Returns how many were sent.

    `base_url` is where /v1 begins, without it. A slow engine stretches the time; a user never asks before the last
    answer is complete. Raises FirsttokenError when the engine refuses a request or breaks off.
    """
    clock = clock or SystemClock()
    users = plan_traffic(seed=seed, requests=requests, seconds=seconds, model=model)
    limits = httpx.Limits(max_connections=USERS, max_keepalive_connections=USERS)
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, limits=limits, timeout=60.0, trust_env=False
    ) as client:
        start_ns = clock.now_ns()
        try:
            async with asyncio.TaskGroup() as tasks:
                for visits in users:
                    tasks.create_task(_use(client, visits, start_ns, clock))
        except* httpx.HTTPError as group:
            problem = repr(group.exceptions[0])
            raise FirsttokenError(f"the traffic to {base_url} failed: {problem}", "Is the engine up?") from None
    return sum(map(len, users))


async def _use(client: httpx.AsyncClient, visits: Sequence[Visit], start_ns: int, clock: Clock) -> None:
    """One user: wait until it is time, ask, read the answer to its end."""
    for visit in visits:
        await clock.sleep_until_ns(start_ns + visit.due_ns)
        async with client.stream("POST", "/v1/chat/completions", json=visit.body) as response:
            response.raise_for_status()
            async for _ in response.aiter_raw():
                pass


def _kinds(draws: random.Random, requests: int) -> list[str]:
    """The kinds in their exact shares, in random order; what rounding leaves over are questions."""
    kinds = [kind for kind, share in _MIX.items() for _ in range(int(share * requests))]
    kinds += ["question"] * (requests - len(kinds))
    draws.shuffle(kinds)
    return kinds


def _body(draws: random.Random, kind: str, manual: str, model: str) -> dict[str, Any]:
    if kind == "extraction":
        asked = _extraction(draws)
    elif kind == "document":
        asked = _document_question(draws, manual)
    else:
        asked = {"messages": [{"role": "user", "content": _question(draws)}], "max_tokens": 22}
    return {"model": model, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, **asked}


def _extraction(draws: random.Random) -> dict[str, Any]:
    """A short report behind a long instruction that every extraction shares, as extraction prompts have."""
    return {
        "messages": [
            {"role": "system", "content": _EXTRACTION_RULE},
            {"role": "user", "content": f"Report: {_sentences(draws, draws.randint(14, 24))}"},
        ],
        "response_format": {"type": "json_object"},
        "max_tokens": 24,
    }


def _document_question(draws: random.Random, manual: str) -> dict[str, Any]:
    """A question about a long text: one manual that all of them share, and a page of its own behind it."""
    rule = "You answer from the given document only, and you say so when it holds no answer."
    page = _sentences(draws, draws.randint(50, 90))
    return {
        "messages": [
            {"role": "system", "content": rule},
            {"role": "user", "content": f"Document:\n{manual} {page}\n\nQuestion: {_question(draws)}"},
        ],
        "max_tokens": 28,
    }


def _question(draws: random.Random) -> str:
    return draws.choice(_QUESTIONS).format(
        subject=draws.choice(_SUBJECTS), verb=draws.choice(_VERBS), object=draws.choice(_OBJECTS)
    )


def _sentences(draws: random.Random, words: int) -> str:
    """Plain English of at least `words` words and at most a sentence more."""
    sentences: list[str] = []
    written = 0
    while written < words:
        parts = (draws.choice(options) for options in (_SUBJECTS, _VERBS, _OBJECTS, _ENDINGS))
        sentence = " ".join(parts)
        sentences.append(f"{sentence[0].upper()}{sentence[1:]}.")
        written += len(sentence.split())
    return " ".join(sentences)
