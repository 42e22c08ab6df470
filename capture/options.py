"""What a recorder asks of mitmproxy: options, for the lean master and for a stock mitmdump alike, and fewer checks."""

from types import SimpleNamespace
from typing import Any, Final

from mitmproxy import http
from mitmproxy.options import Options
from mitmproxy.proxy import utils

# Those that differ from mitmproxy's defaults.
PROXY_OPTIONS: Final[dict[str, Any]] = {
    "connection_strategy": "lazy",  # eager would reset the client unseen while the engine is down; lazy gives a 502
    "http2": False,  # mitmproxy caps it at five upstream connections per client connection
    "keep_host_header": True,  # the engine sees what the client sent
    "tcp_timeout": 86_400,  # the default cuts a request that waits ten minutes for its first token
    "websocket": False,  # an upgraded connection passes as bytes; mitmproxy would unpack it and keep every message
    "rawtcp": True,
}


def set_options(options: Options, values: dict[str, Any], *, keep_changed: bool = False) -> None:
    """Set options of mitmproxy. With `keep_changed`, what a user has set stays."""
    for name, value in values.items():
        if not (keep_changed and options.has_changed(name)):  # type: ignore[no-untyped-call]  # as above
            options.update(**{name: value})  # type: ignore[no-untyped-call]  # as above


def freeze(options: Options) -> SimpleNamespace:
    """The same options to look up only. mitmproxy copies each value twice whenever one is asked for, some per chunk."""
    # No mapping, and mitmproxy leaves it unannotated.
    names = options.keys()  # type: ignore[no-untyped-call]
    return SimpleNamespace(**{name: getattr(options, name) for name in names})


def drop_type_checks() -> None:
    """Leave out the checks of types that mitmproxy makes for its developers: of each event, of each message's fields.

    Python's -O would do the same, but it needs a second start of the process. Works only before mitmproxy's layers are
    imported.
    """
    utils.expect = lambda *types: lambda function: function
    setattr(http.MessageData, "__post_init__", lambda self: None)  # noqa: B010  # as an assignment mypy refuses it
