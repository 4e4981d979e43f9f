"""Draws the curves of a run from its recorded metrics, unless the figure in the store is up to date.

The curves of runs in a batch are not drawn during training, because drawing would take longer than the rest of a short run.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.store import Run
    from trainmaster.store.history import History

_MODIFIED = 1
"""The index of the modification time in the result of `files.mark`."""


def draw_curves(run: Run, history: History) -> str | None:
    """Draw the curves unless the figure is up to date. Return the path of the figure in the store, or None if there is no figure."""
    from trainmaster.store.attempt import CURVES, plot_path
    from trainmaster.store.attempt_records import EVENTS

    if not history.points:
        return None
    with contextlib.suppress(Exception):  # the store may be read-only, or matplotlib may fail to draw a value
        attempt = run.chain()[0].attempt
        path = plot_path(run.key, attempt, CURVES)
        drawn, logged = run.files.mark(path), run.files.mark(run.path(attempt, EVENTS))
        if drawn is None or (logged is not None and drawn[_MODIFIED] < logged[_MODIFIED]):
            from trainmaster.figures.curves import curves
            from trainmaster.figures.png import png

            sets = tuple(dict.fromkeys(name.partition("/")[0] for name in history.points if name.endswith("/loss")))
            run.files.replace(path, png(curves(history.points, history.over, sets, f"run {run.key}")))
        return path
    return None
