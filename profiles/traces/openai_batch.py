"""OpenAI Batch input: JSON lines of `custom_id`, `method`, `url`, `body`. Bodies without any time.

The order of the lines is all that is known of when they were sent: the profile is a list for a closed loop.
"""

from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from profiles.dialects import OTHER, canonical_path, endpoint_of
from profiles.traces.bodies import Keyer, body_columns, cleaned, keyed_column
from profiles.traces.imported import Asked, Imported
from profiles.traces.rows import Tally, read_json
from profiles.traces.timeline import ORDER, Clock, arrange

NAME: Final = "openai-batch"


class _Line(msgspec.Struct):
    custom_id: str = ""
    method: str = "POST"
    url: str = ""
    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    response: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


def read(path: Path, asked: Asked) -> Imported:
    """Raises FormatError."""
    tally = Tally(path)
    bodies: list[bytes] = []
    urls: list[str] = []
    for line, row in read_json(path, _Line, tally):
        if not row.body:
            tally.drop(line, "a line of batch output, not of input" if row.response else "no body")
        elif not bytes(row.body).startswith(b"{"):
            tally.drop(line, "its body is no JSON object")
        elif row.method.upper() != "POST" or endpoint_of(row.url) == OTHER:
            tally.leave_out("not a POST to an LLM endpoint")
        else:
            bodies.append(bytes(row.body))
            urls.append(row.url)
    tally.check(asked.max_bad)
    notes = [
        "unit: none, for there are no arrivals; the order of the lines stands for them, 1 ns apart",
        "use it in a closed loop; rate, burstiness and concurrency of it mean nothing",
        "missing: arrivals, ends, answers, token counts",
    ]
    held: dict[int, bytes] = {}
    if asked.bodies:
        held, removed = cleaned(dict(enumerate(bodies)))
        notes.append(f"{len(held)} bodies are kept, {removed} credentials taken out")
    elif bodies:
        notes.append("of bodies only lengths and parameters are kept (--bodies full keeps the text)")
    keyer = Keyer(asked.key)
    rows = pl.DataFrame(
        {
            "at_ns": pl.Series(range(len(bodies)), dtype=pl.Int64),
            "endpoint": pl.Series([endpoint_of(url) for url in urls], dtype=pl.String),
            "path": pl.Series([canonical_path(url) for url in urls], dtype=pl.String),
            "body": pl.Series([at in held for at in range(len(bodies))], dtype=pl.Boolean),
        }
    )
    rows = pl.concat([rows, body_columns(bodies)], how="horizontal").with_columns(
        keyed_column([keyer.pack(body) for body in bodies])
    )
    return arrange(path, NAME, rows, Clock(ORDER), tally, asked, notes, bodies=held)
