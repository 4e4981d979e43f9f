"""The summary at the end of a batch: its result, its failures, and its best runs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from trainmaster.config.varying import VaryingKeys
from trainmaster.errors import OtherProgramError, StoreError
from trainmaster.manager.batch import BatchResult
from trainmaster.manager.batch_view import NUM_BEST, best_lines
from trainmaster.manager.error_text import in_one_line
from trainmaster.manager.overview import Row, ranking_of
from trainmaster.store.dict_filter import restore_floats
from trainmaster.store.keys import is_key
from trainmaster.store.summary import flat

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager

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
    """Print a table of the best runs and, if the batch was not interrupted, the command that shows the best one."""
    runner = manager.job_runner
    rows = [row for key in [*result.done, *result.found] if (row := _row_of(manager, key)) is not None]
    ranking = ranking_of(rows, is_lenient=True)
    if ranking is None or not ranking.rows:
        return
    configs = {key: _values_of(manager, key) for _, key in ranking.rows[:NUM_BEST]}
    for line in best_lines(ranking, configs, varying, runner.console.width):
        runner.console.print(line)
    if is_over:
        runner.console.print(f"next: {runner.invocation.show_command(manager.store, ranking.rows[0][1])}")


def _row_of(manager: Manager, key: str) -> Row | None:
    """Return the key, stats and preview of a run, or None if its records are damaged. `trainmaster verify` reports the damage."""
    try:
        return key, manager.stats[key], manager.previews.get(key) or {}
    except (StoreError, FileNotFoundError):
        return None


def _values_of(manager: Manager, key: str) -> dict[str, Any]:
    """Return the values of a run's config by dotted key, or an empty dict if its record is damaged."""
    try:
        return dict(flat(restore_floats(manager.configs.record(key)["config"])))
    except (StoreError, FileNotFoundError):
        return {}
