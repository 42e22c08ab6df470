"""The functional probes of a boot: a fixed prompt set, asked one after the other, never timed.

They come after the last window, right before the engine is stopped. Nothing that is measured can then feel them: no
prefix of theirs is cached, no grammar or kernel of theirs is compiled, and no counter of a window counts them. That c =
8 is the last window of a boot stays true, for they are no window. The price is that an engine which a probe kills has
been measured for nothing; it is an engine that a client would kill.

Each probe is asked `REPEATS` times at temperature 0, each pass with a `cache_salt` of its own where the run has salts.
A nonce would change the text that is asked, so there is none: two passes may share a prefix then, in every arm alike.

What an engine answers is written down and judged by nobody here. A refusal is an answer. One that gives no answer in
`PROBE_NS` is cut, and after `MOST_SILENT` of these in a row the rest is not asked. Only an engine that dies fails its
boot by this, as it would anywhere.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from profiles.functional import REPEATS, FunctionalOutcome, Probe, ToolCall, schema_asked
from profiles.records import OK, TIMEOUT, Outcome
from profiles.runs import Step
from profiles.schema_subset import misfit
from profiles.stream import ResponseReader
from profiles.units import SECOND_NS
from replay.client import Planned, Slot
from replay.clock import Clock
from replay.said import Listener, Said, SaidCall

FUNCTIONAL: Final = "functional"
# 512 tokens at a slow 5 tokens a second take less.
PROBE_NS: Final = 180 * SECOND_NS
MOST_SILENT: Final = 3
SEED: Final = 7
# How models mark their reasoning. None of these belongs into what a person sees.
_MARKS = re.compile(
    r"</?think(?:ing)?>|</?reasoning>|<\|channel\|>|\[/?THINK\]|◁/?think▷|<seed:/?think>|<\|?/?(?:begin|end)_of_thought\|?>",
    re.IGNORECASE,
)

type NewReader = Callable[[str, str], ResponseReader]


@dataclass(frozen=True, slots=True)
class Asking:
    """What all probes of a boot are asked with. `salt` is in front of the name of a pass; None where there are none."""

    model: str | None
    salt: str | None


async def ask_probes(
    probes: Sequence[Probe],
    asking: Asking,
    new_slot: Callable[[NewReader], Slot],
    clock: Clock,
    on_outcome: Callable[[FunctionalOutcome], None],
    alive: Callable[[], bool] = lambda: True,
) -> tuple[Step, list[Outcome]]:
    """Ask all of them on one connection, until the engine is dead. Returns the step with what came back, and the bare
    outcomes. Never raises for what the engine does."""
    began_ns = clock.now_ns()
    heard: list[Listener] = []

    def listen(content_type: str, content_encoding: str) -> ResponseReader:
        heard.append(Listener(content_type, content_encoding))
        return heard[-1]

    slot = new_slot(listen)
    outcomes: list[Outcome] = []
    asked = [(probe, streamed) for probe in probes for streamed in probe.ways]
    silent = 0
    try:
        for repeat in range(1, REPEATS + 1):
            for probe, streamed in asked:
                if not alive():
                    break
                if silent >= MOST_SILENT:
                    on_outcome(_not_asked(probe, repeat, streamed=streamed))
                    continue
                heard.clear()
                outcome = await slot.send(
                    _planned(probe, asking, repeat, len(outcomes), streamed=streamed), total_ns=PROBE_NS
                )
                outcomes.append(outcome)
                silent = silent + 1 if outcome.outcome == TIMEOUT else 0
                said = heard[-1].said() if heard else Said()
                on_outcome(describe(probe, outcome, said, repeat, streamed=streamed))
    finally:
        await slot.close()
    return _step(probes, outcomes, began_ns, clock.now_ns()), outcomes


def _planned(probe: Probe, asking: Asking, repeat: int, index: int, *, streamed: bool) -> Planned:
    return Planned(
        window=FUNCTIONAL,
        c=1,
        index=index,
        request=-1,
        workload=FUNCTIONAL,
        path=probe.path,
        body=body_of(probe, asking, repeat, streamed=streamed),
        measured=False,
        streamed=streamed,
    )


def body_of(probe: Probe, asking: Asking, repeat: int, *, streamed: bool) -> bytes:
    """The body as it is sent. What the probe says itself about temperature and seed stays."""
    body: dict[str, Any] = {"temperature": 0, "seed": SEED, **probe.body, "stream": streamed}
    if asking.model is not None:
        body["model"] = asking.model
    if streamed:
        body["stream_options"] = {"include_usage": True}
    if asking.salt is not None:
        body["cache_salt"] = f"{asking.salt}{FUNCTIONAL}-{repeat}"
    return orjson.dumps(body)


def describe(probe: Probe, outcome: Outcome, said: Said, repeat: int, *, streamed: bool) -> FunctionalOutcome:
    """The facts about one answer. Pure."""
    schema = schema_asked(probe.body)
    is_json, problem = _json_facts(said.text, schema) if schema is not None else (None, None)
    stops = probe.body.get("stop") or []
    return FunctionalOutcome(
        probe=probe.name,
        repeat=repeat,
        streamed=streamed,
        traits=list(probe.traits),
        status=outcome.status,
        outcome=outcome.outcome,
        reason=None if outcome.outcome == OK else (outcome.reason or outcome.outcome)[:120],
        finish=outcome.response.finish,
        stop_left=any(stop in said.text for stop in ([stops] if isinstance(stops, str) else stops)),
        calls=[_call_facts(call, probe.body) for call in said.calls],
        wanted_calls=probe.calls if probe.body.get("tools") else 0,
        json=is_json,
        misfit=problem,
        reasoning_chars=len(said.reasoning),
        leaked=_MARKS.search(said.text) is not None,
        output_tokens=outcome.response.output_tokens,
        limit=_limit(probe.body),
        text_chars=len(said.text),
        sha256=_digest(said),
        malformed=said.malformed,
    )


def _limit(body: dict[str, Any]) -> int | None:
    asked = body.get("max_completion_tokens", body.get("max_tokens"))
    return asked if isinstance(asked, int) else None


def _json_facts(text: str, schema: dict[str, Any]) -> tuple[bool, str | None]:
    try:
        value = orjson.loads(text.strip())
    except orjson.JSONDecodeError:
        return False, None
    return True, misfit(value, schema)


def _call_facts(call: SaidCall, body: dict[str, Any]) -> ToolCall:
    offered = {
        tool["function"].get("name"): tool["function"].get("parameters")
        for tool in body.get("tools") or ()
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    }
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        arguments = None
    parses = isinstance(arguments, dict)
    return ToolCall(
        known=call.name in offered,
        parses=parses,
        fits=parses and call.name in offered and misfit(arguments, offered[call.name]) is None,
        deltas=call.pieces,
    )


def _digest(said: Said) -> str | None:
    if not said.text and not said.calls:
        return None
    visible = [said.text, [[call.name, call.arguments] for call in said.calls]]
    return hashlib.sha256(orjson.dumps(visible)).hexdigest()


def _not_asked(probe: Probe, repeat: int, *, streamed: bool) -> FunctionalOutcome:
    reason = f"not asked: {MOST_SILENT} probes before it got no answer"
    return FunctionalOutcome(
        probe=probe.name, repeat=repeat, streamed=streamed, traits=list(probe.traits), outcome=TIMEOUT, reason=reason
    )


def _step(probes: Sequence[Probe], outcomes: Sequence[Outcome], began_ns: int, ended_ns: int) -> Step:
    answered = sum(outcome.outcome == OK for outcome in outcomes)
    refused = sum(outcome.status is not None and 400 <= outcome.status < 500 for outcome in outcomes)
    facts = {"probes": len(probes), "asked": len(outcomes), "answered": answered, "refused": refused}
    proof = f"{answered} of {len(outcomes)} probes answered" if answered else None
    return Step(name=FUNCTIONAL, began_ns=began_ns, ended_ns=ended_ns, proof=proof, facts=facts)
