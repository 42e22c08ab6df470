"""A disk that is full, gone, forbidden or slow: traffic does not notice, what is lost is counted, recording resumes.

Two of the troubles need no rights: a limit on the size of files, set on the process that writes, makes each of its
writes fail; and a process that is stopped looks like one that waits for its disk.
"""

import asyncio
import random
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from hard_traffic import Engine, Plan, Recording, Traffic, mixed, newest_of, numbers_of, recording, until

from profiles.captures import read_capture
from profiles.files import FILE_MODE, FOLDER_MODE

CLIENTS = 8
DISK_BYTES = 2 * 1024 * 1024
PAGE = b"\0" * 4096

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit, tmpfs and /proc"),
]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a filesystem of its own, of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    options = f"size={DISK_BYTES},mode=0700"
    command = [mount or "mount", "-t", "tmpfs", "-o", options, "firsttoken-test", str(disk)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a filesystem cannot be mounted here")
    try:
        yield disk
    finally:
        # Lazily: whoever still has a file open there must not keep it mounted.
        subprocess.run(["umount", "-l", str(disk)], check=True)


class FullDisk:
    """Another file takes all the space, and is removed again."""

    reason = "ENOSPC"

    def __init__(self, run: Recording) -> None:
        self._ballast = run.out.parent / "ballast"

    def begin(self) -> None:
        try:
            with self._ballast.open("wb", buffering=0) as file:
                while file.write(PAGE):
                    pass
        except OSError:
            pass  # it is full

    def end(self) -> None:
        self._ballast.unlink()


class RefusingDisk:
    """No file may be written to, until it may again."""

    reason = "EFBIG"

    def __init__(self, run: Recording) -> None:
        self._pid = run.scribe().pid

    def begin(self) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def end(self) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Vanished:
    """Somebody deletes the capture. It is made anew."""

    reason = "vanished"

    def __init__(self, run: Recording) -> None:
        self._out = run.out

    def begin(self) -> None:
        shutil.rmtree(self._out)

    def end(self) -> None:
        pass


Trouble = type[FullDisk] | type[RefusingDisk] | type[Vanished]


def test_traffic_and_recording_outlive_a_full_disk(small_disk: Path) -> None:
    check_outlived(small_disk / "c", FullDisk)


def test_traffic_and_recording_outlive_a_disk_that_refuses(tmp_path: Path) -> None:
    check_outlived(tmp_path / "c", RefusingDisk)


def test_traffic_and_recording_outlive_a_deleted_capture(tmp_path: Path) -> None:
    check_outlived(tmp_path / "c", Vanished)


def check_outlived(out: Path, trouble: Trouble) -> None:
    traffic, before, after = asyncio.run(outlive(out, trouble))
    traffic.untouched()
    capture = read_capture(out)
    manifest = capture.manifest
    ends = set(numbers_of(capture))
    dropped = manifest["dropped"]
    assert any(trouble.reason in reason for reason in dropped), dropped
    assert after <= ends
    assert capture.torn == 0
    assert manifest["closed"] is True
    assert manifest["requests"] == len(traffic.asked)
    assert manifest["written"] + sum(dropped.values()) == len(traffic.asked)
    if trouble is Vanished:  # with the directory went what was in it
        assert not before & ends
        assert len(capture.windows) == 1
    else:
        assert before <= ends
        assert len(capture.windows) == 2
        assert len(capture.exchanges) == manifest["written"]
    assert out.stat().st_mode & 0o777 == FOLDER_MODE
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {FILE_MODE}


async def outlive(out: Path, kind: Trouble) -> tuple[Traffic, set[int], set[int]]:
    """Traffic before, during and after the trouble. Returns it, and the numbers from before and after."""
    async with Engine() as engine, recording(engine.port, out) as run:
        traffic = Traffic(engine, run.port, mixed(random.Random(7)))
        before = await traffic.send(30)
        # Their ends: the `request` line of the last one is written a moment earlier.
        await until(lambda: before <= set(numbers_of(read_capture(out))), "the records from before")
        scribe = run.scribe() if kind is not RefusingDisk else None
        trouble = kind(run)
        writer = scribe or run.scribes[-1]
        trouble.begin()
        resumed = False

        async def wait() -> None:
            nonlocal resumed
            await until(lambda: not writes_a_segment(writer), "the recorder to notice")
            asked = max(traffic.asked)
            await until(lambda: len(traffic.asked) > asked + CLIENTS, "traffic in the trouble")
            trouble.end()
            asked = max(traffic.asked)
            await until(lambda: newest_of(out) > asked, "recording to resume")
            resumed = True

        async with asyncio.TaskGroup() as group:
            group.create_task(traffic.run(CLIENTS, lambda: resumed, reconnects=True))
            group.create_task(wait())
        after = await traffic.send(30)
        assert await run.stop() == 0
    return traffic, before, after


def writes_a_segment(process: psutil.Process) -> bool:
    """Whether it has a segment open that is still there."""
    return any(
        Path(file.path).name.startswith("segment-") and Path(file.path).exists() for file in process.open_files()
    )


def test_a_disk_that_stands_still_holds_nobody_up(tmp_path: Path) -> None:
    still = asyncio.run(stand_still(tmp_path / "c"))
    still.traffic.untouched()
    # Generous: a proxy that waits for its disk stands still for as long as the disk does, which is for ever here.
    assert statistics.median(still.gaps_s("during")) < 10 * statistics.median(still.gaps_s("before"))
    capture = read_capture(tmp_path / "c")
    ends = numbers_of(capture)
    assert max(ends.values()) == 1
    # As much as fits waits for the disk, the rest is counted.
    assert still.numbers["before"] | still.numbers["during"] <= set(ends)
    manifest = capture.manifest
    assert manifest["requests"] == len(still.traffic.asked)
    assert len(capture.exchanges) + sum(manifest["dropped"].values()) == len(still.traffic.asked)
    assert len(capture.windows) == 1  # it was slow, not gone: the instants are those of the traffic, not of the writing


@dataclass
class Still:
    """Traffic around a stall, and its numbers by phase."""

    traffic: Traffic
    numbers: dict[str, set[int]] = field(default_factory=dict)

    def gaps_s(self, phase: str) -> list[float]:
        return [gap for number in self.numbers[phase] for gap in self.traffic.gaps_s[number]]


async def stand_still(out: Path) -> Still:
    """Paced streams with a scribe that writes, then with one that stands still; then more than a pipe can hold."""
    async with Engine() as engine, recording(engine.port, out) as run:
        still = Still(Traffic(engine, run.port, lambda: Plan(pieces=60, pace_s=0.01)))
        still.numbers["before"] = await still.traffic.send(8, clients=4)
        run.scribe().suspend()
        still.numbers["during"] = await still.traffic.send(8, clients=4)
        still.traffic.plan = lambda: Plan(prompt="many words " * 24_000)
        still.numbers["large"] = await still.traffic.send(40)
        run.scribes[-1].resume()
        assert await run.stop() == 0
    return still
