"""UpdateRatio records the size of updates relative to the size of the weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster.errors import SettingError, shown
from trainmaster.extensions.layer_stats import MAX_WAITING
from trainmaster.extensions.update_ratio import UpdateRatio
from trainmaster.figures.panels import HeatMap, Lines
from trainmaster.loop import LoopComponent, TrainManager, TrainTestLoop
from trainmaster.stages import Extension
from trainmaster.testing import ExtensionContract


class Loop(TrainManager):
    def model_forward(self, batch: Any) -> Any:
        return self.model(batch[0])


def mse(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return (prediction - batch[1]).pow(2).mean()


def data(num_batches: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 3, generator=generator), torch.randn(4, 1, generator=generator)) for _ in range(num_batches)]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=0.01)


def trained(*extensions: object, epochs: int = 3, model: nn.Module | None = None, **settings: Any) -> TrainManager:
    train_data = settings.pop("train_data", None) or data()
    manager = Loop(model or mlp(), mse, epochs, train_data, optimizer=sgd, extensions=list(extensions), device="cpu", **settings)
    manager.train()
    return manager


class ByHand(Extension):
    """Computes the ratio of every update in the simplest way."""

    def __init__(self) -> None:
        self.ratios: list[dict[str, float]] = []

    def pre_optimizer_step(self, model: nn.Module) -> None:
        self.before = {name: each.detach().double().clone() for name, each in model.named_parameters()}

    def post_optimizer_step(self, model: nn.Module) -> None:
        after = {name: each.detach().double() for name, each in model.named_parameters()}
        self.ratios.append({name: float((after[name] - before).norm() / before.norm()) for name, before in self.before.items()})


class TestUpdateRatio(ExtensionContract):
    def make(self) -> object:
        return UpdateRatio(every=2)


def panels_of(view: UpdateRatio) -> tuple[Lines, HeatMap]:
    curves, heat_map = view.panels()
    assert isinstance(curves, Lines)
    assert isinstance(heat_map, HeatMap)
    return curves, heat_map


def test_each_value_is_the_norm_of_the_update_divided_by_the_norm_of_the_weights() -> None:
    view, by_hand = UpdateRatio(every=5), ByHand()
    trained(view, by_hand)
    _, heat_map = panels_of(view)
    assert list(heat_map.xs) == [5, 10, 15, 20]
    for name, row in zip(heat_map.rows, heat_map.values, strict=True):
        assert row.tolist() == pytest.approx([by_hand.ratios[step - 1][name] for step in (5, 10, 15, 20)], rel=1e-4)


def test_the_mean_over_an_epoch_is_logged_against_the_number_of_updates() -> None:
    view, by_hand = UpdateRatio(every=3), ByHand()
    tm = trained(view, by_hand, epochs=2)
    looks = [by_hand.ratios[step - 1]["0.weight"] for step in (3, 6, 9, 12, 15)]
    means = [(6, sum(looks[:2]) / 2), (15, sum(looks[2:]) / 3)]
    assert tm.history["update_ratio/0.weight"] == [(step, pytest.approx(mean, rel=1e-4)) for step, mean in means]


def test_a_long_epoch_is_logged_in_parts() -> None:
    tm = trained(UpdateRatio(every=1), epochs=1, train_data=data(MAX_WAITING + 10))
    assert [step for step, _ in tm.history["update_ratio/0.bias"]] == [MAX_WAITING, MAX_WAITING + 10]


def test_weights_are_copied_only_for_measured_updates() -> None:
    held: list[bool] = []
    view = UpdateRatio(every=4)

    class Look(Extension):
        def post_optimizer_step(self) -> None:
            held.append(bool(view._before))

    trained(Look(), view, epochs=1)
    assert held == [False, False, False, True, False, False, False, True]
    assert not view._before


def test_weights_that_are_all_zero_have_no_ratio() -> None:
    model = mlp()
    nn.init.zeros_(model[2].bias)
    view = UpdateRatio(every=1)
    tm = trained(view, epochs=1, model=model, train_data=data(1))
    assert "update_ratio/2.bias" not in tm.history
    _, heat_map = panels_of(view)
    assert "2.bias" not in heat_map.rows


def test_frozen_parameters_are_left_out() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    tm = trained(UpdateRatio(every=1), epochs=1, model=model)
    assert {tag for tag in tm.history if tag.startswith("update_ratio")} == {"update_ratio/2.weight", "update_ratio/2.bias"}


def test_the_figure_shows_the_usual_ratio_and_all_parameters_on_logarithmic_scales() -> None:
    view = UpdateRatio(every=5)
    trained(view)
    curves, heat_map = panels_of(view)
    assert [line.label for line in curves.lines] == ["usual: 0.001", "0.weight", "0.bias", "2.weight", "2.bias"]
    assert {*curves.lines[0].ys} == {1e-3}
    assert (curves.x_label, curves.y_label, curves.is_log) == ("update", "norm of update / norm of weights", True)
    assert (heat_map.title, heat_map.is_log) == ("parameters over time (usual: 0.001)", True)


def test_the_figure_includes_values_that_are_not_recorded_yet() -> None:
    class StopAt(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num == 6:
                train_manager.stop()

    view = UpdateRatio(every=2)
    tm = trained(view, StopAt())
    assert not any(tag.startswith("update_ratio") for tag in tm.history)
    assert list(panels_of(view)[1].xs) == [2, 4, 6]


def test_figures_are_written_to_plots_in_train_dir(tmp_path: Path) -> None:
    trained(UpdateRatio(every=2), train_dir=tmp_path)
    assert (tmp_path / "plots" / "update_ratio.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "plots" / "update_ratio.html").exists()


def test_there_is_no_figure_before_the_first_measured_update() -> None:
    view = UpdateRatio(every=100)
    trained(view)
    assert view.panels() == []


def test_adding_it_does_not_change_the_weights(tmp_path: Path) -> None:
    plain, watched = trained(), trained(UpdateRatio(every=2), train_dir=tmp_path)
    for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_it_works_in_a_train_test_loop() -> None:
    class Work(LoopComponent):
        def on_train_begin(self, loop: Any) -> None:
            self.optimizer = sgd(loop.model.parameters())

        def on_backward_pass(self, loop: Any) -> None:
            self.optimizer.zero_grad()
            mse(loop.batch, loop.model(loop.batch[0])).backward()

        def on_optim_step(self, loop: Any) -> None:
            self.optimizer.step()

    view, plain = UpdateRatio(every=5), UpdateRatio(every=5)
    TrainTestLoop(mlp(), [Work(), view], data(), data(1)).train(3)
    trained(plain)
    assert list(panels_of(view)[1].xs) == [5, 10, 15, 20]
    assert panels_of(view)[1].values.tolist() == panels_of(plain)[1].values.tolist()


def test_the_state_of_another_model_can_be_loaded() -> None:
    one = UpdateRatio(every=1)
    trained(one, epochs=1)
    other = UpdateRatio(every=1)
    torch.manual_seed(0)
    tm = trained(other, epochs=1, model=nn.Sequential(nn.Linear(3, 1)))
    other.load_state_dict(one.state_dict())
    tm.epochs = 2
    tm.train()
    assert math.isfinite(tm.history["update_ratio/0.weight"][-1][1])


@pytest.mark.parametrize("every", [0, -3, 2.5, "all", None, True])
def test_every_must_be_a_positive_integer(every: Any) -> None:
    with pytest.raises(SettingError) as caught:
        UpdateRatio(every=every)
    assert str(caught.value) == f"`every` must be a whole number of at least 1, not {shown(every)}\n  try     UpdateRatio(every=10)"
