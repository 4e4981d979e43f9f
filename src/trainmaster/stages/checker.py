"""Checks hooks for mistakes when they are attached and before the first stage runs.

Names are checked when an extension is attached. Parameters are checked only when a routine starts, because an
extension that is attached later may create the fixtures that they refer to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType

from trainmaster.errors import (
    ExtensionError,
    FixtureError,
    FixtureExistsError,
    FixtureNotFoundError,
    FixtureScopeError,
    UnknownHookError,
    UnknownStageError,
    did_you_mean,
    nearest,
    shown,
)
from trainmaster.stages.extension import is_marked_not_a_hook
from trainmaster.stages.hooks import PHASES, Hook, LazyFixture, find_hooks, find_lazy_fixtures, source_of
from trainmaster.stages.scope import cycle_error, lifetime
from trainmaster.stages.tree import BODY, ENTRY, ERROR_FIXTURES, Path, Phase, StageTree, exists_at, path_text, visible_at

STATE_METHODS = ("state_dict", "load_state_dict")


def belongs_to(part: Hook | LazyFixture, tree: StageTree | None) -> bool:
    """Return whether a tree contains all stages that a hook or lazy fixture belongs to."""
    stages = (part.stage,) if isinstance(part, Hook) else part.spec.stages
    return tree is None or all(stage in tree.paths for stage in stages)


def check_names(
    name: str, extension: object, tree: StageTree | None, partners: tuple[StageTree, ...] = (), may_be_for_partner: bool = False
) -> None:
    """Raise an error for hooks and lazy fixtures whose stages are not declared, or whose parameters cannot be fixtures.

    `partners` are the trees of other routines that share extensions with this one. Hooks for stages of those
    routines are not checked. If an extension has only such hooks, an error is raised, unless `may_be_for_partner` is True.
    """
    hooks, lazies = find_hooks(name, extension), find_lazy_fixtures(name, extension)
    if tree is None:
        return
    parts: list[Hook | LazyFixture] = [*hooks, *lazies]
    foreign = [part for part in parts if not belongs_to(part, tree) and any(belongs_to(part, each) for each in partners)]
    if foreign and len(foreign) == len(parts) and not may_be_for_partner:
        raise UnknownHookError(
            f"extension `{name}` has no hook for any stage of this routine",
            where=foreign[0].where,
            known=", ".join(tree.paths),
            hint="its hooks are for stages of the manager: attach it to the manager",
        )
    for part in parts:
        if part in foreign:
            continue
        if isinstance(part, Hook):
            _check_hook_name(part, tree, partners if may_be_for_partner else ())
        else:
            _check_lazy_stages(part, tree)
    _check_prefixes(extension, {stage for each in (tree, *partners) for stage in each.paths})


def check_state_methods(name: str, extension: object) -> None:
    """Raise an error if an extension has only one of `state_dict` and `load_state_dict`, because its state would be lost silently."""
    missing = [each for each in STATE_METHODS if not callable(getattr(extension, each, None))]
    if not missing:
        return
    misspelled = [
        method
        for method in dir(type(extension))
        if "state" in method
        and method not in STATE_METHODS
        and any(is_same_word(method, each) for each in missing)
        and not is_marked_not_a_hook(getattr(type(extension), method))
    ]
    if len(missing) == 1 or misspelled:
        kind = type(extension).__name__
        has = " and ".join(f"`{kind}.{each}`" for each in (*STATE_METHODS, *misspelled) if each not in missing)
        raise ExtensionError(
            f"extension `{name}` has {has}, but no {' and no '.join(f'`{each}`' for each in missing)}",
            why="checkpoints contain the state of an extension only if it has both methods",
            hint=f"rename `{misspelled[0]}`, or mark it with @not_a_hook" if misspelled else f"define `{missing[0]}` as well",
        )


def check_creates(extension: object) -> None:
    """Raise an error unless `creates` maps each fixture to the stage that owns it."""
    creates = getattr(extension, "creates", None)
    if creates is not None and not isinstance(creates, Mapping):
        names = ", ".join(f'"{each}": "train_step_batch"' for each in creates) if isinstance(creates, list | tuple | set) else ""
        raise ExtensionError(
            f"`{type(extension).__name__}.creates` is {shown(creates)}, which does not say which stage owns the fixtures",
            hint=f"map each fixture to its stage: creates = {{{names}}}",
        )


def is_same_word(name: str, other: str) -> bool:
    """Return whether two names are equal or nearly equal when underscores are ignored."""
    from difflib import SequenceMatcher  # imported here, because most extensions do not need it

    return SequenceMatcher(None, name.replace("_", ""), other.replace("_", "")).ratio() > 0.9


def _check_hook_name(hook: Hook, tree: StageTree, also_accepted: tuple[StageTree, ...]) -> None:
    if hook.stage not in tree.paths:
        known = [f"{phase}_{stage}" for phase in PHASES for each in (tree, *also_accepted) for stage in each.paths]
        suggestion = did_you_mean(f"{hook.phase}_{hook.stage}", known)
        raise UnknownHookError(
            f"`{hook.title}` is named like a hook, but there is no stage `{hook.stage}`",
            where=hook.where,
            known=", ".join(tree.paths),
            hint=f"{suggestion} If it is not a hook, mark it with @not_a_hook".strip(),
        )
    if hook.is_always and hook.phase != "post":
        raise UnknownHookError(
            f"`{hook.title}` is marked with @always, which only works for post hooks", where=hook.where, hint=f"mark `post_{hook.stage}`"
        )


def _check_prefixes(extension: object, stages: set[str]) -> None:
    """Raise an error for a method with a wrong prefix, such as `arround_eval` or `before_eval`, because it would never be called."""
    methods = {name: method for kind in reversed(type(extension).__mro__) for name, method in vars(kind).items()}
    for name, method in methods.items():
        if isinstance(method, FunctionType) and (meant := _meant_hook(name, stages)) and not is_marked_not_a_hook(method):
            raise UnknownHookError(
                f"`{type(extension).__name__}.{name}` looks like a hook, but would never be called",
                where=source_of(method),
                why="the names of hooks start with `pre_`, `around_` or `post_`",
                hint=f"rename it to {meant}; if it is not a hook, mark it with @not_a_hook",
            )


def _meant_hook(name: str, stages: set[str]) -> str:
    """Return the hook that a method is probably meant to be, or an empty string if the method does not look like a hook.

    >>> _meant_hook("arround_eval", {"eval"}), _meant_hook("preEval", {"eval"}), _meant_hook("stop_eval", {"eval"})
    ('`around_eval`', '`pre_eval`', '')
    """
    if name in stages and "_step_" in name:  # the names of other stages, such as `forward`, are also common method names
        return f"`pre_{name}` or `post_{name}`"
    words = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
    stage = next((words[start:] for start in range(3, len(words)) if words[start:] in stages), "")
    prefix = words.removesuffix(stage)
    if not stage or words in _ORDINARY or (prefix == "pos_" and "_" not in stage):  # `pos_loss` may be the loss of positive samples
        return ""
    is_renamed = words != name
    phase = next((phase for word, phase in _PREFIXES.items() if prefix in _misspellings(word) or (is_renamed and prefix == f"{word}_")), "")
    phase = phase or {"before_": "pre", "after_": "post"}.get(prefix, "")
    return f"`{phase}_{stage}`" if phase else ""


_PREFIXES = {"pre": "pre", "around": "around", "post": "post", "before": "pre", "after": "post"}
"""Words that users may write at the start of a hook's name, and the phase that each word stands for."""
_ORDINARY = ("pretrain", "prerun", "prework")
"""Ordinary words that consist of a prefix and the name of a stage."""


def _misspellings(prefix: str) -> set[str]:
    """Return misspellings of a prefix: with a doubled letter, a missing letter, two swapped letters, or no `_`.

    `re_` and `round_` are not included, because methods such as `re_train` and `round_loss` have ordinary names.
    """
    doubled = {prefix[:at] + prefix[at] + prefix[at:] for at in range(len(prefix))}
    missing = {prefix[:at] + prefix[at + 1 :] for at in range(len(prefix))} - {"re", "round"}
    swapped = {prefix[:at] + prefix[at + 1] + prefix[at] + prefix[at + 2 :] for at in range(len(prefix) - 1)}
    return {f"{each}_" for each in doubled | missing | swapped} | {prefix}


def _check_lazy_stages(lazy: LazyFixture, tree: StageTree) -> None:
    for stage in lazy.spec.stages:
        if stage not in tree.paths:
            raise UnknownStageError(
                f"lazy fixture `{lazy.title}` belongs to `{stage}`, which is not a stage",
                where=lazy.where,
                known=", ".join(tree.paths),
                hint=did_you_mean(stage, tree.paths) or "use one of the known stages in @fixture(...)",
            )
    inner = {stage.name for owner in lazy.spec.stages for path in tree.paths[owner] for stage in path[-1].stages}
    if lazy.spec.after not in {None, BODY, *inner}:
        raise UnknownStageError(
            f"lazy fixture `{lazy.title}` is declared as valid after `{lazy.spec.after}`, which is not an inner stage of its own stage",
            where=lazy.where,
            known=", ".join(sorted(inner)) or f"`{lazy.spec.stages[0]}` has no inner stages",
            hint=did_you_mean(str(lazy.spec.after), inner) or "use an inner stage of the owner, or BODY",
        )


def check_cycles(lazies: Mapping[str, list[LazyFixture]]) -> None:
    """Raise an error for lazy fixtures that depend on each other."""

    def follow(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            cycle = trail[trail.index(name) :]
            raise cycle_error((*cycle, name), ", ".join(f"{lazy.title} ({lazy.where})" for each in cycle for lazy in lazies[each]))
        for lazy in lazies.get(name, []):
            for need in lazy.needs:
                follow(need, (*trail, name))

    for name in lazies:
        follow(name, ())


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks the parameters of hooks before a routine runs."""

    tree: StageTree
    lazies: Mapping[str, list[LazyFixture]]
    creates: Mapping[str, frozenset[str]]
    """The fixtures that the extensions and the extensible object declare in `creates`, with the stages that own them."""
    may_create: bool
    """Whether a hook or the extensible object may create fixtures that are not declared."""

    def check(self, hooks: Iterable[Hook]) -> None:
        """Raise an error that lists all parameters for which there is no fixture."""
        self._check_redefinitions()
        problems: list[FixtureError] = []
        for name in self.lazies:
            for lazy in self.lazies[name]:
                for stage in lazy.spec.stages:
                    problems += self._problems(f"lazy fixture `{lazy.title}`", lazy.where, lazy.needs, stage, "post")
        for hook in hooks:
            problems += self._problems(f"`{hook.title}`", hook.where, (*hook.needs, *self._misspelled(hook)), hook.stage, hook.phase)
        if problems:
            first, *others = problems
            if others:
                first.rows["also"] = "\n".join(other.fact for other in others)
            raise first

    def _check_redefinitions(self) -> None:
        for name, lazies in self.lazies.items():
            owners: dict[str, str] = {}
            for lazy in lazies:
                for stage in lazy.spec.stages:
                    if name in ERROR_FIXTURES or any(
                        name in each.fixtures or each.name in self.creates.get(name, ()) for path in self.tree.paths[stage] for each in path
                    ):
                        raise FixtureExistsError(
                            f"lazy fixture `{lazy.title}` has the name of a fixture that already exists in `{stage}`",
                            where=lazy.where,
                            hint="rename the method",
                        )
                    if stage in owners:
                        raise FixtureExistsError(
                            f"two lazy fixtures in stage `{stage}` are named `{name}`",
                            where=f"{owners[stage]} and {lazy.title} ({lazy.where})",
                            hint="rename one, or attach only one of the extensions",
                        )
                    owners[stage] = lazy.title

    def _misspelled(self, hook: Hook) -> list[str]:
        """Return the optional parameters whose names look like misspelled fixtures. They would silently keep their default values."""
        return [name for name in hook.takes if name not in self._known() and name not in ERROR_FIXTURES and nearest(name, self._known())]

    def _problems(self, asker: str, where: str, needs: Iterable[str], stage: str, phase: Phase) -> list[FixtureError]:
        errors: dict[str, FixtureError] = {}
        for path in self.tree.paths.get(stage, []):
            visible = self._visible(path, phase)
            for name in needs:
                if name not in visible and name not in errors and not self._may_appear(name):
                    errors[name] = self._error(name, asker, where, path, visible)
        return list(errors.values())

    def _known(self) -> set[str]:
        return {*self.tree.owners, *self.lazies, *self.creates, "fixtures"}

    def _may_appear(self, name: str) -> bool:
        return self.may_create and name not in self._known() and name not in ERROR_FIXTURES and not nearest(name, self._known())

    def _visible(self, path: Path, phase: Phase) -> set[str]:
        visible = visible_at(path, phase) | {"fixtures"}
        stages = {stage.name for stage in path}
        visible |= {name for name, owners in self.creates.items() if owners & stages}
        waiting = {name for name in self.lazies if name not in visible}
        while True:
            ready = {name for name in waiting if any(self._is_ready(lazy, path, phase, visible) for lazy in self.lazies[name])}
            if not ready:
                return visible
            visible |= ready
            waiting -= ready

    def _is_ready(self, lazy: LazyFixture, path: Path, phase: Phase, visible: set[str]) -> bool:
        if not all(need in visible or self._may_appear(need) for need in lazy.needs):
            return False
        return any(
            owner.name in lazy.spec.stages and exists_at(lazy.spec.after or ENTRY, owner, path[depth + 1 :], phase)
            for depth, owner in enumerate(path)
        )

    def _error(self, name: str, asker: str, where: str, path: Path, visible: set[str]) -> FixtureError:
        location = f"{where}, stage {path_text(path)}"
        if name not in self._known() and name not in ERROR_FIXTURES:
            advice = did_you_mean(name, self._known(), or_longer=True) or (
                "attach the extension that provides it, declare it in `creates`, or give the parameter a default;"
            )
            return FixtureNotFoundError(
                f"{asker} asks for `{name}`, which nothing provides",
                where=location,
                open=", ".join(sorted(visible)),
                hint=f"{advice} `describe()` lists every stage and its fixtures",
            )
        return FixtureScopeError(
            f"{asker} asks for `{name}`, which does not exist at that point",
            where=location,
            open=", ".join(sorted(visible)),
            why=self._explain_lifetime(name),
            hint="ask for it in a later hook or in its own stage, or give the parameter a default",
        )

    def _explain_lifetime(self, name: str) -> str:
        if name in ERROR_FIXTURES:
            return f"`{name}` exists in post hooks only"
        clauses = [lifetime(lazy) for lazy in self.lazies.get(name, [])]
        for stage in sorted({*self.tree.owners.get(name, ()), *self.creates.get(name, ())}):
            point = next((path[-1].fixtures[name] for path in self.tree.paths.get(stage, []) if name in path[-1].fixtures), BODY)
            created = {ENTRY: "at its start", BODY: "in its body"}.get(point, f"in `{point}`")
            clauses.append(f"`{name}` belongs to `{stage}` and is created {created}")
        return "; ".join(clauses)
