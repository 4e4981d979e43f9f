"""`Extensible`: an object whose routines are cut into stages that extensions hook into."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

from trainmaster.errors import NoRunningStageError, UnknownStageError, did_you_mean
from trainmaster.stages.checker import Checker, check_cycles, check_names, is_of
from trainmaster.stages.describe import StageMap, describe_hooks, describe_tree
from trainmaster.stages.extensions import Extensions, ExtensionsLike
from trainmaster.stages.fixtures import Fixtures
from trainmaster.stages.hooks import PHASES, Guard, Hook, LazyFixture, ObserverGroup, find_hooks, find_lazy_fixtures
from trainmaster.stages.made_with import Made, remember
from trainmaster.stages.open_stage import OpenStage, Plan, running
from trainmaster.stages.scope import Scope
from trainmaster.stages.timing import Timer, timed
from trainmaster.stages.tree import BODY, StageTree


class Extensible:
    """An object with routines that others extend without touching their code.

    A routine opens stages, `with self.staged("my_stage", {"var_a": 1}):`, and every extension's `pre_my_stage` and `post_my_stage`
    run before and after the body, with fixtures for parameters.

    >>> class Greeter:
    ...     def pre_greet(self, name):
    ...         print(f"about to greet {name}")
    >>> class Host(Extensible):
    ...     extensions = [Greeter()]
    ...     def run(self):
    ...         with self.staged("greet", {"name": "Ada"}):
    ...             print("hello")
    >>> Host().run()
    about to greet Ada
    hello

    A class that declares its `tree` has its hooks checked before they run; one without works too, and warns of hooks that
    matched no stage.
    """

    tree: ClassVar[StageTree | None] = None
    creates: ClassVar[Mapping[str, str]] = {}
    """Fixtures that a subclass's own code creates beyond the tree, and the stage that owns each."""
    hands_on: ClassVar[bool] = False
    """Whether it hands its extensions on to its partners, so that one may be for them alone."""
    _class_extensions: ClassVar[ExtensionsLike] = ()

    _made_with: Made | None = None
    _scope: Scope
    _fixtures: Fixtures
    _extensions: Extensions
    _stages: dict[str, OpenStage]
    _hooks: list[Hook] | None
    _seen: dict[str, None]
    """The stages that were opened, in that order."""
    _is_checked: bool
    _timer: Timer | None
    """Who is told how long hooks take."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # `extensions = [...]` in a class body is the default of its objects; the attribute itself stays the property below.
        given = cls.__dict__.get("extensions")
        if given is not None and not isinstance(given, property):
            cls._class_extensions = given
            del cls.extensions

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Here and not in __init__, so that a subclass need not call super().__init__().
        self = super().__new__(cls)
        remember(self, cls, args, kwargs)
        self._scope = Scope(self._answer)
        self._fixtures = Fixtures(self._scope)
        self._stages = {}
        self._hooks = None
        self._seen = {}
        self._is_checked = False
        self._timer = None
        self._scope.is_watched = self.tree is None
        self._extensions = Extensions(self._attach, self.refresh)
        self._extensions.fill(cls._class_extensions)
        return self

    # stages

    def staged(self, name: str, fixtures: Mapping[str, Any] | None = None, defaults: Mapping[str, Any] | None = None) -> OpenStage:
        """Open a stage: `with self.staged("forward"): ...`.

        `fixtures` are created in it, and must be new; of `defaults` only those that do not exist yet. Both end with the stage.
        """
        stage = self._stages.get(name)
        if stage is None or stage.initial is not None:
            stage = self._new_stage(name)
        if fixtures is not None:
            stage.initial = fixtures
        if defaults is not None:
            stage.initial = fixtures or {}
            stage.defaults = defaults
        return stage

    @property
    def fixtures(self) -> Fixtures:
        """The scoped variables of the stages that are open."""
        return self._fixtures

    def describe(self) -> StageMap:
        """The stages with their fixtures and, in order, the hooks that will run."""
        hooks = self._resolved()
        if self.tree is None:
            return describe_hooks(hooks, self._seen)
        return describe_tree(self.tree, hooks, self._scope.lazy, self._created())

    # extensions

    @property
    def extensions(self) -> Extensions:
        """The extensions by name, in the order in which their hooks run."""
        return self._extensions

    @extensions.setter
    def extensions(self, given: ExtensionsLike) -> None:
        fresh = Extensions(self._attach, self.refresh)
        fresh.fill(given)
        self.complete(fresh)
        self._extensions = fresh
        self.refresh()

    def __getitem__(self, name: str) -> Any:
        return self._extensions[name]

    def add_extension(self, name: str, extension: object, at_start: bool = False, as_default: bool = False) -> None:
        """Attach an extension at the end (or the start), in place of its namesake; `as_default` leaves a namesake alone."""
        if not (as_default and name in self._extensions):
            self._extensions.add(name, extension, at_start=at_start)

    def get_extension_methods(self, prefix: str, stage_name: str) -> list[Callable[..., Any]]:
        """The bound hooks of exactly this stage, in order; `prefix` is "pre", "around" or "post"."""
        phase = prefix.removesuffix("_")
        return [hook.method for hook in self._resolved() if hook.phase == phase and hook.stage == stage_name]

    def refresh(self) -> None:
        """Read all hooks again. Only needed after a method of an attached object was replaced."""
        for stage in self._stages.values():
            stage.grow_stale()
        self._hooks = None
        self._is_checked = False
        self._scope.is_watched = self.tree is None

    def time_hooks(self, timer: Timer | None) -> None:
        """Have `timer` told how long each call of a hook takes; None ends that."""
        self._timer = timer
        self.refresh()

    def forget(self) -> None:
        """End all that is open, without hooks: for a routine that was interrupted in the middle of the engine itself."""
        for stage in self._stages.values():
            if stage is not self._scope.lasting:
                stage.reset()
        self._scope.forget()
        running.hosts[:] = [host for host in running.hosts if host is not self]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: it holds live hooks; build another one")

    # for faces of the engine to override

    def partner_trees(self) -> tuple[StageTree, ...]:
        """The trees of routines that share extensions with this one: hooks named after their stages are theirs to call."""
        return ()

    def complete(self, extensions: Extensions) -> None:
        """Add what is always attached to extensions that a user gave."""

    def observer_guard(self) -> Guard | None:
        """What observers' hooks run under; None where there is nothing to guard."""
        return None

    def read_fixture(self, name: str) -> Any:
        """Answer for a fixture that has no value, from the object itself; AttributeError where it cannot."""
        raise AttributeError(name)

    def answers_undeclared(self) -> bool:
        """Whether `read_fixture` knows names beyond those that the tree declares."""
        return type(self).read_fixture is not Extensible.read_fixture

    def _answer(self, name: str) -> Any:
        return self._fixtures if name == "fixtures" else self.read_fixture(name)

    def routine_ended(self) -> None:
        """The outermost stage of an undeclared routine was closed, for the first time since the extensions changed."""
        self._scope.is_watched = False
        for hook in self._resolved():
            if hook.stage not in self._seen:
                warnings.warn(
                    f"`{hook.title}` ({hook.where}) was never called: no stage `{hook.stage}` was opened; "
                    f"{did_you_mean(hook.stage, self._seen) or 'stages: ' + ', '.join(sorted(self._seen))}",
                    stacklevel=5,
                )

    # making ready

    def _attach(self, name: str, extension: object) -> None:
        check_names(name, extension, self.tree, self.partner_trees(), self.hands_on)

    def _resolved(self) -> list[Hook]:
        """All hooks, in the order of the extensions; found once per change."""
        if self._hooks is None:
            guard = self.observer_guard()
            lazies: dict[str, list[LazyFixture]] = {}
            hooks: list[Hook] = []
            for lazy in find_lazy_fixtures(type(self).__name__, self):
                lazies.setdefault(lazy.name, []).append(lazy)
            for name, extension in self._extensions.items():
                for hook in filter(self._is_own, find_hooks(name, extension)):
                    hooks.append(replace(hook, guard=guard) if hook.is_observer else hook)
                for lazy in filter(self._is_own, find_lazy_fixtures(name, extension)):
                    lazies.setdefault(lazy.name, []).append(_guarded_lazy(lazy, guard) if lazy.is_observer and guard else lazy)
            check_cycles(lazies)
            declared = self.tree.owners if self.tree is not None else {}
            self._scope.declare({**self._created(), **declared}, lazies)
            self._hooks = hooks if self._timer is None else [timed(hook, self._timer) for hook in hooks]
        return self._hooks

    def _is_own(self, part: Hook | LazyFixture) -> bool:
        """Whether a hook or lazy fixture belongs to this routine, and not to a partner."""
        return is_of(part, self.tree) or not any(is_of(part, tree) for tree in self.partner_trees())

    def _created(self) -> dict[str, frozenset[str]]:
        owners: dict[str, frozenset[str]] = {}
        partners = self.partner_trees()
        for source in (self, *self._extensions.values()):
            for name, stage in (getattr(source, "creates", None) or {}).items():
                if self.tree is not None and stage not in self.tree.paths:
                    if any(stage in tree.paths for tree in partners):
                        continue
                    raise UnknownStageError(
                        f"`{type(source).__name__}.creates` gives `{name}` to `{stage}`, which is no stage",
                        known=", ".join(self.tree.paths),
                        hint=did_you_mean(stage, self.tree.paths) or "name one of the known stages as the owner",
                    )
                owners[name] = owners.get(name, frozenset()) | {stage}
        return owners

    def _new_stage(self, name: str) -> OpenStage:
        if self.tree is not None and name not in self.tree.paths:
            raise UnknownStageError(
                f"`{type(self).__name__}` opens stage `{name}`, which its tree does not declare",
                known=", ".join(self.tree.paths),
                hint=did_you_mean(name, self.tree.paths)
                or f'declare it: tree = {type(self).__name__}.tree.adding("parent", Stage("{name}"))',
            )
        stage = OpenStage(self, self._scope, name)
        self._stages.setdefault(name, stage)
        return stage

    def plan_of(self, name: str) -> Plan:
        """What happens at a stage. The first time after a change, the parameters of all hooks are checked."""
        hooks = self._resolved()
        lazies = self._scope.lazy
        if self.tree is not None and not self._is_checked and not self.tree.paths[name][0][-1].is_lasting:
            Checker(self.tree, lazies, self._created(), self._may_grow(hooks)).check(hooks)
            self._is_checked = True
        self._seen[name] = None
        here = {phase: tuple(hook for hook in hooks if hook.stage == name and hook.phase == phase) for phase in PHASES}
        return Plan(
            pre=_grouped(here["pre"]),
            around=here["around"],
            post=_grouped(here["post"]),
            post_hooks=here["post"],
            has_followers=any(lazy.spec.after == name for each in lazies.values() for lazy in each),
            is_awaited=any(lazy.spec.after == BODY and name in lazy.spec.stages for each in lazies.values() for lazy in each),
            landmarks=self.tree.landmarks if self.tree is not None else (),
            declared=self.tree.own_fixtures(name) if self.tree is not None else (),
        )

    def _may_grow(self, hooks: list[Hook]) -> bool:
        """May fixtures appear that are declared nowhere?"""
        return self.answers_undeclared() or any("fixtures" in (*hook.needs, *hook.takes) for hook in hooks)


def _grouped(hooks: tuple[Hook, ...]) -> tuple[Hook | ObserverGroup, ...]:
    """Neighbouring observers under one guard."""
    steps: list[Hook | ObserverGroup] = []
    for hook in hooks:
        last = steps[-1] if steps else None
        if hook.guard is None:
            steps.append(hook)
        elif isinstance(last, ObserverGroup):
            steps[-1] = ObserverGroup((*last.hooks, hook), last.guard)
        else:
            steps.append(ObserverGroup((hook,), hook.guard))
    return tuple(steps)


def _guarded_lazy(lazy: LazyFixture, guard: Guard) -> LazyFixture:
    def call(values: Any) -> Any:
        with guard():
            return lazy.call(values)

    return replace(lazy, call=call)


def staged(name: str, fixtures: Mapping[str, Any] | None = None, defaults: Mapping[str, Any] | None = None) -> OpenStage:
    """Open a stage without saying whose: of the method's own object, or of the routine that runs.

    The caller's first argument, if it is an `Extensible`, owns the stage (so a bare `staged` in a method means `self.staged`); in
    any other function it is the innermost running routine of this thread.
    """
    caller = sys._getframe(1)
    code = caller.f_code
    if code.co_argcount:
        first = caller.f_locals.get(code.co_varnames[0])
        if isinstance(first, Extensible):
            return first.staged(name, fixtures, defaults)
    if running.hosts:
        return running.hosts[-1].staged(name, fixtures, defaults)
    raise NoRunningStageError(
        f"staged({name!r}) belongs to nobody: no extensible method is running",
        where=f"{code.co_filename}:{caller.f_lineno}, in {code.co_qualname}",
        hint="call it from a routine of an Extensible, or write `obj.staged(...)`",
    )
