"""One response body, read as it arrives. The recorder and the replayer see the same bytes and must agree on what they
mean, so both feed this reader. No I/O; the clock was read by the caller, when the bytes were read.

What it keeps are instants and counts. Text only where it is asked for, to know the answer again in the next turn, and
only until `answer` was taken. Definitions: DESIGN §4.
"""

from itertools import pairwise

from profiles.answers import Answer, AnswerKeeper
from profiles.dialects import Reading, Usage, read_body, read_event
from profiles.encodings import Decode, Undecodable, decoder_of
from profiles.records import ResponseFacts
from profiles.repeats import Repeats
from profiles.sse import Splitter

# A whole JSON answer is kept until its end, to find its usage. Larger ones (batches of embeddings) go unread.
LONGEST_KEPT_BODY_BYTES = 8 * 1024 * 1024


class ResponseReader:
    """Feed it each read with its instant, then `finish`. It never raises on what an engine sends.

    With `keep_answer` it joins what the engine says, up to a size, for `answer`.
    """

    def __init__(self, content_type: str = "", content_encoding: str = "", *, keep_answer: bool = False) -> None:
        self._keeper = AnswerKeeper() if keep_answer else None
        self._keep = None if self._keeper is None else self._keeper.take
        self._splitter = Splitter() if "text/event-stream" in content_type.lower() else None
        self._unread: str | None = None
        self._decode: Decode | None = None
        try:
            self._decode = decoder_of(content_encoding)
        except Undecodable as problem:
            self._unread = str(problem)
        self._repeats = Repeats()
        self._at_boundary = False
        self._last_reading: Reading | None = None  # of the event that was taken last
        self._body = bytearray()
        self._first_byte_ns: int | None = None
        self._first_content_ns: int | None = None
        self._last_byte_ns: int | None = None
        self._token_ns: list[int] = []
        self._coalesced = 0
        self._events = 0
        self._malformed = 0
        self._bytes = 0
        self._reads = 0
        self._first_event_tokens: int | None = None
        self._counted_tokens = 0  # by token ids, where every token-bearing event carries them
        self._all_counted = True
        self._running_usage = False
        self._usage = Usage()
        self._finish: str | None = None
        self._output = False
        self._done = False
        self._error: str | None = None
        self._error_code: int | None = None

    @property
    def ended(self) -> bool:
        """The terminal event has been read: what comes after it is only framing."""
        return self._done

    @property
    def last_token_ns(self) -> int | None:
        """The instant of the last event with tokens so far."""
        return self._token_ns[-1] if self._token_ns else None

    def answer(self) -> Answer | None:
        """What the engine said, where it was to be kept and could be. Call after `finish`."""
        return None if self._keeper is None or self._unread is not None else self._keeper.answer()

    def feed(self, data: bytes, at_ns: int) -> None:
        """Take one read. `at_ns` is the instant of the read, before anything was parsed."""
        if not data:
            return
        if self._first_byte_ns is None:
            self._first_byte_ns = at_ns
        self._last_byte_ns = at_ns
        self._bytes += len(data)
        self._reads += 1
        if self._unread is not None:
            return
        if self._decode is not None:
            try:
                data = self._decode(data)
            except Undecodable as problem:
                self._unread = f"content-encoding broken: {problem}"
                return
        if self._splitter is not None:
            self._take_piece(self._splitter, data, at_ns)
        elif len(self._body) + len(data) <= LONGEST_KEPT_BODY_BYTES:
            self._body += data
        else:
            self._unread = f"body larger than {LONGEST_KEPT_BODY_BYTES} bytes"
            self._body.clear()

    def finish(self) -> ResponseFacts:
        """The facts of this response. Call once, when the body has ended or broken off."""
        last_ns = self._last_byte_ns
        if last_ns is not None and self._unread is None:
            if self._splitter is not None:
                for event in self._splitter.close():
                    self._take_event(event.name, event.data, event.error, last_ns)
            elif self._body:
                self._take_body(bytes(self._body))
                self._body.clear()
        tokens = self._token_ns
        return ResponseFacts(
            first_byte_ns=self._first_byte_ns,
            first_token_ns=tokens[0] if tokens else None,
            first_content_ns=self._first_content_ns,
            last_token_ns=tokens[-1] if tokens else None,
            last_byte_ns=last_ns,
            token_gaps_ns=[after - before for before, after in pairwise(tokens)],
            coalesced=self._coalesced,
            events=self._events,
            malformed=self._malformed,
            comments=self._splitter.comments if self._splitter is not None else 0,
            body_bytes=self._bytes,
            reads=self._reads,
            first_event_tokens=self._first_event_tokens,
            prompt_tokens=self._usage.prompt_tokens,
            output_tokens=self._output_tokens(),
            cached_tokens=self._usage.cached_tokens,
            reasoning_tokens=self._usage.reasoning_tokens,
            draft_tokens=self._usage.draft_tokens,
            accepted_tokens=self._usage.accepted_tokens,
            draft_steps=None if self._usage.draft_steps is None else list(self._usage.draft_steps),
            finish=self._finish,
            output=self._output,
            done=self._done,
            error=self._error,
            error_code=self._error_code,
            unread=self._unread,
        )

    def _output_tokens(self) -> int | None:
        if self._usage.output_tokens is not None:
            return self._usage.output_tokens
        return self._counted_tokens if self._counted_tokens and self._all_counted else None

    def _take_piece(self, splitter: Splitter, data: bytes, at_ns: int) -> None:
        likeness = self._repeats.likeness
        if likeness is not None and self._at_boundary and (text := likeness.text_in(data)):
            if self._keeper is not None:
                self._keeper.repeat(text)
            self._events += 1
            self._take_tokens(likeness.reading, at_ns)
            return
        whole = self._at_boundary
        events = splitter.feed(data)
        for event in events:
            self._take_event(event.name, event.data, event.error, at_ns)
        self._at_boundary = splitter.at_boundary
        last = self._last_reading
        if whole and self._at_boundary and len(events) == 1 and last is not None and last.tokens:
            learned = self._repeats.learn(data, last)
            if learned and self._keeper is not None:
                self._keeper.learn()

    def _take_event(self, name: str, lines: tuple[bytes, ...], error: bytes | None, at_ns: int) -> None:
        self._events += 1
        if error is not None:
            self._take_error(read_event(b'{"error":' + error + b"}"))
        whole = read_event(b"\n".join(lines), name, self._keep)
        if whole.malformed and len(lines) > 1:
            # Glued events: the blank line between them was lost. Each data line is read on its own.
            self._malformed += 1
            for line in lines:
                self._take_reading(read_event(line, name, self._keep), at_ns)
        else:
            self._take_reading(whole, at_ns)

    def _take_reading(self, reading: Reading, at_ns: int) -> None:
        self._last_reading = None
        if reading.malformed:
            self._malformed += 1
            return
        self._last_reading = reading
        self._take_outcome(reading)
        if reading.tokens:
            self._take_tokens(reading, at_ns)

    def _take_tokens(self, reading: Reading, at_ns: int) -> None:
        self._output = True
        if self._token_ns and self._token_ns[-1] == at_ns:
            self._coalesced += 1
        if not self._token_ns:
            self._first_event_tokens = reading.token_count
            if reading.token_count is None and self._running_usage and reading.usage is not None:
                self._first_event_tokens = reading.usage.output_tokens
        if reading.token_count is None:
            self._all_counted = False
        else:
            self._counted_tokens += reading.token_count
        self._token_ns.append(at_ns)
        if reading.content and self._first_content_ns is None:
            self._first_content_ns = at_ns

    def _take_body(self, body: bytes) -> None:
        """A whole JSON answer. It has no first token to stamp: its text came as one, so TTFT stays null."""
        reading = read_body(body, self._keep)
        if reading.malformed:
            self._malformed += 1
            return
        self._take_outcome(reading)
        self._done = reading.error is None
        # An embedding is output too, though it is no text. A generated answer without any text is empty.
        self._output = reading.tokens or reading.other

    def _take_error(self, reading: Reading) -> None:
        """The first error of an answer is its reason; what follows is mostly its echo."""
        if self._error is None:
            self._error, self._error_code = reading.error or "error", reading.error_code

    def _take_outcome(self, reading: Reading) -> None:
        if reading.usage is not None:
            if not self._token_ns:
                # Usage beside or before the first token means that the engine keeps a running total.
                self._running_usage = self._running_usage or reading.tokens
            self._usage = _merge(self._usage, reading.usage)
        if reading.finish is not None:
            self._finish = reading.finish
        if reading.error is not None:
            self._take_error(reading)
        self._done = self._done or reading.done


def _merge(before: Usage, after: Usage) -> Usage:
    """The last count of each kind wins: usage is a running total, and Anthropic splits it over two events."""
    return Usage(
        after.prompt_tokens if after.prompt_tokens is not None else before.prompt_tokens,
        after.output_tokens if after.output_tokens is not None else before.output_tokens,
        after.cached_tokens if after.cached_tokens is not None else before.cached_tokens,
        after.reasoning_tokens if after.reasoning_tokens is not None else before.reasoning_tokens,
        after.draft_tokens if after.draft_tokens is not None else before.draft_tokens,
        after.accepted_tokens if after.accepted_tokens is not None else before.accepted_tokens,
        after.draft_steps if after.draft_steps is not None else before.draft_steps,
    )
