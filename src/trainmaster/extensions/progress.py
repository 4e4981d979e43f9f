"""How far a training is, on a terminal or in a log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.errors import SettingError
from trainmaster.stages import Fixtures, Observer, always

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars


class Progress(Observer):
    """A bar for the epoch and one for the whole run; off a terminal, one plain line per epoch.

    `show` names fixtures to print beside the bar: a scalar, such as `loss`, or a lazy fixture of the batch. The bar is brought up to
    date ten times a second at most, so short steps do not pay for it.
    """

    def __init__(self, show: Sequence[str] = ("loss",), console: Console | None = None, *, has_lines: bool = True) -> None:
        if isinstance(show, str) or not all(isinstance(name, str) for name in show):
            raise SettingError(f"`show` is a list of fixture names, not {show!r}", hint='Progress(show=["loss"])')
        self.show = tuple(show)
        self._console, self._has_lines = console, has_lines
        self._bars: Bars | None = None
        self._started = self._due = 0.0

    def pre_train(self, loop: Any) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        console = self._console = self._console or Console()
        self._started = time.monotonic()
        if console.is_terminal:
            columns = (
                TextColumn("{task.description:<8}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[shown]}"),
            )
            self._bars = Bars(*columns, console=console, refresh_per_second=4, transient=True)
            self._run = self._bars.add_task("run", total=_num_epochs(loop), completed=_epochs_done(loop), shown="")
            self._epoch = self._bars.add_task("epoch", total=None, shown="")
            self._bars.start()

    def pre_train_step_epoch(self, loop: Any) -> None:
        self._due = 0.0
        if self._bars is not None:
            total = _num_batches(loop)
            self._bars.reset(self._epoch, total=total, description=f"epoch {_epochs_done(loop) + 1}")

    def post_train_step_batch(self, loop: Any, fixtures: Fixtures, batch_num: int) -> None:
        now = time.monotonic()
        if self._bars is not None and now >= self._due:
            self._due = now + 0.1
            shown = "  ".join(f"{name} {_text(fixtures[name])}" for name in self.show if name in fixtures)
            total = _num_batches(loop)
            self._bars.update(self._epoch, completed=batch_num + 1, shown=shown)
            if total:
                self._bars.update(self._run, completed=_epochs_done(loop) + (batch_num + 1) / total)

    def post_train_step_epoch(self, loop: Any) -> None:
        if self._bars is not None:
            self._bars.update(self._run, completed=_epochs_done(loop))
        if self._console is not None and not getattr(loop, "eval_data", None):
            self._print(loop, "")

    def post_eval_step_epoch(self, loop: Any, fixtures: Fixtures, datasource_name: str) -> None:
        losses = fixtures.get("eval_losses", {})
        if self._console is not None and datasource_name in losses and self._started:
            self._print(loop, f"{datasource_name} loss {losses[datasource_name]:.4f}  ")

    def _print(self, loop: Any, what: str) -> None:
        assert self._console is not None
        if not self._has_lines:
            return
        seconds = time.monotonic() - self._started
        of = f"/{_num_epochs(loop)}" if _num_epochs(loop) else ""
        self._console.print(f"epoch {_epochs_done(loop)}{of}  {what}{seconds:.1f} s", highlight=False)

    @always
    def post_train(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _num_epochs(loop: Any) -> int | None:
    """Both faces of the loop know how many epochs are asked for, under their own names."""
    count: int | None = getattr(loop, "epochs", None) or getattr(loop, "n_epochs", None)
    return count


def _epochs_done(loop: Any) -> int:
    return int(loop.epoch_num)


def _num_batches(loop: Any) -> int | None:
    try:
        return len(loop.train_data)
    except TypeError:
        return None


def _text(value: Any) -> str:
    try:
        return f"{float(value.detach() if hasattr(value, 'detach') else value):.4f}"
    except (TypeError, ValueError, RuntimeError):
        return str(value)[:20]
