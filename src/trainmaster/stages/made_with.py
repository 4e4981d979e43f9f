"""What objects were made with: the arguments of their constructors, kept so that they can be made once more elsewhere."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

_MADE_WITH = "_made_with"
REMEMBERS = "__trainmaster_remembers__"


class Made(NamedTuple):
    """A call: a class or a function, and its arguments as they were given."""

    kind: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    are_recipes_made: bool = False
    """Recipes among the arguments stand for what they make, which is what the call was given."""

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickle.dumps(tuple(self))
        except Exception:  # whatever an argument makes of it: what it was made with is no reason that an object cannot be sent
            return _no_call, ()
        return Made, tuple(self)


def _no_call() -> None: ...


class Unkept:
    """Stands for an argument that no other object can be made with."""

    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why

    def __deepcopy__(self, memo: Any) -> Unkept:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(self.why)


_calls: dict[int, tuple[weakref.ref[Any], Made]] = {}
"""The calls that made the objects of others. Not an attribute of theirs: many a `state_dict` is all that an object has."""


def remember(
    made: object, kind: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, are_recipes_made: bool = False
) -> None:
    """Keep with an object what it was made with; lists and dicts are copied, because a constructor may change them."""
    own = _known(made) or Unkept(type(made).__qualname__, "it is what it was made of, and nobody has kept how that was made")
    call = Made(kind, _kept(args, made, own), _kept(kwargs, made, own), are_recipes_made)
    place = id(made)
    if hasattr(type(made), _MADE_WITH):  # a class of ours, which has a place for it, and takes it along to other processes
        object.__setattr__(made, _MADE_WITH, call)
    elif _is_module(made):
        made.__dict__[_MADE_WITH] = _Note(call, weakref.ref(made))
    else:
        forget = functools.partial(_calls.pop, place, None)  # bound now: at the end of a program the module may be gone first
        _calls[place] = (weakref.ref(made, lambda _: forget()), call)


class _Note:
    """The call that made a module, in its `__dict__`.

    There and not in `_calls`, because an argument may hold the module (`self.net = Net(act=self.act)`): the two are freed together, weights
    and all. A copy of the module was made by no call, and its pickle needs nothing of ours: there the note is `False`.
    """

    def __init__(self, call: Made, owner: weakref.ref[Any]) -> None:
        self.call, self.owner = call, owner

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, ()


def _is_module(value: object) -> bool:
    torch = sys.modules.get("torch.nn")  # this room works without it
    return torch is not None and isinstance(value, torch.Module)


def _known(value: object) -> Made | None:
    if hasattr(type(value), _MADE_WITH):
        own: Made | None = getattr(value, _MADE_WITH, None)
        return own
    if _is_module(value):
        note = value.__dict__.get(_MADE_WITH)
        return note.call if isinstance(note, _Note) and note.owner() is value else None
    reference, call = _calls.get(id(value), (None, None))
    return call if reference is not None and reference() is value else None


def made_with(value: object) -> Made | None:
    """The call that made an object, if it is known."""
    found = _known(value)
    kind = type(value)
    if found is not None or not getattr(kind, REMEMBERS, False):
        return found
    if kind.__init__ is object.__init__:
        return Made(kind, (), {})
    if dataclasses.is_dataclass(kind):  # it got its constructor after it was marked; but its fields tell all
        return Made(kind, (), {each.name: getattr(value, each.name) for each in dataclasses.fields(kind) if each.init})
    return None


def remember_arguments(kind: type) -> None:
    """Have the objects of a class, and of its subclasses, keep what they were made with."""
    setattr(kind, REMEMBERS, True)
    original: Callable[..., None] = kind.__init__  # type: ignore[misc]
    if original is object.__init__ or getattr(original, REMEMBERS, False):
        return  # there is nothing to keep, or a base class keeps it

    @functools.wraps(original)
    def __init__(self: object, *args: Any, **kwargs: Any) -> None:
        if _known(self) is None:  # the constructor of a base class comes second, and has other arguments
            remember(self, type(self), args, kwargs)
        original(self, *args, **kwargs)

    setattr(__init__, REMEMBERS, True)
    kind.__init__ = __init__  # type: ignore[misc]


_MANY = 1000
_DEEP = 50


def _kept(value: Any, made: object, own: Made | Unkept, around: tuple[int, ...] = ()) -> Any:
    if value is made:
        return own
    if isinstance(value, Iterator) and _known(value) is None:
        name = type(value).__name__
        return Unkept(name, f"a {name} is used up when it has been gone through")
    if type(value) not in (dict, OrderedDict, list, tuple) or len(value) > _MANY:
        return value  # a long one is data, not settings
    if id(value) in around or len(around) == _DEEP:
        return Unkept(type(value).__name__, "it holds itself, or is nested too deep")
    around = (*around, id(value))
    if isinstance(value, dict):
        return type(value)((key, _kept(each, made, own, around)) for key, each in value.items())
    return type(value)(_kept(each, made, own, around) for each in value)
