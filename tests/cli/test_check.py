"""`trainmaster check` accepts every form of TARGET, reports its results in its output and its exit code, and writes nothing."""

from __future__ import annotations

import importlib
import json
import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm

TRAINING = """
import torch
from torch import nn
from trainmaster import LeakageCheck, Manager, TrainManager

class Loop(TrainManager):
    def model_forward(self, batch):
        return self.model(batch[0])

    def loss_forward(self, batch, prediction):
        return nn.functional.cross_entropy(prediction, batch[1])

class Bad(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.spare = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self[0](x)

def make(kind=nn.Sequential, width=3, **settings):
    print("making a loop")
    inputs = torch.randn(192, 6, generator=torch.Generator().manual_seed(0))
    labels = inputs[:, :3].argmax(1)
    batches = list(zip(inputs.split(32), labels.split(32)))
    model = kind(nn.Linear(6, width))
    return Loop(model, None, 3, batches[:4], {"valid": batches[4:]}, optimizer=lambda p: torch.optim.Adam(p, lr=0.05), **settings)

def sound():
    return make()

class Centred(nn.Sequential):
    def forward(self, x):
        return self[0](x) - self[0](x).mean(0)

class Mixing(nn.Sequential):
    def __init__(self, layer):
        super().__init__()
        self.stats = Centred(layer)

    def forward(self, x):
        return self.stats(x)

def mixing():
    return make(Mixing)

def mixing_allowed():
    return make(Mixing, extensions=[LeakageCheck(allow=("stats",))])

def bad():
    return make(Bad, train_dir="out")

def broken():
    raise RuntimeError("no data here")

class Mine(Manager):
    defaults = {"width": 3, "is_bad": False}

    def make_loop(self, config):
        return make(Bad if config.is_bad else nn.Sequential, config.width)

class Plain(Manager):
    def train(self): ...

made = Mine("own-store")
loop = sound()

def manager(store_dir):
    return Mine(store_dir)

def wrong():
    return 3
"""


@pytest.fixture(autouse=True)
def lab(tmp_path: Path) -> Iterator[Path]:
    """Create a folder with a training program, and remove its module after the test."""
    (tmp_path / "training.py").write_text(TRAINING)
    path = list(sys.path)
    yield tmp_path
    sys.modules.pop("training", None)
    sys.path[:] = path
    importlib.invalidate_caches()


def written(folder: Path) -> set[str]:
    """Return the files that were written to a folder, except for the empty store that the program itself creates."""
    files = {str(each.relative_to(folder)) for each in folder.rglob("*") if "__pycache__" not in str(each)}
    store = ("store.json", "configs", "stats", "ckpts", "previews")
    return files - {"training.py", "own-store", *(f"own-store/{each}" for each in store)}


QUICK = ("--checks", "data,parameters,determinism")


@pytest.mark.parametrize("name", ["Mine", "made", "manager", "sound", "loop"])
def test_a_target_can_be_a_manager_a_class_a_loop_or_a_function_that_returns_one(call: Any, lab: Path, name: str) -> None:
    before = written(lab)
    code, out, err = call("check", f"training.py:{name}", *QUICK)
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if line != "making a loop"]
    assert lines[0] == f"target {lab}/training.py:{name}"
    assert lines[1:] == [
        "check        outcome  details",
        "data         passed   all values of the first 4 training batches are finite",
        "parameters   passed   all 2 trainable parameters have a gradient",
        "determinism  passed   two passes in eval mode gave the same bits",
        "sanity check: 3 passed",
    ]
    assert written(lab) == before


def test_a_correct_setup_exits_with_0_after_all_checks(call: Any) -> None:
    code, out, _ = call("check", "training.py:Mine")
    assert code == 0
    assert out.splitlines()[-1] == "sanity check: 7 passed"


def test_a_failed_check_exits_with_1_and_suggests_a_fix(call: Any, lab: Path) -> None:
    code, out, _ = call("check", "training.py:bad", *QUICK)
    assert code == 1
    fact = "no gradient (not used, or the output is detached): `spare`"
    assert f"parameters   failed   {fact}\n                      try: use them without .detach()" in out
    assert not (lab / "out").exists()


def test_modules_that_an_attached_leakage_check_allows_may_mix(call: Any) -> None:
    code, out, _ = call("check", "training.py:mixing", "--checks", "leakage")
    assert code == 1
    assert 'if this is intended: LeakageCheck(allow=("stats",))' in out
    assert call("check", "training.py:mixing_allowed", "--checks", "leakage").code == 0


def test_arguments_and_a_file_change_the_config(call: Any, lab: Path) -> None:
    (lab / "config.yaml").write_text("is_bad: true\n")
    assert call("check", "training.py:Mine", *QUICK).code == 0
    assert call("check", "training.py:Mine", "is_bad=true", *QUICK).code == 1
    assert call("check", "training.py:Mine", "--config", "config.yaml", *QUICK).code == 1
    assert call("check", "training.py:Mine", "is_bad=false", "--config", "config.yaml", *QUICK).code == 0


def test_stdout_contains_only_json(call: Any) -> None:
    code, out, err = call("check", "training.py:bad", "--checks", "parameters", "--json")
    assert code == 1
    assert json.loads(out) == {
        "is_ok": False,
        "results": [
            {
                "name": "parameters",
                "outcome": "failed",
                "details": "no gradient (not used, or the output is detached): `spare`",
                "advice": "use them without .detach(), freeze them (requires_grad=False), or remove them",
            }
        ],
    }
    assert err.splitlines()[0].startswith("target ")
    assert "making a loop" in err


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["training.py:Mien"], "training.py` has no `Mien`"),
        (["training.py:wrong"], "training.py:wrong` is int, not a manager"),
        (["training.py:Plain"], "training.py:Plain` has no `make_loop`"),
        (["training.py:sound", "width=4"], "training.py:sound` does not take a config"),
        (["training.py:Mine", "widht=4"], "widht"),
        (["training.py:Mine", "--checks", "leekage"], "there is no check 'leekage'"),
        (["training.py:Mine", "--config", "nowhere.yaml"], "nowhere.yaml"),
        ([], "Missing argument 'TARGET'"),
    ],
)
def test_wrong_input_exits_with_2(call: Any, words: list[str], fact: str) -> None:
    code, _, err = call("check", *words)
    assert code == 2
    assert fact in err
    assert "Traceback" not in err


def test_an_error_in_user_code_is_shown_with_its_line(call: Any) -> None:
    code, _, err = call("check", "training.py:broken")
    assert code == 1
    assert 'raise RuntimeError("no data here")' in err


def test_a_terminal_shows_the_running_check_and_colored_outcomes(lab: Path) -> None:
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "90"}
    env.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "trainmaster", "check", "training.py:bad", "--checks", "data,parameters"]
    process = warm.Popen(command, cwd=lab, stdin=follower, stdout=follower, stderr=follower, env=env)
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:  # the process has closed its end of the terminal
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait(60) == 1
    text = shown.decode()
    assert "\r\x1b[Kchecking: data ...\r\x1b[Kchecking: parameters ...\r\x1b[K" in text
    assert "\x1b[32mpassed\x1b[0m" in text
    assert "\x1b[31mfailed\x1b[0m" in text
