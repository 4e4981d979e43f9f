"""`trainmaster rerun` trains a run again and compares both results bit by bit, without changing the run or its store."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import tiny_training as tiny
import torch

from trainmaster.cli import main
from trainmaster.cli.rerun import _find_gpu_cause
from trainmaster.manager.rerun import moment_of, rerun
from trainmaster.store import Store
from trainmaster.store.comparison import Recorded, compare_runs, recorded

_path = Path(tiny.__file__)

MANAGERS = """
import os
import time

import torch

from tiny_training import Plain, Tiny
from trainmaster import Extension
from trainmaster.loop.checkpoint_saver import CheckpointSaver


class Own(Plain):
    defaults = {"lr": 0.1, "epochs": 2}
    secrets = ("api_key",)

def make(store_dir):
    return Own(store_dir)

class Often(Tiny):
    def make_loop(self, config):
        loop = super().make_loop(config)
        loop.add_extension("checkpoint_saver", CheckpointSaver(every_steps=1, in_background=False))
        return loop

class Chance(Extension):
    def pre_optimizer_step(self, model, epoch_index):
        if epoch_index == 1:
            for parameter in model.parameters():
                parameter.grad.mul_(1 + os.urandom(1)[0] / 1000)

class Dice(Tiny):
    extensions = [Chance()]

class Threads(Plain):
    def eval(self):
        return {"num_threads": torch.get_num_threads()}

class Slow(Extension):
    def pre_train_step_batch(self):
        time.sleep(0.02)

class Ends(Extension):
    def post_eval(self, loop):
        loop.stop("enough")

class Loop(Tiny): ...

made = Loop("runs")

class Hasty(Tiny):
    def make_loop(self, config):
        loop = super().make_loop(config)
        loop.max_time = 0.05
        loop.add_extension("slow", Slow())
        return loop

class Unlucky(Extension):
    def pre_train_step_epoch(self, epoch_index):
        if epoch_index == 2:
            raise RuntimeError("no luck")

class Failing(Tiny):
    extensions = [Unlucky()]

class Noting(Extension):
    def pre_train(self, train_manager):
        train_manager.train_dir.mkdir(parents=True, exist_ok=True)
        (train_manager.train_dir / "environment.json").write_text('{"torch": {"version": "VERSION"}}')

class Noted(Dice):
    extensions = [Chance(), Noting()]
"""


class Lab:
    """A folder with managers, a store, and a folder for temporary stores."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs, self.passing = folder, folder / "runs", folder / "passing"
        (folder / "managers.py").write_text(MANAGERS)
        self.passing.mkdir()

    @property
    def store(self) -> Store:
        return Store(self.runs)

    def train(self, name: str, *words: str, code: int = 0) -> str:
        """Train a config as a separate process would, and return the key of its run."""
        before = set(self.store.configs.keys())
        assert main(["run", f"managers.py:{name}", *words, "--store", str(self.runs), "-q"]) == code
        forget(self.folder)
        (key,) = set(self.store.configs.keys()) - before
        return key

    def left(self) -> list[Path]:
        """Return the temporary files that were not deleted."""
        return [*self.passing.glob("trainmaster-*")]

    def change(self, old: str, new: str) -> None:
        text = (self.folder / "managers.py").read_text()
        assert old in text
        (self.folder / "managers.py").write_text(text.replace(old, new))
        forget(self.folder)


def forget(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    importlib.invalidate_caches()


@contextlib.contextmanager
def standing_in(lab: Lab) -> Iterator[Lab]:
    """Run a test in the lab's folder, and forget the modules that it imports.

    Each test behaves as if its commands ran in new processes.
    """
    with pytest.MonkeyPatch.context() as patch:
        tiny.draw_nothing(patch.setattr)
        patch.setattr(tempfile, "tempdir", str(lab.passing))
        patch.setattr(sys, "path", [str(_path.parent), *sys.path])
        patch.chdir(lab.folder)
        num_threads = torch.get_num_threads()
        yield lab
        torch.set_num_threads(num_threads)
        forget(lab.folder)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with standing_in(Lab(tmp_path)) as made:
        yield made


class Trained(NamedTuple):
    """Runs that several tests train again without changing them."""

    lab: Lab
    loop: str
    own: str
    dice: str


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    with standing_in(Lab(tmp_path_factory.mktemp("lab"))) as made:
        return Trained(made, made.train("Loop"), made.train("Own", "epochs=6"), made.train("Dice", "lr=0.2", "epochs=6"))


@pytest.fixture
def trained(once: Trained) -> Iterator[Trained]:
    before = files_of(once.lab.runs)
    with standing_in(once.lab):
        yield once
    assert files_of(once.lab.runs) == before, "the store of the run was changed"
    assert once.lab.left() == [], "temporary files were left behind"


def files_of(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() + str(path.stat().st_mtime_ns) for path in found}


# ---- same results


def test_a_rerun_has_the_same_bits_and_does_not_change_the_run(call: Any, trained: Trained) -> None:
    code, out, err = call("rerun", trained.loop[:6], "--compare")
    assert (code, err) == (0, "")
    target = f"target {trained.lab.folder}/managers.py:Loop"
    assert out.startswith(f"{target}\ntraining run {trained.loop} again, up to epoch 3, step 12\n")
    assert re.fullmatch(r"same: 9 tensors, [\d,]+ values, 7 metric rows, bit by bit \(epoch 3, step 12\)", out.splitlines()[-1])


def test_a_run_with_user_written_epochs_can_be_rerun(call: Any, trained: Trained) -> None:
    code, out, _ = call("rerun", trained.own, "--compare")
    assert code == 0
    assert re.fullmatch(r"same: 1 tensor, [\d,]+ values, 7 metric rows, bit by bit \(epoch 6, step 6\)", out.splitlines()[-1])


def test_quiet_prints_nothing_if_everything_is_the_same(call: Any, trained: Trained) -> None:
    assert call("rerun", trained.own, "--compare", "-q") == (0, "", "")


@pytest.mark.parametrize("name", ["made", "make"])
def test_a_manager_with_its_own_store_does_not_change_it(call: Any, trained: Trained, name: str) -> None:
    key = trained.loop if name == "made" else trained.own
    assert call("rerun", key, "--compare", "-q", "--target", f"managers.py:{name}") == (0, "", "")


def test_a_run_that_a_program_started_requires_a_target(call: Any, lab: Lab) -> None:
    manager = tiny.Plain(lab.runs, verbose=False)
    manager.process({"lr": 0.4, "epochs": 1})
    code, _, err = call("rerun", manager.key, "--compare")
    assert (code, f"trainmaster rerun {manager.key} --target train.py:make_loop" in err) == (2, True)
    assert call("rerun", manager.key, "--compare", "--target", f"{_path}:Plain").code == 0


def test_a_run_that_starts_from_another_one_finds_its_weights(call: Any, lab: Lab) -> None:
    first = lab.train("Loop", "--epochs", "1")
    second = lab.train("Loop", "lr=0.01", "--from", f"{first}@best", "--epochs", "1")
    assert call("rerun", second, "--compare", "-q") == (0, "", "")
    lab.store.remove(first)
    code, _, err = call("rerun", second, "--compare")
    assert code == 2
    assert "the run starts from" in err
    assert f"run {first} was removed, or trained further since" in err


def test_a_run_that_max_time_stopped_several_times_is_trained_to_the_same_point(call: Any, lab: Lab) -> None:
    key = lab.train("Hasty", "--epochs", "3")
    assert call("resume", key, "-q").code == 0
    assert not lab.store.stats[key]["is_over"], "the test needs an unfinished run"
    found = call("rerun", key, "--compare")
    assert (found.code, f"training run {key} (stopped) again, up to its last checkpoint: epoch " in found.out) == (0, True), found.out


def test_a_failed_run_is_compared_at_its_last_checkpoint(call: Any, lab: Lab) -> None:
    key = lab.train("Failing", code=1)
    code, out, err = call("rerun", key, "--compare")
    assert (code, err) == (0, "")
    assert f"training run {key} (failed) again, up to its last checkpoint: epoch " in out
    assert out.splitlines()[-1].endswith("bit by bit (epoch 2, step 8)")


def test_an_unfinished_run_is_compared_at_its_last_checkpoint(call: Any, lab: Lab) -> None:
    key = lab.train("Own")
    with lab.store.attempt(key, "process") as attempt:
        attempt.start(attempt.run.latest())
        attempt.log.append({"epoch": 3, "eval": {"loss_test": 0.5}})
        code, out, _ = call("rerun", key, "--compare")
    assert (code, f"training run {key} (running) again, up to its last checkpoint: epoch " in out) == (0, True)


def test_a_rerun_uses_the_same_number_of_threads(call: Any, lab: Lab) -> None:
    torch.set_num_threads(3)
    key = lab.train("Threads")
    assert lab.store.run(key).claim_of(1)["num_threads"] == 3
    torch.set_num_threads(1)
    assert call("rerun", key, "--compare", "-q") == (0, "", "")
    assert torch.get_num_threads() == 1


@pytest.mark.integration
def test_kills_and_interrupts_do_not_change_the_bits(call: Any, program: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is killed within an epoch, is interrupted within a step, and fails before an evaluation."""

    def plan(at: str, nth: int, do: str) -> str:
        tiny._counts.clear()
        return json.dumps({"at": at, "nth": nth, "do": do, "code": 9, "signal": signal.SIGINT, "text": "no more"})

    def compared() -> str:
        monkeypatch.delenv(tiny.PLAN, raising=False)
        code, out, err = call("rerun", key, "--compare")
        assert code == 0, out + err
        return str(out.splitlines()[-1].partition("(")[2])

    environment = {"PYTHONPATH": str(_path.parent), tiny.PLAN: plan("post_train_step_batch", 3, "leave")}
    assert program("run", "managers.py:Often", **environment).code == 9
    (key,) = lab.store.configs.keys()
    assert compared() == "epoch 0, step 2)"
    monkeypatch.setenv(tiny.PLAN, plan("post_optimizer_step", 4, "signal"))
    assert call("resume", key).code == 130
    assert compared() == "epoch 1, step 6)"
    monkeypatch.setenv(tiny.PLAN, plan("pre_eval", 1, "raise"))
    assert call("resume", key).code == 1
    assert compared() == "epoch 1, step 8)", "an epoch counts only once it has been evaluated"
    assert call("resume", key).code == 0
    assert compared() == "epoch 3, step 12)"
    assert len(lab.store.run(key).attempts()) == 4


def test_an_interrupted_rerun_leaves_nothing_behind_and_prints_how_to_repeat_it(
    call: Any, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny._counts.clear()
    monkeypatch.setenv(tiny.PLAN, json.dumps({"at": "forward", "nth": 5, "do": "signal", "signal": signal.SIGINT}))
    monkeypatch.setattr(sys, "argv", ["trainmaster", "rerun", trained.loop, "--compare"])
    code, out, err = call("rerun", trained.loop, "--compare")
    assert code == 130
    assert f"trainmaster rerun {trained.loop} --compare\n" in out
    assert err.endswith("the new run was deleted\n")


def test_rerun_works_from_python_and_restores_the_manager() -> None:
    manager = tiny.Tiny(None, verbose=False)
    manager.process({"epochs": 2})
    own, before, again = manager.store, recorded(manager.store.run(manager.key)), Store(None)
    trained = rerun(manager, manager.config, again, moment_of(before.status, before.step), [2])
    assert compare_runs(own.run(before.key), trained).is_same
    assert (manager.store is own, list(manager.extensions), own.run(before.key).attempts()) == (True, [], [1])


# ---- different results


def test_a_random_training_is_reported_with_its_first_difference(call: Any, trained: Trained) -> None:
    code, out, _ = call("rerun", trained.dice, "--compare")
    assert code == 1
    told = out[out.index("not the same") :].splitlines()
    assert re.fullmatch(r"not the same: \d+ differences in 9 tensors, [\d,]+ values, 13 metric rows \(epoch 6, step 24\)", told[0])
    assert re.fullmatch(r"  first   train/loss at 2: \S+ in the store, \S+ this time", told[1])
    assert told[2] == "          ... and 9 more rows"
    assert told[3].startswith("  tensor  model.layers.0.weight: 32 of 32 elements differ, by up to ")


def test_quiet_still_prints_differences_with_their_recorded_causes(call: Any, lab: Lab) -> None:
    key = lab.train("Noted", "--epochs", "2")
    lab.change("VERSION", "9.9")
    code, out, _ = call("rerun", key, "--compare", "-q", "--trust")
    assert (code, out.startswith("not the same: "), out.splitlines()[-1]) == (1, True, "  why?    torch.version was VERSION, now it is 9.9")


def test_changed_code_that_ends_at_another_step_prints_both_steps(call: Any, lab: Lab) -> None:
    key = lab.train("Loop", "--epochs", "1")
    lab.change("class Loop(Tiny): ...", "class Loop(Tiny):\n    extensions = [Ends()]\n")
    code, out, _ = call("rerun", key, "--compare", "--trust")
    assert code == 1
    assert "  ended   at epoch 0, step 0 this time" in out
    assert re.search(r"  first   train/loss at 1: [\d.]+ in the store, missing this time", out)


def test_training_on_a_gpu_without_deterministic_is_listed_as_a_cause() -> None:
    manager: Any = SimpleNamespace(loop=None)
    for value, context in ({"state": {"rng": {"cuda": []}}}, None), ({"x": 1}, {"rng": {"cuda": []}}):
        before = Recorded("ab12cd34", 1, 1, {}, value, context, [])
        assert list(_find_gpu_cause(before, manager)) == ["it was trained on a GPU without the extension Deterministic"]
    assert list(_find_gpu_cause(Recorded("ab12cd34", 1, 1, {}, {"state": {"rng": {}}}, None, []), manager)) == []


def test_json_prints_only_the_comparison(call: Any, trained: Trained) -> None:
    code, out, err = call("rerun", trained.dice, "--json")
    found = json.loads(out)
    assert (code, err, found["key"], found["is_same"], found["epoch"], found["step"]) == (1, "", trained.dice, False, 6, 24)
    assert (found["num_tensors"], found["num_rows"], found["kept"], found["reasons"]) == (9, 13, None, [])
    first = found["differences"][0]
    assert (first["kind"], first["name"], first["step"]) == ("row", "train/loss", 2)


# ---- parts of a run


def test_the_first_epochs_are_compared_by_their_metrics_if_there_is_no_checkpoint(call: Any, trained: Trained) -> None:
    for key, epochs, rows in ((trained.dice, 0, "1 metric row"), (trained.own, 0, "1 metric row"), (trained.own, 1, "2 metric rows")):
        code, out, _ = call("rerun", key, "--epochs", epochs)
        assert (code, out.splitlines()[-1]) == (0, f"same: {rows}, bit by bit (epoch {epochs}, which no longer has a checkpoint)")
    code, out, _ = call("rerun", trained.dice, "--compare", "--epochs", 3)
    assert (code, "  first   train/loss at 2: " in out) == (1, True)


def test_an_epoch_with_a_checkpoint_is_compared_by_it(call: Any, trained: Trained) -> None:
    code, out, _ = call("rerun", trained.loop, "--compare", "--epochs", 2)
    assert code == 0
    assert re.fullmatch(r"same: 9 tensors, [\d,]+ values, 5 metric rows, bit by bit \(epoch 2, step 8\)", out.splitlines()[-1])


# ---- --keep, and refused input


def test_keep_saves_the_new_training_in_a_folder(call: Any, lab: Lab) -> None:
    key = lab.train("Loop", "--epochs", "1")
    (lab.folder / "again").mkdir()
    (lab.folder / "again" / ".0123456789abcdef.tmp").touch()  # left by a process that was killed during its first write
    code, out, _ = call("rerun", key, "--keep", "again")
    assert (code, out.splitlines()[-1]) == (0, f"kept the new run: {key} in {lab.folder / 'again'}")
    assert compare_runs(lab.store.run(key), Store("again").run(key)).is_same
    assert Store("again").verify() == []
    code, _, err = call("rerun", key, "--compare", "--keep", "again")
    assert (code, "--keep again: this folder is not empty" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "fact", "hint"),
    [
        (["--keep", "runs/new"], "--keep runs/new: this folder is inside the store", "choose a folder elsewhere"),
        (["--keep", "runs"], "--keep runs: this folder is inside the store", "choose a folder elsewhere"),
        (["--keep", "managers.py"], "--keep managers.py: this is a file", "choose a new folder"),
        (["--keep", ""], "--keep '' cannot be the path of a folder", "--keep again"),
        (["--compare", "--epochs", "9"], "was trained for 6 epochs, not for 9", "pass fewer --epochs"),
        (["--compare", "--target", "managers.py:Wrong"], "managers.py` has no `Wrong`", "it has"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_requests_are_refused_before_training(call: Any, trained: Trained, words: list[str], fact: str, hint: str) -> None:
    code, _, err = call("rerun", trained.own, *words)
    assert (code, fact in err, hint in err) == (2, True, True), err
    assert sorted({*os.listdir()} - {"__pycache__"}) == ["managers.py", "passing", "runs"]


def test_an_unknown_or_unsaved_run_is_refused(call: Any, lab: Lab) -> None:
    key = lab.store.configs.add({"lr": 0.7})
    code, _, err = call("rerun", key, "--compare")
    assert (code, f"run {key} has no checkpoint" in err, "it never saved one" in err) == (2, True, True)
    code, _, err = call("rerun", "0" if key[0] != "0" else "1", "--compare")
    assert (code, "no run has a key that starts with" in err) == (2, True)


def test_a_manager_whose_config_gives_another_run_is_refused(call: Any, lab: Lab) -> None:
    key = lab.train("Own")
    lab.change('"epochs": 2}', '"epochs": 2, "depth": 1}')
    code, _, err = call("rerun", key, "--compare", "--trust")
    assert code == 2
    assert f"trains another run with the config of {key}" in err
    assert "its defaults or `get_config` have changed since" in err


def test_a_run_without_its_secrets_is_refused_and_no_folder_is_created(call: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    key = lab.train("Own", "+api_key=hunter2000")
    code, out, err = call("rerun", key, "--keep", "again")
    assert (code, "the config lacks a secret: `api_key`" in err, "training run" in out) == (2, True, False)
    assert not Path("again").exists()
    monkeypatch.setenv("API_KEY", "another one")
    assert call("rerun", key, "--compare", "--keep", "again").code == 0


def test_an_error_in_the_new_training_is_reported_and_leaves_nothing_behind(call: Any, lab: Lab) -> None:
    key = lab.train("Own")
    lab.change("class Own(Plain):", "class Own(Plain):\n    def train(self):\n        raise RuntimeError('broken since')\n")
    before = files_of(lab.runs)
    code, _, err = call("rerun", key, "--compare", "--trust")
    assert (code, "broken since" in err) == (1, True)
    assert lab.left() == []
    assert files_of(lab.runs) == before
