"""Fields of config classes: their markers (`Stateless`, `Derived`, ...), defaults and former names."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, NamedTuple, TypeVar

T = TypeVar("T")


class State(NamedTuple):
    """A marker in an annotation, such as `Stateless`."""

    name: str


STATELESS = State("Stateless")
DERIVED = State("Derived")
REPLICATE = State("Replicate")
SECRET = State("Secret")

Stateless = Annotated[T, STATELESS]
"""A field that is not part of the config's identity, such as an output folder or a logging interval."""

Derived = Annotated[T, DERIVED]
"""A field that is set later, for example from the data. It is None until then, and it is not part of the identity."""

Replicate = Annotated[T, REPLICATE]
"""A field whose value differs between replicates of a config, such as a random seed. It is part of the identity."""

Secret = Annotated[T, SECRET]
"""Text that is never stored, such as a password. It is not part of the identity, and the store contains `***` instead."""


ABSENT: Any = object()
"""A placeholder for the default of a field that has no default."""


class Declared(NamedTuple):
    """The arguments of `field(...)`."""

    default: Any
    was: tuple[str, ...]
    is_added: bool


def field(*, default: Any = ABSENT, was: str | tuple[str, ...] = (), added: bool = False) -> Any:
    """Declare the default of a field, and how the field has changed.

    - `was`: the former name of the field, or several names, newest first. Files that use a former name still load, and
      the keys of configs do not change.
    - `added`: True for a field that you add to a class that is already in use. The key of a config does not change
      while the field has its default.

    A subclass that declares the field again inherits `was` and `added`.
    """
    return Declared(default, (was,) if isinstance(was, str) else tuple(was), added)


class Field(NamedTuple):
    """A field of a config class."""

    name: str
    written: Any
    """The annotation without its marker, such as `Stateless[...]` or `Derived[...]`."""
    validated_as: Any
    """The annotation that pydantic uses, with trainmaster's own validators."""
    state: State | None
    is_optional: bool
    configs: tuple[type, ...]
    """The config classes in the annotation."""
    group: Any
    """The config class if the annotation is a config class or `Optional` of one, otherwise None."""
    default: Any = ABSENT
    was: tuple[str, ...] = ()
    added_default: Any = ABSENT
    """The default that the field had when it was added to its class, or ABSENT if it was not declared with `added=True`."""

    @property
    def has_default(self) -> bool:
        return self.default is not ABSENT

    @property
    def is_added(self) -> bool:
        return self.added_default is not ABSENT

    @property
    def first_name(self) -> str:
        """The oldest name of the field. The identity of a config contains this name."""
        return self.was[-1] if self.was else self.name

    def name_in(self, keys: Container[str], at: str) -> str:
        """Return the current or former name of this field that is in `keys`, or the current name if `keys` contains none of them."""
        return next((each for each in (self.name, *self.was) if at + each in keys), self.name)
