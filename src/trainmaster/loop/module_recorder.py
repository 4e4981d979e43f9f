"""Records the constructor arguments of all modules that are built while a manager builds a loop."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FunctionType, TracebackType
from typing import Any

from torch import nn

from trainmaster.stages.recorded_call import RECORDS_CALLS, forgetter_of, record_call, recorded_call

_lock = threading.Lock()
_open: ContextVar[ModuleRecorder | None] = ContextVar("open recorder", default=None)
"""The open recorder of each thread."""
_wrapped: dict[type, tuple[FunctionType, FunctionType]] = {}
"""The classes whose constructors are replaced. Each value holds the original constructor and its replacement."""
_num_open = 0


class ModuleRecorder:
    """A context manager that records the constructor arguments of every module that this thread builds. `forget` frees the arguments.

    While a recorder is open, every subclass of `nn.Module` has a constructor that records its arguments. When the last
    open recorder in any thread closes, the original constructors are restored.
    """

    def __init__(self) -> None:
        self.made: list[Callable[[], None]] = []
        """For each module that was built, a function that frees its recorded arguments."""

    def __enter__(self) -> ModuleRecorder:
        try:
            _begin()
        except BaseException:  # for example, Ctrl-C was pressed in the meantime
            _end()
            raise
        self._token = _open.set(self)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        _open.reset(self._token)
        _end()

    def forget(self) -> None:
        """Free the recorded arguments, which may be large. Call this if they will not be stored."""
        for forget in self.made:
            forget()


def _begin() -> None:
    global _num_open
    with _lock:
        _num_open += 1
        for kind in _subclasses(nn.Module):
            _wrap(kind)
        if "__init_subclass__" not in vars(nn.Module):
            nn.Module.__init_subclass__ = classmethod(_wrap_new)  # type: ignore[assignment]


def _end() -> None:
    global _num_open
    with _lock:
        _num_open -= 1
        if _num_open:
            return
        if getattr(vars(nn.Module).get("__init_subclass__"), "__func__", None) is _wrap_new:
            del nn.Module.__init_subclass__
        for kind, (own, wrapper) in _wrapped.items():
            if vars(kind).get("__init__") is wrapper:  # otherwise, other code has wrapped our wrapper, which no longer records anything
                type.__setattr__(kind, "__init__", own)
        _wrapped.clear()


def _subclasses(kind: type) -> Iterator[type]:
    found: list[type] = type.__subclasses__(kind)
    for each in found:
        yield each
        yield from _subclasses(each)


def _wrap_new(cls: Any, /, **kwargs: Any) -> None:
    super(nn.Module, cls).__init_subclass__(**kwargs)
    with _lock:
        if _num_open:
            _wrap(cls)


def _wrap(kind: type) -> None:
    own = vars(kind).get("__init__")
    if kind in _wrapped or not isinstance(own, FunctionType) or hasattr(own, RECORDS_CALLS):
        return  # the class inherits its constructor, or the constructor already records its arguments

    @functools.wraps(own)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder = _open.get()
        if recorder is not None and recorded_call(self) is None:  # the constructor of a base class runs second, with different arguments
            record_call(self, type(self), args, kwargs)
            recorder.made.append(forgetter_of(self))
        own(self, *args, **kwargs)

    type.__setattr__(kind, "__init__", __init__)
    _wrapped[kind] = (own, __init__)  # type: ignore[assignment]
