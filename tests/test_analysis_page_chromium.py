"""The HTML report in a real browser: it draws, asks for nothing, and can be read and used on any screen."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Page, browser, find_chromium
from page_runs import judged, ladder

from analysis.page.html import write_page

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed"),
]
PHONE, WIDE = 360, 1600
SHOWS = "document.querySelectorAll('figure svg').length"
LIVE = "document.querySelectorAll('[data-live]').length"
FOCUS = """(() => {
  const one = document.activeElement;
  const outlined = one.matches(":focus-visible") && getComputedStyle(one).outlineStyle !== "none";
  return `${one.tagName} ${one.hash || one.textContent.trim()}${outlined ? "" : " unseen"}`;
})()"""
SCROLL = """(async () => {
  for (let y = 0; y < document.documentElement.scrollHeight; y += 400) {
    scrollTo(0, y);
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  }
  scrollTo(0, 0);
})()"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    report = judged(ladder(sweep=(1, 2, 3)).write(folder / "run"))
    paths = {name: folder / f"{name}.html" for name in ("live", "static", "relative")}
    for name, path in paths.items():
        write_page(report, path, static=name == "static", relative=name == "relative")
    return paths


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(browser(tmp_path_factory.mktemp("browser")))


@pytest.fixture
def quiet(tab: Page) -> Iterator[Page]:
    """The tab, and the promise that a page neither complained nor asked for anything but itself."""
    tab.errors.clear()
    tab.requests.clear()
    yield tab
    tab.run("1")  # what the browser still had to tell
    assert tab.errors == []
    assert all(address.startswith("file:///") for address in tab.requests)
    assert len(set(tab.requests)) == 1


@pytest.mark.parametrize("width", [PHONE, WIDE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_is_drawn_live_and_no_screen_is_too_narrow(
    quiet: Page, pages: dict[str, Path], width: int, scheme: str
) -> None:
    quiet.open(pages["live"], width, prefers_color_scheme=scheme)
    asked = quiet.run("document.querySelectorAll('[data-spec]').length")
    assert asked > 10
    quiet.run(SCROLL)
    quiet.wait_for(f"{LIVE} === {asked}")
    assert quiet.run(SHOWS) == asked
    assert quiet.run("document.documentElement.scrollWidth") <= width
    quiet.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert quiet.run("document.documentElement.scrollWidth") <= width
    ground = quiet.run("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(244, 246, 248)", "dark": "rgb(15, 20, 24)"}[scheme]


@pytest.mark.parametrize("name", ["static", "relative"])
@pytest.mark.parametrize("width", [PHONE, WIDE])
def test_the_other_forms_show_the_same_pictures(quiet: Page, pages: dict[str, Path], name: str, width: int) -> None:
    quiet.open(pages[name], width)
    assert quiet.run(SHOWS) > 10
    assert quiet.run("document.documentElement.scrollWidth") <= width
    assert quiet.run(
        "[...document.querySelectorAll('figure svg')].every((one) => one.getBoundingClientRect().width > 250)"
    )


def test_a_mark_tells_its_numbers_under_the_mouse(quiet: Page, pages: dict[str, Path]) -> None:
    quiet.open(pages["live"], WIDE)
    quiet.run("document.getElementById('effects').scrollIntoView()")
    quiet.wait_for(f"{LIVE} > 0")
    mark: dict[str, Any] = quiet.run("""(async () => {
      const marks = [...document.querySelectorAll('#effects [data-live] svg .mark-symbol.role-mark path')];
      marks.at(-1).scrollIntoView({block: "center"});
      // A page that scrolls hides the tooltip, in the next frame.
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      const box = marks.at(-1).getBoundingClientRect();
      return {x: box.x + box.width / 2, y: box.y + box.height / 2};
    })()""")
    quiet.point_at(mark["x"], mark["y"])
    quiet.wait_for("!document.getElementById('tip').hidden")
    said = quiet.run("document.getElementById('tip').textContent")
    assert "%" in said
    quiet.press("Escape")
    assert quiet.run("document.getElementById('tip').hidden")


def test_the_keyboard_reaches_every_part(quiet: Page, pages: dict[str, Path]) -> None:
    quiet.open(pages["static"], WIDE)
    seen: list[str] = []
    for _ in range(400):
        quiet.press("Tab")
        found = quiet.run(FOCUS)
        if seen and found.startswith("BODY"):
            break
        seen.append(found)
    assert seen[0] == "A #verdicts"
    assert not [one for one in seen if one.endswith(" unseen")]
    summaries = quiet.run("[...document.querySelectorAll('summary')].map((one) => 'SUMMARY ' + one.textContent.trim())")
    assert [one for one in seen if one.startswith("SUMMARY")] == summaries
    quiet.open(pages["static"], WIDE)
    quiet.run("document.querySelector('#arms summary').focus()")
    quiet.press("Enter")
    assert quiet.run("document.querySelector('#arms details').open")


def test_without_scripts_the_page_is_whole(quiet: Page, pages: dict[str, Path]) -> None:
    quiet.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        quiet.open(pages["live"], WIDE)
        quiet.run("scrollTo(0, 4000)")
        assert quiet.run(SHOWS) == quiet.run("document.querySelectorAll('[data-spec]').length") > 10
        assert quiet.run(LIVE) == 0
    finally:
        quiet.call("Emulation.setScriptExecutionDisabled", value=False)


def test_the_colours_of_a_dark_screen_reach_the_live_charts(quiet: Page, pages: dict[str, Path]) -> None:
    quiet.open(pages["live"], WIDE, prefers_color_scheme="dark")
    quiet.run("document.getElementById('effects').scrollIntoView()")
    quiet.wait_for(f"{LIVE} > 0")
    inks = quiet.run(
        "[...new Set([...document.querySelectorAll('[data-live] svg text')].map((one) => getComputedStyle(one).fill))]"
    )
    assert inks
    assert all(min(map(int, ink[4:-1].split(","))) > 100 for ink in inks)
