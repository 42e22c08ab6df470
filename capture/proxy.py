"""The lean mitmproxy master: reverse mode with four addons instead of thirty-five.

Dispatching the default addons is about half of what a stock mitmdump spends per request, and recording needs none of
them. TlsConfig joins only for an upstream that speaks TLS.
"""

import asyncio
import signal
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

from mitmproxy.addons.core import Core
from mitmproxy.addons.next_layer import NextLayer
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.addons.tlsconfig import TlsConfig
from mitmproxy.master import Master
from mitmproxy.options import Options

from capture.session import Session
from profiles.errors import FirsttokenError

# Options that differ from mitmproxy's defaults, for the lean master and for a stock mitmdump alike.
PROXY_OPTIONS: Final[dict[str, Any]] = {
    "connection_strategy": "lazy",  # eager would reset the client unseen while the engine is down; lazy gives a 502
    "http2": False,  # mitmproxy caps it at five upstream connections per client connection
    "keep_host_header": True,  # the engine sees what the client sent
    "tcp_timeout": 86_400,  # the default cuts a request that waits ten minutes for its first token
}

# Connections close within milliseconds. One that does not is left to the end of the process.
CLOSING_STEP_S = 0.01
CLOSING_STEPS = 200


class Proxy(Master):
    """A master that starts its session when it listens, and tells `on_listening` where."""

    def __init__(self, session: Session, options: Options, on_listening: Callable[[str], None]) -> None:
        super().__init__(options)
        self._session = session
        self._on_listening = on_listening
        self._server = Proxyserver()  # type: ignore[no-untyped-call]  # mitmproxy leaves many calls unannotated
        tls = [TlsConfig()] if session.upstream.startswith("https:") else []
        self.addons.add(Core(), self._server, NextLayer(), *tls, session)  # type: ignore[no-untyped-call]  # as above

    async def running(self) -> None:
        """Raise FirsttokenError if the port could not be taken, else begin to record."""
        for server in self._server.servers:
            if server.last_exception is not None:
                raise FirsttokenError(f"cannot listen: {server.last_exception}", "Give another address with --listen.")
        host, port, *_ = self._server.listen_addrs()[0]
        self._session.listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._session.start()
        await super().running()
        self._on_listening(self._session.listen)

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


async def run_proxy(session: Session, host: str, port: int, on_listening: Callable[[str], None]) -> None:
    """Pass traffic from host:port to `session.upstream` and record it, until SIGINT, SIGTERM or SIGHUP.

    `session.upstream` is scheme://host:port. Raises FirsttokenError if it cannot listen or cannot record.
    """
    tls = session.upstream.startswith("https:")
    # TlsConfig makes a certificate authority there, for clients that would speak TLS to us. Nothing to keep.
    with tempfile.TemporaryDirectory(prefix="firsttoken-") if tls else nullcontext("") as confdir:
        options = Options(listen_host=host, listen_port=port, mode=[f"reverse:{session.upstream}"], confdir=confdir)
        proxy = Proxy(session, options, on_listening)
        # A server behind TLS goes by its own name, so it must not see ours.
        set_options(options, PROXY_OPTIONS | {"keep_host_header": not tls})
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, proxy.shutdown)
        await proxy.run()


def set_options(options: Options, values: dict[str, Any], *, keep_changed: bool = False) -> None:
    """Set options of mitmproxy. With `keep_changed`, what a user has set stays."""
    for name, value in values.items():
        if not (keep_changed and options.has_changed(name)):  # type: ignore[no-untyped-call]  # as above
            options.update(**{name: value})  # type: ignore[no-untyped-call]  # as above
