"""Shell completion imports neither the user's code nor torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster.cli import main

TRAIN = '''
raise RuntimeError("imported")

@configclass
class Optimizer:
    lr: float = 0.1

@configclass
class Typed:
    optimizer: Optimizer
    depth: int = 2

class Loop(TrainManager): ...

class Sine(Manager):
    """Fits a sine."""
    defaults = {"lr": 0.1, "model": {"width": 8, "depth": 2}}

class Other(lab.Manager):
    defaults = Typed

def make_loop(config): ...
def helper(x): ...
'''


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., list[str]]:
    """Return the completions that bash offers for the last, incomplete word."""
    (tmp_path / "train.py").write_text(TRAIN)

    def complete(*words: str) -> list[str]:
        monkeypatch.setenv("_TRAINMASTER_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(["trainmaster", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        capsys.readouterr()
        main([])
        return capsys.readouterr().out.split()

    return complete


def test_targets_are_completed_with_the_names_in_their_file(complete: Any) -> None:
    assert complete("run", "tr") == ["train.py", "train.py:Sine", "train.py:Other", "train.py:make_loop"]
    assert complete("check", "train.py:S") == ["train.py:Sine"]  # zsh and fish do not split words


@pytest.mark.parametrize("words", [["run", "train.py", ":"], ["sweep", "train.py", ":", "S"]])
def test_completion_works_although_bash_splits_words_at_colons(complete: Any, words: list[str]) -> None:
    assert complete(*words)[:1] == ["Sine"]


def test_keys_are_completed_from_the_defaults_and_from_stored_configs(complete: Any, make: Any) -> None:
    assert complete("run", "train.py", ":", "Sine", "m") == ["model.width=", "model.depth="]
    assert complete("run", "train.py", ":", "Other", "lr", "=", "1", "") == ["optimizer.lr=", "depth="]
    make.run({"lr": 0.1, "momentum": 0.9})
    assert complete("sweep", "train.py:Sine", "mo") == ["model.width=", "model.depth=", "momentum="]
    assert complete("run", "train.py", ":", "Sine", "lr", "=") == []


def test_sort_names_and_states_are_completed(complete: Any, make: Any) -> None:
    make.run({"lr": 0.1, "model": {"width": 8}}, [{"valid/loss": 1.0, "train/loss": 2.0}])
    assert complete("ls", "--sort", "") == ["train/loss", "valid/loss", "lr", "model.width", "epoch", "time", "key"]
    assert complete("ls", "--sort", "v") == ["valid/loss"]
    assert complete("ls", "--state", "fi") == ["finished"]


@pytest.mark.parametrize("text", ["def (", "\0", "x" * 10])
def test_an_unreadable_file_completes_nothing_and_prints_nothing(complete: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert complete("run", "train.py", ":") == []
    assert complete("run", "nothing.py", ":", "S") == []
    assert complete("run", "train.py", ":", "Sine", "l") == []


def test_completion_imports_nothing_heavy(make: Any, tmp_path: Path) -> None:
    make.run({"lr": 0.1})
    (tmp_path / "train.py").write_text(TRAIN)
    code = (
        "import sys; from trainmaster.cli import main; main([]); print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    )
    for words in (["run", "train.py:S"], ["run", "train.py:Sine", "l"], ["ls", "--sort", "l"], ["ls", "--state", "f"]):
        line = "\n".join(["trainmaster", *words])
        env = {**os.environ, "_TRAINMASTER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
        assert found.stdout.splitlines()[-1] == "[]", words
        assert len(found.stdout.splitlines()) > 1, words
