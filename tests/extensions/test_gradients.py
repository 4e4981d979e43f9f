"""Gradients are recorded by parameter: norms, RMS, and vanishing and exploding layers (contract E42)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster.errors import SettingError, shown
from trainmaster.extensions.gradients import GradCoeffRMSVis, GradientObserver, GradNormVis, exploding_layers, vanishing_layers
from trainmaster.extensions.metric_history import MetricHistory, shown_names
from trainmaster.figures.panels import Bars, HeatMap, Lines
from trainmaster.loop import LoopComponent, TrainManager, TrainTestLoop
from trainmaster.manager import Manager
from trainmaster.stages import Extension
from trainmaster.testing import ExtensionContract

VIEWS = [GradNormVis, GradCoeffRMSVis]
BATCHES = 5


class Loop(TrainManager):
    def model_forward(self, batch: Any) -> Any:
        return self.model(batch[0])


def cross_entropy(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(prediction, batch[1])


def data(num_batches: int = BATCHES) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(16, 8, generator=generator) for _ in range(num_batches)]
    return [(each, each[:, :3].argmax(1)) for each in inputs]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def deep(gain: float, between: Callable[[], nn.Module]) -> nn.Sequential:
    """Return a net of twelve layers whose weights have this gain."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(8, 32)]
    for _ in range(10):
        layers += [between(), nn.Linear(32, 32)]
    model = nn.Sequential(*layers, between(), nn.Linear(32, 3))
    for each in model:
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight, std=gain / math.sqrt(each.in_features))
    return model


def trained(*extensions: object, model: nn.Module | None = None, epochs: int = 2, lr: float = 0.1, **settings: Any) -> TrainManager:
    manager = Loop(
        model or mlp(),
        settings.pop("loss", cross_entropy),
        epochs,
        settings.pop("train_data", None) or data(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
        extensions=list(extensions),
        device="cpu",
        **settings,
    )
    manager.train()
    return manager


class ByHand(Extension):
    """Computes the norm and the RMS of every gradient in the simplest way, and their means over the epoch."""

    def __init__(self) -> None:
        self.norms: dict[str, list[float]] = {}
        self.means: list[dict[str, float]] = []

    def post_backward(self, model: nn.Module) -> None:
        for name, each in model.named_parameters():
            if each.grad is not None:
                self.norms.setdefault(name, []).append(each.grad.double().norm().item())

    def post_train_step_epoch(self) -> None:
        self.means.append({name: sum(norms) / len(norms) for name, norms in self.norms.items()})
        self.norms = {}


class TestGradNormVis(ExtensionContract):
    def make(self) -> object:
        return GradNormVis()


class TestGradCoeffRMSVis(ExtensionContract):
    def make(self) -> object:
        return GradCoeffRMSVis(every=4)


# Recorded values.


def test_the_norm_is_the_mean_over_the_epochs_batches() -> None:
    """Covers contract E42."""
    by_hand = ByHand()
    tm = trained(GradNormVis(), by_hand)
    for name, _ in tm.model.named_parameters():
        rows = tm.history[f"grad_norm/{name}"]
        assert [step for step, _ in rows] == [1, 2]
        assert [value for _, value in rows] == pytest.approx([means[name] for means in by_hand.means], rel=1e-6)


def test_the_rms_is_the_norm_divided_by_the_root_of_the_number_of_elements() -> None:
    """Covers contract E42."""
    tm = trained(GradNormVis(), GradCoeffRMSVis())
    for name, each in tm.model.named_parameters():
        rms = [value * math.sqrt(each.numel()) for _, value in tm.history[f"grad_rms/{name}"]]
        assert rms == pytest.approx([value for _, value in tm.history[f"grad_norm/{name}"]])


def test_the_mean_of_a_long_epoch_includes_every_batch() -> None:
    """Contract E42: the epoch has more batches than the buffer can hold."""
    by_hand = ByHand()
    tm = trained(GradNormVis(), by_hand, epochs=1, train_data=data(150))
    assert tm.history["grad_norm/0.weight"] == [(1, pytest.approx(by_hand.means[0]["0.weight"], rel=1e-6))]


def test_parameters_without_gradient_are_skipped() -> None:
    """Covers contract E42."""
    model = mlp()
    model[0].requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    view = GradNormVis()
    tm = trained(view, model=model)
    assert {tag.split("/")[1] for tag in tm.history if tag.startswith("grad_norm")} == {"2.weight", "2.bias", "4.weight", "4.bias"}
    bars, heat_map, _ = view.panels()
    assert isinstance(bars, Bars)
    assert isinstance(heat_map, HeatMap)
    assert list(bars.names) == list(heat_map.rows) == ["2.weight", "2.bias", "4.weight", "4.bias"]


class Either(nn.Module):
    """Uses one branch in even batches and the other in odd batches."""

    def __init__(self) -> None:
        super().__init__()
        self.even, self.odd = nn.Linear(8, 3), nn.Linear(8, 3)
        self.num_calls = 0

    def forward(self, inputs: torch.Tensor) -> Any:
        self.num_calls += 1
        return (self.odd if self.num_calls % 2 == 0 else self.even)(inputs)


def test_the_mean_of_a_parameter_includes_only_batches_with_a_gradient() -> None:
    """Covers contract E42."""
    by_hand = ByHand()
    torch.manual_seed(0)
    tm = trained(GradNormVis(), by_hand, model=Either(), epochs=1)
    found = {tag.split("/")[1]: rows for tag, rows in tm.history.items() if tag.startswith("grad_norm")}
    assert found == {name: [(1, pytest.approx(mean, rel=1e-6))] for name, mean in by_hand.means[0].items()}
    assert len(found) == 4


def test_a_layer_that_is_unfrozen_appears() -> None:
    class Unfreeze(Extension):
        def post_train_step_epoch(self, model: nn.Module) -> None:
            model[0].requires_grad_(True)  # type: ignore[index]

    model = mlp()
    model[0].requires_grad_(False)
    view = GradNormVis()
    tm = trained(view, Unfreeze(), model=model, epochs=2)
    assert [step for step, _ in tm.history["grad_norm/0.weight"]] == [2]
    heat_map = view.panels()[1]
    assert isinstance(heat_map, HeatMap)
    assert heat_map.rows[0] == "0.weight"


def test_with_every_values_are_recorded_against_updates() -> None:
    by_hand = ByHand()
    view = GradNormVis(every=3)
    tm = trained(view, by_hand, epochs=3)
    assert [step for step, _ in tm.history["grad_norm/0.weight"]] == [3, 6, 9, 12, 15]
    bars = view.panels()[0]
    assert isinstance(bars, Bars)
    assert bars.title == "gradient norm in update 15"


def test_accumulated_gradients_are_measured_as_they_are() -> None:
    class EverySecond(Extension):
        def pre_train_step_batch(self, fixtures: Any, batch_num: int) -> None:
            fixtures.modify("is_update", batch_num % 2 == 1)

    by_hand = ByHand()
    tm = trained(GradNormVis(), by_hand, EverySecond(), epochs=1, train_data=data(4))
    assert tm.history["grad_norm/0.weight"] == [(1, pytest.approx(by_hand.means[0]["0.weight"], rel=1e-6))]


def test_norms_of_half_precision_gradients_do_not_overflow() -> None:
    model = nn.Linear(8, 3).bfloat16()
    model.weight.grad = torch.full((3, 8), 1.0).bfloat16()
    torch.manual_seed(0)
    tm = trained(GradNormVis(), model=model, train_data=[(a.bfloat16(), b) for a, b in data()], epochs=1)
    assert tm.history["grad_norm/weight"][0][1] > 0


def test_sparse_gradients_have_a_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))
    tokens = [(torch.tensor([[1, 2], [1, 3]]), torch.tensor([0, 1]))]
    by_hand = ByHand()
    tm = trained(GradNormVis(), by_hand, model=model, train_data=tokens, epochs=1)
    assert tm.history["grad_norm/0.weight"] == [(1, pytest.approx(by_hand.means[0]["0.weight"], rel=1e-5))]


@pytest.mark.parametrize("view", VIEWS)
def test_adding_it_does_not_change_the_weights(view: type[GradientObserver], tmp_path: Path) -> None:
    plain, watched = trained(), trained(view(), view_named(view(every=2)), train_dir=tmp_path)
    for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


def view_named(view: GradientObserver) -> GradientObserver:
    view.name = "second"
    return view


# Vanishing and exploding layers.


@pytest.mark.parametrize("view", VIEWS)
def test_in_a_deep_net_of_sigmoids_the_first_layers_vanish(view: type[GradientObserver]) -> None:
    watcher = view()
    with pytest.warns(UserWarning, match=r"^vanishing gradients in epoch 1: `0`, `2`.*; try ReLU or GELU instead of sigmoid"):
        trained(watcher, model=deep(0.6, nn.Sigmoid))
    assert watcher.vanishing()[:3] == ["0", "2", "4"]
    assert "22" not in watcher.vanishing()
    assert watcher.exploding() == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_deep_net_with_large_weights_explodes(view: type[GradientObserver]) -> None:
    watcher = view()
    with pytest.warns(UserWarning, match=r"^exploding gradients in epoch 1: `0`, `2`.* and 4 more; try gradient clipping"):
        trained(watcher, model=deep(4.0, nn.Identity), lr=1e-12)
    assert len(watcher.exploding()) == 12
    assert watcher.vanishing() == []


def test_a_gradient_that_is_not_finite_is_named_and_left_out_of_the_mean() -> None:
    class Spoil(Extension):
        def post_backward(self, model: Any, batch_num: int) -> None:
            if batch_num == 2:
                model[0].weight.grad[0, 0] = math.nan

        def pre_optimizer_step(self, model: Any) -> None:
            model[0].weight.grad.nan_to_num_()

    watcher = GradNormVis()
    with pytest.warns(UserWarning, match="^exploding gradients in epoch 1: `0`;"):
        tm = trained(Spoil(), watcher, epochs=1)
    assert watcher.exploding() == ["0"]
    assert 0 < tm.history["grad_norm/0.weight"][0][1] < 100


def test_a_healthy_net_causes_no_warning() -> None:
    watcher = GradNormVis()
    trained(watcher, epochs=30)
    assert (watcher.vanishing(), watcher.exploding()) == ([], [])


def test_the_warning_appears_once_per_training_run() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(GradNormVis(), model=deep(0.6, nn.Sigmoid), epochs=4)
    assert len(caught) == 1


def test_a_bias_before_a_batch_norm_does_not_make_a_layer_vanish() -> None:
    """Its gradient is always 0 apart from rounding errors, which is not a problem with the layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    watcher = GradCoeffRMSVis()
    tm = trained(watcher, model=model)
    assert tm.history["grad_rms/0.bias"][-1][1] < 1e-6 * tm.history["grad_rms/0.weight"][-1][1]
    assert watcher.vanishing() == []


def test_gradients_that_are_small_in_all_layers_do_not_count_as_vanishing() -> None:
    assert vanishing_layers({"a.w": 1e-12, "b.w": 3e-12, "c.w": 2e-12}, []) == []


def test_a_gradient_of_zero_counts_as_vanishing() -> None:
    assert vanishing_layers({"a.w": 0.0, "b.w": 0.0}, []) == ["a", "b"]


def test_a_layer_that_explodes_does_not_make_others_vanish() -> None:
    rms = {"a.w": 0.1, "b.w": 0.2, "c.w": 1e9}
    assert exploding_layers(rms, {}) == ["c"]
    assert vanishing_layers(rms, ["c"]) == []


def test_a_layer_that_grew_a_thousandfold_explodes() -> None:
    assert exploding_layers({"a.w": 20.0, "b.w": 30.0}, {"a.w": 0.01, "b.w": 1.0}) == ["a"]


def test_growth_from_almost_zero_is_not_an_explosion() -> None:
    assert exploding_layers({"a.w": 0.1, "b.w": 0.3}, {"a.w": 1e-9, "b.w": 0.1}) == []


# Figures.


@pytest.mark.parametrize(("view", "label"), [(GradNormVis, "gradient norm"), (GradCoeffRMSVis, "gradient RMS")])
def test_the_figure_has_the_last_values_the_trend_and_a_heat_map(view: type[GradientObserver], label: str) -> None:
    """Contract E42: the scales are logarithmic."""
    watcher = view()
    tm = trained(watcher, epochs=3)
    bars, heat_map, course = watcher.panels()
    names = [name for name, _ in tm.model.named_parameters()]
    assert isinstance(bars, Bars)
    assert (bars.title, bars.x_label, list(bars.names), bars.is_log) == (f"{label} in epoch 3", label, names, True)
    assert bars.values == [tm.history[f"{watcher.tag}/{name}"][-1][1] for name in names]
    assert isinstance(course, Lines)
    assert (course.x_label, course.y_label, course.is_log) == ("epoch", label, True)
    assert [line.label for line in course.lines] == names
    assert list(course.lines[0].xs) == [1, 2, 3]
    assert isinstance(heat_map, HeatMap)
    assert (list(heat_map.rows), list(heat_map.xs), heat_map.is_log, heat_map.values.shape) == (names, [1, 2, 3], True, (6, 3))


def test_vanishing_layers_are_marked_in_the_figure() -> None:
    watcher = GradNormVis()
    with pytest.warns(UserWarning, match="vanishing"):
        trained(watcher, model=deep(0.6, nn.Sigmoid))
    bars, heat_map, _ = watcher.panels()
    assert isinstance(bars, Bars)
    assert isinstance(heat_map, HeatMap)
    assert bars.marks == heat_map.marks
    assert {bars.marks["0.weight"], bars.marks["0.bias"]} == {"vanishing"}
    assert bars.title == f"gradient norm in epoch 2: {len(watcher.vanishing())} of 12 layers vanishing"


def test_there_is_no_figure_before_the_first_epoch_ends() -> None:
    assert GradNormVis().panels() == []


def test_figures_are_written_to_plots_in_train_dir(tmp_path: Path) -> None:
    trained(GradNormVis(), GradCoeffRMSVis(), train_dir=tmp_path)
    for name in ("grad_norm", "grad_rms"):
        assert (tmp_path / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "plots" / f"{name}.html").stat().st_size > 1000


def test_the_figure_is_available_as_a_matplotlib_object() -> None:
    watcher = GradNormVis()
    trained(watcher)
    titles = [axes.get_title() for axes in watcher.figure().axes]
    assert "gradient norm in epoch 2" in titles


def test_a_long_history_has_a_bounded_number_of_columns() -> None:
    history = MetricHistory(max_columns=4)
    for x in range(1, 20):
        history.add(x, {"a": float(x), "b": math.nan if x < 10 else 1.0})
    assert len(history.xs) <= 4
    assert history.xs[-1] == 19
    means = history.values(["a"])[0]
    assert means.tolist() == sorted(means.tolist())
    assert history.values(["b"])[0][-1] == 1.0


def test_columns_of_a_long_history_are_means_of_all_their_values() -> None:
    history = MetricHistory(max_columns=2)
    for x in range(1, 8):
        history.add(x, {"a": float(x)})
    assert (history.xs, history.values().tolist()) == ([4, 7], [[2.5, 6.0]])


@pytest.mark.parametrize("num", [1, 4, 5, 8, 9, 11, 16, 17])
def test_a_history_does_not_depend_on_when_it_was_saved(num: int) -> None:
    whole, part = MetricHistory(max_columns=4), MetricHistory(max_columns=4)
    for x in range(num):
        part.add(x, {"a": x**2})
    rest = MetricHistory(max_columns=4)
    rest.load_state_dict(part.state_dict())
    for x in range(30):
        whole.add(x, {"a": x**2})
        if x >= num:
            rest.add(x, {"a": x**2})
    assert rest.xs == whole.xs
    assert rest.values().tolist() == whole.values().tolist()


def test_with_very_many_parameters_the_marked_ones_and_some_others_are_shown() -> None:
    history = MetricHistory()
    history.add(1, {f"p{number}": 1.0 for number in range(500)})
    names = shown_names(history, {"p123": "vanishing"})
    assert len(names) == 48
    assert {"p0", "p123", "p499"} <= {*names}
    assert names == sorted(names, key=lambda name: int(name[1:]))


# Other loops and resuming.


def test_it_works_in_a_train_test_loop(tmp_path: Path) -> None:
    class Work(LoopComponent):
        def on_train_begin(self, loop: Any) -> None:
            self.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)

        def on_grads_reset(self, loop: Any) -> None:
            self.optimizer.zero_grad()

        def on_forward_pass(self, loop: Any) -> None:
            loop.prediction = loop.model(loop.batch[0])

        def on_loss_compute(self, loop: Any) -> None:
            loop.loss = cross_entropy(loop.batch, loop.prediction)

        def on_backward_pass(self, loop: Any) -> None:
            loop.loss.backward()

        def on_optim_step(self, loop: Any) -> None:
            self.optimizer.step()

    by_epoch, by_update = GradNormVis(path=tmp_path), GradCoeffRMSVis(every=4)
    TrainTestLoop(mlp(), [Work(), by_epoch, by_update], data(), data(1)).train(2)
    *_, course = by_epoch.panels()
    assert isinstance(course, Lines)
    assert list(course.lines[0].xs) == [1, 2]
    *_, course = by_update.panels()
    assert isinstance(course, Lines)
    assert list(course.lines[0].xs) == [4, 8]
    assert (tmp_path / "grad_norm.png").exists()


class Runs(Manager):
    def make_loop(self, config: Any) -> TrainManager:
        return Loop(mlp(), cross_entropy, 0, data(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), device="cpu")


def test_its_metrics_are_in_the_event_log_and_each_run_starts_from_scratch(tmp_path: Path) -> None:
    view = GradNormVis()
    manager = Runs(tmp_path, verbose=False)
    manager.extensions = [view]
    for seed in (1, 2):
        manager.process({"seed": seed}, 3)
        course = view.panels()[2]
        assert isinstance(course, Lines)
        assert list(course.lines[0].xs) == [1, 2, 3]
        rows = [row for row in manager.store.run(manager.key).events() if row.get("tag") == "grad_norm/0.weight"]
        assert [row["step"] for row in rows] == [1, 2, 3]


def test_a_stop_in_the_middle_of_an_epoch_records_nothing_and_the_epoch_continues_later() -> None:
    class StopAt(Extension):
        is_on = True

        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if self.is_on and step_num == 7:
                train_manager.stop()

    whole = trained(GradNormVis())
    stop = StopAt()
    halved = trained(GradNormVis(), stop)
    assert [step for step, _ in halved.history["grad_norm/0.weight"]] == [1]
    stop.is_on = False
    halved.train()
    assert halved.history == whole.history


def test_a_failed_epoch_leaves_no_sums_for_the_next() -> None:
    class FailOnce(Extension):
        has_failed = False

        def post_train_step_batch(self, batch_num: int) -> None:
            if batch_num == 2 and not self.has_failed:
                self.has_failed = True
                raise RuntimeError("on purpose")

    class Again(ByHand):
        def pre_train_step_epoch(self) -> None:
            self.norms = {}

    by_hand, fail = Again(), FailOnce()
    settings: dict[str, Any] = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1), "device": "cpu"}
    tm = Loop(mlp(), cross_entropy, 1, data(), extensions=[GradNormVis(), by_hand, fail], **settings)
    with pytest.raises(RuntimeError, match="on purpose"):
        tm.train()
    tm.train()
    assert tm.history["grad_norm/0.weight"] == [(1, pytest.approx(by_hand.means[0]["0.weight"], rel=1e-6))]


def test_it_continues_from_a_checkpoint_in_another_loop(tmp_path: Path) -> None:
    whole = trained(GradNormVis(), GradCoeffRMSVis(every=3), epochs=3)
    first, second = [trained(GradNormVis(), GradCoeffRMSVis(every=3), epochs=epochs, train_dir=tmp_path) for epochs in (2, 3)]
    assert first.history != whole.history
    assert second.history == whole.history
    for name in ("grad_norm_vis", "grad_coeff_rms_vis"):
        assert second[name].panels()[0] == whole[name].panels()[0]


def test_training_can_resume_with_it_from_a_state_without_it() -> None:
    before = trained(epochs=1)
    view = GradNormVis()
    after = Loop(
        mlp(), cross_entropy, 2, data(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), extensions=[view], device="cpu"
    )
    after.restore(before.capture())
    after.train()
    assert [step for step, _ in after.history["grad_norm/0.weight"]] == [2]


# Invalid arguments.


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("every", [0, -1, 1.5, "epoch", True])
def test_every_must_be_a_positive_integer_or_none(view: type[GradientObserver], every: Any) -> None:
    with pytest.raises(SettingError) as caught:
        view(every=every)
    assert str(caught.value).startswith(
        f"`every` must be a whole number of at least 1, not {shown(every)}\n  try     {view.__name__}(every=500)"
    )


def test_a_path_of_another_type_is_an_error() -> None:
    with pytest.raises(TypeError):
        GradNormVis(path=3)  # type: ignore[arg-type]


def test_resuming_with_another_every_starts_a_new_history() -> None:
    before = ExtensionContract().loop(GradNormVis())
    before.train()
    after = ExtensionContract().loop(GradNormVis(every=2))
    after.restore(before.capture())
    after.epochs = 4
    after.train()
    assert after["grad_norm_vis"]._history.xs == [20, 22, 24]


def test_lazy_layers_are_measured_once_they_have_a_size() -> None:
    manager = ExtensionContract().loop(GradCoeffRMSVis())
    manager.model.layers[0] = nn.LazyLinear(16)
    manager.evaluate_first = False
    manager.train()
    rms = dict(zip([name for name, _ in manager.model.named_parameters()], manager["grad_coeff_rms_vis"]._last.values(), strict=True))
    assert all(0 < value < 1 for value in rms.values())
