"""`Avg` computes the mean of any fixture over an evaluation set (contract E41)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster.errors import DuplicateExtensionError, FixtureExistsError, FixtureNotFoundError, SettingError
from trainmaster.extensions.avg import Avg
from trainmaster.loop import EvalState, TrainManager
from trainmaster.stages import Extension
from trainmaster.testing import ExtensionContract


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, batch: Any) -> torch.Tensor:
        return self.weight * batch[0]


def loss(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return (prediction - batch[1]).pow(2).mean()


UNEVEN = [(torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)), (torch.tensor([10.0]), torch.zeros(1))]


class Peak(Extension):
    """Creates `peak`, the largest input of a batch, which is 3 in the first batch and 10 in the second."""

    creates = {"peak": "eval_step_batch"}

    def pre_eval_step_batch(self, fixtures: Any, batch: Any) -> None:
        fixtures["peak"] = batch[0].max()


def evaluated(extensions: Any, eval_data: Any = None) -> TrainManager:
    tm = TrainManager(Net(), loss, 0, UNEVEN, eval_data or {"valid": UNEVEN}, extensions=extensions, device="cpu")
    tm.eval()
    return tm


def test_it_averages_over_batches_by_default() -> None:
    """Covers contract E41."""
    tm = evaluated([Peak(), Avg("peak")])
    assert tm.history["valid/peak"] == [(0, 6.5)]


def test_it_averages_over_samples_on_request() -> None:
    """Covers contract E41."""
    tm = evaluated([Peak(), Avg("peak", counter="num_samples")])
    assert tm.history["valid/peak"] == [(0, 19 / 4)]


def test_a_fixture_of_the_loop_can_be_averaged() -> None:
    """Covers contract E41."""
    tm = evaluated([Avg("loss")])
    ((_, mean),) = tm.history["valid/loss_per_batch"]
    ((_, other),) = tm.history["valid/loss"]  # only the mean over samples
    alone = evaluated([EvalState(per_batch=True)])
    assert {"valid/loss": [(0, other)], "valid/loss_per_batch": [(0, mean)]} == alone.history
    assert mean != other


def test_a_plain_number_can_be_averaged() -> None:
    """Covers contract E41."""
    tm = evaluated([Avg("batch_num")])
    assert tm.history["valid/batch_num"] == [(0, 0.5)]


def test_the_figure_may_be_named_after_the_accumulator() -> None:
    assert evaluated([Peak(), Avg("peak", fig="{accum}")]).history["accum_peak"] == [(0, 6.5)]  # E41
    named = evaluated([Peak(), Avg("peak", accum="total", fig="{datasource_name}/{accum}")])
    assert named.history["valid/total"] == [(0, 6.5)]


def test_logging_two_sets_under_one_name_is_refused() -> None:
    with pytest.raises(SettingError) as caught:
        evaluated([Peak(), Avg("peak", fig="{accum}")], {"b": UNEVEN, "a": UNEVEN[:1]})
    assert caught.value.fact == "Avg('peak') logs the means of 'b' and 'a' under one name, 'accum_peak'"
    assert caught.value.rows["hint"] == 'fig="{datasource_name}/{accum}"'


def test_each_set_has_its_own_mean() -> None:
    """Covers contract E41."""
    tm = evaluated([Peak(), Avg("peak")], {"b": UNEVEN, "a": UNEVEN[:1]})
    assert (tm.history["b/peak"], tm.history["a/peak"]) == ([(0, 6.5)], [(0, 3.0)])


def test_means_are_drawn_against_epoch_num() -> None:
    """Covers contract E41."""
    tm = TrainManager(Net(), loss, 2, UNEVEN, {"valid": UNEVEN}, extensions=[Avg("loss")], device="cpu")
    tm.train()
    assert [step for step, _ in tm.history["valid/loss_per_batch"]] == [0, 1, 2]


def test_the_running_sum_is_a_fixture_named_after_the_target() -> None:
    """Covers contract E41."""
    seen: list[float] = []

    class Look(Extension):
        def post_eval_step_batch(self, accum_peak: Any) -> None:
            seen.append(float(accum_peak))

    evaluated([Peak(), Avg("peak"), Look()])
    assert seen == [3.0, 13.0]


def test_the_running_sum_may_have_another_name() -> None:
    """Covers contract E41."""
    seen: list[float] = []

    class Look(Extension):
        def post_eval_step_epoch(self, total: Any) -> None:
            seen.append(float(total))

    evaluated([Peak(), Avg("peak", accum="total"), Look()])
    assert seen == [13.0]


def test_without_visualize_the_sum_is_kept_and_nothing_is_written() -> None:
    """Covers contract E41."""
    seen: list[float] = []

    class Look(Extension):
        def post_eval_step_epoch(self, accum_peak: Any) -> None:
            seen.append(float(accum_peak))

    tm = evaluated([Peak(), Avg("peak", visualize=False), Look()])
    assert seen == [13.0]
    assert not any("peak" in tag for tag in tm.history)


def test_the_name_of_the_figure_may_use_any_fixture() -> None:
    """Covers contract E41."""
    tm = evaluated([Peak(), Avg("peak", fig="{mode_name}/{datasource_name}/{target} after {epoch_num} epochs")])
    assert tm.history["eval/valid/peak after 0 epochs"] == [(0, 6.5)]


def test_two_averages_with_one_accumulator_are_an_error_that_suggests_a_fix() -> None:
    """Covers contract E41."""
    with pytest.raises(FixtureExistsError) as caught:
        evaluated({"peak": Peak(), "one": Avg("peak"), "two": Avg("peak", counter="num_samples", fig="weighted")})
    assert str(caught.value) == (
        'the accumulator `accum_peak` of Avg(\'peak\') already exists\n  try     Avg("peak", accum="another_name")'
    )


def test_two_averages_of_one_target_work_with_separate_accumulators() -> None:
    """Covers contract E41."""
    tm = evaluated({"peak": Peak(), "one": Avg("peak"), "two": Avg("peak", "another_name", fig="weighted", counter="num_samples")})
    assert (tm.history["valid/peak"], tm.history["weighted"]) == ([(0, 6.5)], [(0, 4.75)])


def test_two_averages_of_one_target_in_a_list_need_names() -> None:
    """Covers contract E31."""
    with pytest.raises(DuplicateExtensionError, match=r"^two extensions are named `avg_peak`\n"):
        evaluated([Avg("peak"), Avg("peak")])


class Accuracy(Avg):
    """The example from the docstring of `Avg`."""

    def __init__(self) -> None:
        super().__init__("accuracy", counter="num_samples")

    def post_eval_step_batch(self, fixtures: Any, batch: Any, prediction: torch.Tensor) -> None:  # type: ignore[override]
        fixtures["accuracy"] = (prediction.argmax(1) == batch[1]).float().mean()
        fixtures(super().post_eval_step_batch)


def test_a_subclass_may_create_the_fixture_and_call_the_parents_hook() -> None:
    """Covers contract E41."""
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    data = [(scores, torch.tensor([1, 0, 0, 0])), (scores[:1], torch.tensor([1]))]
    tm = TrainManager(Net(), lambda batch, prediction: prediction.mean(), 0, data, {"valid": data}, extensions=[Accuracy()], device="cpu")
    tm.eval()
    assert tm.history["valid/accuracy"] == [(0, 0.8)]


def test_other_hooks_can_ask_for_a_fixture_that_a_subclass_creates() -> None:
    """Covers contract E41."""
    seen: list[float] = []

    class Look(Extension):
        def post_eval_step_batch(self, accuracy: Any) -> None:
            seen.append(float(accuracy))

    data = [(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))]
    extensions = [Accuracy(), Look()]
    TrainManager(Net(), lambda batch, prediction: prediction.mean(), 0, data, {"valid": data}, extensions=extensions, device="cpu").eval()
    assert seen == [1.0]


def test_a_stopped_evaluation_records_no_mean() -> None:
    """Covers contract E41."""

    class Stop(Extension):
        def post_eval_step_batch(self, train_manager: Any) -> None:
            train_manager.stop()

    assert evaluated([Peak(), Avg("peak"), Stop()]).history == {}


def test_a_target_that_does_not_exist_is_named_in_the_error() -> None:
    """Covers contract E41."""
    with pytest.raises(FixtureNotFoundError, match="no open stage provides `peek`"):
        evaluated([Peak(), Avg("peek")])


@pytest.mark.parametrize("target", [3, None, "two words", ""])
def test_a_target_that_is_not_a_valid_name_is_refused(target: Any) -> None:
    """Covers contract E41."""
    with pytest.raises(SettingError) as caught:
        Avg(target)
    assert str(caught.value) == f'`target` must be the name of a fixture, not {target!r}\n  try     Avg("accuracy")'


def test_an_unknown_counter_is_an_error_that_lists_the_known_ones() -> None:
    """Covers contract E41."""
    with pytest.raises(SettingError) as caught:
        Avg("peak", counter="num_steps")
    assert str(caught.value) == (
        '`counter` must be "num_batches" or "num_samples", not \'num_steps\' (str)\n  try     Avg("accuracy", counter="num_samples")'
    )


class TestAvg(ExtensionContract):
    def make(self) -> Avg:
        return Avg("loss")


def test_the_means_of_all_sets_are_in_one_figure(tmp_path: Path) -> None:
    sets = {"valid": UNEVEN, "other": UNEVEN[:1]}
    avg = Avg("loss")
    tm = TrainManager(Net(), loss, 2, UNEVEN, sets, extensions=[avg], device="cpu", train_dir=tmp_path)
    tm.train()
    (panel,) = avg.panels()
    assert (panel.title, panel.x_label, panel.y_label) == ("Mean of loss", "epoch", "loss")
    assert [(line.label, list(line.xs)) for line in panel.lines] == [("valid", [0, 1, 2]), ("other", [0, 1, 2])]
    assert list(panel.lines[0].ys) == [value for _, value in tm.history["valid/loss_per_batch"]]
    assert {"avg_loss.png", "avg_loss.html"} <= {path.name for path in (tmp_path / "plots").iterdir()}


def test_without_visualize_nothing_is_drawn(tmp_path: Path) -> None:
    extensions = [Avg("loss", visualize=False)]
    TrainManager(Net(), loss, 1, UNEVEN, {"valid": UNEVEN}, extensions=extensions, device="cpu", train_dir=tmp_path).train()
    assert not (tmp_path / "plots").exists()
