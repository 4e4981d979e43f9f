"""Progress bars for a terminal or notebook, and progress lines for a log."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from trainmaster.errors import SettingError
from trainmaster.loop.batches import true_batch_size
from trainmaster.loop.checkpoint_saver import CheckpointSaver
from trainmaster.loop.data_position import length_of
from trainmaster.loop.metric import expected_name, loss_name
from trainmaster.loop.notebook_bars import NotebookBars, is_in_notebook
from trainmaster.stages import Observer, always

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_UPDATE_EVERY = 0.25
BAR_WIDTH = 20
_LINE_EVERY = 60.0
"""Seconds between two lines within an epoch, if there are no bars."""


@contextmanager
def _restored_random() -> Iterator[None]:
    """Restore Python's random state after a hook that prints, because the library rich draws random numbers.

    An observer guard would restore it too, but would slow down every step.
    """
    before = random.getstate()
    try:
        yield
    finally:
        random.setstate(before)


class Progress(Observer):
    """Shows progress bars in a terminal or notebook. Elsewhere, it prints a line after each epoch and once a minute.

    The remaining time covers the whole run, including evaluations. An evaluation is shown with its metrics, and with
    the best loss so far if an earlier evaluation was better. If the `CheckpointSaver` monitors another metric, that
    metric's value at the best checkpoint is shown instead. The bars are updated only four times a second, so that
    short steps are not slowed down.

    Args:
        show: the names of fixtures to show next to the bar: scalars such as `loss`, or lazy fixtures of the batch.
        console: where bars and lines are printed; by default the terminal.
        has_lines: whether to print a line after each epoch; False for a manager, which prints its own lines.
        output: a function that is called with each line. If it is set, no bars are drawn.
        on_update: a function that is called four times a second with the completed fraction of the run. Managers that draw
            their own bars use it.
    """

    is_guarded = False
    creates = {}

    def __init__(
        self,
        show: Sequence[str] = ("loss",),
        console: Console | None = None,
        *,
        has_lines: bool = True,
        output: Callable[[str], Any] | None = None,
        on_update: Callable[[float], Any] | None = None,
    ) -> None:
        if isinstance(show, str) or not all(isinstance(name, str) for name in show):
            raise SettingError(f"`show` must be a list of fixture names, not {show!r}", hint='Progress(show=["loss"])')
        if output is not None and not callable(output):
            raise SettingError(f"output={output!r}: expected a function that prints a line", hint="Progress(output=print)")
        self.show = tuple(show)
        self._console, self._has_lines, self._output, self._on_update = console, has_lines, output, on_update
        self._bars: Any = None
        """The bars from rich, or `NotebookBars`. None if no bars are shown."""
        self._run: TaskID
        self._epoch: TaskID
        self._eval: TaskID | None = None
        self._pace = Pace()
        self._due = self._line_due = 0.0
        self._best: dict[str, float] = {}
        self._evaluated: dict[str, tuple[float, dict[str, float]]] = {}
        self._loop: Any = None
        """The loop while it trains, otherwise None."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_console": None, "_bars": None, "_loop": None}  # bars are drawn on the terminal of this process

    # ---- hooks

    @_restored_random()
    def pre_train(self, loop: Any) -> None:
        from rich.console import Console

        console = self._console = self._console or Console()
        self._loop, self._evaluated = loop, {}
        self._best = _best_losses(loop) if loop.epoch_num else {}
        self._pace.begin(loop)
        self._line_due = time.monotonic() + _LINE_EVERY
        if self._output is None and (is_in_notebook() or console.is_terminal):
            self._bars = NotebookBars() if is_in_notebook() else _new_bars(console)
            self._run = self._bars.add_task("run", total=1.0, of="", eta="", shown="")
            self._epoch = self._bars.add_task("epoch", total=None, of="", eta="", shown="")
            self._bars.start()

    @_restored_random()
    def pre_train_step_epoch(self, loop: Any) -> None:
        if self._loop is None:  # the extension was added during training
            self.pre_train(loop)
        self._show_evaluation()
        self._due = 0.0
        self._pace.begin_epoch()
        if self._bars is not None:
            self._bars.reset(self._epoch, total=_num_batches(loop), description=f"epoch {loop.epoch_num + 1}", of="", eta="", shown="")

    def post_train_step_batch(self, batch_num: int) -> None:
        if time.monotonic() >= self._due and self._loop is not None:
            self._update(batch_num + 1)

    @_restored_random()
    def _update(self, num_batches: int) -> None:
        loop, now = self._loop, time.monotonic()
        self._due = now + _UPDATE_EVERY
        size_of = getattr(loop, "whole_batch_size", true_batch_size)
        self._pace.note_batch(size_of(loop.fixtures["batch"]), num_batches)
        if self._on_update is not None and (done := self._pace.done(loop, num_batches)) is not None:
            self._on_update(done)
        of = _of(num_batches, _num_batches(loop))
        if self._bars is not None:
            self._bars.update(self._epoch, completed=num_batches, of=of, shown=self._shown(num_batches))
            self._update_run(num_batches)
        elif now >= self._line_due:
            self._line_due = now + _LINE_EVERY
            epoch = _of(loop.epoch_num + 1, _num_epochs(loop))
            self._print([f"epoch {epoch}", f"batch {of}", self._shown(num_batches), self._left(num_batches)])

    @_restored_random()
    def post_train_step_epoch(self, loop: Any) -> None:
        if self._loop is None:
            return
        if self._bars is not None:
            total = _num_batches(loop)
            if total is not None and not _batches_done(loop):  # the epoch is complete, but the bar was last updated some batches ago
                self._bars.update(self._epoch, completed=total, of=_of(total, total))
            self._update_run(0)
        if self._has_lines and not getattr(loop, "eval_data", None):
            self._print_epoch([])

    @_restored_random()
    def pre_eval_step_epoch(self, loop: Any, datasource_name: str) -> None:
        self._due = 0.0
        if self._bars is not None:
            data = getattr(loop, "eval_data", {}).get(datasource_name, getattr(loop, "valid_data", None))
            self._eval = self._bars.add_task(f"  {datasource_name}"[:14], total=length_of(data), of="", eta="", shown="")

    def post_eval_step_batch(self, batch_num: int) -> None:
        if self._bars is not None and self._eval is not None and (now := time.monotonic()) >= self._due:
            self._due = now + _UPDATE_EVERY
            self._bars.update(self._eval, completed=batch_num + 1)

    @always
    @_restored_random()
    def post_eval_step_epoch(
        self, datasource_name: str, eval_losses: dict[str, float] | None = None, eval_metrics: dict[str, float] | None = None
    ) -> None:
        if self._bars is not None and self._eval is not None:
            self._bars.remove_task(self._eval)
            self._eval = None
        if self._loop is not None and eval_losses is not None and datasource_name in eval_losses:
            loss = eval_losses[datasource_name]
            best = self._best.get(datasource_name, math.nan)
            self._best[datasource_name] = loss if math.isnan(best) or loss < best else best
            metrics = {} if eval_metrics is None else eval_metrics  # not copied, because later extensions add more metrics
            self._evaluated[datasource_name] = (loss, metrics)

    def _show_evaluation(self) -> None:
        """Show all evaluation sets on one line, after all of them have been evaluated."""
        texts = [self._evaluation_text(name, *evaluated) for name, evaluated in self._evaluated.items()]
        self._evaluated = {}
        if texts and self._bars is not None:
            self._bars.update(self._run, shown="  ".join(texts))
        if texts and self._has_lines:
            self._print_epoch(texts)

    def _evaluation_text(self, name: str, loss: float, metrics: dict[str, float]) -> str:
        own = [f"{full.removeprefix(f'{name}/')} {value:.4f}" for full, value in metrics.items() if full.startswith(f"{name}/")]
        return "  ".join(filter(None, [f"{name} loss {loss:.4f}", *own, self._best_text(name, loss, metrics)]))

    def _best_text(self, name: str, loss: float, metrics: dict[str, float]) -> str:
        """Return text that shows the best value of the monitored metric.

        The text is empty if the metric does not belong to the set `name`, or if the current value is the best.
        """
        loop = self._loop
        saver = next((each for each in loop.extensions.values() if isinstance(each, CheckpointSaver)), None)
        if saver is None or expected_name(saver.monitor, loop) in map(loss_name, loop.eval_data):
            return f"(best loss {self._best[name]:.4f})" if self._best[name] < loss else ""
        best = saver.best
        value = metrics.get(best.metric) if best is not None and best.metric.startswith(f"{name}/") else None
        if best is None or value is None or not (value < best.value if best.mode == "max" else value > best.value):
            return ""
        return f"(best {best.metric.removeprefix(f'{name}/')} {best.value:.4f})"

    @always
    @_restored_random()
    def post_train(self) -> None:
        if self._loop is not None:
            self._show_evaluation()
        self._loop = None
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    # ---- texts

    def _update_run(self, num_batches: int) -> None:
        done = self._pace.done(self._loop, num_batches)
        of = _of(self._loop.epoch_num, _num_epochs(self._loop))
        self._bars.update(self._run, completed=done or 0.0, total=None if done is None else 1.0, of=of, eta=self._left(num_batches))

    def _shown(self, num_batches: int) -> str:
        fixtures = self._loop.fixtures
        values = [f"{name} {_text(fixtures[name])}" for name in self.show if name in fixtures]
        return "  ".join(filter(None, [*values, self._pace.samples_per_second(num_batches)]))

    def _left(self, num_batches: int) -> str:
        seconds = self._pace.left(self._loop, num_batches)
        return "" if seconds is None or self._pace.done(self._loop, num_batches) == 1 else f"{clock(seconds)} left"

    def _print_epoch(self, texts: list[str]) -> None:
        epoch = _of(self._loop.epoch_num, _num_epochs(self._loop))
        self._print([f"epoch {epoch}", *texts, f"{self._pace.elapsed():.1f} s", self._left(0)])

    def _print(self, texts: list[str]) -> None:
        text = "  ".join(filter(None, texts))
        if self._output is not None:
            self._output(text)
        elif isinstance(self._bars, NotebookBars):
            self._bars.print(text)
        elif self._console is not None:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class Pace:
    """Measures the speed of training, and estimates its remaining time."""

    def __init__(self) -> None:
        self._started = self._epoch_started = 0.0
        self._done_before = 0.0
        self._first_batch = 0
        self._sizes = (0, 0)
        """The sum of the batch sizes noted in this epoch, and how many were noted."""

    def begin(self, loop: Any) -> None:
        self._started = self._epoch_started = time.monotonic()
        self._done_before = self.done(loop, _batches_done(loop)) or 0.0

    def begin_epoch(self) -> None:
        self._epoch_started, self._first_batch = time.monotonic(), -1

    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def done(self, loop: Any, num_batches: int) -> float | None:
        """Return the completed fraction of the run after `num_batches` batches of this epoch, or None if it is unknown."""
        parts = []
        num_epochs, length = _num_epochs(loop), _num_batches(loop)
        if num_epochs:
            parts.append((loop.epoch_num + (num_batches / length if length else 0.0)) / num_epochs)
        max_steps = getattr(loop, "max_steps", None)
        if max_steps:
            parts.append(loop.step_num / max_steps)
        return min(1.0, max(parts)) if parts else None

    def left(self, loop: Any, num_batches: int) -> float | None:
        """Return the remaining time of the run in seconds, or None if it cannot be estimated yet."""
        done = self.done(loop, num_batches)
        since = 0.0 if done is None else done - self._done_before
        found = [] if done is None or since <= 0 else [self.elapsed() * (1 - done) / since]
        max_time = getattr(loop, "max_time", None)
        if max_time is not None:
            found.append(max(0.0, max_time - self.elapsed()))
        return min(found) if found else None

    def note_batch(self, size: int, num_batches: int) -> None:
        """Note the size of batch number `num_batches` of the epoch. Call this for the first batch of an epoch, and for some later ones."""
        if self._first_batch < 0:
            self._first_batch, self._sizes = 0, (0, 0)
            if num_batches > 1:  # training resumed in the middle of the epoch, after it skipped the earlier batches
                self._first_batch, self._epoch_started = num_batches, time.monotonic()
        self._sizes = self._sizes[0] + size, self._sizes[1] + 1

    def samples_per_second(self, num_batches: int) -> str:
        """Format the mean speed of the epoch so far, in samples per second.

        The number of samples is estimated from the mean size of the noted batches, because an exact count would slow down every step.
        """
        seconds, (total, count) = time.monotonic() - self._epoch_started, self._sizes
        num_samples = (num_batches - self._first_batch) * total / max(1, count)
        return f"{num_samples / seconds:,.0f} samples/s" if seconds > 0 and num_samples else ""


def clock(seconds: float) -> str:
    """Format a duration.

    >>> clock(5), clock(200), clock(7265), clock(200_000)
    ('0:05', '3:20', '2:01:05', '2 days 7:33:20')
    """
    days, rest = divmod(round(seconds), 86400)  # a `timedelta` has a largest value, and `epochs` may be larger
    text = str(timedelta(seconds=rest))
    return f"{days} day{'s' if days > 1 else ''} {text}" if days else re.sub("^0:0?", "", text)  # without hours if there are none


def _new_bars(console: Console) -> Bars:
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column
    from rich.text import Text

    class Shown(TextColumn):
        """A column that is truncated if the terminal is too narrow. It never wraps to a second line."""

        def render(self, task: Any) -> Text:
            return Text(str(task.fields["shown"]), no_wrap=True, overflow="ellipsis")

    columns = (
        TextColumn("{task.description:<8}", markup=False),
        BarColumn(bar_width=BAR_WIDTH if console.width >= 80 else BAR_WIDTH // 2, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[of]}", markup=False),
        TextColumn("{task.fields[eta]}", markup=False),
        Shown("", table_column=Column()),
    )
    return Bars(*columns, console=console, refresh_per_second=4, transient=True)


def _num_epochs(loop: Any) -> int | None:
    """Return the total number of epochs: `epochs` of a `TrainManager`, or `n_epochs` of a `TrainTestLoop`."""
    return getattr(loop, "epochs", None) or getattr(loop, "n_epochs", None) or None


def _batches_done(loop: Any) -> int:
    moment = getattr(loop, "moment", None)
    return 0 if moment is None else int(moment.batch)


def _best_losses(loop: Any) -> dict[str, float]:
    """Return the lowest loss that was recorded for each evaluation set before training was interrupted."""
    history = getattr(getattr(loop, "writer", None), "history", None)
    rows = {name: history.get(loss_name(name), ()) for name in getattr(loop, "eval_data", {})} if isinstance(history, dict) else {}
    finite = {name: [value for _, value in each if value == value] for name, each in rows.items()}
    return {name: min(values) for name, values in finite.items() if values}


def _num_batches(loop: Any) -> int | None:
    return length_of(loop.train_data)


def _of(count: int, total: int | None) -> str:
    return f"{count:,}" if total is None else f"{count:,}/{total:,}"


def _text(value: Any) -> str:
    try:
        return f"{float(value.detach() if hasattr(value, 'detach') else value):.4f}"
    except (TypeError, ValueError, RuntimeError):
        return str(value)[:20]
