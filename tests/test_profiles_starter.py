"""A starter loads, fits the profile that it was made from, and its numbers are the profile's."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import write_capture, write_profile

from profiles.build import build_profile
from profiles.builtin.cli import builtin
from profiles.concurrency import Concurrency
from profiles.errors import FirsttokenError, RuleError, UsageError
from profiles.experiment import Experiment, load_experiment
from profiles.experiment_checks import requests_for_error_rate
from profiles.planned import ProfileFacts, check_profile, planned_windows, read_facts, share_out
from profiles.profile import read_profile
from profiles.starter import starter
from profiles.starter_cli import ENGINE_NAMES
from profiles.starter_cli import init as command
from profiles.starter_engines import ENGINES
from profiles.starter_numbers import (
    material_line_ms,
    observed_closed,
    observed_hours,
    requests_for_one_error,
    requests_per_boot,
)
from profiles.units import HOUR_NS, MILLISECOND_NS, SECOND_NS
from replay.bodies import Override, sendable
from replay.schedule import Recorded, deciding_kind, plan_windows


def facts_of(path: Path) -> ProfileFacts:
    return read_facts(read_profile(path))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_profile(tmp_path_factory.mktemp("recorded") / "week", ["json", "rag", "qa", "qa"] * 30)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "made"
    result = CliRunner().invoke(builtin, ["single-stream", "-o", str(path), "--scale", "0.05"], catch_exceptions=False)
    assert result.exit_code == 0
    return path


def load(facts: ProfileFacts, folder: Path, engine: str = "vllm", **changes: str) -> Experiment:
    """Write a starter, load it, and hold it against its profile."""
    path = folder / "experiment.toml"
    path.write_text(starter(facts, path="week", engine=engine, **changes), encoding="utf-8")
    experiment = load_experiment(path)
    check_profile(experiment, facts)
    return experiment


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_starter_loads_and_fits_for_every_engine(
    recorded: Path, generated: Path, engine: str, tmp_path: Path
) -> None:
    assert set(ENGINE_NAMES) == set(ENGINES)
    for profile in (recorded, generated):
        experiment = load(facts_of(profile), tmp_path, engine)
        assert [arm.name for arm in experiment.arms] == ["v0_baseline"]
        assert "{port}" in " ".join(experiment.baseline.argv)
        assert [guard.metric for guard in experiment.file.guard] == ["ttft_p90", "error_rate", "throughput@c=8"]


def test_the_example_arm_and_the_skipped_one_load_too(recorded: Path, tmp_path: Path) -> None:
    for engine in ENGINE_NAMES:
        text = starter(facts_of(recorded), path="week", engine=engine)
        head, tail = text.split("# [[arm]] ")
        uncommented = re.sub(r"^# ", "", "# [[arm]] " + tail, flags=re.MULTILINE)
        path = tmp_path / f"{engine}.toml"
        path.write_text(head + uncommented, encoding="utf-8")
        experiment = load_experiment(path)
        assert len(experiment.arms) == 2
        assert len(experiment.arms[1].argv) > len(experiment.baseline.argv)
        assert len(experiment.file.skipped) == 1


def test_what_it_says_is_what_the_profile_holds(recorded: Path, tmp_path: Path) -> None:
    facts = facts_of(recorded)
    text = starter(facts, path="week", engine="vllm")
    assert "hold 100.0 % of the 120 arrivals; above c = 2 never" in " ".join(text.replace("\n# ", " ").split())
    assert "c=1: 66.7 %, c=2: 33.3 %" in text
    assert "Of the profile 120 of 120 requests can be sent" in text
    experiment = load(facts, tmp_path)
    file = experiment.file
    assert file.load.deciding == "observed"
    assert file.load.requests_per_boot == 120
    assert file.profile.min_observed_h == 0.03
    assert file.engine is not None
    assert file.engine.model == "test-model"
    assert file.design.seed == int(facts.sha256[:6], 16)
    assert [(window.kind, window.c) for window in experiment.also] == [
        ("single", 1),
        *(("sweep", c) for c in range(1, 9)),
        ("closed", 8),
    ]


def test_a_profile_that_nobody_produced_declares_its_operating_point(generated: Path, tmp_path: Path) -> None:
    facts = facts_of(generated)
    experiment = load(facts, tmp_path, "llamacpp")
    point = experiment.file.profile.operating_point
    assert (point.basis, point.levels) == ("declared", {"1": 0.7, "2": 0.3})
    assert point.reason.startswith("TODO")
    assert experiment.file.load.deciding == "closed"
    assert "nobody recorded these arrivals" in starter(facts, path="week", engine="vllm")
    assert experiment.file.engine is not None
    assert experiment.file.engine.cache_isolation == "nonce"
    assert not experiment.file.load.running_usage


def test_a_small_profile_is_replayed_in_closed_loops(tmp_path: Path) -> None:
    facts = facts_of(write_profile(tmp_path / "small", ["json", "qa"] * 12))
    experiment = load(facts, tmp_path)
    assert experiment.file.load.deciding == "closed"
    why = observed_closed(facts, experiment.file.load.requests_per_boot)
    assert why is not None
    assert why.startswith("the profile holds 24 requests that can be sent")


def test_a_profile_without_text_says_what_that_means(recorded: Path, tmp_path: Path) -> None:
    facts = replace(facts_of(recorded), content="none", not_measurable=("acceptance", "guided decoding cost"))
    with pytest.raises(RuleError, match="holds no request bodies"):
        load(facts, tmp_path)
    said = " ".join(starter(facts, path="week", engine="vllm").replace("\n# ", " ").split())
    assert "nothing of it can be sent" in said
    assert "speculative or guided decoding are refused" in said
    rebuilt = replace(facts, content="synthetic")
    load(rebuilt, tmp_path)
    said = " ".join(starter(rebuilt, path="week", engine="vllm").replace("\n# ", " ").split())
    assert "so acceptance and guided decoding cost cannot be measured" in said


@pytest.mark.parametrize(
    ("median_ms", "expected"), [(None, 5), (400, 5), (50, 5), (49, 5), (30, 3), (20, 2), (4, 1), (0.5, 1)]
)
def test_the_absolute_line_is_a_small_part_of_the_median(median_ms: float | None, expected: float) -> None:
    chosen, reason = material_line_ms(None if median_ms is None else round(median_ms * MILLISECOND_NS))
    assert chosen == expected
    assert ("no TTFT" in reason) == (median_ms is None)


def test_observed_hours_are_rounded_down() -> None:
    assert [observed_hours(round(hours * HOUR_NS)) for hours in (0.001, 0.999, 1.0, 71.99)] == [0.0, 0.99, 1, 71]


def test_the_error_guard_survives_one_failed_request() -> None:
    assert requests_for_error_rate(0.01) == 299
    assert requests_for_one_error(0.01) == 473


def test_a_rare_class_makes_a_boot_longer_but_not_without_end(recorded: Path) -> None:
    facts = facts_of(recorded)
    assert requests_per_boot(replace(facts, sendable={"a": 970, "b": 30}))[0] == 534
    assert requests_per_boot(replace(facts, sendable={"a": 9990, "b": 10}))[0] == 400
    assert requests_per_boot(replace(facts, sendable={"a": 4899, "b": 101}))[0] == 793
    crowded = Concurrency({20: 1}, {1: 950, 30: 50}, 1, 20)
    assert crowded.operating_point(0.95).levels == (1,)
    crowded = Concurrency({20: 1}, {1: 940, 30: 60}, 1, 20)
    assert requests_per_boot(replace(facts, measured=crowded))[0] == 800


@settings(max_examples=60)
@given(
    counts=st.dictionaries(st.sampled_from(["a", 'b"\n', "rag_8k", "ü\t"]), st.integers(1, 5000), min_size=1),
    arrivals=st.dictionaries(st.integers(1, 20), st.integers(1, 10_000), min_size=1),
    observed_s=st.integers(1, 10**7),
    ttft_ms=st.none() | st.integers(1, 100_000),
    model=st.text(max_size=8),
    synthetic=st.booleans(),
)
def test_any_profile_gives_a_starter_that_fits_it(
    recorded: Path,
    tmp_path_factory: pytest.TempPathFactory,
    counts: dict[str, int],
    arrivals: dict[int, int],
    observed_s: int,
    ttft_ms: int | None,
    model: str,
    synthetic: bool,
) -> None:
    observed_ns = observed_s * SECOND_NS
    facts = replace(
        facts_of(recorded),
        name=f"/tmp/{model.replace('/', '_')}",
        sendable=counts,
        requests=sum(counts.values()),
        measured=None if synthetic else Concurrency({1: observed_ns}, arrivals, observed_ns, observed_ns),
        synthetic=synthetic,
        observed_ns=observed_ns,
        ttft_p50_ns=None if ttft_ms is None else ttft_ms * MILLISECOND_NS,
        models={model: 3, "other": 1},
    )
    experiment = load(facts, tmp_path_factory.getbasetemp())
    assert experiment.file.engine is not None
    assert experiment.file.engine.model == model


@pytest.mark.parametrize("deciding", ["observed", "closed"])
def test_planned_windows_are_those_of_a_replay(recorded: Path, deciding: str, tmp_path: Path) -> None:
    profile = read_profile(recorded)
    facts = read_facts(profile)
    path = tmp_path / "experiment.toml"
    text = starter(facts, path=str(recorded), engine="vllm")
    text = text.replace('deciding = "observed"', f'deciding = "{deciding}"')
    text = text.replace("requests_per_boot = 120", "requests_per_boot = 150")
    path.write_text(text.replace('60s"]', '60s", "closed c=4 for 5s per class"]'), encoding="utf-8")
    experiment = load_experiment(path)
    found = check_profile(experiment, facts)
    rows = profile.rows()
    usable, _ = sendable(rows, Override(), profile.read_bodies())
    played = plan_windows(experiment, rows, found.point.weights, 1, usable=usable, recorded=Recorded())
    planned = planned_windows(experiment, facts, found)
    assert [(item.name, item.kind, item.c, item.deciding, item.limit_ns) for item in planned] == [
        (item.name, item.kind, item.c, item.deciding, item.limit_ns) for item in played
    ]
    fixed = [len(item.picks) for item in played if item.limit_ns is None]
    assert [item.requests for item in planned if item.limit_ns is None] == fixed
    assert deciding_kind(experiment, Recorded())[0] == deciding


def test_levels_are_dealt_by_their_share() -> None:
    assert share_out(100, {1: 0.7, 2: 0.3}) == {1: 70, 2: 30}


def init(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, [str(word) for word in words])
    if isinstance(result.exception, FirsttokenError):
        raise result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def test_init_writes_a_file_that_finds_its_profile(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    code, printed, said = init(recorded, "-o", out, "--engine", "sglang", "--model", "served")
    assert (code, printed) == (0, f"{out}\n")
    assert "lines are marked TODO. Then: firsttoken plan" in said
    assert "Not to be replayed" not in said
    experiment = load_experiment(out)
    assert experiment.profile_path.resolve() == recorded.resolve()
    assert experiment.file.engine is not None
    assert experiment.file.engine.model == "served"
    assert out.stat().st_mode & 0o777 == 0o600


def test_init_never_overwrites(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    out.write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="already exists, and is not overwritten"):
        init(recorded, "-o", out)
    assert out.read_text(encoding="utf-8") == "mine"
    link = tmp_path / "link.toml"
    link.symlink_to(tmp_path / "nowhere.toml")
    with pytest.raises(UsageError, match="already exists"):
        init(recorded, "-o", link)
    assert not (tmp_path / "nowhere.toml").exists()


def test_init_prints_to_stdout(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, _ = init(recorded, "-o", "-")
    assert code == 0
    (tmp_path / "piped.toml").write_text(printed, encoding="utf-8")
    assert load_experiment(tmp_path / "piped.toml").profile_path.resolve() == recorded.resolve()
    assert not (tmp_path / "experiment.toml").exists()


def test_init_says_what_cannot_be_replayed(tmp_path: Path) -> None:
    capture = write_capture(tmp_path / "capture", ["qa"] * 6)
    (segment,) = capture.glob("segment-*")
    without = re.sub(rb',"body":\{.*\}\}$', b"}", segment.read_bytes(), flags=re.MULTILINE)
    segment.write_bytes(without.replace(b'"bodies":"full"', b'"bodies":"none"'))
    build_profile([capture], tmp_path / "bare")
    code, _, said = init(tmp_path / "bare", "-o", tmp_path / "bare.toml")
    assert code == 0
    assert "Not to be replayed as it stands." in said
    assert "holds no request bodies" in said
