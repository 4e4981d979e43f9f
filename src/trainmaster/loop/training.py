"""Everything in a `TrainManager` except the loop itself: arguments, counters, default extensions and exact state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from trainmaster.errors import LoopError, StateError, shown
from trainmaster.loop.argument_checks import TrainDir, check_arguments, evaluation_sets, find_device
from trainmaster.loop.checkpoint_loader import CheckpointLoader
from trainmaster.loop.checkpoint_saver import CheckpointSaver
from trainmaster.loop.components import check_no_callbacks
from trainmaster.loop.data_position import Position, check_length, data_state, length_of, set_data_state
from trainmaster.loop.eval_metrics import EVAL_METRICS, Metrics
from trainmaster.loop.eval_state import EvalState
from trainmaster.loop.limits import Limits
from trainmaster.loop.loop_setup import Setup
from trainmaster.loop.observer_guard import Guards
from trainmaster.loop.optimization import (
    is_schedule,
    make_optimizer,
    parameters_with_used_gradients,
    step_moment,
    warn_of_unrelated_optimizer,
)
from trainmaster.loop.progress import Progress
from trainmaster.loop.rank_state import Shared, adapt_to_rank
from trainmaster.loop.ranks import find_ranks
from trainmaster.loop.stages import TRAIN_MANAGER, WORK
from trainmaster.loop.state import (
    Copy,
    TrainingState,
    capture_extensions,
    capture_objects,
    check_fits,
    extensions_of_evaluations,
    observers_among,
    own_copy,
    restore_extensions,
    restore_modules,
    restore_objects,
)
from trainmaster.loop.train_loss import TrainLoss
from trainmaster.loop.training_step import Loss, TrainingStep
from trainmaster.loop.writer import MemoryWriter, Writer
from trainmaster.stages import Extensions, StageTree
from trainmaster.stages.extension_map import ExtensionsLike, named_extensions
from trainmaster.stages.hooks import Guard, Hook
from trainmaster.store.checkpoint_folder import Moment
from trainmaster.store.events import RowsByName

EvalData = Mapping[str, Iterable[Any]] | Iterable[Any]
"""Evaluation sets by name, as a mapping or as (name, data) pairs; or the batches of one set."""


class Training(TrainingStep):
    """The base class of `TrainManager`. It has the arguments, counters, default extensions and exact state, but not the loop itself."""

    tree = TRAIN_MANAGER
    loss_arguments: ClassVar[tuple[str, str]] = ("batch", "prediction")
    """The arguments of `loss`, in order."""
    is_loss_optional: ClassVar[bool] = False
    """Whether the loss of an evaluation batch may be None. No loss is recorded for a set that contains such a batch."""

    train_dir = TrainDir()
    """The folder for checkpoints and for files of extensions, or None."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        epochs: int | None,
        train_data: Iterable[Any],
        eval_data: EvalData | None = None,
        *,
        metrics: Any = None,
        optimizer: Optimizer | Callable[[Any], Optimizer] | None = Adam,
        lr_schedule: Any = None,
        schedule_by: str | None = None,
        extensions: ExtensionsLike = (),
        device: str | torch.device = "auto",
        writer: Writer | None = None,
        train_dir: str | PathLike[str] | None = None,
        max_steps: int | None = None,
        max_time: float | None = None,
        evaluate_first: bool = True,
        eval_every: float = 1,
        initialization: Callable[[nn.Module], Any] | None = None,
        progress: bool = True,
    ) -> None:
        self.ranks = find_ranks()
        self.model = model
        self.loss = loss
        self.epochs = epochs
        self.train_data = train_data
        self.eval_data = evaluation_sets(eval_data)
        self.optimizer = optimizer if isinstance(optimizer, Optimizer) else None
        self.lr_schedule = lr_schedule if is_schedule(lr_schedule) else None
        self.schedule_by = schedule_by
        self.device = find_device(device)
        self.writer: Writer = MemoryWriter() if writer is None or not self.ranks.is_first else writer
        self._train_dir = None if train_dir is None else Path(train_dir)
        self.max_steps = max_steps
        self.max_time = max_time
        self.evaluate_first = evaluate_first
        self.eval_every = eval_every
        self.initialization = initialization
        self.progress = progress
        check_arguments(self, optimizer, lr_schedule)
        self._make_optimizer = None if isinstance(optimizer, Optimizer) else optimizer
        self._make_schedule = None if self.lr_schedule is not None else lr_schedule
        self._step_moment = step_moment(self.lr_schedule, schedule_by, self.eval_data)
        self._metrics = None if metrics is None else Metrics(metrics)
        self._default_progress = Progress()
        self._is_silent = False
        self._limits = Limits(self)
        self._position = Position()
        self._guards = Guards(lambda: self.model)
        self._guards.list_modules()
        self._evaluated_at: tuple[int, int] | None = None
        """The epoch and the batch of the last evaluation that `train()` started."""
        self._is_initialized = False
        self._has_weights = False
        self._is_training = False
        self._is_interrupted = False
        """Whether a stop was requested from outside the loop, which means that training will continue later."""
        self._is_due = False
        """Whether `train()` started the current evaluation."""
        self.shared = Shared(self, self._position, self._guards)
        self._paused_extensions: dict[str, Any] = {}
        """The states that the extensions had when training stopped in the middle of an epoch."""
        self._states_before: dict[str, str] = {}
        """Digests of the states that reused extensions had when `train()` was called."""
        self.extensions = [*self.extensions.items(), *named_extensions(extensions)]
        fixtures = {"train_manager": self, "loop": self, "fixtures": self.fixtures, "epoch_num": 0, "step_num": 0}
        fixtures |= {name: getattr(self, name) for name in ("model", "device", "writer", "optimizer", "lr_schedule")}
        self.staged("train_manager", fixtures).open_permanently()

    def __repr__(self) -> str:
        """Show the model and the progress. This also works for a loop whose constructor raised an error."""
        own = vars(self)
        parts = [type(own["model"]).__name__] if "model" in own else []
        if "_fixtures" in own and "step_num" in self.fixtures:
            of = f" of {own['epochs']}" if own.get("epochs") is not None else ""
            parts += [f"epoch {self.epoch_num}{of}", f"step {self.step_num}", f"on {self.device}"]
        return f"{type(self).__name__}({', '.join(parts)})"

    # The progress of training.

    @property
    def epoch_num(self) -> int:
        """The number of completed epochs."""
        return int(self.fixtures["epoch_num"])

    @property
    def step_num(self) -> int:
        """The number of completed updates."""
        return int(self.fixtures["step_num"])

    @property
    def moment(self) -> Moment:
        """The current position in training: epoch, batch and update. Each checkpoint records it."""
        return Moment(self.epoch_num, self._position.num_batches, self.step_num, self._evaluated_at == self._now)

    @property
    def _now(self) -> tuple[int, int]:
        return self.epoch_num, self._position.num_batches

    @property
    def epochs_done(self) -> float:
        """The number of completed epochs, including the completed fraction of the current epoch: 2.5 in the middle of the third epoch."""
        epoch_num, num_batches = self._now
        length = length_of(self.train_data) if num_batches else None
        return epoch_num if length is None else epoch_num + num_batches / length

    @property
    def mode_name(self) -> str | None:
        """The name of the running routine ("train", "eval" or "predict"), or None if none is running."""
        name: str | None = self.fixtures.get("mode_name")
        return name

    @property
    def eval_x(self) -> float:
        """The x value, in epochs, for the metrics of the current evaluation. It may be fractional in the middle of an epoch."""
        return self.epochs_done if self._is_due else self.epoch_num

    @property
    def has_begun(self) -> bool:
        """Whether the parameters have been initialized or restored."""
        return self._is_initialized

    @property
    def has_schedule(self) -> bool:
        """Whether there is a learning-rate schedule, even if it has not been built yet."""
        return self.lr_schedule is not None or self._make_schedule is not None

    @property
    def is_own_evaluation(self) -> bool:
        """Whether `train()` itself, and not a hook, started the current evaluation."""
        return self._is_due

    def is_over(self) -> bool:
        """Return whether `epochs` or `max_steps` has been reached, so that there is nothing left to train."""
        return self._limits.is_over()

    def is_out_of_time(self) -> bool:
        """Return whether `max_time` ended the last call to `train()`."""
        return self._limits.is_out_of_time()

    @property
    def history(self) -> RowsByName:
        """All recorded metrics: for each name, the (step, value) pairs in order.

        Under a manager, they are read from the run's event log.
        """
        rows: RowsByName | None = getattr(self.writer, "history", None)
        if not isinstance(rows, dict):
            raise LoopError(
                f"a {type(self.writer).__name__} keeps no `history`",
                hint="leave `writer` out, or read the values where that writer puts them",
            )
        return rows

    # Methods that a manager and the default extensions call.

    def configure(self, writer: Writer | None = None, train_dir: str | PathLike[str] | None = None, epochs: int | None = None) -> None:
        """Change where the loop writes and how long it trains. A manager calls this. None leaves a value unchanged."""
        if writer is not None:
            self.writer = writer
            self.fixtures.modify("writer", writer)
        if train_dir is not None:
            self._train_dir = Path(train_dir)
        if epochs is not None:
            self.epochs = epochs

    def silence(self) -> None:
        """Stop printing, because a manager reports the progress. A `Progress` that the user attached is kept."""
        self._is_silent = True
        if self.extensions.get("progress") is self._default_progress:
            del self.extensions["progress"]

    def build(self, with_optimizer: bool = True) -> None:
        """Move the model to the device, and the loss too if it is a module. Build the optimizer and the schedule unless they exist."""
        self.model.to(self.device)
        if isinstance(self.loss, nn.Module):
            self.loss.to(self.device)  # the loss may have class weights
        self._guards.list_modules()
        if with_optimizer:
            if self.optimizer is None and self._make_optimizer is not None:
                self.optimizer = make_optimizer(self.model, self._make_optimizer)
            if self.lr_schedule is None and self._make_schedule is not None:
                self.lr_schedule = self._make_schedule(self.optimizer)
            self._step_moment = step_moment(self.lr_schedule, self.schedule_by, self.eval_data)
            warn_of_unrelated_optimizer(self.model, self.optimizer)
        for name in ("model", "optimizer", "lr_schedule"):
            self.fixtures.modify(name, getattr(self, name))

    def initialize_once(self) -> None:
        """Initialize the parameters, unless training has already started or was restored."""
        if not self._is_initialized:
            self.fixtures(self.initialize_params)
            self._is_initialized = True

    def add_default_extensions(self, extensions: Extensions) -> None:
        if self._metrics is not None and EVAL_METRICS not in extensions:
            extensions.add(EVAL_METRICS, self._metrics, at_start=True)
        for name, default in (("train_loss", TrainLoss()), ("eval_state", EvalState()), ("setup", Setup())):
            if name not in extensions:
                extensions.add(name, default, at_start=True)
        if self.progress and not any(name == "progress" or isinstance(each, Progress) for name, each in extensions.items()):
            extensions.add("progress", self._default_progress)
        if self.train_dir is not None:
            for name, last in (("checkpoint_saver", CheckpointSaver()), ("checkpoint_loader", CheckpointLoader())):
                if name not in extensions:
                    extensions.add(name, last)

    def partner_trees(self) -> tuple[StageTree, ...]:
        return (WORK,)

    def _check_extension(self, name: str, extension: object) -> None:
        super()._check_extension(name, extension)
        check_no_callbacks(extension)

    def observer_guard(self) -> Guard | None:
        return self._guards

    def adapt_hook(self, hook: Hook, extension: object) -> Hook | None:
        return adapt_to_rank(hook, extension, self.ranks)

    # Exact state.

    def capture(self, copied: Copy = own_copy) -> TrainingState:
        """Capture the exact state of training, as a single value that shares no memory with the loop.

        This is only possible between two batches. With several ranks, all of them have to capture the state at the same
        time. The function `copied` copies values from the loop into the state.
        """
        self.ranks.synchronize(self.model)
        return replace(self.capture_own(copied), ranks=self.shared.random_states())

    def capture_own(self, copied: Copy = own_copy) -> TrainingState:
        """Capture only the state of this rank."""
        position = self._position
        if position.is_in_batch:
            raise StateError(
                "a state cannot be captured in the middle of a batch",
                where=f"stage {self._scope.path}",
                hint="capture it in post_train_step_batch or later; put that extension last",
            )
        if position.has_failed_batch or (self._is_due and self._evaluated_at != self._now):
            moment = "after an interrupted batch" if position.has_failed_batch else "in the middle of an evaluation"
            raise StateError(
                f"a state cannot be captured {moment}",
                where=self._scope.location,
                hint="capture it in post_train_step_batch, post_train_step_epoch or post_eval",
            )
        self.build()
        # Extensions are captured first, because this makes them write their buffered metrics, which the writer's state must include.
        extensions = copied(self._paused_extensions) or capture_extensions(self.extensions, copied)
        return TrainingState(
            progress={
                "num_batches": length_of(self.train_data),
                "epoch_num": self.epoch_num,
                "step_num": self.step_num,
                "evaluated_at": self._evaluated_at,
                "are_grads_spent": position.are_grads_spent,
                "is_initialized": self._is_initialized,
            },
            position=copied(position.state_dict()),
            **capture_objects(self, copied, parameters_with_used_gradients(self) if position.are_grads_spent else ()),
            extensions=extensions,
            observers=observers_among(self.extensions),
            rng=copied(self.shared.random_state()["rng"]),
            data={"train": data_state(self.train_data), "eval": {name: data_state(data) for name, data in self.eval_data.items()}},
        )

    def restore(self, state: TrainingState, copied: Copy = own_copy) -> None:
        """Restore a captured state. The next `train()` continues from it exactly, bit for bit.

        The function `copied` copies values from the state into the loop.
        """
        if not isinstance(state, TrainingState):
            raise StateError(
                f"{shown(state)} is not a training state", hint="pass the result of capture(), or TrainingState.from_dict(...)"
            )
        if self._is_training:
            raise StateError("a state cannot be restored while train() is running", hint="restore it before, or in a pre_run hook")
        self.build()
        own_position, own_rng = self.ranks.own_rng(state)
        check_fits(state, self, self.extensions)
        if state.data["eval"].keys() != self.eval_data.keys():
            raise StateError(
                "the state was captured with other evaluation sets",
                why=f"there: {', '.join(state.data['eval']) or 'none'}; here: {', '.join(self.eval_data) or 'none'}",
                hint="pass the same eval_data",
            )
        _check_length(self, state)
        self._paused_extensions = own_copy(state.extensions) if state.position["num_batches"] else {}
        restore_objects(state, self, self.extensions, copied)
        set_data_state(self.train_data, state.data["train"])
        for name, data in self.eval_data.items():
            set_data_state(data, state.data["eval"][name])
        self._set_counters(state)
        evaluated_at = state.progress["evaluated_at"]
        self._evaluated_at = None if evaluated_at is None else (evaluated_at[0], evaluated_at[1])
        self._position.are_grads_spent = state.progress["are_grads_spent"]
        self._is_initialized = True
        self._position.load_state_dict(own_copy(own_position), own_copy(own_rng))
        self.shared.outdated_by("restore", state)

    def restore_for_evaluation(self, state: TrainingState) -> None:
        """Load what evaluations need from a captured state: weights, counters, and the states of extensions that affect evaluations."""
        restore_modules(state, self)
        restore_extensions(state.extensions, extensions_of_evaluations(self.extensions))
        self._set_counters(state)
        self._has_weights = True
        self.shared.outdated_by("restore_for_evaluation", state)

    def start_with_weights_of(self, state: TrainingState) -> None:
        """Start a new training run with the weights of a captured state."""
        restore_modules(state, self)
        self._is_initialized = True
        self.shared.outdated_by("start_with_weights_of", state)

    def _set_counters(self, state: TrainingState) -> None:
        self.fixtures.modify("epoch_num", state.progress["epoch_num"])
        self.fixtures.modify("step_num", state.progress["step_num"])


def _check_length(loop: Training, state: TrainingState) -> None:
    """Raise an error if the length of `train_data` differs from its length when the state was captured.

    An extension may change the length of an epoch, so if the lengths differ, they are compared again after the extensions are restored.
    """
    try:
        check_length(loop.train_data, state.progress["num_batches"])
    except StateError:
        before = capture_extensions(loop.extensions)
        restore_extensions(state.extensions, loop.extensions)
        try:
            check_length(loop.train_data, state.progress["num_batches"])
        except StateError:
            restore_extensions(before, loop.extensions)
            raise
