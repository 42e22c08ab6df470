"""Overrides on recorded bodies: what is named changes, everything else stays byte for byte."""

import orjson
import pytest
from test_replay_schedule import row

from profiles.errors import FirsttokenError
from replay.bodies import Override, prepare
from replay.boot import Load
from replay.schedule import Pick, Window

BODY = (
    b'{"model": "recorded",  "messages":[ {"role":"user", "content":"k\\u00f6sz\\u2028\\ud83d\\ude42 1.0"} ],'
    b'"temperature":0.70}'
)


def test_values_that_no_override_names_are_copied_as_bytes() -> None:
    sent = prepare(BODY, Override(cache_isolation="none", output_length="natural"), pass_name="w", output_tokens=9)
    assert b'[ {"role":"user", "content":"k\\u00f6sz\\u2028\\ud83d\\ude42 1.0"} ]' in sent
    assert b'"temperature":0.70' in sent
    assert orjson.loads(sent) == orjson.loads(BODY) | {"stream": True, "stream_options": {"include_usage": True}}


def test_the_salt_names_the_pass_and_the_model_is_replaced() -> None:
    sent = orjson.loads(prepare(BODY, Override(model="served"), pass_name="closed-c2", output_tokens=None))
    assert (sent["model"], sent["cache_salt"]) == ("served", "closed-c2")
    assert "max_tokens" not in sent  # a length that nobody recorded is not capped


@pytest.mark.parametrize(
    ("policy", "body", "expected"),
    [
        ("capped", b'{"max_tokens": 500}', {"max_tokens": 42}),
        ("capped", b'{"max_completion_tokens": 500}', {"max_completion_tokens": 42}),
        ("capped", b"{}", {"max_tokens": 42}),
        ("natural", b'{"max_tokens": 500}', {"max_tokens": 500}),
        ("forced", b"{}", {"max_tokens": 42, "min_tokens": 42, "ignore_eos": True}),
    ],
)
def test_output_length_policies(policy: str, body: bytes, expected: dict[str, object]) -> None:
    override = Override(cache_isolation="none", output_length=policy)
    sent = orjson.loads(prepare(body, override, pass_name="w", output_tokens=42))
    assert sent == {"stream": True, "stream_options": {"include_usage": True}} | expected


@pytest.mark.parametrize(
    ("body", "head"),
    [
        (b'{"messages":[{"role":"system","content":"S"},{"role":"user","content":"U"}]}', "[w] S"),
        (b'{"messages":[{"role":"user","content":null}]}', None),
        (b'{"messages":[{"role":"user"}]}', "[w] "),
    ],
)
def test_a_nonce_goes_to_the_head_of_the_conversation(body: bytes, head: str | None) -> None:
    sent = orjson.loads(prepare(body, Override(cache_isolation="nonce"), pass_name="w", output_tokens=None))
    assert sent["messages"][0]["content"] == head
    assert sent["messages"][1:] == orjson.loads(body)["messages"][1:]


def test_a_nonce_before_content_parts_is_a_part_of_its_own() -> None:
    body = b'{"messages":[{"role":"user","content":[{"type":"text","text":"U"}]}]}'
    sent = orjson.loads(prepare(body, Override(cache_isolation="nonce"), pass_name="w", output_tokens=None))
    assert sent["messages"][0]["content"] == [{"type": "text", "text": "[w] "}, {"type": "text", "text": "U"}]


def test_a_body_that_is_no_object_is_refused_with_a_reason() -> None:
    with pytest.raises(FirsttokenError, match="not a JSON object"):
        prepare(b"[1]", Override(), pass_name="w", output_tokens=None)


def test_a_window_that_goes_round_its_list_never_meets_its_own_cache() -> None:
    """A c = 8 window sends the same prompts again and again; without a salt per round it would measure the cache."""
    rows = [row(0), row(1)]
    window = Window("closed-c8", "closed", 8, False, (Pick(rows[0]), Pick(rows[1])))
    load = Load([window], {0: b'{"a":1}', 1: b'{"b":2}'}, rows, Override())
    salts = [orjson.loads(load.again(window, index).body)["cache_salt"] for index in range(5)]
    assert salts == ["closed-c8-0", "closed-c8-0", "closed-c8-1", "closed-c8-1", "closed-c8-2"]
    assert [load.again(window, index).index for index in range(5)] == [0, 1, 2, 3, 4]
    assert [load.again(window, index).request for index in range(5)] == [0, 1, 0, 1, 0]


def test_deciding_windows_share_one_pass_and_warm_up_stays_outside() -> None:
    rows = [row(0)]
    windows = [Window(f"closed-c{c}", "closed", c, True, (Pick(rows[0], c - 1),)) for c in (1, 2)]
    load = Load(windows, {0: b"{}"}, rows, Override())
    salts = [orjson.loads(load.planned(window)[0].body)["cache_salt"] for window in windows]
    assert salts == ["deciding-0", "deciding-1"]
    warm = load.warmup_request(0)
    assert orjson.loads(warm.body)["cache_salt"] == "warmup-0"
    assert not warm.measured
    assert orjson.loads(load.warmup_request(0, first=1).body)["cache_salt"] == "warmup-1"  # never a cache hit
