"""The full face of the loop: forward, loss, backward and step built in, and every variable a fixture.

Read from `train()` down: one screen per routine. The stages and who owns which fixture are declared in `loop/stages.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from trainmaster.errors import LoopError, SettingError, StateError
from trainmaster.loop import batches
from trainmaster.loop.batches import to_device
from trainmaster.loop.checkpoint_loader import CheckpointLoader
from trainmaster.loop.checkpoint_saver import CheckpointSaver
from trainmaster.loop.checkpoints import Moment
from trainmaster.loop.eval_state import EvalState
from trainmaster.loop.guard import Guards, mode
from trainmaster.loop.losses import backward_error, checked_loss
from trainmaster.loop.metric import find_metric, takes_metric
from trainmaster.loop.position import (
    Position,
    check_length,
    data_state,
    empty_error,
    fresh_iterator,
    length_of,
    reading,
    set_data_state,
    start_epoch,
)
from trainmaster.loop.settings import check_schedule, check_settings, chosen_device, evaluation_sets, is_schedule, shown
from trainmaster.loop.setup import Setup
from trainmaster.loop.stages import TRAIN_MANAGER, WORK
from trainmaster.loop.state import (
    Copy,
    TrainingState,
    capture_extensions,
    capture_objects,
    check_fits,
    observers_among,
    own_copy,
    restore_extensions,
    restore_modules,
    restore_objects,
    stateful_attributes,
)
from trainmaster.loop.writer import MemoryWriter, Writer
from trainmaster.stages import Extensible, Extensions, StageTree, fixture
from trainmaster.stages.extensions import ExtensionsLike, named
from trainmaster.stages.hooks import Guard

Loss = Callable[[Any, Any], torch.Tensor]
EvalData = Mapping[str, Iterable[Any]] | Iterable[tuple[str, Iterable[Any]]]


class TrainManager(Extensible):
    """Trains a model, evaluates it after every epoch, and lets extensions into every stage of both.

    ```python
    tm = TrainManager(model, lambda batch, prediction: cross_entropy(prediction, batch[1]), epochs=3, train_data=loader,
                      eval_data={"valid": valid_loader}, extensions=[Progress()])
    tm.train()
    ```

    The model is called with the whole batch and the loss with `(batch, prediction)`; override `model_forward` or `loss_forward` for
    anything else. `optimizer` and `lr_schedule` may be objects, or callables that get the parameters and the optimizer.

    Args:
        epochs: train until this many epochs are done, over all calls of `train()`; None leaves it to `max_steps` or `max_time`.
        eval_data: evaluation sets by name, in order.
        schedule_by: when `lr_schedule` steps: after each "update", each "epoch", or each evaluation, with the loss of the set of this name
            or with the recorded number of this name ("metrics/valid/accuracy").
        device: "auto" is the first CUDA device if there is one, else the CPU.
        train_dir: where extensions may write, and checkpoints are kept, from which a new training in it goes on; without it nothing is
            written.
        max_steps: stop after this many updates, over all calls.
        max_time: stop after this many seconds of one call of `train()`.
        evaluate_first: evaluate before the first epoch too.
        initialization: called with the model before the first step of a new training, unless the model has `initialize_params`.
    """

    tree = TRAIN_MANAGER

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        epochs: int | None,
        train_data: Iterable[Any],
        eval_data: EvalData | None = None,
        *,
        optimizer: Optimizer | Callable[[Any], Optimizer] | None = Adam,
        lr_schedule: Any = None,
        schedule_by: str = "update",
        extensions: ExtensionsLike = (),
        device: str | torch.device = "auto",
        writer: Writer | None = None,
        train_dir: str | PathLike[str] | None = None,
        max_steps: int | None = None,
        max_time: float | None = None,
        evaluate_first: bool = True,
        initialization: Callable[[nn.Module], Any] | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.epochs = epochs
        self.train_data = train_data
        self.eval_data = evaluation_sets(eval_data)
        self.optimizer = optimizer if isinstance(optimizer, Optimizer) else None
        self.lr_schedule = lr_schedule if is_schedule(lr_schedule) else None
        self.schedule_by = schedule_by
        self.device = chosen_device(device)
        self._is_moving = self.device.type != "cpu" or torch.accelerator.is_available()
        self.writer: Writer = MemoryWriter() if writer is None else writer
        self.train_dir = None if train_dir is None else Path(train_dir)
        self.max_steps = max_steps
        self.max_time = max_time
        self.evaluate_first = evaluate_first
        self.initialization = initialization
        self._make_optimizer = None if isinstance(optimizer, Optimizer) else optimizer
        self._make_schedule = None if self.lr_schedule is not None else lr_schedule
        check_settings(self, optimizer, lr_schedule)
        check_schedule(self.lr_schedule, schedule_by, self.eval_data)

        self._position = Position()
        self._guards = Guards(lambda: self.model)
        self._evaluated_epoch: int | None = None
        self._is_initialized = False
        self._has_weights = False
        self._deadline: float | None = None
        self._is_training = False
        self._is_due = False
        """The evaluation that runs is the one of training itself, not one that a hook asked for."""
        self._paused_extensions: dict[str, Any] = {}
        self._guards.look_again()
        self.extensions = [*self.extensions.items(), *named(extensions)]
        self.staged(
            "train_manager",
            {
                "train_manager": self,
                "loop": self,
                "fixtures": self.fixtures,
                "model": model,
                "device": self.device,
                "writer": self.writer,
                "optimizer": self.optimizer,
                "lr_schedule": self.lr_schedule,
                "epoch_num": 0,
                "step_num": 0,
            },
        ).open_for_good()

    # The routines.

    def train(self) -> None:
        """Train until `epochs`, `max_steps` or `max_time` is reached, from wherever the training is."""
        if self._is_training:
            raise LoopError("train() runs already", where=self._scope.place, hint="hooks may call eval() and predict(), not train()")
        with self._run(standalone_eval=False), self._training(), self.staged("train"):
            self._deadline = None if self.max_time is None else time.monotonic() + self.max_time
            self._position.wake()
            self._evaluate_if_due()
            while self._goes_on():
                self._train_epoch()
                if self._is_mid_epoch() and self.fixtures["stopped"] is None:
                    self.stop("an error that ended the epoch was swallowed by a hook")
                self._evaluate_if_due()
            if self.fixtures["stopped"] is not None and not self._is_mid_epoch():
                self._position.pause(self._guards.training_rng())

    def _train_epoch(self) -> None:
        epoch_index = self.epoch_num
        self._guards.look_again()
        with (
            mode(self.model, is_training=True),
            self.staged("train_step_epoch", {"epoch_index": epoch_index, "mode_name": "train"}),
        ):
            self._take_up_extensions()
            start_epoch(self.train_data, epoch_index)
            if not self._train_batches():
                self._position.pause(self._guards.training_rng())
                self._paused_extensions = capture_extensions(self.extensions)
                return
            self._position.check_end(self.train_data, "train_data")
            if self.lr_schedule is not None and self.schedule_by == "epoch":
                self.lr_schedule.step()
            self._position.reset()
            self.fixtures.modify("epoch_num", epoch_index + 1)

    def _train_batches(self) -> bool:
        """Train on the batches of the epoch that are left; False where a stop or a limit ended it."""
        # All that the batches share is fetched once. `values` are the open fixtures: what the tree gives to a batch is set there
        # directly, ends with its stage, and is read back for each use, because hooks may have modified it.
        values, position = self._scope.values, self._position
        train_step_batch, forward, loss = map(self.staged, ("train_step_batch", "forward", "loss"))
        backward, optimizer_step = map(self.staged, ("backward", "optimizer_step"))
        model_forward, loss_forward = self._own("train_model_forward"), self._own("train_loss_forward")
        has_limits = self.max_steps is not None or self._deadline is not None
        self._scope.check_free((*self.tree.own_fixtures("train_step_batch"), *self.tree.own_fixtures("backward")))
        with reading("train_data", position, self._scope), position.breaking_off():
            for batch in position.batches(self.train_data, "train_data"):
                if self._is_moving:
                    batch = to_device(batch, self.device)
                number, position.is_in_batch = position.num_batches, True
                values["batch"], values["batch_num"], values["is_update"] = batch, number, True
                with train_step_batch:
                    with forward:
                        values["prediction"] = model_forward(values["batch"])
                    with loss:
                        values["loss"] = loss_forward(values["batch"], values["prediction"])
                    values["objective"] = values["loss"]  # what hooks scale; the loss stays what it is
                    with backward:
                        if position.are_grads_spent:
                            self.zero_grad()
                            position.are_grads_spent = False
                        self.backward(values["objective"])
                    if values["is_update"]:
                        with optimizer_step:
                            self.optimizer_step()
                            if self.lr_schedule is not None and self.schedule_by == "update":
                                self.lr_schedule.step()
                            position.are_grads_spent = True
                            values["step_num"] += 1
                    position.num_batches, position.is_in_batch = number + 1, False
                if position.is_in_batch:  # its error was swallowed by a hook
                    position.num_batches = number + 1
                    position.end_batch()
                if values["stopped"] is not None or (has_limits and self._is_over_limit()):
                    return False
        return True

    def eval(self) -> None:
        """Evaluate all sets, in order; on its own, or within `train()`."""
        with self._run(standalone_eval=True), self._scope.aside("run", "train"), self._guards(), self.staged("eval", {"eval_losses": {}}):
            for name, data in self.eval_data.items():
                self._eval_epoch(name, data)
                if self.fixtures["stopped"] is not None:
                    return
            if self._is_due:
                schedule = self.lr_schedule if self.schedule_by not in ("update", "epoch") and self.epoch_num > 0 else None
                watched = self._watched() if schedule is not None and takes_metric(schedule) else ()
                self._evaluated_epoch = self.epoch_num
                if schedule is not None:
                    schedule.step(*watched)

    def _eval_epoch(self, name: str, data: Iterable[Any]) -> None:
        values, staged, position, what = self._scope.values, self.staged, Position(), f"eval_data[{name!r}]"
        forward, loss = staged("forward"), staged("loss")
        with (
            mode(self.model, is_training=False),
            staged("eval_step_epoch", {"datasource_name": name, "mode_name": "eval"}),
            reading(what, position, self._scope),
        ):
            for batch in fresh_iterator(data):
                with staged("eval_step_batch", {"batch": to_device(batch, self.device), "batch_num": position.num_batches}):
                    with forward:
                        values["prediction"] = self.eval_model_forward(values["batch"])
                    with loss:
                        values["loss"] = checked_loss(self.eval_loss_forward(values["batch"], values["prediction"]))
                    position.num_batches += 1
                if values["stopped"] is not None:
                    break
            if position.num_batches == 0:
                raise empty_error(data, what)

    def predict(self, data: Iterable[Any]) -> list[Any]:
        """The model's predictions for each batch of `data`, in eval mode and without gradients."""
        values, staged, position, predictions = self._scope.values, self.staged, Position(), list[Any]()
        with (
            self._run(standalone_eval=True),
            self._scope.aside("run"),
            self._guards(),
            mode(self.model, is_training=False),
            staged("predict", {"mode_name": "predict"}),
            reading("data", position, self._scope),
        ):
            for batch in fresh_iterator(data):
                with staged("predict_step_batch", {"batch": to_device(batch, self.device), "batch_num": position.num_batches}):
                    with staged("forward"):
                        values["prediction"] = self.eval_model_forward(values["batch"])
                    predictions.append(values["prediction"])
                    position.num_batches += 1
                if values["stopped"] is not None:
                    break
        return predictions

    def stop(self, reason: str = "stop() was called") -> None:
        """Ask the running routine to end: the batch is finished, all stages close normally and see `stopped`."""
        if "stopped" not in self.fixtures:
            raise LoopError("nothing runs that could be stopped", hint="call stop() from a hook, or from another thread during train()")
        self.fixtures.modify("stopped", reason)

    # What a subclass may override.

    def model_forward(self, batch: Any) -> Any:
        return self.model(batch)

    def train_model_forward(self, batch: Any) -> Any:
        return self.model_forward(batch)

    def eval_model_forward(self, batch: Any) -> Any:
        return self.model_forward(batch)

    def loss_forward(self, batch: Any, prediction: Any) -> Any:
        return self.loss(batch, prediction)  # type: ignore[misc]  # None is refused on construction, unless this is overridden

    def train_loss_forward(self, batch: Any, prediction: Any) -> Any:
        return self.loss_forward(batch, prediction)

    def eval_loss_forward(self, batch: Any, prediction: Any) -> Any:
        return self.loss_forward(batch, prediction)

    def zero_grad(self) -> None:
        (self.optimizer or self.model).zero_grad()

    def backward(self, loss: Any) -> None:
        try:
            loss.backward()
        except (RuntimeError, AttributeError) as error:
            blamed = backward_error(loss, error)
            if blamed is None:
                raise
            raise blamed from error

    def optimizer_step(self) -> None:
        self.optimizer.step()  # type: ignore[union-attr]  # built, or refused, before the first step

    def get_true_batch_size(self, batch: Any) -> int:
        return batches.true_batch_size(batch)

    def initialize_params(self) -> None:
        """Give a new model its first weights: by its own `initialize_params` (which may take fixtures), else by `initialization`."""
        own = getattr(self.model, "initialize_params", None)
        if callable(own):
            self.fixtures(own)
        elif self.initialization is not None:
            self.initialization(self.model)

    @fixture("train_step_batch", "eval_step_batch", "predict_step_batch")
    def true_batch_size(self, batch: Any) -> int:
        """The number of samples in the batch; counted when a hook asks."""
        return self.get_true_batch_size(batch)

    # Where the training is.

    @property
    def epoch_num(self) -> int:
        """Epochs done."""
        return int(self.fixtures["epoch_num"])

    @property
    def step_num(self) -> int:
        """Updates done."""
        return int(self.fixtures["step_num"])

    @property
    def moment(self) -> Moment:
        """Where the training is, as checkpoints tell it."""
        return Moment(self.epoch_num, self._position.num_batches, self.step_num, self._evaluated_epoch == self.epoch_num)

    def is_over(self) -> bool:
        """Whether `epochs` or `max_steps` is reached: there is nothing left to train."""
        has_epochs = self.epochs is not None and self.epoch_num >= self.epochs
        return has_epochs or (self.max_steps is not None and self.step_num >= self.max_steps)

    def is_out_of_time(self) -> bool:
        """Whether `max_time` ended the last call of `train()`."""
        return self._deadline is not None and time.monotonic() >= self._deadline and not self.is_over()

    @property
    def has_begun(self) -> bool:
        """Whether its parameters were initialised or restored."""
        return self._is_initialized

    @property
    def mode_name(self) -> str | None:
        """What runs: "train", "eval" or "predict"; None between routines."""
        name: str | None = self.fixtures.get("mode_name")
        return name

    @property
    def history(self) -> dict[str, list[tuple[int | None, Any]]]:
        """What the default writer kept: for each tag the (step, value) pairs."""
        if not isinstance(self.writer, MemoryWriter):
            raise LoopError(
                f"`history` is kept by the default writer, this manager writes to a {type(self.writer).__name__}",
                hint="leave `writer` out, or read the values where that writer puts them",
            )
        return self.writer.history

    def capture(self, copied: Copy = own_copy) -> TrainingState:
        """The exact state of the training, as one value that shares nothing with it. Between two batches only.

        `copied` makes the copies of its parts.
        """
        if self._position.is_in_batch:
            raise StateError(
                "a state cannot be captured in the middle of a batch",
                where=f"stage {self._scope.path}",
                hint="capture it in post_train_step_batch or later; put that extension last",
            )
        if self._position.is_broken_off or (self._is_due and self._evaluated_epoch != self.epoch_num):
            broken = "after a batch that broke off" if self._position.is_broken_off else "in the middle of an evaluation"
            raise StateError(
                f"a state cannot be captured {broken}",
                where=self._scope.place,
                hint="capture it in post_train_step_batch, post_train_step_epoch or post_eval",
            )
        self.build()
        # First, because extensions now write what waits to be written, and the writer's state has to have it.
        extensions = copied(self._paused_extensions) or capture_extensions(self.extensions, copied)
        return TrainingState(
            progress={
                "num_batches": length_of(self.train_data),
                "epoch_num": self.epoch_num,
                "step_num": self.step_num,
                "evaluated_epoch": self._evaluated_epoch,
                "are_grads_spent": self._position.are_grads_spent,
                "is_initialized": self._is_initialized,
            },
            position=copied(self._position.state_dict()),
            **capture_objects(self, copied),
            extensions=extensions,
            observers=observers_among(self.extensions),
            rng=copied(self._position.paused or self._guards.training_rng()),
            data={"train": data_state(self.train_data), "eval": {name: data_state(data) for name, data in self.eval_data.items()}},
        )

    def settle(self, writer: Writer | None = None, train_dir: str | PathLike[str] | None = None, epochs: int | None = None) -> None:
        """Take what a host gives: where to write, and how long to train. None leaves what there is."""
        if writer is not None:
            self.writer = writer
            self.fixtures.modify("writer", writer)
        if train_dir is not None:
            self.train_dir = Path(train_dir)
        if epochs is not None:
            self.epochs = epochs

    def restore(self, state: TrainingState) -> None:
        """Become the training that was captured; the next `train()` goes on from there, bit for bit."""
        if not isinstance(state, TrainingState):
            raise StateError(f"{shown(state)} is no training state", hint="give what capture() returned, or TrainingState.from_dict(...)")
        if self._is_training:
            raise StateError("a state cannot be restored while train() runs", hint="restore it before, or in a pre_run hook")
        self.build()
        check_fits(state, self, self.extensions)
        if state.data["eval"].keys() != self.eval_data.keys():
            raise StateError(
                "the state was captured with other evaluation sets",
                why=f"there: {', '.join(state.data['eval']) or 'none'}; here: {', '.join(self.eval_data) or 'none'}",
                hint="give the same eval_data",
            )
        check_length(self.train_data, state.progress["num_batches"])
        restore_objects(state, self, self.extensions)
        self._paused_extensions = own_copy(state.extensions) if state.position["num_batches"] else {}
        set_data_state(self.train_data, state.data["train"])
        for name, data in self.eval_data.items():
            set_data_state(data, state.data["eval"][name])
        progress = state.progress
        self.fixtures.modify("epoch_num", progress["epoch_num"])
        self.fixtures.modify("step_num", progress["step_num"])
        self._evaluated_epoch = progress["evaluated_epoch"]
        self._position.are_grads_spent = progress["are_grads_spent"]
        self._is_initialized = True
        self._position.load_state_dict(own_copy(state.position), own_copy(state.rng))

    def begin_with_weights(self) -> None:
        """The parameters are what they are: nobody initialises them."""
        self._is_initialized = True

    def restore_modules(self, state: TrainingState) -> None:
        """Take the weights of a captured training, to evaluate them; what else belongs to training is left out."""
        restore_modules(state, self)
        restore_extensions(state.extensions, {name: each for name, each in self.extensions.items() if getattr(each, "has_weights", False)})
        self.fixtures.modify("epoch_num", state.progress["epoch_num"])
        self.fixtures.modify("step_num", state.progress["step_num"])
        self._has_weights = True

    # What this room calls.

    def stateful_names(self) -> list[str]:
        """The attributes whose states are captured."""
        return list(stateful_attributes(self))

    def is_overridden(self, method: str) -> bool:
        """Has a subclass, or somebody on this object, its own version of `method`?"""
        return getattr(type(self), method) is not getattr(TrainManager, method) or method in vars(self)

    def build(self, with_optimizer: bool = True) -> None:
        """Move the model to the device; make the optimizer and the schedule where they were given as callables."""
        self.model.to(self.device)
        self._guards.look_again()
        if with_optimizer:
            self._build_optimizer()
        for name in ("model", "optimizer", "lr_schedule"):
            self.fixtures.modify(name, getattr(self, name))

    def _build_optimizer(self) -> None:
        if self.optimizer is None and self._make_optimizer is not None:
            parameters = [each for each in self.model.parameters() if each.requires_grad]
            if not parameters:
                raise SettingError(
                    f"the model {type(self.model).__name__} has no parameter to train",
                    why="all its parameters are frozen" if any(True for _ in self.model.parameters()) else "it has no parameters",
                    hint="evaluate it with eval(), give an optimizer of your own, or check that layers are attributes of the module",
                )
            self.optimizer = self._make_optimizer(parameters)
        if self.lr_schedule is None and self._make_schedule is not None:
            self.lr_schedule = self._make_schedule(self.optimizer)
            check_schedule(self.lr_schedule, self.schedule_by, self.eval_data)

    def initialize_once(self) -> None:
        """Initialise the parameters, unless this training has begun or was restored."""
        if not self._is_initialized:
            self.fixtures(self.initialize_params)
            self._is_initialized = True

    def observer_guard(self) -> Guard | None:
        return self._guards

    # Details.

    @contextmanager
    def _run(self, standalone_eval: bool) -> Iterator[None]:
        """The stage `run`, opened by the outermost routine (E24)."""
        values = self._scope.values
        if "standalone_eval" in values:  # called from within another routine: a stop that was asked of that one is not for this one
            outer, values["stopped"] = values["stopped"], None
            try:
                yield
            finally:
                values["stopped"] = values["stopped"] or outer
            return
        self._guards.forget()
        try:
            with self.staged("run", {"standalone_eval": standalone_eval, "stopped": None}):
                with self.staged("load_checkpoint", {"checkpoint_loaded": self._is_initialized or self._has_weights}):
                    pass
                yield
        finally:
            self.forget()

    @contextmanager
    def _training(self) -> Iterator[None]:
        self._is_training = True
        try:
            yield
        finally:
            self._is_training = False

    def _evaluate_if_due(self) -> None:
        if self._needs_evaluation():
            self._is_due = True
            try:
                self.eval()
            finally:
                self._is_due = False

    def _take_up_extensions(self) -> None:
        """In the middle of an epoch, extensions go on from their state then, whatever they did at the start of the epoch just now."""
        restore_extensions(self._paused_extensions, self.extensions)
        self._paused_extensions = {}

    def _watched(self) -> tuple[float]:
        """The number that the schedule steps by, as the arguments of its `step`."""
        name = self.schedule_by
        found = find_metric(name, self.fixtures["eval_losses"], self.writer)
        if found is not None:
            return (found.value,)
        if name in self.eval_data:
            raise LoopError(
                f"lr_schedule steps by the loss of {name!r}, which nobody recorded",
                why="the extension `eval_state` fills the fixture `eval_losses`, and was replaced",
                hint=f'let yours do it too: eval_losses["{name}"] = ...',
            )
        raise LoopError(
            f"lr_schedule steps by {name!r}, which nobody recorded in the evaluation",
            why=None
            if hasattr(self.writer, "last")
            else f"the writer, a {type(self.writer).__name__}, cannot tell: it has no method `last(tag)`",
            hint="an extension records it, by writer.add_scalar, no later than in post_eval_step_epoch",
        )

    def _own(self, name: str) -> Callable[..., Any]:
        """`train_model_forward`, or `model_forward` itself where nobody has anything else to say: one call less per batch."""
        method: Callable[..., Any] = getattr(self, name if self.is_overridden(name) else name.removeprefix("train_"))
        return method

    def _goes_on(self) -> bool:
        is_due = self.epochs is None or self.epoch_num < self.epochs
        return is_due and self.fixtures["stopped"] is None and self._limit() is None

    def _limit(self) -> str | None:
        if self.max_steps is not None and self.fixtures["step_num"] >= self.max_steps:
            return f"max_steps={self.max_steps} is reached"
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return f"max_time={self.max_time} s is over"
        return None

    def _is_over_limit(self) -> bool:
        """Is a limit reached with batches of this epoch left? Then stop, as stop() would. An epoch that is done ends as usual."""
        limit = self._limit()
        if limit is None or self._position.num_batches == length_of(self.train_data):
            return False
        self.stop(limit)
        return True

    def _is_mid_epoch(self) -> bool:
        return self._position.num_batches > 0

    def _needs_evaluation(self) -> bool:
        if self._is_mid_epoch() or self.fixtures["stopped"] is not None or self._evaluated_epoch == self.epoch_num:
            return False
        return self.evaluate_first or self.epoch_num > 0

    def complete(self, extensions: Extensions) -> None:
        for name, default in (("eval_state", EvalState()), ("setup", Setup())):
            if name not in extensions:
                extensions.add(name, default, at_start=True)
        if self.train_dir is not None:
            for name, last in (("checkpoint_saver", CheckpointSaver()), ("checkpoint_loader", CheckpointLoader())):
                if name not in extensions:
                    extensions.add(name, last)

    def partner_trees(self) -> tuple[StageTree, ...]:
        return (WORK,)
