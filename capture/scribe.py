"""The process that writes the capture: `python -m capture.scribe PIPE MEMORY`, started by `session`.

It reads frames from the pipe until its other end is closed, and turns them into lines: it reads request bodies,
parses event streams, redacts, writes, counts and shows. All of it may be slow or fail without any effect on traffic,
which another process carries. It ignores the signals that stop the proxy: what is in the pipe is still to be written.
"""

import fcntl
import mmap
import os
import signal
import sys
import termios
import time
from array import array
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from capture import frames
from capture.block_key import open_key
from capture.frames import BOOKED, Answer, Arrival, Ending, Frame, FrameReader, Opening, Pulse, Story
from capture.live import Live
from capture.metrics_page import MetricsPage, serve
from capture.outbox import BEHIND, FAULT, UNANNOUNCED
from capture.redact import Redactor, chain_of, needs_key
from capture.settings import Settings
from capture.status import StatusLine, summary
from capture.window import Window
from profiles.captures import StartLine, end_line, request_line
from profiles.errors import FirsttokenError, UsageError
from profiles.files import encode
from profiles.records import CANCELLED_BY_CLIENT, OK, Exchange, KeyedAnswer, ResponseFacts, outcome_of
from profiles.stream import ResponseReader
from profiles.units import MILLISECOND_NS, SECOND_NS

TOO_LARGE = "too large to be read"
METHOD = "POST"  # of every request that is recorded

READ_BYTES = 1024 * 1024
PAUSE_NS = 20 * MILLISECOND_NS
# Traffic comes first where cores are few.
NICE = 10


class _Stay:
    """A request between its arrival and its end."""

    __slots__ = ("answer", "arrival", "chain", "dispatch_ns", "fault", "reader")

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.dispatch_ns: int | None = None
        self.chain: str | None = None  # of its messages, where ids of its answer are to be kept
        self.answer: Answer | None = None
        self.reader: ResponseReader | None = None
        self.fault: str | None = None


class Scribe:
    """Takes frames in order. A fault over one of them costs that request its facts, never the next one."""

    def __init__(self, settings: Settings, window: Window, redactor: Redactor) -> None:
        self.ended = 0  # ends that were taken
        self.clean = False  # the proxy said that it stops
        self._prefix = settings.prefix
        self._window = window
        self._redactor = redactor
        self._stays: dict[int, _Stay] = {}
        self.live = Live()
        self.line = StatusLine(sys.stderr, quiet=settings.quiet)
        self.behind_bytes: Callable[[], int] = lambda: 0
        self._dropped_told: Counter[str] = Counter()
        self._takes: dict[int, Callable[[Frame], None]] = {
            frames.OPEN: self._open,
            frames.STORY: self._hear,
            frames.ASKED: self._ask_large,
            frames.BEAT: self._beat,
            frames.CLOSE: self._close,
        }

    def take(self, frame: Frame) -> None:
        """Do what a frame says."""
        try:
            self._takes[frame.kind](frame)
        except Exception as problem:
            self._fault_of(problem)

    def _hear(self, frame: Frame) -> None:
        """A story, part by part: a fault over one part costs that part."""
        story = _told(frame, Story)
        number = frame.number
        if story.arrival is not None:
            self._start(number, story.arrival)
        stay = self._stays.get(number)
        if stay is not None:
            try:
                if story.asked is not None:
                    self._ask(number, stay, story.asked)
                if story.answer is not None:
                    stay.answer = answer = story.answer
                    stay.reader = ResponseReader(
                        answer.content_type, answer.content_encoding, keep_answer=stay.chain is not None
                    )
                if stay.reader is not None:
                    for at_ns, data in zip(story.times_ns, story.pieces, strict=True):
                        stay.reader.feed(data, at_ns)
            except Exception as problem:
                stay.fault = self._fault_of(problem)
                stay.reader = None
        if story.ending is not None:
            self._end(number, stay, story.ending)

    def _fault_of(self, problem: Exception) -> str:
        """Count a fault of ours. Its type is all that is told: its message could quote what passed."""
        self._window.errors[f"scribe: {type(problem).__name__}"] += 1
        return f"{FAULT}: {type(problem).__name__}"

    def _open(self, frame: Frame) -> None:
        told = _told(frame, Opening)
        self._window.opened(frame.at_ns, told.reason, told.listen)
        self.live.window(frame.at_ns, "open")

    def _beat(self, frame: Frame) -> None:
        pulse = _told(frame, Pulse)
        self._window.beat(frame.at_ns, pulse)
        live = self.live
        live.passed_through, live.upgrades = pulse.passed_through, pulse.upgrades
        live.behind_bytes = self.behind_bytes() + pulse.waiting_bytes
        for reason, count in (Counter(pulse.dropped) + self._window.dropped - self._dropped_told).items():
            live.dropped(reason, count)
            self._dropped_told[reason] += count
        if not pulse.in_flight:
            self._forget_lost(frame.at_ns)
        live.beat(frame.at_ns, pulse.in_flight, pulse.lag_ns)
        self.line.draw(live, frame.at_ns)

    def _forget_lost(self, at_ns: int) -> None:
        """Nobody is in flight, so whoever is still known here has lost its END on the way."""
        for stay in self._stays.values():
            self.live.left(stay.arrival.at_ns, stay.dispatch_ns, at_ns)
        self._stays.clear()

    def _close(self, frame: Frame) -> None:
        self._window.closed(frame.at_ns, _told(frame, Opening).reason)
        self.live.window(frame.at_ns, "close")
        self.clean = True

    def _id(self, number: int) -> str:
        return f"{self._prefix}-{number}"

    def _start(self, number: int, arrival: Arrival) -> None:
        self._stays[number] = _Stay(arrival)
        line = StartLine(
            id=self._id(number),
            at_ns=arrival.at_ns,
            path=arrival.path,
            in_flight=arrival.in_flight,
        )
        self._window.append(msgspec.json.encode(line))
        self.live.arrived(arrival.at_ns)

    def _ask_large(self, frame: Frame) -> None:
        stay = self._stays.get(frame.number)
        if stay is not None:
            self._ask(frame.number, stay, frames.read_asked(frame.payload))

    def _ask(self, number: int, stay: _Stay, told: frames.Asked) -> None:
        stay.dispatch_ns = told.at_ns
        self.live.dispatched(told.at_ns)
        why_none = TOO_LARGE if told.body_bytes > frames.LARGEST_BODY_BYTES else BEHIND
        asked = self._redactor.read(told.body, told.headers, why_none=why_none)
        facts = asked.facts
        stay.chain = chain_of(facts)
        if facts.body_bytes != told.body_bytes:
            facts = msgspec.structs.replace(facts, body_bytes=told.body_bytes)
        self._window.append(request_line(self._id(number), told.at_ns, facts, asked.body))

    def _end(self, number: int, stay: _Stay | None, ending: Ending) -> None:
        self.ended += 1
        self._stays.pop(number, None)
        if stay is None:  # its arrival never came through
            self._window.drop(UNANNOUNCED)
            return
        try:
            exchange = self._exchange(stay, number, ending)
            line = end_line(exchange)
        except Exception as problem:
            self._fault_of(problem)
            self._window.drop(FAULT)
            self.live.left(stay.arrival.at_ns, stay.dispatch_ns, ending.at_ns)
            return
        self.live.ended(exchange)
        self._window.end(line)

    def _exchange(self, stay: _Stay, number: int, ending: Ending) -> Exchange:
        facts = ResponseFacts(unread=ending.missing or stay.fault)
        if stay.reader is not None:
            facts = stay.reader.finish()
            if ending.missing is not None:
                facts = msgspec.structs.replace(facts, unread=ending.missing)
        status = ending.status if stay.answer is None else stay.answer.status
        outcome, origin = ending.outcome, ending.origin
        if outcome is None:
            outcome, origin = outcome_of(status, facts, body_complete=ending.body_complete)
        elif outcome == CANCELLED_BY_CLIENT and facts.done and facts.error is None and facts.output:
            outcome, origin = OK, None  # it saw the terminal event and hung up, as many do
        return Exchange(
            id=self._id(number),
            endpoint=stay.arrival.endpoint,
            method=METHOD,
            path=stay.arrival.path,
            arrival_ns=stay.arrival.at_ns,
            dispatch_ns=stay.dispatch_ns,
            headers_ns=None if stay.answer is None else stay.answer.at_ns,
            end_ns=ending.at_ns,
            status=status,
            outcome=outcome,
            origin=origin,
            reason=ending.reason,
            in_flight=stay.arrival.in_flight,
            response=facts,
            answer=self._answer(stay),
            late_ns=ending.late_ns,
        )

    def _answer(self, stay: _Stay) -> KeyedAnswer | None:
        """The ids of an answer. A fault over them costs nothing else."""
        if stay.reader is None or stay.chain is None:
            return None
        try:
            return self._redactor.read_answer(stay.reader.answer(), stay.chain)
        except Exception as problem:
            self._fault_of(problem)
            return None


def _told[Told: msgspec.Struct](frame: Frame, form: type[Told]) -> Told:
    told = frames.read_told(frame.kind, frame.payload)
    assert isinstance(told, form)
    return told


def main(arguments: list[str]) -> int:
    """Run until the pipe is closed. Says on stdout, in one line of JSON, whether it can write."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(NICE)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # it waits for its turn when it wakes up
    pipe, memory = int(arguments[0]), int(arguments[1])
    shared = mmap.mmap(memory, mmap.PAGESIZE) if memory >= 0 else None
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
    try:
        window = Window(settings)
        window.open()
        scribe = Scribe(settings, window, _redactor(settings, window.folder))
        page = _serve(scribe.live, settings)
    except FirsttokenError as problem:
        _say({"problem": problem.problem, "hint": problem.hint, "usage": isinstance(problem, UsageError)})
        return problem.exit_code
    _say({"ready": True})
    started_wall_ns = time.time_ns()
    scribe.behind_bytes = lambda: _readable_bytes(pipe)
    reader = FrameReader()
    read_at_ns = 0
    while data := os.read(pipe, READ_BYTES):
        woke_ns = time.monotonic_ns()
        for frame in reader.feed(data):
            scribe.take(frame)
        if shared is not None:
            BOOKED.pack_into(shared, 0, scribe.ended, window.written - settings.written)
        # Woken for every frame of a busy proxy, both would mostly be busy with waking up.
        if woke_ns - read_at_ns < 2 * PAUSE_NS:
            time.sleep(PAUSE_NS / SECOND_NS)
        read_at_ns = woke_ns
    window.close(clean=scribe.clean)
    if page is not None:
        page.close()
    scribe.line.clear()
    if not settings.quiet:
        with suppress(OSError, ValueError):  # stderr may be gone
            text = summary(
                scribe.live,
                window.folder,
                listen=window.listen,
                encoding=sys.stderr.encoding,
                killed=not scribe.clean,
                before=settings.written,
                since_wall_ns=started_wall_ns if settings.again else None,
            )
            sys.stderr.write(f"{text.rstrip()}\n")
            sys.stderr.flush()
    return 0


def _redactor(settings: Settings, folder: Path) -> Redactor:
    key = None
    if needs_key(settings.bodies, tenants=settings.tenants) or settings.hash_key is not None:
        key = open_key(folder, None if settings.hash_key is None else Path(settings.hash_key))
    return Redactor(settings.bodies, key, settings.sample_bodies, settings.tenants)


def _serve(live: Live, settings: Settings) -> MetricsPage | None:
    if settings.metrics_listen is None:
        return None
    host, _, port = settings.metrics_listen.rpartition(":")
    try:
        return serve(live, host.strip("[]"), int(port))
    except FirsttokenError:
        if settings.again:  # recording goes on without its page
            return None
        raise


def _readable_bytes(pipe: int) -> int:
    size = array("i", [0])
    with suppress(OSError):
        fcntl.ioctl(pipe, termios.FIONREAD, size)
    return size[0]


def _say(document: dict[str, object]) -> None:
    sys.stdout.buffer.write(encode(document) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
