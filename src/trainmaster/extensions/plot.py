"""Any scalar fixture as a curve."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any

from trainmaster.errors import SettingError
from trainmaster.extensions.curves import (
    SUFFIX,
    X_LABEL,
    Curves,
    checked_over,
    checked_smoothing,
    epochs_done,
    file_name,
    is_epoch_complete,
    scalar,
)
from trainmaster.extensions.drawing import Drawing
from trainmaster.figures.panels import Lines
from trainmaster.figures.png import draw
from trainmaster.loop.pending import Pending
from trainmaster.loop.writer import Writer
from trainmaster.stages import Extensible, Fixtures, Observer, always

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAGES = ("train_step_batch", "eval_step_batch")


class Plot(Observer):
    """Records fixtures by their names and draws them in one figure (E44): `Plot("grad_norm")`, `Plot("loss", "grad_norm")`.

    A fixture is a number, or a tensor with one element. Lazy ones are computed for it, and a name that is misspelt is refused before the
    first batch. Over epochs a point is the mean of an epoch's batches; over batches it is the value of one, against how many were done in
    all. With `stage="eval_step_batch"` it is the mean of each evaluation set.

    Numbers go to the writer as `plots/<name>` or `plots_by_batch/<name>`, those of evaluations as `plots/<set>/<name>`. The figure is
    `plot_<names>`.

    Args:
        over: "epochs" or "batches".
        every: look at one batch in so many; a lazy fixture is not computed in the others.
        smoothing: the weight of what was before in a moving mean, which is drawn over the values themselves; 0 for none.
        log: whether the axis of the values is logarithmic; None for where they span much.
        fig: another name for the figure and its file.
        stage: at the end of which stage the values are taken: "train_step_batch" or "eval_step_batch".
    """

    is_guarded = False

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
        self.names = _checked_names(names)
        self.over = checked_over(over, ("epochs", "batches"), "Plot")
        self.smoothing = checked_smoothing(smoothing, "Plot")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise SettingError(f"Plot(every={every!r}): wanted a whole number, 1 or more", hint="every=10 looks at one batch in ten")
        if log is not None and not isinstance(log, bool):
            raise SettingError(f"Plot(log={log!r}): wanted True, False or None", hint="None decides by the values")
        if fig is not None and (not isinstance(fig, str) or not fig):
            raise SettingError(f"Plot(fig={fig!r}): wanted a name for the figure", hint='fig="norms"')
        if stage not in STAGES:
            raise SettingError(f"Plot(stage={stage!r}): wanted {' or '.join(map(repr, STAGES))}")
        self.is_eval = stage == "eval_step_batch"
        if self.is_eval and over == "batches":
            raise SettingError("Plot draws evaluations over epochs, not over batches", hint='leave out over="batches"')
        self.every, self.log, self.fig = every, log, fig or ", ".join(names)
        self.name = f"plot_{file_name(fig or '_'.join(names))}{SUFFIX[over]}{'_eval' if self.is_eval else ''}"
        self._drawing = Drawing(self.name, path, self.panels)
        self._curves, self._pending = Curves(), Pending()
        self._sums: dict[str, tuple[float, int]] = {}
        """Of an epoch or an evaluation: the sum of the values and how many they are, by name."""
        self._num_batches = 0
        """Training batches in all, or batches of this evaluation."""
        self._is_full = False
        self._writer: Writer | None = None
        self._hook = f"post_{stage}"
        # A hook is made for the object, with the fixtures as its parameters: so they are checked, and computed, as those of any other.
        setattr(self, self._hook, NamedHook(self.names, self._look) if every == 1 else NamedHook(("loop", *names), self._look_first))

    # ---- hooks

    def pre_train(self, loop: Any, writer: Writer | None = None) -> None:
        self._writer = writer
        self._drawing.begin(loop)

    def pre_train_step_epoch(self) -> None:
        if not self.is_eval:
            self._reset()

    def pre_eval_step_epoch(self) -> None:
        if self.is_eval:
            self._reset()
            self._num_batches = 0

    def _look(self, *values: Any) -> None:
        self._num_batches += 1
        for name, value in zip(self.names, values, strict=True):
            self._is_full |= self._pending.add((name, self._num_batches), scalar(name, value, "Plot draws"))
        if self._is_full:
            self._record()
            self._drawing.refresh()

    def _look_first(self, loop: Extensible, *values: Any) -> None:
        """The engine has checked the names: from now on they are asked for only when it is their turn."""
        if self._is_turn():
            self._look(*values)
        else:
            self._num_batches += 1
        setattr(self, self._hook, self._look_by_turns)
        loop.refresh()

    def _look_by_turns(self, fixtures: Fixtures) -> None:
        if self._is_turn():
            self._look(*(fixtures[name] for name in self.names))
        else:
            self._num_batches += 1

    def post_train_step_epoch(self, loop: Any) -> None:
        self._record()
        if not self.is_eval and self.over == "epochs" and is_epoch_complete(loop):
            for name, mean in self._means():
                self._write(f"plots/{name}", name, epochs_done(loop), mean)
        self._drawing.refresh()

    def post_eval_step_epoch(self, loop: Any, datasource_name: str, stopped: str | None = None, standalone_eval: bool = False) -> None:
        is_part = not (standalone_eval or getattr(loop, "is_testing", False))  # of the training
        if self.is_eval:
            self._record()
            for name, mean in self._means() if is_part and stopped is None else ():
                label = datasource_name if len(self.names) == 1 else f"{name}, {datasource_name}"
                self._write(f"plots/{datasource_name}/{name}", label, epochs_done(loop), mean)
            self._reset()
            self._drawing.refresh()

    @always
    def post_train(self) -> None:
        self._record()
        self._drawing.draw()

    # ---- numbers

    def _is_turn(self) -> bool:
        return self._num_batches % self.every == 0

    def _reset(self) -> None:
        self._pending.clear()
        self._sums = {}

    def _means(self) -> list[tuple[str, float]]:
        return [(name, total / count) for name, (total, count) in self._sums.items()]

    def _record(self) -> None:
        """Take in what waits: for the mean, or for the log and the curve."""
        self._is_full = False
        for (name, number), value in self._pending.drain():
            if self.over == "batches":
                self._write(f"plots_by_batch/{name}", name, number, value)
            else:
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = (total + value, count + 1)

    def _write(self, tag: str, label: str, x: int, value: float) -> None:
        self._curves.add(label, x, value)
        if self._writer is not None:
            self._writer.add_scalar(tag, value, x)

    def state_dict(self) -> dict[str, Any]:
        self._record()  # what is in a checkpoint is in the log
        sums = {name: list(each) for name, each in self._sums.items()}
        return {"num_batches": self._num_batches, "sums": sums, "curves": self._curves.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pending.clear()
        self._num_batches = state["num_batches"]
        self._sums = {name: (total, count) for name, (total, count) in state["sums"].items()}
        self._curves.load_state_dict(state["curves"])

    # ---- the figure

    def panels(self) -> list[Lines]:
        """The figure as data; nothing before the first number."""
        self._record()
        if not len(self._curves):
            return []
        y_label = self.names[0] if len(self.names) == 1 else "value"
        return [Lines(self.fig, X_LABEL[self.over], y_label, self._curves.lines(self.smoothing), self.log)]

    def figure(self) -> Figure:
        """The figure as one of matplotlib, for a notebook."""
        return draw(self.panels())


class NamedHook:
    """A function whose parameters have the given names, whatever it is written with."""

    def __init__(self, names: tuple[str, ...], function: Callable[..., None]) -> None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        self._names, self._function = names, function

    def __call__(self, *values: Any) -> None:
        self._function(*values)

    def __repr__(self) -> str:
        return f"Plot({', '.join(map(repr, self._names))})"


def _checked_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise SettingError("Plot draws fixtures by their names, and none is given", hint='Plot("grad_norm")')
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise SettingError(f"Plot draws fixtures by their names, not {name!r}", hint='Plot("grad_norm")')
        if names.count(name) > 1 or name in ("loop", "fixtures"):
            raise SettingError(f"Plot is given `{name}` twice" if names.count(name) > 1 else f"Plot cannot draw `{name}`: it is no number")
    return names
