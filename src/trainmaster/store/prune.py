"""Prune: remove what counts for nothing any more. Runs that somebody holds, or may hold, are left alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trainmaster.errors import RunBusyError, StoreDamagedError
from trainmaster.store.attempt import Attempt, claim, drop_checkpoint, drop_leftovers, remove_records
from trainmaster.store.checkpoint import CheckpointName, check_checkpoint
from trainmaster.store.files import Files
from trainmaster.store.keys import attempt_folder, is_key, run_folder
from trainmaster.store.lease import Hold, holder_of
from trainmaster.store.run import REMOVAL, Run


def prune(files: Files, keep: int, lease_time: float) -> Iterator[str]:
    """The paths that were removed, as they are."""
    for archive in ("configs", "stats"):
        for folder in files.names(archive):
            if len(folder) == 2:
                yield from files.sweep(f"{archive}/{folder}")
    for folder in files.names("stats"):
        for key in files.names(f"stats/{folder}") if len(folder) == 2 else ():
            if is_key(key):
                with contextlib.suppress(StoreDamagedError):  # nothing is removed from a run that `verify` has to look at first
                    yield from _prune_run(Run(files, key), keep, lease_time)


def _prune_run(run: Run, keep: int, lease_time: float) -> Iterator[str]:
    if run.newest() == 0 or holder_of(run).hold is not Hold.FREE:
        return
    for number in run.attempts():
        for archive in ("stats", "previews"):
            yield from run.files.sweep(attempt_folder(archive, run.key, number))
    chain = run.chain()
    names = run.checkpoints(chain)
    good = [name for name in names if _is_good(run, name)]
    if names and not good:
        return  # all are damaged, and may yet be repaired
    if not names and not run.lost(chain, None):
        if run.claim_of(run.newest())["by"] != REMOVAL:
            yield from _clear(run, lease_time)
        return
    for name in names:
        if name not in good[:keep]:
            drop_checkpoint(run, name)
            yield name.folder(run.key)
    yield from drop_leftovers(run, {link.attempt for link in chain}, before=run.newest() + 1)


def _is_good(run: Run, name: CheckpointName) -> bool:
    try:
        check_checkpoint(run.files, run.key, name)
    except StoreDamagedError:
        return False
    return True


def _clear(run: Run, lease_time: float) -> Iterator[str]:
    """Remove the records of a run that never saved anything; its config stays."""
    try:
        attempt: Attempt = claim(run, REMOVAL, lease_time)
    except RunBusyError:
        return
    remove_records(attempt)
    attempt.release("removed")
    yield run_folder("stats", run.key)
