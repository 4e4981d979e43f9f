"""The extensions that come with trainmaster. Each file contains one extension or one family of extensions.

You can import every extension from this package. An extension is loaded when it is first used, so importing the package
does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.extensions.activation_stats import ActivationStats as ActivationStats
    from trainmaster.extensions.avg import Avg as Avg
    from trainmaster.extensions.clip_gradients import ClipGradients as ClipGradients
    from trainmaster.extensions.code_tracker import CodeTracker as CodeTracker
    from trainmaster.extensions.compile import Compile as Compile
    from trainmaster.extensions.constructor_args import ConstructorArgs as ConstructorArgs
    from trainmaster.extensions.csv_logger import CSVLogger as CSVLogger
    from trainmaster.extensions.deterministic import Deterministic as Deterministic
    from trainmaster.extensions.divergence_guard import DivergenceGuard as DivergenceGuard
    from trainmaster.extensions.early_stopping import EarlyStopping as EarlyStopping
    from trainmaster.extensions.ema import EMA as EMA
    from trainmaster.extensions.environment_info import EnvironmentInfo as EnvironmentInfo
    from trainmaster.extensions.failure_capsule import FailureCapsule as FailureCapsule
    from trainmaster.extensions.gradient_accumulation import GradientAccumulation as GradientAccumulation
    from trainmaster.extensions.gradients import GradCoeffRMSVis as GradCoeffRMSVis
    from trainmaster.extensions.gradients import GradNormVis as GradNormVis
    from trainmaster.extensions.hook_profiler import HookProfiler as HookProfiler
    from trainmaster.extensions.leakage_check import LeakageCheck as LeakageCheck
    from trainmaster.extensions.learning_rate_monitor import LearningRateMonitor as LearningRateMonitor
    from trainmaster.extensions.loss_plot import LossPlot as LossPlot
    from trainmaster.extensions.mixed_precision import MixedPrecision as MixedPrecision
    from trainmaster.extensions.model_summary import ModelSummary as ModelSummary
    from trainmaster.extensions.nan_guard import NaNGuard as NaNGuard
    from trainmaster.extensions.plot import Plot as Plot
    from trainmaster.extensions.run_report import RunReport as RunReport
    from trainmaster.extensions.sample_loss import SampleLoss as SampleLoss
    from trainmaster.extensions.sanity_check import SanityCheck as SanityCheck
    from trainmaster.extensions.seed import Seed as Seed
    from trainmaster.extensions.tensorboard import TensorBoard as TensorBoard
    from trainmaster.extensions.tracker import Tracker as Tracker
    from trainmaster.extensions.update_ratio import UpdateRatio as UpdateRatio
    from trainmaster.loop.checkpoint_loader import CheckpointLoader as CheckpointLoader
    from trainmaster.loop.checkpoint_saver import CheckpointSaver as CheckpointSaver
    from trainmaster.loop.eval_metrics import Metrics as Metrics
    from trainmaster.loop.progress import Progress as Progress

_HOME_OF = {
    "GradientAccumulation": "trainmaster.extensions.gradient_accumulation",
    "ActivationStats": "trainmaster.extensions.activation_stats",
    "Avg": "trainmaster.extensions.avg",
    "ClipGradients": "trainmaster.extensions.clip_gradients",
    "CodeTracker": "trainmaster.extensions.code_tracker",
    "Compile": "trainmaster.extensions.compile",
    "CSVLogger": "trainmaster.extensions.csv_logger",
    "Deterministic": "trainmaster.extensions.deterministic",
    "DivergenceGuard": "trainmaster.extensions.divergence_guard",
    "EarlyStopping": "trainmaster.extensions.early_stopping",
    "EMA": "trainmaster.extensions.ema",
    "EnvironmentInfo": "trainmaster.extensions.environment_info",
    "FailureCapsule": "trainmaster.extensions.failure_capsule",
    "GradCoeffRMSVis": "trainmaster.extensions.gradients",
    "GradNormVis": "trainmaster.extensions.gradients",
    "HookProfiler": "trainmaster.extensions.hook_profiler",
    "LeakageCheck": "trainmaster.extensions.leakage_check",
    "LearningRateMonitor": "trainmaster.extensions.learning_rate_monitor",
    "LossPlot": "trainmaster.extensions.loss_plot",
    "MixedPrecision": "trainmaster.extensions.mixed_precision",
    "ModelSummary": "trainmaster.extensions.model_summary",
    "NaNGuard": "trainmaster.extensions.nan_guard",
    "ConstructorArgs": "trainmaster.extensions.constructor_args",
    "Plot": "trainmaster.extensions.plot",
    "RunReport": "trainmaster.extensions.run_report",
    "SampleLoss": "trainmaster.extensions.sample_loss",
    "SanityCheck": "trainmaster.extensions.sanity_check",
    "Seed": "trainmaster.extensions.seed",
    "TensorBoard": "trainmaster.extensions.tensorboard",
    "Tracker": "trainmaster.extensions.tracker",
    "UpdateRatio": "trainmaster.extensions.update_ratio",
    "CheckpointLoader": "trainmaster.loop.checkpoint_loader",
    "CheckpointSaver": "trainmaster.loop.checkpoint_saver",
    "Metrics": "trainmaster.loop.eval_metrics",
    "Progress": "trainmaster.loop.progress",
}

__all__ = [*sorted(_HOME_OF)]  # noqa: PLE0604 - all entries are strings


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        from trainmaster.errors import did_you_mean

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {did_you_mean(name, _HOME_OF)}".rstrip("; "))
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
