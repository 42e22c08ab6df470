"""What a boot is asked: which bodies are held, and which passes share a prefix cache."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from test_replay_schedule import row

from profiles.errors import FirsttokenError
from profiles.profile import ProfileRow
from replay.bodies import Override
from replay.load import Load, prepare_load
from replay.schedule import Pick, Window


def load(windows: list[Window], rows: list[ProfileRow], **override: Any) -> Load:
    bodies = [(request, b'{"n":%d}' % request) for request in range(9)]
    return prepare_load(windows, rows, Override(**override), bodies)


def salt(body: bytes) -> str:
    found = orjson.loads(body)["cache_salt"]
    assert isinstance(found, str)
    return found


def test_a_window_that_goes_round_its_list_never_meets_its_own_cache() -> None:
    """A c = 8 window sends the same prompts again and again; without a salt per round it would measure the cache."""
    rows = [row(0), row(1)]
    window = Window("closed-c8", "closed", 8, False, (Pick(rows[0]), Pick(rows[1])))
    request = load([window], rows).requests_of(window)
    sent = [request(index) for index in range(5)]
    assert [salt(each.body) for each in sent] == [f"closed-c8-{k}" for k in (0, 0, 1, 1, 2)]
    assert [each.index for each in sent] == [0, 1, 2, 3, 4]
    assert [each.request for each in sent] == [0, 1, 0, 1, 0]


def test_deciding_windows_share_one_pass_and_warm_up_stays_outside() -> None:
    rows = [row(0)]
    windows = [Window(f"closed-c{c}", "closed", c, True, (Pick(rows[0], c - 1),)) for c in (1, 2)]
    asked = load(windows, rows)
    assert [salt(asked.requests_of(window)(0).body) for window in windows] == ["deciding-0", "deciding-1"]
    warm = asked.warmup_request(0)
    assert salt(warm.body) == "warmup-0"
    assert not warm.measured
    assert salt(asked.warmup_request(0, first=1).body) == "warmup-1"  # never a cache hit
    assert salt(asked.probe().body) == "ready"  # nor is the probe one for the warm-up
    assert not asked.probe().measured


def test_requests_of_different_cache_groups_share_nothing_as_in_production() -> None:
    rows = [row(0, cache_group=0), row(1, cache_group=1), row(2, cache_group=0), row(3)]
    window = Window("closed-c1", "closed", 1, True, tuple(Pick(each) for each in rows))
    request = load([window], rows).requests_of(window)
    salts = [salt(request(index).body) for index in range(4)]
    assert salts == ["deciding-0-g0", "deciding-0-g1", "deciding-0-g0", "deciding-0"]


def test_only_the_bodies_that_are_sent_are_held() -> None:
    rows = [row(0), row(5)]
    window = Window("closed-c1", "closed", 1, True, (Pick(rows[0]),))
    assert set(load([window], [rows[1]]).templates) == {0, 5}


def test_a_body_that_is_missing_is_named() -> None:
    rows = [row(77)]
    window = Window("closed-c1", "closed", 1, True, (Pick(rows[0]),))
    with pytest.raises(FirsttokenError, match="the body of request 77 is not in the profile"):
        load([window], rows)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"output_tokens": 9}, 9),
        ({"output_tokens": 9, "outcome": None}, None),
        ({"output_tokens": 9, "n": 2}, None),
        ({}, None),
    ],
)
def test_a_length_that_nobody_recorded_cuts_nothing(changes: dict[str, Any], limit: int | None) -> None:
    rows = [row(0, **changes)]
    window = Window("closed-c1", "closed", 1, True, (Pick(rows[0]),))
    assert orjson.loads(load([window], rows).requests_of(window)(0).body).get("max_tokens") == limit


def test_each_request_goes_to_the_path_that_it_was_recorded_on() -> None:
    rows = [row(0, path="/v1/messages", endpoint="messages"), row(1, path=None, endpoint="responses")]
    window = Window("closed-c1", "closed", 1, True, tuple(Pick(each) for each in rows))
    request = load([window], rows, cache_isolation="nonce").requests_of(window)
    assert [request(0).path, request(1).path] == ["/v1/messages", "/v1/responses"]


def test_an_engine_that_is_up_already_never_meets_the_cache_of_an_earlier_boot() -> None:
    rows = [row(0)]
    made = load([Window("closed-c1", "closed", 1, True, (Pick(rows[0]),))], rows)
    boots = [replace(made, apart=f"run-{number}-") for number in (1, 2)]
    salts = {salt(boot.requests_of(boot.windows[0])(0).body) for boot in boots}
    assert salts == {"run-1-deciding-0", "run-2-deciding-0"}
