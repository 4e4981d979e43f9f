"""`Batch`: trains each of many configs once, and shares the work with other processes that use the same store."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from trainmaster.config.value_table import short_repr
from trainmaster.errors import RunFailedError, StoreDamagedError
from trainmaster.manager.error_text import error_text, in_one_line
from trainmaster.manager.executor import BY_BATCH, Executor, Report, StopCheck, Task
from trainmaster.manager.job import Job, is_done, make_job, record_end
from trainmaster.store import Run
from trainmaster.store.lease import Hold, Watch, holder_of
from trainmaster.text import counted, html_table

if TYPE_CHECKING:
    from trainmaster.manager.batch_view import BatchView
    from trainmaster.manager.interrupts import Interrupts
    from trainmaster.manager.manager import Manager

_MAX_EARLY_DEATHS = 3
"""If this many workers in a row die before they claim a run, the batch fails."""

_MAX_ROWS = 20
"""The maximum number of runs that a notebook shows."""


@dataclass
class BatchResult:
    """The outcomes of the runs in a batch, by key."""

    done: list[str] = field(default_factory=list)
    """Runs that this batch trained."""
    found: list[str] = field(default_factory=list)
    """Runs that were already done, or that other processes finished in the meantime."""
    failed: dict[str, str] = field(default_factory=dict)
    """Runs that failed in this batch, with their errors. An invalid config has no key, so its text is used instead."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Runs that the batch gave up on after too many attempts without a new checkpoint, with the last error."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Runs that were stopped and saved early, with the reason."""
    left: list[str] = field(default_factory=list)
    """Runs that had not started or were being trained by other processes when the batch ended early."""

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in self.counts().items() if count) or "nothing to do"

    def _repr_html_(self) -> str:
        reasons = {**self.failed, **self.given_up, **self.stopped}
        keys = [(name, key) for name, keys in self._keys().items() for key in keys]
        rows = [(key, name, in_one_line(reasons.get(key, ""))) for name, key in keys[:_MAX_ROWS]]
        notes = [f"and {len(keys) - _MAX_ROWS:,} more"] if len(keys) > _MAX_ROWS else []
        return html_table(str(self), ("run", "outcome", "reason"), rows, notes)

    def counts(self) -> dict[str, int]:
        return {name: len(keys) for name, keys in self._keys().items()}

    def _keys(self) -> dict[str, Collection[str]]:
        return {
            "done": self.done,
            "already done": self.found,
            "failed": self.failed,
            "given up": self.given_up,
            "stopped": self.stopped,
            "left": self.left,
        }

    @property
    def num_ended(self) -> int:
        return sum(self.counts().values()) - len(self.left)


@dataclass(frozen=True)
class Policy:
    num_epochs: int | None
    resume: bool
    count: int
    max_errors: int
    max_attempts: int


class JobObserver(Protocol):
    """Observes the jobs in a batch. A search uses an observer to learn how its trials end, and to stop some of them early."""

    def is_finished(self, job: Job) -> bool:
        """Return whether a job needs no more training, even if its run has not reached its last epoch."""

    def stop_check(self, job: Job) -> StopCheck | None:
        """Return the check that may stop the job's run after an evaluation, or None if there is no such check."""

    def job_ended(self, key: str, kind: str, text: str) -> None:
        """Handle the outcome of a run: "done", "found" (it was done already), "stopped", "failed" or "given_up".

        `text` is the reason for this outcome.
        """


class Batch:
    """Trains the runs in a batch.

    If another process is training a run, the batch checks the run regularly until it is done or until this batch can train it.
    """

    def __init__(
        self,
        manager: Manager,
        policy: Policy,
        watch: Watch,
        executor: Executor,
        interrupts: Interrupts,
        observer: JobObserver | None = None,
    ) -> None:
        self._manager, self._policy, self._watch, self._executor, self._interrupts = manager, policy, watch, executor, interrupts
        self._observer = observer
        self._print = manager.job_runner.console.print
        self._view: BatchView | None = None
        self.result = BatchResult()
        self.running: dict[str, Job] = {}
        self._held: dict[str, Job] = {}
        """Jobs whose runs are being trained by other processes."""
        self._retry: deque[Job] = deque()
        self._is_over = False
        self._error: Exception | None = None
        self._num_started = 0
        self._dead_attempts: dict[str, int] = {}
        """For each run key, the last attempt whose worker died."""
        self._num_deaths: Counter[tuple[str, Any]] = Counter()
        """How many workers have died while training a run, by the run's key and its newest checkpoint."""
        self._num_early_deaths = 0

    def run(self, configs: Iterable[Any], view: BatchView | None = None) -> BatchResult:
        """Train configs or jobs.

        `configs` may yield None if the next config depends on results that are not available yet.
        """
        self._view = view
        jobs = self._make_jobs(configs)
        next_look, has_more, is_waiting, has_printed = 0.0, True, False, False
        while True:
            reason = self._interrupts.reason
            if reason is not None and not self._is_over:
                self._end(reason)
            is_waiting = False
            while self._may_start() and self._executor.has_room() and not is_waiting and (self._retry or has_more):
                try:
                    job = self._retry.popleft() if self._retry else next(jobs)
                except StopIteration:
                    has_more = False
                    break
                if job is None:
                    is_waiting = True
                else:
                    self._start(job)
            if not self._may_start() and not self.running:
                break
            for report in self._executor.reports(0.2 if self.running else 0.0):
                self._handle(report)
            if self._retry or not self._may_start() or (has_more and not is_waiting):
                continue
            if not self._held and not self.running:
                if not has_more:
                    break
                continue  # the last reports may provide the missing results
            if self._held and not self.running and not has_printed:
                has_printed = True
                self._print(f"other processes hold {len(self._held)} of the runs; waiting for them")
            if self._held and time.monotonic() >= next_look:
                pause = min(1.0, self._manager.store.lease_time / 20)
                next_look = time.monotonic() + pause
                self._retry.extend(self._held.values())
                self._held = {}
                if not self.running:
                    time.sleep(pause)
        self.result.left += [*self._held, *(job.key for job in self._retry)]
        if self._error is not None:
            raise self._error
        return self.result

    def _may_start(self) -> bool:
        return not self._is_over and not 0 < self._policy.count <= self._num_started

    def _make_jobs(self, configs: Iterable[Any]) -> Iterator[Job | None]:
        """Yield a job for each config, without duplicates. An invalid config counts as a failed run."""
        seen: set[str] = set()
        for config in configs:
            if config is None:
                yield None
                continue
            try:
                job = config if isinstance(config, Job) else make_job(self._manager, config, self._policy.num_epochs)
            except Exception as error:
                self._fail(short_repr(config), error_text(error), error)
                if self._is_over:
                    return
                continue
            if job.key not in seen:
                seen.add(job.key)
                yield job

    def _start(self, job: Job) -> None:
        """Submit a job, unless its run is done, another process is training the run, or the batch gives up on it."""
        store, policy = self._manager.store, self._policy
        run = store.run(job.key)
        try:
            if policy.resume:
                self._manager.job_runner.code.check(run)
                if (self._observer is not None and self._observer.is_finished(job)) or is_done(store, job):
                    self._add_found(job)
                    return
            holder = holder_of(run)
            expired = 0
            if holder.hold is Hold.UNKNOWN and (
                holder.attempt == self._dead_attempts.get(job.key) or self._watch.look(run, holder) is Hold.FREE
            ):
                expired = holder.attempt
            elif holder.hold is not Hold.FREE:
                self._held[job.key] = job
                return
            reason = reason_to_give_up(run, policy.max_attempts)
        except Exception as error:
            if self._observer is not None:  # in a search, a run that cannot start is not a failed trial
                raise
            self._fail(job.key, error_text(error), error)
            return
        if reason is not None:
            self._give_up(job.key, reason)
            return
        self.running[job.key] = job
        self._num_started += 1
        if self._view is not None:
            self._view.started(job)
        stop_check = None if self._observer is None else self._observer.stop_check(job)
        self._executor.submit(Task(job, policy.resume, stop_check, expired))

    def _add_found(self, job: Job) -> None:
        record_end(self._manager.store, job)
        self.result.found.append(job.key)
        self._notify(job.key, "found")

    def _handle(self, report: Report) -> None:
        if report.kind in ("claimed", "progress"):
            if self._view is not None:
                self._view.progress(report)
            return
        job = self.running.pop(report.key)
        if report.kind != "died":
            self._num_early_deaths = 0
        if report.kind == "done":
            self.result.done.append(job.key)
            self._notify(job.key, "done")
        elif report.kind == "stopped":
            self.result.stopped[job.key] = report.text
            self._notify(job.key, "stopped", report.text)
        elif report.kind == "failed":
            self._fail(job.key, report.text, report.error)
        else:  # another process was faster, or the worker died
            self._num_started -= 1
            if report.kind == "died":
                self._handle_death(job, report)
            elif report.kind == "found":
                self._add_found(job)
            else:
                self._held[job.key] = job
                if report.text:
                    self._print(f"run {job.key} is left to another process: {report.text}")
        if self._view is not None:
            self._view.ended(report)

    def _handle_death(self, job: Job, report: Report) -> None:
        """Retry the job, unless too many workers have died while training its run.

        If too many workers in a row die before they claim a run, the batch ends with an error.
        """
        run, limit = self._manager.store.run(job.key), self._policy.max_attempts
        if report.attempt:
            self._num_early_deaths = 0
            self._dead_attempts[job.key] = report.attempt
            newest = next(iter(run.checkpoints()), None)
            self._num_deaths[job.key, newest] += 1
            if self._num_deaths[job.key, newest] >= limit:
                self._give_up(job.key, reason_to_give_up(run, limit) or _no_progress(limit, report.text))
                return
        else:
            self._num_early_deaths += 1
        self._retry.append(job)
        if self._num_early_deaths < _MAX_EARLY_DEATHS:
            self._print(f"run {job.key}: {report.text}; another worker resumes it")
        elif self._error is None:
            self._error = RunFailedError(
                "workers exit before they start a run",
                why=f"{counted(self._num_early_deaths, 'worker')} in a row exited; for the last run, {report.text}; see its output above",
                hint="try the batch without workers first",
            )
            self._end("workers exit before they start a run")

    def _give_up(self, key: str, reason: str) -> None:
        self.result.given_up[key] = reason
        self._notify(key, "given_up", reason)
        self._print(f"the batch gives up on run {key}: {in_one_line(reason)}; train it alone to try it again")

    def _fail(self, key: str, text: str, error: Exception | None) -> None:
        self.result.failed[key] = text
        self._notify(key, "failed", text)
        if self._policy.max_errors == 0 and self._error is None:
            self._error = error or RunFailedError(f"run {key} failed in a worker", why=text)
            self._end("a run failed")
            return
        self._print(f"run {key} failed: {in_one_line(text)}")
        if len(self.result.failed) >= self._policy.max_errors > 0:
            self._end("too many runs failed")

    def _notify(self, key: str, kind: str, text: str = "") -> None:
        if self._observer is not None:
            self._observer.job_ended(key, kind, text)

    def _end(self, reason: str) -> None:
        """Start no more runs, and stop those that are running."""
        if not self._is_over or self.running:
            self._executor.stop(reason)
        self._is_over = True
        if self._view is not None:
            self._view.ending()


def reason_to_give_up(run: Run, limit: int) -> str | None:
    """Return why a batch should give up on a run, or None if it should train the run.

    A batch gives up if the last `limit` attempts were all started by batches and saved no new checkpoint. Attempts that
    a user interrupted are ignored.
    """
    reasons: list[str] = []
    for number in run.attempts():
        try:
            outcome, by = run.outcome_of(number), run.claim_of(number)["by"]
        except StoreDamagedError:
            continue
        if outcome is not None and outcome["outcome"] == "interrupted":
            continue
        if run.own_checkpoints(number) or by != BY_BATCH or (outcome and outcome["outcome"] != "failed"):
            return None
        reasons.append(str(outcome.get("error")) if outcome else "its process was killed")
        if len(reasons) >= limit:
            return _no_progress(limit, reasons[0])
    return None


def _no_progress(limit: int, reason: str) -> str:
    return f"{counted(limit, 'attempt')} in a row saved no new checkpoint; the last one: {reason}"
