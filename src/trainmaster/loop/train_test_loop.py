"""The minimal face of the loop: the loop counts and iterates, its components do the work.

Everything else, the model's forward included, happens in the `on_*` callbacks of the components. They talk to each other by
attributes on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from numbers import Integral
from typing import Any

from torch import nn

from trainmaster.errors import LoopError, SettingError, StateError, UnknownHookError, did_you_mean
from trainmaster.loop.guard import Guards, mode
from trainmaster.loop.position import Position, check_length, data_state, empty_error, fresh_iterator, length_of, reading, set_data_state
from trainmaster.loop.settings import shown
from trainmaster.loop.stages import CALLBACKS, TRAIN_TEST_LOOP
from trainmaster.loop.state import (
    TrainingState,
    capture_extensions,
    capture_objects,
    check_fits,
    observers_among,
    own_copy,
    restore_extensions,
    restore_objects,
)
from trainmaster.stages import Extensible
from trainmaster.stages.extension import is_marked_not_a_hook
from trainmaster.stages.extensions import ObservedList, default_name
from trainmaster.stages.hooks import Guard


class LoopComponent:
    """One layer of a loop: override what you need, each callback gets the loop."""

    def on_train_begin(self, loop: Any) -> None: ...
    def on_epoch_begin(self, loop: Any) -> None: ...
    def on_batch_begin(self, loop: Any) -> None: ...
    def on_grads_reset(self, loop: Any) -> None: ...
    def on_forward_pass(self, loop: Any) -> None: ...
    def on_loss_compute(self, loop: Any) -> None: ...
    def on_backward_pass(self, loop: Any) -> None: ...
    def on_optim_step(self, loop: Any) -> None: ...
    def on_batch_end(self, loop: Any) -> None: ...
    def on_epoch_end(self, loop: Any) -> None: ...
    def on_train_end(self, loop: Any) -> None: ...


class _Stop(BaseException):
    """Ends a run from anywhere; not an Exception, so that no component catches it by accident."""


class TrainTestLoop(Extensible):
    """Trains and tests a model by calling its components at fixed points; see `loop/stages.py` for the stages around them.

    `components` is a plain list, to be edited at any time. Extensions may stand in it too: any attribute of the loop is a fixture.
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
        self._position = Position()
        self._guards = Guards(lambda: self.model)
        self._epochs_done = 0
        self._state: TrainingState | None = None
        self._paused_extensions: dict[str, Any] = {}
        self._components: ObservedList[object] = ObservedList([], self._components_changed)
        self.components = components
        self.staged("loop", {"loop": self, "fixtures": self.fixtures}).open_for_good()

    @property
    def components(self) -> ObservedList[object]:
        """The components, in the order in which they are called: a list to be edited at any time."""
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
        """Train for `n_epochs` epochs, each a pass over the training data and one over the validation data."""
        self._check_idle("train")
        if not isinstance(n_epochs, Integral) or isinstance(n_epochs, bool) or n_epochs < 0:
            raise SettingError(f"`n_epochs` is a whole number of at least 0, not {shown(n_epochs)}", hint="loop.train(n_epochs=10)")
        self.n_epochs, self.optim_step_num, self._epochs_done = n_epochs, 0, 0
        self.n_optim_steps = n_epochs * len(self.train_data)
        self._position.reset()
        with suppress(_Stop), self.staged("train"):
            with suppress(_Stop):
                self._call("on_train_begin")
                self._take_up_state()
                while self._epochs_done < n_epochs:
                    self._train_epoch()
                    self._eval_epoch("valid", self.valid_data)
                    self.epoch_num += 1
                    self._epochs_done += 1
            for callback in self._callbacks["on_train_end"]:
                with suppress(_Stop):
                    callback(self)

    def test(self, test_data: Any) -> None:
        """One pass over `test_data`, without gradients."""
        self._check_idle("test")
        _checked_length(test_data, "test_data")
        with suppress(_Stop):
            self._eval_epoch("test", test_data)

    def stop(self) -> None:
        """End the run at once: of what is left only `on_train_end` is called."""
        if not self._scope.stack:
            raise LoopError("nothing runs that could be stopped", hint="call stop() from a component")
        raise _Stop

    def _train_epoch(self) -> None:
        self._begin_pass("train", self.train_data)
        with mode(self.model, is_training=True), self.staged("train_step_epoch", {"datasource_name": "train"}):
            self._call("on_epoch_begin")
            self._take_up_components()
            with reading("train_data", self._position, self._scope):
                self._train_batches()
            self._position.check_end(self.train_data, "train_data")
            self._position.reset()
            self._call("on_epoch_end")

    def _train_batches(self) -> None:
        # A change of the components counts from the next group of callbacks on; `calls` holds one group (L11).
        staged, position = self.staged, self._position
        train_step_batch, forward, loss = map(staged, ("train_step_batch", "forward", "loss"))
        backward, optimizer_step = map(staged, ("backward", "optimizer_step"))
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
        """The exact state of the training, at the end of a training batch: in `on_batch_end`, while `is_training`."""
        is_between = self.is_training and self._position.num_batches == self.batch_num + 1
        if not self._scope.stack or not is_between:
            raise StateError(
                "a state can be captured at the end of a training batch only",
                where=self._scope.place,
                hint="capture it in on_batch_end, while loop.is_training; put that component last",
            )
        return TrainingState(
            progress={
                "epoch_num": self.epoch_num,
                "num_batches": len(self.train_data),
                "optim_step_num": self.optim_step_num,
                "epochs_done": self._epochs_done,
            },
            position=own_copy(self._position.state_dict()),
            **capture_objects(self),
            extensions=capture_extensions(self.extensions),
            observers=observers_among(self.extensions),
            rng=own_copy(self._guards.training_rng()),
            data={"train": data_state(self.train_data), "valid": data_state(self.valid_data)},
        )

    def restore(self, state: TrainingState) -> None:
        """Become the training that was captured, in the next `train()`: right after `on_train_begin`, when optimizers exist."""
        if not isinstance(state, TrainingState):
            raise StateError(f"{shown(state)} is no training state", hint="give what capture() returned, or TrainingState.from_dict(...)")
        self._state = state

    def _take_up_state(self) -> None:
        state = self._state
        if state is not None:
            check_fits(state, self, self.extensions)
            check_length(self.train_data, state.progress["num_batches"])
            restore_objects(state, self, self.extensions)
            self._paused_extensions = own_copy(state.extensions)
            set_data_state(self.train_data, state.data["train"])
            set_data_state(self.valid_data, state.data["valid"])
            self.epoch_num = state.progress["epoch_num"]
            self.optim_step_num = state.progress["optim_step_num"]
            self._epochs_done = state.progress["epochs_done"]
            self._position.load_state_dict(own_copy(state.position), own_copy(state.rng))
            self._position.wake()
            self._state = None

    def _take_up_components(self) -> None:
        """In the middle of an epoch, components go on from their state then, whatever they did at the start of the epoch just now."""
        restore_extensions(self._paused_extensions, self.extensions)
        self._paused_extensions = {}

    # Details.

    def _check_idle(self, name: str) -> None:
        if self._scope.stack and (name == "train" or self._scope.path.endswith(("step_epoch", "step_batch"))):
            raise LoopError(f"{name}() was called while the loop runs", where=self._scope.place, hint="call it from outside the callbacks")

    def _begin_pass(self, desc: str, data: Any) -> None:
        self.epoch_desc = desc
        self.is_training, self.is_validating, self.is_testing = desc == "train", desc == "valid", desc == "test"
        self.n_batches = len(data)
        self._guards.look_again()

    def _call(self, name: str) -> None:
        for callback in self._callbacks[name]:
            callback(self)

    def _components_changed(self) -> None:
        """Take the components as they are now: their own callbacks for the loop, and all of them as extensions of its stages."""
        names: dict[str, object] = {}
        for component in self.components:
            _check_callbacks(component)
            name, number = default_name(component), 2
            while name in names and names[name] is not component:
                name, number = f"{default_name(component)}_{number}", number + 1
            names[name] = component
        self.extensions = names
        callbacks: dict[str, tuple[Callable[[Any], None], ...]] = {}
        for name in CALLBACKS:
            nothing = getattr(LoopComponent, name)
            found = (getattr(component, name, None) for component in self.components)
            callbacks[name] = tuple(call for call in found if callable(call) and getattr(call, "__func__", None) is not nothing)
        self._callbacks = callbacks

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
            hint="give a list or a DataLoader over a data set with a length; a TrainManager takes data without one",
        )
    if length == 0 and what == "train_data":
        raise empty_error(data, what)


def _check_callbacks(component: object) -> None:
    """Refuse a callback whose name is a slip; objects that have nothing to do with callbacks are left alone."""
    names = [name for name in dir(component) if name.startswith("on_") and callable(getattr(component, name, None))]
    if isinstance(component, LoopComponent) or set(names) & set(CALLBACKS):
        for name in names:
            if name not in CALLBACKS and not is_marked_not_a_hook(getattr(component, name)):
                raise UnknownHookError(
                    f"`{type(component).__name__}.{name}` is named like a callback, but there is none of that name",
                    known=", ".join(CALLBACKS),
                    hint=f"{did_you_mean(name, CALLBACKS)} A method that is no callback is marked @not_a_hook".strip(),
                )
