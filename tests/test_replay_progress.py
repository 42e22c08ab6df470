"""What a person sees of a run: lines that fit, and the log of a boot that failed once."""

import io

import pytest
from rich.console import Console

from firsttoken import _say
from profiles.terminal import columns, fold
from profiles.units import SECOND_NS
from replay.progress import Progress, without_log

REASON = (
    'the engine died while it served (exit code 1); its log says: "(EngineCore pid=27453) ERROR 12-01 04:35:32 '
    '[core.py:1120] EngineCore encountered a fatal error." (/srv/runs/2026-12/spark/boots/01-02-v1/engine.log)'
)


class StandingClock:
    """An instant that a test moves."""

    def __init__(self) -> None:
        self.instant_ns = 0

    def now_ns(self) -> int:
        return self.instant_ns

    def wall_ns(self) -> int:
        return self.instant_ns

    async def sleep_until_ns(self, instant_ns: int) -> None:
        self.instant_ns = instant_ns


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def failing_run(stream: io.StringIO) -> None:
    clock = StandingClock()
    place = {"arm": "v1", "block": 1, "slot": 2}
    with Progress(0, clock, stream) as progress:
        progress.note("boots_left", left=7)
        progress.note("boot_started", **place, folder="01-02-v1")
        clock.instant_ns = 4 * SECOND_NS
        progress.note("boot_failed", **place, reason=REASON)
        progress.note("arm_dropped", arm="v1", reason=REASON)


def test_lines_of_progress_fit_into_80_columns_and_name_the_log_once() -> None:
    stream = io.StringIO()
    failing_run(stream)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("[1/7] block 1 v1: failed in 4.00 s: the engine died while it served")
    assert [line[:2] for line in lines[1:-1]] == ["  "] * (len(lines) - 2)
    whole = " ".join(stream.getvalue().split())
    assert whole.count("engine.log") == 1
    assert 'a fatal error."; log: boots/01-02-v1/engine.log v1: dropped' in whole


def test_on_a_terminal_lines_are_as_wide_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.progress.columns", lambda stream: 60)
    monkeypatch.setattr("rich.console.Console", lambda **more: Console(**more, width=60, force_terminal=False))
    stream = Terminal()
    failing_run(stream)
    lines = [line for line in stream.getvalue().splitlines() if line.strip()]
    assert max(map(len, lines)) <= 60
    assert any(line.endswith("boots/01-02-v1/engine.log") for line in lines)


def test_a_boot_that_was_discarded_names_no_log() -> None:
    stream = io.StringIO()
    progress = Progress(0, StandingClock(), stream)
    progress.note("boot_started", arm="v1", block=1, slot=1, folder="01-01-v1")
    progress.note("boot_discarded", arm="v1", block=1, slot=1, reason="foreign_load: others used more than 1 core")
    assert "engine.log" not in stream.getvalue()


def test_the_path_of_a_log_goes_and_the_rest_of_a_reason_stays() -> None:
    assert without_log(REASON).endswith('a fatal error."')
    assert without_log("nothing listens on h:1 (log: /a b/engine.log)") == "nothing listens on h:1"
    assert without_log("it died (exit code 3)") == "it died (exit code 3)"


def test_a_line_is_folded_between_words_and_goes_on_two_columns_deeper() -> None:
    assert fold("  one two three", 10) == "  one two\n    three"
    assert fold("a /long/path/that/does/not/fit b", 12) == "a\n  /long/path/that/does/not/fit\n  b"
    assert fold("one\n\n  two-three-four", 9) == "one\n\n  two-three-four"


def test_a_stream_that_is_no_terminal_has_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.get_terminal_size", lambda _: (_ for _ in ()).throw(OSError))
    assert [columns(io.StringIO()), columns(Terminal())] == [80, 80]

    class Wide(Terminal):
        def fileno(self) -> int:
            return 2

    class Size:
        columns = 132

    monkeypatch.setattr("os.get_terminal_size", lambda _: Size)
    assert columns(Wide()) == 132
    Size.columns = 10
    assert columns(Wide()) == 40


@pytest.mark.parametrize("terminal", [True, False])
def test_an_error_is_folded_to_a_terminal_and_left_whole_for_a_script(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    _say(f"firsttoken: {REASON}\n  Look into its log.")
    lines = stream.getvalue().splitlines()
    assert lines[-1] == "  Look into its log."
    assert (len(lines) == 2) is not terminal
    assert (max(map(len, lines)) <= 80) is terminal
