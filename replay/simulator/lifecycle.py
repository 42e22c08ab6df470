"""The process: bind, boot, listen, serve, stop.

As in vLLM the socket is bound first and listens only after the boot: until then every connection is refused, so the
first answer of /health means that the engine is ready. SIGTERM and SIGINT stop it at once, whatever is in flight, with
exit code 0.

What misbehaves on request (`faults`) does so here or in `server`; processes are forked before the event loop exists.
"""

import asyncio
import gc
import os
import random
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from profiles.errors import EngineFailed
from profiles.files import tool_version
from replay.clock import Clock, SystemClock, fine_event_loop
from replay.simulator import bootlines, leftovers
from replay.simulator.bootlines import Line
from replay.simulator.cache import BLOCK_TOKENS
from replay.simulator.compile_cache import COLD_TIMES, cached_graph, keep_graph
from replay.simulator.faults import NONE, SILENT, STUCK_AT_SHARE, Faults
from replay.simulator.flood import MIB, flood
from replay.simulator.server import EngineServer
from replay.simulator.steps import Machine, Settings
from replay.simulator.supervisor import supervise

# How far a boot may be from its boot time, either way: cold boots are never equally long.
BOOT_JITTER = 0.1
# vLLM's switch for the endpoints that only developers and benchmarks should have.
DEV_MODE = "VLLM_SERVER_DEV_MODE"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the command line decides."""

    settings: Settings
    host: str
    port: int
    model: str
    served_name: str
    seed: int
    speed_sd: float
    time_scale: float
    boot_ns: int
    method: str | None = None  # of speculation, for the boot log
    explicit_backend: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)  # arguments as given, for the boot log
    truth: Path | None = None
    kv_jitter: float = 0.0  # how far the KV cache may be from its size, either way
    cached_in_usage: bool = True
    faults: Faults = NONE


def draw_boot(seed: int, speed_sd: float) -> tuple[float, float]:
    """Speed factor and boot-time factor of one boot. The speed factor is log-normal: never 0, 1 in the middle."""
    draws = random.Random(seed)
    speed = draws.lognormvariate(0.0, speed_sd) if speed_sd else 1.0
    return speed, 1.0 + BOOT_JITTER * draws.uniform(-1.0, 1.0)


def draw_kv_blocks(settings: Settings, seed: int, jitter: float) -> int:
    """Blocks of the KV cache of one boot: on unified memory it is never twice the same. Enough for one request."""
    drawn = round(settings.kv_blocks * (1.0 + jitter * random.Random(f"kv {seed}").uniform(-1.0, 1.0)))
    return max(drawn, -(-settings.max_model_len // BLOCK_TOKENS))


def run(plan: Plan, say: Any) -> int:
    """Run the engine until it is told to stop. Returns the exit code. `say` prints one line."""
    faults = plan.faults
    if faults.leave_grandchildren is not None:
        leftovers.leave_grandchildren(faults.leave_grandchildren)
    if faults.twin:
        alone = replace(plan, truth=None, seed=plan.seed + 1, faults=Faults(reuse_port=True))
        leftovers.detach(lambda: _run_once(alone, lambda line: None))
    if faults.restart_after is None:
        return _run_once(plan, say)

    def boot(number: int) -> int:
        dies = faults.restart_after if number == 0 else None
        return _run_once(replace(plan, seed=plan.seed + number, faults=replace(faults, die_after=dies)), say)

    return supervise(boot, say)


def _run_once(plan: Plan, say: Any) -> int:
    with asyncio.Runner(loop_factory=fine_event_loop) as runner:
        return runner.run(_live(plan, say, SystemClock()))


async def _live(plan: Plan, say: Any, clock: Clock) -> int:
    start_wall_ns = clock.wall_ns()
    faults = plan.faults
    speed, boot_factor = draw_boot(plan.seed, plan.speed_sd)
    blocks = draw_kv_blocks(plan.settings, plan.seed, plan.kv_jitter) if plan.kv_jitter else plan.settings.kv_blocks
    settings = replace(plan.settings, scale=speed * plan.time_scale, kv_blocks=blocks)

    def print_line(line: Line) -> None:
        say(bootlines.prefixed(line.text, line.process, os.getpid()))

    say(bootlines.first_line(tool_version(), plan.seed, speed, plan.time_scale))
    _heed_signals(plan)
    # The loop's own task is cancelled by a signal; everything below ends by that.
    try:
        with _bound_socket(plan.host, plan.port, reuse_port=faults.reuse_port or faults.twin) as listener:
            if faults.spawn_child:
                say(f"(helper process pid={leftovers.spawn_helper()})")
            await _boot(plan, settings, round(plan.boot_ns * boot_factor), print_line, clock)
            if faults.hang_in_boot == SILENT:
                await asyncio.Event().wait()
            await _serve(plan, settings, listener, start_wall_ns / 1e9, print_line, clock)
    except asyncio.CancelledError:
        for line in bootlines.shutdown_lines(clock.wall_ns()):
            print_line(line)
    return 0


def _heed_signals(plan: Plan) -> None:
    loop = asyncio.get_running_loop()
    living = asyncio.current_task()
    assert living is not None
    loop.add_signal_handler(signal.SIGINT, living.cancel)
    if plan.faults.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, living.cancel)


def _bound_socket(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A socket that has the port and does not listen: connections to it are refused. Raises EngineFailed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio sets TCP_NODELAY only where it can see that a socket is TCP. Without it every
    # small piece waits for the client's delayed acknowledgement, and the first token comes 40 ms late.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:  # older vLLM: a second server may take the same port, and each gets a part of the connections
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise EngineFailed(
            f"{host}:{port} cannot be bound ({error.strerror})", "Choose another --host or --port."
        ) from None
    return listener


async def _boot(plan: Plan, settings: Settings, boot_ns: int, print_line: Any, clock: Clock) -> None:
    """Print the boot log over the boot time, as far as this boot comes. May end the process."""
    faults = plan.faults
    graph = None
    if faults.compile_cache is not None and not settings.enforce_eager:
        graph = cached_graph(Path(faults.compile_cache), settings)
    compiled = graph.exists() if graph is not None else None
    if compiled is False:
        boot_ns *= COLD_TIMES
    start_ns = clock.now_ns()
    lines = bootlines.boot_lines(
        given=plan.given,
        settings=settings,
        model=plan.model,
        served_name=plan.served_name,
        method=plan.method,
        explicit_backend=plan.explicit_backend,
        boot_ns=boot_ns,
        wall_ns=clock.wall_ns(),
        compiled=compiled,
        dev_mode=dev_mode(),
    )
    stuck = faults.die_in_boot is not None or faults.hang_in_boot is not None
    flooded = False
    for line in lines:
        if line.share > STUCK_AT_SHARE:
            if faults.flood_mib and not flooded:
                flooded = True
                await flood(faults.flood_mib * MIB // 2, plan.seed, ends=True, hurried=True)
            if stuck:
                break
        await clock.sleep_until_ns(start_ns + round(line.share * boot_ns))
        print_line(line)
    if faults.die_in_boot is not None:
        for line in bootlines.failed_boot_lines(clock.wall_ns(), out_of_memory=faults.die_in_boot.out_of_memory):
            print_line(line)
        faults.die_in_boot.die()
    if graph is not None and not compiled:
        keep_graph(graph)


def dev_mode() -> bool:
    """The development endpoints are wanted, as vLLM reads it."""
    return os.environ.get(DEV_MODE, "0").strip() not in ("", "0")


async def _serve(
    plan: Plan, settings: Settings, listener: socket.socket, start_s: float, print_line: Any, clock: Clock
) -> None:
    """Serve until cancelled."""
    engine = EngineServer(
        Machine(settings),
        model=plan.model,
        served_name=plan.served_name,
        clock=clock,
        start_s=start_s,
        truth=plan.truth,
        faults=plan.faults,
        dev_mode=dev_mode(),
        cached_in_usage=plan.cached_in_usage,
        say=print_line,
    )
    server = await asyncio.get_running_loop().create_server(engine.connect, sock=listener)
    host, port = listener.getsockname()[:2]
    if plan.faults.hang_in_boot is None:
        for line in bootlines.ready_lines(host, port, clock.wall_ns()):
            print_line(line)
    rest = plan.faults.flood_mib * MIB // 2
    flooding = asyncio.ensure_future(flood(rest, plan.seed + 1, ends=False, hurried=False)) if rest else None
    # What the imports left behind is never garbage: a collection must not walk it in the middle of a step.
    gc.freeze()
    try:
        await engine.run()
    finally:
        if flooding is not None:
            flooding.cancel()
        server.close()
        for connection in tuple(engine.connections):
            connection.abort()
