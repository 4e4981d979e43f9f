"""`eval_every` sets how often a loop evaluates: every few epochs, or several times per epoch (contract A26)."""

from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import EarlyStopping, Extension, TrainManager
from trainmaster.errors import SettingError


class Stop(Extension):
    """Stops the loop after a number of batches, as a signal would."""

    def __init__(self, at: int) -> None:
        self.at = at

    def post_train_step_batch(self, loop: TrainManager, epoch_num: int, batch_num: int) -> None:
        if epoch_num * 4 + batch_num + 1 == self.at:
            loop.stop("now")


def make_loop(*extensions: Any, epochs: int = 3, lr: float = 0.1, **more: Any) -> TrainManager:
    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.randn(8, 3), batch_size=2, shuffle=True)
    valid = torch.randn(3, 3)
    return TrainManager(
        nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.2)), lambda batch, out: out.pow(2).mean(), epochs, data, [valid],
        optimizer=lambda params: torch.optim.SGD(params, lr=lr, momentum=0.9), extensions=extensions, device="cpu", progress=False, **more,
    )  # fmt: skip


def steps(loop: TrainManager, name: str = "valid/loss") -> list[Any]:
    return [step for step, _ in loop.history[name]]


@pytest.mark.parametrize(
    ("eval_every", "expected"),
    [
        (1, [0, 1, 2, 3]),
        (0.5, [0, 0.5, 1, 1.5, 2, 2.5, 3]),
        (0.7, [0, 0.75, 1.5, 2.25, 3]),  # every 3 batches, and an epoch has 4
        (2, [0, 2, 3]),
        (1.5, [0, 1.5, 3]),
        (0, [0, 3]),
    ],
)
def test_eval_every_sets_the_interval_and_training_ends_with_an_evaluation(eval_every: float, expected: list[float]) -> None:
    loop = make_loop(eval_every=eval_every)
    loop.train()
    assert steps(loop) == expected


def test_evaluations_do_not_change_the_weights() -> None:
    often = make_loop(eval_every=0.25)
    often.train()
    once = make_loop(eval_every=0)
    once.train()
    assert all(torch.equal(a, b) for a, b in zip(often.model.parameters(), once.model.parameters(), strict=True))


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 8])
def test_stopping_and_resuming_gives_the_same_weights_and_metrics(at: int, tmp_path: Any) -> None:
    whole = make_loop(eval_every=0.5)
    whole.train()
    make_loop(Stop(at), eval_every=0.5, train_dir=tmp_path).train()
    again = make_loop(eval_every=0.5, train_dir=tmp_path)
    again.train()
    assert again.history["valid/loss"] == whole.history["valid/loss"]
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True))


def test_early_stopping_counts_evaluations_in_the_middle_of_an_epoch() -> None:
    loop = make_loop(EarlyStopping(patience=2), eval_every=0.25, lr=0.0)
    loop.train()
    assert (loop.epoch_num, loop.moment.batch) == (0, 2)


def test_a_fraction_needs_data_with_a_length() -> None:
    loop = TrainManager(
        nn.Linear(3, 1), lambda batch, out: out.mean(), 1, (torch.ones(2, 3) for _ in range(3)), eval_every=0.5, device="cpu"
    )
    with pytest.raises(SettingError, match="needs train_data with a length"):
        loop.train()


@pytest.mark.parametrize("value", [-1, "often", True, float("nan")])
def test_invalid_values_are_refused(value: Any) -> None:
    with pytest.raises(SettingError, match="`eval_every` must be a number of epochs"):
        make_loop(eval_every=value)
