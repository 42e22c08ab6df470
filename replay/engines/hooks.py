"""The launcher `command`: the user's own commands start and stop the engine, wherever it is, as by systemd or ssh.

`start` returns when the engine is told to start, `stop` when it is told to stop, `alive` exits with 0 from the end of
`start` on for as long as it lives, and `logs` prints its output until it is stopped. They are argv, not lines of a
shell. What they say themselves goes to hooks.log beside the engine's log.

Nothing but the hooks themselves is ever signalled: whose the engine's processes are is the user's business. That it is
gone is proved by its port, and by `alive` where there is one.
"""

import asyncio
import contextlib
import os
import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

import psutil

from profiles.errors import EngineFailed
from profiles.experiment_file import Hooks
from profiles.files import FILE_MODE
from profiles.units import SECOND_NS, format_duration
from replay.clock import Clock
from replay.engines import ports
from replay.engines.commands import Called, Caller, call
from replay.engines.contract import Launch, Stopped, prove_free, tail, to_the_end
from replay.engines.external import reaches
from replay.engines.family import MARKER
from replay.engines.follower import end_follower, follow
from replay.engines.hook_leftover import ALIVE_LIMIT_NS, STOP_EXTRA_NS, prove_gone
from replay.engines.proc_stat import host_boot, read_stat, start_now

HOOKS_LOG: Final = "hooks.log"
# Long enough for a hook that waits for the engine itself.
START_LIMIT_NS: Final = 1200 * SECOND_NS
ALIVE_EVERY_NS: Final = 2 * SECOND_NS


def fill_hook(hook: Sequence[str], launch: Launch, bind: str, since_s: int = 0) -> list[str]:
    """A hook's argv with its placeholders filled in.

    `{args}` alone is replaced by the words of the arm's argv; inside a word by these words quoted for a shell, for ssh
    hands one line to a shell at the other end. `{since}` is the start in seconds since 1970, for `journalctl --since`.
    """
    values = {
        "{host}": launch.host,
        "{port}": str(launch.port),
        "{bind}": bind,
        "{model}": launch.model,
        "{arm}": launch.arm,
        "{log}": str(launch.log.absolute()),
        "{since}": f"@{since_s}",
        "{args}": shlex.join(launch.argv),
    }
    filled: list[str] = []
    for word in hook:
        if word == "{args}":
            filled += launch.argv
            continue
        for name, value in values.items():
            word = word.replace(name, value)
        filled.append(word)
    return filled


class HookedEngine:
    """An engine that hooks start and stop. Make it with `launch`; always `stop` it."""

    kind: ClassVar[str] = "command"
    cold: ClassVar[bool] = True
    exit_code: ClassVar[None] = None  # nobody tells it
    cause: str | None = None

    def __init__(self, launch: Launch, hooks: Hooks, clock: Clock) -> None:
        self.log = launch.log
        self.host = launch.host
        self.port = launch.port
        self.spawned_ns = clock.now_ns()
        self.lives = True
        self._launch = launch
        self._hooks = hooks
        self._clock = clock
        self._since_s = clock.wall_ns() // SECOND_NS
        self._env = {**os.environ, **launch.env}
        self._logs: asyncio.subprocess.Process | None = None
        self._followers: list[Caller] = []
        self._caller: Caller | None = None  # the hook `start`, while it runs
        # Of what prints the log, and of nothing else: what `start` starts is not ours to signal.
        self._marker = f"{launch.run_id}/{launch.boot_name}/logs"
        self._started = start_now()
        self._watcher: asyncio.Future[None] | None = None

    @classmethod
    async def launch(cls, launch: Launch, clock: Clock) -> "HookedEngine":
        """Run `start`. Raises EngineFailed if it does not end with 0; then `stop` was run, too."""
        assert launch.hooks is not None  # the rule was checked
        prove_free(launch.host, launch.port)
        engine = cls(launch, launch.hooks, clock)
        engine._tell()
        try:
            await engine._start()
        except (EngineFailed, asyncio.CancelledError):
            await to_the_end(engine._take_back())
            raise
        return engine

    async def _start(self) -> None:
        self.log.touch(mode=FILE_MODE)
        self.spawned_ns = self._clock.now_ns()
        await self._follow()
        await self._call("start", self._hooks.start, START_LIMIT_NS, must=True)
        self._caller = None
        self._tell()
        if self._logs is not None and self._logs.returncode is not None:
            await self._follow()  # what it follows was not there before
        if self._hooks.alive:
            self._watcher = asyncio.ensure_future(self._watch(self._says_alive, after_first=False))
        else:
            self._watcher = asyncio.ensure_future(self._watch(self._accepts, after_first=True))

    async def _take_back(self) -> None:
        with contextlib.suppress(EngineFailed):
            await self._call("stop", self._hooks.stop, START_LIMIT_NS, must=False)
        await self._end_logs()

    async def _call(self, name: str, hook: Sequence[str], limit_ns: int, *, must: bool) -> Called:
        """Run a hook. With `must` anything but exit code 0 is EngineFailed."""
        argv = fill_hook(hook, self._launch, self.host, self._since_s)
        said = self.log.parent / HOOKS_LOG
        try:
            began = self._note_caller if name == "start" else None
            called = await call(argv, env=self._env, cwd=self._launch.cwd, limit_ns=limit_ns, output=said, began=began)
        except OSError as error:
            raise EngineFailed(
                f"cannot run the hook {name} ({argv[0]}): {error.strerror}", diagnosis="hook_failed"
            ) from None
        if must and called.code != 0:
            how = (
                "exit code " + str(called.code) if called.code is not None else f"cut after {format_duration(limit_ns)}"
            )
            lines = tail(said)
            last = f'; it said: "{lines[-1].strip()[:200]}"' if lines else ""
            raise EngineFailed(
                f"the hook {name} failed ({how}){last} ({said})",
                f"It was run as: {shlex.join(argv)[:500]}",
                tail(self.log) or lines,
                diagnosis="hook_failed",
            )
        return called

    async def _follow(self) -> None:
        if not self._hooks.logs:
            return
        argv = fill_hook(self._hooks.logs, self._launch, self.host, self._since_s)
        env = {**self._env, MARKER: self._marker}
        try:
            self._logs = await follow(argv, log=self.log, env=env, cwd=self._launch.cwd)
        except OSError as error:
            raise EngineFailed(
                f"cannot run the hook logs ({argv[0]}): {error.strerror}", diagnosis="hook_failed"
            ) from None
        if (stat := read_stat(self._logs.pid)) is not None:
            self._followers.append((self._logs.pid, stat.started))
        self._tell()

    async def _end_logs(self) -> None:
        if self._logs is not None:
            await end_follower(self._logs)

    def _tell(self) -> None:
        if self._launch.remember is not None:
            self._launch.remember(self.identity())

    def _note_caller(self, caller: Caller) -> None:
        self._caller = caller
        self._tell()

    async def _says_alive(self) -> bool:
        return (await self._call("alive", self._hooks.alive, ALIVE_LIMIT_NS, must=False)).code == 0

    async def _accepts(self) -> bool:
        return await asyncio.to_thread(reaches, self.host, self.port)

    async def _watch(self, asks: Callable[[], Awaitable[bool]], *, after_first: bool) -> None:
        """Two times no in a row mean that it is gone; a port counts only once it has accepted."""
        counts, refused = not after_first, 0
        while refused < 2:
            await self._clock.sleep_until_ns(self._clock.now_ns() + ALIVE_EVERY_NS)
            with contextlib.suppress(EngineFailed):
                said = await asks()
                counts = counts or said
                refused = 0 if said or not counts else refused + 1
        self.cause = "`alive` says so" if self._hooks.alive else "its port refuses"
        self.lives = False

    @property
    def base_url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def processes_seen(self) -> int:
        return 0

    def identity(self) -> dict[str, Any]:
        """What a later run needs to call `stop`. No environment: a hook of a later run gets ours and the arm's anew."""
        launch = self._launch
        return {
            "launcher": self.kind,
            "boot": launch.boot_name,
            "run": launch.run_id,
            "host": self.host,
            "port": self.port,
            "cwd": str(launch.cwd.absolute()),
            "stop": fill_hook(self._hooks.stop, launch, self.host, self._since_s),
            "alive": fill_hook(self._hooks.alive, launch, self.host, self._since_s),
            "hooks_log": str((self.log.parent / HOOKS_LOG).absolute()),
            "host_boot": host_boot(),
            "calling": list(self._caller) if self._caller is not None else None,
            "marker": self._marker,
            "since": self._started,
            "members": [list(follower) for follower in self._followers],
        }

    def members(self) -> list[psutil.Process]:
        """The process that listens and what descends from it, where it is on this host and may be seen."""
        owner = self.owner()
        if owner is None:
            return []
        try:
            process = psutil.Process(owner[0])
            return [process, *process.children(recursive=True)]
        except psutil.Error:
            return []

    def owner(self) -> tuple[int, float] | None:
        found = ports.listeners(self.port)
        if not found:
            return None
        pid, _ = ports.listening_pid(found, psutil.pids())
        stat = read_stat(pid) if pid is not None else None
        return (pid, stat.started) if pid is not None and stat is not None else None

    def owns_port(self) -> bool | None:
        """Nobody can say: the port was free before `start`."""
        return None

    def strangers(self) -> list[str]:
        """More than one listener that could be reached there: which of them is the engine's cannot be told."""
        found = ports.listeners(self.port) or []
        return [ports.describe(item) for item in found] if len({(i.address, i.uid) for i in found}) < len(found) else []

    def twins(self) -> list[str]:
        return []

    def log_tail(self) -> tuple[str, ...]:
        """The last lines of its log; of what the hooks said where it has none."""
        return tail(self.log) or tail(self.log.parent / HOOKS_LOG)

    async def stop(self, patience_ns: int) -> Stopped:
        """Run `stop` and prove that the engine is gone. Raises EngineFailed."""
        died = not self.lives
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        called = await self._call("stop", self._hooks.stop, patience_ns + STOP_EXTRA_NS, must=False)
        try:
            await prove_gone(
                self.host, self.port, self._says_alive if self._hooks.alive else None, called, patience_ns, self._clock
            )
        finally:
            await self._end_logs()
        self.lives = False
        seen = f"{self.host}:{self.port} refuses" + (" and `alive` says that it is gone" if self._hooks.alive else "")
        return Stopped("died" if died else "term", None, self._clock.now_ns(), seen)


async def wipe(launch: Launch, clock: Clock) -> None:
    """Run the hook that empties the engine's own caches. Raises EngineFailed."""
    if launch.hooks is not None and launch.hooks.wipe:
        await HookedEngine(launch, launch.hooks, clock)._call("wipe", launch.hooks.wipe, START_LIMIT_NS, must=True)
