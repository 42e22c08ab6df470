"""Faults of the surroundings: what spoils a boot, what only looks like it, and what nobody could see."""

from pathlib import Path
from typing import Any

import pytest
from fake_nvidia_smi import GB10, H200, write_tool
from hypothesis import given
from hypothesis import strategies as st
from virtual import VirtualClock, run_virtual

from profiles.runs import NOT_CHECKED, Step, Telemetry
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay import surroundings
from replay.gpus import parse_gpu, read_gpu_processes
from replay.host import Host
from replay.memory import FASTEST_FALL, MemoryWatch, gpu_memory_back, memory_back, memory_floor, memory_held
from replay.surroundings import (
    cool_down,
    disk_full,
    foreign_load,
    is_often,
    throttled,
)

GIB = 1024**3


def gpu(line: str = GB10, **changes: Any) -> dict[str, Any]:
    found = parse_gpu(line)
    assert found is not None
    return found | changes


def samples(*gpus: dict[str, Any], **facts: Any) -> list[Telemetry]:
    """One sample for each GPU line; without one, ten samples."""
    return [Telemetry(at_ns=at * SECOND_NS, gpus=[each], **facts) for at, each in enumerate(gpus)] or [
        Telemetry(at_ns=at * SECOND_NS, **facts) for at in range(10)
    ]


async def at_once(work: Any, *arguments: Any) -> Any:
    return work(*arguments)


def test_a_gpu_at_its_usual_clock_is_fine_and_its_clock_is_told() -> None:
    assert throttled(samples(*[gpu()] * 20)) == (False, "GPU 0 ran at 2411 of 3003 MHz under load, at most 64 °C")


def test_a_power_cap_is_the_life_of_a_card_and_no_fault() -> None:
    broken, seen = throttled(samples(*[gpu(H200)] * 20))
    assert not broken
    assert "1470 of 1980 MHz" in seen


@pytest.mark.parametrize("reason", ["hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake"])
def test_a_named_slowdown_spoils_a_boot(reason: str) -> None:
    hot = gpu(throttle=["sw_power_cap", reason], temperature_c=91)
    broken, seen = throttled(samples(*[gpu()] * 30, *[hot] * 10))
    assert broken
    assert seen == f"GPU 0 was slowed down by {reason} in 10 of 40 samples, at most 91 °C"


def test_one_sample_of_many_is_a_glitch() -> None:
    assert not throttled(samples(*[gpu()] * 10, gpu(throttle=["sw_thermal"])))[0]
    assert not throttled(samples(*[gpu()] * 97, *[gpu(throttle=["sw_thermal"])] * 3))[0]


@pytest.mark.parametrize("clock", [500, 620, 850])
def test_a_gb10_that_lost_its_power_contract_is_seen_without_a_flag(clock: int) -> None:
    broken, seen = throttled(samples(*[gpu(clock_mhz=clock)] * 20))
    assert broken
    assert f"{clock} of 3003 MHz under load and named no reason" in seen


def test_a_clock_that_somebody_locked_is_no_fault() -> None:
    assert not throttled(samples(*[gpu(clock_mhz=2100)] * 20))[0]


def test_a_low_clock_at_rest_is_sleep() -> None:
    idle = gpu(clock_mhz=345, utilisation=0, throttle=["idle"])
    assert throttled(samples(*[idle] * 20)) == (
        False,
        "GPU 0 named no slowdown; its clock was not judged, it was never under load, at most 64 °C",
    )
    assert not throttled(samples(*[idle] * 20, *[gpu()] * 5))[0]


def test_the_gpu_that_is_slow_is_the_one_that_is_named() -> None:
    both = [[gpu(), gpu(index=1, clock_mhz=600)] for _ in range(10)]
    broken, seen = throttled([Telemetry(at_ns=at, gpus=gpus) for at, gpus in enumerate(both)])
    assert broken
    assert seen.startswith("GPU 1 ran at 600")
    assert "GPU 0" not in seen


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        ([], "no sample fell into a deciding window"),
        (samples(), "no GPU sensor answers"),
        (samples(*[gpu(throttle=None, clock_mhz=None)] * 5), "no GPU says what slows it down, or its clock"),
        (samples(*[gpu(throttle=None, utilisation=None)] * 5), "no GPU says what slows it down, or its clock"),
    ],
)
def test_what_no_sensor_saw_is_said_to_be_unchecked(taken: list[Telemetry], why: str) -> None:
    broken, seen = throttled(taken)
    assert not broken
    assert seen.startswith(f"{NOT_CHECKED}{why}")


def test_a_clock_alone_is_enough_to_judge_and_what_is_missing_is_said() -> None:
    assert throttled(samples(*[gpu(throttle=None)] * 5))[1].endswith("; what slows it down is not known")


def test_others_on_the_cpus_spoil_a_boot_and_are_named() -> None:
    quiet, busy = samples(others_busy=0.2), samples(others_busy=3.25, others=["ffmpeg (pid 7) 2.9"])
    assert foreign_load(quiet) == (
        False,
        "others used 0.20 cores on average; other programs on a GPU cannot be seen here",
    )
    broken, seen = foreign_load([*quiet, *busy])
    assert broken
    assert seen.startswith("others used more than 1 core in 10 of 20 samples, 3.2 at most (ffmpeg (pid 7) 2.9")


def test_a_short_burst_of_others_is_no_load() -> None:
    assert not foreign_load([*samples(others_busy=0.2) * 3, *samples(others_busy=4.0)[:2]])[0]


def test_another_program_on_the_gpu_spoils_a_boot() -> None:
    broken, seen = foreign_load(samples(others_busy=0.1, gpu_strangers=["python3 (pid 9)"]))
    assert broken
    assert seen == "another program computes on a GPU: python3 (pid 9)"
    assert foreign_load(samples(gpu_strangers=[])) == (
        False,
        "the load of others on the CPUs is not known; nobody else was on a GPU",
    )


def test_foreign_load_is_unchecked_where_the_engine_s_processes_are_not_known() -> None:
    for taken in ([], samples(cpu_busy=0.9)):
        broken, seen = foreign_load(taken)
        assert not broken
        assert seen.startswith(NOT_CHECKED)


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0.01, 1))
def test_often_grows_with_the_count_and_needs_two_where_there_are_two(count: int, n: int, share: float) -> None:
    count = min(count, n)
    often = is_often(count, n, share)
    assert not often or is_often(min(count + 1, n), n, share)
    assert not (often and count == 1 and n > 1)
    assert is_often(n, n, share) == (n > 0)


# Waiting


def cooling(*temperatures: float | None) -> Any:
    left = list(temperatures)

    def read() -> list[dict[str, Any]]:
        now = left.pop(0) if len(left) > 1 else left[0]
        return (
            []
            if now is None
            else [gpu(temperature_c=now - 9), gpu(index=1, temperature_c=now), gpu(temperature_c=None)]
        )

    return read


def cool(limit_c: float, timeout_ns: int, read: Any) -> Step:
    return run_virtual(cool_down(limit_c, timeout_ns, VirtualClock(), read=read, off_loop=at_once))


def test_the_hottest_gpu_is_waited_for() -> None:
    step = cool(50, 600 * SECOND_NS, cooling(71, 60, 50))
    assert step.facts == {"from_c": 71, "to_c": 50, "limit_c": 50}
    assert step.ended_ns - step.began_ns == 4 * SECOND_NS
    assert step.proof == "the hottest GPU is at 50 °C, no warmer than 50 °C"


def test_a_gpu_that_stays_warm_costs_the_timeout_and_is_no_proof() -> None:
    step = cool(50, 5 * SECOND_NS, cooling(71, 69))
    assert step.ended_ns - step.began_ns == 5 * SECOND_NS
    assert step.proof is None
    assert step.facts["missing"] == "still 69 °C after 5.00 s"


def test_without_a_sensor_nothing_is_waited_for() -> None:
    step = cool(50, 600 * SECOND_NS, cooling(None))
    assert (step.ended_ns - step.began_ns, step.proof) == (0, None)
    assert step.facts["missing"] == "no GPU says its temperature"


def back(*available: int | None, before: int | None = 100 * GIB) -> Step:
    left = list(available)
    read = lambda: left.pop(0) if len(left) > 1 else left[0]  # noqa: E731  a script of two words
    return run_virtual(memory_back(before, 2 * GIB, VirtualClock(), timeout_ns=10 * SECOND_NS, read=read))


def test_memory_that_comes_back_is_waited_for() -> None:
    step = back(9 * GIB, 60 * GIB, 99 * GIB)
    assert step.proof == "99 GiB are available, 100 GiB were before"
    assert step.ended_ns - step.began_ns == 500 * MILLISECOND_NS
    assert memory_held(step) is None


def test_memory_that_does_not_come_back_is_named() -> None:
    step = back(9 * GIB, 90 * GIB)
    assert step.proof is None
    assert step.facts["missing_bytes"] == 10 * GIB
    assert memory_held(step) == "10 GiB of memory did not come back within 10.0 s after the engine was gone"


def test_more_memory_than_before_is_no_shortfall() -> None:
    assert back(120 * GIB).facts["missing_bytes"] == 0


def back_on_gpu(*used: dict[int, int], before: dict[int, int]) -> Step:
    left = list(used)
    read = lambda: left.pop(0) if len(left) > 1 else left[0]  # noqa: E731  a script of two words
    clock = VirtualClock()
    return run_virtual(gpu_memory_back(before, 2 * GIB, clock, timeout_ns=10 * SECOND_NS, read=read, off_loop=at_once))


def test_memory_of_a_gpu_is_waited_for_too() -> None:
    step = back_on_gpu({0: 130 * GIB}, {0: 40 * GIB}, {0: GIB}, before={0: 0})
    assert (step.name, step.proof) == ("gpu_memory", "in use: GPU 0 1 GiB")
    assert step.ended_ns - step.began_ns == 500 * MILLISECOND_NS
    assert memory_held(step) is None


def test_a_worker_that_nobody_sees_is_found_by_the_memory_of_its_gpu() -> None:
    """On two GPUs: what the fullest holds counts, also where another one has more room than before."""
    step = back_on_gpu({0: 130 * GIB, 1: 0}, before={0: 4 * GIB, 1: 9 * GIB})
    assert step.proof is None
    assert step.facts["missing_bytes"] == 126 * GIB
    assert memory_held(step) == "126 GiB of GPU memory did not come back within 10.0 s after the engine was gone"


def test_a_gpu_that_answers_no_more_is_neither_free_nor_held() -> None:
    step = back_on_gpu({}, before={0: 0})
    assert (step.proof, step.facts["missing_bytes"], memory_held(step)) == (None, None, None)
    assert step.ended_ns == step.began_ns


@pytest.mark.parametrize(("available", "before"), [(None, 100 * GIB), (5, None)])
def test_memory_that_nobody_can_see_is_neither_back_nor_held(available: int | None, before: int | None) -> None:
    step = back(available, before=before)
    assert (step.proof, memory_held(step), step.ended_ns - step.began_ns) == (None, None, 0)


# Floors


def test_memory_below_its_floor_is_a_sentence() -> None:
    watch = MemoryWatch(GIB, read=lambda: GIB // 2)
    sentence = "only 0.5 GiB of memory were left, the floor is 1 GiB"
    assert watch.look() == watch.breach(Telemetry(at_ns=0, mem_available_bytes=GIB // 2)) == sentence
    assert watch.breach(Telemetry(at_ns=0, mem_available_bytes=GIB)) is None
    assert watch.breach(Telemetry(at_ns=0)) is None


def floor(*available: int | None) -> Step:
    left = list(available)
    read = lambda: left.pop(0) if len(left) > 1 else left[0]  # noqa: E731  a script of two words
    return run_virtual(memory_floor(8 * GIB, VirtualClock(), timeout_ns=10 * SECOND_NS, read=read))


def test_memory_is_waited_for_before_anything_is_started() -> None:
    step = floor(2 * GIB, 7 * GIB, 9 * GIB)
    assert step.proof == "9 GiB are available, the floor is 8 GiB"
    assert step.ended_ns - step.began_ns == 500 * MILLISECOND_NS
    assert floor(8 * GIB).ended_ns == floor(8 * GIB).began_ns
    assert (floor(None).proof, "missing" in floor(None).facts) == (None, False)  # nobody can tell


def test_memory_that_stays_below_the_floor_is_named_in_the_unit_of_its_key() -> None:
    step = floor(2 * GIB + GIB // 4)
    assert step.proof is None
    assert step.ended_ns - step.began_ns == 10 * SECOND_NS
    assert step.facts["missing"] == (
        "only 2.25 GiB of memory were available before the engine was started, the floor is 8 GiB "
        "(engine.min_available_gib)"
    )


@given(st.integers(0, 200 * GIB))
def test_the_next_look_comes_before_the_memory_could_be_gone(available: int) -> None:
    pause_ns = MemoryWatch(GIB, read=lambda: available).pause_ns()
    assert 50 * MILLISECOND_NS <= pause_ns <= SECOND_NS
    fallen = FASTEST_FALL * pause_ns // SECOND_NS
    assert pause_ns == 50 * MILLISECOND_NS or available - fallen >= GIB
    assert MemoryWatch(GIB, read=lambda: None).pause_ns() == SECOND_NS


def test_a_disk_below_its_floor_is_a_sentence_that_names_the_path(tmp_path: Path) -> None:
    assert disk_full(tmp_path, floor_bytes=0) is None
    sentence = disk_full(tmp_path, floor_bytes=1 << 62)
    assert sentence is not None
    assert sentence.startswith(f"{tmp_path}: only ")
    assert disk_full(tmp_path / "none") is None


# Who is on the GPU before a boot


@pytest.mark.process
def test_a_program_on_the_gpu_before_the_spawn_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "proc"
    for pid, parent in ((71, 1), (72, 71)):
        (folder / str(pid)).mkdir(parents=True)
        (folder / str(pid) / "stat").write_text(f"{pid} (x) S {parent}{' 0' * 17} 9 0 100 0\n")
    tool = str(write_tool(tmp_path, apps="71, /usr/bin/python3\n72, worker\n99999, elsewhere"))
    monkeypatch.setattr(surroundings, "read_gpu_processes", lambda gpus: read_gpu_processes(tool, gpus))
    monkeypatch.setattr(surroundings, "Host", lambda: Host(folder))
    ask = surroundings.gpu_strangers
    # Before a spawn nobody is ours, also one whose number counts in another container.
    assert run_virtual(ask(off_loop=at_once)) == ["python3 (pid 71)", "worker (pid 72)", "elsewhere (pid 99999)"]
    assert run_virtual(ask([72], off_loop=at_once)) == ["python3 (pid 71)"]
    assert run_virtual(ask([71], off_loop=at_once)) == []
    monkeypatch.setattr(surroundings, "read_gpu_processes", lambda gpus: None)
    assert run_virtual(ask(off_loop=at_once)) is None


@pytest.mark.parametrize(
    ("apps", "proof", "facts"),
    [
        ([], "no other program seen on a GPU", {"seen": []}),
        ([(99999, "x")], None, {"seen": ["x (pid 99999)"]}),
        (None, None, {"seen": None, "missing": "no GPU sensor answers (nvidia-smi)"}),
    ],
)
def test_a_gpu_is_proved_free_only_where_it_can_be_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, apps: object, proof: str | None, facts: dict[str, object]
) -> None:
    monkeypatch.setattr(surroundings, "read_gpu_processes", lambda gpus: apps)
    monkeypatch.setattr(surroundings, "Host", lambda: Host(tmp_path))
    monkeypatch.setattr(surroundings, "read_gpus", lambda: [{"index": 0, "memory_used_bytes": 3 * GIB}])
    step = run_virtual(surroundings.gpu_free(VirtualClock(), at_once))
    assert (step.name, step.proof) == ("gpu_free", proof)
    assert step.facts == facts | {"memory_used_bytes": {"0": 3 * GIB}}
