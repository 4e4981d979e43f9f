"""Text for people: whatever a store holds, as characters that a terminal only shows.

Names, values and errors of a run are anybody's: an escape sequence among them could clear a screen, hide a line or set a title.
"""

from __future__ import annotations

import unicodedata


def printable(text: object) -> str:
    r"""`text` in one line, with all that is not a visible character or a space written as an escape.

    >>> print(printable("a\nb \x1b[2J \u202e"))
    a\nb \x1b[2J \u202e
    """
    shown = str(text)
    return shown if shown.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in shown)


def printable_lines(text: object) -> str:
    r"""As `printable`, for text of several lines: they stay lines, and tabs become spaces.

    >>> printable_lines("a\tb\r\nc\x07\n")
    'a       b\nc\\x07\n'
    """
    return "\n".join(printable(line.removesuffix("\r").expandtabs()) for line in str(text).split("\n"))


def width(shown: str) -> int:
    """How many columns printable text takes: a letter of Chinese two, an accent none.

    >>> width("ab"), width("漢字")
    (2, 4)
    """
    if shown.isascii():
        return len(shown)
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 0 if unicodedata.combining(each) else 1 for each in shown)
