"""A run of the baseline alone: what it measured is shown, and nothing that looks like a verdict."""

from pathlib import Path

import pytest
from synthetic_run import CLASSES, Synthetic
from test_analysis_report import judged

from analysis.alone import measured_windows
from analysis.bench import make_bench
from analysis.judge import judge
from analysis.markdown import format_markdown
from analysis.table import format_report
from profiles.experiment import load_experiment
from profiles.runs import RULE, read_run


def written(folder: Path) -> Path:
    return Synthetic({}, sweep=(1, 4), blocks=3).write(folder / "run")


def test_the_windows_of_a_lone_baseline_are_shown_in_place_of_an_empty_table(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({}, sweep=(1, 4), blocks=3))
    assert (document["arms"], result.exit_code) == ([], 0)
    assert "Nothing is compared: v0 is the only arm." in result.stdout
    assert "VERDICT" not in result.stdout
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for window in ("closed-c1", "closed-c2", "closed-c3", "sweep-c1", "sweep-c4"):
        (at,) = [number for number, line in enumerate(lines) if line.startswith(f"{window} ")]
        assert [line.split()[0] for line in lines[at + 1 : at + 5]] == sorted(CLASSES)


def test_each_number_is_that_of_the_requests_of_both_copies(tmp_path: Path) -> None:
    path = written(tmp_path)
    bench = make_bench(read_run(path), load_experiment(path / RULE))
    rows = bench.frame.filter(window="sweep-c4", workload="rag_long")
    assert set(rows["arm"]) == {"v0", "v0.aa"}
    (found,) = [item for item in measured_windows(bench) if (item.window, item.workload) == ("sweep-c4", "rag_long")]
    assert (found.requests, found.ttft_p50_ns) == (rows.height, rows["ttft_ns"].median())
    assert found.tpot_p50_ns == rows["tpot_ns"].median()
    (whole,) = [item for item in measured_windows(bench) if (item.window, item.workload) == ("sweep-c4", None)]
    assert whole.requests == bench.frame.filter(window="sweep-c4").height


@pytest.mark.parametrize("relative", [False, True])
def test_it_is_no_invalid_run_and_a_relative_report_has_no_times(tmp_path: Path, relative: bool) -> None:
    path = written(tmp_path)
    report = judge(read_run(path), load_experiment(path / RULE))
    markdown, text = format_markdown(report, relative=relative), format_report(report, relative=relative)
    assert markdown.startswith("### Verdict: none, nothing was compared")
    for shown in (markdown, text):
        assert ("TTFT p50" in shown) is not relative
        assert ("is absolute, and left out here" in " ".join(shown.split())) is relative
