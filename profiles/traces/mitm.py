"""Flow files of mitmproxy. `response.timestamp_start` is the instant of the headers and no TTFT.

A proxy that streams keeps neither body unless it is told to copy the pieces. An addon that does, and puts the instants
of the pieces into `flow.metadata["chunks"]` (seconds since 1970), gives the first token as well: where there is one
piece for each event of the stream, the first event that carries a token is known by its instant.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from profiles.errors import FormatError
from profiles.traces.exchanges import NOT_LLM, Exchange, arrange_exchanges, headers_of
from profiles.traces.imported import Asked, Imported
from profiles.traces.instants import number_ns
from profiles.traces.rows import TORN, Tally

if TYPE_CHECKING:
    from mitmproxy.http import HTTPFlow

NAME: Final = "mitm"
CHUNKS: Final = "chunks"


def read(path: Path, asked: Asked) -> Imported:
    """Raises FormatError."""
    from mitmproxy.exceptions import FlowReadException
    from mitmproxy.http import HTTPFlow
    from mitmproxy.io import FlowReader

    tally = Tally(path)
    exchanges: list[Exchange] = []
    notes = ["unit: seconds since 1970", "zone: none needed"]
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            try:
                for flow in FlowReader(file).stream():
                    tally.read += 1
                    if isinstance(flow, HTTPFlow):
                        exchanges.append(_exchange(tally.read, flow))
                    else:
                        tally.leave_out(NOT_LLM)
            except FlowReadException as error:
                if not tally.read or file.tell() < size:
                    raise FormatError(
                        path,
                        f"not a flow file of mitmproxy after flow {tally.read} ({error})",
                        hint="Nothing after that place can be read.",
                    ) from None
                tally.read += 1
                tally.torn_line = tally.read
                tally.drop(tally.read, "cut short")
                notes.append(f"{TORN}: flow {tally.read} is cut short")
    except FileNotFoundError:
        raise FormatError(path, "no such file") from None
    except OSError as error:
        raise FormatError(path, f"cannot be read ({error.strerror})") from None
    return arrange_exchanges(path, NAME, exchanges, tally, asked, notes)


def _exchange(place: int, flow: "HTTPFlow") -> Exchange:
    request, response = flow.request, flow.response
    ended = response.timestamp_end if response is not None else None
    if ended is None and flow.error is not None:
        ended = flow.error.timestamp
    return Exchange(
        place=place,
        method=request.method.upper(),
        url=request.url,
        start_ns=_ns(request.timestamp_start) or 0,
        end_ns=_ns(ended),
        status=None if response is None else response.status_code,
        request_headers=_headers(request),
        request=_body(request),
        answer_headers={} if response is None else _headers(response),
        answer=None if response is None else _body(response),
        complete=flow.error is None,
        chunks_ns=_chunks(flow.metadata.get(CHUNKS)),
    )


def _headers(message: Any) -> dict[str, bytes]:
    return headers_of(list(message.headers.items()))


def _body(message: Any) -> bytes | None:
    """None where the flow does not hold it: a proxy that streams leaves an empty one."""
    return message.raw_content or (b"" if message.headers.get("content-length") == "0" else None)


def _ns(seconds: float | None) -> int | None:
    # The shortest text of a float is the number that its writer meant.
    return None if seconds is None else number_ns(repr(float(seconds)), "s")


def _chunks(instants: Any) -> tuple[int, ...]:
    if not isinstance(instants, list | tuple):
        return ()
    found = [_ns(at) for at in instants if isinstance(at, int | float)]
    return tuple(at for at in found if at is not None) if len(found) == len(instants) else ()
