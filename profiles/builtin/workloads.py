"""The workloads: who writes their texts and how long they are; and the profiles that are made of them.

Lengths are those of the article that started this project: six single-stream workloads from 29 to about 159,000 prompt
tokens, and two mixes for eight at once. It does not say what its mixes hold, so the shares here are ours: short work
alone, and short work with long prompts in between.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from profiles.builtin import hungarian, programs, questions, records
from profiles.builtin.draws import Draw
from profiles.builtin.lengths import CODE, HUNGARIAN, JSON, PROSE, QUESTION, Room, count_tokens
from profiles.builtin.passages import LONG_SYSTEM, RAG_SYSTEM, report, retrieved
from profiles.files import encode_pretty


@dataclass(frozen=True, slots=True)
class Task:
    """The last message of a chat, and what is known of its answer."""

    text: str
    kind: str  # of text, for `lengths`
    answer: str | None = None  # what a right answer says; None where there are many
    schema: tuple[str, dict[str, Any]] | None = None  # name and JSON schema of the answer
    output_tokens: int | None = None  # of the answer; None: as long as the workload's are


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of request. Tokens are estimates; `spread` is how far below and above `prompt_tokens` lengths go."""

    name: str
    about: str
    workload: str  # the class that the rules give it at scale 1
    system: str
    prompt_tokens: int
    output_tokens: int
    spread: tuple[float, float]
    least_tokens: int  # of a prompt: shorter, the task makes no sense
    write: Callable[[Draw, Room], Task]


def _question(draw: Draw, room: Room) -> Task:
    return Task(questions.ask(draw, room(QUESTION)), QUESTION)


def _chat(draw: Draw, room: Room) -> Task:
    return Task(hungarian.chat(draw, room(HUNGARIAN)), HUNGARIAN)


def _code(draw: Draw, room: Room) -> Task:
    task = programs.code_task(draw, room(CODE))
    return Task(task.text, CODE, task.answer)


def _extraction(draw: Draw, room: Room) -> Task:
    wanted = records.extraction(draw, room)
    answer = encode_pretty(wanted.answer).decode()
    return Task(wanted.text, wanted.kind, answer, (wanted.kind, wanted.schema), count_tokens(answer, JSON))


def _rag(draw: Draw, room: Room) -> Task:
    reading = retrieved(draw, room(PROSE))
    return Task(reading.text, PROSE, reading.answers[0])


def _long(draw: Draw, room: Room) -> Task:
    reading = report(draw, room(PROSE))
    return Task(reading.text, PROSE, "\n".join(reading.answers))


_EVEN: Final = (0.85, 1.15)

WORKLOADS: Final = {
    each.name: each
    for each in (
        Workload("short-qa", "a short question in English", "chat_single", "", 29, 160, _EVEN, 29, _question),
        Workload(
            "short-chat-hu",
            "a short message in Hungarian",
            "chat_single.hu",
            hungarian.SYSTEM,
            90,
            180,
            _EVEN,
            90,
            _chat,
        ),
        Workload(
            "code",
            "a Python module to complete or review",
            "code",
            programs.SYSTEM,
            900,
            400,
            _EVEN,
            300,
            _code,
        ),
        Workload(
            "json-extraction",
            "a record; the answer copies by a schema",
            "json_extraction",
            records.SYSTEM,
            1_500,
            250,
            _EVEN,
            1_000,
            _extraction,
        ),
        Workload(
            "rag-32k",
            "passages, one of which answers",
            "rag_32k",
            RAG_SYSTEM,
            32_000,
            200,
            (0.9, 1.1),
            500,
            _rag,
        ),
        # The longest stays below its target, since an engine is started with room for that and the answer.
        Workload(
            "long-context",
            "a report, asked about three sections",
            "rag_128k",
            LONG_SYSTEM,
            159_000,
            400,
            (0.9, 1.0),
            1_000,
            _long,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Builtin:
    """A profile by name: shares of requests by workload. `slots` is how many a closed loop keeps in flight."""

    name: str
    about: str
    shares: dict[str, int]
    slots: int


BUILTINS: Final = {
    each.name: each
    for each in (
        Builtin("single-stream", "all six, one at a time", dict.fromkeys(WORKLOADS, 1), 1),
        *(Builtin(each.name, each.about, {each.name: 1}, 1) for each in WORKLOADS.values()),
        Builtin(
            "mix-short",
            "chat, extraction, code; for 8 slots",
            {"short-qa": 2, "short-chat-hu": 2, "code": 1, "json-extraction": 2},
            8,
        ),
        Builtin(
            "mix-long",
            "all six, long prompts too; for 8 slots",
            {"short-qa": 2, "short-chat-hu": 2, "code": 1, "json-extraction": 2, "rag-32k": 2, "long-context": 1},
            8,
        ),
    )
}
