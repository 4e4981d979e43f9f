"""`JobRunner`: runs the jobs of a manager one at a time.

It holds the lease, calls the stages, and records how each attempt ended.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainmaster.config import key_of
from trainmaster.config.declared_secrets import secret_texts
from trainmaster.config.recorded_origins import recorded_origins
from trainmaster.config.seed import seed_of
from trainmaster.errors import (
    LeaseLostError,
    RunBusyError,
    SettingError,
    StateError,
    StoreAccessError,
    StoreError,
    TrainmasterError,
)
from trainmaster.manager.code_check import CodeCheck
from trainmaster.manager.config_completer import refuse_hidden
from trainmaster.manager.console import Console
from trainmaster.manager.error_text import error_text
from trainmaster.manager.executor import BY_BATCH, Report, StopCheck, Task
from trainmaster.manager.interrupts import Interrupts
from trainmaster.manager.invocation import Invocation
from trainmaster.manager.job import Job, is_done, job_to_load, record_end
from trainmaster.manager.rank_roles import starting_together
from trainmaster.manager.session import InitialStates, Session
from trainmaster.manager.shorter_run import shorter_run
from trainmaster.manager.user_epochs import UserEpochs
from trainmaster.store import Attempt, Store
from trainmaster.store.checkpoint import Checkpoint
from trainmaster.store.lease import ExpiredLease
from trainmaster.store.metric_names import describe_broken_losses
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager
    from trainmaster.manager.manager import Manager


class JobRunner:
    """Runs jobs one after another by calling the manager's methods."""

    def __init__(self, manager: Manager, console: Console, invocation: Invocation) -> None:
        self._manager, self.console = manager, console
        self.session = Session()
        self.attempt: Attempt | None = None
        """The attempt that holds the lease while a job runs."""
        self.stopped: str | None = None
        """Why the last job was stopped and saved early, or None if it was not stopped."""
        self._stop_check: StopCheck | None = None
        self._task_lock = threading.Lock()
        self._job_to_set_up: Job | None = None
        self._interrupts: Interrupts | None = None
        self._initial_states = InitialStates()
        self.configure(invocation)

    def configure(self, invocation: Invocation) -> None:
        """Store how the manager was started, and create the matching `CodeCheck`."""
        self.invocation = invocation
        self.code = CodeCheck(self._manager.definition, invocation)

    @contextlib.contextmanager
    def reporting_to(self, report: Callable[[Report], None]) -> Iterator[None]:
        """While the `with` block runs, send the progress of runs to `report`."""
        before, self.invocation = self.invocation, replace(self.invocation, report=report)
        try:
            yield
        finally:
            self.invocation = before

    def refuse_if_busy(self) -> None:
        if self.attempt is not None:
            raise SettingError(f"this manager is already training run {self.attempt.key}", hint="use another manager")

    # ---- running jobs

    def process(self, job: Job, resume: bool) -> None:
        """Run a job for `Manager.process`. If the job fails, raise its error.

        After a signal, raise `KeyboardInterrupt` or `SystemExit`.
        """
        store = self._manager.store
        with starting_together() as start:  # on all ranks
            if resume:
                self.code.check(store.run(job.key))
                self.print_code_changes()
                self._suggest_shorter_run(job)
                if is_done(store, job):
                    self.restore(job)
                    if self._has_reached_target(job):  # False if the last checkpoint is damaged and an older one was loaded
                        record_end(store, job)
                        self.console.print(f"run {job.key} is at epoch {self._manager.epoch} already{self._stop_note()}")
                        return
            with self.interruptible() as interrupts:
                facts = self.invocation.attempt_facts(job.num_epochs)
                try:
                    with store.attempt(
                        job.key, "process", report=self.console.print, facts=facts, is_cancelled=lambda: interrupts.reason is not None
                    ) as attempt:
                        if start():
                            self._run(job, attempt, resume, interrupts)
                except RunBusyError:
                    interrupts.raise_signal()
                    raise
                interrupts.raise_signal()

    def run_task(self, task: Task) -> Report:
        """Run a job for an executor. If it fails, the report contains the error.

        A manager holds the state of only one run. If a second thread calls this method during a task, the call returns a
        "failed" report.
        """
        if not self._task_lock.acquire(blocking=False):
            hint = "run tasks in other processes, or one after another"
            return Report(task.job.key, "failed", str(SettingError("this manager is already running a task", hint=hint)))
        key = task.job.key
        try:
            if task.resume and is_done(self._manager.store, task.job):
                return Report(key, "found")  # another process trained it while this task was waiting for a worker
            with self.interruptible() as interrupts, contextlib.ExitStack() as stack:
                facts = self.invocation.attempt_facts(task.job.num_epochs)
                try:
                    attempt = stack.enter_context(self._manager.store.attempt(key, BY_BATCH, ExpiredLease(task.expired), facts=facts))
                except RunBusyError:
                    return Report(key, "held")
                self.invocation.report(Report(key, "claimed", attempt=attempt.number))
                self._run(task.job, attempt, task.resume, interrupts, task.stop_check)
            return Report(key, "done") if self.stopped is None else Report(key, "stopped", self.stopped)
        except LeaseLostError as error:  # another process has replaced this one and continues the run
            return Report(key, "held", "; ".join([error.fact, *error.rows.values()]))
        except Exception as error:
            return Report(key, "failed", error_text(error), error)
        finally:
            self._task_lock.release()

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[Interrupts]:
        """While the `with` block runs, Ctrl-C, SIGTERM, SIGUSR1 and `trainmaster stop` are requests to stop.

        Nested blocks share one `Interrupts` object.
        """
        if self._interrupts is not None:
            yield self._interrupts
            return
        with Interrupts(self.console.warn, self._stop_reason) as self._interrupts:
            try:
                yield self._interrupts
            finally:
                self._interrupts = None

    def _stop_reason(self) -> str | None:
        """Return why the current job should stop, or None. This is called from another thread."""
        attempt = self.attempt
        if attempt is not None:
            if attempt.is_lost:
                return "the lease of this run was lost"
            with contextlib.suppress(StoreError):  # the store may be unreachable for a moment
                if attempt.is_stop_requested() and attempt is self.attempt:
                    return "somebody asked this run to stop"
        return self.invocation.stop_reason()

    def check_stop(self) -> None:
        """Stop the current run if the stop check of its task returns a reason. This is called after each evaluation."""
        if self._stop_check is None or self._interrupts is None or self._interrupts.reason is not None:
            return
        reason = self._stop_check(self._manager.store, self._manager.history)
        if reason is not None:
            self._interrupts.request_stop(reason)
            if self._manager.loop is not None and "stopped" in self._manager.loop.fixtures:
                self._manager.loop.stop(reason)

    def _run(self, job: Job, attempt: Attempt, resume: bool, interrupts: Interrupts, stop_check: StopCheck | None = None) -> None:
        manager = self._manager
        manager.reset_stages()  # drops the stages that an interrupt may have left open
        manager.enter_run(job)
        attempt.hide(secret_texts(job.config))
        self.attempt, self.stopped, self._stop_check = attempt, None, stop_check
        try:
            with self.console.logging_to(attempt, self.invocation.flush):
                try:
                    self._run_stages(job, attempt, resume, interrupts)
                except BaseException as error:
                    self._record_failure(attempt, error)
                    raise
                finally:
                    self.attempt = None
                    if self.session.loop is not None:
                        self.session.loop.writer.detach()
                self._record_outcome(job, attempt, interrupts)
        finally:
            interrupts.clear_request()

    def _run_stages(self, job: Job, attempt: Attempt, resume: bool, interrupts: Interrupts) -> None:
        manager, key, num_epochs = self._manager, job.key, job.num_epochs
        fixtures = {"manager": manager, "config": job.config, "key": key, "num_epochs": num_epochs}
        with interrupts.stopping(self._stop_loop, functools.partial(self._abandon, attempt)), manager.staged("work", fixtures):
            with manager.staged("work_setup"):
                self.set_up(job)
            if resume and attempt.run.has_saved():
                with manager.staged("work_load"):
                    self._load()
                target = "" if num_epochs is None else f", target {num_epochs}"
                self.console.print(f"run {key} resumes from epoch {manager.epoch}{target}")
            else:
                attempt.start(None, facts=self._start_facts())
                with manager.staged("work_init"):
                    manager.init_ckpt()
                if manager.epoch != 0:
                    raise SettingError(
                        f"`{type(manager).__name__}.init_ckpt()` does not start at epoch 0", hint="call `super().init_ckpt()` first"
                    )
                target = "" if num_epochs is None else f", for {counted(num_epochs, 'epoch')}"
                self.console.print(f"run {key} is only evaluated" if num_epochs == 0 else f"run {key} starts{target}")
            if self.session.loop is not None:
                self.session.loop.train(job, attempt, interrupts)
            else:
                UserEpochs(manager, attempt, interrupts).train(num_epochs or 0)

    def _record_outcome(self, job: Job, attempt: Attempt, interrupts: Interrupts) -> None:
        epoch, loop = self._manager.epoch, self.session.loop
        if loop.is_over if loop is not None else epoch >= (job.num_epochs or 0):
            attempt.release("finished", epoch=epoch, **self.code.late_facts())
            self.console.print(f"run {job.key} is done: epoch {epoch}{self._stop_note()}")
            broken = describe_broken_losses(self._manager.preview)
            if broken is not None:
                hint = "; the extension NaNGuard() finds where a nan in training comes from" if loop is not None else ""
                self.console.print(f"{broken}{hint}")
            return
        self.stopped = interrupts.reason or "max_time was reached"
        attempt.check()  # if the lease was lost, raise that error instead, because it is the real reason
        attempt.release("stopped" if interrupts.signal is None else "interrupted", reason=self.stopped, epoch=epoch)
        saved, again = ("has stopped", "start again") if self.invocation.is_store_temporary else ("is saved", "resume it")
        self.console.print(f"run {job.key} {saved} at epoch {epoch}: {self.stopped}")
        self.console.print(f"{again} with: {self.invocation.resume_command(self._manager.store, job.key)}")

    def _record_failure(self, attempt: Attempt, error: BaseException) -> None:
        is_signal = isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code in (130, 138, 143))
        text = attempt.mask("".join(traceback.format_exception(error)))
        self.console.log(text)
        with contextlib.suppress(StoreAccessError):  # the user should see the original error
            attempt.release("interrupted" if is_signal else "failed", error=error_text(error, attempt.mask), traceback=text[-20000:])

    def _stop_loop(self, reason: str) -> None:
        """Ask the loop to stop after the current batch. This is called repeatedly, from another thread."""
        if self._manager.loop is not None:
            self._manager.loop.stop(reason, is_interrupt=True)

    def _abandon(self, attempt: Attempt, reason: str) -> None:
        """Release the run before the process exits, because the blocked main thread cannot do this."""
        with contextlib.suppress(StoreError):
            attempt.release("interrupted", reason=reason)
        self.console.warn(f"{reason}: the last checkpoint of run {attempt.key} is kept")
        self.console.warn(f"resume it with: {self.invocation.resume_command(self._manager.store, attempt.key)}")

    # ---- setting up and loading

    def set_up(self, job: Job, which: str | int = "last") -> None:
        """Call `Manager.setup` for a job, after seeding the random number generators from its config."""
        from trainmaster.loop.rng import seed_rng

        manager = self._manager
        manager.enter_run(job, which)
        seed_rng(seed_of(job.config))
        self._job_to_set_up = job
        try:
            manager.setup(job.config)
            if self._job_to_set_up is not None:
                raise SettingError(
                    f"`{type(manager).__name__}.setup()` does not call the base method", hint="call `super().setup(config)` first"
                )
        finally:
            self._job_to_set_up = None
        if manager.key != job.key:
            raise SettingError(
                f"`{type(manager).__name__}.setup()` changed the config of run {job.key}: its key would be {manager.key}",
                hint="change configs in `get_config`, before they have a key",
            )
        if manager.loop is None:
            for extension in manager.extensions.values():
                self._initial_states.restore(extension)

    def take_job(self, config: Any) -> Job | None:
        """Return the job that is being set up, or None if `config` is not its config or has been changed."""
        job, self._job_to_set_up = self._job_to_set_up, None
        return job if job is not None and config is job.config and job.is_config_unchanged() else None

    def start_session(self, which: str | int) -> None:
        self.session = Session(which)

    def make_loop(self, job: Job) -> TrainManager:
        """Build the loop of a job for the current session."""
        from trainmaster.manager.loop_runner import make_loop_runner

        if self._manager.monitor is not None:
            raise SettingError(
                f"`{type(self._manager).__name__}.monitor` has no effect, because the manager has a `make_loop`",
                hint=f'add CheckpointSaver(monitor="{self._manager.monitor}") to the extensions of the loop',
            )
        runner = make_loop_runner(self._manager, job, self._initial_states, self.attempt)
        self.session.attach(runner)
        return runner.loop

    def build_loop(self, config: Any = None) -> TrainManager:
        """Build the loop of a config in its initial state, with newly seeded random number generators.

        Nothing is stored.
        """
        self.refuse_if_busy()
        manager = self._manager
        if not manager.has_make_loop:
            raise SettingError(f"`{type(manager).__name__}` has no `make_loop`")
        config = manager.complete_config(config)
        refuse_hidden(config)
        with manager.using_store(Store(None)):
            self.set_up(job_to_load(config, key_of(config)))
        assert manager.loop is not None
        return manager.loop

    def restore(self, job: Job, which: str | int = "last") -> None:
        """Set up and load a run without training it, and put its `model` into eval mode.

        The states of the random number generators do not change.
        """
        from torch import nn

        from trainmaster.loop.rng import kept_rng

        with kept_rng():
            self.set_up(job, which)
            self._load()
        model = getattr(self._manager, "model", None)
        if isinstance(model, nn.Module):
            model.eval()

    def load(self) -> tuple[Checkpoint, dict[str, Any]]:
        """Load the checkpoint and its preview. `Manager.load_ckpt` calls this."""
        manager, attempt = self._manager, self.attempt
        run = manager.store.run(manager.key) if attempt is None else attempt.run
        return self.session.load(run, attempt, {} if attempt is None else self._start_facts(), manager.extensions)

    def _load(self) -> None:
        manager = self._manager
        try:
            manager.load_ckpt()
        except (RuntimeError, KeyError, AttributeError, TypeError, ValueError, StateError) as error:
            if isinstance(error, StateError) or not isinstance(error, TrainmasterError):
                error.add_note(
                    f"run {manager.key} was saved by other code or with another model; `--fresh` (`resume=False`) trains it from scratch"
                )
            raise
        if self.session.saved_epoch is None:
            raise SettingError(f"`{type(manager).__name__}.load_ckpt()` loads nothing", hint="call `super().load_ckpt()` first")
        self.session.restore_rng()

    def _start_facts(self) -> dict[str, Any]:
        """Return the facts that a new attempt records: the code, the seed, and where the config values came from."""
        key, config = self._manager.key, self._manager.config
        origins = recorded_origins(config, key)
        facts = {} if origins is None or self.attempt is None else {"origins": self.attempt.mask.tree(origins, has_names=False)}
        return {**self.code.facts(key), "seed": seed_of(config), **facts}

    def _has_reached_target(self, job: Job) -> bool:
        """Return whether the loaded checkpoint has reached the job's number of epochs."""
        manager = self._manager
        if manager.loop is None:
            return manager.epoch >= (job.num_epochs or 0)
        if job.num_epochs is not None:
            return is_done(manager.store, job)
        return manager.loop.is_over() or bool((manager.stats.get(job.key) or {}).get("stopped"))

    # ---- messages

    def _stop_note(self) -> str:
        """Return a note about why a hook ended the run before its last epoch, or an empty string if no hook did."""
        loop = self.session.loop
        return f", {loop.stopped}" if loop is not None and loop.stopped is not None else ""

    def print_code_changes(self) -> None:
        """Print which files have changed since the checked runs were trained. With `verbose=False`, warn instead."""
        for text in self.code.messages():
            self.console.print(text)
            if not self.console.is_verbose:
                warnings.warn(text, stacklevel=3)

    def _suggest_shorter_run(self, job: Job) -> None:
        """If a stored run differs from the job only in having fewer epochs, print how to train that run longer."""
        store = self._manager.store
        shorter = shorter_run(store, job.config) if store.stats.get(job.key) is None else None
        if shorter is not None:
            command = self.invocation.train_command(store, shorter.key, shorter.num_wanted)
            self.console.print(
                f"run {shorter.key} differs from this config only in its {shorter.num_epochs} epochs; to train it longer instead: {command}"
            )
