"""Collects the origins of config values to record them with a run, and copies origins from a free-form config to a typed one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from trainmaster.config.any_config import AnyConfig
from trainmaster.config.config import Config
from trainmaster.config.declared_secrets import declared_secrets
from trainmaster.config.fields import Field
from trainmaster.config.origins import origin_of
from trainmaster.config.secret_patterns import MASK
from trainmaster.config.value_table import DEFAULT, IN_CODE, run_origin
from trainmaster.config.values import configs_in, fields_in
from trainmaster.errors import ConfigError

C = TypeVar("C", bound=AnyConfig)

_OVERRIDE = "override "
_MAX_LENGTH = 200


def adopt_origins(config: C, values: Config) -> C:
    """Copy the origins of free-form values to the typed config that was built from them, and return the typed config."""
    for key, origin in _free_origins(values):
        try:
            owner, name, _ = config._owner(key)
        except ConfigError:  # the key is a former name
            continue
        if origin != IN_CODE:
            owner._origins[name] = origin
    return config


def recorded_origins(config: Any, key: str) -> dict[str, str] | None:
    """Return the origins of all values that are not defaults, by dotted key, with secrets masked.

    Return None if any value was read from the stored run `key` itself, because that run has already recorded the origins.
    """
    if isinstance(config, AnyConfig):
        pairs = {key: origin_of(owner, field.name) for key, owner, field in fields_in(config) if not _has_configs(owner, field)}
    else:
        pairs = dict(_free_origins(config))
    if run_origin(key) in pairs.values():
        return None
    secrets = [*declared_secrets(config)]
    return {name: _masked(origin, secrets)[:_MAX_LENGTH] for name, origin in pairs.items() if not _is_default(origin)}


def origin_at(origins: dict[str, str], key: str) -> str:
    """Return the recorded origin of a value or of the nearest group that contains it. If there is none, return "default".

    >>> origin_at({"lr": "override lr=0.1", "model": "base.yaml:3:1"}, "model.width"), origin_at({}, "lr")
    ('base.yaml:3:1', 'default')
    """
    while key and key not in origins:
        key = key.rpartition(".")[0]
    return origins.get(key, DEFAULT)


def _is_default(origin: str) -> bool:
    return origin == DEFAULT or origin.startswith(f"{DEFAULT} of ")


def _free_origins(config: Config, at: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Config) and value:
            yield from _free_origins(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", config.origin(name)


def _has_configs(config: AnyConfig, field: Field) -> bool:
    return any(True for _ in configs_in(vars(config)[field.name], ""))


def _masked(origin: str, secrets: list[str]) -> str:
    """Mask the value in an origin such as `override hub.token=abc` if it is a declared secret."""
    if not origin.startswith(_OVERRIDE):
        return origin
    key = origin.removeprefix(_OVERRIDE).partition("=")[0]
    name = key.removeprefix("+").strip()
    is_secret = any(f"{secret}.".startswith(f"{name}.") or f"{name}.".startswith(f"{secret}.") for secret in secrets)
    return f"{_OVERRIDE}{key}={MASK}" if is_secret else origin
