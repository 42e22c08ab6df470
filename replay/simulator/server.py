"""The engine in real time: the iteration loop and the endpoints.

Time here is the machine's plan. A step ends at an absolute instant and the next one starts there, so a late wake-up of
this process delays one chunk and never the ones after it.
"""

import asyncio
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import orjson

from profiles.dialects import CHAT, COMPLETIONS
from profiles.files import append_line, tool_version
from profiles.requests import describe
from replay.clock import Clock
from replay.simulator import bootlines, chat, metrics, text, wire
from replay.simulator.bootlines import Line
from replay.simulator.cache import block_hashes
from replay.simulator.chat import Answer, Refused
from replay.simulator.flights import TRUTH_FORMAT, Fault, Flight, read_fault
from replay.simulator.steps import Job, Machine, Output
from replay.simulator.wire import Connection, Request

_COMPLETIONS = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETIONS}


class EngineServer:
    """Answers requests on connections and drives the machine. `run` is its iteration loop."""

    def __init__(
        self,
        machine: Machine,
        *,
        model: str,
        served_name: str,
        clock: Clock,
        start_s: float,
        truth: Path | None = None,
        die_after: int | None = None,
        say: Callable[[Line], None] = lambda line: None,
    ) -> None:
        self._machine = machine
        self._model = model
        self._served_name = served_name
        self._clock = clock
        self._start_s = start_s
        self._truth = truth
        self._die_after = die_after
        self._say = say
        self._taken = 0
        self._flights: dict[str, Flight] = {}
        self._work = asyncio.Event()
        self.tally = metrics.Tally()
        self.connections: set[Connection] = set()
        if truth is not None:
            append_line(truth, {"format": TRUTH_FORMAT, "version": 1, "tool": tool_version()})

    def connect(self) -> Connection:
        """A protocol for a new client; the factory that create_server wants."""
        return Connection(self.answer, self._clock, self.connections)

    async def run(self) -> None:
        """Step after step, for ever. A step starts where the one before ended, not where this loop woke up."""
        free_ns = 0
        while True:
            step = self._machine.plan_step(free_ns)
            if step is None:
                self._work.clear()
                await self._work.wait()
                continue
            await self._clock.sleep_until_ns(step.tokens_ns)
            for output in self._machine.finish_step(step):
                self._flights[output.job.id].take(output)
            # Without drafts both instants are one; the yield lets the chunks out before the next plan.
            await self._clock.sleep_until_ns(step.end_ns)
            free_ns = step.end_ns

    async def answer(self, request: Request, arrived_ns: int, connection: Connection) -> None:
        """Answer one request. Cancelled when the client goes away."""
        if request.method == "POST" and request.path in _COMPLETIONS:
            try:
                await self._complete(request, arrived_ns, connection)
            except Refused as error:
                connection.send(wire.response(error.status, error.body))
        else:
            connection.send(self._answer_small(request))

    def _answer_small(self, request: Request) -> bytes:
        """The endpoints that answer at once."""
        match request.method, request.path:
            case "GET", "/health" | "/ping":
                return wire.response(200)
            case "GET", "/version":
                return wire.response(200, orjson.dumps({"version": bootlines.IMITATED_VERSION, "simulation": True}))
            case "GET", "/v1/models":
                return wire.response(200, self._models())
            case "GET", "/metrics":
                page = metrics.render(self._machine, self.tally, self._served_name, self._start_s)
                return wire.response(200, page, metrics.CONTENT_TYPE)
            case "POST", "/reset_prefix_cache":
                self._machine.cache.clear()
                self._say(bootlines.reset_line(self._clock.wall_ns()))
                return wire.response(200)
            case _, "/health" | "/ping" | "/version" | "/v1/models" | "/metrics" | "/reset_prefix_cache":
                return wire.response(405, b'{"detail":"Method Not Allowed"}')
            case _, path if path in _COMPLETIONS:
                return wire.response(405, b'{"detail":"Method Not Allowed"}')
        return wire.response(404, b'{"detail":"Not Found"}')

    def _models(self) -> bytes:
        card = {
            "id": self._served_name,
            "object": "model",
            "created": int(self._start_s),
            "owned_by": "firsttoken simulation",
            "root": self._model,
            "parent": None,
            "max_model_len": self._machine.settings.max_model_len,
        }
        return orjson.dumps({"object": "list", "data": [card]})

    async def _complete(self, request: Request, arrived_ns: int, connection: Connection) -> None:
        endpoint = _COMPLETIONS[request.path]
        ask = chat.read_ask(request.body, endpoint)
        if ask.model not in (None, self._served_name):
            problem = f"The model `{ask.model}` does not exist. Valid aliases: {self._served_name}."
            raise Refused(404, problem, "NotFoundError", "model")
        fault = read_fault(
            request.headers.get("firsttoken-fault") or request.headers.get("firsttoken_fault") or ask.firsttoken_fault
        )
        if fault is not None and fault.kind == "http_500":
            raise Refused(500, "a fault on request", "InternalServerError")
        flight = self._prepare(ask, endpoint, request.body, arrived_ns)
        self._taken += 1
        if self._die_after is not None and self._taken > self._die_after:
            self._say(bootlines.death_line(self._clock.wall_ns()))
            os._exit(1)  # a crash: nothing is flushed, nothing says goodbye
        answer = Answer(
            id=flight.job.id,
            endpoint=endpoint,
            model=self._served_name,
            created_s=self._clock.wall_ns() // 10**9,
            prompt_tokens=flight.job.prompt_tokens,
            with_ids=bool(ask.return_token_ids),
            usage_in_each=ask.stream_options is not None and ask.stream_options.continuous_usage_stats,
        )
        self._flights[flight.job.id] = flight
        self._machine.submit(flight.job)
        self._work.set()
        try:
            if ask.stream:
                usage = ask.stream_options is not None and ask.stream_options.include_usage
                await self._stream(flight, answer, connection, fault, usage=usage)
            else:
                await self._send_whole(flight, answer, connection, fault)
        finally:
            self._land(flight)

    def _prepare(self, ask: chat.Ask, endpoint: str, body: bytes, arrived_ns: int) -> Flight:
        """Everything about a request that can be known before its first step. Raises Refused if it cannot fit."""
        longest = self._machine.settings.max_model_len
        if endpoint == CHAT:
            prompt = text.prompt_words(chat.messages_of(ask), ask.tools or ())
        else:
            prompt = chat.bare_prompt_of(ask) or ["<|endoftext|>"]
        room = longest - len(prompt)
        if room < (ask.limit or 1):
            asked = f" and {ask.limit} output tokens were asked for" if ask.limit else ""
            problem = f"This model's maximum context length is {longest} tokens. "
            problem += f"However, your prompt contains {len(prompt)} input tokens{asked}. Reduce the length."
            raise Refused(400, problem, param="input_tokens")
        script = text.write_script(
            text.workload_of(describe(body), len(prompt)),
            prompt,
            limit=ask.limit or room,
            min_tokens=ask.min_tokens,
            ignore_eos=ask.ignore_eos,
        )
        kind = "chatcmpl" if endpoint == CHAT else "cmpl"
        job = Job(
            id=f"{kind}-{secrets.token_hex(8)}",
            arrival_ns=arrived_ns,
            prompt_tokens=len(prompt),
            output_tokens=len(script.words),
            accept=script.accepted,
            blocks=block_hashes([*prompt, *script.words], ask.cache_salt or ""),
        )
        return Flight(job, script)

    async def _stream(
        self, flight: Flight, answer: Answer, connection: Connection, fault: Fault | None, *, usage: bool
    ) -> None:
        # The head goes out before the first token, as vLLM's does: its instant is no measure of anything.
        connection.send(wire.STREAM_HEAD)
        job, words = flight.job, flight.script.words
        produced = 0
        last = False
        while not last:
            output = await flight.outputs.get()
            pieces = [answer.role_chunk()] if produced == 0 and answer.endpoint == CHAT else []
            start, produced, last = produced, produced + output.tokens, output.last
            struck = fault is not None and start < flight.middle <= produced
            if fault is not None and struck and fault.kind == "stall":
                await self._clock.sleep_until_ns(self._clock.now_ns() + fault.stall_ns)
            elif fault is not None and struck:
                flight.finish = "error"
                if fault.kind == "error_in_stream":
                    error = chat.error_object("a fault on request", "InternalServerError", None, 500)
                    connection.send(wire.chunk(chat.event(error)) + wire.chunk(chat.DONE) + wire.LAST_CHUNK)
                else:
                    connection.close()  # before the end of the chunked body: the client sees it broken off
                return
            finish = flight.script.finish if last else None
            pieces.append(answer.content_chunk(words[start:produced], produced, finish, job.cached_tokens))
            if last:
                pieces += [answer.usage_chunk(produced, job.cached_tokens)] if usage else []
                pieces.append(chat.DONE)
            data = b"".join(map(wire.chunk, pieces)) + (wire.LAST_CHUNK if last else b"")
            flight.note(output, self._clock.now_ns())
            connection.send(data)
        flight.finish = flight.script.finish

    async def _send_whole(self, flight: Flight, answer: Answer, connection: Connection, fault: Fault | None) -> None:
        output = await flight.outputs.get()
        while not output.last:
            output = await flight.outputs.get()
        if fault is not None and fault.kind != "stall":
            flight.finish = "error"
            if fault.kind == "cut":
                connection.close()
                return
            raise Refused(500, "a fault on request", "InternalServerError")
        if fault is not None:
            await self._clock.sleep_until_ns(self._clock.now_ns() + fault.stall_ns)
        body = answer.whole(flight.script.words, flight.script.finish, flight.job.cached_tokens)
        whole = Output(flight.job, flight.job.output_tokens, True, output.planned_ns)
        flight.note(whole, self._clock.now_ns())
        connection.send(wire.response(200, body))
        flight.finish = flight.script.finish

    def _land(self, flight: Flight) -> None:
        """Book a request that has ended in any way."""
        end_ns = self._clock.now_ns()
        job = flight.job
        self._machine.abort(job)
        del self._flights[job.id]
        self.tally.finished[flight.finish] += 1
        if flight.first_token_ns is not None and flight.last_token_ns is not None:
            self.tally.ttft.observe(flight.first_token_ns - job.arrival_ns)
            self.tally.queue.observe((job.started_ns or job.arrival_ns) - job.arrival_ns)
            if flight.finish in ("stop", "length"):
                self.tally.e2e.observe(end_ns - job.arrival_ns)
                decode_ns = flight.last_token_ns - flight.first_token_ns
                if job.output_tokens > 1:
                    self.tally.tpot.observe(decode_ns / (job.output_tokens - 1))
        if self._truth is not None:
            append_line(self._truth, flight.truth(end_ns))
