"""DivergenceGuard raises an error when a loss diverges (contract A27)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Manager
from trainmaster.errors import LoopError, LossDivergedError, SettingError
from trainmaster.extensions.divergence_guard import DivergenceGuard
from trainmaster.loop import TrainManager
from trainmaster.stages import Extension
from trainmaster.testing import ExtensionContract

NAN, INF = float("nan"), float("inf")
DATA = [torch.ones(2, 1), torch.zeros(2, 1)]


class TestDivergence(ExtensionContract):
    def make(self) -> object:
        return DivergenceGuard()


class Losses(Extension):
    """Sets the loss of `valid` after each epoch."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values

    def post_eval_step_epoch(self, eval_losses: dict[str, float], datasource_name: str, epoch_num: int) -> None:
        eval_losses[datasource_name] = self.values[epoch_num]


def manager(values: Sequence[float], *extensions: object, **settings: Any) -> TrainManager:
    torch.manual_seed(0)
    settings = {"eval_data": {"valid": DATA}, "device": "cpu", **settings}
    all_of_them = [Losses(values), *extensions]
    return TrainManager(nn.Linear(1, 1), lambda _, out: out.pow(2).mean(), len(values) - 1, DATA, extensions=all_of_them, **settings)


def end(values: Sequence[float], divergence: DivergenceGuard, **settings: Any) -> int | None:
    """Return the epoch whose loss raised an error, or None if every loss was accepted."""
    tm = manager(values, divergence, **settings)
    try:
        tm.train()
    except LossDivergedError:
        return tm.epoch_num
    return None


def test_the_error_shows_the_values_their_epochs_and_what_to_do() -> None:
    """Covers contract A27."""
    with pytest.raises(LossDivergedError) as caught:
        manager([5, 4, 1, 2, 30], DivergenceGuard()).train()
    assert str(caught.value).split("\n") == [
        "valid/loss has diverged: it is 30",
        "  where   stage eval, after epoch 4",
        "  values  the best was 1 after epoch 2, the last 2 after epoch 3",
        "  why     the mean of the relative changes since these two is 21.5, above factor=10",
        "  try     lower the learning rate, add a warm-up, or clip the gradients; a greater `factor` allows it",
    ]
    assert isinstance(caught.value, ArithmeticError)


@pytest.mark.parametrize(("value", "is_error"), [(14.0, False), (14.7, True)])
def test_the_mean_of_both_changes_is_compared_with_the_factor(value: float, is_error: bool) -> None:
    """Contract A27: the mean of the relative changes is 9.5 for a loss of 14, and 10.03 for 14.7.

    The changes are relative to 1 (the best loss) and 2 (the last loss): 13 and 6 for 14, 13.7 and 6.35 for 14.7.
    """
    assert end([1, 1, 2, value], DivergenceGuard()) == (3 if is_error else None)


def test_a_change_of_exactly_the_factor_is_accepted() -> None:
    assert end([1, 1, 1, 11], DivergenceGuard(factor=10)) is None
    assert end([1, 1, 1, 11.01], DivergenceGuard(factor=10)) == 3


def test_during_the_warm_up_nothing_is_compared_but_its_best_is_used_later() -> None:
    """Covers contract A27."""
    values = [1, 1000, 1000]
    assert end(values, DivergenceGuard()) == 2
    assert end(values, DivergenceGuard(warm_up_epochs=0)) == 1
    assert end(values, DivergenceGuard(warm_up_epochs=2)) is None


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_a_loss_that_is_not_finite_is_an_error_immediately(odd: float, epoch: int) -> None:
    """Covers contract A27."""
    values = [1.0] * 5
    values[epoch] = odd
    assert end(values, DivergenceGuard(warm_up_epochs=2)) == epoch
    assert end(values, DivergenceGuard(factor=None)) == epoch


def test_the_error_of_a_loss_that_is_not_finite_says_so() -> None:
    with pytest.raises(LossDivergedError) as caught:
        manager([NAN], DivergenceGuard()).train()
    assert str(caught.value).split("\n") == [
        "valid/loss is nan",
        "  where   stage eval, after epoch 0",
        "  values  this is the first value",
        "  try     lower the learning rate, add a warm-up, or clip the gradients; NaNGuard() names the batch and the module it comes from",
    ]


def test_without_a_factor_nothing_is_compared() -> None:
    """Covers contract A27."""
    assert end([1, 1, 1, 1e12], DivergenceGuard(factor=None)) is None


def test_training_that_improves_raises_no_error() -> None:
    tm = TrainManager(
        nn.Linear(1, 1), lambda _, out: out.pow(2).mean(), 5, DATA, {"valid": DATA}, device="cpu", extensions=[DivergenceGuard()]
    )
    tm.train()
    assert tm.epoch_num == 5


def test_training_that_really_diverges_is_stopped() -> None:
    """Each update triples the weight and flips its sign."""
    model = nn.Linear(1, 1, bias=False)
    tm = TrainManager(
        model,
        lambda _, out: out.pow(2).mean() / 2,
        50,
        [torch.ones(2, 1)],
        {"valid": [torch.ones(2, 1)]},
        optimizer=lambda p: torch.optim.SGD(p, lr=4.0),
        extensions=[DivergenceGuard()],
        device="cpu",
    )
    with pytest.raises(LossDivergedError):
        tm.train()
    assert tm.epoch_num == 2  # the loss is 9 times as large after each epoch, so the changes are 80 and 8


# losses near and below 0


def test_noise_of_a_loss_near_0_is_accepted() -> None:
    """After the loss has dropped from 2 to a millionth, a loss a hundred times as large is still negligible."""
    assert end([2, 2, 1e-3, 1e-6, 1e-4], DivergenceGuard()) is None
    assert end([2, 2, 1e-3, 1e-6, 1.0], DivergenceGuard()) == 4


def test_the_scale_of_a_loss_near_0_is_its_value_after_the_warm_up() -> None:
    """The huge loss of untrained weights is not a useful scale."""
    assert end([1e9, 2, 1, 1000], DivergenceGuard()) == 3


def test_a_loss_of_exactly_0_can_increase() -> None:
    assert end([0, 0, 0.5, 0.4], DivergenceGuard()) is None
    assert end([0, 0, 0.5, 0.4, 500], DivergenceGuard()) == 4


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([3, 1, -1, -2, -3], None),  # a log-likelihood that improves
        ([3, 1, -1, -2, 0, 1], None),  # the loss increases by about its own size
        ([-1, -2, -3, 100], 3),
        ([-100, -200, -300, -1], None),
        ([5, 1, -0.001, 0.3], None),  # all values around 0 are small
        ([5, 1, -0.001, 30], 3),
    ],
)
def test_changes_of_a_negative_loss_are_relative_to_its_size(values: list[float], wanted: int | None) -> None:
    assert end(values, DivergenceGuard()) == wanted


# resuming


@pytest.mark.parametrize("step", [1, 3, 5, 6, 7])
def test_training_that_resumes_finds_the_same(step: int) -> None:
    class Capture(Extension):
        state: Any = None

        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num == step:
                self.state = train_manager.capture()

    values = [5, 4, 1, 2, 30]
    with pytest.raises(LossDivergedError) as caught:
        manager(values, DivergenceGuard(), capture := Capture()).train()
    again = manager(values, DivergenceGuard(), Capture())
    again.restore(capture.state)
    with pytest.raises(LossDivergedError) as found:
        again.train()
    assert str(found.value) == str(caught.value)


def test_starting_training_again_after_the_error_raises_it_again(tmp_path: Path) -> None:
    for _ in range(2):
        tm = manager([1, 1, 1, 50, 1], DivergenceGuard(), train_dir=tmp_path)
        with pytest.raises(LossDivergedError, match="the best was 1 after epoch 0, the last 1 after epoch 2"):
            tm.train()
        assert tm.epoch_num == 3
    tm = manager([1, 1, 1, 50, 1], DivergenceGuard(factor=100), train_dir=tmp_path)
    tm.train()
    assert tm.epoch_num == 4


def test_evaluations_that_hooks_or_users_start_do_not_count() -> None:
    class Evaluates(Extension):
        def post_train_step_batch(self, train_manager: TrainManager) -> None:
            train_manager.eval()

    tm = manager([1, 1, 2, 3], Evaluates(), divergence := DivergenceGuard())
    tm.eval()
    assert divergence.last is None
    tm.train()
    assert (divergence.best, divergence.last) == ((1, 0), (3, 3))


def test_an_extension_starts_from_scratch_with_another_training_run() -> None:
    divergence = DivergenceGuard()
    assert end([1, 1, 1], divergence) is None
    assert end([900, 900, 800], divergence) is None


def test_under_a_manager_the_run_fails_and_the_next_one_starts_from_scratch() -> None:
    class Small(Manager):
        extensions = [DivergenceGuard()]

        def make_loop(self, config: Any) -> TrainManager:
            return manager(config.losses)

    small = Small(None, verbose=False)
    with pytest.raises(LossDivergedError):
        small.process({"losses": [1.0, 1.0, 1.0, 90.0]})
    assert (small.store.run(small.key).outcome_of(1) or {})["error"].startswith("LossDivergedError: valid/loss has diverged: it is 90")
    small.process({"losses": [900.0, 900.0, 800.0]})
    assert small.epoch == 2


# invalid settings


def test_a_recorded_metric_can_be_monitored() -> None:
    class Score(Extension):
        def post_eval_step_epoch(self, writer: Any, epoch_num: int) -> None:
            writer.add_scalar("score/error", [1, 1, 1, 50][epoch_num], epoch_num)

    with pytest.raises(LossDivergedError, match=r"^score/error has diverged: it is 50"):
        manager([1, 1, 1, 1], Score(), DivergenceGuard(monitor="score/error")).train()


def test_a_monitor_that_cannot_work_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^DivergenceGuard has nothing to monitor: there is no evaluation set"):
        manager([1, 1], DivergenceGuard(), eval_data=None).train()
    with pytest.raises(SettingError, match=r"^DivergenceGuard monitors 'vaild', which is not an evaluation set"):
        manager([1, 1], DivergenceGuard(monitor="vaild")).train()
    with pytest.raises(LoopError, match=r"^DivergenceGuard monitors 'valid/los', which was not recorded"):
        manager([1, 1], DivergenceGuard(monitor="valid/los")).train()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"factor": 0}, "`factor` must be a number above 0, not 0 (int)"),
        ({"factor": -1.0}, "`factor` must be a number above 0, not -1.0 (float)"),
        ({"factor": math.nan}, "`factor` must be a number above 0, not nan (float)"),
        ({"factor": math.inf}, "`factor` must be a number above 0, not inf (float)"),
        ({"factor": True}, "`factor` must be a number above 0, not True (bool)"),
        ({"factor": "10"}, "`factor` must be a number above 0, not '10' (str)"),
        ({"monitor": 3}, "`monitor` must be the name of a metric, not 3"),
        (
            {"monitor": "accuracy"},
            "DivergenceGuard monitors losses, not 'accuracy'\n  why     higher is better for this metric",
        ),
        ({"warm_up_epochs": -1}, "`warm_up_epochs` must be a number of at least 0, not -1 (int)"),
        ({"warm_up_epochs": True}, "`warm_up_epochs` must be a number of at least 0, not True (bool)"),
        ({"warm_up_epochs": None}, "`warm_up_epochs` must be a number of at least 0, not None (NoneType)"),
    ],
)
def test_bad_arguments_are_refused_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        DivergenceGuard(**arguments)
    assert str(caught.value).startswith(message)
