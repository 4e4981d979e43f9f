"""Runs a search from start to finish, and returns a `SearchResult`.

A `SearchDriver` proposes runs, `run_batch` trains them, and a summary is printed at the end.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmaster.manager.batch import Policy
from trainmaster.manager.batch_session import run_batch
from trainmaster.manager.executor import Executor
from trainmaster.sweep.optuna_study import importances
from trainmaster.sweep.plan import Plan, State, Trial
from trainmaster.sweep.search_driver import SearchDriver
from trainmaster.sweep.search_records import SearchRecords
from trainmaster.sweep.search_report import plan_lines, ranking_html, status_line, summary_lines

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager


_MAX_ATTEMPTS = 10
"""A trial fails after this many attempts in a row without a new checkpoint.

Attempts whose worker was killed count too, so the limit is high.
"""


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search, as they are recorded in the store."""

    plan: Plan
    trials: tuple[Trial, ...]
    importances: Mapping[str, float]
    """How much each searched key affects the first metric. The values add up to 1."""
    end_reason: str = ""

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def ranking(self) -> list[Trial]:
        """The complete trials with finite values, best first. With several metrics, only the trials on the Pareto front are included."""
        complete = [trial for trial in self.trials if trial.state == "complete" and trial.is_finite]
        signs = [1.0 if direction == "minimize" else -1.0 for direction in self.plan.directions]
        costs = {trial.number: tuple(map(operator.mul, signs, trial.values or ())) for trial in complete}
        if len(signs) == 1:
            return sorted(complete, key=lambda trial: costs[trial.number])
        return [one for one in complete if not any(_beats(costs[two.number], costs[one.number]) for two in complete)]

    @property
    def best(self) -> Trial | None:
        ranking = self.ranking
        return ranking[0] if ranking else None

    def count(self, *states: State) -> int:
        return sum(trial.state in states for trial in self.trials)

    def __str__(self) -> str:
        names: tuple[State, ...] = ("complete", "pruned", "failed", "running", "duplicate", "invalid")
        return ", ".join(f"{self.count(name)} {name}" for name in names if self.count(name)) or "no trials"

    def _repr_html_(self) -> str:
        return ranking_html(self)


def run_search(
    manager: Manager, plan: Plan, num_trials: int, base: Mapping[str, Any], deadline: float, workers: int | Executor
) -> SearchResult:
    """Run the missing trials of a search, up to `num_trials` in total, and return all trials."""
    driver = SearchDriver(manager, plan, num_trials, base, deadline)
    policy = Policy(plan.epochs, True, 0, sys.maxsize, _MAX_ATTEMPTS)
    console = manager.job_runner.console
    for line in plan_lines(plan, num_trials, driver.records.trials()):
        console.print(line)

    def summarize(is_over: bool) -> None:
        result = read_result(driver.records, driver.end_reason)
        for line in summary_lines(result, manager, is_over, console.width):
            console.print(line)

    status = functools.partial(status_line, driver.records)
    run_batch(manager, driver, policy, None, workers, observer=driver, summarize=summarize, status=status, metric=plan.monitor[0])
    return read_result(driver.records, driver.end_reason)


def read_result(records: SearchRecords, end_reason: str = "") -> SearchResult:
    """Return the trials of a search as they are recorded now."""
    plan = records.plan()
    assert plan is not None
    trials = tuple(records.trials())
    return SearchResult(plan, trials, importances(plan, trials), end_reason)


def _beats(one: Sequence[float], two: Sequence[float]) -> bool:
    return one != two and all(map(operator.le, one, two))
