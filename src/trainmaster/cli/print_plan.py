"""Prints the runs that `run` and `sweep` will train."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from trainmaster.cli.console import print_line, print_pairs
from trainmaster.cli.executors import describe_workers
from trainmaster.config import Config, ConfigBase, key_of
from trainmaster.config.config import with_secrets
from trainmaster.config.declared_secrets import declared_secrets, masked_config, refuse_undeclared
from trainmaster.config.difference import Missing, diff
from trainmaster.errors import ConfigError

if TYPE_CHECKING:
    from trainmaster.manager import Manager
    from trainmaster.manager.executor import Executor
    from trainmaster.store import Store

_MAX_RUNS = 20
_MAX_CHECKED = 10_000
"""If a sweep has at most this many runs, a dry run says how many of them are done."""


def print_run_plan(manager: Manager, config: Any, num_epochs: int | None, store_dir: str, done_in: Store | None) -> None:
    """Print the key of a run, and how its config differs from the defaults. If the config is not typed, also print the whole config.

    If the run is already done in the store `done_in`, print this too.
    """
    from trainmaster.manager.job import is_config_done

    refuse_undeclared(config, manager.public)
    values = _mask(config).flatten()
    changes = diff(_get_defaults(manager, config), values)
    is_done = done_in is not None and is_config_done(done_in, manager, config, num_epochs)
    key = f"{key_of(config)} (already done)" if is_done else key_of(config)
    facts = [("key", key), ("store", os.path.abspath(store_dir))]
    print_pairs(facts + ([("epochs", str(num_epochs))] if num_epochs is not None else []), indent="")
    if not isinstance(config, ConfigBase):
        print_line("config")
        print_pairs([(key, repr(value)) for key, value in values.items()])
    print_line("changed from the defaults" if changes else "nothing changed from the defaults")
    print_pairs((key, " -> ".join("none" if kind is Missing else repr(value) for kind, value in sides)) for key, *sides in changes)


def print_sweep_plan(
    manager: Manager,
    choices: Any,
    num_epochs: int | None,
    workers: int | Executor,
    store_dir: str,
    has_keys: bool,
    done_in: Store | None = None,
) -> None:
    """Print what a sweep will train. With `has_keys`, also print the keys of the first runs and the values of the swept keys.

    If `done_in` is a store, also print how many of the runs are already done in it, unless there are too many runs to check.
    """
    num_runs = f"{choices.count:,}"
    if done_in is not None and choices.count <= _MAX_CHECKED:
        num_runs += f" ({_count_done(manager, choices, num_epochs, done_in) or 'none'} already done)"
    facts = [("runs", num_runs), ("store", os.path.abspath(store_dir)), ("workers", describe_workers(workers))]
    print_pairs(facts + ([("epochs", str(num_epochs))] if num_epochs is not None else []), indent="")
    if has_keys:
        print_pairs([_describe_choice(manager, choices, number) for number in range(min(choices.count, _MAX_RUNS))])
        if choices.count > _MAX_RUNS:
            print_line(f"  ... and {choices.count - _MAX_RUNS:,} more")


def _count_done(manager: Manager, choices: Any, num_epochs: int | None, store: Store) -> int:
    from trainmaster.manager.job import is_config_done

    num_done = 0
    for number in range(choices.count):
        with contextlib.suppress(Exception):  # the sweep itself will report an invalid config or a damaged run
            num_done += is_config_done(store, manager, manager.complete_config(choices[number]), num_epochs)
    return num_done


def _describe_choice(manager: Manager, choices: Any, number: int) -> tuple[str, str]:
    """Return the key of one combination, and the values that it chooses. If it chooses a whole group, all values of the group."""
    config = manager.complete_config(choices[number])
    refuse_undeclared(config, manager.public)
    chosen = _mask(with_secrets(choices[number], declared_secrets(config))).flatten()
    swept = tuple(f"{key}." for key in choices.swept)
    shown = [f"{key}={value!r}" for key, value in chosen.items() if choices.count == 1 or f"{key}.".startswith(swept)]
    return key_of(config), ", ".join(shown)


def _get_defaults(manager: Manager, config: Any) -> dict[str, Any]:
    """Return the defaults that a config is compared with, by dotted key. Fields without a default are left out."""
    if not isinstance(manager.defaults, type):
        return _mask(manager.defaults).flatten()
    kind, required = type(config), set()
    try:
        defaults = kind()
    except ConfigError as error:
        required = {each.key.partition(".")[0] for each in error.problems}
        try:
            defaults = kind(**{name: config[name] for name in required})
        except ConfigError:
            return {}
    return {key: value for key, value in _mask(defaults).flatten().items() if key.partition(".")[0] not in required}


def _mask(config: Any) -> Config:
    """Return a config as it would be stored, with `***` for its secrets."""
    return Config(masked_config(config))
