"""The proxy's end of the pipe to its scribe. It never waits.

What fits goes into the kernel at once; the rest waits in memory up to a limit and follows when the pipe has room.
Beyond the limit frames are refused, and the caller counts them. So a scribe that is slow, stopped or stuck in a write
costs records, never traffic.
"""

import os
from collections import deque
from collections.abc import Callable
from typing import Protocol

# What a scribe may lag behind before records are dropped.
LIMIT_BYTES = 64 * 1024 * 1024
# This much is handed over without waiting for a timer, and in one write, so that a large body of one request does not
# hold up the event loop while it is copied.
FLUSH_BYTES = 128 * 1024

# Why a request has no record, or a part of it is missing.
BEHIND = "scribe behind"
GONE = "scribe gone"
FAULT = "recorder fault"
UNANNOUNCED = "start missing"


class Loop(Protocol):
    """What is needed of the event loop."""

    def add_writer(self, fd: int, callback: Callable[[], object], /) -> object: ...
    def remove_writer(self, fd: int, /) -> object: ...


class Outbox:
    """Give it frames with `put`, then say when they must leave. `closed` says why nothing is taken, or is None."""

    def __init__(
        self,
        descriptor: int,
        loop: Loop,
        *,
        write: Callable[[int, bytes | memoryview], int] = os.write,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self.closed: str | None = None
        self.waiting_bytes = 0
        self._descriptor = descriptor
        self._loop = loop
        self._write = write
        self._limit_bytes = limit_bytes
        self._parts: deque[bytes | memoryview] = deque()
        self._watching = False
        os.set_blocking(descriptor, False)

    def put(self, *parts: bytes) -> str | None:
        """Take a frame. Returns None, or the reason why it was refused."""
        if self.closed is not None:
            return self.closed
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if self.waiting_bytes + size > self._limit_bytes:
            return BEHIND
        # A view is cut without a copy, which counts for a body that leaves in many writes.
        if size <= FLUSH_BYTES:
            self._parts.extend(parts)
        else:
            self._parts.extend(map(memoryview, parts))
        self.waiting_bytes += size
        if self.waiting_bytes >= FLUSH_BYTES and not self._watching:
            self._watch(True)
        return None

    def send(self, data: bytes) -> str | None:
        """Take a frame and hand it to the kernel, now. Returns None, or the reason why it was refused."""
        if self._parts or self.closed is not None or len(data) > FLUSH_BYTES:
            refused = self.put(data)
            self.flush()
            return refused
        # Nothing waits, as nearly always: the way through the queue costs more than the write.
        done = self._give(data)
        if done is None:
            return GONE
        if done < len(data):
            self._parts.append(memoryview(data)[done:])
            self.waiting_bytes = len(data) - done
            self._watch(True)
        return None

    def flush(self) -> None:
        """Hand to the kernel all that fits, now."""
        self.drain()
        self._watch(bool(self._parts))

    def drain(self) -> None:
        """As `flush`, when the event loop has ended and nobody watches the pipe."""
        while self._parts and self._write_once():
            pass

    def _write_once(self) -> bool:
        """One write. False when the pipe is full or closed."""
        data = self._take()
        done = self._give(data)
        if done is None:
            return False
        self.waiting_bytes -= done
        if done < len(data):
            self._parts.appendleft(memoryview(data)[done:])
            return False
        return True

    def _give(self, data: bytes | memoryview) -> int | None:
        """How many bytes of it the kernel took. None, and closed, where nobody reads any more."""
        try:
            return self._write(self._descriptor, data)
        except BlockingIOError:
            return 0
        except OSError:  # EPIPE
            self.close(GONE)
            return None

    def _on_writable(self) -> None:
        if self._parts:
            self._write_once()
        self._watch(bool(self._parts))

    def close(self, reason: str = "not open") -> None:
        """Take nothing more and forget what waits. The descriptor stays the caller's."""
        self._watch(False)
        self.closed = reason
        self._parts.clear()
        self.waiting_bytes = 0

    def _take(self) -> bytes | memoryview:
        """What goes into one write: small frames together, a large one cut."""
        first = self._parts.popleft()
        if len(first) > FLUSH_BYTES:
            self._parts.appendleft(first[FLUSH_BYTES:])
            return first[:FLUSH_BYTES]
        together, size = [first], len(first)
        while self._parts and size + len(self._parts[0]) <= FLUSH_BYTES:
            together.append(self._parts.popleft())
            size += len(together[-1])
        return b"".join(together) if len(together) > 1 else first

    def _watch(self, wanted: bool) -> None:
        if wanted != self._watching:
            self._watching = wanted
            if wanted:
                self._loop.add_writer(self._descriptor, self._on_writable)
            else:
                self._loop.remove_writer(self._descriptor)
