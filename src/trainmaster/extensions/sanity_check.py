"""Runs quick checks before a long training run, and reports the results in a table."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from torch.nn.parameter import is_lazy

from trainmaster.arguments import check_choice
from trainmaster.errors import SanityCheckError, SettingError, did_you_mean
from trainmaster.extensions.leakage_check import allow_of, check_allow
from trainmaster.extensions.sanity.data import check_data, check_overlap
from trainmaster.extensions.sanity.loop_probe import LoopProbe
from trainmaster.extensions.sanity.loss import check_initial_loss, check_overfit
from trainmaster.extensions.sanity.model import check_determinism, check_leakage, check_parameters
from trainmaster.extensions.sanity.report import Finding, SanityReport, SanityResult, failed, skipped
from trainmaster.loop import TrainManager
from trainmaster.loop.sharding import refuse_shards
from trainmaster.stages import Observer

CHECKS: Final[Mapping[str, Callable[[LoopProbe], Finding]]] = {
    "data": check_data,
    "overlap": check_overlap,
    "leakage": check_leakage,
    "parameters": check_parameters,
    "determinism": check_determinism,
    "initial_loss": check_initial_loss,
    "overfit": check_overfit,
}
"""All checks, in the order in which they run."""


def sanity_check(
    loop: TrainManager,
    checks: Iterable[str] | None = None,
    *,
    allow: Iterable[Any] = (),
    on_check: Callable[[str], None] | None = None,
) -> SanityReport:
    """Run quick checks on a loop, and restore its weights, optimizer, random state and data positions afterwards.

    The checks open no stages, so extensions do not run, and no files are written. Most checks take a few seconds;
    `overfit` takes up to 20 seconds. Two changes remain: the model has been moved to its device, and the optimizer and
    the schedule have been created.

    Args:
        checks: the names of the checks to run, from `CHECKS`. By default, all checks run.
        allow: the modules that may mix samples, as classes or dotted names. Batch norm is always allowed. "loss" allows
            the loss to mix samples, too. Modules that the loop's own `LeakageCheck` or `SanityCheck`
            allows may mix samples as well.
        on_check: a function that is called with the name of each check before it runs.
    """
    names, allow = validate_names(checks), check_allow(allow)
    if not isinstance(loop, TrainManager):
        raise SettingError(
            f"sanity_check needs a TrainManager, not a {type(loop).__name__}",
            hint="in a TrainTestLoop, the components run the forward pass, so there is nothing to check",
        )
    attached = list(loop.extensions.values())
    allow = (*allow, *allow_of(attached), *(item for each in attached if isinstance(each, SanityCheck) for item in each.allow))
    refuse_shards(loop.model, "the sanity check")
    if any(is_lazy(each) for each in (*loop.model.parameters(), *loop.model.buffers())):
        reason = skipped("the model has lazy parameters, which the first forward pass creates", "run the model on a batch first")
        return SanityReport(tuple(SanityResult(name, *reason) for name in names))
    results = []
    with LoopProbe.open(loop, allow) as probe:
        for name in names:
            if on_check is not None:
                on_check(name)
            results.append(SanityResult(name, *_run_check(probe, CHECKS[name])))
    return SanityReport(tuple(results))


def _run_check(probe: LoopProbe, check: Callable[[LoopProbe], Finding]) -> Finding:
    if not probe.batches:
        is_iterator = isinstance(probe.loop.train_data, Iterator)
        reason = "train_data is an iterator, which can be read only once" if is_iterator else "train_data has no batches"
        return skipped(reason, "use data that starts again each epoch: a list, a DataLoader")
    try:
        return check(probe)
    except Exception as error:  # an error in the model, the loss or the data is the result of this check; the other checks still run
        return failed(f"{type(error).__name__}: {str(error).strip() or 'no message'}{_location(error)}", "fix this error first")
    finally:
        probe.restore()


_OWN_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _location(error: Exception) -> str:
    """Return the location of the innermost line of the user's code in a traceback."""
    library = f"{os.sep}torch{os.sep}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith((_OWN_FOLDER, "<"))]
    frames = [each for each in frames if library not in each.filename]
    if not frames:
        return ""
    frame = frames[-1]
    relative = os.path.relpath(frame.filename)
    return f"\n{frame.filename if relative.startswith('..') else relative}:{frame.lineno}, in {frame.name}: {frame.line}"


def validate_names(checks: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of the requested checks, in the order in which they run. Raises an error for an unknown name."""
    if checks is None:
        return tuple(CHECKS)
    names = [checks] if isinstance(checks, str) else list(checks)
    for name in names:
        if name not in CHECKS:
            raise SettingError(f"there is no check {name!r}", known=", ".join(CHECKS), hint=did_you_mean(str(name), CHECKS) or None)
    if not names:
        raise SettingError("`checks` is empty", known=", ".join(CHECKS), hint="checks=None runs all of them")
    return tuple(name for name in CHECKS if name in names)


class SanityCheck(Observer):
    """Runs `sanity_check` once, before the first batch of a new training run. The attribute `report` contains the result.

    If a check fails, the extension warns or raises a `SanityCheckError`. The checks do not run when training resumes.

    Args:
        on_failure: "warn" to warn and train anyway, or "raise" to raise the error.
        checks: the names of the checks to run. By default, all checks run.
        allow: the modules that may mix samples, as classes or dotted names. Batch norm is always allowed. "loss" allows
            the loss to mix samples, too.
    """

    def __init__(self, on_failure: str = "warn", checks: Iterable[str] | None = None, *, allow: Iterable[Any] = ()) -> None:
        check_choice("on_failure", on_failure, ("warn", "raise"), hint='SanityCheck(on_failure="raise")')
        self.on_failure = on_failure
        self.checks = validate_names(checks)
        self.allow = check_allow(allow)
        self.report: SanityReport | None = None
        self._is_done = False

    def pre_train(self, loop: Any) -> None:
        is_new = not isinstance(loop, TrainManager) or (loop.step_num == 0 and loop.epoch_num == 0 and loop.moment.batch == 0)
        if self._is_done or not is_new:
            return
        self._is_done = True
        self.report = report = sanity_check(loop, self.checks, allow=self.allow)
        if report.is_ok:
            return
        if self.on_failure == "raise":
            raise SanityCheckError(
                f"the sanity check failed: {', '.join(each.name for each in report.failures)}",
                found=str(report),
                hint="fix what failed, leave a check out with checks=..., or train anyway with on_failure='warn'",
            )
        warnings.warn(str(SanityReport(report.failures)), stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        return {"is_done": self._is_done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._is_done = state["is_done"]
