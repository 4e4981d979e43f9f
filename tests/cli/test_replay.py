"""`trainmaster replay` makes a failed run fail again in another process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MANAGER = """
import torch
from torch import nn
from trainmaster import Manager, TrainManager
from trainmaster.extensions.failure_capsule import FailureCapsule


class Unlucky(Exception):
    pass


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(3, width)

    def forward(self, batch):
        out = self.layer(batch)
        if self.training and torch.rand(()) < 0.2:
            raise Unlucky(f"a sum of {out.sum().item()!r}")  # the line to blame
        return out


class Mine(Manager):
    defaults = {"width": 4, "epochs": 20}
    extensions = [FailureCapsule()]

    def make_loop(self, config):
        data = [torch.randn(2, 3) for _ in range(5)]
        return TrainManager(Net(config.width), lambda batch, out: out.pow(2).mean(), config.epochs, data, {"valid": data}, device="cpu")


made = Mine("own-store")
"""

FUNCTION = """
import torch
from torch import nn
from trainmaster import TrainManager
from trainmaster.extensions.failure_capsule import FailureCapsule


def make_loop():
    data = [torch.randn(2, 3), torch.randn(2, 4)]
    net = nn.Linear(3, 1)
    return TrainManager(net, lambda batch, out: out.mean(), 1, data, extensions=[FailureCapsule("out")], evaluate_first=False, device="cpu")


def make_mended():
    loop = make_loop()
    loop.model = nn.Linear(3, 1)
    loop.model_forward = lambda batch: loop.model(batch[:, :3])
    return loop


def make_other():
    loop = make_loop()

    def fail(batch):
        raise ValueError("another one")

    loop.model_forward = fail
    return loop


number = 3
"""


CUT = """

class Cut(nn.Linear):
    def forward(self, batch):
        return super().forward(batch[:, :3])
"""


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file with functions that build loops.

    Its module is removed afterwards, as if each command ran in a new process.
    """
    (tmp_path / "lab_functions.py").write_text(FUNCTION)
    before, path = {*sys.modules}, list(sys.path)
    yield "lab_functions.py"
    sys.path[:] = path
    for name in {*sys.modules} - before:
        if name.startswith("lab_"):
            del sys.modules[name]


@pytest.fixture
def capsule(lab: str, tmp_path: Path) -> Path:
    from trainmaster.cli.target import Target

    with pytest.raises(RuntimeError):
        Target.parse(f"{lab}:make_loop").load()().train()
    return tmp_path / "out" / "1.capsule"


@pytest.mark.integration
def test_a_failed_run_fails_again_in_a_new_process_and_the_store_does_not_change(program: Any, tmp_path: Path) -> None:
    (tmp_path / "lab_manager.py").write_text(MANAGER)
    ran = program("run", "lab_manager.py:Mine", "width=7", OMP_NUM_THREADS="1")
    assert ran.code == 1
    command = next(line for line in ran.err.splitlines() if "trainmaster replay" in line)
    path = command.partition("trainmaster replay ")[2].rstrip("`")
    assert path.startswith("runs/previews/")
    before = files_below(tmp_path / "runs")

    replayed = program("replay", path, OMP_NUM_THREADS="1")
    assert replayed.code == 0, replayed
    lines = replayed.out.splitlines()
    told = next(line for line in ran.err.splitlines() if "Unlucky: a sum of" in line)
    assert lines[0] == f"target {tmp_path / 'lab_manager.py'}:Mine"
    assert told in lines
    assert '    raise Unlucky(f"a sum of {out.sum().item()!r}")  # the line to blame' in lines
    assert lines[-1].startswith("replayed: the same error (stage run > train > train_step_epoch > train_step_batch > forward, epoch_num ")
    assert files_below(tmp_path / "runs") == before


def test_a_manager_with_its_own_store_does_not_change_it(call: Any, lab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster.cli.target import Target
    from trainmaster.manager.attempt_checkpoints import AttemptCheckpoints

    monkeypatch.setattr(AttemptCheckpoints, "draw", lambda self: None)  # drawing takes longer than training
    (tmp_path / "lab_manager.py").write_text(MANAGER)
    made = Target.parse("lab_manager.py:made").load()
    made.job_runner.console.mute()
    with pytest.raises(Exception, match="a sum of") as caught:
        made.process({"width": 5})
    path = next((tmp_path / "own-store").rglob("1.capsule"))
    before = files_below(tmp_path / "own-store")
    for target in ([], ["--target", "lab_manager.py:made"]):  # without `--target`, the manager's class is found
        found = call("replay", path, *target)
        assert found.code == 0, found
        assert str(caught.value) in found.out
        assert files_below(tmp_path / "own-store") == before


def test_a_recorded_target_that_has_changed_is_imported_only_if_trusted(call: Any, lab: str, tmp_path: Path) -> None:
    from trainmaster.cli.target import Target

    text = FUNCTION.replace('FailureCapsule("out")', 'FailureCapsule("out", target="lab_functions.py:make_loop")')
    (tmp_path / lab).write_text(text)
    with pytest.raises(RuntimeError):
        Target.parse(f"{lab}:make_loop").load()().train()
    capsule = tmp_path / "out" / "1.capsule"
    assert call("replay", capsule).code == 0
    (tmp_path / lab).write_text(text.replace("out.mean()", "out.sum()"))
    del sys.modules["lab_functions"]
    found = call("replay", capsule)
    assert found.code == 2
    assert f"{tmp_path / lab} has changed since" in found.err
    assert "lab_functions" not in sys.modules
    assert call("replay", capsule, "--trust").code == 0
    assert "lab_functions" in sys.modules


def test_after_a_fix_the_batch_trains_and_the_exit_code_is_0(call: Any, lab: str, tmp_path: Path) -> None:
    from trainmaster.cli.target import Target

    text = FUNCTION.replace('FailureCapsule("out")', 'FailureCapsule("out", target="lab_functions.py:make_loop")')
    (tmp_path / lab).write_text(text)
    with pytest.raises(RuntimeError):
        Target.parse(f"{lab}:make_loop").load()().train()
    (tmp_path / lab).write_text(text.replace("net = nn.Linear(3, 1)", "net = Cut(3, 1)") + CUT)
    del sys.modules["lab_functions"]
    found = call("replay", tmp_path / "out" / "1.capsule", "--trust")
    assert found.code == 0, found
    result, changed = found.out.splitlines()[1:]
    assert result.startswith("the batch trains without the error now (stage run > train > train_step_epoch > train_step_batch > forward, ")
    assert changed == "changed since the error: lab_functions.py"


def test_after_a_fix_in_an_imported_file_the_batch_trains_and_the_exit_code_is_0(call: Any, lab: str, tmp_path: Path) -> None:
    """The model fails until a file exists. An error that disappears without a change to the code is not a fix."""
    model = "import os\nfrom torch import nn\n\nclass Net(nn.Linear):\n    def forward(self, batch):\n        os.stat('needed')\n" + (
        "        return super().forward(batch)\n"
    )
    (tmp_path / "lab_model.py").write_text(model)
    (tmp_path / "lab_train.py").write_text(
        "import torch\n"
        "from lab_model import Net\n"
        "from trainmaster import FailureCapsule, TrainManager\n"
        "def make_loop(config):\n"
        "    loss = lambda batch, out: out.mean()\n"
        "    return TrainManager(Net(3, 1), loss, 1, [torch.ones(2, 3)], extensions=[FailureCapsule()], evaluate_first=False)\n"
    )

    def forget() -> None:
        for name in ("lab_model", "lab_train"):
            sys.modules.pop(name, None)

    ran = call("run", "lab_train.py", "-q")
    assert ran.code == 1
    assert "FileNotFoundError: [Errno 2] No such file or directory: 'needed'\nin stage run > train > " in ran.err
    (capsule,) = tmp_path.glob("runs/previews/*/*/*/capsules/1.capsule")

    (tmp_path / "needed").touch()
    forget()
    unchanged = call("replay", capsule)
    assert unchanged.code == 1
    lines = unchanged.out.splitlines()
    assert lines[1] == "the error did not occur again: the batch trains without it"
    assert lines[-1].startswith("  why       no change of the code was found; if you have repaired something else, such as a data file, ")

    (tmp_path / "lab_model.py").write_text(model.replace("os.stat('needed')", "os.stat('other')"))
    forget()
    different = call("replay", capsule)
    assert different.code == 1
    assert different.out.splitlines()[-1] == "  why       changed since the error: lab_model.py"

    (tmp_path / "lab_model.py").write_text(model.replace("        os.stat('needed')\n", ""))
    forget()
    fixed = call("replay", capsule)
    assert fixed.code == 0, fixed
    assert fixed.out.splitlines()[-1] == "changed since the error: lab_model.py"


def test_a_function_that_returns_a_loop_is_a_target(call: Any, lab: str, capsule: Path) -> None:
    found = call("replay", capsule, "--target", f"{lab}:make_loop")
    assert found.code == 0, found
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x4 and 3x1)" in found.out
    assert sorted(each.name for each in capsule.parent.iterdir()) == ["1.capsule"]


def test_an_error_that_does_not_occur_again_gives_exit_code_1(call: Any, lab: str, capsule: Path) -> None:
    found = call("replay", capsule, "--target", f"{lab}:make_mended")
    assert found.code == 1, found
    lines = found.out.splitlines()
    assert lines[1:3] == [
        "the error did not occur again: the batch trains without it",
        "  expected  RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x4 and 3x1)",
    ]
    assert lines[3].startswith("  where     stage run > train > train_step_epoch > train_step_batch > forward, epoch_num 0, batch_num 1")


def test_a_different_error_gives_exit_code_1(call: Any, lab: str, capsule: Path) -> None:
    found = call("replay", capsule, "--target", f"{lab}:make_other")
    assert found.code == 1, found
    assert "not replayed: ValueError: another one" in found.out.splitlines()
    assert found.out.splitlines()[-1].startswith("  why       no change of the code or of the versions was found; the error may depend on ")


def test_a_capsule_without_a_target_is_an_error_that_says_what_to_add(call: Any, capsule: Path) -> None:
    found = call("replay", capsule)
    assert found.code == 2
    assert found.err.splitlines() == [
        "the capsule does not record a TARGET",
        f"  try     name it: `trainmaster replay {capsule} --target train.py:make_loop`",
    ]


def test_a_target_that_creates_no_loop_is_refused(call: Any, lab: str, capsule: Path) -> None:
    found = call("replay", capsule, "--target", f"{lab}:number")
    assert found.code == 2
    assert "not a manager" in found.err


@pytest.mark.parametrize("name", ["none.capsule", "file.capsule", "empty.capsule", "damaged.capsule"])
def test_an_invalid_capsule_is_refused_in_one_line(call: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "file.capsule").write_text("text")
    (tmp_path / "empty.capsule").mkdir()
    (tmp_path / "damaged.capsule").mkdir()
    (tmp_path / "damaged.capsule" / "manifest.json").write_text('{"status": {}}')
    found = call("replay", name)
    assert found.code == 2
    assert found.out == ""
    assert found.err.startswith(f"`{name}` is not a capsule: ")
    assert len(found.err.splitlines()) == 1


def test_a_run_that_fails_with_a_trainmaster_error_names_its_capsule(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster.manager.attempt_checkpoints import AttemptCheckpoints

    monkeypatch.setattr(AttemptCheckpoints, "draw", lambda self: None)
    (tmp_path / "lab_nan.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "from trainmaster import FailureCapsule, Manager, NaNGuard, TrainManager\n"
        "class Mine(Manager):\n"
        "    extensions = [FailureCapsule(), NaNGuard()]\n"
        "    def make_loop(self, config):\n"
        "        return TrainManager(nn.Linear(2, 1), lambda batch, out: out.mean() / 0, 1, [torch.ones(3, 2)])\n"
    )
    ran = call("run", "lab_nan.py:Mine")
    assert ran.code == 1
    assert ran.err.startswith("the loss is ")
    assert "\nFailureCapsule: reproduce it with `" in ran.err
