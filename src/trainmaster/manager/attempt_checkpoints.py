"""Saves a loop's checkpoints to the manager's store."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from trainmaster.figures.curves import curves
from trainmaster.figures.png import png
from trainmaster.store import Attempt
from trainmaster.store.attempt import CURVES
from trainmaster.store.checkpoint import CheckpointName
from trainmaster.store.checkpoint_folder import Best, Moment, best_record, status_of
from trainmaster.store.history import history
from trainmaster.store.keys import attempt_folder

_DRAW_INTERVAL = 60.0
"""How often the curves are redrawn during a run, in seconds."""
NoDeadline = Callable[[], AbstractContextManager[None]]
"""Returns a context manager. Inside its block, an interrupt does not end the process, so a save can finish."""


class CheckpointFacts(NamedTuple):
    """Information that a checkpoint stores about its run. It is collected when the state of the loop is captured."""

    num_events: int
    status: dict[str, Any]
    preview: dict[str, Any]


class AttemptCheckpoints:
    """Saves the checkpoints of one attempt. Keeps the last `keep` checkpoints and the best one."""

    def __init__(
        self,
        attempt: Attempt,
        keep: int,
        read_facts: Callable[[], tuple[dict[str, Any], dict[str, Any]]],
        no_deadline: NoDeadline,
        root: str | None,
        sets: Sequence[str] | None,
    ) -> None:
        """`root` is the store's folder, or None for an in-memory store.

        `sets` contains the names of the data sets whose curves are drawn. If it is None, no curves are drawn during
        the run, but `trainmaster show` can draw them later.
        """
        self._attempt, self._keep, self._read_facts, self._no_deadline = attempt, keep, read_facts, no_deadline
        self.path = None if root is None else Path(root) / attempt_folder("ckpts", attempt.key, attempt.number)
        self._sets = None if root is None else sets
        self._next_drawing = time.monotonic() + _DRAW_INTERVAL

    def open(self) -> None:
        if self._sets is not None:
            # Import matplotlib here, not in the saving thread, because a loader worker that is forked during an import could deadlock.
            importlib.import_module("matplotlib.backends.backend_agg")

    def facts(self) -> CheckpointFacts:
        return CheckpointFacts(self._attempt.log.count, *self._read_facts())

    def next_name(self, moment: Moment) -> CheckpointName:
        return self._attempt.next_name(moment.step)

    def save(
        self, moment: Moment, value: dict[str, Any], facts: CheckpointFacts, best: Best | None, replaced: CheckpointName | None = None
    ) -> None:
        name = None if best is None else CheckpointName(*best.name)
        status = {**facts.status, **status_of(moment, best, None if name is None else name.text)}
        if best is not None:
            status["best"] = best_record(best)
        pinned = [] if name is None else [name]
        with self._no_deadline():
            self._attempt.save(
                moment.step, value, status, facts.preview, None, self._keep, pinned, num_events=facts.num_events, replaced=replaced
            )
        if time.monotonic() >= self._next_drawing:
            self.draw()

    def draw(self) -> None:
        """Draw the curves of the run. If this fails, only a warning is issued, because training should continue."""
        self._next_drawing = time.monotonic() + _DRAW_INTERVAL
        if self._sets is None:
            return
        try:
            found = history(self._attempt.run)
            if found.points:
                self._attempt.write_plot(CURVES, png(curves(found.points, found.over, self._sets, f"run {self._attempt.key}")))
        except Exception as error:  # from matplotlib, or because the disk is full
            warnings.warn(f"the curves of run {self._attempt.key} could not be drawn: {error}", stacklevel=2)

    def close(self) -> None:
        self.draw()
