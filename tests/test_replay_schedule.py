"""Which requests a boot sends: pure tables and properties."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import RuleError
from profiles.experiment import Experiment, load_experiment
from profiles.profile import ProfileRow
from replay.bodies import Override, replayable
from replay.schedule import (
    ClosedLoop,
    Recorded,
    Window,
    choose,
    deciding_kind,
    order_of_boots,
    plan_windows,
    share_out,
)


def row(request: int, workload: str = "chat", **changes: object) -> ProfileRow:
    fields: dict[str, object] = {
        "request": request,
        "arrival_ns": request,
        "end_ns": request + 1,
        "outcome": "ok",
        "endpoint": "chat",
        "path": "/v1/chat/completions",
        "stream": True,
        "input_chars": 10,
        "messages": 1,
        "user_turns": 1,
        "tools": 0,
        "workload": workload,
        "workload_rule": "test",
        "in_flight": 0,
        "capture": 0,
        "body": True,
        "late_ns": 0,
    }
    return ProfileRow(**(fields | changes))  # type: ignore[arg-type]  # a table of defaults


DECLARED = 'operating_point = { basis = "declared", levels = { "1" = 1 }, reason = "r" }'


def experiment(tmp_path: Path, load: str, point: str = "") -> Experiment:
    path = tmp_path / "experiment.toml"
    path.write_text(
        f'[rule]\nid = "t"\n[profile]\npath = "p"\n{point}\n[engine]\nargv = ["true"]\n'
        f'[[arm]]\nname = "v0"\n[load]\n{load}'
    )
    return load_experiment(path)


def plan(
    experiment: Experiment, rows: list[ProfileRow], weights: dict[int, float], recorded: Recorded | None = None
) -> list[Window]:
    return plan_windows(experiment, rows, weights, 1, usable=replayable(rows), recorded=recorded)


def test_only_requests_that_ended_well_with_a_known_body_are_replayed() -> None:
    rows = [row(0), row(1, outcome="error"), row(2, body=False), row(3, endpoint="embeddings"), row(4)]
    assert [kept.request for kept in replayable(rows, Override())] == [0, 4]


def test_requests_are_dealt_to_levels_by_the_share_of_arrivals() -> None:
    assert share_out(12, {1: 0.6, 2: 0.4}) == {1: 7, 2: 5}
    assert share_out(400, {1: 0.61, 2: 0.27, 3: 0.12}) == {1: 244, 2: 108, 3: 48}


def test_a_level_that_too_few_requests_could_hold_is_left_out() -> None:
    assert share_out(10, {1: 0.7, 2: 0.2, 3: 0.1}) == {1: 10}
    assert share_out(40, {1: 0.7, 2: 0.2, 3: 0.1}) == {1: 31, 2: 9}
    assert share_out(5, {3: 1.0}) == {3: 5}  # the heaviest always stays


@given(st.integers(1, 500), st.dictionaries(st.integers(1, 4), st.floats(0.05, 1), min_size=1))
def test_dealing_loses_no_request_and_keeps_each_level_wide_enough(count: int, weights: dict[int, float]) -> None:
    dealt = share_out(count, weights)
    assert sum(dealt.values()) == count
    heaviest = max(weights, key=lambda c: weights[c])
    assert heaviest in dealt
    assert all(dealt[c] >= 2 * c for c in dealt if c != heaviest)


@given(
    st.lists(st.sampled_from(["chat", "json", "rag"]), min_size=1, max_size=40),
    st.integers(1, 100),
    st.integers(0, 2**32),
)
def test_a_choice_keeps_the_mix_and_the_order_and_repeats_evenly(classes: list[str], count: int, seed: int) -> None:
    rows = [row(index, workload) for index, workload in enumerate(classes)]
    sent: Counter[int] = Counter()
    chosen = choose(rows, count, (seed,), sent)
    assert len(chosen) == count
    assert chosen == choose(rows, count, (seed,))
    assert sent == Counter(pick.row.request for pick in chosen)
    shares = Counter(pick.row.workload for pick in chosen)
    for name, size in Counter(classes).items():
        assert abs(shares[name] - count * size / len(classes)) < 1.0001
        uses = [sent[one.request] for one in rows if one.workload == name]
        assert max(uses) - min(uses) <= 1  # a row comes again only when the others of its class have come as often
    order = [(pick.round, pick.row.request) for pick in chosen]
    assert order == sorted(order)
    assert len(set(order)) == count  # no row meets itself in its own round


def test_the_windows_of_one_pass_share_no_row_until_all_were_sent() -> None:
    rows = [row(index) for index in range(10)]
    sent: Counter[int] = Counter()
    first, second, third = (choose(rows, count, (1, count), sent) for count in (6, 4, 3))
    assert sorted(pick.row.request for pick in first + second) == list(range(10))
    assert {pick.round for pick in first + second} == {0}
    assert {pick.round for pick in third} == {1}


def test_deciding_windows_come_first_and_the_synthetic_one_last(tmp_path: Path) -> None:
    rule = experiment(
        tmp_path,
        'deciding = "closed"\nrequests_per_boot = 16\nsingle_requests = 2\nsweep_requests = 6\n'
        'also = ["closed c=8 for 2s", "single", "sweep c=1..2", "closed c=8 for 3s per class", "closed c=4 for 1s"]\n',
    )
    rows = [row(index, "chat" if index % 3 else "json") for index in range(30)]
    windows = plan(rule, rows, {1: 0.75, 2: 0.25})
    assert [(window.name, window.c, window.deciding, len(window.picks)) for window in windows] == [
        ("closed-c1", 1, True, 12),
        ("closed-c2", 2, True, 4),
        ("single-chat", 1, False, 2),
        ("single-json", 1, False, 2),
        ("sweep-c1", 1, False, 6),
        ("sweep-c2", 2, False, 6),
        ("closed-c4-for-1s", 4, False, 30),
        ("closed-c8-for-3s-chat", 8, False, 20),
        ("closed-c8-for-3s-json", 8, False, 10),
        ("closed-c8-for-2s", 8, False, 30),
    ]
    assert {pick.row.workload for pick in windows[3].picks} == {"json"}
    assert windows[4].picks == windows[5].picks  # one list at each c: only c differs
    assert [window.workload for window in windows[-3:]] == ["chat", "json", None]
    assert [window.limit_ns for window in windows[-3:]] == [3 * 10**9, 3 * 10**9, 2 * 10**9]
    assert len({window.name for window in windows}) == len(windows)


def test_recorded_arrivals_decide_as_they_were_recorded(tmp_path: Path) -> None:
    rule = experiment(tmp_path, "requests_per_boot = 4\nalso = []")
    second = 10**9
    rows = [row(index, arrival_ns=index * 60 * second, end_ns=index * 60 * second + second) for index in range(12)]
    rows[3] = row(3, arrival_ns=180 * second, end_ns=181 * second, outcome="error")
    (window,) = plan(rule, rows, {1: 1.0})
    assert (window.name, window.kind, window.c, window.deciding, window.pass_name) == (
        "observed", "observed", 0, True, "deciding",
    )  # fmt: skip
    assert window.starts is not None
    assert len(window.picks) == len(window.starts) == 4
    assert [start.offset_ns for start in window.starts] == [0, 6 * second, 12 * second, 18 * second]
    assert window.facts["recorded"] == 12
    assert window.widest == 1
    (timed,) = plan(experiment(tmp_path, 'deciding = "timed"\nalso = []\nrequests_per_boot = 4'), rows, {1: 1.0})
    assert timed.starts is not None
    assert [start.offset_ns // second for start in timed.starts] == [60 * k for k in range(12) if k != 3]


@pytest.mark.parametrize(
    ("load", "point", "recorded", "kind", "why"),
    [
        ("", "", Recorded(), "observed", None),
        ('deciding = "closed"', "", Recorded(), "closed", None),
        ('deciding = "timed"', DECLARED, Recorded(ends=False), "timed", None),
        ("", DECLARED, Recorded(arrivals=False), "closed", "nobody recorded these arrivals"),
        ("", DECLARED, Recorded(ends=False), "closed", "holds no ends"),
        ("", DECLARED, Recorded(), "closed", "the operating point is declared"),
    ],
)
def test_busy_periods_that_nobody_recorded_become_closed_loops_and_that_is_said(
    tmp_path: Path, load: str, point: str, recorded: Recorded, kind: str, why: str | None
) -> None:
    found, reason = deciding_kind(experiment(tmp_path, load, point), recorded)
    assert found == kind
    assert (reason is None) == (why is None)
    assert why is None or why in (reason or "")


def test_a_timeline_that_nobody_recorded_cannot_be_timed(tmp_path: Path) -> None:
    rule = experiment(tmp_path, 'deciding = "timed"', DECLARED)
    with pytest.raises(RuleError, match=r"experiment\.toml:\d+: load\.deciding: the profile was generated") as caught:
        plan(rule, [row(0)], {1: 1.0}, Recorded(arrivals=False))
    assert 'deciding = "closed"' in caught.value.hint


def test_every_arm_boots_once_per_block_and_the_order_is_random_but_seeded() -> None:
    arms = ["v0", "v1", "v2", "v0.aa"]
    order = order_of_boots(arms, 20, seed=3)
    assert all(sorted(block) == sorted(arms) for block in order)
    assert order == order_of_boots(arms, 20, seed=3)
    assert order[:5] == order_of_boots(arms, 5, seed=3)  # more blocks later do not change the ones before
    assert len({tuple(block) for block in order}) > 5
    assert order != order_of_boots(arms, 20, seed=4)


def test_a_list_is_sent_once() -> None:
    loop = ClosedLoop(3)
    assert [loop.next_index(0), loop.next_index(10), loop.next_index(10**12), loop.next_index(0)] == [0, 1, 2, None]


def test_a_limited_window_cycles_and_starts_nothing_at_its_limit() -> None:
    loop = ClosedLoop(2, limit_ns=100)
    assert [loop.next_index(at) for at in (0, 1, 99, 100, 101)] == [0, 1, 2, None, None]


def test_an_empty_list_sends_nothing_even_with_a_limit() -> None:
    assert ClosedLoop(0, limit_ns=100).next_index(0) is None
