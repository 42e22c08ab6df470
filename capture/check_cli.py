"""`firsttoken capture check` and `firsttoken capture purge`."""

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from profiles.errors import FirsttokenError, UsageError
from profiles.units import HOUR_NS, format_bytes, format_duration, parse_duration

if TYPE_CHECKING:
    from capture.purge import Held
    from capture.walk import Findings, View, Window

WIDTH = 80
SHOWN = 10  # windows, gaps and bad lines; the rest is counted

_FOLDER = click.Path(path_type=Path)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?")
_SCALES = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


@click.group()
def capture() -> None:
    """Look after a capture: check that it is complete, delete what it should no longer hold.

    \b
    Example:
      firsttoken capture check captures/monday
      firsttoken capture purge captures/monday --older-than 30d
    """


@capture.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one strict JSON document.")
def check(folder: Path, as_json: bool) -> None:
    """Say whether a capture is complete and adds up.

    Reads every line, also of a capture that is being recorded. Says what is
    missing or wrong.

    \b
    Example:
      firsttoken capture check captures/monday
      firsttoken capture check captures/monday --json | jq .problems

    Exit codes: 0 it is sound, 1 something is missing or wrong, 2 wrong usage or input.
    """
    from capture.check import check as examine
    from capture.evidence import look_at, read_sightings
    from profiles.files import encode_pretty

    state = look_at(folder)
    found = examine(state, read_sightings(state.segments))
    if as_json:
        click.echo(encode_pretty(found.document()), nl=False)
    else:
        click.echo("\n".join(describe(found)))
    if not found.sound:
        raise click.exceptions.Exit(1)


@capture.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--older-than", metavar="AGE", help="Delete closed segments that ended before this, such as 30d.")
@click.option("--keep-bytes", metavar="SIZE", help="Delete the oldest closed segments until SIZE is left, such as 5G.")
@click.option("--bodies", is_flag=True, help="Take request bodies, keyed digests and the hash key out of the capture.")
@click.option("--yes", is_flag=True, help="Do it. Without this, only say what would be done.")
def purge(folder: Path, older_than: str | None, keep_bytes: str | None, bodies: bool, yes: bool) -> None:
    """Delete old segments of a capture, or the bodies in it.

    A recorder may run meanwhile; the segment that it is writing is left alone. Space is freed, not overwritten: what
    backups and snapshots hold is not reached.

    \b
    Example:
      firsttoken capture purge captures/monday --older-than 30d
      firsttoken capture purge captures/monday --bodies --yes

    Exit codes: 0 done, 1 failure, 2 wrong usage or input.
    """
    from capture.purge import hold

    if (older_than is not None) + (keep_bytes is not None) + bodies != 1:
        raise UsageError(
            "say in one way what to purge", "Give one of --older-than AGE, --keep-bytes SIZE and --bodies."
        )
    keep_ns = None if older_than is None else parse_age(older_than)
    keep = None if keep_bytes is None else parse_bytes(keep_bytes)
    with hold(folder) as held:
        if bodies:
            _purge_bodies(held, yes)
        else:
            _purge_segments(held, keep_ns, keep, yes)
        if not yes:
            click.echo("Nothing was changed; add --yes to do it.")
        if held.live is not None:
            click.echo(f"{held.live} is being written and was left alone.")


def _purge_segments(held: "Held", keep_ns: int | None, keep_bytes: int | None, yes: bool) -> None:
    from capture.check import format_instant
    from capture.purge import delete, old_segments
    from capture.segments import purged

    due = old_segments(held, now_wall_ns=time.time_ns(), keep_ns=keep_ns, keep_bytes=keep_bytes)
    told = delete(held, due) if yes else purged(due)
    total = purged(held.segments)
    if told.until_wall_ns is None:
        click.echo(f"Nothing to delete: {_segments(total.segments)}, {format_bytes(total.bytes)}.")
        return
    click.echo(
        f"{'Deleted' if yes else 'Would delete'} {told.segments:,} of {_segments(total.segments)}: "
        f"{format_bytes(told.bytes)}, up to {format_instant(told.until_wall_ns)}."
    )


def _purge_bodies(held: "Held", yes: bool) -> None:
    from capture.purge import strip_bodies
    from profiles.capture_folder import HASH_KEY

    done = strip_bodies(held, really=yes)
    if done.segments:
        freed = f", {format_bytes(done.freed_bytes)} freed" if yes else ""
        click.echo(
            f"{'Took' if yes else 'Would take'} the bodies of {done.bodies:,} requests out of "
            f"{_segments(done.segments)}{freed}."
        )
    else:
        click.echo("No bodies to take out.")
    if done.unreadable:
        click.echo(f"{done.unreadable:,} lines that cannot be read {'were' if yes else 'would be'} left out.")
    if done.key:
        click.echo(f"{'Destroyed' if yes else 'Would destroy'} {HASH_KEY}; new records get another key.")
    if done.busy or done.damaged:
        hints = ["Run it again for what another process is at work on."] if done.busy else []
        if done.damaged:
            hints.append("What is damaged cannot be rewritten: delete these files yourself, or keep what they hold.")
        raise FirsttokenError("not purged, bodies may be left: " + "; ".join(done.busy + done.damaged), " ".join(hints))


def describe(found: "Findings") -> list[str]:
    """The findings for a person, one plain sentence first, within 80 columns."""
    rows = [
        ("requests", f"{found.started:,} started, {found.ended:,} ended, {found.open:,} open"),
        ("outcomes", ", ".join(f"{name} {number:,}" for name, number in sorted(found.outcomes.items())) or "none"),
        ("dropped", ", ".join(f"{number:,} ({reason})" for reason, number in found.dropped.items()) or "nothing"),
        ("observed", f"{format_duration(found.observed_ns)} in {len(found.windows)} window(s)"),
        ("in flight", f"from arrival {_view(found.arrival)}; from dispatch {_view(found.dispatch)}"),
        ("identity", f"sum of k × T_k = sum of durations: {_identity(found)}"),
        ("lateness", f"{found.late:,} late records, worst lag {format_duration(found.worst_lag_ns)}"),
        ("lines", f"{found.torn:,} torn, {found.undecodable:,} cannot be read"),
    ]
    lines = _wrapped("", f"{found.sentence}.")
    lines.append("")
    for label, text in rows:
        lines += _wrapped(label, text)
    lines += _listed("windows", [_window(window) for window in found.windows])
    lines += _listed(
        "gaps", [f"{format_duration(max(0, gap.to_ns - gap.from_ns))}: {gap.reason}" for gap in found.gaps]
    )
    rest = [problem for problem in found.problems if problem != found.sentence]
    lines += _listed("problems", rest, all_of_them=True)
    lines += _listed("bad lines", [f"{place}: {problem}" for place, problem in found.flaws])
    lines += _listed("notes", found.notes, all_of_them=True)
    return lines


def parse_age(text: str) -> int:
    """Nanoseconds of an age such as 30d, 12h or 90min. Raises UsageError."""
    days = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*d\s*", text)
    try:
        return round(float(days[1]) * 24 * HOUR_NS) if days else parse_duration(text)
    except ValueError:
        raise UsageError(f"--older-than {text!r} is not an age", "Write it as 30d, 12h or 90min.") from None


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 5G, 500MB or 2GiB; without the i in powers of 1000. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise UsageError(f"--keep-bytes {text!r} is not a size", "Write it as 5G, 500M or 2GiB.")
    scale: int = (1024 if match[3] else 1000) ** _SCALES[match[2]]
    return round(float(match[1]) * scale)


def _window(window: "Window") -> str:
    from capture.check import format_instant

    begun = f" ({window.opened_because})" if window.opened_because else ""
    length = format_duration(window.closed_ns - window.opened_ns)
    return f"{format_instant(window.opened_ns)}{begun}, {length}, {window.closed_because}"


def _view(view: "View | None") -> str:
    return "–" if view is None else f"{view.mean:.2f} in the mean, at most {view.max:,}"


def _identity(found: "Findings") -> str:
    views = [view for view in (found.arrival, found.dispatch) if view is not None]
    if not views:
        return "no time was observed"
    return "exact" if all(view.sum_ns == view.duration_sum_ns for view in views) else "BROKEN"


def _listed(label: str, items: list[str], *, all_of_them: bool = False) -> list[str]:
    shown = items if all_of_them else items[:SHOWN]
    lines = [line for at, item in enumerate(shown) for line in _wrapped("" if at else label, item, indent=True)]
    if len(shown) < len(items):
        lines += _wrapped("", f"and {len(items) - len(shown):,} more", indent=True)
    return lines


def _wrapped(label: str, text: str, *, indent: bool = False) -> list[str]:
    import textwrap

    wide = 11 if label or indent else 0
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{label:{wide}}", subsequent_indent=" " * wide, break_on_hyphens=False
    )


def _segments(number: int) -> str:
    return f"{number:,} segment{'' if number == 1 else 's'}"
