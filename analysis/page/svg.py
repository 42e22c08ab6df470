"""A panel as an SVG element inside a page: without what the page says already, in half the bytes.

The whole picture is one image with one sentence, so roles and classes inside it say nothing to anybody; the font is
that of the page; and a tenth of a pixel is as fine as anybody sees.
"""

import re
from typing import Final

from analysis.page.charts.panel import Panel
from profiles.charts.style import complete, plain, render

_TAG: Final = re.compile(r"<[a-z][^>]*>")
# Frames without a fill or a stroke, and empty foregrounds, draw nothing.
_EMPTY: Final = re.compile(r'<path class="(?:background|foreground)"(?![^>]* (?:fill|stroke)=)[^>]*/>')
_SAID: Final = re.compile(
    r' (?:font-family="[^"]*"|class="[^"]*"|role="[^"]*"|aria-[a-z]+="[^"]*"|pointer-events="none"|opacity="1"'
    r'|text-anchor="start"|stroke-width="1"|font-size="12px")'
)
_FINE: Final = re.compile(r"(\d+\.\d)\d+")
_NAMESPACE: Final = ' xmlns="http://www.w3.org/2000/svg"'


def picture(panel: Panel) -> str:
    """The `<svg>` of a panel. In HTML it needs no namespace, and a page without one holds no address at all."""
    return lean(render(complete(panel.spec), plain(panel.alt)).replace(_NAMESPACE, "", 1))


def lean(svg: str) -> str:
    """The same picture in fewer bytes. Texts and the first tag stay as they are."""
    head, body = svg.split(">", 1)
    return f"{head}>{_TAG.sub(_lean_tag, _EMPTY.sub('', body))}"


def _lean_tag(tag: re.Match[str]) -> str:
    return _FINE.sub(r"\1", _SAID.sub("", tag[0]))
