"""Record a command in a terminal as an animated SVG: python docs/record_terminal.py OUTPUT COMMAND...

The recording in the README was made by

    python docs/record_terminal.py docs/images/demo.svg make demo FAST=1

The command runs in a pseudo-terminal. `pyte` turns its output into screens, and each screen that differs from the one before becomes a
frame. Long pauses, such as imports, are shortened. The file has no script, and works in an <img>.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import pyte

COLUMNS, LINES = 92, 26
CELL, ROW, MARGIN = 7.83, 17, 14
EVERY = 0.4
"""Seconds between frames."""
LONGEST, END = 1.2, 6.0
"""The longest time that a frame is shown, and how long the last one is."""
COLORS = {
    "red": "#ff7b72", "green": "#3fb950", "brown": "#d29922", "yellow": "#d29922", "blue": "#58a6ff", "magenta": "#bc8cff",
    "cyan": "#39c5cf", "black": "#6e7681",
}  # fmt: skip
NO_BREAK = "\u00a0"
"""Ordinary spaces would collapse."""
TEXT, BACKGROUND = "#e6edf3", "#0d1117"


class Frame(NamedTuple):
    rows: tuple[str, ...]
    """One SVG text element for each row that is not empty."""
    at: float


def record(command: list[str]) -> list[Frame]:
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(LINES))
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    frames: list[Frame] = []
    begun, is_open = time.monotonic(), True
    while is_open:
        until = time.monotonic() + EVERY
        while is_open and (left := until - time.monotonic()) > 0:
            if select.select([terminal], [], [], left)[0]:
                try:
                    data = os.read(terminal, 65536)
                except OSError:  # the end of a pseudo-terminal on Linux
                    data = b""
                stream.feed(data)
                is_open = bool(data)
        rows = tuple(draw_row(screen, row) for row in range(LINES))
        if not frames or frames[-1].rows != rows:
            frames.append(Frame(rows, time.monotonic() - begun))
    os.waitpid(pid, 0)
    return frames


def draw_row(screen: pyte.Screen, row: int) -> str:
    cells = [screen.buffer[row][column] for column in range(COLUMNS)]
    spans, column = [], 0
    for style, group in groupby(cells, lambda cell: (cell.fg, cell.bold)):
        text = "".join(cell.data for cell in group)
        if text.strip():
            spans.append(
                f'<tspan x="{MARGIN + column * CELL:.1f}"{attributes(*style)}>{escape(text.rstrip()).replace(" ", NO_BREAK)}</tspan>'
            )
        column += len(text)
    return f'<text y="{MARGIN + (row + 0.8) * ROW:.1f}">{"".join(spans)}</text>' if spans else ""


def attributes(color: str, is_bold: bool) -> str:
    color = COLORS.get(color.removeprefix("bright"), TEXT if color == "default" else f"#{color}")
    return (f' fill="{color}"' if color != TEXT else "") + (' font-weight="bold"' if is_bold else "")


def animate(frames: list[Frame]) -> str:
    """Return an SVG that shows the frames over and over. Rows that frames share are written once."""
    shown = [min(after.at - frame.at, LONGEST) for frame, after in pairwise(frames)] + [END]
    total, begin = sum(shown), 0.0
    names: dict[str, str] = {}
    groups = []
    for frame, seconds in zip(frames, shown, strict=True):
        uses = "".join(f'<use href="#{names.setdefault(row, f"r{len(names)}")}"/>' for row in frame.rows if row)
        times = f"0;{begin / total:.5f};{min((begin + seconds) / total, 1):.5f}"
        timing = f'values="hidden;visible;hidden" keyTimes="{times}" dur="{total:.2f}s" calcMode="discrete" repeatCount="indefinite"'
        visibility = "visible" if frame is frames[-1] else "hidden"  # where animations are off
        groups.append(f'<g visibility="{visibility}"><animate attributeName="visibility" {timing}/>{uses}</g>')
        begin += seconds
    rows = "\n".join(row.replace("<text", f'<text id="{name}"', 1) for row, name in names.items())
    width, height = COLUMNS * CELL + 2 * MARGIN, LINES * ROW + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="ui-monospace,Menlo,Consolas,monospace" font-size="13" fill="{TEXT}">'
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>'
        f"<defs>\n{rows}\n</defs>\n" + "\n".join(groups) + "\n</svg>\n"
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(animate(record(sys.argv[2:])))
