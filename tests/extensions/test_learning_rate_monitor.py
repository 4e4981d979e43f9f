"""The learning rate is recorded when it changes, and drawn for each parameter group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, LoopComponent, Manager, TrainManager, TrainTestLoop
from trainmaster.errors import SettingError
from trainmaster.extensions.learning_rate_monitor import LearningRateMonitor
from trainmaster.testing import ExtensionContract

BATCHES = [(torch.ones(2, 3), torch.zeros(2, 1))] * 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, batch: Any) -> Any:
        return self.last(self.first(batch[0]))


def mse(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return (prediction - batch[1]).pow(2).mean()


def manager(*extensions: Any, epochs: int = 2, rate: Any = 0.1, **settings: Any) -> TrainManager:
    torch.manual_seed(0)
    given = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=rate), **settings}
    return TrainManager(Net(), mse, epochs, BATCHES, extensions=list(extensions), device="cpu", **given)


def trained(*extensions: Any, **settings: Any) -> TrainManager:
    tm = manager(*extensions, **settings)
    tm.train()
    return tm


def halved_after(*updates: int) -> Any:
    return lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [*updates], gamma=0.5)


def two_groups(**names: Any) -> Any:
    def optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        half = len(parameters) // 2
        first = {"params": parameters[:half], "lr": 0.1, **names.get("first", {})}
        last = {"params": parameters[half:], "lr": 0.2, **names.get("last", {})}
        return torch.optim.SGD([first, last])

    return optimizer


class TestLearningRate(ExtensionContract):
    def make(self) -> LearningRateMonitor:
        return LearningRateMonitor()


class TestNumbers:
    def test_a_constant_rate_is_recorded_at_the_first_update_and_at_the_end_of_each_epoch(self) -> None:
        assert trained(LearningRateMonitor()).history["lr"] == [(1, 0.1), (4, 0.1), (8, 0.1)]

    def test_a_change_is_recorded_with_the_last_update_before_it(self) -> None:
        """The extra point makes the curve flat where the rate was constant."""
        tm = trained(LearningRateMonitor(), lr_schedule=halved_after(3))
        assert tm.history["lr"] == [(1, 0.1), (3, 0.1), (4, 0.05), (8, 0.05)]

    def test_the_recorded_rate_is_the_one_that_the_update_used(self) -> None:
        seen: list[tuple[int, float]] = []

        class Look(Extension):
            def pre_optimizer_step(self, optimizer: Any, step_num: int) -> None:
                seen.append((step_num + 1, optimizer.param_groups[0]["lr"]))

        tm = trained(LearningRateMonitor(), Look(), lr_schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
        assert tm.history["lr"] == seen

    def test_each_group_has_its_own_curve(self) -> None:
        tm = trained(LearningRateMonitor(), optimizer=two_groups())
        assert tm.history["lr/0"] == [(1, 0.1), (4, 0.1), (8, 0.1)]
        assert tm.history["lr/1"] == [(1, 0.2), (4, 0.2), (8, 0.2)]
        assert "lr" not in tm.history

    def test_a_group_with_a_name_is_recorded_under_that_name(self) -> None:
        tm = trained(LearningRateMonitor(), optimizer=two_groups(first={"name": "body"}, last={"name": "head"}))
        assert {tag for tag in tm.history if tag.startswith("lr")} == {"lr/body", "lr/head"}

    def test_a_rate_that_is_a_tensor_is_recorded_before_it_changes_in_place(self) -> None:
        class Halve(Extension):
            def post_optimizer_step(self, optimizer: Any) -> None:
                optimizer.param_groups[0]["lr"].mul_(0.5)

        tm = trained(LearningRateMonitor(), Halve(), epochs=1, rate=torch.tensor(1.0))
        assert tm.history["lr"] == [(1, 1.0), (2, 0.5), (3, 0.25), (4, 0.125)]

    def test_updates_are_counted_not_batches(self) -> None:
        class EveryOther(Extension):
            def pre_train_step_batch(self, fixtures: Any, batch_num: int) -> None:
                fixtures.modify("is_update", batch_num % 2 == 1)

        assert trained(LearningRateMonitor(), EveryOther()).history["lr"] == [(1, 0.1), (2, 0.1), (4, 0.1)]

    def test_stopping_and_continuing_gives_the_rows_of_an_uninterrupted_run(self) -> None:
        class StopAt(Extension):
            def post_train_step_batch(self, train_manager: Any, step_num: int) -> None:
                if step_num == 6:
                    train_manager.stop()

        tm = manager(LearningRateMonitor(), StopAt(), epochs=3, lr_schedule=halved_after(3, 9))
        tm.train()
        tm.train()
        assert tm.history == trained(LearningRateMonitor(), epochs=3, lr_schedule=halved_after(3, 9)).history


class TestFigure:
    def test_it_has_a_line_for_each_group(self) -> None:
        extension = LearningRateMonitor()
        trained(extension, optimizer=two_groups(first={"name": "body"}, last={"name": "head"}), lr_schedule=halved_after(3))
        (panel,) = extension.panels()
        assert (panel.title, panel.x_label, panel.y_label) == ("Learning rate", "update", "learning rate")
        assert [(line.label, line.ys[0], line.ys[-1]) for line in panel.lines] == [("body", 0.1, 0.05), ("head", 0.2, 0.1)]

    @pytest.mark.parametrize(("gamma", "is_log"), [(0.5, False), (0.01, True)])
    def test_its_axis_is_logarithmic_if_the_rate_is_small_for_a_long_time(self, gamma: float, is_log: bool) -> None:
        extension = LearningRateMonitor()
        trained(extension, lr_schedule=lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6], gamma=gamma))
        assert extension.panels()[0].is_log is is_log

    def test_it_is_written_to_train_dir(self, tmp_path: Path) -> None:
        trained(LearningRateMonitor(), train_dir=tmp_path)
        assert {"learning_rate.png", "learning_rate.html"} <= {path.name for path in (tmp_path / "plots").iterdir()}

    def test_figure_returns_a_matplotlib_figure(self) -> None:
        extension = LearningRateMonitor()
        trained(extension)
        assert [axes.get_xlabel() for axes in extension.figure().axes] == ["update"]


def test_it_does_not_change_the_weights() -> None:
    plain, watched = trained(), trained(LearningRateMonitor())
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, watched.model.state_dict()[name])


def test_in_a_train_test_loop_it_reads_the_optimizer_of_the_components() -> None:
    class Work(LoopComponent):
        def on_train_begin(self, loop: Any) -> None:
            loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)

        def on_loss_compute(self, loop: Any) -> None:
            loop.loss = mse(loop.batch, loop.model(loop.batch))

        def on_epoch_end(self, loop: Any) -> None:
            loop.optimizer.param_groups[0]["lr"] = 0.01

    extension = LearningRateMonitor()
    TrainTestLoop(Net(), [Work(), extension], BATCHES, []).train(2)
    (line,) = extension.panels()[0].lines
    assert [*zip(line.xs, line.ys, strict=True)] == [(1, 0.1), (4, 0.1), (5, 0.01), (8, 0.01)]


def test_under_a_manager_its_rows_are_in_the_event_log(tmp_path: Path) -> None:
    class Small(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            return manager(LearningRateMonitor())

    small = Small(tmp_path, verbose=False)
    small.process({"lr": 0.1})
    events = [event for event in small.store.run(small.key).events() if event["tag"] == "lr"]
    assert [(event["step"], event["value"]) for event in events] == [(1, 0.1), (4, 0.1), (8, 0.1)]
    assert [*tmp_path.rglob("plots/learning_rate.png")]


def test_training_without_an_optimizer_is_refused_before_the_first_batch() -> None:
    class Own(TrainManager):
        def optimizer_step(self) -> None: ...

    with pytest.raises(SettingError) as caught:
        Own(Net(), mse, 1, BATCHES, optimizer=None, extensions=[LearningRateMonitor()], device="cpu").train()
    assert str(caught.value) == (
        "LearningRateMonitor found no optimizer\n"
        "  try     remove the extension, or use an optimizer with `param_groups`, like those in torch.optim"
    )
