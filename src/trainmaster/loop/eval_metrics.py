"""Metrics over whole data sets: functions of all predictions, and objects that are updated batch by batch, as in torchmetrics."""

from __future__ import annotations

import copy
import keyword
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn

from trainmaster.errors import SettingError, shown
from trainmaster.loop.argument_checks import takes_targets_first
from trainmaster.loop.batches import outline
from trainmaster.loop.eval_state import EvalState
from trainmaster.loop.ranks import Ranks
from trainmaster.loop.stages import TRAIN_MANAGER
from trainmaster.loop.state import Stateful, own_copy
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import BODY, Fixtures, Observer, always, fixture
from trainmaster.stages.extension_map import default_name
from trainmaster.stages.tree import ERROR_FIXTURES

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager

EVAL_METRICS: Final = "eval_metrics"
"""The name of the extension that a loop makes from its argument `metrics`."""
Inputs = Callable[[Any, Any], tuple[Any, ...]]
"""A function that returns the arguments of a metric for a batch and its prediction."""

TAKEN: Final = {*TRAIN_MANAGER.owners, *EvalState.creates, *ERROR_FIXTURES, "true_batch_size"}
_METHODS: Final = ("update", "compute", "reset")
_TRAIN_HOOKS: Final = ("pre_train_step_epoch", "post_train_step_batch", "post_train_step_epoch")
_EXAMPLE: Final = '{"accuracy": lambda prediction, targets: (prediction.argmax(1) == targets).float().mean()}'


class Metrics(Observer):
    """Computes metrics over each evaluation set, and records them as `<set>/<name>` for each epoch.

    Each metric is computed once, over all samples in a set. Hooks at the end of a set (`post_eval_step_epoch`) can read
    the value as a lazy fixture with the name of the metric. If the evaluation was stopped, the value is computed over
    the batches so far, and is not recorded. A dict of numbers is recorded as `<set>/<name>/<key>`. A value that is not
    a number, such as a confusion matrix, is available as a fixture but not recorded.

    A function is called with all predictions and all targets of the set. They are collected on the CPU and must fit in
    memory. If they do not fit, use a metric object that keeps only counts.

    The extension uses copies of metric objects. It does not copy functions, bound methods or `partial`s. The metrics of a
    `MetricCollection` are updated one by one, because the collection would guess from the first batch which of them
    share their state, and a wrong guess leads to wrong values.

    Args:
        metrics: a mapping from names to functions of (prediction, targets), or to objects with `update`, `compute` and
            `reset`, as in torchmetrics; or a `MetricCollection`; or a single metric object, which is named after its class.
        inputs: a function of (batch, prediction) that returns the arguments for the functions and for `update` as a
            tuple. The default is `(prediction, batch[1])`, for batches that are pairs.
        train: also compute the metrics over the training batches of each epoch, and record them as `train/<name>`. If
            training resumes in the middle of an epoch with a metric that the checkpoint does not contain, this metric
            is not recorded for that epoch.
    """

    on_every_rank = True  # each rank sends its part of a batch to rank 0, which computes the metrics
    creates = {}

    def __init__(self, metrics: Any, inputs: Inputs | None = None, train: bool = False) -> None:
        if inputs is not None and not callable(inputs):
            raise SettingError(
                f"`inputs` must be a function of (batch, prediction), not {shown(inputs)}",
                hint='inputs=lambda batch, prediction: (prediction, batch["label"])',
            )
        if not isinstance(train, bool):
            raise SettingError(f"train={train!r}: expected True or False")
        found = _by_name(metrics)
        for name, metric in found.items():
            if _is_function(metric):
                if inputs is None:
                    _check_order(name, metric)
                found[name] = WholeSet(name, metric)
            _check(name, found[name], train)
        self.inputs, self.train = inputs, train
        self.metrics: dict[str, Any] = _without_groups(copy.deepcopy(found))
        """The evaluation metrics, by name."""
        self._evaluations: list[tuple[dict[str, float], dict[str, Any]]] = []
        """For each running evaluation, its fixture `eval_metrics`, and the metrics to restore when it ends."""
        self.train_metrics: dict[str, Any] = copy.deepcopy(self.metrics) if train else {}
        self._ranks = Ranks()
        self._partial = set(self.train_metrics)
        """The metrics that have not seen all batches of the epoch, because they were added in the middle of it."""
        if not train:  # without these hooks, steps are faster
            for hook in _TRAIN_HOOKS:
                setattr(self, hook, None)

    def named_fixtures(self) -> Mapping[str, Callable[..., Any]]:
        stages = ("eval_step_epoch", "train_step_epoch") if self.train else ("eval_step_epoch",)
        return {name: self._value(name, stages) for name in self.metrics}

    def _value(self, name: str, stages: tuple[str, ...]) -> Callable[..., Any]:
        @fixture(*stages, after=BODY)
        def value(mode_name: str) -> Any:
            metrics = self.train_metrics if mode_name == "train" else self.metrics
            return own_copy(metrics[name].compute())  # the value may share memory with the metric's state, which is reset next

        return value

    # Evaluation.

    def pre_run(self, device: torch.device, loop: TrainManager) -> None:
        self._ranks = loop.ranks
        for metric in (*self.metrics.values(), *self.train_metrics.values()):
            if isinstance(metric, nn.Module):
                metric.to(device)
            for part in _parts(metric).values():
                part.distributed_available_fn = _no_other_ranks  # torchmetrics would wait for ranks that compute no metrics

    def pre_eval_step_epoch(self, eval_metrics: dict[str, float]) -> None:
        if not self._is_running(eval_metrics):
            self._evaluations.append((eval_metrics, self.metrics))
            if len(self._evaluations) > 1:  # a hook started this evaluation during another one, which still needs its own metrics
                self.metrics = copy.deepcopy(self.metrics)
        _reset(self.metrics)

    def post_eval_step_batch(self, batch: Any, prediction: Any) -> None:
        self._update(self.metrics, batch, prediction)

    def post_eval_step_epoch(
        self,
        train_manager: TrainManager,
        fixtures: Fixtures,
        writer: Writer,
        datasource_name: str,
        stopped: str | None,
        eval_metrics: dict[str, float],
    ) -> None:
        if stopped is None and self._ranks.is_first:  # after a stop, a later hook may still ask for a value
            eval_metrics |= self._record(fixtures, writer, datasource_name, train_manager.eval_x)
            _reset(self.metrics)  # some metrics keep all predictions

    @always
    def post_eval(self, eval_metrics: dict[str, float]) -> None:
        if self._is_running(eval_metrics):  # otherwise an earlier extension failed before the first batch
            _reset(self.metrics)
            _, self.metrics = self._evaluations.pop()

    def _is_running(self, eval_metrics: dict[str, float]) -> bool:
        """Return whether this extension is already computing metrics for the evaluation that `eval_metrics` belongs to."""
        return bool(self._evaluations) and self._evaluations[-1][0] is eval_metrics

    # Training.

    def pre_train_step_epoch(self, loop: TrainManager) -> None:
        _reset(self.train_metrics)
        self._partial = set(self.train_metrics) if loop.moment.batch else set()  # incomplete until their states are restored

    def post_train_step_batch(self, batch: Any, prediction: Any) -> None:
        self._update(self.train_metrics, batch, prediction)

    def post_train_step_epoch(self, loop: TrainManager, fixtures: Fixtures, writer: Writer, epoch_num: int) -> None:
        if not loop.moment.batch and self._ranks.is_first:  # the epoch is complete, even if a stop has been requested since
            self._record(fixtures, writer, "train", epoch_num, self._partial)
            _reset(self.train_metrics)

    # Updates and values.

    def _update(self, metrics: Mapping[str, Any], batch: Any, prediction: Any) -> None:
        inputs = _detached(self._inputs(batch, prediction))
        if self._ranks.num > 1:
            parts = self._ranks.gather_parts(own_copy(inputs, on_cpu))
            if not self._ranks.is_first:
                return
            inputs = tuple(_joined_ranks(list(each)) for each in zip(*parts, strict=True))
        kept: tuple[Any, ...] | None = None
        with torch.no_grad():
            for metric in metrics.values():
                if isinstance(metric, WholeSet):
                    kept = own_copy(inputs, on_cpu) if kept is None else kept  # one copy for all functions
                    metric.update(*kept)
                else:
                    metric.update(*inputs)

    def _inputs(self, batch: Any, prediction: Any) -> tuple[Any, ...]:
        hint = 'Metrics(..., inputs=lambda batch, prediction: (prediction, batch["label"])) returns the arguments of a metric'
        if self.inputs is not None:
            inputs = self.inputs(batch, prediction)
            if not isinstance(inputs, tuple):
                raise SettingError(f"`inputs` of Metrics must return a tuple, not {type(inputs).__name__}", hint=hint)
            return inputs
        if isinstance(batch, (tuple, list)) and len(batch) == 2:
            return prediction, batch[1]
        raise SettingError(
            "Metrics does not know where the targets are in a batch", why=f"the batch is {outline(batch)}, not a pair", hint=hint
        )

    def _record(
        self, fixtures: Fixtures, writer: Writer, datasource_name: str, x: float, left_out: Collection[str] = ()
    ) -> dict[str, float]:
        names = [name for name in self.metrics if name not in left_out]
        numbers = dict(each for name in names for each in _numbers(f"{datasource_name}/{name}", fixtures[name]))
        for tag, number in numbers.items():
            record(writer, tag, number, x, "epoch")
        return numbers

    # The state of the training metrics in the middle of an epoch. Evaluation metrics are reset each time.

    def state_dict(self) -> dict[str, Any]:
        return {"train": {name: _state_of(metric) for name, metric in self.train_metrics.items()}, "partial": sorted(self._partial)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = state["train"]
        for name, metric in self.train_metrics.items():
            if name in saved:
                _put_state(metric, saved[name])
            else:
                metric.reset()
        self._partial = {name for name in self.train_metrics if name not in saved or name in state.get("partial", ())}


class WholeSet:
    """Turns a function into a metric: collects and concatenates the arguments of all batches, and calls the function once."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        self._batches: list[tuple[Any, ...]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> WholeSet:
        """Return a new metric with the same function object, because copying a bound method of the model would copy the model."""
        copied = WholeSet(self.name, self.function)
        copied._batches = list(self._batches)  # the batches themselves never change
        return copied

    def update(self, *inputs: Any) -> None:
        self._batches.append(inputs)

    def compute(self) -> Any:
        if not self._batches:  # the metric was added after the last batch of an epoch, and a hook reads its value
            return float("nan")
        hint = "pass an object with `update`, `compute` and `reset`, which gets one batch at a time"
        with _explaining_join(f"the batches for the metric `{self.name}` cannot be joined", self._batches[0], hint):
            inputs = [_joined(list(each)) for each in zip(*self._batches, strict=True)]
        value = self.function(*inputs)
        if not dict(_numbers(self.name, value)):
            raise SettingError(
                f"the metric `{self.name}` returned {outline(value)}, not a number",
                hint="return the mean over all samples: (...).float().mean()",
            )
        return value

    def reset(self) -> None:
        self._batches = []

    def state_dict(self) -> dict[str, Any]:
        return {"batches": list(self._batches)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._batches = own_copy(state["batches"])


def _joined(parts: list[Any]) -> Any:
    """Concatenate all batches: tensors along their first dimension, containers item by item, other lists end to end."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, Mapping):
        return {key: _joined([each[key] for each in parts]) for key in first}
    if isinstance(first, (tuple, list)) and any(isinstance(each, (torch.Tensor, Mapping, tuple, list)) for each in first):
        items = [_joined(list(each)) for each in zip(*parts, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    if isinstance(first, (tuple, list)):
        return [item for each in parts for item in each]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    raise TypeError(f"a {type(first).__name__} has no samples to join")


def _joined_ranks(parts: list[Any]) -> Any:
    """Join the metric inputs of all ranks into those of the whole batch. A number, a string or None is taken from rank 0."""
    if len(parts) == 1 or parts[0] is None or isinstance(parts[0], (int, float, str)):
        return parts[0]
    hint = "Metrics(..., inputs=...) returns tensors, arrays or lists with one item per sample"
    with _explaining_join("the inputs of the metrics cannot be joined over ranks", parts[0], hint):
        return _joined(parts)


@contextmanager
def _explaining_join(fact: str, first: Any, hint: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise SettingError(f"{fact}: the first is {outline(first)}", why=str(error).split("\n")[0], hint=hint) from error


def _no_other_ranks() -> bool:
    return False


def _is_function(metric: Any) -> bool:
    return callable(metric) and not isinstance(metric, type) and not any(hasattr(metric, method) for method in _METHODS)


def _check_order(name: Any, function: Callable[..., Any]) -> None:
    if (first := takes_targets_first(function)) is not None:
        called = getattr(function, "__name__", type(function).__name__)
        raise SettingError(
            f"the metric `{name}` takes the targets first: {called}({first}, ...)",
            why="a metric is called with (prediction, targets)",
            hint=f'"{name}": lambda prediction, targets: {called if called.isidentifier() else "..."}(targets, prediction)',
        )


def _by_name(metrics: Any) -> dict[str, Any]:
    has_methods = is_metric(metrics)
    if has_methods and callable(getattr(metrics, "keys", None)):  # a MetricCollection, whose prefix and postfix are part of the names
        found = {name: metrics[name] for name in metrics.keys()}  # noqa: SIM118 - it is not a mapping
    elif has_methods:
        found = {default_name(metrics): metrics}
    elif isinstance(metrics, Mapping):
        found = dict(metrics)
    else:
        own = getattr(metrics, "__name__", "")
        raise SettingError(
            f"metrics must be given by name, not as {shown(metrics)}",
            hint=f'{{"{own}": {own}}}' if own.isidentifier() and _is_function(metrics) else _EXAMPLE,
        )
    if not found:
        raise SettingError("there is no metric to compute", hint=_EXAMPLE)
    return found


def _without_groups(metrics: dict[str, Any]) -> dict[str, Any]:
    """Turn off state sharing in every `MetricCollection` among the metrics, and return the metrics."""
    modules = [each for metric in metrics.values() if isinstance(metric, nn.Module) for each in metric.modules()]
    for each in modules:
        if getattr(each, "_enable_compute_groups", None) is True:
            list(each.values())  # type: ignore[operator]  # gives each metric its own state, if some of them already share one
            each._enable_compute_groups, each._groups, each._groups_checked = False, {}, False  # type: ignore[assignment]
    return metrics


def is_metric(value: Any) -> bool:
    """Return whether a value is a metric object, as in torchmetrics."""
    return not isinstance(value, type) and all(callable(getattr(value, method, None)) for method in _METHODS)


def _check(name: Any, metric: Any, train: bool) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise SettingError(
            f"a metric cannot be called {name!r}", why="hooks read its value through a parameter with this name", hint=_EXAMPLE
        )
    if name in TAKEN:
        raise SettingError(f"a metric cannot be called `{name}`", why="the loop has a fixture with that name", hint=f'"valid_{name}"')
    if isinstance(metric, type):
        raise SettingError(f"the metric `{name}` is the class {metric.__name__}", hint=f"create one: {metric.__name__}(...)")
    if not is_metric(metric):
        missing = [f"no `{method}`" for method in _METHODS if not callable(getattr(metric, method, None))]
        raise SettingError(f"the metric `{name}` is {shown(metric)}, which has {' and '.join(missing)}", hint=_EXAMPLE)
    if callable(getattr(metric, "increment", None)):
        raise SettingError(
            f"the metric `{name}` is a {type(metric).__name__}, which needs a call of `increment` for each epoch",
            hint="pass the metric that it tracks; Metrics records every value",
        )
    if train and not isinstance(metric, Stateful):
        raise SettingError(
            f"the metric `{name}` cannot be computed over training batches: {type(metric).__name__} has no `state_dict`",
            why="a training run that resumes in the middle of an epoch needs the state of the earlier batches",
            hint="give it `state_dict` and `load_state_dict`, or leave out train=True",
        )


def _reset(metrics: Mapping[str, Any]) -> None:
    for metric in metrics.values():
        metric.reset()


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU, even if the tensor is already there, because the next batch may reuse the tensor's memory."""
    return _copied_to(torch.device("cpu"), tensor)


def _copied_to(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(device, copy=True)


def _detached(value: Any) -> Any:
    """Detach the arguments, so that a metric that keeps them does not keep the autograd graph alive."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if type(value) in (tuple, list):
        return type(value)(map(_detached, value))
    if type(value) is dict:
        return {key: _detached(item) for key, item in value.items()}
    return value


def _numbers(tag: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield a (name, number) pair for each number in a metric's value. Other values are skipped."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{tag}/{key}", item)
    elif isinstance(value, Real):
        yield tag, float(value)
    elif getattr(value, "shape", None) is not None and callable(getattr(value, "item", None)) and value.shape in ((), (1,)):
        number = value.item()
        if isinstance(number, Real):
            yield tag, float(number)


# By default, the `state_dict` of a torchmetrics object does not contain its state, and it never contains the number of
# updates. Both are therefore read from its attributes. For other objects, `state_dict` and `load_state_dict` are used.


def _parts(metric: Any) -> dict[str, Any]:
    """Return the torchmetrics objects in a metric: the metric itself, and the metrics that it wraps or combines."""
    modules = metric.named_modules() if isinstance(metric, nn.Module) else ()
    return {path: each for path, each in modules if hasattr(each, "metric_state") and hasattr(each, "_update_count")}


def _state_of(metric: Any) -> Any:
    parts = _parts(metric)
    if not parts:
        return metric.state_dict()
    return {path: {"values": dict(part.metric_state), "num_updates": part._update_count} for path, part in parts.items()}


def _put_state(metric: Any, state: Mapping[str, Any]) -> None:
    parts = _parts(metric)
    if not parts:
        metric.load_state_dict(state)
        return
    if parts.keys() != state.keys() or any(parts[path].metric_state.keys() != state[path]["values"].keys() for path in parts):
        raise ValueError(f"the state does not belong to a {type(metric).__name__} with these arguments")
    for path, part in parts.items():
        part.reset()  # this also clears its cached value
        for name, value in state[path]["values"].items():
            setattr(part, name, own_copy(value, partial(_copied_to, part.device)))
        part._update_count = state[path]["num_updates"]
