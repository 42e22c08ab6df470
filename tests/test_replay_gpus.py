"""nvidia-smi: what it prints becomes numbers or None, and no tool outlives its reader."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from fake_nvidia_smi import GB10, H200, asked, write_tool
from hypothesis import given
from hypothesis import strategies as st

from replay.gpus import (
    argv_gpus,
    gpu_feed,
    gpu_memory_used,
    parse_app,
    parse_gpu,
    parse_reasons,
    read_gpu_processes,
    read_gpus,
)

MISSING = "/nowhere/nvidia-smi"
needs_setpriv = pytest.mark.skipif(shutil.which("setpriv") is None, reason="nothing here ties a child to us")


def wait_for[T](look: Callable[[], T]) -> T:
    """What `look` gives as soon as it gives something; fails after ten seconds."""
    pause = threading.Event()
    for _ in range(1000):
        if found := look():
            return found
        pause.wait(0.01)
    raise AssertionError("nothing came")


def test_a_gb10_has_no_memory_of_its_own_and_says_so() -> None:
    assert parse_gpu(GB10) == {
        "index": 0,
        "clock_mhz": 2411,
        "clock_max_mhz": 3003,
        "power_w": 45.21,
        "temperature_c": 64,
        "utilisation": 0.96,
        "memory_used_bytes": None,
        "throttle": [],
    }


def test_only_gpus_with_memory_of_their_own_say_what_is_in_use(tmp_path: Path) -> None:
    own, unified = H200, GB10.replace("0,", "1,", 1)
    tool = write_tool(tmp_path, f"{own}\n{unified}")
    assert gpu_memory_used(str(tool)) == {0: 1011 * 1024**2}
    assert gpu_memory_used(MISSING) == {}


def test_a_card_at_its_power_cap_names_it() -> None:
    found = parse_gpu(H200)
    assert found is not None
    assert found["throttle"] == ["sw_power_cap"]
    assert found["memory_used_bytes"] == 1011 * 1024**2


@pytest.mark.parametrize("absent", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "", "nan", "-1", "1e9", "٣"])
def test_a_sensor_that_says_no_number_is_none(absent: str) -> None:
    found = parse_gpu(", ".join(["1", *[absent] * 7]))
    assert found is not None
    assert found.pop("index") == 1
    assert set(found.values()) == {None}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        'Field "clocks_event_reasons.active" is not a valid field to query.',
        "index, clocks.sm, clocks.max.sm, power.draw, temperature.gpu, utilization.gpu, memory.used, reasons",
        "0, 1, 2",
    ],
)
def test_what_is_no_line_of_a_gpu_is_none(line: str) -> None:
    assert parse_gpu(line) is None


@given(st.text())
def test_no_line_makes_the_parsers_raise(line: str) -> None:
    for gpu in (parse_gpu(line), parse_gpu(f"0, {line}, , , , , , ")):
        assert gpu is None or all(value is None or msgspec.json.encode(value) != b"null" for value in gpu.values())
    parse_app(line)
    parse_reasons(line)


@given(st.sets(st.integers(0, 40)))
def test_each_bit_of_the_mask_has_one_name(bits: set[int]) -> None:
    names = parse_reasons(hex(sum(1 << bit for bit in bits)))
    assert names is not None
    assert len(set(names)) == len(bits)


def test_reasons_are_named_as_the_driver_numbers_them() -> None:
    assert parse_reasons("0x0000000000000001") == ["idle"]
    assert parse_reasons("0x00000000000000E8") == ["hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"]
    assert parse_reasons("[N/A]") is None


def test_a_compute_process_is_its_pid_and_its_program() -> None:
    assert parse_app("481, /opt/a, b/python3") == (481, "python3")
    assert parse_app("no running processes") is None


@pytest.mark.process
def test_one_call_reads_all_gpus(tmp_path: Path) -> None:
    tool = write_tool(tmp_path, gpus=f"{GB10}\n1{GB10[1:]}")
    assert [gpu["index"] for gpu in read_gpus(str(tool))] == [0, 1]
    assert asked(tmp_path) == [" ".join(argv_gpus("", "clocks_event_reasons.active")[1:])]


@pytest.mark.process
def test_an_old_driver_is_asked_by_the_old_name(tmp_path: Path) -> None:
    refuse = 'case "$*" in *event_reasons*) echo "Field is not a valid field to query."; exit 2;; esac'
    assert read_gpus(str(write_tool(tmp_path, before=refuse))) == [parse_gpu(GB10)]
    assert "clocks_throttle_reasons.active" in asked(tmp_path)[-1]


@pytest.mark.process
def test_a_machine_without_gpus_or_tool_has_none(tmp_path: Path) -> None:
    assert read_gpus(MISSING) == []
    assert read_gpu_processes(MISSING) is None
    tool = str(write_tool(tmp_path, before="echo No devices were found; exit 6"))
    assert read_gpus(tool) == []
    assert read_gpu_processes(tool) is None
    (tmp_path / "nvidia-smi").chmod(0o600)
    assert read_gpus(tool) == []


@pytest.mark.process
def test_a_driver_that_hangs_costs_its_patience_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.gpus.PATIENCE_S", 0.05)
    assert read_gpus(str(write_tool(tmp_path, before="exec sleep 60"))) == []


@pytest.mark.process
def test_a_feed_starts_one_tool_and_reads_what_it_prints(tmp_path: Path) -> None:
    feed = gpu_feed(str(write_tool(tmp_path)))
    for _ in range(3):
        assert wait_for(feed.read)[0] == parse_gpu(GB10)
    (child,) = psutil.Process().children()
    assert os.getsid(child.pid) == os.getsid(0)
    assert os.getpgid(child.pid) != os.getpgid(0)
    feed.close()
    feed.close()
    assert not child.is_running()
    assert len(asked(tmp_path)) == 1


@pytest.mark.process
def test_a_feed_goes_on_after_its_tool_died_but_not_for_ever(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho x >> {tmp_path}/asked\necho '{GB10}'\n")
    tool.chmod(0o700)
    feed = gpu_feed(str(tool))
    found: list[dict[str, Any]] = []

    def three() -> bool:
        found.extend(feed.read())
        return len(found) >= 3

    wait_for(three)
    for _ in range(5):
        found += feed.read()
    assert len(found) == len(asked(tmp_path)) == 3


@pytest.mark.process
def test_a_feed_of_a_tool_that_understands_no_question_ends(tmp_path: Path) -> None:
    feed = gpu_feed(str(write_tool(tmp_path, before="echo nonsense; exit 2")))
    wait_for(lambda: feed.read() == [] and len(asked(tmp_path)) == 3)
    assert feed.read() == []
    feed.close()


def test_a_feed_without_a_tool_is_silent() -> None:
    feed = gpu_feed(MISSING)
    assert feed.read() == []
    feed.close()


# The second has nothing to print, so no broken pipe tells it that we are gone.
@pytest.mark.process
@pytest.mark.parametrize("feed", ["gpu_feed", pytest.param("app_feed", marks=needs_setpriv)])
def test_the_tool_dies_with_us_also_by_sigkill(tmp_path: Path, feed: str) -> None:
    tool = write_tool(tmp_path)
    code = (
        "import pathlib, time\nfrom concurrent.futures import ThreadPoolExecutor\nimport replay.gpus\n"
        f"feed, pool = replay.gpus.{feed}({str(tool)!r}), ThreadPoolExecutor()\n"
        "pool.submit(feed.read).result()\n"  # in a thread, as a sampler does
        f"while not pathlib.Path({str(tmp_path / 'asked')!r}).exists(): pass\n"
        "import psutil\nprint(psutil.Process().children()[0].pid, flush=True)\ntime.sleep(60)\n"
    )
    root = Path(__file__).parents[1]
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root) as ours:
        assert ours.stdout is not None
        tool_process = psutil.Process(int(ours.stdout.readline()))
        ours.kill()
    psutil.wait_procs([tool_process], timeout=10)
    assert not tool_process.is_running()
