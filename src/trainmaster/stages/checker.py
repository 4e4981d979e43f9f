"""The checker: wrong hooks are refused when they are attached or before the first stage runs, not in epoch seven.

Names are checked on attaching. Parameters are checked when a routine starts, because extensions may create fixtures for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainmaster.errors import (
    FixtureCycleError,
    FixtureError,
    FixtureExistsError,
    FixtureNotFoundError,
    FixtureScopeError,
    UnknownHookError,
    UnknownStageError,
    did_you_mean,
    nearest,
)
from trainmaster.stages.hooks import PHASES, Hook, LazyFixture, find_hooks, find_lazy_fixtures
from trainmaster.stages.scope import lifetime
from trainmaster.stages.tree import BODY, ENTRY, ERROR_FIXTURES, Path, Phase, StageTree, exists_at, path_text, visible_at


def is_of(part: Hook | LazyFixture, tree: StageTree | None) -> bool:
    """Whether the stages of a hook or lazy fixture are those of a tree."""
    stages = (part.stage,) if isinstance(part, Hook) else part.spec.stages
    return tree is None or all(stage in tree.paths for stage in stages)


def check_names(
    name: str, extension: object, tree: StageTree | None, partners: tuple[StageTree, ...] = (), may_be_theirs: bool = False
) -> None:
    """Refuse hooks and lazy fixtures that belong to no declared stage, and signatures that cannot be filled.

    What belongs to a partner is that one's to check, but something must be for this tree, unless it `may_be_theirs`.
    """
    hooks, lazies = find_hooks(name, extension), find_lazy_fixtures(name, extension)
    if tree is None:
        return
    parts: list[Hook | LazyFixture] = [*hooks, *lazies]
    theirs = [part for part in parts if not is_of(part, tree) and any(is_of(part, each) for each in partners)]
    if theirs and len(theirs) == len(parts) and not may_be_theirs:
        raise UnknownHookError(
            f"extension `{name}` has no hook for a stage that opens here", where=theirs[0].where, known=", ".join(tree.paths)
        )
    hooks, lazies = [hook for hook in hooks if hook not in theirs], [lazy for lazy in lazies if lazy not in theirs]
    for hook in hooks:
        if hook.stage not in tree.paths:
            known = [f"{phase}_{stage}" for phase in PHASES for each in (tree, *partners) for stage in each.paths]
            slip = did_you_mean(f"{hook.phase}_{hook.stage}", known)
            raise UnknownHookError(
                f"`{hook.title}` is named like a hook, but there is no stage `{hook.stage}`",
                where=hook.where,
                known=", ".join(tree.paths),
                hint=f"{slip + ' ' if slip else ''}A method that is no hook is marked @not_a_hook",
            )
        if hook.is_always and hook.phase != "post":
            raise UnknownHookError(
                f"`{hook.title}` is marked @always, which is for post hooks", where=hook.where, hint=f"mark `post_{hook.stage}`"
            )
    for lazy in lazies:
        inner = {stage.name for owner in lazy.spec.stages for path in tree.paths.get(owner, []) for stage in path[-1].stages}
        for stage in lazy.spec.stages:
            if stage not in tree.paths:
                raise UnknownStageError(
                    f"lazy fixture `{lazy.title}` belongs to `{stage}`, which is no stage",
                    where=lazy.where,
                    known=", ".join(tree.paths),
                    hint=did_you_mean(stage, tree.paths) or "name one of the known stages in @fixture(...)",
                )
        if lazy.spec.after not in {None, BODY, *inner}:
            raise UnknownStageError(
                f"lazy fixture `{lazy.title}` is valid after `{lazy.spec.after}`, which is no stage inside its own",
                where=lazy.where,
                known=", ".join(sorted(inner)) or f"`{lazy.spec.stages[0]}` has no inner stages",
                hint=did_you_mean(str(lazy.spec.after), inner) or "name an inner stage of the owner, or BODY",
            )


def check_cycles(lazies: Mapping[str, list[LazyFixture]]) -> None:
    """Refuse lazy fixtures that need each other."""

    def follow(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            cycle = trail[trail.index(name) :]
            raise FixtureCycleError(
                f"lazy fixtures ask for each other: {' -> '.join((*cycle, name))}",
                where=", ".join(f"{lazy.title} ({lazy.where})" for each in cycle for lazy in lazies[each]),
                hint="compute one of them without the other",
            )
        for lazy in lazies.get(name, []):
            for need in lazy.needs:
                follow(need, (*trail, name))

    for name in lazies:
        follow(name, ())


@dataclass(frozen=True, slots=True)
class Checker:
    """What is known of a routine before it runs."""

    tree: StageTree
    lazies: Mapping[str, list[LazyFixture]]
    creates: Mapping[str, frozenset[str]]
    """Fixtures that extensions, or the host, say they create, and the stages that own them."""
    is_open: bool
    """Somebody may create fixtures that are declared nowhere."""

    def check(self, hooks: Iterable[Hook]) -> None:
        """Refuse parameters that cannot be filled, all of them in one error."""
        self._check_redefinitions()
        problems: list[FixtureError] = []
        for name in self.lazies:
            for lazy in self.lazies[name]:
                for stage in lazy.spec.stages:
                    problems += self._problems(f"lazy fixture `{lazy.title}`", lazy.where, lazy.needs, stage, "post")
        for hook in hooks:
            problems += self._problems(f"`{hook.title}`", hook.where, (*hook.needs, *self._slips(hook)), hook.stage, hook.phase)
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
                            f"lazy fixture `{lazy.title}` has the name of a fixture that is open in `{stage}`",
                            where=lazy.where,
                            hint="give the method another name",
                        )
                    if stage in owners:
                        raise FixtureExistsError(
                            f"two lazy fixtures are called `{name}` in stage `{stage}`",
                            where=f"{owners[stage]} and {lazy.title} ({lazy.where})",
                            hint="rename one, or attach only one of the extensions",
                        )
                    owners[stage] = lazy.title

    def _slips(self, hook: Hook) -> list[str]:
        """Parameters with a default whose names are near misses: they would take the default for ever."""
        return [name for name in hook.takes if name not in self._known() and name not in ERROR_FIXTURES and nearest(name, self._known())]

    def _problems(self, who: str, where: str, needs: Iterable[str], stage: str, phase: Phase) -> list[FixtureError]:
        found: dict[str, FixtureError] = {}
        for path in self.tree.paths.get(stage, []):
            visible = self._visible(path, phase)
            for name in needs:
                if name not in visible and name not in found and not self._may_appear(name):
                    found[name] = self._error(name, who, where, path, phase, visible)
        return list(found.values())

    def _known(self) -> set[str]:
        return {*self.tree.owners, *self.lazies, *self.creates, "fixtures"}

    def _may_appear(self, name: str) -> bool:
        return self.is_open and name not in self._known() and name not in ERROR_FIXTURES and not nearest(name, self._known())

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

    def _error(self, name: str, who: str, where: str, path: Path, phase: Phase, visible: set[str]) -> FixtureError:
        place = f"{where}, stage {path_text(path)}"
        if name not in self._known() and name not in ERROR_FIXTURES:
            advice = did_you_mean(name, self._known()) or "declare it in `creates`, or give the parameter a default;"
            return FixtureNotFoundError(
                f"{who} asks for `{name}`, which nothing provides",
                where=place,
                open=", ".join(sorted(visible)),
                hint=f"{advice} `describe()` lists every stage and its fixtures",
            )
        return FixtureScopeError(
            f"{who} asks for `{name}`, which does not exist at that point",
            where=place,
            open=", ".join(sorted(visible)),
            why=self._where_it_lives(name),
            hint="ask for it in a later hook or in its own stage, or give the parameter a default",
        )

    def _where_it_lives(self, name: str) -> str:
        if name in ERROR_FIXTURES:
            return f"`{name}` exists in post hooks only"
        lives = [lifetime(lazy) for lazy in self.lazies.get(name, [])]
        for stage in sorted({*self.tree.owners.get(name, ()), *self.creates.get(name, ())}):
            point = next((path[-1].fixtures[name] for path in self.tree.paths.get(stage, []) if name in path[-1].fixtures), BODY)
            created = {ENTRY: "at its start", BODY: "in its body"}.get(point, f"in `{point}`")
            lives.append(f"`{name}` belongs to `{stage}` and is created {created}")
        return "; ".join(lives)
