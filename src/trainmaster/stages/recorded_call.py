"""Records the class and the arguments that created an object, so that another process can create it again."""

from __future__ import annotations

import dataclasses
import functools
import io
import pickle
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

_ATTRIBUTE = "_recorded_call"
RECORDS_CALLS = "__trainmaster_records_calls__"
"""The name of an attribute that marks classes, constructors and functions that record their own calls."""


class RecordedCall(NamedTuple):
    """A call: a class or a function, and its arguments."""

    kind: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            _StrictPickler(io.BytesIO()).dump(tuple(self))
        except Exception:  # pickling an argument may raise any error, but the created object must stay picklable
            return _no_call, ()
        return RecordedCall, tuple(self)


class _StrictPickler(pickle.Pickler):
    """Raises an error for a call among the arguments that cannot be pickled. Without it, that call would silently become None."""

    def reducer_override(self, value: Any) -> Any:
        return (RecordedCall, tuple(value)) if isinstance(value, RecordedCall) else NotImplemented


def _no_call() -> None: ...


class UnrecordedArg:
    """A placeholder for an argument that cannot be recorded, such as an iterator, which can be read only once."""

    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why

    def __deepcopy__(self, memo: Any) -> UnrecordedArg:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(self.why)


_calls: dict[int, tuple[weakref.ref[Any], RecordedCall]] = {}
"""The calls that created objects from other libraries, except for PyTorch modules. They are not stored as attributes of these
objects, because many programs treat an object's `vars()` as its state."""


def record_call(created: object, kind: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record the call that created an object. Lists and dicts are copied, because a constructor may change them."""
    own = _known_call(created) or UnrecordedArg(type(created).__qualname__, "a recorded call received it as an argument and returned it")
    call = RecordedCall(kind, _recordable(args, created, own), _recordable(kwargs, created, own))
    if hasattr(type(created), _ATTRIBUTE):  # one of our classes: the record is pickled with the object
        object.__setattr__(created, _ATTRIBUTE, call)
    elif _is_module(created):
        created.__dict__[_ATTRIBUTE] = _ModuleRecord(call, weakref.ref(created))
    else:
        forget = functools.partial(_calls.pop, id(created), None)  # bound now, because Python may unload this module first at exit
        _calls[id(created)] = (weakref.ref(created, lambda _: forget()), call)


def forgetter_of(module: object) -> Callable[[], None]:
    """Return a function that deletes the recorded call of a module. It does nothing if a newer call has replaced the recorded one."""
    owner, record = weakref.ref(module), weakref.ref(module.__dict__[_ATTRIBUTE])

    def forget() -> None:
        module = owner()
        if module is not None and _ATTRIBUTE in module.__dict__ and module.__dict__[_ATTRIBUTE] is record():
            del module.__dict__[_ATTRIBUTE]

    return forget


class _ModuleRecord:
    """The recorded call of a module, stored in the module's `__dict__`.

    If the record were in the global dict `_calls`, it would keep the recorded arguments alive. If one of them referred to
    the module, the module would never be freed. Because the record is an attribute instead, the garbage collector can free
    the module and its record together. Copies of the module have no record. A pickle of the module must load without trainmaster, so
    it contains `False` instead of the record.
    """

    def __init__(self, call: RecordedCall, owner: weakref.ref[Any]) -> None:
        self.call, self.owner = call, owner

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, ()


def _is_module(value: object) -> bool:
    torch = sys.modules.get("torch.nn")  # this package does not import torch
    return torch is not None and isinstance(value, torch.Module)


def _known_call(value: object) -> RecordedCall | None:
    if hasattr(type(value), _ATTRIBUTE):
        own: RecordedCall | None = getattr(value, _ATTRIBUTE, None)
        return own
    if _is_module(value):
        record = value.__dict__.get(_ATTRIBUTE)
        return record.call if isinstance(record, _ModuleRecord) and record.owner() is value else None
    reference, call = _calls.get(id(value), (None, None))
    return call if reference is not None and reference() is value else None


def recorded_call(value: object) -> RecordedCall | None:
    """Return the call that created an object, or None if it was not recorded."""
    call, kind = _known_call(value), type(value)
    if call is not None or not getattr(kind, RECORDS_CALLS, False):
        return call
    if kind.__init__ is object.__init__:
        return RecordedCall(kind, (), {})
    if dataclasses.is_dataclass(kind):  # its constructor was added after `record_calls_of`, but its fields contain the arguments
        return RecordedCall(kind, (), {each.name: getattr(value, each.name) for each in dataclasses.fields(kind) if each.init})
    return None


def record_calls_of(kind: type) -> None:
    """Make a class and its subclasses record the constructor calls of their objects."""
    setattr(kind, RECORDS_CALLS, True)
    original: Callable[..., None] = kind.__init__  # type: ignore[misc]
    if original is object.__init__ or getattr(original, RECORDS_CALLS, False):
        return  # there are no arguments, or a base class records them

    @functools.wraps(original)
    def __init__(self: object, *args: Any, **kwargs: Any) -> None:
        if _known_call(self) is None:  # otherwise a subclass has recorded its call, and this one comes from super().__init__(...)
            record_call(self, type(self), args, kwargs)
        original(self, *args, **kwargs)

    setattr(__init__, RECORDS_CALLS, True)
    kind.__init__ = __init__  # type: ignore[misc]


_MAX_LENGTH = 1000
"""The maximum length of containers that are copied. Longer ones are data rather than settings."""
_MAX_DEPTH = 50


def _recordable(value: Any, created: object, own: RecordedCall | UnrecordedArg, outer: tuple[int, ...] = ()) -> Any:
    if value is created:
        return own
    if isinstance(value, Iterator) and _known_call(value) is None:
        name = type(value).__name__
        return UnrecordedArg(name, f"a {name} can be iterated over only once")
    if type(value) not in (dict, OrderedDict, list, tuple) or len(value) > _MAX_LENGTH:
        return value
    if id(value) in outer or len(outer) == _MAX_DEPTH:
        return UnrecordedArg(type(value).__name__, "it contains itself, or is nested too deeply")
    outer = (*outer, id(value))
    if isinstance(value, dict):
        return type(value)((key, _recordable(each, created, own, outer)) for key, each in value.items())
    return type(value)(_recordable(each, created, own, outer) for each in value)
