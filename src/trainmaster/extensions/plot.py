"""Draws any scalar fixture as a curve."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from os import PathLike
from typing import Any

from trainmaster.arguments import check_choice, check_int
from trainmaster.errors import SettingError
from trainmaster.extensions.curves import SUFFIX, X_LABEL, Curves, check_curve_arguments, file_name, scalar
from trainmaster.extensions.epochs import epochs_done, is_epoch_complete, is_in_training
from trainmaster.extensions.figure_writer import FigureObserver
from trainmaster.extensions.per_evaluation import PerEvaluation
from trainmaster.figures.panels import Lines
from trainmaster.loop.deferred_scalars import Pending
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import Extensible, Fixtures, always


class Plot(FigureObserver):
    """Logs fixtures and draws them in one figure: `Plot("grad_norm")`, `Plot("loss", "grad_norm")`.

    A fixture must be a number or a tensor with one element. Lazy fixtures are computed when they are read. A misspelled
    name raises an error before the first batch. With `over="epochs"`, each point is the mean over the batches of an
    epoch. With `over="batches"`, each point is the value of one batch, plotted against the number of batches so far.
    With `stage="eval_step_batch"`, each point is the mean over the batches of an evaluation set.

    The metrics are `train/<name>` or `train/<name>_by_batch`, and `<set>/<name>` for evaluations. The mean of `loss`
    over batches is called `loss_per_batch`, because `loss` is the mean over samples. The figure is called
    `plot_<names>`.

    Args:
        over: "epochs" or "batches".
        every: read the fixtures only in every n-th batch; lazy fixtures are not computed in the other batches.
        smoothing: the weight of earlier values in the exponential moving average that is drawn over the raw values. With 0,
            no average is drawn.
        log: whether the y axis is logarithmic. With None, this depends on the range of the values.
        fig: a different name for the figure and its file.
        stage: the stage at the end of which values are read: "train_step_batch" or "eval_step_batch".
    """

    def __init__(
        self,
        *names: str,
        over: str = "epochs",
        every: int = 1,
        smoothing: float = 0.0,
        log: bool | None = None,
        fig: str | None = None,
        path: str | PathLike[str] | None = None,
        stage: str = "train_step_batch",
    ) -> None:
        _check_names(names)
        check_curve_arguments(over, ("epochs", "batches"), smoothing, "Plot")
        check_int("every", every, min=1, hint="Plot(..., every=10) uses one batch in ten")
        check_choice("stage", stage, ("train_step_batch", "eval_step_batch"), hint='Plot(..., stage="eval_step_batch")')
        self.is_eval = stage == "eval_step_batch"
        if self.is_eval and over == "batches":
            raise SettingError("Plot draws evaluations over epochs, not over batches", hint='remove over="batches"')
        self.names, self.over, self.smoothing = names, over, smoothing
        self.every, self.log, self.fig = every, log, fig or ", ".join(names)
        self.name = f"plot_{file_name(fig or '_'.join(names))}{SUFFIX[over]}{'_eval' if self.is_eval else ''}"
        super().__init__(self.name, path)
        self._curves, self._evaluations = Curves(), PerEvaluation(_Sums)
        self._writer: Writer | None = None
        self._hook = f"post_{stage}"
        # The fixtures are the parameters of the hook, so that the engine checks and computes them as for any other
        # hook.
        setattr(self, self._hook, NamedHook(names, self._add) if every == 1 else NamedHook(("loop", *names), self._check_names_once))

    # Hooks.

    def pre_train(self, loop: Any, writer: Writer | None = None) -> None:
        self._writer = writer
        super().pre_train(loop)

    def pre_train_step_epoch(self) -> None:
        if not self.is_eval:
            self._sums.reset()

    def pre_eval_step_epoch(self, eval_losses: dict[str, float] | None = None) -> None:
        if self.is_eval:
            self._evaluations.start(eval_losses)

    def _add(self, *values: Any) -> None:
        sums, is_full = self._sums, False
        sums.num_batches += 1
        for name, value in zip(self.names, values, strict=True):
            is_full |= sums.pending.add((name, sums.num_batches), scalar(name, value, "Plot"))
        if is_full:
            self._log()
            self._figure_writer.draw_if_due()

    def _check_names_once(self, loop: Extensible, *values: Any) -> None:
        """Check that the fixtures exist, then replace this hook with one that reads them in every `every`-th batch."""
        setattr(self, self._hook, self._add_if_due)
        loop.refresh()
        self._add_if_due(loop.fixtures)

    def _add_if_due(self, fixtures: Fixtures) -> None:
        if self._sums.num_batches % self.every == 0:
            self._add(*(fixtures[name] for name in self.names))
        else:
            self._sums.num_batches += 1

    def post_train_step_epoch(self, loop: Any) -> None:
        self._log()
        if not self.is_eval and self.over == "epochs" and is_epoch_complete(loop):
            for name, mean in self._sums.means():
                self._log_point(f"train/{_metric_name(name)}", name, epochs_done(loop), mean)
        self._figure_writer.draw_if_due()

    @always
    def post_eval_step_epoch(self, loop: Any, fixtures: Fixtures) -> None:
        if not self.is_eval:
            return
        has_failed, eval_set = fixtures.get("exc_type") is not None, fixtures["datasource_name"]
        if not has_failed:
            self._log()
        sums = self._evaluations.end(fixtures.get("eval_losses"))
        if sums is None or has_failed:
            return
        for name, mean in sums.means() if is_in_training(loop, fixtures) else ():
            label = eval_set if len(self.names) == 1 else f"{name}, {eval_set}"
            self._log_point(f"{eval_set}/{_metric_name(name)}", label, epochs_done(loop), mean)
        self._figure_writer.draw_if_due()

    @always
    def post_train(self) -> None:
        self._log()
        super().post_train()

    # Values.

    @property
    def _sums(self) -> _Sums:
        """The sums of the training epoch, or of the running evaluation."""
        return self._evaluations.current

    def _log(self) -> None:
        """Fetch values from the device. If `over` is "epochs", add them to the sums; otherwise, log them and add them to the curves."""
        for (name, number), value in self._sums.pending.drain():
            if self.over == "batches":
                self._log_point(f"train/{name}{SUFFIX[self.over]}", name, number, value)
            else:
                self._sums.add(name, value)

    def _log_point(self, tag: str, label: str, x: int, value: float) -> None:
        self._curves.add(label, x, value)
        record(self._writer, tag, value, x, X_LABEL[self.over])

    def panels(self) -> list[Lines]:
        self._log()
        if not self._curves:
            return []
        y_label = self.names[0] if len(self.names) == 1 else "value"
        return [Lines(self.fig, X_LABEL[self.over], y_label, self._curves.lines(self.smoothing), self.log)]

    # State.

    def state_dict(self) -> dict[str, Any]:
        self._log()  # a checkpoint must not contain values that are not in the log
        return {**self._sums.state_dict(), "curves": self._curves.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums.load_state_dict(state)
        self._curves.load_state_dict(state["curves"])


class _Sums:
    """For each name, the sum and the number of values. New values are in `pending` until they are added to the sum."""

    def __init__(self) -> None:
        self.pending = Pending()
        self._sums: dict[str, tuple[float, int]] = {}
        self.num_batches = 0
        """The number of training batches so far, or of batches in this evaluation so far."""

    def add(self, name: str, value: float) -> None:
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + value, count + 1)

    def means(self) -> list[tuple[str, float]]:
        return [(name, total / count) for name, (total, count) in self._sums.items()]

    def reset(self) -> None:
        self.pending.clear()
        self._sums = {}

    def state_dict(self) -> dict[str, Any]:
        return {"num_batches": self.num_batches, "sums": {name: list(each) for name, each in self._sums.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pending.clear()
        self.num_batches = state["num_batches"]
        self._sums = {name: (total, count) for name, (total, count) in state["sums"].items()}


class NamedHook:
    """A hook with one parameter for each name in `names`."""

    def __init__(self, names: tuple[str, ...], function: Callable[..., None]) -> None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        self._names, self._function = names, function

    def __call__(self, *values: Any) -> None:
        self._function(*values)

    def __repr__(self) -> str:
        return f"Plot({', '.join(map(repr, self._names))})"


def _metric_name(name: str) -> str:
    """Return the metric name for the mean of a fixture over batches."""
    return "loss_per_batch" if name == "loss" else name


def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        is_name = isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
        if not is_name or name in ("loop", "fixtures"):
            raise SettingError(f"Plot needs names of numeric fixtures, not {name!r}", hint='Plot("grad_norm")')
    if not names or len({*names}) < len(names):
        raise SettingError("Plot needs one or more different names of fixtures", hint='Plot("grad_norm")')
