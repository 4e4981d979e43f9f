"""The result of a search for a leak."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from trainmaster.errors import LeakageError
from trainmaster.extensions.leaks.origins import MIXED, REORDERED, SCATTERED

Phase = Literal["forward", "backward", "loss"]

_PHASES = {"forward": "in the forward pass", "backward": "in the backward pass", "loss": "in the loss"}
_REASONS = {
    MIXED: "this line produces values that depend on several examples",
    SCATTERED: "after this line, the values of one example are spread over the rows of others",
    REORDERED: "after this line, the examples are in a different order than in the batch",
}
_HINTS = {
    MIXED: "operate on dimensions within one example only",
    SCATTERED: "a view follows the order in memory: move the batch dimension to the front first (transpose, permute)",
    REORDERED: "operate on another dimension, or restore the order before the examples are combined with others",
}


@dataclass(frozen=True)
class Leak:
    """The first line of code that mixes the examples of a batch."""

    phase: Phase
    module: str | None = None
    """The name and class of the module, as in `encoder.attention (Attention)`; for the model itself, only the class."""
    file: str | None = None
    line: int | None = None
    code: str | None = None
    examples: tuple[int, int] | None = None
    """A pair (i, j) means that example i depends on example j. None if the search found no such pair."""
    fault: str | None = None
    """The kind of fault: "mixed", "scattered" or "reordered". None if the search found no line."""

    def __str__(self) -> str:
        return str(self.error())

    def error(self) -> LeakageError:
        pair = "" if self.examples is None else ": example {} depends on example {}".format(*self.examples)
        fact = f"examples of a batch mix {_PHASES[self.phase]}{pair}"
        if self.fault is None:
            return LeakageError(fact, why="no single operation mixes them", hint="call find_leak on parts of the model")
        # The model itself cannot be in `allow`, because then there would be nothing to check.
        name = "loss" if self.phase == "loss" else self.module.split(" (")[0] if self.module and " (" in self.module else None
        intended = f'\nif this is intended: LeakageCheck(allow=("{name}",))' if name else ""
        hint = f"{_HINTS[self.fault]}{intended}"
        return LeakageError(fact, where=self._where(), code=self.code, why=_REASONS[self.fault], hint=hint)

    def _where(self) -> str:
        location = None
        if self.file is not None:
            relative = os.path.relpath(self.file) if os.path.isabs(self.file) else self.file
            location = f"{self.file if relative.startswith('..') else relative}:{self.line}"
        return ", in ".join(filter(None, [location, self.module])) or "unknown"


@dataclass(frozen=True)
class NotApplicable:
    """The reason why the check was not possible. It is falsy, like None, because no leak was found."""

    reason: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"leakage was not checked: {self.reason}"
