"""Both faces of the loop, exact training state, and the default extensions."""

from trainmaster.loop.eval_state import EvalState
from trainmaster.loop.initialization import xavier_uniform
from trainmaster.loop.setup import Setup
from trainmaster.loop.state import TrainingState
from trainmaster.loop.train_manager import TrainManager
from trainmaster.loop.train_test_loop import LoopComponent, TrainTestLoop
from trainmaster.loop.writer import MemoryWriter, Writer

__all__ = [
    "EvalState",
    "LoopComponent",
    "MemoryWriter",
    "Setup",
    "TrainManager",
    "TrainTestLoop",
    "TrainingState",
    "Writer",
    "xavier_uniform",
]
