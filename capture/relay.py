"""What the pieces of one response pass through on their way to the client.

mitmproxy calls its `take` with each piece and writes what that returns. Once the head of the response is out, `http1`
calls it without mitmproxy's layers between, which cost more per piece than all that the recorder does.
"""

from collections.abc import Callable

from mitmproxy import http

_NAME = "firsttoken_relay"


class Relay:
    """`take` gets each piece, and b"" at the end of the body, and returns it."""

    __slots__ = ("chunked", "opened", "take")

    def __init__(self, take: Callable[[bytes], bytes]) -> None:
        self.take = take
        self.opened = False  # the head is out
        self.chunked = False  # how its body is framed

    def open(self, chunked: bool) -> None:
        """The head of the response has been written to the client."""
        self.opened, self.chunked = True, chunked


def attach(relay: Relay, response: http.Response) -> None:
    """Let the response pass through it."""
    response.stream = relay.take  # called for each piece: a function costs half of what an object does
    response.__dict__[_NAME] = relay


def relay_of(response: http.Response | None) -> Relay | None:
    """What was attached to it, if anything."""
    return None if response is None else response.__dict__.get(_NAME)
