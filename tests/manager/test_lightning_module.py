"""A Lightning module works in a `ModelWrapper`."""

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import ModelConfig, ModelWrapper, ProtoTrainer, RunConfig, TrainConfig, configclass
from trainmaster.errors import NoTrainerError, SettingError, UnknownRunError

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
lightning = pytest.importorskip("lightning")
torchmetrics = pytest.importorskip("torchmetrics")


@configclass
class LitConfig(ModelConfig):
    width: int = 3


def make_data() -> TensorDataset:
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.sum(1, keepdim=True))


class LitRegression(lightning.LightningModule):  # type: ignore[name-defined, misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(config.width, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = nn.functional.mse_loss(self.linear(x), y)
        self.log("train_mse", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.log("error", (self.linear(x) - y).abs().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class LitWrapper(ModelWrapper):
    def make_dataloader_train(self, config: Any) -> Any:
        return DataLoader(make_data(), batch_size=4)

    def make_dataloader_val(self, config: Any) -> Any:
        return DataLoader(make_data(), batch_size=5)


def trained(folder: Any, wrapper: ModelWrapper, **values: Any) -> ProtoTrainer:
    train = TrainConfig(dataset="toy", batch_size=4, epochs=2, optimizer_config={"name": "sgd", "arguments": {"lr": 0.1}})  # type: ignore[arg-type]
    config = RunConfig(model_config=LitConfig(), train_config=train, experiment_dir=folder, device="cpu", verbose="silent", **values)
    trainer = ProtoTrainer(wrapper, config)
    trainer.launch()
    return trainer


def test_a_lightning_module_gets_the_same_weights_as_with_lightning(tmp_path: Any) -> None:
    trainer = trained(tmp_path, LitWrapper(LitRegression))
    assert trainer.manager.loop is not None
    ours: Any = trainer.manager.loop.model

    torch.manual_seed(0)
    theirs = LitRegression(LitConfig())
    plain = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    )
    plain.fit(theirs, DataLoader(make_data(), batch_size=4))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))

    x, y = make_data().tensors
    history = trainer.manager.history
    assert history["valid/error"][-1] == (2, pytest.approx((theirs.linear(x) - y).abs().mean().item()))
    assert "valid/loss" not in history  # this `validation_step` returns no loss
    assert len(history["train/loss"]) == 2


class LitPositions(LitRegression):
    """Notes what a step sees."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.seen: list[tuple[Any, ...]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(("train", batch_idx, self.current_epoch, self.global_step))
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(("valid", batch_idx, self.current_epoch, self.global_step))
        return super().validation_step(batch, batch_idx)


def test_a_step_sees_the_same_batch_epoch_and_step_as_with_lightning(tmp_path: Any) -> None:
    ours = trained(tmp_path, LitWrapper(LitPositions)).manager.model.module.seen

    theirs = LitPositions(LitConfig())
    plain = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=-1,
    )  # fmt: skip
    plain.fit(theirs, DataLoader(make_data(), batch_size=4), DataLoader(make_data(), batch_size=5))
    assert ours == theirs.seen
    assert ours[-1] == ("valid", 2, 1, 6)


def test_a_copied_module_still_sees_the_position_in_training(tmp_path: Any) -> None:
    model = copy.deepcopy(trained(tmp_path, LitWrapper(LitPositions)).manager.model).eval()
    model(list(make_data().tensors))
    assert model.module.seen[-1] == ("valid", 2, 1, 6)


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda module: module.optimizers(), "strategy"),
        (lambda module: module.lr_schedulers(), "lr_scheduler_configs"),
        (lambda module: module.trainer.datamodule, "datamodule"),
    ],
)
def test_what_needs_a_lightning_trainer_is_an_error(tmp_path: Any, use: Any, name: str) -> None:
    class LitUser(LitRegression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert self.logger is None
            assert getattr(self.trainer, "datamodule", None) is None
            self.print("trained without a Lightning trainer")
            use(self)

    with pytest.raises(NoTrainerError, match=rf"uses `trainer\.{name}`, but trainmaster trains it without a Lightning trainer"):
        trained(tmp_path, LitWrapper(LitUser))


def test_a_finished_run_without_a_best_checkpoint_says_how_to_monitor_a_metric(tmp_path: Any) -> None:
    trainer = trained(tmp_path, LitWrapper(LitRegression))
    with pytest.raises(UnknownRunError, match="has no best checkpoint") as raised:
        trainer.evaluate("best")
    assert "no metric was monitored" in str(raised.value)
    assert 'RunConfig(optim_metrics={"valid/error": "min"}, optim_metric_name="valid/error", ...)' in str(raised.value)
    assert "`process` trains it" not in str(raised.value)


def test_the_error_of_a_metric_that_was_never_finite_does_not_suggest_to_monitor_it(tmp_path: Any) -> None:
    class LitNaN(LitRegression):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("error", torch.tensor(math.nan))

    trainer = trained(tmp_path, LitWrapper(LitNaN), optim_metrics={"error": "min"}, optim_metric_name="error")
    with pytest.raises(UnknownRunError, match="has no best checkpoint") as raised:
        trainer.evaluate("best")
    assert "with a finite value of the monitored metric `error`" in str(raised.value)
    assert "optim_metric_name" not in str(raised.value)


def test_a_logged_metric_can_decide_which_checkpoint_is_the_best(tmp_path: Any) -> None:
    trainer = trained(tmp_path, LitWrapper(LitRegression), optim_metrics={"error": "min"}, optim_metric_name="error")
    lowest = min(value for _, value in trainer.manager.history["valid/error"][1:])
    assert trainer.evaluate("best")["valid"]["error"] == lowest


class LitClassifier(lightning.LightningModule):  # type: ignore[name-defined, misc]
    """Logs metric objects, as in the documentation of torchmetrics."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(config.width, 2)
        self.train_f1 = torchmetrics.classification.MulticlassF1Score(2)
        self.f1 = torchmetrics.classification.MulticlassF1Score(2)
        scores = torchmetrics.classification.MulticlassRecall(2), torchmetrics.classification.MulticlassPrecision(2)
        self.scores = torchmetrics.MetricCollection(*scores, prefix="val_")

    def step(self, batch: Any, *metrics: Any) -> Any:
        x, y = batch
        labels = (y[:, 0] > 0.5).long()
        prediction = self.linear(x)
        for metric in metrics:
            metric.update(prediction, labels)
        return nn.functional.cross_entropy(prediction, labels)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.step(batch, self.train_f1)
        self.log("train_f1", self.train_f1)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.step(batch, self.f1, self.scores)
        self.log("val_f1", self.f1)
        self.log_dict(self.scores)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_logged_metric_object_has_the_same_values_as_with_lightning(tmp_path: Any) -> None:
    trainer = trained(tmp_path, LitWrapper(LitClassifier), optim_metrics={"val_f1": "max"}, optim_metric_name="val_f1")

    class Values(lightning.Callback):  # type: ignore[name-defined, misc]
        found: list[dict[str, float]] = []

        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            self.found.append({name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val_")})

    torch.manual_seed(0)
    plain = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=-1, callbacks=[Values()],
    )  # fmt: skip
    plain.fit(LitClassifier(LitConfig()), DataLoader(make_data(), batch_size=4), DataLoader(make_data(), batch_size=5))
    history = trainer.manager.history
    assert len(Values.found) == 3
    assert Values.found[0].keys() == {"val_f1", "val_MulticlassRecall", "val_MulticlassPrecision"}
    for name in Values.found[0]:
        assert [value for _, value in history[f"valid/{name}"]] == pytest.approx([found[name] for found in Values.found])
    assert trainer.evaluate("best")["valid"]["val_f1"] == max(value for _, value in history["valid/val_f1"][1:])


def test_a_metric_object_that_training_logs_is_reset_after_each_epoch(tmp_path: Any) -> None:
    class OnlyTraining(LitWrapper):
        def make_dataloader_val(self, config: Any) -> Any:
            return None

    trainer = trained(tmp_path, OnlyTraining(LitClassifier))
    assert trainer.manager.model.module.train_f1.update_count == 0


def test_a_logged_metric_object_without_a_single_value_is_an_error(tmp_path: Any) -> None:
    class LitMatrix(LitClassifier):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.f1 = torchmetrics.classification.MulticlassConfusionMatrix(2)

    with pytest.raises(SettingError, match=r"logs `val_f1`, a MulticlassConfusionMatrix, whose value is .*, not a number"):
        trained(tmp_path, LitWrapper(LitMatrix))


def test_the_test_set_is_evaluated_with_test_step(tmp_path: Any) -> None:
    class LitTested(LitRegression):
        def test_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            self.log("test_error", (self.linear(x) - y).abs().mean())

    class Tested(LitWrapper):
        def make_dataloader_test(self, config: Any) -> Any:
            return DataLoader(make_data(), batch_size=5)

    values = trained(tmp_path / "tested", Tested(LitTested)).evaluate()
    assert values["test"] == {"test_error": values["valid"]["error"]}
    values = trained(tmp_path / "without test_step", Tested(LitRegression)).evaluate()
    assert values["test"] == values["valid"] != {}


def test_the_error_of_a_wrapped_module_that_is_called_with_inputs_says_how_to_predict(tmp_path: Any) -> None:
    trainer = trained(tmp_path, LitWrapper(LitRegression))
    model: Any = trainer.manager.fetch(trainer.manager.key).model
    with pytest.raises(ValueError, match="too many values to unpack") as caught:
        model(make_data().tensors[0])
    assert caught.value.__notes__ == [
        "`LitRegression.validation_step` was called with a tensor as the batch; to predict, call the Lightning module: model.module(x)"
    ]


def test_an_ignored_configure_optimizers_is_reported_once_per_class(tmp_path: Any) -> None:
    class LitIgnored(LitRegression): ...

    class Own(LitWrapper):
        def create_optimizer(self, model: Any, config: Any) -> Any:
            return model.module.configure_optimizers()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(tmp_path / "used", Own(LitIgnored))
        assert not [each for each in caught if "configure_optimizers" in str(each.message)]
        trainer = trained(tmp_path / "ignored", LitWrapper(LitIgnored))
        trainer.smoke_test()
        trainer.evaluate()
    texts = [str(each.message) for each in caught if "configure_optimizers" in str(each.message)]
    assert texts == ["`LitIgnored.configure_optimizers` is not called: the config specifies the optimizer and its schedule"]
