"""Declares the stages and fixtures of a routine, so that they are known before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal

from trainmaster.errors import UnknownStageError, did_you_mean

Phase = Literal["pre", "around", "post"]
Path = tuple["Stage", ...]

ENTRY: Final = "entry"
"""The creation point of a fixture that exists as soon as its stage opens."""

BODY: Final = "body"
"""The creation point of a fixture that the stage's body creates. Only post hooks of that stage can use the fixture."""

ERROR_FIXTURES: Final = ("exc_type", "exc_value", "traceback")
"""The fixtures that describe the stage's error to a post hook. All three are None if the stage did not fail."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a tree: its name, the fixtures it owns, and its inner stages in the order in which they open.

    `fixtures` maps each name to its creation point: `ENTRY`, `BODY`, or the name of the inner stage whose body creates it.
    With `Stage("batch", fixtures={"batch": ENTRY, "prediction": "forward"})`, the body of `forward` creates `prediction`. The
    post hooks of `forward` and all later hooks can use it, until `batch` closes.
    """

    name: str
    about: str = ""
    fixtures: Mapping[str, str] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    is_permanent: bool = False
    """Whether the stage opens when the object is created, and never closes."""


@dataclass(frozen=True)
class StageTree:
    """The declared stages of a routine.

    The notes of an error show the values of the fixtures listed in `progress`, so that you know how far the routine got.
    """

    root: Stage
    progress: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for stage in (path[-1] for paths in self.paths.values() for path in paths):
            points = [ENTRY, BODY, *(inner.name for inner in stage.stages)]
            for name, point in stage.fixtures.items():
                if point not in points:
                    raise UnknownStageError(
                        f"fixture `{name}` of stage `{stage.name}` is declared as created in `{point}`, which is not an inner stage",
                        known=", ".join(points),
                        hint=did_you_mean(point, points) or "use the name of an inner stage, ENTRY or BODY",
                    )

    @cached_property
    def paths(self) -> dict[str, list[Path]]:
        """All paths from the root to each stage, by the name of the stage."""
        paths: dict[str, list[Path]] = {}
        for path in _paths_below((self.root,)):
            paths.setdefault(path[-1].name, []).append(path)
        return paths

    @cached_property
    def owners(self) -> dict[str, frozenset[str]]:
        """The stages that own each declared fixture, by the name of the fixture."""
        owners: dict[str, frozenset[str]] = {}
        for stage, paths in self.paths.items():
            for name in (name for path in paths for name in path[-1].fixtures):
                owners[name] = owners.get(name, frozenset()) | {stage}
        return owners

    def own_fixtures(self, stage: str) -> tuple[str, ...]:
        """Return the fixtures that a stage owns, excluding those that one of its outer stages owns as well."""
        paths = self.paths[stage]
        outer = {name for path in paths for stage in path[:-1] for name in stage.fixtures}
        return tuple(name for name in paths[0][-1].fixtures if name not in outer)

    def with_stage(self, parent: str, stage: Stage) -> StageTree:
        """Return a copy of this tree in which `stage` is the last inner stage of every stage named `parent`.

        Use it in a subclass that opens an additional stage: `tree = TrainManager.tree.with_stage("forward", Stage("encode"))`.
        """
        if parent not in self.paths:
            raise UnknownStageError(
                f"cannot add stage `{stage.name}` to `{parent}`: there is no stage `{parent}`",
                known=", ".join(self.paths),
                hint=did_you_mean(parent, self.paths) or "use one of the known stages as the parent",
            )
        return replace(self, root=_add_child(self.root, parent, stage))


def _paths_below(path: Path) -> Iterator[Path]:
    yield path
    for stage in path[-1].stages:
        yield from _paths_below((*path, stage))


def _add_child(stage: Stage, parent: str, child: Stage) -> Stage:
    inner = tuple(_add_child(each, parent, child) for each in stage.stages)
    return replace(stage, stages=(*inner, child) if stage.name == parent else inner)


def exists_at(point: str, owner: Stage, inner: Path, phase: Phase) -> bool:
    """Return whether a hook can use a fixture that is created at `point` in the stage `owner`.

    The hook is a `phase` hook ("pre", "around" or "post") of the last stage in `inner`, which is the path of stages
    below the owner. If `inner` is empty, the hook belongs to the owner itself.
    """
    if point == ENTRY:
        return True
    if not inner:
        return phase == "post"
    order = [stage.name for stage in owner.stages]
    if point not in order:
        return False
    created, current = order.index(point), order.index(inner[0].name)
    return created < current or (created == current and phase == "post" and len(inner) == 1)


def visible_at(path: Path, phase: Phase) -> set[str]:
    """Return the declared fixtures that a `phase` hook of the last stage in `path` can ask for."""
    names = {
        name
        for depth, owner in enumerate(path)
        for name, point in owner.fixtures.items()
        if exists_at(point, owner, path[depth + 1 :], phase)
    }
    return names | set(ERROR_FIXTURES) if phase == "post" else names


def path_text(path: Path) -> str:
    """Format a path as `run > train > eval`, without the permanent root."""
    return " > ".join(stage.name for stage in path if not stage.is_permanent) or path[-1].name
