"""What each hook costs."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from trainmaster.errors import SettingError
from trainmaster.stages import Observer, always

_MAX_ROWS = 20


class HookTime(NamedTuple):
    """What one hook cost in a training."""

    extension: str
    hook: str
    num_calls: int
    seconds: float
    share: float
    """Of the whole training, from its first stage to its last."""


class HookTimes(Observer):
    """Measures every hook of a training, and prints a table at its end; the most expensive comes first.

    A lazy fixture counts for the hook that asks for it first. On a GPU a hook is charged for what it makes the processor wait for.
    Callbacks of a `TrainTestLoop` are the work itself, and not measured. The measuring costs about two microseconds for each call.

    Args:
        say: prints the table; None keeps it for `table()`.
    """

    is_guarded = False

    def __init__(self, say: Callable[[str], Any] | None = print) -> None:
        if say is not None and not callable(say):
            raise SettingError(f"say={say!r}: wanted a function that prints a text", hint="HookTimes(say=print)")
        self._say = say
        self._found: dict[tuple[str, str], tuple[int, float]] = {}
        self._started: float | None = None
        self._seconds = 0.0
        self._num_batches = 0

    def pre_train(self, loop: Any) -> None:
        self._found, self._seconds, self._num_batches = {}, 0.0, 0
        self._started = perf_counter()
        loop.time_hooks(self._took)

    def post_train_step_batch(self) -> None:
        self._num_batches += 1

    @always
    def post_train(self, loop: Any) -> None:
        if self._started is None:
            return
        self._seconds, self._started = perf_counter() - self._started, None
        loop.time_hooks(None)
        if self._say is not None:
            self._say(self.table())

    def _took(self, extension: str, hook: str, seconds: float) -> None:
        count, total = self._found.get((extension, hook), (0, 0.0))
        self._found[extension, hook] = (count + 1, total + seconds)

    def times(self) -> list[HookTime]:
        """All hooks that ran in the last training, the most expensive first."""
        whole = max(self._seconds, 1e-9)
        found = [HookTime(*names, count, seconds, seconds / whole) for names, (count, seconds) in self._found.items()]
        return sorted(found, key=lambda each: -each.seconds)

    def table(self) -> str:
        """The same as a text."""
        found = self.times()
        shown = found[:_MAX_ROWS]
        step = self._seconds / max(1, self._num_batches)
        rows = [("hook", "extension", "calls", "us a call", "share")]
        rows += [
            (each.hook, each.extension, f"{each.num_calls:,}", f"{each.seconds / each.num_calls * 1e6:,.1f}", f"{each.share:.1%}")
            for each in shown
        ]
        widths = [max(len(row[at]) for row in rows) for at in range(5)]
        lines = [
            "  ".join(text.ljust(width) if at < 2 else text.rjust(width) for at, (text, width) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        whole = sum(each.share for each in found)
        lines += [f"and {len(found) - len(shown)} more"] if len(found) > len(shown) else []
        return "\n".join([*lines, f"all hooks: {whole:.1%} of {self._seconds:.2f} s; {step * 1e6:,.0f} us a batch, everything included"])
