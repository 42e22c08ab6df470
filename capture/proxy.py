"""The lean mitmproxy master: reverse mode, and only what passes traffic on.

A stock mitmdump spends about half of what it needs per request on dispatching thirty-five addons, and more on checks of
its own types (`options.drop_type_checks`, to be called before this is imported). Recording needs none of it. TlsConfig
joins only where TLS is spoken.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from mitmproxy import hooks
from mitmproxy.addons.core import Core
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.addons.tlsconfig import TlsConfig
from mitmproxy.master import Master
from mitmproxy.options import Options
from mitmproxy.proxy import mode_servers
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers import ClientTLSLayer, HttpLayer, ServerTLSLayer
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.tunnel import LayerStack

from capture import http1
from capture.connection import Connection
from capture.options import PROXY_OPTIONS, freeze, set_options
from capture.session import Session
from profiles.errors import FirsttokenError

# Connections that arrive together wait here. The default of 100 refuses a burst of clients.
BACKLOG = 4096

# Flows are freed by the garbage collector alone. Collections are cheap once what was imported is out of their sight,
# and bodies are let go of early, so the first generation may be large.
GC_THRESHOLD = (20_000, 20, 50)

# Connections close within milliseconds. One that does not is left to the end of the process.
CLOSING_STEP_S = 0.01
CLOSING_STEPS = 200


class Tls(NamedTuple):
    """What is known of certificates. `ca` is trusted for the engine, `certs` is shown to clients."""

    ca: Path | None = None
    insecure_upstream: bool = False
    certs: Path | None = None


class Proxy(Master):
    """A master that starts its session when it listens, and tells `on_listening` where. No session: it only passes."""

    def __init__(
        self, session: Session | None, options: Options, stack: "Stack", on_listening: Callable[[str], None]
    ) -> None:
        super().__init__(options)
        self._session = session
        self._scheme = "https" if stack.from_tls else "http"
        self._on_listening = on_listening
        self._server = Proxyserver()  # type: ignore[no-untyped-call]  # mitmproxy leaves many calls unannotated
        tls = [TlsConfig()] if stack.to_tls or stack.from_tls else []
        recorder = PassOn() if session is None else session.recorder
        ours = [] if session is None else [session]
        self.addons.add(Core(), self._server, *tls, *ours)  # type: ignore[no-untyped-call]  # as above
        Connection.hooks = _hooks_of([stack, *tls, recorder])
        if session is not None:
            Connection.count_fault = session.recorder.count_fault  # type: ignore[method-assign]  # see its class
            session.recorder.source_of = self._source_of

    def _source_of(self, client_id: str) -> Connection:
        handler = self._server.connections[client_id]
        assert isinstance(handler, Connection)
        return handler

    async def running(self) -> None:
        """Raise FirsttokenError if the port could not be taken, else begin to record."""
        for server in self._server.servers:
            if (problem := server.last_exception) is not None:
                number = problem.errno if isinstance(problem, OSError) else None
                why = os.strerror(number) if number else type(problem).__name__
                raise FirsttokenError(f"cannot listen at --listen ({why})", "Give another address with --listen.")
            for listener in server._servers:  # type: ignore[attr-defined]  # mitmproxy shows their addresses alone
                for shared in listener.sockets:
                    with socket.socket(fileno=socket.dup(shared.fileno())) as own:
                        own.listen(BACKLOG)
        host, port, *_ = self._server.listen_addrs()[0]
        listen = f"{self._scheme}://[{host}]:{port}" if ":" in host else f"{self._scheme}://{host}:{port}"
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        if self._session is not None:
            self._session.start(listen)
        await super().running()
        self._on_listening(listen)

    async def done(self) -> None:
        """Take no more clients, finalise the records, then close the connections that are still open."""
        await self._server.servers.update([])
        await super().done()
        for client in list(self._server.connections.values()):
            await client.on_timeout()  # ends a connection from outside and lets mitmproxy unwind both of its sides
        for _ in range(CLOSING_STEPS):
            if not self._server.connections:
                break
            await asyncio.sleep(CLOSING_STEP_S)


class Stack(NamedTuple):
    """What is spoken on either side. mitmproxy itself goes by the first bytes, and takes TLS and plain on one port."""

    to_tls: bool
    from_tls: bool

    def next_layer(self, asking: NextLayer) -> None:
        """The hook that chooses the layers of a connection."""
        context, stack = asking.context, LayerStack()
        if self.to_tls:
            stack /= ServerTLSLayer(context)
        if self.from_tls:
            stack /= ClientTLSLayer(context)
        stack /= HttpLayer(context, HTTPMode.transparent)
        asking.layer = stack[0]


class PassOn:
    """An addon that lets responses stream, and does nothing else. The recorder's cost is measured against it."""

    def responseheaders(self, flow: Any) -> None:
        if flow.response is not None:
            flow.response.stream = True


def _hooks_of(addons: list[Any]) -> dict[str, Callable[..., object]]:
    """What is called for each hook of mitmproxy."""
    found: dict[str, Callable[..., object]] = {}
    for name in hooks.all_hooks:
        called = [getattr(addon, name) for addon in addons if callable(getattr(addon, name, None))]
        if len(called) == 1:
            found[name] = called[0]
        elif called:
            found[name] = lambda *arguments, called=called: [each(*arguments) for each in called]
    for lifecycle in ("configure", "done", "load", "running"):
        found.pop(lifecycle, None)
    return found


def run(main: Callable[[], Any]) -> None:
    """asyncio.run, on uvloop where it is installed."""
    with suppress(ImportError):
        import uvloop

        uvloop.run(main())
        return
    asyncio.run(main())


async def run_proxy(
    session: Session | None,
    upstream: str,
    host: str,
    port: int,
    on_listening: Callable[[str], None],
    tls: Tls = Tls(),  # noqa: B008  # immutable
) -> None:
    """Pass traffic from host:port to `upstream`, scheme://host:port, and record it, until SIGINT, SIGTERM or SIGHUP.

    Raises FirsttokenError if it cannot listen or cannot record.
    """
    to_tls = upstream.startswith("https:")
    stack = Stack(to_tls, tls.certs is not None)
    quiet_log()
    if session is None:
        http1.install()
    else:
        http1.install(session.recorder.count_refused)
    mode_servers.ProxyConnectionHandler = Connection  # type: ignore[misc]  # it is made by name, with no other way in
    # TlsConfig makes a certificate authority there, for clients that would speak TLS to us. Nothing to keep.
    with tempfile.TemporaryDirectory(prefix="firsttoken-") if any(stack) else nullcontext("") as confdir:
        # As reverse:https, mitmproxy would also listen on UDP, for HTTP/3.
        mode = f"reverse:{upstream.replace('https:', 'tls:')}"
        options = Options(listen_host=host, listen_port=port, mode=[mode], confdir=confdir)
        proxy = Proxy(session, options, stack, on_listening)
        # A server behind TLS goes by its own name, so it must not see ours.
        set_options(options, PROXY_OPTIONS | {"keep_host_header": not to_tls})
        if to_tls:
            set_options(options, {"ssl_insecure": tls.insecure_upstream})
            if tls.ca is not None:
                set_options(options, {"ssl_verify_upstream_trusted_ca": str(tls.ca)})
        if tls.certs is not None:
            set_options(options, {"certs": [f"*={tls.certs}"]})
        Connection.frozen = freeze(options)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, proxy.shutdown)
        await proxy.run()


class _Terse(logging.Handler):
    """One line per record, of its kind alone: the message and the traceback of another library may quote a client."""

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if not record.name.startswith("capture"):
            kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else record.levelname.lower()
            said = f"a fault in {record.name} ({kind}) was contained; if it comes again, please report it"
        with suppress(OSError, ValueError):  # stderr may be full or gone
            clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # of the live line
            sys.stderr.write(f"{clear}Warning: {said}\n")


def quiet_log() -> None:
    """Warnings of any library go to stderr without a word of what passed through."""
    root = logging.getLogger()
    root.handlers[:] = [_Terse(logging.WARNING)]
    root.setLevel(logging.WARNING)
    logging.raiseExceptions = False
