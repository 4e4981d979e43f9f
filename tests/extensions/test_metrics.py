"""Metrics over whole sets: computed once over all samples, recorded, and there as lazy fixtures."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import CheckpointSaver, Manager
from trainmaster.errors import FixtureExistsError, FixtureScopeError, SettingError
from trainmaster.extensions.early_stopping import EarlyStopping
from trainmaster.extensions.metrics import Metrics
from trainmaster.loop import TrainManager
from trainmaster.loop.rng import get_rng, seed_rng
from trainmaster.stages import Extension
from trainmaster.testing import ExtensionContract
from trainmaster.testing.extension_contract import same_bits


class Torchmetrics:
    """What torchmetrics has, imported when a test asks for it: its import takes seconds."""

    def __getattr__(self, name: str) -> Any:
        import torchmetrics
        from torchmetrics import classification, wrappers

        return next(getattr(module, name) for module in (torchmetrics, classification, wrappers) if hasattr(module, name))


torchmetrics = Torchmetrics()
torch.manual_seed(1)
INPUTS, TARGETS = torch.randn(22, 4), torch.arange(22) % 3
"""In batches of 5, the last has 2."""


def accuracy() -> Any:
    return torchmetrics.MulticlassAccuracy(num_classes=3, average="micro")


def auroc() -> Any:
    """Keeps all predictions, in lists."""
    return torchmetrics.MulticlassAUROC(num_classes=3)


def noise() -> Any:
    """Draws random numbers in each update."""
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
    """The metric at once over all samples."""
    tm.model.eval()
    with torch.no_grad():
        return metric(tm.model([INPUTS[:count]]), TARGETS[:count])  # type: ignore[no-any-return]


class Keep(Extension):
    """What hooks at the end of a set are given."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def post_eval_step_epoch(self, datasource_name: str, accuracy: Any) -> None:
        self.seen.append((datasource_name, accuracy))


# values


@pytest.mark.parametrize("make", [accuracy, auroc], ids=["accuracy", "auroc"])
def test_the_value_is_that_of_all_samples_and_no_mean_over_batches(make: Any) -> None:
    tm = trained(Metrics({"value": make()}))
    assert [epoch for epoch, _ in tm.history["metrics/valid/value"]] == [0, 1, 2]
    assert tm.history["metrics/valid/value"][-1][1] == float(whole(tm, make()))
    assert tm.history["metrics/first/value"][-1][1] == float(whole(tm, make(), 3))


def test_a_smaller_last_batch_counts_by_its_samples() -> None:
    tm = trained(Metrics({"accuracy": accuracy()}))
    batches = [accuracy()(tm.model([INPUTS[at : at + 5]]).detach(), TARGETS[at : at + 5]) for at in range(0, 22, 5)]
    assert float(torch.stack(batches).mean()) != pytest.approx(tm.history["metrics/valid/accuracy"][-1][1])


def test_in_training_it_is_that_of_the_predictions_that_were_trained_on() -> None:
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
        assert [epoch for epoch, _ in tm.history[f"metrics/train/{name}"]] == [1, 2]
        assert tm.history[f"metrics/train/{name}"][-1][1] == value
        assert tm.history[f"metrics/valid/{name}"][-1][1] == float(whole(tm, metric.clone()))


def test_without_train_no_step_waits_for_it() -> None:
    described = manager(Metrics({"accuracy": accuracy()})).describe()
    assert "Metrics.post_eval_step_batch" in described
    assert "Metrics.post_train_step_batch" not in described
    assert "Metrics.post_train_step_batch" in manager(Metrics({"accuracy": accuracy()}, train=True)).describe()


def test_the_inputs_of_update_may_be_anything() -> None:
    tm = trained(
        Metrics({"mean": torchmetrics.MeanMetric()}, inputs=lambda batch, prediction: (batch[0], batch[1].float()[:, None].expand(-1, 4)))
    )
    assert tm.history["metrics/valid/mean"][-1][1] == pytest.approx(float((INPUTS * TARGETS[:, None]).sum() / TARGETS.sum() / 4))


class Share:
    """The part of predictions that are right; a metric that knows nothing of torchmetrics."""

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


def test_any_object_with_update_compute_and_reset_will_do() -> None:
    class Look(Extension):
        def post_eval_step_epoch(self, share: dict[str, Any]) -> None:
            self.seen = share

    for extensions in permutations([Metrics(Share()), Look()]):
        tm = trained(*extensions, eval_data={"valid": [(INPUTS, TARGETS)]})
        right = float(whole(tm, accuracy()))
        assert tm.history["metrics/valid/share/share"][-1] == (2, pytest.approx(right))
        assert tm.history["metrics/valid/share/num"] == [(0, 22.0), (1, 22.0), (2, 22.0)]
        assert "metrics/valid/share/both" not in tm.history
        assert tm.extensions["look"].seen["both"].tolist() == [round(22 * right), 22]  # type: ignore[attr-defined]


def test_what_is_no_number_is_not_recorded_but_is_a_fixture() -> None:
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
    assert int(confusion.sum()) == 3  # of the last set
    assert {tag for tag in tm.history if tag.startswith("metrics/valid")} == {f"metrics/valid/recalls/{key}" for key in recalls}
    assert list(recalls) == ["of_a", "of_b", "of_c"]


def test_a_collection_is_its_metrics_by_name() -> None:
    collection = torchmetrics.MetricCollection(
        {"f1": torchmetrics.MulticlassF1Score(num_classes=3), "precision": torchmetrics.MulticlassPrecision(num_classes=3)}, prefix="my_"
    )
    tm = trained(Metrics(collection))
    for name, metric in (
        ("my_f1", torchmetrics.MulticlassF1Score(num_classes=3)),
        ("my_precision", torchmetrics.MulticlassPrecision(num_classes=3)),
    ):
        assert tm.history[f"metrics/valid/{name}"][-1][1] == float(whole(tm, metric))


def test_metrics_of_a_collection_that_look_alike_in_the_first_batch_are_told_apart_later() -> None:
    """A first batch without the class that one of them ignores: from then on the collection itself takes both for the same."""

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
    assert [tm.history[f"metrics/valid/{name}"][0][1] for name in ("all", "most")] == [pytest.approx(6 / 8), pytest.approx(5 / 6)]
    for inputs, targets in data:
        both.update(inputs, targets)
    assert float(both.compute()["most"]) == pytest.approx(6 / 8)


def test_the_metrics_that_were_given_are_left_alone() -> None:
    given = accuracy()
    trained(Metrics({"accuracy": given, "again": given}), ("other", Metrics({"third": given})))
    assert given.update_count == 0


# fixtures


def test_a_hook_at_the_end_of_a_set_gets_the_value_in_any_order_of_the_list() -> None:
    for extensions in permutations([Metrics({"accuracy": accuracy()}), keep := Keep(), ("also", Keep())]):
        keep.seen.clear()
        tm = trained(*extensions)
        recorded = [tm.history[f"metrics/{name}/accuracy"][epoch][1] for epoch in range(3) for name in ("valid", "first")]
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
        assert look.seen == tm.history["metrics/train/accuracy"][-1][1]


@pytest.mark.parametrize("hook", ["pre_eval_step_epoch", "post_eval_step_batch", "post_eval", "post_train_step_batch"])
def test_asking_where_there_is_no_value_is_refused_before_the_first_batch(hook: str) -> None:
    def ask(self: object, accuracy: Any) -> None: ...

    tm = manager(Metrics({"accuracy": accuracy()}), type("Early", (), {hook: ask})())
    with pytest.raises(FixtureScopeError) as caught:
        tm.train()
    assert str(caught.value).startswith(f"`Early.{hook}` asks for `accuracy`, which does not exist at that point")
    assert "`accuracy` is valid in `eval_step_epoch` when its body is through" in str(caught.value)


def test_a_name_that_another_extension_creates_is_refused_before_the_first_batch() -> None:
    class Creates(Extension):
        creates = {"accuracy": "eval"}

    with pytest.raises(FixtureExistsError, match=r"lazy fixture `Metrics.accuracy` has the name of a fixture that is open"):
        trained(Metrics({"accuracy": accuracy()}), Creates())


# steering


def test_training_is_steered_by_what_it_records(tmp_path: Any) -> None:
    name = "metrics/valid/accuracy"
    seen: list[float] = []

    class Schedule(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics: Any, epoch: Any = None) -> None:
            seen.append(float(metrics))
            super().step(metrics)

    listed = [Metrics({"accuracy": accuracy()}), EarlyStopping(by=name, patience=3), CheckpointSaver(best_by=name)]
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


# an observer


def test_switching_it_on_changes_neither_weights_nor_random_numbers() -> None:
    metrics = {"accuracy": accuracy(), "noise": noise()}
    found = [(trained(*each).model.state_dict(), get_rng()) for each in ([], [Metrics(metrics, train=True)])]
    assert same_bits(*found)


# taken up again


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
def test_a_training_that_is_taken_up_has_the_same_numbers_bit_by_bit(make: Any, step: int) -> None:
    class Capture(Extension):
        state: Any = None

        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num == step:
                self.state = train_manager.capture()

    tm = trained(Metrics(make(), train=True), capture := Capture())
    again = manager(Metrics(make(), train=True), Capture())
    again.restore(pickle.loads(pickle.dumps(capture.state)))
    again.train()
    assert any(tag.startswith("metrics/train/") for tag in tm.history)
    assert again.history == tm.history
    assert same_bits(again["metrics"].state_dict(), tm["metrics"].state_dict())


def test_from_a_checkpoint_in_the_middle_of_an_epoch_the_numbers_are_the_same(tmp_path: Any) -> None:
    class FailAt(Extension):
        def pre_train_step_batch(self, step_num: int) -> None:
            if step_num == 6:
                raise ZeroDivisionError

    def metrics() -> list[object]:
        return [Metrics({"accuracy": accuracy(), "auroc": auroc(), "noise": noise()}, train=True), CheckpointSaver(every_steps=1)]

    with pytest.raises(ZeroDivisionError):
        trained(FailAt(), *metrics(), train_dir=tmp_path)
    assert trained(*metrics(), train_dir=tmp_path).history == trained(*metrics(), train_dir=tmp_path / "other").history


def test_a_training_that_was_stopped_in_an_epoch_goes_on_with_its_numbers() -> None:
    class StopAt(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num in (2, 4, 5):
                train_manager.stop()

    tm = manager(Metrics({"auroc": auroc()}, train=True), StopAt())
    for _ in range(4):
        tm.train()
    assert tm.history == trained(Metrics({"auroc": auroc()}, train=True)).history


def test_what_a_training_has_left_does_not_count_in_another_one() -> None:
    metrics = Metrics({"auroc": auroc()}, train=True)
    trained(metrics, max_steps=2)  # in the middle of an epoch
    assert trained(metrics).history == trained(Metrics({"auroc": auroc()}, train=True)).history


def test_an_evaluation_in_the_middle_of_an_epoch_leaves_the_numbers_of_training_alone() -> None:
    class Evaluates(Extension):
        def post_train_step_batch(self, train_manager: TrainManager) -> None:
            train_manager.eval()

    tm = trained(Metrics({"auroc": auroc()}, train=True), Evaluates())
    assert tm.history["metrics/train/auroc"] == trained(Metrics({"auroc": auroc()}, train=True)).history["metrics/train/auroc"]


def test_an_evaluation_that_is_stopped_records_nothing_and_leaves_nothing() -> None:
    class Stop(Extension):
        def post_eval_step_batch(self, train_manager: TrainManager, batch_num: int) -> None:
            if batch_num == 2:
                train_manager.stop()

    tm = trained(Metrics({"accuracy": accuracy()}), Stop())
    assert tm.history == {}
    del tm.extensions["stop"]
    tm.eval()
    assert tm.history["metrics/valid/accuracy"] == [(0, float(whole(tm, accuracy())))]


def test_other_metrics_than_those_of_the_state_start_anew() -> None:
    class Capture(Extension):
        state: Any = None

        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            self.state = train_manager.capture() if step_num == 2 else self.state

    trained(Metrics({"value": accuracy()}, train=True), capture := Capture())
    again = manager(Metrics({"value": auroc()}, train=True), Capture())
    with pytest.warns(UserWarning, match="extension `metrics` starts anew: its saved state does not fit"):
        again.restore(capture.state)
    with pytest.warns(UserWarning, match="extension `metrics` starts anew"):  # in the middle of the epoch once more
        again.train()
    assert again.epoch_num == 2


# under a manager


def test_under_a_manager_no_value_of_one_run_is_left_in_the_next() -> None:
    class Small(Manager):
        extensions = [Metrics({"accuracy": accuracy(), "auroc": auroc()}, train=True)]

        def make_loop(self, config: Any) -> TrainManager:
            tm = manager(epochs=1)
            return TrainManager(tm.model, loss, 1, tm.train_data, tm.eval_data, device="cpu", max_steps=config.max_steps)

    def rows(small: Manager) -> list[Any]:
        return [(row["tag"], row["step"], row["value"]) for row in small.store.run(small.key).events() if row["tag"].startswith("metrics/")]

    small = Small(None, verbose=False)
    small.process({"max_steps": 2})  # ends in the middle of an epoch
    small.process({"max_steps": 9})
    alone = Small(None, verbose=False)
    alone.extensions = [Metrics({"accuracy": accuracy(), "auroc": auroc()}, train=True)]
    alone.process({"max_steps": 9})
    assert len(rows(small)) == 2 * (2 * 2 + 1)
    assert rows(small) == rows(alone)


def test_it_can_be_sent_to_another_process() -> None:
    sent = pickle.loads(pickle.dumps(Metrics({"accuracy": accuracy(), "auroc": auroc()}, train=True)))
    expected = trained(Metrics({"accuracy": accuracy(), "auroc": auroc()}, train=True)).history
    assert trained(sent).history == expected


def test_metrics_are_moved_to_the_device_of_the_loop() -> None:
    metrics = Metrics({"accuracy": accuracy()}, train=True)
    metrics.pre_run(torch.device("meta"))
    assert metrics.metrics["accuracy"].tp.device.type == metrics.train_metrics["accuracy"].tp.device.type == "meta"


# what cannot work


@pytest.mark.parametrize(
    ("batch", "what"),
    [({"x": INPUTS, "y": TARGETS}, "a dict"), ((INPUTS, TARGETS, TARGETS), "a tuple of 3"), (INPUTS, "a Tensor")],
    ids=["dict", "triple", "tensor"],
)
def test_a_batch_without_a_plain_target_is_refused_with_what_to_give(batch: Any, what: str) -> None:
    class Any_(nn.Linear):
        def forward(self, batch: Any) -> Any:
            return super().forward(INPUTS)

    extensions = [Metrics({"accuracy": accuracy()})]
    tm = TrainManager(Any_(4, 3), lambda _, out: out.mean(), 1, [batch], {"valid": [batch]}, extensions=extensions, device="cpu")
    with pytest.raises(SettingError) as caught:
        tm.train()
    assert str(caught.value).split("\n") == [
        "Metrics does not know where the targets are in a batch",
        f"  why     the batch is {what}, and no pair",
        '  try     Metrics(..., inputs=lambda batch, prediction: (prediction, batch["label"])) returns the arguments of `update`',
    ]


def test_a_collection_with_a_name_does_not_guess_which_of_its_metrics_share_their_state() -> None:
    """In the first batch nothing is ignored: there, both have one state."""
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


def test_inputs_that_are_no_tuple_are_refused() -> None:
    with pytest.raises(SettingError, match=r"^`inputs` of Metrics returns a tuple, not Tensor"):
        trained(Metrics({"accuracy": accuracy()}, inputs=lambda batch, prediction: prediction))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (lambda: {"metrics": {}}, "Metrics has no metric to compute"),
        (lambda: {"metrics": None}, "Metrics takes objects with `update`, `compute` and `reset`, by name, not None (NoneType)"),
        (
            lambda: {"metrics": [accuracy()]},
            "Metrics takes objects with `update`, `compute` and `reset`, by name, not [MulticlassAccuracy()] (list)",
        ),
        (lambda: {"metrics": torchmetrics.MulticlassAccuracy}, "Metrics takes objects with `update`, `compute` and `reset`, by name, not "),
        (
            lambda: {"metrics": {"a b": accuracy()}},
            "a metric cannot be called 'a b'\n  why     hooks ask for its value by a parameter of its name",
        ),
        (lambda: {"metrics": {"class": accuracy()}}, "a metric cannot be called 'class'"),
        (lambda: {"metrics": {3: accuracy()}}, "a metric cannot be called 3"),
        (lambda: {"metrics": {"loss": accuracy()}}, "a metric cannot be called `loss`\n  why     the loop has a fixture of that name"),
        (lambda: {"metrics": {"num_samples": accuracy()}}, "a metric cannot be called `num_samples`"),
        (lambda: {"metrics": {"true_batch_size": accuracy()}}, "a metric cannot be called `true_batch_size`"),
        (
            lambda: {"metrics": torchmetrics.MetricCollection([accuracy()], prefix="val/")},
            "a metric cannot be called 'val/MulticlassAccuracy'",
        ),
        (
            lambda: {"metrics": torchmetrics.MetricTracker(accuracy())},
            "the metric `metric_tracker` is a MetricTracker, of which each epoch is to be begun by hand",
        ),
        (
            lambda: {"metrics": {"acc": torchmetrics.MulticlassAccuracy}},
            "the metric `acc` is the class MulticlassAccuracy\n  try     create one",
        ),
        (
            lambda: {"metrics": {"acc": len}},
            "the metric `acc` is <built-in function len> (builtin_function_or_method), which has no `update` and no",
        ),
        (
            lambda: {"metrics": Share(), "train": True},
            "the metric `share` cannot be computed over training batches: Share has no `state_dict`",
        ),
        (lambda: {"metrics": accuracy(), "train": 1}, "train=1: wanted True or False"),
        (lambda: {"metrics": accuracy(), "inputs": "prediction"}, "`inputs` is a function of (batch, prediction), not 'prediction' (str)"),
    ],
)
def test_bad_arguments_are_refused_at_construction(arguments: Callable[[], dict[str, Any]], told: str) -> None:
    with pytest.raises(SettingError) as caught:
        Metrics(**arguments())
    assert str(caught.value).startswith(told)
