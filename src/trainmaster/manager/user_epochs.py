"""Trains the runs of a manager class that implements its own `train`, `eval` and `save_ckpt`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.errors import CodecError, SettingError
from trainmaster.manager.executor import Report
from trainmaster.manager.overview import metric_of, number
from trainmaster.manager.session import Monitored
from trainmaster.store.codec import encode_plain
from trainmaster.store.metric_names import better_of, checked_metric_name, listed, matching_metrics, resolve_metric, suggest

if TYPE_CHECKING:
    from trainmaster.manager.interrupts import Interrupts
    from trainmaster.manager.manager import Manager
    from trainmaster.store import Attempt

EVAL_RECORDS = "eval_records"


class UserEpochs:
    """Trains, evaluates and saves one run epoch by epoch, up to the last epoch or until a stop is requested."""

    def __init__(self, manager: Manager, attempt: Attempt, interrupts: Interrupts) -> None:
        runner = manager.job_runner
        self._manager, self._session, self._attempt, self._interrupts = manager, runner.session, attempt, interrupts
        self._console, self._report, self._check_stop = runner.console, runner.invocation.report, runner.check_stop

    def train(self, num_epochs: int) -> None:
        manager, key = self._manager, self._manager.key
        self._report(Report(key, "progress", epoch=manager.epoch, num_epochs=num_epochs, is_first=True))
        if self._session.saved_epoch is None:
            self._evaluate()
            self._save()
            self._console.print_epoch(key, manager.epoch, num_epochs, 0.0, manager.preview)
        self._check_stop()
        while manager.epoch < num_epochs and self._interrupts.reason is None:
            manager.advance_to(manager.epoch + 1)
            self._attempt.check()
            with manager.staged("work_train"):
                started = time.monotonic()
                manager.train()
                seconds = self._session.times.add("t_train", started)
            is_last = manager.epoch == num_epochs
            if is_last or manager.epoch % manager.eval_interval == 0:
                self._evaluate()
                self._check_stop()
            if is_last or manager.epoch % manager.save_interval == 0 or self._interrupts.reason is not None:
                self._save()
            self._console.print_epoch(key, manager.epoch, num_epochs, seconds, manager.preview)
            metric = metric_of(manager.preview, manager.monitor)
            self._report(Report(key, "progress", epoch=manager.epoch, num_epochs=num_epochs, metric=metric))

    def _evaluate(self) -> None:
        from trainmaster.loop.rng import kept_rng

        manager = self._manager
        with manager.staged("work_eval"):
            started = time.monotonic()
            with kept_rng():  # training must not depend on the number of evaluations
                values = manager.eval()
            self._session.times.add("t_eval", started)
            if values is not None:
                record = _plain_record(values, f"{type(manager).__name__}.eval()")
                manager.ckpt.setdefault(EVAL_RECORDS, {})[manager.epoch] = record
                manager.preview.update(record)
        recorded = manager.ckpt.get(EVAL_RECORDS, {}).get(manager.epoch)
        numbers = {str(name): number(value) for name, value in recorded.items()} if isinstance(recorded, Mapping) else {}
        row = {name: value for name, value in numbers.items() if value is not None}
        self._attempt.check()
        self._attempt.log.append({"epoch": manager.epoch, "time": time.time(), "eval": row})
        self._session.add_evaluation(manager.epoch, _monitored(manager))

    def _save(self) -> None:
        manager = self._manager
        with self._interrupts.no_deadline():
            with manager.staged("work_save"):
                manager.save_ckpt()
            if self._session.saved_epoch != manager.epoch:
                raise SettingError(f"`{type(manager).__name__}.save_ckpt()` saves nothing", hint="call `super().save_ckpt()` at its end")


def _monitored(manager: Manager) -> Monitored | None:
    """Return the value of the metric that the manager monitors, after an evaluation. Raise an error if it was not recorded."""
    monitor, who = manager.monitor, type(manager).__name__
    if monitor is None:
        return None
    if not matching_metrics(monitor, manager.preview):
        if manager.epoch == 0 and not suggest(monitor, manager.preview):  # the metric may be recorded only after training
            return None
        raise SettingError(
            f"`{who}.monitor` is {monitor!r}, which `eval()` did not return",
            known=listed(manager.preview) or "none",
            hint=suggest(monitor, manager.preview) or f"return it from `{who}.eval()`",
        )
    metric = resolve_metric(monitor, manager.preview)
    mode = better_of(metric) if manager.mode is None else manager.mode
    if mode not in ("min", "max"):
        raise SettingError(
            f"`{who}` does not say whether lower or higher is better for {metric!r}",
            hint=f'`mode = "min"` or `mode = "max"` in the body of `{who}`',
        )
    value = number(manager.preview[metric])
    return None if value is None else Monitored(value, metric, mode)


def _plain_record(values: Any, function: str) -> dict[str, Any]:
    """Return the result of an evaluation, with NumPy and torch scalars converted to plain numbers."""
    if not isinstance(values, Mapping):
        raise SettingError(f"`{function}` returned {values!r:.60}: expected numbers by name", hint='return {"loss_test": ...}')
    record = {name: value.item() if _is_scalar_array(value) else value for name, value in values.items()}
    for name in record:
        checked_metric_name(str(name))
    try:
        encode_plain(record)
        if all(isinstance(name, str) for name in record):
            return record
        problem = "names must be strings"
    except CodecError as error:
        problem = error.rows["wrong"]
    raise SettingError(f"`{function}` returned values that cannot be recorded", wrong=problem, hint="return numbers by name")


def _is_scalar_array(value: Any) -> bool:
    return hasattr(value, "item") and getattr(value, "ndim", None) is not None and math.prod(getattr(value, "shape", ())) == 1
