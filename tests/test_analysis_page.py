"""The HTML report: it loads nothing, escapes what is foreign, shows the numbers of verdict.json, and stays small."""

import base64
import gzip
import hashlib
import json
import math
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from page_reader import PageReader, value
from page_runs import FALLBACK, judged, ladder
from synthetic_run import Effect, Synthetic

from analysis.document import verdict_document
from analysis.findings import Report
from analysis.page.html import SIGNS, render_page, write_page
from analysis.page.script import drawing, in_script
from profiles.charts.style import COLOURS
from profiles.errors import UsageError
from profiles.runs import DISCARDED, BootFacts, LogFinding

HOSTILE = '"><img src=x onerror=alert(1)></script><script>alert(2)</script><!-- {{ 7*7 }} `x`'
MOST_BYTES = 2_000_000


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return judged(ladder().write(tmp_path_factory.mktemp("ladder") / "run"))


@pytest.fixture(scope="module")
def static(report: Report) -> str:
    return render_page(report, static=True)


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return render_page(report)


@pytest.fixture(scope="module")
def relative(report: Report) -> str:
    return render_page(report, static=True, relative=True)


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def unpacked(page: str, name: str) -> str:
    (block,) = re.findall(rf'<script type="text/plain" id="packed-{name}">([^<]*)</script>', page)
    return gzip.decompress(base64.b64decode(block)).decode("utf-8")


def policy_of(page: str) -> str:
    (content,) = [
        attributes["content"]
        for tag, attributes in PageReader(page).tags
        if tag == "meta" and "http-equiv" in attributes
    ]
    return content or ""


# --- The page as a file.


@pytest.mark.parametrize("form", ["static", "page", "relative"])
def test_the_page_loads_nothing(form: str, request: pytest.FixtureRequest) -> None:
    text: str = request.getfixturevalue(form)
    outside = re.sub(r'<script type="text/plain".*?</script>', "", text, flags=re.DOTALL)
    assert not re.search(r"https?:|url\(|@import|javascript:|src=", outside)
    loading = {"link", "img", "image", "iframe", "object", "embed", "use", "audio", "video", "base", "form"}
    for tag, attributes in PageReader(text).tags:
        assert tag not in loading
        assert not {name for name in attributes if name in ("src", "xlink:href") or name.startswith("on")}
        assert (attributes.get("href") or "#").startswith("#")
    assert policy_of(text).startswith("default-src 'none';")


def test_a_static_page_has_no_script_and_allows_none(static: str) -> None:
    assert "<script" not in static
    assert "script-src" not in policy_of(static)


def test_the_policy_lets_the_two_scripts_run_and_no_other(page: str) -> None:
    assert [attributes.get("type") for tag, attributes in PageReader(page).tags if tag == "script"] == [
        "text/plain",
        "text/plain",
        None,
    ]
    (drawn,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert drawn == drawing()
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in (unpacked(page, "vega"), drawn)
    ]
    allowed = f"script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}' 'unsafe-eval'"
    assert policy_of(page).split("; ")[-1] == allowed


def test_each_picture_has_its_specification(page: str, static: str) -> None:
    specs = json.loads(unpacked(page, "specs"))
    places = [attributes["data-spec"] for _, attributes in PageReader(page).tags if "data-spec" in attributes]
    assert places == [str(place) for place in range(len(specs))]
    assert len(svgs(page)) == len(svgs(static)) == len(specs)
    # Two pictures of one page with the same id would share what it names.
    assert not [element for svg in svgs(page) for element in svg.iter() if "id" in element.attrib]


def test_equal_runs_give_equal_bytes(report: Report, page: str, static: str, tmp_path: Path) -> None:
    again = judged(report.run.path)
    assert render_page(again) == page
    assert render_page(again, static=True) == static


def test_a_closing_tag_in_a_script_closes_nothing() -> None:
    assert in_script("a='</script>';b='<!--'") == "a='<\\/script>';b='<\\!--'"


def test_pages_are_for_their_owner_alone_and_say_where_they_cannot_be_written(report: Report, tmp_path: Path) -> None:
    write_page(report, tmp_path / "report.html", static=True)
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o600
    assert (tmp_path / "report.html").read_text(encoding="utf-8").endswith("</html>\n")
    with pytest.raises(UsageError, match=r"report\.html: cannot be written"):
        write_page(report, tmp_path / "absent" / "report.html", static=True)


def test_eight_arms_of_ten_classes_in_ten_blocks_stay_below_two_megabytes(tmp_path: Path) -> None:
    classes = tuple(f"class_{place}_of_a_rather_long_name" for place in range(10))
    run = Synthetic(
        arms={
            f"v{place}_with_flags": Effect(
                ttft=-0.01 * place,
                tpot={name: 0.1 if at % 2 else -0.1 for at, name in enumerate(classes)},
                acceptance={name: 1 + 0.1 * at for at, name in enumerate(classes)},
            )
            for place in range(8)
        },
        baseline=Effect(acceptance={name: 1 + 0.1 * at for at, name in enumerate(classes)}),
        classes=classes,
        ttft_ms={name: 100.0 + 50 * at for at, name in enumerate(classes)},
        sweep=tuple(range(1, 9)),
        per_class=True,
        blocks=10,
        requests=100,
    )
    pages = [render_page(judged(run.write(tmp_path / "run")), static=static) for static in (False, True)]
    assert max(len(text.encode("utf-8")) for text in pages) < MOST_BYTES
    assert "6 classes that change most" in pages[1]
    assert len(PageReader(pages[1]).tables["sweep-numbers"]) == 1 + 8 * 11 * 2


# --- The numbers.


def test_the_verdicts_are_those_of_verdict_json(report: Report, static: str) -> None:
    rows = PageReader(static).tables["verdicts"][1:]
    arms = verdict_document(report)["arms"]
    assert [arm["verdict"] for arm in arms] == ["reject", "reject", "workload-dependent"]
    for first, second, arm in zip(rows[::2], rows[1::2], arms, strict=True):
        assert first[0] == arm["arm"]
        assert first[1] == f"{SIGNS[arm['verdict']]} {arm['verdict']}"
        for cell, measure in zip(first[2:4], arm["measures"], strict=True):
            assert cell.startswith(measure["measure"].upper())
            assert measure["zone"] in cell
        assert first[-1] == f"R {arm['blocks']}"
        for said in (arm["action"], *arm["reasons"]):
            assert said in second[0].replace("\N{NO-BREAK SPACE}", " ")
    changes = re.findall(r'<td role="cell" class="change">.*?<data value="([^"]*)">', static)
    assert [float(change) for change in changes] == [measure["change"] for arm in arms for measure in arm["measures"]]


def test_the_table_of_effects_is_verdict_json(report: Report, static: str) -> None:
    document = verdict_document(report)
    wanted: dict[tuple[str, str, str], list[float | None]] = {}
    for arm in document["arms"]:
        for measure in arm["measures"]:
            title = measure["measure"].upper()
            for item in ({"class": "the mix", **measure} if "class" not in measure else measure, *measure["classes"]):
                key = (arm["arm"], title, item.get("class") or "the mix")
                wanted[key] = [item["change"], item["low"], item["high"]]
    rows = PageReader(static).tables["effects"][1:]
    shown = {(row[0], row[1], row[2]): [value(cell) for cell in row[3:6]] for row in rows if row[0] != "A/A"}
    assert shown == wanted
    aa = {row[1].lower(): [value(cell) for cell in row[4:6]] for row in rows if row[0] == "A/A"}
    assert aa == {item["measure"]: [item["low"], item["high"]] for item in document["aa"]["measures"]}


def test_block_differences_average_to_the_verdict(report: Report, static: str) -> None:
    means = {
        (row[0], row[1]): sum(math.log1p(value(cell) or 0.0) for cell in row[2:]) / len(row[2:])
        for row in PageReader(static).tables["block-numbers"][1:]
    }
    for arm in report.arms:
        for finding in arm.measures:
            assert finding.estimate is not None
            assert means[arm.arm, finding.title] == pytest.approx(finding.estimate.mean, abs=1e-12)
    assert ("v0.aa", "TTFT") in means


def test_sweep_guards_and_throughput_are_verdict_json(report: Report, static: str) -> None:
    tables, arms = PageReader(static).tables, verdict_document(report)["arms"]
    titles = {"ttft": "TTFT", "decode_rate": "decode rate"}
    swept = {
        (row[0], row[1], row[2], c): value(cell)
        for row in tables["sweep-numbers"][1:]
        for c, cell in enumerate(row[3:], start=1)
    }
    assert swept == {
        (arm["arm"], item["class"] or "the mix", titles[item["measure"]], item["c"]): item["change"]
        for arm in arms
        for item in arm["sweep"]
    }
    for place, arm in enumerate(arms, start=1):
        guards = {row[0]: [row[1], *(value(cell) for cell in row[3:7])] for row in tables[f"guards-{place}"][1:]}
        assert guards == {
            item["metric"]: [item["status"], item["value"], item["low"], item["high"], item["limit"]]
            for item in arm["guards"]
        }
        rates = [[value(cell) for cell in row[3:]] for row in tables[f"throughput-{place}"][1:]]
        assert rates == [
            [item[key] for key in ("baseline_tokens_per_s", "tokens_per_s", "change", "low", "high")]
            for item in arm["throughput"]
        ]


def test_the_boots_and_the_load_are_those_of_the_run(report: Report, static: str) -> None:
    tables = PageReader(static).tables
    rows = tables["boots-numbers"][1:]
    assert len(rows) == len(report.run.boots)
    assert {tuple(row[:3]) for row in rows} == {
        (f"={boot.facts.block}", f"={boot.facts.slot}", boot.facts.arm) for boot in report.run.boots
    }
    assert {value(row[4]) for row in rows} == {60e9}
    assert [row[-2] for row in rows if row[2] == "v2"] == ["1 new fallback"] * 5
    assert [[value(cell) for cell in row[1:3]] for row in tables["load-numbers"][1:4]] == [
        [600, 0.6],
        [300, 0.3],
        [100, 0.1],
    ]
    assert [row[-1] for row in tables["load-numbers"][1:]] == ["decides"] * 3 + ["sweep"] * 4 + ["advisory"]


def test_what_the_boot_log_and_the_rule_say_is_there(report: Report, static: str) -> None:
    text = PageReader(static).text
    assert f"new fallback line in the boot log: {FALLBACK}" in text
    assert report.experiment.path.read_text(encoding="utf-8") in text
    for known in (report.experiment.bytes_sha256, report.experiment.semantic_sha256):
        assert known in text
    assert "The rule was fixed 12 h 00 min before the first boot." in text
    assert "fastsafetensors: runs out of memory on this platform while loading" in text
    assert "No number here is about hardware." in text


# --- What is said where little is known.


def sections(page: str) -> Iterator[str]:
    yield from re.findall(r"<section .*?</section>", page, re.DOTALL)


def test_every_part_says_how_to_read_it_and_has_its_numbers_or_why_not(static: str) -> None:
    for section in sections(static):
        assert '<p class="how">' in section
        for figure in re.findall(r"<figure.*?</figure>", section, re.DOTALL):
            assert "<svg" in figure
            assert "The numbers" in section
    alike = [svg.get("aria-label") or "" for svg in svgs(static)]
    assert all(label.endswith(".") and len(label) > 20 for label in alike)
    assert len(set(alike)) == len(alike)


def discard_first(facts: BootFacts) -> BootFacts:
    if (facts.block, facts.arm) != (2, "v1"):
        return facts
    return msgspec.structs.replace(facts, status=DISCARDED, reason="foreign load of 3.2 cores", diagnosis="spoilt")


@pytest.mark.parametrize(
    ("name", "run", "said"),
    [
        ("one boot", Synthetic(arms={"v1": Effect(ttft=-0.04)}, blocks=1), ["Keep v0; undecided: v1", "no interval"]),
        (
            "as recorded",
            Synthetic(arms={"v1": Effect(ttft=-0.08)}, mode="observed", requests=220, blocks=4),
            ["Adopt v1", "met by the baseline", "This run has no sweep"],
        ),
        (
            "another rule",
            Synthetic(
                arms={"v1": Effect()},
                blocks=3,
                edit_manifest=lambda manifest: manifest["rule"].update(semantic_sha256="0" * 64, bytes_sha256="1" * 64),
            ),
            ["This run is invalid", "rule changed after the first boot", "⊘ invalid"],
        ),
        (
            "an engine that was up",
            Synthetic(arms={"v1": Effect()}, blocks=3, edit_manifest=lambda manifest: manifest.update(cold=False)),
            ["No cold boot", "not seen, the engine was up already"],
        ),
        (
            "a discarded boot",
            Synthetic(arms={"v1": Effect()}, blocks=4, edit_boot=discard_first),
            ["v1, block 2, slot", "discarded: foreign load of 3.2 cores"],
        ),
        ("no drafts", Synthetic(arms={"v1": Effect()}, blocks=3), ["No engine of this run told how many drafted"]),
    ],
)
def test_strange_runs_have_their_page(name: str, run: Synthetic, said: list[str], tmp_path: Path) -> None:
    page = render_page(judged(run.write(tmp_path / "run")), static=True)
    text = PageReader(page).text.replace("\N{NO-BREAK SPACE}", " ")
    for part in said:
        assert part in text, name
    for section in sections(page):
        assert (
            "<figure" in section
            or '<p class="why">' in section
            or re.match(r'<section id="(verdicts|arms|rule)"', section)
        )


# --- What is foreign, and what is not for others.


def test_foreign_text_stays_text(tmp_path: Path) -> None:
    hostile = f"chat{HOSTILE}"
    run = Synthetic(
        arms={
            "v1": Effect(
                findings=(LogFinding(id="x", severity="fallback", signature=HOSTILE),), acceptance={hostile: 1.0}
            )
        },
        classes=(hostile, "a", "b\u202egnp\x07", "c"),
        ttft_ms={hostile: 100.0, "a": 150.0, "b\u202egnp\x07": 120.0, "c": 90.0},
        sweep=(1, 2),
        blocks=3,
        rule=f"\n[[skipped]]\narm = 'v9'\nreason = '''{HOSTILE}'''\n",
        edit_boot=lambda facts: msgspec.structs.replace(facts, engine_version=HOSTILE, model=HOSTILE),
    ).write(tmp_path / "run")
    found = judged(run)
    found = replace(found, warnings=(HOSTILE,), invalid=(HOSTILE,))
    for static in (True, False):
        page = render_page(found, static=static)
        reader = PageReader(page)
        tags = [tag for tag, _ in reader.tags]
        assert "img" not in tags
        assert tags.count("script") == (0 if static else 3)
        assert HOSTILE.replace("`", "") in reader.text.replace("`", "")
        assert "49" not in [part.strip() for part in reader.text.split("{{")]
        assert "\u202e" not in page
        assert "\x07" not in page
        assert hostile in [row[2] for row in reader.tables["effects"]]
        assert len(svgs(page)) > 5
        page.encode("utf-8")
    assert isinstance(json.loads(unpacked(page, "specs")), list)


def test_a_relative_page_tells_no_absolute_figure(report: Report, relative: str) -> None:
    text = PageReader(relative).text
    units = r"(?<![\w.])\d[\d.,]*\s?(?:ns|µs|ms|s|min|h|tokens/s)\b"
    assert not re.findall(units, text), re.findall(units, text)
    for told in (str(report.run.path), report.run.path.parent.name, "experiment.toml: ", "tokens/s, arm", "--v1"):
        assert told not in text
    tables = PageReader(relative).tables
    (base,) = [row for row in tables["ttft-numbers"] if row[0] == "v0"]
    assert value(base[5]) == pytest.approx(1.0, abs=0.01)
    assert "arrivals" not in tables["load-numbers"][0]
    assert all((value(row[6]) or 0) <= 1 for row in tables["boots-numbers"][1:])
    assert [row[3:6] for row in tables["effects"]] == [
        row[3:6] for row in PageReader(render_page(report, static=True)).tables["effects"]
    ]


def test_a_relative_page_scrubs_what_people_wrote(report: Report) -> None:
    file = report.experiment.file
    asked = msgspec.structs.replace(file.rule, question="Is TTFT below 300 ms on /srv/models/big?")
    experiment = replace(report.experiment, file=msgspec.structs.replace(file, rule=asked))
    told = replace(report, experiment=experiment, warnings=("the fan stood still for 45 s on spark-1234.lan:8000",))
    text = PageReader(render_page(told, static=True, relative=True)).text
    assert "Is TTFT below … ms on" in text
    assert not re.search("300 ms|/srv/models|45 s|spark-1234", text)


def test_every_colour_has_one_for_a_dark_screen(static: str) -> None:
    light = {one for one, _ in COLOURS.values()}
    used = {
        element.attrib[name]
        for svg in svgs(static)
        for element in svg.iter()
        for name in ("fill", "stroke")
        if name in element.attrib
    }
    assert used - {"none", "transparent"} <= light
    for one, dark in COLOURS.values():
        assert f'svg [fill="{one}"] {{ fill: {dark}; }}' in static


def test_specifications_are_vega_lite(page: str) -> None:
    from importlib.util import find_spec

    altair = find_spec("altair")  # it carries the schema; the charts themselves are plain data
    if altair is None or altair.submodule_search_locations is None:
        pytest.skip("altair is not installed")
    from jsonschema import Draft7Validator  # type: ignore[import-untyped]  # ships no types, comes with altair

    (schema,) = Path(altair.submodule_search_locations[0]).glob("vegalite/v6/schema/vega-lite-schema.json")
    validator = Draft7Validator(json.loads(schema.read_bytes()))
    specs: list[dict[str, Any]] = json.loads(unpacked(page, "specs"))
    kinds = {json.dumps(sorted(spec)) + str(len(spec.get("layer", ()))): spec for spec in specs}
    for spec in kinds.values():
        assert not [error.message[:200] for error in validator.iter_errors(spec)]
