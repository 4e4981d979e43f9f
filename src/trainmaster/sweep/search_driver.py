"""`SearchDriver`: proposes trials, passes their runs to a `Batch` for training, and records their outcomes.

All state is in the store, so a driver can be killed at any time, and any number of drivers can work on one search.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainmaster.config.config import Config, with_origins
from trainmaster.config.seed import seed_key, seed_of
from trainmaster.errors import ConfigError, SearchError
from trainmaster.manager.error_text import in_one_line, is_store_failure
from trainmaster.manager.job import Job, is_done, make_job
from trainmaster.store import Run, Store
from trainmaster.store.epoch_values import epoch_values
from trainmaster.store.events import RowsByName
from trainmaster.store.metric_names import resolve_metric
from trainmaster.sweep.optuna_study import Proposer, judge
from trainmaster.sweep.plan import Plan, Trial
from trainmaster.sweep.search_records import SearchRecords, find_search, num_counted

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager

MAX_NOT_RUN = 20
"""A search ends after this many proposals in a row that were invalid or duplicates."""
_MAX_FAILED_FIRST = 3
"""A search ends if at least this many trials have finished and all of them have failed, because the program probably has a bug."""


class SearchDriver:
    """Provides the jobs of a search to a `Batch`. When a job has ended, the driver records the outcome of its trial."""

    def __init__(self, manager: Manager, plan: Plan, num_trials: int, base: Mapping[str, Any], deadline: float = math.inf) -> None:
        self._manager, self._plan, self._num_trials, self._base, self._deadline = manager, plan, num_trials, base, deadline
        self.records = SearchRecords(manager.store, plan.name)
        num_finished = sum(trial.counts and trial.is_finished for trial in self.records.trials())
        self._num_left = max(0, num_trials - num_finished)
        self._proposer = Proposer(plan)
        self._ready: deque[Job] = deque()
        self._active: set[str] = set()
        """The keys of the runs that were passed to the batch and have not ended yet."""
        self._jobs: dict[str, tuple[int, int]] = {}
        """The numbers of the trial and of the replicate, by the key of the run."""
        self.end_reason = ""
        """Why the search ended before all trials were run. Empty if all trials were run."""

    # ---- the jobs

    def __len__(self) -> int:
        """Return the number of runs that were left to train when this driver started. The live view shows this number."""
        if self._num_trials >= sys.maxsize:
            raise OverflowError("the search has no limit")  # the live view then shows no total
        return self._num_left * self._plan.num_replicates

    def __iter__(self) -> Iterator[Job | None]:
        """Yield the next job, or None while the next proposal has to wait for results."""
        for trial in self.records.trials():
            if not trial.is_finished:
                self._make_ready(trial)
        while True:
            if self._ready:
                job = self._ready.popleft()
                self._active.add(job.key)
                yield job
                continue
            trials = self.records.trials()
            is_ready = all(trials[number].is_finished for number in self._plan.finished_before(len(trials)))
            if not self._is_over(trials) and is_ready:
                self._propose(trials)
            elif self._active:  # wait, because active runs may provide the missing results or be followed by more replicates
                yield None
            else:
                return

    def _is_over(self, trials: Sequence[Trial]) -> bool:
        if num_counted(trials) >= self._num_trials or self.end_reason:
            return True
        not_run = next((index for index, trial in enumerate(reversed(trials)) if trial.counts), len(trials))
        if not_run >= MAX_NOT_RUN:
            self.end_reason = f"the last {MAX_NOT_RUN} proposals were invalid or duplicates of earlier trials"
        elif time.monotonic() >= self._deadline:
            self.end_reason = "the timeout has been reached"
        return bool(self.end_reason)

    def _propose(self, trials: Sequence[Trial]) -> None:
        seen = None if self._plan.is_repeatable else tuple(trial.number for trial in trials if trial.is_finished)
        point = self._proposer.propose(trials, seen)
        if point is None:
            self.end_reason = f"all {self._proposer.space.num_points:,} points of the grid have been tried"
            return
        trial = Trial(len(trials), point.parameters, notes=point.notes, seen=seen, config=point.values)
        try:
            keys = tuple(job.key for job in self._jobs_of(trial))
        except ConfigError as error:
            reason = "; ".join(f"{each.key}: {each.text}".strip(": ") for each in error.problems) or error.fact
            trial = trial._replace(state="invalid", reason=reason)
        else:
            known = {key: each.number for each in trials for key in each.keys}
            if keys[0] in known:
                trial = trial._replace(state="duplicate", reason=f"the same config as trial {known[keys[0]]}")
            else:
                trial = trial._replace(keys=keys)
        self.records.add_proposal(trial)
        recorded = self.records.trials()[trial.number]  # another driver may have recorded this proposal first
        if not recorded.is_finished:
            self._make_ready(recorded)

    def _jobs_of(self, trial: Trial) -> list[Job]:
        values = {**self._base, **trial.config}
        return [
            make_job(self._manager, self._with_origins(config, trial), self._plan.epochs)
            for config in replicate_configs(self._manager, values, self._plan)
        ]

    def _with_origins(self, values: Mapping[str, Any], trial: Trial) -> Config:
        """Return the config of a replicate, and record in it where each value comes from (its origin).

        The origin names this search and, for a proposed value, also the trial.
        """
        config, origin = Config(values), f"search {self._plan.name}"
        origins = {**dict.fromkeys(config.flatten(), origin), **dict.fromkeys(trial.config, f"{origin}, trial {trial.number}")}
        return with_origins(config, origins)

    def _make_ready(self, trial: Trial) -> None:
        """Append the first unfinished replicate of a trial to the ready jobs.

        If all replicates are done, append the last one anyway, because the outcome of the trial is recorded when a job ends.
        Replicates are trained one after another, so that a pruner can skip the remaining replicates.
        """
        for replicate, job in enumerate(self._jobs_of(trial)):
            if job.key != trial.keys[replicate]:
                raise SearchError(
                    f"trial {trial.number} of the search {self._plan.name} was run {trial.keys[replicate]}, "
                    f"but its config now has the key {job.key}",
                    why="the defaults of the config, or `get_config`, have changed since the search was created",
                    hint="start a search with another name",
                )
            self._jobs[job.key] = (trial.number, replicate)
            if not is_done(self._manager.store, job) or replicate == len(trial.keys) - 1:
                self._ready.append(job)
                return

    # ---- called by the batch

    def is_finished(self, job: Job) -> bool:
        """Return whether this or another driver has already recorded the outcome of a job's trial."""
        number, _ = self._jobs[job.key]
        return self.records.trials()[number].is_finished

    def stop_check(self, job: Job) -> PruneCheck | None:
        """Return a check that lets the pruner stop a trial's run early, or None if the pruner never stops a run before its last epoch."""
        number, _ = self._jobs[job.key]
        is_by_epoch = self._plan.pruner not in ("none", "wilcoxon")
        return PruneCheck(self._plan.name, number) if is_by_epoch else None

    def job_ended(self, key: str, kind: str, text: str) -> None:
        """Record the outcome of a trial whose run has ended, or make the trial's next replicate ready."""
        self._active.discard(key)
        number, replicate = self._jobs[key]
        trials = self.records.trials()
        trial = trials[number]
        if trial.is_finished:
            return
        if kind == "failed" and is_store_failure(text):
            raise SearchError(
                f"run {key} could not be saved",
                why=in_one_line(text),
                hint="repeat the command when the store can be written again; it resumes the run",
            )
        if kind in ("failed", "given_up"):
            self.records.add_outcome(trial._replace(state="failed", reason=in_one_line(text)))
            self._refuse_only_failures(text)
            return
        runs = [self._manager.store.run(each) for each in trial.keys[: replicate + 1]]
        is_stopped = kind == "stopped"
        outcome = find_outcome(self._plan, trials, number, runs, is_stopped)
        if is_stopped and (outcome is None or outcome.state != "pruned"):  # the pruner did not stop the run, so the next driver resumes it
            self.end_reason = self.end_reason or f"run {key} was stopped: {text}"
        elif outcome is None:
            self._make_ready(trial)
        else:
            self.records.add_outcome(outcome)

    def _refuse_only_failures(self, text: str) -> None:
        """Raise an error if at least `_MAX_FAILED_FIRST` trials have finished and all of them have failed."""
        states = [trial.state for trial in self.records.trials() if trial.counts and trial.is_finished]
        if states.count("failed") == len(states) >= _MAX_FAILED_FIRST:
            raise SearchError(
                f"the first {len(states)} trials failed",
                why=in_one_line(text),
                hint="correct the program, then start the search again under another name",
            )


@dataclass(frozen=True)
class PruneCheck:
    """A callable that asks the pruner whether to stop a trial's run, based on the recorded metrics.

    It is sent to the workers, which call it.
    """

    search: str
    number: int
    _read: list[tuple[Plan, list[Trial]]] = field(default_factory=list, repr=False, compare=False)

    def __call__(self, store: Store, history: RowsByName) -> str | None:
        """Return the reason to stop the run, or None to continue."""
        if not self._read:  # read only once, because pruning uses only trials before the window, which have all finished
            records = find_search(store, self.search, skips_damaged=False)
            plan = records.plan()
            assert plan is not None
            self._read.append((plan, records.trials()))
        plan, trials = self._read[0]
        curve = epoch_values(history, plan.monitor[0], plan.epochs)
        if curve is None:
            return None
        last, _ = judge(plan, trials, self.number, curve)
        return None if last is None else f"pruned by {plan.pruner} at epoch {last}"


def find_outcome(plan: Plan, trials: Sequence[Trial], number: int, runs: Sequence[Run], is_stopped: bool = False) -> Trial | None:
    """Return a trial with its outcome, or None if a replicate is still missing.

    The outcome depends only on the recorded metrics of the runs. It does not matter which process trained the runs, or
    whether they were trained for more epochs than the search needs. If the last run was stopped (`is_stopped`) before it
    recorded a metric, return None.
    """
    curves = [[epoch_values(run.history, name, plan.epochs) for name in plan.monitor] for run in runs]
    for run, found in zip(runs, curves, strict=True):
        for name, curve in zip(plan.monitor, found, strict=True):
            if curve is None and is_stopped:
                return None
            if curve is None:
                resolve_metric(name, run.history)  # raises an error that lists the known names
                raise SearchError(f"run {run.key} has no value of `{name}` after its first epoch", hint="monitor an evaluation metric")
    finals = [[curve[max(curve)] for curve in found if curve] for found in curves]
    epochs = sum(max(found[0] or {0: 0.0}) for found in curves)
    is_replicated = plan.pruner == "wilcoxon" or plan.num_replicates > 1
    steps = {index: values[0] for index, values in enumerate(finals)} if is_replicated else curves[0][0] or {}
    last, notes = judge(plan, trials, number, steps)
    trial = trials[number]._replace(epochs=epochs, notes={**trials[number].notes, **notes})
    if last is not None:
        kept = {step: value for step, value in steps.items() if step <= last}
        if is_replicated:
            reason = f"{plan.monitor[0]} of {len(kept)} replicates is worse than the best trial's"
            return trial._replace(state="pruned", intermediate=kept, reason=reason)
        reason = f"{plan.monitor[0]} {steps[last]:.4g} at epoch {last}"
        return trial._replace(state="pruned", intermediate=kept, epochs=last, reason=reason)
    if len(finals) < plan.num_replicates:
        return None
    means = tuple(statistics.fmean(each) for each in zip(*finals, strict=True))  # over the replicates
    return trial._replace(state="complete", values=means, intermediate=steps)


def replicate_configs(manager: Manager, values: Mapping[str, Any], plan: Plan) -> list[Any]:
    """Return the configs of a trial's replicates.

    They differ only in the seed. The first replicate uses the seed of the config, and each further replicate uses the
    next seed.
    """
    if plan.num_replicates == 1:
        return [values]
    config = manager.complete_config(values)
    name = seed_key(config)
    if name is None:
        raise SearchError("replicates need a seed in the config", hint="add a field `seed: int = 0`")
    return [{**values, name: seed_of(config) + index} for index in range(plan.num_replicates)]
