"""How a manager was started: how its work is taken up again, who hears of it, and who may end it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainmaster.manager.executor import Report
from trainmaster.store import Store


def _nothing(report: Report) -> None: ...


def _nobody() -> None:
    return None


@dataclass(frozen=True)
class Launch:
    """What whoever started a manager says; by default it was a program of the user's own."""

    target: str | None = None
    """Where the command line finds the manager: `file.py:Name`."""
    program: tuple[str, ...] = ("trainmaster",)
    """How the command line was called."""
    tell: Callable[[Report], None] = _nothing
    """Hears how far each run is."""
    asked: Callable[[], str | None] = _nobody
    """Says why all work should end, if it should."""
    flush: Callable[[], None] = _nobody
    """Has all that was printed go where it is kept."""
    is_passing: bool = False
    """Whether its store is thrown away in the end, so that what was interrupted is to be asked for again."""

    def facts(self, num_epochs: int | None) -> dict[str, Any]:
        """What is recorded of an attempt, so that it can be taken up again, or trained again with the same bits."""
        torch: Any = sys.modules.get("torch")
        threads = {} if torch is None else {"num_threads": torch.get_num_threads()}
        return threads if self.target is None else {"target": self.target, "folder": os.getcwd(), "num_epochs": num_epochs, **threads}

    def resuming(self, store: Store, key: str) -> str:
        """What to type to go on with a run that was interrupted."""
        if self.is_passing:
            return self.again()
        is_program = self.target is None and len(sys.orig_argv) > 1 and not hasattr(sys, "ps1")
        return shlex.join(sys.orig_argv) if is_program else self.repeating(store, key)

    def again(self) -> str:
        """What to type to go on with a batch."""
        return shlex.join([*self.program, *sys.argv[1:]] if self.target is not None else sys.orig_argv)

    def repeating(self, store: Store, key: str) -> str:
        """What to type to train one run of many."""
        if self.target is not None:
            return shlex.join([*self.program, "resume", key, "--store", str(store.root)])
        return f'manager.process(manager.configs["{key}"])'
