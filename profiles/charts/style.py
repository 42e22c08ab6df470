"""Colours and fonts of all charts and pages, and a specification as SVG text."""

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jinja2 import Environment

type Spec = dict[str, Any]

# Role -> (on a light ground, on a dark one). All are different, so that a page can turn each of them by its value.
# Blue, orange and grey stay apart for every kind of colour vision, and by lightness in a print without colour. The
# steps of the ramp are even in lightness; on a dark ground it runs the other way, so that much always stands out.
COLOURS: Final[dict[str, tuple[str, str]]] = {
    "ink": ("#1b2530", "#e6eaef"),
    "muted": ("#5b6775", "#9ba7b4"),
    "line": ("#d5dae0", "#3a444f"),
    "wall": ("#a9b2bd", "#75818e"),
    "busy": ("#e69f01", "#e8a31a"),
    "arrivals": ("#0b63a5", "#5aaef0"),
    "shade": ("#e6f0f9", "#1c3247"),
    "area": ("#cbdff1", "#284d6f"),
    "gap": ("#eceef1", "#2a323a"),
    "hatch": ("#c3cad2", "#4a5561"),
    "ramp1": ("#e3eef8", "#18304a"),
    "ramp2": ("#bfd9ef", "#1d4670"),
    "ramp3": ("#92bfe3", "#225f98"),
    "ramp4": ("#5f9fd3", "#3b7fbd"),
    "ramp5": ("#367dbc", "#67a2d6"),
    "ramp6": ("#1d5a97", "#9bc4ea"),
    "ramp7": ("#0d3a6b", "#d0e5f8"),
    "on_pale": ("#1b2531", "#eef3f9"),  # text on the first steps of the ramp
    "on_deep": ("#fefefe", "#0b1520"),  # text on the others
    "ground": ("#ffffff", "#161c22"),
}
RAMP: Final = tuple(f"ramp{step}" for step in range(1, 8))
_PALE_STEPS: Final = 4

WIDTH: Final = 760
FONT: Final = "Helvetica, Arial, 'Liberation Sans', sans-serif"
_SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
_VEGA_LITE: Final = "6.1"


def colour(role: str) -> str:
    """The colour of a role on a light ground, as it stands in the SVG."""
    return COLOURS[role][0]


def on_ramp(step: int) -> str:
    """The colour of text on a step of the ramp, from 0."""
    return colour("on_pale" if step < _PALE_STEPS else "on_deep")


def plain(text: str) -> str:
    """Foreign text for a page: what cannot be shown, or would turn the line around, becomes a question mark."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def thousands(count: int) -> str:
    """`20 766`, with a space that does not break."""
    return f"{count:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def named_rows(names: Sequence[str], beside: int, **axis: Any) -> Spec:
    """A y channel of rows 0, 1, … with these names beside them, in `beside` pixels. `axis` adds to its axis."""
    return {
        "field": "row",
        "type": "nominal",
        "scale": {"domain": [*range(len(names))], "padding": 0},
        "axis": {
            "domain": False,
            "ticks": False,
            "labelPadding": 8,
            "title": None,
            "labelExpr": f"{json.dumps([*names])}[datum.value]",
            "minExtent": beside,
            **axis,
        },
    }


def page_templates(folder: Path) -> "Environment":
    """The templates of an HTML page: everything is escaped, and a name that is missing is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def complete(spec: Spec, ground: str | None = None) -> Spec:
    """A specification with the style of all charts. Without a ground it lies on that of the page."""
    return {
        "$schema": _SCHEMA,
        "background": ground or "transparent",
        "padding": 18 if ground else 4,
        "config": _CONFIG,
        **spec,
    }


def render(spec: Spec, alt: str) -> str:
    """One `<svg>` element of a complete specification; `alt` is what it says to those who do not see it.

    Equal specifications give equal text. It loads nothing and has no ids, so that several lie in one page.
    """
    import vl_convert

    text: str = vl_convert.vegalite_to_svg(spec, vl_version=_VEGA_LITE, allowed_base_urls=[])
    head, body = text.split(">", 1)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    if size is None:
        raise ValueError(f"vl-convert wrote an svg element without a viewBox: {head}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[1]} {size[2]}" width="{size[1]}"'
        f' height="{size[2]}" role="img" aria-label="{escape(alt)}">{body}'
    )


_CONFIG: Final[Spec] = {
    "aria": False,  # one sentence for the whole picture says more than a label at each mark
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": colour("ink"),
        "titleColor": colour("muted"),
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "gridColor": colour("line"),
        "domainColor": colour("line"),
        "tickColor": colour("line"),
        "labelLimit": 0,
    },
    "text": {"fontSize": 12, "color": colour("ink")},
    "title": {
        "color": colour("ink"),
        "subtitleColor": colour("muted"),
        "fontSize": 15,
        "subtitleFontSize": 12,
        "lineHeight": 20,
        "anchor": "start",
        "offset": 14,
        "subtitlePadding": 8,
    },
    "legend": {
        "labelColor": colour("ink"),
        "titleColor": colour("muted"),
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": 0,
        "symbolType": "square",
        "symbolSize": 120,
        "symbolStrokeWidth": 0,
        "symbolOpacity": 1,
        "columnPadding": 16,
    },
}
