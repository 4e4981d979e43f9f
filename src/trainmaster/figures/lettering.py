"""Names as they can be drawn: printable, in letters that the font has, short enough, and how wide they are."""

from __future__ import annotations

import functools
import threading
from typing import Any

DPI = 100
"""Dots to an inch of a figure. Letters are fitted to whole dots, so how wide they are depends on it."""
_ONE_BY_ONE = threading.Lock()  # the font has one size at a time, and figures are drawn in several threads


def printable(name: str) -> str:
    """A name with a question mark for what cannot be printed: a line break, an escape, half a surrogate.

    >>> printable("a\\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(each if each.isprintable() else "?" for each in str(name))


def shortened(name: str, max_chars: int) -> str:
    """A name with its middle left out, for both ends tell more.

    >>> shortened("encoder.layers.11.attention.weight", 16)
    'encoder...weight'
    """
    if len(name) <= max_chars:
        return name
    head = (max_chars - 2) // 2
    return f"{name[:head]}...{name[len(name) - (max_chars - 3 - head) :]}"


def legible(name: str) -> str:
    """A printable name with a question mark for what the font has no sign for; else matplotlib warns, and draws a box."""
    return "".join(each if each.isascii() or ord(each) in _signs() else "?" for each in printable(name))


def fitted(name: str, size: float, inches: float) -> str:
    """A legible name shortened to a width."""
    name = text = legible(name)
    max_chars = len(name)
    while (wide := width(text, size)) > inches and max_chars > 4:
        max_chars = max(4, min(max_chars - 1, int(len(text) * inches / wide)))
        text = shortened(name, max_chars)
    return text


def literal(text: str) -> str:
    """A text for matplotlib, which takes what stands between dollars for a formula."""
    return text.replace("$", r"\$")


def width(text: str, size: float) -> float:
    """How many inches wide a text is in letters of so many points."""
    return sum(_advance(letter, size) for letter in text) / DPI


@functools.cache
def _font() -> Any:
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font

    return FT2Font(findfont(FontProperties()))  # one of our own: that of matplotlib changes its size while it draws


@functools.cache
def _signs() -> frozenset[int]:
    return frozenset(_font().get_charmap())


@functools.lru_cache(4096)
def _advance(letter: str, size: float) -> float:
    """The width of a letter in dots."""
    from matplotlib.backends.backend_agg import get_hinting_flag

    flags = get_hinting_flag()  # type: ignore[no-untyped-call]
    with _ONE_BY_ONE:
        font = _font()
        font.set_size(size, DPI)
        return float(font.load_char(ord(letter), flags=flags).horiAdvance) / 64
