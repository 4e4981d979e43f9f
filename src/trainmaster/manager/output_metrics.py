"""Computes the metrics of a wrapped model from its outputs and the values in the batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from trainmaster.arguments import is_number
from trainmaster.errors import SettingError, did_you_mean
from trainmaster.loop.batches import outline
from trainmaster.loop.data_position import length_of
from trainmaster.loop.eval_metrics import WholeSet, on_cpu
from trainmaster.loop.state import own_copy
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import Observer

if TYPE_CHECKING:
    from trainmaster.manager.model_call import LightningModel
    from trainmaster.manager.wrapper_loop import WrapperLoop

NamedValues = Callable[[Any, Any], dict[str, Any]]
"""Returns the values in a batch and the model's outputs for this batch, by name."""


class OutputMetric:
    """A metric function. Its parameters are named after model outputs and values in a batch."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self._function = name, function
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = [each for each in inspect.signature(function).parameters.values() if each.kind in kinds]
        self.parameters = [each.name for each in parameters]
        self._required = [each.name for each in parameters if each.default is each.empty]

    def check(self, values: Mapping[str, Any]) -> None:
        missing = [name for name in self._required if name not in values]
        if missing or not any(name in values for name in self.parameters):
            raise SettingError(
                f"the evaluation function `{self.name}` takes `{(missing or self.parameters or ['nothing'])[0]}`,"
                " which is neither an output of the model nor in the batch",
                known=", ".join(values),
                hint=did_you_mean(missing[0], values) if missing else None,
            )

    def __call__(self, values: Mapping[str, Any]) -> Any:
        return self._function(**{name: values[name] for name in self.parameters if name in values})


class MetricInputs:
    """Selects the values that the metrics take as arguments."""

    def __init__(self, metrics: Iterable[OutputMetric], named_values: NamedValues) -> None:
        self._metrics, self._named_values = list(metrics), named_values
        self._is_checked = False

    def __call__(self, batch: Any, prediction: Any) -> tuple[dict[str, Any]]:
        values = self._named_values(batch, prediction)
        if not self._is_checked:
            for metric in self._metrics:
                metric.check(values)
            self._is_checked = True
        return ({name: values[name] for metric in self._metrics for name in metric.parameters if name in values},)


class TrainMetrics(Observer):
    """Computes the metrics over the last `num_batches` batches of each epoch, and records them as `train/<name>`.

    If the length of the data is unknown, the first `num_batches` batches are used instead.
    """

    def __init__(self, metrics: Mapping[str, OutputMetric], inputs: MetricInputs, num_batches: int) -> None:
        self._metrics, self._inputs, self._num_batches = metrics, inputs, num_batches
        self._first = 0
        self._batches = WholeSet("train", self._compute)

    def pre_train_step_epoch(self, loop: WrapperLoop) -> None:
        self._batches.reset()
        self._first = max(0, (length_of(loop.train_data) or 0) - self._num_batches)

    def post_train_step_batch(self, batch: Any, prediction: Any, batch_num: int) -> None:
        if 0 <= batch_num - self._first < self._num_batches:
            self._batches.update(*own_copy(self._inputs(batch, prediction), on_cpu))

    def post_train_step_epoch(self, loop: WrapperLoop, writer: Writer, epoch_num: int) -> None:
        if not loop.moment.batch:  # the epoch is complete
            for name, value in self._batches.compute().items():
                record(writer, f"train/{name}", value, epoch_num, "epoch")
            self._batches.reset()

    def _compute(self, values: Mapping[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            return {name: metric(values) for name, metric in self._metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._batches.load_state_dict(state)


class CustomEvaluation(Observer):
    """Records the metrics that a wrapper's `custom_evaluation` returns for each evaluation set."""

    def post_eval_step_epoch(
        self, loop: WrapperLoop, writer: Writer, datasource_name: str, stopped: str | None, eval_metrics: dict[str, float]
    ) -> None:
        if stopped is not None:
            return
        values = loop.wrapper.custom_evaluation(loop.model, loop.loaders[datasource_name]) or {}
        if not isinstance(values, Mapping):
            raise SettingError(f"`custom_evaluation` returned {values!r:.60}: expected metrics by name, or None")
        _record_all(values, loop, writer, datasource_name, eval_metrics)


class LoggedMetrics(Observer):
    """Records the values that a Lightning module logs, averaged over the samples of an evaluation set.

    A metric object is computed at the end of the set and then reset, as in Lightning.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._num = 0
        self._metrics: dict[str, Any] = {}

    def post_train_step_epoch(self, model: LightningModel) -> None:
        _reset(model.metrics)  # frees memory, because some metrics keep all predictions

    def pre_eval_step_epoch(self, model: LightningModel) -> None:
        _reset({**self._metrics, **model.metrics})  # the metrics may hold values from a stopped evaluation or from `predict`
        self._sums, self._num, self._metrics = {}, 0, {}

    def post_eval_step_batch(self, model: LightningModel, prediction: Any, true_batch_size: int) -> None:
        self._num += true_batch_size
        self._metrics.update(model.metrics)
        for name, value in prediction.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                self._sums[name] = self._sums.get(name, 0.0) + float(value) * true_batch_size

    def post_eval_step_epoch(
        self, loop: WrapperLoop, writer: Writer, datasource_name: str, stopped: str | None, eval_metrics: dict[str, float]
    ) -> None:
        if stopped is not None:
            return
        values = {name: value / self._num for name, value in self._sums.items()}
        values.update((name, _computed(name, metric)) for name, metric in self._metrics.items())
        _record_all(values, loop, writer, datasource_name, eval_metrics)
        _reset(self._metrics)


def _record_all(values: Mapping[str, Any], loop: WrapperLoop, writer: Writer, datasource_name: str, eval_metrics: dict[str, float]) -> None:
    for name, value in values.items():
        record(writer, f"{datasource_name}/{name}", value, loop.eval_x, "epoch")
        eval_metrics[f"{datasource_name}/{name}"] = float(value)


def _computed(name: str, metric: Any) -> float:
    value = metric.compute()
    if not is_number(value) and not (isinstance(value, torch.Tensor) and value.numel() == 1):
        raise SettingError(
            f"the module logs `{name}`, a {type(metric).__name__}, whose value is {outline(value)}, not a number",
            hint="log a metric with a single value; a MetricCollection belongs in `self.log_dict`",
        )
    return float(value)


def _reset(metrics: Mapping[str, Any]) -> None:
    for metric in metrics.values():
        metric.reset()
