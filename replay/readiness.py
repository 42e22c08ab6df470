"""Ready means one real token from the wanted model, on a process of ours (reference: engines §3).

A 200 of /health proves nothing: llama.cpp answers while it loads, SGLang's HTTP server outlives its scheduler, and with
SO_REUSEPORT an old server may answer in place of the new one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from profiles.errors import EngineFailed
from profiles.records import OK, Outcome
from profiles.runs import Step
from profiles.units import MILLISECOND_NS, SECOND_NS, format_duration
from replay.client import Planned, Slot
from replay.clock import Clock
from replay.engines import Engine, PortTaken, port_refuses
from replay.log_end import last_words, log_end
from replay.metrics import read, scrape

# What the embedded engine calls itself in /v1/models.
SIMULATED_OWNER = "firsttoken simulation"
# Our wall clock and the one of an engine in a container may differ a little.
CLOCKS_DIFFER_S = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What an engine says of itself; what it does not say is None."""

    model: str | None = None
    version: str | None = None
    simulated: bool = False
    started_s: float | None = None  # process_start_time_seconds of /metrics, since 1970


def check_alive(engine: Engine, *, ready: bool) -> None:
    """Raise EngineFailed with the exit code and what its log says of the cause if the engine is gone."""
    if engine.lives:
        return
    code, lines = engine.exit_code, engine.log_tail()
    words = last_words(log_end(engine.log) or lines)
    said = f'; its log says: "{words}"' if words else "; its log is empty"
    how = "" if code is None else f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"
    when = "while it served" if ready else "while it booted"
    how = f"{how}, {engine.cause}" if engine.cause is not None else how
    diagnosis = "died" if ready else "died_in_boot"
    raise EngineFailed(f"the engine died {when}{how}{said} ({engine.log})", log_tail=lines, diagnosis=diagnosis)


async def wait_ready(
    slot: Slot, engine: Engine, api: httpx.AsyncClient, probe: Planned, wanted: str, limit_ns: int, clock: Clock
) -> Step:
    """Ask until a token comes. Raises EngineFailed when the engine dies, refuses, or stays silent for `limit_ns`.

    `wanted` is the model, "" for the recorded one.
    """
    deadline_ns = engine.spawned_ns + limit_ns
    asked = 0
    answered: Outcome | None = None  # the last that was not a refused connection
    while True:
        check_alive(engine, ready=False)
        left_ns = max(deadline_ns - clock.now_ns(), SECOND_NS)
        outcome = await slot.send(probe, total_ns=left_ns)
        asked += 1
        if outcome.outcome == OK and outcome.response.first_token_ns is not None:
            break
        if outcome.headers_ns is not None:
            answered = outcome
        await _refuse_what_will_not_heal(outcome, api, wanted)
        if clock.now_ns() > deadline_ns:
            check_alive(engine, ready=False)
            raise _never_ready(outcome, answered, limit_ns, engine, healthy=await is_healthy(api))
        # A twentieth of the wait so far: ready is seen late by 5 % at most, and a long load is not pestered.
        waited_ns = clock.now_ns() - engine.spawned_ns
        pause_ns = max(20 * MILLISECOND_NS, min(waited_ns // 20, SECOND_NS))
        await clock.sleep_until_ns(clock.now_ns() + pause_ns)
    owns = check_owner(engine)
    proof = f"a token came after {asked} requests" + (", and our process owns the port" if owns else "")
    # The first token of all: what is compiled or loaded for it is shown apart, and stands in no result.
    sent_ns = outcome.send_started_ns
    first_ns = None if sent_ns is None else outcome.response.first_token_ns - sent_ns
    facts: dict[str, Any] = {"requests": asked, "owns_port": owns, "first_token_ns": first_ns}
    return Step(name="ready", began_ns=engine.spawned_ns, ended_ns=clock.now_ns(), proof=proof, facts=facts)


def check_owner(engine: Engine, *, ready: bool = False) -> bool | None:
    """The port belongs to this engine and to nobody else; None where the system does not let us see. Raises PortTaken:
    no fault of an arm, and nothing that is measured beside a stranger means anything. EngineFailed where the engine
    itself started the second server."""
    twins = engine.twins()
    if twins:
        raise EngineFailed(
            f"a second server that came from the engine and left it listens on port {engine.port}: {', '.join(twins)}",
            "With SO_REUSEPORT the kernel deals connections to both, so what was measured is neither.",
            engine.log_tail(),
            diagnosis="twin",
        )
    strangers = engine.strangers()
    if strangers:
        raise PortTaken(
            f"somebody else listens on port {engine.port} too: {', '.join(strangers)}",
            "With SO_REUSEPORT the kernel deals connections to both. Stop it, or leave `port` out.",
            diagnosis="twin",
        )
    owns = engine.owns_port()
    if owns is False and ready and port_refuses(engine.host, engine.port):
        raise EngineFailed(
            f"the engine restarts: it lives, and nothing listens on port {engine.port} any more",
            f"Its log says why: {engine.log}",
            engine.log_tail(),
            diagnosis="restarted",
        )
    if owns is False:
        raise PortTaken(
            f"something else answers on port {engine.port}",
            "The engine is alive but does not own the port.",
            diagnosis="port_taken",
        )
    return owns


async def _refuse_what_will_not_heal(outcome: Outcome, api: httpx.AsyncClient, wanted: str) -> None:
    """A client error stays: the model's name is wrong, or the body is."""
    if outcome.status is None or not 400 <= outcome.status < 500 or outcome.status in (408, 425, 429):
        return
    said = f"{outcome.reason} ({outcome.response.error})" if outcome.response.error else outcome.reason
    if outcome.status == 404:
        names = _names(await _get_json(api, "/v1/models"))
        if wanted and names and wanted not in names:
            raise _other_model(names, wanted)
        raise EngineFailed(
            f"the engine does not serve this model, or has no such endpoint: {said}",
            "Check `model` in [engine] against /v1/models.",
            diagnosis="wrong_model",
        )
    raise EngineFailed(
        f"the engine refuses the recorded requests: {said}",
        "Check `model` in [engine] and the engine's log.",
        diagnosis="refused",
    )


async def is_healthy(api: httpx.AsyncClient) -> bool:
    """/health answers with 200."""
    try:
        return (await api.get("/health")).status_code == 200
    except httpx.HTTPError:
        return False


async def say_health(api: httpx.AsyncClient) -> str:
    """What /health says of an engine that gives no tokens any more."""
    return "/health still answers 200" if await is_healthy(api) else "/health does not answer"


def _never_ready(
    last: Outcome, answered: Outcome | None, limit_ns: int, engine: Engine, *, healthy: bool
) -> EngineFailed:
    limit = format_duration(limit_ns)
    hint = f"Raise ready_timeout if the model loads longer. Its log: {engine.log}"
    if answered is None:
        problem, diagnosis = f"no token within {limit}: nothing listens on its port ({last.reason})", "hung_in_boot"
    else:
        said = answered.response.error or answered.reason or answered.outcome
        if answered.response.error and answered.reason and answered.response.error not in answered.reason:
            said = f"{answered.reason}, {answered.response.error}"
        health = "/health answers 200" if healthy else "/health does not answer 200 either"
        problem = f"no token within {limit}: {said}, and {health}"
        diagnosis = "not_ready" if healthy else "hung_in_boot"
    return EngineFailed(problem, hint, engine.log_tail(), diagnosis=diagnosis)


async def identify(
    api: httpx.AsyncClient, wanted: str, spawned_wall_ns: int | None, clock: Clock
) -> tuple[Identity, Step]:
    """Which model and which engine answer. Raises EngineFailed for another model, PortTaken for an older process.

    `spawned_wall_ns` is when it was started, None for an engine that was up already.
    """
    began_ns = clock.now_ns()
    models = await _get_json(api, "/v1/models")
    names = _names(models)
    if wanted and names and wanted not in names:
        raise _other_model(names, wanted)
    version = (await _get_json(api, "/version")).get("version")
    started_s = await _started_s(api)
    if started_s is not None and spawned_wall_ns is not None and started_s < spawned_wall_ns / 1e9 - CLOCKS_DIFFER_S:
        older = spawned_wall_ns / 1e9 - started_s
        raise PortTaken(
            f"the engine that answers was started {older:.0f} s before ours",
            "An old server holds the port: stop it.",
            diagnosis="twin",
        )
    identity = Identity(
        model=(wanted if wanted in names else names[0]) if names else None,
        version=str(version) if version else None,
        simulated=any(item.get("owned_by") == SIMULATED_OWNER for item in _listed(models)),
        started_s=started_s,
    )
    seen = []
    if names:
        seen.append(f"/v1/models lists {identity.model}")
    if started_s is not None and spawned_wall_ns is not None:
        seen.append("its start time is after our spawn")
    facts = {"models": names, "version": identity.version, "started_s": started_s}
    return identity, Step(
        name="identity", began_ns=began_ns, ended_ns=clock.now_ns(), proof="; ".join(seen) or None, facts=facts
    )


def _listed(models: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in models.get("data") or () if isinstance(item, dict)]


def _names(models: dict[str, Any]) -> list[str]:
    return [str(item.get("id")) for item in _listed(models)]


def _other_model(names: Sequence[str], wanted: str) -> EngineFailed:
    return EngineFailed(
        f"the engine serves {', '.join(names)}, not {wanted}",
        "Check `model` in [engine], or start the engine with that served name.",
        diagnosis="wrong_model",
    )


async def _started_s(api: httpx.AsyncClient) -> float | None:
    text = (await scrape(api)).text
    return read(text).started_s if text is not None else None


async def _get_json(api: httpx.AsyncClient, path: str) -> dict[str, Any]:
    try:
        answer = await api.get(path)
        found = answer.json() if answer.status_code == 200 else {}
    except (httpx.HTTPError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
