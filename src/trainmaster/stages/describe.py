"""The stage map: the declared tree with its fixtures and, in order, the hooks that will run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainmaster.stages.hooks import PHASES, Hook, LazyFixture
from trainmaster.stages.tree import ENTRY, Stage, StageTree


class StageMap(str):
    """A text that shows itself as it is, also at a Python prompt."""

    def __repr__(self) -> str:
        return str(self)


def describe_tree(
    tree: StageTree, hooks: Iterable[Hook], lazies: Mapping[str, list[LazyFixture]], creates: Mapping[str, frozenset[str]]
) -> StageMap:
    hooks = list(hooks)
    lines: list[str] = []
    shown: set[str] = set()

    def draw(stage: Stage, head: str, tail: str) -> None:
        lines.append(f"{head}{stage.name}" + (f"   {stage.about}" if stage.about else ""))
        if stage.name in shown and stage.stages:
            lines.append(f"{tail}   (as above)")
            return
        shown.add(stage.name)
        inner = f"{tail}{'│  ' if stage.stages else '   '}"
        fixtures = [name if point == ENTRY else f"{name} ({point})" for name, point in stage.fixtures.items()]
        fixtures += [f"{name} (extension)" for name, owners in creates.items() if stage.name in owners]
        lines.extend(_wrap(f"{inner}fixtures  ", fixtures))
        for each in lazies.values():
            for lazy in each:
                if stage.name in lazy.spec.stages:
                    after = f", after {lazy.spec.after}" if lazy.spec.after else ""
                    lines.append(f"{inner}lazy      {lazy.name}   {lazy.extension_name}{after}")
        lines.extend(f"{inner}{line}" for line in _hook_lines(hooks, stage.name))
        for number, child in enumerate(stage.stages):
            is_last = number == len(stage.stages) - 1
            draw(child, f"{tail}{'└─ ' if is_last else '├─ '}", f"{tail}{'   ' if is_last else '│  '}")

    draw(tree.root, "", "")
    return StageMap("\n".join(lines))


def describe_hooks(hooks: Iterable[Hook], seen: Iterable[str]) -> StageMap:
    """The map of a routine without a declared tree: the stages that ran so far, and the hooks by stage."""
    hooks, seen = list(hooks), list(seen)
    lines = []
    for stage in dict.fromkeys((*seen, *(hook.stage for hook in hooks))):
        lines.append(stage + ("" if stage in seen else "   (not opened yet)"))
        lines.extend(f"   {line}" for line in _hook_lines(hooks, stage))
    return StageMap("\n".join(lines))


def _hook_lines(hooks: list[Hook], stage: str) -> list[str]:
    return [
        f"{phase:<9} {hook.title}({', '.join((*hook.needs, *(f'{name}=' for name in hook.takes)))})"
        + ("   always" if hook.is_always else "")
        for phase in PHASES
        for hook in hooks
        if hook.stage == stage and hook.phase == phase
    ]


def _wrap(head: str, names: list[str], width: int = 110) -> list[str]:
    lines, line = [], head
    for number, name in enumerate(names):
        piece = name + (", " if number < len(names) - 1 else "")
        if len(line) + len(piece) > width and line.strip() and not line.endswith("fixtures  "):
            lines.append(line.rstrip())
            line = head.replace("fixtures", " " * 8)
        line += piece
    return [*lines, line] if names else []
