"""Is this training sound, before hours go into it? Several checks in one call, and a table of what they found."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from trainmaster.errors import SanityCheckError, SettingError, did_you_mean
from trainmaster.extensions.leakage import check_allow
from trainmaster.extensions.sanity.data import check_data, check_overlap
from trainmaster.extensions.sanity.loss import check_initial_loss
from trainmaster.extensions.sanity.model import check_determinism, check_leakage, check_parameters
from trainmaster.extensions.sanity.report import Finding, SanityReport, SanityResult, failed, not_applicable
from trainmaster.extensions.sanity.scene import Labels, Scene, is_lazy_model, undisturbed
from trainmaster.extensions.sanity.training import check_overfit, check_shuffled_labels
from trainmaster.loop import TrainManager
from trainmaster.stages import Observer

CHECKS: Final[Mapping[str, Callable[[Scene], Finding]]] = {
    "data": check_data,
    "overlap": check_overlap,
    "leakage": check_leakage,
    "parameters": check_parameters,
    "determinism": check_determinism,
    "initial_loss": check_initial_loss,
    "overfit": check_overfit,
    "shuffled_labels": check_shuffled_labels,
}
"""Every check by its name, in the order in which they run."""


def sanity_check(
    loop: TrainManager,
    checks: Iterable[str] | None = None,
    *,
    labels: Labels = None,
    allow: Iterable[Any] = (),
    on_check: Callable[[str], None] | None = None,
) -> SanityReport:
    """Try a training out, and leave it as it was: weights, optimizer, random numbers, data and files.

    Nothing of the loop's stages runs, so extensions do nothing meanwhile. Each check takes seconds at most. Only the optimizer and the
    schedule are made now rather than by `train()`.

    Args:
        checks: names of `CHECKS`; by default all.
        labels: where the labels are in a batch: a number or a name. By default the second of two.
        allow: what may mix samples: classes of modules, dotted names of modules, "loss". Batch norm may.
        on_check: called with the name of each check before it runs.
    """
    names, allow = check_names(checks), check_allow(allow)
    check_where(labels)
    if not isinstance(loop, TrainManager):
        raise SettingError(
            f"a sanity check is of a TrainManager, not {type(loop).__name__}", hint="in a TrainTestLoop, components do the forward pass"
        )
    if is_lazy_model(loop):
        reason = not_applicable("the model has lazy parameters, which the first forward pass makes", "give the model a batch first")
        return SanityReport(tuple(SanityResult(name, *reason) for name in names))
    results = []
    with undisturbed(loop):
        scene = Scene.of(loop, labels, allow)
        for name in names:
            if on_check is not None:
                on_check(name)
            results.append(SanityResult(name, *_found(scene, CHECKS[name])))
    return SanityReport(tuple(results))


def _found(scene: Scene, check: Callable[[Scene], Finding]) -> Finding:
    if scene.why_not is not None:
        return not_applicable(scene.why_not, "give an iterable that starts anew each epoch: a list, a DataLoader")
    with scene.trial():
        try:
            return check(scene)
        except Exception as error:  # whatever the model, the loss or the data raise: it is what was found, and others have to run
            return failed(f"{type(error).__name__}: {str(error).strip() or 'no message'}{_place(error)}", "see to this error first")


_OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH: Final = f"{os.sep}torch{os.sep}"


def _place(error: Exception) -> str:
    """The last line of the user's own code that an error went through."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith((_OURS, "<"))]
    frame = next((each for each in reversed(frames) if _TORCH not in each.filename), None)
    if frame is None:
        return ""
    inside = os.path.relpath(frame.filename)
    return f"\n{frame.filename if inside.startswith('..') else inside}:{frame.lineno}, in {frame.name}: {frame.line}"


def check_names(checks: Iterable[str] | None) -> tuple[str, ...]:
    """The names of the checks to do, in their order; refused where there is no such check."""
    if checks is None:
        return tuple(CHECKS)
    given = [checks] if isinstance(checks, str) else list(checks)
    for name in given:
        if name not in CHECKS:
            raise SettingError(f"there is no check {name!r}", known=", ".join(CHECKS), hint=did_you_mean(str(name), CHECKS) or None)
    if not given:
        raise SettingError("no check is named", known=", ".join(CHECKS), hint="checks=None does all of them")
    return tuple(name for name in CHECKS if name in given)


def check_where(labels: Labels) -> None:
    if isinstance(labels, bool) or not isinstance(labels, int | str | None):
        raise SettingError(f"labels={labels!r}: wanted the number or the name of a part of the batch", hint="labels=1, labels='y'")


class SanityCheck(Observer):
    """Does all of `sanity_check` once, before the first batch of a new training; `report` keeps the table (E42).

    What failed is warned about, or raised as a `SanityCheckError`. A training that is resumed is not checked again.

    Args:
        on_failure: "warn" and train on, or "raise".
        checks: names of checks; by default all.
        labels: where the labels are in a batch: a number or a name. By default the second of two.
        allow: what may mix samples: classes of modules, dotted names of modules, "loss". Batch norm may.
    """

    def __init__(
        self,
        on_failure: str = "warn",
        checks: Iterable[str] | None = None,
        *,
        labels: Labels = None,
        allow: Iterable[Any] = (),
    ) -> None:
        if on_failure not in ("warn", "raise"):
            raise SettingError(
                f"SanityCheck warns of a failure or raises it, not {on_failure!r}", hint='on_failure="warn" or on_failure="raise"'
            )
        check_where(labels)
        self.on_failure = on_failure
        self.checks = check_names(checks)
        self.labels = labels
        self.allow = check_allow(allow)
        self.report: SanityReport | None = None
        self._is_done = False

    def pre_train(self, loop: Any) -> None:
        is_new = not isinstance(loop, TrainManager) or (loop.step_num == 0 and loop.epoch_num == 0 and loop.moment.batch == 0)
        if self._is_done or not is_new:
            return
        self._is_done = True
        self.report = report = sanity_check(loop, self.checks, labels=self.labels, allow=self.allow)
        if report.is_ok:
            return
        if self.on_failure == "raise":
            raise SanityCheckError(
                f"the training failed its sanity check: {', '.join(each.name for each in report.failures)}",
                found=str(report),
                hint="mend what failed, leave a check out with checks=..., or train on with on_failure='warn'",
            )
        warnings.warn(str(SanityReport(report.failures)), stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        return {"is_done": self._is_done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._is_done = state["is_done"]
