"""`ParallelTrainer`: finds the best config for a `ModelWrapper` in the search space of a `ParallelConfig`."""

from __future__ import annotations

import sys

from trainmaster.config import ParallelConfig
from trainmaster.errors import SettingError, shown
from trainmaster.manager.executor import Executor
from trainmaster.manager.model_wrapper import ModelWrapper
from trainmaster.manager.proto_trainer import WrapperManager, checked_arguments, store_path
from trainmaster.sweep.search import SearchResult, search
from trainmaster.sweep.space import Space


class ParallelTrainer:
    """Runs `Manager.search` with the settings in a config.

    The search is recorded in the store, so another call to `launch` continues it. A trial that fails does not stop the
    others.

    ```python
    result = ParallelTrainer(MyWrapper(MyModel), parallel_config).launch()
    result.best
    ```
    """

    def __init__(self, wrapper: ModelWrapper, config: ParallelConfig) -> None:
        if not isinstance(config, ParallelConfig):
            raise SettingError(f"`config` is a ParallelConfig, not {shown(config)}", hint="ProtoTrainer trains a RunConfig")
        self.wrapper, self.config = checked_arguments(wrapper, config)
        trial_config = self.config.clone()
        trial_config.search_space = {}  # a trial has concrete values instead of a search space
        self.manager = WrapperManager(self.wrapper, trial_config, store_path(self.config))

    def launch(self, workers: int | Executor | None = None) -> SearchResult:
        """Run the missing trials, and return the result with all trials.

        `workers` is a number of worker processes or an executor. The default is the config's `concurrent_trials`.
        """
        config = self.config
        metrics = config.optim_metrics or {"loss": "min"}
        return search(
            self.manager,
            config.search_space,
            trials=config.total_trials or _num_trials(config),
            monitor=list(metrics),
            mode=list(metrics.values()),
            workers=config.concurrent_trials or 0 if workers is None else workers,
            sampler=config.search_algo,
            seed=config.random_seed or 0,
        )


def _num_trials(config: ParallelConfig) -> int:
    """Return the default number of trials: the number of grid points in a grid search, otherwise `sys.maxsize` (no limit)."""
    space = Space.of(config.search_space)
    if config.search_algo != "grid":
        return sys.maxsize
    space.check_is_countable()
    return space.num_points
