"""Taking up a run that was trained before: the manager that trained it, found by what its attempts say."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.cli.launching import launched
from trainmaster.cli.target import Target
from trainmaster.errors import SettingError

if TYPE_CHECKING:
    from trainmaster.manager import Manager
    from trainmaster.store import Store


class TakenUp(NamedTuple):
    """A run with the manager that makes it."""

    manager: Manager
    config: Any
    num_epochs: int | None
    """How far it was to be trained, where whoever started it said so."""


def take_up(store: Store, key: str, target: str | None, is_quiet: bool, command: str) -> TakenUp:
    """The manager of a run, in the run's store; `target` names it where it is not where it was, or where nobody knows it."""
    from trainmaster.manager.hidden import refuse_hidden

    run = store.run(key)
    claims = [run.claim_of(number) for number in run.attempts()]
    started = next((claim for claim in claims if isinstance(claim.get("target"), str)), None)
    num_epochs = None
    if target is None and started is None:
        raise SettingError(
            f"run {key} was not started by `trainmaster run`, so nobody knows its manager",
            hint=f"name it: `trainmaster {command} {key} --target train.py:MyManager`",
        )
    if started is not None:
        folder = started.get("folder")
        if isinstance(folder, str) and os.path.isdir(folder):
            sys.path[:0] = [folder, os.getcwd()]  # in this order: a module here may have the same name
        num_epochs = started["num_epochs"] if isinstance(started.get("num_epochs"), int) else None
    assert store.root is not None
    manager = launched(Target.parse(target if target is not None else str(started and started["target"])), store.root, is_quiet)
    config = manager.get_config(manager.configs[key])
    if manager.store.root != store.root or manager.configs.get_key(config) != key:
        raise SettingError(
            f"this manager makes another run of the config of {key}",
            why="it has another store" if manager.store.root != store.root else "its defaults or `get_config` have changed since",
            hint="name another one with --target",
        )
    refuse_hidden(config)
    return TakenUp(manager, config, num_epochs)
