"""Values that an extension accumulates over an evaluation, kept separately for nested evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Values = TypeVar("Values")


class PerEvaluation(Generic[Values]):
    """Holds the values of the innermost running evaluation. When that evaluation ends, the values of the outer one are restored.

    Each evaluation is identified by its own dict, the fixture `eval_losses`. A `TrainTestLoop` has no such fixture and
    no nested evaluations.
    """

    def __init__(self, create: Callable[[], Values]) -> None:
        self._create = create
        self._outer: list[tuple[Any, Values]] = []
        self.current = create()

    def start(self, eval_losses: dict[str, float] | None) -> None:
        self._outer.append((eval_losses, self.current))
        self.current = self._create()

    def end(self, eval_losses: dict[str, float] | None) -> Values | None:
        """Return the values of the evaluation that has ended, or None if `start` was not called for it."""
        if not self._outer or self._outer[-1][0] is not eval_losses:
            return None
        ended = self.current
        _, self.current = self._outer.pop()
        return ended
