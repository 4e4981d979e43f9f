"""Checks the first loss of a model, and whether the model can memorize one small batch."""

from __future__ import annotations

import math
import time
from typing import Any, Final, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from trainmaster.extensions.example_batch import count_examples, take_examples
from trainmaster.extensions.nan_guard import first_non_finite_module, is_finite
from trainmaster.extensions.sanity.loop_probe import LoopProbe
from trainmaster.extensions.sanity.report import Finding, failed, join_names, passed, skipped
from trainmaster.loop.batches import tensors_in
from trainmaster.text import counted

_MAX_CONSTANT_SIZE: Final = 100_000
"""The best constant is computed only if the prediction of one sample has at most this many elements."""
_ABOVE_CHANCE: Final = 1.5
"""A cross entropy is reported if it is more than this many times the loss of random guessing, ln(number of classes).

With the usual initializations, it is at most 1.1 times that loss.
"""
_BELOW_CHANCE: Final = 0.5
_ABOVE_CONSTANT: Final = 10.0
"""Any other loss is reported if it is more than this many times the loss of the best constant prediction.

With a squared error and predictions of 0, the limit is reached if the mean of the targets is three standard deviations away from 0.
"""

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


class Baseline(NamedTuple):
    constant: float
    """The loss of the best constant prediction."""
    num_classes: int | None
    """The number of classes if the loss is a cross entropy, otherwise None."""


def compute_baseline(probe: LoopProbe, batch: Any, prediction: Any, loss: float) -> Baseline | None:
    """Return the lowest loss that a constant prediction can reach on a batch, or None if this loss cannot be computed."""
    if not isinstance(prediction, torch.Tensor) or not prediction.is_floating_point() or not prediction.ndim:
        return None
    if prediction.shape[0] != count_examples(batch):
        return None
    prediction = prediction.detach()
    entropy = _entropy_baseline(batch, prediction, loss)
    if entropy is not None:
        return entropy
    for is_probability in (False, True):
        constant = _best_constant_loss(probe, batch, prediction, is_probability)
        # For values that a model never predicts, a loss based on log probabilities or on a variance may have no lower bound.
        if constant is not None and math.isfinite(constant) and constant >= 0:
            return Baseline(constant, None)
    return None


def _entropy_baseline(batch: Any, prediction: torch.Tensor, loss: float) -> Baseline | None:
    """Return the baseline if the loss is the cross entropy between the prediction and an integer tensor in the batch, otherwise None."""
    for labels in tensors_in(batch):
        if labels.dtype != torch.int64 or prediction.ndim < 2:
            continue
        arrangements = []  # the classes are in the second or in the last dimension
        if labels.shape == prediction.shape[:1] + prediction.shape[2:]:
            arrangements.append((prediction, labels))
        if prediction.ndim > 2 and labels.shape == prediction.shape[:-1]:
            arrangements.append((prediction.flatten(0, -2), labels.flatten()))
        for scores, targets in arrangements:
            classes = targets[targets >= 0]
            if not classes.numel() or int(classes.max()) >= scores.shape[1]:
                continue
            if math.isclose(float(cross_entropy(scores.float(), targets)), loss, rel_tol=1e-3, abs_tol=1e-6):
                shares = torch.bincount(classes, minlength=scores.shape[1]).double() / classes.numel()
                return Baseline(float(torch.special.entr(shares).sum()), scores.shape[1])
    return None


def _best_constant_loss(probe: LoopProbe, batch: Any, prediction: torch.Tensor, is_probability: bool) -> float | None:
    """Use L-BFGS to find the lowest loss of a constant prediction. Returns None if the loss does not accept constant predictions."""
    if prediction[0].numel() > _MAX_CONSTANT_SIZE or (is_probability and not bool(((prediction >= 0) & (prediction <= 1)).all())):
        return None
    constant = (torch.zeros_like(prediction[0]) if is_probability else prediction.mean(0)).requires_grad_()
    optimizer = torch.optim.LBFGS([constant], max_iter=60, line_search_fn="strong_wolfe")
    losses: list[float] = []

    def closure() -> torch.Tensor:
        constant.grad = None
        value = constant.sigmoid() if is_probability else constant
        loss: torch.Tensor = probe.loop.train_loss_forward(batch, value.expand_as(prediction).clone())
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        return loss

    try:
        with torch.enable_grad():
            optimizer.step(closure)  # type: ignore[no-untyped-call]
    except Exception:  # losses raise all kinds of errors for values that the model never predicts
        return None
    return min(losses, default=None)


def check_initial_loss(probe: LoopProbe) -> Finding:
    """Check that the loss of the untrained model is close to the loss of random guessing."""
    if probe.loop.step_num or probe.loop.epoch_num:
        return skipped("the model is already trained")
    batch = probe.batches[0]
    with probe.train_mode(), torch.no_grad():
        prediction, value = probe.compute_loss(batch)
    loss = float(value)
    if not math.isfinite(loss):
        return failed(f"the first loss is {loss}", "use NaNGuard() to find the module that causes it")
    baseline = compute_baseline(probe, batch, prediction, loss)
    if baseline is None:
        return skipped(f"the first loss is {loss:.3g}; the check does not know the chance level of this loss")
    if baseline.num_classes is None:
        return _compare_with_constant(probe, batch, prediction, loss, baseline.constant)
    chance = math.log(baseline.num_classes)
    details = f"the first loss is {loss:.3g}; chance is ln({baseline.num_classes}) = {chance:.3g}"
    if loss > _ABOVE_CHANCE * chance:
        return failed(
            details, "the untrained model is confident in wrong answers: normalize the inputs, or use smaller weights in the last layer"
        )
    if loss < _BELOW_CHANCE * min(chance, baseline.constant):
        return failed(
            details,
            "an untrained model cannot know this: look for labels in the inputs; leave this check out if the weights are pretrained",
        )
    return passed(details)


def _compare_with_constant(probe: LoopProbe, batch: Any, prediction: torch.Tensor, loss: float, constant: float) -> Finding:
    details = f"the first loss is {loss:.3g}; the best constant prediction has {constant:.3g}"
    if constant < 1e-9:
        return skipped(f"{details}: all targets of the first batch are equal")
    if loss > _ABOVE_CONSTANT * constant:
        zeros = _loss_of_zeros(probe, batch, prediction)
        if zeros is not None and zeros <= _ABOVE_CONSTANT * constant:
            return failed(
                f"{details}, and a prediction of 0 has {zeros:.3g}; the largest output is {float(prediction.abs().max()):.3g}",
                "the outputs of the untrained model are too large: normalize the inputs, use smaller initial weights, or add a norm layer",
            )
        return failed(
            details, "the first steps only learn the scale of the targets: normalize them, or initialize the last bias to their mean"
        )
    return passed(details)


def _loss_of_zeros(probe: LoopProbe, batch: Any, prediction: torch.Tensor) -> float | None:
    """Return the loss of a prediction of 0, or None if the loss does not accept it."""
    try:
        with torch.no_grad():
            return float(probe.loop.train_loss_forward(batch, torch.zeros_like(prediction)))
    except Exception:  # losses raise all kinds of errors for values that the model never predicts
        return None


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
    if breaks[0] is not None:  # only the loop's own rate matters: higher rates may diverge in a correct model
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
    is a message that says when and where the loss became NaN or inf, or None if the loss stayed finite.
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
    """Return the last part of a message, about where NaN or inf first occurs in a forward pass."""
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
