"""SampleLoss records the distribution of the losses of single samples, and the hardest samples."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import Extension, LoopComponent, Manager, TrainManager, TrainTestLoop
from trainmaster.errors import SettingError
from trainmaster.extensions.loss_histogram import HardSample, LossHistogram
from trainmaster.extensions.sample_loss import SampleLoss
from trainmaster.figures.panels import Bars, Histogram
from trainmaster.testing import ExtensionContract

NUM = 50
MISLABELLED = 17


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))

    def forward(self, batch: Any) -> Any:
        return self.layers(batch[0])


def mean_loss(batch: Any, prediction: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    return cross_entropy(prediction, batch[1], reduction=reduction)


def each_loss(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return cross_entropy(prediction, batch[1], reduction="none")


def data() -> TensorDataset:
    """Return data that is easy to learn, except for one sample with a wrong label."""
    inputs = torch.randn(NUM, 4, generator=torch.Generator().manual_seed(3))
    inputs[MISLABELLED, 0] = 3.0
    labels = (inputs[:, 0] > 0).long()
    labels[MISLABELLED] = 0
    return TensorDataset(inputs, labels, torch.arange(NUM) + 1000)


def manager(*extensions: Any, loss: Any = mean_loss, epochs: int = 8, kind: type[TrainManager] = TrainManager, **more: Any) -> TrainManager:
    torch.manual_seed(0)
    settings = {"optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.05), "device": "cpu", **more}
    loader = DataLoader(data(), 10, shuffle=True)
    return kind(Net(), loss, epochs, loader, {"valid": DataLoader(data(), 16)}, extensions=list(extensions), **settings)


def trained(*extensions: Any, **more: Any) -> TrainManager:
    tm = manager(*extensions, **more)
    tm.train()
    return tm


def losses_of(tm: TrainManager) -> torch.Tensor:
    tm.model.eval()
    batch = data().tensors
    with torch.no_grad():
        return each_loss(batch, tm.model(batch)).double()


class TestOverEval(ExtensionContract):
    def make(self) -> SampleLoss:
        return SampleLoss(each_loss)


class TestOverTrain(ExtensionContract):
    def make(self) -> SampleLoss:
        return SampleLoss(each_loss, over="train", num_hardest=5)


class TestNumbers:
    def test_the_mislabeled_sample_is_the_hardest(self) -> None:
        extension = SampleLoss()
        trained(extension)
        assert extension.hardest()["valid"][0].index == MISLABELLED

    def test_the_hardest_are_in_order_with_their_losses(self) -> None:
        extension = SampleLoss(num_hardest=5)
        wanted = losses_of(trained(extension)).topk(5)
        found = extension.hardest()["valid"]
        assert [each.index for each in found] == wanted.indices.tolist()
        assert [each.loss for each in found] == pytest.approx(wanted.values.tolist(), rel=1e-5)

    def test_losses_are_recorded_after_every_evaluation(self) -> None:
        extension = SampleLoss()
        tm = trained(extension)
        losses = losses_of(tm)
        rows = {kind: tm.history[f"valid/sample_loss/{kind}"] for kind in ("median", "p90", "max", "hardest")}
        assert all([step for step, _ in each] == [*range(9)] for each in rows.values())
        assert rows["max"][-1][1] == extension.hardest()["valid"][0].loss
        assert rows["hardest"][-1][1] == MISLABELLED
        assert rows["median"][-1][1] == pytest.approx(losses.quantile(0.5).item(), rel=0.1)
        assert rows["p90"][-1][1] == pytest.approx(losses.quantile(0.9, interpolation="lower").item(), rel=0.1)

    def test_the_mean_of_the_sample_losses_is_the_loss_itself(self) -> None:
        """The equality shows that the recorded losses are those that the loop trains on."""
        seen: list[torch.Tensor] = []

        def watched(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
            seen.append(each_loss(batch, prediction))
            return seen[-1]

        tm = trained(SampleLoss(watched), epochs=0)
        assert torch.cat(seen).mean().item() == pytest.approx(tm.history["valid/loss"][0][1])

    def test_over_train_the_losses_are_those_of_the_batches_trained_on(self) -> None:
        extension = SampleLoss(over="train", index=lambda batch: batch[2])
        tm = trained(extension)
        assert extension.hardest()["train"][0].index == 1000 + MISLABELLED
        assert [step for step, _ in tm.history["train/sample_loss/max"]] == [*range(1, 9)]
        assert "valid/sample_loss/max" not in tm.history

    def test_more_than_one_number_for_a_sample_is_averaged(self) -> None:
        extension = SampleLoss(lambda batch, prediction: torch.ones(len(prediction), 2, 3) * torch.tensor([1.0, 2.0, 6.0]))
        trained(extension, epochs=0)
        assert {each.loss for each in extension.hardest()["valid"]} == {3.0}

    def test_a_standalone_evaluation_finds_the_hardest_too(self) -> None:
        extension = SampleLoss()
        manager(extension).eval()
        assert len(extension.hardest()["valid"]) == 16

    def test_a_stopped_evaluation_is_not_used(self) -> None:
        class Stop(Extension):
            def post_eval_step_batch(self, train_manager: Any) -> None:
                train_manager.stop()

        extension = SampleLoss()
        trained(extension, Stop())
        assert extension.hardest() == {}

    def test_an_epoch_that_is_stopped_and_continued_counts_as_one(self) -> None:
        class StopAt(Extension):
            def post_train_step_batch(self, train_manager: Any, step_num: int) -> None:
                if step_num == 13:
                    train_manager.stop()

        whole, parts = SampleLoss(over="train"), SampleLoss(over="train")
        undisturbed = trained(whole, epochs=3)
        tm = manager(parts, StopAt(), epochs=3)
        tm.train()
        tm.train()
        assert tm.history == undisturbed.history
        assert parts.panels() == whole.panels()


class Wrapped(nn.Module):
    """A loss that wraps one of torch's loss modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, batch: Any, prediction: torch.Tensor) -> torch.Tensor:
        return self.inner(prediction, batch[1])


class TestWhereLossesComeFrom:
    def test_a_loss_module_is_called_without_its_reduction_which_is_restored_afterwards(self) -> None:
        extension, loss = SampleLoss(), Wrapped()
        tm = trained(extension, loss=loss)
        batch = data().tensors
        tm.model.eval()
        wanted = cross_entropy(tm.model(batch), batch[1], reduction="none", label_smoothing=0.1).max().item()
        assert extension.hardest()["valid"][0].loss == pytest.approx(wanted, rel=1e-5)
        assert loss.inner.reduction == "mean"

    def test_the_reduction_of_a_loss_module_is_restored_after_an_error(self) -> None:
        class Fails(Wrapped):
            def forward(self, batch: Any, prediction: torch.Tensor) -> torch.Tensor:
                if self.inner.reduction == "none":
                    raise RuntimeError("no")
                return super().forward(batch, prediction)

        loss = Fails()
        with pytest.raises(RuntimeError, match="no"):
            trained(SampleLoss(), loss=loss)
        assert loss.inner.reduction == "mean"

    @pytest.mark.parametrize(
        ("loss", "said"),
        [
            (lambda batch, prediction: cross_entropy(prediction, batch[1]), "the loss <lambda> has no `reduction`"),
            (nn.Identity(), "the loss Identity has no `reduction`"),
        ],
    )
    def test_a_loss_without_a_reduction_is_refused_before_the_first_batch(self, loss: Any, said: str) -> None:
        tm = manager(SampleLoss(), loss=loss)
        with pytest.raises(SettingError) as caught:
            tm.train()
        assert said.replace("<lambda>", "TestWhereLossesComeFrom.<lambda>") in str(caught.value).splitlines()[0]
        assert 'lambda batch, prediction: cross_entropy(prediction, batch[1], reduction="none")' in str(caught.value)
        assert not tm.history

    def test_a_loop_that_overrides_loss_forward_needs_a_function(self) -> None:
        class Own(TrainManager):
            def loss_forward(self, batch: Any, prediction: Any) -> Any:
                return 2 * mean_loss(batch, prediction)

        with pytest.raises(SettingError, match=r"^SampleLoss cannot get losses per sample from Own\.loss_forward\n"):
            trained(SampleLoss(), kind=Own)

    @pytest.mark.parametrize(
        ("loss", "said"),
        [
            (mean_loss, "a tensor of shape ()"),
            (lambda batch, prediction: prediction.T, "a tensor of shape (2, 16)"),
            (lambda batch, prediction: 0.5, "a float"),
        ],
    )
    def test_a_function_without_one_loss_per_sample_is_an_error_that_shows_its_result(self, loss: Any, said: str) -> None:
        with pytest.raises(SettingError) as caught:
            trained(SampleLoss(loss))
        assert str(caught.value).splitlines()[0] == (
            f"SampleLoss needs one loss for each sample, but its loss returned {said} for a batch of 16 samples"
        )

    def test_indices_that_do_not_fit_are_refused(self) -> None:
        with pytest.raises(SettingError, match=r"^`index` of SampleLoss returned 1 indices for a batch of 16 samples"):
            trained(SampleLoss(index=lambda batch: batch[2][:1]))


class TestHistogram:
    def test_quantiles_are_accurate_to_within_seven_percent(self) -> None:
        losses = torch.rand(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 4 * 10
        histogram = LossHistogram(3)
        for part in losses.split(999):
            histogram.add(part, torch.arange(len(part)))
        assert histogram.num_samples == 10_000
        for share in (0.1, 0.5, 0.9):
            assert histogram.quantile(share) == pytest.approx(losses.quantile(share).item(), rel=0.07)

    def test_negative_losses_are_counted_too(self) -> None:
        histogram = LossHistogram(1)
        histogram.add(torch.linspace(-4, -2, 101), torch.arange(101))
        assert histogram.quantile(0.5) == pytest.approx(-3, rel=0.07)
        assert histogram.hardest == [HardSample(100, -2.0)]

    def test_rebinning_keeps_all_losses(self) -> None:
        histogram = LossHistogram(1)
        histogram.add(torch.linspace(0.5, 1.5, 100), torch.arange(100))
        counts = histogram.rebinned(np.array([0.0, 0.5, 1.0, 2.0]))
        assert sum(counts) == 100
        assert counts == pytest.approx([0, 50, 50], abs=3)

    def test_nan_is_the_hardest(self) -> None:
        histogram = LossHistogram(2)
        histogram.add(torch.tensor([1.0, float("nan"), 2.0, float("inf")]), torch.arange(4))
        assert [each.index for each in histogram.hardest] == [1, 3]

    def test_of_equal_losses_the_first_are_kept(self) -> None:
        histogram = LossHistogram(3)
        for start in (0, 4, 8):
            histogram.add(torch.ones(4), torch.arange(start, start + 4))
        assert [each.index for each in histogram.hardest] == [0, 1, 2]

    def test_memory_does_not_grow_with_the_data(self) -> None:
        histogram = LossHistogram(4)
        for _ in range(50):
            histogram.add(torch.rand(100), torch.arange(100))
        state = histogram.state_dict()
        assert sum(each.numel() for each in state.values() if isinstance(each, torch.Tensor)) < 2000


class TestFigure:
    def test_it_shows_the_first_and_the_last_epoch_and_the_hardest(self) -> None:
        extension = SampleLoss(num_hardest=6)
        trained(extension)
        histogram, bars = extension.panels()
        assert isinstance(histogram, Histogram)
        assert isinstance(bars, Bars)
        assert (histogram.title, histogram.y_label) == ("Loss of each sample of valid", "samples")
        assert histogram.x_label == "loss, as a power of 10"
        assert {label: sum(counts) for label, counts in histogram.counts.items()} == {"epoch 0": NUM, "epoch 8": NUM}
        assert bars.title == "The hardest samples of valid, epoch 8"
        assert bars.names[0] == f"sample {MISLABELLED}"
        assert list(bars.values) == sorted(bars.values, reverse=True)
        assert len(bars.values) == 6

    def test_losses_in_a_narrow_range_are_drawn_on_a_linear_axis(self) -> None:
        extension = SampleLoss(lambda batch, prediction: torch.linspace(1, 2, len(prediction)))
        trained(extension, epochs=0)
        histogram = extension.panels()[0]
        assert isinstance(histogram, Histogram)
        assert histogram.x_label == "loss"
        assert 0.9 < histogram.edges[0] <= 1 < 2 <= histogram.edges[-1] < 2.2

    def test_it_is_written_to_train_dir_for_each_set(self, tmp_path: Path) -> None:
        extension = SampleLoss(num_hardest=2)
        trained(extension, epochs=1, train_dir=tmp_path)
        assert {path.suffix for path in (tmp_path / "plots").glob("sample_loss_valid.*")} == {".png", ".html", ".json"}
        table = json.loads((tmp_path / "plots" / "sample_loss_valid.json").read_text())
        assert (table["set"], table["epoch"]) == ("valid", 1)
        assert table["hardest"] == [{"index": each.index, "loss": each.loss} for each in extension.hardest()["valid"]]

    def test_figure_returns_a_matplotlib_figure(self) -> None:
        extension = SampleLoss()
        trained(extension, epochs=1)
        assert len(extension.figure("valid").axes) == 2


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
        yield [torch.ones(3, 4) * 50, torch.zeros(3, dtype=torch.long), torch.arange(3)]
        if self.is_failing:
            raise ZeroDivisionError


@pytest.mark.parametrize("hook", ["post_eval_step_batch", "post_eval_step_epoch"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("is_failing", [False, True], ids=["complete", "failing"])
def test_a_nested_evaluation_does_not_change_the_metrics_of_the_outer_one(hook: str, is_first: bool, is_failing: bool) -> None:
    nested = Nested(hook, is_failing)
    plain, tm = trained(SampleLoss(), epochs=2), trained(*([nested, SampleLoss()] if is_first else [SampleLoss(), nested]), epochs=2)
    assert {name: tm.history.get(name) for name in plain.history} == plain.history
    assert ("nested/sample_loss/max" in tm.history) is not is_failing


def test_it_does_not_change_the_weights() -> None:
    def noisy(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
        return each_loss(batch, prediction) + torch.rand(len(prediction))

    plain, watched = trained(epochs=2), trained(SampleLoss(noisy), ("two", SampleLoss(noisy, over="train")), epochs=2)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, watched.model.state_dict()[name])


def test_in_a_train_test_loop_it_uses_the_prediction_of_the_components() -> None:
    class Work(LoopComponent):
        def on_forward_pass(self, loop: Any) -> None:
            loop.prediction = loop.model(loop.batch)

    extension = SampleLoss(each_loss)
    TrainTestLoop(Net(), [Work(), extension], DataLoader(data(), 10), DataLoader(data(), 16)).train(1)
    assert len(extension.hardest()["valid"]) == 16
    with pytest.raises(SettingError, match=r"^SampleLoss cannot get losses per sample: the loop has no loss function"):
        TrainTestLoop(Net(), [Work(), SampleLoss()], DataLoader(data(), 10), DataLoader(data(), 16)).train(1)


def test_under_a_manager_its_rows_are_in_the_event_log_and_its_figure_with_the_run(tmp_path: Path) -> None:
    class Small(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            return manager(SampleLoss(), epochs=2)

    small = Small(tmp_path, verbose=False)
    small.process({"lr": 0.1})
    events = small.store.run(small.key).events()
    assert [event["step"] for event in events if event["tag"] == "valid/sample_loss/max"] == [0, 1, 2]
    assert [*tmp_path.rglob("plots/sample_loss_valid.png")]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_hardest": 0}, "`num_hardest` must be a whole number of at least 1, not 0 (int)"),
        ({"num_hardest": True}, "`num_hardest` must be a whole number of at least 1, not True (bool)"),
        ({"over": "epochs"}, '`over` must be "eval" or "train", not \'epochs\' (str)'),
    ],
)
def test_bad_settings_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        SampleLoss(**settings)
    assert str(caught.value).splitlines()[0] == said
