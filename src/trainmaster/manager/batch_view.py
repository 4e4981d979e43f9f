"""What is shown of a batch while it runs, in one place for all workers: how many are done, running and failed, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainmaster.manager.executor import Report
from trainmaster.store.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from trainmaster.manager.batch import BatchResult

_MAX_RUNS = 12
_EVERY = 30.0
"""Seconds between two lines off a terminal, where no run ends."""


class BatchView:
    """One line for the batch and one for each run at work, redrawn on a terminal; off a terminal a plain line now and then."""

    def __init__(self, total: int | None, say: Callable[[str], None], console: Console | None = None) -> None:
        from rich.console import Console

        self._total, self._say = total, say
        self._console = console or Console()
        self._live: Live | None = None
        self._started = self._said = time.monotonic()
        self._shares: dict[str, tuple[float, str]] = {}
        """How much of each running run is done, and in words."""
        self._num_ended = 0
        self._counts = ""

    def __enter__(self) -> BatchView:
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def progress(self, report: Report) -> None:
        of = f" of {report.num_epochs}" if report.num_epochs else ""
        self._shares[report.key] = (report.epoch / report.num_epochs if report.num_epochs else 0.0, f"epoch {report.epoch}{of}")
        self._tell(is_due=False)

    def begun(self, key: str) -> None:
        self._shares.setdefault(key, (0.0, "starts"))

    def ended(self, report: Report) -> None:
        self._shares.pop(report.key, None)
        self._num_ended += report.kind in ("done", "failed")

    def show(self, result: BatchResult, running: list[str]) -> None:
        self._shares = {key: self._shares.get(key, (0.0, "starts")) for key in running}
        parts = [f"{result.num_ended}{f' of {self._total}' if self._total is not None else ''} done", f"{len(running)} running"]
        parts += [f"{len(result.failed) + len(result.given_up)} failed"] if result.failed or result.given_up else []
        self._left = None if self._total is None else max(0, self._total - result.num_ended)
        self._counts = ", ".join(parts)
        self._tell(is_due=True)

    def eta(self) -> float | None:
        """Seconds until all is done, if it goes on as it did; None as long as nobody knows."""
        elapsed = time.monotonic() - self._started
        running = sum(share for share, _ in self._shares.values())
        finished = self._num_ended + running
        if self._left is None or finished <= 0:
            return None
        return elapsed / finished * max(0.0, self._left - running)

    _left: int | None = None

    def _line(self) -> str:
        eta = self.eta()
        return f"{self._counts}{f', about {_duration(eta)} left' if eta is not None else ''}"

    def _tell(self, is_due: bool) -> None:
        now = time.monotonic()
        if self._live is None and (is_due or now - self._said >= _EVERY):
            self._said = now
            self._say(self._line())

    def _table(self) -> Any:
        from rich.text import Text

        lines = [f"{_bar(self._share())} {self._line()}"]
        lines += [f"  {key}  {_bar(share, 12)} {text}" for key, (share, text) in sorted(self._shares.items())[:_MAX_RUNS]]
        return Text("\n".join(map(printable, lines)))

    def _share(self) -> float:
        if not self._total or self._left is None:
            return 0.0
        return (self._total - self._left + sum(share for share, _ in self._shares.values())) / self._total


def _bar(share: float, width: int = 24) -> str:
    """
    >>> _bar(0.5, 8)
    '[####    ]'
    """
    full = round(max(0.0, min(1.0, share)) * width)
    return f"[{'#' * full}{' ' * (width - full)}]"


def _duration(seconds: float) -> str:
    """
    >>> _duration(42.4), _duration(200), _duration(9000)
    ('42 s', '3 min 20 s', '2 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
