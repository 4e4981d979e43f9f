"""RunReport prints a report before and after training."""

from __future__ import annotations

import math
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import EarlyStopping, Extension, Manager, TrainManager
from trainmaster.extensions.run_report import MAX_LINES, RunReport, start_report
from trainmaster.testing import ExtensionContract


class TestContract(ExtensionContract):
    def make(self) -> object:
        return RunReport(output=lambda line: None)


def reported(*extensions: object, facts: Any = (), **settings: Any) -> list[str]:
    lines: list[str] = []
    manager = ExtensionContract().loop(RunReport(lines.append, facts), *extensions)
    manager.configure(**settings)
    manager.train()
    return lines


class TestStartReport:
    def test_it_shows_device_data_and_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_it_shows_the_commit_and_whether_files_differ_from_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "train.py").write_text("lr = 1\n")
        for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"]):
            subprocess.run(["git", *words], check=True)
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        assert f"commit  {commit}" in reported()
        (tmp_path / "train.py").write_text("lr = 2\n")
        assert f"commit  {commit}-dirty" in reported()

    def test_it_has_at_most_fifteen_lines(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        manager = ExtensionContract().loop()
        manager.model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(50)))
        lines = start_report(manager, [(f"fact {number}", "x") for number in range(7)])
        assert len(lines) <= MAX_LINES
        assert lines[-1].strip() == "and 46 more"

    def test_data_may_have_no_length(self) -> None:
        manager = ExtensionContract().loop()
        manager.train_data = iter([])
        assert "data    train of unknown length; valid 48 samples in 3 batches" in start_report(manager, [])


@pytest.fixture(scope="module")
def _is_warm() -> None:
    """Train once, because the first training run imports libraries, which takes longer than what is measured here."""
    ExtensionContract().loop().train()


@pytest.mark.usefixtures("_is_warm")
class TestEndReport:
    def test_it_shows_the_best_and_last_value_of_each_metric_with_its_trend(self) -> None:
        (line,) = [line for line in reported() if line.startswith("valid/loss ")]
        assert re.fullmatch(r"valid/loss  best 1\.\d+ at 3 +last 1\.\d+ +[▁-█]{4}", line)

    def test_the_greatest_accuracy_is_the_best(self) -> None:
        class Rising(Extension):
            def post_train_step_epoch(self, writer: Any, epoch_num: int) -> None:
                writer.add_scalar("valid/accuracy", [0.5, 0.9, 0.7][epoch_num - 1], epoch_num)

        (line,) = [line for line in reported(Rising()) if line.startswith("valid/accuracy")]
        assert re.search(r"best 0\.9 at 2 +last 0\.7 ", line)

    def test_it_shows_a_best_value_only_if_the_direction_is_known(self) -> None:
        class Quality(Extension):
            def post_eval_step_epoch(self, writer: Any, epoch_num: int) -> None:
                writer.add_scalar("valid/quality", [0.1, 0.5, 0.9, 0.7][epoch_num], epoch_num)
                writer.add_scalar("weight_norm", float(epoch_num), epoch_num)

        def lines(*extensions: object) -> dict[str, str]:
            return {line.split()[0]: line for line in reported(Quality(), *extensions) if "last" in line}

        assert "best" not in lines()["valid/quality"]
        for name in ("quality", "valid/quality"):
            found = lines(EarlyStopping(monitor=name, mode="max"))
            assert re.search(r"best 0\.9 at 2 +last 0\.7 ", found["valid/quality"])
            assert "best" not in found["weight_norm"]
            assert "best" in found["valid/loss"]

    def test_values_that_are_not_finite_are_never_the_best(self) -> None:
        class Breaks(Extension):
            def post_eval_step_epoch(self, writer: Any, epoch_num: int) -> None:
                writer.add_scalar("a/loss", math.nan, epoch_num)
                writer.add_scalar("b/loss", [math.inf, 3.0, 2.0, math.nan][epoch_num], epoch_num)
                writer.add_scalar("accuracy", [0.5, math.inf, 0.9, math.nan][epoch_num], epoch_num)
                writer.add_scalar("non_finite/losses", float(epoch_num), epoch_num)

        lines = {line.split()[0]: line for line in reported(Breaks()) if "last" in line}
        assert "best" not in lines["a/loss"]
        assert "best 2 at 2 " in lines["b/loss"]
        assert "best 0.9 at 2 " in lines["accuracy"]
        assert "best" not in lines["non_finite/losses"]

    def test_it_shows_the_share_of_time_in_evaluations(self) -> None:
        class Sleeps(Extension):
            def post_eval_step_batch(self) -> None:
                time.sleep(0.05)

        (line,) = [line for line in reported(Sleeps()) if line.startswith("time ")]
        match = re.fullmatch(r"time    [\d.]+ s, (\d+)% of it in evaluations", line)
        assert match is not None
        assert int(match[1]) > 50

    def test_there_is_none_after_an_error(self) -> None:
        class Breaks(Extension):
            def post_train_step_batch(self) -> None:
                raise RuntimeError("broken")

        lines: list[str] = []
        manager = ExtensionContract().loop(RunReport(lines.append), Breaks())
        with pytest.raises(RuntimeError, match="broken"):
            manager.train()
        assert not any(line.startswith(("time", "losses")) for line in lines)


class TestUnderAManager:
    def make(self, folder: Path | None, **settings: Any) -> Manager:
        class Small(Manager):
            def make_loop(self, config: Any) -> TrainManager:
                return ExtensionContract().loop()

        return Small(folder, **settings)

    def test_a_run_prints_both_reports(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        manager = self.make(tmp_path)
        manager.process({"seed": 7}, 1)
        lines = capsys.readouterr().out.splitlines()
        assert lines[:3] == [f"run {manager.key} starts, for 1 epoch", "seed    7", f"store   {tmp_path}"]
        assert f"files   {tmp_path}/previews/{manager.key[:2]}/{manager.key}/attempt-0001" in lines
        assert lines[-1] == f"run {manager.key} is done: epoch 1"
        assert sum(line.startswith("train/loss ") for line in lines) == 1

    @pytest.mark.filterwarnings("ignore:the training loss is nan")
    def test_a_last_loss_that_is_not_finite_is_reported_at_the_end(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        class Breaks(Extension):
            def post_train_step_epoch(self, model: nn.Module) -> None:
                nn.init.constant_(next(model.parameters()), math.nan)

        class Small(Manager):
            def make_loop(self, config: Any) -> TrainManager:
                return ExtensionContract().loop(Breaks())

        manager = Small(tmp_path)
        manager.process({"seed": 7}, 2)
        assert capsys.readouterr().out.splitlines()[-1] == (
            "the last loss is not finite: train/loss nan, valid/loss nan; the extension NaNGuard() finds where a nan in training comes from"
        )

    def test_in_a_batch_the_reports_go_to_the_log_only(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        manager = self.make(tmp_path)
        manager.batch([{"seed": 7}], 1)
        assert "device" not in capsys.readouterr().out
        (log,) = tmp_path.glob("stats/*/*/*/log")
        assert "\ndevice  cpu" in log.read_text()
