"""`WrapperLoop`: the `TrainManager` that trains a `ModelWrapper` as its run config specifies."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler

from trainmaster.config import RunConfig
from trainmaster.errors import SettingError, shown
from trainmaster.extensions.divergence_guard import DivergenceGuard
from trainmaster.extensions.early_stopping import EarlyStopping
from trainmaster.extensions.mixed_precision import MixedPrecision
from trainmaster.extensions.nan_guard import NaNGuard
from trainmaster.extensions.tensorboard import TensorBoard
from trainmaster.loop.argument_checks import find_device
from trainmaster.loop.checkpoint_loader import read_checkpoint
from trainmaster.loop.checkpoint_saver import CheckpointSaver
from trainmaster.loop.data_position import length_of
from trainmaster.loop.eval_metrics import Metrics
from trainmaster.loop.optimization import is_schedule
from trainmaster.loop.ranks import refuse_ranks
from trainmaster.loop.state import TrainingState
from trainmaster.loop.train_manager import TrainManager
from trainmaster.manager.model_call import LightningModel, as_module, checked_step, named_values
from trainmaster.manager.model_wrapper import ModelWrapper
from trainmaster.manager.output_metrics import CustomEvaluation, LoggedMetrics, MetricInputs, OutputMetric, TrainMetrics
from trainmaster.manager.self_updates import InnerOptimizers, UpdateCheck
from trainmaster.stages import Extension, always
from trainmaster.stages.extension_map import named_extensions

VALID, TEST = "valid", "test"


class WrapperLoop(TrainManager):
    """Trains the model of a wrapper.

    Args:
        config: the run config. The loop uses a copy, in which `config_parser` sets the `Derived` fields.
        max_batches: use only this many batches of each set, for a smoke test.
    """

    is_loss_optional = True

    def __init__(self, wrapper: ModelWrapper, config: RunConfig, max_batches: int | None = None) -> None:
        refuse_ranks("a ModelWrapper", hint="write `make_loop(config)`, which returns a TrainManager or Supervised")
        self.config: Any = config.clone()
        self.loaders: dict[str, Any] = {}
        self.wrapper = wrapper._copy_for(self)
        self._last_loss: Any = None
        self._train_loop = OwnTrainLoop(self.wrapper) if _overrides(wrapper, "train_loop") else None
        train_data = self._make_loaders(max_batches)
        self._parse_config()
        model = as_module(self.wrapper.create_model(self.config))
        if isinstance(model, LightningModel) and model.has_own("configure_optimizers") and not _overrides(wrapper, "create_optimizer"):
            _warn_about_optimizers(type(model.module))
        is_trainable = any(each.requires_grad for each in model.parameters())
        train_config = self.config.train_config
        super().__init__(
            model,
            None,
            train_config.epochs,
            train_data,
            {VALID: self.loaders[VALID]} if VALID in self.loaders else None,
            optimizer=(lambda _: self._make_optimizer_of_wrapper()) if is_trainable else None,
            lr_schedule=self._schedule_maker() if is_trainable else None,
            schedule_by=self._schedule_by(),
            extensions=self._wanted_extensions(model, train_data),
            device=self.config.device,
            eval_every=self.config.eval_epoch,
            initialization=_init_weights,
            progress=False,
        )

    # ---- set-up

    def _make_loaders(self, max_batches: int | None) -> Any:
        config, wrapper = self.config, self.wrapper
        train = self._train_loader = wrapper.make_dataloader_train(config)
        batch_size, wanted = getattr(train, "batch_size", None), config.train_config.batch_size
        if batch_size is not None and batch_size != wanted:
            raise SettingError(
                f"the training loader has batch_size={batch_size}, but the config has train_config.batch_size={wanted}",
                hint='make_dataloader_train: DataLoader(..., batch_size=config["train_config.batch_size"])',
            )
        for name, data in ((VALID, wrapper.make_dataloader_val(config)), (TEST, wrapper.make_dataloader_test(config))):
            if data is not None:
                self.loaders[name] = data if max_batches is None else FirstBatches(data, 1)
        if VALID in self.loaders and config.eval_subsample < 1:
            self.loaders[VALID] = _subsample(self.loaders[VALID], config.eval_subsample)
        return train if max_batches is None else list(itertools.islice(train, max_batches))

    def _parse_config(self) -> None:
        before = self.config.clone()
        parsed = self.wrapper.config_parser(self.config)
        self.config = self.config if parsed is None else parsed
        if self.config.uid != before.uid:
            changes = ", ".join(each[0] for each in self.config.diff(before, ignore_stateless=True))
            raise SettingError(
                f"`config_parser` changed the identity of the config: {changes}",
                why="the stored values would differ from those used in training",
                hint="declare fields that are computed from the data as `Derived[...]`",
            )
        self.config.assert_unambigious()
        self.config.freeze()

    def _make_optimizer_of_wrapper(self) -> Optimizer:
        optimizer = self.wrapper.create_optimizer(self.model, self.config)
        if optimizer is None:
            raise SettingError("`create_optimizer` returned None, but the model has parameters to train")
        return optimizer

    def _schedule_maker(self) -> Callable[[Optimizer], Any] | None:
        config = self.config.train_config.scheduler_config
        if (config is None or getattr(config, "name", "") == "none") and not _overrides(self.wrapper, "create_scheduler"):
            return None
        return self._make_schedule_of_wrapper

    def _make_schedule_of_wrapper(self, optimizer: Optimizer) -> Any:
        schedule = self.wrapper.create_scheduler(self.model, optimizer, self.config)
        if schedule is not None and not is_schedule(schedule):
            raise SettingError(
                f"`create_scheduler` returned {shown(schedule)}: expected a schedule of torch, or None",
                hint="return only the schedule; `scheduler_config.step_when` says when it steps",
            )
        return schedule

    def _schedule_by(self) -> str | None:
        schedule = self.config.train_config.scheduler_config
        moment = getattr(schedule, "moment", None) or getattr(schedule, "step_when", None)
        is_own = _overrides(self.wrapper, "create_scheduler")  # if not, the config makes the schedule, and the loop knows when to step it
        if moment == "val":
            return self.config.optim_metric_name or (VALID if is_own else None)
        return "epoch" if moment == "epoch" and is_own else None

    def _wanted_extensions(self, model: nn.Module, train_data: Any) -> list[tuple[str, object]]:
        config, device = self.config, find_device(self.config.device)
        monitor = config.optim_metric_name
        mode = None if monitor is None else config.optim_metrics[monitor]
        wanted: dict[str, object] = {
            "checkpoint_saver": CheckpointSaver(keep=config.keep_n_checkpoints, monitor=monitor, mode=mode),
            "update_check": UpdateCheck(),
            "inner_optimizers": InnerOptimizers(model),
            "nan_guard": NaNGuard(checks_grads=False),
        }
        if VALID in self.loaders:
            wanted["divergence_guard"] = DivergenceGuard(config.divergence_factor, warm_up_epochs=config.warm_up_epochs)
        if config.early_stopping_iter is not None:
            wanted["early_stopping"] = EarlyStopping(monitor, self._patience(train_data), mode=mode)
        if config.amp and device.type == "cuda":
            wanted["mixed_precision"] = MixedPrecision()
        elif config.amp:
            warnings.warn(f"amp=True has no effect on the device {device}: it needs CUDA", stacklevel=2)
        if config.tensorboard:
            wanted["tensorboard"] = TensorBoard()
        if self._train_loop is not None:
            wanted["train_loop"] = self._train_loop
        own = dict(named_extensions(self.wrapper.extensions()))
        for each in own.values():
            if isinstance(each, CheckpointSaver):
                each.use_defaults(config.keep_n_checkpoints, monitor, mode)
        return list((wanted | self._metric_extensions(model) | own).items())

    def _metric_extensions(self, model: nn.Module) -> dict[str, object]:
        functions = self.wrapper.evaluation_functions()
        if not isinstance(functions, Mapping):
            raise SettingError(f"`evaluation_functions` returned {functions!r:.60}: expected functions by name")
        metrics = {name: OutputMetric(name, function) for name, function in functions.items()}
        wanted: dict[str, object] = {}
        if metrics:
            inputs = MetricInputs(metrics.values(), lambda batch, outputs: named_values(model, batch, outputs))
            wanted["eval_metrics"] = Metrics(metrics, inputs)
            wanted["train_metrics"] = TrainMetrics(metrics, inputs, self.config.metrics_n_batches)
        if isinstance(model, LightningModel):
            wanted["logged_metrics"] = LoggedMetrics()
        if _overrides(self.wrapper, "custom_evaluation"):
            wanted["custom_evaluation"] = CustomEvaluation()
        return wanted

    def _patience(self, train_data: Any) -> int:
        """Return the smallest early-stopping patience (in evaluations) that spans more than `early_stopping_iter` training batches."""
        length, every = length_of(train_data), self.config.eval_epoch
        if VALID not in self.loaders:
            raise SettingError("early_stopping_iter needs validation data", hint="override `make_dataloader_val(config)`")
        if length is None or every == 0:
            why = "training data without a length" if length is None else "eval_epoch=0"
            raise SettingError(f"early_stopping_iter={self.config.early_stopping_iter} cannot be used with {why}")
        return self.config.early_stopping_iter // math.ceil(every * length) + 1  # type: ignore[no-any-return]

    def wrapper_attribute(self, name: str) -> Any:
        """Return an attribute that exists only while this loop uses the wrapper, such as `optimizer`."""
        if name == "train_dataloader":
            return self._train_loader
        if name in ("val_dataloader", "test_dataloader"):
            return self.loaders.get(VALID if name == "val_dataloader" else TEST)
        return getattr(self, "lr_schedule" if name == "scheduler" else name)

    # ---- steps

    def train_model_forward(self, batch: Any) -> Any:
        if isinstance(self.model, LightningModel):
            self.model.begin_batch(self.fixtures["batch_num"], self.epoch_num, self.step_num)
        if self._train_loop is not None:
            step = self._train_loop.step(batch)
        else:
            step = checked_step(self.wrapper.train_step(batch), "`train_step`")
        outputs, self._last_loss = step
        return outputs

    def eval_model_forward(self, batch: Any) -> Any:
        if isinstance(self.model, LightningModel):
            # During an evaluation, Lightning's `current_epoch` is the epoch that was trained last.
            epoch = self.epoch_num if self.moment.batch else max(0, self.epoch_num - 1)
            self.model.begin_batch(self.fixtures["batch_num"], epoch, self.step_num, self.fixtures.get("datasource_name") == TEST)
        outputs, self._last_loss = checked_step(self.wrapper.model_step(self.model, batch), "`model_step`")
        return outputs

    def loss_forward(self, batch: Any, prediction: Any) -> Any:
        loss, self._last_loss = self._last_loss, None
        return loss

    def backward(self, loss: Any) -> None:
        if _has_graph(loss):
            super().backward(loss)

    def optimizer_step(self) -> None:
        if self.optimizer is not None and _has_graph(self.fixtures["loss"]):
            super().optimizer_step()

    def zero_grad(self) -> None:
        if self.optimizer is not None and _has_graph(self.fixtures["loss"]):
            super().zero_grad()

    def initialize_params(self) -> None:
        if self.config.init_chkpt is not None:
            self.start_with_weights_of(TrainingState.from_dict(read_checkpoint(self.config.init_chkpt)["state"]))
        else:
            super().initialize_params()


class FirstBatches:
    """The first `num` batches of a loader."""

    def __init__(self, data: Iterable[Any], num: int) -> None:
        self._data, self._num = data, num

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._data), self._num)

    def __len__(self) -> int:
        return self._num


def _subsample(data: Any, share: float) -> FirstBatches:
    length = length_of(data)
    if length is None:
        raise SettingError(f"eval_subsample={share} needs validation data with a length")
    if isinstance(data, DataLoader) and not isinstance(data.sampler, RandomSampler):
        warnings.warn(f"eval_subsample={share} always uses the same first batches: the validation loader does not shuffle", stacklevel=2)
    return FirstBatches(data, math.ceil(share * length))


def _init_weights(model: nn.Module) -> None:
    own = getattr(model, "init_weights", None)
    if callable(own):
        own()


def _has_graph(loss: Any) -> bool:
    return isinstance(loss, torch.Tensor) and loss.requires_grad


def _warn_about_optimizers(kind: type) -> None:
    """Warn that `configure_optimizers` is not called. Each class causes only one warning, even if several loops are created for it."""
    if kind not in _warned_about:
        text = f"`{kind.__name__}.configure_optimizers` is not called: the config specifies the optimizer and its schedule"
        warnings.warn(text, stacklevel=3)
        _warned_about.add(kind)


_warned_about: set[type] = set()


def _overrides(wrapper: ModelWrapper, method: str) -> bool:
    return getattr(type(wrapper), method) is not getattr(ModelWrapper, method)


class OwnTrainLoop(Extension):
    """Feeds batches one at a time to a wrapper's `train_loop`, which is a generator."""

    def __init__(self, wrapper: ModelWrapper) -> None:
        self._wrapper = wrapper
        self._batch: list[Any] = []
        self._steps: Any = None

    def pre_train_step_epoch(self) -> None:
        self._steps = self._wrapper.train_loop(self._batches())
        if not isinstance(self._steps, Iterator):
            raise SettingError(
                "`train_loop` is not a generator",
                hint="yield (outputs, loss) after each batch: for batch in batches: ...; yield outputs, loss",
            )

    def _batches(self) -> Iterator[Any]:
        while self._batch:
            yield self._batch.pop()

    def step(self, batch: Any) -> tuple[Any, Any]:
        """Return what `train_loop` yields for a batch."""
        self._batch.append(batch)
        try:
            step = next(self._steps)
        except StopIteration:
            raise SettingError("`train_loop` ended before the last batch of the epoch", hint="it must yield once per batch") from None
        if self._batch:
            raise SettingError("`train_loop` yielded without taking a batch", hint="it must yield once per batch")
        return checked_step(step, "`train_loop`")

    @always
    def post_train_step_epoch(self, loop: WrapperLoop, exc_type: type[BaseException] | None = None) -> None:
        steps, self._steps = self._steps, None
        if steps is None:
            return
        if exc_type is None and not loop.moment.batch and next(steps, None) is not None:  # this runs the user's code after the last batch
            raise SettingError("`train_loop` yielded after the last batch of the epoch", hint="it must yield once per batch")
        getattr(steps, "close", lambda: None)()
