"""`Plot` draws any fixture that is a number as a curve (contract E44), and computes lazy fixtures only when needed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import Extension, Manager, Observer, TrainManager, fixture
from trainmaster.errors import FixtureNotFoundError, FixtureScopeError, SettingError
from trainmaster.extensions.plot import Plot
from trainmaster.loop import EvalState
from trainmaster.testing import ExtensionContract


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, batch: Any) -> Any:
        return self.layers(batch[0]) * self.temperature


def mse(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return (prediction - batch[1]).pow(2).mean()


class Norms(Observer):
    """Provides lazy fixtures, and counts how often they are computed."""

    def __init__(self) -> None:
        self.grad_norms: list[float] = []

    @fixture("train_step_batch", after="backward")
    def grad_norm(self, model: nn.Module) -> torch.Tensor:
        norm = torch.stack([each.grad.norm() for each in model.parameters() if each.grad is not None]).norm()
        self.grad_norms.append(norm.item())
        return norm

    @fixture("eval_step_batch", after="forward")
    def spread(self, prediction: torch.Tensor) -> torch.Tensor:
        return prediction.std()

    @fixture("train_step_batch")
    def temperature(self, model: Any) -> Any:
        return model.temperature


def manager(*extensions: Any, epochs: int = 2, **settings: Any) -> TrainManager:
    """Return a loop with 5 batches in each epoch."""
    torch.manual_seed(0)
    inputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sets = {"valid": DataLoader(data, 8), "other": DataLoader(data, 20)}
    return TrainManager(Net(), mse, epochs, DataLoader(data, 4, shuffle=True), sets, extensions=list(extensions), device="cpu", **settings)


def trained(*extensions: Any, **settings: Any) -> TrainManager:
    tm = manager(*extensions, **settings)
    tm.train()
    return tm


def steps(rows: Any) -> list[Any]:
    return [step for step, _ in rows]


def values(rows: Any) -> list[Any]:
    return [value for _, value in rows]


class TestOverEpochs(ExtensionContract):
    def make(self) -> Plot:
        return Plot("loss", "step_num")


class TestOverBatches(ExtensionContract):
    def make(self) -> Plot:
        return Plot("loss", over="batches", every=3, smoothing=0.5)


class TestInEvaluations(ExtensionContract):
    def make(self) -> Plot:
        return Plot("loss", stage="eval_step_batch", every=2)


class TestNumbers:
    def test_over_epochs_a_point_is_the_mean_of_the_batches(self) -> None:
        norms = Norms()
        tm = trained(norms, Plot("grad_norm"))
        assert steps(tm.history["train/grad_norm"]) == [1, 2]
        assert values(tm.history["train/grad_norm"]) == pytest.approx([sum(norms.grad_norms[:5]) / 5, sum(norms.grad_norms[5:]) / 5])

    def test_over_batches_a_point_is_the_value_of_one_batch(self) -> None:
        norms = Norms()
        tm = trained(norms, Plot("grad_norm", over="batches"))
        assert tm.history["train/grad_norm_by_batch"] == list(enumerate(norms.grad_norms, start=1))

    def test_in_evaluations_a_point_is_the_mean_over_a_set(self) -> None:
        tm, alone = trained(Plot("loss", stage="eval_step_batch")), trained(EvalState(per_batch=True))
        for name in ("valid", "other"):
            rows = tm.history[f"{name}/loss_per_batch"]
            assert steps(rows) == [0, 1, 2]
            assert values(rows) == pytest.approx(values(alone.history[f"{name}/loss_per_batch"]))
            assert tm.history[f"{name}/loss"] == alone.history[f"{name}/loss"]

    def test_a_lazy_fixture_is_computed_once_per_batch_for_any_number_of_plots(self) -> None:
        norms = Norms()
        trained(norms, Plot("grad_norm"), Plot("grad_norm", over="batches"))
        assert len(norms.grad_norms) == 10

    def test_every_also_skips_computing_the_fixture(self) -> None:
        norms = Norms()
        tm = trained(norms, Plot("grad_norm", over="batches", every=4))
        assert tm.history["train/grad_norm_by_batch"] == list(zip([1, 5, 9], norms.grad_norms, strict=True))

    def test_every_keeps_counting_in_a_second_call_of_train(self) -> None:
        tm = manager(Plot("loss", over="batches", every=4), epochs=1)
        tm.train()
        tm.epochs = 2
        tm.train()
        assert steps(tm.history["train/loss_by_batch"]) == [1, 5, 9]

    def test_a_parameter_is_recorded_before_it_changes(self) -> None:
        seen: list[float] = []

        class Look(Extension):
            def post_train_step_batch(self, model: Any) -> None:
                seen.append(model.temperature.item())

        tm = trained(Norms(), Plot("temperature", over="batches"), Look())
        assert values(tm.history["train/temperature_by_batch"]) == seen
        assert len(set(seen)) == 10

    @pytest.mark.parametrize("value", [3, 0.5, True, np.float32(0.25), np.array([2]), torch.tensor([[4]]), torch.tensor(True)])
    def test_any_single_number_can_be_drawn(self, value: Any) -> None:
        class Make(Extension):
            @fixture("train_step_batch")
            def made(self) -> Any:
                return value

        tm = trained(Make(), Plot("made"), epochs=1)
        assert tm.history["train/made"] == [(1, float(np.asarray(value).item()))]


class TestFigure:
    def test_several_fixtures_are_in_one_figure(self) -> None:
        plot = Plot("loss", "grad_norm", over="batches")
        trained(Norms(), plot)
        (panel,) = plot.panels()
        assert (panel.title, panel.x_label, panel.y_label) == ("loss, grad_norm", "batch", "value")
        assert [(line.label, list(line.xs)) for line in panel.lines] == [("loss", [*range(1, 11)]), ("grad_norm", [*range(1, 11)])]

    def test_each_evaluation_set_has_its_own_curve(self) -> None:
        one, two = Plot("spread", stage="eval_step_batch"), Plot("spread", "loss", stage="eval_step_batch")
        trained(Norms(), one, two)
        assert [line.label for line in one.panels()[0].lines] == ["valid", "other"]
        assert [line.label for line in two.panels()[0].lines] == ["spread, valid", "loss, valid", "spread, other", "loss, other"]

    @pytest.mark.parametrize("log", [None, True, False])
    def test_the_axis_may_be_logarithmic(self, log: bool | None) -> None:
        plot = Plot("loss", log=log)
        trained(plot)
        assert plot.panels()[0].is_log is log

    def test_smoothing_draws_a_moving_average_over_the_pale_raw_values(self) -> None:
        plot = Plot("loss", over="batches", smoothing=0.8)
        trained(plot)
        assert [line.is_faint for line in plot.panels()[0].lines] == [True, False]

    def test_its_files_are_named_after_the_fixtures_or_fig(self, tmp_path: Path) -> None:
        plots = [Plot("loss"), Plot("loss", over="batches"), Plot("loss", stage="eval_step_batch"), Plot("loss", fig="my / loss")]
        trained(*plots, train_dir=tmp_path)
        drawn = {path.name for path in (tmp_path / "plots").glob("plot_*")}
        names = ("plot_loss", "plot_loss_by_batch", "plot_loss_eval", "plot_my_loss")
        assert drawn == {f"{name}.{kind}" for name in names for kind in ("png", "html")}
        assert plots[3].panels()[0].title == "my / loss"


class TestRefusal:
    @pytest.mark.parametrize("every", [1, 5])
    def test_a_misspelled_name_is_refused_before_the_first_batch(self, every: int) -> None:
        norms = Norms()
        tm = manager(norms, Plot("grad_nrom", every=every))
        with pytest.raises(FixtureNotFoundError) as caught:
            tm.train()
        assert "`Plot.post_train_step_batch` asks for `grad_nrom`, which nothing provides" in str(caught.value)
        assert "did you mean `grad_norm`?" in str(caught.value)
        assert not tm.history

    def test_a_fixture_of_another_stage_is_refused_before_the_first_batch(self) -> None:
        with pytest.raises(FixtureScopeError, match=r"`grad_norm`, which does not exist at that point"):
            trained(Norms(), Plot("grad_norm", stage="eval_step_batch"))

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("prediction", "a Tensor of shape (4, 1) and type torch.float32"),
            ("batch", "a list"),
            ("lr_schedule", "None"),
            ("mode_name", "a str"),
        ],
    )
    def test_a_fixture_that_is_not_a_number_is_an_error_with_its_name_and_shape(self, name: str, message: str) -> None:
        with pytest.raises(SettingError) as caught:
            trained(Plot(name))
        assert str(caught.value) == (
            f"Plot needs a number, but the fixture `{name}` is {message}\n  try     reduce it to one number, for example in a lazy fixture"
        )

    @pytest.mark.parametrize("names", [(3,), ("",), ("two words",), ("class",), ("loss", None)])
    def test_a_value_that_is_not_a_name_is_refused(self, names: Any) -> None:
        with pytest.raises(SettingError, match=r"^Plot needs names of numeric fixtures, not "):
            Plot(*names)

    def test_a_plot_without_names_is_refused(self) -> None:
        with pytest.raises(SettingError, match=r"^Plot needs one or more different names of fixtures\n"):
            Plot()

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"over": "samples"}, '`over` must be "epochs" or "batches", not \'samples\' (str)'),
            ({"every": 0}, "`every` must be a whole number of at least 1, not 0 (int)"),
            ({"every": True}, "`every` must be a whole number of at least 1, not True (bool)"),
            ({"every": 1.5}, "`every` must be a whole number of at least 1, not 1.5 (float)"),
            ({"smoothing": 1}, "`smoothing` must be a number of at least 0 and below 1, not 1 (int)"),
            ({"stage": "train"}, '`stage` must be "train_step_batch" or "eval_step_batch", not \'train\' (str)'),
            ({"stage": "eval_step_batch", "over": "batches"}, "Plot draws evaluations over epochs, not over batches"),
        ],
    )
    def test_bad_settings_are_refused(self, settings: Any, message: str) -> None:
        with pytest.raises(SettingError) as caught:
            Plot("loss", **settings)
        assert str(caught.value).splitlines()[0] == message

    @pytest.mark.parametrize(
        ("names", "message"),
        [(("loss", "loss"), "Plot needs one or more different names"), (("loop",), "Plot needs names of numeric fixtures, not 'loop'")],
    )
    def test_invalid_names_are_refused(self, names: Any, message: str) -> None:
        with pytest.raises(SettingError, match=message):
            Plot(*names)


class Nested(Extension):
    """Evaluates in the middle of an evaluation, in the given hook."""

    def __init__(self, hook: str, is_failing: bool = False) -> None:
        self.is_failing = is_failing
        setattr(self, hook, self._evaluate)

    def _evaluate(self, train_manager: TrainManager, datasource_name: str) -> None:
        if datasource_name == "valid":
            with suppress(ZeroDivisionError):
                train_manager.eval({"nested": self._batches()})

    def _batches(self) -> Any:
        yield [torch.ones(3, 4), torch.ones(3, 1) * 50]
        if self.is_failing:
            raise ZeroDivisionError


@pytest.mark.parametrize("hook", ["post_eval_step_batch", "post_eval_step_epoch"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("is_failing", [False, True], ids=["complete", "failing"])
def test_a_nested_evaluation_does_not_change_the_metrics_of_the_outer_one(hook: str, is_first: bool, is_failing: bool) -> None:
    def plots() -> list[Any]:
        return [Norms(), Plot("spread", stage="eval_step_batch"), Plot("loss", stage="eval_step_batch", every=2)]

    nested = Nested(hook, is_failing)
    plain, tm = trained(*plots()), trained(*([nested, *plots()] if is_first else [*plots(), nested]))
    assert {name: tm.history.get(name) for name in plain.history} == plain.history
    assert ("nested/spread" in tm.history) is not is_failing


def test_it_does_not_change_the_weights() -> None:
    plain = trained(Norms())
    plots = Plot("grad_norm"), Plot("loss", over="batches", every=2), Plot("spread", stage="eval_step_batch")
    watched = trained(Norms(), *plots)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, watched.model.state_dict()[name])


def test_under_a_manager_its_rows_are_in_the_event_log_and_its_figure_with_the_run(tmp_path: Path) -> None:
    class Small(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            return manager(Norms(), Plot("grad_norm"))

    small = Small(tmp_path, verbose=False)
    small.process({"lr": 0.1})
    events = small.store.run(small.key).events()
    assert [event["step"] for event in events if event["tag"] == "train/grad_norm"] == [1, 2]
    assert [*tmp_path.rglob("plots/plot_grad_norm.png")]
