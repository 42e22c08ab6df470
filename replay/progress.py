"""What a person sees while a run goes on: one live line with an ETA on a terminal, plain lines otherwise. On stderr.

Lines are folded to the terminal. Where a boot failed, its log is named once, from the run's directory.
"""

import re
import sys
from typing import Any, Self, TextIO

from profiles.runs import BOOTS, LOG, PILOTS
from profiles.terminal import columns, fold
from profiles.units import format_duration
from replay.clock import Clock

_PATH_OF_LOG = re.compile(rf" \((?:log: )?[^()]*{re.escape(LOG)}\)")


def without_log(reason: str) -> str:
    """Why a boot failed, without the path of its log, which is named beside it."""
    return _PATH_OF_LOG.sub("", reason)


class Progress:
    """Hears of events. The ETA is the mean time of the boots that were measured to their end, times those to come: a
    boot that failed says nothing about the others, and an arm that is out has none to come."""

    def __init__(self, already: int, clock: Clock, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self.ended = already
        self._left: int | None = None
        self._measured = 0
        self._measured_ns = 0
        self._clock = clock
        self._boot_started_ns = clock.now_ns()
        self._status: Any = None
        self._said: set[str] = set()
        self._folder = ""  # of the boot that goes on, from the run's directory

    @property
    def total(self) -> int:
        """Boots that have ended and those to come."""
        return self.ended + (self._left or 0)

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console

            self._status = Console(file=self._stream).status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def note(self, event: str, **fields: Any) -> None:
        """Show an event. Unknown ones are silent."""
        now_ns = self._clock.now_ns()
        place = f"[{min(self.ended + 1, self.total)}/{self.total}] block {fields.get('block')} {fields.get('arm')}"
        if event in ("boot_not_cooled", "pilot_not_cooled"):
            self._say_once(f"engine.cool_down_c: {fields['reason']}; the boots go on without it")
        elif event in ("boot_unguarded", "pilot_unguarded"):
            self._say_once("no shell (sh) here: if firsttoken is killed with SIGKILL, engines stay until --resume")
        elif event.startswith("pilot_"):
            self._pilot(event, fields, now_ns)
        elif event == "boots_left":
            if fields["left"] == 0 and self._left is None:
                self._line("Every boot of this run is done: nothing is left to do.")
            self._left = fields["left"]
        elif event == "boot_started":
            self._boot_started_ns = now_ns
            self._folder = f"{BOOTS}/{fields.get('folder')}"
            self._live(f"{place}: booting{self._eta(0)}")
        elif event == "boot_ready":
            self._live(f"{place}: ready after {fields['seconds']:.1f} s, measuring{self._eta(0)}")
        elif event == "window_done":
            failed = f", {fields['failed']} failed" if fields["failed"] else ""
            self._live(f"{place}: {fields['window']} {fields['requests']} requests{failed}{self._eta(0)}")
        elif event in ("boot_done", "boot_failed", "boot_discarded"):
            self._boot_ended(event, place, fields, now_ns - self._boot_started_ns)
        else:
            self._say(event, fields)

    def _say(self, event: str, fields: dict[str, Any]) -> None:
        """What concerns no single boot."""
        if event == "warm_up_fixed":
            rounds = fields["rounds"]
            found = ", found by the pilot" if fields["pilot"] else ""
            self._line(f"warm-up: {rounds} round{'s' if rounds != 1 else ''} in every boot{found}")
        elif event == "leftover_stopped":
            self._line("an engine that an interrupted boot had left behind was stopped")
        elif event == "arm_dropped":
            self._line(f"{fields['arm']}: dropped, a boot of it failed: it will not be booted again")
        elif event in ("look", "look_failed", "arm_decided"):
            self._look(event, fields)

    def _boot_ended(self, event: str, place: str, fields: dict[str, Any], took_ns: int) -> None:
        if event == "boot_done":
            self._measured += 1
            self._measured_ns += took_ns
        word = event.removeprefix("boot_")
        reason = self._reason(event == "boot_failed", fields)
        ended = event != "boot_discarded"  # that one will be replaced
        eta = self._eta(1 if ended else 0)
        self._line(f"{place}: {word} in {format_duration(took_ns)}{reason}{eta}")
        if ended:
            self.ended += 1
            self._left = None if self._left is None else max(0, self._left - 1)

    def _look(self, event: str, fields: dict[str, Any]) -> None:
        if event == "look":
            found = ", ".join(f"{arm} {word}" for arm, word in fields["verdicts"].items())
            self._line(f"look after {fields['blocks']} blocks: {found}")
        elif event == "look_failed":
            self._line(f"look after {fields['blocks']} blocks failed, every arm is booted on: {fields['reason']}")
        else:
            needed = fields["needed_by"]
            on = f"booted on, {', '.join(needed)} leans on it" if needed else "not booted again"
            self._line(f"{fields['arm']}: decided, {fields['verdict']}; {on}")

    def _pilot(self, event: str, fields: dict[str, Any], now_ns: int) -> None:
        """A boot that is never measured: its time is no measure for those to come."""
        place = f"pilot boot of {fields.get('arm')}"
        if event == "pilot_started":
            self._boot_started_ns = now_ns
            self._folder = f"{PILOTS}/{fields.get('folder')}"
            self._live(f"{place}: booting")
        elif event == "pilot_ready":
            self._live(f"{place}: ready after {fields['seconds']:.1f} s, warming up")
        elif event in ("pilot_done", "pilot_failed", "pilot_discarded"):
            reason = self._reason(event == "pilot_failed", fields)
            took = format_duration(now_ns - self._boot_started_ns)
            self._line(f"{place}: {event.removeprefix('pilot_')} in {took}{reason}")

    def _reason(self, failed: bool, fields: dict[str, Any]) -> str:
        if not fields.get("reason"):
            return ""
        log = f"; log: {self._folder}/{LOG}" if failed else ""
        return f": {without_log(fields['reason'])}{log}"

    def _eta(self, ending: int) -> str:
        """What is left, `ending` boots of it aside."""
        left = (self._left or 0) - ending
        if not self._measured or left <= 0:
            return ""
        return f" ({format_duration(self._measured_ns // self._measured * left)} left)"

    def _say_once(self, text: str) -> None:
        """What holds for every boot alike, such as a sensor that is not there."""
        if text not in self._said:
            self._said.add(text)
            self._line(text)

    def _live(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)

    def _line(self, text: str) -> None:
        text = fold(text, columns(self._stream))
        if self._status is not None:
            self._status.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()
