"""Markdown for a pull request: short, verdicts first, and nothing foreign can act in it."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from synthetic_run import Effect, Synthetic

from analysis.cli import report
from analysis.judge import judge
from analysis.markdown import escape, format_markdown
from profiles.experiment import load_experiment
from profiles.runs import RULE, LogFinding, read_run


def markdown(path: Path, run: Synthetic) -> str:
    run.write(path / "run")
    return format_markdown(judge(read_run(path / "run"), load_experiment(path / "run" / RULE)))


LONGER = Effect(
    tpot={"json_extraction": -0.16, "rag_long": -0.15, "short_qa": 0.09, "chat": 0.03},
    acceptance={"json_extraction": 2.949, "short_qa": 1.314},
)
LADDER = Synthetic(
    {"v1_flashinfer": Effect(), "v2_async": Effect(), "v3_spec3": LONGER},
    baseline=Effect(acceptance={"json_extraction": 1.99, "short_qa": 1.292}),
)


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return markdown(tmp_path_factory.mktemp("markdown"), LADDER)


def test_the_verdicts_come_first_as_a_table(ladder: str) -> None:
    lines = ladder.splitlines()
    assert lines[0].startswith("### Verdict: nothing survived; keep v0; workload-dependent: v3")
    assert lines[2] == "| Arm | Verdict | TTFT [90 %] | TPOT [90 %] | Blocks |"
    rows = lines[4:7]
    assert [row.split(" | ")[1] for row in rows] == ["**reject**", "**reject**", "**workload-dependent**"]
    cell = r"[+−]\d+\.\d % \[[+−]\d+\.\d, [+−]\d+\.\d\]<br>(gain|no gain|open), (no worse|worse|not shown)"
    for row in rows:
        cells = row.strip("| ").split(" | ")
        assert re.fullmatch(cell, cells[2])
        assert re.fullmatch(cell, cells[3])
        assert cells[4] == "5"


def test_a_usual_run_takes_a_screen_or_two(ladder: str) -> None:
    visible = re.sub(r"<details>.*?</details>", "", ladder, flags=re.DOTALL)
    assert len(visible.splitlines()) <= 60
    for part in ("- Load: ", "- Lines: ", "- A/A: ", "guard ttft\\_p90", "**Skipped arms**", "fastsafetensors"):
        assert part in visible
    assert "sha256 " in visible.splitlines()[-1]
    assert "test-rule" in visible.splitlines()[-1]


def test_a_split_has_its_classes_in_a_table(ladder: str) -> None:
    rows = [line for line in ladder.splitlines() if line.startswith("| json\\_extraction")]
    assert len(rows) == 1
    assert re.fullmatch(r"\| json\\_extraction \| −1\d\.\d % \[.*\] \| gain \| 2\.99 → 3\.95 \|", rows[0])


def test_an_undecided_run_says_what_to_do_next_with_the_command(tmp_path: Path) -> None:
    text = markdown(tmp_path, Synthetic({"v1": Effect(ttft=-0.03)}, boot_sd=0.02))
    assert "**Next**" in text
    assert "`firsttoken replay NEW.toml -o NEW-RUN`" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a | b", "a \\| b"),
        ("`rm`", "\\`rm\\`"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("two\nlines\r\n", "two lines"),
        ("@someone a@b.c", "@\u200bsomeone a@\u200bb.c"),
        ("fixes #12, GH-12", "fixes #\u200b12, GH\u200b-12"),
        ("https://x.y www.x.y", "https\u200b://x.y www\u200b.x.y"),
        ("[a](b) ![c](d)", "\\[a\\](b) !\\[c\\](d)"),
        ("*a* _b_ ~~c~~ $d$", "\\*a\\* \\_b\\_ \\~\\~c\\~\\~ \\$d\\$"),
        ("- a", "\\- a"),
        ("# a", "\\# a"),
        ("1. a", "1\\. a"),
        ("back\\slash", "back\\\\slash"),
        ("−4.8 % at c = 1 to 3 (deciding)", "−4.8 % at c = 1 to 3 (deciding)"),
    ],
)
def test_foreign_text_is_shown_as_it_is(text: str, shown: str) -> None:
    assert escape(text) == shown


HOSTILE = "</details><img src=x onerror=a()> | a ``` b @root `c`\n# head [x](http://y.z) | b"


def test_a_hostile_engine_or_user_cannot_act_in_it(tmp_path: Path) -> None:
    def edit(manifest: dict[str, object]) -> None:
        manifest["skipped"] = [{"arm": "a|b<i>", "reason": HOSTILE}]

    findings = (
        LogFinding(id="V06", severity="fallback", signature=HOSTILE),
        LogFinding(id="V07", severity="config-warn", signature=HOSTILE),
    )
    text = markdown(tmp_path, Synthetic({"v1": Effect(findings=findings)}, edit_manifest=edit))
    outside = re.sub(r"^(`{3,})text\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "&lt;img" in outside
    for bad in ("<img", "<i>", "@root", "http://", "```", "\n# head"):
        assert bad not in outside
    assert not re.search(r"(?<!\\)\]\(", outside)  # no link
    tags = set(re.findall(r"<[^>]+>", outside))
    assert tags <= {"<br>", "<details>", "<summary>", "</summary>", "</details>", "<sub>", "</sub>"}
    cells = {line.replace("\\|", "").count("|") for line in outside.splitlines() if line.startswith("| v1")}
    assert cells == {6}


def test_the_command_prints_the_markdown_and_nothing_else(tmp_path: Path) -> None:
    path = LADDER.write(tmp_path / "run")
    result = CliRunner().invoke(report, [str(path), "--markdown", "--no-html"], catch_exceptions=False)
    assert result.stdout.startswith("### Verdict: ")
    assert result.stdout.endswith("</sub>\n")
    assert result.stderr == f"{path / 'verdict.json'}\n"
    assert result.exit_code == 0
