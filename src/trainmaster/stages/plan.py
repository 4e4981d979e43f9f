"""The call plan of a stage: the list of hooks to run, which is reused until the extensions change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from trainmaster.stages.hooks import Guard, Hook, LazyFixture
from trainmaster.stages.scope import Values
from trainmaster.stages.tree import BODY, StageTree


@dataclass(slots=True, eq=False)
class ObserverGroup:
    """Consecutive hooks of observers for the same stage and phase.

    They share one guard that undoes their changes, because guards are slow.
    """

    hooks: tuple[Hook, ...]
    guard: Guard
    current: Hook = field(init=False)
    """The hook that is running, so that an error message can mention it."""

    def call(self, values: Values) -> None:
        self.current = self.hooks[0]
        with self.guard():
            for hook in self.hooks:
                self.current = hook
                hook.call(values)


Step = tuple[Hook | ObserverGroup, Callable[..., Any], str | None, Callable[[Values], tuple[Any, ...]] | None]
"""A hook, prepared for the hot path. The stage calls the function without arguments, with the fixture of the given name, or with
the arguments that the last item selects. This takes only one Python call per hook. A wrapper function would double the overhead."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps that a stage performs when it opens and closes: call hooks, make lazy fixtures available, and remove fixtures."""

    pre: tuple[Step, ...]
    around: tuple[Hook, ...]
    post: tuple[Step, ...]
    post_hooks: tuple[Hook, ...]
    """The individual post hooks. After an error, each of them runs under its own guard."""
    unlocks_body: bool
    """Whether a lazy fixture of this stage becomes valid when the stage's body ends."""
    unlocks_outer: bool
    """Whether a lazy fixture of an outer stage becomes valid when this stage ends."""
    declared: tuple[str, ...]
    """The fixtures that only this stage owns, according to the tree. Closing the stage removes them, no matter how they were set."""
    progress: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the stage has nothing to do when it opens and closes."""
        return not (self.pre or self.around or self.post or self.unlocks_body or self.unlocks_outer or self.declared)


def make_plan(stage: str, hooks: list[Hook], lazies: Mapping[str, list[LazyFixture]], tree: StageTree | None) -> Plan:
    pre, around, post = (
        tuple(hook for hook in hooks if hook.stage == stage and hook.phase == phase) for phase in ("pre", "around", "post")
    )
    specs = [lazy.spec for each in lazies.values() for lazy in each]
    return Plan(
        pre=_steps(pre),
        around=around,
        post=_steps(post),
        post_hooks=post,
        unlocks_body=any(spec.after == BODY and stage in spec.stages for spec in specs),
        unlocks_outer=any(spec.after == stage for spec in specs),
        declared=tree.own_fixtures(stage) if tree is not None else (),
        progress=tree.progress if tree is not None else (),
    )


def _steps(hooks: tuple[Hook, ...]) -> tuple[Step, ...]:
    grouped: list[Hook | ObserverGroup] = []
    for hook in hooks:
        last = grouped[-1] if grouped else None
        if hook.guard is None:
            grouped.append(hook)
        elif isinstance(last, ObserverGroup):
            grouped[-1] = ObserverGroup((*last.hooks, hook), last.guard)
        else:
            grouped.append(ObserverGroup((hook,), hook.guard))
    return tuple(map(_step, grouped))


def _step(hook: Hook | ObserverGroup) -> Step:
    if isinstance(hook, ObserverGroup) or hook.takes or hook.has_keywords:
        return hook, hook.call, None, lambda values: (values,)
    match hook.needs:
        case ():
            return hook, hook.method, None, None
        case (name,):
            return hook, hook.method, name, None
    return hook, hook.method, None, itemgetter(*hook.needs)
