"""The commands `trainmaster ablate`, `test-hypothesis` and `verify-hypothesis`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import random
from trainmaster import Manager

class Toy(Manager):
    defaults = {"act": "relu", "helps": 1, "seed": 0}

    def train(self): ...

    def eval(self):
        noise = random.Random(str(sorted(self.config.items()))).gauss(0, 0.005)
        return {"accuracy": 0.8 + 0.05 * self.config.helps + 0.03 * (self.config.act == "gelu") + noise}
"""
RECIPE = """
name: parts
on: accuracy
seeds: 4
epochs: 1
factors:
  helps: {helps: 0}
  act: {act: gelu}
"""
CLAIM = ("act=gelu", "--better-than", "act=relu", "--on", "accuracy", "--by", "0.005", "--budget", "8", "--epochs", "1", "--name", "claim")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "studied_toy.py").write_text(PROGRAM)
    (tmp_path / "parts.yaml").write_text(RECIPE)
    monkeypatch.delitem(sys.modules, "studied_toy", raising=False)
    return str(tmp_path / "studied_toy.py")


def test_a_hypothesis_prints_its_plan_and_its_verdict(call: Any, program: str) -> None:
    found = call("test-hypothesis", program, *CLAIM)
    assert found.code == 0, found.err
    assert "hypothesis claim: act=gelu has a higher accuracy than act=relu by more than 0.005" in found.out
    assert "8 pairs find a true difference of 1.3" in found.out
    assert "supported: after 5 pairs, the mean improvement is +0.0" in found.out
    assert "verify-hypothesis claim" in found.out


def test_arms_that_differ_in_a_value_that_only_one_names_get_a_warning(call: Any, program: str, tmp_path: Path) -> None:
    command = ("--on", "accuracy", "--epochs", "1", "--dry-run")
    found = call("test-hypothesis", program, "act=gelu", "helps=0", "--better-than", "act=relu", *command)
    assert ": act=gelu, helps=0 has a higher accuracy than act=relu, helps=1\n" in found.out
    assert "warning: the arms differ in 2 keys: act, helps; only one arm names helps; values that both arms share go into" in found.out
    (tmp_path / "base.yaml").write_text("helps: 0")
    shared = call("test-hypothesis", program, "act=gelu", "--better-than", "act=relu", "--config", "base.yaml", *command)
    assert ": act=gelu has a higher accuracy than act=relu\n" in shared.out
    assert "warning" not in shared.out


def test_a_verdict_is_recomputed_from_the_store_alone(call: Any, program: str, tmp_path: Path) -> None:
    call("test-hypothesis", program, *CLAIM, "-q")
    Path(program).unlink()
    found = call("verify-hypothesis", "claim", "--figure", "figures")
    assert found.code == 0, found.err
    assert "confirmed: 5 pairs were read from the logs of their runs" in found.out
    assert (tmp_path / "figures" / "hypothesis_claim.png").is_file()
    values = json.loads(call("verify-hypothesis", "claim", "--format", "json").out)
    assert (values["state"], values["n"], values["problems"]) == ("supported", 5, [])


def test_a_contradicted_verdict_exits_with_1(call: Any, program: str, tmp_path: Path) -> None:
    from trainmaster.store.checksummed_json import parse_record, record_bytes

    call("test-hypothesis", program, *CLAIM, "-q")
    path = tmp_path / "runs" / "sweeps" / "claim" / "verdict.json"
    path.write_bytes(record_bytes({**parse_record(path.read_bytes(), "verdict"), "state": "refuted"}))
    found = call("verify-hypothesis", "claim")
    assert found.code == 1
    assert "NOT CONFIRMED" in found.out
    assert "the recorded verdict has state refuted; its pairs give supported" in found.out


def test_a_hypothesis_without_a_verdict_exits_with_1(call: Any, program: str) -> None:
    found = call("test-hypothesis", program, *CLAIM, "--max-pairs", "2")
    assert found.code == 1
    assert "pending: after 2 pairs" in found.out


def test_an_ablation_prints_its_table(call: Any, program: str, tmp_path: Path) -> None:
    found = call("ablate", program, "parts.yaml", "--figure", "figures")
    assert found.code == 0, found.err
    assert "3 configs x 4 seeds = 12 runs, leave-one-out" in found.out
    assert "helps  4" in found.out
    assert (tmp_path / "figures" / "ablation_parts.html").is_file()
    latex = call("ablate", program, "parts.yaml", "--format", "latex")
    assert latex.out.startswith("% ablation parts: accuracy\n")
    assert json.loads(call("ablate", program, "parts.yaml", "--format", "json").out)["contributions"][0]["verdict"] == "helps"


@pytest.mark.parametrize("command", [("ablate", "parts.yaml"), ("test-hypothesis", *CLAIM)], ids=["ablate", "test-hypothesis"])
def test_a_dry_run_writes_nothing(command: tuple[str, ...], call: Any, program: str, tmp_path: Path) -> None:
    found = call(command[0], program, *command[1:], "--dry-run")
    assert found.code == 0, found.err
    assert "store: runs (nothing was written)" in found.out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        ("on: accuracy\n", "factors: is missing"),
        ("factors: {a: {helps: 0}}\nseed: 3\n", "seed: is not part of a recipe; did you mean `seeds`?"),
        ("factors: [helps]\n", "`factors` in parts.yaml must have a name for each part"),
        ("factors: {a: {helsp: 0}}\non: accuracy\n", "did you mean `helps`?"),
        ("factors: {a: {helps: 1}}\non: accuracy\n", "a: gives the same runs as base"),
        ("factors: {a: {helps: 0}}\non: accuracy\nseeds: 1\n", "needs at least 2 seeds"),
    ],
)
def test_an_invalid_recipe_is_refused(recipe: str, text: str, call: Any, program: str, tmp_path: Path) -> None:
    (tmp_path / "parts.yaml").write_text(recipe)
    found = call("ablate", program, "parts.yaml")
    assert (found.code, text in found.err) == (2, True), found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("act=gelu", "--by", "-1"), "`by` must be a number of at least 0"),
        (("act=gelu", "--budget", "3"), "`budget` must be a whole number of at least 5"),
        (("act=gelu", "--budget", "few"), "--budget few: expected a number of pairs, auto or none"),
        (("act=gelu", "--budget", "none"), "a hypothesis without a budget may never end"),
        (("act=relu",), "gives the same runs as"),
        (("atc=gelu",), "did you mean `act`?"),
        (("act",), "act"),
    ],
)
def test_an_invalid_hypothesis_is_refused(words: tuple[str, ...], text: str, call: Any, program: str) -> None:
    found = call("test-hypothesis", program, *words, "--on", "accuracy", "--epochs", "1")
    assert (found.code, text in found.err) == (2, True), found.err
    assert "Traceback" not in found.err


def test_an_unknown_format_is_refused_before_anything_is_trained(call: Any, program: str, tmp_path: Path) -> None:
    found = call("ablate", program, "parts.yaml", "--format", "pdf")
    assert found.code == 2
    assert '"markdown"' in found.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [("--better-than", "act=relu", "helps=0"), ("--better-than=act=relu", "helps=0", "--on", "accuracy")])
def test_a_word_after_better_than_is_refused_because_it_would_be_part_of_the_claim(call: Any, program: str, words: tuple[str, ...]) -> None:
    found = call("test-hypothesis", program, "act=gelu", *words)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("`helps=0` would be part of the claim")
    assert "repeat --better-than for each key: --better-than act=relu --better-than helps=0" in found.err


@pytest.mark.parametrize(
    "words",
    [
        ("act=gelu", "helps=2", "--better-than", "act=relu", "--better-than", "helps=0"),
        ("--better-than", "act=relu", "--better-than", "helps=0", "act=gelu", "helps=2"),
        ("act=gelu", "--better-than", "act=relu", "--better-than", "helps=0", "--", "helps=2"),
    ],
)
def test_the_claim_may_come_before_or_after_better_than(call: Any, program: str, words: tuple[str, ...]) -> None:
    found = call("test-hypothesis", program, "--on", "accuracy", "--epochs", "1", "--dry-run", *words)
    assert "act=gelu, helps=2 has a higher accuracy than act=relu, helps=0" in found.out, found.err


def test_the_numbers_of_a_claim_must_be_numbers_like_the_defaults(call: Any, program: str) -> None:
    found = call("test-hypothesis", program, "helps=much", "--on", "accuracy")
    assert (found.code, "helps = 'much': expected a number, because it replaces 1" in found.err) == (2, True), found.err
