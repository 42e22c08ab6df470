"""What the benchmark asks of its client, and what comes back. One JSON document each, one line."""

import msgspec

from benchmarks.capture.shapes import Shape

DEFAULT_BODY_BYTES = 1024


class Job(msgspec.Struct, frozen=True):
    """`count` requests in a closed loop of `concurrency`, to one port on loopback.

    `keep` reuses connections, also those of earlier jobs; without it each request opens its own, and its time to first
    token counts from before the connection is made. What has not ended after `limit_s` is given up.
    """

    port: int
    count: int
    concurrency: int
    shape: Shape
    body_bytes: int = DEFAULT_BODY_BYTES
    keep: bool = True
    limit_s: float = 120


class Batch(msgspec.Struct, frozen=True):
    """What a job has shown, in nanoseconds. Only answers that are complete, byte for byte, give times.

    `transit_ns` holds p10, p50 and p90 of the time from the engine's send of a token event to the client's read of it;
    it is empty without an answer. `wrong` counts the other answers by their fault.
    """

    wall_ns: int
    ttft_ns: list[int]
    duration_ns: list[int]
    transit_ns: list[int]
    wrong: dict[str, int]
