"""Streams in the shapes that definitions trip over: what each chunk carries, and what the truth says of it."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import Engine, booted, chat, raw_events, read

from profiles.dialects import read_event
from replay.simulator.shape import PLAIN, Shape, delta_of, read_shape

WITHOUT_TOKENS = ("role", "comment", "usage", "done")
WHERE = range(40)
WORDS = [f"w{number}" for number in WHERE]


def said(deltas: list[dict[str, Any]]) -> dict[str, str]:
    """What a client puts together, by kind."""
    whole = {"reasoning": "", "reasoning_content": "", "content": "", "name": "", "arguments": ""}
    for delta in deltas:
        for name in ("reasoning", "reasoning_content", "content"):
            whole[name] += delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            whole["name"] += call["function"].get("name", "")
            whole["arguments"] += call["function"].get("arguments", "")
    return whole


# -- pure ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        (None, PLAIN),
        ("", PLAIN),
        ("reasoning:8", Shape(reasoning=8)),
        ("reasoning_content:3, tools:6", Shape(reasoning=3, reasoning_field="reasoning_content", tools=6)),
        ("k:4,early_role,comments", Shape(k=4, early_role=True, comments=True)),
        ("k:0", PLAIN),
    ],
)
def test_a_shape_is_read_from_its_list(asked: str | None, shape: Shape) -> None:
    assert read_shape(asked) == shape


@pytest.mark.parametrize("asked", ["reasoning", "tools:x", "early_role:2", "k:-1", "k:²", "pony"])
def test_what_is_no_shape_is_refused_by_name(asked: str) -> None:
    with pytest.raises(ValueError, match="firsttoken_shape"):
        read_shape(asked)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 40), st.data())
def test_every_split_of_an_answer_says_the_same_whole(reasoning: int, tools: int, length: int, data: Any) -> None:
    shape = Shape(reasoning=reasoning, tools=tools)
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=6))) if length > 1 else []
    parts = list(pairwise([0, *cuts, length]))
    split = [delta_of(shape, WORDS[start:stop], start, "c") for start, stop in parts]
    whole, _ = delta_of(shape, WORDS[:length], 0, "c")
    assert said([delta for delta, _ in split]) == said([whole])
    for (start, stop), (_, kind) in zip(parts, split, strict=True):
        of = ["reasoning" if at < reasoning else "tool_call" if at < reasoning + tools else "text" for at in WHERE]
        names = set(of[start:stop])
        assert set(kind.split("+")) == names


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 39))
def test_every_token_of_every_kind_is_one_for_the_reader_of_the_project(reasoning: int, tools: int, at: int) -> None:
    delta, _ = delta_of(Shape(reasoning=reasoning, tools=tools), WORDS[at : at + 1], at, "c")
    event = orjson.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    assert read_event(event).tokens


def test_the_arguments_of_a_whole_call_are_json() -> None:
    for length in range(2, 10):
        delta, _ = delta_of(Shape(tools=length), ['say "hi"', "a\\b", *WORDS][:length], 0, "c")
        assert isinstance(orjson.loads(delta["tool_calls"][0]["function"]["arguments"]), dict)


# -- through a real process ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with booted(tmp_path_factory.mktemp("shapes")) as running:
        yield running


@pytest.mark.process
@pytest.mark.parametrize(
    ("asked", "kinds"),
    [
        ("", ["role", "text", *["text"] * 11, "usage", "done"]),
        ("reasoning:2", ["role", "reasoning", "reasoning", *["text"] * 10, "usage", "done"]),
        ("reasoning_content:1,tools:2", ["role", "reasoning", *["tool_call"] * 2, *["text"] * 9, "usage", "done"]),
        ("tools:12", ["role", *["tool_call"] * 12, "usage", "done"]),
        ("k:5", ["role", "text", "text", "text", "usage", "done"]),
        ("reasoning:2,k:4", ["role", "reasoning+text", "text", "text", "usage", "done"]),
        ("early_role,comments", ["comment", "role", *["text"] * 12, "usage", "done"]),
    ],
)
def test_the_truth_names_each_chunk_and_the_client_sees_the_first_token_where_it_is(
    engine: Engine, asked: str, kinds: list[str]
) -> None:
    known = len(engine.truth())
    facts = read(engine, chat("Shapes, please.", max_tokens=12, firsttoken_shape=asked))
    (truth,) = engine.truth()[known:]
    assert [chunk[0] for chunk in truth["chunks"]] == kinds
    handed = [chunk[1] for chunk in truth["chunks"]]
    assert handed == sorted(handed)
    assert all(chunk[1] <= chunk[2] for chunk in truth["chunks"])
    first = truth["chunks"][truth["first_token_chunk"]]
    assert first[0] not in WITHOUT_TOKENS
    assert first[1] == truth["handed_ns"][0]
    assert facts.first_token_ns is not None
    assert facts.first_token_ns >= first[1]
    if "early_role" in asked:
        assert truth["chunks"][1][1] < first[1]  # a reader that takes the role for a token is early by as much
    assert facts.comments == ("comments" in asked)
    bearing = [kind for kind in kinds if kind not in WITHOUT_TOKENS]
    assert len(facts.token_gaps_ns) + 1 == len(truth["handed_ns"]) == len(bearing)
    assert sum(truth["tokens"]) == facts.output_tokens == 12
    assert facts.done


@pytest.mark.process
def test_a_tool_call_has_its_head_in_its_first_delta_only_and_its_own_finish(engine: Engine) -> None:
    events = [
        orjson.loads(event) for event in raw_events(engine, chat(firsttoken_shape="tools:9", max_tokens=200))[:-2]
    ]
    calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    assert [set(call) for call in calls] == [{"index", "id", "type", "function"}, *[{"index", "function"}] * 8]
    assert calls[0]["function"] == {"name": "look_up", "arguments": ""}
    assert isinstance(orjson.loads("".join(call["function"]["arguments"] for call in calls)), dict)
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.process
def test_a_shape_may_come_in_a_header_and_in_an_answer_that_is_not_streamed(engine: Engine) -> None:
    with engine.client() as client:
        body = chat(stream=False, stream_options=None, max_tokens=6)
        answer = client.post("/v1/chat/completions", json=body, headers={"firsttoken-shape": "reasoning:2,tools:2"})
        refused = client.post("/v1/chat/completions", json=body, headers={"firsttoken-shape": "pony"})
    message = answer.json()["choices"][0]["message"]
    assert len(message["reasoning"].split()) == 2
    assert message["tool_calls"][0]["function"]["name"] == "look_up"
    assert len(message["content"].split()) == 2
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "firsttoken_shape")
