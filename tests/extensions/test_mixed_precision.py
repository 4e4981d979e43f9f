"""MixedPrecision computes in half precision, and its loss scaler skips updates that overflow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, LoopComponent, TrainManager, TrainTestLoop
from trainmaster.errors import LossError, SettingError, UnknownHookError
from trainmaster.extensions.mixed_precision import MixedPrecision
from trainmaster.testing import ExtensionContract
from trainmaster.testing.extension_contract import same_bits


class TestMixedPrecision(ExtensionContract):
    def make(self) -> MixedPrecision:
        return MixedPrecision()


class TestMixedPrecisionFloat16(ExtensionContract):
    unsaved_attributes = ("_scaler_state",)  # the loaded state, which the first batch uses

    def make(self) -> MixedPrecision:
        return MixedPrecision("float16")


DTYPES = [torch.bfloat16, torch.float16]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 1)
        self.seen: set[tuple[str, torch.dtype]] = set()

    def forward(self, batch: torch.Tensor) -> Any:
        hidden = self.body(batch)
        self.seen.add(("train" if self.training else "eval", hidden.dtype))
        return self.head(hidden.relu())


def loss(batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(prediction, batch[:, :1]) * batch.abs().max().clamp(10) / 100


def batches(*large: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = [torch.randn(4, 3, generator=generator) for _ in range(5)]
    for number in large:
        found[number][0, 0] = 1e3
    return found


def manager_of(data: Any, *extensions: Any, model: nn.Module | None = None, **more: Any) -> TrainManager:
    torch.manual_seed(0)
    model = Net() if model is None else model
    arguments = {"loss": loss, "epochs": 2, "device": "cpu", **more}
    return TrainManager(model, train_data=data, optimizer=lambda p: torch.optim.SGD(p, 1e-3), extensions=extensions, **arguments)


@pytest.mark.parametrize("dtype", DTYPES)
def test_training_evaluation_and_prediction_compute_in_the_given_type(dtype: torch.dtype) -> None:
    manager = manager_of(batches(), MixedPrecision(dtype), eval_data={"valid": batches()})
    manager.train()
    assert manager.model.seen == {("train", dtype), ("eval", dtype)}
    manager.model.seen.clear()
    predictions = manager.predict(batches())
    assert manager.model.seen == {("eval", dtype)}
    assert {each.dtype for each in predictions} == {dtype}


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_gradients_and_the_loss_stay_in_float32(dtype: torch.dtype) -> None:
    class Look(Extension):
        def post_backward(self, model: nn.Module, loss: torch.Tensor) -> None:
            self.seen = {loss.dtype, *(each.dtype for each in model.parameters()), *(each.grad.dtype for each in model.parameters())}

    manager_of(batches(), MixedPrecision(dtype), look := Look()).train()
    assert look.seen == {torch.float32}


def test_the_loss_is_computed_under_autocast_and_the_backward_pass_is_not() -> None:
    class Look(Extension):
        def pre_backward(self) -> None:
            self.is_on = torch.is_autocast_enabled("cpu")

    def loss_of(batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
        assert torch.is_autocast_enabled("cpu")
        return loss(batch, prediction)

    manager_of(batches(), MixedPrecision(), look := Look(), loss=loss_of).train()
    assert look.is_on is False


def test_an_update_whose_gradients_overflow_is_skipped_counted_and_recorded() -> None:
    manager = manager_of(batches(2), precision := MixedPrecision("float16"), epochs=1)
    manager.train()
    assert (manager.step_num, precision.num_skipped, precision.scale) == (4, 1, 2.0**15)
    assert manager.history["mixed_precision/skipped"] == [(2, 1.0)]


def test_gradients_are_unscaled_before_any_other_extension_sees_them() -> None:
    class Norms(Extension):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def post_backward(self, model: nn.Module) -> None:
            self.seen.append(torch.cat([each.grad.flatten() for each in model.parameters()]).norm().item())

    plain = Norms()
    manager_of(batches(), plain, epochs=1).train()
    for is_first in (True, False):
        norms, precision = Norms(), MixedPrecision("float16")
        manager_of(batches(), *([norms, precision] if is_first else [precision, norms]), epochs=1).train()
        assert norms.seen == pytest.approx(plain.seen, rel=0.02)


def test_parameters_that_only_the_optimizer_has_are_unscaled_too() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
            return loss(batch, prediction) * self.factor

    def trained(*extensions: Extension) -> float:
        torch.manual_seed(0)
        model, criterion = Net(), Weighted()
        optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], 1e-3)
        TrainManager(model, criterion, 1, batches(), optimizer=optimizer, extensions=extensions, device="cpu").train()
        return criterion.factor.item()

    assert trained(MixedPrecision("float16")) == pytest.approx(trained(), rel=1e-3)


def test_the_scale_is_part_of_the_state() -> None:
    first = manager_of(batches(2), MixedPrecision("float16"), epochs=1)
    first.train()
    resumed = manager_of(batches(2), again := MixedPrecision("float16"))
    resumed.restore(first.capture())
    assert (again.scale, again.num_skipped) == (2.0**15, 1)
    late = manager_of(batches(2))
    late.add_extension("mixed_precision", added := MixedPrecision("float16"))
    late.restore(first.capture())  # restores before the scaler exists
    late.train()
    resumed.train()
    assert (added.scale, added.num_skipped) == (again.scale, again.num_skipped) == (2.0**14, 2)
    assert same_bits(late.model.state_dict(), resumed.model.state_dict())


def test_training_can_resume_in_the_other_type() -> None:
    for before, after in (DTYPES, DTYPES[::-1]):
        first = manager_of(batches(), MixedPrecision(before), epochs=1)
        first.train()
        resumed = manager_of(batches(), MixedPrecision(after))
        resumed.restore(first.capture())
        resumed.train()
        assert resumed.epoch_num == 2


def test_a_device_that_does_not_support_the_type_is_refused_when_the_loop_is_created() -> None:
    with pytest.raises(SettingError) as caught:
        manager_of(batches(), MixedPrecision(), device="meta")
    assert str(caught.value).split("\n") == [
        "the device 'meta' does not support bfloat16",
        "  why     User specified an unsupported autocast device_type 'meta'",
        "  try     use the other type or another device, or remove MixedPrecision",
    ]


def test_weights_in_float16_are_refused_before_the_first_batch() -> None:
    with pytest.raises(SettingError, match=r"the weights are already float16: `body.weight` and 3 more"):
        manager_of(batches(), MixedPrecision("float16"), model=Net().half()).train()


def test_a_loss_that_is_not_a_tensor_is_an_error() -> None:
    with pytest.raises(LossError, match=r"MixedPrecision needs a loss that is a tensor, not None \(NoneType\)"):
        manager_of(batches(), MixedPrecision("float16"), loss=lambda batch, prediction: None).train()


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("bfloat", '`dtype` must be "bfloat16" or "float16", not \'bfloat\' (str)\n  try     did you mean `bfloat16` or `float16`?'),
        ("fp8", '`dtype` must be "bfloat16" or "float16", not \'fp8\' (str)\n  try     MixedPrecision("bfloat16")'),
        (torch.float32, '`dtype` must be "bfloat16" or "float16", not \'float32\''),
        (16, '`dtype` must be "bfloat16" or "float16", not 16'),
        (None, '`dtype` must be "bfloat16" or "float16", not None'),
        (["bfloat16"], '`dtype` must be "bfloat16" or "float16", not [\'bfloat16\']'),
    ],
)
def test_bad_arguments_are_refused_at_construction(dtype: Any, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        MixedPrecision(dtype)
    assert str(caught.value).startswith(message)


def test_attaching_it_to_a_train_test_loop_is_refused() -> None:
    with pytest.raises(UnknownHookError, match=r"`MixedPrecision.pre_run` is named like a hook, but there is no stage `run`"):
        TrainTestLoop(Net(), [LoopComponent(), MixedPrecision()], batches(), [])
