"""Figures as files."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from trainmaster.errors import SettingError
from trainmaster.figures.html import SCRIPT, page
from trainmaster.figures.panels import Panel
from trainmaster.figures.png import draw, png


def save(folder: str | PathLike[str], name: str, panels: Sequence[Panel], title: str = "") -> None:
    """Write `<name>.png` and `<name>.html` into a folder, which is created if necessary.

    Each file is replaced atomically. All pages in a folder share one copy of plotly's script. Without plotly there is no page.
    """
    if name in ("", ".", "..") or {*name} & {"/", "\\", "\0"}:
        raise SettingError(
            f"{name!r} cannot be the name of a figure, because its files are named after it", hint="use a name without slashes"
        )
    image = png(draw(panels, title))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{name}.png", image)  # written first, because it is small and may be the only file that fits on the disk
    script = _plotly_script()
    if script is None:
        return
    if not (folder / SCRIPT).is_file() or (folder / SCRIPT).stat().st_size != script.stat().st_size:
        _write(folder / SCRIPT, script.read_bytes())
    _write(folder / f"{name}.html", page(panels, title, name).encode())


def _plotly_script() -> Path | None:
    found = importlib.util.find_spec("plotly")  # find the file without importing plotly, which would take longer than drawing a figure
    return None if found is None or found.origin is None else Path(found.origin).parent / "package_data" / SCRIPT


def _write(path: Path, data: bytes) -> None:
    """Write to a temporary file first, so that readers never see half a file and a full disk leaves the old one intact."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # it is gone after a successful replace
            temporary.unlink()
