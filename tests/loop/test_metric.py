"""Metrics can be monitored, and schedules can step on them (contracts E33 and A16)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR, ReduceLROnPlateau, SequentialLR, StepLR

from trainmaster import CheckpointSaver, Manager
from trainmaster.errors import LoopError, MetricNameError, SettingError
from trainmaster.extensions.early_stopping import EarlyStopping
from trainmaster.loop import TrainManager
from trainmaster.loop.metric import Metric, find_metric
from trainmaster.loop.optimization import takes_metric
from trainmaster.loop.writer import MemoryWriter
from trainmaster.stages import Extension
from trainmaster.store.metric_names import is_greater_better

DATA = [torch.ones(2, 1), torch.zeros(2, 1)]
SCORES = [0.9, 0.1, 0.4, 0.3, 0.2, 0.5]
NAME = "valid/accuracy"


class Score(Extension):
    """Records a score at the end of each evaluation."""

    def post_eval_step_epoch(self, writer: Any, epoch_num: int) -> None:
        writer.add_scalar(NAME, SCORES[epoch_num], epoch_num)


class Rates(Extension):
    """Records the learning rate of each update."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def pre_optimizer_step(self, optimizer: Any) -> None:
        self.seen.append(optimizer.param_groups[0]["lr"])


class Capture(Extension):
    def __init__(self, step: int) -> None:
        self.step, self.state = step, None

    def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
        if step_num == self.step:
            self.state = train_manager.capture()


class Watching(ReduceLROnPlateau):
    """Keeps the metrics that it receives."""

    def __init__(self, optimizer: Any, **settings: Any) -> None:
        self.got: list[float] = []
        super().__init__(optimizer, **settings)

    def step(self, metrics: Any, epoch: Any = None) -> None:
        self.got.append(metrics)
        super().step(metrics, epoch)


def manager(*extensions: object, epochs: int = 5, **settings: Any) -> TrainManager:
    torch.manual_seed(0)
    settings = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1.0), "eval_data": {"valid": DATA}, **settings}
    return TrainManager(nn.Linear(1, 1), lambda _, out: out.pow(2).mean(), epochs, DATA, extensions=extensions, device="cpu", **settings)


# find_metric


def test_a_name_is_that_of_a_set_or_of_a_recorded_metric() -> None:
    writer = MemoryWriter()
    writer.add_scalar(NAME, 0.25, 1)
    writer.add_scalar(NAME, 0.5, 2)
    losses = {"valid": 3.0, "test": 2.0}
    assert find_metric("test", losses, writer) == ("test/loss", 2.0)
    assert find_metric(None, losses, writer) == ("valid/loss", 3.0)
    assert find_metric(NAME, losses, writer) == (NAME, 0.5)


def test_a_metric_that_was_not_recorded_is_none() -> None:
    class Forgets:
        """A writer without the `last` method."""

    class Preview:
        def last(self, tag: str) -> Any:
            return "not a number"

    writer = MemoryWriter()
    writer.add_text("a/text", "words", 1)
    assert [find_metric(name, {}, writer) for name in (None, "valid", NAME, "a/text")] == [None] * 4
    assert find_metric(NAME, {}, Forgets()) is None
    assert find_metric(NAME, {}, Preview()) is None


@pytest.mark.parametrize("monitor", ["loss", "accuracy"])
@pytest.mark.parametrize("hook", ["post_train_step_epoch", "pre_eval"])
def test_evaluating_another_set_in_a_hook_makes_no_short_name_ambiguous(monitor: str, hook: str) -> None:
    class Tests(Extension):
        def test(self, train_manager: TrainManager) -> None:
            if train_manager.is_own_evaluation or hook == "post_train_step_epoch":
                train_manager.eval({"test": DATA})

    tests = Tests()
    setattr(tests, hook, tests.test)
    stopping = EarlyStopping(monitor=monitor, patience=9)
    tm = manager(tests, AllScores(), stopping, epochs=3)
    tm.train()
    assert len(tm.history[f"test/{monitor}"]) >= 3
    own = [value for _, value in tm.history[f"valid/{monitor}"]]
    assert stopping.best == (min(own) if monitor == "loss" else max(own))


def test_a_batch_of_runs_shows_the_monitored_metric_of_the_loops_own_set(capsys: pytest.CaptureFixture[str]) -> None:
    class Tests(Extension):
        def post_train_step_epoch(self, train_manager: TrainManager) -> None:
            train_manager.eval({"test": DATA})

    def make_loop(config: Any) -> TrainManager:
        return manager(Tests(), AllScores(), CheckpointSaver(monitor="accuracy"), epochs=1)

    Manager(None, make_loop=make_loop).batch([{"lr": 1.0}])
    assert f"  valid/accuracy={SCORES[1]}  (1 done)" in capsys.readouterr().out


class AllScores(Extension):
    """Records a score for each set; sets other than `valid` have a better one."""

    def post_eval_step_epoch(self, writer: Any, datasource_name: str, epoch_num: int) -> None:
        writer.add_scalar(f"{datasource_name}/accuracy", SCORES[epoch_num] + (datasource_name != "valid"), epoch_num)


def test_a_short_name_that_fits_several_own_sets_is_ambiguous() -> None:
    writer = MemoryWriter()
    writer.add_scalar("test/gap", 0.25, 1)
    writer.add_scalar("test/loss", 0.5, 1)
    losses = {"valid": 3.0, "hard": 2.0}
    with pytest.raises(MetricNameError, match="`loss` may refer to 2 metrics\n  known   hard/loss, valid/loss"):
        find_metric("loss", losses, writer, own_sets=losses)
    assert find_metric("gap", losses, writer, own_sets=losses) == ("test/gap", 0.25)
    assert find_metric("test/loss", losses, writer, own_sets=losses) == ("test/loss", 0.5)


@pytest.mark.parametrize(
    ("name", "is_greater"),
    [
        (NAME, True),
        ("accuracy", True),
        ("returns/mean/return", True),
        ("valid/loss", False),
        ("accuracy/valid/error", False),
        ("valid/multiclass_accuracy", True),
        ("valid/f1", True),
        ("valid/mape", False),
        ("valid/mapped", False),
        ("valid/gap", False),
    ],
)
def test_the_name_of_a_metric_shows_whether_greater_is_better(name: str, is_greater: bool) -> None:
    assert is_greater_better(name) is is_greater
    assert Metric(name, 1.0).is_greater_better is is_greater


# schedules


def test_a_schedule_can_step_on_a_recorded_metric() -> None:
    """Contract E33: the schedule gets each value after an epoch.

    With mode="max", it lowers the rate if the metric does not increase.
    """
    tm = manager(Score(), rates := Rates(), lr_schedule=lambda each: Watching(each, mode="max", patience=0, factor=0.5), schedule_by=NAME)
    tm.train()
    assert tm.lr_schedule.got == SCORES[1:]
    assert rates.seen[::2] == [1.0, 1.0, 1.0, 0.5, 0.25]  # 0.4 was not exceeded after epochs 3 and 4


def test_a_schedule_can_step_on_a_training_metric_without_an_evaluation_set() -> None:
    class TrainLoss(Extension):
        def post_train_step_epoch(self, writer: Any, epoch_num: int) -> None:
            writer.add_scalar("train/loss", epoch_num / 10, epoch_num)

    tm = manager(TrainLoss(), lr_schedule=Watching, schedule_by="train/loss", eval_data=None, epochs=3)
    tm.train()
    assert tm.lr_schedule.got == [0.1, 0.2, 0.3]


def test_under_a_manager_a_schedule_uses_the_metric_of_the_current_evaluation() -> None:
    """The writer holds back its rows until the evaluation is complete, but the schedule must see them earlier."""

    class Small(Manager):
        extensions = [Score()]

        def make_loop(self, config: Any) -> TrainManager:
            return manager(lr_schedule=Watching, schedule_by=NAME, epochs=3)

    small = Small(None, verbose=False)
    small.process({"lr": 1.0})
    assert small.loop is not None
    assert small.loop.lr_schedule.got == SCORES[1:4]


@pytest.mark.parametrize(("by", "epoch"), [("valid/acuracy", 0), ("score", 1), ("batch", 1)])
def test_a_metric_that_is_never_recorded_is_an_error_as_soon_as_that_is_certain(by: str, epoch: int) -> None:
    """A metric of a set must exist before the first epoch; any other may be recorded during training."""
    tm = manager(lr_schedule=Watching, schedule_by=by)
    for _ in range(2):
        with pytest.raises(LoopError) as caught:
            tm.train()
        assert tm.epoch_num == epoch
        assert str(caught.value).split("\n") == [
            f"lr_schedule monitors '{by}', which was not recorded",
            f"  where   stage eval, after epoch {epoch}",
            f"  known   {'train/loss, ' if epoch else ''}valid/loss",
            "  try     record it in an extension with writer.add_scalar, no later than in post_eval_step_epoch",
        ]


def test_a_writer_that_cannot_return_metrics_is_named() -> None:
    class Forgets:
        def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None: ...
        def add_scalars(self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: int | None = None) -> None: ...
        def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None: ...
        def flush(self) -> None: ...

    tm = manager(Score(), lr_schedule=Watching, schedule_by=NAME, writer=Forgets())
    with pytest.raises(LoopError, match=r"the writer, a Forgets, cannot return it: it has no method `last\(tag\)`"):
        tm.train()


@pytest.mark.parametrize("by", ["vaild", "updates", "", 3])
def test_an_invalid_schedule_by_is_refused_at_construction(by: Any) -> None:
    with pytest.raises(SettingError, match=r"`schedule_by` must be one of update, epoch, valid, or a metric, not "):
        manager(lr_schedule=Watching, schedule_by=by)


@pytest.mark.parametrize(("by", "rates"), [("update", [1.0, 0.5, 0.25, 0.125]), ("epoch", [1.0, 1.0, 0.5, 0.5])])
def test_a_schedule_can_step_after_each_update_or_epoch(by: str, rates: list[float]) -> None:
    """Covers contract E33."""
    manager(look := Rates(), lr_schedule=lambda each: StepLR(each, 1, gamma=0.5), schedule_by=by, epochs=2).train()
    assert look.seen == rates


def test_a_schedule_can_step_on_the_loss_of_a_set() -> None:
    """Covers contract E33."""
    tm = manager(lr_schedule=Watching, schedule_by="valid", epochs=2)
    tm.train()
    assert tm.lr_schedule.got == [value for epoch, value in tm.history["valid/loss"] if epoch]


@pytest.mark.parametrize("by", ["valid", NAME])
def test_a_schedule_that_takes_no_metric_steps_after_each_evaluation_of_an_epoch(by: str) -> None:
    """Covers contract A16."""
    manager(Score(), look := Rates(), lr_schedule=lambda each: StepLR(each, 1, gamma=0.5), schedule_by=by, epochs=3).train()
    assert look.seen[::2] == [1.0, 0.5, 0.25]


def test_the_signature_of_step_shows_whether_a_schedule_takes_a_metric() -> None:
    class Own:
        def step(self, value: float) -> None: ...

    class Optional:
        def step(self, metrics: float | None = None) -> None: ...

    class Plain:
        def step(self, **more: Any) -> None: ...

    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    assert takes_metric(ReduceLROnPlateau(optimizer))
    assert takes_metric(Own())
    assert takes_metric(Optional())
    assert not takes_metric(StepLR(optimizer, 1))
    assert not takes_metric(LambdaLR(optimizer, lambda _: 1.0))
    assert not takes_metric(Plain())


def warm_up(optimizer: Any) -> SequentialLR:
    rise, fall = LinearLR(optimizer, start_factor=0.25, total_iters=3), StepLR(optimizer, 2, gamma=0.5)
    return SequentialLR(optimizer, [rise, fall], milestones=[3])


def test_a_warm_up_with_sequential_lr_gives_torchs_rates() -> None:
    manager(look := Rates(), lr_schedule=warm_up, epochs=4).train()
    assert look.seen == [0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    ("schedule", "by"),
    [
        (warm_up, "update"),
        (warm_up, "epoch"),
        (lambda each: ReduceLROnPlateau(each, patience=0, factor=0.5), "valid"),
        (lambda each: ReduceLROnPlateau(each, mode="max", patience=0, factor=0.5), NAME),
    ],
    ids=["update", "epoch", "set", "recorded"],
)
@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_schedule_resumes_exactly(schedule: Any, by: str, step: int) -> None:
    whole = manager(Score(), rates := Rates(), capture := Capture(step), lr_schedule=schedule, schedule_by=by)
    whole.train()
    again = manager(Score(), more := Rates(), Capture(step), lr_schedule=schedule, schedule_by=by)
    again.restore(capture.state)  # type: ignore[arg-type]
    again.train()
    assert more.seen == rates.seen[step:]
    assert all(torch.equal(value, again.model.state_dict()[name]) for name, value in whole.model.state_dict().items())
