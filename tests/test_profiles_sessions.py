"""Conversations found from keyed ids and instants: each rule, a forest that is known, and public traces."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.answers import Answer
from profiles.digests import Digests, keyed_facts_of
from profiles.records import KeyedAnswer, KeyedFacts
from profiles.session_memory import MOST_ALIKE, RETRIED_NS
from profiles.sessions import CONTINUED_NS, Turn, find_sessions

DIGESTS = Digests(b"k" * 32)
S = 1_000_000_000
SYSTEM = "You are a helpful assistant."


def said(roles: str, texts: Sequence[str]) -> list[dict[str, str]]:
    words = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": words[role], "content": text} for role, text in zip(roles, texts, strict=True)]


def turn(
    start: float,
    end: float | None,
    *messages: str,
    answer: str | None = None,
    model: str = "m",
    response: str | None = None,
    body: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    tenant: str | None = None,
) -> Turn:
    """A request at `start` with messages like "u:hello", answered at `end`."""
    listed = said("".join(each[0] for each in messages), [each[2:] for each in messages])
    document = {"model": model, "messages": listed, **(body or {})}
    found = keyed_facts_of(
        json.dumps(document).encode(), DIGESTS, {name: value.encode() for name, value in (headers or {}).items()}
    )
    assert found is not None
    keyed = KeyedFacts(
        messages=found.messages,
        session=found.session,
        session_source=found.session_source,
        parent_session=found.parent_session,
        agent=found.agent,
        parent_agent=found.parent_agent,
        previous_response=found.previous_response,
        tenant=tenant,
    )
    got: KeyedAnswer | None = None
    if answer is not None or response is not None:
        kept = [{"role": "assistant", "content": answer}] if answer is not None else []
        got = DIGESTS.answer(Answer(kept, response), found.messages[-1].chain if found.messages else "")
    return Turn(round(start * S), None if end is None else round(end * S), model, keyed, got)


def rows(*turns: Turn, **more: Any) -> list[dict[str, Any]]:
    return find_sessions(turns, **more).frame().to_dicts()


def shown(*turns: Turn) -> list[tuple[Any, ...]]:
    """session, source, turn, parent, link of each."""
    names = ("session", "session_source", "turn", "parent", "link")
    return [tuple(row[name] for name in names) for row in rows(*turns)]


HELLO = turn(0, 2, "s:" + SYSTEM, "u:hello", answer="Hello! How can I help you?")
MORE = ("s:" + SYSTEM, "u:hello", "a:Hello! How can I help you?", "u:more")
NOT_IT = ("s:" + SYSTEM, "u:hello", "a:something else", "u:more")
ALONE = (0, None, 0, None, "root")
FIRST = (0, "prefix", 0, None, "root")


# --- Rule 3

PREFIX: list[tuple[str, list[Turn], list[tuple[Any, ...]]]] = [
    ("the exact answer", [HELLO, turn(5, 6, *MORE)], [FIRST, (0, "prefix", 1, 0, "exact_reply")]),
    ("another answer", [HELLO, turn(5, 6, *NOT_IT)], [FIRST, (0, "prefix", 1, 0, "assistant_differs")]),
    (
        "white space and thoughts do not matter",
        [HELLO, turn(5, 6, *MORE[:2], "a:<think>hm</think>Hello!  How can I help you?\n", "u:more")],
        [FIRST, (0, "prefix", 1, 0, "exact_reply")],
    ),
    ("no answer behind the list", [HELLO, turn(5, 6, *MORE[:2], "u:more")], [FIRST, (0, "prefix", 0, 0, "retry")]),
    ("the same list", [HELLO, turn(5, 6, *MORE[:2])], [FIRST, (0, "prefix", 0, 0, "identical")]),
    ("the same list while in flight", [HELLO, turn(1, 6, *MORE[:2])], [FIRST, (0, "prefix", 0, 0, "identical")]),
    (
        "the same list much later",
        [HELLO, turn(3 + RETRIED_NS / S, None, *MORE[:2])],
        [ALONE, (1, None, 0, None, "root")],
    ),
    ("one that has not finished", [HELLO, turn(1, 6, *MORE)], [ALONE, (1, None, 0, None, "root")]),
    ("finished just now", [HELLO, turn(2, 6, *MORE)], [FIRST, (0, "prefix", 1, 0, "exact_reply")]),
    ("another model", [HELLO, turn(5, 6, *MORE[:2], model="n")], [ALONE, (1, None, 0, None, "root")]),
    ("another tenant", [HELLO, turn(5, 6, *MORE[:2], tenant="t")], [ALONE, (1, None, 0, None, "root")]),
    ("only the system prompt", [HELLO, turn(5, 6, "s:" + SYSTEM, "u:x")], [ALONE, (1, None, 0, None, "root")]),
    (
        "a list of nothing but the system prompt",
        [turn(0, 1, "s:" + SYSTEM, answer="Hm."), turn(2, 3, "s:" + SYSTEM), turn(5, 6, "s:" + SYSTEM, "a:Hm.", "u:x")],
        [ALONE, (1, None, 0, None, "root"), (2, None, 0, None, "root")],
    ),
    (
        "the longest list",
        [HELLO, turn(3, 4, *NOT_IT), turn(5, 6, *NOT_IT, "a:no", "u:again")],
        [FIRST, (0, "prefix", 1, 0, "assistant_differs"), (0, "prefix", 2, 1, "assistant_differs")],
    ),
    (
        "of equals the exact answer, though another finished later",
        [HELLO, turn(1, 4, *MORE[:2], answer="Yes?"), turn(5, 6, *MORE)],
        [FIRST, (0, "prefix", 0, 0, "identical"), (0, "prefix", 1, 0, "exact_reply")],
    ),
    (
        "of equals without it the latest that finished",
        [HELLO, turn(1, 4, *MORE[:2], answer="Yes?"), turn(1, 9, *MORE[:2]), turn(5, 6, *NOT_IT)],
        [
            FIRST,
            (0, "prefix", 0, 0, "identical"),
            (0, "prefix", 0, 1, "identical"),
            (0, "prefix", 1, 1, "assistant_differs"),
        ],
    ),
    (
        "siblings: who does not wait is a branch",
        [HELLO, turn(3, 5, *MORE), turn(4, 7, *MORE[:3], "u:other"), turn(7, 8, *MORE[:3], "u:third")],
        [
            FIRST,
            (0, "prefix", 1, 0, "exact_reply"),
            (0, "prefix", 1, 0, "branch"),
            (0, "prefix", 1, 0, "exact_reply"),
        ],
    ),
    (
        "an answer that was cut off, and no end",
        [turn(0, None, *MORE[:2]), turn(5, 6, *MORE)],
        [ALONE, (1, None, 0, None, "root")],
    ),
]


@pytest.mark.parametrize(("turns", "expected"), [case[1:] for case in PREFIX], ids=[case[0] for case in PREFIX])
def test_rule_3(turns: list[Turn], expected: list[tuple[Any, ...]]) -> None:
    assert shown(*turns) == expected


def test_the_exact_answer_is_found_among_many_with_the_same_opener() -> None:
    openers = [turn(at, at + 1, "u:hi", answer=f"Answer number {at}, of some length.") for at in range(MOST_ALIKE * 2)]
    wanted = MOST_ALIKE // 2
    found = rows(*openers, turn(999, 1000, "u:hi", f"a:Answer number {wanted}, of some length.", "u:go on"))[-1]
    assert (found["parent"], found["link"]) == (wanted, "exact_reply")


def test_nothing_is_continued_after_two_hours() -> None:
    at_last, too_late = 2 + CONTINUED_NS / S, 2.1 + CONTINUED_NS / S
    assert [row["parent"] for row in rows(HELLO, turn(at_last, None, *MORE))] == [None, 0]
    assert [row["parent"] for row in rows(HELLO, turn(too_late, None, *MORE))] == [None, None]


# --- Think time


@pytest.mark.parametrize(
    ("last", "kind"), [(("u:more",), "human"), (("t:result",), "tool"), (("t:result", "u:stop"), "human")]
)
def test_think_time_counts_from_the_end_of_the_parent_and_knows_for_whom_it_waited(
    last: tuple[str, ...], kind: str
) -> None:
    found = rows(HELLO, turn(5.5, 6, *MORE[:3], *last))
    assert [(row["think_ns"], row["think_kind"]) for row in found] == [(None, None), (3_500_000_000, kind)]


def test_what_repeats_has_no_think_time() -> None:
    found = rows(HELLO, turn(5, 6, *MORE[:2]), turn(7, 8, *MORE[:2], "u:more"))
    assert [(row["link"], row["think_ns"]) for row in found[1:]] == [("identical", None), ("retry", None)]


# --- Rules 1 and 2

HEADER = {"x-session-id": "one"}
OTHER = {"x-session-id": "two"}


def test_a_header_names_the_session_and_the_parent_is_found_inside() -> None:
    first, second = turn(0, 1, "u:hi", answer="Hi there!", headers=HEADER), turn(0, 1.5, "u:hi", headers=OTHER)
    third = turn(3, 4, "u:hi", "a:Hi there!", "u:more", headers=OTHER)
    assert shown(first, second, third) == [
        (0, "header", 0, None, "root"),
        (1, "header", 0, None, "root"),
        (1, "header", 1, 1, "assistant_differs"),
    ]


def test_a_declared_session_links_what_shares_no_prefix() -> None:
    turns = [
        turn(0, 1, "u:a", "a:b", "u:c", headers=HEADER),
        turn(2, 3, "u:other", "a:context", "u:of it", headers=HEADER),
        turn(4, 5, "u:summary", headers=HEADER),
        turn(4.5, 6, "u:x", "a:y", "u:z", headers=HEADER),
    ]
    found = rows(*turns)
    assert [(row["link"], row["parent"], row["think_ns"]) for row in found] == [
        ("root", None, None),
        ("declared", 0, S),
        ("compaction", 1, S),
        ("branch", 1, 1_500_000_000),
    ]


def test_a_model_of_its_own_is_a_thread_of_its_own_but_a_session_may_change_its_model() -> None:
    turns = [
        turn(0, 1, "u:title please", headers=HEADER, model="small"),
        turn(2, 3, "u:hi", answer="Hi there!", headers=HEADER, model="large"),
        turn(4, 5, "u:hi", "a:Hi there!", "u:more", headers=HEADER, model="new"),
    ]
    assert [(row["link"], row["parent"]) for row in rows(*turns)] == [
        ("root", None),
        ("root", None),
        ("exact_reply", 1),
    ]


def test_requests_of_a_session_that_all_overlap_have_no_parent() -> None:
    found = rows(turn(0, 9, "u:a", headers=HEADER), turn(1, 9, "u:b", headers=HEADER))
    assert [(row["session"], row["parent"], row["think_ns"]) for row in found] == [(0, None, None), (0, None, None)]


def test_a_declared_session_that_comes_back_later_is_the_same_and_begins_anew() -> None:
    found = rows(turn(0, 1, "u:a", headers=HEADER), turn(8000, None, "u:b", headers=HEADER))
    assert [(row["session"], row["parent"], row["turn"]) for row in found] == [(0, None, 0), (0, None, 0)]


def test_sessions_of_two_tenants_with_one_name_are_two() -> None:
    turns = [turn(at, at + 1, "u:a", headers=HEADER, tenant=tenant) for at, tenant in enumerate(("t", "u"))]
    assert [row["session"] for row in rows(*turns)] == [0, 1]


def test_a_session_that_is_named_from_its_second_turn_on_keeps_its_first() -> None:
    turns = [HELLO, turn(5, 6, *MORE, headers=HEADER), turn(7, 8, "u:x", headers=HEADER)]
    assert [row[:2] for row in shown(*turns)] == [(0, "prefix"), (0, "header"), (0, "header")]


def test_fields_of_the_body_name_a_session_but_a_user_does_not() -> None:
    def sources(**body: Any) -> list[Any]:
        return [row["session_source"] for row in rows(turn(0, 1, "u:a", body=body), turn(2, 3, "u:b", body=body))]

    for body in ({"prompt_cache_key": "s"}, {"conversation": {"id": "s"}}, {"metadata": {"session_id": "s"}}):
        assert sources(**body) == ["body", "body"]
    assert sources(session_id="s") == ["body", "body"], "not the header of the same name"
    assert sources(user="s", metadata={"user_id": "s"}) == [None, None]


def test_a_previous_response_is_the_parent() -> None:
    turns = [
        turn(0, 1, "u:a", response="resp_1"),
        turn(2, 4, "u:b", response="resp_2", body={"previous_response_id": "resp_1"}),
        turn(3, 5, "u:c", body={"previous_response_id": "resp_1"}),
        turn(6, 7, "u:d", body={"previous_response_id": "resp_9"}),
        turn(7, 8, "u:e", body={"previous_response_id": "resp_9"}),
    ]
    assert shown(*turns) == [
        (0, "body", 0, None, "root"),
        (0, "body", 1, 0, "declared"),
        (0, "body", 1, 0, "branch"),
        (1, "body", 0, None, "root"),
        (1, "body", 0, None, "root"),
    ]
    assert rows(*turns)[1]["think_ns"] == S


def test_sub_agents_are_threads_with_an_edge_from_what_came_before() -> None:
    claude = "x-claude-code-"
    main = {f"{claude}session-id": "s"}
    agent = main | {f"{claude}agent-id": "one"}
    inner = main | {f"{claude}agent-id": "two", f"{claude}parent-agent-id": "one"}
    turns = [
        turn(0, 1, "u:task", headers=main),
        turn(2, 3, "u:sub task", answer="Done with the sub task.", headers=agent),
        turn(4, 5, "u:sub task", "a:Done with the sub task.", "u:go on", headers=agent),
        turn(6, 7, "u:deeper", headers=inner),
        turn(8, 9, "u:task", "a:calling", "t:result", headers=main),
    ]
    assert [(row["session"], row["parent"], row["deps"], row["turn"]) for row in rows(*turns)] == [
        (0, None, None, 0),
        (0, None, [0], 0),
        (0, 1, None, 1),
        (0, None, [2], 0),
        (0, 0, None, 1),
    ]
    child = {"x-dynamo-session-id": "c", "x-dynamo-parent-session-id": "p"}
    turns = [turn(0, 1, "u:a", headers={"x-dynamo-session-id": "p"}), turn(2, 3, "u:b", headers=child)]
    assert [(row["session"], row["deps"]) for row in rows(*turns)] == [(0, None), (1, [0])]


# --- Rule 4

LONG = "An answer that is long enough to be told from others."


def test_an_answer_that_stands_in_another_list_is_an_edge_and_places_what_nothing_else_does() -> None:
    found = rows(turn(0, 1, "u:a", answer=LONG), turn(2, 3, "s:other", "u:b", f"a:{LONG}", "u:c"))
    assert [(row["session"], row["session_source"], row["parent"], row["deps"]) for row in found] == [
        (0, "answer", None, None),
        (0, "answer", None, [0]),
    ]


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("short", [turn(0, 1, "u:a", answer="Yes."), turn(2, 3, "u:b", "a:Yes.", "u:c")]),
        ("in flight", [turn(0, 3, "u:a", answer=LONG), turn(2, 3, "u:b", f"a:{LONG}", "u:c")]),
        ("of another tenant", [turn(0, 1, "u:a", answer=LONG, tenant="t"), turn(2, 3, "u:b", f"a:{LONG}", "u:c")]),
        (
            "given to two strangers",
            [
                turn(0, 1, "u:a", answer=LONG),
                turn(0, 1, "u:z", answer=LONG),
                turn(2, 3, "u:b", f"a:{LONG}", "u:c"),
            ],
        ),
        ("long ago", [turn(0, 1, "u:a", answer=LONG), turn(8000, 8001, "u:b", f"a:{LONG}", "u:c")]),
    ],
)
def test_no_edge_from_an_answer(name: str, turns: list[Turn]) -> None:
    assert rows(*turns)[-1]["deps"] is None


def test_a_history_whose_system_prompt_changes_is_one_session_with_one_edge_to_the_last_turn() -> None:
    answers = [f"Answer number {number}, of some length." for number in range(4)]
    turns = []
    for number in range(4):
        history = [f"{role}:{text}" for before in range(number) for role, text in (("u", "q"), ("a", answers[before]))]
        turns.append(
            turn(number * 2, number * 2 + 1, f"s:It is {number} o'clock", *history, "u:q", answer=answers[number])
        )
    found = rows(*turns)
    assert {row["session"] for row in found} == {0}
    assert [row["deps"] for row in found] == [None, [0], [1], [2]]


# --- What is said about it


def test_counts_and_the_sentence() -> None:
    found = find_sessions(
        [HELLO, turn(5, 6, *MORE), turn(6, 7, "u:x", headers=HEADER), turn(6, 7, "u:y"), Turn(8 * S, 9 * S)]
    )
    assert found.counts() == {"header": 1, "body": 0, "prefix": 2, "answer": 0, "alone": 1, "unknown": 1}
    assert found.sentence() == "sessions: 1 of 5 requests by header, 2 by prefix, 1 alone, 1 unknown"


def test_without_digests_all_is_null_and_one_sentence_says_why() -> None:
    found = find_sessions([Turn(0, 1), Turn(1, None, "m", KeyedFacts(tenant="t"))])
    assert {value for row in found.frame().to_dicts() for value in row.values()} == {None}
    assert "--bodies hashed" in found.sentence()


def test_no_requests_are_no_rows() -> None:
    assert find_sessions([]).frame().height == 0


def test_requests_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="stands behind one at"):
        find_sessions([Turn(2, 3), Turn(1, 3)])


def test_memory_goes_with_the_requests_of_two_hours() -> None:
    from profiles.sessions import _Finding

    finding = _Finding(CONTINUED_NS)
    for number in range(300):
        finding.take(
            turn(number * 100, number * 100 + 1, f"u:{number}", answer=f"{LONG}{number}", response=f"r{number}")
        )
    memory = finding._memory
    assert len(memory) == 73
    assert [len(memory._lists), len(memory._replied), len(memory._said), len(memory._responses)] == [73] * 4


def test_of_too_many_requests_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiles.session_memory.MOST_REMEMBERED", 1)
    between = turn(3, 4, "u:x"), turn(3.5, 4, "u:y")
    assert rows(HELLO, *between, turn(5, 6, *MORE))[-1]["parent"] is None
    assert rows(HELLO, turn(5, 6, *MORE))[-1]["parent"] == 0


# --- A forest that is known


@st.composite
def forests(draw: st.DrawFn) -> list[tuple[int | None, int, int, str]]:
    """Requests as (parent, wait after it, duration, role that follows), parents before their children."""
    count = draw(st.integers(1, 14))
    return [
        (
            draw(st.none() | st.integers(0, number - 1)) if number else None,
            draw(st.integers(0, 50)),
            draw(st.integers(1, 50)),
            draw(st.sampled_from("ut")),
        )
        for number in range(count)
    ]


def planted(forest: list[tuple[int | None, int, int, str]]) -> Iterator[tuple[int, int, int | None, Turn]]:
    """Start, end, parent and the request itself, in the order in which they were planted."""
    lists: list[list[str]] = []
    spans: list[tuple[int, int]] = []
    for number, (parent, wait, lasts, role) in enumerate(forest):
        before = [f"s:{SYSTEM}"] if parent is None else [*lists[parent], f"a:Answer {parent}"]
        # Instants differ in their last digits, so that no two requests arrive at once.
        start = (wait * 1000 if parent is None else spans[parent][1] + wait * 1000) + number
        lists.append([*before, f"{role if parent is not None else 'u'}:Question {number}"])
        spans.append((start, start + lasts * 1000))
        made = turn(start, start + lasts * 1000, *lists[-1], answer=f"Answer {number}")
        scaled = Turn(start, start + lasts * 1000, made.model, made.keyed, made.answer)
        yield start, start + lasts * 1000, parent, scaled


@settings(max_examples=60, deadline=None)
@given(forests())
def test_a_forest_of_conversations_is_found_as_it_was_planted(forest: list[tuple[int | None, int, int, str]]) -> None:
    plants = list(planted(forest))
    order = sorted(range(len(plants)), key=lambda number: plants[number][0])
    row_of = {number: row for row, number in enumerate(order)}
    found = rows(*(plants[number][3] for number in order))
    depth: dict[int, int] = {}
    root: dict[int, int] = {}
    for row, number in enumerate(order):
        start, _, parent, _ = plants[number]
        depth[number] = 0 if parent is None else depth[parent] + 1
        root[number] = number if parent is None else root[parent]
        waiting = [
            other
            for other in order[:row]
            if parent is not None and plants[other][2] == parent and plants[other][1] > start
        ]
        link = "root" if parent is None else "branch" if waiting else "exact_reply"
        expected = {
            "session": found[row_of[root[number]]]["session"],
            "turn": depth[number],
            "parent": None if parent is None else row_of[parent],
            "link": link,
            "deps": None,
            "think_ns": None if parent is None else start - plants[parent][1],
            "think_kind": None if parent is None else {"u": "human", "t": "tool"}[forest[number][3]],
        }
        assert {key: found[row][key] for key in expected} == expected
    assert len({row["session"] for row in found}) == sum(parent is None for parent, *_ in forest)
