"""trainmaster: train PyTorch models with routines cut into stages that anyone can extend.

Names load when they are first used, so importing trainmaster imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from trainmaster.config import Choices as Choices
    from trainmaster.config import Config as Config
    from trainmaster.config import ConfigBase as ConfigBase
    from trainmaster.config import Derived as Derived
    from trainmaster.config import ModelConfig as ModelConfig
    from trainmaster.config import OptimizerConfig as OptimizerConfig
    from trainmaster.config import ParallelConfig as ParallelConfig
    from trainmaster.config import Replicate as Replicate
    from trainmaster.config import RunConfig as RunConfig
    from trainmaster.config import SchedulerConfig as SchedulerConfig
    from trainmaster.config import SearchSpace as SearchSpace
    from trainmaster.config import Stateless as Stateless
    from trainmaster.config import TrainConfig as TrainConfig
    from trainmaster.config import configclass as configclass
    from trainmaster.config import group_of as group_of
    from trainmaster.config import key_of as key_of
    from trainmaster.errors import ConfigError as ConfigError
    from trainmaster.errors import TrainmasterError as TrainmasterError
    from trainmaster.extensions.accumulate import Accumulate as Accumulate
    from trainmaster.extensions.activation_stats import ActivationStats as ActivationStats
    from trainmaster.extensions.avg import Avg as Avg
    from trainmaster.extensions.clip_gradients import ClipGradients as ClipGradients
    from trainmaster.extensions.code.checkout import checkout_code as checkout_code
    from trainmaster.extensions.code_tracker import CodeTracker as CodeTracker
    from trainmaster.extensions.compile import Compile as Compile
    from trainmaster.extensions.csv_log import CSVLog as CSVLog
    from trainmaster.extensions.deterministic import Deterministic as Deterministic
    from trainmaster.extensions.divergence import Divergence as Divergence
    from trainmaster.extensions.early_stopping import EarlyStopping as EarlyStopping
    from trainmaster.extensions.ema import EMA as EMA
    from trainmaster.extensions.environment import Environment as Environment
    from trainmaster.extensions.failure_capsule import FailureCapsule as FailureCapsule
    from trainmaster.extensions.gradients import GradCoeffRMSVis as GradCoeffRMSVis
    from trainmaster.extensions.gradients import GradNormVis as GradNormVis
    from trainmaster.extensions.hook_times import HookTimes as HookTimes
    from trainmaster.extensions.leakage import LeakageCheck as LeakageCheck
    from trainmaster.extensions.leakage import find_leak as find_leak
    from trainmaster.extensions.learning_rate import LearningRate as LearningRate
    from trainmaster.extensions.loss_plot import LossPlot as LossPlot
    from trainmaster.extensions.metrics import Metrics as Metrics
    from trainmaster.extensions.mixed_precision import MixedPrecision as MixedPrecision
    from trainmaster.extensions.model_summary import ModelSummary as ModelSummary
    from trainmaster.extensions.non_finite import NonFinite as NonFinite
    from trainmaster.extensions.parameters import Parameters as Parameters
    from trainmaster.extensions.parameters import init_from_checkpoint as init_from_checkpoint
    from trainmaster.extensions.parameters import parameters_in as parameters_in
    from trainmaster.extensions.plot import Plot as Plot
    from trainmaster.extensions.progress import Progress as Progress
    from trainmaster.extensions.replay import replay as replay
    from trainmaster.extensions.run_report import RunReport as RunReport
    from trainmaster.extensions.sample_loss import SampleLoss as SampleLoss
    from trainmaster.extensions.sanity_check import SanityCheck as SanityCheck
    from trainmaster.extensions.sanity_check import sanity_check as sanity_check
    from trainmaster.extensions.seed import Seed as Seed
    from trainmaster.extensions.tensorboard import TensorBoard as TensorBoard
    from trainmaster.extensions.update_ratio import UpdateRatio as UpdateRatio
    from trainmaster.loop.checkpoint_loader import CheckpointLoader as CheckpointLoader
    from trainmaster.loop.checkpoint_saver import CheckpointSaver as CheckpointSaver
    from trainmaster.loop.initialization import xavier_uniform as xavier_uniform
    from trainmaster.loop.recipe import Recipe as Recipe
    from trainmaster.loop.recipe import tracked as tracked
    from trainmaster.loop.rng import seed_rng as seed_rng
    from trainmaster.loop.state import TrainingState as TrainingState
    from trainmaster.loop.train_manager import TrainManager as TrainManager
    from trainmaster.loop.train_test_loop import LoopComponent as LoopComponent
    from trainmaster.loop.train_test_loop import TrainTestLoop as TrainTestLoop
    from trainmaster.loop.writer import MemoryWriter as MemoryWriter
    from trainmaster.loop.writer import Writer as Writer
    from trainmaster.manager import Manager as Manager
    from trainmaster.stages import Extensible as Extensible
    from trainmaster.stages import Extension as Extension
    from trainmaster.stages import Fixtures as Fixtures
    from trainmaster.stages import Observer as Observer
    from trainmaster.stages import Stage as Stage
    from trainmaster.stages import StageTree as StageTree
    from trainmaster.stages import always as always
    from trainmaster.stages import fixture as fixture
    from trainmaster.stages import not_a_hook as not_a_hook
    from trainmaster.stages import staged as staged
    from trainmaster.store import Store as Store

_HOMES = {
    "trainmaster.config": (
        "Choices",
        "Config",
        "ConfigBase",
        "Derived",
        "ModelConfig",
        "OptimizerConfig",
        "ParallelConfig",
        "Replicate",
        "RunConfig",
        "SchedulerConfig",
        "SearchSpace",
        "Stateless",
        "TrainConfig",
        "configclass",
        "group_of",
        "key_of",
    ),
    "trainmaster.errors": ("ConfigError", "TrainmasterError"),
    "trainmaster.extensions.accumulate": ("Accumulate",),
    "trainmaster.extensions.activation_stats": ("ActivationStats",),
    "trainmaster.extensions.avg": ("Avg",),
    "trainmaster.extensions.clip_gradients": ("ClipGradients",),
    "trainmaster.extensions.code.checkout": ("checkout_code",),
    "trainmaster.extensions.code_tracker": ("CodeTracker",),
    "trainmaster.extensions.compile": ("Compile",),
    "trainmaster.extensions.csv_log": ("CSVLog",),
    "trainmaster.extensions.deterministic": ("Deterministic",),
    "trainmaster.extensions.divergence": ("Divergence",),
    "trainmaster.extensions.early_stopping": ("EarlyStopping",),
    "trainmaster.extensions.ema": ("EMA",),
    "trainmaster.extensions.environment": ("Environment",),
    "trainmaster.extensions.failure_capsule": ("FailureCapsule",),
    "trainmaster.extensions.gradients": ("GradCoeffRMSVis", "GradNormVis"),
    "trainmaster.extensions.hook_times": ("HookTimes",),
    "trainmaster.extensions.leakage": ("LeakageCheck", "find_leak"),
    "trainmaster.extensions.learning_rate": ("LearningRate",),
    "trainmaster.extensions.loss_plot": ("LossPlot",),
    "trainmaster.extensions.metrics": ("Metrics",),
    "trainmaster.extensions.mixed_precision": ("MixedPrecision",),
    "trainmaster.extensions.model_summary": ("ModelSummary",),
    "trainmaster.extensions.non_finite": ("NonFinite",),
    "trainmaster.extensions.parameters": ("Parameters", "init_from_checkpoint", "parameters_in"),
    "trainmaster.extensions.plot": ("Plot",),
    "trainmaster.extensions.progress": ("Progress",),
    "trainmaster.extensions.replay": ("replay",),
    "trainmaster.extensions.run_report": ("RunReport",),
    "trainmaster.extensions.sample_loss": ("SampleLoss",),
    "trainmaster.extensions.sanity_check": ("SanityCheck", "sanity_check"),
    "trainmaster.extensions.seed": ("Seed",),
    "trainmaster.extensions.tensorboard": ("TensorBoard",),
    "trainmaster.extensions.update_ratio": ("UpdateRatio",),
    "trainmaster.loop.checkpoint_loader": ("CheckpointLoader",),
    "trainmaster.loop.checkpoint_saver": ("CheckpointSaver",),
    "trainmaster.loop.initialization": ("xavier_uniform",),
    "trainmaster.loop.recipe": ("Recipe", "tracked"),
    "trainmaster.loop.rng": ("seed_rng",),
    "trainmaster.loop.state": ("TrainingState",),
    "trainmaster.loop.train_manager": ("TrainManager",),
    "trainmaster.loop.train_test_loop": ("LoopComponent", "TrainTestLoop"),
    "trainmaster.loop.writer": ("MemoryWriter", "Writer"),
    "trainmaster.manager": ("Manager",),
    "trainmaster.stages": (
        "Extensible",
        "Extension",
        "Fixtures",
        "Observer",
        "Stage",
        "StageTree",
        "always",
        "fixture",
        "not_a_hook",
        "staged",
    ),
    "trainmaster.store": ("Store",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*sorted(_HOME_OF)]  # noqa: PLE0604 - strings all


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        from trainmaster.errors import did_you_mean

        raise AttributeError(f"module 'trainmaster' has no attribute {name!r}; {did_you_mean(name, _HOME_OF)}".rstrip("; "))
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
