"""A minimal loop: it iterates and counts, and its components do the work.

Everything else, including the forward pass of the model, happens in the `on_*` callbacks of the components
(`components.py`). Components communicate through attributes on the loop. `train_test_progress.py` captures and restores
the exact state.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from numbers import Integral
from typing import Any

from torch import nn

from trainmaster.errors import LoopError, SettingError, shown
from trainmaster.loop.components import callbacks_of, named_components
from trainmaster.loop.data_position import Position, empty_error, fresh_iterator, length_of, reading
from trainmaster.loop.observer_guard import Guards, mode
from trainmaster.loop.ranks import refuse_ranks
from trainmaster.loop.stages import TRAIN_TEST_LOOP
from trainmaster.loop.state import TrainingState
from trainmaster.loop.train_test_progress import TrainTestProgress
from trainmaster.stages import Extensible
from trainmaster.stages.extension_map import ObservedList
from trainmaster.stages.hooks import Guard


class _Stop(BaseException):
    """Ends a run. It is not an `Exception`, so that no component catches it by accident."""


class TrainTestLoop(Extensible):
    """Trains and tests a model by calling the callbacks of components at fixed points. `loop/stages.py` declares the stages.

    `components` is a list that you can edit at any time. It may also contain extensions, whose hooks can use every
    attribute of the loop as a fixture.
    """

    tree = TRAIN_TEST_LOOP
    batch: Any

    def __init__(self, model: nn.Module, components: Iterable[object], train_data: Any, valid_data: Any) -> None:
        self.model = model
        self.train_data = train_data
        self.valid_data = valid_data
        self.n_epochs = self.n_batches = self.n_optim_steps = 0
        self.is_training = self.is_validating = self.is_testing = False
        self.epoch_desc = ""
        self.epoch_num = self.batch_num = self.optim_step_num = 0
        for name in ("train_data", "valid_data"):
            _checked_length(getattr(self, name), name)
        self._guards = Guards(lambda: self.model)
        self._progress = TrainTestProgress(self._guards)
        self._components: ObservedList[object] = ObservedList([], self._components_changed)
        self.components = components
        self.staged("loop", {"loop": self, "fixtures": self.fixtures}).open_permanently()

    @property
    def components(self) -> ObservedList[object]:
        """The components, in the order in which they are called. You can edit the list at any time."""
        return self._components

    @components.setter
    def components(self, components: Iterable[object]) -> None:
        before = self._components
        self._components = ObservedList(components, self._components_changed)
        try:
            self._components_changed()
        except Exception:
            self._components = before
            raise

    # The loop.

    def train(self, n_epochs: int) -> None:
        """Train for `n_epochs` epochs. Each epoch is a pass over the training data, followed by one over the validation data."""
        self._check_idle("train")
        refuse_ranks("a TrainTestLoop", hint="its components take the steps, so nothing can average gradients: use a TrainManager")
        if not isinstance(n_epochs, Integral) or isinstance(n_epochs, bool) or n_epochs < 0:
            raise SettingError(f"`n_epochs` must be a whole number of at least 0, not {shown(n_epochs)}", hint="loop.train(n_epochs=10)")
        progress = self._progress
        progress.begin()
        self.n_epochs, self.optim_step_num = n_epochs, 0
        self.n_optim_steps = n_epochs * len(self.train_data)
        with suppress(_Stop), self.staged("train"):
            with suppress(_Stop):
                self._call("on_train_begin")
                self.epoch_num, self.optim_step_num = progress.resume(self)
                while progress.epochs_done < n_epochs:
                    self._train_epoch()
                    self._eval_epoch("valid", self.valid_data)
                    self.epoch_num += 1
                    progress.end_epoch()
            for callback in self._callbacks["on_train_end"]:
                with suppress(_Stop):
                    callback(self)

    def test(self, test_data: Any) -> None:
        """Make one pass over `test_data`, without gradients. During the pass, `n_epochs` is 1."""
        self._check_idle("test")
        _checked_length(test_data, "test_data")
        outer, self.n_epochs = self.n_epochs, 1
        try:
            with suppress(_Stop):
                self._eval_epoch("test", test_data)
        finally:
            if self._scope.stack:  # on_train_begin or on_train_end called test(), and training continues afterwards
                self.n_epochs = outer

    def stop(self) -> None:
        """End the run immediately. Only `on_train_end` is still called."""
        if not self._scope.stack:
            raise LoopError("nothing is running, so there is nothing to stop", hint="call stop() from a component")
        raise _Stop

    def _train_epoch(self) -> None:
        position = self._progress.position
        self._begin_pass("train", self.train_data)
        with mode(self.model, is_training=True), self.staged("train_step_epoch", {"datasource_name": "train"}):
            self._call("on_epoch_begin")
            self._progress.resume_components(self)
            with reading("train_data", position, self._scope):
                self._train_batches(position)
            position.check_end(self.train_data, "train_data")
            position.reset()
            self._call("on_epoch_end")

    def _train_batches(self, position: Position) -> None:
        # If the list of components changes, the change takes effect at the next group of callbacks. `calls` holds one group.
        train_step_batch, forward, loss = map(self.staged, ("train_step_batch", "forward", "loss"))
        backward, optimizer_step = map(self.staged, ("backward", "optimizer_step"))
        for batch in position.batches(self.train_data, "train_data"):
            self.batch, self.batch_num = batch, position.num_batches
            with train_step_batch:
                for call in self._callbacks["on_grads_reset"]:
                    call(self)
                calls = self._callbacks
                for call in calls["on_batch_begin"]:
                    call(self)
                with forward:
                    for call in calls["on_forward_pass"]:
                        call(self)
                with loss:
                    for call in calls["on_loss_compute"]:
                        call(self)
                calls = self._callbacks
                with backward:
                    for call in calls["on_backward_pass"]:
                        call(self)
                with optimizer_step:
                    for call in calls["on_optim_step"]:
                        call(self)
                self.optim_step_num += 1
                position.num_batches += 1
                for call in self._callbacks["on_batch_end"]:
                    call(self)

    def _eval_epoch(self, desc: str, data: Any) -> None:
        self._begin_pass(desc, data)
        position = Position()
        with mode(self.model, is_training=False), self.staged("eval_step_epoch", {"datasource_name": desc}):
            self._call("on_epoch_begin")
            with reading(f"{desc}_data", position, self._scope):
                self._eval_batches(data, position)
            self._call("on_epoch_end")

    def _eval_batches(self, data: Any, position: Position) -> None:
        eval_step_batch, forward, loss = map(self.staged, ("eval_step_batch", "forward", "loss"))
        for batch in fresh_iterator(data):
            self.batch, self.batch_num = batch, position.num_batches
            with eval_step_batch:
                calls = self._callbacks
                for call in calls["on_batch_begin"]:
                    call(self)
                with forward:
                    for call in calls["on_forward_pass"]:
                        call(self)
                with loss:
                    for call in calls["on_loss_compute"]:
                        call(self)
                position.num_batches += 1
                for call in self._callbacks["on_batch_end"]:
                    call(self)

    # Exact state.

    def capture(self) -> TrainingState:
        """Capture the exact state of training.

        Call it at the end of a training batch: in `on_batch_end`, while `is_training` is True.
        """
        return self._progress.capture(self, self._scope)

    def restore(self, state: TrainingState) -> None:
        """Resume from a captured state in the next `train()`, right after `on_train_begin` has created the optimizers."""
        self._progress.restore(state)

    # Details.

    def _check_idle(self, name: str) -> None:
        if self._scope.stack and (name == "train" or self._scope.path.endswith(("step_epoch", "step_batch"))):
            raise LoopError(
                f"{name}() was called while the loop is running", where=self._scope.location, hint="call it from outside the callbacks"
            )

    def _begin_pass(self, desc: str, data: Any) -> None:
        self.epoch_desc = desc
        self.is_training, self.is_validating, self.is_testing = desc == "train", desc == "valid", desc == "test"
        self.n_batches = len(data)
        self._guards.list_modules()

    def _call(self, name: str) -> None:
        for callback in self._callbacks[name]:
            callback(self)

    def _components_changed(self) -> None:
        """Read the callbacks of the components again, and attach the components as extensions."""
        self.extensions = named_components(self.components)
        self._callbacks = callbacks_of(self.components)

    def observer_guard(self) -> Guard | None:
        return self._guards

    def read_fixture(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self, name)


def _checked_length(data: Any, what: str) -> None:
    length = length_of(data)
    if length is None:
        raise SettingError(
            f"`{what}` has no length, which a TrainTestLoop needs to count steps",
            where=type(data).__name__,
            hint="pass a list or a DataLoader over a data set with a length; a TrainManager accepts data without a length",
        )
    if length == 0 and what == "train_data":
        raise empty_error(data, what)
