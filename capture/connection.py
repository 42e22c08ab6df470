"""One client connection, with what costs taken out of mitmproxy's way of driving it.

* mitmproxy runs every hook in a task of its own and takes a lock for every event, because a hook may wait. Ours never
  do, so a hook is a function call here, and what it answers is the next event.
* It reads through a stream, which wakes a task one turn of the loop after the bytes have come. Here they are worked on
  when they come, which also gives the instant of the read before anything is parsed.

It also closes a connection to the engine that is idle before the engine would: a request that is sent at the moment at
which the engine closes is lost, and the client would see a 502 that it would not see without us.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from mitmproxy import http
from mitmproxy.connection import Connection as Peer
from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, mode_servers
from mitmproxy.proxy.layers.http._hooks import (
    HttpErrorHook,
    HttpRequestHeadersHook,
    HttpResponseHeadersHook,
    HttpResponseHook,
)
from mitmproxy.proxy.server import ConnectionIO
from mitmproxy.utils import asyncio_utils

# Engines close idle connections after 5 s (vLLM, SGLang, llama.cpp), some after 2 s.
IDLE_S = 1.5

# What may wait for a slow peer before its counterpart is held back; asyncio's own limit.
FULL_BYTES = 64 * 1024

_log = logging.getLogger(__name__)


class Connection(mode_servers.ProxyConnectionHandler):
    """A client with its connection to the engine. mitmproxy makes them, so what all share is told to the class.

    `hooks` maps a hook's name to what is called for it, in place; `count_fault` gets the place and what was raised.
    """

    hooks: ClassVar[dict[str, Callable[..., object]]] = {}
    frozen: ClassVar[Any] = None  # the options, see `options.freeze`

    @staticmethod
    def count_fault(place: str, problem: Exception) -> None:
        """Replaced by whoever counts."""

    def __init__(self, master: Any, reader: Any, writer: Any, options: Any, mode: Any) -> None:
        # mitmproxy leaves many calls unannotated.
        super().__init__(master, reader, writer, self.frozen or options, mode)  # type: ignore[no-untyped-call]
        self.read_ns = time.monotonic_ns()  # of the bytes that are being worked on
        self._events: deque[events.Event] = deque()
        self._answers: deque[events.Event] = deque()  # of hooks: they come before what else is waiting
        self._working = False
        self._asking = False  # a request is under way
        self._tunnel = False  # upgraded: bytes pass without requests
        self._idle_timer: asyncio.TimerHandle | None = None
        self._draining: set[asyncio.Task[None]] = set()

    async def server_event(self, event: events.Event) -> None:
        """Take an event of mitmproxy's own, such as a connection that was made."""
        self._take(event)

    def _take(self, event: events.Event) -> None:
        """Work on an event. One that arises meanwhile waits for its turn."""
        self._events.append(event)
        if self._working:
            return
        self._working = True
        try:
            while self._answers or self._events:
                self._work((self._answers or self._events).popleft())
        finally:
            self._working = False

    async def handle_connection(self, connection: Peer) -> None:
        """Drive a connection from its first byte to its close."""
        cancelled: asyncio.CancelledError | None = None
        try:
            await self._listen_to(connection)
        except asyncio.CancelledError as why:
            cancelled = why
        # The peer has sent all that it will, and may still read.
        connection.state = ConnectionState.CLOSED if cancelled else connection.state & ~ConnectionState.CAN_READ
        self._take(events.ConnectionClosed(connection))
        if connection.state is ConnectionState.CAN_WRITE:
            try:
                await asyncio.Event().wait()  # until it is closed
            except asyncio.CancelledError as why:
                cancelled = why
        transport = self.transports.pop(connection)
        if transport.writer is not None:
            with suppress(OSError):
                transport.writer.close()
        if cancelled is not None:
            raise cancelled

    def _listen_to(self, connection: Peer) -> asyncio.Future[None]:
        """Let bytes go straight from the transport to the layers. Done when the peer has sent its last."""
        reader, writer = self.transports[connection].reader, self.transports[connection].writer
        assert isinstance(reader, asyncio.StreamReader)
        assert isinstance(writer, asyncio.StreamWriter)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_data(data: bytes) -> None:
            self.read_ns = time.monotonic_ns()
            self._take(events.DataReceived(connection, data))
            if full := self._full_beside(connection):
                self._hold(writer.transport, full)

        def on_end(*_: object) -> None:
            if not ended.done():
                ended.set_result(None)

        # The stream has been filled since the connection was made; from here on its protocol calls us instead.
        already, at_end = bytes(reader._buffer), reader._eof  # type: ignore[attr-defined]  # asyncio has no other way in
        reader._buffer.clear()  # type: ignore[attr-defined]  # as above
        for name, called in (("feed_data", on_data), ("feed_eof", on_end), ("set_exception", on_end)):
            setattr(reader, name, called)
        if already:
            on_data(already)
        if at_end:
            on_end()
        return ended

    def _full_beside(self, source: Peer) -> list[asyncio.StreamWriter]:
        """Where too much waits to be taken. What `source` itself does not take is no reason to stop reading it."""
        full = []
        for peer, transport in self.transports.items():
            writer = transport.writer
            # A transport of TCP, and mitmproxy's type allows for others.
            if peer is not source and writer is not None and writer.transport.get_write_buffer_size() > FULL_BYTES:  # type: ignore[union-attr]
                full.append(writer)
        return full  # type: ignore[return-value]  # as above

    def _hold(self, source: Any, full: list[asyncio.StreamWriter]) -> None:
        """A peer takes its bytes more slowly than the other sends them: read on when it has caught up.

        `source` is the transport that sends; uvloop's is none of asyncio's types.
        """
        if source.is_closing() or not source.is_reading():
            return
        source.pause_reading()
        task = asyncio.get_running_loop().create_task(_read_on_after(source, full), name="slow peer")
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    def _work(self, event: events.Event) -> None:
        self.timeout_watchdog.register_activity()  # type: ignore[no-untyped-call]  # as above
        try:
            for command in self.layer.handle_event(event):
                if type(command) is commands.SendData:
                    self._send(command)
                elif isinstance(command, commands.StartHook):
                    self._run_hook(command)
                else:
                    self._do(command)
        except Exception as problem:
            _log.error("the proxy failed over an event (%s); this connection is closed", type(problem).__name__)
            self.count_fault("connection", problem)
            self._give_up()

    def _send(self, command: commands.SendData) -> None:
        transport = self.transports.get(command.connection)
        if transport is not None and transport.writer is not None and not transport.writer.is_closing():
            transport.writer.write(command.data)

    def _do(self, command: commands.Command) -> None:
        match command:
            case commands.OpenConnection():
                task = asyncio_utils.create_task(self.open_connection(command), name="connect", keep_ref=True)
                # An eager task may have failed already; it then has no transport any more.
                if not task.done() and command.connection not in self.transports:
                    self.transports[command.connection] = ConnectionIO(handler=task)
            case commands.RequestWakeup():
                task = asyncio_utils.create_task(self.wakeup(command), name="wake up", keep_ref=True)
                self.wakeup_timer.add(task)
            case commands.ConnectionCommand() if command.connection not in self.transports:
                pass  # closed already
            case commands.CloseTcpConnection():
                self.close_connection(command.connection, command.half_close)
            case commands.CloseConnection():
                self.close_connection(command.connection, False)
            case commands.Log():
                pass  # its words may hold what a client sent
            case _:
                raise RuntimeError(f"unknown command {type(command).__name__}")

    def _run_hook(self, hook: commands.StartHook) -> None:
        if isinstance(hook, HttpRequestHeadersHook):
            self._asking = True
        elif isinstance(hook, (HttpResponseHook, HttpErrorHook)):
            self._asked(hook.flow)
        self._call(hook)
        if isinstance(hook, HttpResponseHeadersHook):
            # At once, in the midst of what was read: the head leaves before the pieces that came with it are looked at,
            # so that they can take the short way. A request's hooks may not: the next request may be in the same read.
            self._work(events.HookCompleted(hook))
        elif hook.blocking:
            self._answers.append(events.HookCompleted(hook))

    async def handle_hook(self, hook: commands.StartHook) -> None:
        """The hooks of the connection itself, which mitmproxy awaits."""
        self._call(hook)

    def _call(self, hook: commands.StartHook) -> None:
        called = self.hooks.get(hook.name)
        if called is not None:
            try:
                called(*hook.args())
            except Exception as problem:
                self.count_fault(hook.name, problem)

    def _give_up(self) -> None:
        for peer in list(self.transports):
            self.close_connection(peer)

    # Idle connections to the engine.

    def _asked(self, flow: http.HTTPFlow) -> None:
        self._asking = False
        self._tunnel = self._tunnel or (flow.response is not None and flow.response.status_code == 101)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        if self._asking or self._tunnel:
            return
        for peer in list(self.transports):
            if peer is not self.client:
                self.close_connection(peer)


async def _read_on_after(source: Any, full: list[asyncio.StreamWriter]) -> None:
    for writer in full:
        with suppress(OSError):  # it is gone, and its own connection will say so
            await writer.drain()
    if not source.is_closing():
        source.resume_reading()
