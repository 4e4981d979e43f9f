"""Every field of a run's config classes has a check that shows its effect (contracts A13 to A17)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import (
    CheckpointSaver,
    ModelConfig,
    ModelWrapper,
    OptimizerConfig,
    ProtoTrainer,
    RunConfig,
    SchedulerConfig,
    TrainConfig,
    configclass,
)
from trainmaster.config.torch_call import classes_in
from trainmaster.errors import LossDivergedError, SettingError
from trainmaster.extensions import MixedPrecision
from trainmaster.manager import wrapper_loop

Check = Callable[[Any, Any], None]
NUM_BATCHES = 3


@configclass
class FieldsNet(ModelConfig):
    width: int = 1


class Model(nn.Module):
    def __init__(self, config: FieldsNet) -> None:
        super().__init__()
        self.linear = nn.Linear(3, config.width)

    def forward(self, x: torch.Tensor) -> tuple[Any, Any]:
        out = self.linear(x)
        return {"out": out}, (out - 1).pow(2).mean()


class Wrapper(ModelWrapper):
    is_shuffling_valid = True

    def make_dataloader_train(self, config: Any) -> Any:
        scale = {"large": 2.0}.get(config.train_config.dataset, 1.0)
        x = scale * torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(x), batch_size=config["train_config"]["batch_size"], shuffle=True)

    def make_dataloader_val(self, config: Any) -> Any:
        return DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=2, shuffle=self.is_shuffling_valid)

    def evaluation_functions(self) -> Any:
        return {"num_seen": lambda out: len(out)}


class Ordered(Wrapper):
    is_shuffling_valid = False


def make_config(folder: Any, **values: Any) -> RunConfig:
    train = {"dataset": "small", "batch_size": 4, "epochs": 2, "optimizer_config": {"name": "sgd", "arguments": {"lr": 0.1}}}
    train |= {name: values.pop(name) for name in (*train, "scheduler_config") if name in values}
    given = {
        "model_config": FieldsNet(),
        "train_config": TrainConfig(**train),
        "experiment_dir": folder,
        "device": "cpu",
        "verbose": "silent",
    }
    return RunConfig(**given | values)


def trained(folder: Any, wrapper: type[ModelWrapper] = Wrapper, **values: Any) -> ProtoTrainer:
    trainer = ProtoTrainer(wrapper(Model), make_config(folder, **values))
    trainer.launch()
    return trainer


def loop_of(trainer: ProtoTrainer) -> Any:
    return trainer.manager.loop


def weights(trainer: ProtoTrainer) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in loop_of(trainer).model.parameters()])


def steps(trainer: ProtoTrainer, name: str) -> list[Any]:
    return [step for step, _ in trainer.manager.history[name]]


def lr_of(trainer: ProtoTrainer) -> float:
    return float(loop_of(trainer).optimizer.param_groups[0]["lr"])


def changes_weights(**values: Any) -> Check:
    def check(folder: Any, _: Any) -> None:
        assert not torch.equal(weights(trained(folder, **values)), weights(trained(folder)))

    return check


MONITOR = {"optim_metrics": {"valid/loss": "min"}, "optim_metric_name": "valid/loss"}
MONITOR_MAX = {"optim_metrics": {"valid/loss": "max", "train/loss": "min"}, "optim_metric_name": "valid/loss"}
DIVERGING = {"optimizer_config": {"name": "sgd", "arguments": {"lr": 3.0}}, "epochs": 3}
HALVING = {"name": "step", "arguments": {"step_size": 1, "gamma": 0.5}}


def check_model_config(folder: Any, _: Any) -> None:
    assert loop_of(trained(folder, model_config=FieldsNet(width=2))).model.linear.out_features == 2


def check_amp(folder: Any, monkeypatch: Any) -> None:
    with pytest.warns(UserWarning, match="amp=True has no effect on the device cpu: it needs CUDA"):
        trained(folder, amp=True)
    monkeypatch.setattr(wrapper_loop, "find_device", lambda _: torch.device("cuda"))
    loop = wrapper_loop.WrapperLoop(Wrapper(Model), make_config(folder, amp=True))
    assert isinstance(loop.extensions["mixed_precision"], MixedPrecision)
    assert "mixed_precision" not in wrapper_loop.WrapperLoop(Wrapper(Model), make_config(folder)).extensions


def check_init_chkpt(folder: Any, _: Any) -> None:
    first = trained(folder, epochs=4)
    checkpoint = max(each.parent for each in Path(folder).rglob("ckpts/**/manifest.json"))
    second = trained(folder, random_seed=5, epochs=0, init_chkpt=str(checkpoint))
    assert torch.equal(weights(first), weights(second))


def check_eval_epoch(folder: Any, _: Any) -> None:
    assert steps(trained(folder, eval_epoch=2 / 3), "valid/loss") == pytest.approx([0, 2 / 3, 4 / 3, 2])
    assert steps(trained(folder, eval_epoch=2, epochs=3), "valid/loss") == [0, 2, 3]


def check_eval_subsample(folder: Any, _: Any) -> None:
    """Contract A29, corrected: exactly this share of the batches is used, rounded up."""
    assert trained(folder, eval_subsample=0.5).manager.preview["valid/num_seen"] == 4
    assert trained(folder, eval_subsample=0.6).manager.preview["valid/num_seen"] == 6
    with pytest.warns(UserWarning, match=r"eval_subsample=0.5 always uses the same first batches"):
        trained(folder, Ordered, eval_subsample=0.5, epochs=1)


def check_metrics_n_batches(folder: Any, _: Any) -> None:
    assert trained(folder).manager.preview["train/num_seen"] == 12
    assert trained(folder, metrics_n_batches=2).manager.preview["train/num_seen"] == 8


def check_optim_metrics(folder: Any, _: Any) -> None:
    """Contract A27: only a strict improvement in the declared direction becomes the best checkpoint."""
    best = [each.manager.fetch(each.manager.key, "best").epoch for each in (trained(folder, **MONITOR), trained(folder, **MONITOR_MAX))]
    assert best == [2, 1]


def check_optim_metric_name(folder: Any, _: Any) -> None:
    metrics = {"valid/loss": "max", "train/loss": "min"}
    best = [
        each.manager.fetch(each.manager.key, "best").epoch
        for each in (trained(folder, optim_metrics=metrics, optim_metric_name=name) for name in metrics)
    ]
    assert best == [1, 2]


def check_early_stopping_iter(folder: Any, _: Any) -> None:
    """Contract A28, corrected: training ends with a reason after more than this many batches without improvement."""
    constant = {"optimizer_config": {"name": "sgd", "arguments": {"lr": 0.0}}, "epochs": 9}
    trainer = trained(folder, **MONITOR, **constant, early_stopping_iter=NUM_BATCHES)
    assert trainer.manager.epoch == 2
    assert "did not improve in 2 evaluations" in trainer.manager.stats[trainer.manager.key]["stopped"]
    assert trained(folder, **MONITOR, **constant, early_stopping_iter=NUM_BATCHES - 1).manager.epoch == 1
    assert trained(folder, **MONITOR, **constant, early_stopping_iter=NUM_BATCHES, eval_epoch=1 / 3).manager.epoch == 1


def check_divergence_factor(folder: Any, _: Any) -> None:
    """Covers contract A27."""
    with pytest.raises(LossDivergedError, match="valid/loss has diverged"):
        trained(folder, **DIVERGING)
    assert trained(folder, **DIVERGING, divergence_factor=None).manager.epoch == 3
    assert trained(folder, **DIVERGING, divergence_factor=1e30).manager.epoch == 3


def check_warm_up_epochs(folder: Any, _: Any) -> None:
    """Covers contract A27."""
    assert trained(folder, **DIVERGING, warm_up_epochs=3).manager.epoch == 3
    with pytest.raises(LossDivergedError, match="after epoch 1"):
        trained(folder, **DIVERGING, warm_up_epochs=0.5)


def check_experiment_dir(folder: Any, _: Any) -> None:
    trained(folder / "there")
    assert (folder / "there" / "store.json").exists()
    with pytest.raises(SettingError, match="no experiment_dir"):
        ProtoTrainer(Wrapper(Model), make_config(None))


def check_experiment_id(folder: Any, _: Any) -> None:
    trained(folder, experiment_id="first")
    assert (folder / "first" / "store.json").exists()


def check_device(folder: Any, _: Any) -> None:
    assert loop_of(trained(folder)).device == torch.device("cpu")
    with pytest.raises(SettingError, match="'quantum' is not a device"):
        trained(folder, device="quantum")


def check_tensorboard(folder: Any, _: Any) -> None:
    pytest.importorskip("tensorboard")
    trained(folder / "without")
    trained(folder / "with", tensorboard=True)
    assert [each.parts[-1 - len(each.relative_to(folder).parts[1:])] for each in Path(folder).rglob("events.out.tfevents.*")] == ["with"]


def check_verbose(folder: Any, _: Any) -> None:
    silent, console, progress = (
        ProtoTrainer(Wrapper(Model), make_config(folder, verbose=each)) for each in ("silent", "console", "progress")
    )
    consoles = [each.manager.job_runner.console for each in (silent, console, progress)]
    assert [(each.is_verbose, each.has_bars) for each in consoles] == [(False, True), (True, False), (True, True)]


def check_keep_n_checkpoints(folder: Any, _: Any) -> None:
    """Contract A26: the newest checkpoints and the best one are kept. The loss rises, so the first one is the best."""
    rising = {"optimizer_config": {"name": "sgd", "arguments": {"lr": 3.0}}, "divergence_factor": None, "epochs": 5}
    for keep in (1, 3):
        trained(folder / str(keep), keep_n_checkpoints=keep, **rising, **MONITOR)
    assert [len(list((folder / str(keep)).rglob("ckpts/**/manifest.json"))) for keep in (1, 3)] == [2, 4]


def check_epochs(folder: Any, _: Any) -> None:
    assert trained(folder, epochs=1).manager.epoch == 1


def check_batch_size(folder: Any, _: Any) -> None:
    assert loop_of(trained(folder, batch_size=6, epochs=1)).step_num == 2


def check_optimizer_name(folder: Any, _: Any) -> None:
    assert type(loop_of(trained(folder, optimizer_config={"name": "adamw"})).optimizer) is torch.optim.AdamW


def check_scheduler(folder: Any, _: Any) -> None:
    assert lr_of(trained(folder, scheduler_config=HALVING)) == pytest.approx(0.025)
    assert lr_of(trained(folder, scheduler_config={"name": "none"})) == 0.1


def check_scheduler_name(folder: Any, _: Any) -> None:
    plateau = {"name": "plateau", "arguments": {"patience": 0, "factor": 0.1, "threshold": 1e9}}
    assert lr_of(trained(folder, scheduler_config=plateau, epochs=4, **MONITOR)) == pytest.approx(1e-5)  # the metric never improves
    cycle = {"name": "cycle", "arguments": {"max_lr": 0.5, "total_steps": 2 * NUM_BATCHES + 1}}
    assert lr_of(trained(folder, scheduler_config=cycle, divergence_factor=None)) < 0.01


def check_scheduler_arguments(folder: Any, _: Any) -> None:
    assert lr_of(trained(folder, scheduler_config={"name": "step", "arguments": {"step_size": 2, "gamma": 0.5}})) == 0.05


def check_step_when(folder: Any, _: Any) -> None:
    """Contract A16, corrected: there is exactly one step per batch, epoch or evaluation."""
    for step_when, num in (("train", 2 * NUM_BATCHES), ("epoch", 2), ("val", 6)):
        trainer = trained(folder, scheduler_config={**HALVING, "step_when": step_when}, eval_epoch=1 / 3)
        assert lr_of(trainer) == pytest.approx(0.1 * 0.5**num)


def test_an_own_saver_takes_the_metric_and_the_number_of_checkpoints_from_the_config(tmp_path: Path) -> None:
    class OwnSaver(Wrapper):
        def extensions(self) -> Any:
            return [CheckpointSaver(every_steps=1)]

    trainer = trained(tmp_path / "taken", OwnSaver, keep_n_checkpoints=2, optim_metrics={"num_seen": "max"}, optim_metric_name="num_seen")
    manager = trainer.manager
    assert (manager.stats[manager.key]["best"]["metric"], manager.stats[manager.key]["best"]["mode"]) == ("valid/num_seen", "max")
    assert len(manager.store.run(manager.key).checkpoints()) <= 3

    class OwnMonitor(Wrapper):
        def extensions(self) -> Any:
            return [CheckpointSaver(monitor="valid/loss")]

    manager = trained(tmp_path / "own", OwnMonitor, optim_metrics={"num_seen": "max"}, optim_metric_name="num_seen").manager
    assert manager.stats[manager.key]["best"]["metric"] == "valid/loss"


class OwnSchedule(Wrapper):
    def create_scheduler(self, model: Any, optimizer: Any, config: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


@pytest.mark.parametrize(
    ("scheduler_config", "num"),
    [
        (None, 2 * NUM_BATCHES),
        ({"name": "none"}, 2 * NUM_BATCHES),
        ({"name": "none", "step_when": "train"}, 2 * NUM_BATCHES),
        ({"name": "none", "step_when": "epoch"}, 2),
        ({"name": "none", "step_when": "val"}, 3),
        ({"name": "step", "arguments": {"step_size": 1}}, 2),
        ({"name": "step", "arguments": {"step_size": 1}, "step_when": "train"}, 2 * NUM_BATCHES),
    ],
)
def test_a_schedule_from_create_scheduler_steps_when_the_config_says(tmp_path: Path, scheduler_config: Any, num: int) -> None:
    trainer = trained(tmp_path, OwnSchedule, scheduler_config=scheduler_config, eval_epoch=2 / 3)
    assert lr_of(trainer) == pytest.approx(0.1 * 0.5**num)


class LightningSchedule(OwnSchedule):
    def create_scheduler(self, model: Any, optimizer: Any, config: Any) -> Any:
        return {"scheduler": super().create_scheduler(model, optimizer, config), "interval": "epoch"}


def test_a_dict_from_create_scheduler_is_refused_before_the_first_batch(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"(?s)`create_scheduler` returned .*dict.*expected a schedule of torch, or None.*step_when"):
        trained(tmp_path, LightningSchedule)


FIELDS: dict[type, dict[str, Check]] = {
    RunConfig: {
        "model_config": check_model_config,
        "train_config": check_epochs,
        "random_seed": changes_weights(random_seed=7),
        "amp": check_amp,
        "init_chkpt": check_init_chkpt,
        "eval_epoch": check_eval_epoch,
        "eval_subsample": check_eval_subsample,
        "metrics_n_batches": check_metrics_n_batches,
        "optim_metrics": check_optim_metrics,
        "optim_metric_name": check_optim_metric_name,
        "early_stopping_iter": check_early_stopping_iter,
        "warm_up_epochs": check_warm_up_epochs,
        "divergence_factor": check_divergence_factor,
        "experiment_dir": check_experiment_dir,
        "experiment_id": check_experiment_id,
        "device": check_device,
        "tensorboard": check_tensorboard,
        "verbose": check_verbose,
        "keep_n_checkpoints": check_keep_n_checkpoints,
    },
    TrainConfig: {
        "dataset": changes_weights(dataset="large"),
        "batch_size": check_batch_size,
        "epochs": check_epochs,
        "optimizer_config": changes_weights(optimizer_config={"name": "adam"}),
        "scheduler_config": check_scheduler,
    },
    OptimizerConfig: {
        "name": check_optimizer_name,
        "arguments": changes_weights(optimizer_config={"name": "sgd", "arguments": {"lr": 0.1, "momentum": 0.5}}),
    },
    SchedulerConfig: {"name": check_scheduler_name, "arguments": check_scheduler_arguments, "step_when": check_step_when},
}


@pytest.mark.parametrize("kind", FIELDS)
def test_every_field_has_a_check(kind: Any) -> None:
    assert set(FIELDS[kind]) == set(kind._schema().fields)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, checks in FIELDS.items() for name in checks])
def test_each_field_has_its_documented_effect(kind: Any, name: str, tmp_path: Any, monkeypatch: Any) -> None:
    FIELDS[kind][name](tmp_path, monkeypatch)


SCHEDULES: dict[str, dict[str, Any]] = {"step": {"step_size": 5}, "cycle": {"max_lr": 0.1, "total_steps": 9}, "plateau": {}, "none": {}}
OPTIMIZERS = [name for name in classes_in(torch.optim, torch.optim.Optimizer) if name not in ("lbfgs", "sparseadam", "muon")]
"""The optimizers that need neither a closure nor special parameters."""


@pytest.mark.parametrize(
    ("schedule", "optimizer"),
    [*((name, "sgd") for name in SCHEDULES), *(pytest.param("step", name, marks=pytest.mark.integration) for name in OPTIMIZERS)],
)
def test_a_finished_run_with_any_schedule_and_optimizer_is_found_again(schedule: str, optimizer: str, tmp_path: Any) -> None:
    arguments = {"lr": 0.1, "momentum": 0.5} if optimizer == "sgd" else {}
    parts: Any = {
        "optimizer_config": {"name": optimizer, "arguments": arguments},
        "scheduler_config": {"name": schedule, "arguments": SCHEDULES[schedule]},
        "divergence_factor": None,
    }
    manager = trained(tmp_path, **parts, **MONITOR).manager
    assert manager.store.verify() == []
    assert manager.configs[manager.key].train_config.scheduler_config.step_when is None
    trained(tmp_path, **parts, **MONITOR)
    assert len(list(tmp_path.glob("stats/*/*/attempt-*"))) == 1


def test_early_stopping_needs_validation_data(tmp_path: Any) -> None:
    """Covers contract A17."""

    class WithoutValid(Wrapper):
        def make_dataloader_val(self, config: Any) -> Any:
            return None

    with pytest.raises(SettingError, match="early_stopping_iter needs validation data"):
        trained(tmp_path, WithoutValid, **MONITOR, early_stopping_iter=3)
