"""The reference of the Python API: a page for each room, with every public name."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from itertools import zip_longest
from pathlib import Path

import trainmaster

SOURCE = Path(trainmaster.__file__).parent
TITLES = {
    "stages": ("Stages", "The engine: stages, hooks and fixtures. Guide: [Stages, hooks and fixtures](../stages.md)."),
    "loop": (
        "Loops",
        "Loops, their state and their writers. Guides: [TrainManager and Supervised](../train_manager.md), "
        "[TrainTestLoop](../train_test_loop.md), [Exact state](../exact_state.md), [Loggers](../loggers.md).",
    ),
    "extensions": ("Extensions", "The included extensions. Each has a page with an example in [Extensions](../extensions/index.md)."),
    "config": (
        "Configs",
        "Typed and free-form configs, and their identity. Guide: [Configs](../configs.md). "
        "[Config fields](config_fields.md) lists the fields of the included classes.",
    ),
    "manager": (
        "Managers and executors",
        "Train many configs. Guides: [Manager](../manager.md), [Types of trainers](../trainers.md), [Search](../search.md).",
    ),
    "store": ("Store", "The records of runs in plain files. Guide: [The store](../store.md)."),
    "analysis": ("Analysis", "Results, statistics and verdicts. Guides: [Analysis](../analysis.md), [Statistics](../statistics.md)."),
    "testing": ("Contract tests", "Subclass these in your own tests, for your extension, executor or storage back end."),
    "errors": ("Errors", "Every error that trainmaster raises on purpose is a `TrainmasterError`."),
}
ROOM_OF = {"sweep": "manager"}
"""Rooms that are shown on the page of another room."""
MORE = {
    "manager": ["trainmaster.manager.executor", "trainmaster.manager.local_workers.LocalWorkers"],
    "errors": ["trainmaster.errors"],
}
"""Public names that no `__all__` lists: whole modules, or single objects."""
INDEX_HEAD = """# Reference

Everything here is generated from the code of this version.

| | |
|---|---|
| [Command line](commands.md) | every command with its options and examples |
| [Stage tree](stage_tree.md), [hooks](hooks.md) | the stages of training, their fixtures, and what each hook can ask for |
| Python API | [stages](stages.md), [loops](loop.md), [extensions](extensions.md), [configs](config.md), [managers and executors](manager.md), [store](store.md), [analysis](analysis.md), [contract tests](testing.md), [errors](errors.md) |
| [Config fields](config_fields.md) | the fields of the included config classes, and which of them change the key of a run |
| [Files of a store](store_files.md) | the format of each file |

## Every name in `trainmaster`

"""  # noqa: E501
WITH_INHERITED = ("trainmaster.TrainManager", "trainmaster.TrainTestLoop", "trainmaster.Manager", "trainmaster.ConfigBase")
"""Classes whose base classes are not public: their methods are shown, too."""


@cache
def entries() -> dict[str, list[str]]:
    """The dotted names of all public objects, by room. A name of `trainmaster` itself is listed under that name."""
    found: dict[str, list[str]] = {room: [] for room in TITLES}
    for name in trainmaster.__all__:
        room = trainmaster._HOME_OF[name].split(".")[1]
        if room != "errors":  # its whole module is on the page
            found[ROOM_OF.get(room, room)].append(f"trainmaster.{name}")
    for room in [*TITLES, *ROOM_OF]:
        page = found[ROOM_OF.get(room, room)]
        names = [] if room == "errors" else _exported(room)
        page += [f"trainmaster.{room}.{name}" for name in names if f"trainmaster.{name}" not in page]
        page += [name for name in MORE.get(room, []) if name not in page]
    return {room: sorted(names, key=_order) for room, names in found.items()}


def _order(name: str) -> tuple[bool, str]:
    """Classes come before functions."""
    last = name.rpartition(".")[2]
    return not last[:1].isupper(), last.lower()


def _exported(room: str) -> list[str]:
    """The names in `__all__` of a room, or those of its lazy table. Nothing is imported."""
    tree = ast.parse((SOURCE / room / "__init__.py").read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    values = {node.targets[0].id: node.value for node in assigned if isinstance(node.targets[0], ast.Name)}
    if "__all__" not in values:
        return []
    try:
        return list(ast.literal_eval(values["__all__"]))
    except ValueError:
        return list(ast.literal_eval(next(value for value in values.values() if isinstance(value, ast.Dict))))


def python_pages() -> dict[str, str]:
    return {room: _page(room) for room in TITLES}


def _page(room: str) -> str:
    title, about = TITLES[room]
    return f"# {title}\n\n{about}\n\n" + "\n\n".join(_block(name) for name in entries()[room]) + "\n"


def _block(name: str) -> str:
    option = "show_root_heading: false" if _is_module(name) else "inherited_members: true" if name in WITH_INHERITED else ""
    if name == "trainmaster.errors":  # without the functions that write messages
        tree = ast.parse((SOURCE / "errors.py").read_text())
        option += f"\n      members: [{', '.join(node.name for node in tree.body if isinstance(node, ast.ClassDef))}]"
    return f"::: {name}" + (f"\n    options:\n      {option}" if option else "")


def _is_module(name: str) -> bool:
    path = SOURCE.parent / name.replace(".", "/")
    return path.with_suffix(".py").exists()


def index_page() -> str:
    """The first page of the reference, with the table of all names that can be imported from `trainmaster`."""
    parts = []
    for room, (title, _) in TITLES.items():
        rows = [f"| [`{name}`][trainmaster.{name}] | {_summary(name)} |" for name in _top_level(room)]
        if rows:
            parts.append(f"### {title}\n\n| name | |\n|---|---|\n" + "\n".join(rows) + "\n")
    return INDEX_HEAD + "\n".join(parts)


def _top_level(room: str) -> list[str]:
    names = [name for name in trainmaster.__all__ if ROOM_OF.get(home := trainmaster._HOME_OF[name].split(".")[1], home) == room]
    return sorted(names, key=_order)


def _summary(name: str) -> str:
    """The first sentence of a docstring, read from the source."""
    doc = _docstrings().get(name, "")
    sentence = re.split(r"(?<=\.)\s|\n\n", inspect.cleandoc(doc), maxsplit=1)[0]
    return " ".join(sentence.split()).replace("|", "\\|")


@cache
def _docstrings() -> dict[str, str]:
    """The docstrings of the classes, functions and constants that `trainmaster` exports."""
    found: dict[str, str] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        body = ast.parse(file.read_text()).body
        for node, after in zip_longest(body, body[1:]):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and (doc := ast.get_docstring(node)):
                found.setdefault(node.name, doc)
            match (node, after):
                case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                    found.setdefault(name, text)
    return found
