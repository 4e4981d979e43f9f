"""The overfit check: a model that can learn at all can memorize one small batch."""

from __future__ import annotations

import math
import time
from typing import Any, Final

import torch

from trainmaster.extensions.example_batch import count_examples, take_examples
from trainmaster.extensions.nan_guard import first_non_finite_module, is_finite
from trainmaster.extensions.sanity.loop_probe import LoopProbe
from trainmaster.extensions.sanity.loss import compute_baseline
from trainmaster.extensions.sanity.report import Finding, failed, join_names, passed, skipped
from trainmaster.text import counted

_NUM_SAMPLES: Final = 16
_NUM_STEPS: Final = 200
_MAX_TIME: Final = 20.0
"""The time limit in seconds, for all learning rates together."""
_LR_FACTORS: Final = (1.0, 10.0, 100.0)
"""The factors by which the learning rate is multiplied. A rate that is right for a long training run may be too small for 200 steps."""
_EASY: Final = 0.1
"""Training stops once the loss is below this fraction of both the first loss and the best constant prediction's loss."""
_NON_FINITE_ADVICE: Final = (
    "look there for log(0), sqrt(0), exp of large numbers or a division by 0, or lower the learning rate; NaNGuard() finds it in training"
)
_LEARNED: Final = 0.5
"""The batch is learned if the loss is below this fraction of both the first loss and the best constant prediction's loss."""


def check_overfit(probe: LoopProbe) -> Finding:
    """Check that the model can memorize one small batch."""
    if probe.optimizer_problem is not None:
        return skipped(probe.optimizer_problem)
    batch = _small_batch(probe)
    size = f"{count_examples(batch) or 1} samples"
    with probe.train_mode(has_dropout=False), torch.no_grad():
        prediction, loss = probe.compute_loss(batch)
        start = float(loss)
        if not math.isfinite(start):
            cause = _describe_non_finite(probe, batch)
            return failed(f"the loss of {size} is {start} before the first step{cause}", _NON_FINITE_ADVICE)
        baseline = compute_baseline(probe, batch, prediction, start)
    constant = None if baseline is None else baseline.constant
    if abs(start) < 1e-9:
        return skipped(f"the loss of {size} is {start:.3g} before the first step")
    deadline, best = time.monotonic() + _MAX_TIME, (start, 0, 1.0)
    breaks: list[str | None] = []
    for factor in _LR_FACTORS:
        lowest, where = _train(probe, batch, factor, deadline, start, constant)
        best, breaks = min(best, lowest), [*breaks, where]
        if _is_learned(start, best[0], constant) or time.monotonic() >= deadline:
            break
    end, num_steps, factor = best
    lr = "" if factor == 1.0 else f" at {factor:g} times the learning rate"
    details = f"{size}: the loss went from {start:.3g} to {end:.3g} in {num_steps} steps{lr}"
    if _is_learned(start, end, constant):
        return passed(details)
    if time.monotonic() >= deadline:  # the machine may be slow or busy
        return skipped(f"{details}; {_MAX_TIME:g} seconds were not enough")
    if breaks[0] is not None:  # at a higher rate than that of the loop, a loss may well diverge
        return failed(f"{size}: the loss was {start:.3g} and became {breaks[0]}", _NON_FINITE_ADVICE)
    comparison = "" if constant is None else f"; the best constant prediction has a loss of {constant:.3g}"
    return failed(
        f"{details}{comparison}",
        "the model cannot learn: check the labels, the sign and scale of the loss, and the forward pass for .detach()",
    )


def _train(
    probe: LoopProbe, batch: Any, lr_factor: float, deadline: float, start: float, constant: float | None
) -> tuple[tuple[float, int, float], str | None]:
    """Train on the batch, and return two values.

    The first is a tuple of the lowest loss, the number of steps to reach it, and the learning rate factor. The second
    is a text that says when and where the loss became NaN or inf, or None if it stayed finite.
    """
    probe.restore()
    optimizer, best = probe.copy_optimizer(lr_factor), (start, 0, lr_factor)
    with probe.train_mode(has_dropout=False):
        for num_steps in range(_NUM_STEPS + 1):
            optimizer.zero_grad()
            probe.loop.model.zero_grad()
            _, loss = probe.compute_loss(batch)
            value = float(loss.detach())
            if not math.isfinite(value):
                return best, f"{value} after {counted(num_steps, 'step')}{_describe_non_finite(probe, batch)}"
            best = min(best, (value, num_steps, lr_factor))
            if value < start - (1 - _EASY) * abs(start) and (constant is None or value < _EASY * constant):
                break
            probe.loop.backward(loss)
            optimizer.step()
            if time.monotonic() >= deadline:
                break
    return best, None


def _describe_non_finite(probe: LoopProbe, batch: Any) -> str:
    """Return text for the end of a message. It says where NaN or inf first occurs in a forward pass."""
    model = probe.loop.model
    broken = [name for name, each in model.named_parameters() if not is_finite(each.detach())]
    if broken:
        return f": weights that are not finite: {join_names(broken)}"
    with torch.no_grad():
        module = first_non_finite_module(model, lambda: probe.compute_loss(batch))
    return f": {module or 'all outputs of modules are finite, so the loss function is the cause'}"


def _is_learned(start: float, end: float, constant: float | None) -> bool:
    """Return whether the loss has clearly fallen, and is below the loss of a model that ignores its inputs."""
    has_fallen = end < start - _LEARNED * abs(start)
    if constant is None or constant < 1e-9:
        return has_fallen
    return end < _LEARNED * constant and (has_fallen or end < _EASY * constant)


def _small_batch(probe: LoopProbe) -> Any:
    """Return a few samples from the first batch, or the whole batch if the model accepts no other size."""
    batch = probe.batches[0]
    num = count_examples(batch)
    if num is None or num <= _NUM_SAMPLES:
        return batch
    small = take_examples(batch, num, _NUM_SAMPLES)
    try:
        with probe.train_mode(), torch.no_grad():
            probe.compute_loss(small)
    except Exception:  # models raise all kinds of errors for a different size; any other error is raised again for the whole batch
        return batch
    finally:
        probe.restore()
    return small
