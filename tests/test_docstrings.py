"""Every example in a docstring runs and prints what it shows."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
FILES = [file for file in sorted(SOURCE.rglob("*.py")) if ">>> " in file.read_text()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_the_examples_of_a_file_print_what_they_show(file: Path) -> None:
    module = importlib.import_module(".".join(file.relative_to(SOURCE).with_suffix("").parts))
    found = doctest.testmod(module)  # a failure is printed
    assert found.attempted > 0
    assert found.failed == 0
