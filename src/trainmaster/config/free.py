"""`Config`: a dict with dotted keys and attribute access, for configs that need no class."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster.config.any_config import AnyConfig
from trainmaster.config.describe import IN_CODE, html_table, shorten, table
from trainmaster.config.document import Document
from trainmaster.config.identity import key_of
from trainmaster.config.import_path import imported
from trainmaster.config.numerals import WrittenFloat, WrittenInt
from trainmaster.config.overrides import Override, apply_all
from trainmaster.config.paths import MAX_DEPTH, Path, dotted, leaves, nest, split, too_deep, wrong_key
from trainmaster.config.plain import plain, plain_scalar, same
from trainmaster.config.reader import read_file
from trainmaster.config.writer import write_file, yaml_text
from trainmaster.errors import ConfigError, ConfigFileError, Problem, UnknownKeyError, nearest

TARGET = "_target_"


class Config(dict[str, Any]):
    """A dict in which `config["a.b"]`, `config.a.b` and `config["a"]["b"]` are the same value.

    Dicts inside become `Config`s, copied: a config owns its groups. Tuples stay tuples. A key is text without empty parts, and not the name
    of a method.

    >>> config = Config({"model.width": 64, "lr": 0.1})
    >>> config.model.width
    64
    >>> config.fill({"lr": 1.0, "model": {"depth": 2}})
    >>> config
    Config({'model': {'width': 64, 'depth': 2}, 'lr': 0.1})
    """

    __slots__ = ("_origins",)
    _origins: dict[str, str]

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any) -> None:
        super().__init__()
        object.__setattr__(self, "_origins", {})
        origins = {key: text for key, text in getattr(values, "_origins", {}).items() if key not in more}
        try:
            given = dict(values) | more
        except (TypeError, ValueError):
            raise ConfigError.of("a Config", [Problem("", "wanted a dict, or pairs of key and value", shorten(values))]) from None
        self._take(given, origins, ())

    def _take(self, given: dict[str, Any], origins: Mapping[str, str], at: Path) -> None:
        """Own `given`, which stands at `at` in the outermost config."""
        if len(at) >= MAX_DEPTH:
            raise too_deep(at)
        problems = [
            Problem(dotted((*at, key if isinstance(key, str) and key else repr(key))), why) for key in given if (why := wrong_name(key))
        ]
        if not problems and any("." in key for key in given):

            def clash(path: Path) -> None:
                problems.append(Problem(dotted((*at, *path)), "is given twice: by a dotted key and by nesting"))

            given = nest(given, clash)
        if problems:
            raise ConfigError.of("a Config", problems)
        for key, value in given.items():
            dict.__setitem__(self, key, _owned(value, (*at, key)))
            if key in origins:
                self._origins[key] = origins[key]

    # ---- files

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """The config in a YAML or JSON file; where each value stands is remembered (`origin`)."""
        document = read_file(path)
        try:
            config = cls(document.group())
        except ConfigFileError:
            raise
        except ConfigError as error:
            located = [each._replace(where=document.where(each.key)) for each in error.problems]
            raise ConfigError.of(f"`{document.name}`", located) from None
        config._locate(document, "")
        return config

    def _locate(self, document: Document, at: str) -> None:
        for key, value in self.items():
            self._origins[key] = document.where(at + key)
            if isinstance(value, Config):
                value._locate(document, f"{at}{key}.")

    @classmethod
    def from_cli(cls, args: Iterable[str] | None = None) -> Config:
        """The config given as `key=value` arguments, by default those of this process; values are YAML.

        `max_wait=60` waits for a random time of up to 60 seconds and is then left out: many processes that start at once spread their load.
        """
        import sys

        tree, overrides = apply_all({}, sys.argv[1:] if args is None else args, "the command line", is_new=True)
        config = cls(tree)
        config._note(overrides)
        if "max_wait" in config:
            _wait(config.pop("max_wait"))
        return config

    def _note(self, overrides: Iterable[Override]) -> None:
        for each in overrides:
            owner: Any = self
            for part in each.path[:-1]:
                owner = dict.get(owner, part) if isinstance(owner, Config) else None
            if isinstance(owner, Config):
                owner._origins[each.path[-1]] = each.origin

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write YAML, or JSON if the name ends in `.json`; the file appears whole or not at all."""
        write_file(self._tree_to_write(), path)

    def _tree_to_write(self) -> dict[str, Any]:
        typed = [key for key, value in leaves(self, into_lists=True) if isinstance(value, AnyConfig)]
        if typed:  # read again, it would be a group, and what was no part of the identity would be
            problems = [Problem(key, "a typed config is written by itself; put its `to_dict()` here") for key in typed]
            raise ConfigError.of("a Config", problems)
        return plain(self)

    def to_yaml(self) -> str:
        return yaml_text(self._tree_to_write())

    # ---- items and attributes

    def __getitem__(self, key: str) -> Any:
        try:
            return dict.__getitem__(self, key)
        except KeyError:
            node: Any = self
            for part in key.split(".") if isinstance(key, str) and not wrong_key(key) else (key,):
                if not isinstance(node, Config) or not dict.__contains__(node, part):
                    raise _unknown(key, self) from None
                node = dict.__getitem__(node, part)
            return node

    def __setitem__(self, key: str, value: Any) -> None:
        why = wrong_name(key)
        if why:
            raise ConfigError.of("a Config", [Problem(repr(key), why)])
        *groups, last = key.split(".")
        node = self
        for number, part in enumerate(groups):
            if not dict.__contains__(node, part):
                dict.__setitem__(node, part, Config())
            below = dict.__getitem__(node, part)
            if not isinstance(below, Config):
                at = dotted(groups[: number + 1])
                raise ConfigError.of(
                    "a Config", [Problem(key, f"`{at}` is {below!r:.60}, not a group")], hint=f"`del config[{at!r}]` first"
                )
            node = below
        dict.__setitem__(node, last, _owned(value))
        node._origins.pop(last, None)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise _unknown(key, self)
        *groups, last = split(key)
        owner = self[dotted(groups)] if groups else self
        dict.__delitem__(owner, last)
        owner._origins.pop(last, None)

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return True
        if not isinstance(key, str) or "." not in key:
            return False
        first, _, rest = key.partition(".")
        below = dict.get(self, first)
        return isinstance(below, Config) and rest in below

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # asked by copy, pickle and others, often
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    # ---- what a dict can do, with dotted keys

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - this is `get`

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        if default and key not in self:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def update(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any) -> None:  # type: ignore[override]
        """Overwrite with `values`, group by group: what they do not name stays."""
        other = Config(values, **more)
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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        try:
            return same(self, other if isinstance(other, Config) else Config(other))
        except ConfigError:  # no config at all
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def copy(self) -> Config:
        return self.clone()

    @classmethod
    def fromkeys(cls, keys: Iterable[str], value: Any = None, /) -> Config:  # type: ignore[override]
        return cls((key, value) for key in keys)

    # ---- what a config can do

    def fill(self, defaults: Mapping[str, Any] | str | os.PathLike[str]) -> None:
        """Take from `defaults`, a dict or a file, what is missing here, group by group.

        Nothing is taken into a group whose `_target_` is another one: the arguments of one class are not those of another.
        """
        other = Config(defaults) if isinstance(defaults, Mapping) else Config.load(defaults)
        if TARGET in self and TARGET in other and self[TARGET] != other[TARGET]:
            return
        for key, value in other.items():
            if key not in self:
                self[key] = value
                self._origins.update({key: other._origins[key]} if key in other._origins else {})
            elif isinstance(self[key], Config) and isinstance(value, Config):
                self[key].fill(value)

    def flatten(self) -> dict[str, Any]:
        """Every value by its dotted key; `Config(config.flatten())` is the config again."""
        return dict(leaves(self.asdict(), into_lists=False))

    def asdict(self) -> dict[str, Any]:
        """The same as plain nested dicts."""
        return {key: _plain_dicts(value) for key, value in self.items()}

    def clone(self) -> Config:
        """A copy that shares nothing with this one but values that are no dicts, lists or tuples."""
        return Config(self)

    def override(self, *texts: str) -> Config:
        """A clone with `texts` such as `a.b=3` applied; a key must exist, or be written `+new=1`."""
        tree, overrides = apply_all(self, texts, "the config")
        result = Config(tree)
        result._inherit_origins(self)
        result._note(overrides)
        return result

    def _inherit_origins(self, source: Config) -> None:
        self._origins.update(source._origins)
        for key, value in self.items():
            if isinstance(value, Config) and isinstance(source.get(key), Config):
                value._inherit_origins(source[key])

    def instantiate(self, **kwargs: Any) -> Any:
        """Import what `_target_` names and call it with the other keys; `kwargs` come on top of them.

        Nothing is imported before this call. Groups inside are passed on as they are.
        """
        if TARGET not in self:
            raise UnknownKeyError(
                f"a Config without `{TARGET}` cannot be instantiated", hint=f"set `{TARGET}` to the import path of a class"
            )
        target = imported(self[TARGET])
        if not callable(target):
            raise ConfigError.of("a Config", [Problem(TARGET, "wanted something that can be called", shorten(self[TARGET]))])
        return target(**{**{key: value for key, value in self.items() if key != TARGET}, **kwargs})

    def origin(self, key: str) -> str:
        """Where a value came from: file, line and column, an override, or the program."""
        *groups, last = split(key)
        owner = self[dotted(groups)] if groups else self
        if not isinstance(owner, Config) or last not in owner:
            raise _unknown(key, self)
        return owner._origins.get(last, IN_CODE)

    def describe(self) -> str:
        """Every value with where it came from, as a table."""
        return table((key, value, self.origin(key)) for key, value in self.flatten().items())

    def __repr__(self) -> str:
        return f"Config({self.asdict()!r})"

    def _repr_html_(self) -> str:
        return html_table(f"Config {key_of(self)}", ((key, value, self.origin(key)) for key, value in self.flatten().items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (dict(self), self._origins)


def _rebuilt(values: dict[str, Any], origins: dict[str, str]) -> Config:
    config = Config(values)
    config._origins.update(origins)
    return config


def wrong_name(key: Any) -> str:
    """Why `key` cannot be a key of a `Config`; empty if it can."""
    why = wrong_key(key)
    if not why:
        taken = [part for part in key.split(".") if hasattr(Config, part)]
        why = f"`{taken[0]}` is {'an attribute' if taken[0].startswith('_') else 'a method'} of Config" if taken else ""
    return why


def _owned(value: Any, at: Path = ()) -> Any:
    if isinstance(value, WrittenInt | WrittenFloat):
        return plain_scalar(value)
    if isinstance(value, Mapping):
        config = Config()
        config._take(dict(value), getattr(value, "_origins", {}), at)
        return config
    if type(value) not in (list, tuple):
        return value
    if len(at) >= MAX_DEPTH:
        raise too_deep(at)
    return type(value)(_owned(each, (*at, number)) for number, each in enumerate(value))


def _plain_dicts(value: Any) -> Any:
    if isinstance(value, Config):
        return value.asdict()
    if type(value) is list:
        return [_plain_dicts(each) for each in value]
    return tuple(_plain_dicts(each) for each in value) if type(value) is tuple else value


def _unknown(key: Any, config: Config) -> UnknownKeyError:
    """Offers the nearest names in the group that the key leads to."""
    group, _, last = str(key).rpartition(".")
    owner = config.get(group) if group else config
    names = list(owner) if isinstance(owner, Config) else []
    close = [f"`{group}.{name}`" if group else f"`{name}`" for name in nearest(last, names)]
    if not names:  # the group is not there either
        close = [f"`{name}`" for name in nearest(str(key), config.flatten())]
    hint = f"did you mean {' or '.join(close)}?" if close else ""
    return UnknownKeyError(f"the config has no key `{key}`", known=", ".join(map(str, config)) or None, hint=hint)


def _wait(longest: Any) -> None:
    import random
    import time

    if isinstance(longest, bool) or not isinstance(longest, int | float) or not 0 <= longest < float("inf"):
        raise ConfigError.of("the command line", [Problem("max_wait", "wanted a number of seconds", shorten(longest))])
    time.sleep(random.SystemRandom().uniform(0, longest))
