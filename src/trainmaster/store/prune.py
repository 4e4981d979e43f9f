"""Prune: remove what counts for nothing any more. Runs that somebody holds, or may hold, are left alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trainmaster.errors import RunBusyError, StoreDamagedError
from trainmaster.store.attempt import claim, drop_all_but, remove_records, saved_by
from trainmaster.store.checkpoint import CheckpointName, check_checkpoint
from trainmaster.store.files import Files
from trainmaster.store.keys import attempt_folder, is_key, run_folder
from trainmaster.store.lease import Hold, holder_of
from trainmaster.store.run import Link, Run


def prune(files: Files, keep: int, lease_time: float) -> Iterator[str]:
    """The paths that were removed, as they are."""
    for folder in ("", "index", *(f"configs/{name}" for name in files.names("configs"))):
        yield from files.sweep(folder)
    for folder in files.names("stats"):
        for key in files.names(f"stats/{folder}") if len(folder) == 2 else ():
            if is_key(key):
                with contextlib.suppress(StoreDamagedError):  # nothing is removed from a run that `verify` has to look at first
                    yield from _prune_run(Run(files, key), keep, lease_time)


def _prune_run(run: Run, keep: int, lease_time: float) -> Iterator[str]:
    newest = run.newest()
    if newest == 0 or holder_of(run).hold is not Hold.FREE:
        return
    for number in run.attempts():
        for archive in ("stats", "previews"):
            yield from run.files.sweep(attempt_folder(archive, run.key, number))
    if run.is_removed(newest):
        remove_records(run, before=newest)
        return
    chain = run.chain()
    names = run.checkpoints(chain)
    good = [name for name in names if _is_good(run, name, chain)]
    if good:
        kept = _kept(run, good, keep)
        yield from drop_all_but(run, kept, before=newest + 1)
        for name in kept:
            yield from run.files.sweep(name.folder(run.key))
    elif not names and run.last_saved(chain) is None and not any(run.own_checkpoints(number) for number in run.attempts()):
        yield from _clear(run, lease_time)  # where all are damaged, they may yet be repaired


def prunable(files: Files, keep: int) -> Iterator[str]:
    """The folders that `prune` would remove now; what kills have left under temporary names is not among them."""
    for folder in files.names("stats"):
        for key in filter(is_key, files.names(f"stats/{folder}") if len(folder) == 2 else ()):
            with contextlib.suppress(StoreDamagedError):
                yield from _prunable(Run(files, key), keep)


def _prunable(run: Run, keep: int) -> Iterator[str]:
    newest = run.newest()
    if newest == 0 or holder_of(run).hold is not Hold.FREE or run.is_removed(newest):
        return
    chain = run.chain()
    names = run.checkpoints(chain)
    good = [name for name in names if _is_good(run, name, chain)]
    if good:
        kept = _kept(run, good, keep)
        yield from (folder for name, folder in saved_by(run, before=newest + 1) if name not in kept)
    elif not names and run.last_saved(chain) is None and not any(run.own_checkpoints(number) for number in run.attempts()):
        yield run_folder("stats", run.key)


def _kept(run: Run, good: list[CheckpointName], keep: int) -> list[CheckpointName]:
    """The newest of the good checkpoints, and the best."""
    best = run.best()
    return [name for name in good if name in good[:keep] or name == best]


def _is_good(run: Run, name: CheckpointName, chain: list[Link]) -> bool:
    try:
        check_checkpoint(run.files, run.key, name)
        run.check_events(name, chain)
    except StoreDamagedError:
        return False
    return True


def _clear(run: Run, lease_time: float) -> Iterator[str]:
    """Remove the records of a run that never saved anything; its config stays."""
    try:
        attempt = claim(run, "prune", lease_time)
    except RunBusyError:
        return
    if run.has_saved():  # meanwhile
        attempt.release("saved")
        return
    attempt.remove()
    attempt.release("removed")
    yield run_folder("stats", run.key)
