"""The result of looking for a leak."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from trainmaster.errors import LeakageError
from trainmaster.extensions.leaks.ownership import MISPLACED, MIXED, SCATTERED

Phase = Literal["forward", "backward", "loss"]

_FACTS = {"forward": "in the forward pass", "backward": "in the backward pass", "loss": "in the loss"}
_REASONS = {
    MIXED: "what this line makes has values that depend on several examples",
    SCATTERED: "after this line the values of one example are spread over the rows of others",
    MISPLACED: "after this line the examples are in another order than in the batch",
}
_HINTS = {
    MIXED: "work on the dimensions of one example only",
    SCATTERED: "a view cuts memory in its order: bring the batch to the front before it (transpose, permute)",
    MISPLACED: "work on another dimension, or put the examples back in order before they meet others",
}


@dataclass(frozen=True)
class Leak:
    """Where the examples of a batch mix first."""

    phase: Phase
    module: str | None
    """Its dotted name and class, `encoder.attention (Attention)`; the class alone for the model itself."""
    file: str | None
    line: int | None
    code: str | None
    examples: tuple[int, int] | None
    """(i, j): example i depends on example j. None where no single pair was seen."""
    fault: str | None
    """What the line does: it leaves examples "mixed", "scattered" or "misplaced". None where no line was found."""

    @property
    def fact(self) -> str:
        pair = "" if self.examples is None else ": example {} depends on example {}".format(*self.examples)
        return f"examples of a batch mix {_FACTS[self.phase]}{pair}"

    @property
    def where(self) -> str:
        file = self.file and (os.path.relpath(self.file) if os.path.isabs(self.file) else self.file)
        file = self.file if file and file.startswith("..") else file
        return ", in ".join(filter(None, [f"{file}:{self.line}" if file else None, self.module])) or "unknown"

    def __str__(self) -> str:
        return str(self.error())

    def error(self) -> LeakageError:
        """The error that tells it."""
        if self.fault is None:
            return LeakageError(self.fact, why="no single operation was found to mix them", hint="try find_leak on parts of the model")
        return LeakageError(
            self.fact, where=self.where, code=self.code, why=_REASONS[self.fault], hint=f"{_HINTS[self.fault]}{self._way_out}"
        )

    @property
    def _way_out(self) -> str:
        """How to say that this is meant; the model itself cannot be allowed to mix, it would be all."""
        name = "loss" if self.phase == "loss" else self.module.split(" (")[0] if self.module and " (" in self.module else None
        return f'\nwhere it is meant: allow=("{name}",)' if name else ""


@dataclass(frozen=True)
class NotApplicable:
    """Nothing could be checked, and why. False, as `None` is: no leak was found."""

    reason: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"leakage was not checked: {self.reason}"
