"""Shortened versions of the programs in examples/ reach the expected results."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = ("images", "language_model", "tabular", "self_updating", "reinforcement", "paper_hypothesis")


def main_of(name: str) -> Callable[..., Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)["main"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_short_and_its_first_line_says_what_it_shows(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) < 120
    shown = (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
    assert len(shown) > 40
    assert f"| [{name}.py]({name}.py) |" in (EXAMPLES / "README.md").read_text()


@pytest.mark.integration
def test_the_images_are_recognized(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_of("images")(epochs=5) > 0.8
    assert "accuracy 2" in capsys.readouterr().out  # guessing gives 25%


@pytest.mark.integration
def test_the_language_model_is_better_than_counting_characters(capsys: pytest.CaptureFixture[str]) -> None:
    program = runpy.run_path(str(EXAMPLES / "language_model.py"))
    assert program["main"](epochs=1, updates_per_epoch=40) < program["unigram_entropy"]() - 0.2
    assert 'The "for" statement' in capsys.readouterr().out


@pytest.mark.integration
def test_the_best_run_of_the_table_recognizes_most_patients_of_the_test_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_of("tabular")(epochs=3, store=tmp_path / "runs", workers=0) > 0.9
    assert "sweep: 12 done" in capsys.readouterr().out
    assert main_of("tabular")(epochs=3, store=tmp_path / "runs", workers=0) > 0.9
    assert "sweep: 12 already done" in capsys.readouterr().out


@pytest.mark.integration
def test_the_prototypes_learn_without_gradients(tmp_path: Path) -> None:
    assert main_of("self_updating")(epochs=3, store=tmp_path / "runs") > 0.88  # the accuracy is 80% before training


@pytest.mark.integration
def test_the_poles_stay_up() -> None:
    assert main_of("reinforcement")(epochs=6, target=150) > 120  # without training, a pole stays up for about 9 steps


@pytest.mark.integration
def test_the_claim_of_the_paper_is_supported_and_its_table_is_latex(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_of("paper_hypothesis")(budget=5, seeds=3, store=tmp_path / "runs", workers=0) == "supported"
    assert "\\begin{tabular}" in capsys.readouterr().out


@pytest.mark.integration
@pytest.mark.parametrize(
    "values", [("images", "epochs=1"), ("language_model", "epochs=1", "updates_per_epoch=2"), ("tabular", "epochs=1")], ids=lambda v: v[0]
)
def test_the_command_line_trains_the_loop_of_an_example(values: tuple[str, ...], tmp_path: Path) -> None:
    name, *changes = values
    ran = warm.run(
        [sys.executable, "-m", "trainmaster", "run", str(EXAMPLES / f"{name}.py"), *changes],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "is done: epoch 1" in ran.stdout
