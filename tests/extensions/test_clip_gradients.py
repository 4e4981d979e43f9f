"""Gradients are clipped right before each update, and at no other time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, LoopComponent, TrainManager, TrainTestLoop
from trainmaster.errors import SettingError, shown
from trainmaster.extensions.clip_gradients import ClipGradients
from trainmaster.testing import ExtensionContract


class TestClipGradients(ExtensionContract):
    def make(self) -> ClipGradients:
        return ClipGradients(0.1)


class Sizes(Extension):
    """Records the norm and the largest value of the gradients that each update used."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.values: list[float] = []

    def post_optimizer_step(self, model: nn.Module) -> None:
        grads = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
        self.norms.append(grads.norm().item())
        self.values.append(grads.abs().max().item())


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def loss(batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
    return (prediction - 3).pow(2).mean()


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, generator=generator) for _ in range(5)]


def trained(*extensions: Extension) -> tuple[Sizes, nn.Module]:
    sizes = Sizes()
    manager = TrainManager(
        net(), loss, 1, batches(), optimizer=lambda p: torch.optim.SGD(p, 0.01), extensions=[sizes, *extensions], device="cpu"
    )
    manager.train()
    return sizes, manager.model


def by_hand(clip: Any) -> list[torch.Tensor]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in batches():
        optimizer.zero_grad()
        loss(batch, model(batch)).backward()
        clip(model.parameters)
        optimizer.step()
    return list(model.parameters())


def test_the_norm_is_clipped_to_its_limit() -> None:
    sizes, model = trained(ClipGradients(0.5))
    assert min(trained()[0].norms) > 0.5
    assert max(sizes.norms) == pytest.approx(0.5, rel=1e-4)
    assert all(map(torch.equal, model.parameters(), by_hand(lambda parameters: nn.utils.clip_grad_norm_(parameters(), 0.5))))


def test_each_value_is_clipped_to_its_limit() -> None:
    sizes, model = trained(ClipGradients(max_value=0.2))
    assert min(trained()[0].values) > 0.2
    assert max(sizes.values) == pytest.approx(0.2)
    assert all(map(torch.equal, model.parameters(), by_hand(lambda parameters: nn.utils.clip_grad_value_(parameters(), 0.2))))


def test_with_both_limits_values_are_clipped_first() -> None:
    def both(parameters: Any) -> None:
        nn.utils.clip_grad_value_(parameters(), 0.3)
        nn.utils.clip_grad_norm_(parameters(), 0.4)

    sizes, model = trained(ClipGradients(0.4, 0.3))
    assert max(sizes.norms) == pytest.approx(0.4, rel=1e-4)
    assert all(map(torch.equal, model.parameters(), by_hand(both)))


def test_gradients_below_the_limit_do_not_change() -> None:
    assert all(map(torch.equal, trained(ClipGradients(1e6, 1e6))[1].parameters(), trained()[1].parameters()))


def test_a_parameter_that_is_added_in_the_middle_of_an_epoch_is_clipped_too() -> None:
    class Grow(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, model: nn.Module, batch_num: int) -> None:
            if batch_num == 2:
                model[2].extra = nn.Parameter(torch.ones(1))
                model[2].register_forward_hook(lambda module, args, output: output * module.extra)

    assert max(trained(ClipGradients(0.5), Grow())[0].norms) == pytest.approx(0.5, rel=1e-4)


def test_it_works_in_a_train_test_loop() -> None:
    class Steps(LoopComponent):
        def on_train_begin(self, loop: Any) -> None:
            loop.optimizer = torch.optim.SGD(loop.model.parameters(), 0.01)

        def on_grads_reset(self, loop: Any) -> None:
            loop.optimizer.zero_grad()

        def on_forward_pass(self, loop: Any) -> None:
            loop.output = loop.model(loop.batch)

        def on_loss_compute(self, loop: Any) -> None:
            loop.loss = loss(loop.batch, loop.output)

        def on_backward_pass(self, loop: Any) -> None:
            loop.loss.backward()

        def on_optim_step(self, loop: Any) -> None:
            loop.optimizer.step()

    loop = TrainTestLoop(net(), [Steps(), ClipGradients(0.5)], batches(), [])
    loop.train(1)
    assert all(map(torch.equal, loop.model.parameters(), trained(ClipGradients(0.5))[1].parameters()))


@pytest.mark.parametrize("value", [0, -1.0, True, "1", float("nan"), float("inf"), [1.0]])
@pytest.mark.parametrize("name", ["max_norm", "max_value"])
def test_bad_arguments_are_refused_at_construction(name: str, value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        ClipGradients(**{name: value})
    assert str(caught.value) == f"`{name}` must be a number above 0, not {shown(value)}\n  try     ClipGradients({name}=1.0)"


def test_at_least_one_limit_is_required() -> None:
    with pytest.raises(SettingError, match="ClipGradients needs `max_norm`, `max_value`, or both"):
        ClipGradients()
