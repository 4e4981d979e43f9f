"""trainmaster: train PyTorch models with loops that extensions can hook into at every stage.

Names are loaded when they are first used, so `import trainmaster` does not import torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.extensions import __all__ as _EXTENSIONS

__version__ = "0.1.0"

if TYPE_CHECKING:
    from trainmaster.analysis import Ablation as Ablation
    from trainmaster.analysis import Hypothesis as Hypothesis
    from trainmaster.config import Config as Config
    from trainmaster.config import ConfigBase as ConfigBase
    from trainmaster.config import Derived as Derived
    from trainmaster.config import Grid as Grid
    from trainmaster.config import ModelConfig as ModelConfig
    from trainmaster.config import OptimizerConfig as OptimizerConfig
    from trainmaster.config import ParallelConfig as ParallelConfig
    from trainmaster.config import Replicate as Replicate
    from trainmaster.config import RunConfig as RunConfig
    from trainmaster.config import SchedulerConfig as SchedulerConfig
    from trainmaster.config import SearchSpace as SearchSpace
    from trainmaster.config import Secret as Secret
    from trainmaster.config import Stateless as Stateless
    from trainmaster.config import TrainConfig as TrainConfig
    from trainmaster.config import configclass as configclass
    from trainmaster.config import group_of as group_of
    from trainmaster.config import key_of as key_of
    from trainmaster.errors import ConfigError as ConfigError
    from trainmaster.errors import TrainmasterError as TrainmasterError
    from trainmaster.extensions import EMA as EMA
    from trainmaster.extensions import ActivationStats as ActivationStats
    from trainmaster.extensions import Avg as Avg
    from trainmaster.extensions import CheckpointLoader as CheckpointLoader
    from trainmaster.extensions import CheckpointSaver as CheckpointSaver
    from trainmaster.extensions import ClipGradients as ClipGradients
    from trainmaster.extensions import CodeTracker as CodeTracker
    from trainmaster.extensions import Compile as Compile
    from trainmaster.extensions import ConstructorArgs as ConstructorArgs
    from trainmaster.extensions import CSVLogger as CSVLogger
    from trainmaster.extensions import Deterministic as Deterministic
    from trainmaster.extensions import DivergenceGuard as DivergenceGuard
    from trainmaster.extensions import EarlyStopping as EarlyStopping
    from trainmaster.extensions import EnvironmentInfo as EnvironmentInfo
    from trainmaster.extensions import FailureCapsule as FailureCapsule
    from trainmaster.extensions import GradCoeffRMSVis as GradCoeffRMSVis
    from trainmaster.extensions import GradientAccumulation as GradientAccumulation
    from trainmaster.extensions import GradNormVis as GradNormVis
    from trainmaster.extensions import HookProfiler as HookProfiler
    from trainmaster.extensions import LeakageCheck as LeakageCheck
    from trainmaster.extensions import LearningRateMonitor as LearningRateMonitor
    from trainmaster.extensions import LossPlot as LossPlot
    from trainmaster.extensions import Metrics as Metrics
    from trainmaster.extensions import MixedPrecision as MixedPrecision
    from trainmaster.extensions import ModelSummary as ModelSummary
    from trainmaster.extensions import NaNGuard as NaNGuard
    from trainmaster.extensions import Plot as Plot
    from trainmaster.extensions import Progress as Progress
    from trainmaster.extensions import RunReport as RunReport
    from trainmaster.extensions import SampleLoss as SampleLoss
    from trainmaster.extensions import SanityCheck as SanityCheck
    from trainmaster.extensions import Seed as Seed
    from trainmaster.extensions import TensorBoard as TensorBoard
    from trainmaster.extensions import Tracker as Tracker
    from trainmaster.extensions import UpdateRatio as UpdateRatio
    from trainmaster.extensions.code.checkout import checkout_code as checkout_code
    from trainmaster.extensions.constructor_args import init_from_checkpoint as init_from_checkpoint
    from trainmaster.extensions.constructor_args import parameters_in as parameters_in
    from trainmaster.extensions.leakage_check import find_leak as find_leak
    from trainmaster.extensions.replay import replay as replay
    from trainmaster.extensions.sanity_check import sanity_check as sanity_check
    from trainmaster.loop.components import LoopComponent as LoopComponent
    from trainmaster.loop.initialization import xavier_uniform as xavier_uniform
    from trainmaster.loop.loggers import Logger as Logger
    from trainmaster.loop.loggers import Mirrored as Mirrored
    from trainmaster.loop.recipe import Recipe as Recipe
    from trainmaster.loop.recipe import tracked as tracked
    from trainmaster.loop.rng import seed_rng as seed_rng
    from trainmaster.loop.state import TrainingState as TrainingState
    from trainmaster.loop.supervised import Supervised as Supervised
    from trainmaster.loop.train_manager import TrainManager as TrainManager
    from trainmaster.loop.train_test_loop import TrainTestLoop as TrainTestLoop
    from trainmaster.loop.writer import MemoryWriter as MemoryWriter
    from trainmaster.loop.writer import Writer as Writer
    from trainmaster.manager import Manager as Manager
    from trainmaster.manager.model_wrapper import ModelWrapper as ModelWrapper
    from trainmaster.manager.proto_trainer import ProtoTrainer as ProtoTrainer
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
    from trainmaster.sweep.parallel_trainer import ParallelTrainer as ParallelTrainer

_HOMES: dict[str, Sequence[str]] = {
    "trainmaster.analysis": ("Ablation", "Hypothesis"),
    "trainmaster.config": (
        "Config",
        "ConfigBase",
        "Derived",
        "Grid",
        "ModelConfig",
        "OptimizerConfig",
        "ParallelConfig",
        "Replicate",
        "RunConfig",
        "SchedulerConfig",
        "SearchSpace",
        "Secret",
        "Stateless",
        "TrainConfig",
        "configclass",
        "group_of",
        "key_of",
    ),
    "trainmaster.errors": ("ConfigError", "TrainmasterError"),
    "trainmaster.extensions": _EXTENSIONS,
    "trainmaster.extensions.code.checkout": ("checkout_code",),
    "trainmaster.extensions.leakage_check": ("find_leak",),
    "trainmaster.extensions.constructor_args": ("init_from_checkpoint", "parameters_in"),
    "trainmaster.extensions.replay": ("replay",),
    "trainmaster.extensions.sanity_check": ("sanity_check",),
    "trainmaster.loop.components": ("LoopComponent",),
    "trainmaster.loop.initialization": ("xavier_uniform",),
    "trainmaster.loop.loggers": ("Logger", "Mirrored"),
    "trainmaster.loop.recipe": ("Recipe", "tracked"),
    "trainmaster.loop.rng": ("seed_rng",),
    "trainmaster.loop.state": ("TrainingState",),
    "trainmaster.loop.supervised": ("Supervised",),
    "trainmaster.loop.train_manager": ("TrainManager",),
    "trainmaster.loop.train_test_loop": ("TrainTestLoop",),
    "trainmaster.loop.writer": ("MemoryWriter", "Writer"),
    "trainmaster.manager": ("Manager",),
    "trainmaster.manager.model_wrapper": ("ModelWrapper",),
    "trainmaster.manager.proto_trainer": ("ProtoTrainer",),
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
    "trainmaster.sweep.parallel_trainer": ("ParallelTrainer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*sorted(_HOME_OF)]  # noqa: PLE0604 - all of them are strings


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
