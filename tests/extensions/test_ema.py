"""`EMA` averages the weights like PyTorch, and uses the average in evaluations without changing training."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import Extension, LoopComponent, TrainManager, TrainTestLoop
from trainmaster.errors import LoopError, SettingError, StateError, UnknownHookError, shown
from trainmaster.extensions.ema import EMA
from trainmaster.testing import ExtensionContract
from trainmaster.testing.extension_contract import same_bits

DECAY = 0.7


class TestEMA(ExtensionContract):
    def make(self) -> EMA:
        return EMA(DECAY)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, batch: Any) -> Any:
        return self.layers(batch[0])


def loss(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return (prediction - batch[0][:, :1]).pow(2).mean()


def loader(*, is_shuffled: bool = False) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(22, 4, generator=generator)), 5, shuffle=is_shuffled)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def manager_of(*extensions: Any, model: nn.Module | None = None, **more: Any) -> TrainManager:
    torch.manual_seed(0)
    model = Net() if model is None else model
    arguments: dict[str, Any] = {"epochs": 2, "optimizer": sgd, "device": "cpu", "eval_data": {"valid": loader()}, **more}
    return TrainManager(model, loss, train_data=loader(is_shuffled=True), extensions=extensions, **arguments)


def copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


class Averaged(Extension):
    """Computes the same average with PyTorch's own class."""

    def __init__(self, model: nn.Module) -> None:
        self.model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))

    def post_optimizer_step(self, model: nn.Module) -> None:
        self.model.update_parameters(model)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return copied(self.model.module)


class See(Extension):
    """Records the weights that a hook sees."""

    def __init__(self, hook: str) -> None:
        self.seen: dict[str, torch.Tensor] = {}
        setattr(self, hook, self._look)

    def _look(self, model: nn.Module) -> None:
        self.seen = copied(model)


def test_the_average_equals_that_of_pytorchs_averaged_model() -> None:
    model = Net()
    manager = manager_of(ema := EMA(DECAY), wanted := Averaged(model), model=model)
    manager.train()
    assert same_bits(ema.weights, wanted.weights)
    assert ema.num_updates == manager.step_num == 10
    assert not same_bits(ema.weights, copied(model))


def test_it_is_pickled_with_its_average() -> None:
    manager_of(ema := EMA(DECAY), max_steps=2).train()
    assert same_bits(pickle.loads(pickle.dumps(ema)).state_dict(), ema.state_dict())


def test_it_does_not_change_the_weights_and_random_numbers_of_training() -> None:
    plain = manager_of()
    plain.train()
    drawn = torch.rand(1)
    averaged = manager_of(EMA(DECAY))
    averaged.train()
    assert same_bits(plain.model.state_dict(), averaged.model.state_dict())
    assert torch.equal(drawn, torch.rand(1))


def test_an_evaluation_uses_the_averaged_weights() -> None:
    manager = manager_of(ema := EMA(DECAY))
    manager.train()
    other = manager_of(model=copy.deepcopy(manager.model))
    ema.copy_to(other.model)
    other.eval()
    assert manager.history["valid/loss"][-1][1] == other.history["valid/loss"][0][1]
    assert all(map(torch.equal, manager.predict(loader()), other.predict(loader())))


def test_before_the_first_update_evaluations_use_the_models_own_weights() -> None:
    manager, plain = manager_of(ema := EMA(DECAY)), manager_of()
    manager.eval()
    plain.eval()
    assert manager.history == plain.history
    assert ema.weights == {}


def test_hooks_around_an_evaluation_see_the_training_weights_and_hooks_within_see_the_average() -> None:
    for is_first in (True, False):
        outer, inner = [See("pre_eval"), See("post_eval")], [See("pre_eval_step_epoch"), See("post_eval_step_batch")]
        for each, name in zip([*outer, *inner], "abcd", strict=True):
            each.name = name
        ema = EMA(DECAY)
        manager = manager_of(*([ema, *outer, *inner] if is_first else [*outer, *inner, ema]))
        manager.train()
        assert all(same_bits(each.seen, copied(manager.model)) for each in outer)
        assert all(same_bits(each.seen, ema.weights) for each in inner)


def test_a_failed_evaluation_restores_the_training_weights_bit_for_bit() -> None:
    class Fail(Extension):
        def post_eval_step_batch(self, epoch_num: int) -> None:
            if epoch_num == 2:
                raise RuntimeError("in the last evaluation")

    manager = manager_of(EMA(DECAY), Fail())
    pointers = [each.data_ptr() for each in manager.model.parameters()]
    with pytest.raises(RuntimeError, match="in the last evaluation"):
        manager.train()
    plain = manager_of()
    plain.train()
    assert same_bits(manager.model.state_dict(), plain.model.state_dict())
    assert [each.data_ptr() for each in manager.model.parameters()] == pointers


def test_an_evaluation_within_an_evaluation_uses_the_average_once() -> None:
    class Nested(Extension):
        def __init__(self) -> None:
            self.predictions: list[torch.Tensor] = []

        def post_eval_step_epoch(self, train_manager: TrainManager, model: nn.Module) -> None:
            self.predictions = train_manager.predict(loader())
            self.after = copied(model)

    manager = manager_of(nested := Nested(), ema := EMA(DECAY))
    manager.train()
    assert all(map(torch.equal, nested.predictions, manager.predict(loader())))
    assert same_bits(nested.after, ema.weights)


def test_an_evaluation_between_a_forward_and_a_backward_pass_changes_no_bit() -> None:
    class Evaluate(Extension):
        def post_loss(self, train_manager: TrainManager, mode_name: str, batch_num: int) -> None:
            if mode_name == "train" and batch_num == 3:
                train_manager.eval()

    manager = manager_of(EMA(DECAY), Evaluate())
    manager.train()
    plain = manager_of()
    plain.train()
    assert same_bits(manager.model.state_dict(), plain.model.state_dict())


def test_a_new_manager_gets_the_same_metrics_for_a_finished_training_run(tmp_path: Path) -> None:
    """Contracts E36 and E37: the checkpoint contains the averages, and a standalone evaluation restores them."""
    trained = manager_of(EMA(DECAY), train_dir=tmp_path)
    trained.train()
    last = trained.history["valid/loss"][-1]
    fresh = manager_of(EMA(DECAY), train_dir=tmp_path)
    fresh.eval()
    assert fresh.history["valid/loss"] == [last]
    without = manager_of(train_dir=tmp_path)
    without.eval()
    assert without.history["valid/loss"] != [last]


def test_frozen_parameters_do_not_change() -> None:
    model = Net()
    model.layers[0].requires_grad_(False)  # type: ignore[union-attr]
    before = copied(model)
    manager = manager_of(ema := EMA(DECAY), model=model)
    manager.train()
    assert torch.equal(ema.weights["layers.0.weight"], before["layers.0.weight"])
    assert not torch.equal(ema.weights["layers.4.weight"], before["layers.4.weight"])


def test_tied_weights_have_one_average() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.other.weight = self.one.weight

        def forward(self, batch: Any) -> Any:
            assert self.one.weight.data_ptr() == self.other.weight.data_ptr()
            return self.other(self.one(batch[0]).tanh())[:, :1]

    manager = manager_of(ema := EMA(DECAY), model=Tied())
    manager.train()
    assert list(ema.weights) == ["one.weight"]
    assert manager.model.one.weight is manager.model.other.weight


def test_lazy_parameters_are_averaged_once_they_have_values() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.LazyLinear(1), nn.LazyLinear(1)

        def forward(self, batch: Any) -> Any:
            return self.used(batch[0])

    for first in (True, False):
        manager = manager_of(ema := EMA(DECAY), model=Lazy(), evaluate_first=first, optimizer=lambda p: torch.optim.SGD([*p][:2], 0.2))
        manager.train()
        assert {name: each.shape for name, each in ema.weights.items()} == {"used.weight": (1, 4), "used.bias": (1,)}


def test_the_average_of_a_parameter_that_is_added_later_starts_as_a_copy() -> None:
    class Grow(Extension):
        def post_train_step_batch(self, model: Any, optimizer: Any, step_num: int) -> None:
            if step_num == 7:
                model.layers.add_module("last", nn.Linear(1, 1))
                optimizer.add_param_group({"params": list(model.layers.last.parameters())})

    manager = manager_of(ema := EMA(DECAY), Grow(), see := See("post_optimizer_step"), max_steps=8)
    manager.train()
    assert torch.equal(ema.weights["layers.last.weight"], see.seen["layers.last.weight"])
    assert not torch.equal(ema.weights["layers.0.weight"], see.seen["layers.0.weight"])
    manager.predict(loader())


def test_whole_numbers_and_buffers_are_not_averaged() -> None:
    model = Net()
    model.register_parameter("steps", nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False))
    manager = manager_of(ema := EMA(DECAY), model=model)
    manager.train()
    assert ema.weights.keys() == {name for name, _ in model.named_parameters()} - {"steps"}


def test_copying_to_another_kind_of_model_is_refused_and_changes_nothing() -> None:
    ema = EMA(DECAY)
    with pytest.raises(LoopError, match="EMA has no weights before the first update"):
        ema.copy_to(Net())
    manager_of(ema).train()
    other = nn.Linear(4, 1)
    with pytest.raises(StateError, match=r"this Linear has no parameter `layers.0.weight` of the shape \(8, 4\)"):
        ema.copy_to(other)
    wide = Net()
    wide.layers[4] = nn.Linear(8, 2)
    before = copied(wide)
    with pytest.raises(StateError, match=r"this Net has no parameter `layers.4.weight` of the shape \(1, 8\)"):
        ema.copy_to(wide)
    assert same_bits(before, copied(wide))


@pytest.mark.parametrize("decay", [1, 1.0, -0.1, 2, True, "0.9", None, float("nan"), float("inf")])
def test_bad_arguments_are_refused_at_construction(decay: Any) -> None:
    with pytest.raises(SettingError) as caught:
        EMA(decay)
    assert str(caught.value) == (
        f"`decay` must be a number of at least 0 and below 1, not {shown(decay)}\n"
        "  try     EMA(0.999): a larger decay averages more updates"
    )


def test_attaching_it_to_a_train_test_loop_is_refused() -> None:
    with pytest.raises(UnknownHookError, match=r"`EMA.around_eval` is named like a hook, but there is no stage `eval`"):
        TrainTestLoop(Net(), [LoopComponent(), EMA()], loader(), [])
