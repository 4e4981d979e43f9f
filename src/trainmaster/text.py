"""Text for terminals and messages.

A store may come from an untrusted source. An escape sequence in a name, a value or an error message could clear the screen,
hide a line or set the window's title, so everything that is read from a store is printed with `printable`.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence


def counted(count: int, noun: str) -> str:
    """Format a number with its noun in the singular or plural.

    >>> counted(1, "epoch"), counted(2, "epoch"), counted(1200, "batch")
    ('1 epoch', '2 epochs', '1,200 batches')
    """
    plural = f"{noun}es" if noun.endswith(("tch", "s")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def short_value(value: object) -> str:
    """Format a config value for a message: "none" for None, otherwise its `repr`, shortened to 60 characters.

    >>> short_value(None), short_value(0.1)
    ('none', '0.1')
    """
    text = repr(value) if value is not None else "none"
    return text if len(text) <= 60 else f"{text[:57]}..."


def first_lines(lines: Sequence[str], count: int, limit: int) -> list[str]:
    """Return the first `limit` lines. If `count`, the total number of lines, exceeds `limit`, add a line such as "... and 5 more".

    >>> first_lines(["a", "b", "c"], 1200, 2)
    ['a', 'b', '... and 1,198 more']
    """
    return [*lines[:limit], *([f"... and {count - limit:,} more"] if count > limit else [])]


def printable(text: object) -> str:
    r"""Return `text` on one line, with control characters and other invisible characters written as escapes.

    >>> print(printable("a\nb \x1b[2J \u202e"))
    a\nb \x1b[2J \u202e
    """
    shown = str(text)
    return shown if shown.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in shown)


def printable_lines(text: object) -> str:
    r"""Escape control and invisible characters as `printable` does, but keep line breaks and replace tabs with spaces.

    >>> printable_lines("a\tb\r\nc\x07\n")
    'a       b\nc\\x07\n'
    """
    return "\n".join(printable(line.removesuffix("\r").expandtabs()) for line in str(text).split("\n"))


def width(shown: str) -> int:
    """Return the width of a string in terminal columns: two for a Chinese character, zero for a combining accent.

    >>> width("ab"), width("漢字")
    (2, 4)
    """
    if shown.isascii():
        return len(shown)
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 0 if unicodedata.combining(each) else 1 for each in shown)


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()) -> str:
    """Return an HTML table for a notebook. All text is escaped, because it may come from a store that is not trusted.

    >>> html_table("a <b>", ["name"], [["x"]])
    '<table><caption>a &lt;b&gt;</caption><tr><th>name</th></tr><tr><td>x</td></tr></table>'
    """

    def row(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(printable(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = "".join([row(columns, "th"), *(row(each, "td") for each in rows)])
    return f"<table><caption>{html.escape(printable(title))}</caption>{body}</table>" + "".join(
        f"<p>{html.escape(printable(note))}</p>" for note in notes
    )
