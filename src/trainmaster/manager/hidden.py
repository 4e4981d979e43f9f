"""Secrets of configs that come from the store, where `***` stands in their place: they are given again, or the work does not begin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trainmaster.config import ConfigBase
from trainmaster.config.paths import Path, dotted
from trainmaster.config.secret_fields import hidden_fields, masked_config, variable_of
from trainmaster.errors import SettingError


def revealed(config: Any, defaults: Any = None) -> Any:
    """`config` with its hidden values set, in place: from the environment variable of each name, or else from the manager's defaults.

    A value that would make another run of it is not taken. What is not found stays hidden.
    """
    paths = hidden_fields(_tree(config))
    for path in paths:
        for value in (os.environ.get(variable_of(path)), _inside(defaults, path)):
            if isinstance(value, str) and value and _fits(config, path, value):
                _put(config, path, value)
                break
    return config


def refuse_hidden(config: Any) -> None:
    """Raise if a value of a config is `***`, which stands for a secret that was not stored."""
    paths = hidden_fields(_tree(config))
    if paths:
        names = ", ".join(f"`{dotted(path)}`" for path in paths)
        variables = dict.fromkeys(map(variable_of, paths))
        wrong = [path for path in paths if os.environ.get(variable_of(path))]  # set, and still not taken
        others = [
            f"{variable_of(path)} is set, but does not fit what is stored for `{dotted(path)}`: {_inside(config, path)}" for path in wrong
        ]
        raise SettingError(
            f"the config lacks {'a secret' if len(paths) == 1 else 'secrets'}: {names}",
            why="\n".join(["the values of secrets are not stored, and this config came from the store", *others]),
            hint=f"set {', '.join(variables)} in the environment, or give the whole config again",
        )


def _tree(config: Any) -> Any:
    return config.to_dict() if isinstance(config, ConfigBase) else config


def _inside(config: Any, path: Path) -> Any:
    """The value at a path; None where there is none."""
    node = None if isinstance(config, type) else _tree(config)
    for part in path:
        try:
            node = node[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return node


def _fits(config: Any, path: Path, value: str) -> bool:
    """Whether `value` would be stored just as the field is now."""
    shown: Any = value
    for part in reversed([part for part in path if isinstance(part, str)]):
        shown = {part: shown}
    shown = masked_config(shown)
    while isinstance(shown, dict):
        (shown,) = shown.values()
    return bool(shown == _inside(config, path))


def _put(config: Any, path: Path, value: str) -> None:
    node = config
    for part in path[:-1]:
        node = node[part]
    if isinstance(node, Mapping | list | ConfigBase):
        node[path[-1]] = value  # type: ignore[index]
