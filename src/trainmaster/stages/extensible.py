"""`Extensible`, the base class of objects whose routines consist of stages."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

from trainmaster.errors import NoRunningStageError, UnknownStageError, did_you_mean
from trainmaster.stages.checker import Checker, belongs_to, check_creates, check_cycles, check_names, check_state_methods
from trainmaster.stages.extension_map import Extensions, ExtensionsLike
from trainmaster.stages.fixtures import Fixtures
from trainmaster.stages.hook_timing import Timer, timed
from trainmaster.stages.hooks import Guard, Hook, LazyFixture, find_hooks, find_lazy_fixtures
from trainmaster.stages.open_stage import OpenStage, running
from trainmaster.stages.plan import Plan, make_plan
from trainmaster.stages.recorded_call import RecordedCall, record_call
from trainmaster.stages.scope import Scope
from trainmaster.stages.stage_map import StageMap, describe_hooks, describe_tree
from trainmaster.stages.tree import StageTree


class Extensible:
    """An object whose routines can be extended without changing their code.

    A routine opens stages with `with self.staged("my_stage", {"var_a": 1}):`. Before and after the body, the engine calls
    the `pre_my_stage` and `post_my_stage` hooks of every extension, with fixtures as arguments.

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

    If the class declares its `tree`, hooks are checked before they run. Otherwise, a hook whose stage is never opened causes a warning.
    """

    tree: ClassVar[StageTree | None] = None
    creates: ClassVar[Mapping[str, str]] = {}
    """Fixtures that a subclass creates in addition to those declared in the tree, mapped to the stages that own them."""
    shares_extensions: ClassVar[bool] = False
    """Whether an extension may be attached even if all its hooks are for the stages of partners (see `partner_trees`)."""
    _class_extensions: ClassVar[ExtensionsLike] = ()

    _recorded_call: RecordedCall | None = None
    _scope: Scope
    _fixtures: Fixtures
    _extensions: Extensions
    _stages: dict[str, OpenStage]
    _hooks: list[Hook] | None
    _plans: dict[str, Plan]
    _opened: dict[str, None]
    """The names of the stages that were opened, in order."""
    _is_checked: bool
    _timer: Timer | None
    """The function to which the duration of each hook call is reported."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # `extensions = [...]` in a class body sets the default for its instances. It must not replace the property below.
        extensions = cls.__dict__.get("extensions")
        if extensions is not None and not isinstance(extensions, property):
            cls._class_extensions = extensions
            del cls.extensions

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # This is done here and not in __init__, so that subclasses do not have to call super().__init__().
        self = super().__new__(cls)
        record_call(self, cls, args, kwargs)
        self._scope = Scope(self._read_fixture)
        self._fixtures = Fixtures(self._scope)
        self._stages = {}
        self._hooks = None
        self._plans = {}
        self._opened = {}
        self._is_checked = False
        self._timer = None
        self._scope.is_watched = self.tree is None
        self._extensions = Extensions(self._check_extension, self.refresh)
        self._extensions.add_all(cls._class_extensions)
        return self

    # stages

    def staged(self, name: str, fixtures: Mapping[str, Any] | None = None, defaults: Mapping[str, Any] | None = None) -> OpenStage:
        """Open a stage: `with self.staged("forward"): ...`.

        The stage creates all fixtures in `fixtures`, which must not exist yet, and those fixtures in `defaults` that do not
        exist yet. When the stage closes, it removes the fixtures that it created.
        """
        stage = self._stages.get(name)
        if stage is None or stage.initial is not None or stage.is_open:
            stage = self._new_stage(name)
        if fixtures is not None:
            stage.initial = fixtures
        if defaults is not None:
            stage.initial = fixtures or {}
            stage.defaults = defaults
        return stage

    @property
    def fixtures(self) -> Fixtures:
        """The fixtures of the open stages."""
        return self._fixtures

    def describe(self) -> StageMap:
        """Return a map of the stages, with their fixtures, and their hooks in the order in which they run."""
        hooks = self._resolved()
        if self.tree is None:
            return describe_hooks(hooks, self._opened)
        return describe_tree(self.tree, hooks, self._scope.lazy, self._created())

    # extensions

    @property
    def extensions(self) -> Extensions:
        """The extensions by name, in the order in which their hooks run."""
        return self._extensions

    @extensions.setter
    def extensions(self, extensions: ExtensionsLike) -> None:
        new = Extensions(self._check_extension, self.refresh)
        new.add_all(extensions)
        self.add_default_extensions(new)
        self._extensions = new
        self.refresh()

    def __getitem__(self, name: str) -> Any:
        return self._extensions[name]

    def add_extension(self, name: str, extension: object, at_start: bool = False, as_default: bool = False) -> None:
        """Attach an extension. If the name is already in use, replace the old extension, or do nothing if `as_default` is True."""
        if not (as_default and name in self._extensions):
            self._extensions.add(name, extension, at_start=at_start)

    def get_extension_methods(self, prefix: str, stage_name: str) -> list[Callable[..., Any]]:
        """Return the bound hooks of a stage, in order. `prefix` is "pre", "around" or "post"."""
        phase = prefix.removesuffix("_")
        return [hook.method for hook in self._resolved() if hook.phase == phase and hook.stage == stage_name]

    def refresh(self) -> None:
        """Look up all hooks again. You need this only after replacing a method of an attached extension."""
        for stage in self._stages.values():
            stage.mark_stale()
        self._plans = {}
        self._hooks = None
        self._is_checked = False
        self._scope.is_watched = self.tree is None

    def time_hooks(self, timer: Timer | None) -> None:
        """Measure each hook call and report its time to `timer`. Pass None to turn timing off."""
        self._timer = timer
        self.refresh()

    def reset_stages(self) -> None:
        """Close all open stages without calling hooks. Use this if an interrupt may have left stages open."""
        for stage in self._stages.values():
            if stage is not self._scope.permanent:
                stage.leave()
        self._scope.reset()
        running.hosts[:] = [host for host in running.hosts if host is not self]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled because it holds live hooks; create a new one instead")

    # for subclasses to override

    def partner_trees(self) -> tuple[StageTree, ...]:
        """Return the trees of other routines that share extensions with this one. Each routine calls only the hooks for its own stages."""
        return ()

    def add_default_extensions(self, extensions: Extensions) -> None:
        """Add the default extensions to `extensions`, which already contains those that the user passed."""

    def observer_guard(self) -> Guard | None:
        """Return a factory of context managers that undo the changes made by observers, or None if nothing has to be undone."""
        return None

    def adapt_hook(self, hook: Hook, extension: object) -> Hook | None:
        """Return the hook to call in this process, or None if the hook must not run here."""
        return hook

    def read_fixture(self, name: str) -> Any:
        """Return the value of a fixture that no stage provides. Raise `AttributeError` if there is no such fixture."""
        raise AttributeError(name)

    def has_undeclared_fixtures(self) -> bool:
        """Return whether `read_fixture` accepts names that the tree does not declare."""
        return type(self).read_fixture is not Extensible.read_fixture

    def _read_fixture(self, name: str) -> Any:
        return self._fixtures if name == "fixtures" else self.read_fixture(name)

    def on_routine_end(self) -> None:
        """Warn about hooks that never ran. If there is no tree, the engine calls this once, after the first successful routine."""
        self._scope.is_watched = False
        for hook in self._resolved():
            if hook.stage not in self._opened:
                warnings.warn(
                    f"`{hook.title}` ({hook.where}) was never called, because no stage `{hook.stage}` was opened; "
                    f"{did_you_mean(hook.stage, self._opened) or 'opened stages: ' + ', '.join(sorted(self._opened))}",
                    stacklevel=5,
                )

    # hooks and plans

    def _check_extension(self, name: str, extension: object) -> None:
        check_state_methods(name, extension)
        check_creates(extension)
        check_names(name, extension, self.tree, self.partner_trees(), self.shares_extensions)

    def _resolved(self) -> list[Hook]:
        """Return all hooks, in the order of the extensions. The result is cached until the extensions change."""
        if self._hooks is None:
            guard = self.observer_guard()
            lazies: dict[str, list[LazyFixture]] = {}
            hooks: list[Hook] = []
            for lazy in find_lazy_fixtures(type(self).__name__, self):
                lazies.setdefault(lazy.name, []).append(lazy)
            for name, extension in self._extensions.items():
                for hook in filter(self._is_own, find_hooks(name, extension)):
                    adapted = self.adapt_hook(hook, extension)
                    if adapted is not None:
                        hooks.append(replace(adapted, guard=guard) if hook.is_observer else adapted)
                for lazy in filter(self._is_own, find_lazy_fixtures(name, extension)):
                    lazies.setdefault(lazy.name, []).append(_guarded_lazy(lazy, guard) if lazy.is_observer and guard else lazy)
            check_cycles(lazies)
            self._scope.owners = {**self._created(), **(self.tree.owners if self.tree is not None else {})}
            self._scope.lazy = lazies
            self._hooks = hooks if self._timer is None else [timed(hook, self._timer) for hook in hooks]
        return self._hooks

    def _is_own(self, part: Hook | LazyFixture) -> bool:
        """Return whether a hook or lazy fixture belongs to this routine rather than to another one that shares the extension."""
        return belongs_to(part, self.tree) or not any(belongs_to(part, tree) for tree in self.partner_trees())

    def _created(self) -> dict[str, frozenset[str]]:
        owners: dict[str, frozenset[str]] = {}
        partners = self.partner_trees()
        for source in (self, *self._extensions.values()):
            for name, stage in (getattr(source, "creates", None) or {}).items():
                if self.tree is not None and stage not in self.tree.paths:
                    if any(stage in tree.paths for tree in partners):
                        continue
                    raise UnknownStageError(
                        f"`{type(source).__name__}.creates` assigns `{name}` to `{stage}`, which is not a stage",
                        known=", ".join(self.tree.paths),
                        hint=did_you_mean(stage, self.tree.paths) or "use one of the known stages as the owner",
                    )
                owners[name] = owners.get(name, frozenset()) | {stage}
        return owners

    def _may_create(self, hook: Hook) -> bool:
        """Return whether a hook may create fixtures that its extension does not declare."""
        takes_all = "fixtures" in (*hook.needs, *hook.takes)
        return takes_all and getattr(self._extensions[hook.extension_name], "creates", None) is None

    def _new_stage(self, name: str) -> OpenStage:
        if self.tree is not None and name not in self.tree.paths:
            raise UnknownStageError(
                f"`{type(self).__name__}` opens stage `{name}`, which its tree does not declare",
                known=", ".join(self.tree.paths),
                hint=did_you_mean(name, self.tree.paths)
                or f'declare it: tree = {type(self).__name__}.tree.with_stage("parent", Stage("{name}"))',
            )
        stage = OpenStage(self, self._scope, name)
        self._stages.setdefault(name, stage)
        return stage

    def plan_of(self, stage: str) -> Plan:
        """Return the call plan of a stage.

        The first call after the extensions have changed checks the parameters of all hooks.
        """
        hooks = self._resolved()
        tree, lazies = self.tree, self._scope.lazy
        if tree is not None and not self._is_checked and not tree.paths[stage][0][-1].is_permanent:
            may_create = self.has_undeclared_fixtures() or any(map(self._may_create, hooks))
            Checker(tree, lazies, self._created(), may_create).check(hooks)
            self._is_checked = True
        self._opened[stage] = None
        if stage not in self._plans:
            self._plans[stage] = make_plan(stage, hooks, lazies, tree)
        return self._plans[stage]


def _guarded_lazy(lazy: LazyFixture, guard: Guard) -> LazyFixture:
    def call(values: Any) -> Any:
        with guard():
            return lazy.call(values)

    return replace(lazy, call=call)


def staged(name: str, fixtures: Mapping[str, Any] | None = None, defaults: Mapping[str, Any] | None = None) -> OpenStage:
    """Open a stage. In a method of an `Extensible`, `staged(...)` is short for `self.staged(...)`.

    More precisely, if the first argument of the calling function is an `Extensible`, the stage belongs to that object.
    In any other function, the stage belongs to the innermost running routine of this thread.
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
        f"staged({name!r}) was called while no extensible method is running",
        where=f"{code.co_filename}:{caller.f_lineno}, in {code.co_qualname}",
        hint="call it from a method of an Extensible, or write `obj.staged(...)`",
    )
