"""A function `make_loop(config)` can be the TARGET of every command, and mistakes in it raise helpful errors."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny

from trainmaster.store import Store

LOOP = """
import torch
from tiny_training import Net, Numbers
from torch.utils.data import DataLoader
from trainmaster import FailureCapsule, TrainManager

def loss(batch, prediction):
    return (prediction - batch[1]).pow(2).mean()

def loop_of(config):
    valid = [(torch.ones(4, 4), torch.ones(4, 1))]
    data = DataLoader(Numbers(), batch_size=4, shuffle=True)
    optimizer = lambda parameters: torch.optim.SGD(parameters, lr=config["lr"])
    return TrainManager(Net(), loss, config["epochs"], data, {"valid": valid}, optimizer=optimizer, device="cpu")
"""
FREE = f"""{LOOP}
defaults = {{"lr": 0.1, "epochs": 2}}

def make_loop(config):
    return loop_of(config)
"""
TYPED = f"""{LOOP}
from trainmaster import ConfigBase, configclass

@configclass
class Train(ConfigBase):
    lr: float = 0.1
    epochs: int = 2

def make_loop(config: Train):
    assert isinstance(config, Train)
    return loop_of(config)
"""


@pytest.fixture(autouse=True)
def clean_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tiny.draw_nothing(monkeypatch.setattr)
    monkeypatch.setattr(sys, "path", [str(Path(tiny.__file__).parent), *sys.path])
    yield
    forget(tmp_path)


def forget(folder: Path) -> None:
    """Remove the imported modules, as if the next command ran in a new process."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    sys.path[:] = [each for each in sys.path if not each.startswith(str(folder))]
    importlib.invalidate_caches()


@pytest.fixture
def run(call: Any, tmp_path: Path) -> Any:
    def run(*args: object) -> Any:
        forget(tmp_path)
        return call(*args)

    return run


def only_key(store: Path) -> str:
    (key,) = Store(store).configs.keys()
    return key


@pytest.mark.parametrize(
    ("target", "code"), [("train.py", FREE), ("train.py:make_loop", TYPED), ("train", TYPED), ("train:make_loop", FREE)]
)
def test_a_function_trains_from_the_command_line(run: Any, tmp_path: Path, target: str, code: str) -> None:
    (tmp_path / "train.py").write_text(code)
    assert run("run", target, "lr=0.5", "-q") == (0, "", "")
    key = only_key(tmp_path / "runs")
    assert Store(tmp_path / "runs").configs[key] == {"lr": 0.5, "epochs": 2}
    assert Store(tmp_path / "runs").stats[key]["epoch"] == 2


def test_runs_of_a_function_can_be_resumed_rerun_checked_and_shown(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(FREE)
    assert run("run", "train.py", "lr=0.05", "-q").code == 0
    key = only_key(tmp_path / "runs")
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    resumed = run("resume", key, "--epochs", 3, "--store", tmp_path / "runs")
    assert (resumed.code, f"run {key} resumes from epoch 2, target 3" in resumed.out) == (0, True), resumed
    monkeypatch.chdir(tmp_path)
    rerun = run("rerun", key, "--compare")
    assert (rerun.code, "same: " in rerun.out) == (0, True), rerun
    assert run("check", "train.py", "lr=0.05", "--checks", "parameters").code == 0
    stages = run("stages", "train.py", "lr=0.05")
    assert (stages.code, "train_step_batch" in stages.out) == (0, True)
    again = run("run", "train.py:make_loop", "lr=0.05")
    assert (again.code, "another program" in again.err) == (0, False), "a target with an explicit name is treated as another program"


def test_the_recorded_program_is_the_function(run: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FREE + "\ndef other(config):\n    return loop_of(config)\n")
    assert run("run", "train.py", "-q").code == 0
    refused = run("run", "train.py:other")
    assert refused.code == 2
    assert "train.py:make_loop, not train.py:other" in refused.err
    (tmp_path / "train.py").write_text(FREE.replace("momentum", "").replace("make_loop", "build"))
    renamed = run("run", "train.py:build")
    assert (renamed.code, "changed since this run was trained" in renamed.out) == (0, True), renamed


def test_a_failure_is_replayed_with_the_function(run: Any, tmp_path: Path) -> None:
    code = FREE.replace(
        "return loop_of(config)", "loop = loop_of(config)\n    loop.add_extension('keep', FailureCapsule())\n    return loop"
    )
    (tmp_path / "train.py").write_text(code.replace("def loss(batch, prediction):", "def loss(batch, prediction):\n    1 / 0"))
    assert run("run", "train.py", "-q").code == 1
    (capsule,) = tmp_path.glob("runs/previews/*/*/*/capsules/*.capsule")
    replayed = run("replay", capsule)
    assert (replayed.code, "replayed: the same error" in replayed.out) == (0, True), replayed


@pytest.mark.parametrize("code", [FREE, TYPED], ids=["free", "typed"])
def test_a_misspelled_key_is_an_error_with_the_nearest_name(run: Any, tmp_path: Path, code: str) -> None:
    (tmp_path / "train.py").write_text(code)
    for words in (["run", "train.py", "epohcs=3"], ["sweep", "train.py", "epohcs=3,4"]):
        found = run(*words)
        assert (found.code, "epohcs" in found.err, "did you mean `epochs`?" in found.err) == (2, True, True), found


def test_defaults_next_to_an_imported_make_loop_are_preferred(run: Any, tmp_path: Path) -> None:
    (tmp_path / "lib_of_loops.py").write_text(FREE)
    (tmp_path / "train.py").write_text("from lib_of_loops import make_loop\ndefaults = {'lr': 0.7, 'epochs': 1}\n")
    assert "lr      0.7" in run("run", "train.py:make_loop", "--dry-run").out


def test_without_defaults_any_key_is_accepted_with_a_warning(run: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FREE.replace("defaults = ", "others = "))
    found = run("run", "train.py", "lr=0.1", "epochs=1", "other=3", "--dry-run")
    assert "no defaults: any key is accepted, even a misspelled one" in found.out
    assert "no defaults" in run("sweep", "train.py", "lr=0.1,0.2", "epochs=1", "--dry-run").out
    missing = run("run", "train.py", "lr=0.1")
    assert missing.code == 2
    assert "the config has no key `epochs`" in missing.err
    assert "`defaults = {...}` next to `make_loop`" in missing.err
    (tmp_path / "train.py").write_text(FREE)
    assert "no defaults" not in run("run", "train.py", "lr=0.1", "--dry-run").out


@pytest.mark.parametrize(
    ("code", "target", "fact", "hint"),
    [
        ("class Mine(TrainManager): ...", "train.py:Mine", "train.py:Mine` is a loop class", "train.py:make_loop`"),
        (
            "loop = loop_of({'lr': 1, 'epochs': 1})",
            "train.py:loop",
            "train.py:loop` is a loop, but each config needs its own loop",
            "`def make_loop(config)`",
        ),
        (
            "def make_loop():\n    return loop_of({'lr': 1, 'epochs': 1})",
            "train.py:make_loop",
            "returns a loop, but does not take a config",
            "`def make_loop(config)`",
        ),
        (
            "def make_loop():\n    return 3",
            "train.py",
            "has neither a function `make_loop(config)` nor a manager",
            "`def make_loop(config)`",
        ),
        (
            "from tiny_training import Tiny\nclass Mine(Tiny): ...\ndef make_loop(config): ...",
            "train.py",
            "2 targets: Mine, make_loop",
            ":Mine`",
        ),
        ("def make_loop(config): ...", "train.py", "`make_loop()` returned None: expected a TrainManager", ""),
        (
            "from tiny_training import Tiny\ndef make(folder):\n    return Tiny()",
            "train.py:make",
            "`make()` returned",
            "a function that returns a manager takes `store_dir`",
        ),
        ("defaults = 3\ndef make_loop(config): ...", "train.py", "expected a dict", ""),
    ],
)
def test_mistakes_are_errors_that_suggest_what_to_write(run: Any, tmp_path: Path, code: str, target: str, fact: str, hint: str) -> None:
    (tmp_path / "train.py").write_text(f"{LOOP}\n{code}\n")
    found = run("run", target)
    assert found.code == 2
    assert fact in found.err
    assert hint in found.err


def test_check_suggests_a_config_parameter_for_a_function_without_one(run: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{LOOP}\ndef make():\n    return loop_of({{'lr': 1, 'epochs': 1}})\n")
    found = run("check", "train.py:make", "lr=3")
    assert (found.code, "add a parameter: `def make_loop(config)`" in found.err) == (2, True)


@pytest.mark.integration
@pytest.mark.parametrize("code", [FREE, TYPED], ids=["free", "typed"])
def test_workers_import_the_function(program: Any, tmp_path: Path, code: str) -> None:
    (tmp_path / "train.py").write_text(code)
    path = str(Path(tiny.__file__).parent)
    found = program("sweep", "train.py", "lr=0.1,0.01", "--workers", 2, PYTHONPATH=path)
    assert (found.code, "batch: 2 done" in found.out) == (0, True), found
    listed = program("ls", "--json", PYTHONPATH=path)
    assert [each["state"] for each in json.loads(listed.out)] == ["finished", "finished"]
    again = program("run", "train.py", "lr=0.1", PYTHONPATH=path)
    assert "is at epoch 2 already" in again.out
    assert "changed since" not in again.out, "a worker records another program"


# ---- what plain defaults check


def test_a_run_with_plain_defaults_refuses_text_for_numbers_and_reports_all_problems(run: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FREE)
    found = run("run", "train.py", "lr=fast", "epochs=0..2", "rl=1")
    assert (found.code, found.err.splitlines()[0]) == (2, "3 problems in the config")
    assert "lr = 'fast': expected a number, because it replaces 0.1  [lr=fast]" in found.err
    assert not (tmp_path / "runs").exists() or not [*Store(tmp_path / "runs").configs]


def test_a_sweep_with_plain_defaults_refuses_text_for_numbers_and_reports_all_problems(run: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FREE)
    found = run("sweep", "train.py", "lr=0.1,fast,slow", "epochs=0..2", "rl=1,2")
    assert (found.code, found.err.splitlines()[0]) == (2, "4 problems in the choices"), found.err
    for line in ("lr = 'fast': ", "lr = 'slow': ", "epochs = '0..2': ", "rl: no such key"):
        assert line in found.err


def test_an_int_for_a_float_default_is_the_same_run(run: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FREE)
    (tmp_path / "base.yaml").write_text("epochs: 1\n")
    found = run("sweep", "train.py", "lr=1,1.0,0.5", "--config", "base.yaml", "--dry-run")
    assert [line.split()[1] for line in found.out.splitlines() if "lr=" in line] == ["lr=1.0", "lr=0.5"]
    assert run("sweep", "train.py", "lr=1", "+new=0,1", "--dry-run").out.count("new=") == 2
    one, other = (run("run", "train.py", word, "--dry-run").out.splitlines()[1] for word in ("lr=1", "lr=1.0"))
    assert one == other


def test_a_dry_run_says_what_is_already_done(run: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FREE)
    sweep = ("sweep", "train.py", "lr=0.1,0.01", "epochs=1", "--dry-run")
    assert "runs     2\n" in run(*sweep).out, "there is no store yet"
    assert not (tmp_path / "runs").exists()
    assert "(already done)" not in run("run", "train.py", "epochs=1", "--dry-run").out
    assert run("run", "train.py", "epochs=1", "-q").code == 0
    assert "runs     2 (1 already done)\n" in run(*sweep).out
    assert "runs     2 (none already done)\n" in run(*sweep, "--epochs", 2).out
    assert "runs     2\n" in run(*sweep, "--fresh").out
    assert " (already done)\n" in run("run", "train.py", "epochs=1", "--dry-run").out
    for words in (("--epochs", 2), ("--fresh",), ("lr=0.5",)):
        assert "(already done)" not in run("run", "train.py", "epochs=1", *words, "--dry-run").out
    assert len([*Store(tmp_path / "runs").configs]) == 1, "a dry run stored a config"
