"""Measures the time spent in each hook and in each part of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

from trainmaster.errors import SettingError, shown
from trainmaster.extensions.text_table import text_table
from trainmaster.stages import Observer, always

_MAX_ROWS = 20
_PARTS = ("data", "forward", "loss", "backward", "optimizer step", "evaluation")


class HookTime(NamedTuple):
    """The time spent in one hook during training."""

    extension: str
    hook: str
    num_calls: int
    seconds: float
    share: float
    """The share of the total training time that is spent in this hook."""


class HookProfiler(Observer):
    """Measures the time spent in each hook, and prints a table at the end of training, with the most expensive hook first.

    The last line shows how the training time is divided among reading data, the forward pass, the loss, the backward pass,
    the optimizer step, evaluations and hooks. On a GPU, operations run asynchronously, so these times include only
    the time to queue the operations and the time spent waiting for the device.

    The time to compute a lazy fixture is added to the first hook that uses the fixture. On a GPU, a hook's time includes
    waiting for the device. The callbacks of `TrainTestLoop` components are not timed, because they do the training
    itself. Timing takes about two microseconds per hook call.

    Args:
        output: a function that is called with the table. With None, nothing is printed; `table()` returns the table.
    """

    is_guarded = False

    def __init__(self, output: Callable[[str], object] | None = print) -> None:
        if output is not None and not callable(output):
            fact = f"`output` must be a function that takes the table, or None, not {shown(output)}"
            raise SettingError(fact, hint="HookProfiler(output=print)")
        self._output = output
        self._times: dict[tuple[str, str], tuple[int, float]] = {}
        self._started: float | None = None
        self._seconds = 0.0
        self._num_batches = 0
        self._parts = dict.fromkeys(_PARTS, 0.0)
        self._hook_seconds = 0.0
        self._waiting_since: tuple[float, float] | None = None
        """When the loop began to read the next batch, and the total time spent in hooks up to that point."""
        self._is_evaluating = False

    def pre_train(self, loop: Any) -> None:
        self._times, self._seconds, self._num_batches = {}, 0.0, 0
        self._parts, self._hook_seconds = dict.fromkeys(_PARTS, 0.0), 0.0
        self._waiting_since, self._is_evaluating = None, False
        self._started = perf_counter()
        loop.time_hooks(self._add)

    def pre_train_step_epoch(self) -> None:
        self._waiting_since = perf_counter(), self._hook_seconds

    def pre_train_step_batch(self) -> None:
        if self._waiting_since is not None:
            self._add_part("data", *self._waiting_since)

    def post_train_step_batch(self) -> None:
        self._num_batches += 1
        self._waiting_since = perf_counter(), self._hook_seconds

    def around_forward(self) -> Iterator[None]:
        yield from self._time_part("forward")

    def around_loss(self) -> Iterator[None]:
        yield from self._time_part("loss")

    def around_backward(self) -> Iterator[None]:
        yield from self._time_part("backward")

    def around_optimizer_step(self) -> Iterator[None]:
        yield from self._time_part("optimizer step")

    def around_eval_step_epoch(self) -> Iterator[None]:
        self._is_evaluating = True
        started = perf_counter(), self._hook_seconds
        yield
        self._is_evaluating = False
        self._add_part("evaluation", *started)
        self._waiting_since = perf_counter(), self._hook_seconds  # an evaluation may take place between two batches

    def _time_part(self, part: str) -> Iterator[None]:
        started = perf_counter(), self._hook_seconds
        yield
        if not self._is_evaluating:
            self._add_part(part, *started)

    def _add_part(self, part: str, started: float, hook_seconds: float) -> None:
        """Add the time since `started`, excluding the time in hooks, to the total of one part of training, such as the forward pass."""
        self._parts[part] += perf_counter() - started - (self._hook_seconds - hook_seconds)

    @always
    def post_train(self, loop: Any) -> None:
        if self._started is None:
            return
        self._seconds, self._started = perf_counter() - self._started, None
        loop.time_hooks(None)
        if self._output is not None:
            self._output(self.table())

    def _add(self, extension: str, hook: str, seconds: float) -> None:
        self._hook_seconds += seconds
        count, total = self._times.get((extension, hook), (0, 0.0))
        self._times[extension, hook] = (count + 1, total + seconds)

    def times(self) -> list[HookTime]:
        """Return the times of all hooks that ran in the last `train()`, with the most expensive hook first."""
        total = max(self._seconds, 1e-9)
        times = [HookTime(*names, count, seconds, seconds / total) for names, (count, seconds) in self._times.items()]
        return sorted(times, key=lambda each: -each.seconds)

    def parts(self) -> dict[str, float]:
        """Return how many seconds each part of the last `train()` took, such as the forward pass. `other` is the remaining time."""
        parts = {**self._parts, "hooks": self._hook_seconds}
        return {**parts, "other": max(0.0, self._seconds - sum(parts.values()))}

    def table(self) -> str:
        times = self.times()
        rows = [
            (each.hook, each.extension, f"{each.num_calls:,}", f"{each.seconds / each.num_calls * 1e6:,.1f}", f"{each.share:.1%}")
            for each in times[:_MAX_ROWS]
        ]
        lines = text_table(("hook", "extension", "calls", "µs per call", "share"), rows, num_left=2)
        if len(times) > _MAX_ROWS:
            lines.append(f"and {len(times) - _MAX_ROWS} more")
        per_batch = self._seconds / max(1, self._num_batches) * 1e6
        lines.append(f"all hooks: {sum(each.share for each in times):.1%} of {self._seconds:.2f} s; {per_batch:,.0f} µs per batch in total")
        lines.append("training: " + ", ".join(f"{part} {seconds / max(self._seconds, 1e-9):.1%}" for part, seconds in self.parts().items()))
        return "\n".join(lines)
