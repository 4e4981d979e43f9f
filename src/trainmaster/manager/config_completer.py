"""`ConfigCompleter`: fills in a manager's defaults and secrets, and reports misspelled keys.

A stored config contains `***` instead of each secret.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

from trainmaster.config import Config, ConfigBase
from trainmaster.config.config import TARGET, with_secrets
from trainmaster.config.declared_secrets import masked_secret_paths
from trainmaster.config.near_miss import find_near_misses, unknown_key_message
from trainmaster.config.origins import inherit_origins
from trainmaster.config.paths import Path, dotted, key_problem
from trainmaster.config.recorded_origins import adopt_origins
from trainmaster.config.secret_patterns import MASK, environment_variable
from trainmaster.errors import ConfigError, Problem, SettingError
from trainmaster.store import Store

Defaults = Config | ConfigBase | type[ConfigBase]


class ConfigCompleter:
    """Completes the configs that users pass to a manager."""

    def __init__(self, secrets: tuple[str, ...], new_keys: Iterable[str]) -> None:
        self._secrets, self._new_keys = secrets, set(new_keys)

    def complete(self, config: Any, defaults: Defaults, store: Store) -> Any:
        """Return `config` with the defaults filled in.

        If a stored config has `***` in place of a secret, the secret is taken from the environment or the defaults.
        """
        if isinstance(config, ConfigBase):
            return revealed(config.clone(), defaults)
        loaded = Config.load(config) if isinstance(config, str | os.PathLike) else {} if config is None else config
        values = revealed(with_secrets(loaded, self._secrets), defaults)
        if isinstance(defaults, type):
            return revealed(adopt_origins(defaults(**values.asdict()), values))
        if isinstance(defaults, ConfigBase):
            merged = Config(defaults.to_dict())
            merged.update(values)
            typed = type(defaults)(**merged.asdict())
            inherit_origins(typed, defaults, {*values.flatten()})
            return revealed(adopt_origins(typed, values), defaults)
        self._refuse_misspelled_keys(values, defaults, store)
        values.fill(defaults)
        return values

    def allow_keys(self, keys: Iterable[str]) -> None:
        """Accept these dotted keys even if they look like misspelled keys of the defaults."""
        self._new_keys.update(keys)

    def declare_secrets(self, config: Any) -> Any:
        """Declare the manager's secrets in a config, because an override of `get_config` may have built a new config without them."""
        return config if isinstance(config, ConfigBase) or not self._secrets else with_secrets(config, self._secrets)

    def refuse_misspelled_secrets(self, config: Any) -> None:
        """Raise an error if a declared secret looks like a misspelled config key, because that key's value would be stored unmasked."""
        for key, meant in find_near_misses(dict.fromkeys(self._secrets), config) if self._secrets and isinstance(config, Config) else ():
            raise SettingError(f"secrets={self._secrets!r}: the config has no `{key}`", hint=f"did you mean `{meant}`?")

    def _refuse_misspelled_keys(self, values: Config, defaults: Config, store: Store) -> None:
        """Raise an error if a key looks like a misspelled key of the defaults, unless it is in `new_keys` or in a stored config."""
        suspects = {key: meant for key, meant in find_near_misses(values, defaults, TARGET) if key not in self._new_keys}
        if suspects:
            self._new_keys |= store.keys_in_use(suspects)
        problems = [
            Problem(key, unknown_key_message([meant]), is_unknown=True) for key, meant in suspects.items() if key not in self._new_keys
        ]
        if problems:
            names = ", ".join(f'"{each.key}"' for each in problems) + ("," if len(problems) == 1 else "")
            raise ConfigError.of("the config", problems, hint=f"if it is a new key, pass the manager `new_keys=({names})`")


def load_defaults(defaults: Any, secrets: tuple[str, ...]) -> Defaults:
    """Convert the `defaults` argument of a manager to a config or a config class."""
    if isinstance(defaults, ConfigBase) or (isinstance(defaults, type) and issubclass(defaults, ConfigBase)):
        if secrets:
            raise SettingError(
                f"secrets={secrets!r}: the defaults are a typed config, whose class declares its own secrets",
                hint="annotate fields `Secret[str]`",
            )
        return defaults
    loaded = Config.load(defaults) if isinstance(defaults, str | os.PathLike) else Config({} if defaults is None else defaults)
    return with_secrets(loaded, secrets)


def checked_keys(name: str, keys: Any) -> tuple[str, ...]:
    """Check that an argument of a manager is a collection of dotted keys, and return it as a tuple."""
    if isinstance(keys, str) or not isinstance(keys, Collection) or any(map(key_problem, keys)):
        raise SettingError(f"{name}={keys!r:.60}: expected dotted keys", hint=f'write {name}=("wandb.api_key",)')
    return tuple(keys)


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
