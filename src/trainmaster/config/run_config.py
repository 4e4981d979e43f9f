"""The configs of a model, a training, a run, and of many runs in parallel."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le

from trainmaster.config.configclass import configclass
from trainmaster.config.fields import Replicate, Stateless
from trainmaster.config.optimizer_config import OptimizerConfig
from trainmaster.config.scheduler_config import SchedulerConfig
from trainmaster.config.search_space import SearchSpace
from trainmaster.config.typed import ConfigBase
from trainmaster.errors import ConfigError, did_you_mean

Count = Annotated[int, Ge(0)]
Several = Annotated[int, Gt(0)]
Interval = Annotated[float, Ge(0)]


@configclass
class ModelConfig(ConfigBase):
    """What a model is built from: subclass it with the fields your model needs."""


@configclass
class TrainConfig(ConfigBase):
    """How a model is trained. `epochs` is no part of the identity: a larger number continues the same training."""

    dataset: str
    batch_size: Several
    epochs: Stateless[Count]
    optimizer_config: OptimizerConfig
    scheduler_config: SchedulerConfig | None = None


@configclass
class RunConfig(ConfigBase):
    """One run: a model, a training, a seed; all else says how to go about it and is no part of the identity."""

    model_config: ModelConfig
    train_config: TrainConfig
    random_seed: Replicate[int | None] = None
    experiment_dir: Stateless[Path | None] = None
    experiment_id: Stateless[str | None] = None
    device: Stateless[str] = "auto"
    amp: Stateless[bool] = True
    tensorboard: Stateless[bool] = True
    verbose: Stateless[Literal["console", "progress", "silent"]] = "console"
    keep_n_checkpoints: Stateless[Several] = 3
    init_chkpt: Stateless[str | None] = None
    eval_epoch: Stateless[Interval] = 1
    log_epoch: Stateless[Interval] = 1
    eval_subsample: Stateless[Annotated[float, Gt(0), Le(1)]] = 1
    metrics_n_batches: Stateless[Several] = 32
    metrics_mb_limit: Stateless[Several] = 10_000
    optim_metrics: Stateless[dict[str, Literal["min", "max"]] | None] = None
    optim_metric_name: Stateless[str | None] = None
    early_stopping_iter: Stateless[Several | None] = None
    warm_up_epochs: Stateless[Interval] = 1
    divergence_factor: Stateless[Annotated[float, Gt(0)] | None] = 10

    def problems(self) -> Iterator[tuple[str, str]]:
        metrics, name = self.optim_metrics, self.optim_metric_name
        if (metrics is None) != (name is None):
            yield (
                "optim_metrics" if metrics is None else "optim_metric_name",
                "optim_metrics and optim_metric_name go together: set both or none",
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
        warnings.warn(f"the plateau schedule has mode {mode!r}, but {name!r} is to be {direction}imised", stacklevel=2)


@configclass
class ParallelConfig(RunConfig):
    """Many runs: a run, and the space that its values are searched in."""

    search_space: dict[str, SearchSpace]
    search_algo: Literal["grid", "tpe", "random"] = "grid"
    total_trials: Stateless[Several | None] = None
    concurrent_trials: Stateless[Several | None] = None
    gpu_mb_per_experiment: Stateless[Several | None] = None
    ignore_invalid_params: Stateless[bool] = False

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.verbose == "progress":
            yield "verbose", "runs in parallel have no single progress bar; wanted 'console' or 'silent'"
        for key in self.search_space:
            why = self._wrong_aim(key)
            if why:
                yield f"search_space.{key}", why

    def _wrong_aim(self, key: str) -> str:
        """Why the search cannot set `key`; empty if it can."""
        if key.partition(".")[0] in ParallelConfig._schema().own:
            return "is about the search, not about one run"
        group = key.rpartition(".")[0]
        if key not in self and not (group in self and isinstance(self[group], dict)):
            return f"the config has no such key; {did_you_mean(key, self._dotted_keys())}".rstrip("; ")
        config, name, rest = self._owner(key)
        field = config._schema().fields[name]
        if field not in config._schema().stateful:
            return "is no part of the identity: all trials would be the same run"
        return "" if rest else _wrong_values(config, name, self.search_space[key])

    def _dotted_keys(self) -> Iterator[str]:
        for name in self.keys():
            if isinstance(self[name], ConfigBase):
                yield from (f"{name}.{each}" for each in self[name].flatten())
            yield name


def _wrong_values(config: ConfigBase, name: str, space: SearchSpace) -> str:
    """Why a field cannot take the values of a space; empty if it can."""
    ends = list(space.value_range or ())
    if ends and space.value_type == "float" and _is_whole(config._schema().fields[name].written):
        return "a field of whole numbers is searched with value_type: int"
    try:
        for value in [*ends, *(space.categorical_values or ())]:
            config._schema().validate_one(name, value)
    except ConfigError as error:
        return f"could be {error.problems[0].value}: {error.problems[0].text}"
    return ""


def _is_whole(annotation: Any) -> bool:
    return annotation is int or (get_origin(annotation) is Annotated and get_args(annotation)[0] is int)
