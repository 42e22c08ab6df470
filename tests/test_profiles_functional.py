"""The nouns of the functional guard: the built-in prompts, a set of one's own, and the part of JSON Schema it knows."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import FormatError, RuleError
from profiles.experiment import Experiment, load_experiment
from profiles.functional import BUILTIN, TRAITS, Probe, ProbeSet, probe_set, read_probes, schema_asked
from profiles.runs import FUNCTIONAL, read_functional
from profiles.schema_subset import misfit

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello."}]}
RULE = '[rule]\nid = "test"\n[profile]\npath = "profile"\n[engine]\nargv = ["engine"]\n[[arm]]\nname = "v0"\n'


def line(**changes: Any) -> dict[str, Any]:
    return {"name": "hello", "traits": ["finish_reason"], "body": ASKED} | changes


def written(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "probes.jsonl"
    texts = [item if isinstance(item, str) else orjson.dumps(item).decode() for item in lines]
    path.write_text("\n".join(texts))  # without a newline behind the last one, as some editors leave it
    return path


def experiment(folder: Path, functional: str) -> Experiment:
    (folder / "experiment.toml").write_text(RULE + functional)
    return load_experiment(folder / "experiment.toml")


# -- the built-in set -------------------------------------------------------------------------------------------------


def test_the_built_in_set_tests_every_trait_in_more_than_one_language_and_shape() -> None:
    probes = read_probes(BUILTIN)
    assert 10 <= len(probes) <= 16
    assert {trait for probe in probes for trait in probe.traits} == set(TRAITS)
    assert {probe.path for probe in probes} == {"/v1/chat/completions", "/v1/completions"}
    assert {probe.body.get("tool_choice") for probe in probes} >= {"auto", "required"}
    assert max(probe.calls for probe in probes) == 2
    assert any("Magyarul" in str(probe.body) for probe in probes)
    assert sum(len(probe.ways) for probe in probes) <= 20
    assert all(probe.body["max_tokens"] <= 512 for probe in probes)


def test_a_probe_is_asked_for_a_whole_answer_only_where_a_trait_needs_it() -> None:
    ways = {probe.name: probe.ways for probe in read_probes(BUILTIN)}
    assert ways["plain_english"] == (True,)
    assert ways["tool_auto"] == ways["reasoning"] == (False, True)


def test_the_hash_of_a_set_stands_for_its_meaning_and_not_for_its_spaces(tmp_path: Path) -> None:
    first = ProbeSet("file", read_probes(written(tmp_path, line())))
    spaced = (
        '{ "body": {"messages": [{"content": "Hello.", "role": "user"}]}, "traits":["finish_reason"],"name":"hello"}'
    )
    assert ProbeSet("file", read_probes(written(tmp_path, spaced, "", " "))).sha256 == first.sha256
    assert ProbeSet("file", read_probes(written(tmp_path, line(name="other")))).sha256 != first.sha256
    assert first.stated()["probes"] == {"hello": ["finish_reason"]}


# -- a set of one's own -----------------------------------------------------------------------------------------------


def test_a_rule_names_the_built_in_set_a_file_or_none(tmp_path: Path) -> None:
    written(tmp_path, line(), line(name="second"))
    assert probe_set(experiment(tmp_path, "")).source == "builtin"
    own = probe_set(experiment(tmp_path, '[functional]\nfile = "probes.jsonl"\n'))
    assert (own.source, [probe.name for probe in own.probes]) == ("file", ["hello", "second"])
    assert probe_set(experiment(tmp_path, '[functional]\nprompts = "off"\n')).probes == ()
    with pytest.raises(RuleError, match=r"experiment\.toml:11: functional\.file: .*never be asked"):
        probe_set(experiment(tmp_path, '[functional]\nprompts = "off"\nfile = "probes.jsonl"\n'))
    with pytest.raises(FormatError, match="no such file"):
        probe_set(experiment(tmp_path, '[functional]\nfile = "nowhere.jsonl"\n'))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{", "truncated"),
        (line(trait=[]), "unknown field `trait`"),
        (line(traits=["speed"]), r"Invalid enum value 'speed' - at `\$\.traits"),
        (line(traits=[]), "traits is empty"),
        (line(), "a second probe of the name 'hello'"),
        (line(name="a b"), "name 'a b'"),
        (line(name="b", path="/v1/responses"), "path '/v1/responses'"),
        (line(name="b", body={"prompt": "Hello."}), "body has no messages"),
        (line(name="b", path="/v1/completions"), "body has no prompt"),
        (line(name="b", body=ASKED | {"stream": True}), "body.stream is set by the replay"),
        (line(name="b", body=ASKED | {"n": 2}), "body.n must be 1"),
        (line(name="b", traits=["tool_call"]), "body has no tools"),
        (line(name="b", traits=["json_schema"]), "body.response_format is neither"),
        (line(name="b", calls=0), "calls must be 1 or more"),
    ],
)
def test_what_is_wrong_with_a_probe_is_said_with_file_and_line(
    tmp_path: Path, bad: dict[str, Any] | str, says: str
) -> None:
    with pytest.raises(FormatError, match=rf"probes\.jsonl:2: .*{says}"):
        read_probes(written(tmp_path, line(), bad))


def test_an_empty_set_is_no_set(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no probe in it"):
        read_probes(written(tmp_path, ""))


def test_the_schema_of_a_body_is_the_one_that_it_asks_for() -> None:
    schema = {"type": "object", "required": ["a"]}
    named = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert schema_asked({"response_format": named}) == schema
    assert schema_asked({"response_format": {"type": "json_object"}}) == {"type": "object"}
    assert schema_asked({"response_format": {"type": "text"}}) is None
    assert schema_asked({}) is None
    tooled = Probe(name="a", traits=["tool_call"], body=ASKED | {"tools": [TOOL]})
    assert schema_asked(tooled.body) is None


def test_a_boot_without_probes_has_none(tmp_path: Path) -> None:
    assert list(read_functional(tmp_path)) == []
    (tmp_path / FUNCTIONAL).write_bytes(b'{"probe":"a"}\n')
    with pytest.raises(FormatError, match=r"functional\.jsonl:1: "):
        list(read_functional(tmp_path))


# -- JSON Schema ------------------------------------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "home": {"$ref": "#/$defs/place"},
        "phone": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "boolean"}, {"const": 7}]},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "required": ["city"], "additionalProperties": {"type": "string"}}},
}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"name": "Ada"}, None),
        ({"name": "Ada", "age": 36, "tags": ["a"], "home": {"city": "x", "zip": "y"}, "phone": None}, None),
        ({"name": "Ada", "age": 36.0, "either": 7}, None),
        ({"name": "Ada", "either": True}, None),
        ([], "$: not a object"),
        ({}, "$.name: missing"),
        ({"name": ""}, "$.name: of another length"),
        ({"name": "Ada", "age": "36"}, "$.age: not a integer"),
        ({"name": "Ada", "age": True}, "$.age: not a integer"),
        ({"name": "Ada", "age": 151}, "$.age: out of its range"),
        ({"name": "Ada", "tags": ["a", "c"]}, "$.tags[1]: none of the listed values"),
        ({"name": "Ada", "tags": ["a", "a", "a"]}, "$.tags: of another length"),
        ({"name": "Ada", "home": {}}, "$.home.city: missing"),
        ({"name": "Ada", "home": {"city": "x", "zip": 1}}, "$.home: a key that the schema does not have"),
        ({"name": "Ada", "phone": 1}, "$.phone: not a string or null"),
        ({"name": "Ada", "either": 1}, "$.either: none of the forms it may have"),
        ({"name": "Ada", "secret": 1}, "$: a key that the schema does not have"),
    ],
)
def test_a_value_that_has_not_the_form_is_named_by_its_place(value: Any, problem: str | None) -> None:
    found = misfit(value, PERSON)
    assert (found is None) if problem is None else (found or "").startswith(problem)


def test_true_is_not_one_and_a_schema_that_refers_to_itself_ends() -> None:
    assert misfit(True, {"enum": [1]}) is not None
    assert misfit(1, {"const": True}) is not None
    assert misfit({"a": 1}, {"$ref": "#"}) is None
    assert misfit(1, {"allOf": [{"type": "integer"}, {"maximum": 0}]}) is not None
    assert misfit(1, False) is not None


KEYS = st.text() | st.sampled_from(["type", "items", "enum", "required", "$ref"])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda of: st.lists(of) | st.dictionaries(KEYS, of)
)


@given(JSON_VALUES)
def test_no_value_and_no_schema_raises(value: Any) -> None:
    assert misfit(value, {}) is None
    misfit(value, value)
    misfit({"a": [value]}, {"properties": {"a": {"items": value}}, "required": value, "anyOf": value})
