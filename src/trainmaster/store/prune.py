"""Deletes old checkpoints and leftover files. Runs that a process holds, or may hold, are skipped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trainmaster.errors import RunBusyError, StoreDamagedError
from trainmaster.store.attempt import checkpoint_folders, claim, remove_records
from trainmaster.store.checkpoint import CheckpointName, delete_checkpoint
from trainmaster.store.files import Files
from trainmaster.store.keys import attempt_folder, run_folder, stored_keys
from trainmaster.store.lease import Hold, holder_of
from trainmaster.store.run import Run


def prune(files: Files, keep: int, lease_time: float) -> Iterator[str]:
    """Delete old checkpoints, and files that killed processes left behind. Yield the deleted paths.

    The last `keep` undamaged checkpoints and the best checkpoint of each run are kept. If a run never saved a checkpoint, its
    records are deleted.
    """
    for folder in ("", "index", *(f"configs/{name}" for name in files.names("configs"))):
        yield from files.sweep(folder)
    for key in stored_keys(files, "stats"):
        with contextlib.suppress(StoreDamagedError):  # keep all files of a damaged run, so that `verify` can report the damage
            yield from _prune_run(Run(files, key), keep, lease_time)


def prunable(files: Files, keep: int) -> Iterator[str]:
    """Yield the folders that `prune` would delete. Abandoned temporary files are not included."""
    for key in stored_keys(files, "stats"):
        with contextlib.suppress(StoreDamagedError):
            run = Run(files, key)
            kept = _kept(run, keep)
            if kept:
                yield from (folder for name, folder in checkpoint_folders(run, before=run.newest() + 1) if name not in kept)
            elif kept is not None:
                yield run_folder("stats", key)


def _prune_run(run: Run, keep: int, lease_time: float) -> Iterator[str]:
    if not _is_free(run):
        return
    for number in run.attempts():
        for archive in ("stats", "previews"):
            yield from run.files.sweep(attempt_folder(archive, run.key, number))
    newest = run.newest()
    if run.is_removed(newest):
        remove_records(run, before=newest)
    kept = _kept(run, keep)
    if kept:
        for name, folder in checkpoint_folders(run, before=newest + 1):
            if name not in kept:
                delete_checkpoint(run.files, folder)
                yield folder
        for each in kept:
            yield from run.files.sweep(each.folder(run.key))
    elif kept is not None:
        yield from _delete_records(run, lease_time)


def _is_free(run: Run) -> bool:
    return run.newest() > 0 and holder_of(run).hold is Hold.FREE


def _kept(run: Run, keep: int) -> list[CheckpointName] | None:
    """Return the checkpoints to keep: the newest undamaged ones and the best one. The list is empty if the run never saved a checkpoint.

    Return None if the run must not be pruned, because a process may hold it or all its checkpoints are damaged.
    """
    if not _is_free(run) or run.is_removed(run.newest()):
        return None
    chain = run.chain()
    names = run.checkpoints(chain)
    good = [name for name in names if run.is_good(name, chain)]
    if good:
        best = run.best()
        return [name for name in good if name in good[:keep] or name == best]
    if names or run.last_saved(chain) is not None or any(run.own_checkpoints(number) for number in run.attempts()):
        return None  # all checkpoints are damaged or missing, and may still be restored from a copy
    return []


def _delete_records(run: Run, lease_time: float) -> Iterator[str]:
    """Delete the records of a run that never saved a checkpoint. The run's config is kept."""
    try:
        attempt = claim(run, "prune", lease_time)
    except RunBusyError:
        return
    if run.has_saved():  # the run saved a checkpoint in the meantime
        attempt.release("saved")
        return
    attempt.remove()
    attempt.release("removed")
    yield run_folder("stats", run.key)
