"""Hooks and lazy fixtures as found on an extension: signatures read once, calls bound once."""

from __future__ import annotations

import inspect
import keyword
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from trainmaster.errors import HookSignatureError
from trainmaster.stages.extension import LazySpec, is_always, is_marked_not_a_hook, lazy_spec
from trainmaster.stages.scope import Values
from trainmaster.stages.tree import Phase

PHASES: tuple[Phase, ...] = ("pre", "around", "post")

Call = Callable[[Values], Any]
Guard = Callable[[], AbstractContextManager[Any]]


@dataclass(slots=True, eq=False)
class Hook:
    """One method of one extension, ready to be called with the open fixtures."""

    extension_name: str
    title: str
    method: Callable[..., Any]
    phase: Phase
    stage: str
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    """Parameters with a default: filled where the fixture exists."""
    has_keywords: bool
    is_always: bool
    is_observer: bool
    call: Call
    guard: Guard | None = None
    """What an observer runs under."""

    def guarded(self) -> AbstractContextManager[Any]:
        return self.guard() if self.guard is not None else nullcontext()

    @property
    def where(self) -> str:
        return source_of(self.method)


@dataclass(slots=True, eq=False)
class LazyFixture:
    """A fixture that an extension computes when somebody asks."""

    extension_name: str
    title: str
    method: Callable[..., Any]
    name: str
    spec: LazySpec
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    is_observer: bool
    call: Call

    @property
    def where(self) -> str:
        return source_of(self.method)


@dataclass(slots=True, eq=False)
class ObserverGroup:
    """Neighbouring observers of one stage and phase: they share one guard, because the guard is what costs."""

    hooks: tuple[Hook, ...]
    guard: Guard
    current: Hook = field(init=False)
    """The hook that runs now; the one to blame when the group raises."""

    def call(self, values: Values) -> None:
        self.current = self.hooks[0]
        with self.guard():
            for hook in self.hooks:
                self.current = hook
                hook.call(values)


def source_of(method: Callable[..., Any]) -> str:
    """`lab/plateau.py:41`, as short as the working directory allows."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{getattr(method, '__module__', '?')}.{getattr(method, '__qualname__', repr(method))}"
    try:
        inside = os.path.relpath(code.co_filename) if os.path.isabs(code.co_filename) else code.co_filename
    except OSError:  # the folder we are in was removed
        inside = ".."
    return f"{code.co_filename if inside.startswith('..') else inside}:{code.co_firstlineno}"


def hook_names(extension: object) -> Iterator[tuple[str, Phase, str]]:
    """Every attribute that is named like a hook: its name, the phase and the stage. None and plain values are no hooks."""
    for name in dir(extension):
        phase, _, stage = name.partition("_")
        if phase in PHASES and stage:
            static = inspect.getattr_static(extension, name)
            if isinstance(static, property):
                continue
            method = getattr(extension, name)
            if callable(method) and not is_marked_not_a_hook(method):
                yield name, phase, stage


def find_hooks(extension_name: str, extension: object) -> list[Hook]:
    """The hooks of an extension, with their parameters read and refused where they cannot be fixtures."""
    found = []
    for name, phase, stage in hook_names(extension):
        method = getattr(extension, name)
        title = f"{type(extension).__name__}.{name}"
        needs, takes, keywords = parameters_of(method, title)
        _check_runs(
            method, title, may_yield=phase == "around", hint=f"write `around_{stage}` for a hook that yields, a plain function otherwise"
        )
        found.append(
            Hook(
                extension_name=extension_name,
                title=title,
                method=method,
                phase=phase,
                stage=stage,
                needs=needs,
                takes=takes,
                has_keywords=keywords,
                is_always=is_always(method),
                is_observer=_needs_guard(extension),
                call=bind(method, needs, takes, keywords),
            )
        )
    return found


def find_lazy_fixtures(extension_name: str, extension: object) -> list[LazyFixture]:
    """The methods marked `@fixture(stage)`, and what the object itself names so."""
    marked = [(name, getattr(extension, name)) for name in dir(type(extension)) if lazy_spec(inspect.getattr_static(extension, name))]
    found = []
    for name, method in (*marked, *_named_fixtures(extension)):
        spec = lazy_spec(method)
        assert spec is not None
        title = f"{type(extension).__name__}.{name}"
        needs, takes, keywords = parameters_of(method, title)
        _check_runs(method, title, may_yield=False, hint="return the value of the fixture")
        call = bind(method, needs, takes, keywords)
        found.append(LazyFixture(extension_name, title, method, name, spec, needs, takes, _needs_guard(extension), call))
    return found


def _named_fixtures(extension: object) -> list[tuple[str, Callable[..., Any]]]:
    """The lazy fixtures whose names only the object knows; refused where they cannot be fixtures."""
    if not callable(getattr(type(extension), "named_fixtures", None)):
        return []
    named: Mapping[str, Callable[..., Any]] = extension.named_fixtures()  # type: ignore[attr-defined]  # as just seen
    title, where = f"`{type(extension).__name__}.named_fixtures`", source_of(type(extension).named_fixtures)  # type: ignore[attr-defined]
    if not isinstance(named, Mapping):
        raise HookSignatureError(f"{title} returns {named!r:.60}", where=where, hint="return the functions by name, as a dict")
    for name, function in named.items():
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise HookSignatureError(
                f"{title} names a fixture {name!r}, which no parameter can be called",
                where=where,
                hint="a name of letters, digits and underscores",
            )
        if lazy_spec(function) is None:
            raise HookSignatureError(
                f"{title} gives `{name}` a function that is not marked",
                where=where,
                hint="mark it with @fixture(stage), which says where the fixture is valid",
            )
    return list(named.items())


def _needs_guard(extension: object) -> bool:
    """Whether what the hooks do is undone after them. Any object may be an extension, so nothing of it is taken for granted."""
    return getattr(extension, "is_observer", False) is True and getattr(extension, "is_guarded", True) is True


def _check_runs(method: Callable[..., Any], title: str, *, may_yield: bool, hint: str) -> None:
    """Refuse functions whose code does not run when they are called."""
    is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    if is_async or (inspect.isgeneratorfunction(method) and not may_yield):
        raise HookSignatureError(
            f"`{title}` is a {'coroutine' if is_async else 'generator'}: calling it would run none of its code",
            where=source_of(method),
            hint=hint,
        )


def parameters_of(method: Callable[..., Any], title: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """The names a method needs, the names it takes where they exist, and whether some must be passed by keyword."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError) as error:
        raise HookSignatureError(
            f"`{title}` has no readable signature", why=str(error), hint="wrap it in a function that names its fixtures"
        ) from error
    needs, takes, keywords = [], [], False
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise HookSignatureError(
                f"`{title}` takes `{stars}{name}`, but parameters are filled by name from the fixtures",
                where=source_of(method),
                hint="name each fixture, or take `fixtures` and read what you need",
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


def bind(method: Callable[..., Any], needs: tuple[str, ...], takes: tuple[str, ...] = (), keywords: bool = False) -> Call:
    """A function of the open fixtures that calls `method` with those it names."""
    if not takes and not keywords:
        return lambda values: method(*[values[name] for name in needs])

    def call(values: Values) -> Any:
        filled = {name: values[name] for name in needs}
        filled.update((name, values[name]) for name in takes if name in values or values.provides(name))
        return method(**filled)

    return call


Step = tuple[Hook | ObserverGroup, Callable[..., Any], str | None, Callable[[Values], tuple[Any, ...]] | None]
"""A hook made ready for the hot path: call the function with nothing, with the one fixture named, or with what the last item picks."""


def step_of(hook: Hook | ObserverGroup) -> Step:
    """One Python call per hook is all that is left: between the calls of torch the caches are cold, and every call counts."""
    if isinstance(hook, ObserverGroup) or hook.takes or hook.has_keywords:
        return hook, hook.call, None, lambda values: (values,)
    match hook.needs:
        case ():
            return hook, hook.method, None, None
        case (name,):
            return hook, hook.method, name, None
    return hook, hook.method, None, itemgetter(*hook.needs)
