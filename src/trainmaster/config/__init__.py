"""Configs: typed ones and free ones, with an identity that means the same everywhere."""

from __future__ import annotations

from trainmaster.config.choices import Choices
from trainmaster.config.configclass import configclass
from trainmaster.config.difference import Missing
from trainmaster.config.draws import Beta, Gamma, Gaussian, draw_configs
from trainmaster.config.fields import Derived, Replicate, Stateless, field
from trainmaster.config.free import Config
from trainmaster.config.identity import canonical, group_of, key_of
from trainmaster.config.optimizer_config import OptimizerConfig, register_optimizer
from trainmaster.config.run_config import ModelConfig, ParallelConfig, RunConfig, TrainConfig
from trainmaster.config.scheduler_config import SchedulerConfig, register_scheduler
from trainmaster.config.search_space import SearchSpace
from trainmaster.config.typed import ConfigBase

__all__ = [
    "Beta",
    "Choices",
    "Config",
    "ConfigBase",
    "Derived",
    "Gamma",
    "Gaussian",
    "Missing",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "Replicate",
    "RunConfig",
    "SchedulerConfig",
    "SearchSpace",
    "Stateless",
    "TrainConfig",
    "canonical",
    "configclass",
    "draw_configs",
    "field",
    "group_of",
    "key_of",
    "register_optimizer",
    "register_scheduler",
]
