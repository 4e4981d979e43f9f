"""Runs the `train_loop` of a wrapper inside a `TrainManager`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainmaster.errors import SettingError
from trainmaster.manager.model_call import checked_step
from trainmaster.manager.model_wrapper import ModelWrapper
from trainmaster.stages import Extension, always

if TYPE_CHECKING:
    from trainmaster.manager.wrapper_loop import WrapperLoop


class OwnTrainLoop(Extension):
    """Feeds batches one at a time to a wrapper's `train_loop`, which is a generator."""

    def __init__(self, wrapper: ModelWrapper) -> None:
        self._wrapper = wrapper
        self._batch: list[Any] = []
        self._steps: Any = None

    def pre_train_step_epoch(self) -> None:
        self._steps = self._wrapper.train_loop(self._batches())
        if not isinstance(self._steps, Iterator):
            raise SettingError(
                "`train_loop` is not a generator",
                hint="yield (outputs, loss) after each batch: for batch in batches: ...; yield outputs, loss",
            )

    def _batches(self) -> Iterator[Any]:
        while self._batch:
            yield self._batch.pop()

    def step(self, batch: Any) -> tuple[Any, Any]:
        """Return what `train_loop` yields for a batch."""
        self._batch.append(batch)
        try:
            step = next(self._steps)
        except StopIteration:
            raise SettingError("`train_loop` ended before the last batch of the epoch", hint="it must yield once per batch") from None
        if self._batch:
            raise SettingError("`train_loop` yielded without taking a batch", hint="it must yield once per batch")
        return checked_step(step, "`train_loop`")

    @always
    def post_train_step_epoch(self, loop: WrapperLoop, exc_type: type[BaseException] | None = None) -> None:
        steps, self._steps = self._steps, None
        if steps is None:
            return
        if exc_type is None and not loop.moment.batch and next(steps, None) is not None:  # this runs the user's code after the last batch
            raise SettingError("`train_loop` yielded after the last batch of the epoch", hint="it must yield once per batch")
        getattr(steps, "close", lambda: None)()
