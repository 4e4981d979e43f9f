"""What objects were made with: the arguments of their constructors, kept so that they can be made once more elsewhere."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_MADE_WITH = "_made_with"
_REMEMBERS = "__trainmaster_remembers__"


class Made(NamedTuple):
    """A call: a class or a function, and its arguments as they were given."""

    kind: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


_calls: dict[int, tuple[weakref.ref[Any], Made]] = {}
"""The calls that made the objects of others. Not an attribute of theirs: many a `state_dict` is all that an object has."""


def remember(made: object, kind: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Keep with an object what it was made with; lists and dicts are copied, because a constructor may change them."""
    call, place = Made(kind, _kept(args), _kept(kwargs)), id(made)
    if hasattr(type(made), _MADE_WITH):  # a class of ours, which has a place for it, and takes it along to other processes
        object.__setattr__(made, _MADE_WITH, call)
    else:
        _calls[place] = (weakref.ref(made, lambda _: _calls.pop(place, None)), call)


def _known(value: object) -> Made | None:
    if hasattr(type(value), _MADE_WITH):
        own: Made | None = getattr(value, _MADE_WITH, None)
        return own
    reference, call = _calls.get(id(value), (None, None))
    return call if reference is not None and reference() is value else None


def made_with(value: object) -> Made | None:
    """The call that made an object, if it is known."""
    found = _known(value)
    if found is not None:
        return found
    is_bare = type(value).__init__ is object.__init__ and getattr(type(value), _REMEMBERS, False)
    return Made(type(value), (), {}) if is_bare else None


def remember_arguments(kind: type) -> None:
    """Have the objects of a class, and of its subclasses, keep what they were made with."""
    setattr(kind, _REMEMBERS, True)
    original: Callable[..., None] = kind.__init__  # type: ignore[misc]
    if original is object.__init__ or getattr(original, _REMEMBERS, False):
        return  # there is nothing to keep, or a base class keeps it

    @functools.wraps(original)
    def __init__(self: object, *args: Any, **kwargs: Any) -> None:
        if _known(self) is None:  # the constructor of a base class comes second, and has other arguments
            remember(self, type(self), args, kwargs)
        original(self, *args, **kwargs)

    setattr(__init__, _REMEMBERS, True)
    kind.__init__ = __init__  # type: ignore[misc]


class Unrepeatable:
    """Stands for an iterator among the arguments: it is used up, and no other object can be made with it."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __deepcopy__(self, memo: Any) -> Unrepeatable:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"a {self.what} is used up when it has been gone through")


_MANY = 1000


def _kept(value: Any) -> Any:
    if type(value) in (dict, list, tuple) and len(value) > _MANY:
        return value  # data, not settings
    if isinstance(value, Iterator):
        return Unrepeatable(type(value).__name__)
    if type(value) is dict:
        return {key: _kept(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_kept, value))
    return value
