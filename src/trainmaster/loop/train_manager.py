"""The training loop. Start reading at `train()`.

`training_step.py` contains the methods of one step, which you can override, and `training.py` contains the constructor,
the counters and the exact state. `stages.py` declares the stages and the fixtures that each stage owns.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch

from trainmaster.errors import LoopError, SettingError
from trainmaster.loop.argument_checks import other_evaluation_sets
from trainmaster.loop.batches import to_device
from trainmaster.loop.checkpoint_saver import CheckpointSaver
from trainmaster.loop.data_position import Position, empty_error, fresh_iterator, length_of, reading, start_epoch
from trainmaster.loop.keyboard import stopping_on_interrupt
from trainmaster.loop.losses import checked_loss
from trainmaster.loop.observer_guard import mode
from trainmaster.loop.optimization import all_parameters, schedule_step_arguments
from trainmaster.loop.reused_extensions import check_states, states_before
from trainmaster.loop.state import capture_extensions, not_copied, restore_extensions
from trainmaster.loop.training import EvalData, Training
from trainmaster.loop.writer import flush_of, mute
from trainmaster.store.checkpoint_folder import Moment
from trainmaster.store.events import RowsByName
from trainmaster.text import html_table


class TrainManager(Training):
    """Trains a model, evaluates it after every epoch, and runs the hooks of extensions at every stage.

    ```python
    loop = TrainManager(model, lambda batch, prediction: cross_entropy(prediction, batch[1]), epochs=3, train_data=loader,
                        eval_data={"valid": valid_loader})
    loop.train()
    ```

    It shows its progress, and records `train/loss` and `valid/loss` for each epoch in `loop.history`.

    The model is called with the whole batch and the loss with `(batch, prediction)`; override `model_forward` or
    `loss_forward` for anything else. For batches of (inputs, targets), use `Supervised`, which calls `model(inputs)`
    and `loss(prediction, targets)`. `optimizer` may be an object, or a callable that takes the parameters;
    `lr_schedule` may be an object, or a callable that takes the optimizer.

    Args:
        epochs: train until this many epochs are done in total, over all calls to `train()`; with None, only `max_steps`
            or `max_time` ends training.
        eval_data: a DataLoader or another iterable of batches, which becomes the set "valid"; or several sets by name.
        metrics: metrics over whole evaluation sets, in any form that `Metrics` accepts, such as `{"accuracy": accuracy}`
            with a function of (prediction, targets) or a torchmetrics object. They are recorded as `valid/accuracy` and
            shown next to the loss.
        schedule_by: when `lr_schedule` steps: after each "update", after each "epoch", or after each evaluation. For the
            last, pass the name of a metric ("valid/accuracy", or just "accuracy"), or the name of an evaluation set,
            which means its loss. The default is the `step_when` of the `SchedulerConfig` that made the schedule. Without
            such a config, the schedule steps after each update.
        device: "auto" means the first CUDA device if there is one, else the CPU.
        train_dir: the folder for checkpoints and for files from extensions. A new training run with the same folder
            resumes from the checkpoints in it. Without a folder, nothing is written.
        max_steps: stop after this many updates in total, over all calls to `train()`.
        max_time: stop after one call to `train()` has run for this many seconds.
        evaluate_first: also evaluate before the first epoch.
        eval_every: the number of epochs between two evaluations; 0.5 evaluates twice per epoch, 0 only at the end.
        initialization: a function that is called with the model before the first step of a new training run, unless the
            model has a method `initialize_params`.
        progress: False turns the progress bars off; your own `Progress` extension replaces the default one.
    """

    def train(self) -> None:
        """Train from the current state until `epochs`, `max_steps` or `max_time` is reached."""
        if self._is_training:
            raise LoopError(
                "train() is already running", where=self._scope.location, hint="hooks may call eval() and predict(), not train()"
            )
        for name, each in list(self.extensions.items()):
            if isinstance(each, CheckpointSaver):  # moved to the end, so that a checkpoint includes the changes of all other hooks
                self.extensions.add(name, each)
        self._states_before = states_before(self, self.extensions)
        with self._interruptible(), self._run(standalone_eval=False), self._training(), self.staged("train"):
            self._say(self.shared.notice())
            self._limits.start()
            self._position.wake()
            before = self.moment
            if not before.batch:
                self._evaluate_if_due()
            if self.moment == before and self.is_over():
                self._say(self._limits.nothing_left())
            while self._has_epochs_left():
                self._train_epoch()
                if self._position.num_batches and self.fixtures["stopped"] is None:
                    self.stop("a hook suppressed the error that ended the epoch")
                self._evaluate_if_due()
            if self.fixtures["stopped"] is not None and not self._position.num_batches:
                self._position.pause(self._guards.training_rng())
                self._mute_if_interrupted()
            self._report_stop(before)

    def _report_stop(self, before: Moment) -> None:
        """Print why a hook or another thread stopped training, if this call trained at all.

        Nothing is printed if training was stopped by a limit or by Ctrl-C.
        """
        reason = self.fixtures["stopped"]
        if reason is not None and self.moment != before and not self._is_interrupted and self._limits.reached() is None:
            self._say(f"stopped at {self._location_text()}: {reason}")

    def _mute_if_interrupted(self) -> None:
        """Mute the writer if training will continue later. The hooks that run now will run again then, and record the same rows."""
        is_interrupted = self._is_interrupted or self.ranks.interruption is not None or self.is_out_of_time()
        if is_interrupted and not self.is_over():
            capture_extensions(self.extensions)  # makes them write their buffered metrics
            mute(self.writer, True)

    def _has_epochs_left(self) -> bool:
        self.ranks.agree_on_stop(self.fixtures)
        is_ended = self.is_over() or self.fixtures["stopped"] is not None or self._limits.reached() is not None
        return not self.ranks.from_first(is_ended)  # the `max_time` clock differs from rank to rank

    def _say(self, text: str | None) -> None:
        if text is not None and not self._is_silent and self.ranks.is_first:
            print(f"trainmaster: {text}", file=sys.stderr)

    def _train_epoch(self) -> None:
        epoch_index = self.epoch_num
        self._guards.list_modules()
        with (
            mode(self.model, is_training=True),
            self.staged("train_step_epoch", {"epoch_index": epoch_index, "mode_name": "train"}),
        ):
            # If training continues in the middle of an epoch, restore the states that the extensions had at that point,
            # because their `pre_train_step_epoch` hooks may just have changed them.
            paused, self._paused_extensions = self._paused_extensions, {}
            restore_extensions(paused, self.extensions, not_copied)
            if self._now == (0, 0):
                check_states(self, self.extensions, self._states_before)
            mute(self.writer, False)
            start_epoch(self.train_data, epoch_index)
            if not self._train_batches():
                self._position.pause(self._guards.training_rng())
                self._paused_extensions = capture_extensions(self.extensions)
                self._mute_if_interrupted()
                return
            self._position.check_end(self.train_data, "train_data")
            if self.lr_schedule is not None and self._step_moment == "epoch":
                self.lr_schedule.step()
            self._position.reset()
            self.fixtures.modify("epoch_num", epoch_index + 1)

    def _train_batches(self) -> bool:
        """Train on the remaining batches of the epoch. Return False if a stop or a limit ended the epoch early, otherwise True."""
        # Everything that the batches share is looked up once. `values` holds the open fixtures. The fixtures of a batch are
        # set there directly, and read back for each use, because hooks may have modified them. They are removed when the
        # stage closes.
        values, position = self._scope.values, self._position
        train_step_batch, forward, loss = map(self.staged, ("train_step_batch", "forward", "loss"))
        backward, optimizer_step = map(self.staged, ("backward", "optimizer_step"))
        model_forward, loss_forward = map(self.overridden_or_shared, ("train_model_forward", "train_loss_forward"))
        # With several ranks, `batch` and `prediction` are this rank's part; the loss and the gradients are those of the whole batch.
        ranks, is_divided = self.ranks, self.ranks.num > 1
        own_data = ranks.divide(self.train_data, "train_data")
        parameters = all_parameters(self.model, self.optimizer) if is_divided else []
        own_size = self._own_size_function()
        is_moving = self.device.type != "cpu" or torch.accelerator.is_available()
        has_limits = self._limits.can_end_an_epoch
        is_evaluating_within = self._eval_interval() > 0
        if is_evaluating_within and position.num_batches:  # training may have been interrupted before this evaluation
            self._evaluate_within_epoch()
        self._scope.check_unused((*self.tree.own_fixtures("train_step_batch"), *self.tree.own_fixtures("backward")))
        with reading("train_data", position, self._scope), position.noting_failure():
            for batch in position.batches(self.train_data, "train_data", own_data, is_silent=not ranks.is_first):
                if is_moving:
                    batch = to_device(batch, self.device)
                number, position.is_in_batch = position.num_batches, True
                values["batch"], values["batch_num"], values["is_update"] = batch, number, True
                if is_divided:
                    ranks.begin_batch(own_data, number, own_size)
                with train_step_batch:
                    with forward:
                        values["prediction"] = model_forward(values["batch"])
                    with loss:
                        values["loss"] = loss_forward(values["batch"], values["prediction"])
                        if is_divided:
                            values["loss"] = ranks.whole_loss(values["loss"])
                    values["objective"] = values["loss"]  # hooks may scale the objective; the loss stays unscaled
                    with backward:
                        if position.are_grads_spent:
                            self.zero_grad()
                            position.are_grads_spent = False
                        self.backward(values["objective"])
                        if is_divided:
                            ranks.average_gradients(parameters)
                    if values["is_update"]:
                        with optimizer_step:
                            self.optimizer_step()
                            if self.lr_schedule is not None and self._step_moment == "update":
                                self.lr_schedule.step()
                            position.are_grads_spent = True
                            values["step_num"] += 1
                    position.num_batches, position.is_in_batch = number + 1, False
                if position.is_in_batch:  # a hook suppressed the error that ended the batch
                    if is_divided:
                        raise LoopError("a hook suppressed an error, and the other ranks wait for this batch", where=self._scope.location)
                    position.num_batches = number + 1
                    position.end_batch()
                if is_evaluating_within:
                    self._evaluate_within_epoch()
                if has_limits:
                    self._stop_at_limit()
                if is_divided:
                    ranks.agree_on_stop(self.fixtures)
                if values["stopped"] is not None:
                    return False
        return True

    def _stop_at_limit(self) -> None:
        """Stop if a limit is reached and the epoch has batches left. A completed epoch ends as usual."""
        limit = self._limits.reached() if self.fixtures["stopped"] is None and self.ranks.is_first else None
        if limit is not None and self._position.num_batches != length_of(self.train_data):
            self.stop(limit)

    def _evaluate_if_due(self) -> None:
        if self.fixtures["stopped"] is None and self._evaluated_at != self._now and self._is_eval_due():
            self._is_due = True
            try:
                self.eval()
            finally:
                self._is_due = False

    def _evaluate_within_epoch(self) -> None:
        if self._position.num_batches != length_of(self.train_data):  # otherwise the evaluation is due after the end of the epoch
            self._evaluate_if_due()

    def _is_eval_due(self) -> bool:
        epoch_num, num_batches = self._now
        if self._now == (0, 0):
            return self.evaluate_first
        if not num_batches and (self.eval_every == 1 or self.is_over()):
            return True
        interval, length = self._eval_interval(), length_of(self.train_data)
        if interval:
            return (epoch_num * length + num_batches) % interval == 0  # type: ignore[operator]  # it has a length
        return bool(self.eval_every) and not num_batches and epoch_num % self.eval_every == 0

    def _eval_interval(self) -> int:
        """Return the number of batches between two evaluations, or 0 if evaluations take place only between epochs."""
        if float(self.eval_every).is_integer():
            return 0
        length = length_of(self.train_data)
        if length is None:
            raise SettingError(f"eval_every={self.eval_every} needs train_data with a length", hint="use a whole number of epochs")
        return math.ceil(self.eval_every * length)

    def eval(self, eval_data: EvalData | None = None) -> None:
        """Evaluate the loop's evaluation sets in order, or the sets in `eval_data`. Hooks may call this during `train()`.

        `loop.eval({"test": loader})` records `test/loss`. Such an evaluation has no other effect: no schedule steps, no
        checkpoint becomes the best, and training does not stop early.
        """
        sets = self.eval_data if eval_data is None else other_evaluation_sets(eval_data, self.eval_data)
        with self._evaluation(is_own=eval_data is None), self.staged("eval", {"eval_losses": {}, "eval_metrics": {}}):
            for name, data in sets.items():
                self._eval_epoch(name, data)
                if self.fixtures["stopped"] is not None:
                    return
            if self._is_due:
                schedule = self.lr_schedule if self._step_moment not in ("update", "epoch") else None
                arguments = ()
                if schedule is not None:
                    arguments = self.ranks.from_first(schedule_step_arguments(self, self._step_moment) if self.ranks.is_first else ())
                self._evaluated_at = self._now
                if schedule is not None and self._now > (0, 0):
                    schedule.step(*arguments)

    def _eval_epoch(self, name: str, data: Iterable[Any]) -> None:
        values, staged, position, what = self._scope.values, self.staged, Position(), f"eval_data[{name!r}]"
        forward, loss = staged("forward"), staged("loss")
        ranks, own_data, own_size = self.ranks, self.ranks.divide(data, what), self._own_size_function()
        with (
            mode(self.model, is_training=False),
            staged("eval_step_epoch", {"datasource_name": name, "mode_name": "eval"}),
            reading(what, position, self._scope),
        ):
            for batch in fresh_iterator(own_data):
                with staged("eval_step_batch", {"batch": to_device(batch, self.device), "batch_num": position.num_batches}):
                    ranks.begin_batch(own_data, position.num_batches, own_size)
                    with forward:
                        values["prediction"] = self.eval_model_forward(values["batch"])
                    with loss:
                        values["loss"] = self.eval_loss_forward(values["batch"], values["prediction"])
                        if values["loss"] is not None or not self.is_loss_optional:
                            checked_loss(values["loss"])
                        values["loss"] = ranks.whole_loss(values["loss"])
                    position.num_batches += 1
                ranks.agree_on_stop(self.fixtures)
                if values["stopped"] is not None:
                    break
            if position.num_batches == 0:
                raise empty_error(data, what)

    def predict(self, data: Iterable[Any]) -> list[Any]:
        """Return the model's prediction for each batch in `data`, computed in eval mode and without gradients."""
        values, staged, position, predictions = self._scope.values, self.staged, Position(), list[Any]()
        with (
            self._run(standalone_eval=True),
            self._scope.set_aside("run"),
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

    def _own_size_function(self) -> Callable[[], int] | None:
        """Return a function that counts the samples in this rank's part of a batch.

        Return None if there is only one rank, or if no subclass overrides how samples are counted.
        """
        is_own = self.ranks.num > 1 and self.is_overridden("get_true_batch_size")
        return (lambda: self.get_true_batch_size(self._scope.values["batch"])) if is_own else None

    def stop(self, reason: str = "stop() was called", *, is_interrupt: bool = False) -> None:
        """Ask the running routine to end after the current batch.

        The routine closes all stages normally, with the reason in the fixture `stopped`. With several ranks, any of them may call
        this, and all of them stop after the same batch. `is_interrupt` means that the request came from outside, for
        example from a signal.
        """
        if "stopped" not in self.fixtures:
            raise LoopError(
                "nothing is running, so there is nothing to stop", hint="call stop() from a hook, or from another thread during train()"
            )
        self._is_interrupted = self._is_interrupted or is_interrupt
        self.ranks.request_stop(self.fixtures, reason, is_interrupt)

    def _repr_html_(self) -> str:
        """Return an HTML table that shows the progress, and the last value and step of each metric."""
        history: RowsByName = getattr(self.writer, "history", None) or {}
        rows = [(name, f"{points[-1][1]:.5g}", points[-1][0]) for name, points in history.items() if isinstance(points[-1][1], float)]
        return html_table(repr(self), ("metric", "last value", "step"), rows)

    # Context managers around the routines.

    @contextmanager
    def _run(self, standalone_eval: bool) -> Iterator[None]:
        """Open the stage `run` for a routine (train, eval or predict).

        If a hook of another routine calls this one, `run` is already open and stays open.
        """
        values = self._scope.values
        if "standalone_eval" in values:  # a hook of another routine called this one, and stopping that routine does not stop this one
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
                self.shared.share(standalone_eval)
                yield
        except BaseException as error:
            self.ranks.report_failure(error)
            raise
        finally:
            self.reset_stages()
            mute(self.writer, False)

    @contextmanager
    def _training(self) -> Iterator[None]:
        self._is_training, self._is_interrupted = True, False
        if self._position.num_batches:  # muted until the epoch continues, because its first hooks have already recorded their rows
            mute(self.writer, True)
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the first error is the one that is reported
                flush_of(self.writer)()
            raise
        else:
            flush_of(self.writer)()
        finally:
            self._is_training = False

    def _interruptible(self) -> AbstractContextManager[None]:
        """Return a context manager in which Ctrl-C asks the loop to stop and save.

        It does nothing if there is no saver, or if there are several ranks, because the program that started the ranks
        handles Ctrl-C.
        """
        saver = next((each for each in self.extensions.values() if isinstance(each, CheckpointSaver)), None)
        if saver is None or self.ranks.num > 1:
            return nullcontext()

        def how_to_continue() -> str:
            return f"saved at {self._location_text()} in {saver.path}; call train() again, or run the program again, to continue"

        return stopping_on_interrupt(lambda reason: self.stop(reason, is_interrupt=True), how_to_continue)

    def _location_text(self) -> str:
        return f"epoch {self.epoch_num}" + (f", batch {self.moment.batch}" if self.moment.batch else "")

    @contextmanager
    def _evaluation(self, is_own: bool) -> Iterator[None]:
        """Hide the fixtures of training during an evaluation, and restore them afterwards.

        Only an evaluation that `train()` starts on the loop's own sets affects schedules, checkpoints and early
        stopping.
        """
        was_due, self._is_due = self._is_due, self._is_due and is_own
        try:
            with self._run(standalone_eval=True), self._scope.set_aside("run", "train"), self._guards(), self.ranks.other_batches():
                self.ranks.synchronize(self.model)
                yield
        finally:
            self._is_due = was_due
