"""Three people on a real vLLM, recorded: they ask through the `openai` package, one busy, one less, one now and then.

Starts the engine of experiment.toml (the baseline's command line) and `firsttoken record` in front of it on free
loopback ports, warms the engine up past the recorder, sends each prompt of prompts.jsonl once as a streamed chat at
temperature 0, and stops both. Between an answer and their next question people think, so mostly one request is in
flight and at times two or three. Writes `work/capture`, and what the engine's own histogram says of its first tokens
during the recording into `work/engine-ttft.json`, for check.py.

Runs under vLLM's environment, which has `openai`; FIRSTTOKEN_PYTHON is the interpreter that has firsttoken.
"""

import asyncio
import json
import os
import random
import signal
import sys
import tomllib
import urllib.request
from functools import partial
from pathlib import Path

from openai import AsyncOpenAI

sys.path.append(str(Path(__file__).resolve().parent.parent))  # of the examples

from served import HOST, free_port, running

HERE = Path(__file__).parent
FIRSTTOKEN = os.environ.get("FIRSTTOKEN_PYTHON", str(HERE.parent.parent / ".venv/bin/python"))
MODEL = "smollm2"
BOOT_S, ANSWER_S = 300.0, 120.0
HISTOGRAM = "vllm:time_to_first_token_seconds"
# How many of twelve questions each person asks, and how long they think on average.
PEOPLE = ((7, 1.5), (4, 4.0), (1, 20.0))

type Prompt = dict[str, object]


def read_prompts(file: Path) -> list[Prompt]:
    """Bodies of chats, in the order of the file: all six classes by turns. A prompt may stand on numbered passages."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    passages = {line["passage"]: line["content"] for line in lines if "passage" in line}
    prompts: list[Prompt] = []
    for line in lines:
        if "passage" not in line:
            parts = [*(passages[number] for number in line.get("passages", ())), line["content"]]
            prompt: Prompt = {
                "messages": [{"role": "user", "content": "\n\n".join(parts)}],
                "max_tokens": line["max_tokens"],
            }
            if line.get("json"):
                prompt["response_format"] = {"type": "json_object"}
            prompts.append(prompt)
    return prompts


async def ask(client: AsyncOpenAI, prompt: Prompt) -> bool:
    """One streamed chat; whether it came whole."""
    stream = await client.chat.completions.create(  # type: ignore[call-overload]
        model=MODEL, stream=True, stream_options={"include_usage": True}, temperature=0, **prompt
    )
    whole = False
    async for chunk in stream:
        whole = chunk.usage is not None  # the last chunk
    return whole


async def converse(base_url: str, prompts: list[Prompt]) -> int:
    """All people at once, each with a client of their own; how many answers came whole."""
    turns = [person for person, (share, _) in enumerate(PEOPLE) for _ in range(share)]
    random.Random(3).shuffle(turns)
    mine = [[prompt for at, prompt in enumerate(prompts) if turns[at % len(turns)] == person] for person in range(3)]

    async def person(number: int, think_s: float) -> int:
        draws, whole = random.Random(number), 0
        async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", timeout=ANSWER_S, max_retries=0) as client:
            for prompt in mine[number]:
                await asyncio.sleep(min(draws.expovariate(1 / think_s), 3 * think_s))
                whole += await ask(client, prompt)
        return whole

    return sum(await asyncio.gather(*(person(number, think_s) for number, (_, think_s) in enumerate(PEOPLE))))


async def warm_up(base_url: str, prompts: list[Prompt]) -> None:
    """The first requests of a boot are slow: one of each class, asked once and not recorded."""
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", timeout=ANSWER_S, max_retries=0) as client:
        for prompt in prompts[:6]:
            await ask(client, {**prompt, "extra_body": {"cache_salt": "warm-up"}})


def first_tokens(base_url: str) -> tuple[float, int]:
    """Seconds and requests in the engine's own histogram of times to first token, from /metrics."""
    with urllib.request.urlopen(f"{base_url}/metrics", timeout=ANSWER_S) as answer:
        lines = answer.read().decode().splitlines()

    def total(suffix: str) -> float:
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{HISTOGRAM}_{suffix}{{"))

    return total("sum"), int(total("count"))


def main() -> None:
    work = HERE / "work"
    prompts = read_prompts(HERE / "prompts.jsonl")
    experiment = tomllib.loads((HERE / "experiment.toml").read_text(encoding="utf-8"))
    engine_port, record_port = free_port(), free_port()
    given = {"{host}": HOST, "{port}": str(engine_port), "{model}": MODEL}
    engine = [given.get(word, word) for word in (*experiment["engine"]["argv"], *experiment["arm"][0]["args"])]
    record = [FIRSTTOKEN, "-m", "firsttoken", "record", "--quiet", "--bodies", "full", "--out", "work/capture"]
    record += ["--upstream", f"http://{HOST}:{engine_port}", "--listen", f"{HOST}:{record_port}"]
    direct, recorded = f"http://{HOST}:{engine_port}", f"http://{HOST}:{record_port}"
    started = partial(running, folder=HERE, boot_s=BOOT_S)
    with started(engine, work / "engine.log", engine_port, signal.SIGTERM, env=experiment["engine"]["env"]):
        asyncio.run(warm_up(direct, prompts))
        before = first_tokens(direct)
        with started(record, work / "record.log", record_port, signal.SIGINT):
            whole = asyncio.run(converse(recorded, prompts))
        after = first_tokens(direct)
    told = {"sum_s": after[0] - before[0], "requests": after[1] - before[1]}
    (work / "engine-ttft.json").write_text(json.dumps(told) + "\n", encoding="utf-8")
    sys.stderr.write(f"{whole} of {len(prompts)} answers came whole\n")
    sys.exit(whole != len(prompts))


if __name__ == "__main__":
    main()
