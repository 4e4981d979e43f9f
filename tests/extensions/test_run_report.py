"""RunReport: the words before and after a training."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, Manager, TrainManager
from trainmaster.errors import SettingError
from trainmaster.extensions.run_report import MAX_LINES, RunReport, opening
from trainmaster.testing import ExtensionContract


class TestContract(ExtensionContract):
    def make(self) -> object:
        return RunReport(say=lambda line: None)


def reported(*extensions: object, facts: Any = (), **settings: Any) -> list[str]:
    lines: list[str] = []
    manager = ExtensionContract().manager(RunReport(lines.append, facts), *extensions)
    manager.settle(**settings)
    manager.train()
    return lines


class TestFirstWords:
    def test_they_tell_device_data_and_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        threads = torch.get_num_threads()
        assert reported(facts=[("seed", "3")])[:8] == [
            "seed    3",
            f"device  cpu, {threads} thread{'s' if threads > 1 else ''}",
            "data    train 48 samples in 6 batches; valid 48 samples in 3 batches",
            "model   _Model, 163 parameters",
            "          layers.0  Linear  112",
            "          layers.1  ReLU  0",
            "          layers.2  Dropout  0",
            "          layers.3  Linear  51",
        ]

    def test_they_tell_the_commit_and_whether_files_differ_from_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "train.py").write_text("lr = 1\n")
        for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"]):
            subprocess.run(["git", *words], check=True)
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        assert f"commit  {commit}" in reported()
        (tmp_path / "train.py").write_text("lr = 2\n")
        assert f"commit  {commit} with changes" in reported()

    def test_they_are_fifteen_lines_at_most_whatever_the_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        manager = ExtensionContract().manager()
        manager.model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(50)))
        lines = opening(manager, [(f"fact {number}", "x") for number in range(7)])
        assert len(lines) <= MAX_LINES
        assert lines[-1].strip() == "and 46 more"

    def test_data_without_a_length_is_no_trouble(self) -> None:
        manager = ExtensionContract().manager()
        manager.train_data = iter([])
        assert "data    train of unknown length; valid 48 samples in 3 batches" in opening(manager, [])


@pytest.fixture(scope="module")
def _is_warm() -> None:
    """The first training of a process loads what takes longer than all that is measured here."""
    ExtensionContract().manager().train()


@pytest.mark.usefixtures("_is_warm")
class TestLastWords:
    def test_they_tell_the_best_and_the_last_of_each_number_with_its_course(self) -> None:
        (line,) = [line for line in reported() if line.startswith("losses/valid/loss ")]
        assert re.fullmatch(r"losses/valid/loss  best 1\.\d+ at 3 +last 1\.\d+ +[▁-█]{4}", line)

    def test_the_greatest_accuracy_is_the_best(self) -> None:
        class Rising(Extension):
            def post_train_step_epoch(self, writer: Any, epoch_num: int) -> None:
                writer.add_scalar("accuracy/valid", [0.5, 0.9, 0.7][epoch_num - 1], epoch_num)

        (line,) = [line for line in reported(Rising()) if line.startswith("accuracy")]
        assert re.search(r"best 0\.9 at 2 +last 0\.7 ", line)

    def test_they_tell_where_the_time_went(self) -> None:
        class Sleeps(Extension):
            def post_train_step_batch(self) -> None:
                time.sleep(0.02)

        (line,) = [line for line in reported(Sleeps()) if line.startswith("time ")]
        shares = {name: int(share) for name, share in re.findall(r"(\w+) (\d+)%", line)}
        assert list(shares) == ["data", "forward", "backward", "update", "extensions", "eval"]
        assert max(shares, key=lambda name: shares[name]) == "extensions"

    def test_time_in_the_data_and_in_the_model_is_found_there(self) -> None:
        class Slow(TrainManager):
            def model_forward(self, batch: Any) -> Any:
                time.sleep(0.01)
                return self.model(batch)

        class SlowData(list[Any]):
            def __iter__(self) -> Any:
                for each in super().__iter__():
                    time.sleep(0.02)
                    yield each

        plain = ExtensionContract().manager()
        lines: list[str] = []
        data = SlowData(plain.train_data)
        Slow(plain.model, plain.loss, 2, data, extensions=[RunReport(lines.append)], evaluate_first=False).train()
        shares = {name: int(share) for name, share in re.findall(r"(\w+) (\d+)%", lines[-1])}
        assert {*sorted(shares, key=lambda name: -shares[name])[:2]} == {"data", "forward"}

    def test_there_are_none_after_an_error(self) -> None:
        class Breaks(Extension):
            def post_train_step_batch(self) -> None:
                raise RuntimeError("broken")

        lines: list[str] = []
        manager = ExtensionContract().manager(RunReport(lines.append), Breaks())
        with pytest.raises(RuntimeError, match="broken"):
            manager.train()
        assert not any(line.startswith(("time", "losses")) for line in lines)
        assert not any(name.startswith("stopwatch") for name in manager.extensions)

    def test_nothing_of_the_stopwatch_is_left_on_the_loop(self) -> None:
        manager = ExtensionContract().manager(RunReport(lambda line: None))
        manager.train()
        assert list(manager.extensions) == ["setup", "eval_state", "run_report"]


class TestUnderAManager:
    def make(self, folder: Path | None, **settings: Any) -> Manager:
        class Small(Manager):
            def make_loop(self, config: Any) -> TrainManager:
                return ExtensionContract().manager()

        return Small(folder, **settings)

    def test_a_run_prints_them_around_its_epochs(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        manager = self.make(tmp_path)
        manager.process({"seed": 7}, 1)
        lines = capsys.readouterr().out.splitlines()
        assert lines[:3] == [f"run {manager.key} starts, for 1 epoch", "seed    7", f"store   {tmp_path}"]
        assert f"files   {tmp_path}/previews/{manager.key[:2]}/{manager.key}/attempt-0001" in lines
        assert lines[-1] == f"run {manager.key} is done: epoch 1"
        assert sum(line.startswith("losses/train/loss ") for line in lines) == 1

    def test_the_log_of_a_run_of_a_batch_has_them_and_the_screen_has_not(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        manager = self.make(tmp_path)
        manager.batch([{"seed": 7}], 1)
        assert "device" not in capsys.readouterr().out
        (log,) = tmp_path.glob("stats/*/*/*/log")
        assert "\ndevice  cpu" in log.read_text()


def test_a_say_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(SettingError, match="wanted a function that prints a line"):
        RunReport(say=os)  # type: ignore[arg-type]
