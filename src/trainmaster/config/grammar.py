"""The annotations a config class may use, and what pydantic is to make of them.

    state      Stateless[...] | Derived[...] | Replicate[...]      at the outside only
    scalar     int  float  str  bool  None  Path  Any (any plain value)
    choice     Literal[...]  an Enum  Optional[...]  A | B
    container  list[...]  tuple[...]  dict[str, ...]
    config     another config class, or Self

`Annotated[...]` adds pydantic's constraints to any of them: `Annotated[float, Gt(0)]`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import BeforeValidator, PlainValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from trainmaster.config.any_config import CLASS, AnyConfig
from trainmaster.config.fields import DERIVED, State
from trainmaster.config.numerals import WrittenFloat, WrittenInt
from trainmaster.config.paths import MAX_DEPTH, wrong_key
from trainmaster.config.plain import plain_scalar, plain_value, same
from trainmaster.config.scalars import boolean, number, text, wanted, whole
from trainmaster.config.values import configs_in
from trainmaster.errors import ConfigError, Problem, did_you_mean

_SCALARS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    int: (whole, "a whole number"),
    float: (number, "a number"),
    str: (text, "text"),
    bool: (boolean, "true or false"),
}


class GrammarError(Exception):
    """An annotation that a config class cannot have, and why."""


class Reading:
    """What an annotation means: `read_as` for pydantic, the state, and the config classes it names."""

    def __init__(self, annotation: Any, owner: type) -> None:
        self.owner = owner
        self.configs: list[type] = []
        self.state, self.written = _state_of(annotation)
        self.is_optional = _is_optional(self.written)
        self.group = self._group(self.written)
        self.read_as = self._read(self.written)
        if self.state is DERIVED and not self.is_optional:
            self.read_as = self.read_as | None if isinstance(self.read_as, type) else Union[self.read_as, None]  # noqa: UP007 - Annotated

    def _group(self, annotation: Any) -> type | None:
        """The config class, if the annotation is one, or one or None."""
        if get_origin(annotation) is Annotated:
            return self._group(get_args(annotation)[0])
        if get_origin(annotation) in (Union, types.UnionType):
            others = [each for each in get_args(annotation) if each is not type(None)]
            annotation = others[0] if len(others) == 1 else None
        if annotation is Self:
            return self.owner
        return annotation if isinstance(annotation, type) and issubclass(annotation, AnyConfig) else None

    def _read(self, annotation: Any) -> Any:
        origin, args = get_origin(annotation), get_args(annotation)
        if not isinstance(annotation, Hashable):
            raise GrammarError(f"{annotation!r:.60} is no type")
        if annotation in _SCALARS:
            return Annotated[annotation, BeforeValidator(_SCALARS[annotation][0])]
        if annotation is None or annotation is type(None):
            return None
        if annotation is Any:
            return Annotated[Any, PlainValidator(_any_plain)]
        if annotation is Self:
            annotation = self.owner
        if origin is Annotated:
            return self._read_annotated(args)
        if origin is Literal:
            if not all(each is None or isinstance(each, str | int | Enum) for each in args):
                raise GrammarError(f"{annotation} has values other than text, whole numbers, booleans and None")
            return Annotated[Any, PlainValidator(_Choice(annotation, args))]
        if origin is Union or origin is types.UnionType:
            return self._read_union(args)
        if annotation is list or origin is list:
            if len(args) > 1:
                raise GrammarError(f"{annotation} has more than one type; write list[int | str]")
            return Annotated[list[self._read(args[0] if args else Any)], BeforeValidator(_Listed(annotation))]  # type: ignore[misc]
        if annotation is tuple or origin is tuple:
            inside = tuple(each if each is Ellipsis else self._read(each) for each in args or (Any, ...))
            return Annotated[tuple[inside], BeforeValidator(_Listed(annotation))]  # type: ignore[valid-type]
        if annotation is dict or origin is dict:
            if args and (args[0] is not str or len(args) != 2):
                raise GrammarError(f"{annotation} is no dict[str, ...]; a config's keys are text")
            return Annotated[dict[str, self._read(args[1] if args else Any)], BeforeValidator(_keyed)]  # type: ignore[misc]
        if isinstance(annotation, type):
            return self._read_class(annotation)
        if isinstance(annotation, TypeVar):
            raise GrammarError("a state goes around a type: write `Stateless[int]`, not `Stateless` alone")
        raise GrammarError(f"{show(annotation)} is not a type that a config can have")

    def _read_annotated(self, args: tuple[Any, ...]) -> Any:
        for mark in args[1:]:
            if isinstance(mark, State):
                raise GrammarError(f"`{mark.name}[...]` goes around the whole annotation, not inside it")
            if isinstance(mark, FieldInfo) and (mark.alias or mark.validation_alias):
                raise GrammarError("has an alias; write `= field(was=...)` for a former name")
            if isinstance(mark, FieldInfo) and not mark.is_required():
                raise GrammarError("has a default inside its annotation; write it behind: `x: int = 3`")
        return Annotated[self._read(args[0]), *args[1:]]

    def _read_union(self, args: tuple[Any, ...]) -> Any:
        kinds = [each for each in args if each is not type(None)]
        members, holds_configs = [], []
        for each in kinds:
            before = len(self.configs)
            members.append(self._read(each))
            holds_configs.append(len(self.configs) > before)
        if len(members) == 1:
            return Union[members[0], None]  # noqa: UP007 - an Annotated has no `|`
        if any(holds_configs) and any(map(_may_be_free, kinds)):
            self.configs.append(dict)  # a group may be either, so a config is always written with its class
        either = Annotated[Any, PlainValidator(_Either(kinds, members, holds_configs))]
        return Union[either, None] if len(kinds) < len(args) else either  # noqa: UP007

    def _read_class(self, kind: type) -> Any:
        if issubclass(kind, Enum):
            for member in kind:
                try:
                    plain_scalar(member)
                except TypeError:
                    raise GrammarError(
                        f"{kind.__name__}.{member.name} is {member.value!r:.40}, which cannot be written to a file"
                    ) from None
            return Annotated[Any, PlainValidator(_Choice(kind, tuple(kind)))]
        if issubclass(kind, PurePath):
            return Annotated[Path, BeforeValidator(text)]
        if not issubclass(kind, AnyConfig):
            raise GrammarError(f"{show(kind)} is not a type that a config can have; give it a config class, or its parts")
        if kind is not self.owner and "__config_schema__" not in kind.__dict__:
            raise GrammarError(f"`{kind.__name__}` is not decorated with @configclass")
        self.configs.append(kind)
        return Annotated[Any, PlainValidator(kind._receive)]


def _state_of(annotation: Any) -> tuple[State | None, Any]:
    if get_origin(annotation) is not Annotated:
        return None, annotation
    inner, *marks = get_args(annotation)
    states = [each for each in marks if isinstance(each, State)]
    if len(states) > 1:
        raise GrammarError(f"{' and '.join(f'`{each.name}`' for each in states)} at once; an attribute has one state")
    others = [each for each in marks if not isinstance(each, State)]
    return (states[0] if states else None), (Annotated[inner, *others] if others else inner)


def _is_optional(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_optional(get_args(annotation)[0])
    if annotation is None or annotation is Any:
        return True
    return get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation)


class _Either:
    """A value of one of several types: of the first that takes it as it is, else of the first that takes it at all.

    A group that says its `class` is a config; another group is the first config that takes it.
    """

    def __init__(self, kinds: list[Any], members: list[Any], holds_configs: list[bool]) -> None:
        self.kinds, self.members, self.holds_configs = kinds, members, holds_configs
        self.configs = [each for each in kinds if isinstance(each, type) and issubclass(each, AnyConfig)]
        self.adapters: list[TypeAdapter[Any]] | None = None

    def __call__(self, value: Any) -> Any:
        if self.adapters is None:
            self.adapters = [TypeAdapter(each) for each in self.members]
        if isinstance(value, Mapping) and CLASS in value and self.configs:
            return self._config_named(value)
        choices = [*zip(self.kinds, self.adapters, self.holds_configs, strict=True)]
        if any(self.holds_configs) and _says_class(value):
            choices.sort(key=lambda choice: not choice[2])
        first = _NOTHING
        before = plain_value(value, (), [])
        for kind, adapter, holds_configs in choices:
            if isinstance(value, AnyConfig | PurePath | Enum) and isinstance(kind, type) and isinstance(value, kind):
                return adapter.validate_python(value)
            if kind in self.configs and isinstance(value, Mapping) and not kind._schema().could_take(value):
                continue  # without looking inside, which would take time that grows with the power of the depth
            try:
                result = adapter.validate_python(value)
            except ValidationError:
                continue
            if (holds_configs and any(True for _ in configs_in(result, ""))) or same(plain_value(result, (), []), before):
                return result
            first = result if first is _NOTHING else first
        if first is not _NOTHING:
            return first
        fitting = [kind for kind in self.configs if isinstance(value, Mapping) and kind._schema().could_take(value)]
        return fitting[0]._receive(value) if len(fitting) == 1 else wanted(_either(show(each) for each in self.kinds))

    def _config_named(self, value: Mapping[str, Any]) -> Any:
        for kind in self.configs:
            try:
                kind._kind_named(value[CLASS])
            except ConfigError:
                continue
            return kind._receive(value)
        return self.configs[0]._receive(value)  # which says that it knows no such class


_NOTHING: Any = object()


def _may_be_free(annotation: Any) -> bool:
    """Whether a group under this annotation may be one of free keys."""
    return annotation is Any or dict in (annotation, get_origin(annotation)) or any(map(_may_be_free, get_args(annotation)))


def _says_class(value: Any, depth: int = 0) -> bool:
    """Whether a group in `value` says its class."""
    if isinstance(value, Mapping) and CLASS in value:
        return True
    below = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return depth < MAX_DEPTH and any(_says_class(each, depth + 1) for each in below)


class _Choice:
    """One of a few values, given as itself or, for a member of an enum, as the plain value it stands for."""

    def __init__(self, annotation: Any, options: tuple[Any, ...]) -> None:
        self.annotation, self.options = annotation, options

    def __call__(self, value: Any) -> Any:
        for option in self.options:
            if value is option:
                return option
        try:
            plain = plain_scalar(value)
        except TypeError:
            plain = value
        candidates = [plain, *([value.text] if isinstance(value, WrittenInt | WrittenFloat) else [])]
        for option in self.options:
            if not isinstance(value, Enum) and any(same(each, plain_scalar(option)) for each in candidates):
                return option
        texts = [str(plain_scalar(option)) for option in self.options]
        meant = did_you_mean(str(plain), texts) if str(plain) not in texts else ""
        return wanted(show(self.annotation) + (f"; {meant}" if meant else ""))


def _any_plain(value: Any) -> Any:
    problems: list[Problem] = []
    tree = plain_value(value, (), problems)
    if problems:
        raise ConfigError.of("a value", problems)
    return tree


class _Listed:
    """A list or tuple, and for a tuple of fixed length one of that length."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        args = get_args(annotation)
        self.length = len(args) if get_origin(annotation) is tuple and Ellipsis not in args else None

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            wanted("a list")
        if self.length is not None and len(value) != self.length:
            wanted(show(self.annotation))
        return value


def _keyed(value: Any) -> Any:
    if not isinstance(value, Mapping):
        wanted("a group of keys with values")
    for key in value:
        why = wrong_key(key)
        if not why and "." in key and any(key[:dot] in value for dot in range(len(key)) if key[dot] == "."):
            why = "a dotted key is the same as nesting, and the group is there too"
        if why:
            wanted(f"other keys than {key!r:.40}: {why}")
    return dict(value)


def show(annotation: Any) -> str:
    """What an annotation wants, in words.

    >>> show(list[int])
    'a list of: a whole number'
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation][1]
    if annotation is None or annotation is type(None):
        return "null"
    if annotation is Any:
        return "any plain value"
    if origin is Annotated:
        return show(args[0])
    if origin is Literal:
        return _either(repr(each.value if isinstance(each, Enum) else each) for each in args)
    if origin is Union or origin is types.UnionType:
        return _either(show(each) for each in args)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _either(repr(each.value) for each in annotation)
    if origin is list:
        return f"a list of: {show(args[0])}"
    if origin is tuple:
        return f"({', '.join('...' if each is Ellipsis else show(each) for each in args)})"
    if origin is dict:
        return f"a group of: {show(args[1])}"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _either(options: Iterable[str]) -> str:
    *first, last = options
    return f"{', '.join(first)} or {last}" if first else last
