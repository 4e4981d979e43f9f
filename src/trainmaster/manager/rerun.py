"""Rerun: a config is trained once more, from its start, into another store, as far as a run of it was trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.errors import UnknownRunError
from trainmaster.loop.checkpoints import Moment
from trainmaster.manager.lineage import START_FROM, Origin
from trainmaster.stages import Extension
from trainmaster.store import Run, Store

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager
    from trainmaster.manager.manager import Manager

_NAME = "rerun_until"


def moment_of(status: Mapping[str, Any], step: int) -> Moment:
    """When a checkpoint was taken, as its status tells; one of a manager that writes its epochs itself is taken after an epoch."""
    return Moment(status["epoch"], status.get("batch") or 0, step, bool(status.get("is_evaluated", True)))


def rerun(manager: Manager, config: Any, into: Store, until: Moment, num_epochs: int | None) -> Run:
    """Train a config from its start into another store; the run there. Whatever the manager's own store has stays as it is.

    A loop is told the `num_epochs` that it was told then, because its schedule may depend on it, and is stopped at `until`, be that in the
    middle of an epoch. A manager that writes its epochs itself trains as many as `until` says.
    """
    own, manager.store = manager.store, into
    try:
        _bring_origin(manager, config, own, into)
        if not manager.makes_loops:
            manager.process(config, until.epoch)
            return into.run(manager.key)
        manager.extensions[_NAME] = _StopAt(until)
        try:
            _train(manager, config, num_epochs, until)
        finally:
            del manager.extensions[_NAME]
        return into.run(manager.key)
    finally:
        manager.store = own


def _train(manager: Manager, config: Any, num_epochs: int | None, until: Moment) -> None:
    """Train a loop up to a moment; where a `max_time` ends it before that, go on, which makes no difference."""
    before: Moment | None = None
    while True:
        manager.process(config, num_epochs)
        assert manager.loop is not None
        now = manager.loop.moment
        if manager.stopped is None or now[:2] >= until[:2] or now == before:
            return
        before = now


def _bring_origin(manager: Manager, config: Any, own: Store, into: Store) -> None:
    """Copy the run over that a config starts from."""
    text = config[START_FROM] if manager.makes_loops and START_FROM in config else None
    if text is None:
        return
    origin = Origin.parse(text)
    if origin.key not in own.configs or all(name.step != origin.step for name in own.run(origin.key).checkpoints()):
        raise UnknownRunError(
            f"the run starts from {origin.text}, and that checkpoint is gone",
            why=f"run {origin.key} was removed, or trained on since",
            hint="put it back from a copy: `trainmaster import`",
        )
    own.migrate(into, keys=[origin.key])


class _StopAt(Extension):
    """Stops a loop where another training of it was saved."""

    def __init__(self, until: Moment) -> None:
        self._until = until

    def pre_train(self, train_manager: TrainManager) -> None:
        if self._until[:2] == (0, 0) and not train_manager.evaluate_first:
            self._stop(train_manager)

    def post_train_step_batch(self, train_manager: TrainManager) -> None:
        if self._until.batch and train_manager.moment[:2] == self._until[:2]:
            self._stop(train_manager)

    def post_train_step_epoch(self, train_manager: TrainManager) -> None:
        if not self._until.is_evaluated and train_manager.moment[:2] == self._until[:2]:
            self._stop(train_manager)

    def post_eval(self, train_manager: TrainManager) -> None:
        moment = train_manager.moment
        if moment.is_evaluated and moment[:2] == self._until[:2] and not train_manager.is_over():
            self._stop(train_manager)

    def _stop(self, train_manager: TrainManager) -> None:
        train_manager.stop("the run that is trained again was saved here")


@contextlib.contextmanager
def using_threads(num: int | None) -> Iterator[None]:
    """While the block runs, torch has `num` threads, if that is known: with another number, large sums are added up in another order."""
    if num is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)
