"""A manager with its own `train` and `eval` can monitor a metric. The metric decides which checkpoint and which run are the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster import Manager, TrainManager
from trainmaster.analysis import Results
from trainmaster.errors import MetricNameError, SettingError, UnknownRunError


class Peak(Manager):
    """A manager whose score is highest at the epoch `peak`. Its other metric, `area`, comes first in the alphabet."""

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["epoch"] = 0

    def train(self) -> None:
        self.ckpt["epoch"] = self.epoch

    def eval(self) -> Any:
        score = -abs(self.epoch - self.config.peak) - self.config.get("loss", 0.0)
        return {"area": 1.0, "score": float("nan") if self.epoch == 0 else score}


class Monitored(Peak):
    monitor = "score"
    mode = "max"


def test_the_best_checkpoint_has_the_best_monitored_value(tmp_path: Path) -> None:
    manager = Monitored(tmp_path, verbose=False, keep=1)
    manager.process({"peak": 2}, num_epochs=4)
    assert manager.fetch(manager.key, "best").ckpt["epoch"] == 2
    assert manager.fetch(manager.key).ckpt["epoch"] == 4


def test_the_best_checkpoint_is_kept_when_a_run_is_resumed(tmp_path: Path) -> None:
    for num_epochs in (4, 9):
        manager = Monitored(tmp_path, verbose=False, keep=1)
        manager.process({"peak": 2}, num_epochs=num_epochs)
    assert manager.fetch(manager.key, "best").ckpt["epoch"] == 2
    manager.process({"peak": 6}, num_epochs=3)
    manager.process({"peak": 6}, num_epochs=9)
    assert manager.fetch(manager.key, "best").ckpt["epoch"] == 6


def test_an_epoch_that_was_not_evaluated_is_not_the_best(tmp_path: Path) -> None:
    manager = Monitored(tmp_path, verbose=False, eval_interval=2, keep=1)
    manager.process({"peak": 3}, num_epochs=7)
    assert manager.fetch(manager.key, "best").ckpt["epoch"] == 2
    manager = Monitored(tmp_path, verbose=False, save_interval=4, keep=1)
    manager.process({"peak": 2, "other": 1}, num_epochs=8)
    assert manager.fetch(manager.key, "best").ckpt["epoch"] == 4


def test_runs_are_ranked_by_the_monitored_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manager = Monitored(tmp_path)
    manager.sweep({"peak": 3, "loss": [0.5, 0.0]}, num_epochs=3)
    said = capsys.readouterr().out
    assert "best runs by their last score (higher is better)" in said
    assert "guess" not in said
    assert manager.configs[manager.best_work() or ""].loss == 0.0
    assert Results(tmp_path).ranked_by() == ("score", True)


def test_without_a_monitored_metric_the_summary_of_a_sweep_says_that_it_guesses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manager = Peak(tmp_path)
    manager.sweep({"peak": [2, 3]}, num_epochs=3)
    said = capsys.readouterr().out
    assert "best runs by their last area (lowest first: nothing says whether lower or higher is better)" in said
    assert "area is a guess: the runs do not monitor one metric; to sort by another: trainmaster ls --sort METRIC" in said
    with pytest.raises(MetricNameError, match="these runs monitor no metric"):
        manager.best_work()


def test_without_a_monitored_metric_the_error_says_how_to_declare_one(tmp_path: Path) -> None:
    manager = Peak(tmp_path, verbose=False)
    manager.process({"peak": 2}, num_epochs=1)
    with pytest.raises(UnknownRunError, match=r'(?s)no best checkpoint.*`monitor = "area"` and `mode = "max"` in the body of') as error:
        manager.fetch(manager.key, "best")
    assert "RunConfig" not in str(error.value)


def test_a_misspelled_metric_is_reported_before_training() -> None:
    class Misspelled(Peak):
        monitor = "scor"
        mode = "max"

        def train(self) -> None:
            raise AssertionError("must not train")

    with pytest.raises(SettingError, match=r"(?s)`Misspelled.monitor` is 'scor', which `eval\(\)` did not return.*did you mean `score`"):
        Misspelled(verbose=False).process({"peak": 2}, num_epochs=1)


def test_the_direction_must_be_known() -> None:
    class Undirected(Peak):
        monitor = "score"

    with pytest.raises(SettingError, match="does not say whether lower or higher is better for 'score'"):
        Undirected(verbose=False).process({"peak": 2}, num_epochs=1)


def test_a_manager_with_a_loop_refuses_a_monitor_of_its_own() -> None:
    class WithLoop(Manager):
        monitor = "valid/loss"

        def make_loop(self, config: Any) -> TrainManager:
            raise AssertionError("must not be called")

    with pytest.raises(SettingError, match=r'(?s)`WithLoop.monitor` has no effect.*CheckpointSaver\(monitor="valid/loss"\)'):
        WithLoop(verbose=False).process({})
