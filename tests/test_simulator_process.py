"""The embedded engine as a process: boot, endpoints, streams, counters, faults, stop. Loopback only."""

import asyncio
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest
from simulated import K2, PATIENCE_S, Engine, booted, chat, counters, raw_events, read, wait_for

from replay.simulator import lifecycle
from replay.simulator.traffic import send_traffic

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with booted(tmp_path_factory.mktemp("engine"), *K2) as running:
        yield running


# -- boot ------------------------------------------------------------------------------------------------------------


def test_connections_are_refused_until_the_engine_is_ready_and_the_log_says_why(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ("--port", str(port), "--boot-time", "1500ms", "--seed", "5", "--async-scheduling", *K2)
    with booted(tmp_path, *flags, ready=False) as engine:
        wait_for(lambda: "Initializing a V1 LLM engine" in engine.log, "the first lines")
        with pytest.raises(ConnectionRefusedError), socket.socket() as early:
            early.connect(("127.0.0.1", port))
        assert "Application startup complete" not in engine.log
        wait_for(lambda: "Application startup complete" in engine.log, "the boot")
        with engine.client() as client:
            assert client.get("/health").status_code == 200
        first, *lines = engine.log.splitlines()
    assert "simulation and not hardware (seed 5, speed factor" in first
    log = "\n".join(lines)
    for pattern in (
        r"non-default args: (\{.*'async_scheduling': True.*\})",
        r"Initializing a V1 LLM engine \((v[^)]+)\) with config: (.*num_spec_tokens=2.*)",
        r"Using (\w+) attention backend out of potential backends: (\[.*?\])",
        r"Asynchronous scheduling is (enabled|disabled)",
        r"Using default MoE config\. Performance might be sub-optimal!",
        r"GPU KV cache size: ([\d,]+) tokens",
        r"(?m)^\(EngineCore pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[core\.py:\d+\] init engine",
        r"(?m)^\(APIServer pid=\d+\) INFO:     Application startup complete\.$",
    ):
        assert re.search(pattern, log), pattern


def test_an_arm_that_names_the_default_backend_differs_in_that_line_alone(tmp_path: Path) -> None:
    logs = []
    for name, flags in (("auto", ()), ("named", ("--attention-backend", "flashinfer"))):
        with booted(tmp_path / name, "--seed", "1", *flags) as engine:
            normal = re.sub(r"pid=\d+|\d\d-\d\d \d\d:\d\d:\d\d|:\d+$", "", engine.log, flags=re.MULTILINE)
            logs.append([line for line in normal.splitlines() if "non-default args" not in line])
    differing = [(a, b) for a, b in zip(*logs, strict=True) if a != b]
    assert [("FLASHINFER" in a, "AttentionBackendEnum.FLASHINFER" in b) for a, b in differing] == [(True, True)]


def test_an_unknown_flag_is_a_usage_error(tmp_path: Path) -> None:
    with booted(tmp_path, "--enable-magic", ready=False) as engine:
        assert engine.process.wait(PATIENCE_S) == 2
        assert "No such option" in engine.log


@pytest.mark.parametrize("value", ["k=2", "{}", '{"method":"mtp","num_speculative_tokens":0}'])
def test_a_speculative_config_that_cannot_be_read_is_a_usage_error(tmp_path: Path, value: str) -> None:
    with booted(tmp_path, "--speculative-config", value, ready=False) as engine:
        assert engine.process.wait(PATIENCE_S) == 2


def test_a_boot_can_die_with_a_code(tmp_path: Path) -> None:
    with booted(tmp_path, "--die-in-boot", "7") as engine:
        assert engine.process.wait(PATIENCE_S) == 7
        assert "Engine core initialization failed" in engine.log
        assert "Application startup complete" not in engine.log


# -- endpoints -------------------------------------------------------------------------------------------------------


def test_a_stream_has_vllms_shape(engine: Engine) -> None:
    events = raw_events(engine, chat())
    documents = [orjson.loads(event) for event in events[:-1]]
    assert events[-1] == b"[DONE]"
    assert documents[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    *contents, last = documents[1:-1]
    assert all(each["choices"][0]["finish_reason"] is None for each in contents)
    assert last["choices"][0]["finish_reason"] in ("stop", "length")
    text = "".join(each["choices"][0]["delta"]["content"] for each in documents[1:-1])
    usage = documents[-1]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(text.split())
    assert {each["id"] for each in documents} == {usage["id"]}
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{16}", usage["id"])
    per_chunk = [len(each["choices"][0]["delta"]["content"].split()) for each in documents[1:-1]]
    assert per_chunk[0] == 1
    assert set(per_chunk) <= {1, 2, 3}
    assert max(per_chunk) > 1


def test_the_reader_of_the_project_understands_a_stream(engine: Engine) -> None:
    facts = read(engine, chat("Is it the reader?", return_token_ids=True))
    assert facts.done
    assert facts.error is None
    assert facts.finish in ("stop", "length")
    assert facts.first_event_tokens == 1
    assert facts.output_tokens == 30 or facts.finish == "stop"
    assert facts.cached_tokens == 0
    assert facts.prompt_tokens == 4 + 7


def test_usage_comes_only_when_it_is_asked_for_and_in_each_chunk_when_that_is(engine: Engine) -> None:
    assert read(engine, chat(stream_options=None)).output_tokens is None
    body = chat(stream_options={"include_usage": True, "continuous_usage_stats": True})
    running = [orjson.loads(event)["usage"]["completion_tokens"] for event in raw_events(engine, body)[:-1]]
    assert running[0] == 0
    assert running == sorted(running)


def test_the_same_prompt_is_answered_in_the_same_words_and_partly_from_the_cache(engine: Engine) -> None:
    words = "one two three four five six seven eight " * 5
    first, again = (raw_events(engine, chat(words)) for _ in range(2))
    texts = [[orjson.loads(event)["choices"] for event in events[:-1]] for events in (first, again)]
    assert texts[0] == texts[1]
    usage = orjson.loads(again[-2])["usage"]
    assert usage["prompt_tokens"] == 47
    assert usage["prompt_tokens_details"] == {"cached_tokens": 32}
    salted = orjson.loads(raw_events(engine, chat(words, cache_salt="x"))[-2])["usage"]
    assert salted["prompt_tokens_details"] == {"cached_tokens": 0}


def test_json_is_valid_when_it_is_not_cut(engine: Engine) -> None:
    body = chat("Extract.", response_format={"type": "json_object"}, max_tokens=64, stream=False)
    with engine.client() as client:
        answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert isinstance(orjson.loads(answer["choices"][0]["message"]["content"]), dict)


def test_forced_lengths_are_exact(engine: Engine) -> None:
    facts = read(engine, chat(max_tokens=171, ignore_eos=True))
    assert (facts.output_tokens, facts.finish) == (171, "length")
    assert (read(engine, chat(max_tokens=200, min_tokens=190)).output_tokens or 0) >= 190


def test_completions_stream_as_well(engine: Engine) -> None:
    facts = read(engine, {"prompt": "Once upon a time", "stream": True, "max_tokens": 9}, "/v1/completions")
    assert (facts.done, facts.finish, facts.output) == (True, "length", True)


def test_a_chunked_upload_and_a_kept_connection_are_understood(engine: Engine) -> None:
    def pieces() -> Iterator[bytes]:
        body = orjson.dumps(chat(stream=False, max_tokens=2))
        yield body[:40]
        yield body[40:]

    with engine.client() as client:
        for _ in range(2):
            answer = client.post("/v1/chat/completions", content=pieces())
            assert answer.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"model": "nope"}, 404, "NotFoundError"),
        ({"messages": 3}, 400, "Bad Request"),
        ({"messages": []}, 400, "Bad Request"),
        ({"max_tokens": 0}, 400, "Bad Request"),
        ({"n": 2}, 400, "BadRequestError"),
        ({"max_tokens": 40_000}, 400, "BadRequestError"),
        ({"min_tokens": 31}, 400, "BadRequestError"),
        ({"firsttoken_fault": "earthquake"}, 400, "BadRequestError"),
        ({"firsttoken_fault": "http_500"}, 500, "InternalServerError"),
    ],
)
def test_errors_are_answered_as_vllm_answers_them(
    engine: Engine, fields: dict[str, Any], status: int, kind: str
) -> None:
    with engine.client() as client:
        answer = client.post("/v1/chat/completions", json=chat(**fields))
    assert answer.status_code == status
    assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == (kind, status)


def test_a_prompt_beyond_the_context_is_refused_and_the_engine_goes_on(engine: Engine) -> None:
    with engine.client() as client:
        answer = client.post("/v1/chat/completions", json=chat("word " * 40_000))
        assert answer.status_code == 400
        assert "maximum context length is 32768 tokens" in answer.json()["error"]["message"]
        assert client.post("/v1/chat/completions", content=b"not JSON").status_code == 400
        assert client.get("/health").status_code == 200
        assert client.get("/nothing").status_code == 404
        assert client.get("/v1/chat/completions").status_code == 405
        assert client.get("/version").json()["simulation"] is True
        model = client.get("/v1/models").json()["data"][0]
    assert (model["id"], model["max_model_len"]) == ("simulated", 32_768)


def test_bytes_that_are_no_request_end_the_connection_and_nothing_else(engine: Engine) -> None:
    host, port = engine.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as strange:
        strange.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert strange.recv(100).startswith(b"HTTP/1.1 400 ")
    with engine.client() as client:
        assert client.get("/health").status_code == 200


# -- counters and truth ----------------------------------------------------------------------------------------------


def test_the_counters_agree_with_one_another_and_with_what_was_answered(engine: Engine) -> None:
    before = counters(engine)
    answers = [read(engine, chat(f"Question number {number}, please.")) for number in range(5)]
    after = counters(engine)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("vllm:generation_tokens_total") == sum(each.output_tokens or 0 for each in answers)
    assert grown("vllm:prompt_tokens_total") == sum(each.prompt_tokens or 0 for each in answers)
    assert grown("vllm:prefix_cache_queries_total") == grown("vllm:prompt_tokens_total")
    finished = [grown(f"vllm:request_success_total{{finished_reason={why}}}") for why in ("stop", "length")]
    assert sum(finished) == 5
    positions = [grown(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{position={at}}}") for at in (0, 1)]
    assert sum(positions) == grown("vllm:spec_decode_num_accepted_tokens_total") > 0
    assert positions[0] >= positions[1]
    assert grown("vllm:spec_decode_num_draft_tokens_total") == 2 * grown("vllm:spec_decode_num_drafts_total")
    assert grown("vllm:time_to_first_token_seconds_count") == 5
    assert grown("vllm:time_to_first_token_seconds_bucket{le=+Inf}") == 5
    assert grown("vllm:time_to_first_token_seconds_sum") > 0
    assert (after["vllm:num_requests_running"], after["vllm:num_requests_waiting"]) == (0, 0)
    assert after["vllm:kv_cache_usage_perc"] == 0
    assert after["process_start_time_seconds"] == pytest.approx(time.time(), abs=600)


def test_speculation_series_are_absent_without_speculation(tmp_path: Path) -> None:
    with booted(tmp_path) as engine:
        read(engine, chat())
        found = counters(engine)
    assert not [name for name in found if "spec_decode" in name]
    assert found["vllm:generation_tokens_total"] == 30


def test_what_a_client_measures_lies_after_the_truth_event_by_event(engine: Engine) -> None:
    known = len(engine.truth())
    facts = read(engine, chat("Where is the truth?", return_token_ids=True))
    (truth,) = engine.truth()[known:]
    assert facts.first_token_ns is not None
    measured = [facts.first_token_ns]
    for gap_ns in facts.token_gaps_ns:
        measured.append(measured[-1] + gap_ns)
    assert len(measured) == len(truth["handed_ns"])
    assert sum(truth["tokens"]) == facts.output_tokens == truth["output_tokens"]
    assert truth["arrival_ns"] <= truth["prefill_start_ns"] < truth["planned_ns"][0]
    for planned, handed, seen in zip(truth["planned_ns"], truth["handed_ns"], measured, strict=True):
        assert planned <= handed <= seen
    assert truth["workload"] == "short"
    assert "content" not in orjson.dumps(truth).decode()


def test_the_plan_of_a_lonely_request_is_the_cost_model_to_the_nanosecond(tmp_path: Path) -> None:
    with booted(tmp_path, "--speed-sd", "0", *K2) as engine:
        read(engine, chat("Alone at last", max_tokens=12))
        (truth,) = engine.truth()
    planned = [truth["arrival_ns"], *truth["planned_ns"]]
    context = truth["prompt_tokens"]
    assert planned[1] - planned[0] == round(0.2 * (8_300_000 + 50_000 * context + 0.5 * context * context / 2))
    for index in range(2, len(planned)):
        context = truth["prompt_tokens"] + sum(truth["tokens"][: index - 1])
        step = 0.2 * (8_300_000 + 3 * 260_000 + 100 * context + 2 * 950_000)
        assert planned[index] - planned[index - 1] == pytest.approx(step, abs=3)  # roundings


# -- faults, aborts, stops -------------------------------------------------------------------------------------------


def test_an_error_inside_the_stream_comes_after_some_tokens_with_status_200(engine: Engine) -> None:
    events = raw_events(engine, chat(firsttoken_fault="error_in_stream"))
    assert events[-1] == b"[DONE]"
    assert orjson.loads(events[-2])["error"]["code"] == 500
    assert orjson.loads(events[1])["choices"][0]["delta"]["content"]
    assert read(engine, chat(firsttoken_fault="error_in_stream")).error == "InternalServerError"


def test_a_cut_stream_breaks_off(engine: Engine) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        read(engine, chat(), **{"firsttoken-fault": "cut"})


def test_a_stalled_stream_is_silent_for_as_long_as_asked_and_then_complete(engine: Engine) -> None:
    facts = read(engine, chat(firsttoken_fault="stall:300ms"))
    assert facts.done
    assert max(facts.token_gaps_ns) >= 250_000_000  # a slow reader may see the chunk before it late, never early


def test_a_client_that_goes_away_aborts_its_request(engine: Engine) -> None:
    before = counters(engine)["vllm:request_success_total{finished_reason=abort}"]
    body = chat("I will not wait for this.", max_tokens=20_000, ignore_eos=True)
    with engine.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
        pieces = response.iter_raw()  # held: a dropped iterator closes the response
        next(pieces)
        assert counters(engine)["vllm:num_requests_running"] == 1
    wait_for(lambda: counters(engine)["vllm:num_requests_running"] == 0, "the abort")
    assert counters(engine)["vllm:request_success_total{finished_reason=abort}"] == before + 1


def test_sigterm_stops_it_at_once_with_exit_0_whatever_is_in_flight(tmp_path: Path) -> None:
    body = chat("Still going?", max_tokens=20_000, ignore_eos=True)
    with booted(tmp_path) as engine, engine.client() as client:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            pieces = response.iter_raw()
            next(pieces)
            engine.process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.HTTPError):
                list(pieces)
        assert engine.process.wait(PATIENCE_S) == 0
        assert "[shutdown]" in engine.log
        assert "Traceback" not in engine.log


def test_sigterm_in_the_boot_stops_it_with_exit_0(tmp_path: Path) -> None:
    with booted(tmp_path, "--boot-time", "60s", ready=False) as engine:
        wait_for(lambda: "non-default args" in engine.log, "the first lines")
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(PATIENCE_S) == 0


def test_an_engine_may_ignore_sigterm(tmp_path: Path) -> None:
    with booted(tmp_path, "--ignore-sigterm") as engine:
        engine.process.send_signal(signal.SIGTERM)
        assert read(engine, chat()).done
        assert engine.process.poll() is None


def test_an_engine_may_die_after_some_requests(tmp_path: Path) -> None:
    with booted(tmp_path, "--die-after", "1") as engine:
        assert read(engine, chat()).done
        with pytest.raises(httpx.HTTPError):
            read(engine, chat())
        assert engine.process.wait(PATIENCE_S) == 1
        assert "EngineCore encountered a fatal error" in engine.log


def test_a_child_outlives_its_killed_leader_and_not_its_group(tmp_path: Path) -> None:
    with booted(tmp_path, "--spawn-child") as engine:
        (child,) = psutil.Process(engine.process.pid).children()
        engine.process.kill()
        engine.process.wait(PATIENCE_S)
        assert child.is_running()
        os.killpg(engine.process.pid, signal.SIGKILL)
        wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the end of the child")


def test_a_port_that_is_taken_fails_the_boot(tmp_path: Path, engine: Engine) -> None:
    port = engine.url.rsplit(":", 1)[1]
    with booted(tmp_path, "--port", port) as second:
        assert second.process.wait(PATIENCE_S) == 1
        assert "cannot be bound" in second.log


def test_the_traffic_of_the_demo_is_answered_in_full(engine: Engine) -> None:
    known = len(engine.truth())
    sent = asyncio.run(send_traffic(engine.url, seed=2, requests=24, seconds=1.5))
    truths = engine.truth()[known:]
    assert sent == len(truths) == 24
    assert {each["finish"] for each in truths} <= {"stop", "length"}
    assert {each["workload"] for each in truths} == {"json", "long", "short"}
    assert sum(each["cached_tokens"] for each in truths) > 0


def test_pieces_are_not_held_back_for_an_acknowledgement() -> None:
    """asyncio leaves Nagle's algorithm on for a socket whose protocol it cannot see (TTFT was 40 ms late)."""

    async def main() -> int:
        listener = lifecycle._bound_socket("127.0.0.1", 0)
        option: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted: socket.socket = writer.get_extra_info("socket")
            option.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        server = await asyncio.start_server(accept, sock=listener)
        async with server:
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            found = await option
            writer.close()
            return found

    assert asyncio.run(main()) != 0
