"""Finds a stored run whose config has fewer epochs than a new config, but is otherwise the same."""

from __future__ import annotations

from typing import Any, NamedTuple

from trainmaster.config import ConfigBase
from trainmaster.config.declared_secrets import masked_config
from trainmaster.config.identity import EPOCH_KEYS
from trainmaster.config.to_plain import is_same, to_plain
from trainmaster.store import Store


class ShorterRun(NamedTuple):
    num_epochs: int
    key: str
    num_wanted: int
    """The number of epochs in the new config."""


def shorter_run(store: Store, config: Any) -> ShorterRun | None:
    """Return the longest stored run whose config has fewer epochs than `config` but is otherwise the same, or None."""
    is_free = not isinstance(config, ConfigBase)  # a typed config is stored with fields that are not part of its identity
    wanted = masked_config(config) if is_free else to_plain(config)
    name = next((name for name in EPOCH_KEYS if isinstance(wanted.get(name), int)), None)
    if name is None:
        return None
    num_wanted = wanted.pop(name)

    def is_shorter(stored: dict[str, Any]) -> bool:
        is_fewer = type(stored.get(name)) is int and stored[name] < num_wanted
        has_same_keys = not is_free or stored.keys() == {*wanted, name}
        return is_fewer and has_same_keys and all(key in stored and is_same(stored[key], wanted[key]) for key in wanted)

    runs = [ShorterRun(stored[name], key, num_wanted) for key, stored in store.index if is_shorter(stored) and store.run(key).has_saved()]
    return max(runs, key=lambda run: run.num_epochs, default=None)
