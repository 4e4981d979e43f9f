"""EarlyStopping ends training that no longer improves, and starting the run again does not resume training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import CheckpointSaver, Manager
from trainmaster.errors import LoopError, MetricNameError, SettingError
from trainmaster.extensions.early_stopping import EarlyStopping
from trainmaster.loop import TrainManager
from trainmaster.stages import Extension
from trainmaster.testing import ExtensionContract

NAN, INF = float("nan"), float("inf")
DATA = [torch.ones(2, 1), torch.zeros(2, 1)]


class TestEarlyStopping(ExtensionContract):
    def make(self) -> object:
        return EarlyStopping(patience=9)


class Losses(Extension):
    """Sets the loss of `valid` after each epoch; when the values run out, the last one is repeated."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values

    def post_eval_step_epoch(self, eval_losses: dict[str, float], datasource_name: str, epoch_num: int) -> None:
        eval_losses[datasource_name] = self.values[min(epoch_num, len(self.values) - 1)]


class Score(Extension):
    def __init__(self, tag: str, values: Sequence[float]) -> None:
        self.tag, self.values = tag, values

    def post_eval_step_epoch(self, writer: Any, epoch_num: int) -> None:
        writer.add_scalar(self.tag, self.values[min(epoch_num, len(self.values) - 1)], epoch_num)


class Reason(Extension):
    reason: str | None = None

    def post_train(self, stopped: str | None) -> None:
        self.reason = stopped


def manager(*extensions: object, epochs: int = 30, **settings: Any) -> TrainManager:
    torch.manual_seed(0)
    settings = {"eval_data": {"valid": DATA}, "device": "cpu", **settings}
    return TrainManager(nn.Linear(1, 1), lambda _, out: out.pow(2).mean(), epochs, DATA, extensions=extensions, **settings)


def trained(values: Sequence[float], stopping: EarlyStopping, **settings: Any) -> tuple[int, str | None]:
    """Return the epoch after which training with these losses ends, and the reason."""
    tm = manager(Losses(values), stopping, reason := Reason(), **settings)
    tm.train()
    return tm.epoch_num, reason.reason


def test_it_stops_after_patience_evaluations_in_a_row_without_an_improvement() -> None:
    stopping = EarlyStopping(patience=3)
    end = trained([9, 5, 6, 4, 4, 5, 4.5, 1], stopping)
    assert end == (6, "valid/loss did not improve in 3 evaluations: the best is 4, after epoch 3")
    assert (stopping.best, stopping.best_epoch) == (4, 3)


def test_the_evaluation_before_the_first_epoch_counts() -> None:
    assert trained([1, 2, 2, 0], EarlyStopping(patience=2))[0] == 2
    assert trained([1, 2, 2, 0], EarlyStopping(patience=2), evaluate_first=False)[0] == 5


def test_a_real_training_run_ends_after_its_best_loss() -> None:
    tm = manager(stopping := EarlyStopping(patience=2, min_delta=1e-4), epochs=500, optimizer=lambda p: torch.optim.SGD(p, lr=0.2))
    tm.train()
    losses = [value for _, value in tm.history["valid/loss"]]
    assert 2 < tm.epoch_num < 500
    assert len(losses) == tm.epoch_num + 1
    assert stopping.best == losses[tm.epoch_num - 2]


def test_only_a_change_above_min_delta_is_an_improvement() -> None:
    values = [8, 7.5, 7, 6.5, 6]
    stopping = EarlyStopping(patience=2, min_delta=0.5)
    assert trained(values, stopping)[0] == 6  # the best values are 8, 7 and 6
    assert (stopping.best, stopping.best_epoch) == (6, 4)
    assert trained(values, EarlyStopping(patience=1, min_delta=0.5))[0] == 1


@pytest.mark.parametrize(("by", "mode", "best"), [("valid/accuracy", None, 3), ("valid/f1", "max", 3), ("valid/mae", None, 1)])
def test_the_mode_or_else_the_name_decides_what_is_better(by: str, mode: str | None, best: float) -> None:
    stopping = EarlyStopping(monitor=by, patience=2, mode=mode)
    manager(Score(by, [2, 3, 1, 2, 2]), stopping).train()
    assert stopping.best == best


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
def test_a_value_that_is_not_finite_is_never_an_improvement(odd: float) -> None:
    stopping = EarlyStopping(patience=2)
    assert trained([odd, 5, odd, 4, odd, odd, 1], stopping)[0] == 5
    assert stopping.best == 4


def test_training_without_a_finite_value_is_stopped_too() -> None:
    assert trained([NAN], EarlyStopping(patience=2)) == (1, "valid/loss was not finite in 2 evaluations")


def test_evaluations_that_hooks_or_users_start_do_not_count() -> None:
    class Evaluates(Extension):
        def post_train_step_batch(self, train_manager: TrainManager) -> None:
            train_manager.eval()

        def post_train_step_epoch(self, train_manager: TrainManager) -> None:
            train_manager.eval()

    stopping = EarlyStopping(patience=2)
    tm = manager(Losses([3, 2, 1, 1, 1]), Evaluates(), stopping, reason := Reason())
    tm.eval()
    assert stopping.best is None
    tm.train()
    assert tm.epoch_num == 4
    tm.eval()
    assert reason.reason == "valid/loss did not improve in 2 evaluations: the best is 1, after epoch 2"


# resuming


@pytest.mark.parametrize("step", [1, 4, 7, 8, 9])
def test_training_that_resumes_stops_at_the_same_epoch(step: int) -> None:
    class Capture(Extension):
        state: Any = None

        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num == step:
                self.state = train_manager.capture()

    values = [5, 4, 3, 3, 3, 3]
    whole = manager(Losses(values), stopping := EarlyStopping(patience=3), capture := Capture())
    whole.train()
    again = manager(Losses(values), resumed := EarlyStopping(patience=3), Capture())
    again.restore(capture.state)
    again.train()
    assert again.epoch_num == whole.epoch_num == 5
    assert resumed.state_dict() == stopping.state_dict()


def test_a_run_that_was_stopped_early_does_not_continue_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    tm = manager(Losses([1, 2]), EarlyStopping(patience=2), reason := Reason())
    tm.train()
    before = {name: value.clone() for name, value in tm.model.state_dict().items()}
    capsys.readouterr()
    tm.train()
    assert tm.epoch_num == 2
    assert all(torch.equal(value, before[name]) for name, value in tm.model.state_dict().items())
    assert reason.reason == "valid/loss did not improve in 2 evaluations: the best is 1, after epoch 0"
    assert capsys.readouterr().err == f"trainmaster: this training run was stopped early before and does not continue: {reason.reason}\n"


def test_running_the_program_again_trains_no_further_epoch(tmp_path: Path) -> None:
    for _ in range(2):
        tm = manager(Losses([3, 2, 2]), stopping := EarlyStopping(patience=2), train_dir=tmp_path)
        tm.train()
        assert (tm.epoch_num, stopping.best, stopping.best_epoch) == (3, 2, 1)


def test_with_more_patience_a_run_that_was_stopped_early_continues(tmp_path: Path) -> None:
    trained([3, 2, 2, 2, 1], EarlyStopping(patience=2), train_dir=tmp_path)
    assert trained([3, 2, 2, 2, 1], EarlyStopping(patience=3), train_dir=tmp_path)[0] == 7
    tm = manager(Losses([3, 2, 2, 2, 1]), stopping := EarlyStopping(patience=2))
    tm.train()
    stopping.patience = 3
    tm.train()
    assert tm.epoch_num == 7


def test_monitoring_another_metric_starts_from_scratch(capsys: pytest.CaptureFixture[str]) -> None:
    tm = manager(Losses([1, 2]), Score("score/accuracy", [1, 2, 3, 4, 4]), stopping := EarlyStopping(patience=2))
    tm.train()
    assert tm.epoch_num == 2
    stopping.monitor = "score/accuracy"
    tm.train()
    assert (tm.epoch_num, stopping.best, stopping.best_epoch) == (5, 4, 3)
    assert "does not continue" not in capsys.readouterr().err


def test_it_can_be_added_or_removed_when_training_resumes() -> None:
    for before, after in (([], [EarlyStopping()]), ([EarlyStopping()], [])):
        tm = manager(*before, epochs=1)
        tm.train()
        again = manager(*after, epochs=2)
        again.restore(tm.capture())
        again.train()
        assert again.epoch_num == 2


# under a manager


class Small(Manager):
    extensions = [EarlyStopping(patience=2)]

    def make_loop(self, config: Any) -> TrainManager:
        return manager(Losses(config.losses), CheckpointSaver())


def test_under_a_manager_the_run_is_done_and_the_reason_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"losses": [3.0, 1.0, 2.0]}
    small = Small(tmp_path)
    small.process(config)
    assert f"run {small.key} is done: epoch 3, valid/loss did not improve in 2 evaluations" in capsys.readouterr().out
    key, run = small.key, small.store.run(small.key)
    assert (run.outcome_of(1) or {})["outcome"] == "finished"
    assert small.stats[key]["epoch"] == 3
    assert small.stats[key]["stopped"] == "valid/loss did not improve in 2 evaluations: the best is 1, after epoch 1"
    again = Small(tmp_path, verbose=False)
    assert again.batch([config]).found == [key]
    again.process(config, num_epochs=40)  # more epochs than the patience allows
    assert (again.stats[key]["epoch"], again.stats[key]["step"]) == (3, 6)
    assert again.stats[key]["stopped"] == small.stats[key]["stopped"]
    assert again.stopped is None  # it is done, and no message suggests resuming it
    assert (run.outcome_of(run.attempts()[0]) or {})["outcome"] == "finished"


def test_under_a_manager_each_run_starts_from_scratch() -> None:
    small = Small(None, verbose=False)
    for losses, end in (([1.0, 2.0], 2), ([5.0, 4.0, 3.0], 4)):
        small.process({"losses": losses})
        assert small.epoch == end
    other = Small(None, verbose=False)  # all runs share the extensions of the class
    other.process({"losses": [1.0, 2.0]})
    assert other.epoch == 2


# invalid settings


def refused(kind: type[Exception], *extensions: object, **settings: Any) -> tuple[str, int]:
    tm = manager(*extensions, **settings)
    with pytest.raises(kind) as caught:
        tm.train()
    return str(caught.value), tm.step_num


def test_without_an_evaluation_set_it_is_refused_before_the_first_epoch() -> None:
    message, steps = refused(SettingError, EarlyStopping(), eval_data=None)
    assert message.startswith("EarlyStopping has nothing to monitor: there is no evaluation set\n  try     pass eval_data=")
    assert steps == 0


def test_an_unknown_set_is_refused_before_the_first_epoch() -> None:
    message, steps = refused(SettingError, EarlyStopping(monitor="vaild"))
    assert message == (
        "EarlyStopping monitors 'vaild', which is not an evaluation set\n  known   valid\n  try     did you mean `valid`?"
    )  # fmt: skip
    assert steps == 0


def test_a_metric_that_is_not_recorded_is_an_error_at_the_first_evaluation() -> None:
    message, steps = refused(LoopError, EarlyStopping(monitor="valid/accuracy"))
    assert message.startswith("EarlyStopping monitors 'valid/accuracy', which was not recorded\n  where   stage eval, after epoch 0")
    assert steps == 0


def test_an_evaluation_without_a_loss_is_an_error_that_names_a_recorded_metric() -> None:
    class NoLoss(TrainManager):
        is_loss_optional = True

        def eval_loss_forward(self, batch: Any, prediction: Any) -> Any:
            return None

    extensions = [Score("valid/val_loss", [3, 2, 1]), EarlyStopping(patience=2)]
    loop = NoLoss(
        nn.Linear(1, 1), lambda _, prediction: prediction.mean(), 3, DATA, DATA, extensions=extensions, device="cpu", progress=False
    )
    with pytest.raises(LoopError, match="EarlyStopping has nothing to monitor: the evaluation recorded no loss") as caught:
        loop.train()
    assert 'known   valid/val_loss\n  try     EarlyStopping(monitor="valid/val_loss")' in str(caught.value)
    assert loop.step_num == 0


def test_a_misspelled_metric_whose_direction_is_unknown_gets_a_suggestion() -> None:
    message, steps = refused(SettingError, EarlyStopping(monitor="valid/los"))
    assert message.endswith('did you mean `valid/loss`? Otherwise: EarlyStopping(monitor="valid/los", mode="max"), or "min"')
    assert steps == 0


def test_a_metric_of_training_may_be_recorded_after_the_first_evaluation() -> None:
    class TrainError(Extension):
        def post_train_step_epoch(self, writer: Any, epoch_num: int) -> None:
            writer.add_scalar("train/error", 1.0, epoch_num)

    for name in ("train/error", "error"):
        tm = manager(TrainError(), stopping := EarlyStopping(monitor=name, patience=2), eval_data=None)
        tm.train()
        assert (tm.epoch_num, stopping.best_epoch) == (3, 1)
    message, steps = refused(LoopError, EarlyStopping(monitor="train/error"), eval_data=None)
    assert message.startswith(
        "EarlyStopping monitors 'train/error', which was not recorded\n  where   stage eval, after epoch 1\n  known   train/loss\n"
    )
    assert steps == 2


def test_the_metric_may_be_given_by_an_ending_of_its_name() -> None:
    """`loss` means the loss of the evaluation set, and no other metric is mistaken for it later."""
    stopping = EarlyStopping(monitor="loss", patience=2)
    assert trained([3, 2, 4, 5], stopping) == (3, "valid/loss did not improve in 2 evaluations: the best is 2, after epoch 1")
    stopping = EarlyStopping(monitor="accuracy", patience=2)
    manager(Score("valid/accuracy", [2, 3, 1, 2, 2]), stopping).train()
    assert stopping.best == 3


def test_an_ending_of_several_metrics_is_an_error_that_lists_them() -> None:
    message, steps = refused(MetricNameError, EarlyStopping(monitor="loss"), eval_data={"one": DATA, "two": DATA})
    assert message.split("\n")[:2] == ["`loss` may refer to 2 metrics", "  known   one/loss, two/loss"]
    assert steps == 0


@pytest.mark.parametrize("by", ["valid/gap", "valid/score"])
def test_a_metric_without_a_known_direction_is_refused(by: str) -> None:
    message, steps = refused(SettingError, EarlyStopping(monitor=by))
    assert message.split("\n")[:2] == [
        f"EarlyStopping does not know whether lower or higher is better for {by!r}",
        f'  try     EarlyStopping(monitor="{by}", mode="max"), or "min"',
    ]
    assert steps == 0


def test_a_writer_without_last_is_refused_for_recorded_metrics() -> None:
    class Forgets:
        def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None: ...
        def add_scalars(self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: int | None = None) -> None: ...
        def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None: ...
        def flush(self) -> None: ...

    message, steps = refused(SettingError, EarlyStopping(monitor="a/b"), writer=Forgets())
    assert message.startswith("EarlyStopping monitors 'a/b', but the writer cannot return logged values\n  why     Forgets has no method")
    assert steps == 0
    tm = manager(EarlyStopping(monitor="valid"), writer=Forgets(), epochs=1)
    tm.train()
    assert tm.epoch_num == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitor": 3}, "`monitor` must be the name of a metric, not 3"),
        ({"monitor": " "}, "`monitor` must be the name of a metric, not ' '"),
        ({"patience": 0}, "`patience` must be a whole number of at least 1, not 0 (int)"),
        ({"patience": True}, "`patience` must be a whole number of at least 1, not True (bool)"),
        ({"patience": 2.0}, "`patience` must be a whole number of at least 1, not 2.0 (float)"),
        ({"min_delta": -0.1}, "`min_delta` must be a number of at least 0, not -0.1 (float)"),
        ({"min_delta": math.nan}, "`min_delta` must be a number of at least 0, not nan (float)"),
        ({"min_delta": math.inf}, "`min_delta` must be a number of at least 0, not inf (float)"),
        ({"min_delta": True}, "`min_delta` must be a number of at least 0, not True (bool)"),
        ({"min_delta": "0"}, "`min_delta` must be a number of at least 0, not '0' (str)"),
        ({"mode": "maxi"}, '`mode` must be "min" or "max", not \'maxi\' (str)\n  try     did you mean `max`?'),
        ({"mode": 1}, '`mode` must be "min" or "max", not 1 (int)'),
    ],
)
def test_bad_arguments_are_refused_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        EarlyStopping(**arguments)
    assert str(caught.value).startswith(message)
