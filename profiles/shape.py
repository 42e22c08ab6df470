"""Another load from a recorded one: a part of it, less of it, more of it, or its mix in a closed loop. Pure.

    cut          the requests of a span of time
    only         the requests of some classes
    thin         a share of the sessions, whole
    superpose    "k times the users": k copies of the sessions, each shifted in a circle through the observed time
    compress     "k times the rate": sessions start k times as often, and each keeps its pace
    closed_mix   c slots that take the next session as soon as they are free

Sessions are what is moved, never single requests: a turn follows its answer by the recorded think time, whatever is
done to the starts. A request without a session is one of its own. Where a session does not fit it is cut in two, which
is counted and said; nothing else gets lost without being counted.

All functions take a `Load` and return another one. Seeds are arguments, and stand in `Load.steps`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from profiles.concurrency import Window, union
from profiles.shape_links import Ints, pick, raised, relink, session_keys, shifted, split

# Where requests have no ends, a closed mix is their order alone: each stands one such step behind the one before.
NOMINAL_STEP_NS: Final = 1_000_000_000

# What shaping changes; all other columns stay what they are for each request.
_MOVING: Final = (
    *("arrival_ns", "dispatch_ns", "first_token_ns", "end_ns", "workload"),
    *("session", "turn", "parent", "link", "deps", "think_ns", "think_kind"),
)
_PREFIX: Final = ("blocks", "prefix_ref", "prefix_blocks")


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in order of arrival, and when they were observed. Instants count from `zero_wall_ns`, if it is known.

    `requests` has what shaping changes: instants, class and links, where the profile has them; `parent` and `deps` are
    positions in it. Column `row_of` is the row of `origin` that a request is made of, `copy` is 0 for the first copy.
    `finish` puts the two together.
    """

    requests: pl.DataFrame
    windows: tuple[Window, ...]
    origin: pl.DataFrame
    zero_wall_ns: int | None = None
    block_chars: int | None = None  # of the blocks of shared prefixes; None where they count tokens, or there are none
    steps: tuple[dict[str, Any], ...] = ()  # what was done, for the manifest
    notes: tuple[str, ...] = ()  # what a reader should know of it, for people

    @property
    def mixed(self) -> bool:
        """Whether it holds a concurrency of our choice."""
        return any(step["step"] == "closed_mix" for step in self.steps)

    @property
    def arrival_ns(self) -> Ints:
        """Ascending."""
        return self.requests["arrival_ns"].to_numpy()


def load_of(
    requests: pl.DataFrame,
    windows: Iterable[Window],
    *,
    zero_wall_ns: int | None = None,
    block_chars: int | None = None,
) -> Load:
    """The load of a profile: any columns of `table.SCHEMA`, at least `arrival_ns`, in order of arrival as there.

    Columns without any value are left out. Raises ValueError where the order is another one.
    """
    filled = requests.select(column for column in requests.get_columns() if column.null_count() < len(column))
    moving = filled.select(name for name in _MOVING if name in filled.columns)
    rows = np.arange(requests.height, dtype=np.int64)
    moving = moving.with_columns(pl.Series("row_of", rows), pl.lit(0, pl.Int64).alias("copy"))
    load = Load(moving, tuple(union(windows)), filled.drop(moving.columns, strict=False), zero_wall_ns, block_chars)
    if (np.diff(load.arrival_ns) < 0).any():
        raise ValueError("the requests are not in order of arrival")
    return load


def finish(load: Load) -> pl.DataFrame:
    """All columns of the shaped requests, in order of arrival, for `write_profile`; `row_of` and `copy` are dropped.

    What stays with a request is taken from `origin`; who shares which prefix is found anew.
    """
    row_of = load.requests["row_of"].to_numpy()
    stays = load.origin.drop("request", "in_flight", *_PREFIX, strict=False)[row_of]
    frames = [load.requests.drop("row_of", "copy"), stays]
    if "blocks" in load.origin.columns:
        told = load.origin.select(
            load.origin[name] if name in load.origin.columns else pl.lit(None, pl.Int64).alias(name) for name in _PREFIX
        ).with_columns(load.origin.select("system_chars") if "system_chars" in load.origin.columns else [])
        frames.append(relink(told, row_of, load.requests["copy"].to_numpy(), load.block_chars))
    return pl.concat(frames, how="horizontal")


def cut(load: Load, start_ns: int, end_ns: int) -> Load:
    """The requests that arrive in [start_ns, end_ns), which becomes the only observed time; its first instant is zero.

    Raises ValueError where nothing of it was observed.
    """
    windows = [
        (max(opened, start_ns), min(close, end_ns))
        for opened, close in load.windows
        if opened < end_ns and close > start_ns
    ]
    if not windows:
        raise ValueError("nothing was observed in this window")
    zero_ns = windows[0][0]
    first, last = np.searchsorted(load.arrival_ns, [start_ns, end_ns])
    notes = []
    if "end_ns" in load.requests.columns:
        waiting = int((load.requests["end_ns"][:first] > start_ns).sum())
        if waiting:
            notes.append(
                f"{waiting} request(s) were in flight when the window opens and are left out: the first ones in it"
                " meet fewer others than they did"
            )
    frame, halves = _kept(load, np.arange(first, last), "whose other part lies outside the window")
    return replace(
        load,
        requests=shifted(frame, np.full(frame.height, -zero_ns, np.int64)),
        windows=tuple((opened - zero_ns, close - zero_ns) for opened, close in windows),
        zero_wall_ns=None if load.zero_wall_ns is None else load.zero_wall_ns + zero_ns,
        steps=(*load.steps, {"step": "cut", "start_ns": start_ns, "end_ns": end_ns}),
        notes=(*load.notes, *notes, *halves),
    )


def only(load: Load, workloads: Sequence[str]) -> Load:
    """The requests of some classes, as an engine of their own would get them.

    Raises ValueError with the classes that there are, where one is not among them.
    """
    known = sorted(load.requests["workload"].unique())
    unknown = [name for name in workloads if name not in known]
    if unknown:
        raise ValueError(f"no request is of class {unknown[0]}; there are {', '.join(known)}")
    wanted = load.requests["workload"].is_in(list(workloads)).to_numpy()
    frame, halves = _kept(load, np.flatnonzero(wanted), "with turns of other classes")
    step = {"step": "only", "classes": list(workloads)}
    return replace(load, requests=frame, steps=(*load.steps, step), notes=(*load.notes, *halves))


def thin(load: Load, share: float, seed: int) -> Load:
    """Each session with the probability `share`, whole. Sessions are drawn in order of first appearance.

    Raises ValueError for a share outside 0 … 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"a share lies above 0 and is at most 1, not {share:g}")
    session, count = session_keys(load.requests)
    drawn = np.random.default_rng(seed).random(count) < share
    frame = pick(load.requests, np.flatnonzero(drawn[session]))
    step = {"step": "thin", "share": share, "seed": seed, "sessions": int(drawn.sum()), "of": count}
    return replace(load, requests=frame, steps=(*load.steps, step))


def superpose(load: Load, users: int, seed: int, *, offsets_ns: Sequence[int] | None = None) -> Load:
    """`users` copies, laid over each other. Copy 0 stays as it is; the others are shifted in a circle.

    An offset is drawn for each copy, evenly over the observed time, and is that much of observed time: what runs over
    the end comes in again at the start, and gaps between windows stay empty. So the number of requests is `users`
    times the recorded one, and each copy keeps its bursts. `offsets_ns` sets the offsets of copies 1, 2, … by hand.

    A copy shares no prefix with another one beyond the system prompt: other users bring other texts. Where the length
    of system prompts is not known, it shares none.

    Raises ValueError without observed time, or for less than one copy.
    """
    total_ns = sum(close - opened for opened, close in load.windows)
    if not total_ns:
        raise ValueError("nothing says when these requests arrived, so they cannot be laid over each other")
    if users < 1:
        raise ValueError(f"at least one copy is needed, not {users}")
    if offsets_ns is None:
        drawn = np.random.default_rng(seed).integers(0, total_ns, users - 1)
        offsets_ns = [int(offset) for offset in drawn]
    rows = load.requests.height
    stride = int(load.requests["copy"].to_numpy().max(initial=0)) + 1
    halves, sessions = 0, _sessions_end(load.requests)
    copies = [load.requests]
    for number, offset_ns in enumerate(offsets_ns, start=1):
        by_ns = _circle(load.windows, load.arrival_ns, offset_ns) - load.arrival_ns
        frame, cut_in_two = split(load.requests, by_ns)
        halves += cut_in_two
        frame = raised(frame, rows=number * rows, sessions=sessions)
        sessions = _sessions_end(frame)
        copies.append(shifted(frame, by_ns).with_columns(pl.col("copy") + number * stride))
    frame = _in_order(pl.concat(copies))
    step = {"step": "superpose", "users": users, "seed": seed, "offsets_ns": list(offsets_ns)}
    notes = [_halves(halves, "which run over the end of a window in their copy")] if halves else []
    return replace(load, requests=frame, steps=(*load.steps, step), notes=(*load.notes, *notes))


def compress(load: Load, rate: float) -> Load:
    """Sessions start `rate` times as often; think times and durations stay. A rate below 1 stretches.

    Windows shrink with the starts. One is then prolonged until the last turn of its sessions has arrived, since a
    session takes as long as before.

    Raises ValueError for a rate that is not above 0.
    """
    if not 0 < rate < float("inf"):
        raise ValueError(f"a rate is above 0, not {rate:g}")
    session, count = session_keys(load.requests)
    start_ns = load.arrival_ns[_first_rows(session, count)][session]
    moved_start_ns = np.round(start_ns / rate).astype(np.int64)
    frame = shifted(load.requests, moved_start_ns - start_ns)
    home = np.searchsorted([opened for opened, _ in load.windows], start_ns, side="right") - 1
    arrivals = pl.DataFrame({"home": home, "start_ns": start_ns, "at_ns": frame["arrival_ns"]})
    last_ns = dict(arrivals.group_by("home").agg(pl.col("at_ns").max()).iter_rows())
    windows = []
    prolonged_ns = 0
    for at, (opened, close) in enumerate(load.windows):
        close_ns = round(close / rate)
        # A recorded turn after the close was not observed, and need not be now.
        late_ns = max(0, min(last_ns.get(at, 0) + 1, close) - close_ns) if rate > 1 else 0
        prolonged_ns += late_ns
        windows.append((round(opened / rate), close_ns + late_ns))
    notes = [f"windows are prolonged by {prolonged_ns / 1e9:.1f} s for the last turns"] if prolonged_ns else []
    return replace(
        load,
        requests=_in_order(frame),
        windows=tuple(union(windows)),
        steps=(*load.steps, {"step": "compress", "rate": rate}),
        notes=(*load.notes, *notes),
    )


def closed_mix(load: Load, c: int, seed: int, weights: dict[str, float] | None = None) -> Load:
    """c slots, each of which takes the next session of a shuffled list as soon as it is free.

    `weights` are the classes' shares of the *requests*; left out, they are the recorded ones. In-flight shares follow
    by themselves: a class of long requests fills more slots. A session counts for the class of its first request.
    Sessions are drawn without repetition, as many as the scarcest class allows, and stratified: up to any point of the
    list each class has its share to within one request, or one session where those are longer.

    A slot sends one request at a time: the turns of a session follow each other without think time, and branches wait
    for each other, so that c requests are in flight until the list runs out. Without ends the list alone is made: its
    requests follow each other, and no window claims that this was seen.

    Raises ValueError for c below 1, and for weights that name no class or are not above 0.
    """
    if c < 1:
        raise ValueError(f"at least one slot is needed, not {c}")
    session, count = session_keys(load.requests)
    sizes = np.bincount(session, minlength=count)
    classes = load.requests["workload"].gather(_first_rows(session, count)).to_numpy()
    wanted = _weights(weights, classes, sizes)
    drawn = stratify(classes, sizes, wanted, np.random.default_rng(seed))
    by_session = np.argsort(session, kind="stable")
    ends, lengths = np.cumsum(sizes), sizes[drawn]
    starts = np.cumsum(lengths) - lengths
    rows = by_session[np.arange(lengths.sum()) + np.repeat(ends[drawn] - lengths - starts, lengths)]
    frame = pick(load.requests, rows)
    arrival_ns = frame["arrival_ns"].to_numpy()
    windows: list[Window] = []
    if "end_ns" in frame.columns and not frame["end_ns"].null_count():
        last_ns = frame["end_ns"].to_numpy() - arrival_ns
        before_ns = np.cumsum(last_ns) - last_ns
        held_ns = np.add.reduceat(last_ns, starts)
        slot_ns = _slots(c, held_ns)
        by_ns = np.repeat(slot_ns - before_ns[starts], lengths) + before_ns - arrival_ns
        windows.append((0, int((slot_ns + held_ns).max())))
    else:
        by_ns = np.arange(len(rows)) * NOMINAL_STEP_NS - arrival_ns
        frame = frame.drop("dispatch_ns", "first_token_ns", "end_ns", strict=False)
    frame = _in_order(shifted(frame.drop("think_ns", "think_kind", strict=False), by_ns))
    step = {"step": "closed_mix", "c": c, "seed": seed, "weights": wanted, "sessions": len(drawn), "of": count}
    left = count - len(drawn)
    notes = [f"{left} of {count} sessions do not fit the weights and are left out"] if left else []
    return replace(
        load,
        requests=frame,
        windows=tuple(windows),
        zero_wall_ns=None,
        steps=(*load.steps, step),
        notes=(*load.notes, *notes),
    )


def stratify(
    classes: NDArray[Any], sizes: Ints, weights: dict[str, float], random: np.random.Generator
) -> NDArray[np.int64]:
    """Indices of sessions in the order in which they are sent, classes mixed evenly by `weights` of requests.

    `sizes` counts the requests of each session. A class whose weight is its share of N requests in all gets N times
    it, rounded; N is as large as the scarcest class allows.
    """
    names = sorted(weights)
    own = {name: random.permutation(np.flatnonzero(classes == name)) for name in names}
    total = int(min(sizes[own[name]].sum() / weights[name] for name in names) + 1e-9)
    indices, places = [], []
    for name, quota in _dealt(total, weights).items():
        upto = np.cumsum(sizes[own[name]])
        fits = int(np.searchsorted(upto, quota, side="right"))
        chosen, upto = own[name][:fits], upto[:fits]
        held = int(upto[-1]) if fits else 0
        # Each session lies anywhere in its own stretch of the list, so that no beat arises between the classes.
        places.append((upto - sizes[chosen] * random.random(fits)) / max(held, 1))
        indices.append(chosen)
    order = np.argsort(np.concatenate(places), kind="stable")
    return np.asarray(np.concatenate(indices)[order], np.int64)


def _dealt(total: int, weights: dict[str, float]) -> dict[str, int]:
    dealt = {name: int(total * weight + 1e-9) for name, weight in weights.items()}
    by_rest = sorted(weights, key=lambda name: (dealt[name] - total * weights[name], name))
    for name in by_rest[: total - sum(dealt.values())]:
        dealt[name] += 1
    return dealt


def _weights(weights: dict[str, float] | None, classes: NDArray[Any], sizes: Ints) -> dict[str, float]:
    known = sorted(set(classes.tolist()))
    if not known:
        raise ValueError("there are no requests to mix")
    if weights is None:
        weights = {name: float(sizes[classes == name].sum()) for name in known}
    for name, weight in weights.items():
        if name not in known:
            raise ValueError(f"no session is of class {name}; there are {', '.join(known)}")
        if not 0 < weight < float("inf"):
            raise ValueError(f"the weight of {name} must be above 0, not {weight:g}")
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _slots(c: int, held_ns: Ints) -> Ints:
    """When each session starts, if each takes the slot that is free first."""
    free = [0] * c
    heapify(free)
    starts = np.empty(len(held_ns), np.int64)
    for at, held in enumerate(held_ns.tolist()):
        starts[at] = free[0]
        heapreplace(free, free[0] + held)
    return starts


def _circle(windows: Sequence[Window], at_ns: Ints, offset_ns: int) -> Ints:
    """Instants after a shift by so much observed time, where the end of the last window is the start of the first.

    One that was not observed keeps its distance from the window before it.
    """
    opens = np.array([opened for opened, _ in windows], np.int64)
    lengths = np.array([close for _, close in windows], np.int64) - opens
    until = np.cumsum(lengths)
    before = until - lengths
    window = np.clip(np.searchsorted(opens, at_ns, side="right") - 1, 0, None)
    inside = np.clip(at_ns - opens[window], 0, lengths[window])
    beyond = at_ns - opens[window] - inside
    moved = (before[window] + inside + offset_ns) % until[-1]
    home = np.searchsorted(until, moved, side="right")
    return np.asarray(opens[home] + moved - before[home] + beyond, np.int64)


def _in_order(frame: pl.DataFrame) -> pl.DataFrame:
    return pick(frame, np.argsort(frame["arrival_ns"].to_numpy(), kind="stable"))


def _sessions_end(frame: pl.DataFrame) -> int:
    """A number above those of all sessions."""
    return int(frame["session"].drop_nulls().to_numpy().max(initial=-1)) + 1 if "session" in frame.columns else 0


def _first_rows(session: Ints, count: int) -> Ints:
    first = np.empty(count, np.int64)
    first[session[::-1]] = np.arange(len(session))[::-1]  # the first row of each is written last
    return first


def _kept(load: Load, rows: Ints, why: str) -> tuple[pl.DataFrame, list[str]]:
    """Some rows, with what leads to the others taken away, and a note on the sessions that were cut."""
    notes = []
    if "session" in load.requests.columns:
        session, count = session_keys(load.requests)
        before, after = np.bincount(session, minlength=count), np.bincount(session[rows], minlength=count)
        if halves := int(((after > 0) & (after < before)).sum()):
            notes.append(_halves(halves, why))
    return pick(load.requests, rows), notes


def _halves(count: int, why: str) -> str:
    return f"{count} session(s) are cut in two, {why}: their later turns follow no answer"
