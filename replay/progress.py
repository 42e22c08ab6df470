"""What a person sees while a run goes on: one live line with an ETA on a terminal, plain lines otherwise. On stderr."""

import sys
from typing import Any, Self, TextIO

from profiles.units import format_duration
from replay.clock import Clock


class Progress:
    """Hears of events. The ETA is the mean time of the boots so far times those to come."""

    def __init__(self, boots: int, already: int, clock: Clock, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._total = boots
        self._ended = already
        self._measured = 0
        self._clock = clock
        self._started_ns = clock.now_ns()
        self._boot_started_ns = self._started_ns
        self._status: Any = None

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
        place = f"[{min(self._ended + 1, self._total)}/{self._total}] block {fields.get('block')} {fields.get('arm')}"
        if event.startswith("pilot_"):
            self._pilot(event, fields, now_ns)
        elif event == "boot_started":
            self._boot_started_ns = now_ns
            self._live(f"{place}: booting{self._eta(now_ns)}")
        elif event == "boot_ready":
            self._live(f"{place}: ready after {fields['seconds']:.1f} s, measuring{self._eta(now_ns)}")
        elif event == "window_done":
            failed = f", {fields['failed']} failed" if fields["failed"] else ""
            self._live(f"{place}: {fields['window']} {fields['requests']} requests{failed}{self._eta(now_ns)}")
        elif event in ("boot_done", "boot_failed", "boot_discarded"):
            self._measured += 1
            took = format_duration(now_ns - self._boot_started_ns)
            word = event.removeprefix("boot_")
            reason = f": {fields['reason']}" if fields.get("reason") else ""
            if event != "boot_discarded":  # that one will be replaced
                self._ended += 1
            self._line(f"{place}: {word} in {took}{reason}{self._eta(now_ns)}")
        elif event == "warm_up_fixed":
            rounds = fields["rounds"]
            found = ", found by the pilot" if fields["pilot"] else ""
            self._line(f"warm-up: {rounds} round{'s' if rounds != 1 else ''} in every boot{found}")
        elif event == "leftover_stopped":
            self._line("an engine that an interrupted boot had left behind was stopped")
        elif event == "arm_dropped":
            self._line(f"{fields['arm']}: dropped, a boot of it failed: it will not be booted again")

    def _pilot(self, event: str, fields: dict[str, Any], now_ns: int) -> None:
        """A boot that is never measured: its time is no measure for those to come."""
        place = f"pilot boot of {fields.get('arm')}"
        if event == "pilot_started":
            self._boot_started_ns = now_ns
            self._live(f"{place}: booting")
        elif event == "pilot_ready":
            self._live(f"{place}: ready after {fields['seconds']:.1f} s, warming up")
        elif event in ("pilot_done", "pilot_failed", "pilot_discarded"):
            self._started_ns += now_ns - self._boot_started_ns
            reason = f": {fields['reason']}" if fields.get("reason") else ""
            took = format_duration(now_ns - self._boot_started_ns)
            self._line(f"{place}: {event.removeprefix('pilot_')} in {took}{reason}")

    def _eta(self, now_ns: int) -> str:
        left = self._total - self._ended
        if not self._measured or left <= 0:
            return ""
        per_boot_ns = (now_ns - self._started_ns) / max(self._measured, 1)
        return f" ({format_duration(per_boot_ns * left)} left)"

    def _live(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)

    def _line(self, text: str) -> None:
        if self._status is not None:
            self._status.console.print(text, markup=False, highlight=False)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()
