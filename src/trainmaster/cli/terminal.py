"""What the output can show: colours and a width on a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass

_STYLES = {"bold": "1", "dim": "2", "bad": "31", "good": "32", "warn": "33", "live": "36"}


@dataclass(frozen=True)
class Terminal:
    has_colour: bool
    width: int | None
    """None where lines may have any length."""
    can_draw: bool
    """Whether block characters arrive as such."""

    @property
    def is_one(self) -> bool:
        return self.width is not None

    def paint(self, text: str, style: str) -> str:
        """Text, which is printable already, in a style."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.has_colour and style and text else text


def the_terminal() -> Terminal:
    """What stdout is now."""
    is_one = sys.stdout.isatty()
    has_colour = is_one and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    try:
        "▁█".encode(sys.stdout.encoding or "ascii")
        can_draw = is_one
    except (UnicodeError, LookupError):
        can_draw = False
    return Terminal(has_colour, shutil.get_terminal_size().columns if is_one else None, can_draw)
