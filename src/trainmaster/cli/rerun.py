"""`trainmaster rerun`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.options import Json, Key, Quiet, StoreOption

if TYPE_CHECKING:
    from trainmaster.manager import Manager
    from trainmaster.store import Store
    from trainmaster.store.comparison import Comparison, Recorded
    from trainmaster.store.differences import Difference

_MAX_SHOWN = 5
"""How many differences of a kind are printed."""


def command(
    key: Key,
    store: StoreOption = None,
    epochs: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only the first N epochs; by default as far as the run was trained.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="TARGET", help="The manager, if it is not where it was.", show_default=False)
    ] = None,
    is_compared: Annotated[bool, typer.Option("--compare", help="Compare with what the store has, bit by bit.")] = False,
    keep: Annotated[
        str | None, typer.Option(metavar="DIR", help="Keep the new training: a store in a new folder.", show_default=False)
    ] = None,
    is_json: Json = False,
    is_quiet: Quiet = False,
) -> None:
    """Train a run once more, from its start, and compare it bit by bit.

    The run and its store stay as they are: the new training goes to a store of its own, which is removed at the end, or kept with --keep.
    Exit code 0: the same bits; 1: others, and which.

    \b
    Examples:
      trainmaster rerun 3fa9 --compare
      trainmaster rerun 3fa9 --compare --epochs 1
      trainmaster rerun 3fa9 --keep again
    """
    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.new_folder import new_folder
    from trainmaster.cli.opening import needed_store
    from trainmaster.cli.strict_json import print_json
    from trainmaster.cli.taking_up import take_up
    from trainmaster.errors import SettingError
    from trainmaster.manager.rerun import moment_of, rerun, using_threads
    from trainmaster.store.circumstances import num_threads_of, reasons
    from trainmaster.store.comparison import compare, recorded
    from trainmaster.store.printable import printable

    if is_json and not is_compared:
        raise SettingError("--json prints a comparison, and none is asked for", hint="give --compare")
    if not is_compared and keep is None:
        raise SettingError("there is nothing to do: the new training would be thrown away", hint="give --compare, or --keep DIR")
    found = needed_store(store)
    whole = resolve_key(found, key)
    run = found.run(whole)
    before = recorded(run, epochs)
    if epochs is not None and epochs > before.status["epoch"]:
        raise SettingError(f"run {whole} was trained for {before.status['epoch']} epochs, not for {epochs}", hint="give fewer --epochs")
    folder = None if keep is None else new_folder("--keep", keep, found)
    manager, config, _ = take_up(found, whole, target, is_quiet or is_json, "rerun")
    if not is_quiet and not is_json:
        print(printable(_introduction(found, before)), flush=True)
    until = moment_of(before.status, before.step) if before.has_state else moment_of({"epoch": epochs}, 0)
    with _store_for(folder, manager) as again, using_threads(num_threads_of(run)):
        trained = rerun(manager, config, again, until, before.status.get("target"))
        comparison = compare(before, recorded(trained)) if is_compared else None
        why = [*_reasons(before, manager), *reasons(run, trained)] if comparison is not None and not comparison.is_same else []
    if comparison is not None and is_json:
        print_json(_as_data(before, comparison, why, folder))
    elif comparison is not None and not (is_quiet and comparison.is_same):
        print("\n".join(map(printable, _verdict(before, comparison, why))))
    if folder is not None and not is_quiet and not is_json:
        print(printable(f"the new training is kept: run {trained.key} in {folder}"))
    if comparison is not None and not comparison.is_same:
        raise typer.Exit(1)


@contextlib.contextmanager
def _store_for(folder: str | None, manager: Manager) -> Iterator[Store]:
    """The store of the new training: in a folder, or for as long as the block runs."""
    import sys
    import tempfile
    from dataclasses import replace

    from trainmaster.store import Store

    if folder is not None:
        yield Store(folder, manager.store.lease_time)
        return
    manager.launched(replace(manager.launch, is_passing=True))
    with tempfile.TemporaryDirectory(prefix="trainmaster-rerun-", ignore_cleanup_errors=True) as place:
        try:
            yield Store(place, manager.store.lease_time)
        except (KeyboardInterrupt, SystemExit):
            print("nothing of the new training is kept", file=sys.stderr)
            raise


def _introduction(store: Store, before: Recorded) -> str:
    """What is trained again; of a run that has not come to its end, its last checkpoint is what is compared."""
    from trainmaster.store.summary import summarize

    state = summarize(store, before.key).state
    if state != "finished" and before.has_state:
        return f"run {before.key} ({state}) is trained again, up to its last checkpoint: {_place(before)}"
    return f"run {before.key} is trained again, up to {_place(before)}"


def _place(before: Recorded) -> str:
    return f"epoch {before.epoch}, step {before.step}" if before.has_state else f"epoch {before.epoch}"


def _reasons(before: Recorded, manager: Manager) -> Iterator[str]:
    """What the state of a run tells about why it came to other bits: on a GPU, many operations add in any order."""
    value, context = before.value, before.context
    states = [part.get("rng") for part in (value.get("state") if isinstance(value, dict) else None, context) if isinstance(part, dict)]
    kinds = {type(each).__name__ for each in manager.loop.extensions.values()} if manager.loop is not None else set()
    if any(isinstance(rng, dict) and "cuda" in rng for rng in states) and "Deterministic" not in kinds:
        yield "it was trained on a GPU without the extension Deterministic"


def _verdict(before: Recorded, comparison: Comparison, why: list[str]) -> Iterator[str]:
    """The comparison for people: same, or the first differences of each kind."""
    from trainmaster.cli.words import counted
    from trainmaster.store.differences import ROW, TENSOR, VALUE

    rows = counted(comparison.num_rows, "metric row")
    parts = [counted(comparison.num_tensors, "tensor"), counted(comparison.num_numbers, "number"), rows] if before.has_state else [rows]
    if comparison.is_same:
        gone = "" if before.has_state else ", of which no checkpoint is left"
        yield f"same: {', '.join(parts)}, bit by bit ({_place(before)}{gone})"
        return
    yield f"not the same: {len(comparison.differences):,} differences in {', '.join(parts)} ({_place(before)})"
    if before.has_state and (comparison.epoch, comparison.step) != (comparison.other_epoch, comparison.other_step):
        yield f"  ended   at epoch {comparison.other_epoch}, step {comparison.other_step} this time"
    for kind, num_shown in ((ROW, 1), (TENSOR, _MAX_SHOWN), (VALUE, _MAX_SHOWN)):
        found = comparison.of(kind)
        label = "first" if kind == ROW else kind
        yield from (f"  {label:7} {_told(each)}" for each in found[:num_shown])
        if len(found) > num_shown:
            yield f"  {'':7} ... and {counted(len(found) - num_shown, f'more {kind}')}"
    yield from (f"  why?    {each}" for each in why)


def _told(difference: Difference) -> str:
    if difference.num is not None:
        return str(difference)
    at = "" if difference.step is None else f" at {difference.step}"
    return f"{difference.name or 'the checkpoint'}{at}: {difference.one} in the store, {difference.other} this time"


def _as_data(before: Recorded, comparison: Comparison, why: list[str], folder: str | None) -> dict[str, Any]:
    return {
        "key": before.key,
        "is_same": comparison.is_same,
        "epoch": before.epoch,
        "step": before.step if before.has_state else None,
        "has_checkpoint": before.has_state,
        "num_tensors": comparison.num_tensors,
        "num_numbers": comparison.num_numbers,
        "num_rows": comparison.num_rows,
        "differences": [each._asdict() for each in comparison.differences],
        "reasons": why,
        "kept": folder,
    }
