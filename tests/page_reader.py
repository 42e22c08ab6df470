"""An HTML page as a test reads it: its tags, its tables by id, and its visible text."""

from html.parser import HTMLParser


class PageReader(HTMLParser):
    """`tables`: id → rows of cells, each its exact value after `=`, or else its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.text = ""
        self._table: list[list[str]] = []
        self._cell = self._hidden = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append((tag, known))
        if tag == "table":
            self._table = self.tables.setdefault(known.get("id") or known.get("class") or "", [])
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")
            self._cell = True
        elif tag == "data" and self._cell and not self._table[-1][-1]:
            self._table[-1][-1] = f"={known['value']}"
        self._hidden = self._hidden or tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += data
        if self._cell and not self._table[-1][-1].startswith("="):
            self._table[-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")
        self._hidden = self._hidden and tag not in ("script", "style")
        if not self._hidden and tag in ("td", "th", "p", "li", "dd", "dt", "h1", "h2", "h3", "text", "div"):
            self.text += "\n"


def value(cell: str) -> float | None:
    """The exact number of a cell; None for a dash."""
    return None if cell in ("", "–") else float(cell.removeprefix("="))
