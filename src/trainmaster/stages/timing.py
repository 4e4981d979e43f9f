"""Hooks that tell how long they take."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import wraps
from time import perf_counter
from types import TracebackType
from typing import Any

from trainmaster.stages.hooks import Guard, Hook, bind

Timer = Callable[[str, str, float], None]
"""Takes the name of an extension, the title of one of its hooks, and seconds."""
GUARD = "guard"
"""Stands for the extension where the time goes into keeping a training undisturbed by observers."""


def timed(hook: Hook, timer: Timer) -> Hook:
    """A hook that does the same, and tells the timer."""
    name, title, method = hook.extension_name, hook.title, hook.method

    @wraps(method)  # so that errors tell the place of the method itself
    def call(*args: Any, **kwargs: Any) -> Any:
        started = perf_counter()
        found = None
        try:
            found = method(*args, **kwargs)
        finally:
            if not isinstance(found, Generator):
                timer(name, title, perf_counter() - started)
        return _TimedGenerator(found, lambda seconds: timer(name, title, seconds)) if isinstance(found, Generator) else found

    guard = hook.guard
    timed_guard = None if guard is None else lambda: _TimedGuard(guard, lambda seconds: timer(GUARD, "observers", seconds))
    return replace(hook, method=call, call=bind(call, hook.needs, hook.takes, hook.has_keywords), guard=timed_guard)


class _TimedGenerator(Generator[Any, Any, Any]):
    """An around hook, whose two halves count."""

    def __init__(self, inner: Generator[Any, Any, Any], took: Callable[[float], None]) -> None:
        self._inner, self._took = inner, took
        self._seconds = 0.0

    def send(self, value: Any) -> Any:
        return self._timed(lambda: self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        return self._timed(lambda: self._inner.throw(*error))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self

    def _timed(self, act: Callable[[], Any]) -> Any:
        started = perf_counter()
        try:
            found = act()
        except BaseException:  # its end, or an error: both halves are through
            self._took(self._seconds + perf_counter() - started)
            raise
        self._seconds += perf_counter() - started
        return found


class _TimedGuard:
    """What it costs to save and to put back, without what happens between."""

    def __init__(self, guard: Guard, took: Callable[[float], None]) -> None:
        self._inner: AbstractContextManager[Any] = guard()
        self._took = took
        self._seconds = 0.0

    def __enter__(self) -> Any:
        started = perf_counter()
        found = self._inner.__enter__()
        self._seconds = perf_counter() - started
        return found

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> bool | None:
        started = perf_counter()
        try:
            return self._inner.__exit__(exc_type, exc, tb)
        finally:
            self._took(self._seconds + perf_counter() - started)
