"""The rooms of the house: imports go down the storeys only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "trainmaster"
LOWER = ["errors", "stages", "config", "store", "figures", "loop", "extensions", "manager"]
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "stages": {"errors"},
    "config": {"errors"},
    "store": {"errors", "config"},
    "figures": {"errors"},
    "loop": {"errors", "stages", "config", "store"},
    "extensions": {*LOWER[:6]},
    "manager": {*LOWER[:7]},
    "sweep": {*LOWER},
    "analysis": {"errors", "config", "store", "figures", "manager"},
    "dashboard": {"errors", "config", "store", "figures", "analysis"},
    "testing": {*LOWER, "sweep"},
}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(file: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively; write the full path"
            names = [node.module or ""] if node.module != "trainmaster" else [f"trainmaster.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            yield name, node.lineno


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_room_imports_only_rooms_below_it(file: Path) -> None:
    room = room_of(file)
    allowed = MAY_IMPORT.get(room, {*LOWER, *MAY_IMPORT, "cli"}) | {room}
    wrong = [
        f"{file}:{line} imports {name}"
        for name, line in imported(file)
        if name.startswith("trainmaster.") and name.split(".")[1] not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) in ("stages", "errors")], ids=lambda file: file.name)
def test_the_engine_is_pure_standard_library(file: Path) -> None:
    import sys

    foreign = {name for name, _ in imported(file) if name.split(".")[0] not in {*sys.stdlib_module_names, "trainmaster"}}
    assert not foreign


def test_no_file_is_a_drawer() -> None:
    drawers = {"utils", "util", "base", "main", "common", "core", "helpers", "misc"}
    assert not [file for file in FILES if file.stem.lstrip("_") in drawers and not file.stem.startswith("__")]
