"""The stage map that `describe()` returns: each stage with its fixtures, and its hooks in the order in which they run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

from trainmaster.stages.hooks import PHASES, Hook, LazyFixture
from trainmaster.stages.tree import ENTRY, Stage, StageTree


class StageMap(str):
    """A string that the Python prompt shows without quotes or escape sequences."""

    def __repr__(self) -> str:
        return str(self)


def describe_tree(
    tree: StageTree, hooks: list[Hook], lazies: Mapping[str, list[LazyFixture]], creates: Mapping[str, frozenset[str]]
) -> StageMap:
    lines: list[str] = []
    shown: set[str] = set()

    def draw(stage: Stage, head: str, tail: str) -> None:
        lines.append(f"{head}{stage.name}" + (f"   {stage.about}" if stage.about else ""))
        if stage.name in shown and stage.stages:
            lines.append(f"{tail}   (as above)")
            return
        shown.add(stage.name)
        indent = f"{tail}{'│  ' if stage.stages else '   '}"
        lines.extend(f"{indent}{line}" for line in [*_fixture_lines(stage, creates, 110 - len(indent)), *_lazy_lines(stage, lazies)])
        lines.extend(f"{indent}{line}" for line in _hook_lines(hooks, stage.name))
        for child in stage.stages:
            is_last = child is stage.stages[-1]
            draw(child, f"{tail}{'└─ ' if is_last else '├─ '}", f"{tail}{'   ' if is_last else '│  '}")

    draw(tree.root, "", "")
    return StageMap("\n".join(lines))


def describe_hooks(hooks: list[Hook], opened: Iterable[str]) -> StageMap:
    """Describe a routine without a declared tree: the stages that have been opened so far, and the hooks by stage."""
    opened = list(opened)
    lines = []
    for stage in dict.fromkeys((*opened, *(hook.stage for hook in hooks))):
        lines.append(stage + ("" if stage in opened else "   (not opened yet)"))
        lines.extend(f"   {line}" for line in _hook_lines(hooks, stage))
    return StageMap("\n".join(lines))


def _fixture_lines(stage: Stage, creates: Mapping[str, frozenset[str]], width: int) -> list[str]:
    names = [name if point == ENTRY else f"{name}\0({point})" for name, point in stage.fixtures.items()]
    names += [f"{name}\0(extension)" for name, owners in creates.items() if stage.name in owners]
    lines = textwrap.wrap(", ".join(names), width, initial_indent="fixtures  ", subsequent_indent=" " * 10, break_long_words=False)
    return [line.replace("\0", " ") for line in lines]


def _lazy_lines(stage: Stage, lazies: Mapping[str, list[LazyFixture]]) -> list[str]:
    return [
        f"lazy      {lazy.name}   {lazy.extension_name}{f', after {lazy.spec.after}' if lazy.spec.after else ''}"
        for each in lazies.values()
        for lazy in each
        if stage.name in lazy.spec.stages
    ]


def _hook_lines(hooks: list[Hook], stage: str) -> list[str]:
    return [
        f"{phase:<9} {hook.title}({', '.join((*hook.needs, *(f'{name}=' for name in hook.takes)))})"
        + ("   always" if hook.is_always else "")
        for phase in PHASES
        for hook in hooks
        if hook.stage == stage and hook.phase == phase
    ]
