"""Checks in the store whether a job is done."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainmaster.errors import StoreAccessError, StoreDamagedError
from trainmaster.manager.job import Job, wanted_epochs
from trainmaster.store import Store
from trainmaster.store.attempt import record_finished

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager


def is_done(store: Store, job: Job) -> bool:
    """Return whether a run was trained for all epochs of the job, evaluated and saved."""
    status = store.stats.get(job.key)
    if status is None or status["epoch"] < 0:
        return False
    epoch, wanted, target = status["epoch"], job.num_epochs, status.get("target")
    if wanted is None:
        return bool(status.get("is_over"))
    ended_before = bool(status.get("is_over")) and target is not None and target >= wanted
    return epoch > wanted or (epoch == wanted and status.get("is_evaluated", True)) or ended_before


def is_config_done(store: Store, manager: Manager, config: Any, num_epochs: int | None) -> bool:
    """Return whether the store has a finished run of `config`, which must have all defaults filled in. Nothing is stored."""
    key = store.configs.get_key(config)
    return key is not None and is_done(store, Job(key, "", config, wanted_epochs(manager, config, num_epochs)))


def record_end(store: Store, job: Job) -> None:
    """Record that a run is finished, in case its process was killed between saving the last checkpoint and recording the end.

    Without this record, the run would always be listed as killed.
    """
    with contextlib.suppress(StoreAccessError, StoreDamagedError, FileNotFoundError):  # the run is done even if this cannot be recorded
        run, epoch = store.run(job.key), store.stats[job.key]["epoch"]
        if run.outcome_of(run.newest()) is not None:
            return
        claim = run.claim_of(run.newest())
        if "num_epochs" in claim and is_done(store, replace(job, num_epochs=claim["num_epochs"])):
            record_finished(run, epoch)
