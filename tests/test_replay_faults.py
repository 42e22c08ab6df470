"""Cold boots of an engine that misbehaves: the right diagnosis for each, the other arms unharmed, nothing left alive.

Every fault is an arm of one run, in random order, so each also proves that it spoils no boot after it. FIRSTTOKEN_BOOTS
is how many such boots there are (default: each fault once), FIRSTTOKEN_SEED draws their order.
"""

import os
import random
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from recorded import MODEL, write_profile
from simulated import ROOT, free_port, living_in, wait_for

from profiles.runs import DISCARDED, DONE, FAILED, Boot, Run, read_run

pytestmark = pytest.mark.process

# Engines are started by the dozen here; without compiled modules each would compile all of them anew.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT["PYTHONPATH"] = str(ROOT)
MARK = "FIRSTTOKEN_TEST_RUN"
SEED = int(os.environ.get("FIRSTTOKEN_SEED", "5"))

HEAD = """
[rule]
id = "faults"
[profile]
path = "profile"
[engine]
argv = ["{python}", "-m", "firsttoken", "engine", "--port", "{port}", "--model", "{model}",
        "--boot-time", "10ms", "--time-scale", "0.05"]
model = "test-model"
ready_timeout = "60s"
stop_timeout = "2s"
log_limit_mib = 8
[load]
deciding = "closed"
requests_per_boot = 40
also = []
warmup_per_class = 1
first_token_timeout = "6s"
gap_timeout = "6s"
stall_timeout = "3s"
max_error_share = 0.3
[design]
blocks = 1
seed = 2
[discard]
when = []
[functional]
prompts = "off"
[[arm]]
name = "v0"
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """A misbehaviour, and what must be found out about it. The reason must match each pattern of `says`."""

    name: str
    args: tuple[str, ...]
    diagnosis: str | None
    says: tuple[str, ...] = ()
    status: str = FAILED
    stop: tuple[str, ...] = ("term",)
    exit_code: tuple[int | None, ...] = (0,)
    ready_timeout: str = "60s"


AMID = "34"  # requests: past readiness, isolation and warm-up
HANGS = "10s"  # long enough for a slow machine to start Python
FAULTS = (
    Fault(
        "died_in_boot", ("--die-in-boot", "3"), "died_in_boot", ("exit code 3", "boot"), stop=("died",), exit_code=(3,)
    ),
    Fault(
        "killed_in_boot", ("--die-in-boot", "SIGKILL"), "died_in_boot", ("signal 9",), stop=("died",), exit_code=(-9,)
    ),
    Fault(
        "oom_in_boot",
        ("--die-in-boot", "oom"),
        "died_in_boot",
        ("exit code 1", "CUDA out of memory"),
        stop=("died",),
        exit_code=(1,),
    ),
    Fault(
        "hung_silent",
        ("--hang-in-boot", "silent"),
        "hung_in_boot",
        (r"10(\.0)? s", "nothing listens"),
        ready_timeout=HANGS,
    ),
    Fault("hung_503", ("--hang-in-boot", "503"), "hung_in_boot", (r"10(\.0)? s", "503"), ready_timeout=HANGS),
    Fault(
        "never_ready",
        ("--early-ready", "10min"),
        "not_ready",
        ("no token", "503", "/health answers 200"),
        ready_timeout=HANGS,
    ),
    Fault(
        "never_ready_200",
        ("--early-ready", "10min:error"),
        "not_ready",
        ("no token", "Loading model|unavailable", "/health answers 200"),
        ready_timeout=HANGS,
    ),
    Fault("early_200", ("--early-ready", "700ms"), None, status=DONE),
    Fault("early_200_error", ("--early-ready", "700ms:error"), None, status=DONE),
    Fault("wrong_model", ("--served-model-name", "other"), "wrong_model", ("test-model", "other")),
    Fault("refused", ("--max-model-len", "8"), "refused", ("HTTP 400", "refuses")),
    Fault("died", ("--die-after", AMID), "died", ("serv", "exit code 1"), stop=("died",), exit_code=(1,)),
    Fault("died_early", ("--die-after", "3"), "died", ("serv", "exit code 1"), stop=("died",), exit_code=(1,)),
    Fault("stalled", ("--hang-after", AMID), "stalled", ("no token", "/health still answers 200")),
    Fault("stalled_early", ("--hang-after", "3"), "stalled", ("no token", "/health still answers 200")),
    Fault("errors", ("--errors-after", AMID), "errors", ("HTTP 500",)),
    Fault("errors_early", ("--errors-after", "3"), "errors", ("HTTP 500",)),
    Fault("restarted", ("--restart-after", AMID), "restarted", ("restart",)),
    Fault("restarted_early", ("--restart-after", "3"), "restarted", ("restart",)),
    Fault("log_flood", ("--flood-log", "24"), "log_flood", ("log", "M(i?)B"), stop=("term", "kill"), exit_code=(0, -9)),
    Fault("log_noise", ("--flood-log", "4"), None, status=DONE),
    Fault("twin", ("--twin",), "twin", ("listen",)),
    Fault("ignores_sigterm", ("--ignore-sigterm",), "not_stopped", ("SIGTERM",), DONE, ("kill",), (-9,)),
    Fault("workers", ("--leave-grandchildren", "plain"), "workers_left", (r"2 processes",), DONE),
    Fault("workers_renamed", ("--leave-grandchildren", "renamed"), "workers_left", (r"2 processes",), DONE),
    Fault(
        "workers_ignoring",
        ("--leave-grandchildren", "renamed", "--ignore-sigterm"),
        "not_stopped",  # with its leader killed nobody can say who would have outlived it
        ("SIGTERM", "killed"),
        DONE,
        ("kill",),
        (-9,),
    ),
    Fault("no_metrics", ("--no-metrics",), None, status=DONE),
    Fault("lagging_metrics", ("--metrics-lag", "60ms"), None, status=DONE),
)
BY_NAME = {fault.name: fault for fault in FAULTS}


def draw_boots(count: int, seed: int) -> list[Fault]:
    """So many faults, each as often as the others give or take one, in random order."""
    draws = random.Random(seed)
    rounds, rest = divmod(count, len(FAULTS))
    boots = [*FAULTS * rounds, *draws.sample(FAULTS, rest)]
    draws.shuffle(boots)
    return boots


def write_experiment(folder: Path, faults: list[Fault], *, head: str = HEAD) -> None:
    text = head.replace("{python}", sys.executable)
    for number, fault in enumerate(faults, start=1):
        args = ", ".join(f'"{arg}"' for arg in fault.args)
        text += f'[[arm]]\nname = "{number:03d}-{fault.name}"\nextends = ""\nargs = [{args}]\n'
        text += f'ready_timeout = "{fault.ready_timeout}"\n'
    (folder / "experiment.toml").write_text(text)


@dataclass(frozen=True, slots=True)
class Replayed:
    code: int
    stderr: str
    run: Run
    left: list[str]  # what of it was alive when it had ended

    def boots_of(self, name: str) -> list[Boot]:
        return [boot for boot in self.run.boots if boot.facts.arm.partition("-")[2] == name]


def replay(folder: Path, *, timeout_s: float) -> Replayed:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "firsttoken", "replay", "experiment.toml", "-o", "run"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=ENVIRONMENT | {MARK: mark},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    left = alive(folder, mark)
    said = [f"{process.pid} {process.name()} {process.cmdline()[:6]}" for process in left]
    for process in left:
        process.kill()
    assert (folder / "run").is_dir(), done.stderr
    return Replayed(done.returncode, done.stderr, read_run(folder / "run"), said)


def alive(folder: Path, mark: str) -> list[psutil.Process]:
    """Processes of the run: those in its folder, whatever their name and parent, and those with its environment."""
    found = living_in(folder)
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            marked = f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0")
            process = psutil.Process(int(path.parent.name))
        except (OSError, psutil.Error):
            continue
        if marked and process not in found:
            found.append(process)
    return found


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    folder = tmp_path_factory.mktemp("faults")
    write_profile(folder / "profile", ["json", "qa", "rag", "qa", "json", "qa"])
    boots = draw_boots(int(os.environ.get("FIRSTTOKEN_BOOTS", len(FAULTS))), SEED)
    write_experiment(folder, boots)
    return replay(folder, timeout_s=120 + 30 * len(boots))


def verdict(fault: Fault, boot: Boot) -> str | None:
    """What is wrong with a diagnosis, or None."""
    facts = boot.facts
    if (facts.status, facts.diagnosis) != (fault.status, fault.diagnosis):
        return f"{facts.status}, {facts.diagnosis}: {facts.reason}"
    missing = [words for words in fault.says if not re.search(words, facts.reason or "", re.IGNORECASE)]
    if missing:
        return f"the reason does not say {missing}: {facts.reason}"
    if fault.diagnosis is None and facts.reason is not None:
        return f"a reason without need: {facts.reason}"
    if facts.stop not in fault.stop or facts.exit_code not in fault.exit_code:
        return f"stop {facts.stop}, exit code {facts.exit_code}"
    return None


# -- all of them, each once or FIRSTTOKEN_BOOTS of them ----------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
def test_the_misbehaviour_is_named_for_what_it_is(replayed: Replayed, name: str) -> None:
    boots = replayed.boots_of(name)
    if not boots and "FIRSTTOKEN_BOOTS" in os.environ:
        pytest.skip("not drawn")
    assert boots, replayed.stderr
    assert [verdict(BY_NAME[name], boot) for boot in boots] == [None] * len(boots)


def test_nothing_of_a_run_of_misbehaving_engines_is_alive_when_it_ends(replayed: Replayed) -> None:
    assert replayed.left == []


def test_the_arms_that_behave_are_measured_between_those_that_do_not(replayed: Replayed) -> None:
    healthy = [boot.facts for boot in replayed.run.boots if boot.facts.arm.startswith("v0")]
    assert [(facts.arm, facts.status, facts.reason) for facts in healthy] == [
        (facts.arm, DONE, None) for facts in healthy
    ]
    assert {facts.arm for facts in healthy} == {"v0", "v0.aa"}
    assert "Traceback" not in replayed.stderr


def test_a_run_with_failed_arms_ends_with_1_and_names_each_of_them(replayed: Replayed) -> None:
    assert replayed.code == 1
    failed = {boot.facts.arm for boot in replayed.run.boots if boot.facts.status == FAILED}
    assert failed
    for arm in failed:
        assert arm in replayed.stderr


def test_all_diagnoses_are_right_and_nobody_is_an_orphan(
    replayed: Replayed, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for boot in sorted(replayed.run.boots, key=lambda boot: boot.facts.arm):
        fault = BY_NAME.get(boot.facts.arm.partition("-")[2])
        if fault is not None:
            rows.append((boot.facts.arm, boot.facts.diagnosis or "-", boot.facts.stop or "-", verdict(fault, boot)))
    wrong = [row for row in rows if row[3] is not None]
    with capsys.disabled():
        if "FIRSTTOKEN_BOOTS" in os.environ:
            print(f"\n{'boot':<24}{'diagnosis':<16}{'stop':<8}")
            for arm, diagnosis, stop, problem in rows:
                print(f"{arm:<24}{diagnosis:<16}{stop:<8}{problem or 'right'}")
            print(f"{len(rows)} boots, {len(rows) - len(wrong)} right diagnoses, {len(replayed.left)} orphans")
    assert rows
    assert wrong == []
    assert replayed.left == []


# -- what each of them leaves in the record ----------------------------------------------------------------------------


def one(replayed: Replayed, name: str) -> Boot:
    boots = replayed.boots_of(name)
    if not boots:
        pytest.skip("not drawn")
    return boots[0]


@pytest.mark.parametrize("name", ["early_200", "early_200_error"])
def test_nothing_is_measured_before_the_model_is_there(replayed: Replayed, name: str) -> None:
    boot = one(replayed, name)
    assert boot.facts.ready_ns is not None
    assert boot.facts.spawned_ns is not None
    assert boot.facts.ready_ns - boot.facts.spawned_ns >= 700_000_000
    assert all(item.outcome == "ok" for item in boot.outcomes)
    measured = [item.send_started_ns or 0 for item in boot.outcomes if item.measured]
    assert min(measured) > boot.facts.ready_ns


@pytest.mark.parametrize("name", ["died", "stalled", "errors", "restarted"])
def test_what_was_answered_before_the_fault_is_kept(replayed: Replayed, name: str) -> None:
    boot = one(replayed, name)
    assert sum(item.outcome == "ok" for item in boot.outcomes) >= 9
    if name != "restarted":  # what is cut there may be sent again and answered
        assert any(item.outcome != "ok" for item in boot.outcomes)


def test_a_noisy_log_is_kept_to_its_last_byte_and_still_read(replayed: Replayed) -> None:
    boot = one(replayed, "log_noise")
    assert (boot.path / "engine.log").stat().st_size > 2 * 1024 * 1024
    assert {"P06", "P17", "P21", "V01"} <= {finding.id for finding in boot.facts.findings}


def test_an_engine_without_metrics_has_no_counters_and_never_zeros(replayed: Replayed) -> None:
    assert [window.counters for window in one(replayed, "no_metrics").facts.windows] == [
        None for _ in one(replayed, "no_metrics").facts.windows
    ]


def test_counters_that_lag_are_right_or_void(replayed: Replayed) -> None:
    boot = one(replayed, "lagging_metrics")
    for window in boot.facts.windows:
        if window.counters_void is None:
            assert window.counters is not None
            assert window.counters["vllm:request_success_total"] == window.requests


# -- runs of their own -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_profile(tmp_path / "profile", ["json", "qa", "rag", "qa", "json", "qa"])
    return tmp_path


def test_a_run_whose_arms_only_leave_things_behind_ends_with_0(folder: Path) -> None:
    write_experiment(folder, [BY_NAME["early_200"], BY_NAME["workers_ignoring"]])
    done = replay(folder, timeout_s=180)
    assert done.code == 0, done.stderr
    assert done.left == []
    assert {boot.facts.status for boot in done.run.boots} == {DONE}


@pytest.fixture
def stranger_after_spawn(folder: Path) -> Iterator[tuple[str, list[psutil.Popen]]]:
    """A port, and a place for the server that will share it."""
    started: list[psutil.Popen] = []
    yield free_port(), started
    for process in started:
        process.kill()
        process.wait()


def test_a_stranger_on_the_same_port_is_found_and_left_alone(
    folder: Path, stranger_after_spawn: tuple[str, list[psutil.Popen]]
) -> None:
    port, started = stranger_after_spawn
    head = HEAD.replace('"{port}"', '"{port}", "--reuse-port"').replace('"10ms"', '"6s"')
    head = head.replace("log_limit_mib = 8", f"log_limit_mib = 8\nport = {port}")
    write_experiment(folder, [], head=head)
    command = [sys.executable, "-m", "firsttoken"]
    mark = uuid.uuid4().hex
    running = subprocess.Popen(
        [*command, "replay", "experiment.toml", "-o", "run"],
        cwd=folder,
        env=ENVIRONMENT | {MARK: mark},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: any(b"non-default" in log.read_bytes() for log in folder.rglob("engine.log")), "the first boot")
    elsewhere = folder.parent
    arguments = ["engine", "--port", port, "--reuse-port", "--model", MODEL, "--boot-time", "1ms"]
    started.append(psutil.Popen([*command, *arguments], cwd=elsewhere, env=ENVIRONMENT, stdout=subprocess.DEVNULL))
    wait_for(lambda: listens(int(port)), "the stranger")
    _, said = running.communicate(timeout=180)
    assert running.returncode == 1
    assert "Traceback" not in said
    assert re.search("listens on port|already answers", said), said
    (stranger,) = started
    assert stranger.poll() is None
    assert alive(folder, mark) == []
    run = read_run(folder / "run")
    assert {(boot.facts.status, boot.facts.diagnosis) for boot in run.boots} <= {(DISCARDED, "twin")}
    assert not [item for boot in run.boots for item in boot.outcomes if item.measured]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
