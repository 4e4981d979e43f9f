"""The stage trees and the list of hooks, read from `loop/stages.py`."""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster.loop.components import CALLBACKS
from trainmaster.loop.stages import TRAIN_MANAGER, TRAIN_TEST_LOOP, WORK
from trainmaster.stages.stage_map import describe_tree
from trainmaster.stages.tree import BODY, ENTRY, ERROR_FIXTURES, StageTree, path_text, visible_at

TREES = {
    "TrainManager and Supervised": TRAIN_MANAGER,
    "Manager": WORK,
    "TrainTestLoop": TRAIN_TEST_LOOP,
}
STAGE_HEAD = """# Stage tree

A routine opens these stages, from the top to the bottom. A hook named `pre_STAGE`, `around_STAGE` or `post_STAGE` runs
at the stage, and its parameters are fixtures of this stage and of the stages around it. `print(loop.describe())` shows
the tree of your own loop, with your extensions' hooks and fixtures. The guide
[Stages, hooks and fixtures](../stages.md) explains the rules, and [Hooks](hooks.md) lists what each hook can ask for.

In the trees, a fixture without parentheses exists as soon as its stage opens. `prediction (forward)` is created in the
body of the inner stage `forward`, and exists from its `post_` hooks on.
"""
HOOK_HEAD = """# Hooks

Every hook of the included routines, with the fixtures that it can ask for by name. Extensions can add more: lazy
fixtures, and the names that they declare in `creates`. Each stage has three hooks:

- `pre_STAGE` runs before the body of the stage,
- `around_STAGE` is a generator that yields once, for the body,
- `post_STAGE` runs after the body. It can also ask for `exc_type`, `exc_value` and `traceback`. With `@always`, it runs
  after an error, too; then it can rely only on the fixtures of `pre_STAGE`.
"""
CALLBACK_HEAD = """## Callbacks of a component

A [`LoopComponent`](../train_test_loop.md) of a `TrainTestLoop` has these callbacks, in this order. Each receives the
loop.
"""


def stage_page() -> str:
    parts = [STAGE_HEAD]
    for title, tree in TREES.items():
        parts.append(f"## {title}\n\n```text\n{describe_tree(tree, [], {}, {})}\n```\n")
        parts.append("| stage | about | fixtures that it owns |\n|---|---|---|\n" + "\n".join(_stage_rows(tree)) + "\n")
    return "\n".join(parts)


def _stage_rows(tree: StageTree) -> Iterator[str]:
    for name, paths in tree.paths.items():
        stage = paths[0][-1]
        fixtures = ", ".join(f"`{each}`{_created(point)}" for each, point in stage.fixtures.items())
        yield f"| `{name}` | {stage.about} | {fixtures} |"


def _created(point: str) -> str:
    return {ENTRY: "", BODY: " (in the body)"}.get(point, f" (in `{point}`)")


def hook_page() -> str:
    parts = [HOOK_HEAD]
    for title, tree in TREES.items():
        parts.append(f"## {title}\n")
        parts.extend(_hook_lines(tree))
    parts.append(CALLBACK_HEAD)
    parts.append(", ".join(f"`{name}`" for name in CALLBACKS) + ".\n")
    return "\n".join(parts)


def _hook_lines(tree: StageTree) -> Iterator[str]:
    root = {*tree.root.fixtures}
    yield f"Everywhere: {_names(root)}.\n"
    yield "| hooks | where | also has |\n|---|---|---|"
    for name, paths in tree.paths.items():
        if paths[0][-1].is_permanent:  # it opens before an extension can be attached
            continue
        before = set.intersection(*(visible_at(path, "pre") for path in paths)) - root
        after = set.intersection(*(visible_at(path, "post") for path in paths)) - root - before - {*ERROR_FIXTURES}
        sometimes = set.union(*(visible_at(path, "pre") for path in paths)) - root - before
        where = "<br>".join(f"`{path_text(path)}`" for path in paths)
        fixtures = _names(before)
        if after:
            fixtures += f"{'<br>' if before else ''}`post_` also: {_names(after)}"
        if sometimes:
            fixtures += f"{'<br>' if fixtures else ''}inside training only: {_names(sometimes)}"
        yield f"| `pre_{name}`<br>`around_{name}`<br>`post_{name}` | {where} | {fixtures} |"
    yield ""


def _names(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
