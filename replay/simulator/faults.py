"""How the embedded engine misbehaves on request, as data. What it does then is in the module that owns the step.

Every fault looks as a real one does, and none is ever drawn by chance: an engine without these flags behaves.
"""

import os
import signal
from dataclasses import dataclass
from signal import Signals
from typing import Final, NoReturn

from profiles.units import parse_duration

OUT_OF_MEMORY: Final = "oom"
SILENT: Final = "silent"
# A boot that dies or hangs gets this far: the log then ends in the middle of loading.
STUCK_AT_SHARE: Final = 0.3
# By the kernel when memory is short, by a broken kernel module, by an assertion in a library.
_DEADLY: Final = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT")
# Whatever is made to outlive the engine ends by itself after this, so that a forgotten one does not stay for ever.
LEFTOVER_LIFE_S: Final = 300


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ends on purpose: with an exit code, or by a signal to itself."""

    code: int = 1
    by: Signals | None = None
    out_of_memory: bool = False  # the log says so first

    def die(self) -> NoReturn:
        """A crash: nothing is flushed, nothing says goodbye."""
        if self.by is not None:
            if self.by != signal.SIGKILL:
                signal.signal(self.by, signal.SIG_DFL)
            os.kill(os.getpid(), self.by)
        os._exit(self.code)


def read_death(text: str) -> Death:
    """An exit code from 1 to 255, the name of a signal, or `oom`. Raises ValueError in words."""
    if text == OUT_OF_MEMORY:
        return Death(1, out_of_memory=True)
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= 255:
        return Death(int(text))
    if text.upper() in _DEADLY:
        return Death(by=Signals[text.upper()])
    raise ValueError(f"{text!r} is no exit code from 1 to 255, not oom, and none of {', '.join(_DEADLY)}")


@dataclass(frozen=True, slots=True)
class EarlyReady:
    """/health and /v1/models answer 200 this long before a token can be made."""

    early_ns: int
    with_200: bool = False  # chat answers 200 with an error object, instead of 503


def read_early_ready(text: str) -> EarlyReady:
    """`2s` or `2s:error`. Raises ValueError in words."""
    duration, colon, kind = text.partition(":")
    if colon and kind != "error":
        raise ValueError(f"{text!r}: only :error may follow the duration")
    return EarlyReady(parse_duration(duration), with_200=bool(colon))


@dataclass(frozen=True, slots=True)
class Faults:
    """All that can be asked for. Counts of requests are those of chat and completions since the boot."""

    die_in_boot: Death | None = None
    hang_in_boot: str | None = None  # silent: it never listens; 503: it listens and never gets ready
    early_ready: EarlyReady | None = None
    die_after: int | None = None
    hang_after: int | None = None  # streams go silent, /health stays 200
    errors_after: int | None = None  # every further request gets a 500
    restart_after: int | None = None  # a supervisor starts the dead process again, on the same port
    ignore_sigterm: bool = False
    spawn_child: bool = False
    leave_grandchildren: str | None = None  # plain, or renamed as vLLM's workers are
    reuse_port: bool = False
    twin: bool = False
    flood_mib: int = 0
    compile_cache: str | None = None
    jit_shapes: bool = False
    ignore_cache_salt: bool = False
    break_tool_arguments: bool = False  # the end of a call's arguments is lost in a stream, and only there
    leak_reasoning: bool = False  # reasoning stands in the text, in its marks
    ignore_schema: bool = False  # what is asked for as JSON comes as text
    wrong_finish_reason: bool = False  # always stop
    drift_length: float = 1.0  # times the natural length
    nondeterministic: bool = False  # the same request gets other words each time, as many
    no_tools: bool = False  # a request with tools is refused, as vLLM does without a parser
    metrics: bool = True
    metrics_lag_ns: int = 0


NONE: Final = Faults()
