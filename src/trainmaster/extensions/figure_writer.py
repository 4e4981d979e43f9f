"""Draws the figure of an extension at intervals during training, and once at the end."""

from __future__ import annotations

import importlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.extensions.train_dir import path_in_train_dir
from trainmaster.figures.panels import Panel
from trainmaster.figures.png import draw
from trainmaster.figures.save import save
from trainmaster.loop.rng import kept_rng
from trainmaster.stages import Observer, always
from trainmaster.store.files import LocalFiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "plots"
"""The folder in `train_dir` to which figures are written."""
_MIN_SECONDS = 10.0
"""The minimum number of seconds between two drawings."""
_MAX_SHARE = 1 / 50
"""The maximum share of the training time that is spent on drawing."""


class FigureWriter:
    """Writes a figure as `<name>.png` and `<name>.html` to `path`, or to `plots` in the loop's `train_dir`.

    If a function `facts` is passed, its return value is written as `<name>.json`. Drawing takes at most 2% of the
    training time. If a figure cannot be drawn or written, for example because the disk is full, you get a warning and
    training continues.
    """

    def __init__(
        self,
        name: str,
        path: str | PathLike[str] | None,
        panels: Callable[[], Sequence[Panel]],
        facts: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self._name, self._panels, self._facts = name, panels, facts
        self._path = None if path is None else Path(path)
        self._folder: Path | None = None
        self._next_time = 0.0
        self._has_failed = False

    def start(self, loop: Any) -> None:
        """Prepare for training. If there is neither a `path` nor a `train_dir`, nothing is drawn."""
        self._folder = path_in_train_dir(self._path, loop, FOLDER)
        self._next_time = time.monotonic() + _MIN_SECONDS
        if self._folder is not None:
            with kept_rng():  # imported now rather than in the middle of an epoch
                importlib.import_module("matplotlib.backends.backend_agg")

    def draw_if_due(self) -> None:
        if time.monotonic() >= self._next_time:
            self.draw()

    def draw(self) -> None:
        if self._folder is None:
            return
        started = time.monotonic()
        try:
            with kept_rng():  # plotting libraries draw random numbers
                panels = self._panels()
                if panels:
                    save(self._folder, self._name, panels)
                    if self._facts is not None:
                        text = json.dumps(self._facts(), allow_nan=False) + "\n"
                        LocalFiles(str(self._folder)).replace(f"{self._name}.json", text.encode())
        except Exception as error:  # an error in matplotlib, or a full disk
            if not self._has_failed:
                self._has_failed = True
                warnings.warn(f"the figure {self._name} is not drawn: {type(error).__name__}: {error}", stacklevel=2)
        now = time.monotonic()
        self._next_time = now + max(_MIN_SECONDS, (now - started) / _MAX_SHARE)


class FigureObserver(Observer):
    """The base class of observers that draw one figure."""

    is_guarded = False
    creates = {}

    def __init__(self, name: str, path: str | PathLike[str] | None) -> None:
        self._figure_writer = FigureWriter(name, path, self.panels)

    def panels(self) -> Sequence[Panel]:
        """Return the figure as data. The sequence is empty if there are no values yet."""
        raise NotImplementedError

    def figure(self) -> Figure:
        """Return the figure as a matplotlib figure, for a notebook."""
        return draw(self.panels())

    def pre_train(self, loop: Any) -> None:
        self._figure_writer.start(loop)

    @always
    def post_train(self) -> None:
        self._figure_writer.draw()
