"""The exit codes, messages and logs of runs that fail or warn during training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny

from trainmaster.store import Store

Call = Callable[..., Any]

TRAIN = """
import torch
from torch import nn
from trainmaster import DivergenceGuard, Extension, FailureCapsule, LeakageCheck, NaNGuard, Supervised
from trainmaster.errors import SettingError

defaults = {"kind": "", "lr": 0.01}

class Mixed(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))

class Unknown(Extension):
    def post_train_step_batch(self, no_such_fixture): ...

class Late(Extension):
    def post_train(self, loop):
        raise SettingError("no figure can be drawn")

class Misspelled(Extension):
    def pre_train_step_bach(self): ...

class Reset(Extension):
    def pre_backward(self, batch_num):
        if batch_num == 1:
            raise ConnectionResetError(104, "Connection reset by peer")

EXTENSIONS = {
    "NonFiniteError": lambda: [NaNGuard("stop")],
    "LossDivergedError": lambda: [DivergenceGuard(warm_up_epochs=0)],
    "LeakageError": lambda: [LeakageCheck()],
    "SettingError": lambda: [Late()],
    "leak warning": lambda: [LeakageCheck(on_leak="warn")],
    "fixture": lambda: [Unknown()],
    "hook": lambda: [Misspelled()],
    "argument": lambda: [DivergenceGuard(factor=0)],
    "reset": lambda: [Reset()],
}

def make_loop(config):
    kind, x = config.kind, torch.rand(8, 2, generator=torch.Generator().manual_seed(0))
    data = [(x, x[:, :1])] * 2 + ([(x / 0, x[:, :1])] if kind in ("NonFiniteError", "nan") else [])
    model = Mixed(2, 1) if kind in ("LeakageError", "leak warning") else nn.Linear(2, 1)
    return Supervised(model, nn.MSELoss(), epochs=2, train_data=data, eval_data={"valid": data[:2]}, device="cpu",
                      optimizer=torch.optim.SGD(model.parameters(), lr=30.0 if kind == "LossDivergedError" else config.lr),
                      extensions=[FailureCapsule(), *EXTENSIONS.get(kind, list)()])
"""


@pytest.fixture
def run(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """Return a function that trains a run of a given kind; the module it imports is removed after the test."""
    tiny.draw_nothing(monkeypatch.setattr)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "failing_train.py").write_text(TRAIN)
    yield lambda kind: call("run", "failing_train.py", f"kind={kind}", "-q")
    sys.modules.pop("failing_train", None)


def only_key(folder: Path) -> str:
    (key,) = Store(folder / "runs").configs
    return key


@pytest.mark.parametrize("kind", ["NonFiniteError", "LossDivergedError", "LeakageError", "SettingError"])
def test_an_error_while_a_run_trains_gives_exit_code_1(run: Call, tmp_path: Path, kind: str) -> None:
    found = run(kind)
    assert found.code == 1, found
    assert Store(tmp_path / "runs").run(only_key(tmp_path)).outcome_of(1)["error"].startswith(f"{kind}: ")  # type: ignore[index]


@pytest.mark.parametrize(
    ("kind", "message"), [("fixture", "asks for `no_such_fixture`"), ("hook", "no stage `train_step_bach`"), ("argument", "`factor`")]
)
def test_wrong_input_that_is_found_before_training_gives_exit_code_2(run: Call, kind: str, message: str) -> None:
    found = run(kind)
    assert found.code == 2, found
    assert message in found.err


def test_an_operating_system_error_in_training_is_reported_with_its_type_and_stage(run: Call) -> None:
    found = run("reset")
    assert found.code == 1
    assert "ConnectionResetError: [Errno 104] Connection reset by peer\n" in found.err
    assert "stage run > train > train_step_epoch > train_step_batch > backward, epoch_index 0, batch_num 1" in found.err


def test_show_prints_the_command_that_replays_the_capsule_of_a_failed_run(call: Call, run: Call, tmp_path: Path) -> None:
    run("NonFiniteError")
    key = only_key(tmp_path)
    path = f"runs/previews/{key[:2]}/{key}/attempt-0001/capsules/1.capsule"
    assert call("show", key).out.splitlines()[-1] == f"  trainmaster replay {path}"
    assert call("replay", path).code == 0


def test_show_does_not_suggest_to_replay_an_error_outside_of_a_batch(call: Call, run: Call, tmp_path: Path) -> None:
    assert "trainmaster replay" not in run("LossDivergedError").err
    assert list(tmp_path.rglob("1.capsule"))
    assert "replay" not in call("show", only_key(tmp_path)).out


@pytest.mark.parametrize(
    ("kind", "warning"),
    [("nan", "the training loss is inf in epoch 0, batch 2"), ("leak warning", "examples of a batch mix in the forward")],
)
def test_the_warnings_of_a_run_are_in_its_log_and_on_stderr(call: Call, run: Call, tmp_path: Path, kind: str, warning: str) -> None:
    found = run(kind)
    assert found.code == 0, found
    lines = call("logs", only_key(tmp_path)).out.splitlines()
    assert sum(line.startswith(f"warning: {warning}") for line in lines) == 1
    assert f"warning: {warning}" in found.err
