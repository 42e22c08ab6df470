"""Proof that two passes share nothing in the prefix cache, before anything is measured.

A pass that finds the prompts of the one before it in the cache measures the cache. The recorded bodies carry a salt or
a nonce, or the engine is asked to forget; none of it is taken on trust. What the answers prove is judged in
`prefix_proof`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import orjson

from profiles.errors import EngineFailed
from profiles.records import EMPTY, OK, Outcome
from profiles.runs import Step
from replay.bodies import make_template
from replay.client import Planned, Slot
from replay.clock import Clock
from replay.engines import log_size
from replay.load import Load
from replay.metrics import Scrape, scrape_idle, window_metrics
from replay.prefix_proof import Judgement, ProbeAnswer, judge_reset, judge_salt, probe_tokens

PROBE = "isolation"
# Common English words are one token each in every tokenizer; three quarters of the wanted length of words are enough
# tokens with their blanks, and a third more is sent for those that are none.
WORDS = ("river", "stone", "table", "green", "winter", "number", "letter", "garden", "silver", "window", "market")
SPARE = 1.25
# Enough for engines with small blocks; only where nothing is found at this length the long one is sent.
SHORT_TOKENS = 512
# The wait for a log line that follows a reset.
RESET_PATIENCE_NS = 2_000_000_000
# Endpoints that empty a prefix cache: vLLM in development mode, SGLang.
RESETS = ("/reset_prefix_cache", "/flush_cache")


async def prove_isolation(
    isolation: str,
    slot: Slot,
    api: httpx.AsyncClient,
    load: Load,
    selection: Mapping[str, Any],
    clock: Clock,
    on_outcome: Callable[[Outcome], None],
) -> Step:
    """Send one long prompt in two passes and hold the cached tokens against each other.

    `selection` is what the boot log has said so far. Raises EngineFailed where the engine shares the cache between
    passes all the same. Where the engine says nothing of cached tokens the step has no proof, and says why.
    """
    began_ns = clock.now_ns()
    facts: dict[str, Any] = {"isolation": isolation}
    if isolation in ("none", "reset"):
        why = "asked for none" if isolation == "none" else "the cache is emptied before each pass, each time proved"
        return Step(name="isolation", began_ns=began_ns, ended_ns=clock.now_ns(), facts=facts | {"why": why})
    answers: list[ProbeAnswer] = []
    judged = Judgement("not shown", "the engine did not answer the probe")
    for tokens in (SHORT_TOKENS, probe_tokens(selection)):
        tried = await _probe(slot, api, _probe_body(load, tokens), tokens, clock, on_outcome)
        if not tried:  # longer than the engine takes, perhaps: no reason to stop, and no proof
            break
        answers, judged = tried, judge_salt(*tried)
        if judged.word != "not shown":
            break
    facts |= {"word": judged.word, "why": judged.why, "cached": [answer.cached for answer in answers]}
    if judged.word == "ignored":
        way = "cache_salt" if isolation == "salt" else "a nonce at the head of the conversation"
        raise EngineFailed(
            f"the engine shares its prefix cache between passes in spite of {way}: {judged.why}",
            'Write cache_isolation = "nonce" in [engine]; llama.cpp and older engines ignore cache_salt.'
            if isolation == "salt"
            else 'Write cache_isolation = "reset", or turn the prefix cache off in all arms.',
            diagnosis="salt_ignored",
        )
    return Step(
        name="isolation",
        began_ns=began_ns,
        ended_ns=clock.now_ns(),
        proof=judged.why if judged.word == "proved" else None,
        facts=facts,
    )


async def _probe(
    slot: Slot,
    api: httpx.AsyncClient,
    body: Callable[[str], Planned],
    tokens: int,
    clock: Clock,
    on_outcome: Callable[[Outcome], None],
) -> list[ProbeAnswer]:
    """Pass A, pass B, pass B again. Empty where one was not answered."""
    before = await scrape_idle(api, clock)
    answers: list[ProbeAnswer] = []
    for name in ("a", "b", "b"):
        answer, before = await _ask(slot, api, body(f"{PROBE}-{tokens}-{name}"), before, clock, on_outcome)
        if answer is None:
            return []
        answers.append(answer)
    return answers


def _probe_body(load: Load, tokens: int) -> Callable[[str], Planned]:
    """A chat of that many words which nothing recorded shares, with the overrides of the run. By name of the pass."""
    # It begins with its length: a longer probe must not find the shorter one.
    words = f"{tokens} " + " ".join(WORDS[(at * at + at // 7) % len(WORDS)] for at in range(round(tokens * SPARE)))
    row = load.warmup[0]
    endpoint = "completions" if row.endpoint == "completions" else "chat"
    asked: dict[str, Any] = {"model": load.override.model or row.model or "", "max_tokens": 1, "temperature": 0}
    if endpoint == "completions":
        asked["prompt"] = words
    else:
        asked["messages"] = [{"role": "user", "content": words}]
    template = make_template(orjson.dumps(asked), load.override, output_tokens=None, endpoint=endpoint)
    path = "/v1/completions" if endpoint == "completions" else "/v1/chat/completions"

    def planned(pass_name: str) -> Planned:
        return Planned(
            window=PROBE,
            c=1,
            index=0,
            request=-1,
            workload="",
            path=path,
            body=template.body(load.apart + pass_name),
            measured=False,
        )

    return planned


async def _ask(
    slot: Slot,
    api: httpx.AsyncClient,
    planned: Planned,
    before: Scrape,
    clock: Clock,
    on_outcome: Callable[[Outcome], None],
) -> tuple[ProbeAnswer | None, Scrape]:
    outcome = await slot.send(planned)
    on_outcome(outcome)
    after = await scrape_idle(api, clock)
    # A model may end at once, with no text in its one token: its prompt was read all the same.
    if outcome.outcome not in (OK, EMPTY):
        return None, after
    counters, _void, _ttft = window_metrics(before, after)
    facts = outcome.response
    return ProbeAnswer(facts.prompt_tokens, facts.cached_tokens, counters), after


async def reset_prefix_cache(api: httpx.AsyncClient, log: Path, clock: Clock) -> Step:
    """Ask the engine to empty its prefix cache, and find the proof. Raises EngineFailed where there is none."""
    began_ns, offset = clock.now_ns(), log_size(log)
    judged = Judgement("not shown", "the engine has no endpoint that empties its prefix cache")
    for path in RESETS:
        try:
            answer = await api.post(path)
        except httpx.HTTPError:
            continue
        if answer.status_code in (404, 405):
            continue
        judged = await _judge(answer, log, offset, clock)
        break
    if judged.word != "proved":
        raise EngineFailed(
            f"the prefix cache was not emptied: {judged.why}",
            "vLLM needs VLLM_SERVER_DEV_MODE=1 in the engine's env, and a log that says so; or choose another"
            " cache_isolation.",
            diagnosis="not_reset",
        )
    return Step(name="reset", began_ns=began_ns, ended_ns=clock.now_ns(), proof=judged.why)


async def _judge(answer: httpx.Response, log: Path, offset: int, clock: Clock) -> Judgement:
    """The log may come a moment after the answer."""
    deadline_ns = clock.now_ns() + RESET_PATIENCE_NS
    try:
        said = answer.json()
    except ValueError:
        said = None
    while True:
        judged = judge_reset(_read_from(log, offset), status=answer.status_code, answer=said)
        if judged.word != "not shown" or clock.now_ns() > deadline_ns:
            return judged
        await clock.sleep_until_ns(clock.now_ns() + 20_000_000)


def _read_from(log: Path, offset: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(offset)
            return file.read(1024 * 1024)
    except OSError:
        return b""
