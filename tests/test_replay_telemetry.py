"""Samples of the machine: what the tools print becomes numbers or None, and nothing of it stays behind."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from fake_nvidia_smi import GB10, write_tool
from hypothesis import given
from hypothesis import strategies as st
from virtual import VirtualClock, run_virtual

from profiles.files import read_lines
from profiles.runs import Telemetry
from profiles.units import SECOND_NS
from replay.clock import SystemClock
from replay.gpus import app_feed, gpu_feed, parse_gpu
from replay.host import (
    CpuTimes,
    Host,
    ProcessTimes,
    cores_of_others,
    memory_available_bytes,
    parse_cpu,
    parse_meminfo,
    parse_process,
    spent,
)
from replay.telemetry import Sampler

MEMINFO = """MemTotal:       127600000 kB
MemFree:         3000000 kB
MemAvailable:  118000000 kB
SwapTotal:      16000000 kB
SwapFree:       15000000 kB
HugePages_Total:       0
"""


def test_meminfo_is_in_bytes() -> None:
    found = parse_meminfo(MEMINFO)
    assert found["MemAvailable"] == 118000000 * 1024
    assert found["HugePages_Total"] == 0


def test_a_stolen_tick_is_somebody_s_and_waiting_for_a_disk_is_nobody_s() -> None:
    assert parse_cpu("cpu  10 1 5 100 20 2 3 4 7 0\ncpu0 1 1 1 1\n") == CpuTimes(busy=25, total=145)
    assert parse_cpu("intr 1 2 3") is None


def test_a_program_may_have_brackets_and_spaces_in_its_name() -> None:
    rest = "S 7 20853 20853 0 -1 4194304 101 0 0 0 40 2 5 1 20 0 1 0 3846064 3133440 384 0"
    assert parse_process(f"20859 (VLLM) :: (x) {rest}") == ProcessTimes("VLLM) :: (x", 7, 3846064, 42, 6, 384)
    assert parse_process("20859 (cut") is None


@given(st.text())
def test_no_text_makes_the_parsers_raise(text: str) -> None:
    parse_meminfo(text)
    parse_cpu(f"cpu {text}")
    parse_process(f"1 (x) {text}")


TIMES = st.builds(ProcessTimes, st.just("x"), st.just(1), st.just(5), st.integers(0, 99), st.just(0), st.just(1))


@given(st.dictionaries(st.integers(1, 9), TIMES), st.dictionaries(st.integers(1, 9), TIMES))
def test_only_what_was_there_at_both_looks_has_spent_anything(
    before: dict[int, ProcessTimes], after: dict[int, ProcessTimes]
) -> None:
    used = spent(before, after)
    assert set(used) == set(before) & set(after)
    assert all(ticks >= 0 for ticks in used.values())


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 256))
def test_the_load_of_others_is_what_is_left_and_never_less_than_nothing(busy: int, ours: int, cores: int) -> None:
    total = max(busy, 1)
    others = cores_of_others(CpuTimes(0, 0), CpuTimes(busy, total), ours, cores)
    assert others is not None
    assert 0 <= others <= cores
    assert cores_of_others(CpuTimes(0, 5), CpuTimes(0, 5), ours, cores) is None


class FakeProc:
    """/proc with a handful of processes on two cores, whose ticks a test moves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.idle = 0
        self.busy = 0
        self.ticks: dict[int, int] = {}
        (path / "meminfo").write_text(MEMINFO)
        (path / "stat").write_text("")

    def process(self, pid: int, name: str, parent: int = 1, more: int = 0) -> None:
        """Add it, or let it use `more` ticks."""
        self.ticks[pid] = self.ticks.get(pid, 0) + more
        self.busy += more
        (self.path / str(pid)).mkdir(exist_ok=True)
        rest = " ".join(
            ["S", str(parent), *["0"] * 9, str(self.ticks[pid]), "0", "0", "0", *["0"] * 4, "9", "0", "100"]
        )
        (self.path / str(pid) / "stat").write_text(f"{pid} ({name}) {rest} 0\n")

    def second(self) -> None:
        """200 ticks of two cores have passed since the last call."""
        spent_now, self.busy = self.busy, 0
        self.total_busy = getattr(self, "total_busy", 0) + spent_now
        self.idle += 200 - spent_now
        (self.path / "stat").write_text(f"cpu  {self.total_busy} 0 0 {self.idle} 0 0 0 0 0 0\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    folder = tmp_path / "proc"
    folder.mkdir()
    return FakeProc(folder)


ENGINE, WORKER, FFMPEG = 70001, 70002, 70003


def test_others_are_all_that_is_neither_ours_nor_the_engine_s(proc: FakeProc) -> None:
    host = Host(proc.path, cores=2)
    for more in (0, 30):
        proc.process(os.getpid(), "firsttoken", more=more // 10)
        proc.process(ENGINE, "vllm", more=more)
        proc.process(WORKER, "VLLM::EngineCor", more=2 * more)
        proc.process(FFMPEG, "ffmpeg", more=more)
        proc.second()
        found = host.look([ENGINE, WORKER])
    assert found["others_busy"] == 0.3
    assert found["cpu_busy"] == pytest.approx((3 + 120) / 200)
    assert found["mem_available_bytes"] == 118000000 * 1024
    assert found["swap_used_bytes"] == 1000000 * 1024
    assert found["engine_rss_bytes"] == 200 * os.sysconf("SC_PAGE_SIZE")
    assert "others" not in found


def test_who_is_busy_is_named_at_the_second_look_and_then_now_and_again(proc: FakeProc) -> None:
    host = Host(proc.path, cores=2)
    named = []
    for _ in range(25):
        proc.process(ENGINE, "vllm", more=50)
        proc.process(FFMPEG, "ffmpeg", more=120)
        proc.second()
        named.append(host.look([ENGINE]).get("others", []))
    told = [index for index, names in enumerate(named) if names]
    assert named[told[0]] == [f"ffmpeg (pid {FFMPEG}) 1.2"]
    assert told == [2, 13, 24]


def test_without_the_engine_s_processes_nothing_is_said_of_others(proc: FakeProc) -> None:
    host = Host(proc.path, cores=2)
    for _ in range(2):
        proc.process(FFMPEG, "ffmpeg", more=100)
        proc.second()
        found = host.look(None)
    assert found["cpu_busy"] == 0.5
    assert not {"others_busy", "engine_rss_bytes"} & set(found)


def test_where_there_is_no_proc_everything_is_none(tmp_path: Path) -> None:
    host = Host(tmp_path / "none", cores=2)
    assert [host.look([ENGINE]) for _ in range(2)][1] == {"mem_available_bytes": None, "engine_rss_bytes": None}
    assert memory_available_bytes(tmp_path) is None
    assert host.everybody() == {}


def test_a_descendant_is_known_by_its_ancestors(proc: FakeProc) -> None:
    proc.process(ENGINE, "vllm")
    proc.process(WORKER, "worker", parent=ENGINE)
    proc.process(FFMPEG, "ffmpeg")
    host = Host(proc.path)
    assert host.descends(WORKER, [ENGINE]) is True
    assert host.descends(FFMPEG, [ENGINE]) is False
    assert host.descends(99999, [ENGINE]) is None


# The sampler


class Script:
    """A feed that gives one list per look."""

    def __init__(self, *looks: list[Any]) -> None:
        self.looks = list(looks)
        self.asked = 0
        self.closed = 0

    def read(self) -> list[Any]:
        self.asked += 1
        return self.looks.pop(0) if self.looks else []

    def close(self) -> None:
        self.closed += 1


async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def process(pid: int) -> Any:
    return type("Process", (), {"pid": pid})()


def sample_for(
    seconds: float, path: Path, host: Host, gpus: Script | None = None, apps: Script | None = None, **more: Any
) -> Sampler:
    """Run a sampler for some virtual seconds."""

    async def main() -> Sampler:
        feeds: dict[str, Any] = {"gpus": gpus or Script(), "apps": apps or Script()}
        sampler = Sampler(VirtualClock(), path, host=host, off_loop=at_once, **feeds, **more)
        watching = asyncio.ensure_future(sampler.watch())
        await asyncio.sleep(seconds)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return sampler

    return run_virtual(main())


def test_a_line_a_second_is_written_and_read_back(tmp_path: Path, proc: FakeProc) -> None:
    path = tmp_path / "telemetry.jsonl"
    gpus = Script([parse_gpu(GB10)])
    sampler = sample_for(9.5, path, Host(proc.path), gpus)
    assert [sample.at_ns for sample in sampler.samples] == [second * SECOND_NS for second in range(10)]
    assert sampler.samples == [msgspec.json.decode(line, type=Telemetry) for _, line in read_lines(path)]
    assert [len(sample.gpus) for sample in sampler.samples[:6]] == [1, 1, 1, 1, 0, 0]  # an old line says nothing of now
    assert path.stat().st_mode & 0o777 == 0o600
    assert gpus.closed == 1


def test_the_engine_is_asked_for_its_processes_each_five_seconds_whatever_it_answers(
    tmp_path: Path, proc: FakeProc
) -> None:
    asked_for: list[int] = []

    def members() -> list[Any]:
        asked_for.append(1)
        if len(asked_for) == 2:
            raise RuntimeError("dictionary changed size during iteration")
        return [process(ENGINE)]

    proc.process(ENGINE, "vllm")
    sampler = sample_for(11.5, tmp_path / "t", Host(proc.path), members=members)
    assert len(asked_for) == 3
    assert all(sample.engine_rss_bytes for sample in sampler.samples)


def test_a_stranger_on_the_gpu_is_named_only_beside_the_engine(tmp_path: Path, proc: FakeProc) -> None:
    for pid, name, parent in ((ENGINE, "vllm", 1), (WORKER, "worker", ENGINE), (FFMPEG, "ffmpeg", 1)):
        proc.process(pid, name, parent)
    both, alone, unseen = [(WORKER, "worker"), (FFMPEG, "ffmpeg")], [(FFMPEG, "ffmpeg")], [(12, "a"), (WORKER, "w")]
    apps = Script([], both, [], alone, unseen)
    sampler = sample_for(4.5, tmp_path / "t", Host(proc.path), apps=apps, members=lambda: [process(ENGINE)])
    named = [f"ffmpeg (pid {FFMPEG})"]
    assert [sample.gpu_strangers for sample in sampler.samples] == [None, named, named, None, []]
    unknown = sample_for(1.5, tmp_path / "t", Host(proc.path), apps=Script(both))
    assert [sample.gpu_strangers for sample in unknown.samples] == [None, None]


def test_a_disk_that_takes_no_line_ends_the_file_and_not_the_samples(tmp_path: Path, proc: FakeProc) -> None:
    sampler = sample_for(2.5, tmp_path / "none" / "t", Host(proc.path))
    assert len(sampler.samples) == 3
    assert sampler.unwritten is not None
    assert "No such file" in sampler.unwritten


def test_a_stall_of_ours_is_one_late_sample(tmp_path: Path, proc: FakeProc) -> None:
    """The thread takes 3.2 s once: the samples that it missed are not made up."""
    slow = [0.0, 3.2]

    async def off_loop(work: Callable[..., Any], *arguments: Any) -> Any:
        if len(arguments) == 2 and slow:
            await asyncio.sleep(slow.pop(0))
        return work(*arguments)

    async def main() -> Sampler:
        feeds: dict[str, Any] = {"gpus": Script(), "apps": Script()}
        sampler = Sampler(VirtualClock(), tmp_path / "t", host=Host(proc.path), off_loop=off_loop, **feeds)
        watching = asyncio.ensure_future(sampler.watch())
        await asyncio.sleep(6.5)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return sampler

    sampler = run_virtual(main())
    assert [sample.at_ns // SECOND_NS for sample in sampler.samples] == [0, 1, 5, 6]


@pytest.mark.process
def test_on_this_machine_a_sample_is_complete_and_leaves_no_child(tmp_path: Path) -> None:
    tool = str(write_tool(tmp_path, apps=f"{os.getpid()}, python3"))

    async def main() -> Sampler:
        sampler = Sampler(
            SystemClock(),
            tmp_path / "telemetry.jsonl",
            members=lambda: [psutil.Process()],
            gpus=gpu_feed(tool),
            apps=app_feed(tool),
        )
        watching = asyncio.ensure_future(sampler.watch())
        while len(sampler.samples) < 3:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.05)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return sampler

    last = asyncio.run(main()).samples[-1]
    assert last.gpus == [parse_gpu(GB10)]
    assert last.gpu_strangers == []
    assert last.mem_available_bytes is None or last.mem_available_bytes > 0
    assert last.loop_lag_ns is not None
    assert psutil.Process().children() == []


def test_a_sampler_that_was_closed_starts_no_tool_again(tmp_path: Path, proc: FakeProc) -> None:
    async def main() -> None:
        gpus, apps = Script(), Script()
        feeds: dict[str, Any] = {"gpus": gpus, "apps": apps}
        sampler = Sampler(VirtualClock(), tmp_path / "t", host=Host(proc.path), off_loop=at_once, **feeds)
        sampler.close()
        watching = asyncio.ensure_future(sampler.watch())
        await asyncio.sleep(2)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert gpus.asked == apps.asked == 0
        assert sampler.samples == []

    run_virtual(main())
