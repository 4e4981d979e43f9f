"""Saves figures as files."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from trainmaster.errors import MissingExtraError, SettingError
from trainmaster.figures.html import SCRIPT, page
from trainmaster.figures.panels import Panel
from trainmaster.figures.png import draw, png


def save(folder: str | PathLike[str], name: str, panels: Sequence[Panel], title: str = "") -> None:
    """Write `<name>.png` and `<name>.html` into a folder, which is created if necessary.

    Each file is replaced atomically. All pages in a folder share one copy of plotly's script. If plotly is not
    installed, only the PNG file is written.
    """
    if name in ("", ".", "..") or {*name} & {"/", "\\", "\0"}:
        raise SettingError(
            f"{name!r} cannot be the name of a figure, because its files are named after it", hint="use a name without slashes"
        )
    path = Path(folder) / name
    save_png(path.with_name(f"{name}.png"), panels, title)  # written first, because it is small and may fit on an almost full disk
    if _plotly_script() is not None:
        save_page(path.with_name(f"{name}.html"), panels, title)


def save_png(path: Path, panels: Sequence[Panel], title: str = "") -> None:
    """Write a figure as PNG. Its folder is created if necessary."""
    image = png(draw(panels, title))
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, image)


def save_page(path: Path, panels: Sequence[Panel], title: str = "") -> None:
    """Write a figure as an interactive page. If plotly's script is not in the page's folder yet, write it there too."""
    script = _plotly_script()
    if script is None:
        raise MissingExtraError("interactive figures need plotly: pip install 'trainmaster[analysis]'")
    path.parent.mkdir(parents=True, exist_ok=True)
    copy = path.with_name(SCRIPT)
    if not copy.is_file() or copy.stat().st_size != script.stat().st_size:
        _write(copy, script.read_bytes())
    _write(path, page(panels, title, path.stem).encode())


def _plotly_script() -> Path | None:
    found = importlib.util.find_spec("plotly")  # find the file without importing plotly, which would take longer than drawing a figure
    return None if found is None or found.origin is None else Path(found.origin).parent / "package_data" / SCRIPT


def _write(path: Path, data: bytes) -> None:
    """Write to a temporary file first, so that readers never see an incomplete file, and a full disk leaves the old file intact."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # after a successful replace, the temporary file no longer exists
            temporary.unlink()
