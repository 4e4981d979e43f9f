"""`Session`: the internal state of the run that a manager has set up."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.errors import UnknownRunError
from trainmaster.manager.loop_metrics import MeanTimes
from trainmaster.store import Attempt, Run
from trainmaster.store.checkpoint import Checkpoint
from trainmaster.store.metric_names import better_of
from trainmaster.store.verify import check_run

if TYPE_CHECKING:
    from trainmaster.manager.loop_runner import LoopRunner


class Session:
    """Holds the timings, the loop and the last saved epoch of one run, until the next run is set up."""

    def __init__(self, which: str | int = "last") -> None:
        self._which = which
        """The checkpoint to load: "last", "best", or a step number."""
        self.times = MeanTimes()
        self.loop: LoopRunner | None = None
        self.saved_epoch: int | None = None
        """The epoch that was saved or loaded last."""
        self._rng: Any = None

    def attach(self, loop: LoopRunner) -> None:
        self.loop = loop

    def save(self, attempt: Attempt, epoch: int, ckpt: Mapping[str, Any], preview: Mapping[str, Any], keep: int) -> None:
        from trainmaster.loop.rng import get_rng, plain_rng

        status = {"epoch": epoch, "toc": time.time(), **self.times.means}
        attempt.save(epoch, ckpt, status, preview, {"rng": plain_rng(get_rng())}, keep)
        self.saved_epoch = epoch

    def load(self, run: Run, attempt: Attempt | None, facts: Mapping[str, Any]) -> tuple[Checkpoint, dict[str, Any]]:
        """Read the checkpoint, restore the timings and the loop from it, and return the checkpoint and its preview.

        `attempt` is the attempt that continues from this checkpoint, or None if the run is only loaded.
        """
        checkpoint = run.checkpoint(self._which)
        if checkpoint is None:
            raise _no_checkpoint(run, self._which, None if self.loop is None else self.loop.monitor)
        status = checkpoint.manifest["status"]
        self.times.restore(status)
        self._rng = (checkpoint.context or {}).get("rng")
        self.saved_epoch = status["epoch"]
        if attempt is not None:
            for damage in check_run(run, is_deep=False):
                warnings.warn(f"run {run.key} continues without a damaged file: {damage}", stacklevel=2)
            attempt.start(checkpoint, facts=facts)
        preview = run.preview_with(checkpoint)
        if self.loop is not None:
            self.loop.restore(run, checkpoint, preview)
        return checkpoint, preview

    def restore_rng(self) -> None:
        """Set the random number generators to their state in the loaded checkpoint."""
        from trainmaster.loop.rng import rng_of, set_rng

        if self._rng is not None:
            set_rng(rng_of(self._rng))


def _no_checkpoint(run: Run, which: str | int, monitor: str | None) -> UnknownRunError:
    fact = f"run {run.key} has no {'' if which == 'last' else f'{which} '}checkpoint"
    if which != "best" or not run.has_saved() or "best" in (run.status() or {}):
        return UnknownRunError(fact, hint="`process` trains it")
    if monitor is not None:
        return UnknownRunError(
            fact,
            why=f"no checkpoint of this run was saved with a finite value of the monitored metric `{monitor}`",
            hint='"last" selects its last checkpoint; `process(config, resume=False)` trains it again',
        )
    recorded = [name for name in run.preview() or {} if not name.startswith("train/")]
    name = recorded[0] if recorded else "valid/loss"
    mode, other = better_of(name) or "max", "" if better_of(name) else '\nwrite "min" instead of "max" if lower is better'
    return UnknownRunError(
        fact,
        why="no metric was monitored: the default is the loss of the first evaluation set, which this run did not record",
        known=", ".join(recorded),
        hint=f'RunConfig(optim_metrics={{"{name}": "{mode}"}}, optim_metric_name="{name}", ...)\n'
        f'or, in a loop of your own, CheckpointSaver(monitor="{name}", mode="{mode}"){other}',
    )
