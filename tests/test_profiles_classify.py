"""The class of a request and the rule that chose it, by the default rules; and what they could not see."""

from typing import Any

import polars as pl
import pytest

from profiles.classify import classify_frame, read_rules, what_is_unseen
from profiles.records import RequestFacts, ResponseFacts

RULES = read_rules()

TURN: dict[str, Any] = {"messages": 2, "user_turns": 1, "last_role": "user"}


def asked(**facts: Any) -> RequestFacts:
    return RequestFacts(**TURN | facts)


CASES: list[tuple[str, RequestFacts, ResponseFacts, str, str]] = [
    ("embeddings", RequestFacts(), ResponseFacts(), "embedding", "endpoint embeddings"),
    ("chat", RequestFacts(unread="not JSON"), ResponseFacts(), "unknown", "body unread: not JSON"),
    ("other", RequestFacts(), ResponseFacts(), "other", "no prompt in a form we read"),
    ("other", asked(), ResponseFacts(), "chat_single", "one user turn"),
    ("chat", asked(tools=1, last_role="tool"), ResponseFacts(), "agent_tool_loop", "last message is a tool's result"),
    ("chat", asked(tools=1), ResponseFacts(finish="tool_calls"), "agent_tool_loop", "finish tool_calls"),
    ("messages", asked(tools=1), ResponseFacts(finish="tool_use"), "agent_tool_loop", "finish tool_use"),
    ("chat", asked(tools=1, tool_results=2), ResponseFacts(), "agent_tool_loop", "two tool results or more"),
    ("chat", asked(tools=1, tool_results=1), ResponseFacts(finish="stop"), "tool_call", "tools offered"),
    ("chat", asked(last_role="tool", tool_results=2), ResponseFacts(), "chat_single", "one user turn"),
    (
        "chat",
        asked(response_format="json_schema"),
        ResponseFacts(prompt_tokens=400, output_tokens=100),
        "json_extraction",
        "format json_schema, prompt_tokens ≥ 4 × output_tokens",
    ),
    (
        "chat",
        asked(response_format="json_object"),
        ResponseFacts(prompt_tokens=399, output_tokens=100),
        "json_generation",
        "format json_object, prompt_tokens < 4 × output_tokens",
    ),
    (
        "chat",
        asked(response_format="guided_json", input_chars=1_600),
        ResponseFacts(output_tokens=100),
        "json_extraction",
        "format guided_json, input_chars/4 ≥ 4 × output_tokens",
    ),
    (
        "chat",
        asked(response_format="json_object", input_chars=2_048),
        ResponseFacts(),
        "json_extraction",
        "format json_object, input_chars/4 ≥ 512, output unknown",
    ),
    (
        "chat",
        asked(response_format="json_object", input_chars=2_047),
        ResponseFacts(),
        "json_generation",
        "format json_object, input_chars/4 < 512, output unknown",
    ),
    ("chat", asked(response_format="regex"), ResponseFacts(), "constrained", "format regex"),
    ("chat", asked(response_format="text"), ResponseFacts(), "chat_single", "one user turn"),
    ("chat", asked(max_tokens=16), ResponseFacts(), "classification", "max_tokens ≤ 16"),
    ("chat", asked(max_tokens=17), ResponseFacts(output_tokens=16), "classification", "output_tokens ≤ 16"),
    ("chat", asked(max_tokens=17), ResponseFacts(output_tokens=17), "chat_single", "one user turn"),
    ("chat", asked(), ResponseFacts(output_tokens=0), "chat_single", "one user turn"),
    ("chat", asked(), ResponseFacts(prompt_tokens=1_023), "chat_single", "one user turn"),
    ("chat", asked(), ResponseFacts(prompt_tokens=1_024), "rag_2k", "prompt_tokens ≥ 1024, one user turn"),
    ("chat", asked(), ResponseFacts(prompt_tokens=4_095), "rag_2k", "prompt_tokens ≥ 1024, one user turn"),
    ("chat", asked(), ResponseFacts(prompt_tokens=4_096), "rag_8k", "prompt_tokens ≥ 4096, one user turn"),
    ("chat", asked(), ResponseFacts(prompt_tokens=16_384), "rag_32k", "prompt_tokens ≥ 16384, one user turn"),
    ("chat", asked(), ResponseFacts(prompt_tokens=65_536), "rag_128k", "prompt_tokens ≥ 65536, one user turn"),
    ("chat", asked(input_chars=8_000), ResponseFacts(), "rag_2k", "input_chars/4 ≥ 1024, one user turn"),
    ("chat", asked(user_turns=2), ResponseFacts(prompt_tokens=8_000), "chat_multi", "several user turns"),
    ("chat", asked(code_share=0.3), ResponseFacts(prompt_tokens=2_000), "code", "code_share ≥ 0.3"),
    (
        "chat",
        asked(code_share=0.9),
        ResponseFacts(prompt_tokens=5_000),
        "rag_8k",
        "prompt_tokens ≥ 4096, one user turn",
    ),
    ("chat", asked(code_share=0.29), ResponseFacts(), "chat_single", "one user turn"),
    ("chat", asked(), ResponseFacts(prompt_tokens=2_000, reasoning_tokens=5), "reasoning", "reasoning_tokens > 0"),
    ("chat", asked(reasoning=True), ResponseFacts(reasoning_tokens=0), "reasoning", "reasoning asked for"),
]


ASKED = ("messages", "user_turns", "last_role", "input_chars", "tools", "tool_results", "images", "response_format")
MORE = ("max_tokens", "code_share", "language", "unread")
ANSWERED = ("prompt_tokens", "output_tokens", "reasoning_tokens", "finish")


def row(endpoint: str, request: RequestFacts, response: ResponseFacts) -> dict[str, Any]:
    """The columns that a profile holds of a request. Of a body that was not read nothing is known."""
    asked = {name: getattr(request, name) for name in (*ASKED, *MORE)} | {"reasoning": request.reasoning}
    if request.unread is not None:
        asked = dict.fromkeys(asked) | {"unread": request.unread}
    return {"endpoint": endpoint} | asked | {name: getattr(response, name) for name in ANSWERED}


def classes(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    frame = classify_frame(pl.DataFrame(rows, infer_schema_length=None), RULES)
    return frame.select("workload", "workload_rule").rows()


def test_each_request_is_of_its_class() -> None:
    found = classes([row(*case[:3]) for case in CASES])
    assert found == [case[3:] for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=[f"{at}-{case[3]}" for at, case in enumerate(CASES)])
def test_a_request_alone_is_of_the_same_class(case: tuple[Any, ...]) -> None:
    # Alone, most of its columns hold nothing, and have no type.
    assert classes([row(*case[:3])]) == [case[3:]]


@pytest.mark.parametrize(
    ("language", "name"),
    [(None, "chat_single"), ("en", "chat_single"), ("hu", "chat_single.hu"), ("de", "chat_single.de")],
)
def test_a_language_other_than_english_is_a_class_of_its_own(language: str | None, name: str) -> None:
    assert classes([row("chat", asked(language=language), ResponseFacts())]) == [(name, "one user turn")]


def test_an_embedding_has_no_language() -> None:
    assert classes([row("embeddings", asked(language="hu"), ResponseFacts())])[0][0] == "embedding"


@pytest.mark.parametrize(
    ("known", "name", "rule"),
    [
        ({"path": "/v1/rerank", "language": "hu"}, "rerank", "path /v1/rerank"),
        ({"path": "/v1/audio/speech"}, "audio", "path /v1/audio/speech"),
        ({"path": "/v1/images/edits"}, "image", "path /v1/images/edits"),
        ({"images": 1, "tools": 0}, "image", "images in the prompt"),
        ({"images": 1, "tools": 2}, "tool_call", "tools offered"),
        ({"audios": 1}, "audio", "audio in the prompt"),
        ({"path": "/v1/fim/completions", "input_chars": 9}, "code", "path /v1/fim/completions"),
        ({"response_format": "structural_tag", "user_turns": 1, "messages": 1}, "constrained", "format structural_tag"),
        ({"think_kind": "tool", "prompt_tokens": 9}, "agent_tool_loop", "its session waited for a tool"),
        ({"max_tokens": 400}, "unknown", "nothing is known of the prompt"),
    ],
)
def test_what_is_known_is_enough(known: dict[str, Any], name: str, rule: str) -> None:
    assert classes([known]) == [(name, rule)]


@pytest.mark.parametrize(
    ("prompt_tokens", "turn", "name", "rule"),
    [
        (5_000, None, "rag_8k", "prompt_tokens ≥ 4096, turns unknown"),
        (5_000, 0, "rag_8k", "prompt_tokens ≥ 4096, one user turn"),
        (5_000, 3, "chat_multi", "several user turns"),
        (500, None, "chat_single", "turns unknown"),
        (500, 0, "chat_single", "one user turn"),
        (None, None, "unknown", "nothing is known of the prompt"),
    ],
)
def test_lengths_alone_give_classes(prompt_tokens: int | None, turn: int | None, name: str, rule: str) -> None:
    assert classes([{"prompt_tokens": prompt_tokens, "output_tokens": 100, "turn": turn}]) == [(name, rule)]


def test_a_class_that_was_given_stays() -> None:
    frame = pl.DataFrame(
        {
            "prompt_tokens": [9, 9, 9],
            "workload": ["Conversation log", None, "api"],
            "workload_rule": [None, None, "Log Type"],
        }
    )
    assert classify_frame(frame, RULES).select("workload", "workload_rule").rows() == [
        ("Conversation log", "given by its source"),
        ("chat_single", "turns unknown"),
        ("api", "Log Type"),
    ]


def test_a_lazy_frame_stays_lazy_and_gives_the_same() -> None:
    frame = pl.DataFrame([row(*case[:3]) for case in CASES], infer_schema_length=None)
    lazy = classify_frame(frame.lazy(), RULES)
    assert isinstance(lazy, pl.LazyFrame)
    for engine in ("streaming", "in-memory"):
        assert lazy.collect(engine=engine).equals(classify_frame(frame, RULES))


def test_narrow_types_do_not_overflow() -> None:
    frame = pl.DataFrame(
        {"prompt_tokens": [250], "output_tokens": [100], "response_format": ["json_object"], "messages": [1]},
        schema_overrides={"prompt_tokens": pl.UInt8, "output_tokens": pl.UInt8, "response_format": pl.Categorical},
    )
    assert classify_frame(frame, RULES)["workload"].to_list() == ["json_generation"]


def test_nan_is_unknown_and_not_greater_than_all() -> None:
    frame = pl.DataFrame({"code_share": [float("nan"), 0.5], "prompt_tokens": [9, 9]})
    assert classify_frame(frame, RULES)["workload"].to_list() == ["chat_single", "code"]


def test_a_recorded_profile_has_nothing_unseen() -> None:
    facts = asked(code_share=0.0, language="en")
    frame = pl.DataFrame([row("chat", facts, ResponseFacts(prompt_tokens=9, output_tokens=99, reasoning_tokens=0))])
    whole = frame.with_columns(path=pl.lit("/v1/chat/completions"), finish=pl.lit("stop"))
    assert what_is_unseen(whole, RULES) == []


def test_what_lengths_alone_do_not_show_is_said() -> None:
    frame = pl.DataFrame({"prompt_tokens": [9, 20_000, 2_000], "output_tokens": [99, 99, 99]})
    said = what_is_unseen(frame, RULES)
    assert (
        "code: no text was recorded, so code_share is unknown for 66.7 % of the requests: such requests are rag_2k or "
        "chat_single here"
    ) in said
    assert (
        "rag_32k and rag_2k: turns is unknown for 66.7 % of the requests: the rest of the rule told their class" in said
    )
    assert any(line.startswith("languages: no text was recorded") for line in said)
    assert not any("input_chars" in line for line in said)


def test_what_is_unseen_counts_only_requests_that_a_class_may_have_missed() -> None:
    facts = [asked(tools=1), asked(code_share=None), asked(code_share=0.1)]
    rows = [row("chat", each, ResponseFacts(prompt_tokens=9, output_tokens=99, reasoning_tokens=0)) for each in facts]
    frame = pl.DataFrame(rows, infer_schema_length=None).with_columns(path=pl.lit("/v1"), finish=pl.lit("stop"))
    # The first went to tool_call before code was asked, the third was seen.
    (code,) = [line for line in what_is_unseen(frame, RULES) if line.startswith("code:")]
    assert code.endswith("code_share is unknown for 33.3 % of the requests: such requests are chat_single here")


def test_classes_that_a_source_gave_are_not_unseen() -> None:
    assert what_is_unseen(pl.DataFrame({"prompt_tokens": [9], "workload": ["api"]}), RULES) == []
    assert what_is_unseen(pl.DataFrame({"prompt_tokens": pl.Series([], dtype=pl.Int64)}), RULES) == []
