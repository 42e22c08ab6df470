"""Overrides on recorded bodies: what is named changes, everything else stays byte for byte."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_replay_schedule import row

from profiles.errors import FirsttokenError
from replay.bodies import Override, make_template, prepare, replayable, sendable

BODY = (
    b'{"model": "recorded",  "messages":[ {"role":"user", "content":"k\\u00f6sz\\u2028\\ud83d\\ude42 1.0"} ],'
    b'"temperature":0.70}'
)


def test_values_that_no_override_names_are_copied_as_bytes() -> None:
    sent = prepare(BODY, Override(cache_isolation="none", output_length="natural"), pass_name="w", output_tokens=9)
    assert b'[ {"role":"user", "content":"k\\u00f6sz\\u2028\\ud83d\\ude42 1.0"} ]' in sent
    assert sent == (
        b'{"model": "recorded",  "messages":[ {"role":"user", "content":"k\\u00f6sz\\u2028\\ud83d\\ude42 1.0"} ],'
        b'"temperature":0.70,"stream":true,"stream_options":{"include_usage":true}}'
    )
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
        ("capped", b'{"max_tokens": 1, "max_completion_tokens": 2}', {"max_tokens": 42, "max_completion_tokens": 42}),
    ],
)
def test_output_length_policies(policy: str, body: bytes, expected: dict[str, object]) -> None:
    override = Override(cache_isolation="none", output_length=policy)
    sent = orjson.loads(prepare(body, override, pass_name="w", output_tokens=42))
    assert sent == {"stream": True, "stream_options": {"include_usage": True}} | expected


def test_the_other_stream_options_of_a_request_stay() -> None:
    body = b'{ "stream_options" : {"continuous_usage_stats":  true,"include_usage":false} , "stream":false}'
    override = Override(cache_isolation="none", output_length="natural")
    sent = prepare(body, override, pass_name="w", output_tokens=None)
    assert sent == b'{ "stream_options" : {"continuous_usage_stats":  true,"include_usage":true} , "stream":true}'
    nothing = prepare(b'{"stream_options": null}', override, pass_name="w", output_tokens=None)
    assert orjson.loads(nothing)["stream_options"] == {"include_usage": True}


def test_a_key_that_stands_twice_is_replaced_in_both_places() -> None:
    override = Override(model="new", cache_isolation="reset", output_length="natural")
    sent = prepare(b'{"model":"a","x":1,"model":"b","stream":true}', override, pass_name="w", output_tokens=None)
    assert sent.startswith(b'{"model":"new","x":1,"model":"new","stream":true,')


def test_a_reset_changes_nothing_in_the_body() -> None:
    body = b'{"cache_salt":"tenant","messages":[{"role":"user","content":"U"}]}'
    reset = Override(cache_isolation="reset", output_length="natural")
    sent = orjson.loads(prepare(body, reset, pass_name="w", output_tokens=None))
    assert sent == orjson.loads(body) | {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("endpoint", "policy", "expected"),
    [
        ("completions", "forced", {"max_tokens": 7, "min_tokens": 7, "ignore_eos": True}),
        ("responses", "capped", {"max_output_tokens": 7}),
        ("responses", "forced", {"max_output_tokens": 7, "ignore_eos": True}),
        ("messages", "capped", {"max_tokens": 7}),
    ],
)
def test_each_endpoint_has_its_own_words(endpoint: str, policy: str, expected: dict[str, object]) -> None:
    override = Override(cache_isolation="none", output_length=policy)
    sent = orjson.loads(prepare(b"{}", override, pass_name="w", output_tokens=7, endpoint=endpoint))
    usage = {"stream_options": {"include_usage": True}} if endpoint == "completions" else {}
    assert sent == {"stream": True} | usage | expected
    named = set(override.stated()["keys"][endpoint])
    assert named == {"stream", *expected, *(["stream_options.include_usage"] if usage else [])}


@pytest.mark.parametrize(
    ("endpoint", "body", "head"),
    [
        ("completions", b'{"prompt":"P"}', {"prompt": "[w] P"}),
        ("completions", b'{"prompt":["P","Q"]}', {"prompt": ["[w] P", "[w] Q"]}),
        ("responses", b'{"input":"I"}', {"input": "[w] I"}),
        ("responses", b'{"instructions":"S","input":"I"}', {"instructions": "[w] S", "input": "I"}),
        (
            "responses",
            b'{"input":[{"type":"function_call","name":"f"},{"role":"user","content":[]}]}',
            {
                "input": [
                    {"type": "function_call", "name": "f"},
                    {"role": "user", "content": [{"type": "input_text", "text": "[w] "}]},
                ]
            },
        ),
        ("messages", b'{"system":"S","messages":[]}', {"system": "[w] S", "messages": []}),
        (
            "messages",
            b'{"system":[{"type":"text","text":"S"}]}',
            {"system": [{"type": "text", "text": "[w] "}, {"type": "text", "text": "S"}]},
        ),
        (
            "messages",
            b'{"messages":[{"role":"user","content":"U"}]}',
            {"messages": [{"role": "user", "content": "[w] U"}]},
        ),
    ],
)
def test_a_nonce_stands_where_the_conversation_of_its_endpoint_begins(
    endpoint: str, body: bytes, head: dict[str, object]
) -> None:
    override = Override(cache_isolation="nonce", output_length="natural")
    sent = orjson.loads(prepare(body, override, pass_name="w", output_tokens=None, endpoint=endpoint))
    assert {key: value for key, value in sent.items() if key in head} == head


def test_a_prompt_of_token_ids_can_carry_no_nonce() -> None:
    with pytest.raises(FirsttokenError, match="list of token ids") as caught:
        prepare(
            b'{"prompt":[1,2]}',
            Override(cache_isolation="nonce"),
            pass_name="w",
            output_tokens=None,
            endpoint="completions",
        )
    assert "salt" in caught.value.hint


def test_what_cannot_be_overridden_is_left_out_and_counted() -> None:
    rows = [
        row(0),
        row(1, endpoint="messages"),
        row(2, endpoint="responses"),
        row(3, endpoint="responses"),
        row(4, outcome="error"),
        row(5, endpoint="embeddings"),
    ]
    bodies = [(2, b'{"input":"I","previous_response_id":"resp_1"}'), (3, b'{"input":"I"}')]
    usable, left_out = sendable(rows, Override(), bodies)
    assert [kept.request for kept in usable] == [0, 3]
    assert left_out == {
        "did not end well": 1,
        "goes on from what only the recorded engine has stored": 1,
        "of an endpoint that streams no tokens": 1,
        'of /v1/messages, which takes no cache_salt (write cache_isolation = "nonce")': 1,
    }
    assert [kept.request for kept in replayable(rows, Override(cache_isolation="nonce"))] == [0, 1, 2, 3]
    forced = Override(cache_isolation="nonce", output_length="forced")
    assert [kept.request for kept in replayable(rows, forced)] == [0, 2, 3]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    ["model", "stream", "stream_options", "max_tokens", "cache_salt", "messages", "x", 'y"', "\u00f6"]
)


@given(st.dictionaries(_KEYS, _JSON, max_size=6), st.sampled_from([None, 1, 2]), st.booleans(), st.text())
def test_only_what_is_declared_differs_whatever_the_body_looks_like(
    fields: dict[str, object], indent: int | None, ascii_only: bool, pass_name: str
) -> None:
    body = json.dumps(fields, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    pass_name = pass_name.encode("utf-8", "ignore").decode()
    template = make_template(body, Override(model="m"), output_tokens=5)
    sent = json.loads(template.body(pass_name))
    options = fields.get("stream_options")
    expected = fields | {"model": "m", "stream": True, "cache_salt": pass_name}
    limit = {"max_tokens": 5}
    usage = (options if isinstance(options, dict) else {}) | {"include_usage": True}
    assert sent == expected | limit | {"stream_options": usage}
    assert [key for key in sent if key in fields] == list(fields)  # in the recorded order


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


def test_usage_in_every_event_is_asked_for_only_on_request() -> None:
    told = Override(running_usage=True)
    sent = make_template(b'{"stream_options":{"x":1}}', told, output_tokens=None).body("p")
    assert orjson.loads(sent)["stream_options"] == {"x": 1, "include_usage": True, "continuous_usage_stats": True}
    bare = orjson.loads(make_template(b"{}", told, output_tokens=None).body("p"))
    assert bare["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert told.stated()["stream_options"] == bare["stream_options"]
    quiet = orjson.loads(make_template(b"{}", Override(), output_tokens=None).body("p"))
    assert quiet["stream_options"] == {"include_usage": True}
