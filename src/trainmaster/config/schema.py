"""The fields of a config class, and how values are validated against them."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections import ChainMap
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import FrameType
from typing import Any, NoReturn

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict

from trainmaster.config.annotations import AnnotationError, ParsedAnnotation, describe_annotation
from trainmaster.config.any_config import CLASS, AnyConfig
from trainmaster.config.fields import ABSENT, DERIVED, REPLICATE, Declared, Field
from trainmaster.config.paths import dotted, key_problem
from trainmaster.config.value_table import short_repr
from trainmaster.config.values import cloned
from trainmaster.errors import ConfigClassError, ConfigError, Problem, did_you_mean

NUM_DETAILED = 50
"""The maximum number of problems that are described in full. Without this limit, an invalid file could cause 50,000 descriptions."""

_INSTEAD = {
    "__init__": "is never called for groups in files; write `problems()` to check values, and methods to compute them",
    "__post_init__": "is never called; write `problems()` to check values, and methods to compute them",
}

_PYDANTIC = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class Schema:
    """The fields of one config class. `@configclass` creates the schema.

    Annotations are resolved immediately, or on first use if they refer to a class that is defined later.
    """

    def __init__(self, owner: type, reserved: frozenset[str], frame: FrameType) -> None:
        self.owner = owner
        self.reserved = reserved
        self._frame: FrameType | None = frame  # where the class is defined, because annotations may use local names
        self.own: list[str] = []
        """The fields that this class itself declares."""
        self._own_defaults = self._read_defaults()
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        with contextlib.suppress(NameError):  # an annotation may refer to a class that is defined later
            self.fields  # noqa: B018 - resolve it now if possible

    @cached_property
    def fields(self) -> dict[str, Field]:
        hints = self._hints()
        result: dict[str, Field] = {}
        problems: list[Problem] = []
        for base in reversed(self.owner.__mro__[1:]):
            schema = base.__dict__.get("__config_schema__")
            if schema is not None:
                result |= {name: self._inherited(field) for name, field in schema.fields.items() if name in schema.own}
            elif issubclass(base, AnyConfig) and any(not name.startswith("_") for name in inspect.get_annotations(base)):
                problems.append(Problem("", f"its base class `{base.__name__}` is not decorated with @configclass"))
        for name, annotation in hints.items():
            if annotation is typing.ClassVar or typing.get_origin(annotation) is typing.ClassVar:
                continue
            try:
                result[name] = self._field(name, annotation, result.get(name))
                self.own.append(name)
            except AnnotationError as error:
                problems.append(Problem(name, str(error)))
        hidden = [name for name in vars(self.owner) if name in result and name not in hints and name not in self._own_defaults]
        problems += [Problem(name, "hides a field of a base class") for name in hidden]
        problems += [Problem(name, _INSTEAD[name]) for name in _INSTEAD if name in vars(self.owner)]
        problems += [Problem(name, "has no annotation") for name in self._own_defaults if name not in hints]
        former = [each for field in result.values() for each in field.was]
        problems += [Problem(name, "is the name of one field and the former name of another") for name in former if name in result]
        problems += [Problem(name, "is the former name of two fields") for name in {*former} if former.count(name) > 1]
        if problems:
            raise ConfigClassError.of(f"the config class {self.owner.__name__}", problems)
        return result

    def _inherited(self, field: Field) -> Field:
        """Return a field of a base class, changed so that `Self` in its annotation means this class."""
        if "Self" not in str(field.written) or field.state is DERIVED:
            return field
        parsed = ParsedAnnotation(field.written, self.owner)
        return field._replace(validated_as=parsed.validated_as, configs=tuple(dict.fromkeys(parsed.configs)), group=parsed.group)

    def _hints(self) -> dict[str, Any]:
        """Return the annotations of this class, without those of its base classes."""
        frame = self._frame
        scope = ChainMap({self.owner.__name__: self.owner}, frame.f_locals, frame.f_globals) if frame else {}
        hints: dict[str, Any] = {}
        problems: list[Problem] = []
        for name, annotation in inspect.get_annotations(self.owner).items():
            alone = type("_", (), {"__annotations__": {name: annotation}, "__module__": self.owner.__module__})
            try:
                hints |= typing.get_type_hints(alone, localns=scope, include_extras=True)
            except NameError:
                raise  # the annotation may refer to a class that is defined later
            except (SyntaxError, AttributeError, TypeError) as error:
                problems.append(Problem(name, f"its annotation cannot be read: {error}"))
        if problems:
            raise ConfigClassError.of(f"the config class {self.owner.__name__}", problems)
        self._frame = None  # no longer needed, and it keeps objects alive
        return hints

    def _field(self, name: str, annotation: Any, inherited: Field | None) -> Field:
        if name in self.reserved or name.startswith("_"):
            raise AnnotationError(
                "begins with an underscore" if name.startswith("_") else "is a method of every config; choose another name"
            )
        declared = self._own_defaults.get(name, ABSENT)
        if isinstance(declared, FieldInfo):
            raise AnnotationError("put pydantic's Field into the annotation: `Annotated[float, Field(gt=0)] = 0.1`")
        if not isinstance(declared, Declared):
            declared = Declared(declared, (), False)
        if inherited is not None and not declared.was:
            declared = declared._replace(was=inherited.was)
        for former in declared.was:
            if not former.isidentifier() or former == CLASS:
                raise AnnotationError(f"{former!r} is not a valid former name")
        parsed = ParsedAnnotation(annotation, self.owner)
        default = None if parsed.state is DERIVED and declared.default is ABSENT else declared.default
        if declared.is_added and default is ABSENT:
            raise AnnotationError("was added later, so it needs a default: the value that all older configs had")
        added = default if declared.is_added else inherited.added_default if inherited is not None else ABSENT
        configs = tuple(dict.fromkeys(parsed.configs))
        optional, group = parsed.is_optional, parsed.group
        return Field(name, parsed.written, parsed.validated_as, parsed.state, optional, configs, group, default, declared.was, added)

    def _read_defaults(self) -> dict[str, Any]:
        """Return the class attributes that are data: the defaults of fields. In the class, replace each `field(...)` with its default."""
        values = {}
        annotated = inspect.get_annotations(self.owner)
        for name, value in list(self.owner.__dict__.items()):
            is_code = callable(value) or hasattr(value, "__get__")
            if name in annotated or not (name.startswith("_") or is_code):
                values[name] = value._replace(default=cloned(value.default)) if isinstance(value, Declared) else cloned(value)
            if isinstance(value, Declared) and name in annotated:
                delattr(self.owner, name)
                if value.default is not ABSENT:
                    setattr(self.owner, name, value.default)
        return values

    @cached_property
    def stateful(self) -> tuple[Field, ...]:
        return tuple(field for field in self.fields.values() if field.state in (None, REPLICATE))

    @cached_property
    def _renamed(self) -> dict[str, str]:
        return {former: field.name for field in self.fields.values() for former in field.was}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        return {field.name: field.default for field in self.fields.values() if field.default is not ABSENT}

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        shape: Any = TypedDict(self.owner.__name__, {name: field.validated_as for name, field in self.fields.items()})  # type: ignore[misc]
        shape.__pydantic_config__ = _PYDANTIC  # type: ignore[attr-defined]
        return TypeAdapter(shape)

    @cached_property
    def added_defaults(self) -> dict[str, Any]:
        """The validated defaults of the fields declared with `added=True`."""
        return {field.name: self.validate_one(field.name, field.added_default) for field in self.fields.values() if field.is_added}

    def ready(self) -> Schema:
        """Return this schema with its annotations resolved. If a name is still undefined, raise an error."""
        try:
            self.fields  # noqa: B018
        except NameError as error:
            problem = Problem("", f"an annotation names `{error.name}`, which is not defined")
            raise ConfigClassError.of(f"the config class {self.owner.__name__}", [problem]) from None
        return self

    def has_fields_for(self, values: Mapping[str, Any]) -> bool:
        """Return whether all names in `values` are fields and no required field is missing. The values are not checked."""
        names = {self._renamed.get(first, first) for name in values for first in [str(name).partition(".")[0]]}
        return names <= self.fields.keys() and self.fields.keys() - self._defaults.keys() <= names

    def read(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return two dicts: `values` with current field names as keys, and the validated values of all fields, including defaults.

        All problems are reported at once.
        """
        given, problems = self.rename_and_nest(values)
        try:
            checked = self.validate(given)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError.of(self.owner.__name__, problems)
        return given, checked

    def rename_and_nest(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
        """Return `values` with keys such as `train.lr` moved into the group `train` and former names replaced, and the problems found."""
        if "." not in "".join(map(str, values)) and not (self._renamed and any(name in self._renamed for name in values)):
            return dict(values), []
        result: dict[str, Any] = {}
        groups: dict[str, dict[str, Any]] = {}  # copies of the groups that dotted names add values to
        problems = []
        for name, value in sorted(values.items(), key=lambda item: str(item[0]).count(".")):  # groups first, then their dotted keys
            first, dot, rest = name.partition(".") if isinstance(name, str) and not key_problem(name) else (name, "", "")
            current = self._renamed.get(first, first)
            if dot and current not in groups and isinstance(result.get(current, {}), Mapping):
                result[current] = groups[current] = dict(result.get(current, {}))
            if dot and current in groups and rest not in groups[current]:
                groups[current][rest] = value
            elif not dot and current not in result:
                result[current] = value
            else:
                former = f"; `{first}` is a former name of `{current}`" if current != first else ""
                problems.append(Problem(str(name), f"is given twice{former}", short_repr(value)))
        return result, problems

    def validate(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the validated values of all fields, from `values` and the defaults. All problems are reported at once."""
        return self._checked(self._adapter, {**self._defaults, **values}, ())  # type: ignore[no-any-return]

    def validate_one(self, name: str, value: Any) -> Any:
        """Validate the value of one field."""
        adapter = self._adapters.get(name)
        if adapter is None:
            adapter = self._adapters[name] = TypeAdapter(self.fields[name].validated_as, config=ConfigDict(arbitrary_types_allowed=True))
        return self._checked(adapter, value, (name,))

    def _checked(self, adapter: TypeAdapter[Any], value: Any, at: tuple[str, ...]) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            raise ConfigError.of(self.owner.__name__, self._problems(error, at)) from None
        except TypeError as error:
            if not str(error).startswith("Unable to apply constraint"):
                raise
            for name in self.fields if not at else ():
                self.validate_one(name, value.get(name, ABSENT))  # raises with the name of the field
            problem = Problem(dotted(at), f"a constraint does not fit the type: {error}")
            raise ConfigClassError.of(f"the config class {self.owner.__name__}", [problem]) from None

    def unknown(self, name: Any) -> Problem:
        """Return the problem for a name that is not a field of this class."""
        if name in self._renamed:
            meant = f"it is called `{self._renamed[name]}` now"
        else:
            known = f"it has {', '.join(f'`{each}`' for each in self.fields)}" if self.fields else "it has none"
            meant = did_you_mean(str(name), self.fields) or known
        return Problem(str(name), f"{self.owner.__name__} has no such field; {meant}", is_unknown=True)

    def _problems(self, error: ValidationError, at: tuple[str, ...] = ()) -> Iterator[Problem]:
        for number, line in enumerate(error.errors(include_url=False)):
            path = (*at, *line["loc"])
            if number < NUM_DETAILED:
                yield from self._problems_of(line, path)
            else:
                yield Problem(dotted(path), "is wrong too", is_unknown=line["type"] == "extra_forbidden")

    def _problems_of(self, line: Any, path: tuple[str | int, ...]) -> Iterator[Problem]:
        kind, value, key = line["type"], short_repr(line["input"]), dotted(path)
        cause = line.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            yield from (each._replace(key=f"{key}.{each.key}" if each.key else key) for each in cause.problems)
        elif kind == "extra_forbidden":
            yield self.unknown(path[-1])._replace(key=key, value=value)
        elif kind == "missing" and len(path) == 1:
            yield Problem(key, f"is missing; expected {describe_annotation(self.fields[str(path[0])].written)}")
        elif kind == "invalid_key":
            yield Problem(key, "a key is text", value)
        elif cause is not None:
            yield Problem(key, str(cause), value)
        else:
            message = line["msg"].removeprefix("Input should be ")
            if kind == "expected" or message != line["msg"]:
                message = f"expected {'a value ' if message.startswith(('greater', 'less')) else ''}{message}"
            yield Problem(key, message[:1].lower() + message[1:], value)

    def refuse_unknown(self, name: Any) -> NoReturn:
        raise ConfigError.of(self.owner.__name__, [self.unknown(name)])
