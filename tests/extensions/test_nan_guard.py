"""NaNGuard stops at, skips or counts batches whose loss or gradients are not finite."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, LoopComponent, TrainManager, TrainTestLoop
from trainmaster.errors import NonFiniteError, SettingError
from trainmaster.extensions import nan_guard
from trainmaster.extensions.gradient_accumulation import GradientAccumulation
from trainmaster.extensions.loss_plot import LossPlot
from trainmaster.extensions.nan_guard import NaNGuard, has_finite_grads
from trainmaster.loop.rng import get_rng
from trainmaster.loop.train_loss import TrainLoss
from trainmaster.testing import ExtensionContract

NAN = float("nan")


class TestNonFiniteStop(ExtensionContract):
    def make(self) -> NaNGuard:
        return NaNGuard()


class TestNonFiniteSkip(ExtensionContract):
    def make(self) -> NaNGuard:
        return NaNGuard("skip")


class TestNonFiniteContinue(ExtensionContract):
    def make(self) -> NaNGuard:
        return NaNGuard("continue", every=3)


class Log(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.log()


class Net(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), *layers, nn.Linear(4, 1))

    def forward(self, batch: Any) -> Any:
        return self.layers(batch)


def loss(batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
    return prediction.pow(2).mean()


def root(batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
    """Return a loss whose gradient is infinite if the prediction is 0."""
    return prediction.abs().sqrt().mean()


def batches(num: int = 6, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 3, generator=generator) for _ in range(num)]


def bad() -> torch.Tensor:
    batch = torch.ones(4, 3)
    batch[2, 1] = NAN
    return batch


def trained(data: Any, *extensions: Any, model: nn.Module | None = None, loss: Any = loss, **more: Any) -> TrainManager:
    if model is None:
        torch.manual_seed(0)
        model = Net()
    tm = TrainManager(model, loss, 1, data, optimizer=_sgd, extensions=extensions, device="cpu", evaluate_first=False, **more)
    tm.train()
    return tm


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def weights(tm: TrainManager) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in tm.model.state_dict().items()}


def is_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# stop


def test_an_error_for_non_finite_data_names_stage_epoch_batch_and_step() -> None:
    data = [*batches(2), bad(), *batches(2)]
    with pytest.raises(NonFiniteError) as caught:
        trained(data, NaNGuard())
    assert str(caught.value).split("\n") == [
        "the loss is nan",
        "  where   stage train_step_batch, epoch 0, batch 2, step 2",
        "  data    1 of 12 values of `batch` (row 2)",
        "  module  `layers.0` (Linear) is the first whose output is not finite: 4 of 16 values; its input is not finite either",
        "  try     remove or repair the samples of this batch that are not finite",
    ]
    assert "in `NaNGuard.pre_backward` (extension `nan_guard`" in caught.value.__notes__[0]


def test_the_first_rows_with_bad_values_are_listed() -> None:
    two, many = torch.ones(10, 3, 2), torch.ones(10, 3, 2)
    two[[3, 7], 1, 1] = NAN
    many[2:] = NAN

    def error_for(batch: Any) -> str:
        with pytest.raises(NonFiniteError) as caught:
            trained([batch], NaNGuard(), model=nn.Linear(2, 1), loss=lambda batch, prediction: prediction.mean())
        return caught.value.rows["data"]

    assert error_for(two) == "2 of 60 values of `batch` (rows 3, 7)"
    assert error_for(many) == "48 of 60 values of `batch` (rows 2, 3, 4, 5, 6 and 3 more)"


def test_the_first_module_whose_output_is_not_finite_is_named() -> None:
    torch.manual_seed(0)
    with pytest.raises(NonFiniteError) as caught:
        trained(batches(), NaNGuard(), model=Net(Log()))
    assert caught.value.rows["module"].startswith("`layers.2` (Log) is the first whose output is not finite: ")
    look = "look there for log(0), exp of large numbers, a division by 0, a softmax over values that are all masked"
    assert caught.value.rows["hint"] == look  # before the first update, the learning rate cannot be the cause


class Attention(nn.Module):
    """Has a linear layer, whose input is NaN if the first value of a sample is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(3, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros_like(inputs).masked_fill(inputs[:, :1] == 0, -math.inf)
        return self.out(scores.softmax(1) * inputs)  # type: ignore[no-any-return]


def test_if_the_input_of_a_module_is_already_non_finite_the_code_of_its_caller_is_named() -> None:
    with pytest.raises(NonFiniteError) as caught:
        trained([*batches(1), torch.zeros(4, 3)], NaNGuard(), model=nn.Sequential(Attention(), nn.Linear(3, 1)))
    cause = "the code of `0` (Attention) before it calls `0.out` (Sequential), whose input is already not finite"
    assert caught.value.rows["module"] == cause
    assert caught.value.rows["hint"].endswith("; otherwise lower the learning rate, clip the gradients")


def test_an_input_with_minus_inf_may_be_a_mask() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.softmax = nn.Softmax(1)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.softmax(torch.full_like(inputs, -math.inf)) * inputs  # type: ignore[no-any-return]

    with pytest.raises(NonFiniteError) as caught:
        trained(batches(), NaNGuard(), model=nn.Sequential(Masked(), nn.Linear(3, 1)))
    assert caught.value.rows["module"] == "`0.softmax` (Softmax) is the first whose output is not finite: 12 of 12 values"


@pytest.mark.parametrize("policy", ["skip", "continue"])
def test_the_module_is_also_named_if_training_goes_on(policy: str) -> None:
    with pytest.warns(UserWarning, match=r"counted as `non_finite/...`; `layers.0` \(Linear\) is the first whose output is not finite"):
        trained([*batches(1), bad(), *batches(1)], NaNGuard(policy))


@pytest.mark.filterwarnings("ignore:the loss is nan in stage")
def test_the_search_does_not_break_the_backward_pass_of_a_model_that_writes_to_its_batch() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    tm = trained([*batches(2), bad(), *batches(2)], NaNGuard("skip"), model=model)
    assert tm.step_num == 4


def test_only_the_first_skipped_batches_are_searched() -> None:
    class Reports(Extension):
        def __init__(self) -> None:
            self.has_module: list[bool] = []

        def post_train_step_batch(self, fixtures: Any) -> None:
            self.has_module.append("module" in fixtures["non_finite"].rows)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained([bad()] * 5, NaNGuard("continue"), reports := Reports())
    assert reports.has_module == [True, True, True, False, False]


def test_the_search_in_a_skipped_batch_changes_neither_weights_nor_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome() -> tuple[Any, Any]:
        torch.manual_seed(0)
        with pytest.warns(UserWarning, match="not finite|nan"):
            tm = trained([*batches(2), bad(), *batches(2)], NaNGuard("skip"), model=Net(nn.Dropout(0.5)))
        return [each.clone() for each in tm.model.state_dict().values()], torch.get_rng_state()

    with_search = outcome()
    monkeypatch.setattr(nan_guard, "_MAX_SEARCHES", 0)
    without = outcome()
    assert all(torch.equal(one, other) for one, other in zip(with_search[0], without[0], strict=True))
    assert torch.equal(with_search[1], without[1])


def test_gradients_of_earlier_batches_are_not_listed_for_a_non_finite_loss() -> None:
    class Reports(Extension):
        def post_train_step_batch(self, fixtures: Any) -> None:
            self.last = fixtures["non_finite"]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained([bad()] * 2, NaNGuard("continue"), reports := Reports())
    assert "grads" not in reports.last.rows


def test_the_loss_function_is_named_if_the_prediction_is_finite() -> None:
    with pytest.raises(NonFiniteError) as caught:
        trained(batches(), NaNGuard(), loss=lambda batch, prediction: prediction.sum() / torch.zeros(()))
    assert caught.value.rows["module"] == "none: all outputs are finite, so the loss function is the cause"


def test_weights_that_are_not_finite_are_named() -> None:
    class Break(Extension):
        def post_optimizer_step(self, model: Any, step_num: int) -> None:
            if step_num == 3:
                with torch.no_grad():
                    model.layers[0].weight[0, 1] = float("inf")

    with pytest.raises(NonFiniteError) as caught:
        trained(batches(), Break(), NaNGuard())
    assert caught.value.rows["weights"] == "1 of 12 values of `layers.0.weight`"
    assert caught.value.rows["hint"].startswith("an earlier step broke the weights")


def test_non_finite_gradients_are_found_before_the_update_even_if_the_loss_is_finite() -> None:
    model = Net()
    nn.init.zeros_(model.layers[-1].weight)  # type: ignore[arg-type]  # the last of the layers is linear
    nn.init.zeros_(model.layers[-1].bias)  # type: ignore[arg-type]
    before = {name: value.clone() for name, value in model.named_parameters()}
    with pytest.raises(NonFiniteError) as caught:
        trained(batches(), NaNGuard(), model=model, loss=root)
    assert caught.value.fact == "non-finite gradients with a finite loss"
    assert "`layers.2.weight`" in caught.value.rows["grads"]
    last = "the gradient of `layers.2.bias`, the last parameter, is not finite: look at the code after it, and at the loss"
    assert caught.value.rows["module"] == last
    assert caught.value.rows["hint"].startswith("look there for sqrt(0)")
    assert is_same(before, dict(model.named_parameters()))


def test_the_module_between_finite_and_non_finite_gradients_is_named() -> None:
    class Length(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs.square().sum(1, keepdim=True).sqrt()

    model = nn.Sequential(nn.Linear(3, 4, bias=False), Length(), nn.Linear(1, 1))
    with pytest.raises(NonFiniteError) as caught:
        trained([torch.zeros(4, 3)], NaNGuard(), model=model, loss=lambda batch, prediction: prediction.mean())
    assert caught.value.rows["module"] == "finite in `2.weight`, not in `0.weight`: look at `1` (Length)"


def test_large_gradients_whose_squares_overflow_are_finite() -> None:
    tm = trained(batches(2), NaNGuard(), loss=lambda batch, prediction: prediction.sum() * 1e25, max_steps=1)
    assert tm.step_num == 1


def test_gradients_of_any_kind_can_be_checked() -> None:
    class Mixed(nn.Module):
        """A model with sparse rows, two precisions, and an empty parameter."""

        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(5, 3, sparse=True)
            self.fine, self.empty = nn.Parameter(torch.ones(3, dtype=torch.float64)), nn.Parameter(torch.ones(0))

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return (self.rows(torch.tensor([1, 1, 3])) * self.fine).sum() + self.empty.sum()

    watcher, model = NaNGuard(), Mixed()
    tm = TrainManager(
        model, lambda _, out: out, 1, batches(1), optimizer=lambda p: torch.optim.SGD(p, 0.1), extensions=[watcher], device="cpu"
    )
    tm.train()
    assert tm.step_num == 1
    assert has_finite_grads(model.parameters())
    assert model.rows.weight.grad is not None
    model.rows.weight.grad *= float("inf")
    assert not has_finite_grads(model.parameters())


def test_the_search_does_not_change_random_numbers_buffers_and_modes() -> None:
    class Look(Extension):
        """Records the state right before NaNGuard searches, in the same hook."""

        def pre_backward(self, model: nn.Module) -> None:
            self.rng, self.state = get_rng(), {name: value.clone() for name, value in model.state_dict().items()}

    look, model = Look(), Net(nn.Dropout(0.5))
    with pytest.raises(NonFiniteError):
        trained([*batches(2), bad()], look, NaNGuard(), model=model)
    now = get_rng()
    assert torch.equal(now["torch"], look.rng["torch"])
    assert (now["python"], now["numpy"]) == (look.rng["python"], look.rng["numpy"])
    state = model.state_dict()
    assert all(torch.equal(state[name], value) or bool(value.isnan().any()) for name, value in look.state.items())
    assert int(state["layers.1.num_batches_tracked"]) == 3


def test_a_loss_with_a_wrong_shape_still_raises_its_own_error() -> None:
    from trainmaster.errors import LossError

    with pytest.raises(LossError, match=r"the loss has the shape \(4, 1\)"):
        trained(batches(), NaNGuard(), loss=lambda batch, prediction: prediction)


# skip


@pytest.mark.filterwarnings("ignore:the loss is nan in stage")
def test_a_skipped_batch_does_not_change_weights_and_buffers() -> None:
    good = batches()
    with_bad = trained([*good[:3], bad(), *good[3:]], watcher := NaNGuard("skip"))
    without = trained(good, NaNGuard("skip"))
    assert is_same(weights(with_bad), weights(without))
    assert with_bad.step_num == without.step_num == 6
    assert (watcher.num_losses, watcher.num_grads, watcher.num_skipped) == (1, 0, 1)


@pytest.mark.filterwarnings("ignore:the loss is nan in stage")
@pytest.mark.parametrize("place", range(6))
def test_with_accumulation_only_the_bad_batch_is_skipped(place: int) -> None:
    """There is an update after every third batch, which uses only the good ones of these three batches."""

    class EveryThird(Extension):
        def pre_train_step_batch(self, fixtures: Any, batch_num: int) -> None:
            fixtures.modify("is_update", batch_num % 3 == 2)

    class DropAt(Extension):
        """Skips a bad batch in a different way, for comparison: its loss contributes no gradient."""

        def post_loss(self, fixtures: Any, batch_num: int, loss: torch.Tensor) -> None:
            if batch_num == place:
                fixtures.modify("loss", loss * 0)

    good = batches()
    with_bad = [bad() if number == place else each for number, each in enumerate(good)]
    no_norm = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    start = {name: value.clone() for name, value in no_norm.state_dict().items()}
    skipped = trained(with_bad, EveryThird(), NaNGuard("skip"), model=no_norm)
    found = weights(skipped)
    no_norm.load_state_dict(start)
    wanted = trained(good, EveryThird(), DropAt(), model=no_norm)
    assert is_same(found, weights(wanted))
    assert skipped.step_num == wanted.step_num == 2


@pytest.mark.filterwarnings("ignore:the gradients are not finite in stage", "ignore:non-finite gradients with a finite loss")
def test_a_batch_with_a_finite_loss_and_non_finite_gradients_is_skipped() -> None:
    def loss_of(batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
        return root(batch, prediction * 0) if batch[0, 0] == 1 else loss(batch, prediction)

    good = batches()
    with_bad = trained([*good[:3], torch.ones(4, 3), *good[3:]], watcher := NaNGuard("skip"), loss=loss_of)
    assert is_same(weights(with_bad), weights(trained(good, loss=loss_of)))
    assert (watcher.num_losses, watcher.num_grads, watcher.num_skipped) == (0, 1, 1)


@pytest.mark.filterwarnings("ignore:the loss is nan in stage")
def test_with_non_finite_weights_skip_raises_an_error() -> None:
    model = Net()
    with torch.no_grad():
        model.layers[0].weight[0, 0] = NAN  # type: ignore[index, union-attr]  # the first of the layers is linear
    with pytest.raises(NonFiniteError, match=r"1 of 12 values of `layers.0.weight`"):
        trained(batches(), NaNGuard("skip"), model=model)


@pytest.mark.filterwarnings("ignore:the loss is nan in stage")
@pytest.mark.parametrize("extensions", [[], [LossPlot("epochs")]], ids=["by default", "LossPlot"])
def test_the_mean_loss_of_an_epoch_leaves_out_skipped_batches(extensions: list[Any]) -> None:
    good = batches()
    with_bad = trained([*good[:3], bad(), *good[3:], bad()], NaNGuard("skip"), *extensions)
    assert with_bad.history["train/loss"] == trained(good).history["train/loss"]
    counter = with_bad.extensions["train_loss"]
    assert isinstance(counter, TrainLoss)
    assert counter.size_of_epoch() == (8, 32)


@pytest.mark.filterwarnings("ignore:non-finite gradients with a finite loss")
def test_the_mean_loss_leaves_out_a_batch_that_was_skipped_because_of_its_gradients() -> None:
    def loss_of(batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
        return root(batch, prediction * 0) + 100 if batch[0, 0] == 1 else loss(batch, prediction)

    good = batches()
    with_bad = trained([*good[:3], torch.ones(4, 3), *good[3:]], NaNGuard("skip"), loss=loss_of)
    assert with_bad.history["train/loss"] == trained(good, loss=loss_of).history["train/loss"]


@pytest.mark.filterwarnings("ignore:the loss is nan in stage")
@pytest.mark.parametrize("stop_after", range(5))
def test_the_mean_loss_is_the_same_after_a_resume_in_the_middle_of_an_epoch_with_a_skipped_batch(stop_after: int) -> None:
    class Stop(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, batch_num: int) -> None:
            if batch_num == stop_after:
                train_manager.stop()

    good = batches()
    data = [*good[:2], bad(), *good[2:]]
    first = trained(data, NaNGuard("skip"), Stop())
    assert "train/loss" not in first.history
    second = TrainManager(Net(), loss, 1, data, optimizer=_sgd, extensions=[NaNGuard("skip")], device="cpu", evaluate_first=False)
    second.restore(first.capture())
    second.train()
    assert second.history["train/loss"] == trained(good).history["train/loss"]


def test_a_batch_that_is_only_counted_is_part_of_the_mean_loss() -> None:
    with pytest.warns(UserWarning, match="trained on"):
        tm = trained([batches()[0], bad()], NaNGuard("continue"))
    assert math.isnan(tm.history["train/loss"][0][1])


def test_skipped_batches_are_recorded_and_cause_one_warning() -> None:
    with pytest.warns(UserWarning, match="the loss is nan in stage train_step_batch, epoch 0, batch 1, step 1; such batches are") as warned:
        tm = trained([batches()[0], bad(), batches()[1], bad()], NaNGuard("skip"))
    assert len(warned) == 1
    assert tm.history["non_finite/skipped"] == [(1, 1.0), (2, 2.0)]
    assert tm.history["non_finite/losses"] == [(1, 1.0), (2, 2.0)]


# continue


def test_continue_counts_and_warns_once() -> None:
    with pytest.warns(UserWarning, match="such batches are trained on, and counted as `non_finite/...`") as warned:
        tm = trained([*batches(2), bad(), *batches(2)], watcher := NaNGuard("continue"))
    assert len(warned) == 1
    assert tm.step_num == 5
    assert watcher.num_losses == 3  # once the weights are not finite, no loss is finite
    assert [value for _, value in tm.history["non_finite/losses"]] == [1.0, 2.0, 3.0]
    assert watcher.num_skipped == 0


def test_every_nth_batch_is_checked() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained([bad()] * 7, watcher := NaNGuard("continue", every=3))
    assert watcher.num_losses == 3  # batches 0, 3 and 6


def test_with_accumulation_the_update_after_a_checked_batch_is_checked() -> None:
    """Batches 0, 2 and 4 are checked, but only batches 1, 3 and 5 have an update."""
    model = Net()
    nn.init.zeros_(model.layers[-1].weight)  # type: ignore[arg-type]
    nn.init.zeros_(model.layers[-1].bias)  # type: ignore[arg-type]
    with pytest.raises(NonFiniteError, match="non-finite gradients with a finite loss"):
        trained(batches(), GradientAccumulation(2), NaNGuard(every=2), model=model, loss=root)


def test_a_skipped_batch_does_not_change_accumulated_gradients_if_the_model_zeroes_them_in_place() -> None:
    class InPlace(Net):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none=False)

    def weights_of(kind: type[Net]) -> Any:
        torch.manual_seed(0)
        return trained([batches()[0], bad()], GradientAccumulation(2), NaNGuard("skip"), model=kind()).model.state_dict()

    with pytest.warns(UserWarning, match="such batches are skipped"):
        assert is_same(weights_of(InPlace), weights_of(Net))


def test_gradients_are_not_checked_on_request() -> None:
    model = Net()
    nn.init.zeros_(model.layers[-1].weight)  # type: ignore[arg-type]
    nn.init.zeros_(model.layers[-1].bias)  # type: ignore[arg-type]
    tm = trained(batches(1), NaNGuard(checks_grads=False), model=model, loss=root)
    assert tm.step_num == 1


@pytest.mark.parametrize("policy", ["stop", "skip", "continue"])
def test_training_without_bad_batches_ends_with_the_same_weights(policy: str) -> None:
    assert is_same(weights(trained(batches(), NaNGuard(policy))), weights(trained(batches())))


# TrainTestLoop


class Steps(LoopComponent):
    def on_train_begin(self, loop: Any) -> None:
        loop.optimizer = _sgd(loop.model.parameters())

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


def test_it_stops_a_train_test_loop() -> None:
    loop = TrainTestLoop(Net(), [Steps(), NaNGuard()], [*batches(2), bad()], [])
    with pytest.raises(NonFiniteError, match="the loss is nan\n  where   stage train_step_batch, epoch 0, batch 2, step 2"):
        loop.train(1)


@pytest.mark.filterwarnings("ignore:the loss is nan in stage")
def test_it_skips_in_a_train_test_loop() -> None:
    def trained_on(data: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        loop = TrainTestLoop(Net(), [Steps(), NaNGuard("skip")], data, [])
        loop.train(1)
        return loop.model.state_dict()

    good = batches()
    assert is_same(trained_on([*good[:3], bad(), *good[3:]]), trained_on(good))


# bad arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "skp"}, '`policy` must be "stop", "skip" or "continue", not \'skp\' (str)\n  try     did you mean `skip`?'),
        ({"policy": None}, '`policy` must be "stop", "skip" or "continue", not None (NoneType)'),
        ({"every": 0}, "`every` must be a whole number of at least 1, not 0 (int)"),
        ({"every": True}, "`every` must be a whole number of at least 1, not True (bool)"),
        ({"every": 1.5}, "`every` must be a whole number of at least 1, not 1.5 (float)"),
        ({"policy": "skip", "every": 2}, "every=2 does not check all batches"),
    ],
)
def test_bad_arguments_are_refused_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        NaNGuard(**arguments)
    assert str(caught.value).startswith(message)


def test_an_epoch_in_which_every_batch_is_skipped_is_an_error() -> None:
    bad = [(torch.full((4, 6), torch.nan), torch.zeros(4, dtype=torch.int64))] * 3
    manager = ExtensionContract().loop(NaNGuard("skip"))
    manager.train_data, manager.epochs, manager.max_steps = bad, None, 10
    with pytest.warns(UserWarning, match="the loss is nan"), pytest.raises(NonFiniteError, match="every batch of an epoch was skipped"):
        manager.train()


def test_a_guard_that_is_attached_during_an_epoch_checks_gradients_immediately() -> None:
    class Attach(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num == 2 and "late" not in train_manager.extensions:
                train_manager.add_extension("late", NaNGuard("stop"))

    class Spoil(Extension):
        def post_backward(self, model: torch.nn.Module, step_num: int) -> None:
            if step_num == 4:
                next(model.parameters()).grad.fill_(torch.nan)

    manager = ExtensionContract().loop(Spoil(), Attach())
    with pytest.raises(NonFiniteError, match="non-finite gradients with a finite loss"):
        manager.train()


def test_training_resumes_with_and_without_it() -> None:
    for before, after in (([], [NaNGuard()]), ([NaNGuard()], [])):
        manager = ExtensionContract().loop(*before)
        manager.train()
        again = ExtensionContract().loop(*after)
        again.restore(manager.capture())
        again.epochs = 4
        again.train()
        assert again.epoch_num == 4
