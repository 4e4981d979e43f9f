"""Ready-made config classes for a model, its training, a single run, and a search with many runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le

from trainmaster.config.config_base import ConfigBase
from trainmaster.config.configclass import configclass
from trainmaster.config.fields import Replicate, Stateless
from trainmaster.config.optimizer_config import OptimizerConfig
from trainmaster.config.scheduler_config import SchedulerConfig
from trainmaster.config.search_space import SearchSpace
from trainmaster.errors import ConfigError, did_you_mean

Count = Annotated[int, Ge(0)]
Several = Annotated[int, Gt(0)]
Interval = Annotated[float, Ge(0)]


@configclass
class ModelConfig(ConfigBase):
    """The base class for model configs: subclass it with the fields that your model needs."""


@configclass
class TrainConfig(ConfigBase):
    """Settings for training a model.

    To continue a run beyond `epochs` epochs, use `process(num_epochs=...)` or `--epochs`.

    `dataset` and `batch_size` are for use in your `make_dataloader_train`. If the training loader has a different
    `batch_size`, an error is raised.
    """

    dataset: str
    batch_size: Several
    epochs: Count
    optimizer_config: OptimizerConfig
    scheduler_config: SchedulerConfig | None = None


@configclass
class RunConfig(ConfigBase):
    """The config of one run, for use with a `ProtoTrainer`.

    A field is part of the identity if it affects the weights, the metrics, or the time at which training ends.

    - `experiment_dir`, `experiment_id`: the store is the folder `experiment_dir`, or its subfolder `experiment_id` if that is set.
    - `amp`: use mixed precision. This works only on CUDA.
    - `tensorboard`: also write TensorBoard event files.
    - `verbose`: "console" prints lines, "progress" also shows progress bars, and "silent" prints nothing.
    - `keep_n_checkpoints`: how many recent checkpoints to keep in addition to the best one.
    - `init_chkpt`: the folder of a checkpoint. A new run starts with the weights of this checkpoint.
    - `eval_epoch`: the number of epochs between two evaluations. With 0.5, the model is evaluated twice
      per epoch. With 0, it is evaluated only at the end.
    - `eval_subsample`: the fraction of the validation batches that an evaluation uses.
    - `metrics_n_batches`: training metrics are computed from only the last `metrics_n_batches` batches of each epoch.
    - `optim_metrics`: maps metric names to "min" or "max". A search optimizes all of these metrics.
    - `optim_metric_name`: the metric in `optim_metrics` that decides which checkpoint is the best, when to stop early, and when a
      plateau schedule reduces the learning rate. If it is not set, the checkpoint with the lowest `valid/loss` is the best. A
      Lightning module that logs `val_loss` needs `optim_metrics={"val_loss": "min"}, optim_metric_name="val_loss"`.
    - `early_stopping_iter`: stop if the metric `optim_metric_name` has not improved for more than this many batches.
    - `divergence_factor`: raise an error if the validation loss becomes much greater than at earlier evaluations. This is
      the `factor` of `DivergenceGuard`. With None, only NaN and inf are errors.
    - `warm_up_epochs`: the number of epochs after which the checks for divergence begin.
    """

    model_config: ModelConfig
    train_config: TrainConfig
    random_seed: Replicate[int | None] = None
    amp: bool = False
    init_chkpt: str | None = None
    eval_epoch: Interval = 1
    eval_subsample: Annotated[float, Gt(0), Le(1)] = 1
    metrics_n_batches: Several = 32
    optim_metrics: dict[str, Literal["min", "max"]] | None = None
    optim_metric_name: str | None = None
    early_stopping_iter: Several | None = None
    warm_up_epochs: Interval = 1
    divergence_factor: Annotated[float, Gt(0)] | None = 10
    experiment_dir: Stateless[Path | None] = None
    experiment_id: Stateless[str | None] = None
    device: Stateless[str] = "auto"
    tensorboard: Stateless[bool] = False
    verbose: Stateless[Literal["console", "progress", "silent"]] = "console"
    keep_n_checkpoints: Stateless[Several] = 3

    def problems(self) -> Iterator[tuple[str, str]]:
        metrics, name = self.optim_metrics, self.optim_metric_name
        if (metrics is None) != (name is None):
            yield (
                "optim_metrics" if metrics is None else "optim_metric_name",
                "optim_metrics and optim_metric_name go together: set both or neither",
            )
        elif metrics is not None and name not in metrics:
            known = f"is not in optim_metrics, which has {', '.join(metrics) or 'nothing'}"
            yield "optim_metric_name", f"{known}; {did_you_mean(str(name), metrics)}".rstrip("; ")
        schedule = self.train_config.scheduler_config
        is_plateau = isinstance(schedule, SchedulerConfig) and schedule.name == "plateau"
        if name is None and is_plateau:
            yield "train_config.scheduler_config.name", "a plateau schedule needs optim_metrics and optim_metric_name"
        if name is None and self.early_stopping_iter is not None:
            yield "early_stopping_iter", "early stopping needs optim_metrics and optim_metric_name"
        if is_plateau and schedule is not None and metrics and name in metrics:
            _warn_of_direction(schedule.arguments.get("mode", "min"), metrics[name], name)


def _warn_of_direction(mode: Any, direction: str, name: str) -> None:
    if mode != direction:
        warnings.warn(f"the plateau schedule has mode {mode!r}, but {name!r} is to be {direction}imized", stacklevel=2)


@configclass
class ParallelConfig(RunConfig):
    """The config of a search, for use with a `ParallelTrainer`.

    It adds a search space to a run config. None of the additional fields is part of the identity, so a trial has the same
    key as a run whose `RunConfig` has the same values.

    - `search_space`: the values to search, by dotted key.
    - `search_algo`: the Optuna sampler that proposes values.
    - `total_trials`: how many trials to run in total. None means no limit, so the search ends only when it has covered
      the whole space.
    - `concurrent_trials`: how many worker processes train at the same time. With None, all trials run in this process.
    """

    search_space: Stateless[dict[str, SearchSpace]]
    search_algo: Stateless[Literal["grid", "tpe", "random", "qmc", "gp", "cmaes", "nsga2"]] = "grid"
    total_trials: Stateless[Several | None] = None
    concurrent_trials: Stateless[Several | None] = None

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.verbose == "progress":
            yield "verbose", "parallel runs cannot share a progress bar; expected 'console' or 'silent'"
        for key in self.search_space:
            why = self._target_problem(key)
            if why:
                yield f"search_space.{key}", why

    def _target_problem(self, key: str) -> str:
        """Return why the search cannot set `key`, or an empty string if it can."""
        if key.partition(".")[0] in ParallelConfig._schema().own:
            return "configures the search, not a run"
        group = key.rpartition(".")[0]
        if key not in self and not (group in self and isinstance(self[group], dict)):
            known = [each for each in self.flatten() if not each.startswith("search_space.")]
            return f"the config has no such key; {did_you_mean(key, known)}".rstrip("; ")
        config, name, rest = self._owner(key)
        field = config._schema().fields[name]
        if field not in config._schema().stateful:
            return "is not part of the identity, so all trials would be the same run"
        return "" if rest else _values_problem(config, name, self.search_space[key])


def _values_problem(config: ConfigBase, name: str, space: SearchSpace) -> str:
    """Return why a field does not accept all values of a search space, or an empty string if it accepts them."""
    ends = list(space.value_range or ())
    if ends and space.value_type == "float" and _is_whole(config._schema().fields[name].written):
        return "a field of whole numbers needs `value_type: int`"
    try:
        for value in [*ends, *(space.categorical_values or ())]:
            config._schema().validate_one(name, value)
    except ConfigError as error:
        return f"could be {error.problems[0].value}: {error.problems[0].text}"
    return ""


def _is_whole(annotation: Any) -> bool:
    return annotation is int or (get_origin(annotation) is Annotated and get_args(annotation)[0] is int)
