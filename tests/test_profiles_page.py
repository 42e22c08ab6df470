"""The HTML page of the concurrency report: it loads nothing, escapes what is foreign, and shows the view's numbers."""

import json
import re
import stat
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.caveats import caveats
from profiles.charts.classes import ALL, class_rows, classes, level_groups
from profiles.charts.course import course
from profiles.charts.shares import shares, small_percent
from profiles.charts.style import COLOURS, colour, complete, plain
from profiles.charts.weekly import short_number, weekly
from profiles.errors import UsageError
from profiles.load_report import headline
from profiles.page import render_page, render_picture, write_page, write_picture
from profiles.sweep import Stays
from profiles.units import HOUR_NS, MINUTE_NS, SECOND_NS
from profiles.view import DECIDING, SYNTHETIC, LoadView, read_view

MONDAY_NS = 1_794_787_200 * SECOND_NS  # 2026-11-16 00:00 UTC
CHARTS = (shares, course, weekly, classes)
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


def view_of(
    requests: Sequence[tuple[float, float, str]],
    windows: Sequence[tuple[float, float]],
    zero_wall_ns: int | None = MONDAY_NS,
    zone: str = "UTC",
    **known: Any,
) -> LoadView:
    """A view of (start, end, class) and windows, in hours."""
    names = sorted({name for _, _, name in requests})
    rows = sorted(requests, key=lambda row: row[0])
    stays = Stays(
        np.array([round(start * HOUR_NS) for start, _, _ in rows], dtype=np.int64),
        np.array([round(end * HOUR_NS) for _, end, _ in rows], dtype=np.int64),
        np.array([names.index(name) for _, _, name in rows], dtype=np.int32),
        tuple(names),
        [(round(opened * HOUR_NS), round(close * HOUR_NS)) for opened, close in windows],
        zero_wall_ns,
    )
    return read_view(stays, zone, **known)


def week() -> LoadView:
    """Three days with a gap of ten hours: at most two in flight, and an experiment that also looks at c = 8."""
    requests = [(hour + 0.0, hour + 0.5, "chat.hu") for hour in range(1, 60, 3)]
    requests += [(hour + 0.25, hour + 1.0, "rag_32k.en") for hour in range(1, 60, 6)]
    return view_of(requests, [(0, 30), (40, 62)], marked={1: DECIDING, 8: SYNTHETIC})


def crowded() -> LoadView:
    """60 levels and 40 classes."""
    requests = [(1 + at / 1000, 3.0, f"class_{at % 40:02}_of_a_rather_long_name.en") for at in range(60)]
    return view_of(requests, [(0, 4)])


def quiet() -> LoadView:
    return view_of([], [(0, 5)])


def nameless_time() -> LoadView:
    return view_of([(1, 2, "chat"), (1.5, 3, "chat")], [(0, 50)], None, synthetic=True, estimate="20 ms a token")


VIEWS = {"week": week, "crowded": crowded, "quiet": quiet, "nameless_time": nameless_time}


@pytest.fixture(scope="module")
def page() -> str:
    return render_page(week(), title="captures/monday", inputs=[("captures/monday", "ab" * 32)])


class Reader(HTMLParser):
    """All tags with their attributes, the text, and the cells of each table: their value, or else their text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._table = ""
        self._in_cell = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self._table = dict(attrs)["id"] or ""
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append("")
            self._in_cell = True
        elif tag == "data":
            self.tables[self._table][-1][-1] = f"={dict(attrs)['value']}"

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            cell = self.tables[self._table][-1][-1]
            self.tables[self._table][-1][-1] = cell if cell.startswith("=") else cell + data

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")


def values(cell: str) -> float | None:
    return None if cell == "–" else float(cell.removeprefix("="))


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


# --- The page as a file.


def test_the_page_loads_nothing(page: str) -> None:
    assert not re.search(r"https?:|//|@import|url\(|javascript:", page.replace("</", "<"))
    reader = Reader(page)
    loading = {"script", "link", "img", "image", "iframe", "object", "embed", "use", "audio", "video", "base"}
    assert not {tag for tag, _ in reader.tags} & loading
    for _, attributes in reader.tags:
        assert not {name for name in attributes if name in ("src", "href", "xlink:href") or name.startswith("on")}
    policies = [attributes for tag, attributes in reader.tags if tag == "meta" and "http-equiv" in attributes]
    assert [each["content"] for each in policies] == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_equal_views_give_equal_bytes(page: str) -> None:
    assert render_page(week(), title="captures/monday", inputs=[("captures/monday", "ab" * 32)]) == page


def test_every_chart_is_one_picture_with_a_sentence(page: str) -> None:
    drawn = svgs(page)
    assert len(drawn) == 4
    for svg in drawn:
        assert svg.get("role") == "img"
        assert (svg.get("aria-label") or "").endswith(("%", "."))
        assert not [element for element in svg.iter() if "id" in element.attrib]
    assert headline(week()) in (drawn[0].get("aria-label") or "")


def test_every_colour_has_one_for_a_dark_screen(page: str) -> None:
    light = {one for one, _ in COLOURS.values()}
    assert len(light) == len(COLOURS)
    used = {
        element.attrib[name]
        for svg in svgs(page)
        for element in svg.iter()
        for name in ("fill", "stroke")
        if name in element.attrib
    }
    assert used - {"none", "transparent"} <= light
    for one, dark in COLOURS.values():
        assert f'svg [fill="{one}"] {{ fill: {dark}; }}' in page


def test_foreign_text_stays_text() -> None:
    view = view_of([(1, 2, HOSTILE), (1.5, 2, "bell\x07 and \u202egnipyt")], [(0, 4)])
    page = render_page(replace(view, zone="UTC"), title=HOSTILE, inputs=[(f"{HOSTILE}\udcff", "00" * 32)])
    tags = {tag for tag, _ in Reader(page).tags}
    assert not tags & {"script", "img"}
    assert "\x07" not in page
    assert "\u202e" not in page
    assert len(svgs(page)) == 4
    cells = [row[0] for row in Reader(page).tables["classes"]]
    assert HOSTILE in cells
    page.encode("utf-8")


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    write_page(quiet(), tmp_path / "page.html", title="quiet")
    write_picture(quiet(), tmp_path / "chart.svg")
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("page.html", "chart.svg")] == [0o600, 0o600]
    assert (tmp_path / "page.html").read_text(encoding="utf-8").endswith("</html>\n")


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"page\.html: cannot be written"):
        write_page(quiet(), tmp_path / "absent" / "page.html", title="quiet")


def test_the_picture_stands_alone_and_says_what_to_do() -> None:
    svg = ElementTree.fromstring(render_picture(week()))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    text = " ".join(part for element in svg.iter() if (part := (element.text or "").strip()))
    assert headline(week()) in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "◆" not in text
    assert "decides" in text
    assert "synthetic" in text
    assert svg[0].get("fill") == colour("ground")


# --- The numbers.


def test_the_level_table_is_the_view(page: str) -> None:
    total = week().total
    rows = Reader(page).tables["levels"][1:]
    assert [row[0] for row in rows] == ["0", "1", "2", "8"]
    for row in rows:
        c = int(row[0])
        assert [values(cell) for cell in row[1:7]] == [
            total.time_ns_at.get(c, 0),
            total.share_wall.get(c, 0.0),
            total.share_busy.get(c, 0.0) if c else None,
            total.arrivals_at.get(c, 0) if c else None,
            total.share_arrivals.get(c, 0.0) if c else None,
            total.reach(c) if c else None,
        ]
    assert [row[7] for row in rows] == ["", "deciding", "", "synthetic"]
    assert sum(int(row[1].removeprefix("=")) for row in rows) == 52 * HOUR_NS


def test_the_other_tables_are_the_view(page: str) -> None:
    view, tables = week(), Reader(page).tables
    reach = [(int(row[0]), *map(values, row[1:4])) for row in tables["reach"][1:]]
    assert reach == [(row.c, row.share, row.low, row.high) for row in view.reach]
    joint = {row[0]: [values(cell) for cell in row[1:]] for row in tables["classes"][1:]}
    assert joint == {
        name: [held.requests, held.arrivals_at.get(1, 0), held.arrivals_at.get(2, 0)]
        for name, held in view.classes.items()
    }
    days = [[row[0], *map(values, row[1:])] for row in tables["days"][1:]]
    assert [day[0] for day in days] == ["2026-11-16 Mon", "2026-11-17 Tue", "2026-11-18 Wed"]
    assert [day[1:] for day in days] == [
        [day.measured.observed_ns, day.measured.requests, day.measured.mean, day.measured.max] for day in view.days
    ]


def test_the_page_names_its_source(page: str) -> None:
    assert "captures/monday: sha256 " + "ab" * 32 in page
    assert "firsttoken/concurrency-page 1, firsttoken " in page
    assert "times in UTC; 2 windows" in page


# --- What is drawn.


def marks_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """All data of a specification."""
    inside = [*spec.get("layer", ()), *spec.get("hconcat", ())]
    return [*spec.get("data", {}).get("values", ()), *(mark for each in inside for mark in marks_of(each))]


def test_the_chart_of_shares_has_a_row_for_what_nobody_reached() -> None:
    drawn = marks_of(shares(week()))
    assert {mark["row"] for mark in drawn} == {"idle", *(f"c = {c}" for c in range(1, 9))}
    assert {mark["row"]: mark["label"] for mark in drawn if "decides" in mark} == {
        "c = 1": "decides",
        "c = 8": "synthetic",
    }
    labels = {(mark["row"], mark["label"]) for mark in drawn if "label" in mark}
    assert ("c = 8", "0 %") in labels
    assert ("c = 1", "measure at c = 1–2") in labels


def test_a_gap_is_ground_and_no_line_enters_it() -> None:
    spec = course(week())
    assert spec is not None
    ground, *lines, _ = spec["layer"]
    assert ground["data"]["values"] == [{"at": 30 / 62, "to": 40 / 62}]
    for line in lines:
        assert line["encoding"]["y"]["stack"] is None  # stacked areas are filled up where others have points
        points = line["data"]["values"]
        assert not [point for point in points if 30 / 62 < point["at"] < 40 / 62]
        assert {point["run"] for point in points if point["at"] <= 30 / 62} == {0}
        assert {point["run"] for point in points if point["at"] >= 40 / 62} == {1}
        assert points[0]["at"] == 0.0
        assert points[-1]["at"] == 1.0


def test_an_hour_that_was_not_observed_is_hatched_and_has_no_number() -> None:
    spec = weekly(week())
    assert spec is not None
    unseen, seen, _ = ({(mark["day"], mark["hour"]) for mark in layer["data"]["values"]} for layer in spec["layer"])
    assert len(unseen) + len(seen) == 7 * 24
    assert not unseen & seen
    assert {("Tue", f"{hour:02}") for hour in range(6, 16)} <= unseen
    assert ("Mon", "00") in seen
    labels = {(mark["day"], mark["hour"]): mark["label"] for mark in spec["layer"][2]["data"]["values"]}
    assert labels["Mon", "00"] == "0"  # observed, and nothing in flight
    assert labels["Mon", "01"] == "1.2"  # half an hour of chat, three quarters of RAG


def test_the_bars_of_a_class_are_its_arrivals() -> None:
    spec = classes(week())
    assert spec is not None
    pieces = [mark for mark in marks_of(spec) if "from" in mark]
    rows = [name for name, _ in class_rows(week())]
    assert rows == [ALL, "chat.hu", "rag_32k.en"]
    rag = [(mark["c"], mark["from"], mark["to"]) for mark in pieces[:-1] if mark["row"] == 2]
    assert {c for c, _, _ in rag} == {"2"}  # each comes while a chat is in flight
    for row in range(3):
        assert max(mark["to"] for mark in pieces if mark["row"] == row) == pytest.approx(1.0)


def test_rare_classes_are_one_row() -> None:
    rows = class_rows(crowded())
    assert len(rows) == 13
    assert rows[0][0] == ALL
    assert rows[-1][0] == "29 others"
    assert sum(sum(held.values()) for _, held in rows[1:]) == 60


def test_round_local_times_stand_on_the_axis_when_the_clocks_change() -> None:
    friday_ns = 1_792_706_400 * SECOND_NS  # 2026-10-23 00:00 in Budapest; the clocks change on the 25th
    spec = course(view_of([(1, 2, "chat")], [(0, 97)], friday_ns, "Europe/Budapest"))
    assert spec is not None
    axis = spec["layer"][0]["encoding"]["x"]["axis"]
    labels = json.loads(axis["labelExpr"].split("[indexof")[0])
    hours = [round(value * 97, 6) for value in axis["values"]]
    assert dict(zip(hours, labels, strict=True)) == {
        0: ["00:00", "Fri 23 Oct"],
        12: "12:00",
        24: ["00:00", "Sat 24 Oct"],
        36: "12:00",
        48: ["00:00", "Sun 25 Oct"],
        61: "12:00",
        73: ["00:00", "Mon 26 Oct"],
        85: "12:00",
        97: ["00:00", "Tue 27 Oct"],
    }


@pytest.mark.parametrize("name", ["week", "crowded", "quiet"])
def test_specifications_are_vega_lite_with_few_marks(name: str) -> None:
    altair = find_spec("altair")  # it carries the schema; the charts themselves are plain data
    if altair is None or altair.submodule_search_locations is None:
        pytest.skip("altair is not installed")
    from jsonschema import Draft7Validator  # type: ignore[import-untyped]  # ships no types, comes with altair

    folder = Path(altair.submodule_search_locations[0])
    (schema,) = folder.glob("vegalite/v6/schema/vega-lite-schema.json")
    validator = Draft7Validator(json.loads(schema.read_bytes()))
    for chart in CHARTS:
        spec = chart(VIEWS[name]())
        if spec is not None:
            assert not [error.message for error in validator.iter_errors(complete(spec))]
            assert len(marks_of(spec)) < 1000


# --- Loads that are small, large or strange.


@pytest.mark.parametrize(
    ("name", "drawn", "said"),
    [
        ("quiet", 3, "No request arrived."),
        ("nameless_time", 3, "No hours and weekdays: nobody knows the wall clock"),
        ("crowded", 4, "29 others"),
    ],
)
def test_a_strange_load_still_has_its_page(name: str, drawn: int, said: str) -> None:
    view = VIEWS[name]()
    page = render_page(view, title=name)
    assert len(svgs(page)) == drawn
    assert said in page
    assert [row[0] for row in Reader(page).tables["levels"][1:]] == [
        str(c) for c in sorted({*view.total.time_ns_at, *view.total.arrivals_at})
    ]


def test_what_the_data_cannot_support_is_said() -> None:
    said = "\n".join(caveats(nameless_time()))
    for part in ("nobody's production", "20 ms a token", "Only 2 requests", "nobody knows the wall clock", "one day"):
        assert part in said
    said = "\n".join(caveats(week()))
    assert "1 gap of 10 h 00 min" in said
    assert "does not decide at c = 2" in said
    assert "Not observed at all: Thu, Fri, Sat, Sun." in said
    assert "Never above c = 2: 0 of 3 days and 0 of 52 hours, so at most 63 % of days and 5.6 % of hours" in said
    assert "decides at c = 5, where no request" in "\n".join(caveats(replace(week(), marked={5: DECIDING})))


@given(st.integers(1, 10**6))
def test_groups_of_levels_hold_each_level_once(highest: int) -> None:
    groups = level_groups(highest)
    assert len(groups) <= 7
    assert groups[0].start == 1
    assert groups[-1].stop == highest + 1
    assert all(left.stop == right.start and len(left) for left, right in pairwise(groups))


def test_numbers_and_names_for_people() -> None:
    assert [small_percent(share) for share in (0, 0.0001, 0.0005, 0.625, 1)] == [
        "0 %",
        "<0.1 %",
        "0.1 %",
        "62.5 %",
        "100.0 %",
    ]
    assert [short_number(mean) for mean in (0, 0.001, 0.04, 0.99, 0.999, 9.94, 9.96, 130)] == (
        ["0", "<.01", ".04", ".99", "1.0", "9.9", "10", "130"]
    )
    assert plain("chat.hu\u202e\n") == "chat.hu\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"


def test_narrow_gaps_are_counted_where_they_cannot_be_drawn() -> None:
    minute = MINUTE_NS / HOUR_NS
    page = render_page(view_of([(1, 2, "chat")], [(0, 20), (20 + minute, 40)]), title="one minute")
    assert "1 gap too narrow to be seen." in page
