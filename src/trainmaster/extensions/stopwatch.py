"""Where the time of a training goes: data, forward, backward, update, extensions, evaluation.

To time every stage of every batch would cost more than some of them. So at the start of an epoch, now and then, two extensions are
attached for a few batches, one before all others and one after them; what they see stands for the rest. Waiting for the first batch,
where a loader starts its workers, and evaluations are timed as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from trainmaster.loop.train_manager import TrainManager
from trainmaster.stages import Extension

PARTS = ("data", "forward", "backward", "update", "extensions", "eval")
_NUM_LOOKED_AT = 20
"""Batches in a row."""
_EVERY = 5.0
"""Seconds between two looks."""
_FIRST, _LAST = "stopwatch_first", "stopwatch_last"


class Stopwatch:
    """Times the parts of one training; an extension calls it in the hooks of the same names."""

    def __init__(self) -> None:
        self._looked: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._waited = self._trained = self._evaluated = 0.0
        self._epoch_started = self._eval_started = self._due = 0.0
        self._first: _First | None = None

    def pre_train_step_epoch(self, train_manager: TrainManager) -> None:
        self._epoch_started = perf_counter()
        if self._epoch_started >= self._due:
            self._first = _First()
            train_manager.add_extension(_FIRST, self._first, at_start=True)
            train_manager.add_extension(_LAST, _Last(self._first))

    def post_train_step_epoch(self, train_manager: TrainManager) -> None:
        self._trained += perf_counter() - self._epoch_started
        self.end_look(train_manager)

    def pre_eval(self) -> None:
        self._eval_started = perf_counter()

    def post_eval(self) -> None:
        self._evaluated += perf_counter() - self._eval_started

    def end_look(self, train_manager: TrainManager) -> None:
        """Detach what looks, and add up what it saw."""
        first, self._first = self._first, None
        if first is None:
            return
        for name in (_FIRST, _LAST):
            train_manager.extensions.pop(name, None)
        self._due = perf_counter() + _EVERY
        if first.began is not None:
            self._waited += first.began - self._epoch_started
        for part, seconds in first.seconds.items():
            self._looked[part] += seconds

    def seconds(self) -> dict[str, float]:
        """How long each part took, in all; what was looked at stands for the rest."""
        looked = sum(self._looked.values())
        left = max(0.0, self._trained - self._waited)
        found = {part: left * seconds / looked if looked else 0.0 for part, seconds in self._looked.items()}
        return {**found, "data": found["data"] + self._waited, "eval": self._evaluated}


class _First(Extension):
    """Before all others."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.began: float | None = None
        """When the first batch was there."""
        self._num = 0
        self._opened = self._bodies = 0.0
        self._closed: float | None = None

    @property
    def is_over(self) -> bool:
        return self._num >= _NUM_LOOKED_AT

    def pre_train_step_batch(self) -> None:
        now = perf_counter()
        if self.began is None:
            self.began = now
        if self._closed is not None:
            self.seconds["data"] += now - self._closed
        self._opened, self._bodies = now, 0.0

    def around_forward(self) -> Iterator[None]:
        with self._timed("forward"):
            yield

    def around_loss(self) -> Iterator[None]:
        with self._timed("forward"):
            yield

    def around_backward(self) -> Iterator[None]:
        with self._timed("backward"):
            yield

    def around_optimizer_step(self) -> Iterator[None]:
        with self._timed("update"):
            yield

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started = perf_counter()
        yield
        took = perf_counter() - started
        self.seconds[part] += took
        self._bodies += took

    def close_batch(self) -> None:
        """All hooks of the batch are through."""
        if not self._opened:  # attached in the middle of it
            return
        now = perf_counter()
        self.seconds["extensions"] += now - self._opened - self._bodies
        self._closed = now
        self._num += 1


class _Last(Extension):
    """After all others."""

    def __init__(self, first: _First) -> None:
        self._first = first

    def post_train_step_batch(self, train_manager: TrainManager) -> None:
        self._first.close_batch()
        if self._first.is_over:
            for name in (_FIRST, _LAST):
                train_manager.extensions.pop(name, None)
