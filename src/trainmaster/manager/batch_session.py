"""Runs a batch from start to finish: starts the executor, shows progress, and prints a summary."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sized
from typing import TYPE_CHECKING, Any

from trainmaster.arguments import check_int
from trainmaster.config.varying import VaryingKeys
from trainmaster.errors import StoreError
from trainmaster.loop.notebook_bars import is_in_notebook
from trainmaster.manager.batch import Batch, BatchResult, JobObserver, Policy
from trainmaster.manager.batch_summary import print_best_runs, print_result
from trainmaster.manager.batch_view import BatchView, values_of
from trainmaster.manager.executor import Executor, InProcess
from trainmaster.manager.overview import number
from trainmaster.manager.varied_keys import sample_configs
from trainmaster.store.metric_names import matching_metrics

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager


def run_batch(
    manager: Manager,
    configs: Iterable[Any],
    policy: Policy,
    patience: float | None,
    workers: int | Executor,
    observer: JobObserver | None = None,
    summarize: Callable[[bool], None] | None = None,
    status: Callable[[], str] | None = None,
    metric: str | None = None,
) -> BatchResult:
    """Train a batch of configs, and show progress.

    `patience` is in hours, as in `Manager.batch`. `observer` follows the jobs of the batch. `summarize(is_over)` prints
    a summary instead of the table of the best runs; `is_over` is False if the batch was interrupted or failed. `status`
    returns a line for the live view. `metric` is the metric to show when a run ends. By default, it is the metric that the run
    monitors.
    """
    runner, console = manager.job_runner, manager.job_runner.console
    varying = VaryingKeys(map(values_of, sample_configs(manager, configs)))
    watch = manager.store.watch(None if patience is None else patience * 3600)
    with runner.interruptible() as interrupts, contextlib.ExitStack() as stack:
        executor = make_executor(workers)
        if not isinstance(executor, InProcess):
            stack.enter_context(interrupts.no_deadline())  # each worker has its own deadline
        stack.callback(executor.close)
        executor.open(manager, runner.run_task)
        batch = Batch(manager, policy, watch, executor, interrupts, observer)
        view = None
        if console.is_verbose:
            read = None if metric is None else functools.partial(_read_metric, manager, metric)
            view = BatchView(_num_configs(configs), console.print, varying, batch.result, batch.running, status=status, read_metric=read)
            stack.enter_context(runner.reporting_to(view.progress))  # for runs that are trained in this process
            stack.enter_context(view)
            if view.is_live or is_in_notebook():  # a notebook shows one line for each run when the run ends
                stack.enter_context(console.below_live_view())
        has_failed = True
        try:
            batch.run(configs, view)
            has_failed = False
        finally:
            stack.close()
            if summarize is None or batch.result.failed or batch.result.given_up:
                print_result(manager, batch.result)
            if summarize is not None:
                summarize(interrupts.reason is None and not has_failed)
            elif not has_failed and console.is_verbose:
                print_best_runs(manager, batch.result, varying, is_over=interrupts.reason is None)
            if interrupts.reason is not None:
                console.print(f"resume with: {runner.invocation.restart_command()}")
        interrupts.raise_signal()
        return batch.result


def make_executor(workers: int | Executor) -> Executor:
    if not isinstance(workers, int) and hasattr(workers, "submit"):
        return workers
    check_int("workers", workers, min=0)
    assert isinstance(workers, int)
    if workers == 0:
        return InProcess()
    from trainmaster.manager.local_workers import LocalWorkers

    return LocalWorkers(workers)


def _read_metric(manager: Manager, name: str, key: str) -> tuple[str, float] | None:
    """Return the full name and the last value of a run's metric, or None if the run does not have the metric."""
    try:
        preview = manager.previews.get(key) or {}
    except StoreError:  # `trainmaster verify` reports the damage
        return None
    names = matching_metrics(name, preview)
    value = number(preview[names[0]]) if len(names) == 1 else None
    return None if value is None else (names[0], value)


def _num_configs(configs: Iterable[Any]) -> int | None:
    """Return the number of configs, or None if it is unknown."""
    try:
        return len(configs) if isinstance(configs, Sized) else None
    except OverflowError:  # more combinations than `len` can return
        return None
