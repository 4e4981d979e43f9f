"""The commands `trainmaster search` and `trainmaster ls --search`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

PROGRAM = """
from trainmaster import Manager

class Toy(Manager):
    defaults = {"x": 0.0, "kind": "a", "seed": 0}

    def train(self): ...

    def eval(self):
        return {"loss": (self.config.x - 1) ** 2 + (self.config.kind == "b"), "size": abs(self.config.x)}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "searched_toy.py").write_text(PROGRAM)
    monkeypatch.delitem(sys.modules, "searched_toy", raising=False)  # another test in this process may have imported it
    return str(tmp_path / "searched_toy.py")


def search(call: Any, program: str, *words: str) -> Any:
    return call("search", program, "x=float(-5,5)", "kind=a,b", "--trials", "4", "--epochs", "1", "--sampler", "random", *words)


def test_a_search_prints_its_plan_its_best_trials_and_the_next_commands(call: Any, program: str) -> None:
    found = search(call, program, "--name", "first")
    assert found.code == 0, found.err
    assert "search first: 4 trials by random, for the lowest loss" in found.out
    assert "search first: 4 complete" in found.out
    assert "best trials by loss" in found.out
    assert "importance" not in found.out  # with few trials, importances are mostly noise
    assert "next: " in found.out
    assert "ls --search first" in found.out
    said = search(call, program, "--trials", "10", "--name", "first").out
    assert "importance for loss: " in said
    assert "; with 10 trials, a key without any effect may get up to 20%" in said


def test_the_line_of_a_finished_trial_shows_the_metric_of_the_search(call: Any, program: str) -> None:
    found = search(call, program, "--monitor", "size", "--mode", "max")
    lines = [line for line in found.out.splitlines() if line.startswith("[")]
    assert len(lines) == 4
    assert all("  size=" in line and "loss" not in line for line in lines)


def test_an_unknown_key_without_a_similar_one_lists_the_known_keys(call: Any, program: str) -> None:
    found = call("search", program, "learning_rate=log(0.1,1)")
    assert found.code == 2
    assert "learning_rate: the config has no such key; it has x, kind" in found.err


def test_repeating_the_command_trains_nothing(call: Any, program: str) -> None:
    search(call, program, "--name", "first")
    again = search(call, program, "--name", "first")
    assert "4 of the trials are recorded already" in again.out
    assert " starts, for " not in again.out


def test_ls_lists_the_runs_of_a_search(call: Any, program: str) -> None:
    search(call, program, "--name", "first", "-q")
    call("run", program, "x=3", "--epochs", "1", "-q")
    assert len(json.loads(call("ls", "--json").out)) == 5
    assert len(json.loads(call("ls", "--search", "first", "--json").out)) == 4
    wrong = call("ls", "--search", "frist")
    assert wrong.code == 2
    assert "did you mean `first`?" in wrong.err


def test_a_dry_run_shows_the_plan_and_writes_nothing(call: Any, program: str, tmp_path: Path) -> None:
    found = search(call, program, "--dry-run", "--pruner", "asha")
    assert found.code == 0
    assert "4 trials by random, pruned by asha" in found.out
    assert "x = float(-5, 5)" in found.out
    assert "kind = a, b" in found.out
    assert not (tmp_path / "runs").exists()


def test_a_misspelled_metric_is_refused_before_anything_is_trained(call: Any, program: str, tmp_path: Path) -> None:
    call("run", program, "x=3", "--epochs", "1", "-q")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    for words in (["--dry-run"], []):
        found = search(call, program, "--monitor", "los", "--mode", "min", *words)
        assert found.code == 2
        assert "no run in the store has the metric `los`" in found.err
        assert "did you mean `loss`? If the metric is new, first train a run that records it" in found.err
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == before
    assert search(call, program, "--monitor", "size", "--mode", "min", "--dry-run").code == 0


def test_a_space_can_be_a_file(call: Any, program: str, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("x: float(-5,5)\nkind: [a, b]\nseed: 3\n")
    found = call("search", program, str(tmp_path / "space.yaml"), "--trials", "2", "--epochs", "1", "--sampler", "random", "--name", "file")
    assert found.code == 0, found.err
    assert all(run["config"]["seed"] == 3 for run in json.loads(call("ls", "--search", "file", "--json").out))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["xx=float(0,1)"], "did you mean `x`?"),
        (["x=float(1,0)"], "x"),
        (["x=flot(0,1)"], "did you mean `float`?"),
        (["x=3"], "every key has one value"),
        (["x=float(0,1)", "--sampler", "tp"], "did you mean `tpe`?"),
        (["x=float(0,1)", "--sampler", "grid"], "a grid needs bins"),
        (["x=float(0,1)", "--timeout", "soon"], "write 90s, 30m, 2h or 1d"),
        (["x=float(0,1)", "--window", "few"], "expected a number of trials"),
        (["x=float(0,1)", "--monitor", "gap"], "is a smaller or a larger `gap` better?"),
    ],
)
def test_wrong_input_is_explained_without_a_traceback(call: Any, program: str, words: list[str], message: str) -> None:
    found = call("search", program, *words)
    assert found.code == 2
    assert message in found.err
    assert "Traceback" not in found.err


def test_strings_in_a_space_file_are_fixed_values_unless_they_are_ranges(call: Any, program: str, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("x: float(-5,5)\nkind: b\n")
    found = call("search", program, str(tmp_path / "space.yaml"), "--dry-run")
    assert found.code == 0, found.err
    assert "x = float(-5, 5)" in found.out
    assert "kind =" not in found.out


def test_a_space_file_can_search_keys_in_groups(call: Any, program: str, tmp_path: Path) -> None:
    text = (tmp_path / "searched_toy.py").read_text()
    (tmp_path / "searched_toy.py").write_text(text.replace('"seed": 0', '"seed": 0, "optim": {"lr": 0.1, "name": "sgd", "decay": 0.0}'))
    space = "x: float(-5,5)\noptim:\n  lr: log(1e-4,1e-1)\n  name: [sgd, adam]\n  decay: 0.5\n"
    for lines in (space, 'x: float(-5,5)\noptim.lr: "log(1e-4,1e-1)"\noptim.name: [sgd, adam]\noptim.decay: 0.5\n'):
        (tmp_path / "space.yaml").write_text(lines)
        found = call("search", program, str(tmp_path / "space.yaml"), "--dry-run")
        assert found.code == 0, found.err
        assert "optim.lr = log(0.0001, 0.1)" in found.out
        assert "optim.name = sgd, adam" in found.out
        assert "optim.decay =" not in found.out


def test_a_space_file_with_other_arguments_is_refused(call: Any, program: str, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("x: float(-5,5)\n")
    found = call("search", program, str(tmp_path / "space.yaml"), "kind=a,b", "--dry-run")
    assert found.code == 2
    assert "is not a key with a value" in found.err


def test_the_numbers_of_a_space_have_the_types_of_the_defaults(call: Any, program: str) -> None:
    found = call("search", program, "x=0,1,2.5", "seed=3", "--dry-run")
    assert "x = 0.0, 1.0, 2.5" in found.out, found.err
    wrong = call("search", program, "x=0,one", "seed=0..2", "kind=a,b", "--dry-run")
    assert (wrong.code, wrong.err.splitlines()[0]) == (2, "2 problems in the search space")
    assert "x = 'one': expected a number, because it replaces 0.0" in wrong.err
    assert "seed = '0..2': expected a number, because it replaces 0" in wrong.err


def test_the_error_for_a_list_with_spaces_says_how_to_write_it(call: Any, program: str) -> None:
    found = call("search", program, "x=0,", "1", "--dry-run")
    assert (found.code, "a list is written without spaces" in found.err) == (2, True), found.err


def test_a_dry_run_refuses_another_plan_for_the_same_name(call: Any, program: str) -> None:
    assert search(call, program, "--name", "first").code == 0
    for words in ([], ["--dry-run"]):
        found = search(call, program, "--name", "first", "--pruner", "asha", *words)
        assert found.code == 2
        assert "the search first exists with another plan" in found.err
        assert "to start over, delete the folder `sweeps/first` in the store, which keeps the runs" in " ".join(found.err.split())
    assert search(call, program, "--name", "first", "--dry-run").code == 0


def test_a_dry_run_says_that_no_run_has_the_metric(call: Any, program: str) -> None:
    words = ["--monitor", "velocity", "--mode", "max", "--dry-run"]
    assert "no run in the store" not in search(call, program, *words).out  # there are no runs yet
    assert search(call, program, "--name", "first").code == 0
    assert "no run in the store has the metric `velocity`" in search(call, program, *words).out
    assert "no run in the store" not in search(call, program, "--monitor", "size", "--mode", "min", "--dry-run").out


@pytest.fixture
def lists_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "searched_lists.py").write_text(PROGRAM.replace('"kind": "a"', '"kind": "a", "hidden": [8, 8]'))
    monkeypatch.delitem(sys.modules, "searched_lists", raising=False)
    return str(tmp_path / "searched_lists.py")


@pytest.mark.parametrize(
    ("word", "wanted"),
    [("hidden=[16],[16,16]", "hidden = [16], [16, 16]"), ("hidden=[[16],[16,16]]", "hidden = [16], [16, 16]"), ("hidden=[[16,16]]", "")],
)
def test_sweep_and_search_read_lists_in_the_same_way(call: Any, lists_program: str, word: str, wanted: str) -> None:
    swept = call("sweep", lists_program, word, "--dry-run")
    assert (swept.code, "hidden=[16, 16]" in swept.out) == (0, True), swept.err
    found = call("search", lists_program, "x=float(-5,5)", word, "--dry-run")
    assert (found.code, wanted in found.out) == (0, True), found.err


def test_a_list_with_one_member_is_a_fixed_value(call: Any, lists_program: str) -> None:
    words = ["x=float(-5,5)", "hidden=[[16,16]]", "kind=[b]", "--trials", "1", "--epochs", "1"]
    assert call("search", lists_program, *words).code == 0
    (run,) = json.loads(call("ls", "--json").out)
    assert (run["config"]["hidden"], run["config"]["kind"]) == ([16, 16], "b")


@pytest.mark.parametrize("words", [["sweep"], ["search", "x=float(-5,5)"]])
def test_numbers_in_place_of_a_list_are_refused_with_the_right_form(call: Any, lists_program: str, words: list[str]) -> None:
    found = call(words[0], lists_program, *words[1:], "hidden=[16,16]", "--dry-run")
    assert found.code == 2
    assert "hidden: expected a list, because it replaces [8, 8]; a list of alternatives contains lists: [[16, 16], [32]]" in found.err
