"""`TypedFields`, which gives access to the fields of a typed config as attributes and items."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from trainmaster.config.any_config import AnyConfig
from trainmaster.config.checks import check_rules, check_values
from trainmaster.config.origins import set_origin
from trainmaster.config.overrides import Misfit, Override, set_in
from trainmaster.config.paths import dotted, split, too_deep
from trainmaster.config.schema import Schema
from trainmaster.config.to_plain import is_same
from trainmaster.config.value_table import IN_CODE, short_repr
from trainmaster.config.values import WHOLE, cloned, configs_in, frozen, plain_form, tree_of, value_at
from trainmaster.errors import ConfigClassError, ConfigError, FrozenConfigError, Problem


class TypedFields(AnyConfig):
    """The base class for typed configs. Values are checked when the config is built and on every assignment."""

    __slots__ = ("_frozen", "_origins")
    __hash__ = None  # type: ignore[assignment]
    _frozen: bool
    _origins: dict[str, str]

    def __init__(self, *args: Any, **values: Any) -> None:
        if args:
            keywords = ", ".join(f"{name}=..." for name, _ in zip(self._schema().fields, args, strict=False))
            raise ConfigError.of(
                type(self).__name__,
                [Problem("", "expected keyword arguments only", short_repr(args[0]))],
                hint=f"{type(self).__name__}({keywords})" if keywords else None,
            )
        try:
            self._fill(values)
        except RecursionError:
            raise too_deep(()) from None

    @classmethod
    def _schema(cls) -> Schema:
        schema = cls.__dict__.get("__config_schema__")
        if schema is None:
            raise ConfigClassError(
                f"`{cls.__name__}` is not decorated with @configclass", hint=f"write @configclass above `class {cls.__name__}`"
            )
        return schema.ready()  # type: ignore[no-any-return]

    def _fill(self, values: Mapping[str, Any]) -> None:
        """Check `values` and set all fields."""
        given, checked = self._schema().read(values)
        self._set_all(checked, dict.fromkeys(given, IN_CODE))
        for name in checked.keys() - given.keys():
            for _, nested in configs_in(checked[name], name):
                set_origin(nested, f"default of {type(self).__name__}")
        check_rules(self)

    def _set_all(self, values: dict[str, Any], origins: dict[str, str], is_frozen: bool = False) -> None:
        """Set all fields without checking the values."""
        object.__setattr__(self, "__dict__", values)
        object.__setattr__(self, "_frozen", is_frozen)
        object.__setattr__(self, "_origins", origins)

    def keys(self) -> list[str]:
        """Return the names of the fields."""
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
        return value_at(rest, config.__dict__[name], key)

    def __setitem__(self, key: str, value: Any) -> None:
        config, name, rest = self._owner(key)
        if rest:  # inside a list or dict: change a copy of it, and assign the copy
            config._refuse_if_frozen(key)
            tree = {name: plain_form(config.__dict__[name], (), WHOLE)}
            try:
                value = set_in(tree, Override((name, *rest), value, False, key))[name]
            except Misfit as misfit:
                raise ConfigError.of(type(self).__name__, [misfit.problem._replace(key=key, where="")]) from None
        try:
            setattr(config, name, value)
        except FrozenConfigError:
            raise
        except ConfigError as error:
            group = key[: len(key) - len(dotted((name, *rest)))]
            raise ConfigError.of(type(self).__name__, [each._replace(key=group + each.key) for each in error.problems]) from None

    def __delitem__(self, key: str) -> None:
        self.__delattr__(key)

    def _owner(self, key: str, whole_key: str = "") -> tuple[Any, str, tuple[str, ...]]:
        """Return the innermost config that contains `key`, the name of the field there, and the rest of the key inside that field."""
        name, *rest = split(key)
        if name not in self.__dict__:
            raise ConfigError.of(type(self).__name__, [self._schema().unknown(name)._replace(key=whole_key or key)])
        if rest:
            for path, nested in configs_in(self.__dict__[name], name):
                if key.startswith(f"{path}."):
                    return nested._owner(key.removeprefix(f"{path}."), whole_key or key)  # type: ignore[no-any-return]
        return self, name, tuple(rest)

    if not TYPE_CHECKING:  # so that a type checker reports unknown attributes

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
            if hasattr(type(self), name):  # a property raised an AttributeError: raise the original error
                return object.__getattribute__(self, name)
            return self._schema().refuse_unknown(name)

    def __delattr__(self, name: str) -> None:
        raise ConfigError.of(type(self).__name__, [Problem(name, "a field cannot be deleted")])

    def _refuse_if_frozen(self, name: str) -> None:
        if self._frozen:
            raise FrozenConfigError(
                f"`{type(self).__name__}` is frozen, `{name}` cannot be set", hint="change a `clone()` of it, or use `override(...)`"
            )

    def _values(self) -> dict[str, Any]:
        """Return the values of the fields only. `__dict__` may also contain the values of cached properties."""
        return {name: self.__dict__[name] for name in self._schema().fields}

    def _nested(self) -> Iterator[tuple[str, Any]]:
        """Yield the configs directly inside this one, with their dotted keys."""
        for name, value in self._values().items():
            yield from configs_in(value, name)

    def clone(self) -> Self:
        """Return a copy that shares nothing with this config and is not frozen."""
        config = type(self).__new__(type(self))
        config._set_all({name: cloned(value) for name, value in self._values().items()}, dict(self._origins))
        return config

    def freeze(self) -> Self:
        """Check the values once more, and make this config read-only, including its nested configs, lists and dicts."""
        check_values(self)
        for name, value in self._values().items():
            if isinstance(value, list | dict | tuple):
                value = self._schema().validate_one(name, value)  # a value may have been changed in place
            self.__dict__[name] = frozen(value)
        object.__setattr__(self, "_frozen", True)
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TypedFields):
            return NotImplemented
        kinds, others = ([(path, type(nested)) for path, nested in each._nested()] for each in (self, other))
        return type(self) is type(other) and kinds == others and is_same(tree_of(self, WHOLE), tree_of(other, WHOLE))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values().items())})"

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # configs are values, so a copy shares nothing

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, str], bool]:
        return self._values(), self._origins, self._frozen

    def __setstate__(self, state: tuple[dict[str, Any], dict[str, str], bool]) -> None:
        self._set_all(*state)
