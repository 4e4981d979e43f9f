"""A stage while it is open: runs the hooks, owns its fixtures, and never loses the first error.

The order, for extensions a and b (E2): a.pre, b.pre, a.around opens, b.around opens, the body,
b.around closes, a.around closes, a.post, b.post.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trainmaster.errors import AroundHookError, EscapedStopIterationError, FixtureNotFoundError
from trainmaster.stages.hooks import Hook, ObserverGroup, Step, step_of
from trainmaster.stages.tree import BODY, ERROR_FIXTURES

if TYPE_CHECKING:
    from trainmaster.stages.extensible import Extensible
    from trainmaster.stages.scope import Scope

NO_ERROR: tuple[BaseException | None] = (None,)
NOTHING: frozenset[str] = frozenset()


class Running(threading.local):
    """The extensible objects whose routines run in this thread, outermost first."""

    def __init__(self) -> None:
        self.hosts: list[Extensible] = []


running = Running()


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens at one stage, resolved once per change of the extensions."""

    pre: tuple[Hook | ObserverGroup, ...]
    around: tuple[Hook, ...]
    post: tuple[Hook | ObserverGroup, ...]
    post_hooks: tuple[Hook, ...]
    """The post hooks one by one: after an error each is judged by itself."""
    has_followers: bool
    """Some lazy fixture of an outer stage is valid only after this one."""
    is_awaited: bool
    """Some lazy fixture of this stage is valid only when its body is through."""
    landmarks: tuple[str, ...]
    declared: tuple[str, ...]
    """The fixtures that the tree gives to this stage alone: they end with it, whoever set them."""


class OpenStage:
    """The context manager that `staged(...)` returns: one object per stage name, opened again and again.

    It takes a new plan when the extensions have changed (`is_stale`). A stage that opens within itself puts the outer opening aside.
    """

    __slots__ = (
        "_declared",
        "_generators",
        "_has_around",
        "_host",
        "_is_followed",
        "_is_open",
        "_is_quiet",
        "_is_special",
        "_outer",
        "_plan",
        "_post",
        "_pre",
        "_scope",
        "_stack",
        "_values",
        "created",
        "defaults",
        "initial",
        "is_stale",
        "name",
        "passed",
    )

    def __init__(self, host: Extensible, scope: Scope, name: str) -> None:
        self.name = name
        self.is_stale = True
        """The extensions have changed since the plan was made."""
        self.initial: Mapping[str, Any] | None = None
        """What was given to `staged` and is not published yet: then this object is taken."""
        self.defaults: Mapping[str, Any] | None = None
        self.created: list[str] = []
        """The names of the fixtures that are removed with this stage."""
        self.passed: frozenset[str] = NOTHING
        """The inner stages that are through, as far as lazy fixtures wait for them."""
        self._host = host
        self._scope = scope
        self._stack = scope.stack
        self._values = scope.values
        self._plan: Plan
        self._pre: tuple[Step, ...] = ()
        self._post: tuple[Step, ...] = ()
        self._declared: tuple[str, ...] = ()
        self._has_around = self._is_followed = self._is_open = False
        self._is_quiet = False
        """Nobody hooks it, and it ends without a trace."""
        self._is_special = False
        """It has passed stages to forget, or an outer opening to come back to."""
        self._generators: list[tuple[Hook, Iterator[Any]]] = []
        self._outer: list[tuple[Any, ...]] = []

    def grow_stale(self) -> None:
        """The extensions have changed: take a new plan when next opened."""
        self.is_stale = True
        self._is_quiet = False

    def reset(self) -> None:
        """Closed, whatever was going on."""
        self._outer.clear()
        self._generators.clear()
        self.leave()

    def adopt(self, name: str) -> None:
        """Become the owner of the fixture `name`."""
        self.created.append(name)

    def owned(self) -> tuple[str, ...]:
        """The names that end with this stage, those of an outer opening of it included."""
        outer = (name for opening in self._outer for kept in _NAMES for name in opening[self._AN_OPENING.index(kept)])
        return (*self._declared, *self.created, *outer)

    def pass_by(self, inner: str) -> None:
        """Note that an inner stage is through."""
        self.passed |= {inner}
        self._is_special = True

    def open_for_good(self) -> None:
        """Open a stage that is never closed, below all others."""
        self._make_ready()
        self._scope.lasting = self
        self._publish_defaults(self.initial or {})
        self.initial = None
        for hook in self._plan.pre:
            hook.call(self._values)

    def __enter__(self) -> OpenStage:
        stack = self._stack
        if self._is_quiet and stack and self.initial is None and not self.created and not self._is_special:
            stack.append(self)  # nobody hooks it: this, and a look at the way out, is all
            return self
        if self.is_stale or self._is_open or self.created or self._is_special:
            self._make_ready()
        if not stack:
            running.hosts.append(self._host)
        stack.append(self)
        self._is_open = not self._is_quiet  # a quiet stage leaves by the short way, which would not take this back
        hook: Hook | ObserverGroup | None = None
        try:
            values = self._values
            initial = self.initial
            if initial is not None:
                self.initial = None
                if not values.keys().isdisjoint(initial):
                    self._declared = ()  # what is there belongs to another stage
                    self.grow_stale()
                    raise self._scope.exists_error([name for name in initial if name in values])
                values.update(initial)
                self.created.extend(initial)
                if self.defaults is not None:
                    self._publish_defaults(self.defaults)
            for hook, method, name, pick in self._pre:  # noqa: B007 - `hook` is who to blame
                if pick is not None:
                    method(*pick(values))
                elif name is not None:
                    method(values[name])
                else:
                    method()
            if self._has_around:
                hook = None
                self._open_around()
        except BaseException as error:  # whatever it is, the stage is closed, then it goes on
            # A `with` cannot skip its body, so an error of a pre hook cannot be swallowed.
            explained = self._explain(error, hook)
            raise self._fail(explained, self._plan.post_hooks, can_swallow=False) or explained  # noqa: B904 - as said in _explain
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> bool:
        stack = self._stack
        if exc is None and self._is_quiet and not self.created and not self._is_special and stack[-1] is self and len(stack) > 1:
            del stack[-1]
            return False
        if exc is not None:
            first = self._fail(self._explain(exc, None), self._plan.post_hooks)
            if first is None or first is exc:
                return first is None
            raise first
        hook: Hook | ObserverGroup | None = None
        values = self._values
        try:
            if self._has_around:
                self._close_around()
            if self._is_followed:
                self._mark_passed()
            if self._post:
                scope = self._scope
                outer = scope.error_in_flight
                scope.error_in_flight = NO_ERROR
                for hook, method, name, pick in self._post:  # noqa: B007 - as above
                    if pick is not None:
                        method(*pick(values))
                    elif name is not None:
                        method(values[name])
                    else:
                        method()
                scope.error_in_flight = outer
        except BaseException as error:  # as in __enter__
            rest = self._plan.post_hooks
            if hook is not None:
                scope.error_in_flight = outer
                rest = rest[rest.index(_single(hook)) + 1 :]
            first = self._fail(self._explain(error, hook), rest)
            if first is not None:
                raise first  # noqa: B904 - as said in _explain
            return False
        # What follows is _close() once more, in line: the call would be a good part of what a stage costs.
        if stack[-1] is not self or self._is_special:
            self._close()
            return False
        del stack[-1]
        if self._declared:
            for name in self._declared:
                values.pop(name, None)
        if self.created:
            for name in self.created:
                values.pop(name, None)
            self.created.clear()
        self._is_open = False
        if not stack:
            self._end_routine()
        return False

    # the ways through that are not hot

    _AN_OPENING = ("_plan", "_pre", "_post", "_has_around", "_is_followed", "_declared", "created", "passed", "_generators")

    def _make_ready(self) -> None:
        """Take a new plan where one is due; put the outer opening aside where this stage opens within itself."""
        taken = [name for name in (*(self.initial or ()), *(self.defaults or ())) if name in ERROR_FIXTURES]
        if taken:
            self.initial = self.defaults = None
            raise self._scope.exists_error(taken)
        plan = self._new_plan() if self.is_stale else None
        if self._is_open or self.created or self.passed or self._outer:
            self._outer.append(tuple(getattr(self, name) for name in self._AN_OPENING))
            self.created, self.passed, self._generators = [], NOTHING, []
            self._is_special = True
        if plan is not None:
            self._plan = plan
            self._pre = tuple(step_of(each) for each in plan.pre)
            self._post = tuple(step_of(each) for each in plan.post)
            self._has_around = bool(plan.around)
            self._is_followed = plan.has_followers or plan.is_awaited
            self._declared = plan.declared
            self._is_quiet = not (plan.pre or plan.around or plan.post_hooks or self._is_followed or plan.declared)
            self.is_stale = False
        if self._outer:
            self._declared = tuple(name for name in self._plan.declared if name not in self._values)

    def _new_plan(self) -> Plan:
        try:
            return self._host.plan_of(self.name)
        except BaseException:
            self.initial = self.defaults = None  # the stage is not opened
            if not self._is_open:
                self.leave()
            raise

    def _publish_defaults(self, defaults: Mapping[str, Any]) -> None:
        self.defaults = None
        for name, value in defaults.items():
            if name not in self._values:
                self._values[name] = value
                self.created.append(name)

    def _open_around(self) -> None:
        for hook in self._plan.around:
            try:
                generator = hook.call(self._scope.values)
                if not isinstance(generator, Iterator):
                    raise _yield_error(hook, "never yields", "yield once, where the stage's body shall run")
                with hook.guarded():
                    if next(generator, _ENDED) is _ENDED:
                        raise _yield_error(hook, "never yields", "yield once, where the stage's body shall run")
            except BaseException as error:
                raise self._explain(error, hook)  # noqa: B904 - the same error, or one that carries it as its cause
            self._generators.append((hook, generator))

    def _close_around(self) -> None:
        while self._generators:
            hook, generator = self._generators.pop()
            try:
                with hook.guarded():
                    if next(generator, _ENDED) is not _ENDED:
                        _close_generator(generator)
                        raise _yield_error(hook, "yields twice", "yield once only, where the stage's body shall run")
            except BaseException as error:
                raise self._explain(error, hook)  # noqa: B904 - the same error, or one that carries it as its cause

    def _mark_passed(self) -> None:
        if self._plan.is_awaited:
            self.pass_by(BODY)
        if self._plan.has_followers:
            for stage in self._stack[:-1]:
                stage.pass_by(self.name)

    def _fail(self, error: BaseException, hooks: tuple[Hook, ...], *, can_swallow: bool = True) -> BaseException | None:
        """Close the stage with an error in flight: the first error that nobody swallowed, or None.

        Errors raised on the way are attached to the first. A post hook that returns a true value swallows (E7).
        """
        scope = self._scope
        errors = [error]
        while self._generators:
            hook, generator = self._generators.pop()
            try:
                with hook.guarded():
                    _throw(hook, generator, error)
            except BaseException as later:  # attached, never in place of the first
                if later is not error:
                    _attach(errors, self._explain(later, hook), hook)
        outer = scope.error_in_flight
        for hook in hooks:
            if errors and not hook.is_always:
                continue
            scope.error_in_flight = (errors[0] if errors else None,)
            try:
                with hook.guarded():
                    is_swallowed = hook.call(scope.values)
            except BaseException as later:  # as above
                if not errors or later is not errors[0]:
                    _attach(errors, self._explain(later, hook), hook)
            else:
                if is_swallowed and errors and can_swallow:
                    swallowed = errors.pop(0)
                    _log_swallowed(hook, swallowed)
        scope.error_in_flight = outer
        self._close(has_failed=True)
        scope.noted = errors[0] if errors and self._stack else None
        return errors[0] if errors else None

    def _close(self, *, has_failed: bool = False) -> None:
        while (stage := self._stack.pop()) is not self:
            stage.leave()  # it was entered by hand and never left: it ends with the one it was opened in
        self.leave()
        if not self._stack:
            self._end_routine(has_failed=has_failed)

    def leave(self) -> None:
        """Remove the fixtures of this opening; come back to the outer one, if there is one."""
        for name in (*self._declared, *self.created):
            self._values.pop(name, None)
        self.created.clear()
        self.initial = self.defaults = None
        self.passed = NOTHING
        self._is_open = bool(self._outer)
        if self._outer:
            for name, value in zip(self._AN_OPENING, self._outer.pop(), strict=True):
                setattr(self, name, value)
        self._is_special = bool(self._outer) or bool(self.passed)

    def _end_routine(self, *, has_failed: bool = False) -> None:
        while running.hosts.pop() is not self._host:
            pass  # as in _close
        scope = self._scope
        scope.noted = None
        if scope.is_watched and not has_failed:
            self._host.routine_ended()

    def _explain(self, error: BaseException, step: Hook | ObserverGroup | None) -> BaseException:
        """The error to show for `error`, with a note of its place: once per error, at the innermost stage."""
        scope = self._scope
        hook = _single(step) if step is not None else None
        if error is scope.noted:
            return error
        if isinstance(error, FixtureNotFoundError) and hook is not None:
            missing = [name for name in hook.needs if name not in scope.values and not scope.provides(name)]
            if missing:
                error = scope.not_found(missing[0], hook.title, hook.where)
                error.__suppress_context__ = True
        elif isinstance(error, StopIteration):
            # It would end whatever iteration the caller is in, without a word (compare PEP 479).
            escaped = EscapedStopIterationError(
                f"StopIteration came out of {f'`{hook.title}`' if hook else f'the body of stage `{self.name}`'}",
                where=scope.place,
                hint="catch it there: next(iterator, default), or a for loop",
            )
            escaped.__cause__ = error
            error = escaped
        marks = "".join(f", {name} {scope.values[name]}" for name in self._plan.landmarks if name in scope.values or scope.provides(name))
        whose = f"`{hook.title}` (extension `{hook.extension_name}`, {hook.where}), " if hook else ""
        error.add_note(f"in {whose}{scope.place}{marks}")
        scope.noted = error
        return error


_ENDED = object()
_NAMES = ("_declared", "created")


def _log_swallowed(hook: Hook, error: BaseException) -> None:
    import logging  # here, because most programs never come to this

    logging.getLogger("trainmaster").warning("`%s` swallowed %s: %s", hook.title, type(error).__name__, error)


def _single(step: Hook | ObserverGroup) -> Hook:
    return step.current if isinstance(step, ObserverGroup) else step


def _yield_error(hook: Hook, fact: str, hint: str) -> AroundHookError:
    return AroundHookError(f"around hook `{hook.title}` {fact}", where=hook.where, hint=hint)


def _close_generator(generator: Iterator[Any]) -> None:
    if isinstance(generator, Generator):
        generator.close()


def _throw(hook: Hook, generator: Iterator[Any], error: BaseException) -> None:
    """Let an around hook see the error. It may clean up; it cannot swallow."""
    if not isinstance(generator, Generator):
        return
    try:
        generator.throw(error)
    except StopIteration:
        return
    generator.close()
    raise _yield_error(hook, "yields again after an error", "let the error pass, or return")


def _attach(errors: list[BaseException], later: BaseException, hook: Hook) -> None:
    if errors:
        text = str(later).replace("\n", "\n  ")
        errors[0].add_note(f"then `{hook.title}` ({hook.where}) failed too: {type(later).__name__}: {text}")
    errors.append(later)
