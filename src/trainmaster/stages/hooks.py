"""Finds the hooks and lazy fixtures of an extension and reads their signatures."""

from __future__ import annotations

import dis
import inspect
import keyword
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import FunctionType, MethodType
from typing import Any

from trainmaster.errors import AroundHookError, HookSignatureError
from trainmaster.stages.extension import LazySpec, is_always, is_marked_not_a_hook, lazy_spec
from trainmaster.stages.scope import Values
from trainmaster.stages.tree import Phase

PHASES: tuple[Phase, ...] = ("pre", "around", "post")

YIELD_HINT = "yield exactly once, at the point where the stage's body should run; do not use @contextmanager"

Call = Callable[[Values], Any]
Guard = Callable[[], AbstractContextManager[Any]]


@dataclass(slots=True, eq=False)
class BoundMethod:
    """A method of an extension that can be called with fixtures."""

    extension_name: str
    title: str
    method: Callable[..., Any]
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    """The parameters with a default value. The default is used if the fixture does not exist."""
    has_keywords: bool
    is_observer: bool
    call: Call

    @property
    def where(self) -> str:
        return source_of(self.method)


@dataclass(slots=True, eq=False)
class Hook(BoundMethod):
    """A method that the engine calls before, around or after a stage."""

    phase: Phase
    stage: str
    is_always: bool
    guard: Guard | None = None
    """For observers, a function that creates a context manager to undo changes to random number generators and modes."""

    def guarded(self) -> AbstractContextManager[Any]:
        return self.guard() if self.guard is not None else nullcontext()


@dataclass(slots=True, eq=False)
class LazyFixture(BoundMethod):
    """A fixture that an extension computes when a hook first asks for it."""

    name: str
    spec: LazySpec


def source_of(method: Callable[..., Any]) -> str:
    """Return the file and line of a method, such as `lab/plateau.py:41`. The path is relative if it is below the working directory."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{getattr(method, '__module__', '?')}.{getattr(method, '__qualname__', repr(method))}"
    try:
        path = os.path.relpath(code.co_filename) if os.path.isabs(code.co_filename) else code.co_filename
    except OSError:  # the working directory was deleted
        path = ".."
    return f"{code.co_filename if path.startswith('..') else path}:{code.co_firstlineno}"


def hook_names(extension: object) -> Iterator[tuple[str, Phase, str]]:
    """Yield the name, the phase and the stage of every method that is named like a hook."""
    for name in dir(extension):
        phase, _, stage = name.partition("_")
        if phase in PHASES and stage:
            static = _static_value(extension, name)
            if isinstance(static, property):
                continue
            method = getattr(extension, name)
            if callable(method) and not is_marked_not_a_hook(method):
                yield name, phase, stage


def _static_value(extension: object, name: str) -> Any:
    """Return the value of an attribute without calling properties, as `inspect.getattr_static` does, but much faster."""
    found = next((vars(kind)[name] for kind in type(extension).__mro__ if name in vars(kind)), None)
    own = getattr(extension, "__dict__", {})
    return own[name] if name in own and not hasattr(found, "__set__") else found


def find_hooks(extension_name: str, extension: object) -> list[Hook]:
    """Return the hooks of an extension. Raise an error if a hook cannot be called with fixtures."""
    hooks = []
    for name, phase, stage in hook_names(extension):
        method = getattr(extension, name)
        bound = _bound_fields(extension_name, extension, name, method)
        hint = f"use a plain function, or name the hook `around_{stage}` if it has to yield"
        _check_runs(method, bound["title"], may_yield=phase == "around", hint=hint)
        if phase == "around" and not _may_return_generator(method):
            raise AroundHookError(f"around hook `{bound['title']}` never yields", where=source_of(method), hint=YIELD_HINT)
        hooks.append(Hook(**bound, phase=phase, stage=stage, is_always=is_always(method)))
    return hooks


def find_lazy_fixtures(extension_name: str, extension: object) -> list[LazyFixture]:
    """Return the lazy fixtures of an extension: its methods marked `@fixture(stage)`, and its `named_fixtures()`."""
    names = {name for kind in type(extension).__mro__ for name, value in vars(kind).items() if lazy_spec(value)}
    marked = [(name, getattr(extension, name)) for name in sorted(names) if lazy_spec(_static_value(extension, name))]
    lazies = []
    for name, method in (*marked, *_named_fixtures(extension)):
        spec = lazy_spec(method)
        assert spec is not None
        bound = _bound_fields(extension_name, extension, name, method)
        _check_runs(method, bound["title"], may_yield=False, hint="return the value of the fixture")
        lazies.append(LazyFixture(**bound, name=name, spec=spec))
    return lazies


def _bound_fields(extension_name: str, extension: object, name: str, method: Callable[..., Any]) -> dict[str, Any]:
    title = f"{type(extension).__name__}.{name}"
    needs, takes, has_keywords = parameters_of(method, title)
    # The extension can be any object, so it may lack these attributes.
    is_observer = getattr(extension, "is_observer", False) is True and getattr(extension, "is_guarded", True) is True
    return {
        "extension_name": extension_name,
        "title": title,
        "method": method,
        "needs": needs,
        "takes": takes,
        "has_keywords": has_keywords,
        "is_observer": is_observer,
        "call": bind(method, needs, takes, has_keywords),
    }


def _named_fixtures(extension: object) -> list[tuple[str, Callable[..., Any]]]:
    method = getattr(type(extension), "named_fixtures", None)
    if not callable(method):
        return []
    named: Mapping[str, Callable[..., Any]] = method(extension)
    title, where = f"`{type(extension).__name__}.named_fixtures`", source_of(method)
    if not isinstance(named, Mapping):
        raise HookSignatureError(f"{title} returns {named!r:.60}", where=where, hint="return a dict of functions by name")
    for name, function in named.items():
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise HookSignatureError(
                f"{title} names a fixture {name!r}, which cannot be the name of a parameter",
                where=where,
                hint="use letters, digits and underscores",
            )
        if lazy_spec(function) is None:
            raise HookSignatureError(
                f"{title} returns a function for `{name}` that is not marked with @fixture",
                where=where,
                hint="mark it with @fixture(stage), which declares where the fixture is valid",
            )
    return list(named.items())


def _check_runs(method: Callable[..., Any], title: str, *, may_yield: bool, hint: str) -> None:
    """Raise an error if calling `method` would not run its code.

    This is the case for async functions and generator functions. With `may_yield`, generator functions are allowed.
    """
    is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    if is_async or (inspect.isgeneratorfunction(method) and not may_yield):
        raise HookSignatureError(
            f"`{title}` is a {'coroutine' if is_async else 'generator'} function: calling it would not run its code",
            where=source_of(method),
            hint=hint,
        )


_DECORATED = getattr(contextmanager(hook_names), "__code__", None)
"""The code of all functions that are decorated with @contextmanager. They return a context manager, not a generator."""


def _may_return_generator(method: Callable[..., Any]) -> bool:
    """Return whether an around hook may return a generator. A plain function can, for example by calling another object's hook."""
    code = getattr(method, "__code__", None)
    if code is None or inspect.isgeneratorfunction(method):
        return True
    if code is _DECORATED:
        return False
    steps = list(dis.get_instructions(code))
    return any(step.opname == "RETURN_VALUE" and before.opname != "LOAD_CONST" for before, step in pairwise(steps))


def parameters_of(method: Callable[..., Any], title: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the required parameters of a method, the optional ones, and whether any required parameter is keyword-only."""
    try:
        parameters = _parameters(method)
    except (TypeError, ValueError) as error:
        raise HookSignatureError(
            f"`{title}` has no readable signature", why=str(error), hint="wrap it in a function whose parameters name its fixtures"
        ) from error
    needs, takes, keywords = [], [], False
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise HookSignatureError(
                f"`{title}` takes `{stars}{name}`, but the parameters of a hook must be names of fixtures",
                where=source_of(method),
                hint="name each fixture, or take `fixtures` and read from it",
            )
        if parameter.default is parameter.empty:
            needs.append(name)
            keywords |= parameter.kind is parameter.KEYWORD_ONLY
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise HookSignatureError(
                f"`{title}` has the positional-only parameter `{name}` with a default, which cannot be filled by name",
                where=source_of(method),
                hint="remove the `/` from its signature",
            )
        else:
            takes.append(name)
    return tuple(needs), tuple(takes), keywords


_function_signature = lru_cache(maxsize=512)(inspect.signature)
"""Signatures are cached, because each run in a sweep attaches new objects of the same classes."""


def _parameters(method: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    if isinstance(method, MethodType) and isinstance(method.__func__, FunctionType):
        own, *others = _function_signature(method.__func__).parameters.items()
        if own[1].kind is not inspect.Parameter.VAR_POSITIONAL:
            return dict(others)
    return inspect.signature(method).parameters


def bind(method: Callable[..., Any], needs: tuple[str, ...], takes: tuple[str, ...] = (), keywords: bool = False) -> Call:
    """Return a function that takes all fixtures, and calls `method` with those that match its parameters by name."""
    if not takes and not keywords:
        return lambda values: method(*[values[name] for name in needs])

    def call(values: Values) -> Any:
        filled = {name: values[name] for name in needs}
        filled.update((name, values[name]) for name in takes if name in values or values.provides(name))
        return method(**filled)

    return call
