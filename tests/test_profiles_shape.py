"""Shaping: what stays whole, what the numbers become, and that the reference's effects of scaling come out."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.arrivals import measure_arrivals
from profiles.shape import Load, closed_mix, compress, cut, finish, load_of, only, stratify, superpose, thin
from profiles.sweep import others_at_start

SHARED = Path(__file__).parents[2] / "shared" / "traces"
S = 1_000_000_000


def chain(
    session: int | None, start: int, thinks: Sequence[int], first_row: int, workload: str = "chat"
) -> list[dict[str, Any]]:
    """The turns of one session, each 1 s long, `thinks` seconds apart."""
    rows: list[dict[str, Any]] = []
    at = start
    for turn, think in enumerate([0, *thinks]):
        at += think if turn == 0 else think + 1
        rows.append(
            {
                "arrival_ns": at * S,
                "end_ns": (at + 1) * S,
                "workload": workload,
                "session": session,
                "turn": turn if session is not None else None,
                "parent": first_row + turn - 1 if turn else None,
                "link": "exact_reply" if turn else "root",
                "think_ns": think * S if turn else None,
                "think_kind": "human" if turn else None,
                "deps": None,
                "input_chars": 100 * len(rows) + start,
            }
        )
    return rows


def in_order(rows: list[dict[str, Any]], windows: Sequence[tuple[int, int]] = ((0, 100),), **more: Any) -> Load:
    """A load of rows whose parents are positions in the list."""
    order = sorted(range(len(rows)), key=lambda at: rows[at]["arrival_ns"])
    place = {at: row for row, at in enumerate(order)}
    for row in rows:
        if row["parent"] is not None:
            row["parent"] = place[row["parent"]]
    frame = pl.DataFrame([rows[at] for at in order], infer_schema_length=None)
    return load_of(frame, [(opened * S, close * S) for opened, close in windows], **more)


def three_sessions() -> Load:
    """Two chats that overlap, and a request that stands alone."""
    rows = chain(0, 10, [5, 7], 0) + chain(1, 12, [30], 3, "code") + chain(None, 90, [], 5, "code")
    return in_order(rows)


def thinks_hold(load: Load) -> bool:
    """Whether each turn arrives its think time after its parent's end, in its parent's session."""
    frame = load.requests
    if "parent" not in frame.columns:
        return True
    turns = frame.filter(pl.col("parent").is_not_null())
    parents = frame[turns["parent"].to_numpy()]
    return bool(
        (turns["arrival_ns"] - parents["end_ns"] == turns["think_ns"]).all()
        and (turns["session"] == parents["session"]).all()
        and (turns["turn"] == parents["turn"] + 1).all()
    )


def is_dense(load: Load) -> bool:
    seen = load.requests["session"].drop_nulls().unique(maintain_order=True).to_list()
    return seen == list(range(len(seen)))


# --- The reference.


def azure(name: str) -> Load:
    path = SHARED / "data" / "azure" / f"AzureLLMInferenceTrace_{name}.csv"
    if not path.is_file():
        pytest.skip(f"the public traces are not at {SHARED}")
    instants = []
    for line in path.read_text().splitlines()[1:]:
        whole, _, fraction = line.partition(",")[0].partition(".")
        instants.append(int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * S + int(fraction.ljust(9, "0")))
    arrival_ns = np.sort(np.array(instants))
    arrival_ns -= arrival_ns[0]
    return load_of(pl.DataFrame({"arrival_ns": arrival_ns}), [(0, int(arrival_ns[-1]) + 1)])


@pytest.mark.parametrize("name", ["conv", "code"])
@pytest.mark.parametrize(
    ("effect", "made", "tolerance"),
    [
        ("original", lambda load, span: load, 1e-12),
        ("time compressed x2", lambda load, span: compress(load, 2), 1e-12),
        (
            "superposed x2 (second copy shifted by half the span)",
            lambda load, span: superpose(load, 2, 0, offsets_ns=[span // 2]),
            1e-9,
        ),
        # There the last arrival of the first copy wraps to its start; here that copy stays as it is.
        (
            "superposed x4",
            lambda load, span: superpose(load, 4, 0, offsets_ns=[span * i // 4 for i in (1, 2, 3)]),
            3e-3,
        ),
        ("each request doubled at the same instant", lambda load, span: superpose(load, 2, 0, offsets_ns=[0]), 1e-12),
        ("thinned 0.5 at random", lambda load, span: thin(load, 0.5, 0), 1e-12),
    ],
)
def test_scaling_has_the_effects_of_the_reference(name: str, effect: str, made: Any, tolerance: float) -> None:
    load = azure(name)
    reference = json.loads((SHARED / "reference" / "burstiness_scaling.json").read_text())[f"azure_{name}"]["scaling"]
    after = made(load, int(load.arrival_ns[-1]))
    measured = measure_arrivals(after.arrival_ns, after.windows)
    assert measured is not None
    assert measured.iat_cv == pytest.approx(reference[effect]["iat_cv"], rel=tolerance)
    assert measured.dispersion["1"] == pytest.approx(reference[effect]["disp_1s"], rel=tolerance)
    assert measured.dispersion["10"] == pytest.approx(reference[effect]["disp_10s"], rel=tolerance)
    # The reference divides n by the span, we divide n − 1.
    assert measured.rate_per_s == pytest.approx(reference[effect]["rate"], rel=2e-3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["conv", "code"])
def test_more_users_make_traffic_smoother(name: str, seed: int) -> None:
    load = azure(name)
    twice = superpose(load, 2, seed)
    before, after = (measure_arrivals(each.arrival_ns, each.windows) for each in (load, twice))
    assert twice.requests.height == 2 * load.requests.height
    assert after is not None
    assert before is not None
    assert (after.iat_cv or 0) < (before.iat_cv or 0)


# --- Each step.


def test_a_cut_keeps_exactly_what_arrives_in_it() -> None:
    load = three_sessions()
    after = cut(load, 12 * S, 43 * S)
    assert after.arrival_ns.tolist() == [0, 4 * S, 12 * S]
    assert after.windows == ((0, 31 * S),)
    assert after.requests["row_of"].to_list() == [1, 2, 3]
    # The first turn of session 0 lies before the cut, the second turn of session 1 at its end, which is outside.
    assert after.requests["turn"].to_list() == [0, 0, 1]
    assert after.requests["parent"].to_list() == [None, None, 1]
    assert after.requests["link"].to_list() == ["root", "root", "exact_reply"]
    assert after.requests["think_ns"].to_list() == [None, None, 7 * S]
    assert thinks_hold(after)
    assert is_dense(after)
    assert any("2 session(s) are cut in two" in note for note in after.notes)


def test_a_cut_leaves_out_who_is_in_flight_and_says_so() -> None:
    after = cut(three_sessions(), 10 * S + S // 2, 13 * S)
    assert after.requests.height == 1
    assert any(note.startswith("1 request(s) were in flight") for note in after.notes)


def test_a_cut_moves_the_wall_clock_and_keeps_gaps() -> None:
    load = in_order(three_sessions_rows(), ((0, 20), (40, 100)), zero_wall_ns=1_000 * S)
    after = cut(load, 10 * S, 95 * S)
    assert after.zero_wall_ns == 1_010 * S
    assert after.windows == ((0, 10 * S), (30 * S, 85 * S))


def three_sessions_rows() -> list[dict[str, Any]]:
    return chain(0, 10, [5, 7], 0) + chain(1, 12, [30], 3, "code") + chain(None, 90, [], 5, "code")


def test_nothing_observed_cannot_be_cut_out() -> None:
    with pytest.raises(ValueError, match="nothing was observed"):
        cut(three_sessions(), 200 * S, 300 * S)


def test_thinning_keeps_sessions_whole() -> None:
    load = in_order([row for at in range(200) for row in chain(at, at, [3, 4], 3 * at)], ((0, 400),))
    after = thin(load, 0.3, 5)
    sizes = after.requests.group_by("session").len()["len"]
    assert set(sizes) == {3}
    assert len(sizes) == after.steps[-1]["sessions"] == pytest.approx(60, abs=20)
    assert thinks_hold(after)
    assert is_dense(after)
    assert after.windows == load.windows
    assert after.requests.equals(thin(load, 0.3, 5).requests)
    assert not after.requests.equals(thin(load, 0.3, 6).requests)


def test_requests_without_a_session_are_thinned_one_by_one() -> None:
    load = in_order([row for at in range(100) for row in chain(None, at, [], at)])
    assert 20 < thin(load, 0.5, 1).requests.height < 80


def test_copies_go_round_in_a_circle_and_a_session_over_the_end_is_cut_and_counted() -> None:
    after = superpose(three_sessions(), 2, 0, offsets_ns=[80 * S])
    copy = after.requests.filter(pl.col("copy") == 1)
    # Session 0 (10, 16, 24 s) comes to 90, 96 and, round the end, 4 s. Session 1 (12, 43) comes to 92 and 23.
    assert [at // S for at in copy["arrival_ns"]] == [4, 23, 70, 90, 92, 96]
    assert after.requests.height == 2 * 6
    assert copy["turn"].to_list() == [0, 0, None, 0, 0, 1]
    assert thinks_hold(after)
    assert is_dense(after)
    assert any(note.startswith("2 session(s) are cut in two") for note in after.notes)
    assert after.requests["session"].n_unique() == 2 + 4 + 1  # with null


def test_a_shift_goes_over_a_gap_and_no_copy_lies_in_it() -> None:
    rows = [row for at, start in enumerate((1, 5, 9, 40, 45)) for row in chain(None, start, [], at)]
    after = superpose(in_order(rows, ((0, 10), (40, 50))), 2, 0, offsets_ns=[4 * S])
    copy = after.requests.filter(pl.col("copy") == 1)
    assert sorted(at // S for at in copy["arrival_ns"]) == [5, 9, 43, 44, 49]


def test_a_copy_of_copies_is_another_user() -> None:
    twice = superpose(three_sessions(), 2, 0, offsets_ns=[3 * S])
    four = superpose(twice, 2, 0, offsets_ns=[7 * S])
    assert sorted(four.requests["copy"].unique()) == [0, 1, 2, 3]
    assert thinks_hold(four)


def test_load_without_windows_cannot_be_laid_over_itself() -> None:
    with pytest.raises(ValueError, match="nothing says when"):
        superpose(in_order(three_sessions_rows(), ()), 2, 0)


def test_compression_moves_starts_and_keeps_think_times() -> None:
    after = compress(three_sessions(), 2)
    starts = after.requests.filter(pl.col("turn").is_null() | (pl.col("turn") == 0))["arrival_ns"]
    assert [start // S for start in starts] == [5, 6, 45]
    assert thinks_hold(after)
    assert after.windows == ((0, 50 * S),)


def test_a_window_is_prolonged_for_the_last_turn() -> None:
    after = compress(in_order(chain(0, 60, [30], 0)), 2)
    assert after.arrival_ns.tolist() == [30 * S, 61 * S]
    assert after.windows == ((0, 61 * S + 1),)
    assert after.notes


def test_only_some_classes_are_kept() -> None:
    after = only(three_sessions(), ["code"])
    assert after.requests["workload"].unique().to_list() == ["code"]
    assert after.requests.height == 3
    assert thinks_hold(after)
    with pytest.raises(ValueError, match="no request is of class rag; there are chat, code"):
        only(three_sessions(), ["rag"])


# --- The closed loop.


def singles(counts: dict[str, int], length: int = 2) -> Load:
    rows: list[dict[str, Any]] = []
    for name, count in counts.items():
        for _ in range(count):
            at = len(rows)
            rows.append(chain(None, at, [], at, name)[0] | {"end_ns": (at + length) * S})
    return in_order(rows, ((0, 10_000),))


def test_a_closed_mix_keeps_all_slots_busy() -> None:
    after = closed_mix(singles({"chat": 40, "code": 40}), 8, 1)
    assert np.bincount(after.arrival_ns // S).tolist() == [8, 0] * 9 + [8]
    assert after.windows == ((0, 20 * S),)


@given(
    counts=st.dictionaries(st.sampled_from("abcd"), st.integers(3, 60), min_size=1),
    weights=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_shares_of_a_mix_lie_within_one_request_of_the_weights_up_to_any_point(
    counts: dict[str, int], weights: list[int], seed: int
) -> None:
    names = sorted(counts)
    wanted = {name: weight / sum(weights[: len(names)]) for name, weight in zip(names, weights, strict=False)}
    classes = np.array([name for name in names for _ in range(counts[name])])
    drawn = stratify(classes, np.ones(len(classes), np.int64), wanted, np.random.default_rng(seed))
    assert len(set(drawn.tolist())) == len(drawn)
    sent = classes[drawn]
    for name in names:
        held = int((sent == name).sum())
        assert abs(held - wanted[name] * len(drawn)) <= 1
        assert held <= counts[name]
        places = np.arange(1, len(drawn) + 1)
        assert (np.abs(np.cumsum(sent == name) - places * held / max(len(drawn), 1)) <= len(names)).all()


def test_sessions_of_a_mix_stay_whole_and_hold_one_slot() -> None:
    load = in_order(chain(0, 0, [5, 7], 0) + chain(1, 50, [2], 3) + chain(2, 60, [1], 5))
    after = closed_mix(load, 1, 4)
    assert after.requests.height == load.requests.height
    assert after.windows == ((0, 7 * S),)  # seven requests of a second, and no think time between them


def test_without_ends_a_mix_is_an_order_and_claims_no_time() -> None:
    load = load_of(singles({"chat": 6, "code": 2}).requests.drop("end_ns", "row_of", "copy"), [(0, 99 * S)])
    after = closed_mix(load, 8, 1, {"chat": 1, "code": 1})
    assert after.windows == ()
    assert after.arrival_ns.tolist() == [at * S for at in range(4)]
    assert after.requests["workload"].value_counts().sort("workload").rows() == [("chat", 2), ("code", 2)]
    assert after.notes == ("4 of 8 sessions do not fit the weights and are left out",)


@pytest.mark.parametrize("weights", [{"rag": 1.0}, {"chat": 0.0}])
def test_wrong_weights_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"rag|above 0"):
        closed_mix(singles({"chat": 3}), 8, 0, weights)


# --- Shared prefixes.


def with_prefixes() -> Load:
    """Two sessions with one system prompt of 2 blocks; each goes on in its second turn, and one is alone."""
    frame = pl.DataFrame(
        {
            "arrival_ns": [at * S for at in range(5)],
            "end_ns": [at * S + 1 for at in range(5)],
            "workload": ["chat"] * 5,
            "session": [0, 1, 0, 1, 2],
            "turn": [0, 0, 1, 1, 0],
            "parent": [None, None, 0, 1, None],
            "think_ns": [None, None, 2 * S - 1, 2 * S - 1, None],
            "system_chars": [130, 130, 130, 130, 0],
            "blocks": [5, 6, 9, 10, None],
            "prefix_ref": [None, 0, 0, 1, None],
            "prefix_blocks": [0, 2, 5, 6, None],
        }
    )
    return load_of(frame, [(0, 10 * S)], block_chars=64)


def links(load: Load) -> list[tuple[int | None, int | None]]:
    return finish(load).select("prefix_ref", "prefix_blocks").rows()


def test_prefixes_come_out_as_they_went_in() -> None:
    assert links(with_prefixes()) == [(None, 0), (0, 2), (0, 5), (1, 6), (None, None)]


def test_a_prefix_is_found_with_another_request_when_its_first_one_has_gone() -> None:
    assert links(cut(with_prefixes(), 1 * S, 9 * S)) == [(None, 0), (0, 2), (0, 6), (None, None)]


def test_copies_share_the_system_prompt_and_no_more() -> None:
    after = superpose(with_prefixes(), 2, 0, offsets_ns=[5 * S])
    found = links(after)
    assert found[:5] == [(None, 0), (0, 2), (0, 5), (1, 6), (None, None)]
    assert found[5:] == [(3, 2), (5, 2), (5, 5), (6, 6), (None, None)]


def test_without_the_length_of_system_prompts_copies_share_nothing() -> None:
    load = with_prefixes()
    tokens = load_of(finish(load), load.windows)
    assert links(superpose(tokens, 2, 0, offsets_ns=[5 * S]))[5:] == [(None, 0), (5, 2), (5, 5), (6, 6), (None, None)]


def test_dependencies_follow_their_rows() -> None:
    frame = pl.DataFrame({"arrival_ns": [0, S, 2 * S, 3 * S], "deps": [None, [0], None, [0, 1, 2]], "session": [0] * 4})
    load = load_of(frame, [(0, 10 * S)])
    assert cut(load, S, 9 * S).requests["deps"].to_list() == [None, None, [0, 1]]
    after = superpose(load, 2, 0, offsets_ns=[5 * S])
    assert after.requests["deps"].to_list()[4:] == [None, [4], None, [4, 5, 6]]


# --- Any load.


@st.composite
def loads(draw: st.DrawFn) -> Load:
    rows: list[dict[str, Any]] = []
    for session in range(draw(st.integers(1, 6))):
        start, thinks = draw(st.integers(0, 80)), draw(st.lists(st.integers(0, 30), max_size=3))
        alone = draw(st.booleans()) and not thinks
        rows += chain(None if alone else session, start, thinks, len(rows), draw(st.sampled_from(["chat", "code"])))
    return in_order(rows, draw(st.sampled_from([((0, 300),), ((0, 40), (60, 300))])))


STEPS = {
    "thin": lambda load, seed: thin(load, 0.5, seed),
    "superpose": lambda load, seed: superpose(load, 3, seed),
    "compress": lambda load, seed: compress(load, 1 + seed % 4),
    "cut": lambda load, seed: cut(load, seed * S, (seed + 60) * S),
    "mix": lambda load, seed: closed_mix(load, 2, seed),
}


@given(load=loads(), c=st.integers(1, 4), seed=st.integers(0, 9))
def test_a_mix_never_has_more_in_flight_than_it_has_slots(load: Load, c: int, seed: int) -> None:
    after = closed_mix(load, c, seed)
    start_ns, end_ns = (after.requests[name].to_numpy() for name in ("arrival_ns", "end_ns"))
    assert others_at_start(start_ns, end_ns).max(initial=0) < c


@given(load=loads(), seed=st.integers(0, 35), step=st.sampled_from(sorted(STEPS)))
@settings(max_examples=150, deadline=None)
def test_whatever_is_done_order_think_times_and_numbers_hold(load: Load, seed: int, step: str) -> None:
    after = STEPS[step](load, seed)
    assert (np.diff(after.arrival_ns) >= 0).all()
    if "think_ns" in after.requests.columns:  # a mix has none
        assert thinks_hold(after)
    if "session" in after.requests.columns and after.requests.height:
        assert is_dense(after)
        starts = after.requests.filter(pl.col("session").is_not_null()).group_by("session").agg(pl.col("turn").min())
        assert set(starts["turn"]) <= {0}
    if step == "superpose":
        assert after.requests.height == 3 * load.requests.height
    durations = after.requests["end_ns"] - after.requests["arrival_ns"]
    assert set(durations) <= {S}
    assert after.requests.equals(STEPS[step](load, seed).requests)
