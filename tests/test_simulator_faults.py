"""The embedded engine as it misbehaves on request: each fault looks as the real one does."""

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from simulated import K2, PATIENCE_S, Engine, booted, chat, counters, free_port, living_in, read, wait_for

from replay.bootlog import patterns
from replay.simulator.faults import LEFTOVER_LIFE_S
from replay.simulator.flood import MIB, noise

pytestmark = pytest.mark.process


def ask(engine: Engine, **fields: Any) -> httpx.Response:
    with engine.client() as client:
        return client.post("/v1/chat/completions", json=chat(max_tokens=4, stream=False, stream_options=None, **fields))


def status_of(engine: Engine, path: str) -> int:
    with engine.client() as client:
        return client.get(path).status_code


def findings(engine: Engine) -> set[str]:
    """The rows of the pattern table that its log matches."""
    log = engine.log_path.read_text(errors="replace")
    return {pattern.id for pattern in patterns() if pattern.engine == "vllm" and pattern.regex.search(log)}


# -- boots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGKILL", "SIGABRT"])
def test_a_boot_can_die_by_a_signal(tmp_path: Path, name: str) -> None:
    with booted(tmp_path, "--die-in-boot", name) as engine:
        assert engine.process.wait(PATIENCE_S) == -signal.Signals[name]


def test_a_boot_out_of_memory_says_so_before_its_last_line_which_does_not(tmp_path: Path) -> None:
    with booted(tmp_path, "--die-in-boot", "oom") as engine:
        assert engine.process.wait(PATIENCE_S) == 1
        *before, last = engine.log.splitlines()
    assert "CUDA out of memory" in "\n".join(before)
    assert "Engine core initialization failed. See root cause above." in last


@pytest.mark.parametrize("flags", [("--die-in-boot", "SIGPONY"), ("--early-ready", "soon"), ("--hang-in-boot", "x")])
def test_a_fault_that_cannot_be_read_is_a_usage_error(tmp_path: Path, flags: tuple[str, str]) -> None:
    with booted(tmp_path, *flags, ready=False) as engine:
        assert engine.process.wait(PATIENCE_S) == 2
        assert flags[0] in engine.log


def test_two_processes_need_a_port_that_is_given(tmp_path: Path) -> None:
    with booted(tmp_path, "--twin", ready=False) as engine:
        assert engine.process.wait(PATIENCE_S) != 0
        assert "Give --port" in engine.log


def test_a_boot_that_hangs_in_silence_never_listens_and_stops_when_told(tmp_path: Path) -> None:
    port = free_port()
    with booted(tmp_path, "--port", port, "--hang-in-boot", "silent", ready=False) as engine:
        wait_for(lambda: "Using default MoE config" in engine.log, "the last line")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)))
        assert "KV cache size" not in engine.log
        engine.process.terminate()
        assert engine.process.wait(PATIENCE_S) == 0


def test_a_boot_that_hangs_with_503_listens_and_never_gets_ready(tmp_path: Path) -> None:
    port = free_port()
    with booted(tmp_path, "--port", port, "--hang-in-boot", "503", ready=False) as engine:
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False)

        def answers() -> bool:
            try:
                return client.get("/health").status_code == 503
            except httpx.ConnectError:
                return False

        wait_for(answers, "the 503")
        assert client.get("/v1/models").status_code == 503
        assert client.post("/v1/chat/completions", json=chat()).json()["error"]["message"] == "Loading model"
        assert "startup complete" not in engine.log
        client.close()


@pytest.mark.parametrize(("kind", "status"), [("", 503), (":error", 200)])
def test_an_engine_may_say_200_before_its_model_is_there(tmp_path: Path, kind: str, status: int) -> None:
    with booted(tmp_path / "long", "--early-ready", f"10min{kind}") as engine:
        assert status_of(engine, "/health") == status_of(engine, "/v1/models") == 200
        early = ask(engine)
        assert (early.status_code, early.json()["error"]["code"]) == (status, 503)
    with booted(tmp_path / "short", "--early-ready", f"200ms{kind}") as engine:
        wait_for(lambda: "choices" in ask(engine).json(), "the model")
        assert read(engine, chat()).done


def test_the_compile_cache_is_cold_once_for_each_set_of_flags_that_compile_anew(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    seen = []
    for number, more in enumerate([(), (), K2, K2, ("--enforce-eager",)]):
        with booted(tmp_path / str(number), "--compile-cache", str(cache), *more) as engine:
            seen.append(findings(engine) & {"P12", "P13", "P14"})
    assert seen == [{"P12", "P13"}, {"P14"}, {"P12", "P13"}, {"P14"}, set()]


def test_the_kv_cache_differs_by_boot_and_follows_from_the_seed(tmp_path: Path) -> None:
    sizes = []
    for number, seed in enumerate(("1", "2", "1")):
        with booted(tmp_path / str(number), "--kv-jitter", "0.05", "--seed", seed) as engine:
            (line,) = [line for line in engine.log.splitlines() if "GPU KV cache size" in line]
            sizes.append(int(line.split()[-2].replace(",", "")))
    assert sizes[0] == sizes[2] != sizes[1]
    assert all(abs(size / (8_192 * 16) - 1) <= 0.05 for size in sizes)


def test_none_of_the_simulations_own_flags_is_an_argument_in_the_boot_log(tmp_path: Path) -> None:
    flags = ("--die-after", "99", "--metrics-lag", "1ms", "--ignore-cache-salt", "--jit-shapes", "--reuse-port")
    with booted(tmp_path, *flags, "--max-num-seqs", "7") as engine:
        (line,) = [line for line in engine.log.splitlines() if "non-default args" in line]
    assert line.endswith("{'port': 0, 'max_num_seqs': 7}")


# -- serving ---------------------------------------------------------------------------------------------------------


def test_a_hung_engine_is_silent_and_healthy_and_says_that_it_runs(tmp_path: Path) -> None:
    with booted(tmp_path, "--hang-after", "1") as engine, engine.client() as client:
        assert read(engine, chat()).done
        patience = httpx.Timeout(PATIENCE_S, read=0.5)
        with client.stream("POST", "/v1/chat/completions", json=chat(), timeout=patience) as answer:
            assert answer.status_code == 200
            with pytest.raises(httpx.ReadTimeout):
                next(answer.iter_raw())
        with client.stream("POST", "/v1/chat/completions", json=chat(), timeout=patience):
            found = counters(engine)
            assert status_of(engine, "/health") == 200
        assert found["vllm:num_requests_running"] + found["vllm:num_requests_waiting"] >= 1
        assert found["vllm:generation_tokens_total"] == 30
        engine.process.terminate()
        assert engine.process.wait(PATIENCE_S) == 0


def test_an_engine_may_answer_every_further_request_with_500(tmp_path: Path) -> None:
    with booted(tmp_path, "--errors-after", "1") as engine:
        assert [ask(engine).status_code for _ in range(3)] == [200, 500, 500]
        assert status_of(engine, "/health") == 200


def test_a_supervisor_boots_a_dead_engine_again_on_the_same_port_into_the_same_log(tmp_path: Path) -> None:
    with booted(tmp_path, "--port", free_port(), "--restart-after", "1", "--seed", "4") as engine:
        (worker,) = psutil.Process(engine.process.pid).children()
        started = counters(engine)["process_start_time_seconds"]
        assert read(engine, chat()).done
        with pytest.raises(httpx.HTTPError):
            read(engine, chat())
        wait_for(lambda: engine.log.count("Application startup complete") == 2, "the second boot")
        assert read(engine, chat()).done
        assert read(engine, chat()).done  # it dies once
        after = counters(engine)
        assert after["process_start_time_seconds"] > started
        assert after["vllm:request_success_total{finished_reason=length}"] == 2
        assert "engine exited with code 1, restarting it (restart 1)" in engine.log
        assert "(seed 5, speed factor" in engine.log
        (successor,) = psutil.Process(engine.process.pid).children()
        assert successor.pid != worker.pid
        engine.process.terminate()
        assert engine.process.wait(PATIENCE_S) == 0
        wait_for(lambda: not living_in(tmp_path), "the end of the worker")


def test_an_unseen_shape_compiles_while_serving_and_a_seen_one_does_not(tmp_path: Path) -> None:
    with booted(tmp_path, "--jit-shapes", "--speed-sd", "0") as engine:
        for words in ("One two three.", "Four five six.", "word " * 300):
            read(engine, chat(words, max_tokens=3))
        first, again, longer = engine.truth()
        lines = [line for line in engine.log.splitlines() if "Triton kernel JIT compilation during inference" in line]
    compile_ns = 80_000_000  # 400 ms at this time scale
    assert first["planned_ns"][0] - first["arrival_ns"] > compile_ns
    assert first["planned_ns"][1] - first["planned_ns"][0] > compile_ns  # the decode kernel
    assert again["planned_ns"][-1] - again["arrival_ns"] < compile_ns
    assert longer["planned_ns"][0] - longer["arrival_ns"] > compile_ns
    assert len(lines) == 3


def test_a_salt_may_have_no_effect(tmp_path: Path) -> None:
    words = "one two three four five six seven eight " * 5
    with booted(tmp_path, "--ignore-cache-salt") as engine:
        read(engine, chat(words, cache_salt="a"))
        assert read(engine, chat(words, cache_salt="b")).cached_tokens == 32


def test_usage_may_be_without_cached_tokens(tmp_path: Path) -> None:
    with booted(tmp_path, "--no-enable-prompt-tokens-details") as engine:
        facts = read(engine, chat())
    assert facts.cached_tokens is None
    assert facts.prompt_tokens == 11


# -- metrics and reset -----------------------------------------------------------------------------------------------


def test_an_engine_may_have_no_metrics(tmp_path: Path) -> None:
    with booted(tmp_path, "--no-metrics") as engine:
        assert status_of(engine, "/metrics") == 404


def test_counters_may_lag_behind_the_gauges(tmp_path: Path) -> None:
    with booted(tmp_path / "long", "--metrics-lag", "10min") as engine:
        read(engine, chat())
        found = counters(engine)
        assert found["vllm:num_requests_running"] == 0
        assert found["vllm:generation_tokens_total"] == found["vllm:time_to_first_token_seconds_count"] == 0
    with booted(tmp_path / "short", "--metrics-lag", "50ms") as engine:
        read(engine, chat())
        wait_for(lambda: counters(engine)["vllm:generation_tokens_total"] == 30, "the counters")


def test_the_prefix_cache_is_reset_only_in_dev_mode_and_only_when_nothing_runs(tmp_path: Path) -> None:
    words = "one two three four five six seven eight " * 5
    with booted(tmp_path / "plain") as engine, engine.client() as client:
        assert client.post("/reset_prefix_cache").status_code == 404
    with booted(tmp_path / "dev", env={"VLLM_SERVER_DEV_MODE": "1"}) as engine, engine.client() as client:
        assert "V26" in findings(engine)
        read(engine, chat(words))
        with engine.client() as other, other.stream("POST", "/v1/chat/completions", json=_endless()) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            assert client.post("/reset_prefix_cache").status_code == 200
        assert "P24" in findings(engine)
        assert "P23" not in findings(engine)
        wait_for(lambda: counters(engine)["vllm:num_requests_running"] == 0, "the abort")
        assert read(engine, chat(words)).cached_tokens == 32
        assert client.post("/reset_prefix_cache").status_code == 200
        assert "P23" in findings(engine)
        assert read(engine, chat(words)).cached_tokens == 0


def _endless() -> dict[str, Any]:
    return chat("I will not wait for this.", max_tokens=20_000, ignore_eos=True)


# -- what it leaves behind -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "renamed"])
def test_grandchildren_are_reparented_ignore_sigterm_and_outlive_the_group(tmp_path: Path, kind: str) -> None:
    with booted(tmp_path, "--leave-grandchildren", kind, env={"SIMULATED_MARK": "here"}) as engine:
        leader = psutil.Process(engine.process.pid)
        assert leader.children(recursive=True) == []
        workers = [process for process in living_in(tmp_path) if process != leader]
        assert len(workers) == 2
        for worker in workers:
            assert worker.ppid() != leader.pid
            assert os.getsid(worker.pid) != leader.pid
            kept = Path(f"/proc/{worker.pid}/comm").read_text().strip()
            assert (kept == "VLLM::EngineCor") is (kind == "renamed")
            assert ("".join(worker.cmdline()) == "VLLM::EngineCore") is (kind == "renamed")
            assert (worker.environ().get("SIMULATED_MARK") == "here") is (kind == "plain")
            worker.terminate()
        os.killpg(leader.pid, signal.SIGKILL)
        engine.process.wait(PATIENCE_S)
        time.sleep(0.1)  # a SIGTERM that was heeded would have ended them by now
        assert all(worker.is_running() for worker in workers)
    wait_for(lambda: not living_in(tmp_path), "the end of the test's own clean-up")


def test_what_is_left_behind_ends_by_itself_after_some_minutes(tmp_path: Path) -> None:
    assert 60 <= LEFTOVER_LIFE_S <= 600
    with booted(tmp_path, "--leave-grandchildren", "renamed") as engine:
        workers = [process for process in living_in(tmp_path) if process.pid != engine.process.pid]
        for worker in workers:
            worker.send_signal(signal.SIGALRM)  # what its own timer sends
        wait_for(lambda: len(living_in(tmp_path)) == 1, "the end of the workers")


def test_a_twin_takes_a_part_of_the_connections_and_outlives_the_leader(tmp_path: Path) -> None:
    with booted(tmp_path, "--port", free_port(), "--twin") as engine:
        started: set[float] = set()

        def both_answer() -> bool:
            started.add(counters(engine)["process_start_time_seconds"])
            return len(started) == 2

        wait_for(both_answer, "an answer of each")
        url = engine.url
        os.killpg(engine.process.pid, signal.SIGKILL)
        engine.process.wait(PATIENCE_S)
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200


def test_a_port_is_shared_only_when_both_want_it(tmp_path: Path) -> None:
    port = free_port()
    with booted(tmp_path / "a", "--port", port, "--reuse-port") as first:
        with booted(tmp_path / "b", "--port", port) as refused:
            assert refused.process.wait(PATIENCE_S) == 1
            assert "cannot be bound" in refused.log
        with booted(tmp_path / "c", "--port", port, "--reuse-port") as second:
            assert second.process.poll() is None
            assert first.process.poll() is None


# -- the log ---------------------------------------------------------------------------------------------------------


def test_a_flooded_log_is_unreadable_and_still_holds_every_line_that_counts(tmp_path: Path) -> None:
    with booted(tmp_path, "--flood-log", "6", ready=False) as engine:
        wait_for(lambda: b"startup complete" in engine.log_path.read_bytes(), "the boot")
        wait_for(lambda: engine.log_path.stat().st_size > 6 * MIB, "the flood")
        data = engine.log_path.read_bytes()
        assert {"P06", "P17", "P20", "P21", "V01"} == findings(engine) & {"P06", "P17", "P20", "P21", "V01"}
    assert not data.endswith(b"\n")
    assert b"\x1b[3" in data
    assert max(len(line) for line in data.split(b"\n")) >= MIB
    with pytest.raises(UnicodeDecodeError):
        data.decode()


def test_noise_has_its_size_follows_from_its_seed_and_looks_like_nothing_known() -> None:
    for size in (0, 1, 70_000, 3 * MIB + 5):
        assert len(b"".join(noise(size, 1))) == size
    data = b"".join(noise(3 * MIB, 7))
    assert data == b"".join(noise(3 * MIB, 7)) != b"".join(noise(3 * MIB, 8))
    assert data.endswith(b"\n")
    assert not b"".join(noise(70_000, 7, ends=False)).endswith(b"\n")
    text = data.decode("utf-8", "replace").replace("\r", "\n")
    assert not [pattern.id for pattern in patterns() if pattern.regex.search(text)]


def test_an_engine_whose_pipe_is_full_stands_still(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with booted(tmp_path, "--flood-log", "1", ready=False, output=writer) as engine:
        time.sleep(0.5)
        os.set_blocking(reader, False)
        seen = b""

        def drained() -> bool:
            nonlocal seen
            try:
                seen += os.read(reader, MIB)
            except BlockingIOError:
                return False
            return b"startup complete" in seen

        wait_for(drained, "the boot, once somebody reads")
        assert engine.process.poll() is None
    os.close(reader)
