"""The source has the intended structure: imports between rooms (packages) and style rules that a program can check."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "trainmaster"
LOWER = ["errors", "arguments", "text", "stages", "config", "store", "figures", "loop", "extensions", "manager"]
LAYER_0 = {"errors", "arguments", "text"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "arguments": {"errors"},
    "text": {"errors"},
    "stages": LAYER_0,
    "config": LAYER_0,
    "store": LAYER_0 | {"config"},
    "figures": LAYER_0,
    "loop": LAYER_0 | {"stages", "config", "store"},
    "extensions": {*LOWER[:8]},
    "manager": {*LOWER[:9]},
    "sweep": {*LOWER},
    "analysis": LAYER_0 | {"config", "store", "figures", "manager"},
    "dashboard": LAYER_0 | {"config", "store", "figures", "extensions", "analysis"},
    "testing": {*LOWER, "sweep"},
}
DOORS = {("manager/manager.py", "trainmaster.sweep.search"), ("analysis/results.py", "trainmaster.dashboard.open_page")}
"""Imports from a higher room that are allowed because users look for these methods in the lower room.

`Manager.search` imports the search when it is called, and `Results.ui` imports the dashboard.
"""
FILES = [file for file in sorted(ROOT.rglob("*.py")) if ROOT / "cli" / "templates" not in file.parents]
"""All files except the templates, which are user programs that import the public names."""
PROJECT = ROOT.parent.parent
MAX_METHODS = 30
DOCS = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])


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
        if name.startswith("trainmaster.") and name.split(".")[1] not in allowed and (file.relative_to(ROOT).as_posix(), name) not in DOORS
    ]
    assert not wrong


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) in ("stages", *LAYER_0)], ids=lambda file: file.name)
def test_the_engine_is_pure_standard_library(file: Path) -> None:
    foreign = {name for name, _ in imported(file) if name.split(".")[0] not in {*sys.stdlib_module_names, "trainmaster"}}
    assert not foreign


def test_no_file_has_a_catch_all_name() -> None:
    drawers = {"utils", "util", "base", "main", "common", "core", "helpers", "helper", "misc", "shared", "tools"}
    wrong = [str(file.relative_to(ROOT)) for file in FILES if file.stem.strip("_") in drawers and not file.stem.startswith("__")]
    assert not wrong, "name these files after what they contain"


def test_no_class_has_more_than_30_methods() -> None:
    large = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name} has {num_methods} methods"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and (num_methods := count_methods(node)) > MAX_METHODS
    ]
    assert not large


def count_methods(node: ast.ClassDef) -> int:
    """Count the methods by name, so that a property with a setter, or a method with overloads, counts once."""
    return len({each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)})


def test_source_and_docs_have_no_contract_numbers() -> None:
    """Numbers such as `E12` belong in tests; a reader of the source or the docs cannot look them up."""
    number = re.compile(r"\b(?:[EAJ]\d{1,2}|L\d{2})\b|\(L\d+\)")
    wrong = [
        f"{file.name}:{line_number} {line.strip()[:100]}"
        for file in [*FILES, *DOCS]
        for line_number, line in enumerate(file.read_text().splitlines(), 1)
        if number.search(line) and "noqa" not in line
    ]
    assert not wrong


def test_the_readme_of_the_store_lists_its_files() -> None:
    listed = re.findall(r"`(\w+\.py)`", (ROOT / "store" / "README.md").read_text())
    assert {file.name for file in (ROOT / "store").glob("[!_]*.py")} == set(listed)


def test_the_walkthroughs_of_the_architecture_page_name_functions_that_exist() -> None:
    step = re.compile(r"^\| \d+ \| (?:`([\w/]+\.py)` )?`([\w.]+)`", re.MULTILINE)
    file, missing = "", []
    for path, function in step.findall((PROJECT / "ARCHITECTURE.md").read_text()):
        file = path or file
        if function not in functions_in(ROOT / file):
            missing.append(f"{file} {function}")
    assert not missing


def test_the_walkthroughs_of_the_architecture_page_have_the_stated_numbers_of_functions_and_files() -> None:
    """Each table follows a sentence such as "takes 9 functions in 6 files"."""
    text = (PROJECT / "ARCHITECTURE.md").read_text()
    stated = [(int(functions), int(files)) for functions, files in re.findall(r"(\d+) functions in (\d+) files", text)]
    tables = re.findall(r"^\| \| function .*\n\|-.*\n((?:\| \d+ .*\n)+)", text, re.MULTILINE)
    counted = [(len(table.splitlines()), len(set(re.findall(r"^\| \d+ \| `([\w/]+\.py)`", table, re.MULTILINE)))) for table in tables]
    assert len(counted) == 5
    assert counted == stated


def functions_in(file: Path) -> set[str]:
    """Return the names of the functions in a file, and `Class.method` for its methods."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    methods = {
        f"{node.name}.{each.name}"
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.FunctionDef)
    }
    return methods | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
