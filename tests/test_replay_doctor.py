"""`firsttoken doctor`: each check says ok, warn or fail for a reason, and nothing is started or changed."""

import json
import os
import resource
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import fake_docker
import pytest
from click.testing import CliRunner
from fake_nvidia_smi import GB10, asked, write_tool
from recorded import write_profile

from profiles.errors import RuleError
from profiles.experiment import Experiment, load_experiment
from profiles.planned import read_facts
from profiles.profile import read_profile
from profiles.starter import starter
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay import caches, doctor, gpus
from replay.clock import SystemClock
from replay.doctor import Check, examine
from replay.doctor_cli import doctor as command

GIB = 1024**3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile."""
    path = tmp_path_factory.mktemp("doctor")
    write_profile(path / "profile", ["json", "rag", "qa"] * 14)
    return path


def rule(folder: Path, *changes: tuple[str, str], engine: str = "vllm") -> Path:
    """A starter whose program is this interpreter, with changes."""
    text = starter(read_facts(read_profile(folder / "profile")), path="profile", engine=engine)
    text = text.replace('argv = ["vllm",', f'argv = ["{sys.executable}",')
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    return path


def checks(experiment: Experiment | None, place: Path, **more: object) -> dict[str, Check]:
    found = examine(experiment, place=place, clock=SystemClock(), **{"gpu_tool": "no-such-tool", **more})  # type: ignore[arg-type]
    return {check.name: check for check in found}


def failed(found: Iterable[Check]) -> list[str]:
    return [check.name for check in found if check.status == "fail"]


def test_a_sound_experiment_fails_nothing(folder: Path) -> None:
    before = sorted(path for path in folder.rglob("*"))
    found = checks(load_experiment(rule(folder)), folder / "run")
    assert failed(found.values()) == []
    assert set(found) == {
        "python",
        "packages",
        "disk",
        "open files",
        "port",
        "cores",
        "memory",
        "swap",
        "gpu",
        "profile",
        "engine",
        "api key",
        "caches",
        "page cache",
        "clock",
    }
    assert found["profile"].seen.endswith("42 requests to send")
    assert found["engine"].seen == "process: its programs are there"
    assert sorted(path for path in folder.rglob("*") if path.name != "experiment.toml") == [
        path for path in before if path.name != "experiment.toml"
    ]


def test_without_an_experiment_only_the_machine_is_looked_at(folder: Path) -> None:
    found = checks(None, folder)
    assert failed(found.values()) == []
    assert "engine" not in found
    assert found["gpu"].status == "ok"


def test_an_old_interpreter_fails() -> None:
    assert doctor.check_python((3, 11, 9)).status == "fail"
    assert doctor.check_python((3, 12, 0)).status == "ok"


def test_a_package_that_cannot_be_loaded_is_named() -> None:
    assert doctor.check_packages(doctor.PACKAGES).status == "ok"
    check = doctor.check_packages(["json", "no_such_package"])
    assert (check.status, check.seen) == ("fail", "cannot be imported: no_such_package (ModuleNotFoundError)")


class Usage(NamedTuple):
    free: int


@pytest.mark.parametrize(("free", "status"), [(999_999_999, "fail"), (5 * 10**9, "warn"), (10**11, "ok")])
def test_free_disk_is_that_of_the_place_of_the_run(tmp_path: Path, free: int, status: str) -> None:
    seen: list[Path] = []

    def usage(path: Path) -> Usage:
        seen.append(path)
        return Usage(free)

    assert doctor.check_disk(tmp_path / "runs" / "new", usage).status == status
    assert seen == [tmp_path]


def test_a_place_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "may not be written to" in doctor.check_disk(tmp_path / "file").seen


@pytest.mark.parametrize(("limit", "status"), [(128, "fail"), (256, "warn"), (1024, "ok"), (-1, "ok")])
def test_few_open_files_are_told(limit: int, status: str) -> None:
    assert resource.RLIM_INFINITY == -1
    assert doctor.check_files(limit).status == status


def test_a_fixed_port_that_is_taken_fails(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        experiment = load_experiment(rule(folder, ('stop_timeout = "60s"', f"port = {port}")))
        assert doctor.check_port(experiment).seen == f"{port} on 127.0.0.1 is in use"
    assert doctor.check_port(experiment).status == "ok"


def test_a_host_that_is_not_ours_fails(folder: Path) -> None:
    experiment = load_experiment(rule(folder, ('stop_timeout = "60s"', 'host = "192.0.2.1"')))
    assert doctor.check_port(experiment).status == "fail"


@pytest.mark.parametrize(
    ("cores", "load", "status"),
    [(1, 0.0, "warn"), (2, 0.5, "ok"), (2, 1.5, "warn"), (16, 14.9, "ok"), (16, 15.5, "warn"), (None, None, "ok")],
)
def test_a_busy_machine_is_told(cores: int | None, load: float | None, status: str) -> None:
    assert doctor.check_cores(cores, load).status == status


def test_memory_and_swap_are_read(folder: Path, tmp_path: Path) -> None:
    lines = {"MemTotal": 8 * GIB, "MemAvailable": GIB // 2, "SwapTotal": 4 * GIB, "SwapFree": 3 * GIB}
    text = "".join(f"{name}: {size // 1024} kB\n" for name, size in lines.items())
    (tmp_path / "meminfo").write_text(text, encoding="ascii")
    found = checks(None, folder, proc=tmp_path)
    assert (found["memory"].status, found["memory"].seen) == ("fail", "0.5 of 8.0 GiB available")
    assert (found["swap"].status, found["swap"].seen) == ("warn", "1.0 of 4.0 GiB used")
    modest = load_experiment(rule(folder, ('stop_timeout = "60s"', "min_available_gib = 0.25")))
    assert checks(modest, folder, proc=tmp_path)["memory"].status == "ok"
    nowhere = checks(None, folder, proc=tmp_path / "none")
    assert nowhere["memory"].status == "warn"
    assert nowhere["swap"].status == "ok"


def test_gpus_are_told_with_who_uses_them_and_what_slows_them(folder: Path, tmp_path: Path) -> None:
    tool = write_tool(tmp_path)
    found = checks(None, folder, gpu_tool=str(tool))["gpu"]
    assert (found.status, found.seen) == ("ok", "1, hottest 64 °C")
    write_tool(tmp_path, apps="4242, /usr/bin/other-engine")
    assert checks(None, folder, gpu_tool=str(tool))["gpu"].seen == "1, hottest 64 °C, in use by other-engine (pid 4242)"
    write_tool(tmp_path, gpus=GB10.replace("0x0000000000000000", "0x0000000000000040"))
    slowed = checks(None, folder, gpu_tool=str(tool))["gpu"]
    assert (slowed.status, slowed.seen) == ("warn", "1, hottest 64 °C, slowed down: hw_thermal")
    assert not any("-lms" in words for words in asked(tmp_path))


def test_a_missing_gpu_matters_where_the_rule_watches_it(folder: Path) -> None:
    assert checks(load_experiment(rule(folder)), folder)["gpu"].status == "warn"
    blind = rule(folder, ("[mixed]", '[discard]\nwhen = ["foreign_load"]\n[mixed]'))
    assert checks(load_experiment(blind), folder)["gpu"].status == "ok"
    assert gpus.TOOL == "nvidia-smi"


def test_a_program_that_is_not_there_fails_with_its_key(folder: Path) -> None:
    found = checks(load_experiment(rule(folder, (sys.executable, "no-such-engine"))), folder)["engine"]
    assert found.status == "fail"
    assert "engine.argv: v0_baseline: the command 'no-such-engine' does not exist" in found.seen
    assert found.hint == "Give a program on PATH, or a path from cwd."


@pytest.mark.process
def test_a_container_needs_its_client_its_daemon_and_its_image(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = ("vllm/vllm-openai:TODO-tag", "small:1")
    experiment = load_experiment(rule(folder, image, engine="docker"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no docker on PATH" in checks(experiment, folder)["engine"].seen
    monkeypatch.setenv("FAKE_DOCKER", str(tmp_path))
    fake_docker.install(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    assert checks(experiment, folder)["engine"].seen == "docker: docker answers and has the images"
    missing = load_experiment(rule(folder, (image[0], "missing:1"), engine="docker"))
    assert "has no image 'missing:1'" in checks(missing, folder)["engine"].seen
    assert not list(tmp_path.glob("*/made.json")), "a container was started"


def test_a_key_is_looked_for_and_never_shown(folder: Path) -> None:
    experiment = load_experiment(rule(folder, ('stop_timeout = "60s"', 'api_key_env = "OUR_KEY"')))
    assert checks(experiment, folder, env={})["api key"].status == "fail"
    assert checks(experiment, folder, env={"OUR_KEY": ""})["api key"].status == "fail"
    found = checks(experiment, folder, env={"OUR_KEY": "secret"})["api key"]
    assert (found.status, found.seen) == ("ok", "OUR_KEY is set")


def test_cache_dirs_are_looked_at(folder: Path, tmp_path: Path) -> None:
    present = tmp_path / "engine-cache"
    entry = ('stop_timeout = "60s"', f'cache = "wipe"\ncache_dirs = ["{present}"]')
    experiment = load_experiment(rule(folder, entry))
    assert checks(experiment, folder)["caches"].status == "warn"
    present.mkdir()
    (present / "kernel").touch()
    assert checks(experiment, folder)["caches"].status == "ok"
    assert (present / "kernel").exists()
    work = load_experiment(rule(folder, ('stop_timeout = "60s"', 'cache = "wipe"\ncache_dirs = ["/etc"]')))
    assert "will not be emptied" in checks(work, folder)["caches"].seen


def test_a_page_cache_that_may_not_be_dropped_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = load_experiment(rule(folder, ('stop_timeout = "60s"', "drop_page_cache = true")))
    monkeypatch.setattr(caches, "DROP_CACHES", tmp_path / "not-there")
    assert checks(experiment, folder)["page cache"].status == "fail"
    (tmp_path / "there").touch()
    monkeypatch.setattr(caches, "DROP_CACHES", tmp_path / "there")
    assert checks(experiment, folder)["page cache"].status == "ok"
    assert (tmp_path / "there").read_text() == ""


def test_a_profile_that_does_not_fit_fails(folder: Path) -> None:
    experiment = load_experiment(rule(folder, ("min_observed_h = 0.01", "min_observed_h = 72")))
    found = checks(experiment, folder)["profile"]
    assert found.status == "fail"
    assert "the rule asks for 72 h" in found.seen


class FakeClock:
    """A monotonic clock in steps, and a wall clock that somebody moves."""

    def __init__(self, step_ns: int, moved_ns: int = 0) -> None:
        self.step_ns, self.moved_ns, self.now = step_ns, moved_ns, 0

    def now_ns(self) -> int:
        self.now += self.step_ns
        return self.now

    def wall_ns(self) -> int:
        return self.now + self.moved_ns

    async def sleep_until_ns(self, instant_ns: int) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("step_ns", "moved_ns", "status"),
    [(50, 0, "ok"), (MILLISECOND_NS, 0, "fail"), (0, 0, "fail"), (50, SECOND_NS, "warn"), (50, -SECOND_NS, "warn")],
)
def test_a_clock_is_fine_and_steady(step_ns: int, moved_ns: int, status: str) -> None:
    assert doctor.check_clock(FakeClock(step_ns, moved_ns), (0, 0)).status == status


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(command, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_the_command_ends_with_1_if_something_fails(folder: Path) -> None:
    code, text = run(rule(folder, (sys.executable, "no-such-engine")), "-o", folder / "run")
    assert code == 1
    assert max(map(len, text.splitlines())) <= 80
    assert "fail engine      " in text
    code, text = run(rule(folder), "--json")
    document = json.loads(text)
    assert (code, document["format"], document["fit"]) == (0, "firsttoken/doctor", True)
    assert {check["status"] for check in document["checks"]} <= {"ok", "warn"}


def test_a_rule_that_does_not_load_is_wrong_input(folder: Path) -> None:
    path = folder / "broken.toml"
    path.write_text("[rule]\nidd = 1\n", encoding="utf-8")
    with pytest.raises(RuleError) as caught:
        run(path)
    assert caught.value.exit_code == 2
