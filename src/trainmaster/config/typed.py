"""`ConfigBase`: what every typed config can do."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from trainmaster.config.any_config import CLASS, AnyConfig
from trainmaster.config.describe import IN_CODE, html_table, shorten, table
from trainmaster.config.difference import Difference, diff, diff_str
from trainmaster.config.document import Document
from trainmaster.config.fields import DERIVED
from trainmaster.config.identity import key_of
from trainmaster.config.overrides import Misfit, Override, changed, parse
from trainmaster.config.paths import dotted, leaves, split, too_deep
from trainmaster.config.plain import same
from trainmaster.config.reader import read_file
from trainmaster.config.scalars import wanted
from trainmaster.config.schema import Schema
from trainmaster.config.values import (
    GROUP,
    IDENTITY,
    STATEFUL,
    WHOLE,
    cloned,
    configs_in,
    frozen,
    inside,
    plain_form,
    tree_of,
)
from trainmaster.config.writer import write_file, yaml_text
from trainmaster.errors import ConfigClassError, ConfigError, FrozenConfigError, Problem, did_you_mean


class ConfigBase(AnyConfig):
    """A typed config: subclass it, annotate attributes, decorate with `@configclass`.

    Values are checked when the config is built and whenever one is assigned; all problems are reported at once.

    >>> from trainmaster.config import ConfigBase, Stateless, configclass
    >>> @configclass
    ... class Train(ConfigBase):
    ...     lr: float = 0.1
    ...     epochs: Stateless[int] = 10
    >>> Train(lr="1e-3")
    Train(lr=0.001, epochs=10)
    """

    __slots__ = ("_frozen", "_origins")
    __hash__ = None  # type: ignore[assignment]
    _frozen: bool
    _origins: dict[str, str]

    def __init__(self, *args: Any, **values: Any) -> None:
        if args:
            raise ConfigError.of(type(self).__name__, [Problem("", "wanted keyword arguments only", shorten(args[0]))])
        try:
            self._take(values)
        except RecursionError:
            raise too_deep(()) from None

    # ---- how a config comes to be

    @classmethod
    def _schema(cls) -> Schema:
        schema = cls.__dict__.get("__config_schema__")
        if schema is None:
            raise ConfigClassError(
                f"`{cls.__name__}` is not decorated with @configclass", hint=f"write @configclass above `class {cls.__name__}`"
            )
        return schema.ready()  # type: ignore[no-any-return]

    def _take(self, values: Mapping[str, Any]) -> None:
        given, checked = self._schema().read(values)
        object.__setattr__(self, "__dict__", checked)
        object.__setattr__(self, "_frozen", False)
        object.__setattr__(self, "_origins", dict.fromkeys(given, IN_CODE))
        for name in checked.keys() - given.keys():
            for _, config in configs_in(checked[name], name):
                config._credit(f"default of {type(self).__name__}")
        self._check_rules()

    def _credit(self, origin: str) -> None:
        """Say of all that was given to this config that it came from `origin`."""
        self._origins.update(dict.fromkeys(self._origins, origin))
        for _, config in self._below():
            config._credit(origin)

    @classmethod
    def _receive(cls, value: Any) -> ConfigBase:
        """What a field of this class takes: one of these configs (copied), or a dict."""
        if isinstance(value, ConfigBase) and cls._accepts(type(value)):
            return value.clone()
        if isinstance(value, ConfigBase):
            again = type(value).__name__ == cls.__name__
            wanted(f"{cls.__name__}{' as it is defined now; this one is of an older definition' if again else ''}")
        if not isinstance(value, Mapping):
            wanted(f"{cls.__name__}: a group of keys with values")
        if CLASS in value:
            kind = cls._kind_named(value[CLASS])
            value = {key: each for key, each in value.items() if key != CLASS}
        else:
            kind = cls
        if getattr(kind, "__abstractmethods__", None):
            wanted(f"a group that names its class: {kind.__name__} is abstract")
        config = kind.__new__(kind)
        config._take(value)
        return config

    @classmethod
    def _accepts(cls, kind: type[ConfigBase]) -> bool:
        """Whether a field of this class takes a config of another."""
        return issubclass(kind, cls)

    @classmethod
    def _kind_named(cls, name: Any) -> type[ConfigBase]:
        """The config class of this name that fits a field of this class; of one that was defined again, the latest."""
        kinds = {(kind.__name__, kind.__module__, kind.__qualname__): kind for kind in _decorated(ConfigBase) if cls._accepts(kind)}
        found = [kind for kind in kinds.values() if kind.__name__ == name]
        if len(found) == 1:
            return found[0]
        if found:
            text = f"several config classes have this name: {', '.join(f'{kind.__module__}.{kind.__qualname__}' for kind in found)}"
        else:
            names = sorted({kind.__name__ for kind in kinds.values()})
            text = f"no config class that fits here has this name; {did_you_mean(str(name), names) or 'known: ' + ', '.join(names)}"
        raise ConfigError.of(cls.__name__, [Problem(CLASS, text, shorten(name))])

    @classmethod
    def load(cls, path: str | os.PathLike[str], debug: bool = False) -> Self:
        """The config in a YAML or JSON file; where each value stands is remembered (`origin`).

        `debug=True` takes what it can: what is missing or wrong becomes None, what is unknown is ignored, each with a logged warning.
        """
        cls._schema()
        document = read_file(path, keep_numerals=True)
        tree = document.group()
        config = cls.__new__(cls)
        try:
            config._take(tree)
        except ConfigError as error:
            if not debug:
                located = [each._replace(where=document.where(cls._key_in(document, each.key))) for each in error.problems]
                raise ConfigError.of(f"{cls.__name__} in `{document.name}`", located) from None
            config._take_what_fits(tree, document.name)
        config._locate(document)
        return config

    def _take_what_fits(self, values: Mapping[str, Any], source: str, at: str = "") -> None:
        import logging

        warn = logging.getLogger("trainmaster.config").warning
        schema = self._schema()
        values, _ = schema.named_now(values)
        object.__setattr__(self, "__dict__", dict.fromkeys(schema.fields))
        object.__setattr__(self, "_frozen", False)
        object.__setattr__(self, "_origins", {name: IN_CODE for name in values if name in schema.fields})
        for name in values:
            if name not in schema.fields and name != CLASS:
                warn("%s: `%s%s` is unknown and ignored", source, at, name)
        for name, field in schema.fields.items():
            if name not in values and name not in schema._defaults:
                warn("%s: `%s%s` is missing and becomes None", source, at, name)
                continue
            value = values.get(name, field.default)
            try:
                self.__dict__[name] = schema.validate_one(name, value)
            except ConfigError as error:
                below = field.group._started_from(value) if field.group is not None else None
                if below is not None:
                    self.__dict__[name] = below
                    below._take_what_fits(value, source, f"{at}{name}.")
                else:
                    warn("%s: `%s%s` becomes None: %s", source, at, name, error.problems[0].text)
        try:
            self._check_rules()
        except Exception as error:  # rules of the class, which may not expect None
            warn("%s: %s%s", source, at and f"`{at[:-1]}`: ", "; ".join(map(str, getattr(error, "problems", ()))) or error)

    @classmethod
    def _started_from(cls, value: Any) -> ConfigBase | None:
        """A config, still without values, of the class that a group names; None if there is none."""
        try:
            kind = cls._kind_named(value[CLASS]) if CLASS in value else cls
        except (TypeError, ConfigError):
            return None
        return kind.__new__(kind) if isinstance(value, Mapping) else None

    def _locate(self, document: Document, at: str = "") -> None:
        """Remember where in the file each value stands."""
        for field in self._schema().fields.values():
            name = field.name_in(document.marks, at)
            if self._origins.get(field.name) == IN_CODE:
                self._origins[field.name] = document.where(at + name)
            for path, config in configs_in(self.__dict__[field.name], at + name):
                config._locate(document, f"{path}.")

    @classmethod
    def _key_in(cls, document: Document, key: str) -> str:
        """A dotted key by the names that the file uses for it."""
        names: list[str] = []
        kind: Any = cls
        for part in key.split("."):
            field = kind._schema().fields.get(part) if kind is not None else None
            names.append(field.name_in(document.marks, "".join(f"{each}." for each in names)) if field else part)
            kind = field.group if field else None
        return dotted(names)

    # ---- fields as items and attributes

    def keys(self) -> list[str]:
        """The names of the fields."""
        return list(self._schema().fields)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        try:
            self[key]  # type: ignore[index]
        except ConfigError:
            return False
        return True

    def __getitem__(self, key: str) -> Any:
        if key in self.__dict__:
            return self.__dict__[key]
        config, name, rest = self._owner(key)
        return inside(config.__dict__[name], rest, key)

    def __setitem__(self, key: str, value: Any) -> None:
        config, name, rest = self._owner(key)
        if rest:  # into a list or dict: change a copy, and assign that
            config._refuse_if_frozen(key)
            override = Override((name, *rest), value, False, key)
            tree = {name: plain_form(config.__dict__[name], (), WHOLE)}
            try:
                tree = _set_in(tree, override)
            except Misfit as misfit:
                raise ConfigError.of(type(self).__name__, [misfit.problem._replace(key=key, where="")]) from None
            value = tree[name]
        try:
            setattr(config, name, value)
        except FrozenConfigError:
            raise
        except ConfigError as error:
            group = key[: len(key) - len(dotted((name, *rest)))]
            raise ConfigError.of(type(self).__name__, [each._replace(key=group + each.key) for each in error.problems]) from None

    def __delitem__(self, key: str) -> None:
        self.__delattr__(key)

    def _owner(self, key: str, whole: str = "") -> tuple[ConfigBase, str, tuple[str, ...]]:
        """The innermost config that `key` leads to, the field there, and what is left of the key inside that field."""
        name, *rest = split(key)
        if name not in self.__dict__:
            raise ConfigError.of(type(self).__name__, [self._schema().unknown(name)._replace(key=whole or key)])
        if rest:
            for path, config in configs_in(self.__dict__[name], name):
                if key.startswith(f"{path}."):
                    return config._owner(key.removeprefix(f"{path}."), whole or key)  # type: ignore[no-any-return]
        return self, name, tuple(rest)

    if not TYPE_CHECKING:  # a type checker is to know the fields only

        def __setattr__(self, name: str, value: Any) -> None:
            self._refuse_if_frozen(name)
            schema = self._schema()
            if name not in schema.fields:
                schema.refuse_unknown(name)
            self.__dict__[name] = schema.validate_one(name, value)
            self._origins[name] = IN_CODE

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            if hasattr(type(self), name):  # a property that raised an AttributeError of its own
                return object.__getattribute__(self, name)
            return self._schema().refuse_unknown(name)

    def __delattr__(self, name: str) -> None:
        raise ConfigError.of(type(self).__name__, [Problem(name, "a field cannot be deleted")])

    def _refuse_if_frozen(self, name: str) -> None:
        if self._frozen:
            raise FrozenConfigError(
                f"`{type(self).__name__}` is frozen, `{name}` cannot be set", hint="change a `clone()` of it, or use `override(...)`"
            )

    def get_val_with_dot_path(self, path: str) -> Any:
        return self[path]

    def get_type_with_dot_path(self, path: str) -> type:
        """The type of the value at `path`."""
        return type(self[path])

    def get_annot_type_with_dot_path(self, path: str) -> Any:
        """The annotation of the field at `path`, without its state."""
        config, name, rest = self._owner(path)
        if rest:
            raise ConfigError.of(type(self).__name__, [Problem(path, "lies inside a field, so it has no annotation of its own")])
        return config._schema().fields[name].written

    # ---- as plain values

    def to_dict(self, ignore_stateless: bool = False) -> dict[str, Any]:
        """The values as nested dicts of plain values; `type(config)(**config.to_dict()) == config`."""
        return tree_of(self, STATEFUL if ignore_stateless else WHOLE)

    def flatten(self, ignore_stateless: bool = False) -> dict[str, Any]:
        """Every plain value by its dotted key, elements of lists as `name.0`."""
        return dict(leaves(self.to_dict(ignore_stateless), into_lists=True))

    def to_yaml(self, ignore_stateless: bool = False) -> str:
        return yaml_text(self.to_dict(ignore_stateless))

    def to_dot_path(self, ignore_stateless: bool = False) -> str:
        """`flatten()` as YAML."""
        return yaml_text(self.flatten(ignore_stateless))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write YAML, or JSON if the name ends in `.json`; the file appears whole or not at all."""
        write_file(self.to_dict(), path)

    def clone(self) -> Self:
        """A copy that shares nothing with this one and is not frozen."""
        config = type(self).__new__(type(self))
        object.__setattr__(config, "__dict__", {name: cloned(value) for name, value in self._values().items()})
        object.__setattr__(config, "_frozen", False)
        object.__setattr__(config, "_origins", dict(self._origins))
        return config

    # ---- identity

    def identity(self) -> dict[str, Any]:
        """What the key is made of: the stateful values, under their first names, without additions that have their default."""
        return tree_of(self, IDENTITY)

    def without_replicates(self) -> dict[str, Any]:
        """`identity()` without the fields marked `Replicate[...]`."""
        return tree_of(self, GROUP)

    @property
    def uid(self) -> str:
        """The full hash of the identity: 64 hex digits."""
        return key_of(self, 64)

    @property
    def key(self) -> str:
        """The short form of `uid`: its first 8 digits."""
        return key_of(self)

    def diff(self, other: ConfigBase, ignore_stateless: bool = False) -> list[Difference]:
        """What differs: `(path, (type, value), (type, value))` for each; a side without the value has the type `Missing`."""
        return diff(self.flatten(ignore_stateless), other.flatten(ignore_stateless))

    def diff_str(self, other: ConfigBase, ignore_stateless: bool = False) -> list[str]:
        """`diff` as lines of the form `path:(type)old->(type)new`."""
        return diff_str(self.diff(other, ignore_stateless))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConfigBase):
            return NotImplemented
        kinds, others = ([(path, type(config)) for path, config in each._below()] for each in (self, other))
        return type(self) is type(other) and kinds == others and same(self.to_dict(), other.to_dict())

    # ---- checks

    def problems(self) -> Iterator[tuple[str, str]]:
        """Override to check fields against each other: yield the dotted key and what is wrong with its value.

        Called when a config is built, frozen or checked, never on an assignment: two fields can be set one after the other.
        """
        yield from ()

    def _check_rules(self) -> None:
        found = [Problem(key, text, shorten(self[key]) if key in self else "") for key, text in self.problems() or ()]
        if found:
            raise ConfigError.of(type(self).__name__, found)

    def check(self) -> None:
        """Everything that can be known before training, also where it takes an import of torch."""
        self._raise_all(lambda config: config.check())

    def _check_values(self) -> None:
        """The values as they are now, in nested configs too: a list may have been changed behind our back."""
        self._raise_all(lambda config: config._check_values())

    def _raise_all(self, check_below: Callable[[ConfigBase], None]) -> None:
        """Raise what is wrong with the values of this config and, by `check_below`, with the configs inside it."""
        found: list[Problem] = []
        _collect(found, "", lambda: self._schema().validate(self._values()))
        _collect(found, "", self._check_rules)
        for path, config in self._below():
            _collect(found, path, lambda config=config: check_below(config))
        if found:
            raise ConfigError.of(type(self).__name__, found)

    def assert_unambigious(self) -> None:
        """Raise if a `Derived` field that is not optional has no value yet. (The name is spelt as its users know it.)"""
        found = [
            Problem(field.name, "is derived, and nothing has set it")
            for field in self._schema().fields.values()
            if field.state is DERIVED and not field.is_optional and self.__dict__[field.name] is None
        ]
        for path, config in self._below():
            _collect(found, path, config.assert_unambigious)
        if found:
            raise ConfigError.of(type(self).__name__, found)

    def freeze(self) -> Self:
        """Check once more, then refuse every change from now on, in nested configs, lists and dicts too."""
        self._check_values()
        for name, value in self._values().items():
            if isinstance(value, list | dict | tuple):
                value = self._schema().validate_one(name, value)  # as it would have been taken, whatever was done to it since
            self.__dict__[name] = frozen(value)
        object.__setattr__(self, "_frozen", True)
        return self

    def _values(self) -> dict[str, Any]:
        """The fields' values; `__dict__` may hold what a `cached_property` keeps there, too."""
        return {name: self.__dict__[name] for name in self._schema().fields}

    def _below(self) -> Iterator[tuple[str, ConfigBase]]:
        for name, value in self._values().items():
            yield from configs_in(value, name)

    # ---- overrides and origins

    def override(self, *texts: str) -> Self:
        """A clone with `texts` such as `train.lr=3e-4` applied, checked by type; all problems at once.

        A key that a group of free keys does not have yet is written `+arguments.momentum=0.9`.
        """
        tree = self.to_dict()
        overrides, found = parse(texts)
        for each in overrides:
            try:
                self._aim(tree, each)
            except Misfit as misfit:
                found.append(misfit.problem)
        config = type(self).__new__(type(self))
        try:
            config._take(tree)
        except ConfigError as error:
            found += [each._replace(where=_text_for(each.key, overrides)) for each in error.problems]
        if found:
            raise ConfigError.of(type(self).__name__, found)
        _inherit_origins(config, self, {dotted(each.path) for each in overrides})
        for each in overrides:
            owner, name, _ = config._owner(dotted(each.path))
            owner._origins[name] = each.origin
            for _, below in configs_in(owner.__dict__[name], name):
                below._credit(each.origin)
        return config

    def _aim(self, tree: dict[str, Any], override: Override) -> None:
        """Put an override's value into `tree`, the plain form of this config."""
        schema: Schema = self._schema()
        node: Any = self
        for number, part in enumerate(override.path):
            field = schema.fields.get(part)
            if field is None:
                raise Misfit(override, schema.unknown(part).text, is_unknown=True)
            node = node.__dict__[part] if isinstance(node, ConfigBase) else None
            rest = override.path[number + 1 :]
            if not rest and override.is_new:
                raise Misfit(override, f"exists already; write {override.text.removeprefix('+')} to change it")
            if isinstance(node, ConfigBase) and rest:
                schema = node._schema()
            elif node is None and rest and field.group is not None:  # an optional config is built from what overrides say of it
                schema = field.group._schema()
                tree[part] = tree.get(part) or {}
            elif override.is_new and field.configs and isinstance(node, dict) and dotted(rest) not in node:
                tree[part] = {**tree[part], dotted(rest): override.value}  # a group of configs may have keys with dots
                return
            else:
                value = tree.get(part)
                if value is None and rest and not override.is_new and not field.configs:
                    raise Misfit(override, f"`{dotted(override.path[: number + 1])}` is not set; write +{override.text}")
                tree[part] = changed({} if value is None and override.is_new else value, override, number + 1)
                return
            tree = tree[part]

    def origin(self, key: str) -> str:
        """Where a value came from: a class default, file, line and column, an override, or the program."""
        config, name, rest = self._owner(key)
        inside(config.__dict__[name], rest, key)  # it must be there
        return config._origins.get(name, f"default of {type(config).__name__}")

    def describe(self) -> str:
        """Every value with where it came from, as a table."""
        return table(self._rows())

    def _rows(self, at: str = "") -> Iterator[tuple[str, Any, str]]:
        for field in self._schema().fields.values():
            origin = self._origins.get(field.name, f"default of {type(self).__name__}")
            yield from _rows_of(self.__dict__[field.name], f"{at}{field.name}", origin, field.configs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values().items())})"

    def _repr_html_(self) -> str:
        return html_table(f"{type(self).__name__} {self.key}", self._rows())

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # a config is a value: a copy shares nothing

    def __getstate__(self) -> tuple[dict[str, Any], bool, dict[str, str]]:
        return self._values(), self._frozen, self._origins

    def __setstate__(self, state: tuple[dict[str, Any], bool, dict[str, str]]) -> None:
        for name, value in zip(("__dict__", "_frozen", "_origins"), state, strict=True):
            object.__setattr__(self, name, value)


def _decorated(kind: type[ConfigBase]) -> Iterator[type[ConfigBase]]:
    for each in kind.__subclasses__():
        if "__config_schema__" in each.__dict__:
            yield each
        yield from _decorated(each)


def _rows_of(value: Any, key: str, origin: str, declared: tuple[type, ...]) -> Iterator[tuple[str, Any, str]]:
    if isinstance(value, ConfigBase):
        if declared != (type(value),):
            yield f"{key}.{CLASS}", type(value).__name__, origin
        yield from value._rows(f"{key}.")
        if not value._schema().fields:
            yield key, {}, origin
    elif isinstance(value, dict | list | tuple) and value:
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _rows_of(each, f"{key}.{name}", origin, declared)
    else:
        yield key, plain_form(value, (), WHOLE), origin


def _set_in(tree: Any, override: Override) -> Any:
    """`tree` with a value set, which may be a new key of a dict."""
    try:
        return changed(tree, override)
    except Misfit as misfit:
        if not misfit.problem.is_unknown:
            raise
        return changed(tree, override._replace(is_new=True))


def _collect(found: list[Problem], at: str, check: Any) -> None:
    try:
        check()
    except ConfigError as error:
        found += [each._replace(key=".".join(filter(None, [at, each.key]))) for each in error.problems]


def _text_for(key: str, overrides: Iterable[Override]) -> str:
    return next((each.text for each in overrides if f"{key}.".startswith(f"{dotted(each.path)}.")), "")


def _inherit_origins(config: ConfigBase, source: ConfigBase, changed: set[str], at: str = "") -> None:
    """What was not changed came from where it came from before."""
    config._origins.clear()
    config._origins.update(source._origins)
    before = dict(source._below())
    for path, below in config._below():
        if at + path not in changed and type(below) is type(before.get(path)):
            _inherit_origins(below, before[path], changed, f"{at}{path}.")
