"""The functional probes: what an answer says, what is written down of it, and a whole boot with a broken engine."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import write_profile
from simulated import Engine, booted
from test_replay_run import command, replay, write_experiment

from profiles.files import FILE_MODE
from profiles.functional import BUILTIN, REPEATS, FunctionalOutcome, Probe, read_probes
from profiles.records import ERROR, OK, TIMEOUT, Outcome, ResponseFacts
from profiles.runs import FORMAT, FUNCTIONAL, VERSION, Step, read_functional, read_run
from replay.client import Slot, Timeouts
from replay.clock import SystemClock
from replay.functional import MOST_SILENT, Asking, ask_probes, body_of, describe
from replay.rundir import RunFolder
from replay.said import Said, SaidCall, read_said

PROBES = read_probes(BUILTIN)
STREAM, JSON = "text/event-stream; charset=utf-8", "application/json"


def named(name: str) -> Probe:
    (probe,) = [probe for probe in PROBES if probe.name == name]
    return probe


def stream(*deltas: dict[str, Any]) -> bytes:
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def call(index: int | None, arguments: str | None = None, **more: str) -> dict[str, Any]:
    function = {"arguments": arguments} if arguments is not None else {}
    function |= {"name": more["name"]} if "name" in more else {}
    return {"tool_calls": [({} if index is None else {"index": index}) | {"function": function}]}


# -- what an answer says ----------------------------------------------------------------------------------------------


def test_the_deltas_of_two_calls_are_joined_by_their_index() -> None:
    body = stream(
        {"role": "assistant", "content": ""},
        call(0, "", name="get_weather"),
        call(0, '{"city": '),
        call(1, '{"ci', name="get_local_time"),
        call(0, '"Győr"}'),
        call(1, 'ty": "Oslo"}'),
        {},
    )
    said = read_said(body, STREAM)
    assert said.calls == [
        SaidCall("get_weather", '{"city": "Győr"}', 2),
        SaidCall("get_local_time", '{"city": "Oslo"}', 2),
    ]
    assert (said.text, said.reasoning, said.malformed) == ("", "", 0)


def test_two_calls_under_one_index_are_what_a_client_makes_of_them() -> None:
    said = read_said(stream(call(0, "{}", name="a"), call(0, "{}", name="a"), call(None, "{}")), STREAM)
    assert said.calls == [SaidCall("a", "{}{}{}", 3)]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_kept_apart_under_either_name(field: str) -> None:
    said = read_said(stream({field: "Let me "}, {field: "think."}, {"content": "11:15"}), STREAM)
    assert said == Said(text="11:15", reasoning="Let me think.")


def test_a_whole_answer_and_a_completion_are_read_alike() -> None:
    message = {"content": None, "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "{}"}}]}
    assert read_said(orjson.dumps({"choices": [{"message": message}]}), JSON).calls == [SaidCall("a", "{}", 0)]
    assert read_said(orjson.dumps({"choices": [{"text": "Wednesday"}]}), JSON).text == "Wednesday"


def test_arguments_that_are_an_object_are_no_arguments() -> None:
    answer = {"choices": [{"message": {"tool_calls": [{"function": {"name": "a", "arguments": {"b": 1}}}]}}]}
    (found,) = read_said(orjson.dumps(answer), JSON).calls
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(found.arguments)


def test_an_event_that_is_no_json_is_counted() -> None:
    said = read_said(b"data: {broken\n\n" + stream({"content": "a"}), STREAM)
    assert (said.text, said.malformed) == ("a", 1)


@given(st.binary(), st.sampled_from([STREAM, JSON]), st.sampled_from(["", "gzip", "pony"]))
def test_nothing_that_comes_raises(body: bytes, content_type: str, encoding: str) -> None:
    read_said(body, content_type, encoding)


# -- what is written down ---------------------------------------------------------------------------------------------


def outcome(word: str = OK, **changes: Any) -> Outcome:
    facts = ResponseFacts(finish=changes.pop("finish", "stop"), output_tokens=9)
    return Outcome(window="f", c=1, index=0, request=0, workload="f", end_ns=1, outcome=word, response=facts, **changes)


def test_no_text_of_an_answer_is_written_down() -> None:
    secret = "a very private answer"
    said = Said(text=secret, reasoning=secret, calls=[SaidCall(secret, f'{{"{secret}": 1}}')])
    for probe in PROBES:
        facts = describe(probe, outcome(), said, 1, streamed=True)
        assert secret.encode() not in msgspec.json.encode(facts)


def test_a_call_is_right_only_if_its_name_is_offered_and_its_arguments_fit() -> None:
    probe = named("tool_auto")

    def facts(name: str, arguments: str) -> tuple[bool, bool, bool]:
        (found,) = describe(probe, outcome(), Said(calls=[SaidCall(name, arguments)]), 1, streamed=True).calls
        return found.known, found.parses, found.fits

    assert facts("get_weather", '{"city": "Szeged"}') == (True, True, True)
    assert facts("get_weather", '{"city": 3}') == (True, True, False)
    assert facts("get_weather", '{"city": "Sze') == (True, False, False)
    assert facts("get_weather", '["Szeged"]') == (True, False, False)
    assert facts("get_wether", '{"city": "Szeged"}') == (False, True, False)


@pytest.mark.parametrize(
    ("text", "is_json", "misfit"),
    [
        ('\n{"title": "a", "rooms": 7, "status": "open", "contacts": []}\n', True, None),
        ('{"title": "a", "rooms": "7", "status": "open", "contacts": []}', True, "$.rooms: not a integer"),
        ('```json\n{"title": "a"}\n```', False, None),
    ],
)
def test_json_of_the_schema_is_told_from_other_json_and_from_text(text: str, is_json: bool, misfit: str | None) -> None:
    facts = describe(named("json_schema"), outcome(), Said(text=text), 1, streamed=True)
    assert (facts.json, facts.misfit) == (is_json, misfit)


@pytest.mark.parametrize(
    ("text", "leaked"),
    [
        ("<think>\nHm.\n</think>11:15", True),
        ("Hm.</think>11:15", True),
        ("[THINK]Hm[/THINK]", True),
        ("I think so", False),
    ],
)
def test_a_mark_of_reasoning_in_the_text_is_a_leak(text: str, leaked: bool) -> None:
    assert describe(named("reasoning"), outcome(), Said(text=text), 1, streamed=True).leaked is leaked


def test_an_ending_tells_a_refusal_a_stop_sequence_that_was_left_and_a_finish() -> None:
    def ending(word: str = OK, text: str = "", **changes: Any) -> str:
        return describe(named("stop_sequence"), outcome(word, **changes), Said(text=text), 1, streamed=True).ending

    assert ending() == "stop"
    assert ending(text="alpha foxtrot") == "stop with its stop sequence"
    assert ending(ERROR, status=400, reason="HTTP 400") == "HTTP 400"


def test_the_same_words_have_the_same_hash_and_reasoning_is_not_among_them() -> None:
    def digest(said: Said) -> str | None:
        return describe(named("reasoning"), outcome(), said, 1, streamed=True).sha256

    assert digest(Said(text="a", reasoning="b")) == digest(Said(text="a", reasoning="c")) != digest(Said(text="b"))
    assert digest(Said(text="a")) != digest(Said(calls=[SaidCall("a", "")]))
    assert digest(Said(reasoning="b")) is None


def test_a_body_carries_the_model_the_seed_and_a_salt_of_its_pass() -> None:
    probe = named("short_answer")
    body = orjson.loads(body_of(probe, Asking("m", "x-"), 2, streamed=True))
    assert (body["model"], body["temperature"], body["seed"], body["cache_salt"]) == ("m", 0, 7, "x-functional-2")
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    whole = orjson.loads(body_of(probe, Asking(None, None), 1, streamed=False))
    assert whole["stream"] is False
    assert not {"model", "cache_salt", "stream_options"} & set(whole)
    warm = Probe(name="warm", traits=["finish_reason"], body={"messages": [{}], "temperature": 0.5, "seed": 1})
    own = orjson.loads(body_of(warm, Asking(None, None), 1, streamed=True))
    assert (own["temperature"], own["seed"]) == (0.5, 1)


# -- asked of an engine -----------------------------------------------------------------------------------------------


class Deaf(httpx.AsyncBaseTransport):
    """Never answers: every request is a time-out."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("deaf", request=request)


def asked(url: str, transport: httpx.AsyncBaseTransport | None = None) -> tuple[Step, list[FunctionalOutcome]]:
    found: list[FunctionalOutcome] = []
    clock = SystemClock()

    async def ask() -> Step:
        step, _ = await ask_probes(
            PROBES,
            Asking(None, ""),
            lambda reader: Slot(url, clock, timeouts=Timeouts(), transport=transport, new_reader=reader),
            clock,
            found.append,
        )
        return step

    return asyncio.run(ask()), found


def test_an_engine_that_never_answers_is_not_asked_for_hours() -> None:
    step, found = asked("http://127.0.0.1:1", Deaf())
    assert step.facts["asked"] == MOST_SILENT
    assert step.proof is None
    assert len(found) == REPEATS * sum(len(probe.ways) for probe in PROBES)
    assert {item.outcome for item in found} == {TIMEOUT}
    assert sum((item.reason or "").startswith("not asked") for item in found) == len(found) - MOST_SILENT


def of(found: list[FunctionalOutcome], trait: str, *, streamed: bool = True) -> Iterator[FunctionalOutcome]:
    return (item for item in found if trait in item.traits and item.streamed == streamed)


def calls_fit(found: list[FunctionalOutcome], trait: str, *, streamed: bool) -> set[bool]:
    answers = of(found, trait, streamed=streamed)
    return {len(item.calls) >= item.wanted_calls and all(one.fits for one in item.calls) for item in answers}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with booted(tmp_path_factory.mktemp("engine"), "--time-scale", "0.02") as running:
        yield running


@pytest.mark.process
def test_the_embedded_engine_can_do_all_that_is_probed_and_says_the_same_twice(engine: Engine) -> None:
    step, found = asked(engine.url)
    assert step.facts["answered"] == step.facts["asked"] == len(found)
    assert {item.outcome for item in found} == {OK}
    assert calls_fit(found, "tool_call", streamed=False) == {True}
    assert calls_fit(found, "streamed_arguments", streamed=True) == {True}
    assert all(one.deltas > 2 for item in of(found, "streamed_arguments") for one in item.calls)
    assert all(item.json is True and item.misfit is None for item in of(found, "json_schema"))
    assert all(item.reasoning_chars > 0 and not item.leaked for item in of(found, "reasoning_apart"))
    endings = {item.probe: item.ending for item in found}
    names = ("length_reached", "stop_sequence", "tool_auto")
    assert [endings[name] for name in names] == ["length", "stop", "tool_calls"]
    hashes: dict[str, set[str | None]] = {}
    for item in found:
        hashes.setdefault(item.probe, set()).add(item.sha256)
    assert {len(each) for each in hashes.values()} == {1}  # whole or streamed, in either pass


@pytest.mark.process
def test_each_fault_of_the_embedded_engine_breaks_its_function(tmp_path: Path) -> None:
    flags = ["--break-tool-arguments", "--leak-reasoning", "--ignore-schema", "--wrong-finish-reason"]
    with booted(tmp_path, "--time-scale", "0.02", *flags) as broken:
        _, found = asked(broken.url)
    assert calls_fit(found, "tool_call", streamed=False) == {True}
    assert calls_fit(found, "streamed_arguments", streamed=True) == {False}
    assert all(item.json is False for item in of(found, "json_schema"))
    assert all(item.leaked and not item.reasoning_chars for item in of(found, "reasoning_apart"))
    assert {item.finish for item in found} == {"stop"}


@pytest.mark.process
def test_drift_chance_and_missing_tools_are_faults_of_the_embedded_engine_too(engine: Engine, tmp_path: Path) -> None:
    flags = ["--drift-length", "1.5", "--nondeterministic", "--no-tools"]
    with booted(tmp_path, "--time-scale", "0.02", *flags) as broken:
        _, found = asked(broken.url)
    _, plain = asked(engine.url)
    refused = [item for item in found if item.outcome == ERROR]
    assert {item.probe for item in refused} == {probe.name for probe in PROBES if probe.body.get("tools")}
    assert {(item.status, item.reason) for item in refused} == {(400, "HTTP 400")}
    lengths = [{item.probe: item.output_tokens for item in side} for side in (found, plain)]
    for name in ("plain_english", "plain_hungarian"):
        assert (lengths[0][name] or 0) == pytest.approx(1.5 * (lengths[1][name] or 0), abs=1)
    assert len({item.sha256 for item in found if item.probe == "plain_english"}) == REPEATS


def test_a_line_that_a_kill_tore_is_cut_when_the_run_goes_on(tmp_path: Path) -> None:
    clock = SystemClock()
    run = RunFolder.create(tmp_path / "run", clock, {"format": FORMAT, "version": VERSION}, b"")
    boot = run.boot(1, 1, "v0").path
    (boot / FUNCTIONAL).write_bytes(b'{"probe":"a","repeat":1,"streamed":true,"traits":[],"outcome":"ok"}\n{"probe"')
    run.close()
    RunFolder.resume(tmp_path / "run", clock)
    assert (boot / FUNCTIONAL).read_bytes().endswith(b"}\n")


# -- in a run ---------------------------------------------------------------------------------------------------------


def own_probes(path: Path) -> None:
    """The probes of tools alone, shortened: a boot takes little longer for them."""
    lines = [line for line in BUILTIN.read_bytes().splitlines() if b'"tool_auto"' in line or b'"short_answer"' in line]
    path.write_bytes(b"\n".join(lines))


def report(folder: Path) -> tuple["subprocess.CompletedProcess[str]", dict[str, Any]]:
    done = subprocess.run(
        command("report", "run"), cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    return done, orjson.loads((folder / "run" / "verdict.json").read_bytes())


@pytest.mark.process
def test_a_faster_arm_that_breaks_streamed_tool_calls_is_rejected_whatever_its_speed(tmp_path: Path) -> None:
    write_profile(tmp_path / "profile", ["json", "qa", "rag", "qa", "json", "qa"])
    own_probes(tmp_path / "probes.jsonl")
    faster = '[[arm]]\nname = "v1"\nargs = ["--time-scale", "0.02", "--break-tool-arguments"]\n'
    path = write_experiment(tmp_path, faster, blocks=3)
    text = path.read_text().replace('prompts = "off"', 'file = "probes.jsonl"')
    path.write_text(text.replace('also = ["single", "closed c=8 for 100ms"]', "also = []"))
    done = replay(tmp_path)
    assert done.returncode == 0, done.stderr

    run = read_run(tmp_path / "run")
    assert run.manifest["functional"]["source"] == "file"
    assert len(run.boots) == 9
    for boot in run.boots:
        assert len(list(read_functional(boot.path))) == REPEATS * 3
        assert (boot.path / FUNCTIONAL).stat().st_mode & 0o777 == FILE_MODE
        (step,) = [step for step in boot.facts.steps if step.name == "functional"]
        assert step.proof == "6 of 6 probes answered"
        assert step.began_ns >= max(window.ended_ns for window in boot.facts.windows)

    shown, verdict = report(tmp_path)
    (arm,) = verdict["arms"]
    assert arm["verdict"] == "reject", shown.stdout
    sentence = "broken function: streamed tool-call arguments do not parse in 3 of 3 boots (baseline 0 of 6)"
    assert sentence in arm["reasons"]
    assert {item["trait"]: item["status"] for item in arm["functional"]}["tool_call"] == "kept"

    changed = (tmp_path / "probes.jsonl").read_text().replace("Szeged", "Pécs")
    (tmp_path / "probes.jsonl").write_text(changed)
    again = replay(tmp_path, "--resume")
    assert again.returncode == 2
    assert "the functional probes have changed since this run's first boot" in again.stderr


@pytest.mark.process
def test_an_engine_that_a_probe_kills_has_failed_its_boot_and_nothing_else_is_lost(tmp_path: Path) -> None:
    write_profile(tmp_path / "profile", ["json", "qa", "rag", "qa", "json", "qa"])
    own_probes(tmp_path / "probes.jsonl")
    path = write_experiment(tmp_path)
    text = path.read_text().replace('prompts = "off"', 'file = "probes.jsonl"')
    text = text.replace('also = ["single", "closed c=8 for 100ms"]', "also = []")
    path.write_text(text)
    assert replay(tmp_path).returncode == 0
    before = {boot.facts.arm: len(boot.outcomes) for boot in read_run(tmp_path / "run").boots}
    # The request that showed it ready, then two probes; the third one kills it.
    path.write_text(text.replace('name = "v1"\n', f'name = "v1"\nargs = ["--die-after", "{before["v1"] + 3}"]\n'))
    done = subprocess.run(
        command("replay", "experiment.toml", "-o", "killed"),
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    (boot,) = [boot for boot in read_run(tmp_path / "killed").boots if boot.facts.arm == "v1"]
    assert (boot.facts.status, boot.facts.diagnosis) == ("failed", "died")
    assert len(boot.outcomes) == before["v1"]
    assert [item.outcome for item in read_functional(boot.path)][:2] == [OK, OK]
    assert len(list(read_functional(boot.path))) < REPEATS * 3
