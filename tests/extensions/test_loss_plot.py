"""LossPlot records and draws the loss over epochs, batches and samples, with the same result after a kill and resume (contract E43)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import CheckpointSaver, Extension, LoopComponent, Manager, TrainManager, TrainTestLoop
from trainmaster.errors import SettingError, shown
from trainmaster.extensions.loss_plot import LossPlot
from trainmaster.figures.panels import Line, Lines
from trainmaster.loop.deferred_scalars import MAX_WAITING
from trainmaster.testing import ExtensionContract


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, batch: Any) -> Any:
        return self.layers(batch[0])


def mse(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return (prediction - batch[1]).pow(2).mean()


def data(num_samples: int = 22) -> TensorDataset:
    inputs = torch.randn(num_samples, 4, generator=torch.Generator().manual_seed(3))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def trained(*extensions: Any, epochs: int = 2, **settings: Any) -> TrainManager:
    """Train with three batches of 8, 8 and 6 samples in each epoch."""
    torch.manual_seed(0)
    sets = {"valid": DataLoader(data(), 16), "other": DataLoader(data(5), 5)}
    loader = DataLoader(data(), 8, shuffle=True)
    tm = TrainManager(Net(), mse, epochs, loader, sets, extensions=list(extensions), device="cpu", **settings)
    tm.train()
    return tm


class Watch(Extension):
    """Records the losses of all batches."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.sizes: list[int] = []

    def post_train_step_batch(self, loss: torch.Tensor, batch: Any) -> None:
        self.losses.append(loss.item())
        self.sizes.append(len(batch[0]))


def only(plot: LossPlot) -> Lines:
    (panel,) = plot.panels()
    return panel


def curve(plot: LossPlot, label: str) -> Line:
    return next(line for line in only(plot).lines if line.label == label and not line.is_faint)


class TestOverEpochs(ExtensionContract):
    def make(self) -> LossPlot:
        return LossPlot()


class TestOverBatches(ExtensionContract):
    def make(self) -> LossPlot:
        return LossPlot(over="batches", smoothing=0.5)


class TestOverSamples(ExtensionContract):
    def make(self) -> LossPlot:
        return LossPlot(over="samples")


class TestNumbers:
    def test_the_training_loss_of_an_epoch_is_the_mean_over_its_samples(self) -> None:
        watch = Watch()
        tm = trained(LossPlot(), watch)
        parts = [(loss * size) for loss, size in zip(watch.losses, watch.sizes, strict=True)]
        assert tm.history["train/loss"] == [(1, sum(parts[:3]) / 22), (2, sum(parts[3:]) / 22)]

    def test_over_epochs_no_batch_losses_are_recorded(self) -> None:
        assert not [tag for tag in trained(LossPlot()).history if "_by_" in tag]

    def test_over_batches_every_loss_is_recorded_against_the_number_of_batches(self) -> None:
        watch = Watch()
        tm = trained(LossPlot(over="batches"), watch)
        assert tm.history["train/loss_by_batch"] == list(enumerate(watch.losses, start=1))

    def test_over_samples_every_loss_is_recorded_against_the_number_of_samples(self) -> None:
        tm = trained(LossPlot(over="samples"))
        assert [step for step, _ in tm.history["train/loss_by_sample"]] == [8, 16, 22, 30, 38, 44]

    def test_evaluation_losses_are_recorded_on_the_same_axis(self) -> None:
        tm = trained(LossPlot(over="samples"))
        of_epochs = [value for _, value in tm.history["valid/loss"]]
        assert tm.history["valid/loss_by_sample"] == list(zip([0, 22, 44], of_epochs, strict=True))

    def test_several_plots_record_the_loss_of_an_epoch_once(self) -> None:
        tm = trained(LossPlot(), LossPlot(over="batches"), LossPlot(over="samples"))
        assert [step for step, _ in tm.history["train/loss"]] == [1, 2]

    def test_the_losses_of_a_long_epoch_are_recorded_during_the_epoch(self) -> None:
        """Otherwise, a kill would lose hours of metrics, and memory use would grow with the length of the epoch."""
        seen: list[int] = []

        class Look(Extension):
            def post_train_step_batch(self, train_manager: Any) -> None:
                seen.append(len(train_manager.history.get("train/loss_by_batch", [])))

        batches = [(torch.ones(1, 4), torch.ones(1, 1))] * 520
        extensions = [LossPlot(over="batches"), Look()]
        TrainManager(Net(), mse, 1, batches, extensions=extensions, device="cpu").train()
        assert (seen[254], seen[255], seen[510], seen[511]) == (0, 256, 256, 512)

    def test_training_that_fails_has_recorded_all_its_batches(self) -> None:
        class Fail(Extension):
            def post_train_step_batch(self, batch_num: int) -> None:
                if batch_num == 1:
                    raise RuntimeError("here")

        plot = LossPlot(over="batches")
        tm = TrainManager(Net(), mse, 1, DataLoader(data(), 8), extensions=[plot, Fail()], device="cpu")
        with pytest.raises(RuntimeError, match="here"):
            tm.train()
        assert [step for step, _ in tm.history["train/loss_by_batch"]] == [1, 2]

    def test_a_standalone_evaluation_is_not_part_of_the_curve(self) -> None:
        plot = LossPlot()
        tm = trained(plot)
        before = curve(plot, "valid")
        tm.eval()
        assert curve(plot, "valid") == before

    def test_an_epoch_that_was_stopped_has_no_mean_until_it_is_done(self) -> None:
        class StopOnce(Extension):
            is_done = False

            def post_train_step_batch(self, train_manager: Any) -> None:
                if not self.is_done:
                    self.is_done = True
                    train_manager.stop()

        plot, undisturbed = LossPlot(over="batches"), LossPlot(over="batches")
        tm = trained(plot, StopOnce())
        assert "train/loss" not in tm.history
        assert [step for step, _ in tm.history["train/loss_by_batch"]] == [1]
        tm.train()
        assert tm.history == trained(undisturbed).history
        assert plot.panels() == undisturbed.panels()


class TestFigure:
    def test_it_shows_training_and_every_evaluation_set_over_epochs(self) -> None:
        plot = LossPlot()
        tm = trained(plot)
        panel = only(plot)
        assert (panel.title, panel.x_label, panel.y_label) == ("Loss", "epoch", "loss")
        assert [(line.label, list(line.xs)) for line in panel.lines] == [("train", [1, 2]), ("valid", [0, 1, 2]), ("other", [0, 1, 2])]
        assert [(x, y) for x, y in zip(curve(plot, "train").xs, curve(plot, "train").ys, strict=True)] == tm.history["train/loss"]

    @pytest.mark.parametrize(("over", "label", "last"), [("batches", "batch", 6), ("samples", "sample", 44)])
    def test_its_axis_is_named_after_over(self, over: str, label: str, last: int) -> None:
        plot = LossPlot(over=over)
        trained(plot)
        assert only(plot).x_label == label
        assert curve(plot, "train").xs[-1] == curve(plot, "valid").xs[-1] == last

    def test_smoothing_draws_a_moving_average_over_the_pale_raw_values(self) -> None:
        plot = LossPlot(over="batches", smoothing=0.9)
        trained(plot)
        faint, smooth = [line for line in only(plot).lines if line.label == "train"]
        assert (faint.is_faint, smooth.is_faint) == (True, False)
        assert max(smooth.ys) - min(smooth.ys) < max(faint.ys) - min(faint.ys)
        assert only(plot).title == "Loss (smoothing 0.9)"

    def test_over_batches_evaluation_losses_are_not_smoothed(self) -> None:
        plot = LossPlot(over="batches", smoothing=0.9)
        tm = trained(plot)
        assert list(curve(plot, "valid").ys) == [value for _, value in tm.history["valid/loss"]]

    def test_a_long_training_run_is_drawn_with_a_band_and_few_points(self) -> None:
        plot = LossPlot(over="batches")
        for number in range(3000):
            plot.post_train_step_batch(torch.tensor(float(number % 2)), torch.ones(1))
        line = curve(plot, "train")
        assert len(line.xs) <= 1001
        assert line.low is not None
        assert line.high is not None
        assert (min(line.low), max(line.high), set(line.ys)) == (0.0, 1.0, {0.5})

    def test_it_is_written_to_train_dir_as_png_and_html(self, tmp_path: Path) -> None:
        trained(LossPlot(), LossPlot(over="batches"), train_dir=tmp_path)
        names = {f"{name}.{kind}" for name in ("loss", "loss_by_batch") for kind in ("png", "html")}
        assert names <= {path.name for path in (tmp_path / "plots").iterdir()}

    def test_it_is_written_to_path(self, tmp_path: Path) -> None:
        trained(LossPlot(path=tmp_path / "mine"))
        assert (tmp_path / "mine" / "loss.png").stat().st_size > 5000

    def test_without_a_folder_nothing_is_drawn(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        trained(LossPlot())
        assert not list(tmp_path.iterdir())

    def test_figure_returns_a_matplotlib_figure(self) -> None:
        plot = LossPlot()
        trained(plot)
        (axes,) = plot.figure().axes
        assert axes.get_xlabel() == "epoch"

    def test_before_the_first_value_there_is_no_figure(self) -> None:
        assert LossPlot().panels() == []


class TestBits:
    def test_no_plot_changes_the_weights(self, tmp_path: Path) -> None:
        plain = trained()
        watched = trained(LossPlot(), LossPlot(over="batches", smoothing=0.9), LossPlot(over="samples"), train_dir=tmp_path)
        for name, value in plain.model.state_dict().items():
            assert torch.equal(value, watched.model.state_dict()[name])

    def test_its_hooks_need_no_guard(self) -> None:
        assert LossPlot.is_observer
        assert not LossPlot.is_guarded


class Work(LoopComponent):
    """The component that trains in a TrainTestLoop."""

    def on_train_begin(self, loop: Any) -> None:
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.05)

    def on_grads_reset(self, loop: Any) -> None:
        loop.model.zero_grad()

    def on_forward_pass(self, loop: Any) -> None:
        loop.prediction = loop.model(loop.batch)

    def on_loss_compute(self, loop: Any) -> None:
        loop.loss = mse(loop.batch, loop.prediction)

    def on_backward_pass(self, loop: Any) -> None:
        loop.loss.backward()

    def on_optim_step(self, loop: Any) -> None:
        loop.optimizer.step()


def component_loop(*more: Any) -> TrainTestLoop:
    torch.manual_seed(0)
    return TrainTestLoop(Net(), [Work(), *more], DataLoader(data(), 8, shuffle=True), DataLoader(data(), 16))


class TestTrainTestLoop:
    def test_it_draws_training_and_validation(self, tmp_path: Path) -> None:
        plots = [LossPlot(path=tmp_path), LossPlot(over="samples", path=tmp_path)]
        component_loop(*plots).train(2)
        assert [(line.label, list(line.xs)) for line in only(plots[0]).lines] == [("train", [1, 2]), ("valid", [1, 2])]
        assert list(curve(plots[1], "train").xs) == [8, 16, 22, 30, 38, 44]
        assert list(curve(plots[1], "valid").xs) == [22, 44]
        assert {path.name for path in tmp_path.glob("*.png")} == {"loss.png", "loss_by_sample.png"}

    def test_validation_is_the_mean_over_samples(self) -> None:
        plot = LossPlot()
        loop = component_loop(plot)
        loop.train(1)
        loop.model.eval()
        inputs, targets = data().tensors
        assert curve(plot, "valid").ys[0] == pytest.approx(mse((inputs, targets), loop.model((inputs,))).item())

    def test_few_losses_of_a_long_evaluation_wait_to_be_read(self) -> None:
        plot, waiting = LossPlot(), []

        class Watch(LoopComponent):
            def on_batch_end(self, loop: Any) -> None:
                waiting.append(len(plot._eval_pending))

        loop = component_loop(plot, Watch())
        loop.valid_data = [data().tensors] * (2 * MAX_WAITING + 1)
        loop.train(1)
        assert max(waiting) < MAX_WAITING
        loop.model.eval()
        inputs, targets = data().tensors
        assert curve(plot, "valid").ys[0] == pytest.approx(mse((inputs, targets), loop.model((inputs,))).item())

    def test_a_second_call_of_train_continues_the_curve(self) -> None:
        plot = LossPlot()
        loop = component_loop(plot)
        loop.train(1)
        loop.train(1)
        assert list(curve(plot, "train").xs) == [1, 2]

    def test_a_test_is_not_part_of_the_curve(self) -> None:
        plot = LossPlot()
        loop = component_loop(plot)
        loop.train(1)
        loop.test(DataLoader(data(), 16))
        assert "test" not in {line.label for line in only(plot).lines}

    def test_a_state_captured_in_on_batch_end_includes_the_loss_of_the_batch(self) -> None:
        class Capture(LoopComponent):
            state: Any = None

            def on_batch_end(self, loop: Any) -> None:
                if loop.is_training and loop.optim_step_num == 4:
                    self.state = loop.capture()

        whole, resumed, capture = LossPlot(over="batches"), LossPlot(over="batches"), Capture()
        component_loop(whole, capture).train(2)
        loop = component_loop(resumed, Capture())
        loop.restore(capture.state)
        loop.train(2)
        assert resumed.panels() == whole.panels()


class Small(Manager):
    def make_loop(self, config: Any) -> TrainManager:
        loader = DataLoader(data(), 8, shuffle=True)
        plots = [LossPlot(), LossPlot(over="batches")]
        return TrainManager(Net(), mse, 3, loader, {"valid": DataLoader(data(), 16)}, extensions=plots, device="cpu")


class TestManager:
    def test_its_rows_are_in_the_event_log_and_its_figure_with_the_run(self, tmp_path: Path) -> None:
        manager = Small(tmp_path, verbose=False)
        manager.process({"lr": 0.1})
        events = manager.store.run(manager.key).events()
        steps = {tag: [event["step"] for event in events if event["tag"] == tag] for tag in {event["tag"] for event in events}}
        assert steps["train/loss"] == [1, 2, 3]
        assert steps["train/loss_by_batch"] == [*range(1, 10)]
        assert steps["valid/loss_by_batch"] == [0, 3, 6, 9]
        drawn = {path.name for path in tmp_path.rglob("plots/*")}
        assert {"loss.png", "loss.html", "loss_by_batch.png", "loss_by_batch.html"} <= drawn

    def test_a_run_that_resumes_has_the_rows_of_an_uninterrupted_one(self, tmp_path: Path) -> None:
        def rows(manager: Manager) -> list[tuple[Any, ...]]:
            return [(event["tag"], event["step"], event["value"]) for event in manager.store.run(manager.key).events()]

        whole = Small(tmp_path / "whole", verbose=False)
        whole.process({"lr": 0.1}, num_epochs=3)
        Small(tmp_path / "parts", verbose=False).process({"lr": 0.1}, num_epochs=1)
        parts = Small(tmp_path / "parts", verbose=False)
        parts.process({"lr": 0.1}, num_epochs=3)
        assert rows(parts) == rows(whole)


class Kill(Extension):
    def __init__(self, at: int) -> None:
        self.at = at

    def post_train_step_batch(self, step_num: int) -> None:
        if step_num == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def saved_training(folder: Path, kill_at: int = -1) -> tuple[Any, Any]:
    """Train for 3 epochs of 16 steps with a checkpoint every 5 steps.

    Return the recorded metrics and the drawn curves.
    """
    torch.manual_seed(0)
    plots = [LossPlot(), LossPlot(over="batches", smoothing=0.5), LossPlot(over="samples")]
    saver = CheckpointSaver(every_steps=5, in_background=False)
    tm = TrainManager(
        Net(), mse, 3, DataLoader(data(64), 4, shuffle=True), {"valid": DataLoader(data(64), 32)},
        extensions=[*plots, Kill(kill_at), ("checkpoint_saver", saver)], train_dir=folder, device="cpu",
    )  # fmt: skip
    tm.train()
    return tm.history, [plot.panels() for plot in plots]


def test_after_a_kill_in_an_epoch_rows_and_curves_are_those_of_an_uninterrupted_run(tmp_path: Path) -> None:
    import warm

    command = [sys.executable, __file__, str(tmp_path / "killed"), "28"]  # killed three batches after a checkpoint in the second epoch
    killed = warm.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = saved_training(tmp_path / "killed")
    assert [step for step, _ in resumed[0]["train/loss_by_batch"]] == [*range(1, 49)]
    assert resumed == saved_training(tmp_path / "whole")


@pytest.mark.parametrize("over", ["epoch", "steps", "", None, 3])
def test_an_unknown_axis_is_an_error(over: Any) -> None:
    with pytest.raises(SettingError) as caught:
        LossPlot(over=over)
    assert str(caught.value).splitlines()[0] == f'`over` must be "epochs", "batches" or "samples", not {shown(over)}'


@pytest.mark.parametrize("smoothing", [1, 1.5, -0.1, True, "0.9", None, float("nan")])
def test_smoothing_outside_its_range_is_an_error(smoothing: Any) -> None:
    with pytest.raises(SettingError) as caught:
        LossPlot(smoothing=smoothing)
    assert str(caught.value).splitlines()[0] == f"`smoothing` must be a number of at least 0 and below 1, not {shown(smoothing)}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    saved_training(Path(sys.argv[1]), int(sys.argv[2]))
