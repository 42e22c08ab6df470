"""A small office on one engine, recorded: chat in English and Hungarian, code, JSON out of letters, long texts.

Starts firsttoken's embedded engine, at about the speed of a small model on a large GPU, and `firsttoken record` in
front of it; three people send 264 streamed chats. Only what was asked, and when, goes into the profile: the answers of
the ladder come from the real engine. Three questions stand on each long text, as people ask, so a prefix cache has
something to find; letters and code are copied by their answers, so n-gram drafts have too. Writes `work/capture`.
"""

import asyncio
import random
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx

sys.path.append(str(Path(__file__).resolve().parent.parent))  # of the examples

from served import HOST, free_port, running

HERE = Path(__file__).parent
MODEL = "smollm2"
PATIENCE_S = 60.0
THINK_S = (0.02, 0.16)  # drawn evenly: they read fast, so that a boot is measured in half a minute
SPEED = "0.28"  # of the embedded engine: about 2 ms a token

NAMES = (
    "Ada Kovacs|Ben Mbeki|Chiara Rossi|Deniz Aydin|Eva Lindqvist|Femi Okafor|Grace Liu|Hugo Laurent|Ines Pereira".split(
        "|"
    )
)
TOWNS = "Szeged|Turku|Bergamo|Porto|Gdansk|Leuven|Izmir|Cork|Graz|Pecs|Vigo|Lund".split("|")
GOODS = "oak tables|bicycle lamps|water pumps|garden chairs|copper pipes|paper rolls|glass jars|winter tyres".split("|")
MONTHS = "January|March|April|June|August|October|November".split("|")
FACTS = (
    "The {good} for {town} were weighed on the {n}th of {month} and came to {k} kilograms with their boxes.",
    "{name} signed for them at the north gate, because the office in {town} closes at {h} in the afternoon.",
    "A lorry of the second shift had brought {k} {good} the day before, of which {n} were returned.",
    "The insurance covers damage by water up to {k} euros, and none at all where the lid was left open.",
    "Since {month} every delivery to {town} needs a form in two copies, and the blue one stays with the driver.",
    "{name} measured the hall and found room for {n} pallets, a third less than the plan of last year promised.",
    "Prices for {good} rose by {n} percent in {month}, while the freight to {town} became cheaper.",
    "If the ramp is icy, unloading waits until {name} has spread sand; this took {n} minutes at the last frost.",
    "The customs office in {town} asked twice for the weight of the {good} and accepted {k} kilograms in the end.",
    "Nobody has counted the {good} in the old store since {name} left, but the list of {month} names {k} of them.",
)
QUESTIONS = (
    "Who signed for the delivery, and where?",
    "What does the insurance not cover?",
    "Name every town of the text and what was sent there.",
)
TALK = (
    "How do tides come about?",
    "What is the difference between weather and climate?",
    "Write a short toast for the wedding of {name}.",
    "I have {n} eggs, flour and {town} cheese. What can I cook tonight?",
    "Explain to a child of {n} years why the sky is blue.",
    "Suggest a plan for a rainy Sunday in {town}.",
    "Why do cats purr, and do {good} calm them?",
    "Is it better to run in the morning or in the evening?",
    "Tell me a story in which {name} loses a key in {town}.",
    "What should I ask before I buy {good} from a stranger?",
)
FOLLOW = ("Say it in simpler words.", "And what is the most common mistake there?", "Give me one example with numbers.")
TALK_HU = (
    "Hogyan készül a jó {n} személyes gulyásleves, és mire figyeljek a fűszerezésnél?",
    "Írj egy rövid köszöntőt {name} születésnapjára, legyen benne egy jó kívánság is!",
    "Miért sós a tenger vize, és miért nem sós a folyóké, amelyek beleömlenek?",
    "Mit érdemes megnézni egy esős hétvégén {town} városában, ha gyerekekkel utazunk?",
    "Magyarázd el röviden, hogyan működik a hűtőszekrény, és miért kell néha leolvasztani!",
    "Mennyi idő alatt ér haza egy vonat, ha {k} kilométert kell megtennie, és közben {n} percet áll?",
)
CODE = """def read_{word}(path, limit={n}):
    rows = []
    with open(path) as file:
        for number, line in enumerate(file):
            parts = line.strip().split(";")
            if len(parts) < {h} or number > limit:
                continue
            rows.append({{"{word}": parts[0], "town": parts[1], "weight": float(parts[2])}})
    return rows


def sum_{word}(rows, town="{town}"):
    total = 0.0
    for row in rows:
        if row["town"] == town and row["weight"] > {n}:
            total = total + row["weight"]
    return total
"""
CODE_TASKS = (
    "Repeat this code with type hints and nothing else.",
    "Rename the variable rows to lines and print the whole code again.",
    "Add a docstring to both functions and print the whole code again.",
)
LETTER = (
    "Dear Sir or Madam, my name is {name} and I write from {town}. On the {n}th of {month} I ordered {k} {good} under "
    "the number {k}-{n}{h}. Only {n} of them arrived, and {h} were broken. Please send the rest to {town} before the "
    "end of {month}, or return {k} euros to my account. I can be reached after {h} in the afternoon. With kind "
    "regards, {name}"
)
FIELDS = 'the keys "name", "town", "order", "goods", "count", "broken", "refund_euros"'


def filled(draws: random.Random, text: str) -> str:
    """A sentence with names and numbers put in."""
    return text.format(
        name=draws.choice(NAMES), town=draws.choice(TOWNS), good=draws.choice(GOODS), month=draws.choice(MONTHS),
        word=draws.choice(("parcels", "orders", "pallets", "letters", "pumps")),
        n=draws.randint(3, 28), k=draws.randint(110, 990), h=draws.randint(2, 6),
    )  # fmt: skip


def document(draws: random.Random, sentences: int) -> str:
    return " ".join(filled(draws, draws.choice(FACTS)) for _ in range(sentences))


def talker() -> Iterator[dict[str, object]]:
    """Short questions in two languages, and conversations of three turns."""
    draws = random.Random(1)
    for number in range(88):
        if number % 4 == 1:
            yield chat(filled(draws, draws.choice(TALK_HU)), max_tokens=72)
        elif number % 4 == 3:
            asked = [filled(draws, draws.choice(TALK)), *FOLLOW[: 1 + number % 3]]
            yield turns(asked, max_tokens=72)
        else:
            yield chat(filled(draws, draws.choice(TALK)), max_tokens=96)


def worker() -> Iterator[dict[str, object]]:
    """JSON out of letters, and code to be written again."""
    draws = random.Random(2)
    for number in range(88):
        if number % 2:
            yield chat(f"{filled(draws, CODE)}\n{CODE_TASKS[number % 3]}", max_tokens=128)
        else:
            letters = " Next letter: ".join(filled(draws, LETTER) for _ in range(4))
            text = f"{letters}\nAnswer with JSON of the last letter and {FIELDS}."
            yield chat(text, max_tokens=64, response_format={"type": "json_object"})


def reader() -> Iterator[dict[str, object]]:
    """Three questions about each text; every third text is long."""
    draws = random.Random(3)
    for number in range(30):
        text = document(draws, 236 if number % 3 == 2 else 62)
        for question in QUESTIONS[: 3 if number < 29 else 1]:
            yield chat(f"{text}\n\n{question}", max_tokens=64)


def chat(text: str, **fields: object) -> dict[str, object]:
    return body([{"role": "user", "content": text}], **fields)


def turns(asked: list[str], **fields: object) -> dict[str, object]:
    """A conversation whose earlier answers stand in the request, as clients send it."""
    said = []
    for text in asked:
        said += [{"role": "user", "content": text}, {"role": "assistant", "content": f"You asked: {text} It depends."}]
    return body(said[:-1], **fields)


def body(messages: list[dict[str, str]], **fields: object) -> dict[str, object]:
    asked = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    return {**asked, "messages": messages, **fields}


async def converse(base_url: str) -> tuple[int, int]:
    """All three at once; how many answers came whole, and how many were asked for."""

    async def person(chats: Iterator[dict[str, object]], seed: int) -> tuple[int, int]:
        draws, answered, asked = random.Random(seed), 0, 0
        async with httpx.AsyncClient(base_url=base_url, timeout=PATIENCE_S, trust_env=False) as client:
            for request in chats:
                answer = await client.post("/v1/chat/completions", json=request)
                answered += answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
                asked += 1
                await asyncio.sleep(draws.uniform(*THINK_S))
        return answered, asked

    people = (talker(), worker(), reader())
    counts = await asyncio.gather(*(person(chats, seed) for seed, chats in enumerate(people)))
    return sum(answered for answered, _ in counts), sum(asked for _, asked in counts)


def main() -> None:
    work = HERE / "work"
    work.mkdir(exist_ok=True)
    engine_port, record_port = free_port(), free_port()
    firsttoken = [sys.executable, "-m", "firsttoken"]
    engine = [*firsttoken, "engine", "--port", str(engine_port), "--model", MODEL, "--time-scale", SPEED]
    record = [*firsttoken, "record", "--quiet", "--bodies", "full", "--out", "work/capture"]
    record += ["--upstream", f"http://{HOST}:{engine_port}", "--listen", f"{HOST}:{record_port}"]
    started = partial(running, folder=HERE, boot_s=PATIENCE_S)
    with (
        started(engine, work / "engine.log", engine_port, signal.SIGTERM),
        started(record, work / "record.log", record_port, signal.SIGINT),
    ):
        answered, asked = asyncio.run(converse(f"http://{HOST}:{record_port}"))
    sys.stderr.write(f"{answered} of {asked} answers came whole\n")
    sys.exit(answered != asked)


if __name__ == "__main__":
    main()
