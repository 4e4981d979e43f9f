"""Runs a batch from start to finish: starts the executor, shows progress, and prints a summary."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any

from trainmaster.arguments import check_int
from trainmaster.config.identity import group_of
from trainmaster.config.to_plain import is_same
from trainmaster.config.varying import VaryingKeys, short_names, short_values
from trainmaster.errors import ConfigError, OtherProgramError, StoreError
from trainmaster.loop.notebook_bars import is_in_notebook
from trainmaster.manager.batch import Batch, BatchResult, JobObserver, Policy
from trainmaster.manager.batch_view import NUM_BEST, BatchView, best_lines, values_of
from trainmaster.manager.console import short_number
from trainmaster.manager.error_text import in_one_line
from trainmaster.manager.executor import Executor, InProcess
from trainmaster.manager.overview import Ranking, Row, find_number, ranking_of
from trainmaster.manager.varied_keys import sample_configs
from trainmaster.store.keys import is_key
from trainmaster.store.summary import flat

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

    `patience` is in hours, as in `Manager.batch`. `observer` is notified when a job ends, and may stop runs early.
    `summarize(is_over)` prints a summary instead of the table of the best runs; `is_over` is False if the batch was
    interrupted or failed. `status` returns a line for the live view. `metric` is the metric to show when a run ends. By
    default, it is the metric that the run monitors.
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
    return find_number(name, preview)


def _num_configs(configs: Iterable[Any]) -> int | None:
    """Return the number of configs, or None if it is unknown."""
    try:
        return len(configs) if isinstance(configs, Sized) else None
    except OverflowError:  # more combinations than `len` can return
        return None


_MAX_FAILURES = 10


def print_result(manager: Manager, result: BatchResult) -> None:
    """Print the number of runs for each outcome, and each error with the runs in which it occurred."""
    runner = manager.job_runner
    runner.console.print(f"batch: {result}")
    runner.print_code_changes()
    keys_by_error: dict[str, list[str]] = {}
    for key, reason in {**result.failed, **result.given_up}.items():
        keys_by_error.setdefault(in_one_line(reason), []).append(key)
    for error, keys in itertools.islice(keys_by_error.items(), _MAX_FAILURES):
        shown = [*keys[:_MAX_FAILURES], f"and {len(keys) - _MAX_FAILURES:,} more"] if len(keys) > _MAX_FAILURES else keys
        runner.console.print(f"  {', '.join(shown)}: {error}")
        if error.startswith(OtherProgramError.__name__):
            runner.console.print("    try: `--fresh` (`resume=False`) to train again, `--same-program` (`same_program=True`) to accept it")
        elif is_key(keys[0]):
            runner.console.print(f"    try again: {runner.invocation.train_command(manager.store, keys[0])}")
    if len(keys_by_error) > _MAX_FAILURES:
        runner.console.print(f"  ... and {len(keys_by_error) - _MAX_FAILURES:,} other errors")


def print_best_runs(manager: Manager, result: BatchResult, varying: VaryingKeys, is_over: bool) -> None:
    """Print a table of the best runs, the best setting if there are replicates, and the command that shows the best run.

    The command is not printed if the batch was interrupted.
    """
    runner = manager.job_runner
    rows = [row for key in [*result.done, *result.found] if (row := _row_of(manager, key)) is not None]
    ranking = ranking_of(rows, is_lenient=True)
    if ranking is None or not ranking.rows:
        return
    configs = {key: _values_of(manager, key) for _, key in ranking.rows[:NUM_BEST]}
    for line in best_lines(ranking, configs, varying, runner.console.width):
        runner.console.print(line)
    if ranking.is_guess:
        runner.console.print(
            f"{ranking.metric} is a guess: the runs do not monitor one metric; to sort by another: trainmaster ls --sort METRIC"
        )
    setting = _describe_best_setting(manager, [key for key, *_ in rows], ranking, varying)
    if setting is not None:
        runner.console.print(setting)
    if is_over:
        runner.console.print(f"next: {runner.invocation.show_command(manager.store, ranking.rows[0][1])}")


def _describe_best_setting(manager: Manager, keys: Sequence[str], ranking: Ranking, varying: VaryingKeys) -> str | None:
    """Describe the setting with the best mean over its seeds. Return None if no two runs are replicates of each other.

    The mean is used because the best single run may just have had a lucky seed. A setting is left out if the metric of one of its runs is
    missing or NaN.
    """
    groups: dict[str | None, list[str]] = {}
    for key in keys:
        groups.setdefault(_group_of(manager, key), []).append(key)
    values = {key: value for value, key in ranking.rows}
    settings = [each for group, each in groups.items() if group is not None and len(each) > 1 and all(key in values for key in each)]
    if not settings:
        return None
    means = [sum(values[key] for key in each) / len(each) for each in settings]
    mean = max(means) if ranking.is_greater_better else min(means)
    chosen = settings[means.index(mean)]
    configs = [_values_of(manager, key) for key in chosen]
    shared = [name for name in varying.names if name in configs[0] and all(is_same(configs[0][name], each.get(name)) for each in configs)]
    label = ", ".join(f"{short}={short_values([configs[0][name]])[0]}" for name, short in short_names(shared, ".").items())
    seeds = f"{len(chosen)} seeds of {label}" if label else f"{len(chosen)} seeds"
    command = manager.job_runner.invocation.groups_command(manager.store, ranking.metric, ranking.is_greater_better)
    return f"best mean {ranking.metric} over seeds: {short_number(mean)} ({seeds}); all settings: {command}"


def _group_of(manager: Manager, key: str) -> str | None:
    """Return an id that all replicates of a run share, or None if the config of the run is damaged."""
    try:
        record = manager.configs.record(key)
        return str(record["group"]) if "group" in record else group_of(record.get("identity", record["config"]), 64)
    except (StoreError, FileNotFoundError, ConfigError):
        return None


def _row_of(manager: Manager, key: str) -> Row | None:
    """Return the key, stats and preview of a run, or None if its records are damaged. `trainmaster verify` reports the damage."""
    try:
        return key, manager.stats[key], manager.previews.get(key) or {}
    except (StoreError, FileNotFoundError):
        return None


def _values_of(manager: Manager, key: str) -> dict[str, Any]:
    """Return the values of a run's config by dotted key, or an empty dict if its record is damaged."""
    try:
        return flat(manager.configs.record(key)["config"])
    except (StoreError, FileNotFoundError):
        return {}
