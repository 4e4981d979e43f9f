"""Figures as files."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from trainmaster.errors import MissingExtraError, SettingError
from trainmaster.figures.html import SCRIPT, interactive, page, script
from trainmaster.figures.panels import Panel
from trainmaster.figures.png import draw, png


def save(folder: str | PathLike[str], name: str, panels: Sequence[Panel], title: str = "") -> None:
    """Write `<name>.png` and `<name>.html` into a folder, which is made if it is not there.

    A file appears whole or not at all. Without plotly there is no page. The script that pages need lies beside them, once for all.
    """
    if name in ("", ".", "..") or {*name} & {"/", "\\", "\0"}:
        raise SettingError(f"name={name!r}: wanted the name of a figure, which files are named after", hint="without slashes")
    picture = png(draw(panels, title))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, {f"{name}.png": picture})  # first: it is small, and may be all that a full disk has room for
    try:
        text = page(interactive(panels, title), title or name)
    except MissingExtraError:  # said where somebody asks for a page; a training has its PNG
        return
    if not _has(folder / SCRIPT, script().stat().st_size):
        write(folder, {SCRIPT: script().read_bytes()})
    write(folder, {f"{name}.html": text.encode()})


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files under other names first; so nobody ever reads half a file, and a full disk leaves the old ones as they were."""
    aside = {name: folder / f".{secrets.token_hex(8)}.tmp" for name in files}
    try:
        for name, data in files.items():
            with open(aside[name], "xb") as file:
                file.write(data)
        for name in files:
            os.replace(aside[name], folder / name)
    finally:
        for path in aside.values():
            with contextlib.suppress(OSError):  # nothing is left of it where all went well
                path.unlink()


def _has(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False
