"""What a config class says of its attributes: their state, their default, and their history."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, NamedTuple, TypeVar

T = TypeVar("T")


class State(NamedTuple):
    """A mark on an annotation."""

    name: str


STATELESS = State("Stateless")
DERIVED = State("Derived")
REPLICATE = State("Replicate")

Stateless = Annotated[T, STATELESS]
"""An attribute that is no part of the config's identity: where results go, how often to log."""

Derived = Annotated[T, DERIVED]
"""An attribute that is filled in later, from the data for example; no part of the identity. Until then it is None."""

Replicate = Annotated[T, REPLICATE]
"""An attribute that is part of the identity and only tells replicates apart, as a random seed does."""


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()
"""The default of an attribute that has none."""


class Declared(NamedTuple):
    """What `field(...)` says."""

    default: Any
    was: tuple[str, ...]
    is_added: bool


def field(*, default: Any = ABSENT, was: str | tuple[str, ...] = (), added: bool = False) -> Any:
    """Say more of an attribute than its type and default.

    - `was`: its former name, or names, newest first. Files that use one still load, and the key of a config is as it was.
    - `added`: True for an attribute that came when there were configs already. While it has its default, the key is as it was.

    A subclass that states the attribute again keeps both.
    """
    return Declared(default, (was,) if isinstance(was, str) else tuple(was), added)


class Field(NamedTuple):
    """One attribute of a config class."""

    name: str
    written: Any
    """The annotation without its state."""
    read_as: Any
    """The annotation that pydantic validates by."""
    state: State | None
    is_optional: bool
    configs: tuple[type, ...]
    """The config classes that its annotation names."""
    group: Any
    """The config class, if the annotation is one, or one or None."""
    default: Any = ABSENT
    was: tuple[str, ...] = ()
    added_default: Any = ABSENT
    """The default that a field had when it was added; ABSENT for one that was there from the start."""

    @property
    def is_added(self) -> bool:
        return self.added_default is not ABSENT

    @property
    def first_name(self) -> str:
        """The name that the identity uses: the oldest."""
        return self.was[-1] if self.was else self.name

    def name_in(self, keys: Container[str], at: str) -> str:
        """The name, today's or a former one, by which `keys` have this field; today's if they have none."""
        return next((each for each in (self.name, *self.was) if at + each in keys), self.name)
