"""A schedule that is built from a config steps at the points that the config sets (contract A16)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, Manager, SchedulerConfig, TrainManager
from trainmaster.errors import SettingError

NUM_BATCHES, NUM_EPOCHS = 3, 2


class Rates(Extension):
    """Records how often the schedule has stepped, after each update, epoch and evaluation."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def post_train_step_batch(self, lr_schedule: Any) -> None:
        self.seen.append(("batch", lr_schedule.last_epoch))

    def post_train_step_epoch(self, lr_schedule: Any) -> None:
        self.seen.append(("epoch", lr_schedule.last_epoch))

    def post_eval(self, lr_schedule: Any) -> None:
        self.seen.append(("eval", lr_schedule.last_epoch))


def make(config: SchedulerConfig, *, is_built: bool = False, **settings: Any) -> TrainManager:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = config.make_scheduler(model, optimizer) if is_built else lambda given: config.make_scheduler(model, given)
    data = [torch.ones(2, 2)] * NUM_BATCHES
    settings = {"eval_data": {"valid": data}, **settings}
    return TrainManager(model, lambda _, out: out.pow(2).mean(), NUM_EPOCHS, data, optimizer=optimizer, lr_schedule=made, **settings)


AFTER = {
    "train": [("eval", 0), *(("batch", step) for step in (1, 2, 3)), ("epoch", 3), ("eval", 3), *(("batch", step) for step in (4, 5, 6))],
    "epoch": [("eval", 0), *[("batch", 0)] * 3, ("epoch", 1), ("eval", 1), *[("batch", 1)] * 3],
    "val": [("eval", 0), *[("batch", 0)] * 3, ("epoch", 0), ("eval", 1), *[("batch", 1)] * 3],
}


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("when", AFTER)
def test_a_schedule_steps_when_its_config_says(when: Any, is_built: bool) -> None:
    rates = Rates()
    make(SchedulerConfig(name="exponentiallr", arguments={"gamma": 0.5}, step_when=when), is_built=is_built, extensions=[rates]).train()
    assert rates.seen[: len(AFTER[when])] == AFTER[when]


@pytest.mark.parametrize(("name", "when"), [("step", "epoch"), ("cycle", "train")])
def test_without_step_when_a_schedule_steps_as_it_needs(name: str, when: str) -> None:
    arguments = {"step": {"step_size": 10}, "cycle": {"max_lr": 0.1, "total_steps": 10}}[name]
    rates = Rates()
    make(SchedulerConfig(name=name, arguments=arguments), extensions=[rates]).train()
    assert rates.seen[: len(AFTER[when])] == AFTER[when]


def test_a_plateau_steps_on_the_loss_of_the_first_evaluation_set() -> None:
    tm = make(SchedulerConfig(name="plateau", arguments={"patience": 100}))
    tm.train()
    assert tm.lr_schedule.best == min(value for _, value in tm.history["valid/loss"][1:])
    assert tm.lr_schedule.last_epoch == NUM_EPOCHS


def test_a_plateau_without_evaluation_sets_is_refused() -> None:
    with pytest.raises(SettingError, match="ReduceLROnPlateau steps on a loss"):
        make(SchedulerConfig(name="plateau"), eval_data=None).train()


def test_without_evaluation_sets_a_schedule_steps_after_each_epoch() -> None:
    tm = make(SchedulerConfig(name="exponentiallr", arguments={"gamma": 0.5}, step_when="val"), eval_data=None)
    tm.train()
    assert tm.lr_schedule.last_epoch == NUM_EPOCHS


@pytest.mark.parametrize(("when", "by"), [("train", "epoch"), ("epoch", "update"), ("epoch", "valid"), ("val", "update")])
def test_a_schedule_by_that_contradicts_the_config_is_refused(when: Any, by: str) -> None:
    config = SchedulerConfig(name="exponentiallr", arguments={"gamma": 0.5}, step_when=when)
    with pytest.raises(SettingError, match=f'schedule_by="{by}", but the SchedulerConfig of ExponentialLR has step_when="{when}"'):
        make(config, schedule_by=by).train()


def test_schedule_by_selects_the_metric_of_a_schedule_that_steps_at_evaluations() -> None:
    data = [torch.ones(2, 2)]
    tm = make(SchedulerConfig(name="plateau"), eval_data={"a": data, "b": [torch.zeros(2, 2)]}, schedule_by="b")
    tm.train()
    assert tm.lr_schedule.best == min(value for _, value in tm.history["b/loss"][1:])


def test_a_config_decides_under_a_manager_and_after_a_resume() -> None:
    class Small(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            return make(SchedulerConfig(name="step", arguments={"step_size": 1, "gamma": 0.5}))

    manager = Small(verbose=False)
    for num_epochs in (2, 4):
        manager.process({"x": 1}, num_epochs)
        assert manager.loop is not None
        assert manager.loop.lr_schedule.last_epoch == num_epochs
        assert manager.loop.optimizer is not None
        assert manager.loop.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**num_epochs
