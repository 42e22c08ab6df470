"""The command `report`: its forms, what it writes, and what it says when something is wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from synthetic_run import Effect, Synthetic

from analysis.cli import report
from analysis.page import html as page
from profiles.errors import FirsttokenError, UsageError

ROOT = Path(__file__).parents[1]


def invoke(*words: object) -> Result:
    return CliRunner().invoke(report, [str(word) for word in words], catch_exceptions=False)


def squeeze(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Synthetic({"v1": Effect(ttft=-0.1)}).write(tmp_path / "run")


def test_it_writes_the_verdict_and_a_page_into_the_run(run: Path) -> None:
    result = invoke(run)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [str(run / "verdict.json"), str(run / "report.html")]
    assert "Outcome: adopt v1" in result.stdout
    assert str(run) not in result.stdout
    assert "<script" in (run / "report.html").read_text(encoding="utf-8")


def test_a_static_page_has_no_script_and_may_lie_elsewhere(run: Path, tmp_path: Path) -> None:
    wanted = tmp_path / "for-mail.html"
    result = invoke(run, "--static", "--html", wanted)
    assert result.stderr.splitlines()[-1] == str(wanted)
    assert "<script" not in wanted.read_text(encoding="utf-8")
    assert not (run / "report.html").exists()


def test_a_relative_report_leaves_the_full_one_alone(run: Path) -> None:
    invoke(run, "--static")
    before = {name: (run / name).read_bytes() for name in ("verdict.json", "report.html")}
    result = invoke(run, "--relative", "--static")
    assert {name: (run / name).read_bytes() for name in before} == before
    written = [run / "verdict-relative.json", run / "report-relative.html"]
    assert result.stderr.splitlines() == [str(path) for path in written]
    assert "RELATIVE FIGURES ONLY" in result.stdout
    assert json.loads(written[0].read_bytes())["relative"] is True
    assert json.loads(before["verdict.json"])["relative"] is False


def test_without_a_page_only_the_verdict_is_written(run: Path) -> None:
    result = invoke(run, "--no-html", "--json")
    assert result.stderr == f"{run / 'verdict.json'}\n"
    assert json.loads(result.stdout) == json.loads((run / "verdict.json").read_bytes())
    assert not list(run.glob("*.html"))


def test_a_page_that_cannot_be_drawn_costs_no_verdict(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no drawing library")

    monkeypatch.setattr(page, "write_page", broken)
    result = invoke(run, "--static")
    assert result.exit_code == 0
    assert "Outcome: adopt v1" in result.stdout
    assert (run / "verdict.json").exists()
    assert "the HTML page was not written (RuntimeError: no drawing library); the verdict stands" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_place_that_cannot_be_written_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FirsttokenError, match="file"):
        invoke(run, "--out", tmp_path / "file", "--no-html")
    result = invoke(run, "--static", "--html", tmp_path / "file" / "x.html")
    assert result.exit_code == 0
    assert "the HTML page was not written" in result.stderr


@pytest.mark.parametrize(
    "options", [["--json", "--markdown"], ["--no-html", "--static"], ["--no-html", "--html", "x.html"]]
)
def test_options_that_contradict_each_other_are_refused(run: Path, options: list[str]) -> None:
    with pytest.raises(UsageError):
        invoke(run, *options)
    assert not (run / "verdict.json").exists()


def test_help_fits_and_shows_an_example_and_the_exit_codes() -> None:
    result = CliRunner().invoke(report, ["--help"], terminal_width=80)
    assert max(map(len, result.stdout.splitlines())) <= 80
    for part in ("Example:", "firsttoken report runs/november", "Exit codes:", "--relative", "--schema", "--markdown"):
        assert part in result.stdout


def test_help_and_schema_load_nothing_heavy() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from analysis.cli import report; "
        "CliRunner().invoke(report, ['--help']); "
        "print([name for name in ('polars', 'numpy', 'scipy', 'vl_convert', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("shape", "step"),
    [
        (
            Synthetic({"v1": Effect(ttft=-0.03)}, boot_sd=0.02),
            "Next - to decide v1: `blocks = ",
        ),
        (
            Synthetic({"v1": Effect()}, done_blocks=2, finished=False),
            "Next - let the run go on: `firsttoken replay experiment.toml -o ",
        ),
        (
            Synthetic({"v1": Effect()}, copy=Effect(ttft=0.2)),
            "Next - find what makes two boots of the baseline differ (cooling, foreign load, caches, order), then "
            "measure anew: `firsttoken replay experiment.toml -o NEW-RUN`",
        ),
    ],
)
def test_what_is_open_ends_with_what_to_do_next(tmp_path: Path, shape: Synthetic, step: str) -> None:
    result = invoke(shape.write(tmp_path / "run"), "--no-html")
    assert step in squeeze(result.stdout)
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_measure_that_production_never_reaches_says_what_to_change(tmp_path: Path) -> None:
    rule = '\n[[measure]]\nname = "throughput@c=8"\nmaterial = { relative = 0.03 }\nmargin = 0.05\n'
    result = invoke(Synthetic({"v1": Effect()}, rule=rule).write(tmp_path / "run"), "--no-html")
    assert result.exit_code == 4
    assert "Next - let a measure decide at a c that production reaches, or" in squeeze(result.stdout)


def test_a_run_of_an_earlier_version_keeps_its_rule(tmp_path: Path) -> None:
    """A key that is new in this version changes the hash of the meaning, of bytes that nobody touched."""

    def of_earlier_keys(manifest: dict[str, Any]) -> None:
        manifest["rule"]["semantic_sha256"] = "0" * 64

    run = Synthetic({"v1": Effect(ttft=-0.1)}, edit_manifest=of_earlier_keys).write(tmp_path / "run")
    result = invoke(run, "--no-html")
    assert "Outcome: adopt v1" in result.stdout


def test_a_decided_run_has_nothing_next(run: Path) -> None:
    assert "Next" not in invoke(run, "--no-html").stdout


def test_the_table_of_verdicts_stands_before_all_details(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect(ttft=-0.1), "v2": Effect()}).write(tmp_path / "run")
    lines = invoke(run, "--no-html").stdout.splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("ARM ")]
    assert [line.split()[:2] for line in lines[head + 2 : head + 4]] == [["v1", "adopt"], ["v2", "reject"]]
    assert head < 6
    assert lines.index("v1: adopt") > head
    assert all(not line.startswith(("Load", "A/A")) for line in lines[:head])
