"""Sessions of public traces against the values of the reference."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from profiles.answers import Answer
from profiles.digests import Digests, keyed_facts_of
from profiles.sessions import SessionColumns, Turn, find_sessions

DIGESTS = Digests(b"k" * 32)
S = 1_000_000_000
TRACES = Path(__file__).parents[2] / "shared" / "traces"

needs_traces = pytest.mark.skipif(not (TRACES / "data" / "otel").is_dir(), reason="no public traces here")


def spans_of(name: str, *, whole: bool = False) -> tuple[list[str], SessionColumns]:
    """The spans of a trace of gen_ai events in order of arrival, and the sessions among them.

    The reference values were made from `gen_ai.output.text` alone; with `whole`, `gen_ai.output.messages` counts too.
    """
    document = json.loads((TRACES / "data" / "otel" / name).read_text())
    spans = sorted(document["spans"], key=lambda span: str(span["start_time"]))
    zero = datetime.fromisoformat(spans[0]["start_time"])

    def instant(text: str) -> int:
        return round((datetime.fromisoformat(text) - zero).total_seconds() * S)

    turns = []
    for span in spans:
        about = span["attributes"]
        messages = json.loads(about["gen_ai.input.messages"])
        answers = [{"role": "assistant", "content": text} for text in (about.get("gen_ai.output.text"),) if text]
        if whole and not answers:
            answers = json.loads(about["gen_ai.output.messages"])
        keyed = keyed_facts_of(json.dumps({"messages": messages}).encode(), DIGESTS)
        assert keyed is not None
        answer = DIGESTS.answer(Answer(answers, None), keyed.messages[-1].chain) if answers else None
        turns.append(
            Turn(instant(span["start_time"]), instant(span["end_time"]), about["gen_ai.request.model"], keyed, answer)
        )
    return [span["span_id"] for span in spans], find_sessions(turns)


@needs_traces
@pytest.mark.parametrize(
    "name",
    ["simple_chain", "parallel_requests", "prefix_sharing_example", "fan_in_dependencies", "multi_agent_research"],
)
def test_sessions_of_public_traces(name: str) -> None:
    expected = json.loads((TRACES / "reference" / "otel_session_inference.json").read_text())
    ids, columns = spans_of(f"{name}.json")
    found = dict(zip(ids, columns.frame().to_dicts(), strict=True))
    branches = {"parallel_requests": {"span_003"}}.get(name, set())
    for wanted in expected[f"{name}.json"]:
        row = found[wanted["span"]]
        assert (None if row["parent"] is None else ids[row["parent"]]) == wanted["parent"]
        assert row["link"] == ("branch" if wanted["span"] in branches else wanted["kind"])
        assert row["think_ns"] == (None if wanted["think_s"] is None else round(wanted["think_s"] * S))
    # An answer that was passed on stands in later lists too: such an edge follows from those before it.
    before: dict[int, set[int]] = {}
    for at, row in enumerate(found.values()):
        near = {*(row["deps"] or ()), *([row["parent"]] if row["parent"] is not None else [])}
        before[at] = near.union(*(before[each] for each in near))
    edges = {(earlier, later) for earlier, later, _ in expected[f"{name}.json:output_edges"]}
    implied = {(ids[earlier], ids[later]) for later, all_before in before.items() for earlier in all_before}
    assert edges <= implied
    held = sum(len(deps) for deps in columns.deps.values())
    assert held == {"fan_in_dependencies": 2, "multi_agent_research": 8, "parallel_requests": 1}.get(name, 0)
    if name == "multi_agent_research":
        assert {(ids[dep], ids[at]) for at, deps in columns.deps.items() for dep in deps} == edges


@needs_traces
def test_the_answers_of_the_trace_without_output_text_are_exact_where_they_are_read() -> None:
    _, columns = spans_of("prefix_sharing_example.json", whole=True)
    found = columns.frame()
    assert found["link"].to_list() == ["root"] * 3 + ["exact_reply"] * 3 + ["root"]
    assert found["parent"].to_list() == [None, None, None, 2, 3, 4, None]
    assert found["session"].to_list() == [0, 1, 2, 2, 2, 2, 3]
