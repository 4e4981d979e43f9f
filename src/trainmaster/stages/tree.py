"""A routine's stages and fixtures, declared once, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal

from trainmaster.errors import UnknownStageError, did_you_mean

Phase = Literal["pre", "around", "post"]
Path = tuple["Stage", ...]

ENTRY: Final = "entry"
"""The point of a fixture that exists as soon as its stage opens."""

BODY: Final = "body"
"""The point of a fixture that the stage's body creates: post hooks see it."""

ERROR_FIXTURES: Final = ("exc_type", "exc_value", "traceback")
"""What a post hook sees of the error in flight; all None where nothing failed."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a tree: its name, the fixtures it owns, the stages inside it in the order they open.

    A fixture's value is the *point* where it comes to be: `ENTRY`, `BODY`, or the name of the inner stage whose
    body creates it. `Stage("batch", fixtures={"batch": ENTRY, "prediction": "forward"})` says that `prediction` is made
    within `forward`, is visible from the post hooks of `forward` on, and dies with `batch`.
    """

    name: str
    about: str = ""
    fixtures: Mapping[str, str] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    is_lasting: bool = False
    """Opened with the object and never closed."""


@dataclass(frozen=True)
class StageTree:
    """The declared tree of a routine.

    `landmarks` are the fixtures that tell a reader of an error how far the routine had come.
    """

    root: Stage
    landmarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for paths in self.paths.values():
            for stage in (path[-1] for path in paths):
                points = [ENTRY, BODY, *(inner.name for inner in stage.stages)]
                for name, point in stage.fixtures.items():
                    if point not in points:
                        raise UnknownStageError(
                            f"fixture `{name}` of stage `{stage.name}` is to be created in `{point}`, which is no stage inside it",
                            known=", ".join(points),
                            hint=did_you_mean(point, points) or "name an inner stage, ENTRY or BODY",
                        )

    @cached_property
    def paths(self) -> dict[str, list[Path]]:
        """For each stage name, every path from the root to it."""
        found: dict[str, list[Path]] = {}
        for path in _walk((self.root,)):
            found.setdefault(path[-1].name, []).append(path)
        return found

    @cached_property
    def owners(self) -> dict[str, frozenset[str]]:
        """For each declared fixture, the stages that own it."""
        found: dict[str, set[str]] = {}
        for name, paths in self.paths.items():
            for path in paths:
                for fixture in path[-1].fixtures:
                    found.setdefault(fixture, set()).add(name)
        return {fixture: frozenset(stages) for fixture, stages in found.items()}

    def own_fixtures(self, stage: str) -> tuple[str, ...]:
        """The fixtures of a stage that no stage around it owns too."""
        paths = self.paths[stage]
        around = {name for path in paths for outer in path[:-1] for name in outer.fixtures}
        return tuple(name for name in paths[0][-1].fixtures if name not in around)

    def adding(self, parent: str, stage: Stage) -> StageTree:
        """This tree with one more stage at the end of every stage named `parent`.

        A subclass that opens a stage of its own declares it so: `tree = TrainManager.tree.adding("forward", Stage("encode"))`.
        """
        if parent not in self.paths:
            raise UnknownStageError(
                f"no stage `{parent}` to put `{stage.name}` into",
                known=", ".join(self.paths),
                hint=did_you_mean(parent, self.paths) or "name one of the known stages as the parent",
            )
        return replace(self, root=_grow(self.root, parent, stage))


def _walk(path: Path) -> Iterator[Path]:
    yield path
    for stage in path[-1].stages:
        yield from _walk((*path, stage))


def _grow(stage: Stage, parent: str, child: Stage) -> Stage:
    inner = tuple(_grow(each, parent, child) for each in stage.stages)
    return replace(stage, stages=(*inner, child) if stage.name == parent else inner)


def exists_at(point: str, owner: Stage, inner: Path, phase: Phase) -> bool:
    """Is a fixture of `owner`, created at `point`, there in the hooks of `phase`, `inner` stages further down?

    With `inner` empty the hook is the owner's own.
    """
    if point == ENTRY:
        return True
    if not inner:
        return phase == "post"
    order = [stage.name for stage in owner.stages]
    if point not in order:
        return False
    made, here = order.index(point), order.index(inner[0].name)
    return made < here or (made == here and phase == "post" and len(inner) == 1)


def visible_at(path: Path, phase: Phase) -> set[str]:
    """The declared fixtures that a hook of `phase` at the end of `path` can ask for."""
    names = {
        name
        for depth, owner in enumerate(path)
        for name, point in owner.fixtures.items()
        if exists_at(point, owner, path[depth + 1 :], phase)
    }
    return names | set(ERROR_FIXTURES) if phase == "post" else names


def path_text(path: Path) -> str:
    """`run > train > eval`, the lasting root left out."""
    return " > ".join(stage.name for stage in path if not stage.is_lasting) or path[-1].name
