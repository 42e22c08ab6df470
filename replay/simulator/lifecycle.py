"""The process: bind, boot, listen, serve, stop.

As in vLLM the socket is bound first and listens only after the boot: until then every connection is refused, so the
first answer of /health means that the engine is ready. SIGTERM and SIGINT stop it at once, whatever is in flight, with
exit code 0.
"""

import asyncio
import gc
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from profiles.errors import EngineFailed
from profiles.files import tool_version
from replay.clock import Clock, SystemClock, fine_event_loop
from replay.simulator import bootlines
from replay.simulator.bootlines import Line
from replay.simulator.server import EngineServer
from replay.simulator.steps import Machine, Settings

# How far a boot may be from its boot time, either way: cold boots are never equally long.
BOOT_JITTER = 0.1
# The helper of `--spawn-child` ends by itself, so that a forgotten one does not stay for ever.
_CHILD = "import time; time.sleep(600)"


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
    die_in_boot: int | None = None
    die_after: int | None = None
    ignore_sigterm: bool = False
    spawn_child: bool = False


def draw_boot(seed: int, speed_sd: float) -> tuple[float, float]:
    """Speed factor and boot-time factor of one boot. The speed factor is log-normal: never 0, 1 in the middle."""
    draws = random.Random(seed)
    speed = draws.lognormvariate(0.0, speed_sd) if speed_sd else 1.0
    return speed, 1.0 + BOOT_JITTER * draws.uniform(-1.0, 1.0)


def run(plan: Plan, say: Any) -> int:
    """Run the engine until it is told to stop. Returns the exit code. `say` prints one line."""
    with asyncio.Runner(loop_factory=fine_event_loop) as runner:
        return runner.run(_live(plan, say, SystemClock()))


async def _live(plan: Plan, say: Any, clock: Clock) -> int:
    start_wall_ns = clock.wall_ns()
    speed, boot_factor = draw_boot(plan.seed, plan.speed_sd)
    settings = replace(plan.settings, scale=speed * plan.time_scale)

    def print_line(line: Line) -> None:
        say(bootlines.prefixed(line.text, line.process, os.getpid()))

    say(bootlines.first_line(tool_version(), plan.seed, speed, plan.time_scale))
    _heed_signals(plan)
    # The loop's own task is cancelled by a signal; everything below ends by that.
    try:
        with _bound_socket(plan.host, plan.port) as listener:
            if plan.spawn_child:
                say(f"(helper process pid={_spawn_helper()})")
            boot_ns = round(plan.boot_ns * boot_factor)
            if not await _boot(plan, settings, boot_ns, print_line, clock):
                return plan.die_in_boot or 1
            await _serve(plan, settings, listener, start_wall_ns / 1e9, print_line, clock)
    except asyncio.CancelledError:
        for line in bootlines.shutdown_lines(clock.wall_ns()):
            print_line(line)
    return 0


def _spawn_helper() -> int:
    """A child in our process group, which nobody stops. Returns its pid."""
    null = subprocess.DEVNULL  # it must not hold the pipe that somebody reads our log from
    return subprocess.Popen([sys.executable, "-c", _CHILD], stdin=null, stdout=null, stderr=null).pid


def _heed_signals(plan: Plan) -> None:
    loop = asyncio.get_running_loop()
    living = asyncio.current_task()
    assert living is not None
    loop.add_signal_handler(signal.SIGINT, living.cancel)
    if plan.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, living.cancel)


def _bound_socket(host: str, port: int) -> socket.socket:
    """A socket that has the port and does not listen: connections to it are refused. Raises EngineFailed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio sets TCP_NODELAY only where it can see that a socket is TCP. Without it every
    # small piece waits for the client's delayed acknowledgement, and the first token comes 40 ms late.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise EngineFailed(
            f"{host}:{port} cannot be bound ({error.strerror})", "Choose another --host or --port."
        ) from None
    return listener


async def _boot(plan: Plan, settings: Settings, boot_ns: int, print_line: Any, clock: Clock) -> bool:
    """Print the boot log over the boot time. False when this boot has to die."""
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
    )
    failing = bootlines.failed_boot_lines(clock.wall_ns())
    for line in lines:
        if plan.die_in_boot is not None and line.share > failing[0].share:
            for last in failing:
                print_line(last)
            return False
        await clock.sleep_until_ns(start_ns + round(line.share * boot_ns))
        print_line(line)
    return True


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
        die_after=plan.die_after,
        say=print_line,
    )
    server = await asyncio.get_running_loop().create_server(engine.connect, sock=listener)
    host, port = listener.getsockname()[:2]
    for line in bootlines.ready_lines(host, port, clock.wall_ns()):
        print_line(line)
    # What the imports left behind is never garbage: a collection must not walk it in the middle of a step.
    gc.freeze()
    try:
        await engine.run()
    finally:
        server.close()
        for connection in tuple(engine.connections):
            connection.abort()
