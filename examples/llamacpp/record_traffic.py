"""Three people on a real engine, recorded: one asks about documents, one extracts JSON from them, one just talks.

Starts the engine of experiment.toml and `firsttoken record` in front of it on free loopback ports, sends 48 streamed
chats, and stops both. The same document is asked about four times in a row, as people do, so a prefix cache has
something to find. They think between their requests, so up to three are in flight. Writes `work/capture`.
"""

import asyncio
import random
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx

sys.path.append(str(Path(__file__).resolve().parent.parent))  # of the examples

from served import HOST, free_port, running

HERE = Path(__file__).parent
MODEL = "small"
PATIENCE_S = 60.0
THINK_S = (0.1, 0.5)  # drawn evenly

SENTENCES = (
    "The harbour of town {n} was dredged in spring, and {n} ships a day may enter it.",
    "Its pilot is on call from six in the morning, and after dusk only by arrangement.",
    "Crane {n} lifts forty tonnes, the two older ones on the north quay half of that.",
    "Coal is landed on the outer pier, grain at silo {n}, and fish where the market stands.",
    "A ferry leaves for the islands at ten past every hour, except on the first of May.",
    "The harbour office keeps the tide tables, and answers questions between nine and four.",
)
DOCUMENTS = [" ".join(SENTENCES[(at + n) % len(SENTENCES)].format(n=n) for at in range(13)) for n in range(8)]
QUESTIONS = (
    "How many ships may enter?",
    "When was it dredged?",
    "What does the crane lift?",
    "When is the ferry?",
)
FIELDS = ("ships a day", "the crane's tonnes", "the pilot's hours", "the places of coal and grain")
TALK = ("How do tides come about", "Why is the sea salt", "What is a knot", "Who invented the lighthouse")


def reader() -> Iterator[dict[str, object]]:
    """Questions about documents: a long prompt, and most of it the one before."""
    for document in DOCUMENTS[:4]:
        for question in QUESTIONS:
            yield chat(f"{document}\n{question}", max_tokens=32)


def extractor() -> Iterator[dict[str, object]]:
    """JSON out of documents: the same, and the engine masks what is no JSON."""
    for document in DOCUMENTS[4:]:
        for field in FIELDS:
            yield chat(f"{document}\nAs JSON: {field}.", max_tokens=32, response_format={"type": "json_object"})


def talker() -> Iterator[dict[str, object]]:
    """Short questions, answers of some length."""
    for round_ in range(4):
        for question in TALK:
            yield chat(f"{question}, in {round_ + 2} words?", max_tokens=64)


def chat(text: str, **fields: object) -> dict[str, object]:
    asked = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    return {**asked, "messages": [{"role": "user", "content": text}], **fields}


async def converse(base_url: str) -> int:
    """All three at once; how many answers came whole."""

    async def person(chats: Iterator[dict[str, object]], seed: int) -> int:
        draws, answered = random.Random(seed), 0
        # Who names the session is replayed as one who waits for an answer before the next question.
        session = {"x-session-id": f"person-{seed}"}
        async with httpx.AsyncClient(base_url=base_url, headers=session, timeout=PATIENCE_S, trust_env=False) as client:
            for body in chats:
                answer = await client.post("/v1/chat/completions", json=body)
                answered += answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
                await asyncio.sleep(draws.uniform(*THINK_S))
        return answered

    people = (reader(), extractor(), talker())
    return sum(await asyncio.gather(*(person(chats, seed) for seed, chats in enumerate(people))))


def main() -> None:
    work = HERE / "work"
    engine_port, record_port = free_port(), free_port()
    production = tomllib.loads((HERE / "experiment.toml").read_text(encoding="utf-8"))["engine"]["argv"]
    engine = [word.format(host=HOST, port=engine_port, model=MODEL) for word in production]
    record = [sys.executable, "-m", "firsttoken", "record", "--quiet", "--bodies", "full", "--out", "work/capture"]
    record += ["--upstream", f"http://{HOST}:{engine_port}", "--listen", f"{HOST}:{record_port}"]
    started = partial(running, folder=HERE, boot_s=PATIENCE_S)
    with (
        started(engine, work / "engine.log", engine_port, signal.SIGTERM),
        started(record, work / "record.log", record_port, signal.SIGINT),
    ):
        limit = time.monotonic() + PATIENCE_S
        while httpx.get(f"http://{HOST}:{engine_port}/health", trust_env=False).status_code != 200:
            if time.monotonic() > limit:
                sys.exit("the engine does not get ready: see work/engine.log")
            time.sleep(0.05)
        answered = asyncio.run(converse(f"http://{HOST}:{record_port}"))
    sys.stderr.write(f"{answered} of 48 answers came whole\n")
    sys.exit(answered != 48)


if __name__ == "__main__":
    main()
