"""The engine in real time: the iteration loop and the endpoints.

Time here is the machine's plan. A step ends at an absolute instant and the next one starts there, so a late wake-up of
this process delays one chunk and never the ones after it.
"""

import asyncio
import copy
import secrets
from collections.abc import Callable
from pathlib import Path

import orjson

from profiles.dialects import CHAT, COMPLETIONS
from profiles.files import append_line, tool_version
from profiles.requests import describe
from replay.clock import Clock
from replay.simulator import bootlines, chat, composed, metrics, replies, text, wire
from replay.simulator.bootlines import Line
from replay.simulator.cache import block_hashes
from replay.simulator.chat import Answer, Refused
from replay.simulator.faults import NONE, Death, Faults
from replay.simulator.flights import TRUTH_FORMAT, Flight, asked_shape, read_fault
from replay.simulator.jit import JitShapes
from replay.simulator.steps import Counts, Job, Machine
from replay.simulator.wire import Connection, Request

_COMPLETIONS = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETIONS}
# What llama.cpp says until its model is there.
LOADING = chat.error_object("Loading model", "unavailable_error", None, 503)


def _asked(request: Request, what: str) -> str | None:
    """What a header of the simulation's own asks for."""
    return request.headers.get(f"firsttoken-{what}") or request.headers.get(f"firsttoken_{what}")


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
        faults: Faults = NONE,
        dev_mode: bool = False,
        cached_in_usage: bool = True,
        say: Callable[[Line], None] = lambda line: None,
    ) -> None:
        self._machine = machine
        self._model = model
        self._served_name = served_name
        self._clock = clock
        self._start_s = start_s
        self._truth = truth
        self._faults = faults
        self._dev_mode = dev_mode
        self._cached_in_usage = cached_in_usage
        self._say = say
        self._taken = 0
        self._jit = JitShapes(machine.settings.scale) if faults.jit_shapes else None
        self._published: tuple[Counts, metrics.Tally] | None = None
        # Until then there is no model behind the open socket, as some servers have it; None: for ever.
        self._model_there_ns: int | None = 0
        if faults.hang_in_boot is not None:
            self._model_there_ns = None
        elif faults.early_ready is not None:
            self._model_there_ns = clock.now_ns() + faults.early_ready.early_ns
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
        publisher = asyncio.ensure_future(self._publish()) if self._faults.metrics_lag_ns else None
        try:
            while True:
                step = self._machine.plan_step(free_ns)
                if step is None:
                    self._work.clear()
                    await self._work.wait()
                    continue
                if self._exceeds(self._faults.hang_after):
                    await asyncio.Event().wait()  # requests run, and nothing comes of them
                if self._jit is not None:
                    step, compiled = self._jit.compile(step)
                    for kernel in compiled:
                        self._say(bootlines.jit_line(kernel, self._clock.wall_ns()))
                await self._clock.sleep_until_ns(step.tokens_ns)
                for output in self._machine.finish_step(step):
                    self._flights[output.job.id].take(output)
                # Without drafts both instants are one; the yield lets the chunks out before the next plan.
                await self._clock.sleep_until_ns(step.end_ns)
                free_ns = step.end_ns
        finally:
            if publisher is not None:
                publisher.cancel()

    async def _publish(self) -> None:
        """Let the counters of /metrics lag behind by up to a moment, while the gauges are those of now."""
        while True:
            self._published = copy.deepcopy((self._machine.counts, self.tally))
            await self._clock.sleep_until_ns(self._clock.now_ns() + self._faults.metrics_lag_ns)

    def _exceeds(self, limit: int | None) -> bool:
        """More requests were taken than this."""
        return limit is not None and self._taken > limit

    @property
    def _loading(self) -> bool:
        return self._model_there_ns is None or self._clock.now_ns() < self._model_there_ns

    async def answer(self, request: Request, arrived_ns: int, connection: Connection) -> None:
        """Answer one request. Cancelled when the client goes away."""
        if self._model_there_ns is None:
            connection.send(wire.response(503, LOADING))
        elif request.method == "POST" and request.path in _COMPLETIONS:
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
            case "GET", "/metrics" if self._faults.metrics:
                counts, tally = self._published or (self._machine.counts, self.tally)
                page = metrics.render(self._machine, counts, tally, self._served_name, self._start_s)
                return wire.response(200, page, metrics.CONTENT_TYPE)
            case "POST", "/reset_prefix_cache" if self._dev_mode:
                # 200 whatever happens, as in vLLM: the truth is the line in the log.
                held = self._machine.held_blocks
                if not held:
                    self._machine.cache.clear()
                self._say(bootlines.reset_line(held, self._clock.wall_ns()))
                return wire.response(200)
            case _, path if path in _COMPLETIONS or path in self._small_paths():
                return wire.response(405, b'{"detail":"Method Not Allowed"}')
        return wire.response(404, b'{"detail":"Not Found"}')

    def _small_paths(self) -> set[str]:
        paths = {"/health", "/ping", "/version", "/v1/models"}
        if self._faults.metrics:
            paths.add("/metrics")
        if self._dev_mode:
            paths.add("/reset_prefix_cache")
        return paths

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
        if self._loading:
            early = self._faults.early_ready
            connection.send(wire.response(200 if early is not None and early.with_200 else 503, LOADING))
            return
        if self._faults.no_tools and ask.tools and ask.tool_choice != "none":
            raise Refused(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        fault = read_fault(_asked(request, "fault") or ask.firsttoken_fault)
        shape = asked_shape(_asked(request, "shape") or ask.firsttoken_shape)
        if fault is not None and fault.kind == "http_500":
            raise Refused(500, "a fault on request", "InternalServerError")
        flight = self._prepare(ask, endpoint, request.body, arrived_ns)
        self._taken += 1
        if self._exceeds(self._faults.die_after):
            self._say(bootlines.death_line(self._clock.wall_ns()))
            Death().die()
        if self._exceeds(self._faults.errors_after):
            problem = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            raise Refused(500, problem, "InternalServerError")
        answer = Answer(
            id=flight.job.id,
            endpoint=endpoint,
            model=self._served_name,
            created_s=self._clock.wall_ns() // 10**9,
            prompt_tokens=flight.job.prompt_tokens,
            with_ids=bool(ask.return_token_ids),
            usage_in_each=ask.stream_options is not None and ask.stream_options.continuous_usage_stats,
            cached_in_usage=self._cached_in_usage,
            shape=shape,
            says=composed.speaker(flight.pieces, flight.job.id, lose_end=self._faults.break_tool_arguments),
            calls_tools=any(piece.name for piece in flight.pieces),
            wrong_finish=self._faults.wrong_finish_reason,
        )
        self._flights[flight.job.id] = flight
        self._machine.submit(flight.job)
        self._work.set()
        try:
            if ask.stream:
                usage = ask.stream_options is not None and ask.stream_options.include_usage
                await replies.stream(flight, answer, connection, fault, self._clock, usage=usage)
            else:
                await replies.send_whole(flight, answer, connection, fault, self._clock)
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
            drift=self._faults.drift_length,
            luck=secrets.token_bytes(8) if self._faults.nondeterministic else b"",
            plain=self._faults.ignore_schema,
        )
        pieces: tuple[composed.Piece, ...] = ()
        if endpoint == CHAT:
            leak, ignore = self._faults.leak_reasoning, self._faults.ignore_schema
            script, pieces = composed.compose(ask, script, ask.limit or room, leak=leak, ignore_schema=ignore)
        salt = "" if self._faults.ignore_cache_salt else ask.cache_salt or ""
        kind = "chatcmpl" if endpoint == CHAT else "cmpl"
        job = Job(
            id=f"{kind}-{secrets.token_hex(8)}",
            arrival_ns=arrived_ns,
            prompt_tokens=len(prompt),
            output_tokens=len(script.words),
            accept=script.accepted,
            blocks=block_hashes([*prompt, *script.words], salt),
        )
        return Flight(job, script, pieces)

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
