"""When figures are drawn, and where to: now and then while a training goes on, and once at its end."""

from __future__ import annotations

import importlib
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from trainmaster.errors import SettingError
from trainmaster.figures.panels import Panel
from trainmaster.figures.save import save
from trainmaster.loop.rng import kept_rng

FOLDER = "plots"
"""Where figures lie below `train_dir`."""
_SHARE = 50
"""One part in so many of the time may go into drawing."""
_AT_LEAST = 10.0
"""Seconds between two drawings."""


class Drawing:
    """The figure of an extension as files, `<name>.png` and `<name>.html`, in `path` or else in `plots` below the loop's `train_dir`.

    It is drawn between two batches, epochs or evaluations, and so seldom that it takes a fiftieth of the time at most. What goes wrong
    with a figure, a full disk for example, is a warning, and no reason to stop training.
    """

    def __init__(self, name: str, path: str | PathLike[str] | None, panels: Callable[[], Sequence[Panel]]) -> None:
        if path is not None and not isinstance(path, str | PathLike):
            raise SettingError(f"path={path!r}: wanted a folder for the figure", hint="leave it out: it is `plots` below train_dir")
        self._name, self._panels = name, panels
        self._path = None if path is None else Path(os.fspath(path))
        self._folder: Path | None = None
        self._due = 0.0
        self._has_failed = False

    def begin(self, loop: Any) -> None:
        """A training begins; without a folder nothing is ever drawn."""
        train_dir = getattr(loop, "train_dir", None)
        self._folder = self._path if self._path is not None else None if train_dir is None else Path(train_dir) / FOLDER
        self._due = time.monotonic() + _AT_LEAST
        if self._folder is None:
            return
        with kept_rng(), suppress(ModuleNotFoundError):  # now, and not in the middle of an epoch
            importlib.import_module("matplotlib.backends.backend_agg")
            importlib.import_module("plotly.graph_objects")

    def refresh(self) -> None:
        """Draw, if it is time."""
        if time.monotonic() >= self._due:
            self.draw()

    def draw(self) -> None:
        """Draw now."""
        if self._folder is None:
            return
        started = time.monotonic()
        try:
            with kept_rng():  # other libraries draw, and training is not to notice
                panels = self._panels()
                if panels:
                    save(self._folder, self._name, panels)
        except Exception as error:  # matplotlib's, plotly's, or that of a full disk
            if not self._has_failed:
                self._has_failed = True
                warnings.warn(f"the figure {self._name} is not drawn: {type(error).__name__}: {error}", stacklevel=2)
        now = time.monotonic()
        self._due = now + max(_AT_LEAST, _SHARE * (now - started))
