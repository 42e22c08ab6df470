"""The tables of formats. A new format is one module and one line here."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from profiles.errors import FormatError, UsageError
from profiles.profile import Profile
from profiles.traces import (
    azure,
    burstgpt,
    export_bodies,
    export_table,
    export_tokens,
    har,
    intervals,
    mitm,
    mooncake,
    openai_batch,
    own_table,
    timed_trace,
)
from profiles.traces.export import ExportAsked, Writer, Written
from profiles.traces.imported import Asked, Imported

Reader = Callable[[Path, Asked], Imported]


@dataclass(frozen=True, slots=True)
class ImportFormat:
    """A format that can be read. `options` are the fields of `Asked` that it can use beside `max_bad` and `windows`."""

    read: Reader
    unit: str  # for people
    holds: str
    options: frozenset[str] = frozenset()


_TOKENS: Final = frozenset({"unit", "block", "bodies", "dequantise", "trust_unit"})
_LENGTHS: Final = "arrivals, lengths"

IMPORTS: Final[dict[str, ImportFormat]] = {
    mooncake.NAME: ImportFormat(mooncake.read, "ms", f"{_LENGTHS}, block ids; AIPerf's additions", _TOKENS),
    azure.NAME: ImportFormat(azure.read, "dates", _LENGTHS, frozenset({"zone", "dequantise"})),
    burstgpt.NAME: ImportFormat(burstgpt.read, "s", f"{_LENGTHS}, models; sessions, ends", frozenset({"dequantise"})),
    timed_trace.NAME: ImportFormat(timed_trace.read, "s", f"{_LENGTHS}, block ids", _TOKENS - {"bodies"} | {"labels"}),
    openai_batch.NAME: ImportFormat(openai_batch.read, "no times", "bodies in order", frozenset({"bodies"})),
    har.NAME: ImportFormat(har.read, "dates", "bodies, starts, ends; no TTFT", frozenset({"zone", "bodies"})),
    mitm.NAME: ImportFormat(mitm.read, "s", "bodies, starts, ends; TTFT of timed pieces", frozenset({"bodies"})),
    intervals.NAME: ImportFormat(
        intervals.read, "s, dates", "start,end[,class]", frozenset({"unit", "zone", "dequantise", "trust_unit"})
    ),
    own_table.CSV: ImportFormat(own_table.read_csv, "ns", "our own export", frozenset({"dequantise"})),
    own_table.PARQUET: ImportFormat(own_table.read_parquet, "ns", "our own export", frozenset({"dequantise"})),
}


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A format that can be written."""

    write: Writer
    unit: str
    holds: str


def _write_aiperf(profile: Profile, out: Path, asked: ExportAsked) -> Written:
    write = export_bodies.write_payloads if asked.payload else export_tokens.write_aiperf
    return write(profile, out, asked)


EXPORTS: Final[dict[str, ExportFormat]] = {
    mooncake.NAME: ExportFormat(export_tokens.write_mooncake, "ms", f"{_LENGTHS}, block ids"),
    timed_trace.NAME: ExportFormat(export_tokens.write_timed_trace, "s", f"{_LENGTHS}, block ids"),
    "aiperf": ExportFormat(_write_aiperf, "ms", f"{_LENGTHS}, block ids, sessions; or bodies"),
    "guidellm": ExportFormat(export_tokens.write_guidellm, "s", f"{_LENGTHS} (trace_synthetic)"),
    openai_batch.NAME: ExportFormat(export_bodies.write_openai_batch, "no times", "bodies in order"),
    own_table.CSV: ExportFormat(export_table.write_csv, "ns", "all columns"),
    own_table.PARQUET: ExportFormat(export_table.write_parquet, "ns", "all columns, windows, prefix blocks"),
}
_NO_WINDOWS: Final = (openai_batch.NAME,)
_OPTION: Final = {
    "labels": "--label",
    "dequantise": "--dequantise",
    "trust_unit": "--trust-unit",
    "bodies": "--bodies full",
}


def check(name: str, asked: Asked) -> ImportFormat:
    """The format of this name. Raises UsageError for a name or an option that it does not know."""
    if name not in IMPORTS:
        raise UsageError(f"{name!r} is not a format", f"Formats are {', '.join(IMPORTS)}.")
    chosen = IMPORTS[name]
    plain = Asked()
    for option in ("unit", "zone", "dequantise", "bodies", "block", "labels", "trust_unit"):
        if option not in chosen.options and getattr(asked, option) != getattr(plain, option):
            why = (
                f"its times are {chosen.unit}"
                if option in ("unit", "zone", "trust_unit")
                else f"it holds {chosen.holds}"
            )
            raise UsageError(f"{_OPTION.get(option, f'--{option}')} makes no sense for {name}: {why}", "Leave it out.")
    if asked.windows and name in _NO_WINDOWS:
        raise UsageError(f"--window makes no sense for {name}: it has no times", "Leave it out.")
    return chosen


def check_export(name: str) -> ExportFormat:
    """The format of this name. Raises UsageError."""
    if name not in EXPORTS:
        raise UsageError(f"{name!r} is not a format to export to", f"Formats are {', '.join(EXPORTS)}.")
    return EXPORTS[name]


# The first line of a file that can only be of one format.
_HEADS: Final = {
    ",".join(azure.COLUMNS): azure.NAME,
    ",".join(burstgpt.COLUMNS): burstgpt.NAME,
    ",".join((burstgpt.COLUMNS[0], burstgpt.SESSION, burstgpt.ELAPSED, *burstgpt.COLUMNS[1:])): burstgpt.NAME,
    "start,end": intervals.NAME,
    "start,end,class": intervals.NAME,
}


def recognise(path: Path) -> str:
    """The format of a file, only where it can be no other. Raises FormatError where it is not certain."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise FormatError(path, f"cannot be read ({error.strerror})") from None
    if head.startswith(b"PAR1"):
        return own_table.PARQUET
    line = head.split(b"\n", 1)[0].decode("utf-8-sig", errors="replace").rstrip("\r")
    if line in _HEADS:
        return _HEADS[line]
    if line.startswith("{") and all(f'"{key}"' in line for key in ("custom_id", "url", "body")):
        return openai_batch.NAME
    # A file of lengths and ids may be in ms or s, of 16 or 512 tokens: that is for people to say.
    if (head.lstrip().startswith(b"{") and b'"log"' in head[:200] and b'"entries"' in head) or _is_har(head):
        return har.NAME
    raise FormatError(
        path,
        "its format is not certain",
        hint=f"Say which: firsttoken profile import FORMAT, one of {', '.join(IMPORTS)}.",
    )


def _is_har(head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and b'"log"' in head[:200] and b'"creator"' in head[:1000]
