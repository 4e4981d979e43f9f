"""The annotations that a config class may use, and their conversion to annotations for pydantic.

    state      Stateless[...] | Derived[...] | Replicate[...]      must wrap the whole annotation
               Secret[...]                                         wraps text, or lists and dicts of text
    scalar     int  float  str  bool  None  Path  Any (any plain value)
    choice     Literal[...]  an Enum  Optional[...]  A | B
    container  list[...]  tuple[...]  dict[str, ...]
    config     another config class, or Self

`Annotated[...]` adds pydantic's constraints to any of these, as in `Annotated[float, Gt(0)]`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from functools import partial
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import BeforeValidator, PlainValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from trainmaster.config.any_config import CLASS, AnyConfig
from trainmaster.config.config_classes import build_group, find_class
from trainmaster.config.fields import DERIVED, SECRET, State
from trainmaster.config.numerals import NumeralFloat, NumeralInt
from trainmaster.config.paths import MAX_DEPTH, key_problem
from trainmaster.config.scalars import refuse, to_bool, to_float, to_int, to_text
from trainmaster.config.to_plain import is_same, scalar_to_plain, value_to_plain
from trainmaster.config.values import configs_in
from trainmaster.errors import ConfigError, Problem, did_you_mean

_SCALARS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    int: (to_int, "a whole number"),
    float: (to_float, "a number"),
    str: (to_text, "text"),
    bool: (to_bool, "true or false"),
}


class AnnotationError(Exception):
    """Raised for an annotation that a config class does not support. The message states the reason."""


class ParsedAnnotation:
    """A parsed annotation: its marker (such as `Stateless`), the config classes in it, and `validated_as`, the annotation for pydantic."""

    def __init__(self, annotation: Any, owner: type) -> None:
        self.owner = owner
        self.configs: list[type] = []
        self.state, self.written = _state_of(annotation)
        if self.state is SECRET and not _is_text(self.written):
            raise AnnotationError(f"`Secret[...]` can only wrap text, not {describe_annotation(self.written)}")
        self.is_optional = any(each in (None, type(None), Any) for each in _alternatives(self.written))
        self.group = self._group(self.written)
        self.validated_as = self._validated(self.written)
        if self.state is DERIVED and not self.is_optional:
            self.validated_as = self.validated_as | None if isinstance(self.validated_as, type) else Union[self.validated_as, None]  # noqa: UP007 - Annotated

    def _group(self, annotation: Any) -> type | None:
        """Return the config class if the annotation is a config class or `Optional` of one, otherwise None."""
        kinds = [self.owner if each is Self else each for each in _alternatives(annotation) if each is not type(None)]
        return kinds[0] if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], AnyConfig) else None

    def _validated(self, annotation: Any) -> Any:
        origin, args = get_origin(annotation), get_args(annotation)
        if not isinstance(annotation, Hashable):
            raise AnnotationError(f"{annotation!r:.60} is not a type")
        if annotation in _SCALARS:
            return Annotated[annotation, BeforeValidator(_SCALARS[annotation][0])]
        if annotation is None or annotation is type(None):
            return None
        if annotation is Any:
            return Annotated[Any, PlainValidator(_any_plain)]
        if annotation is Self:
            annotation = self.owner
        if origin is Annotated:
            return self._validated_annotated(args)
        if origin is Literal:
            if not all(each is None or isinstance(each, str | int | Enum) for each in args):
                raise AnnotationError(f"{annotation} has values other than text, whole numbers, booleans and None")
            return Annotated[Any, PlainValidator(_OneOfValues(annotation, args))]
        if origin is Union or origin is types.UnionType:
            return self._validated_union(args)
        if annotation is list or origin is list:
            if len(args) > 1:
                raise AnnotationError(f"{annotation} has more than one type; write list[int | str]")
            return Annotated[list[self._validated(args[0] if args else Any)], BeforeValidator(_ListLike(annotation))]  # type: ignore[misc]
        if annotation is tuple or origin is tuple:
            inside = tuple(each if each is Ellipsis else self._validated(each) for each in args or (Any, ...))
            return Annotated[tuple[inside], BeforeValidator(_ListLike(annotation))]  # type: ignore[valid-type]
        if annotation is dict or origin is dict:
            if args and (args[0] is not str or len(args) != 2):
                raise AnnotationError(f"{annotation} is not a dict[str, ...]; the keys of a config are text")
            return Annotated[dict[str, self._validated(args[1] if args else Any)], BeforeValidator(_check_keys)]  # type: ignore[misc]
        if isinstance(annotation, type):
            return self._validated_class(annotation)
        if isinstance(annotation, TypeVar):
            raise AnnotationError("a state must wrap a type: write `Stateless[int]`, not `Stateless` alone")
        raise AnnotationError(f"{describe_annotation(annotation)} is not a type that a config can have")

    def _validated_annotated(self, args: tuple[Any, ...]) -> Any:
        for mark in args[1:]:
            if isinstance(mark, State):
                raise AnnotationError(f"`{mark.name}[...]` must wrap the whole annotation, not a part of it")
            if isinstance(mark, FieldInfo) and (mark.alias or mark.validation_alias):
                raise AnnotationError("has an alias; write `= field(was=...)` for a former name")
            if isinstance(mark, FieldInfo) and not mark.is_required():
                raise AnnotationError("has a default inside its annotation; write it after the annotation: `x: int = 3`")
        return Annotated[self._validated(args[0]), *args[1:]]

    def _validated_union(self, args: tuple[Any, ...]) -> Any:
        kinds = [each for each in args if each is not type(None)]
        members, holds_configs = [], []
        for each in kinds:
            before = len(self.configs)
            members.append(self._validated(each))
            holds_configs.append(len(self.configs) > before)
        if len(members) == 1:
            return Union[members[0], None]  # noqa: UP007 - an Annotated has no `|`
        if any(holds_configs) and any(map(_allows_free_group, kinds)):
            self.configs.append(dict)  # the value may be a dict or a config, so a config always specifies its class
        either = Annotated[Any, PlainValidator(_OneOfTypes(kinds, members, holds_configs))]
        return Union[either, None] if len(kinds) < len(args) else either  # noqa: UP007

    def _validated_class(self, kind: type) -> Any:
        if issubclass(kind, Enum):
            for member in kind:
                try:
                    scalar_to_plain(member)
                except TypeError:
                    raise AnnotationError(
                        f"{kind.__name__}.{member.name} is {member.value!r:.40}, which cannot be written to a file"
                    ) from None
            return Annotated[Any, PlainValidator(_OneOfValues(kind, tuple(kind)))]
        if issubclass(kind, PurePath):
            return Annotated[Path, BeforeValidator(to_text)]
        if not issubclass(kind, AnyConfig):
            raise AnnotationError(
                f"{describe_annotation(kind)} is not a type that a config can have; use a config class or several fields instead"
            )
        if kind is not self.owner and "__config_schema__" not in kind.__dict__:
            raise AnnotationError(f"`{kind.__name__}` is not decorated with @configclass")
        self.configs.append(kind)
        return Annotated[Any, PlainValidator(partial(build_group, kind))]


def _state_of(annotation: Any) -> tuple[State | None, Any]:
    if get_origin(annotation) is not Annotated:
        return None, annotation
    inner, *marks = get_args(annotation)
    states = [each for each in marks if isinstance(each, State)]
    if len(states) > 1:
        raise AnnotationError(f"{' and '.join(f'`{each.name}`' for each in states)} at once; an attribute has one state")
    others = [each for each in marks if not isinstance(each, State)]
    return (states[0] if states else None), (Annotated[inner, *others] if others else inner)


def _is_text(annotation: Any) -> bool:
    """Return whether an annotation allows no values other than text, lists and dicts of text, and None."""
    if get_origin(annotation) is Annotated:
        return _is_text(get_args(annotation)[0])
    args = [each for each in get_args(annotation) if each not in (None, type(None), Ellipsis)]
    if get_origin(annotation) in (Union, types.UnionType, list, tuple, dict):
        return bool(args) and all(map(_is_text, args))
    return annotation is str


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union. For any other annotation, return a tuple with that annotation."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


class _OneOfTypes:
    """Validates the value of a union with the first type that accepts it unchanged, or else with the first that can convert it.

    A mapping with the key `class` becomes a config of that class. Any other mapping becomes a config of the first class that accepts it.
    """

    def __init__(self, kinds: list[Any], members: list[Any], holds_configs: list[bool]) -> None:
        self.kinds, self.members, self.holds_configs = kinds, members, holds_configs
        self.configs = [each for each in kinds if isinstance(each, type) and issubclass(each, AnyConfig)]
        self.adapters: list[TypeAdapter[Any]] | None = None

    def __call__(self, value: Any) -> Any:
        if self.adapters is None:
            self.adapters = [TypeAdapter(each) for each in self.members]
        if isinstance(value, Mapping) and CLASS in value and self.configs:
            # If no class has this name, `build_group` raises an error.
            return build_group(next((kind for kind in self.configs if find_class(kind, value)), self.configs[0]), value)
        choices = [*zip(self.kinds, self.adapters, self.holds_configs, strict=True)]
        if any(self.holds_configs) and _names_class(value):
            choices.sort(key=lambda choice: not choice[2])
        first = _NOTHING
        before = value_to_plain(value, (), [])
        for kind, adapter, holds_configs in choices:
            if isinstance(value, AnyConfig | PurePath | Enum) and isinstance(kind, type) and isinstance(value, kind):
                return adapter.validate_python(value)
            if kind in self.configs and isinstance(value, Mapping) and not kind._schema().has_fields_for(value):
                continue  # only names are checked, because validating every alternative would take exponential time
            try:
                result = adapter.validate_python(value)
            except ValidationError:
                continue
            if (holds_configs and any(True for _ in configs_in(result, ""))) or is_same(value_to_plain(result, (), []), before):
                return result
            first = result if first is _NOTHING else first
        if first is not _NOTHING:
            return first
        fitting = [kind for kind in self.configs if isinstance(value, Mapping) and kind._schema().has_fields_for(value)]
        if len(fitting) == 1:
            return build_group(fitting[0], value)  # raises with the problems inside the group
        return refuse(_join_with_or(describe_annotation(each) for each in self.kinds))


_NOTHING: Any = object()


def _allows_free_group(annotation: Any) -> bool:
    """Return whether this annotation accepts a plain dict."""
    return annotation is Any or dict in (annotation, get_origin(annotation)) or any(map(_allows_free_group, get_args(annotation)))


def _names_class(value: Any, depth: int = 0) -> bool:
    """Return whether `value` is or contains a mapping with the key `class`."""
    if isinstance(value, Mapping) and CLASS in value:
        return True
    below = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return depth < MAX_DEPTH and any(_names_class(each, depth + 1) for each in below)


class _OneOfValues:
    """Validates a `Literal` or an enum. The plain value of an enum member is also accepted."""

    def __init__(self, annotation: Any, options: tuple[Any, ...]) -> None:
        self.annotation, self.options = annotation, options

    def __call__(self, value: Any) -> Any:
        for option in self.options:
            if value is option:
                return option
        try:
            plain = scalar_to_plain(value)
        except TypeError:
            plain = value
        candidates = [plain, *([value.text] if isinstance(value, NumeralInt | NumeralFloat) else [])]
        for option in self.options:
            if not isinstance(value, Enum) and any(is_same(each, scalar_to_plain(option)) for each in candidates):
                return option
        texts = [str(scalar_to_plain(option)) for option in self.options]
        meant = did_you_mean(str(plain), texts) if str(plain) not in texts else ""
        return refuse(describe_annotation(self.annotation) + (f"; {meant}" if meant else ""))


def _any_plain(value: Any) -> Any:
    problems: list[Problem] = []
    tree = value_to_plain(value, (), problems)
    if problems:
        raise ConfigError.of("a value", problems)
    return tree


class _ListLike:
    """Accepts a list or tuple. If the annotation specifies a length, the value must have that length."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        args = get_args(annotation)
        self.length = len(args) if get_origin(annotation) is tuple and Ellipsis not in args else None

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            refuse("a list")
        if self.length is not None and len(value) != self.length:
            refuse(describe_annotation(self.annotation))
        return value


def _check_keys(value: Any) -> Any:
    if not isinstance(value, Mapping):
        refuse("a group of keys with values")
    for key in value:
        why = key_problem(key)
        if not why and "." in key and any(key[:dot] in value for dot in range(len(key)) if key[dot] == "."):
            why = "a dotted key means nesting, and that group exists too"
        if why:
            refuse(f"other keys than {key!r:.40}: {why}")
    return dict(value)


def describe_annotation(annotation: Any) -> str:
    """Describe an annotation in plain language, for error messages.

    >>> describe_annotation(list[int])
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
        return describe_annotation(args[0])
    if origin is Literal:
        return _join_with_or(repr(each.value if isinstance(each, Enum) else each) for each in args)
    if origin is Union or origin is types.UnionType:
        return _join_with_or(describe_annotation(each) for each in args)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _join_with_or(repr(each.value) for each in annotation)
    if origin is list:
        return f"a list of: {describe_annotation(args[0])}"
    if origin is tuple:
        return f"({', '.join('...' if each is Ellipsis else describe_annotation(each) for each in args)})"
    if origin is dict:
        return f"a group of: {describe_annotation(args[1])}"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _join_with_or(options: Iterable[str]) -> str:
    *first, last = options
    return f"{', '.join(first)} or {last}" if first else last
