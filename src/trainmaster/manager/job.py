"""`Job`: one run to train. Its config has been checked, has all defaults filled in, and has a key. `is_done` checks for a finished run."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainmaster.arguments import check_int
from trainmaster.config.declared_secrets import refuse_undeclared
from trainmaster.config.identity import EPOCH_KEYS, canonical, hash_of
from trainmaster.errors import SettingError, StoreAccessError, StoreDamagedError
from trainmaster.manager.config_completer import refuse_hidden
from trainmaster.store import Store
from trainmaster.store.attempt import record_finished

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager


@dataclass(frozen=True)
class Job:
    """One run to train, and its number of epochs."""

    key: str
    """The key of the run in the store."""
    full_hash: str
    """The hash of the completed config.

    It starts with `key`, unless the run was stored before a default was added.
    """
    config: Any
    """The completed config."""
    num_epochs: int | None
    """The total number of epochs to train. If None, the loop decides."""

    def is_config_unchanged(self) -> bool:
        return hash_of(canonical(self.config)) == self.full_hash


def make_job(manager: Manager, config: Any, num_epochs: int | None) -> Job:
    """Complete and check a config, store it if it is new, and return it as a job."""
    config = manager.complete_config(config)
    refuse_hidden(config)
    refuse_undeclared(config, manager.public)
    manager.completer.refuse_misspelled_secrets(config)
    num_epochs = wanted_epochs(manager, config, num_epochs)
    if num_epochs is not None:
        check_int("num_epochs", num_epochs, min=0)
    identity = canonical(config)
    if canonical(manager.complete_config(config)) != identity:
        raise SettingError(
            f"`{type(manager).__name__}.get_config()` changes a config that it returned itself",
            hint="make it idempotent: given a config that it returned, it must return an equal one",
        )
    return Job(manager.configs.add(config, manager.public, identity), hash_of(identity), config, num_epochs)


def wanted_epochs(manager: Manager, config: Any, num_epochs: int | None) -> int | None:
    """Return how many epochs to train, given a config with all defaults filled in. None means that the loop decides."""
    if num_epochs is None:
        num_epochs = config_epochs(config)
    return 0 if num_epochs is None and not manager.has_make_loop else num_epochs


def job_to_load(config: Any, key: str) -> Job:
    """Return a job for loading a run without training it. `config` must have all defaults filled in."""
    return Job(key, hash_of(canonical(config)), config, None)


def config_epochs(config: Any) -> Any:
    """Return the number of epochs in a config, or None if the config does not set it."""
    values = {name: config[name] for name in EPOCH_KEYS if name in config and config[name] is not None}
    if len({*map(repr, values.values())}) > 1:
        raise SettingError(
            f"the config has both {' and '.join(f'{name}={value!r}' for name, value in values.items())}", hint="use only one of them"
        )
    return next(iter(values.values()), None)


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

    Without this record, the run would be listed as killed forever.
    """
    with contextlib.suppress(StoreAccessError, StoreDamagedError, FileNotFoundError):  # the run is done even if this cannot be recorded
        run, epoch = store.run(job.key), store.stats[job.key]["epoch"]
        if run.outcome_of(run.newest()) is not None:
            return
        claim = run.claim_of(run.newest())
        if "num_epochs" in claim and is_done(store, replace(job, num_epochs=claim["num_epochs"])):
            record_finished(run, epoch)
