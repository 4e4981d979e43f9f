"""The training loops, the training state that is needed to resume exactly, and the default extensions.

Each class is imported on first use, so a program that only uses `TrainTestLoop` imports only torch and the stage engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.loop.components import LoopComponent as LoopComponent
    from trainmaster.loop.eval_state import EvalState as EvalState
    from trainmaster.loop.initialization import xavier_uniform as xavier_uniform
    from trainmaster.loop.loop_setup import Setup as Setup
    from trainmaster.loop.state import TrainingState as TrainingState
    from trainmaster.loop.supervised import Supervised as Supervised
    from trainmaster.loop.train_manager import TrainManager as TrainManager
    from trainmaster.loop.train_test_loop import TrainTestLoop as TrainTestLoop
    from trainmaster.loop.writer import MemoryWriter as MemoryWriter
    from trainmaster.loop.writer import Writer as Writer

_FILE_OF = {
    "EvalState": "eval_state",
    "LoopComponent": "components",
    "MemoryWriter": "writer",
    "Setup": "loop_setup",
    "Supervised": "supervised",
    "TrainManager": "train_manager",
    "TrainTestLoop": "train_test_loop",
    "TrainingState": "state",
    "Writer": "writer",
    "xavier_uniform": "initialization",
}
__all__ = [*_FILE_OF]  # noqa: PLE0604 - they are all strings


def __getattr__(name: str) -> Any:
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_FILE_OF[name]}"), name)
