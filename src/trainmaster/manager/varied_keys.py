"""Checks which config keys a sweep, search, ablation or hypothesis can vary, and returns the config in which to vary them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmaster.config import Config, ConfigBase
from trainmaster.config.identity import START_FROM, identity_tree
from trainmaster.errors import Problem, did_you_mean

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager

_MAX_LISTED = 20


def values_to_replace(manager: Manager, values: Any) -> Config:
    """Return `values` with all defaults filled in. Arguments such as `lr=0.1` will replace some of the values in this config.

    The type of a replaced value determines the type of the new value. If the manager has a typed config, the result is
    empty, because a typed config converts new values itself.
    """
    config = manager.get_config(values) if isinstance(manager.defaults, Config) else None
    return config if isinstance(config, Config) else Config()


def problem_of_key(manager: Manager, config: Any, key: str) -> Problem | None:
    """Return why a key cannot be varied (it is unknown, or all its values lead to the same run), or None if it can."""
    values = config if isinstance(config, Config) else Config(config.to_dict())
    if key == START_FROM and key in values:  # None is not part of the identity, but other values are
        return None
    if key in values:
        return (
            None if key in Config(identity_tree(config)) else Problem(key, "is not part of the identity: all its values give the same run")
        )
    takes_any = isinstance(config, Config) and not (isinstance(manager.defaults, Config) and manager.defaults)
    if takes_any or key in manager.new_keys or _is_in_free_group(config, key):
        return None
    known = [*values.flatten()]
    listed = ", ".join([*known[:_MAX_LISTED], *(["..."] if len(known) > _MAX_LISTED else [])])
    return Problem(key, f"the config has no such key; {did_you_mean(key, known) or f'it has {listed}'}", is_unknown=True)


def _is_in_free_group(config: Any, key: str) -> bool:
    """Return whether a key is a new entry in a dict field, such as `optimizer_config.arguments.lr`."""
    group = key.rpartition(".")[0]
    return isinstance(config, ConfigBase) and bool(group) and group in config and isinstance(config[group], dict)
