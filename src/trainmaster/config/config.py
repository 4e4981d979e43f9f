"""`Config`, a free-form config: a dict with dotted keys and attribute access."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainmaster.arguments import is_number
from trainmaster.config.any_config import AnyConfig
from trainmaster.config.config_file import read_file, write_file
from trainmaster.config.dotted_dict import DottedDict, unknown_key
from trainmaster.config.identity import key_of
from trainmaster.config.import_path import import_object
from trainmaster.config.overrides import apply_overrides
from trainmaster.config.paths import dotted, leaves, split
from trainmaster.config.secret_patterns import secret_keys
from trainmaster.config.to_plain import to_plain
from trainmaster.config.value_table import DEFAULT, IN_CODE, run_origin, short_repr, table, table_html
from trainmaster.config.writer import yaml_text
from trainmaster.errors import ConfigError, Problem, UnknownKeyError

TARGET = "_target_"


class Config(DottedDict):
    """A dict in which `config["a.b"]`, `config.a.b` and `config["a"]["b"]` are the same value.

    Nested dicts are copied and become `Config`s. Tuples stay tuples. Each part of a dotted key must be non-empty text,
    and cannot be the name of a method.

    >>> config = Config({"model.width": 64, "lr": 0.1})
    >>> config.model.width
    64
    >>> config.fill({"lr": 1.0, "model": {"depth": 2}})
    >>> config
    Config({'model': {'width': 64, 'depth': 2}, 'lr': 0.1})
    """

    __slots__ = ("_secrets", "_stored_key")
    _secrets: frozenset[str]
    _stored_key: str | None

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any) -> None:
        object.__setattr__(self, "_secrets", secret_keys(values))
        object.__setattr__(self, "_stored_key", stored_key(values))
        super().__init__(values, **more)

    # ---- files

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """Load a config from a YAML or JSON file. `origin(key)` then returns the position of the key's value in the file."""
        parsed = read_file(path)
        tree = parsed.group()
        try:
            config = cls(tree)
        except ConfigError as error:
            located = [each._replace(where=parsed.where(each.key)) for each in error.problems]
            raise ConfigError.of(f"`{parsed.name}`", located) from None
        config._set_missing_origins(parsed.where)
        return config

    @classmethod
    def from_cli(cls, args: Iterable[str] | None = None) -> Config:
        """Create a config from `key=value` arguments, by default those of this process. Values are YAML.

        With `max_wait=60` among the arguments, this method waits for a random time of up to 60 seconds, so that many
        processes do not all start at the same time. `max_wait` does not become part of the config.
        """
        import sys

        tree, overrides = apply_overrides({}, sys.argv[1:] if args is None else args, "the command line", takes_any=True)
        config = cls(tree)
        config._set_origins({dotted(each.path): each.origin for each in overrides})
        if "max_wait" in config:
            _wait(config.pop("max_wait"))
        return config

    def _set_origins(self, origins: Mapping[str, str]) -> None:
        """Record new origins for some dotted keys and for the values below them. Keys that this config lacks are ignored."""
        for key, origin in origins.items():
            *groups, last = split(key)
            owner = self.get(dotted(groups)) if groups else self
            if isinstance(owner, Config) and last in owner:
                owner._origins[last] = origin
                if isinstance(owner[last], Config):
                    owner[last]._set_missing_origins(lambda _, origin=origin: origin)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the config as YAML, or as JSON if the name ends in `.json`. An interrupted write leaves no partial file."""
        write_file(self._tree_to_write(), path)

    def _tree_to_write(self) -> dict[str, Any]:
        typed = [key for key, value in leaves(self, into_lists=True) if isinstance(value, AnyConfig)]
        if typed:  # a file would contain them as plain groups, and their stateless values would become part of the key
            problems = [Problem(key, "a typed config must be written separately; use its `to_dict()` here") for key in typed]
            raise ConfigError.of("a Config", problems)
        return to_plain(self)

    def to_yaml(self) -> str:
        return yaml_text(self._tree_to_write())

    # ---- merging and copying

    def update(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any) -> None:  # type: ignore[override]
        """Merge `values` into this config, group by group. Keys that are not in `values` do not change."""
        other = Config(values, **more)
        self._keep_secret(other._secrets)
        for key, value in other.items():
            mine = dict.get(self, key)
            if isinstance(mine, Config) and isinstance(value, Config):
                mine.update(value)
            else:
                self[key] = value
                self._origins.update({key: other._origins[key]} if key in other._origins else {})

    def __or__(self, other: Mapping[str, Any]) -> Config:  # type: ignore[override]
        if not isinstance(other, Mapping):
            return NotImplemented
        result = self.clone()
        result.update(other)
        return result

    def __ior__(self, other: Any) -> Config:  # type: ignore[override,misc]
        self.update(other)
        return self

    def __ror__(self, other: Mapping[str, Any]) -> Config:  # type: ignore[override]
        return Config(other) | self if isinstance(other, Mapping) else NotImplemented

    def clone(self) -> Config:
        """Return a copy with its own dicts, lists and tuples. All other values are shared with the original."""
        return Config(self)

    copy = clone

    # ---- defaults, overrides, origins

    def fill(self, defaults: Mapping[str, Any] | str | os.PathLike[str]) -> None:
        """Add missing keys from `defaults`, group by group. `defaults` is a dict or the path of a file.

        If a group has a different `_target_` in `defaults`, no defaults are added to it, because a different class takes
        different arguments.
        """
        other = Config(defaults) if isinstance(defaults, Mapping) else Config.load(defaults)
        if TARGET in self and TARGET in other and self[TARGET] != other[TARGET]:
            return
        self._keep_secret(other._secrets)
        for key, value in other.items():
            if key not in self:
                self[key] = value
                self._origins[key] = other._origins.get(key, DEFAULT)
                if isinstance(self[key], Config):
                    self[key]._set_missing_origins(lambda _: DEFAULT)
            elif isinstance(self[key], Config) and isinstance(value, Config):
                self[key].fill(value)

    def _set_missing_origins(self, origin_of: Callable[[str], str], at: str = "") -> None:
        """Record the origin of each value that has none. `origin_of` takes the dotted key of the value."""
        for key, value in self.items():
            self._origins.setdefault(key, origin_of(at + key))
            if isinstance(value, Config):
                value._set_missing_origins(origin_of, f"{at}{key}.")

    def override(self, *texts: str) -> Config:
        """Return a copy with overrides such as `a.b=3` applied. To add a key, write `+new=1`.

        A number can only be replaced by a number or null. An int that replaces a float becomes a float.
        """
        tree, overrides = apply_overrides(self, texts, "the config", replaced=self)
        result = with_secrets(tree, self._secrets)
        result._inherit_origins(self)
        result._set_origins({dotted(each.path): each.origin for each in overrides})
        return result

    def _keep_secret(self, keys: Iterable[str]) -> None:
        if keys:
            object.__setattr__(self, "_secrets", self._secrets | frozenset(keys))

    def _inherit_origins(self, source: Config) -> None:
        self._origins.update(source._origins)
        for key, value in self.items():
            if isinstance(value, Config) and isinstance(source.get(key), Config):
                value._inherit_origins(source[key])

    def instantiate(self, **kwargs: Any) -> Any:
        """Import the object whose import path is `_target_`, and call it with all other keys as keyword arguments.

        If an argument is also in `kwargs`, the value in `kwargs` is used. Nothing is imported before this call. Nested groups
        are passed unchanged and are not instantiated.
        """
        if TARGET not in self:
            raise UnknownKeyError(
                f"a Config without `{TARGET}` cannot be instantiated", hint=f"set `{TARGET}` to the import path of a class"
            )
        target = import_object(self[TARGET])
        if not callable(target):
            raise ConfigError.of("a Config", [Problem(TARGET, "expected something that can be called", short_repr(self[TARGET]))])
        return target(**{**{key: value for key, value in self.items() if key != TARGET}, **kwargs})

    def origin(self, key: str) -> str:
        """Return where a value came from: a position in a file, an override, the defaults, a stored run, or the program."""
        *groups, last = split(key)
        owner = self[dotted(groups)] if groups else self
        if not isinstance(owner, Config) or last not in owner:
            raise unknown_key(key, self)
        return owner._origins.get(last, IN_CODE)

    def describe(self) -> str:
        """Return a table of all values and where they came from."""
        return table((key, value, self.origin(key)) for key, value in self.flatten().items())

    def _repr_html_(self) -> str:
        return table_html(f"Config {key_of(self)}", ((key, value, self.origin(key)) for key, value in self.flatten().items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (dict(self), self._origins, self._secrets, self._stored_key)


def _rebuilt(values: dict[str, Any], origins: dict[str, str], secrets: Iterable[str] = (), key: str | None = None) -> Config:
    config = with_secrets(values, secrets)
    config._origins.update(origins)
    object.__setattr__(config, "_stored_key", key)
    return config


def with_secrets(config: Mapping[str, Any], keys: Iterable[str]) -> Config:
    """Return a copy of a free-form config with some dotted keys declared as secrets, which are not part of its identity.

    >>> key_of(with_secrets({"lr": 0.1, "hub.api_key": "abc"}, ["hub.api_key"])) == key_of({"lr": 0.1})
    True
    """
    result = Config(config)
    result._keep_secret(keys)
    return result


def from_store(tree: dict[str, Any], secrets: Iterable[str], key: str) -> Config:
    """Create a config from nested dicts that were read from a store. `secrets` contains the dotted keys of its secrets."""
    config = _rebuilt(tree, {}, secrets, key)
    config._set_missing_origins(lambda _: run_origin(key))
    return config


def with_origins(values: Mapping[str, Any], origins: Mapping[str, str]) -> Config:
    """Return a copy of a free-form config with new origins for some dotted keys. Keys that the config lacks are ignored.

    >>> with_origins({"lr": 0.1, "model": {"width": 8}}, {"model.width": "sweep"}).origin("model.width")
    'sweep'
    """
    result = Config(values)
    result._set_origins(origins)
    return result


def stored_key(config: Any) -> str | None:
    """Return the key of the stored config from which `config` was loaded or copied, or None if it does not come from a store.

    The key stays the same if `config` is changed afterwards.
    """
    return getattr(config, "_stored_key", None)


def _wait(max_seconds: Any) -> None:
    import random
    import time

    if not is_number(max_seconds) or not 0 <= max_seconds < float("inf"):
        raise ConfigError.of("the command line", [Problem("max_wait", "expected a number of seconds", short_repr(max_seconds))])
    time.sleep(random.SystemRandom().uniform(0, max_seconds))
