"""Hooks that report how long they take."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from time import perf_counter
from typing import Any

from trainmaster.stages.hooks import Guard, Hook, bind

Timer = Callable[[str, str, float], None]
"""A function that takes the name of an extension, the title of one of its hooks, and the seconds that a call took."""


def timed(hook: Hook, timer: Timer) -> Hook:
    """Return a copy of a hook that measures each call and reports the time to `timer`.

    A guard undoes the changes that observers make. Its time is reported under the extension name "guard".
    """
    name, title, method, guard = hook.extension_name, hook.title, hook.method, hook.guard

    @wraps(method)  # so that errors show the file and line of the method itself
    def call(*args: Any, **kwargs: Any) -> Any:
        started = perf_counter()
        result = None
        try:
            result = method(*args, **kwargs)
        finally:
            if not isinstance(result, Generator):
                timer(name, title, perf_counter() - started)
        return _TimedGenerator(result, lambda seconds: timer(name, title, seconds)) if isinstance(result, Generator) else result

    timed_guard = None if guard is None else lambda: _timed_guard(guard, lambda seconds: timer("guard", "observers", seconds))
    return replace(hook, method=call, call=bind(call, hook.needs, hook.takes, hook.has_keywords), guard=timed_guard)


class _TimedGenerator(Generator[Any, Any, Any]):
    """An around hook that reports the time it takes before and after its `yield`, excluding the stage's body."""

    def __init__(self, generator: Generator[Any, Any, Any], report: Callable[[float], None]) -> None:
        self._generator, self._report = generator, report
        self._seconds = 0.0

    def send(self, value: Any) -> Any:
        return self._timed(lambda: self._generator.send(value))

    def throw(self, *error: Any) -> Any:
        return self._timed(lambda: self._generator.throw(*error))

    def _timed(self, resume: Callable[[], Any]) -> Any:
        started = perf_counter()
        try:
            result = resume()
        except BaseException:  # the generator has ended, with or without an error
            self._report(self._seconds + perf_counter() - started)
            raise
        self._seconds += perf_counter() - started
        return result


@contextmanager
def _timed_guard(guard: Guard, report: Callable[[float], None]) -> Iterator[None]:
    """Report how long a guard takes to save and restore the state, excluding the hooks in between."""
    started, seconds = perf_counter(), 0.0
    try:
        with guard():
            seconds = perf_counter() - started
            try:
                yield
            finally:
                started = perf_counter()
    finally:
        report(seconds + perf_counter() - started)
