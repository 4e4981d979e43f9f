"""The checkpoints of a loop as those of a run in a store."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from trainmaster.figures.curves import curves
from trainmaster.figures.png import png
from trainmaster.loop.checkpoints import Best, Moment
from trainmaster.store import Attempt
from trainmaster.store.checkpoint import CheckpointName
from trainmaster.store.history import history

DRAWN_EVERY = 60.0
"""Seconds between two drawings of the curves while a run goes on."""
Patient = Callable[[], AbstractContextManager[None]]
"""What a save runs under, so that it is not given up half-way."""


class Noted(NamedTuple):
    """What goes with a checkpoint, as it was when the checkpoint was taken."""

    num_events: int
    status: dict[str, Any]
    preview: dict[str, Any]


class AttemptCheckpoints:
    """Saves with an attempt: the last `keep`, and the best."""

    keeps_evaluations = True

    def __init__(
        self, attempt: Attempt, keep: int, facts: Callable[[], tuple[dict[str, Any], dict[str, Any]]], patient: Patient, is_drawn: bool
    ) -> None:
        self._attempt, self._keep, self._facts, self._patient = attempt, keep, facts, patient
        self._is_drawn = is_drawn
        self._next_drawing = time.monotonic() + DRAWN_EVERY

    def open(self) -> None:
        if self._is_drawn:
            # Here and not in the thread that saves: a loader's worker that is forked while a library is loaded there may wait for ever.
            importlib.import_module("matplotlib.backends.backend_agg")

    def note(self) -> Noted:
        return Noted(self._attempt.log.count, *self._facts())

    def save(self, moment: Moment, value: dict[str, Any], noted: Noted, best: Best | None) -> CheckpointName:
        name = None if best is None else CheckpointName(*best.name)
        status = {**noted.status, "epoch": moment.epoch, "step": moment.step, "batch": moment.batch}
        if best is not None and name is not None:
            status["best"] = {
                "metric": best.metric,
                "value": best.value,
                "epoch": best.epoch,
                "step": name.step,
                "attempt": name.attempt,
                "checkpoint": name.text,
            }
        pinned = [name] if name is not None else []
        with self._patient():
            saved = self._attempt.save(
                moment.step, value, status, noted.preview, None, self._keep, pinned=pinned, num_events=noted.num_events
            )
        if time.monotonic() >= self._next_drawing:
            self.draw()
        return saved

    def draw(self) -> None:
        """Draw the curves of the run; what goes wrong with a picture is no reason to stop training."""
        self._next_drawing = time.monotonic() + DRAWN_EVERY
        if not self._is_drawn:
            return
        try:
            found = history(self._attempt.run).points
            if found:
                self._attempt.keep_plot("curves.png", png(curves(found, f"run {self._attempt.key}")))
        except Exception as error:  # matplotlib's, or that of a full disk
            warnings.warn(f"the curves of run {self._attempt.key} are not drawn: {error}", stacklevel=2)

    def close(self) -> None:
        self.draw()
