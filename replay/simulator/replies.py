"""The bytes of an answer, as the machine's outputs come in: streamed chunk by chunk, or whole at the end.

An instant of the truth is read right before the bytes are handed to the kernel, and once more right after.
"""

from collections.abc import Sequence

from profiles.dialects import CHAT
from replay.clock import Clock
from replay.simulator import chat, shape, wire
from replay.simulator.chat import Answer, Refused
from replay.simulator.flights import Chunk, Fault, Flight
from replay.simulator.wire import Connection

KEEP_ALIVE = b": keep-alive\n\n"
# One event: its kind, its bytes, how many tokens it carries.
_Event = tuple[str, bytes, int]


async def stream(
    flight: Flight, answer: Answer, connection: Connection, fault: Fault | None, clock: Clock, *, usage: bool
) -> None:
    """Answer with a stream of events. Returns when the last byte, or the fault, has gone out."""
    # The head goes out before the first token, as vLLM's does: its instant is no measure of anything.
    connection.send(wire.STREAM_HEAD)
    job, words = flight.job, flight.script.words
    role: list[_Event] = [(shape.ROLE, answer.role_chunk(), 0)] if answer.endpoint == CHAT else []
    if answer.shape.comments:
        _hand([(shape.COMMENT, KEEP_ALIVE, 0)], flight, connection, clock)
    if role and answer.shape.early_role:
        _hand(role, flight, connection, clock)
        role = []
    produced = 0
    last = False
    while not last:
        output = await flight.next_output(answer.shape.k)
        start, produced, last = produced, produced + output.tokens, output.last
        events = role if start == 0 else []
        struck = fault is not None and start < flight.middle <= produced
        if fault is not None and struck and fault.kind == "stall":
            await clock.sleep_until_ns(clock.now_ns() + fault.stall_ns)
        elif fault is not None and struck:
            flight.finish = "error"
            if fault.kind == "error_in_stream":
                error = chat.error_object("a fault on request", "InternalServerError", None, 500)
                connection.send(wire.chunk(chat.event(error)) + wire.chunk(chat.DONE) + wire.LAST_CHUNK)
            else:
                connection.close()  # before the end of the chunked body: the client sees it broken off
            return
        finish = flight.script.finish if last else None
        chunk, kind = answer.content_chunk(words[start:produced], produced, finish, job.cached_tokens)
        events = [*events, (kind, chunk, output.tokens)]
        if last:
            events += [(shape.USAGE, answer.usage_chunk(produced, job.cached_tokens), 0)] if usage else []
            events.append((shape.DONE, chat.DONE, 0))
        flight.planned_ns.append(output.planned_ns)
        _hand(events, flight, connection, clock, last=last)
    flight.finish = flight.script.finish


def _hand(
    events: Sequence[_Event], flight: Flight, connection: Connection, clock: Clock, *, last: bool = False
) -> None:
    """Send some events in one write, and note when."""
    data = b"".join(wire.chunk(event) for _, event, _ in events) + (wire.LAST_CHUNK if last else b"")
    handed_ns = clock.now_ns()
    connection.send(data)
    written_ns = clock.now_ns()
    flight.chunks += (Chunk(kind, handed_ns, written_ns, tokens) for kind, _, tokens in events)


async def send_whole(flight: Flight, answer: Answer, connection: Connection, fault: Fault | None, clock: Clock) -> None:
    """Answer with one JSON object. Raises Refused for a fault that is an error."""
    output = await flight.next_output(flight.job.output_tokens)
    if fault is not None and fault.kind != "stall":
        flight.finish = "error"
        if fault.kind == "cut":
            connection.close()
            return
        raise Refused(500, "a fault on request", "InternalServerError")
    if fault is not None:
        await clock.sleep_until_ns(clock.now_ns() + fault.stall_ns)
    data = wire.response(200, answer.whole(flight.script.words, flight.script.finish, flight.job.cached_tokens))
    handed_ns = clock.now_ns()
    connection.send(data)
    flight.planned_ns.append(output.planned_ns)
    flight.chunks.append(Chunk(shape.TEXT, handed_ns, clock.now_ns(), flight.job.output_tokens))
    flight.finish = flight.script.finish
