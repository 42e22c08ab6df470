"""Generated profiles: the same bytes for a seed, lengths on target, tasks that make sense, and labels that say so."""

import ast
import json
from pathlib import Path
from string import Template
from typing import Any

import pytest
from click.testing import CliRunner

from profiles.builtin.cli import builtin as command
from profiles.builtin.draws import Draw
from profiles.builtin.generate import LEAST_OUTPUT_TOKENS, Generated, generate
from profiles.builtin.hungarian import chat
from profiles.builtin.lengths import CODE, chars_for, count_prompt
from profiles.builtin.passages import report, retrieved
from profiles.builtin.programs import code_task
from profiles.builtin.records import extraction
from profiles.builtin.sources import SOURCES
from profiles.builtin.workloads import BUILTINS, WORKLOADS
from profiles.classify import classify_frame, read_rules
from profiles.errors import UsageError
from profiles.files import sha256_of
from profiles.languages import language_of
from profiles.profile import BODIES, REQUESTS, read_profile
from profiles.requests import code_share
from profiles.table import complete


@pytest.fixture(scope="module")
def whole() -> Generated:
    """A few of each at full length."""
    return generate("single-stream", requests=3)


@pytest.fixture(scope="module")
def small() -> Generated:
    return generate("single-stream", scale=0.05)


def prompts(made: Generated) -> list[str]:
    return [json.loads(body)["messages"][-1]["content"] for body in made.bodies]


def test_each_workload_gets_its_class_from_the_rules(whole: Generated) -> None:
    rows = classify_frame(complete(whole.requests), read_rules(None)).select("workload").to_series().to_list()
    assert rows == [workload.workload for workload in WORKLOADS.values() for _ in range(3)]


def test_lengths_lie_around_the_target(whole: Generated) -> None:
    for at, workload in enumerate(WORKLOADS.values()):
        own = whole.requests[3 * at : 3 * at + 3]
        low, high = workload.spread
        for row in own.iter_rows(named=True):
            assert 0.93 * low <= row["prompt_tokens"] / workload.prompt_tokens <= 1.07 * high, workload.name
            assert row["output_tokens"] <= row["max_tokens"]
            assert row["token_source"] == "estimated"


@pytest.mark.parametrize("name", ["short-qa", "short-chat-hu", "code", "json-extraction"])
def test_the_mean_length_hits_the_target_within_a_tenth(name: str) -> None:
    mean = generate(name, requests=40).requests["prompt_tokens"].mean()
    assert mean == pytest.approx(WORKLOADS[name].prompt_tokens, rel=0.1)


def test_the_smallest_and_the_largest_prompt_are_those_of_the_article(whole: Generated) -> None:
    assert WORKLOADS["short-qa"].prompt_tokens == 29
    longest = whole.requests["prompt_tokens"].to_list()[-3:]
    assert all(0.88 * 159_000 <= tokens <= 159_000 for tokens in longest)


def test_requests_of_a_workload_all_differ_and_there_are_enough(small: Generated) -> None:
    assert len(small.bodies) == len(set(small.bodies)) == 24 * len(WORKLOADS)


def test_a_seed_gives_the_same_bytes_and_another_one_gives_others() -> None:
    one, again, other = (generate("json-extraction", seed=seed, scale=0.5) for seed in (7, 7, 8))
    assert one.bodies == again.bodies
    assert one.requests.equals(again.requests)
    assert not set(one.bodies) & set(other.bodies)


def test_a_workload_is_the_same_alone_and_in_a_mix(small: Generated) -> None:
    alone = generate("code", scale=0.05)
    assert set(alone.bodies) < set(small.bodies)


def test_scaled_down_the_longest_fits_a_small_engine(small: Generated) -> None:
    tokens = small.requests["prompt_tokens"] + small.requests["max_tokens"]
    assert max(tokens) <= 8_192
    assert min(small.requests["output_tokens"]) >= LEAST_OUTPUT_TOKENS
    workloads = classify_frame(complete(small.requests), read_rules(None)).select("workload").to_series()
    assert set(workloads) == {"chat_single", "chat_single.hu", "code", "json_extraction", "rag_2k", "rag_8k"}


def test_a_body_is_a_streamed_chat_with_a_limit(small: Generated) -> None:
    for body, row in zip(small.bodies, small.requests.iter_rows(named=True), strict=True):
        asked = json.loads(body)
        assert asked["stream"] is True
        assert asked["stream_options"] == {"include_usage": True}
        assert asked["max_tokens"] == row["max_tokens"] > 16
        assert [message["role"] for message in asked["messages"]][-1] == "user"
        assert ("response_format" in asked) == (row["schema"] is not None)


def check(value: Any, schema: Any) -> None:
    """The part of JSON Schema that the generated ones use; a key that this does not know fails."""
    types: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int}
    assert schema["type"] in types
    assert isinstance(value, types[schema["type"]])
    for key, wanted in schema.items():
        if key == "properties":
            assert set(value) == set(wanted) == set(schema["required"])
            for name, part in wanted.items():
                check(value[name], part)
        elif key == "items":
            for each in value:
                check(each, wanted)
        elif key == "enum":
            assert value in wanted
        elif key == "minimum":
            assert value >= wanted
        else:
            assert key in ("type", "required") or (key == "additionalProperties" and wanted is False)


def leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, list):
        return [leaf for part in value for leaf in leaves(part)]
    return [str(value)]


def test_an_extraction_has_a_schema_and_its_answer_follows_it_and_copies_from_the_record() -> None:
    kinds = set()
    for seed in range(40):
        wanted = extraction(Draw(seed), lambda kind: 4_000)
        kinds.add(wanted.kind)
        check(wanted.answer, wanted.schema)
        for leaf in leaves(wanted.answer):
            assert leaf in wanted.text
        (listed,) = [value for value in wanted.answer.values() if isinstance(value, list)]
        assert 1 <= len(listed) < wanted.text.count("\n") / 4
    assert kinds == {"invoice", "log", "laboratory", "minutes"}


def test_the_answer_stands_in_the_one_passage_that_is_about_what_is_asked() -> None:
    for seed in range(20):
        reading = retrieved(Draw(seed), 20_000)
        question = reading.text[reading.text.rindex("Question: ") :]
        titles = [passage.splitlines()[0].partition("] ")[2] for passage in reading.passages]
        assert len(set(titles)) == len(titles)
        (about,) = [at for at, title in enumerate(titles) if f"{title[1:]} " in f"{question} ".replace("?", " ")]
        (answer,) = reading.answers
        assert answer in reading.passages[about]
        assert [at for at, text in enumerate(reading.passages) if titles[about][1:] in text] == [about]


def test_passages_are_not_filler() -> None:
    reading = retrieved(Draw(1), 60_000)
    bodies = [passage.partition("\n")[2] for passage in reading.passages]
    assert len(set(bodies)) == len(bodies) > 60


def test_a_report_holds_all_three_answers() -> None:
    reading = report(Draw(3), 40_000)
    assert len(reading.answers) == 3
    assert all(any(answer in part for part in reading.passages) for answer in reading.answers)


def test_hungarian_is_told_from_every_message() -> None:
    for seed in range(300):
        assert language_of(chat(Draw(seed), 160)) == "hu"


def test_no_task_on_code_is_taken_for_another_language_than_english() -> None:
    for seed in range(100):
        text = code_task(Draw(seed), 3_400).text
        assert language_of(text) in (None, "en")
        assert (code_share(text) or 0) > 0.5


EXAMPLES = {
    "merge_spans": ("merge_spans([(5, 6), (1, 9), (2, 3), (7, 7), (9, 10)])", [(1, 10)]),
    "edit_distance": ("edit_distance('kitten', 'sitting')", 3),
    "RecentCache": (
        "[c := RecentCache(2), c.put('a', 1), c.put('b', 2), c.put('c', 3), c.get('a'), c.get('c')][4:]",
        [None, 3],
    ),
    "running_median": ("list(running_median([5, 1, 9, 2]))", [5, 3.0, 5, 3.5]),
    "order_by_need": ("order_by_need({'b': {'a'}, 'c': {'b'}})", ["a", "b", "c"]),
    "parse_duration": ("parse_duration('1h30m')", 5_400),
    "TokenBucket": ("[b := TokenBucket(1, 2, lambda: 0.0), b.allow(), b.allow(), b.allow()][1:]", [True, True, False]),
    "chunked": ("list(chunked([1, 2, 3], 2))", [[1, 2], [3]]),
    "shortest_path": ("shortest_path({'a': {'b': 1, 'c': 5}, 'b': {'c': 1}}, 'a', 'c')", (2, ["a", "b", "c"])),
    "pack_runs": ("pack_runs('aab')", [("a", 2), ("b", 1)]),
    "sliding_maximum": ("sliding_maximum([4, 1, 2, 0], 2)", [4, 2, 2]),
    "is_valid_number": ("is_valid_number('79927398713')", True),
    "nearest": ("nearest([1.0, 4.0], 3.0)", 4.0),
    "Trie": ("Trie(['to', 'tea', 'in']).complete('t')", ["tea", "to"]),
    "wrap_words": ("wrap_words('aa bb', 4)", ["aa", "bb"]),
    "Ledger": ("[l := Ledger(), l.deposit('a', 5), l.transfer('a', 'b', 5), l.total('b')][-1]", 5),
    "summarise_rows": ("summarise_rows([{'x': 2}, {}], 'x')['mean']", 2.0),
    "group_by_name": ("group_by_name([{'name': 'a'}, {}])", {"a": [{"name": "a"}], "": [{}]}),
}
NAMES = {"items": "rows", "item": "row", "key": "name", "Store": "Ledger", "total": "total"}
HEAD = ast.parse(code_task(Draw(0), 500).module).body


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_function_runs_and_its_fault_shows(source: Any) -> None:
    kept = (ast.ImportFrom, ast.Import, ast.Assign)
    imports = "\n".join(ast.unparse(node) for node in HEAD if isinstance(node, kept))

    def run(text: str) -> Any:
        scope: dict[str, Any] = {}
        exec(f"{imports}\n{text}", scope)
        call, _ = EXAMPLES[name]
        try:
            return eval(call, scope)
        except Exception as error:
            return error

    name = Template(source.name).substitute(NAMES)
    text = Template(source.text).substitute(NAMES)
    assert run(text) == EXAMPLES[name][1]
    if source.fault is not None:
        right, wrong = (Template(part).substitute(NAMES) for part in source.fault)
        assert text.count(right) >= 1
        assert run(text.replace(right, wrong, 1)) != EXAMPLES[name][1]


def test_a_module_parses_and_holds_what_is_asked_about() -> None:
    for seed in range(60):
        task = code_task(Draw(seed), 3_400)
        (asked,) = [part for part in task.text.splitlines()[0].split("`")[1::2] if "limit" not in part]
        defined = [getattr(node, "name", "") for node in ast.parse(task.module).body]
        assert asked in defined
        assert len(defined) == len(set(defined) - {""}) + defined.count("")


def test_tokens_count_the_template_and_chars_for_turns_it_round() -> None:
    chars = chars_for(900, CODE, "x" * 38)
    assert count_prompt([{"content": "x" * 38}, {"content": "y" * chars}], CODE) == 900


def test_a_mix_keeps_its_shares_up_to_any_point() -> None:
    made = generate("mix-short", requests=70)
    shares = BUILTINS["mix-short"].shares
    names = ["response_format" in json.loads(body) for body in made.bodies]
    assert sum(names) == pytest.approx(70 * shares["json-extraction"] / 7, abs=1)
    for upto in range(1, 70):
        assert sum(names[:upto]) == pytest.approx(upto * 2 / 7, abs=1)


def test_nothing_claims_a_concurrency(small: Generated) -> None:
    assert "end_ns" not in small.requests.columns
    assert "outcome" not in small.requests.columns
    assert small.requests["arrival_ns"].is_sorted()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "chat"}, "no built-in profile"),
        ({"name": "code", "scale": 0.0}, "scale"),
        ({"name": "code", "requests": 0}, "at least one"),
        ({"name": "short-chat-hu", "requests": 5_000}, "different requests"),
    ],
)
def test_a_wrong_wish_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        generate(**options)


def test_the_command_writes_a_profile_that_says_synthetic(tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("a", "b")]
    for out in outs:
        done = CliRunner().invoke(
            command, ["mix-short", "-o", str(out), "--scale", "0.1", "--requests", "14", "--model", "m"]
        )
        assert done.exit_code == 0, done.output
    profile = read_profile(outs[0])
    profile.verify()
    manifest = profile.manifest
    assert manifest["synthetic"] is True
    assert manifest["content"] == "full"
    assert manifest["windows"] == []
    assert "concurrency" in manifest["not_measurable"]
    assert manifest["source"]["kind"] == "builtin"
    assert {key: manifest["source"][key] for key in ("name", "seed", "scale", "generator", "slots")} == {
        "name": "mix-short",
        "seed": 0,
        "scale": 0.1,
        "generator": 1,
        "slots": 8,
    }
    assert len(profile.bodies()) == manifest["requests"] == 14
    for name in (REQUESTS, BODIES):
        assert sha256_of(outs[0] / name) == sha256_of(outs[1] / name)


def test_the_list_names_every_profile_in_eighty_columns() -> None:
    done = CliRunner().invoke(command, ["--list"])
    assert all(name in done.output for name in BUILTINS)
    assert max(map(len, done.output.splitlines())) <= 80
