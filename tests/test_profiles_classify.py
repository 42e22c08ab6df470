"""The class of a request and the rule that chose it."""

from typing import Any

import pytest

from profiles.classify import classify
from profiles.records import RequestFacts, ResponseFacts

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
        "format json_schema, prompt_tokens ≥ 4 × output",
    ),
    (
        "chat",
        asked(response_format="json_object"),
        ResponseFacts(prompt_tokens=399, output_tokens=100),
        "json_generation",
        "format json_object, prompt_tokens < 4 × output",
    ),
    (
        "chat",
        asked(response_format="guided_json", input_chars=1_600),
        ResponseFacts(output_tokens=100),
        "json_extraction",
        "format guided_json, input_chars/4 ≥ 4 × output",
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


@pytest.mark.parametrize(
    ("endpoint", "request_facts", "response", "name", "rule"),
    [pytest.param(*case, id=f"{at}-{case[3]}") for at, case in enumerate(CASES)],
)
def test_a_request_is_of_the_class(
    endpoint: str, request_facts: RequestFacts, response: ResponseFacts, name: str, rule: str
) -> None:
    workload = classify(endpoint, request_facts, response)
    assert (workload.name, workload.rule) == (name, rule)


@pytest.mark.parametrize(
    ("language", "name"),
    [(None, "chat_single"), ("en", "chat_single"), ("hu", "chat_single.hu"), ("de", "chat_single.de")],
)
def test_a_language_other_than_english_is_a_class_of_its_own(language: str | None, name: str) -> None:
    assert classify("chat", asked(language=language), ResponseFacts()).name == name


def test_an_embedding_has_no_language() -> None:
    assert classify("embeddings", asked(language="hu"), ResponseFacts()).name == "embedding"
