"""Builds the page of a report: one self-contained HTML file.

Its content security policy lists the hashes of the style sheet and the script in the file, and blocks all others. No
other script can run, even if there is a mistake in the escaping. All text from runs is escaped: `Html` marks text that
is already escaped, and everything else is escaped when it is inserted.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from trainmaster.figures.svg import svg_text
from trainmaster.text import printable

GENERATOR = '<meta name="generator" content="trainmaster report">'
"""The line that identifies a file as a report."""
_EXACT = 2**53
"""JavaScript numbers are floats, which represent all integers up to this value exactly."""


class Html(str):
    """Text that is already valid HTML and must not be escaped again."""


Section = tuple[str, str, Html]
"""The id, the title and the content of a section."""


def text(value: object) -> Html:
    """Escape a value for HTML. A value of type `Html` is returned unchanged."""
    return value if isinstance(value, Html) else Html(svg_text(value))


def join(parts: Iterable[object], separator: str = "") -> Html:
    return Html(separator.join(map(text, parts)))


def element(tag: str, *content: object, **attributes: object) -> Html:
    """Return an HTML element. In attribute names, a trailing underscore is dropped, and other underscores become hyphens.

    >>> element("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    words = [f' {name.rstrip("_").replace("_", "-")}="{text(value)}"' for name, value in attributes.items() if value is not None]
    return Html(f"<{tag}{''.join(words)}>{join(content)}</{tag}>")


def prose(sentence: str, **attributes: object) -> Html:
    """Return a paragraph of trusted text, in which `backticks` mark code.

    >>> prose("see `a < b`")
    '<p>see <code>a &lt; b</code></p>'
    """
    parts = sentence.split("`")
    return element("p", *(element("code", part) if number % 2 else part for number, part in enumerate(parts)), **attributes)


def notes(lines: Iterable[str]) -> Html:
    """Return each line as a paragraph in small print, capitalized and with a period at the end.

    >>> notes(["positive is better"])
    '<p class="note">Positive is better.</p>'
    """
    return join(element("p", f"{line[:1].upper()}{line[1:]}".removesuffix(".") + ".", class_="note") for line in lines if line)


def table(
    heads: Sequence[object],
    rows: Iterable[Sequence[object]],
    numbers: Sequence[int] = (),
    foot: Sequence[object] = (),
    long: Sequence[int] = (),
) -> Html:
    """Return a table. The columns in `numbers` are aligned to the right; text in the columns in `long` wraps."""
    classes = dict.fromkeys(numbers, "num") | dict.fromkeys(long, "long")

    def row(cells: Sequence[object], tag: str) -> Html:
        return element("tr", *(element(tag, cell, class_=classes.get(at)) for at, cell in enumerate(cells)))

    head = element("thead", row(heads, "th"))
    body = element("tbody", *(row(cells, "td") for cells in rows))
    last = element("tfoot", row(foot, "td")) if foot else ""
    return element("div", element("table", head, body, last), class_="scroll")


def section(name: str, title: str, *content: object) -> Section:
    return name, title, element("section", element("h2", title), *content, id=name)


def page(title: str, head: Html, sections: Sequence[Section], columns: Mapping[str, Sequence[Any]] | None, foot: str) -> str:
    """Return the whole HTML page.

    `columns` is the data for the table of all runs, which the script inserts into the section `runs`.
    """
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("report.css", "report.js"))
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'; form-action 'none'"
    navigation = element("nav", *(element("a", name, href=f"#{each}") for each, name, _ in sections), aria_label="Sections")
    data = Html(f'<script type="application/octet-stream" id="data">{encode_columns(columns)}</script>\n') if columns else Html()
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            GENERATOR,
            '<link rel="icon" href="data:,">',
            element("title", title),
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            element("header", head),
            navigation,
            *(content for *_, content in sections),
            element("footer", foot),
            "</main>",
            f"{data}{f'<script>{script}</script>' if columns else ''}",
            "</body>",
            "</html>",
            "",
        ]
    )


def runs_table(num_printed: int = 200) -> Html:
    """Return the placeholder for the table of all runs, which the script fills."""
    return Html(
        '<input id="filter" type="search" placeholder="filter by text in any column" aria-label="Filter">'
        '<span class="note" id="count"></span>'
        '<div id="table" class="scroll" tabindex="0" role="region" aria-label="All runs"></div>'
        f'<p class="note">Click a column to sort by it. On paper, the first {num_printed} rows and eight columns are printed.</p>'
        "<noscript><p>This table needs JavaScript; the rest of the page does not.</p></noscript>"
    )


def encode_columns(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return columns as gzipped JSON in base64. The same columns always give the same text."""
    found = [{"name": printable(name), "values": [plain_cell(value) for value in values]} for name, values in columns.items()]
    data = json.dumps(found, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def plain_cell(value: Any) -> str | int | float | None:
    """Return a table cell as JSON: a number, a string without invisible characters, or None if there is no value.

    >>> [plain_cell(value) for value in (0.1, 2**60, True, None, [1, "a"], float("nan"))]
    [0.1, '1152921504606846976', 'true', None, '[1, "a"]', 'nan']
    """
    if value is None or (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) <= _EXACT):
        return value
    if isinstance(value, float | int) and not isinstance(value, bool):
        return str(value)
    return printable(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))


def _hash(content: str) -> str:
    """Return the hash expression that allows an inline script or style sheet in the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
