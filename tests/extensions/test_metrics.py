"""Metrics are computed once over all samples of a set, recorded, and available as lazy fixtures."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import CheckpointSaver, Manager, Metrics
from trainmaster.errors import FixtureExistsError, FixtureScopeError, SettingError
from trainmaster.extensions.early_stopping import EarlyStopping
from trainmaster.loop import TrainManager
from trainmaster.loop.rng import get_rng, seed_rng
from trainmaster.stages import Extension
from trainmaster.testing import ExtensionContract
from trainmaster.testing.extension_contract import same_bits


class Torchmetrics:
    """The module torchmetrics, imported only when a test needs it, because the import takes seconds."""

    def __getattr__(self, name: str) -> Any:
        import torchmetrics
        from torchmetrics import classification, wrappers

        return next(getattr(module, name) for module in (torchmetrics, classification, wrappers) if hasattr(module, name))


torchmetrics = Torchmetrics()
torch.manual_seed(1)
INPUTS, TARGETS = torch.randn(22, 4), torch.arange(22) % 3
"""There are 22 samples; in batches of 5, the last batch has only 2."""


def accuracy() -> Any:
    return torchmetrics.MulticlassAccuracy(num_classes=3, average="micro")


def auroc() -> Any:
    """Return a metric that keeps all predictions in lists."""
    return torchmetrics.MulticlassAUROC(num_classes=3)


def noise() -> Any:
    """Return a metric that draws random numbers in each update."""
    return torchmetrics.BootStrapper(accuracy(), num_bootstraps=2, sampling_strategy="multinomial")


class TestMetrics(ExtensionContract):
    def make(self) -> object:
        return Metrics({"accuracy": accuracy(), "auroc": auroc(), "noise": noise()}, train=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))

    def forward(self, batch: list[torch.Tensor]) -> Any:
        return self.layers(batch[0])


def loss(batch: list[torch.Tensor], prediction: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(prediction, batch[1])


def manager(*extensions: object, epochs: int = 2, **settings: Any) -> TrainManager:
    seed_rng(0)
    data = TensorDataset(INPUTS, TARGETS)
    settings = {"eval_data": {"valid": DataLoader(data, 5), "first": [(INPUTS[:3], TARGETS[:3])]}, "device": "cpu", **settings}
    return TrainManager(Net(), loss, epochs, DataLoader(data, 6, shuffle=True), extensions=list(extensions), **settings)


def trained(*extensions: object, **settings: Any) -> TrainManager:
    tm = manager(*extensions, **settings)
    tm.train()
    return tm


def whole(tm: TrainManager, metric: Any, count: int = 22) -> torch.Tensor:
    """Compute the metric over all samples at once."""
    tm.model.eval()
    with torch.no_grad():
        return metric(tm.model([INPUTS[:count]]), TARGETS[:count])  # type: ignore[no-any-return]


class Keep(Extension):
    """Keeps the values that hooks get at the end of a set."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def post_eval_step_epoch(self, datasource_name: str, accuracy: Any) -> None:
        self.seen.append((datasource_name, accuracy))


# values


@pytest.mark.parametrize("make", [accuracy, auroc], ids=["accuracy", "auroc"])
def test_the_value_is_computed_over_all_samples_and_not_a_mean_over_batches(make: Any) -> None:
    tm = trained(Metrics({"value": make()}))
    assert [epoch for epoch, _ in tm.history["valid/value"]] == [0, 1, 2]
    assert tm.history["valid/value"][-1][1] == float(whole(tm, make()))
    assert tm.history["first/value"][-1][1] == float(whole(tm, make(), 3))


def test_a_smaller_last_batch_is_weighted_by_its_samples() -> None:
    tm = trained(Metrics({"accuracy": accuracy()}))
    batches = [accuracy()(tm.model([INPUTS[at : at + 5]]).detach(), TARGETS[at : at + 5]) for at in range(0, 22, 5)]
    assert float(torch.stack(batches).mean()) != pytest.approx(tm.history["valid/accuracy"][-1][1])


def test_train_metrics_use_the_predictions_of_the_training_batches() -> None:
    class Collect(Extension):
        def pre_train_step_epoch(self) -> None:
            self.predictions: list[torch.Tensor] = []
            self.targets: list[torch.Tensor] = []

        def post_train_step_batch(self, batch: Any, prediction: torch.Tensor) -> None:
            self.predictions.append(prediction.detach())
            self.targets.append(batch[1])

    tm = trained(Metrics({"accuracy": accuracy(), "auroc": auroc()}, train=True), collect := Collect())
    for name, metric in (("accuracy", accuracy()), ("auroc", auroc())):
        value = float(metric(torch.cat(collect.predictions), torch.cat(collect.targets)))
        assert [epoch for epoch, _ in tm.history[f"train/{name}"]] == [1, 2]
        assert tm.history[f"train/{name}"][-1][1] == value
        assert tm.history[f"valid/{name}"][-1][1] == float(whole(tm, metric.clone()))


def test_without_train_there_are_no_hooks_in_training_steps() -> None:
    described = manager(Metrics({"accuracy": accuracy()})).describe()
    assert "Metrics.post_eval_step_batch" in described
    assert "Metrics.post_train_step_batch" not in described
    assert "Metrics.post_train_step_batch" in manager(Metrics({"accuracy": accuracy()}, train=True)).describe()


def test_the_inputs_of_update_may_be_anything() -> None:
    tm = trained(
        Metrics({"mean": torchmetrics.MeanMetric()}, inputs=lambda batch, prediction: (batch[0], batch[1].float()[:, None].expand(-1, 4)))
    )
    assert tm.history["valid/mean"][-1][1] == pytest.approx(float((INPUTS * TARGETS[:, None]).sum() / TARGETS.sum() / 4))


class Share:
    """A metric without torchmetrics: the share of correct predictions."""

    def __init__(self) -> None:
        self.counts = torch.zeros(2)

    def update(self, prediction: torch.Tensor, target: torch.Tensor) -> None:
        assert not prediction.requires_grad
        self.counts += torch.tensor([float((prediction.argmax(1) == target).sum()), len(target)])

    def compute(self) -> Any:
        return {"share": self.counts[0] / self.counts[1], "num": int(self.counts[1]), "both": self.counts}

    def reset(self) -> None:
        self.counts.zero_()


class SavedShare(Share):
    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts = state["counts"].clone()


def test_any_object_with_update_compute_and_reset_is_a_metric() -> None:
    class Look(Extension):
        def post_eval_step_epoch(self, share: dict[str, Any]) -> None:
            self.seen = share

    for extensions in permutations([Metrics(Share()), Look()]):
        tm = trained(*extensions, eval_data={"valid": [(INPUTS, TARGETS)]})
        right = float(whole(tm, accuracy()))
        assert tm.history["valid/share/share"][-1] == (2, pytest.approx(right))
        assert tm.history["valid/share/num"] == [(0, 22.0), (1, 22.0), (2, 22.0)]
        assert "valid/share/both" not in tm.history
        assert tm.extensions["look"].seen["both"].tolist() == [round(22 * right), 22]  # type: ignore[attr-defined]


def test_a_value_that_is_not_a_number_is_a_fixture_but_not_recorded() -> None:
    class Look(Extension):
        def post_eval_step_epoch(self, confusion: torch.Tensor, recalls: Any) -> None:
            self.seen = confusion, recalls

    metrics = Metrics(
        {
            "confusion": torchmetrics.MulticlassConfusionMatrix(num_classes=3),
            "recalls": torchmetrics.ClasswiseWrapper(
                torchmetrics.MulticlassRecall(num_classes=3, average=None), labels=["a", "b", "c"], prefix="of_"
            ),
        }
    )
    tm = trained(look := Look(), metrics)
    confusion, recalls = look.seen
    assert confusion.shape == (3, 3)
    assert int(confusion.sum()) == 3  # the last set has 3 samples
    assert {tag for tag in tm.history if tag.startswith("valid")} == {"valid/loss", *(f"valid/recalls/{key}" for key in recalls)}
    assert list(recalls) == ["of_a", "of_b", "of_c"]


def test_a_collection_provides_its_metrics_by_name() -> None:
    collection = torchmetrics.MetricCollection(
        {"f1": torchmetrics.MulticlassF1Score(num_classes=3), "precision": torchmetrics.MulticlassPrecision(num_classes=3)}, prefix="my_"
    )
    tm = trained(Metrics(collection))
    for name, metric in (
        ("my_f1", torchmetrics.MulticlassF1Score(num_classes=3)),
        ("my_precision", torchmetrics.MulticlassPrecision(num_classes=3)),
    ):
        assert tm.history[f"valid/{name}"][-1][1] == float(whole(tm, metric))


def test_metrics_of_a_collection_that_are_equal_in_the_first_batch_stay_separate() -> None:
    """The first batch lacks the class that one of the metrics ignores.

    The collection itself would therefore treat both metrics as equal from then on.
    """

    class Fixed(TrainManager):
        def model_forward(self, batch: Any) -> Any:
            return self.model(batch[0]) * 0 + batch[0]

    rows = torch.eye(3)
    data = [(rows[:2], torch.tensor([0, 1])), (rows, torch.tensor([0, 1, 1])), (rows, torch.tensor([0, 2, 2]))]
    both = torchmetrics.MetricCollection(
        {"all": accuracy(), "most": torchmetrics.MulticlassAccuracy(num_classes=3, average="micro", ignore_index=2)}
    )
    tm = Fixed(nn.Linear(3, 3), loss, 0, data, {"valid": data}, extensions=[Metrics(both)], device="cpu")
    tm.train()
    assert [tm.history[f"valid/{name}"][0][1] for name in ("all", "most")] == [pytest.approx(6 / 8), pytest.approx(5 / 6)]
    for inputs, targets in data:
        both.update(inputs, targets)
    assert float(both.compute()["most"]) == pytest.approx(6 / 8)


def test_the_metrics_that_were_passed_are_not_changed() -> None:
    given = accuracy()
    trained(Metrics({"accuracy": given, "again": given}), ("other", Metrics({"third": given})))
    assert given.update_count == 0


# fixtures


def test_a_hook_at_the_end_of_a_set_gets_the_value_in_any_order_of_the_list() -> None:
    for extensions in permutations([Metrics({"accuracy": accuracy()}), keep := Keep(), ("also", Keep())]):
        keep.seen.clear()
        tm = trained(*extensions)
        recorded = [tm.history[f"{name}/accuracy"][epoch][1] for epoch in range(3) for name in ("valid", "first")]
        assert [float(value) for _, value in keep.seen] == recorded
        assert [name for name, _ in keep.seen] == ["valid", "first"] * 3


def test_it_is_computed_once_for_a_set() -> None:
    class Counts(SavedShare):
        num = 0

        def compute(self) -> Any:
            type(self).num += 1
            return super().compute()

    class Asks(Extension):
        def post_eval_step_epoch(self, counts: Any) -> None: ...

    trained(Asks(), Metrics(Counts()), ("other", Asks()), epochs=1)
    assert Counts.num == 4


def test_with_train_it_is_a_fixture_at_the_end_of_an_epoch_too() -> None:
    class Look(Extension):
        def post_train_step_epoch(self, accuracy: torch.Tensor) -> None:
            self.seen = float(accuracy)

    for extensions in permutations([Metrics({"accuracy": accuracy()}, train=True), look := Look()]):
        tm = trained(*extensions)
        assert look.seen == tm.history["train/accuracy"][-1][1]


@pytest.mark.parametrize("hook", ["pre_eval_step_epoch", "post_eval_step_batch", "post_eval", "post_train_step_batch"])
def test_asking_for_a_value_too_early_is_refused_before_the_first_batch(hook: str) -> None:
    def ask(self: object, accuracy: Any) -> None: ...

    tm = manager(Metrics({"accuracy": accuracy()}), type("Early", (), {hook: ask})())
    with pytest.raises(FixtureScopeError) as caught:
        tm.train()
    assert str(caught.value).startswith(f"`Early.{hook}` asks for `accuracy`, which does not exist at that point")
    assert "`accuracy` is valid in `eval_step_epoch` after its body" in str(caught.value)


def test_a_name_that_another_extension_creates_is_refused_before_the_first_batch() -> None:
    class Creates(Extension):
        creates = {"accuracy": "eval"}

    with pytest.raises(FixtureExistsError, match=r"lazy fixture `Metrics.accuracy` has the name of a fixture that already exists"):
        trained(Metrics({"accuracy": accuracy()}), Creates())


# control of training


def test_recorded_metrics_control_schedule_checkpoints_and_early_stopping(tmp_path: Any) -> None:
    name = "valid/accuracy"
    seen: list[float] = []

    class Schedule(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics: Any, epoch: Any = None) -> None:
            seen.append(float(metrics))
            super().step(metrics)

    listed = [Metrics({"accuracy": accuracy()}), EarlyStopping(monitor=name, patience=3), CheckpointSaver(monitor=name)]
    for extensions in (listed, listed[::-1]):
        seen.clear()
        folder = tmp_path / "_".join(type(each).__name__ for each in extensions)
        tm = trained(
            *extensions,
            epochs=60,
            train_dir=folder,
            lr_schedule=lambda optimizer: Schedule(optimizer, mode="max"),
            schedule_by=name,
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        )
        values = [value for _, value in tm.history[name]]
        best = values.index(max(values))
        assert tm.epoch_num == best + 3 < 60
        assert seen == values[1:]
        assert tm["early_stopping"].best_epoch == best
        assert tm["checkpoint_saver"].best[:3] == (name, max(values[1:]), values.index(max(values[1:]), 1))


# no effect on training


def test_adding_it_changes_neither_weights_nor_random_numbers() -> None:
    metrics = {"accuracy": accuracy(), "noise": noise()}
    found = [(trained(*each).model.state_dict(), get_rng()) for each in ([], [Metrics(metrics, train=True)])]
    assert same_bits(*found)


# resuming


def collection() -> Any:
    return torchmetrics.MetricCollection(
        {
            "f1": torchmetrics.MulticlassF1Score(num_classes=3),
            "precision": torchmetrics.MulticlassPrecision(num_classes=3),
            "auroc": auroc(),
        }
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"accuracy": accuracy(), "auroc": auroc(), "noise": noise()},
        collection,
        lambda: {"all_of_them": collection()},
        lambda: {"sum": accuracy() + auroc()},
        SavedShare,
    ],
    ids=["mapping", "collection", "nested", "sum", "own"],
)
@pytest.mark.parametrize("step", [1, 4, 6])
def test_training_that_resumes_has_the_same_metrics_bit_for_bit(make: Any, step: int) -> None:
    class Capture(Extension):
        state: Any = None

        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num == step:
                self.state = train_manager.capture()

    tm = trained(Metrics(make(), train=True), capture := Capture())
    again = manager(Metrics(make(), train=True), Capture())
    again.restore(pickle.loads(pickle.dumps(capture.state)))
    again.train()
    assert any(tag.startswith("train/") for tag in tm.history)
    assert again.history == tm.history
    assert same_bits(again["metrics"].state_dict(), tm["metrics"].state_dict())


def test_resuming_from_the_middle_of_an_epoch_gives_the_same_metrics(tmp_path: Any) -> None:
    class FailAt(Extension):
        def pre_train_step_batch(self, step_num: int) -> None:
            if step_num == 6:
                raise ZeroDivisionError

    def metrics() -> list[object]:
        return [Metrics({"accuracy": accuracy(), "auroc": auroc(), "noise": noise()}, train=True), CheckpointSaver(every_steps=1)]

    with pytest.raises(ZeroDivisionError):
        trained(FailAt(), *metrics(), train_dir=tmp_path)
    assert trained(*metrics(), train_dir=tmp_path).history == trained(*metrics(), train_dir=tmp_path / "other").history


def test_training_that_was_stopped_in_an_epoch_continues_its_metrics() -> None:
    class StopAt(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num in (2, 4, 5):
                train_manager.stop()

    tm = manager(Metrics({"auroc": auroc()}, train=True), StopAt())
    for _ in range(4):
        tm.train()
    assert tm.history == trained(Metrics({"auroc": auroc()}, train=True)).history


def test_values_of_one_training_run_do_not_count_in_another() -> None:
    metrics = Metrics({"auroc": auroc()}, train=True)
    trained(metrics, max_steps=2)  # in the middle of an epoch
    assert trained(metrics).history == trained(Metrics({"auroc": auroc()}, train=True)).history


def test_an_evaluation_in_the_middle_of_an_epoch_does_not_change_train_metrics() -> None:
    class Evaluates(Extension):
        def post_train_step_batch(self, train_manager: TrainManager) -> None:
            train_manager.eval()

    tm = trained(Metrics({"auroc": auroc()}, train=True), Evaluates())
    assert tm.history["train/auroc"] == trained(Metrics({"auroc": auroc()}, train=True)).history["train/auroc"]


def test_a_stopped_evaluation_records_nothing_and_leaves_no_state() -> None:
    class Stop(Extension):
        def post_eval_step_batch(self, train_manager: TrainManager, batch_num: int) -> None:
            if batch_num == 2:
                train_manager.stop()

    tm = trained(Metrics({"accuracy": accuracy()}), Stop())
    assert tm.history == {}
    del tm.extensions["stop"]
    tm.eval()
    assert tm.history["valid/accuracy"] == [(0, float(whole(tm, accuracy())))]


@pytest.mark.parametrize("make", [lambda: share, accuracy], ids=["function", "object"])
def test_in_a_stopped_evaluation_hooks_get_the_value_of_the_batches_so_far(make: Any) -> None:
    class Stop(Extension):
        def post_eval_step_batch(self, train_manager: TrainManager, batch_num: int) -> None:
            if batch_num == 2:
                train_manager.stop()

    for extensions in permutations([Metrics({"accuracy": make()}), keep := Keep(), Nested("post_eval_step_epoch"), Stop()]):
        keep.seen.clear()
        tm = trained(*extensions)
        assert [(name, float(value)) for name, value in keep.seen if name == "valid"] == [("valid", float(whole(tm, make(), 15)))]
        assert "valid/accuracy" not in tm.history
        del tm.extensions["stop"]
        tm.eval()
        assert tm.history["valid/accuracy"] == [(0, float(whole(tm, make())))]


def test_metrics_that_are_not_in_the_state_start_from_scratch() -> None:
    class Capture(Extension):
        state: Any = None

        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            self.state = train_manager.capture() if step_num == 2 else self.state

    trained(Metrics({"value": accuracy()}, train=True), capture := Capture())
    again = manager(Metrics({"value": auroc()}, train=True), Capture())
    with pytest.warns(UserWarning, match="extension `metrics` starts from scratch: its saved state does not fit"):
        again.restore(capture.state)
    with pytest.warns(UserWarning, match="extension `metrics` starts from scratch"):  # again in the middle of the epoch
        again.train()
    assert again.epoch_num == 2
    assert [epoch for epoch, _ in again.history["train/value"]] == [2]


class StopAt(Extension):
    def __init__(self, step: int) -> None:
        self.step = step

    def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
        if step_num == self.step:
            train_manager.stop()


@pytest.mark.parametrize("before", [[], [Metrics({"share": lambda prediction, targets: 0.0})]], ids=["no metrics", "without train"])
@pytest.mark.parametrize("step", [2, 4], ids=["mid-epoch", "last batch"])
def test_metrics_that_are_added_in_the_middle_of_an_epoch_are_recorded_from_the_next_one_on(before: list[Any], step: int) -> None:
    state = trained(*before, StopAt(step)).capture()
    again = manager(Metrics({"share": share}, train=True), StopAt(5))
    again.restore(state)
    again.train()
    assert "train/share" not in again.history
    again.train()  # in the same process, after a stop in an epoch that the metric has seen from the start
    assert again.history["train/share"] == [trained(Metrics({"share": share}, train=True)).history["train/share"][1]]


def test_metrics_next_to_one_that_is_added_in_the_middle_of_an_epoch_continue() -> None:
    plain = trained(Metrics({"share": share, "accuracy": accuracy()}, train=True))
    state = trained(Metrics({"share": share, "gone": share}, train=True), StopAt(2)).capture()
    second = manager(Metrics({"share": share, "accuracy": accuracy()}, train=True), StopAt(3))
    second.restore(state)
    second.train()
    third = manager(Metrics({"share": share, "accuracy": accuracy()}, train=True), StopAt(3))
    third.restore(second.capture())  # resumes in the same epoch again
    third.train()
    assert third.history["train/share"] == plain.history["train/share"]
    assert third.history["train/accuracy"] == plain.history["train/accuracy"][1:]


def test_a_function_that_is_added_after_the_last_batch_of_an_epoch_is_nan_at_its_end() -> None:
    class Look(Extension):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def post_train_step_epoch(self, share: float) -> None:
            self.seen.append(float(share))

    state = trained(StopAt(4)).capture()
    again = manager(Metrics({"share": share}, train=True), StopAt(4), look := Look())
    again.restore(state)
    again.train()
    assert [math.isnan(value) for value in look.seen] == [True, False]


# under a manager


def test_under_a_manager_no_value_of_one_run_is_used_in_the_next() -> None:
    class Small(Manager):
        extensions = [Metrics({"accuracy": accuracy(), "auroc": auroc()}, train=True)]

        def make_loop(self, config: Any) -> TrainManager:
            tm = manager(epochs=1)
            return TrainManager(tm.model, loss, 1, tm.train_data, tm.eval_data, device="cpu", max_steps=config.max_steps)

    def rows(small: Manager) -> list[Any]:
        return [(row["tag"], row["step"], row["value"]) for row in small.store.run(small.key).events() if not row["tag"].endswith("/loss")]

    small = Small(None, verbose=False)
    small.process({"max_steps": 2})  # ends in the middle of an epoch
    small.process({"max_steps": 9})
    alone = Small(None, verbose=False)
    alone.extensions = [Metrics({"accuracy": accuracy(), "auroc": auroc()}, train=True)]
    alone.process({"max_steps": 9})
    assert len(rows(small)) == 2 * (2 * 2 + 1)
    assert rows(small) == rows(alone)


def test_it_can_be_pickled() -> None:
    sent = pickle.loads(pickle.dumps(Metrics({"accuracy": accuracy(), "auroc": auroc()}, train=True)))
    expected = trained(Metrics({"accuracy": accuracy(), "auroc": auroc()}, train=True)).history
    assert trained(sent).history == expected


def test_metrics_are_moved_to_the_device_of_the_loop() -> None:
    metrics = Metrics({"accuracy": accuracy()}, train=True)
    metrics.pre_run(torch.device("meta"), TrainManager(nn.Linear(1, 1), lambda batch, prediction: prediction, 0, []))
    assert metrics.metrics["accuracy"].tp.device.type == metrics.train_metrics["accuracy"].tp.device.type == "meta"


# invalid settings


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ({"x": INPUTS, "y": TARGETS}, "dict('x': Tensor[22, 4], 'y': Tensor[22])"),
        ((INPUTS, TARGETS, TARGETS), "tuple(Tensor[22, 4], Tensor[22], Tensor[22])"),
        (INPUTS, "Tensor[22, 4]"),
    ],
    ids=["dict", "triple", "tensor"],
)
def test_a_batch_that_is_not_a_pair_is_an_error_that_shows_what_to_pass(batch: Any, what: str) -> None:
    class Any_(nn.Linear):
        def forward(self, batch: Any) -> Any:
            return super().forward(INPUTS)

    extensions = [Metrics({"accuracy": accuracy()})]
    tm = TrainManager(Any_(4, 3), lambda _, out: out.mean(), 1, [batch], {"valid": [batch]}, extensions=extensions, device="cpu")
    with pytest.raises(SettingError) as caught:
        tm.train()
    assert str(caught.value).split("\n") == [
        "Metrics does not know where the targets are in a batch",
        f"  why     the batch is {what}, not a pair",
        '  try     Metrics(..., inputs=lambda batch, prediction: (prediction, batch["label"])) returns the arguments of a metric',
    ]


def test_a_named_collection_does_not_guess_which_of_its_metrics_share_their_state() -> None:
    """Nothing is ignored in the first batch, so both metrics have the same state after it."""
    ignoring, whole = (
        torchmetrics.MulticlassAccuracy(3, ignore_index=2, average="micro"),
        torchmetrics.MulticlassAccuracy(3, average="micro"),
    )
    alone = Metrics({"ignoring": ignoring, "whole": whole})
    together = Metrics({"both": torchmetrics.MetricCollection({"ignoring": ignoring, "whole": whole})})
    logits = torch.eye(3)
    for target in (torch.tensor([0, 1, 0]), torch.tensor([2, 2, 2])):
        for each in (alone, together):
            each.post_eval_step_batch((logits, target), logits)
    values = {name: metric.compute() for name, metric in alone.metrics.items()}
    assert values["ignoring"] != values["whole"]
    assert together.metrics["both"].compute() == values


def test_inputs_that_return_no_tuple_are_refused() -> None:
    with pytest.raises(SettingError, match=r"^`inputs` of Metrics must return a tuple, not Tensor"):
        trained(Metrics({"accuracy": accuracy()}, inputs=lambda batch, prediction: prediction))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: {"metrics": {}}, "there is no metric to compute"),
        (lambda: {"metrics": None}, "metrics must be given by name, not as None (NoneType)"),
        (lambda: {"metrics": [accuracy()]}, "metrics must be given by name, not as [MulticlassAccuracy()] (list)"),
        (lambda: {"metrics": torchmetrics.MulticlassAccuracy}, "metrics must be given by name, not as <class "),
        (
            lambda: {"metrics": {"a b": accuracy()}},
            "a metric cannot be called 'a b'\n  why     hooks read its value through a parameter with this name",
        ),
        (lambda: {"metrics": {"class": accuracy()}}, "a metric cannot be called 'class'"),
        (lambda: {"metrics": {3: accuracy()}}, "a metric cannot be called 3"),
        (lambda: {"metrics": {"loss": accuracy()}}, "a metric cannot be called `loss`\n  why     the loop has a fixture with that name"),
        (lambda: {"metrics": {"num_samples": accuracy()}}, "a metric cannot be called `num_samples`"),
        (lambda: {"metrics": {"true_batch_size": accuracy()}}, "a metric cannot be called `true_batch_size`"),
        (
            lambda: {"metrics": torchmetrics.MetricCollection([accuracy()], prefix="val/")},
            "a metric cannot be called 'val/MulticlassAccuracy'",
        ),
        (
            lambda: {"metrics": torchmetrics.MetricTracker(accuracy())},
            "the metric `metric_tracker` is a MetricTracker, which needs a call of `increment` for each epoch",
        ),
        (
            lambda: {"metrics": {"acc": torchmetrics.MulticlassAccuracy}},
            "the metric `acc` is the class MulticlassAccuracy\n  try     create one",
        ),
        (
            lambda: {"metrics": {"acc": 3}},
            "the metric `acc` is 3 (int), which has no `update` and no `compute` and no `reset`",
        ),
        (
            lambda: {"metrics": Share(), "train": True},
            "the metric `share` cannot be computed over training batches: Share has no `state_dict`",
        ),
        (lambda: {"metrics": accuracy(), "train": 1}, "train=1: expected True or False"),
        (
            lambda: {"metrics": accuracy(), "inputs": "prediction"},
            "`inputs` must be a function of (batch, prediction), not 'prediction' (str)",
        ),
    ],
)
def test_bad_arguments_are_refused_at_construction(arguments: Callable[[], dict[str, Any]], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        Metrics(**arguments())
    assert str(caught.value).startswith(message)


class Nested(Extension):
    """Evaluates in the middle of an evaluation, in the given hook."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self._evaluate)

    def _evaluate(self, train_manager: TrainManager, datasource_name: str) -> None:
        if datasource_name == "valid":
            train_manager.eval({"nested": [(INPUTS[:7], TARGETS[:7])]})


@pytest.mark.parametrize("hook", ["post_eval_step_batch", "post_eval_step_epoch"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before Metrics", "after Metrics"])
def test_a_nested_evaluation_does_not_change_the_metrics_of_the_outer_one(hook: str, is_first: bool) -> None:
    def metrics() -> Metrics:
        return Metrics({"share": share, "accuracy": accuracy()})

    plain = trained(metrics())
    nested = trained(*((Nested(hook), metrics()) if is_first else (metrics(), Nested(hook))))
    assert {name: nested.history[name] for name in plain.history} == plain.history
    assert nested.history["nested/share"][-1][1] == float(whole(nested, share, 7))


def test_after_a_failed_evaluation_the_next_one_starts_from_scratch() -> None:
    class Fails(Extension):
        is_failing = True

        def pre_eval_step_batch(self, batch_num: int) -> None:
            if self.is_failing and batch_num == 1:
                raise RuntimeError("broken")

    metrics, fails = Metrics({"share": share}), Fails()
    tm = manager(fails, metrics)
    with pytest.raises(RuntimeError, match="broken"):
        tm.eval()
    kept = metrics.metrics
    fails.is_failing = False
    tm.eval()
    assert tm.history["valid/share"] == [(0, float(whole(tm, share)))]
    assert metrics.metrics is kept


# functions


def share(prediction: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (prediction.argmax(1) == targets).float().mean()


def test_a_function_is_called_once_with_all_samples_of_a_set() -> None:
    shapes = []

    def seen(prediction: torch.Tensor, targets: torch.Tensor) -> float:
        shapes.append((tuple(prediction.shape), tuple(targets.shape), prediction.requires_grad))
        return 0.5

    tm = trained(Metrics({"seen": seen}), epochs=1)
    assert shapes == [((22, 3), (22,), False), ((3, 3), (3,), False)] * 2
    assert tm.history["valid/seen"] == [(0, 0.5), (1, 0.5)]


def test_a_function_has_the_value_of_the_whole_set_with_a_smaller_last_batch() -> None:
    tm = trained(Metrics({"share": share, "accuracy": accuracy()}), epochs=4)
    assert dict(tm.history["valid/share"]) == pytest.approx(dict(tm.history["valid/accuracy"]))
    assert tm.history["valid/share"][-1][1] == float(whole(tm, share))


def test_function_metrics_in_training_resume_in_the_middle_of_an_epoch() -> None:
    class StopsAt(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num == 6:
                train_manager.stop()

    straight = trained(Metrics({"share": share}, train=True))
    first = trained(Metrics({"share": share}, train=True), StopsAt())
    assert len(first.history["train/share"]) == 1
    second = manager(Metrics({"share": share}, train=True), StopsAt())
    second.restore(first.capture())
    second.train()
    assert second.history["train/share"] == straight.history["train/share"]


class WithNorm(Net):
    def norm(self, prediction: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.cat([each.detach().flatten() for each in self.parameters()]).norm()


class NormOf:
    """A callable object that can be used as a metric function."""

    def __init__(self, model: WithNorm) -> None:
        self.model = model

    def __call__(self, prediction: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.model.norm(prediction, targets)


def norm_of(model: WithNorm, prediction: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return model.norm(prediction, targets)


@pytest.mark.parametrize(
    "make", [lambda model: model.norm, lambda model: partial(norm_of, model), NormOf], ids=["method", "partial", "object"]
)
def test_a_function_that_refers_to_the_model_uses_the_current_weights(make: Any) -> None:
    model, norms = WithNorm(), []

    class Norms(Extension):
        def post_eval_step_epoch(self, model: WithNorm) -> None:
            norms.append(float(model.norm(INPUTS, TARGETS)))

    data = [(INPUTS, TARGETS)]
    tm = TrainManager(model, loss, 2, data, data, extensions=[Metrics({"norm": make(model)}, train=True), Norms()], device="cpu")
    tm.train()
    assert len(set(norms)) == 3
    assert [value for _, value in tm.history["valid/norm"]] == norms
    assert [value for _, value in tm.history["train/norm"]] == norms[1:]


def test_memory_that_the_next_batch_reuses_is_copied() -> None:
    inputs, targets = INPUTS[:4].clone(), TARGETS[:4].clone()

    class Reuses:
        def __iter__(self) -> Any:
            for at in (0, 4):
                inputs.copy_(INPUTS[at : at + 4])
                targets.copy_(TARGETS[at : at + 4])
                yield inputs, targets

    found = []

    def total(prediction: torch.Tensor, targets: torch.Tensor) -> float:
        found.append(targets.tolist())
        return 0.0

    manager(Metrics({"total": total}), eval_data={"valid": Reuses()}).eval()
    assert found == [TARGETS[:8].tolist()]


def test_nested_inputs_are_joined_part_by_part() -> None:
    def inputs(batch: Any, prediction: Any) -> tuple[Any, ...]:
        return {"logits": prediction, "pair": (prediction, batch[1])}, [str(each) for each in batch[1].tolist()], batch[1].numpy()

    found = []

    def keep(*arguments: Any) -> int:
        found.append(arguments)
        return 0

    tm = manager(Metrics({"kept": keep}, inputs=inputs), eval_data={"valid": DataLoader(TensorDataset(INPUTS, TARGETS), 5)})
    tm.eval()
    nested, names, array = found[0]
    assert (nested["logits"].shape, type(nested["pair"]), nested["pair"][1].tolist()) == ((22, 3), tuple, TARGETS.tolist())
    assert (names, array.tolist()) == ([str(each) for each in TARGETS.tolist()], TARGETS.tolist())


def test_batches_that_cannot_be_joined_are_an_error_that_suggests_a_fix() -> None:
    batches = [(INPUTS[:2], torch.zeros(2, 3)), (INPUTS[:2], torch.zeros(2, 5))]
    tm = manager(Metrics({"x": lambda prediction, targets: 0}), eval_data={"valid": batches})
    tm.loss = lambda batch, prediction: prediction.mean()
    with pytest.raises(SettingError) as caught:
        tm.eval()
    text = str(caught.value)
    assert text.startswith(
        "the batches for the metric `x` cannot be joined: the first is tuple(Tensor[2, 3], Tensor[2, 3])\n  why     Sizes of"
    )
    assert text.endswith("try     pass an object with `update`, `compute` and `reset`, which gets one batch at a time")


def test_a_function_that_forgets_to_average_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"^the metric `right` returned Tensor\[22\], not a number\n  try     return the mean over all samples"
    ):
        trained(Metrics({"right": lambda prediction, targets: prediction.argmax(1) == targets}))


def test_a_function_that_takes_the_targets_first_is_refused_unless_inputs_is_set() -> None:
    """The call r2_score(prediction, targets) would silently return a wrong number."""
    from sklearn.metrics import r2_score

    with pytest.raises(SettingError) as caught:
        Metrics({"r2": r2_score})
    assert str(caught.value).split("\n") == [
        "the metric `r2` takes the targets first: r2_score(y_true, ...)",
        "  why     a metric is called with (prediction, targets)",
        '  try     "r2": lambda prediction, targets: r2_score(targets, prediction)',
    ]
    tm = trained(Metrics({"r2": r2_score}, inputs=lambda batch, prediction: (batch[1].float(), prediction.mean(1))))
    assert tm.history["valid/r2"][-1][1] == pytest.approx(r2_score(TARGETS.float(), whole(tm, lambda prediction, _: prediction.mean(1))))


def test_a_function_without_a_name_is_an_error_that_suggests_its_own() -> None:
    with pytest.raises(SettingError, match=r'^metrics must be given by name, not as <function share at .*\n  try     \{"share": share\}$'):
        Metrics(share)


# the argument `metrics` of the loop


def test_the_argument_metrics_is_the_extension() -> None:
    by_argument, by_extension = trained(metrics={"share": share}), trained(Metrics({"share": share}))
    assert by_argument.history == by_extension.history
    assert list(by_argument.extensions)[:4] == ["setup", "eval_state", "train_loss", "eval_metrics"]


def test_the_extension_can_be_used_together_with_the_argument() -> None:
    tm = trained(Metrics({"share": share}), metrics={"right": share})
    assert tm.history["valid/share"] == tm.history["valid/right"]
    with pytest.raises(FixtureExistsError, match="two lazy fixtures in stage `eval_step_epoch` are named `share`"):
        trained(Metrics({"share": share}), metrics={"share": share})


def test_assigning_extensions_keeps_the_metrics() -> None:
    tm = manager(metrics={"share": share})
    tm.extensions = [*tm.extensions.items(), AsksForShare()]
    tm.eval()
    tm.extensions = []
    tm.eval()
    assert len(tm.history["valid/share"]) == 2


class AsksForShare(Extension):
    def post_eval_step_epoch(self, share: float) -> None: ...


def test_a_metric_of_the_argument_can_be_monitored() -> None:
    values = iter([0.1, 0.9, 0.5, 0.4, 0.3])
    stopping = EarlyStopping(monitor="accuracy", patience=1)
    tm = trained(stopping, metrics={"accuracy": lambda prediction, targets: next(values)}, epochs=4, eval_data=[(INPUTS, TARGETS)])
    assert tm.history["valid/accuracy"] == [(0, 0.1), (1, 0.9), (2, 0.5)]
