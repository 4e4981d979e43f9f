"""`Session`: the internal state of the run that a manager has set up."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.errors import UnknownRunError
from trainmaster.manager.loop_metrics import MeanTimes
from trainmaster.store import Attempt, Run
from trainmaster.store.checkpoint import Checkpoint, CheckpointName
from trainmaster.store.checkpoint_folder import Best, best_record, is_better
from trainmaster.store.metric_names import better_of
from trainmaster.store.verify import check_run

if TYPE_CHECKING:
    from trainmaster.manager.loop_runner import LoopRunner


EXTENSION_STATES = "extension_states"
"""The checkpoint key for the states of the manager's extensions, if the manager has its own `train` and `eval`."""


class Monitored(NamedTuple):
    """The metric that decides which checkpoint of a manager without a loop is the best."""

    value: float
    metric: str
    mode: str


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
        self._best: Best | None = None
        self._evaluated: tuple[int, Monitored] | None = None

    def attach(self, loop: LoopRunner) -> None:
        self.loop = loop

    def add_evaluation(self, epoch: int, monitored: Monitored | None) -> None:
        """Keep the value of the monitored metric. It decides whether the checkpoint of this epoch is the best one."""
        self._evaluated = None if monitored is None else (epoch, monitored)

    def save(
        self,
        attempt: Attempt,
        epoch: int,
        ckpt: Mapping[str, Any],
        preview: Mapping[str, Any],
        keep: int,
        extensions: Mapping[str, object],
    ) -> None:
        """Save `ckpt` and the states of the manager's extensions as the checkpoint of an epoch."""
        from trainmaster.loop.rng import get_rng, plain_rng
        from trainmaster.loop.state import capture_extensions

        states = capture_extensions(extensions)
        if states:
            ckpt = {**ckpt, EXTENSION_STATES: states}
        status: dict[str, Any] = {"epoch": epoch, "toc": time.time(), **self.times.means}
        if self._evaluated is not None and self._evaluated[0] == epoch and is_better(*self._evaluated[1], self._best):
            value, metric, mode = self._evaluated[1]
            self._best = Best(metric, value, epoch, attempt.next_name(epoch), mode)
        if self._best is not None:
            status["best"] = best_record(self._best)
        pinned = [] if self._best is None else [self._best.name]
        attempt.save(epoch, ckpt, status, preview, {"rng": plain_rng(get_rng())}, keep, pinned)
        self.saved_epoch = epoch

    def load(
        self, run: Run, attempt: Attempt | None, facts: Mapping[str, Any], extensions: Mapping[str, object]
    ) -> tuple[Checkpoint, dict[str, Any]]:
        """Read the checkpoint, restore the timings and the loop or extensions from it, and return the checkpoint and its preview.

        `attempt` is the attempt that continues from this checkpoint, or None if the run is only loaded.
        """
        from trainmaster.loop.state import restore_extensions

        checkpoint = run.checkpoint(self._which)
        if checkpoint is None:
            raise _no_checkpoint(run, self._which, self.loop)
        status = checkpoint.manifest["status"]
        self.times.restore(status)
        self._rng = (checkpoint.context or {}).get("rng")
        self.saved_epoch = status["epoch"]
        self._best = _best_in(status)
        if attempt is not None:
            for damage in check_run(run, is_deep=False):
                warnings.warn(f"run {run.key} continues without a damaged file: {damage}", stacklevel=2)
            attempt.start(checkpoint, facts=facts)
        preview = run.preview_with(checkpoint)
        if self.loop is not None:
            self.loop.restore(run, checkpoint, preview)  # also restores the extensions that have loop hooks
        elif isinstance(checkpoint.value, dict):
            restore_extensions(checkpoint.value.pop(EXTENSION_STATES, {}), extensions)
        return checkpoint, preview

    def restore_rng(self) -> None:
        """Set the random number generators to their state in the loaded checkpoint."""
        from trainmaster.loop.rng import rng_of, set_rng

        if self._rng is not None:
            set_rng(rng_of(self._rng))


def _no_checkpoint(run: Run, which: str | int, loop: LoopRunner | None) -> UnknownRunError:
    fact = f"run {run.key} has no {'' if which == 'last' else f'{which} '}checkpoint"
    if which != "best" or not run.has_saved() or "best" in (run.status() or {}):
        return UnknownRunError(fact, hint="`process` trains it")
    if loop is not None and loop.monitor is not None:
        return UnknownRunError(
            fact,
            why=f"no checkpoint of this run was saved with a finite value of the monitored metric `{loop.monitor}`",
            hint='"last" selects its last checkpoint; `process(config, resume=False)` trains it again',
        )
    recorded = [name for name in run.preview() or {} if not name.startswith("train/")]
    name = recorded[0] if recorded else "valid/loss"
    mode, other = better_of(name) or "max", "" if better_of(name) else '\nwrite "min" instead of "max" if lower is better'
    if loop is None:
        why = "no metric was monitored when it was trained"
        hint = f'`monitor = "{name}"` and `mode = "{mode}"` in the body of the manager class; then train the run again: `resume=False`'
    else:
        why = "no metric was monitored: the default is the loss of the first evaluation set, which this run did not record"
        hint = f'RunConfig(optim_metrics={{"{name}": "{mode}"}}, optim_metric_name="{name}", ...)\n'
        hint += f'or, in a loop of your own, CheckpointSaver(monitor="{name}", mode="{mode}")'
    return UnknownRunError(fact, why=why, known=", ".join(recorded), hint=f"{hint}{other}")


def _best_in(status: Mapping[str, Any]) -> Best | None:
    """Return the best checkpoint that a manager without a loop has recorded in a status, or None if there is none."""
    with contextlib.suppress(KeyError, TypeError):  # there is none, or it was written by another version
        best = status["best"]
        name = CheckpointName.parse(best["attempt"], best["checkpoint"])
        return None if name is None else Best(best["metric"], best["value"], best["epoch"], name, best["mode"])
    return None


class InitialStates:
    """Keeps the states that extensions had before their first run, so that every run begins with these states."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[object, Any]] = {}

    def restore(self, extension: object) -> None:
        from trainmaster.loop.state import is_stateful, own_copy

        if is_stateful(extension):
            _, state = self._states.setdefault(id(extension), (extension, own_copy(extension.state_dict())))
            extension.load_state_dict(own_copy(state))
