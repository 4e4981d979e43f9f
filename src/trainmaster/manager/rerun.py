"""Trains a run again from the start, in a different store, up to the point where the original run was last saved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.config.identity import START_FROM
from trainmaster.errors import UnknownRunError
from trainmaster.manager.start_from import Origin
from trainmaster.stages import Extension
from trainmaster.store import Run, Store
from trainmaster.store.checkpoint_folder import Moment

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager
    from trainmaster.manager.manager import Manager

_NAME = "rerun_until"


def moment_of(status: Mapping[str, Any], step: int) -> Moment:
    """Return the epoch, batch and step at which a checkpoint was saved.

    If the manager has its own `train` method, checkpoints are saved only between epochs, so `status` has no batch.
    """
    return Moment(status["epoch"], status.get("batch") or 0, step, bool(status.get("is_evaluated", True)))


def rerun(manager: Manager, config: Any, into: Store, until: Moment, targets: Sequence[int | None]) -> Run:
    """Train a config from the start in the store `into`, and return the new run.

    The manager's own store does not change.

    `targets` contains the target epochs of the original run, in order: first 10 and then 20, for example, if the run was
    later trained for longer. A loop is trained up to each target in turn, because its learning-rate schedule may have been
    built for the first one. The loop stops at `until`, even in the middle of an epoch. A manager with its own `train`
    method trains `until.epoch` epochs.
    """
    _copy_origin(manager, config, into)
    with manager.using_store(into):
        if not manager.has_make_loop:
            manager.process(config, until.epoch)
            return into.run(manager.key)
        manager.extensions[_NAME] = _StopAt(until)
        try:
            for num_epochs in targets:
                if _train(manager, config, num_epochs, until)[:2] >= until[:2]:
                    break
        finally:
            del manager.extensions[_NAME]
        return into.run(manager.key)


def _train(manager: Manager, config: Any, num_epochs: int | None, until: Moment) -> Moment:
    """Train a loop up to `num_epochs` or `until`, whichever comes first, and return the moment at which it stopped.

    If `max_time` stops the loop earlier, training is resumed. This does not change the result.
    """
    before: Moment | None = None
    while True:
        manager.process(config, num_epochs)
        assert manager.loop is not None
        now = manager.loop.moment
        if manager.stopped is None or now[:2] >= until[:2] or now == before:
            return now
        before = now


def _copy_origin(manager: Manager, config: Any, into: Store) -> None:
    """If `start_from` in the config names another run, copy that run to the store `into`."""
    own = manager.store
    text = config[START_FROM] if manager.has_make_loop and START_FROM in config else None
    if text is None:
        return
    origin = Origin.parse(text)
    if origin.key not in own.configs or all(name.step != origin.step for name in own.run(origin.key).checkpoints()):
        raise UnknownRunError(
            f"the run starts from {origin.text}, but that checkpoint no longer exists",
            why=f"run {origin.key} was removed, or trained further since",
            hint="restore it from an export: `trainmaster import`",
        )
    own.migrate(into, keys=[origin.key])


class _StopAt(Extension):
    """Stops a loop at the point where the original run was saved."""

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
        train_manager.stop("the original run was saved here")


@contextlib.contextmanager
def using_threads(num: int | None) -> Iterator[None]:
    """While the `with` block runs, let torch use `num` threads, unless `num` is None.

    The number of threads determines the order of additions in large sums, which affects the last bits of the result.
    """
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
