"""The ready-made config classes satisfy contracts A13 to A17 and A42."""

import functools
import inspect
import subprocess
import sys
import textwrap
import warnings
from itertools import combinations
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from trainmaster.config import (
    ConfigBase,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RunConfig,
    SchedulerConfig,
    SearchSpace,
    TrainConfig,
    configclass,
    group_of,
    key_of,
    register_optimizer,
    register_scheduler,
)
from trainmaster.errors import ConfigError, SettingError, UnknownKeyError


@configclass
class ReadyModel(ModelConfig):
    width: int = 8


def training(**values):
    given = {"dataset": "digits", "batch_size": 4, "epochs": 2, "optimizer_config": {"name": "sgd", "arguments": {"lr": 0.1}}}
    return TrainConfig(**given | values)


def run(kind=RunConfig, scheduler_config=None, **values):
    return kind(**{"model_config": ReadyModel(), "train_config": training(scheduler_config=scheduler_config)} | values)


def parallel(**values):
    return run(ParallelConfig, **{"search_space": {"random_seed": {"categorical_values": [1, 2]}}} | values)


# ---- RunConfig (A13)

DEFAULTS = {
    "experiment_dir": None,
    "experiment_id": None,
    "random_seed": None,
    "keep_n_checkpoints": 3,
    "tensorboard": False,
    "amp": False,
    "device": "auto",
    "verbose": "console",
    "eval_subsample": 1,
    "metrics_n_batches": 32,
    "early_stopping_iter": None,
    "eval_epoch": 1,
    "init_chkpt": None,
    "warm_up_epochs": 1,
    "divergence_factor": 10,
    "optim_metrics": None,
    "optim_metric_name": None,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_defaults_of_a_run(name):
    """Covers contract A13."""
    assert run()[name] == DEFAULTS[name]


def test_every_other_field_of_a_run_must_be_given():
    """Covers contract A13."""
    assert set(run().keys()) == DEFAULTS.keys() | {"model_config", "train_config"}
    with pytest.raises(ConfigError) as caught:
        RunConfig()
    assert {each.key for each in caught.value.problems} == {"model_config", "train_config"}


CHANGES = {
    "experiment_dir": "/tmp/x",
    "experiment_id": "e",
    "keep_n_checkpoints": 5,
    "tensorboard": True,
    "device": "cuda:1",
    "verbose": "silent",
}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_for_output_and_storage_do_not_change_the_key_of_a_run(name):
    """Covers contract A13."""
    assert run(**{name: CHANGES[name]}).key == run().key


RESULTS = {
    "random_seed": 1,
    "amp": True,
    "init_chkpt": "a.ckpt",
    "eval_epoch": 0.5,
    "eval_subsample": 0.5,
    "metrics_n_batches": 1,
    "warm_up_epochs": 0,
    "divergence_factor": None,
}


@pytest.mark.parametrize("name", RESULTS)
def test_settings_that_change_weights_metrics_or_the_end_of_a_run_change_its_key(name):
    """Contract A13: configs with different results must not have the same key."""
    assert run(**{name: RESULTS[name]}).key != run().key


def test_metrics_and_early_stopping_change_the_key():
    """Covers contract A13."""
    monitored = {"optim_metrics": {"loss": "min"}, "optim_metric_name": "loss"}
    assert len({run().key, run(**monitored).key, run(**monitored, early_stopping_iter=3).key}) == 3


def test_the_lists_of_fields_that_do_and_do_not_change_the_key_are_complete():
    """Covers contract A13."""
    monitored = {"optim_metrics", "optim_metric_name", "early_stopping_iter", "train_config", "model_config"}
    assert run().identity().keys() == RESULTS.keys() | monitored
    assert set(run().keys()) == RESULTS.keys() | CHANGES.keys() | monitored


@pytest.mark.parametrize(
    "values",
    [{"random_seed": 1}, {"model_config": ReadyModel(width=9)}, {"train_config": training(batch_size=5)}],
    ids=lambda each: next(iter(each)),
)
def test_seed_model_and_training_settings_change_the_key(values):
    """Covers contract A13."""
    assert run(**values).key != run().key


def test_seeds_are_replicates_of_one_group():
    """Contract A13: the seed is part of the identity, and tells replicates apart."""
    assert group_of(run(random_seed=1)) == group_of(run(random_seed=2))
    assert key_of(run(random_seed=1)) != key_of(run(random_seed=2))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("verbose", "loud"),
        ("keep_n_checkpoints", 0),
        ("eval_subsample", 0),
        ("eval_subsample", 1.5),
        ("eval_epoch", -1),
        ("metrics_n_batches", 0),
        ("early_stopping_iter", 0),
        ("divergence_factor", 0),
        ("amp", "maybe"),
        ("random_seed", 1.5),
        ("model_config", None),
        ("train_config", None),
    ],
)
def test_an_invalid_value_is_refused(name, value):
    """Covers contract A13."""
    with pytest.raises(ConfigError) as caught:
        run(**{name: value})
    assert caught.value.problems[0].key == name


def test_the_error_for_verbose_lists_its_three_values():
    """Covers contract A13."""
    with pytest.raises(ConfigError, match="'console', 'progress' or 'silent'; did you mean `progress`"):
        run(verbose="progres")


def test_experiment_dir_is_a_path():
    """Covers contract A13."""
    assert run(experiment_dir="a/b").experiment_dir == Path("a/b")


# ---- TrainConfig and ParallelConfig (A14)


def test_epochs_are_part_of_the_identity():
    """Contract A14: to continue a run, you pass a larger number of epochs instead of changing its config."""
    assert training(epochs=2).key != training(epochs=200).key
    assert run(train_config=training(epochs=2)).key != run(train_config=training(epochs=200)).key


@pytest.mark.parametrize(
    "values", [{"dataset": "other"}, {"batch_size": 5}, {"optimizer_config": {"name": "adam"}}, {"scheduler_config": {"name": "none"}}]
)
def test_all_other_fields_of_a_training_are_part_of_the_identity(values):
    """Covers contract A14."""
    assert training(**values).key != training().key


def test_the_fields_of_a_training():
    """Covers contract A14."""
    assert training().keys() == ["dataset", "batch_size", "epochs", "optimizer_config", "scheduler_config"]
    with pytest.raises(ConfigError) as caught:
        TrainConfig()
    assert {each.key for each in caught.value.problems} == {"dataset", "batch_size", "epochs", "optimizer_config"}


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("epochs", -1), ("batch_size", 1.5), ("dataset", None)])
def test_an_invalid_training_config_is_refused(name, value):
    """Covers contract A14."""
    with pytest.raises(ConfigError, match=name):
        training(**{name: value})


PARALLEL_DEFAULTS = {
    "total_trials": None,
    "search_algo": "grid",
    "concurrent_trials": None,
}


@pytest.mark.parametrize("name", PARALLEL_DEFAULTS)
def test_the_defaults_of_parallel_runs(name):
    """Covers contract A14."""
    assert parallel()[name] == PARALLEL_DEFAULTS[name]


def test_parallel_runs_add_four_fields():
    """Contract A14: fields that had no effect are left out."""
    added = set(parallel().keys()) - set(run().keys())
    assert added == {"total_trials", "concurrent_trials", "search_space", "search_algo"}
    assert isinstance(parallel(), RunConfig)


@pytest.mark.parametrize("name", ["grid", "tpe", "random", "qmc", "gp", "cmaes", "nsga2"])
def test_the_search_algorithms(name):
    """Covers contract A14."""
    assert parallel(search_algo=name).search_algo == name


def test_another_search_algorithm_is_refused():
    """Covers contract A14."""
    with pytest.raises(ConfigError, match=r"search_algo = 'gird': expected 'grid', 'tpe', .*; did you mean `grid`"):
        parallel(search_algo="gird")


def test_progress_is_not_allowed_in_parallel():
    """Covers contract A14."""
    with pytest.raises(ConfigError, match="verbose = 'progress': parallel runs cannot share a progress bar"):
        parallel(verbose="progress")
    assert run(verbose="progress").verbose == "progress"


def test_a_trial_has_the_same_key_as_a_single_run_with_the_same_values():
    """Contract A14: the search space is stored with the search and is not part of a run's identity."""
    assert parallel(total_trials=3, concurrent_trials=2, search_algo="tpe").key == parallel().key == run().key
    assert parallel(search_space={"random_seed": {"categorical_values": [1]}}).key == run().key


# ---- optimizers and schedules by name (A15)

OPTIMIZERS = {
    "Adafactor": {"lr": 0.01, "d": 1.0, "eps": [None, 1e-3]},
    "Adadelta": {"lr": 1.0, "rho": 0.9},
    "Adagrad": {"lr": 0.01, "lr_decay": 0.1},
    "Adam": {"lr": 1e-3, "betas": [0.9, 0.99], "amsgrad": True},
    "Adamax": {"lr": 2e-3, "betas": [0.9, 0.99]},
    "AdamW": {"lr": 1e-3, "weight_decay": 0.01, "foreach": None},
    "ASGD": {"lr": 0.01, "t0": 1e6},
    "LBFGS": {"lr": 1, "max_iter": 5, "line_search_fn": "strong_wolfe"},
    "Muon": {"lr": 1e-3, "momentum": 0.9, "nesterov": True},
    "NAdam": {"lr": 2e-3, "momentum_decay": 4e-3},
    "RAdam": {"lr": 1e-3, "decoupled_weight_decay": True},
    "RMSprop": {"lr": 0.01, "alpha": 0.9, "centered": True},
    "Rprop": {"lr": 0.01, "etas": [0.5, 1.2], "step_sizes": [1e-6, 50]},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "SparseAdam": {"lr": 1e-3, "betas": [0.9, 0.99]},
}


def halved(epoch):
    return 0.5**epoch


def scaled(x):
    return 1 / (x + 1)


SCHEDULERS = {
    "LambdaLR": {"lr_lambda": "ready_functions:halved"},
    "MultiplicativeLR": {"lr_lambda": ["ready_functions.halved"]},
    "StepLR": {"step_size": 3, "gamma": 0.5},
    "MultiStepLR": {"milestones": [2, 4], "gamma": 0.5},
    "ConstantLR": {"factor": 0.5, "total_iters": 3},
    "LinearLR": {"start_factor": 0.5, "total_iters": 3},
    "ExponentialLR": {"gamma": 0.9},
    "SequentialLR": {
        "schedulers": [{"name": "ConstantLR", "arguments": {"factor": 0.5}}, {"name": "ExponentialLR", "arguments": {"gamma": 0.9}}],
        "milestones": [2],
    },
    "PolynomialLR": {"total_iters": 3, "power": 2.0},
    "CosineAnnealingLR": {"T_max": 5, "eta_min": 1e-5},
    "ChainedScheduler": {
        "schedulers": [{"name": "ConstantLR", "arguments": {"factor": 0.5}}, {"name": "ExponentialLR", "arguments": {"gamma": 0.9}}]
    },
    "ReduceLROnPlateau": {"mode": "max", "patience": 2, "min_lr": [1e-6]},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3, "scale_fn": "ready_functions:scaled"},
    "CosineAnnealingWarmRestarts": {"T_0": 3, "T_mult": 2},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 10, "pct_start": 0.2},
}


def classes_of(module, base):
    return {
        name
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base and not name.startswith("_")
    }


@pytest.fixture
def ready_functions(monkeypatch):
    """Create a module with functions that schedules can refer to."""
    monkeypatch.setitem(sys.modules, "ready_functions", sys.modules[__name__])


def test_every_optimizer_of_torch_has_an_example_here():
    """Contract A15: the test fails when torch adds an optimizer, so that an example is added."""
    assert OPTIMIZERS.keys() == classes_of(optim, optim.Optimizer)


def test_every_scheduler_of_torch_has_an_example_here():
    """Contract A15: the test fails when torch adds a scheduler, so that an example is added."""
    assert SCHEDULERS.keys() == classes_of(lr_scheduler, lr_scheduler.LRScheduler)


@pytest.mark.parametrize("case", [str, str.lower, str.upper])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch_is_built_by_its_name_in_any_case(name, case):
    """Covers contract A15."""
    config = OptimizerConfig(name=case(name), arguments=OPTIMIZERS[name])
    config.check()
    made = config.make_optimizer(nn.Linear(2, 2, bias=False))
    assert type(made) is getattr(optim, name)
    assert made.defaults["lr"] == OPTIMIZERS[name]["lr"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_works_with_its_own_defaults(name):
    """Covers contract A15."""
    config = OptimizerConfig(name=name)
    config.check()
    assert type(config.make_optimizer(nn.Linear(2, 2, bias=False))) is getattr(optim, name)


@pytest.mark.usefixtures("ready_functions")
@pytest.mark.parametrize("case", [str, str.lower, str.upper])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_of_torch_is_built_by_its_name_in_any_case(name, case):
    """Covers contract A15."""
    config = SchedulerConfig(name=case(name), arguments=SCHEDULERS[name])
    config.check()
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = config.make_scheduler(model, optimizer)
    assert type(made) is getattr(lr_scheduler, name)
    assert made.optimizer is optimizer


@pytest.mark.usefixtures("ready_functions")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_changes_the_learning_rate_as_torch_does(name):
    """Contract A15: a config builds the same object as a direct call."""
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = SchedulerConfig(name=name, arguments=SCHEDULERS[name]).make_scheduler(model, optimizer)
    rates = []
    for _ in range(4):
        optimizer.step()
        made.step(*([0.5] if name == "ReduceLROnPlateau" else []))
        rates.append(optimizer.param_groups[0]["lr"])
    assert len(set(rates)) > 1


@pytest.mark.usefixtures("ready_functions")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_example_survives_a_file(name, tmp_path):
    """Contract A15: arguments are plain values."""
    config = SchedulerConfig(name=name, arguments=SCHEDULERS[name])
    config.write(tmp_path / "s.yaml")
    assert SchedulerConfig.load(tmp_path / "s.yaml") == config


@pytest.mark.parametrize(("short", "full"), [("step", "StepLR"), ("cycle", "OneCycleLR"), ("plateau", "ReduceLROnPlateau")])
def test_a_short_name_is_the_same_config_as_the_full_one(short, full):
    """Contract A15: both names give configs with the same key."""
    one = SchedulerConfig(name=short.upper(), arguments=SCHEDULERS[full])
    other = SchedulerConfig(name=full, arguments=SCHEDULERS[full])
    assert one == other
    assert one.key == other.key
    assert one.name == short


def test_the_case_of_a_name_does_not_change_the_key():
    """Covers contract A15."""
    assert OptimizerConfig(name="AdamW").key == OptimizerConfig(name="adamw").key


def test_the_schedule_none_is_none():
    """Covers contract A15."""
    config = SchedulerConfig(name="None")
    config.check()
    assert config.make_scheduler(nn.Linear(2, 2), None) is None


def test_the_model_may_choose_its_parameters():
    """Contract A15: `get_optim_param` returns parameters."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.trained, self.fixed = nn.Linear(2, 2), nn.Linear(2, 2)

        def get_optim_param(self):
            return self.trained.parameters()

    model = Model()
    made = OptimizerConfig(name="sgd", arguments={"lr": 0.1}).make_optimizer(model)
    assert [id(each) for each in made.param_groups[0]["params"]] == [id(each) for each in model.trained.parameters()]


def test_the_model_may_choose_groups_of_parameters():
    """Contract A15: `get_optim_param` may also return groups in the form that torch accepts."""

    class Model(nn.Linear):
        def get_optim_param(self):
            return [{"params": [self.weight]}, {"params": [self.bias], "lr": 0.5}]

    made = OptimizerConfig(name="sgd", arguments={"lr": 0.1}).make_optimizer(Model(2, 2))
    assert [each["lr"] for each in made.param_groups] == [0.1, 0.5]


def test_a_model_without_get_optim_param_trains_all_parameters():
    """Covers contract A15."""
    model = nn.Linear(2, 2)
    made = OptimizerConfig(name="sgd", arguments={"lr": 0.1}).make_optimizer(model)
    assert len(made.param_groups[0]["params"]) == 2


# ---- custom optimizers and schedules (A15)


def test_a_custom_optimizer_can_be_registered():
    """Covers contract A15."""

    class ReadyOwn(optim.SGD): ...

    register_optimizer("ReadyOwn", ReadyOwn)
    config = OptimizerConfig(name="READYOWN", arguments={"lr": 0.3})
    config.check()
    assert type(config.make_optimizer(nn.Linear(2, 2))) is ReadyOwn


def test_the_arguments_of_a_custom_optimizer_are_checked_against_its_annotations():
    """Contract A15: arguments are typed."""

    def make(params, strength: int, cautious: bool = False):
        return optim.SGD(params, lr=strength)

    register_optimizer("ready_typed", make)
    OptimizerConfig(name="ready_typed", arguments={"strength": 1}).check()
    with pytest.raises(ConfigError) as caught:
        OptimizerConfig(name="ready_typed", arguments={"strength": "1", "cautios": True}).check()
    assert {each.key for each in caught.value.problems} == {"arguments.strength", "arguments.cautios"}
    assert "did you mean `cautious`" in str(caught.value)


def test_the_first_parameter_of_a_custom_optimizer_may_have_any_name():
    """Contract A15: `make(params, **arguments)` receives the parameters as its first argument."""
    register_optimizer("ready_weights", lambda weights, lr: optim.SGD(weights, lr=lr))
    config = OptimizerConfig(name="ready_weights", arguments={"lr": 0.5})
    config.check()
    assert config.make_optimizer(nn.Linear(2, 2)).defaults["lr"] == 0.5


def test_the_first_parameter_of_a_custom_schedule_may_have_any_name():
    """Contract A15: `make(optimizer, **arguments)` receives the optimizer as its first argument."""
    register_scheduler("ready_opt", lambda opt, every: lr_scheduler.StepLR(opt, every))
    config = SchedulerConfig(name="ready_opt", arguments={"every": 2})
    config.check()
    model = nn.Linear(2, 2)
    assert config.make_scheduler(model, optim.SGD(model.parameters())).step_size == 2


def test_a_partial_can_be_registered():
    """Covers contract A15."""
    register_optimizer("ready_partial", functools.partial(optim.SGD, momentum=0.9))
    OptimizerConfig(name="ready_partial", arguments={"lr": 0.5}).check()
    with pytest.raises(ConfigError, match=r"arguments\.lrr.*no such argument"):
        OptimizerConfig(name="ready_partial", arguments={"lrr": 0.5}).check()


def test_an_infinite_argument_is_a_float():
    """Contract A15: arguments are typed, and infinity is a float."""

    def make(params, clip: float):
        return optim.SGD(params, lr=0.1)

    register_optimizer("ready_clip", make)
    OptimizerConfig(name="ready_clip", arguments={"clip": float("inf")}).check()


def test_a_custom_schedule_is_registered_with_its_step_when():
    """Covers contracts A15 and A16."""
    register_scheduler("ReadySchedule", lr_scheduler.ExponentialLR, step_when="val")
    config = SchedulerConfig(name="readyschedule", arguments={"gamma": 0.5})
    config.check()
    assert config.moment == "val"


def test_a_registered_schedule_steps_in_training_by_default():
    """Covers contracts A15 and A16."""
    register_scheduler("ready_silent", lr_scheduler.ExponentialLR)
    assert SchedulerConfig(name="ready_silent").moment == "train"


@configclass
class ReadyOptimizer(ConfigBase):
    strength: float = 0.25

    def make_optimizer(self, model):
        return optim.SGD(model.parameters(), lr=self.strength)


@configclass
class ReadyScheduler(ConfigBase):
    every: int = 2

    def make_scheduler(self, model, optimizer):
        return lr_scheduler.StepLR(optimizer, self.every)


@configclass
class ReadyNeither(ConfigBase):
    strength: float = 0.25


def test_a_custom_config_with_make_optimizer_is_accepted():
    """Covers contract A15."""
    config = training(optimizer_config=ReadyOptimizer(strength=0.5))
    assert type(config.optimizer_config) is ReadyOptimizer
    config.check()
    assert config.optimizer_config.make_optimizer(nn.Linear(2, 2)).defaults["lr"] == 0.5


def test_a_custom_config_with_make_scheduler_is_accepted():
    """Covers contract A15."""
    config = run(scheduler_config=ReadyScheduler(every=3))
    assert type(config.train_config.scheduler_config) is ReadyScheduler
    config.check()


@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_custom_configs_are_loaded_from_a_file(tmp_path, ending):
    """Contract A15: a file names the classes of its custom configs."""
    config = run(train_config=training(optimizer_config=ReadyOptimizer(strength=0.5), scheduler_config=ReadyScheduler(every=3)))
    path = tmp_path / f"run.{ending}"
    config.write(path)
    assert "ReadyOptimizer" in path.read_text()
    back = RunConfig.load(path)
    assert back == config
    assert back.key == config.key
    assert type(back.train_config.optimizer_config) is ReadyOptimizer
    assert type(back.train_config.scheduler_config) is ReadyScheduler


def test_a_class_name_written_by_hand_is_accepted(tmp_path):
    """Covers contract A15."""
    path = tmp_path / "train.yaml"
    path.write_text("dataset: d\nbatch_size: 1\nepochs: 1\noptimizer_config:\n  class: ReadyOptimizer\n  strength: 0.75\n")
    assert TrainConfig.load(path).optimizer_config == ReadyOptimizer(strength=0.75)


def test_the_error_for_an_unknown_class_in_a_file_has_its_line_and_the_nearest_name(tmp_path):
    """Covers contract A15."""
    path = tmp_path / "train.yaml"
    path.write_text("dataset: d\nbatch_size: 1\nepochs: 1\noptimizer_config:\n  class: ReadyOptimiser\n")
    with pytest.raises(ConfigError, match=r"did you mean `ReadyOptimizer`.*train\.yaml:5:3"):
        TrainConfig.load(path)


@pytest.mark.parametrize("value", [ReadyNeither(), ReadyScheduler(), {"class": "ReadyNeither"}, {"class": "ReadyScheduler"}, 3])
def test_a_config_without_make_optimizer_is_not_an_optimizer(value):
    """Covers contract A15."""
    with pytest.raises(ConfigError, match="optimizer_config"):
        training(optimizer_config=value)


@pytest.mark.parametrize("value", [ReadyNeither(), ReadyOptimizer(), {"class": "ReadyOptimizer"}])
def test_a_config_without_make_scheduler_is_not_a_schedule(value):
    """Covers contract A15."""
    with pytest.raises(ConfigError, match="scheduler_config"):
        training(scheduler_config=value)


def test_custom_configs_of_different_classes_with_the_same_values_have_different_keys():
    """Contract A15: the class is part of the identity."""

    @configclass
    class ReadyTwin(ConfigBase):
        strength: float = 0.25

        def make_optimizer(self, model):
            return optim.Adam(model.parameters(), lr=self.strength)

    assert training(optimizer_config=ReadyOptimizer()).key != training(optimizer_config=ReadyTwin()).key


# ---- check() (A15: typed arguments)


def problems_of(config):
    with pytest.raises(ConfigError) as caught:
        config.check()
    return {each.key: str(each) for each in caught.value.problems}


def test_check_accepts_a_valid_run():
    run(scheduler_config={"name": "step", "arguments": {"step_size": 2}}).check()


def test_check_finds_an_unknown_optimizer():
    assert "no such optimizer; did you mean `adam`" in problems_of(OptimizerConfig(name="adamm"))["name"]


def test_check_lists_all_optimizers_if_no_name_is_similar():
    assert "known: adadelta, adafactor" in problems_of(OptimizerConfig(name="zzzzzz"))["name"]


@pytest.mark.parametrize("name", ["optimizer", "lr_scheduler", "__name__", "", "swa_utils", "torch.optim.SGD"])
def test_only_optimizer_classes_can_be_optimizers(name):
    assert "no such optimizer" in problems_of(OptimizerConfig(name=name))["name"]


@pytest.mark.parametrize("name", ["lrscheduler", "_lrscheduler", "optimizer", "warnings", ""])
def test_only_schedule_classes_can_be_schedules(name):
    assert "no such schedule" in problems_of(SchedulerConfig(name=name))["name"]


def test_the_known_schedules_include_none():
    assert ", none, " in problems_of(SchedulerConfig(name="off"))["name"]


def test_check_finds_an_unknown_schedule():
    assert "no such schedule; did you mean `cosineannealinglr`" in problems_of(SchedulerConfig(name="CosineAnealingLR"))["name"]


def test_check_finds_an_unknown_argument():
    found = problems_of(OptimizerConfig(name="sgd", arguments={"lr": 0.1, "momentun": 0.9}))
    start = "arguments.momentun = 0.9: SGD has no such argument; did you mean `momentum`? it takes lr, momentum, dampening"
    assert list(found) == ["arguments.momentun"]
    assert found["arguments.momentun"].startswith(start)


def test_an_unknown_argument_is_an_unknown_key():
    with pytest.raises(UnknownKeyError):
        OptimizerConfig(name="sgd", arguments={"zzz": 0.9}).check()


def test_check_lists_the_arguments_if_none_is_similar():
    assert "it takes step_size, gamma, last_epoch" in str(problems_of(SchedulerConfig(name="step", arguments={"step_size": 1, "zzz": 3})))


def test_check_finds_a_missing_argument():
    assert "is missing; StepLR needs it" in problems_of(SchedulerConfig(name="step"))["arguments.step_size"]


@pytest.mark.parametrize("name", ["SequentialLR", "LambdaLR", "ChainedScheduler"])
def test_check_finds_a_missing_schedule_or_function(name):
    found = problems_of(SchedulerConfig(name=name, arguments={"milestones": [1]} if name == "SequentialLR" else {}))
    assert found.keys() & {"arguments.schedulers", "arguments.lr_lambda"}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sgd", {"lr": "1e-3"}),
        ("sgd", {"lr": None}),
        ("sgd", {"lr": True}),
        ("sgd", {"lr": [0.1]}),
        ("sgd", {"nesterov": 1}),
        ("sgd", {"momentum": "0.9"}),
        ("adam", {"betas": 0.9}),
        ("adam", {"betas": [0.9]}),
        ("adam", {"betas": ["0.9", 0.99]}),
        ("lbfgs", {"max_iter": 1.5}),
        ("lbfgs", {"line_search_fn": 3}),
    ],
)
def test_check_finds_an_optimizer_argument_with_a_wrong_type(name, arguments):
    """Contract A15: the text `1e-3` is not a number, so torch would receive text."""
    found = problems_of(OptimizerConfig(name=name, arguments=arguments))
    assert list(found) == [f"arguments.{next(iter(arguments))}"]
    assert " wants " in str(found)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("step", {"step_size": "3"}),
        ("step", {"step_size": 1.5}),
        ("plateau", {"mode": "maximum"}),
        ("plateau", {"patience": "2"}),
        ("multisteplr", {"milestones": "24"}),
        ("multisteplr", {"milestones": ["2", "4"]}),
        ("multisteplr", {"milestones": 2}),
        ("cycle", {"max_lr": "0.1", "total_steps": 3}),
    ],
)
def test_check_finds_a_schedule_argument_with_a_wrong_type(name, arguments):
    found = problems_of(SchedulerConfig(name=name, arguments=arguments))
    assert list(found) == [f"arguments.{next(iter(arguments))}"]


def test_check_shows_the_error_of_torch():
    assert "sgd refuses them: Invalid learning rate: -1.0" in problems_of(OptimizerConfig(name="sgd", arguments={"lr": -1.0}))["arguments"]
    found = problems_of(SchedulerConfig(name="cycle", arguments={"max_lr": 0.1}))
    assert "You must define either total_steps" in found["arguments"]


def refused(make):
    with pytest.raises(ConfigError) as caught:
        make()
    return str(caught.value)


def test_the_error_for_a_missing_schedule_argument_names_it_and_does_not_come_from_torch():
    model, config = nn.Linear(1, 1), SchedulerConfig(name="step")
    said = refused(lambda: config.make_scheduler(model, optim.SGD(model.parameters(), lr=0.1)))
    assert said == "a problem in SchedulerConfig\n  wrong   arguments.step_size: is missing; StepLR needs it"


def test_the_error_for_a_wrong_optimizer_argument_suggests_the_nearest_and_lists_all():
    said = refused(lambda: OptimizerConfig(name="sgd", arguments={"lrr": 0.1}).make_optimizer(nn.Linear(1, 1)))
    assert "arguments.lrr = 0.1: SGD has no such argument; did you mean `lr`? it takes lr, momentum" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"lr": "0.1"}, "SGD wants float"),
        ({"nesterov": "false"}, "SGD wants bool"),
        ({"lr": -1.0}, "sgd refuses them: Invalid learning rate"),
    ],
)
def test_an_optimizer_with_a_wrong_value_is_not_created(arguments, why):
    assert why in refused(lambda: OptimizerConfig(name="sgd", arguments=arguments).make_optimizer(nn.Linear(1, 1)))


def test_a_schedule_that_torch_refuses_is_not_created():
    model = nn.Linear(1, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    cycle = SchedulerConfig(name="cycle", arguments={"max_lr": 0.1})
    assert "cycle refuses them: You must define either total_steps" in refused(lambda: cycle.make_scheduler(model, optimizer))
    inner = {"name": "StepLR", "arguments": {"stepsize": 3}}
    chained = SchedulerConfig(name="ChainedScheduler", arguments={"schedulers": [inner]})
    said = refused(lambda: chained.make_scheduler(model, optimizer))
    assert "arguments.schedulers.0.arguments.stepsize = 3: StepLR has no such argument; did you mean `step_size`?" in said


def test_a_wrong_argument_in_a_file_is_reported_with_its_line(tmp_path):
    file = tmp_path / "optimizer.yaml"
    file.write_text("name: sgd\narguments:\n  lrr: 0.1\n")
    said = refused(lambda: OptimizerConfig.load(file).make_optimizer(nn.Linear(1, 1)))
    assert f"[{file}:2:1]" in said
    file.write_text("name: step\n")
    model = nn.Linear(1, 1)
    said = refused(lambda: SchedulerConfig.load(file).make_scheduler(model, optim.SGD(model.parameters(), lr=0.1)))
    assert f"is missing; StepLR needs it  [{file}:1:1]" in said


def test_parameters_in_place_of_a_model_and_swapped_arguments_are_reported():
    model = nn.Linear(1, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SettingError, match=r"make_optimizer takes the model, not <generator"):
        OptimizerConfig(name="sgd").make_optimizer(model.parameters())
    with pytest.raises(SettingError, match="the model Identity has no parameters"):
        OptimizerConfig(name="sgd").make_optimizer(nn.Identity())
    with pytest.raises(SettingError, match=r"make_scheduler takes the model, then an optimizer, not Linear"):
        SchedulerConfig(name="step", arguments={"step_size": 1}).make_scheduler(optimizer, model)


def test_check_finds_a_wrong_argument_of_a_nested_schedule():
    inner = {"name": "StepLR", "arguments": {"stepsize": 3}}
    found = problems_of(SchedulerConfig(name="ChainedScheduler", arguments={"schedulers": [inner]}))
    assert "stepsize" in str([*found.values()])


def test_check_finds_a_misspelled_nested_schedule_and_says_which():
    inner = [{"name": "ExponentialLR", "arguments": {"gamma": 0.5}}, {"name": "ExponentialLRR"}]
    found = problems_of(SchedulerConfig(name="ChainedScheduler", arguments={"schedulers": inner}))
    assert "no such schedule; did you mean `exponentiallr`" in found["arguments.schedulers.1.name"]


@pytest.mark.parametrize(("name", "meant"), [("StepLRR", "step"), ("ReduceLROnPlatau", "plateau"), ("OnecycleLRs", "cycle")])
def test_the_error_for_a_misspelled_full_name_suggests_the_schedule(name, meant):
    assert f"did you mean `{meant}`" in problems_of(SchedulerConfig(name=name))["name"].lower().replace("steplr`", "step`").replace(
        "reducelronplateau`", "plateau`"
    ).replace("onecyclelr`", "cycle`")


def test_check_finds_a_missing_function():
    found = problems_of(SchedulerConfig(name="LambdaLR", arguments={"lr_lambda": "math.sqr"}))
    assert "`math` has no `sqr`" in str(found)


def test_check_reports_all_problems_of_a_run_with_their_whole_keys():
    config = run(
        train_config=training(
            optimizer_config={"name": "sgd", "arguments": {"lr": "x", "zzz": 1}},
            scheduler_config={"name": "step", "arguments": {"gama": 0.5}},
        )
    )
    assert problems_of(config).keys() == {
        "train_config.optimizer_config.arguments.lr",
        "train_config.optimizer_config.arguments.zzz",
        "train_config.scheduler_config.arguments.gama",
        "train_config.scheduler_config.arguments.step_size",
    }


def test_check_draws_no_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    run(scheduler_config={"name": "step", "arguments": {"step_size": 2}}).check()
    assert torch.rand(1) == expected


def test_wrong_arguments_are_found_by_check_and_not_before():
    """Creating a config imports nothing, so it cannot know which arguments torch accepts."""
    assert OptimizerConfig(name="adamm", arguments={"zzz": 1}).name == "adamm"


def test_making_an_unknown_optimizer_is_a_config_error():
    with pytest.raises(ConfigError, match="no such optimizer"):
        OptimizerConfig(name="adamm").make_optimizer(nn.Linear(2, 2))


# ---- loading imports no torch


def test_loading_a_run_never_imports_torch(tmp_path):
    run(
        train_config=training(
            optimizer_config={"name": "adam", "arguments": {"lr": 1e-3, "betas": [0.9, 0.99]}},
            scheduler_config={"name": "plateau", "arguments": {"mode": "max"}},
        ),
        model_config={},
        optim_metrics={"accuracy": "max"},
        optim_metric_name="accuracy",
    ).write(tmp_path / "run.yaml")
    program = textwrap.dedent(
        """
        import sys
        from trainmaster.config import RunConfig
        config = RunConfig.load(sys.argv[1])
        assert config.train_config.optimizer_config.name == "adam"
        config = config.override("train_config.optimizer_config.arguments.lr=0.1", "random_seed=3").freeze()
        config.key, config.to_yaml(), config.describe(), repr(config), config.clone()
        config.write(sys.argv[1] + ".json")
        assert "torch" not in sys.modules, "torch was imported"
        assert "numpy" not in sys.modules, "numpy was imported"
        """
    )
    result = subprocess.run([sys.executable, "-c", program, tmp_path / "run.yaml"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# ---- when a schedule steps (A16)


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("step", "epoch"),
        ("StepLR", "epoch"),
        ("cycle", "train"),
        ("OneCycleLR", "train"),
        ("plateau", "val"),
        ("ReduceLROnPlateau", "val"),
        ("ExponentialLR", "train"),
        ("none", "train"),
        ("not_yet_registered", "train"),
    ],
)
def test_when_a_schedule_steps_by_default(name, when):
    """Contract A16: schedules step at `train` unless they have their own default."""
    assert SchedulerConfig(name=name).moment == when


@pytest.mark.parametrize("when", ["train", "epoch", "val"])
def test_step_when_decides_when_a_schedule_steps(when):
    """Covers contract A16."""
    assert SchedulerConfig(name="step", step_when=when).moment == when


def test_an_invalid_step_when_is_refused():
    """Covers contract A16."""
    with pytest.raises(ConfigError, match="step_when = 'epochs': expected 'train', 'epoch' or 'val'; did you mean `epoch`"):
        SchedulerConfig(name="step", step_when="epochs")


def test_an_explicit_default_has_the_same_key_as_an_implicit_one():
    """Covers contract A16."""
    said, not_said = SchedulerConfig(name="step", step_when="epoch"), SchedulerConfig(name="step")
    assert said.key == not_said.key
    assert SchedulerConfig(name="step", step_when=None) == not_said
    assert SchedulerConfig(name="step", step_when="train").key != not_said.key


def test_a_schedule_selected_by_an_override_uses_its_own_default_step_when():
    """Contract A16: `epoch` was only the default of a step schedule, so a plateau schedule steps at evaluations."""
    config = SchedulerConfig(name="step").override("name=plateau")
    assert config.moment == "val"


def test_a_schedule_selected_by_an_assignment_uses_its_own_default_step_when():
    """Covers contract A16."""
    config = SchedulerConfig(name="step")
    config.name = "plateau"
    assert config.moment == "val"


def test_an_explicit_step_when_survives_a_new_schedule_name():
    """Covers contract A16."""
    assert SchedulerConfig(name="step", step_when="train").override("name=plateau").moment == "train"


# ---- cross checks (A17)


@pytest.mark.parametrize("values", [{"optim_metrics": {"loss": "min"}}, {"optim_metric_name": "loss"}])
def test_optim_metrics_and_optim_metric_name_must_be_set_together(values):
    """Contract A17: either both are set or neither."""
    with pytest.raises(ConfigError, match="optim_metrics and optim_metric_name go together: set both or neither"):
        run(**values)


def test_optim_metric_name_must_be_in_optim_metrics():
    """Covers contract A17."""
    with pytest.raises(ConfigError, match="optim_metric_name = 'los': is not in optim_metrics, which has loss, acc; did you mean `loss`"):
        run(optim_metrics={"loss": "min", "acc": "max"}, optim_metric_name="los")


def test_the_message_for_a_metric_without_a_similar_name_does_not_end_with_a_semicolon():
    """Covers contract A17."""
    with pytest.raises(ConfigError, match="which has loss") as caught:
        run(optim_metrics={"loss": "min"}, optim_metric_name="zzzzzz")
    assert not caught.value.problems[0].text.rstrip().endswith(";")


def test_a_direction_is_min_or_max():
    """Covers contract A17."""
    with pytest.raises(ConfigError, match=r"optim_metrics\.loss = 'down': expected 'min' or 'max'"):
        run(optim_metrics={"loss": "down"}, optim_metric_name="loss")


@pytest.mark.parametrize("name", ["plateau", "ReduceLROnPlateau", "PLATEAU"])
def test_a_plateau_schedule_needs_the_metrics(name):
    """Covers contract A17."""
    with pytest.raises(ConfigError, match=r"train_config\.scheduler_config\.name = 'plateau': a plateau schedule needs optim_metrics"):
        run(scheduler_config={"name": name})


def test_early_stopping_needs_the_metrics():
    """Covers contract A17."""
    with pytest.raises(ConfigError, match="early_stopping_iter = 3: early stopping needs optim_metrics and optim_metric_name"):
        run(early_stopping_iter=3)


def test_all_cross_checks_are_reported_at_once():
    """Covers contract A17."""
    with pytest.raises(ConfigError) as caught:
        parallel(early_stopping_iter=3, scheduler_config={"name": "plateau"}, verbose="progress")
    assert {each.key for each in caught.value.problems} == {"early_stopping_iter", "train_config.scheduler_config.name", "verbose"}


@pytest.mark.parametrize(("mode", "direction"), [("min", "max"), ("max", "min"), (None, "max")])
def test_a_plateau_schedule_with_the_wrong_direction_warns(mode, direction):
    """Contract A17: torch's default mode is min."""
    arguments = {} if mode is None else {"mode": mode}
    with pytest.warns(UserWarning, match=f"the plateau schedule has mode '{mode or 'min'}', but 'acc' is to be {direction}imized"):
        run(scheduler_config={"name": "plateau", "arguments": arguments}, optim_metrics={"acc": direction}, optim_metric_name="acc")


@pytest.mark.parametrize(("mode", "direction"), [("min", "min"), ("max", "max"), (None, "min")])
def test_a_plateau_schedule_with_the_right_direction_does_not_warn(mode, direction):
    """Covers contract A17."""
    arguments = {} if mode is None else {"mode": mode}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(scheduler_config={"name": "plateau", "arguments": arguments}, optim_metrics={"acc": direction}, optim_metric_name="acc").check()


def test_cross_checks_run_after_an_override():
    """Covers contract A17."""
    with pytest.raises(ConfigError, match="early stopping needs"):
        run().override("early_stopping_iter=3")
    config = run().override("early_stopping_iter=3", "optim_metrics={acc: max}", "optim_metric_name=acc")
    assert config.early_stopping_iter == 3


def test_cross_checks_of_a_file_show_the_line(tmp_path):
    """Covers contract A17."""
    path = tmp_path / "run.yaml"
    path.write_text(run(model_config={}).to_yaml().replace("early_stopping_iter: null", "early_stopping_iter: 3"))
    line = path.read_text().split("\n").index("early_stopping_iter: 3") + 1
    with pytest.raises(ConfigError, match=rf"early stopping needs.*run\.yaml:{line}:1"):
        RunConfig.load(path)


def test_cross_checks_do_not_run_between_two_assignments():
    """Contract A17: an assignment is allowed, because the next one may fix the problem.

    Freezing an inconsistent config is an error.
    """
    config = run()
    config.early_stopping_iter = 3
    with pytest.raises(ConfigError, match="early stopping needs"):
        config.freeze()
    config.optim_metrics = {"acc": "max"}
    config.optim_metric_name = "acc"
    config.freeze()


# ---- SearchSpace (A42)

SPACES = {
    "value_range": (1, 5),
    "categorical_values": [1, 2],
    "subspaces": [{"value_range": (0, 1)}],
    "sub_configuration": {"a": 1},
}


@pytest.mark.parametrize("kind", SPACES)
def test_each_kind_of_space_alone_is_valid(kind):
    """Covers contract A42."""
    assert SearchSpace(**{kind: SPACES[kind]})[kind] is not None


@pytest.mark.parametrize(("one", "other"), [*combinations(SPACES, 2)])
def test_two_kinds_of_space_at_once_are_refused(one, other):
    """Contract A42: a space has exactly one kind."""
    with pytest.raises(ConfigError, match=f"expected exactly one of .*; given: {one}, {other}"):
        SearchSpace(**{one: SPACES[one], other: SPACES[other]})


def test_a_space_of_no_kind_is_refused():
    """Contract A42: a space has exactly one kind."""
    with pytest.raises(ConfigError, match=r"expected exactly one of .*; given: none"):
        SearchSpace()


@pytest.mark.parametrize(
    ("value", "is_in"),
    [(1, True), (5, True), (3, True), (3.0, True), (3.5, False), (0, False), (6, False), (True, False), ("3", False), (None, False)],
)
def test_a_range_of_ints_contains_its_integers(value, is_in):
    """Covers contract A42."""
    assert SearchSpace(value_range=(1, 5), value_type="int").contains(value) is is_in


@pytest.mark.parametrize(
    ("value", "is_in"),
    [(1, True), (3.5, True), (5.0, True), (0.999, False), (float("nan"), False), (float("inf"), False), ([3], False), ({}, False)],
)
def test_a_range_of_floats_contains_its_numbers(value, is_in):
    """Covers contract A42."""
    assert SearchSpace(value_range=(1, 5)).contains(value) is is_in


@pytest.mark.parametrize("kind", ["int", "float"])
def test_a_range_contains_numpy_numbers(kind):
    """Contract A42: NumPy numbers are treated as plain values, as in a config's key."""
    space = SearchSpace(value_range=(1, 5), value_type=kind)
    assert space.contains(numpy.int64(3)) is True
    assert space.contains(numpy.float64(3.0)) is True
    assert space.contains(numpy.int64(9)) is False


@pytest.mark.parametrize("kind", ["int", "float"])
def test_a_range_does_not_contain_an_integer_that_is_too_large_for_a_float(kind):
    """Covers contract A42."""
    assert SearchSpace(value_range=(1, 5), value_type=kind).contains(10**400) is False


@pytest.mark.parametrize(
    ("value", "is_in"), [(1, True), ("a", True), ([1, 2], True), ((1, 2), True), (None, True), (1.0, False), (True, False), ("b", False)]
)
def test_a_list_of_values_contains_its_values(value, is_in):
    """Contract A42: as in the key of a config, `1`, `1.0` and `True` differ."""
    assert SearchSpace(categorical_values=[1, "a", [1, 2], None]).contains(value) is is_in


def test_no_space_contains_a_value_that_a_config_cannot_have():
    """Covers contract A42."""
    assert not SearchSpace(categorical_values=[None, 1]).contains(object())
    assert not SearchSpace(sub_configuration={"a": None}).contains({"a": object()})
    assert not SearchSpace(value_range=(1, 2)).contains(object())


@pytest.mark.parametrize(("value", "is_in"), [(0.5, True), ("none", True), (11, True), (5, False), ("some", False)])
def test_a_choice_of_spaces_contains_the_values_of_each(value, is_in):
    """Covers contract A42."""
    space = SearchSpace(subspaces=[{"value_range": (0, 1)}, {"categorical_values": ["none"]}, {"subspaces": [{"value_range": (10, 12)}]}])
    assert space.contains(value) is is_in


@pytest.mark.parametrize(
    ("value", "is_in"),
    [
        ({"name": "sgd", "arguments": {"lr": 0.05}}, True),
        ({"name": "adam", "arguments": {"lr": 0.05}}, False),
        ({"name": "sgd", "arguments": {"lr": 5}}, False),
        ({"name": "sgd"}, False),
        ({"name": "sgd", "arguments": {"lr": 0.05}, "more": 1}, False),
        ({"name": "sgd", "arguments": {"lr": 0.05, "more": 1}}, False),
        ("sgd", False),
    ],
)
def test_a_group_contains_values_that_match_every_part(value, is_in):
    """Contract A42: parts are fixed values, spaces, or groups of them."""
    space = SearchSpace(sub_configuration={"name": "sgd", "arguments": {"lr": {"value_range": [0.01, 0.1], "log": True}}})
    assert space.contains(value) is is_in


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"value_range": (5, 1)}, "the smaller one first"),
        ({"value_range": (1, 1)}, "the smaller one first"),
        ({"value_range": (0, float("inf"))}, "finite"),
        ({"value_range": (float("nan"), 1)}, "finite"),
        ({"value_range": (0, 1), "log": True}, "a logarithmic range must start above 0"),
        ({"value_range": (-1, 1), "log": True}, "a logarithmic range must start above 0"),
        ({"value_range": (0.5, 3), "value_type": "int"}, "a range of whole numbers must have whole numbers as its ends"),
        ({"value_range": (1,)}, "value_range"),
        ({"value_range": (1, 2, 3)}, "value_range"),
        ({"value_range": (1, 2), "value_type": "text"}, "expected 'int' or 'float'"),
        ({"value_range": (1, 2), "n_bins": 0}, "n_bins"),
        ({"categorical_values": [1], "n_bins": 2}, "is only allowed with a value_range"),
        ({"categorical_values": [1], "log": True}, "is only allowed with a value_range"),
        ({"categorical_values": [1], "value_type": "int"}, "is only allowed with a value_range"),
        ({"categorical_values": []}, "is empty"),
        ({"subspaces": []}, "is empty"),
        ({"sub_configuration": {}}, "is empty"),
        ({"subspaces": [{}]}, r"subspaces\.0.*exactly one"),
        ({"sub_configuration": {"a": {"b": {"value_range": [3, 1]}}}}, "sub_configuration.*the smaller one first"),
        ({"sub_configuration": {"a": {"value_range": [1, 3], "categorical_values": [1]}}}, "sub_configuration.*exactly one"),
    ],
)
def test_an_invalid_space_is_refused(values, why):
    """Covers contract A42."""
    with pytest.raises(ConfigError, match=why):
        SearchSpace(**values)


def test_the_options_of_a_range():
    """Covers contract A42."""
    space = SearchSpace(value_range=[1, 100], value_type="int", n_bins=5, log=True)
    assert (space.value_range, space.value_type, space.n_bins, space.log) == ((1.0, 100.0), "int", 5, True)


def test_a_space_is_loaded_from_a_file(tmp_path):
    """Covers contract A42."""
    config = parallel(
        model_config={},
        search_space={
            "train_config.batch_size": {"value_range": (1, 8), "value_type": "int"},
            "train_config.optimizer_config": {"subspaces": [{"sub_configuration": {"name": "sgd", "arguments": {"lr": 0.1}}}]},
        },
    )
    config.write(tmp_path / "p.yaml")
    assert ParallelConfig.load(tmp_path / "p.yaml") == config


@pytest.mark.parametrize(
    "key",
    [
        "random_seed",
        "train_config.batch_size",
        "model_config.width",
        "train_config.optimizer_config",
        "train_config.optimizer_config.name",
        "train_config.optimizer_config.arguments.lr",
        "train_config.optimizer_config.arguments.momentum",
        "train_config.scheduler_config",
    ],
)
def test_a_search_may_set_every_key_of_the_run(key):
    """Contract A42: a free-form group may get new keys."""
    value = {"name": "step"} if key.endswith("_config") else 1
    assert list(parallel(search_space={key: {"categorical_values": [value]}}).search_space) == [key]


@pytest.mark.parametrize(
    ("key", "space", "why"),
    [
        ("train_config.batch_size", {"categorical_values": [8, "many"]}, "could be 'many': expected a whole number"),
        ("train_config.batch_size", {"value_range": [1, 8]}, "a field of whole numbers needs `value_type: int`"),
        ("train_config.batch_size", {"value_range": [0, 8], "value_type": "int"}, "could be 0.0: expected a value greater than 0"),
        ("device", {"categorical_values": ["cpu", "cuda"]}, "is not part of the identity, so all trials would be the same run"),
    ],
)
def test_a_search_over_values_that_a_run_cannot_have_is_refused(key, space, why):
    """Covers contracts A42 and A44."""
    with pytest.raises(ConfigError) as caught:
        parallel(search_space={key: space})
    assert [each.text for each in caught.value.problems] == [why]


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("train_config.batch_sise", "did you mean `train_config.batch_size`"),
        ("model_config.widht", "did you mean `model_config.width`"),
        ("zzz", "the config has no such key"),
        ("train_config.zzz.lr", "the config has no such key"),
        ("search_algo", "configures the search, not a run"),
        ("total_trials", "configures the search, not a run"),
        ("search_space.random_seed", "configures the search, not a run"),
    ],
)
def test_a_key_that_a_search_cannot_set_is_refused(key, why):
    """Contract A42: keys are checked against the config before the search starts."""
    with pytest.raises(ConfigError, match=why) as caught:
        parallel(search_space={key: {"categorical_values": [1]}})
    assert f"search_space.{key}" in str(caught.value)


@pytest.mark.parametrize("key", ["", "a..b", "."])
def test_a_search_key_with_empty_parts_is_refused(key):
    """Covers contract A42."""
    with pytest.raises(ConfigError, match="empty parts"):
        parallel(search_space={key: {"categorical_values": [1]}})


def test_every_wrong_search_key_is_reported_at_once():
    """Covers contract A42."""
    space = {"categorical_values": [1]}
    with pytest.raises(ConfigError) as caught:
        parallel(search_space={"zzz": space, "train_config.yyy": space, "random_seed": space})
    assert [each.key for each in caught.value.problems] == ["search_space.zzz", "search_space.train_config.yyy"]
