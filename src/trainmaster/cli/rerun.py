"""The command `trainmaster rerun`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.console import print_json, print_line
from trainmaster.cli.load_manager import find_manager
from trainmaster.cli.open_store import open_run
from trainmaster.cli.options import Json, Key, Quiet, StoreOption, TargetOption, Trust, check_new_folder
from trainmaster.errors import SettingError
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.manager import Manager
    from trainmaster.store import Run, Store
    from trainmaster.store.comparison import Comparison, Difference, Recorded

_MAX_SHOWN = 5
"""The maximum number of differences of each kind that are printed."""


def command(
    key: Key,
    store: StoreOption = None,
    epochs: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only the first N epochs (default: as far as the run was trained).")
    ] = None,
    target: TargetOption = None,
    is_trusted: Trust = False,
    is_compared: Annotated[bool, typer.Option("--compare", help="Compare bit by bit, which is the default without --keep.")] = False,
    keep: Annotated[str | None, typer.Option(metavar="DIR", help="Keep the store of the new run in a new folder.")] = None,
    is_json: Json = False,
    is_quiet: Quiet = False,
) -> None:
    """Train a run again and compare the results bit by bit.

    The run and its store do not change. The new run uses its own store, which is deleted at the end unless you pass
    --keep. The exit code is 0 if the results are bit-for-bit identical, and 1 if something differs.

    \b
    Examples:
      trainmaster rerun 3fa9
      trainmaster rerun 3fa9 --epochs 1
      trainmaster rerun 3fa9 --keep again --compare
    """
    from trainmaster.store.comparison import recorded

    found, run = open_run(store, key)
    before = recorded(run, epochs)
    if epochs is not None and epochs > before.status["epoch"]:
        raise SettingError(f"run {run.key} was trained for {before.status['epoch']} epochs, not for {epochs}", hint="pass fewer --epochs")
    folder = None if keep is None else check_new_folder("--keep", keep, str(found.root))
    is_silent = is_quiet or is_json
    manager, config, _ = find_manager(found, run, target, "rerun", is_silent, is_trusted)
    if not is_silent:
        print_line(_describe_start(found, before))
    has_comparison = is_compared or is_json or keep is None
    trained, comparison, causes = _rerun(run, before, manager, config, epochs, folder, has_comparison)
    if comparison is not None and is_json:
        print_json(_to_dict(before, comparison, causes, folder))
    elif comparison is not None and not (is_quiet and comparison.is_same):
        for line in _describe_result(before, comparison, causes):
            print_line(line)
    if folder is not None and not is_silent:
        print_line(f"kept the new run: {trained.key} in {folder}")
    if comparison is not None and not comparison.is_same:
        raise typer.Exit(1)


def _rerun(
    run: Run, before: Recorded, manager: Manager, config: Any, epochs: int | None, folder: str | None, has_comparison: bool
) -> tuple[Run, Comparison | None, list[str]]:
    """Train the run again, and return the new run, the comparison, and possible causes of differences."""
    from trainmaster.manager.rerun import moment_of, rerun, using_threads
    from trainmaster.store.comparison import compare, recorded
    from trainmaster.store.difference_causes import likely_causes, num_threads_of, targets_of

    until = moment_of(before.status, before.step) if before.has_state else moment_of({"epoch": epochs}, 0)
    with _open_store(folder, manager) as store, using_threads(num_threads_of(run)):
        trained = rerun(manager, config, store, until, [*targets_of(run), before.status.get("target")])
        comparison = compare(before, recorded(trained)) if has_comparison else None
        if comparison is None or comparison.is_same:
            return trained, comparison, []
        return trained, comparison, [*_find_gpu_cause(before, manager), *likely_causes(run, trained)]


@contextmanager
def _open_store(folder: str | None, manager: Manager) -> Iterator[Store]:
    """Open a store for the new run: in `folder`, or in a temporary folder if `folder` is None."""
    import tempfile
    from dataclasses import replace

    from trainmaster.store import Store

    if folder is not None:
        yield Store(folder, manager.store.lease_time)
        return
    manager.job_runner.configure(replace(manager.job_runner.invocation, is_store_temporary=True))
    with tempfile.TemporaryDirectory(prefix="trainmaster-rerun-", ignore_cleanup_errors=True) as temporary:
        try:
            yield Store(temporary, manager.store.lease_time)
        except (KeyboardInterrupt, SystemExit):
            print("the new run was deleted", file=sys.stderr)
            raise


def _describe_start(store: Store, before: Recorded) -> str:
    from trainmaster.store.summary import summarize

    state = summarize(store, before.key).state
    planned = before.status.get("planned") if before.status.get("is_beyond_plan") else None
    plan = "" if planned is None else f"; it was planned for {counted(planned, 'epoch')}, and its schedule continued as it was built"
    if state != "finished" and before.has_state:
        return f"training run {before.key} ({state}) again, up to its last checkpoint: {_describe_position(before)}{plan}"
    return f"training run {before.key} again, up to {_describe_position(before)}{plan}"


def _describe_position(before: Recorded) -> str:
    return f"epoch {before.epoch}, step {before.step}" if before.has_state else f"epoch {before.epoch}"


def _find_gpu_cause(before: Recorded, manager: Manager) -> Iterator[str]:
    """Yield a line if a GPU may have caused the differences.

    Many GPU operations add numbers in a varying order unless torch uses deterministic algorithms.
    """
    value, context = before.value, before.context
    states = [part.get("rng") for part in (value.get("state") if isinstance(value, dict) else None, context) if isinstance(part, dict)]
    kinds = {type(each).__name__ for each in manager.loop.extensions.values()} if manager.loop is not None else set()
    if any(isinstance(rng, dict) and "cuda" in rng for rng in states) and "Deterministic" not in kinds:
        yield "it was trained on a GPU without the extension Deterministic"


def _describe_result(before: Recorded, comparison: Comparison, causes: list[str]) -> Iterator[str]:
    """Yield lines that describe the result of a comparison, with the first differences of each kind."""
    from trainmaster.store.comparison import ROW, TENSOR, VALUE

    rows = counted(comparison.num_rows, "metric row")
    parts = [counted(comparison.num_tensors, "tensor"), counted(comparison.num_values, "value"), rows] if before.has_state else [rows]
    if comparison.is_same:
        lacking = "" if before.has_state else ", which no longer has a checkpoint"
        yield f"same: {', '.join(parts)}, bit by bit ({_describe_position(before)}{lacking})"
        return
    yield f"not the same: {counted(len(comparison.differences), 'difference')} in {', '.join(parts)} ({_describe_position(before)})"
    if before.has_state and (comparison.epoch, comparison.step) != (comparison.other_epoch, comparison.other_step):
        yield f"  ended   at epoch {comparison.other_epoch}, step {comparison.other_step} this time"
    for kind, num_shown in ((ROW, 1), (TENSOR, _MAX_SHOWN), (VALUE, _MAX_SHOWN)):
        differences = comparison.of(kind)
        label = "first" if kind == ROW else kind
        yield from (f"  {label:7} {_describe_difference(each)}" for each in differences[:num_shown])
        if len(differences) > num_shown:
            yield f"  {'':7} ... and {counted(len(differences) - num_shown, f'more {kind}')}"
    yield from (f"  why?    {each}" for each in causes)


def _describe_difference(difference: Difference) -> str:
    if difference.num is not None:
        return str(difference)
    at = "" if difference.step is None else f" at {difference.step}"
    return f"{difference.name or 'the checkpoint'}{at}: {difference.one} in the store, {difference.other} this time"


def _to_dict(before: Recorded, comparison: Comparison, causes: list[str], folder: str | None) -> dict[str, Any]:
    return {
        "key": before.key,
        "is_same": comparison.is_same,
        "epoch": before.epoch,
        "step": before.step if before.has_state else None,
        "has_checkpoint": before.has_state,
        "num_tensors": comparison.num_tensors,
        "num_values": comparison.num_values,
        "num_rows": comparison.num_rows,
        "differences": [each._asdict() for each in comparison.differences],
        "reasons": causes,
        "kept": folder,
    }
