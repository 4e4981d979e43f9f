"""Without extensions, a `TrainManager` records the training loss, shows its progress, and reports problems."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, Manager, NaNGuard, Progress, TrainManager
from trainmaster.errors import SettingError
from trainmaster.loop.deferred_scalars import MAX_WAITING

UNEVEN = [torch.tensor([[1.0], [3.0]]), torch.tensor([[8.0]])]


class Scale(nn.Module):
    """A model that multiplies its inputs by a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch * self.weight


def bare(data: Any = UNEVEN, epochs: int = 2, lr: float = 0.0, **more: Any) -> TrainManager:
    settings: dict[str, Any] = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=lr), "device": "cpu", **more}
    return TrainManager(Scale(), lambda _, out: out.mean(), epochs, data, **settings)


def losses_with(bad: dict[int, float], count: int = 4) -> list[torch.Tensor]:
    return [torch.tensor([[bad.get(number, 1.0)]]) for number in range(count)]


# the training loss


def test_the_training_loss_is_recorded_as_the_mean_over_samples() -> None:
    tm = bare()
    tm.train()
    assert tm.history == {"train/loss": [(1, 4.0), (2, 4.0)]}


def test_the_training_loss_is_a_fixture_at_the_end_of_an_epoch() -> None:
    class Look(Extension):
        seen: list[float] = []

        def post_train_step_epoch(self, train_loss: float) -> None:
            self.seen.append(train_loss)

    bare(extensions=[look := Look()]).train()
    assert look.seen == [4.0, 4.0]


def test_an_epoch_that_was_stopped_halfway_is_recorded_when_it_is_done() -> None:
    class StopOnce(Extension):
        is_done = False

        def post_train_step_batch(self, train_manager: TrainManager) -> None:
            if not self.is_done:
                self.is_done = True
                train_manager.stop()

    tm = bare(extensions=[StopOnce()])
    tm.train()
    assert tm.history == {}
    tm.train()
    assert tm.history == {"train/loss": [(1, 4.0), (2, 4.0)]}


def test_a_loss_that_is_not_a_single_number_is_trained_on_but_not_recorded() -> None:
    class Pairs(TrainManager):
        def backward(self, loss: Any) -> None:
            (loss[0] + loss[1]).backward()

    tm = Pairs(Scale(), lambda _, out: (out.mean(), out.sum()), 1, UNEVEN, device="cpu")  # type: ignore[arg-type, return-value]
    tm.train()
    assert (tm.epoch_num, tm.history) == (1, {})


def test_an_evaluation_set_cannot_be_called_train() -> None:
    with pytest.raises(SettingError, match=r"(?s)an evaluation set cannot be called 'train'.*`train/loss` is the training loss"):
        bare(eval_data={"train": UNEVEN})


# progress


def test_progress_is_shown_unless_it_is_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    bare(eval_data={"valid": UNEVEN}).train()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[:2] for line in lines] == [[f"epoch {number}/2", "valid loss 4.0000"] for number in range(3)]
    bare(progress=False).train()
    assert capsys.readouterr().out == ""
    with pytest.raises(SettingError, match=r"`progress` must be True or False, not 3 \(int\)"):
        bare(progress=3)


def test_a_custom_progress_extension_replaces_the_default_one(capsys: pytest.CaptureFixture[str]) -> None:
    tm = bare(extensions={"mine": Progress()})
    tm.train()
    assert list(tm.extensions) == ["setup", "eval_state", "train_loss", "mine"]
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_manager_shows_the_progress_of_its_loops(capsys: pytest.CaptureFixture[str]) -> None:
    class Small(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            return bare(eval_data={"valid": UNEVEN})

    small = Small(None, verbose=False)
    small.process({"lr": 1.0})
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "")
    Small(None).process({"lr": 1.0})
    lines = capsys.readouterr().out.splitlines()
    assert sum("epoch 1 of 2" in line for line in lines) == 1
    assert not any(line.startswith("epoch 1/2") for line in lines)


# nothing left to train


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"epochs": 2}, "trainmaster: nothing left to train: 2 of 2 epochs are done; increase `epochs` to continue\n"),
        (
            {"epochs": None, "max_steps": 3},
            "trainmaster: nothing left to train: 3 of 3 updates are done; increase `max_steps` to continue\n",
        ),
    ],
)
def test_train_prints_one_line_if_nothing_is_left_to_train(
    capsys: pytest.CaptureFixture[str], limits: dict[str, Any], message: str
) -> None:
    tm = bare(progress=False, **limits)
    tm.train()
    assert capsys.readouterr().err == ""
    tm.train()
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", message)


def test_a_missing_evaluation_is_done_if_nothing_is_left_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    bare(epochs=0, eval_data={"valid": UNEVEN}).train()
    assert "nothing left" not in capsys.readouterr().err


# non-finite losses


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_non_finite_loss_causes_a_warning(value: float) -> None:
    tm = bare(losses_with({2: value, 3: value}), epochs=3)
    with pytest.warns(UserWarning, match=rf"^the training loss is {value} in epoch 0, batch 2; the extension NaNGuard\(\)") as caught:
        tm.train()
    assert len(caught) == 1


def test_the_warning_appears_within_a_long_epoch() -> None:
    seen: list[int] = []

    class Look(Extension):
        def post_train_step_batch(self, batch_num: int) -> None:
            seen.append(batch_num)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="epoch 0, batch 5;"):
            bare(losses_with({5: math.nan}, 10 * MAX_WAITING), epochs=1, extensions=[Look()]).train()
    assert len(seen) < MAX_WAITING


def test_after_a_resume_the_warning_names_the_right_batch() -> None:
    class Stop(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, batch_num: int) -> None:
            if batch_num == 1:
                train_manager.stop()

    data = losses_with({3: math.nan})
    first = bare(data, extensions={"stop": Stop()})
    first.train()
    second = bare(data, epochs=1)
    second.restore(first.capture())
    with pytest.warns(UserWarning, match="epoch 0, batch 3;"):
        second.train()


def test_nan_guard_replaces_the_default_warning() -> None:
    with pytest.warns(UserWarning, match="^the loss is nan in stage train_step_batch, epoch 0, batch 2, step 2; ") as caught:
        bare(losses_with({2: math.nan}), extensions=[NaNGuard("continue")]).train()
    assert len(caught) == 1
