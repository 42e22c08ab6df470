"""What the GPUs do now, as their own tool says it: clocks, power, temperature, load, what slows them, who uses them.

Sources are functions, one per kind of hardware; today there is one, `nvidia-smi`. A tool that is absent gives no GPUs,
a sensor that is absent (a GB10 has none of its own for memory) gives None. Nothing here raises for what a tool does.

While a boot lives a `Feed` keeps one `nvidia-smi` printing and looks at what it has printed. Starting the tool anew for
each sample costs six times as much CPU (28 ms against 5 ms on an H200) and a fork of this process. A feed is read from
a thread, never waits, and ends with SIGKILL: on SIGTERM the tool first sleeps its interval to the end. If this process
is killed the kernel ends the tool: one that has nothing to print, as no program is on a GPU any more, would never hear
of it by SIGPIPE.
"""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replay.tie import tied

TOOL = "nvidia-smi"
# Asked one after another until one is understood: drivers before 535 know only the older name.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active", None)
QUERY = ("index", "clocks.sm", "clocks.max.sm", "power.draw", "temperature.gpu", "utilization.gpu", "memory.used")
APPS = ("pid", "name")
# Bits of nvmlClocksEventReasons.
REASON_NAMES = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
_MASK = re.compile(r"0x[0-9a-fA-F]{1,16}")
# Restarts of a tool that dies: it may be updated while we run, but is not to be started for ever.
MOST_STARTS = 3
# A driver that hangs does not come back, and its caller in the kernel cannot be killed.
PATIENCE_S = 5.0
MIB = 1024**2


def parse_gpu(line: str) -> dict[str, Any] | None:
    """One line of `nvidia-smi --query-gpu=QUERY,REASONS --format=csv,noheader,nounits`; None for what is no such line.

    Keys: index, clock_mhz, clock_max_mhz, power_w, temperature_c, utilisation (0..1), memory_used_bytes, and throttle
    (names of REASON_NAMES, [] for none). What the tool does not know ([N/A], [Not Supported], ...) is None.
    """
    parts = [part.strip() for part in line.split(",")]
    if len(parts) not in (len(QUERY), len(QUERY) + 1) or not (parts[0].isascii() and parts[0].isdigit()):
        return None
    clock, most, power, temperature, utilisation, memory = map(_number, parts[1:7])
    return {
        "index": int(parts[0]),
        "clock_mhz": clock,
        "clock_max_mhz": most,
        "power_w": power,
        "temperature_c": temperature,
        "utilisation": None if utilisation is None else utilisation / 100,
        "memory_used_bytes": None if memory is None else round(memory * MIB),
        "throttle": parse_reasons(parts[7]) if len(parts) > len(QUERY) else None,
    }


def parse_reasons(text: str) -> list[str] | None:
    """Names of the bits of a mask such as 0x0000000000000044; None where it is not known."""
    if _MASK.fullmatch(text) is None:
        return None
    mask = int(text, 16)
    return [REASON_NAMES.get(1 << bit, f"bit_{bit}") for bit in range(mask.bit_length()) if mask >> bit & 1]


def parse_app(line: str) -> tuple[int, str] | None:
    """One line of `--query-compute-apps=APPS`: pid and program. A path may hold commas."""
    pid, comma, name = line.partition(",")
    pid = pid.strip()
    return (int(pid), Path(name.strip()).name) if comma and pid.isascii() and pid.isdigit() else None


def _number(text: str) -> float | None:
    """A plain decimal number that is not negative, else None."""
    plain = text.isascii() and text.replace(".", "", 1).isdigit()
    return float(text) if plain else None


def argv_gpus(tool: str, reasons: str | None) -> list[str]:
    fields = ",".join((*QUERY, reasons) if reasons else QUERY)
    return [tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]


def argv_apps(tool: str) -> list[str]:
    return [tool, f"--query-compute-apps={','.join(APPS)}", "--format=csv,noheader,nounits"]


def read_gpus(tool: str = TOOL) -> list[dict[str, Any]]:
    """All GPUs now, by one call of the tool; [] without one. It may take a second: call it in a thread."""
    for reasons in REASONS:
        found = [gpu for line in _output(argv_gpus(tool, reasons)) if (gpu := parse_gpu(line)) is not None]
        if found:
            return found
    return []


def memory_used(gpus: Sequence[dict[str, Any]]) -> dict[int, int]:
    """Bytes in use on each of these that has memory of its own, by its index."""
    return {gpu["index"]: gpu["memory_used_bytes"] for gpu in gpus if gpu["memory_used_bytes"] is not None}


def gpu_memory_used(tool: str = TOOL) -> dict[int, int]:
    """The same of all GPUs now. Call it in a thread."""
    return memory_used(read_gpus(tool))


def read_gpu_processes(tool: str = TOOL, gpus: Sequence[dict[str, Any]] | None = None) -> list[tuple[int, str]] | None:
    """Pid and program of every compute process on any GPU; None without a tool or a GPU. Call it in a thread.

    `gpus` is what `read_gpus` has just said, where it was asked already.
    """
    if not (read_gpus(tool) if gpus is None else gpus):
        return None
    return [app for line in _output(argv_apps(tool)) if (app := parse_app(line)) is not None]


def _output(argv: Sequence[str]) -> list[str]:
    process = _start(argv)
    if process is None:
        return []
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        _end(process)
        return []
    return said.decode("utf-8", "replace").splitlines()


def _start(argv: Sequence[str]) -> subprocess.Popen[bytes] | None:
    if shutil.which(argv[0]) is None:
        return None
    try:
        return subprocess.Popen(
            tied(argv, "KILL", any_thread=True),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},  # a point in its numbers
            # Ctrl-C is for us. The session stays ours: a child of ours in another one is an orphan of an engine.
            process_group=0,
        )
    except OSError:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    if process.stdout is not None:
        process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)


class Feed[T]:
    """The lines of a tool that goes on printing, parsed. `read` never waits; always `close` it."""

    def __init__(self, choices: Sequence[Sequence[str]], parse: Callable[[str], T | None]) -> None:
        """`choices` are command lines for the same thing; the first one that prints a line that parses is kept."""
        self._choices = list(choices)
        self._parse = parse
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._rest = b""
        self._spoke = False

    def read(self) -> list[T]:
        """What was printed since the last call. Starts the tool if it does not run."""
        if self._process is None and not self._restart():
            return []
        assert self._process is not None
        assert self._process.stdout is not None
        ended = False
        try:
            # Bounded: a tool gone mad must not hold the thread.
            for _ in range(64):
                piece = os.read(self._process.stdout.fileno(), 65536)
                if not piece:
                    ended = True
                    break
                self._rest += piece
        except BlockingIOError:
            pass
        *lines, self._rest = self._rest.split(b"\n")
        self._rest = self._rest[-65536:]
        parsed = (self._parse(line.decode("utf-8", "replace")) for line in lines)
        found = [item for item in parsed if item is not None]
        self._spoke = self._spoke or bool(found)
        if ended:
            self.close()
            if not self._spoke:
                del self._choices[0]
        return found

    def close(self) -> None:
        """Stop the tool."""
        process, self._process, self._rest = self._process, None, b""
        if process is not None:
            _end(process)

    def _restart(self) -> bool:
        if not self._choices or self._starts >= MOST_STARTS:
            return False
        self._starts += 1
        self._process = _start(self._choices[0])
        if self._process is None or self._process.stdout is None:
            self._choices.clear()
            return False
        os.set_blocking(self._process.stdout.fileno(), False)
        return True


def gpu_feed(tool: str = TOOL) -> Feed[dict[str, Any]]:
    """Every GPU once a second."""
    return Feed([[*argv_gpus(tool, reasons), "-lms", "1000"] for reasons in REASONS], parse_gpu)


def app_feed(tool: str = TOOL) -> Feed[tuple[int, str]]:
    """Every compute process each five seconds. It prints nothing where there is none."""
    return Feed([[*argv_apps(tool), "-lms", "5000"]], parse_app)
