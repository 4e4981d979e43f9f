"""`OpenStage`, which runs the hooks of a stage and owns its fixtures. If several errors occur, it raises the first one.

With extensions a and b, the order is: a.pre, b.pre, a.around opens, b.around opens, the body, b.around closes, a.around closes,
a.post, b.post.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trainmaster.errors import AroundHookError, EscapedStopIterationError, FixtureNotFoundError, StageError
from trainmaster.stages.fork_exit import exit_forked_process
from trainmaster.stages.hooks import YIELD_HINT, Hook
from trainmaster.stages.plan import ObserverGroup, Plan, Step
from trainmaster.stages.tree import BODY, ERROR_FIXTURES

if TYPE_CHECKING:
    from trainmaster.stages.extensible import Extensible
    from trainmaster.stages.scope import Scope

_NO_ERROR: tuple[BaseException | None] = (None,)
_NO_STAGES: frozenset[str] = frozenset()
_ENDED = object()
_STAGE = re.compile(r"\bstage ((?:\w+ > )*\w+)")


class Running(threading.local):
    """The extensible objects whose routines are running in this thread, outermost first."""

    def __init__(self) -> None:
        self.hosts: list[Extensible] = []
        self.inherited: list[Extensible] = []
        """The objects whose routines were running when this process was forked. These routines belong to the parent process."""


running = Running()


def _after_fork() -> None:
    running.inherited = [*running.hosts]


os.register_at_fork(after_in_child=_after_fork)


class OpenStage:
    """The context manager that `staged(...)` returns.

    An extensible object keeps one `OpenStage` for each stage name and reuses it. If a stage is opened inside
    a stage of the same name, a second `OpenStage` is created.
    """

    __slots__ = (
        "_declared", "_generators", "_has_around", "_host", "_is_free", "_plan", "_post", "_pre", "_scope", "_stack", "_unlocks", "_values",
        "closed_stages", "created", "defaults", "initial", "is_open", "is_stale", "name",
    )  # fmt: skip

    def __init__(self, host: Extensible, scope: Scope, name: str) -> None:
        self.name = name
        self.is_stale = True
        """Whether the extensions have changed since the plan was made."""
        self.is_open = False
        """Whether the stage is open and has hooks or fixtures.

        It stays False for a stage without hooks or fixtures, so that opening it is nearly free.
        """
        self.initial: Mapping[str, Any] | None = None
        """The fixtures passed to `staged`. This is None again once the stage has opened."""
        self.defaults: Mapping[str, Any] | None = None
        self.created: list[str] = []
        """The names of the fixtures that are removed when this stage closes."""
        self.closed_stages: frozenset[str] = _NO_STAGES
        """The inner stages that have closed. Only stages that a lazy fixture depends on are listed."""
        self._host = host
        self._scope = scope
        self._stack = scope.stack
        self._values = scope.values
        self._plan: Plan
        self._pre: tuple[Step, ...] = ()
        self._post: tuple[Step, ...] = ()
        self._declared: tuple[str, ...] = ()
        self._has_around = self._unlocks = False
        self._is_free = False
        """Whether the stage has nothing to do when it opens and closes."""
        self._generators: list[tuple[Hook, Generator[Any, Any, Any]]] = []

    def mark_stale(self) -> None:
        """Make the stage get a new plan the next time it opens. If the stage is open now, it keeps its plan until it closes."""
        self.is_stale = True
        self._is_free = False
        self.is_open = self.is_open or self in self._stack

    def adopt(self, name: str) -> None:
        """Become the owner of the fixture `name`."""
        self.created.append(name)
        self.is_open = True

    def owned(self) -> tuple[str, ...]:
        """Return the names of the fixtures that are removed when this stage closes."""
        return (*self._declared, *self.created)

    def note_closed(self, inner: str) -> None:
        """Record that an inner stage has closed, or that the body of this stage has ended."""
        self.closed_stages |= {inner}
        self.is_open = True

    def open_permanently(self) -> None:
        """Open a stage that never closes and contains all others."""
        self._prepare()
        self._scope.permanent = self
        self._publish_defaults(self.initial or {})
        self.initial = None
        for hook, *_ in self._plan.pre:
            hook.call(self._values)

    def __enter__(self) -> OpenStage:
        stack = self._stack
        if self._is_free and stack and self.initial is None and not self.is_open:
            stack.append(self)
            return self
        if self.is_stale or self.is_open:
            self._prepare()
        if not stack:
            running.hosts.append(self._host)
        stack.append(self)
        self.is_open = not self._is_free
        hook: Hook | ObserverGroup | None = None
        try:
            values = self._values
            initial = self.initial
            if initial is not None:
                self.initial = None
                if not values.keys().isdisjoint(initial):
                    self._declared = ()  # another stage owns these fixtures, so closing this stage must not remove them
                    self.mark_stale()
                    raise self._scope.exists_error([name for name in initial if name in values])
                values.update(initial)
                self.created.extend(initial)
                self.is_open = True
                if self.defaults is not None:
                    self._publish_defaults(self.defaults)
            for hook, method, name, select in self._pre:  # noqa: B007 - `hook` is used if an error occurs
                if select is not None:
                    method(*select(values))
                elif name is not None:
                    method(values[name])
                else:
                    method()
            if self._has_around:
                for hook in self._plan.around:
                    self._open_around(hook)
        except BaseException as error:  # close the stage, then raise the error again
            # A `with` statement cannot skip its body, so no hook can swallow an error raised by a pre hook.
            explained = self._explain(error, hook)
            raise self._fail(explained, self._plan.post_hooks, can_swallow=False) or explained  # noqa: B904 - see _explain
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> bool:
        stack = self._stack
        if exc is None and self._is_free and not self.is_open and stack[-1] is self and len(stack) > 1:
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
            if self._unlocks:
                self._unlock_lazy_fixtures()
            if self._post:
                scope = self._scope
                outer = scope.current_error
                scope.current_error = _NO_ERROR
                for hook, method, name, select in self._post:  # noqa: B007 - as above
                    if select is not None:
                        method(*select(values))
                    elif name is not None:
                        method(values[name])
                    else:
                        method()
                scope.current_error = outer
        except BaseException as error:  # close the stage, then raise the error again
            rest = self._plan.post_hooks
            if hook is not None:
                scope.current_error = outer
                rest = rest[rest.index(_single(hook)) + 1 :]
            first = self._fail(self._explain(error, hook), rest)
            if first is not None:
                raise first  # noqa: B904 - see _explain
            return False
        # The rest is _close(), inlined because the call would be a large part of a stage's overhead.
        if stack[-1] is not self or self.closed_stages:
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
        self.is_open = False
        if not stack:
            self._end_routine()
        return False

    # not in the hot path

    def _prepare(self) -> None:
        """Get a new plan if the extensions have changed. Raise an error if the stage cannot be entered."""
        if self.is_open:
            raise StageError(
                f"stage `{self.name}` is already open",
                where=self._scope.location,
                why="the object that staged(...) returned was entered twice",
                hint=f'call staged("{self.name}") for each opening',
            )
        try:
            reserved = [name for name in (*(self.initial or ()), *(self.defaults or ())) if name in ERROR_FIXTURES]
            if reserved:
                raise self._scope.exists_error(reserved)
            plan = self._host.plan_of(self.name)
        except BaseException:
            self.initial = self.defaults = None
            raise
        self._plan = plan
        self._pre, self._post, self._declared = plan.pre, plan.post, plan.declared
        self._has_around = bool(plan.around)
        self._unlocks = plan.unlocks_body or plan.unlocks_outer
        self._is_free = plan.is_empty
        self.is_stale = False
        if any(stage.name == self.name for stage in self._stack):  # an outer stage of the same name owns the fixtures that already exist
            self._declared = tuple(name for name in plan.declared if name not in self._values)

    def _publish_defaults(self, defaults: Mapping[str, Any]) -> None:
        self.defaults = None
        for name, value in defaults.items():
            if name not in self._values:
                self._values[name] = value
                self.created.append(name)

    def _open_around(self, hook: Hook) -> None:
        generator = hook.call(self._values)
        with hook.guarded():
            if not isinstance(generator, Generator) or next(generator, _ENDED) is _ENDED:
                raise _yield_error(hook, "never yields", YIELD_HINT)
        self._generators.append((hook, generator))

    def _close_around(self) -> None:
        while self._generators:
            hook, generator = self._generators.pop()
            try:
                with hook.guarded():
                    if next(generator, _ENDED) is not _ENDED:
                        generator.close()
                        raise _yield_error(hook, "yields twice", YIELD_HINT)
            except BaseException as error:
                raise self._explain(error, hook)  # noqa: B904 - the same error, or a new one with this error as its cause

    def _unlock_lazy_fixtures(self) -> None:
        if self._plan.unlocks_body:
            self.note_closed(BODY)
        if self._plan.unlocks_outer:
            for stage in self._stack[:-1]:
                stage.note_closed(self.name)

    def _fail(self, error: BaseException, hooks: tuple[Hook, ...], *, can_swallow: bool = True) -> BaseException | None:
        """Close the stage after an error. Return the error to raise, or None if a hook suppressed it.

        If hooks fail too, their errors become notes on the first error. A post hook suppresses an error by returning a true value.
        """
        if any(host is self._host for host in running.inherited):
            exit_forked_process(error)
        scope = self._scope
        errors = [error]
        while self._generators:
            hook, generator = self._generators.pop()
            try:
                with hook.guarded():
                    _throw(hook, generator, error)
            except BaseException as later:  # _attach adds it to the first error
                if later is not error:
                    _attach(errors, self._explain(later, hook), hook)
        outer = scope.current_error
        for hook in hooks:
            if errors and not hook.is_always:
                continue
            scope.current_error = (errors[0] if errors else None,)
            try:
                with hook.guarded():
                    is_swallowed = hook.call(scope.values)
            except BaseException as later:  # _attach adds it to the first error, if there is one
                if not errors or later is not errors[0]:
                    _attach(errors, self._explain(later, hook), hook)
            else:
                if is_swallowed and errors and can_swallow:
                    _log_swallowed(hook, errors.pop(0))
        scope.current_error = outer
        self._close(has_failed=True)
        scope.explained = errors[0] if errors and self._stack else None
        return errors[0] if errors else None

    def _close(self, *, has_failed: bool = False) -> None:
        while (stage := self._stack.pop()) is not self:
            stage.leave()  # an inner stage whose __enter__ was called by hand, without __exit__
        self.leave()
        if not self._stack:
            self._end_routine(has_failed=has_failed)

    def leave(self) -> None:
        """Remove the fixtures, so that the stage can open again."""
        for name in self.owned():
            self._values.pop(name, None)
        self.created.clear()
        self._generators.clear()
        self.initial = self.defaults = None
        self.closed_stages = _NO_STAGES
        self.is_open = False

    def _end_routine(self, *, has_failed: bool = False) -> None:
        while running.hosts.pop() is not self._host:
            pass  # a routine whose outermost stage was entered by hand, without __exit__
        scope = self._scope
        scope.explained = None
        if scope.is_watched and not has_failed:
            self._host.on_routine_end()

    def _explain(self, error: BaseException, step: Hook | ObserverGroup | None) -> BaseException:
        """Add a note about the location of an error, unless an inner stage has already added one. Return the error to raise.

        The returned error is usually `error` itself. A `StopIteration`, or a hook's `FixtureNotFoundError`, is replaced by a
        more helpful error.
        """
        scope = self._scope
        hook = _single(step) if step is not None else None
        if error is scope.explained:
            return error
        if isinstance(error, FixtureNotFoundError) and hook is not None:
            missing = [name for name in hook.needs if name not in scope.values and not scope.provides(name)]
            if missing:
                error = scope.not_found(missing[0], hook.title, hook.where)
                error.__suppress_context__ = True
        elif isinstance(error, StopIteration):
            # A StopIteration would silently end a loop or generator further up (see PEP 479).
            escaped = EscapedStopIterationError(
                f"{f'`{hook.title}`' if hook else f'the body of stage `{self.name}`'} raised StopIteration",
                where=scope.location,
                hint="catch it there, or use next(iterator, default) or a for loop",
            )
            escaped.__cause__ = error
            error = escaped
        progress = "".join(f", {name} {scope.values[name]}" for name in self._plan.progress if name in scope.values or scope.provides(name))
        source = f"`{hook.title}` (extension `{hook.extension_name}`, {hook.where}), " if hook else ""
        error.add_note(f"in {source}{scope.location}{progress}")
        scope.explained = error
        return error


def stage_of(error: BaseException) -> str:
    """Return the path of the stage in which an error occurred, or an empty string if the error's notes do not mention a stage."""
    matches = (_STAGE.search(note) for note in getattr(error, "__notes__", ()) if note.startswith("in "))
    return next((match[1] for match in matches if match), "")


def _log_swallowed(hook: Hook, error: BaseException) -> None:
    import logging  # imported here, because most programs never need it

    logging.getLogger("trainmaster").warning("`%s` swallowed %s: %s", hook.title, type(error).__name__, error)


def _single(step: Hook | ObserverGroup) -> Hook:
    return step.current if isinstance(step, ObserverGroup) else step


def _yield_error(hook: Hook, fact: str, hint: str) -> AroundHookError:
    return AroundHookError(f"around hook `{hook.title}` {fact}", where=hook.where, hint=hint)


def _throw(hook: Hook, generator: Generator[Any, Any, Any], error: BaseException) -> None:
    """Raise the error inside an around hook, so that the hook can clean up. The hook cannot suppress the error."""
    try:
        generator.throw(error)
    except StopIteration:
        return
    generator.close()
    raise _yield_error(hook, "yields again after an error", "let the error propagate, or return")


def _attach(errors: list[BaseException], later: BaseException, hook: Hook) -> None:
    if errors:
        text = str(later).replace("\n", "\n  ")
        errors[0].add_note(f"then `{hook.title}` ({hook.where}) failed too: {type(later).__name__}: {text}")
    errors.append(later)
