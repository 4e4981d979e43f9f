"""Statistics of module outputs: their spread, zeros, dead units and saturation."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster.errors import SettingError, shown
from trainmaster.extensions.activation_stats import ActivationStats, silent_units
from trainmaster.figures.panels import HeatMap
from trainmaster.loop import LoopComponent, TrainManager, TrainTestLoop
from trainmaster.loop.batches import first_tensor
from trainmaster.stages import Extension, always
from trainmaster.testing import ExtensionContract


class Loop(TrainManager):
    def model_forward(self, batch: Any) -> Any:
        return self.model(batch[0])


def mse(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return (prediction - batch[1]).pow(2).mean()


def data(num_batches: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 3, generator=generator), torch.randn(4, 1, generator=generator)) for _ in range(num_batches)]


def mlp(activation: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), activation or nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def trained(*extensions: object, epochs: int = 2, model: nn.Module | None = None, **settings: Any) -> TrainManager:
    torch.manual_seed(3)
    train_data, lr = settings.pop("train_data", None) or data(), settings.pop("lr", 0.01)
    manager = Loop(
        model or mlp(),
        settings.pop("loss", mse),
        epochs,
        train_data,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
        extensions=list(extensions),
        device="cpu",
        **settings,
    )
    manager.train()
    return manager


def num_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


class Capture(Extension):
    """Collects the outputs of one module in all training batches, using its own forward hook."""

    def __init__(self, name: str) -> None:
        self.name, self.outputs = "capture", []  # type: ignore[var-annotated]
        self.module = name

    def pre_train(self, model: nn.Module) -> None:
        model.get_submodule(self.module).register_forward_hook(lambda _, __, output: self.outputs.append(output.detach().clone()))


class TestActivationStats(ExtensionContract):
    def make(self) -> object:
        return ActivationStats(every=2)


# Recorded statistics.


def test_mean_and_std_of_an_output_are_recorded_for_the_measured_batches() -> None:
    capture = Capture("0")
    tm = trained(ActivationStats(every=4), capture)
    looks = [capture.outputs[number - 1].double() for number in (4, 8, 12)]
    means = [(4, looks[0].mean()), (12, (looks[1].mean() + looks[2].mean()) / 2)]
    stds = [(4, looks[0].std(correction=0)), (12, (looks[1].std(correction=0) + looks[2].std(correction=0)) / 2)]
    assert tm.history["activations/0/mean"] == [(step, pytest.approx(value.item(), abs=1e-6)) for step, value in means]
    assert tm.history["activations/0/std"] == [(step, pytest.approx(value.item(), abs=1e-6)) for step, value in stds]


def test_the_share_of_zeros_counts_exact_zeros() -> None:
    capture = Capture("1")
    tm = trained(ActivationStats(every=6), capture, epochs=1)
    wanted = (capture.outputs[5] == 0).double().mean().item()
    assert 0.1 < wanted < 0.9
    assert tm.history["activations/1/zeros"] == [(6, pytest.approx(wanted, abs=1e-6))]
    assert tm.history["activations/0/zeros"] == [(6, 0.0)]


def test_all_modules_without_children_are_measured() -> None:
    tm = trained(ActivationStats(every=1), epochs=1, model=nn.Sequential(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), nn.Linear(2, 1)))
    assert {tag.split("/")[1] for tag in tm.history if tag.startswith("activations")} == {"0.0", "0.1", "1"}


def test_a_model_that_is_one_layer_is_named_after_its_class() -> None:
    tm = trained(ActivationStats(every=1), epochs=1, model=nn.Linear(3, 1))
    assert "activations/Linear/std" in tm.history


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ([nn.Linear], {"0", "3"}),
        (nn.Linear, {"0", "3"}),
        ("1", {"1"}),
        (["3", nn.ReLU], {"1", "3"}),
    ],
)
def test_modules_are_chosen_by_name_and_by_class(modules: Any, found: set[str]) -> None:
    tm = trained(ActivationStats(modules, every=1), epochs=1)
    assert {tag.split("/")[1] for tag in tm.history if tag.startswith("activations")} == found


def test_a_module_that_is_never_called_is_left_out() -> None:
    model = mlp()
    model.forward = lambda inputs: model[3](model[0](inputs))  # type: ignore[method-assign]
    tm = trained(ActivationStats(every=1), epochs=1, model=model)
    assert {tag.split("/")[1] for tag in tm.history if tag.startswith("activations")} == {"0", "3"}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 1)

    def forward(self, inputs: torch.Tensor) -> Any:
        states, _ = self.rnn(inputs[:, None].repeat(1, 4, 1))
        return self.last(states[:, -1])


def test_the_first_tensor_of_a_tuple_is_measured() -> None:
    torch.manual_seed(0)
    tm = trained(ActivationStats(every=1), epochs=1, model=Recurrent())
    assert 0 < tm.history["activations/rnn/std"][0][1] < 1


def test_the_first_tensor_is_found_in_any_nesting() -> None:
    tensor = torch.ones(2)
    assert first_tensor({"a": None, "b": [3, (tensor, torch.zeros(1))]}) is tensor
    assert first_tensor(["no", 3]) is None


def test_the_statistics_of_a_module_that_is_called_twice_are_the_mean_of_both_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, inputs: torch.Tensor) -> Any:
            self.inner = self.layer(inputs)
            self.outer = self.layer(self.inner)
            return self.last(self.outer)

    torch.manual_seed(0)
    model = Twice()
    tm = trained(ActivationStats(["layer"], every=1), epochs=1, model=model, train_data=data(1))
    wanted = (model.inner.mean() + model.outer.mean()).item() / 2
    assert tm.history["activations/layer/mean"] == [(1, pytest.approx(wanted, abs=1e-6))]


def test_evaluation_batches_are_not_measured() -> None:
    capture = Capture("0")
    torch.manual_seed(3)
    evaluated = trained(ActivationStats(every=4), capture, eval_data={"valid": data(5)})
    plain = trained(ActivationStats(every=4))
    assert len(capture.outputs) == 12 + 3 * 5
    tags = [tag for tag in plain.history if tag.startswith("activations")]
    assert {tag: evaluated.history[tag] for tag in tags} == {tag: plain.history[tag] for tag in tags}


# Dead, saturated, not finite.


def dead_layer() -> nn.Sequential:
    """Return a ReLU with eight units, six of which are always 0."""
    model = mlp()
    with torch.no_grad():
        model[0].bias[:6] = -1000.0
        model[0].bias[6:] = 1000.0
    return model


def test_a_module_is_dead_if_most_of_its_units_never_fire() -> None:
    view = ActivationStats(every=2)
    tm = trained(view, model=dead_layer(), lr=1e-9)
    assert view.dead() == ["1", "2"]
    assert tm.history["activations/1/dead"][-1][1] == 0.75


def test_units_that_fire_for_a_single_sample_are_not_dead() -> None:
    view = ActivationStats(every=1)
    trained(view)
    assert view.dead() == []


def test_units_that_are_zero_in_each_batch_but_not_in_all_are_not_dead() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(3, 1))
    batches = [(torch.eye(3)[[place] * 4], torch.zeros(4, 1)) for place in range(3)]
    view = ActivationStats(["0"], every=1)
    tm = trained(view, epochs=1, model=model, train_data=batches)
    assert tm.history["activations/0/dead"] == [(3, pytest.approx(2 / 3))]
    assert view.dead() == []


@pytest.mark.parametrize(
    ("module", "shape", "num_units"),
    [
        (nn.ReLU(), (4, 7), 7),
        (nn.ReLU(), (4, 7, 5, 5), 7),
        (nn.ReLU(), (4, 9, 7), 7),
        (nn.Conv1d(1, 1, 1), (4, 7, 9), 7),
        (nn.ReLU(), (4,), 1),
    ],
)
def test_units_are_channels_or_the_features_of_tokens(module: nn.Module, shape: tuple[int, ...], num_units: int) -> None:
    assert silent_units(module, torch.zeros(shape)).tolist() == [True] * num_units


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Tanh(), nn.Hardtanh(), nn.Hardsigmoid()])
def test_outputs_near_a_bound_are_saturated(activation: nn.Module) -> None:
    model = mlp(activation)
    with torch.no_grad():
        model[0].weight.mul_(0.01)
        model[0].bias[:] = torch.tensor([100.0, 100.0, -100.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    tm = trained(ActivationStats(every=6), epochs=1, model=model, lr=1e-9)
    assert tm.history["activations/1/saturated"] == [(6, 0.375)]
    assert "activations/0/saturated" not in tm.history


def test_outputs_that_are_not_finite_are_counted() -> None:
    class Spoil(nn.Module):
        def forward(self, inputs: torch.Tensor) -> Any:
            outputs = inputs.clone()
            outputs[:, 0] = math.inf
            return outputs

    model = nn.Sequential(nn.Linear(3, 4), Spoil())
    view = ActivationStats(every=6)
    tm = trained(view, epochs=1, model=model, loss=lambda batch, prediction: prediction[:, 1:].mean())
    assert tm.history["activations/1/nonfinite"] == [(6, 0.25)]
    assert tm.history["activations/0/nonfinite"] == [(6, 0.0)]
    assert "share of outputs that are not finite" in [panel.title for panel in view.panels()]


# The model does not change.


def test_hooks_are_registered_only_for_measured_batches() -> None:
    found: list[tuple[int, int]] = []

    class Look(Extension):
        def post_loss(self, model: nn.Module) -> None:
            found[-1] = (found[-1][0], num_hooks(model))

    class Net(nn.Sequential):
        def forward(self, inputs: torch.Tensor) -> Any:
            if torch.is_grad_enabled():
                found.append((num_hooks(self), -1))
            return super().forward(inputs)

    trained(ActivationStats(every=3), Look(), epochs=1, model=Net(*mlp()))
    assert [within for within, _ in found] == [0, 0, 4, 0, 0, 4]
    assert {after for _, after in found} == {0}


@pytest.mark.parametrize("where", ["forward", "pre_hook"])
def test_no_hook_is_left_after_an_error(where: str) -> None:
    left: list[int] = []

    class Fail(Extension):
        def pre_forward(self) -> None:
            if where == "pre_hook":
                raise RuntimeError("on purpose")

        @always
        def post_train_step_batch(self, model: nn.Module) -> None:
            left.append(num_hooks(model))

    class Net(nn.Sequential):
        def forward(self, inputs: torch.Tensor) -> Any:
            outputs = super().forward(inputs)
            if where == "forward" and torch.is_grad_enabled():
                raise RuntimeError("on purpose")
            return outputs

    model, view = Net(*mlp()), ActivationStats(every=1)
    with pytest.raises(RuntimeError, match="on purpose"):
        trained(view, Fail(), model=model)
    assert [*left, num_hooks(model)] == [0, 0]
    assert view.panels() == []


def test_a_model_copied_during_training_has_no_hooks() -> None:
    copies: list[nn.Module] = []

    class Copy(Extension):
        def post_train_step_batch(self, model: nn.Module) -> None:
            copies.append(copy.deepcopy(model))

    trained(ActivationStats(every=1), Copy(), epochs=1)
    assert [num_hooks(model) for model in copies] == [0] * 6


def test_adding_it_does_not_change_the_weights(tmp_path: Path) -> None:
    plain, watched = trained(), trained(ActivationStats(every=1), train_dir=tmp_path)
    for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


# Figures.


def test_the_figure_has_spread_and_zeros_by_module_and_time() -> None:
    view = ActivationStats(every=4)
    trained(view)
    spread, zeros = view.panels()
    assert isinstance(spread, HeatMap)
    assert isinstance(zeros, HeatMap)
    assert (spread.title, spread.is_log, zeros.title, zeros.is_log) == ("standard deviation of outputs", True, "share of zeros", False)
    assert list(spread.rows) == list(zeros.rows) == ["0 Linear", "1 ReLU", "2 Dropout", "3 Linear"]
    assert list(spread.xs) == [4, 8, 12]


def test_dead_modules_are_marked_in_the_figure() -> None:
    view = ActivationStats(every=2)
    trained(view, model=dead_layer(), lr=1e-9)
    zeros = view.panels()[1]
    assert isinstance(zeros, HeatMap)
    assert zeros.marks == {"1 ReLU": "dead", "2 Dropout": "dead"}


def test_figures_are_written_to_plots_in_train_dir(tmp_path: Path) -> None:
    trained(ActivationStats(every=2), train_dir=tmp_path)
    assert (tmp_path / "plots" / "activations.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "plots" / "activations.html").exists()


def test_it_works_in_a_train_test_loop() -> None:
    class Work(LoopComponent):
        def on_train_begin(self, loop: Any) -> None:
            self.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.01)

        def on_forward_pass(self, loop: Any) -> None:
            loop.prediction = loop.model(loop.batch[0])

        def on_backward_pass(self, loop: Any) -> None:
            self.optimizer.zero_grad()
            mse(loop.batch, loop.prediction).backward()

        def on_optim_step(self, loop: Any) -> None:
            self.optimizer.step()

    view = ActivationStats(every=4)
    TrainTestLoop(mlp(), [Work(), view], data(), data(1)).train(2)
    spread = view.panels()[0]
    assert isinstance(spread, HeatMap)
    assert list(spread.xs) == [4, 8, 12]


# Invalid arguments.


@pytest.mark.parametrize("every", [0, -3, 2.5, "all", None, True])
def test_every_must_be_a_positive_integer(every: Any) -> None:
    with pytest.raises(SettingError) as caught:
        ActivationStats(every=every)
    assert str(caught.value) == f"`every` must be a whole number of at least 1, not {shown(every)}\n  try     ActivationStats(every=10)"


@pytest.mark.parametrize(("modules", "wrong"), [(3, "3"), ([nn.ReLU()], "ReLU()"), ([int], "<class 'int'>"), ([nn.ReLU, None], "None")])
def test_modules_that_are_neither_names_nor_classes_are_refused(modules: Any, wrong: str) -> None:
    with pytest.raises(SettingError) as caught:
        ActivationStats(modules)
    assert str(caught.value) == (
        f'`modules` must be names or classes of modules, not {wrong}\n  try     ActivationStats(["encoder", nn.ReLU])'
    )


def test_an_empty_list_of_modules_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^`modules` is empty, so nothing would be measured\n"):
        ActivationStats([])


def test_a_name_that_the_model_does_not_have_is_refused_before_the_first_batch() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(3, 1)

        def forward(self, inputs: torch.Tensor) -> Any:
            raise AssertionError("a batch")

    with pytest.raises(SettingError) as caught:
        trained(ActivationStats(["encodr"]), model=Net())
    assert str(caught.value) == (
        "`modules` contains `encodr`, but the model has no such module\n  where   Net\n  try     did you mean `encoder`?"
    )


def test_a_class_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^`modules` contains Sigmoid, but the model has no such module\n"):
        trained(ActivationStats(nn.Sigmoid))
