"""Metrics over whole data sets, by objects that are updated batch by batch: those of torchmetrics, or any like them."""

from __future__ import annotations

import copy
import keyword
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trainmaster.errors import SettingError
from trainmaster.loop.eval_state import EvalState
from trainmaster.loop.settings import shown
from trainmaster.loop.stages import TRAIN_MANAGER
from trainmaster.loop.state import Stateful, own_copy
from trainmaster.loop.writer import Writer
from trainmaster.stages import BODY, Fixtures, Observer, fixture
from trainmaster.stages.extensions import default_name
from trainmaster.stages.tree import ERROR_FIXTURES

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager

Inputs = Callable[[Any, Any], tuple[Any, ...]]
"""The arguments of a metric's `update`, from the batch and the prediction."""

TAKEN: Final = {*TRAIN_MANAGER.owners, *EvalState.creates, *ERROR_FIXTURES, "true_batch_size"}
_METHODS: Final = ("update", "compute", "reset")
_TRAIN_HOOKS: Final = ("pre_train_step_epoch", "post_train_step_batch", "post_train_step_epoch")
_EXAMPLE: Final = 'Metrics({"accuracy": MulticlassAccuracy(num_classes=10)})'


class Metrics(Observer):
    """Computes metrics over each evaluation set, and records them as `metrics/<set>/<name>` against `epoch_num`.

    A metric is reset at the start of a set, updated with each batch, and computed once, over all samples. Its value is a lazy fixture of
    its name, for hooks at the end of a set (`post_eval_step_epoch`). A value with several numbers under names is recorded as
    `metrics/<set>/<name>/<key>`; one that is no number, such as a confusion matrix, is a fixture only.

    It works with copies of the metrics. Those of a `MetricCollection` are updated one by one: which of them share their state is guessed
    from the first batch there, and a wrong guess makes wrong values.

    Args:
        metrics: objects by name with `update`, `compute` and `reset`, as those of torchmetrics; a `MetricCollection`; or one such object,
            which is called like its class.
        inputs: returns the arguments of `update`, as a tuple; by default `(prediction, batch[1])`, for batches that are pairs.
        train: compute them over the training batches of each epoch, too, as `metrics/train/<name>`.
    """

    def __init__(self, metrics: Any, inputs: Inputs | None = None, train: bool = False) -> None:
        if inputs is not None and not callable(inputs):
            raise SettingError(
                f"`inputs` is a function of (batch, prediction), not {shown(inputs)}",
                hint='inputs=lambda batch, prediction: (prediction, batch["label"])',
            )
        if not isinstance(train, bool):
            raise SettingError(f"train={train!r}: wanted True or False")
        found = _by_name(metrics)
        for name, metric in found.items():
            _check(name, metric, train)
        self.inputs, self.train = inputs, train
        self.metrics: dict[str, Any] = _without_groups(copy.deepcopy(found))
        """The metrics of evaluation, by name."""
        self.train_metrics: dict[str, Any] = copy.deepcopy(self.metrics) if train else {}
        if not train:  # where there is no hook, no step waits for it
            for hook in _TRAIN_HOOKS:
                setattr(self, hook, None)

    def named_fixtures(self) -> Mapping[str, Callable[..., Any]]:
        stages = ("eval_step_epoch", "train_step_epoch") if self.train else ("eval_step_epoch",)
        return {name: self._value(name, stages) for name in self.metrics}

    def _value(self, name: str, stages: tuple[str, ...]) -> Callable[..., Any]:
        @fixture(*stages, after=BODY)
        def value(mode_name: str) -> Any:
            metrics = self.train_metrics if mode_name == "train" else self.metrics
            return own_copy(metrics[name].compute())  # it may share memory with what is reset now

        return value

    # Evaluation.

    def pre_run(self, device: torch.device) -> None:
        for metric in (*self.metrics.values(), *self.train_metrics.values()):
            if isinstance(metric, nn.Module):
                metric.to(device)

    def pre_eval_step_epoch(self) -> None:
        _reset(self.metrics)

    def post_eval_step_batch(self, batch: Any, prediction: Any) -> None:
        self._update(self.metrics, batch, prediction)

    def post_eval_step_epoch(self, fixtures: Fixtures, writer: Writer, datasource_name: str, epoch_num: int, stopped: str | None) -> None:
        if stopped is None:
            self._record(fixtures, writer, datasource_name, epoch_num)
            _reset(self.metrics)  # some keep all predictions

    # Training.

    def pre_train_step_epoch(self) -> None:
        _reset(self.train_metrics)

    def post_train_step_batch(self, batch: Any, prediction: Any) -> None:
        self._update(self.train_metrics, batch, prediction)

    def post_train_step_epoch(self, train_manager: TrainManager, fixtures: Fixtures, writer: Writer, epoch_num: int) -> None:
        if not train_manager.moment.batch:  # it is complete, also where somebody has asked for a stop since
            self._record(fixtures, writer, "train", epoch_num)
            _reset(self.train_metrics)

    # What is done.

    def _update(self, metrics: Mapping[str, Any], batch: Any, prediction: Any) -> None:
        inputs = _detached(self._inputs(batch, prediction))
        with torch.no_grad():
            for metric in metrics.values():
                metric.update(*inputs)

    def _inputs(self, batch: Any, prediction: Any) -> tuple[Any, ...]:
        hint = 'Metrics(..., inputs=lambda batch, prediction: (prediction, batch["label"])) returns the arguments of `update`'
        if self.inputs is not None:
            inputs = self.inputs(batch, prediction)
            if not isinstance(inputs, tuple):
                raise SettingError(f"`inputs` of Metrics returns a tuple, not {type(inputs).__name__}", hint=hint)
            return inputs
        if isinstance(batch, (tuple, list)) and len(batch) == 2:
            return prediction, batch[1]
        what = f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")
        raise SettingError("Metrics does not know where the targets are in a batch", why=f"the batch is {what}, and no pair", hint=hint)

    def _record(self, fixtures: Fixtures, writer: Writer, datasource_name: str, epoch_num: int) -> None:
        for name in self.metrics:
            for tag, number in _numbers(f"metrics/{datasource_name}/{name}", fixtures[name]):
                writer.add_scalar(tag, number, epoch_num)

    # Its state: what the training batches of an epoch have left. Evaluation starts anew each time.

    def state_dict(self) -> dict[str, Any]:
        return {"train": {name: _state_of(metric) for name, metric in self.train_metrics.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, metric in self.train_metrics.items():
            _put_state(metric, state["train"][name])


def _by_name(metrics: Any) -> dict[str, Any]:
    is_metric = _is_metric(metrics)
    if is_metric and callable(getattr(metrics, "keys", None)):  # a MetricCollection; its prefix and postfix are part of the names
        found = {name: metrics[name] for name in metrics.keys()}  # noqa: SIM118 - it is no mapping
    elif is_metric:
        found = {default_name(metrics): metrics}
    elif isinstance(metrics, Mapping):
        found = dict(metrics)
    else:
        raise SettingError(f"Metrics takes objects with `update`, `compute` and `reset`, by name, not {shown(metrics)}", hint=_EXAMPLE)
    if not found:
        raise SettingError("Metrics has no metric to compute", hint=_EXAMPLE)
    return found


def _without_groups(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics, with every collection in them told not to guess which of its metrics share their state."""
    modules = [each for metric in metrics.values() if isinstance(metric, nn.Module) for each in metric.modules()]
    for each in modules:
        if getattr(each, "_enable_compute_groups", None) is True:
            list(each.values())  # type: ignore[operator]  # which gives each a state of its own, if they share one by now
            each._enable_compute_groups, each._groups, each._groups_checked = False, {}, False  # type: ignore[assignment]
    return metrics


def _is_metric(value: Any) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, method, None)) for method in _METHODS)


def _check(name: Any, metric: Any, train: bool) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise SettingError(f"a metric cannot be called {name!r}", why="hooks ask for its value by a parameter of its name", hint=_EXAMPLE)
    if name in TAKEN:
        raise SettingError(f"a metric cannot be called `{name}`", why="the loop has a fixture of that name", hint=f'"valid_{name}"')
    if not _is_metric(metric):
        missing = [method for method in _METHODS if isinstance(metric, type) or not callable(getattr(metric, method, None))]
        is_class = isinstance(metric, type)
        raise SettingError(
            f"the metric `{name}` is {f'the class {metric.__name__}' if is_class else shown(metric)}"
            + ("" if is_class else f", which has no {' and no '.join(f'`{method}`' for method in missing)}"),
            hint=f"create one: {metric.__name__}(...)" if is_class else _EXAMPLE,
        )
    if callable(getattr(metric, "increment", None)):
        raise SettingError(
            f"the metric `{name}` is a {type(metric).__name__}, of which each epoch is to be begun by hand",
            hint="give the metric that it tracks: every value is recorded",
        )
    if train and not isinstance(metric, Stateful):
        raise SettingError(
            f"the metric `{name}` cannot be computed over training batches: {type(metric).__name__} has no `state_dict`",
            why="a training that is taken up in the middle of an epoch has to know what came before",
            hint="give it `state_dict` and `load_state_dict`, or leave out train=True",
        )


def _reset(metrics: Mapping[str, Any]) -> None:
    for metric in metrics.values():
        metric.reset()


def _detached(value: Any) -> Any:
    """The arguments without the graph of the forward pass, which a metric that keeps them would keep, too."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if type(value) in (tuple, list):
        return type(value)(map(_detached, value))
    if type(value) is dict:
        return {key: _detached(item) for key, item in value.items()}
    return value


def _numbers(tag: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers of a metric's value, with their names; nothing for what is more than numbers."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{tag}/{key}", item)
    elif isinstance(value, Real):
        yield tag, float(value)
    elif getattr(value, "shape", None) is not None and callable(getattr(value, "item", None)) and value.shape in ((), (1,)):
        number = value.item()
        if isinstance(number, Real):
            yield tag, float(number)


# The state of a metric of torchmetrics is not in its `state_dict`, unless it is told so, and how often it was updated never is. Others have
# the usual pair of methods.


def _parts(metric: Any) -> dict[str, Any]:
    """The metrics of torchmetrics that one consists of: itself, and those that it wraps or combines."""
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
        raise ValueError(f"the state is not that of a {type(metric).__name__} with these arguments")
    for path, part in parts.items():
        part.reset()  # and so forgets what it has computed
        for name, value in state[path]["values"].items():
            setattr(part, name, _on_device(own_copy(value), part.device))
        part._update_count = state[path]["num_updates"]


def _on_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [_on_device(each, device) for each in value] if isinstance(value, list) else value
