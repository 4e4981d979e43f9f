"""Runs a search from start to finish.

A `SearchDriver` proposes runs, `run_batch` trains them, and a summary is printed at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.manager.batch import Policy
from trainmaster.manager.batch_session import run_batch
from trainmaster.manager.executor import Executor
from trainmaster.sweep.optuna_study import importances
from trainmaster.sweep.plan import Plan
from trainmaster.sweep.search import SearchResult, TrialRow
from trainmaster.sweep.search_driver import SearchDriver
from trainmaster.sweep.search_records import SearchRecords
from trainmaster.sweep.search_report import plan_lines, status_line, summary_lines

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager


def run_search(
    manager: Manager,
    plan: Plan,
    num_trials: int,
    base: Mapping[str, Any],
    deadline: float,
    policy: Policy,
    workers: int | Executor,
) -> SearchResult:
    """Run the missing trials of a search, up to `num_trials` in total, and return all trials."""
    driver = SearchDriver(manager, plan, num_trials, base, deadline)
    console = manager.job_runner.console
    for line in plan_lines(plan, num_trials, driver.records.trials()):
        console.print(line)

    def summarize(is_over: bool) -> None:
        result = read_result(driver.records, driver.end_reason)
        for line in summary_lines(result, manager, is_over, console.width):
            console.print(line)

    def status() -> str:
        return status_line(driver.records)

    run_batch(manager, driver, policy, None, workers, observer=driver, summarize=summarize, status=status, metric=plan.monitor[0])
    return read_result(driver.records, driver.end_reason)


def read_result(records: SearchRecords, end_reason: str = "") -> SearchResult:
    """Return the trials of a search as they are recorded now."""
    plan = records.plan()
    assert plan is not None
    rows = []
    for proposal in records.proposals():
        outcome = records.outcome(proposal.number)
        rows.append(
            TrialRow(
                proposal.number,
                proposal.state if outcome is None else outcome.state,
                proposal.keys,
                proposal.values,
                None if outcome is None else outcome.values,
                0 if outcome is None else outcome.epoch,
                proposal.reason if outcome is None else outcome.reason,
            )
        )
    return SearchResult(plan, tuple(rows), importances(plan, records.trials()), end_reason)
