"""CSVLogger writes one line per epoch."""

from __future__ import annotations

import csv
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import Avg, Extension, Manager, TrainManager
from trainmaster.errors import SettingError
from trainmaster.extensions.csv_logger import CSVLogger
from trainmaster.testing import ExtensionContract

INPUTS = torch.linspace(-1, 1, 24).unsqueeze(1)
DATA = TensorDataset(INPUTS, INPUTS**2)


class Net(nn.Sequential):
    def forward(self, batch: Any) -> Any:
        return super().forward(batch[0])


def squared(batch: Any, prediction: Any) -> Any:
    return (prediction - batch[1]).pow(2).mean()


def make(*extensions: object, **settings: Any) -> TrainManager:
    torch.manual_seed(0)
    model = Net(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    loader = DataLoader(DATA, 8, shuffle=True)
    return TrainManager(
        model, squared, settings.pop("epochs", 3), loader, {"valid": DataLoader(DATA, 24)}, extensions=extensions, **settings
    )


def lines(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class TestContract(ExtensionContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "metrics.csv"

    def make(self) -> object:
        return CSVLogger(self.path)


class TestLines:
    def test_the_last_line_has_metrics_that_a_later_extension_records_after_training(self, tmp_path: Path) -> None:
        class Final(Extension):
            def post_train(self, writer: Any) -> None:
                writer.add_scalar("final", 7.0, 3)

        make(CSVLogger(), Final(), train_dir=tmp_path).train()
        assert [row["final"] for row in lines(tmp_path / "metrics.csv")] == [
            "",
            "",
            "",
            "7.0",
        ]  # the first line is the evaluation before training

    @pytest.mark.parametrize("stage", ["eval", "train_step_epoch"])
    def test_a_stop_after_an_epoch_loses_no_line(self, tmp_path: Path, stage: str) -> None:
        def stop(self: object, loop: TrainManager) -> None:
            if loop.epoch_num == 2:
                loop.stop("enough")

        path = tmp_path / "metrics.csv"
        stopper = type("Stopper", (Extension,), {f"post_{stage}": stop})()
        loop = make(CSVLogger(path), stopper, train_dir=tmp_path)
        loop.train()
        assert [row["epoch"] for row in lines(path)] == ["0", "1", "2"]
        assert float(lines(path)[-1]["train/loss"]) == loop.history["train/loss"][-1][1]
        if stage == "eval":
            assert float(lines(path)[-1]["valid/loss"]) == loop.history["valid/loss"][-1][1]
        make(CSVLogger(path), train_dir=tmp_path).train()
        make(CSVLogger(tmp_path / "undisturbed.csv")).train()
        assert lines(path) == lines(tmp_path / "undisturbed.csv")

    @pytest.mark.parametrize("batch_num", [0, 1, 2])
    def test_a_stop_within_an_epoch_loses_and_repeats_nothing(self, tmp_path: Path, batch_num: int) -> None:
        class Stopper(Extension):
            def post_train_step_batch(self, loop: TrainManager, batch_num: int) -> None:
                if loop.epoch_num == 1 and batch_num == expected:
                    loop.stop("enough")

        expected, path = batch_num, tmp_path / "metrics.csv"
        make(CSVLogger(path), Stopper(), train_dir=tmp_path).train()
        make(CSVLogger(path), train_dir=tmp_path).train()
        make(CSVLogger(tmp_path / "undisturbed.csv")).train()
        assert lines(path) == lines(tmp_path / "undisturbed.csv")

    def test_there_is_one_line_per_epoch_with_all_recorded_metrics(self, tmp_path: Path) -> None:
        tm = make(CSVLogger(), train_dir=tmp_path)
        tm.train()
        found = lines(tmp_path / "metrics.csv")
        assert [(row["epoch"], row["step"]) for row in found] == [("0", "0"), ("1", "3"), ("2", "6"), ("3", "9")]
        assert [float(row["valid/loss"]) for row in found] == [value for _, value in tm.history["valid/loss"]]

    def test_a_metric_that_appears_later_becomes_a_new_column(self, tmp_path: Path) -> None:
        class Late(Extension):
            def post_train_step_epoch(self, writer: Any, epoch_num: int) -> None:
                if epoch_num == 2:
                    writer.add_scalar("late, with a comma", 7, epoch_num)

        make(CSVLogger(), Late(), train_dir=tmp_path).train()
        assert [row["late, with a comma"] for row in lines(tmp_path / "metrics.csv")] == ["", "", "7.0", ""]

    def test_texts_are_left_out(self, tmp_path: Path) -> None:
        class Talk(Extension):
            def post_train_step_epoch(self, writer: Any) -> None:
                writer.add_text("words", "hello")

        make(CSVLogger(), Talk(), train_dir=tmp_path).train()
        assert "words" not in lines(tmp_path / "metrics.csv")[0]

    def test_a_second_call_of_train_continues_the_file(self, tmp_path: Path) -> None:
        tm = make(CSVLogger(), train_dir=tmp_path, epochs=1)
        tm.train()
        tm.epochs = 3
        tm.train()
        assert [row["epoch"] for row in lines(tmp_path / "metrics.csv")] == ["0", "1", "2", "3"]

    def test_under_a_manager_the_file_is_in_the_folder_of_the_run(self, tmp_path: Path) -> None:
        class Small(Manager):
            def make_loop(self, config: Any) -> TrainManager:
                return make(CSVLogger(), Avg("loss"))

        manager = Small(tmp_path, verbose=False)
        manager.process({"lr": 1}, 2)
        (file,) = tmp_path.rglob("metrics.csv")
        found = lines(file)
        assert [row["epoch"] for row in found] == ["0", "1", "2"]
        assert float(found[2]["train/loss"]) == manager.previews[manager.key]["train/loss"]
        assert found[2]["train/loss"]


class TestTrouble:
    def test_a_full_disk_causes_a_warning_and_training_continues(self, tmp_path: Path) -> None:
        tm = make(CSVLogger(tmp_path / "file" / "metrics.csv"))
        (tmp_path / "file").write_text("in the way")
        with pytest.warns(UserWarning, match=r"cannot write .*metrics\.csv: "):
            tm.train()
        assert tm.epoch_num == 3

    def test_in_a_private_folder_other_users_cannot_write_to_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "private").mkdir(mode=0o700)
        make(CSVLogger(tmp_path / "private" / "metrics.csv")).train()
        assert oct((tmp_path / "private" / "metrics.csv").stat().st_mode & 0o777) == oct(0o600)

    def test_an_error_in_training_does_not_change_the_lines_of_finished_epochs(self, tmp_path: Path) -> None:
        class Breaks(Extension):
            def post_train_step_batch(self, writer: Any, step_num: int) -> None:
                writer.add_scalar("late", step_num, step_num)
                if step_num == 8:
                    raise RuntimeError("broken")

        with pytest.raises(RuntimeError, match="broken"):
            make(CSVLogger(), Breaks(), train_dir=tmp_path).train()
        assert [(row["epoch"], row["late"]) for row in lines(tmp_path / "metrics.csv")] == [("0", ""), ("1", "3.0"), ("2", "6.0")]

    def test_a_file_that_was_moved_is_written_again_completely(self, tmp_path: Path) -> None:
        class Moves(Extension):
            def post_train_step_epoch(self, epoch_num: int) -> None:
                if epoch_num == 2:
                    (tmp_path / "metrics.csv").unlink()

        make(CSVLogger(), Moves(), train_dir=tmp_path).train()
        assert [row["epoch"] for row in lines(tmp_path / "metrics.csv")] == ["0", "1", "2", "3"]

    def test_without_a_folder_it_is_refused_before_the_first_batch(self) -> None:
        with pytest.raises(SettingError, match="CSVLogger has no path to write to"):
            make(CSVLogger()).train()

    def test_a_writer_without_mirror_is_refused(self, tmp_path: Path) -> None:
        class Deaf:
            def add_scalar(self, *_: Any) -> None: ...
            def add_scalars(self, *_: Any) -> None: ...
            def add_text(self, *_: Any) -> None: ...
            def flush(self) -> None: ...

        with pytest.raises(SettingError, match="Deaf has no method `mirror`"):
            make(CSVLogger(tmp_path / "m.csv"), writer=Deaf()).train()

    def test_after_a_kill_and_a_resume_the_file_is_the_same(self, tmp_path: Path) -> None:
        import warm

        program = tmp_path / "killed.py"
        program.write_text(
            "import os, signal, sys\n"
            f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "from test_csv_logger import CSVLogger, Extension, make\n"
            "class Kill(Extension):\n"
            "    def post_train_step_batch(self, step_num):\n"
            "        if step_num == 8:\n"
            "            os.kill(os.getpid(), signal.SIGKILL)\n"
            "make(CSVLogger(), Kill(), train_dir='run', epochs=4).train()\n"
        )
        ran = warm.run([sys.executable, str(program)], cwd=tmp_path, check=False)
        assert ran.returncode == -signal.SIGKILL
        make(CSVLogger(), train_dir=tmp_path / "run", epochs=4).train()
        make(CSVLogger(), train_dir=tmp_path / "whole", epochs=4).train()
        assert (tmp_path / "run" / "metrics.csv").read_bytes() == (tmp_path / "whole" / "metrics.csv").read_bytes()
