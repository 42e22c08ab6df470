"""A plain log of times: `start,end[,class]` in seconds, or dates. For who wants the concurrency and has nothing else.

A header is optional. An empty end is a request that was still in flight when its window closed. Without `--window` the
log is taken as complete from its first start to its last end.
"""

import re
from pathlib import Path
from typing import Final

import polars as pl

from profiles.concurrency import Window
from profiles.errors import FormatError
from profiles.traces.imported import Asked, Imported
from profiles.traces.instants import date_ns, decimal_ns
from profiles.traces.rows import CsvFile, Tally
from profiles.traces.timeline import DAY_NS, Clock, arrange, windows_of

NAME: Final = "intervals"
RULE: Final = "imported: class"
_STARTS: Final = ("start", "begin", "arrival")
_DIGIT: Final = re.compile(r"[0-9]")
_DATE: Final = re.compile(r"\d{4}-\d\d")
_OUTSIDE: Final = "outside the windows"
_NO_END: Final = ("", "none", "null", "nan", "-")


def read(path: Path, asked: Asked) -> Imported:
    """Raises FormatError."""
    tally = Tally(path)
    unit = asked.unit or "s"
    try:
        file = CsvFile(path, tally)
    except FormatError:
        if asked.windows and path.is_file() and not path.stat().st_size:
            nothing = pl.DataFrame(schema={"at_ns": pl.Int64, "end_ns": pl.Int64})
            return arrange(path, NAME, nothing, Clock(unit), tally, asked, [], windows=windows_of(asked, unit))
        raise
    header = bool(file.head) and not _DIGIT.search(file.head[0])
    places = _places(file.head, header)
    if len(file.head) < 2:
        raise FormatError(path, "needs start,end in each line", line=1, hint="Write 12.5,17.25 or 12.5,17.25,chat.")
    batches, open_starts = [], []
    dates = _holds_dates(file.head, header)
    for batch in file.batches(places, header=header, least=1, most=0 if header else 3):
        if dates is None and batch.height:
            dates = _is_date(str(batch["start"][0]))
        rows = _typed(batch, asked.zone, "date" if dates else unit, tally)
        open_starts += rows.filter(pl.col("end_ns").is_null())["at_ns"].to_list()
        batches.append(rows.filter(pl.col("end_ns").is_not_null()))
    tally.check(asked.max_bad)
    rows = pl.concat(batches)
    first_ns = rows["at_ns"].min()
    epoch = not dates and isinstance(first_ns, int) and _is_epoch(first_ns)
    windows = windows_of(asked, "date" if dates else unit)
    before = rows.height + len(open_starts)
    rows = _observed(rows, windows, tally)
    if windows:
        late = sum(start >= windows[-1][1] for start in open_starts)
        tally.leave_out(_OUTSIDE, late)
        open_starts = [start for start in open_starts if start < windows[-1][1]]
    return arrange(
        path,
        NAME,
        rows,
        Clock("date", wall=True) if dates else Clock(unit, wall=epoch, doubtful=True, most_span_ns=3660 * DAY_NS),
        tally,
        asked,
        [
            *(["clock: the times count from 1970, so hours and weekdays are known"] if epoch else []),
            *_notes(unit, bool(dates), asked, windows, before - rows.height - len(open_starts), len(open_starts)),
        ],
        windows=windows,
        unfinished=open_starts,
    )


def _places(head: list[str], header: bool) -> dict[str, int]:
    if header:
        names = [name.lower() for name in head]
        start = next((names.index(name) for name in _STARTS if name in names), 0)
        end = names.index("end") if "end" in names else 1
        workload = next((names.index(name) for name in ("class", "workload") if name in names), None)
    else:
        start, end, workload = 0, 1, 2
    places = {"start": start, "end": end}
    return places if workload is None else places | {"class": workload}


def _holds_dates(head: list[str], header: bool) -> bool | None:
    """Whether the times are dates, by the first line. None where that is a header."""
    return None if header or not head else _is_date(head[0])


def _is_epoch(first_ns: int) -> bool:
    """Whether an instant, taken from 1970, lies between 2001 and 2096: a log from its own start is shorter."""
    return 10**18 <= first_ns <= 4 * 10**18


def _is_date(text: str) -> bool:
    """By its form alone: a number that is too large for its unit is still a number."""
    return _DATE.match(text.strip()) is not None


def _typed(batch: pl.DataFrame, zone: str, unit: str, tally: Tally) -> pl.DataFrame:
    end = batch["end"].fill_null("").str.strip_chars()
    none = end.str.to_lowercase().is_in(_NO_END)
    start_ns, end_ns = (
        date_ns(text, zone)[0] if unit == "date" else decimal_ns(text, unit) for text in (batch["start"], end)
    )
    rows = batch.select(
        pl.col("line"), start_ns.alias("at_ns"), end_ns.alias("end_ns"), none.alias("open"), *_workload(batch)
    )
    what = "date" if unit == "date" else "number"
    return tally.keep(
        rows,
        {
            f"start is no {what}": pl.col("at_ns").is_null(),
            f"end is no {what}": pl.col("end_ns").is_null() & ~pl.col("open"),
            "end before start": (pl.col("end_ns") < pl.col("at_ns")).fill_null(False),
        },
    ).drop("open")


def _workload(batch: pl.DataFrame) -> list[pl.Expr]:
    if "class" not in batch.columns:
        return []
    name = pl.col("class").str.strip_chars().str.replace_all(r"[^A-Za-z0-9._-]+", "_").str.slice(0, 64)
    given = name.is_not_null() & (name != "")
    return [
        pl.when(given).then(name).alias("workload"),
        pl.when(given).then(pl.lit(RULE)).alias("workload_rule"),
    ]


def _observed(rows: pl.DataFrame, windows: list[Window], tally: Tally) -> pl.DataFrame:
    """Without rows that touch no window: nothing of them was observed, and they would be arrivals all the same."""
    if not windows:
        return rows
    inside = pl.lit(False)
    for opened, close in windows:
        starts_in = pl.col("at_ns").is_between(opened, close, closed="left")
        inside |= starts_in | ((pl.col("at_ns") < opened) & (pl.col("end_ns") > opened))
    kept = rows.filter(inside)
    tally.leave_out(_OUTSIDE, rows.height - kept.height)
    return kept


def _notes(unit: str, dates: bool, asked: Asked, windows: list[Window], outside: int, unfinished: int) -> list[str]:
    notes = [f"unit: {'dates' if dates else unit}"]
    if dates:
        notes.append(f"zone: {asked.zone} where a date names none (--zone)")
    if not windows:
        notes.append("window: from the first start to the last end; --window START,END says when the log was kept")
    if outside:
        notes.append(f"{outside} rows lie in no window and are left out")
    if unfinished:
        notes.append(f"{unfinished} requests have no end: in flight until their window closes, in no duration")
    return [*notes, "missing: lengths, first token, model, sessions, shared prefixes"]
