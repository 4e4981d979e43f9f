"""`ProtoTrainer`: trains a `ModelWrapper` with one run config."""

from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.config import RunConfig
from trainmaster.errors import SettingError, TrainmasterError, shown
from trainmaster.manager.manager import Manager
from trainmaster.manager.model_wrapper import ModelWrapper

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager
    from trainmaster.manager.wrapper_loop import WrapperLoop

_SMOKE_BATCHES = 2


class WrapperManager(Manager):
    """Trains the model of a wrapper, with a new `WrapperLoop` for each run."""

    def __init__(
        self, wrapper: ModelWrapper, config: RunConfig, store_dir: str | os.PathLike[str] | None = None, max_batches: int | None = None
    ) -> None:
        self._wrapper, self._max_batches = wrapper, max_batches
        super().__init__(store_dir, config, verbose=config.verbose != "silent")
        if config.verbose == "console":
            self.job_runner.console.hide_bars()

    def make_loop(self, config: Any) -> TrainManager:
        from trainmaster.manager.wrapper_loop import WrapperLoop

        return WrapperLoop(self._wrapper, config, self._max_batches)

    @property
    def definition(self) -> Any:
        kind = type(self._wrapper)
        return kind if kind is not ModelWrapper else self._wrapper.model_class


class ProtoTrainer:
    """Trains the model of a wrapper with one run config. An interrupted run resumes with bit-identical results.

    Checkpoints and metrics are stored in the folder `experiment_dir`, or in its subfolder `experiment_id` if that is
    set. The same wrapper and config always give the same weights.

    ```python
    trainer = ProtoTrainer(MyWrapper(MyModel), run_config)
    trainer.smoke_test()
    metrics = trainer.launch()
    ```
    """

    def __init__(self, wrapper: ModelWrapper, run_config: RunConfig) -> None:
        self.wrapper, self.config = checked_arguments(wrapper, run_config)
        self.manager = WrapperManager(self.wrapper, self.config, store_path(self.config))

    def launch(self, resume: bool = True) -> dict[str, Any]:
        """Train the run up to its last epoch, starting from its last checkpoint if it has one. Return its last metrics.

        `resume=False` trains it again from the start in a new attempt; the old attempt is kept.
        """
        self.manager.process(resume=resume)
        return dict(self.manager.preview)

    def evaluate(self, which: str | int = "last") -> dict[str, dict[str, float]]:
        """Evaluate a trained run on the sets `valid` and `test`, and return the metrics by name.

        `which` selects the checkpoint: "last", "best", or a step number.
        """
        return evaluate_run(self.manager, self.manager.configs.key_for(self.manager.complete_config(None)), which)

    def smoke_test(self) -> bool:
        """Train, evaluate, save and reload with a few batches in a temporary folder.

        If a step fails, its error is raised.
        """
        from trainmaster.loop.rng import kept_rng

        config = self.config.override("verbose=silent", "tensorboard=false", "eval_epoch=1")
        with kept_rng(), tempfile.TemporaryDirectory(prefix="trainmaster-smoke-") as folder:
            for num_epochs in (1, 2):  # the second manager resumes from the checkpoint of the first
                manager = WrapperManager(self.wrapper, config, folder, _SMOKE_BATCHES)
                manager.process(num_epochs=num_epochs)
            trained = {name: value for name, value in manager.preview.items() if name.startswith("valid/")}
            reloaded = evaluate_run(WrapperManager(self.wrapper, config, folder, _SMOKE_BATCHES), manager.key)
            for name, value in trained.items():
                again = reloaded["valid"][name.removeprefix("valid/")]
                if again != value and value == value:
                    raise TrainmasterError(
                        f"after reloading its checkpoint, the model has {name} = {again!r}, not {value!r}",
                        why="the evaluation is random, or a part of the model is not saved",
                        hint="register tensors with `register_buffer`, and save other state in `get_extra_state`",
                    )
        return True


def evaluate_run(manager: Manager, key: str, which: str | int = "last") -> dict[str, dict[str, float]]:
    """Return the metrics of all evaluation sets of a wrapper, by set and name."""
    from trainmaster.loop.rng import kept_rng

    loop: WrapperLoop = manager.fetch(key, which).loop  # type: ignore[assignment]
    with kept_rng():
        loop.eval(loop.loaders)
    names = loop.writer.names()  # type: ignore[attr-defined]  # a RunWriter
    return {
        each: {name.removeprefix(f"{each}/"): loop.writer.last(name) for name in names if name.startswith(f"{each}/")}  # type: ignore[attr-defined]
        for each in loop.loaders
    }


def checked_arguments(wrapper: Any, config: Any) -> tuple[ModelWrapper, Any]:
    """Check the arguments of a trainer, and return copies of them."""
    if not isinstance(wrapper, ModelWrapper):
        raise SettingError(f"`wrapper` is a ModelWrapper, not {shown(wrapper)}", hint="ProtoTrainer(ModelWrapper(MyModel), config)")
    if not isinstance(config, RunConfig):
        raise SettingError(f"`run_config` is a RunConfig, not {shown(config)}", hint="write a subclass of RunConfig with your fields")
    if config.experiment_dir is None:
        raise SettingError(
            "the config has no experiment_dir, the folder for checkpoints and metrics",
            hint='experiment_dir="runs"; in `make_manager(store_dir)`, write `experiment_dir=store_dir or "runs"`, because'
            " `--dry-run` passes None",
        )
    return copy.deepcopy(wrapper), config.clone()


def store_path(config: RunConfig) -> Path:
    assert config.experiment_dir is not None
    return config.experiment_dir if config.experiment_id is None else config.experiment_dir / config.experiment_id
