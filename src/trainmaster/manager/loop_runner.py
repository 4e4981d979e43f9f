"""`LoopRunner`: trains the loop of a run, records its metrics, shows its progress and saves its checkpoints."""

from __future__ import annotations

import copy
import functools
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from trainmaster.config.seed import seed_of
from trainmaster.errors import ExtensionError, SettingError
from trainmaster.extensions.constructor_args import ConstructorArgs
from trainmaster.extensions.ema import EMA
from trainmaster.extensions.run_report import RunReport, current_commit
from trainmaster.loop.checkpoint_loader import checked, restore_from
from trainmaster.loop.checkpoint_saver import CheckpointSaver
from trainmaster.loop.metric import loss_name, own_first
from trainmaster.loop.module_recorder import ModuleRecorder
from trainmaster.loop.notebook_bars import is_in_notebook
from trainmaster.loop.progress import Pace, Progress
from trainmaster.loop.stages import TRAIN_MANAGER
from trainmaster.loop.state import TrainingState
from trainmaster.loop.train_manager import TrainManager
from trainmaster.loop.writer import MemoryWriter
from trainmaster.manager.attempt_checkpoints import AttemptCheckpoints
from trainmaster.manager.executor import BY_BATCH, Report
from trainmaster.manager.interrupts import Interrupts
from trainmaster.manager.job import Job, config_epochs
from trainmaster.manager.loop_metrics import LoopMetrics, position_of
from trainmaster.manager.manager import Manager
from trainmaster.manager.overview import find_number
from trainmaster.manager.run_writer import RunWriter
from trainmaster.manager.session import InitialStates
from trainmaster.stages.checker import belongs_to
from trainmaster.stages.hooks import Hook, LazyFixture, find_hooks, find_lazy_fixtures
from trainmaster.store import Attempt, Run
from trainmaster.store.checkpoint import Checkpoint
from trainmaster.text import counted

SAVER, LOADER = "checkpoint_saver", "checkpoint_loader"
_MAX_PREVIEW = 200
"""The maximum number of metrics in a preview."""


_first_commit = functools.cache(current_commit)
"""Returns the git commit that was checked out when this process first trained a run in a batch.

The commit is cached, because calling git takes as long as a short run.
"""


class LoopRunner:
    """Attaches the manager's extensions to the loop of one run, and trains the loop."""

    def __init__(self, manager: Manager, loop: TrainManager) -> None:
        self._manager, self.loop, runner = manager, loop, manager.job_runner
        self._times, self._console, self._report = runner.session.times, runner.console, runner.invocation.report
        writer = loop.writer  # `make_loop` may have set its own writer or attached loggers; they receive the rows of the run
        is_default = type(writer) is MemoryWriter  # a subclass may do more with a row than store it
        self._user_writer = None if is_default else writer
        self.writer = RunWriter(writer.loggers if isinstance(writer, MemoryWriter) and is_default else None)
        self.is_over = False
        """Whether training was complete at the last save."""
        self.stopped: str | None = None
        """Why a hook stopped training before the last epoch, or None."""
        self._num_planned: int | None = None
        """The number of epochs that was planned when the run was started. A learning-rate schedule may have been built for this number."""
        self._is_resumed = False
        self._saved_preview: dict[str, Any] = {}
        self._stop_reason: Callable[[], str | None] = lambda: None
        self._saver = self._take_saver()

    def _take_saver(self) -> CheckpointSaver:
        """Remove the loop's checkpoint loader and saver, and return the saver that the manager uses instead."""
        extensions = self.loop.extensions
        extensions.pop(LOADER, None)
        saver = extensions.pop(SAVER, None)
        if saver is not None and not isinstance(saver, CheckpointSaver):
            raise SettingError(f"`{SAVER}` is a {type(saver).__name__}", hint="under a manager, CheckpointSaver saves to the store")
        if saver is not None and saver.has_own_path:
            raise SettingError(
                f"CheckpointSaver has the path {saver.path}", hint="under a manager checkpoints go to the store: leave it out"
            )
        return CheckpointSaver(every_epochs=self._manager.save_interval) if saver is None or saver.has_default_settings else saver

    @property
    def monitor(self) -> str | None:
        """The metric that selects the best checkpoint, or None for the loss on the first evaluation set."""
        return self._saver.monitor

    def attach(self, initial_states: InitialStates, attempt: Attempt | None) -> None:
        """Attach the manager's extensions that have loop hooks, and the extensions that show, record and save the run."""
        loop = self.loop
        loop.silence()
        for name, extension in self._manager.extensions.items():
            if has_loop_hooks(name, extension):
                initial_states.restore(extension)
                loop.add_extension(name, extension)
        for name, extension in self._displays(attempt.by != BY_BATCH).items() if attempt is not None else ():
            if not any(isinstance(each, type(extension)) for each in loop.extensions.values()):
                loop.add_extension(name, extension, as_default=True)
        loop.add_extension("loop_metrics", LoopMetrics(self.writer, self._times, self._on_evaluated, lambda: self._stop_reason()))
        loop.add_extension(SAVER, self._saver)
        self.writer.locate(lambda: position_of(loop))
        loop.configure(writer=self.writer)

    def _displays(self, is_single: bool) -> dict[str, object]:
        """Return the extensions that show the run. In a batch, lines about a run are only written to its log."""
        write = self._console.print if is_single else self._console.log_line
        facts = [("seed", f"{seed_of(self._manager.config)}"), ("store", self._manager.store.root or "in memory")]
        if not is_single:
            facts.append(("commit", _first_commit()))
        is_shown = self._console.width is not None or (self._console.is_verbose and is_in_notebook())
        has_bars = self._console.has_bars and is_shown and is_single
        progress = Progress(has_lines=False) if has_bars else Progress(has_lines=False, output=write, on_update=self._report_share)
        return {"run_report": RunReport(write, facts), "progress": progress}

    def train(self, job: Job, attempt: Attempt, interrupts: Interrupts) -> None:
        """Train up to the job's number of epochs, with `TrainManager.train()`."""
        manager, loop = self._manager, self.loop
        self._set_target(job)
        loop.configure(train_dir=manager.store.folder_of(attempt))
        self._connect(attempt, interrupts)
        share = Pace().done(loop, loop.moment.batch)
        self._report(Report(job.key, "progress", epoch=manager.epoch, num_epochs=loop.epochs, share=share, is_first=True))
        manager.job_runner.check_stop()
        if (notice := loop.shared.notice()) is not None:
            self._console.print(notice)
        with manager.staged("work_train"):
            loop.train()
        if loop.ranks.interruption is not None:
            interrupts.request_stop(loop.ranks.interruption)  # the signal may have reached another rank
        preview = self.preview()
        manager.advance_to(loop.epoch_num, preview)
        if self.is_over and preview != self._saved_preview and loop.ranks.is_first:  # hooks recorded metrics after the last checkpoint
            attempt.publish_preview(preview)

    def _set_target(self, job: Job) -> None:
        """Set the loop's number of epochs, and print a message if its learning-rate schedule was built for fewer epochs."""
        self.loop.configure(epochs=job.num_epochs)
        epochs, own = self.loop.epochs, config_epochs(job.config)
        if self._num_planned is None and epochs is not None:
            self._num_planned = epochs if own is None else min(own, epochs)
        if self._is_beyond_plan():
            remedy = (
                "`--fresh` (`resume=False`) trains it from scratch"
                if self._is_resumed
                else f"`epochs={epochs}` in the config builds it for all of them"
            )
            self._console.print(
                f"run {job.key} was planned for {counted(self._num_planned or 0, 'epoch')}: beyond that, its learning-rate schedule"
                f" continues as it was built; {remedy}"
            )

    def _connect(self, attempt: Attempt, interrupts: Interrupts) -> None:
        """Write metrics and checkpoints to an attempt from now on."""
        manager = self._manager
        self.writer.hide(attempt.mask)
        self.writer.append_to(attempt.log.append, lambda: attempt.run.events(attempt.number))
        if self._user_writer is not None:
            self.writer.copy_to(self._user_writer)
        self.writer.mute(self._is_resumed)
        self._stop_reason = lambda: interrupts.reason or self.loop.ranks.interruption
        # In a batch, drawing would take longer than the rest of a short run.
        sets = None if attempt.by == BY_BATCH else ("train", *self.loop.eval_data)
        keep = self._saver.keep or manager.keep
        self._saver.save_to(AttemptCheckpoints(attempt, keep, self._facts, interrupts.no_deadline, manager.store.root, sets))

    def restore(self, run: Run, checkpoint: Checkpoint, preview: Mapping[str, Any]) -> None:
        """Restore the loop from a checkpoint. The loop takes over the checkpoint's tensors without copying them."""
        restore_from(self.loop, checked(checkpoint.value), checkpoint.name, self._saver)
        status = checkpoint.manifest["status"]
        self._is_resumed = True
        self.writer.restore(run.events, preview)
        self.stopped = status.get("stopped")
        self._num_planned = status.get("planned", status.get("target"))
        self.is_over = self.stopped is not None  # the next save updates this

    def preview(self) -> dict[str, Any]:
        """Return the last value of each metric.

        If there are more than `_MAX_PREVIEW` metrics, losses take precedence.
        """
        values = list(self.writer.latest.items())
        if len(values) > _MAX_PREVIEW:
            values.sort(key=lambda each: not each[0].endswith("/loss"))
        return dict(values[:_MAX_PREVIEW])

    def _is_beyond_plan(self) -> bool:
        """Return whether the run trains longer than its learning-rate schedule was built for."""
        return self.loop.has_schedule and (self.loop.epochs or 0) > (sys.maxsize if self._num_planned is None else self._num_planned)

    def _facts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the status and the preview that a checkpoint records."""
        loop = self.loop
        stopped = loop.fixtures.get("stopped")
        is_stopped_by_hook = stopped is not None and self._stop_reason() is None and not loop.is_out_of_time()
        self.is_over = (loop.is_over() and loop.moment.is_evaluated and not loop.moment.batch) or is_stopped_by_hook
        self.stopped = stopped if is_stopped_by_hook else None
        status = {
            **self._times.means,
            "toc": time.time(),
            "target": loop.epochs,
            "planned": self._num_planned,
            "is_beyond_plan": self._is_beyond_plan(),
            "is_evaluated": loop.moment.is_evaluated,
            "is_over": self.is_over,
            "stopped": self.stopped,
        }
        self._saved_preview = self.preview()
        return status, self._saved_preview

    def _on_evaluated(self, seconds: float) -> None:
        loop, manager = self.loop, self._manager
        manager.advance_to(loop.epoch_num, self.preview())
        self._console.print_epoch(manager.key, loop.epochs_done, loop.epochs, seconds, manager.preview)
        self._report(Report(manager.key, "progress", epoch=manager.epoch, num_epochs=loop.epochs, metric=self._monitored()))
        manager.job_runner.check_stop()

    def _report_share(self, share: float) -> None:
        self._report(Report(self._manager.key, "progress", epoch=self.loop.epoch_num, num_epochs=self.loop.epochs, share=share))

    def _monitored(self) -> tuple[str, float] | None:
        """Return the name and last value of the metric that selects the best checkpoint, or None if it has no value yet."""
        sets, latest = self.loop.eval_data, self.writer.latest
        monitor = self._saver.monitor or next(iter(sets), "")
        wanted = loss_name(monitor) if monitor in sets else monitor
        return find_number(wanted, latest, own_first(wanted, latest, sets))


def model_of_evaluations(loop: TrainManager) -> nn.Module:
    """Return the model with the weights that evaluations use: a copy with averaged weights if there is an `EMA`, else the loop's model."""
    ema = next((each for each in loop.extensions.values() if isinstance(each, EMA) and each.num_updates), None)
    if ema is None:
        return loop.model
    try:
        model = copy.deepcopy(loop.model)
    except (RuntimeError, TypeError) as error:  # torch cannot copy non-leaf tensors; Python cannot copy locks or open files
        warnings.warn(
            f"the fetched model has the weights of training, not the averages of EMA that evaluations use: {type(loop.model).__name__}"
            f" cannot be copied ({str(error).splitlines()[0]}); `loop.predict` uses the averages",
            stacklevel=3,
        )
        return loop.model
    ema.copy_to(model)
    return model


def make_loop_runner(manager: Manager, job: Job, initial_states: InitialStates, attempt: Attempt | None) -> LoopRunner:
    """Call the manager's `make_loop`, and attach to the loop all extensions that a run needs.

    `attempt` is None if the loop is not trained.
    """
    with ModuleRecorder() as recorder:
        loop: Any = manager.make_loop(job.config)
    if not job.is_config_unchanged():
        raise SettingError(
            f"`make_loop` changed the config of run {job.key}: the stored values would differ from those used in training",
            hint="store changed values in local variables, or change configs in `get_config`, before they have a key",
        )
    if not isinstance(loop, TrainManager):
        is_method = isinstance(manager.definition, type)
        name = f"{manager.definition.__name__}.make_loop" if is_method else manager.definition.__name__
        hint = "a function that returns a manager takes `store_dir`, or nothing" if isinstance(loop, Manager) else None
        raise SettingError(f"`{name}()` returned {loop!r:.60}: expected a TrainManager", hint=hint)
    if manager.eval_interval != 1:
        raise SettingError(f"eval_interval={manager.eval_interval}: a loop evaluates after every epoch", hint="leave it out")
    _refuse_manager_hooks(manager, loop)
    runner = LoopRunner(manager, loop)
    runner.attach(initial_states, attempt)
    if not any(isinstance(each, ConstructorArgs) for each in loop.extensions.values()):
        recorder.forget()  # no extension stores the modules' constructor arguments
    return runner


def _refuse_manager_hooks(manager: Manager, loop: TrainManager) -> None:
    """Raise an error if an extension that is attached only to the loop has a hook for a stage of the manager.

    Such a hook would never run.
    """
    shared = [id(each) for each in manager.extensions.values()]
    for name, extension in loop.extensions.items():
        for hook in find_hooks(name, extension) if id(extension) not in shared else ():
            if not belongs_to(hook, loop.tree) and belongs_to(hook, manager.tree):
                raise ExtensionError(
                    f"`{hook.title}` would never run: `{hook.stage}` is a stage of the manager, and only the loop has this extension",
                    where=hook.where,
                    hint=f"attach `{name}` to the manager, which passes it to its loops: `manager.add_extension(...)`,"
                    " or `extensions = [...]` in a Manager class with the method `make_loop(self, config)`",
                )


def has_loop_hooks(name: str, extension: object) -> bool:
    parts: list[Hook | LazyFixture] = [*find_hooks(name, extension), *find_lazy_fixtures(name, extension)]
    return any(belongs_to(part, TRAIN_MANAGER) for part in parts)


def load_weights(loop: TrainManager, value: Any) -> None:
    """Load only the weights of a checkpoint into a loop that has not started."""
    loop.start_with_weights_of(TrainingState.from_dict(checked(value)["state"]))
