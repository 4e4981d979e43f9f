"""Every extension can be imported from `trainmaster.extensions`, and is loaded only when it is used."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trainmaster
import trainmaster.extensions
from trainmaster import Extension, Observer

FOLDER = Path(trainmaster.extensions.__file__).parent
INDEX = Path(__file__).parents[2] / "docs" / "extensions" / "index.md"
INTERNAL = {"FigureObserver", "GradientObserver", "StateRestorer"}
"""Base classes, and an extension that `replay` adds to a loop; users do not import them."""


def test_every_extension_that_trainmaster_exports_can_be_imported_from_there() -> None:
    exported = {name: getattr(trainmaster, name) for name in trainmaster.__all__}
    extensions = {name for name, value in exported.items() if inspect.isclass(value) and issubclass(value, Extension)}
    assert extensions - {Extension.__name__, Observer.__name__} == set(trainmaster.extensions.__all__)
    for name in trainmaster.extensions.__all__:
        assert getattr(trainmaster.extensions, name) is exported[name]


def test_every_extension_in_the_folder_is_exported() -> None:
    classes = [node for file in FOLDER.rglob("*.py") for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    kinds = {"Extension", "Observer", "FigureObserver", "GradientObserver"}
    found = {each.name for each in classes if kinds & set(map(ast.unparse, each.bases)) and not each.name.startswith("_")}
    assert found - INTERNAL <= set(trainmaster.extensions.__all__)
    assert len(found) > 30


def test_every_extension_has_a_page_that_the_index_of_extensions_links_to() -> None:
    rows = re.findall(r"^\| \[(.+?)\]\((.+?)[)#]", INDEX.read_text(), re.MULTILINE)
    pages = {name: page for names, page in rows for name in names.split(", ")}
    assert set(trainmaster.extensions.__all__) - set(pages) == set()
    for name in trainmaster.extensions.__all__:
        assert f"`{name}" in (INDEX.parent / pages[name]).read_text(), f"{pages[name]} does not describe {name}"


def test_type_checkers_and_completion_see_every_name() -> None:
    for module in (trainmaster, trainmaster.extensions):
        (block,) = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If)]
        seen = [alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
        assert set(filter(None, seen)) == set(module.__all__)
        assert set(module.__all__) <= set(dir(module))


def test_importing_the_package_imports_neither_torch_nor_an_extension() -> None:
    code = (
        "import sys; import trainmaster.extensions as e; dir(e); "
        "print([m for m in sys.modules if m == 'torch' or m.startswith(('trainmaster.extensions.', 'trainmaster.loop'))]); "
        "from trainmaster.extensions import ClipGradients; "
        "print(ClipGradients.__module__, 'trainmaster.extensions.leakage_check' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed == "[]\ntrainmaster.extensions.clip_gradients False\n"


def test_a_misspelled_extension_is_an_error_that_suggests_the_nearest_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'LeakageChek'; did you mean `LeakageCheck`"):
        trainmaster.extensions.LeakageChek  # noqa: B018 - accessed for the error that it raises
