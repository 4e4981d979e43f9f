"""The mean loss of each evaluation set is computed over samples, and on request also over batches (contract E40)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainmaster.errors import SettingError
from trainmaster.loop import EvalState, TrainManager
from trainmaster.stages import Extension


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.weight * batch


def mean(batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
    return prediction.mean()


UNEVEN = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0])]
"""Two batches with the means 2 and 10. The mean over samples is 16 / 4, and the mean over batches is 12 / 2."""


def make_manager(eval_data: Any, loss: Any = mean, epochs: int = 0, **more: Any) -> TrainManager:
    options: dict[str, Any] = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.5), "device": "cpu", **more}
    return TrainManager(Net(), loss, epochs, [torch.ones(2)], eval_data, **options)


def test_the_loss_of_a_set_is_the_mean_over_its_samples() -> None:
    """Contract E40: the default is the mean over samples, not over batches."""
    tm = make_manager({"valid": UNEVEN})
    tm.eval()
    assert tm.history["valid/loss"] == [(0, 4.0)]


def test_the_mean_over_batches_is_recorded_only_on_request() -> None:
    """Contract E40: `per_batch=True` adds the mean over batches."""
    tm = make_manager({"valid": UNEVEN})
    tm.eval()
    assert list(tm.history) == ["valid/loss"]
    tm = make_manager({"valid": UNEVEN}, extensions=[EvalState(per_batch=True)])
    tm.eval()
    assert tm.history == {"valid/loss": [(0, 4.0)], "valid/loss_per_batch": [(0, 6.0)]}
    with pytest.raises(SettingError, match="per_batch=1: expected True or False"):
        EvalState(per_batch=1)  # type: ignore[arg-type]


def test_both_means_are_equal_if_all_batches_have_the_same_size() -> None:
    """Covers contract E40."""
    tm = make_manager({"valid": [torch.tensor([1.0, 2.0]), torch.tensor([5.0, 6.0])]}, extensions=[EvalState(per_batch=True)])
    tm.eval()
    assert tm.history["valid/loss"] == tm.history["valid/loss_per_batch"] == [(0, 3.5)]


def test_each_set_has_its_own_metrics_in_the_given_order() -> None:
    """Covers contract E40."""
    tm = make_manager({"b": UNEVEN, "a": UNEVEN[1:]})
    tm.eval()
    assert tm.history == {"b/loss": [(0, 4.0)], "a/loss": [(0, 10.0)]}


def test_losses_are_recorded_against_epoch_num() -> None:
    """Covers contract E40."""
    tm = make_manager({"valid": UNEVEN}, epochs=2)
    tm.train()
    # The gradient of the training loss is 1, so each update reduces the weight by 0.5.
    assert tm.history["valid/loss"] == [(0, 4.0), (1, 2.0), (2, 0.0)]


def test_its_counters_are_fixtures_of_eval_step_epoch() -> None:
    """Covers contract E40."""
    seen: list[Any] = []

    class Look(Extension):
        def pre_eval_step_epoch(self, num_batches: int, num_samples: int, cum_loss: Any, cum_sample_loss: Any) -> None:
            seen.append((num_batches, num_samples, float(cum_loss), float(cum_sample_loss)))

        def post_eval_step_batch(self, num_batches: int, num_samples: int, cum_loss: Any, cum_sample_loss: Any) -> None:
            seen.append((num_batches, num_samples, float(cum_loss), float(cum_sample_loss)))

    make_manager({"valid": UNEVEN}, extensions=[Look()]).eval()
    assert seen == [(0, 0, 0.0, 0.0), (1, 3, 2.0, 6.0), (2, 4, 12.0, 16.0)]


def test_the_losses_of_all_sets_are_available_in_post_eval() -> None:
    """Covers contracts E33 and E40."""
    seen: list[Any] = []

    class Look(Extension):
        def post_eval(self, eval_losses: dict[str, float]) -> None:
            seen.append(dict(eval_losses))

    make_manager({"b": UNEVEN, "a": UNEVEN[1:]}, extensions=[Look()]).eval()
    assert seen == [{"b": 4.0, "a": 10.0}]


def test_a_hook_that_modifies_the_loss_modifies_the_mean() -> None:
    """Covers contract E40."""

    class Double(Extension):
        def post_loss(self, fixtures: Any, loss: Any) -> None:
            fixtures.modify("loss", 2 * loss)

    tm = make_manager({"valid": UNEVEN}, extensions=[Double()])
    tm.eval()
    assert tm.history["valid/loss"] == [(0, 8.0)]


def test_samples_are_counted_by_get_true_batch_size() -> None:
    """Covers contracts E29 and E40."""

    class Manager(TrainManager):
        def get_true_batch_size(self, batch: Any) -> int:
            return 1

    tm = Manager(Net(), mean, 0, [torch.ones(2)], {"valid": UNEVEN}, device="cpu")
    tm.eval()
    assert tm.history["valid/loss"] == [(0, 6.0)]


def test_many_small_losses_are_added_in_double_precision() -> None:
    """Covers contract E40."""
    batches = [torch.tensor([1e8])] + [torch.tensor([1.0])] * 100
    tm = make_manager({"valid": batches})
    tm.eval()
    assert tm.history["valid/loss"] == [(0, (1e8 + 100) / 101)]


@pytest.mark.parametrize("loss", [lambda _, prediction: prediction.mean().reshape(1), lambda _, prediction: prediction.mean().item()])
def test_a_loss_of_one_element_or_a_plain_number_counts_as_a_scalar(loss: Any) -> None:
    """Covers contract E40."""
    tm = make_manager({"valid": UNEVEN}, loss)
    tm.eval()
    assert tm.history["valid/loss"] == [(0, 4.0)]


def test_a_loss_that_is_not_a_number_is_recorded_as_such() -> None:
    """Contract E40: NaN is recorded like any other value."""
    tm = make_manager({"valid": [torch.tensor([float("nan")]), torch.tensor([1.0])]})
    tm.eval()
    ((_, value),) = tm.history["valid/loss"]
    assert value != value
