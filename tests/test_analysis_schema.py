"""verdict.json is what its published JSON Schema says, whatever the run; and every such run can be shown."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it comes with altair, without types
import msgspec
import pytest
from click.testing import CliRunner
from synthetic_run import GUARDS, Effect, Synthetic
from test_analysis_functional import probed

from analysis.cli import report
from analysis.contract import SCHEMA_FILE, schema, schema_text
from analysis.document import verdict_document
from analysis.findings import Report
from analysis.judge import judge
from analysis.markdown import format_markdown
from analysis.relative import relative_document
from analysis.table import format_report
from profiles.experiment import load_experiment
from profiles.files import encode
from profiles.runs import FAILED, RULE, BootFacts, LogFinding, read_run

OPEN = jsonschema.Draft202012Validator(json.loads(schema_text()))
CLOSED = jsonschema.Draft202012Validator(schema(closed=True))

AT_C = """
[[measure]]
name = "ttft"
material = { relative = 0.02 }
margin = 0.05
[[measure]]
name = "throughput@c=8"
material = { relative = 0.03 }
margin = 0.05
headroom_reason = "the team grows"
"""
MIXED = Effect(
    tpot={"json_extraction": -0.16, "rag_long": -0.15, "short_qa": 0.09},
    acceptance={"json_extraction": 2.9, "short_qa": 1.3, "chat": 2.0, "rag_long": 2.2},
    cached=400,
)
DRAFTS = Effect(acceptance={"json_extraction": 2.0, "short_qa": 1.2, "chat": 1.9, "rag_long": 1.9}, cached=100)
FALLBACK = LogFinding(id="V06", severity="fallback", signature="setting cudagraph_mode=PIECEWISE")


def external(facts: BootFacts) -> BootFacts:
    return msgspec.structs.replace(facts, cold=False)


def first_fails(facts: BootFacts) -> BootFacts:
    return (
        msgspec.structs.replace(facts, status=FAILED, reason="exit code 1: out of memory")
        if (facts.arm, facts.block) == ("v1", 1)
        else facts
    )


def amended(manifest: dict[str, Any]) -> None:
    manifest["rule"]["amendments"] = [{"boots_before": 3, "reason": "another margin"}]


def no_point(manifest: dict[str, Any]) -> None:
    manifest["operating_point"] = {}
    manifest["aa"] = None


SHAPES: dict[str, Synthetic] = {
    "plain": Synthetic({"v1": Effect(ttft=-0.1)}),
    "split": Synthetic({"v1": MIXED, "v2": MIXED}, baseline=DRAFTS),
    "observed": Synthetic({"v1": Effect(ttft=-0.03)}, mode="observed", boot_sd=0.02),
    "timed": Synthetic({"v1": Effect()}, mode="timed"),
    "swept": Synthetic({"v1": Effect(ttft_at={1: -0.1, 4: 0.2})}, sweep=(1, 2, 3, 4), per_class=True),
    "one boot": Synthetic({"v1": Effect(ttft=-0.1)}, blocks=1),
    "two blocks": Synthetic({"v1": Effect(ttft=-0.1)}, blocks=2),
    "unfinished": Synthetic({"v1": Effect()}, done_blocks=2, finished=False),
    "invalid": Synthetic({"v1": Effect()}, copy=Effect(ttft=0.2)),
    "external": Synthetic({"v1": Effect(ttft=-0.1)}, edit_boot=external),
    "failing": Synthetic({"v1": Effect(), "v2": Effect()}, edit_boot=first_fails),
    "dirty": Synthetic({"v1": Effect(findings=(FALLBACK,))}),
    "two looks": Synthetic({"v1": Effect()}, blocks=6, design="looks = [3, 6]\n"),
    "pooled": Synthetic({"v1": Effect(), "v2": Effect()}, design='variance = "pooled"\n'),
    "error rate": Synthetic({"v1": Effect()}, requests=120, rule='\n[[guard]]\nmetric = "error_rate"\nmax = 0.01\n'),
    "probed": Synthetic({"v1": Effect()}, functional=probed()),
    "amended": Synthetic({"v1": Effect(ttft=-0.1)}, edit_manifest=amended),
    "stopped": Synthetic(
        {"v1": Effect(ttft=0.2), "v2": Effect()},
        blocks=6,
        design="looks = [3, 6]\n",
        events=[{"event": "arm_decided", "arm": "v1", "look": 3, "verdict": "reject", "needed_by": []}],
    ),
    "at c = 8": Synthetic({"v1": Effect()}, mode="observed", rule=AT_C),
    "nothing recorded": Synthetic({"v1": Effect()}, edit_manifest=no_point),
    "allowed": Synthetic(
        {"v1": Effect(findings=(FALLBACK,))},
        rule=GUARDS + '[boot_log]\nallow = [{ signature = "cudagraph_mode", reason = "known" }]\n',
    ),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    made = {}
    for name, shape in SHAPES.items():
        path = shape.write(tmp_path_factory.mktemp("shape") / "run")
        made[name] = judge(read_run(path), load_experiment(path / RULE))
    return made


@pytest.fixture(scope="module")
def documents(reports: dict[str, Report]) -> dict[str, dict[str, Any]]:
    """verdict.json of every shape, and as it is published without absolute figures."""
    made = {}
    for name, judged in reports.items():
        document = verdict_document(judged)
        made[name] = json.loads(encode(document))
        made[name + ", relative"] = json.loads(encode(relative_document(document, judged)))
    return made


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_fits_a_terminal_and_a_pull_request(reports: dict[str, Report], name: str, relative: bool) -> None:
    text = format_report(reports[name], relative)
    assert max(map(len, text.splitlines())) <= 80
    shown = format_markdown(reports[name], relative)
    for arm in reports[name].arms:
        assert f"{arm.arm}: {arm.verdict.word}" in text
        assert f"| {arm.arm} | **{arm.verdict.word}** |" in shown
    assert len(shown.split("<details>")[0].splitlines()) <= 60


@pytest.mark.parametrize("name", [name + kind for name in SHAPES for kind in ("", ", relative")])
def test_every_document_has_the_published_form_and_no_other_key(
    documents: dict[str, dict[str, Any]], name: str
) -> None:
    errors = [f"{error.json_path}: {error.message}" for error in CLOSED.iter_errors(documents[name])]
    assert errors == []
    assert OPEN.is_valid(documents[name])


def test_the_shapes_show_what_the_schema_speaks_of(documents: dict[str, dict[str, Any]]) -> None:
    """A part that no document fills is a part that nothing was held against."""
    seen = {name for document in documents.values() for name in _filled(document)}
    wanted = set(
        "split best_split crossover sweep throughput acceptance acceptance_gain sensitivity step settle guards allowed "
        "failed skipped order output_lengths checks arrivals_at cached_share functional stopped "
        "post_hoc warnings invalid".split()
    )
    assert wanted - seen == set()


def _filled(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if item not in (None, [], {}):
                yield key
            yield from _filled(item)
    elif isinstance(value, list):
        for item in value:
            yield from _filled(item)


def _without(*path: str | int) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *above, key = path
        target: Any = document
        for step in above:
            target = target[step]
        del target[key]

    return change


def _with(value: Any, *path: str | int) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *above, key = path
        target: Any = document
        for step in above:
            target = target[step]
        target[key] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _without("rule_sha256"),
        _without("arms", 0, "verdict"),
        _without("arms", 0, "measures", 0, "classes", 0, "direction"),
        _without("aa", "smallest_visible_bias"),
        _with("accept", "arms", 0, "verdict"),
        _with("better", "arms", 0, "measures", 0, "zone"),
        _with("0.1", "arms", 0, "measures", 0, "change"),
        _with(2, "version"),
        _with("firsttoken/run", "format"),
        _with("abc", "rule_sha256"),
        _with(-1, "machine_time_s"),
        _with(None, "arms"),
        _with([1], "arms", 0, "reasons"),
        _with(1.5, "arms", 0, "measures", 0, "coverage"),
    ],
)
def test_a_document_of_another_form_is_refused(
    documents: dict[str, dict[str, Any]], change: Callable[[dict[str, Any]], None]
) -> None:
    document = copy.deepcopy(documents["split"])
    change(document)
    assert not OPEN.is_valid(document)


@pytest.mark.parametrize("path", [(), ("arms", 0), ("arms", 0, "measures", 0), ("aa",), ("blocks",)])
def test_keys_may_be_added_within_the_version(
    documents: dict[str, dict[str, Any]], path: tuple[str | int, ...]
) -> None:
    document = copy.deepcopy(documents["split"])
    _with(1, *path, "a_later_key")(document)
    assert OPEN.is_valid(document)
    assert not CLOSED.is_valid(document)


def test_the_published_file_is_the_schema_of_the_types() -> None:
    assert json.loads(SCHEMA_FILE.read_bytes()) == schema(), "run `python -m analysis.contract`"
    jsonschema.Draft202012Validator.check_schema(schema())


def test_the_command_prints_the_schema_without_a_run() -> None:
    result = CliRunner().invoke(report, ["--schema"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.encode() == SCHEMA_FILE.read_bytes()


def test_the_schema_travels_with_the_package() -> None:
    assert SCHEMA_FILE.is_relative_to(Path(__file__).parents[1] / "analysis")
