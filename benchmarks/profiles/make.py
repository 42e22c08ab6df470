"""A capture of any size: three lines a request, closed segments, one window. Seeded; the text of its lines is the form
of `profiles.captures`, which a test reads back."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from profiles.captures import RequestLine, SegmentLine, StartLine, WindowLine, end_line
from profiles.files import make_folder, write_document
from profiles.records import Exchange, RequestFacts, ResponseFacts
from profiles.units import MILLISECOND_NS, SECOND_NS

type Array = NDArray[np.int64]

RATE_PER_S = 2.0
SEGMENT_REQUESTS = 200_000
WALL_NS = 1_790_000_000 * SECOND_NS
_MARK = 987_654_321_000  # stands for an instant in a line that serves as a form


def make_capture(folder: Path, requests: int, seed: int) -> Path:
    """Write a capture of `requests` requests: in bursts, long and short, for two models, busier in some segments."""
    make_folder(folder)
    write_document(folder / "manifest.json", {"format": "firsttoken/capture", "version": 1, "bodies": "none"})
    rng = np.random.default_rng(seed)
    start_ns, taken_ns = 0, 0
    for number, first in enumerate(range(0, requests, SEGMENT_REQUESTS), start=1):
        count = min(SEGMENT_REQUESTS, requests - first)
        last = first + count == requests
        path = folder / f"segment-{number:06}.jsonl.zst"
        with path.open("wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as packed:
            pieces, start_ns, taken_ns = _segment(rng, first, count, start_ns, taken_ns, last=last)
            for piece in pieces:
                packed.write(piece)
    return folder


def _segment(
    rng: np.random.Generator, first: int, count: int, start_ns: int, taken_ns: int, *, last: bool
) -> tuple[Iterator[bytes], int, int]:
    """Lines of one segment in the order of their instants, the last arrival, and the last end."""
    hour = (start_ns / SECOND_NS / 3600) % 24
    rate = RATE_PER_S * (0.3 + 1.4 * (8 <= hour < 20))
    gaps = rng.gamma(0.6, 1 / (0.6 * rate), count)
    arrival_ns = start_ns + np.cumsum((gaps * SECOND_NS).astype(np.int64) + 1)
    prompt = rng.lognormal(6.5, 1.1, count).astype(np.int64) + 5
    output = rng.lognormal(4.6, 0.9, count).astype(np.int64) + 1
    ttft_ns = (40 * MILLISECOND_NS + prompt * 120_000).astype(np.int64)
    end_ns = arrival_ns + ttft_ns + output * 18 * MILLISECOND_NS
    stop_ns = max(taken_ns, int(end_ns.max()))
    order = np.argsort(np.concatenate([arrival_ns, arrival_ns + MILLISECOND_NS, end_ns]), kind="stable")
    lines = _lines(first, order, arrival_ns, ttft_ns, end_ns, prompt, output)
    head = [
        msgspec.json.encode(
            SegmentLine(format="firsttoken/capture", version=1, tool="benchmark", wall_ns=WALL_NS, mono_ns=0)
        )
    ]
    if first == 0:
        head.append(msgspec.json.encode(WindowLine(event="open", at_ns=0)))
    tail = [msgspec.json.encode(WindowLine(event="close", at_ns=stop_ns + SECOND_NS))] if last else []

    def pieces() -> Iterator[bytes]:
        yield b"".join(line + b"\n" for line in head)
        yield from lines
        yield b"".join(line + b"\n" for line in tail)

    return pieces(), int(arrival_ns[-1]), stop_ns


def _lines(
    first: int, order: Array, arrival: Array, ttft: Array, end: Array, prompt: Array, output: Array
) -> Iterator[bytes]:
    """Lines in the order of events: n arrivals, then n bodies, then n ends, as `order` has them."""
    count = len(arrival)
    start_form, ask_forms, end_form = _forms()
    waiting: list[str] = []
    at, first_ns, ended = arrival.tolist(), (arrival + ttft).tolist(), end.tolist()
    prompts, outputs = prompt.tolist(), output.tolist()
    for event in order.tolist():
        kind, row = divmod(event, count)
        number, now_ns = first + row, at[row]
        if kind == 0:
            waiting.append(start_form % (number, now_ns))
        elif kind == 1:
            waiting.append(ask_forms[number % 4 == 0] % (number, now_ns + MILLISECOND_NS, 4 * prompts[row]))
        else:
            instants = (now_ns, now_ns + MILLISECOND_NS, first_ns[row], ended[row], first_ns[row], first_ns[row])
            waiting.append(end_form % (number, *instants, ended[row], prompts[row], outputs[row]))
        if len(waiting) >= 1000:
            yield "".join(waiting).encode()
            waiting = []
    yield "".join(waiting).encode()


def _forms() -> tuple[str, tuple[str, str], str]:
    """The three lines with places for what differs: made by the recorder's own functions, so they stay true."""
    start = StartLine(id="b-@", at_ns=_MARK, path="/v1/chat/completions")
    asks = [
        RequestLine(
            id="b-@",
            at_ns=_MARK,
            request=RequestFacts(
                model=model, stream=True, messages=2, user_turns=1, last_role="user", input_chars=_MARK,
                max_tokens=512, temperature=0.2, language="en",
            ),
        )
        for model in ("main-model", "small-model")
    ]  # fmt: skip
    response = ResponseFacts(
        first_byte_ns=_MARK, first_token_ns=_MARK, last_byte_ns=_MARK, events=40, reads=40, output=True, done=True,
        prompt_tokens=_MARK, output_tokens=_MARK, finish="stop",
    )  # fmt: skip
    exchange = Exchange(
        id="b-@", endpoint="chat", method="POST", path="/v1/chat/completions", arrival_ns=_MARK, dispatch_ns=_MARK,
        headers_ns=_MARK, end_ns=_MARK, status=200, outcome="ok", response=response,
    )  # fmt: skip
    end = end_line(exchange)
    main, small = (_with_places(msgspec.json.encode(ask)) for ask in asks)
    return _with_places(msgspec.json.encode(start)), (main, small), _with_places(end)


def _with_places(line: bytes) -> str:
    return line.decode().replace("@", "%d").replace(str(_MARK), "%d") + "\n"
