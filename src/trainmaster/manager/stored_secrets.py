"""Fills in the secrets of stored configs. A stored config contains `***` instead of each secret."""

from __future__ import annotations

import os
from typing import Any

from trainmaster.config import ConfigBase
from trainmaster.config.declared_secrets import masked_secret_paths
from trainmaster.config.paths import Path, dotted
from trainmaster.config.secret_patterns import MASK, environment_variable
from trainmaster.errors import SettingError


def revealed(config: Any, defaults: Any = None) -> Any:
    """Replace the masked secrets in `config` with values from the environment or the manager's defaults, and return `config`.

    A secret stays masked if neither the environment nor the defaults provide it.
    """
    for path in masked_secret_paths(config):
        for value in (os.environ.get(environment_variable(path)), _inside(defaults, path)):
            if isinstance(value, str) and value not in ("", MASK):
                _put(config, path, value)
                break
    return config


def refuse_hidden(config: Any) -> None:
    """Raise an error if a secret of a config is still `***`."""
    paths = masked_secret_paths(config)
    if paths:
        names = ", ".join(f"`{dotted(path)}`" for path in paths)
        raise SettingError(
            f"the config lacks {'a secret' if len(paths) == 1 else 'secrets'}: {names}",
            why="the values of secrets are not stored, and this config came from the store",
            hint=f"set {', '.join(dict.fromkeys(map(environment_variable, paths)))} in the environment, or pass the complete config again",
        )


def _inside(config: Any, path: Path) -> Any:
    """Return the value at a path in a config, or None if the config has no such path."""
    node: Any = config.to_dict() if isinstance(config, ConfigBase) else config
    for part in path:
        try:
            node = node[_index(node, part)]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return node


def _put(config: Any, path: Path, value: str) -> None:
    *groups, last = path
    if isinstance(config, ConfigBase):
        config[dotted(path)] = value
        return
    for part in groups:
        config = config[_index(config, part)]
    config[_index(config, last)] = value


def _index(node: Any, part: str | int) -> str | int:
    return int(part) if isinstance(node, list | tuple) else part
