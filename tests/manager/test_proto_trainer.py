"""`ProtoTrainer` runs ablator's example program (contracts A36 and A40)."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import cifar_program
import pytest
import torch
from cifar_program import CifarRun, MyModel, MyModelWrapper, config_for, weights_digest
from synthetic_torchvision import KILL_AFTER

from trainmaster import ProtoTrainer, TrainConfig
from trainmaster.errors import SettingError, TrainmasterError


def trainer_in(folder: Any, model: Any = MyModel, **values: Any) -> ProtoTrainer:
    return ProtoTrainer(MyModelWrapper(model), config_for(CifarRun, folder, **values))


def digest_after(trainer: ProtoTrainer) -> str:
    trainer.launch()
    assert trainer.manager.loop is not None
    return weights_digest(trainer.manager.loop.model)


def test_the_example_program_trains_records_and_evaluates(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    metrics = trainer.launch()
    assert metrics.keys() == {"train/loss", "valid/loss", "train/accuracy", "valid/accuracy"}
    history = trainer.manager.history
    assert [step for step, _ in history["valid/loss"]] == [0, 0.5, 1, 1.5, 2]
    assert history["valid/loss"][-1][1] < history["valid/loss"][0][1]
    assert trainer.evaluate() == {"valid": {name: metrics[f"valid/{name}"] for name in ("loss", "accuracy")}}
    assert trainer_in(tmp_path).evaluate() == trainer.evaluate()


def test_the_same_config_gives_the_same_weights(tmp_path: Path) -> None:
    torch.rand(3)  # the weights must not depend on the random state of the process
    digests = [digest_after(trainer_in(tmp_path / name)) for name in "ab"]
    assert digests[0] == digests[1] != digest_after(trainer_in(tmp_path, random_seed=4))


def test_a_trained_config_is_only_trained_again_with_resume_false(tmp_path: Path) -> None:
    first = digest_after(trainer_in(tmp_path))
    again = trainer_in(tmp_path)
    again.launch()
    assert len(list(tmp_path.glob("stats/*/*/attempt-*"))) == 1
    again.launch(resume=False)
    assert len(list(tmp_path.glob("stats/*/*/attempt-*"))) == 2
    assert digest_after(again) == first


@pytest.mark.parametrize(
    "num_images", [pytest.param(30, marks=pytest.mark.integration), 100, pytest.param(150, marks=pytest.mark.integration)]
)  # kills before the first checkpoint, in epoch 1, and in epoch 2
def test_a_killed_program_resumes_bit_for_bit(num_images: int, tmp_path: Path) -> None:
    program = [sys.executable, cifar_program.__file__, "proto", str(tmp_path / "killed")]
    killed = subprocess.run(program, env={**os.environ, KILL_AFTER: str(num_images)}, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    resumed = subprocess.run(program, capture_output=True, text=True, check=True)
    assert resumed.stdout.strip() == digest_after(trainer_in(tmp_path / "whole"))


# ---- smoke tests


def test_a_smoke_test_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    trainer = trainer_in(tmp_path / "store", verbose="console")
    before = torch.get_rng_state()
    assert trainer.smoke_test() is True
    assert torch.equal(torch.get_rng_state(), before)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not list((tmp_path / "store").glob("*/*"))
    assert capsys.readouterr().out == ""


class FailsInEvaluation(MyModel):
    def forward(self, x: Any, labels: Any = None, custom_input: Any = None) -> Any:
        if not self.training:
            raise ZeroDivisionError("in the evaluation")
        return super().forward(x, labels, custom_input)


class NotSaved(MyModel):
    """Keeps part of its state outside `state_dict`."""

    def forward(self, x: Any, labels: Any = None, custom_input: Any = None) -> Any:
        self.num_batches = getattr(self, "num_batches", 0) + self.training
        out, loss = super().forward(x, labels, custom_input)
        return out, loss * (1 + self.num_batches)


def test_a_smoke_test_finds_a_broken_evaluation(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="in the evaluation"):
        trainer_in(tmp_path, FailsInEvaluation).smoke_test()


def test_a_smoke_test_finds_state_that_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(TrainmasterError, match="after reloading its checkpoint, the model has valid/loss"):
        trainer_in(tmp_path, NotSaved).smoke_test()


# ---- arguments


def test_wrong_arguments_are_errors(tmp_path: Path) -> None:
    config = config_for(CifarRun, tmp_path)
    for wrapper, given, message in (
        (MyModel, config, "`wrapper` is a ModelWrapper"),
        (MyModelWrapper(MyModel), config.to_dict(), "`run_config` is a RunConfig"),
        (MyModelWrapper(MyModel), config_for(CifarRun, tmp_path, experiment_dir=None), "no experiment_dir"),
    ):
        with pytest.raises(SettingError, match=message):
            ProtoTrainer(wrapper, given)  # type: ignore[arg-type]


def test_the_wrapper_and_the_config_are_copied(tmp_path: Path) -> None:
    """Covers contract A40."""
    config = config_for(CifarRun, tmp_path)
    trainer = ProtoTrainer(MyModelWrapper(MyModel), config)
    config.train_config = TrainConfig(**{**config.train_config.to_dict(), "epochs": 50})
    trainer.launch()
    assert trainer.manager.epoch == 2
