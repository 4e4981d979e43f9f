"""Typed and free-form configs, and the key that identifies a config in every process."""

from __future__ import annotations

from trainmaster.config.config import Config
from trainmaster.config.config_base import ConfigBase
from trainmaster.config.configclass import configclass
from trainmaster.config.difference import Missing
from trainmaster.config.draws import Beta, Gamma, Gaussian, choices2configs, draw_configs
from trainmaster.config.fields import Derived, Replicate, Secret, Stateless, field
from trainmaster.config.grid import Grid
from trainmaster.config.identity import canonical, group_of, key_of
from trainmaster.config.optimizer_config import OptimizerConfig, register_optimizer
from trainmaster.config.run_config import ModelConfig, ParallelConfig, RunConfig, TrainConfig
from trainmaster.config.scheduler_config import SchedulerConfig, register_scheduler
from trainmaster.config.search_space import SearchSpace

__all__ = [
    "Beta",
    "Config",
    "ConfigBase",
    "Derived",
    "Gamma",
    "Gaussian",
    "Grid",
    "Missing",
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
    "canonical",
    "choices2configs",
    "configclass",
    "draw_configs",
    "field",
    "group_of",
    "key_of",
    "register_optimizer",
    "register_scheduler",
]
