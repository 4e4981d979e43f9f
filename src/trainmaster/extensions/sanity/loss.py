"""What a loss is worth: cross entropy against chance, and the best that a constant prediction can do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from trainmaster.extensions.example_batch import count_examples
from trainmaster.extensions.sanity.report import Finding, failed, not_applicable, number, passed
from trainmaster.extensions.sanity.scene import Scene
from trainmaster.loop.batches import tensors_in

_MAX_CONSTANT: Final = 100_000
"""Numbers for one sample above which no constant is searched."""
_ABOVE_CHANCE: Final = 1.5
"""Times chance. Usual initialisations are within a tenth of it."""
_BELOW_CHANCE: Final = 0.5
_ABOVE_CONSTANT: Final = 10.0
"""Times the loss of the best constant, for other losses: targets whose mean is three deviations from zero."""


class Baseline(NamedTuple):
    """What can be had without looking at the inputs."""

    constant: float
    """The loss of the best constant prediction."""
    num_classes: int | None
    """Of a cross entropy."""

    @property
    def chance(self) -> float:
        """The loss of a prediction that takes all classes for equally likely; else that of the constant."""
        return self.constant if self.num_classes is None else math.log(self.num_classes)


def baseline_of(scene: Scene, batch: Any, prediction: Any, loss: float) -> Baseline | None:
    """The baseline of a batch; None where the prediction is not one tensor, or the loss takes no constants."""
    if not isinstance(prediction, torch.Tensor) or not prediction.is_floating_point() or not prediction.ndim:
        return None
    if prediction.shape[0] != count_examples(batch):
        return None
    entropy = _entropy(batch, prediction.detach(), loss)
    if entropy is not None:
        return entropy
    for squash in (None, torch.sigmoid):  # a loss may take nothing but shares
        constant = _best_constant(scene, batch, prediction.detach(), squash)
        # A loss that wants log probabilities, or a variance, falls for ever with numbers that no model gives.
        if constant is not None and math.isfinite(constant) and constant >= 0:
            return Baseline(constant, None)
    return None


def _entropy(batch: Any, prediction: torch.Tensor, loss: float) -> Baseline | None:
    """The baseline of a cross entropy with some integers of the batch, if the loss is one."""
    for labels in tensors_in(batch):
        if labels.dtype != torch.int64 or prediction.ndim < 2:
            continue
        for scores, targets in _arranged(prediction, labels):
            targets_in = targets[targets >= 0]
            if not targets_in.numel() or int(targets_in.max()) >= scores.shape[1]:
                continue
            if math.isclose(float(cross_entropy(scores.float(), targets)), loss, rel_tol=1e-3, abs_tol=1e-6):
                shares = torch.bincount(targets_in, minlength=scores.shape[1]).double() / targets_in.numel()
                return Baseline(float(-(shares * shares.clamp_min(1e-300).log()).sum()), scores.shape[1])
    return None


def _arranged(prediction: torch.Tensor, labels: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Scores with classes in the second dimension, and labels; classes may be in the last dimension, too."""
    found = []
    if labels.shape == prediction.shape[:1] + prediction.shape[2:]:
        found.append((prediction, labels))
    if prediction.ndim > 2 and labels.shape == prediction.shape[:-1]:
        found.append((prediction.flatten(0, -2), labels.flatten()))
    return found


def _best_constant(
    scene: Scene, batch: Any, prediction: torch.Tensor, squash: Callable[[torch.Tensor], torch.Tensor] | None
) -> float | None:
    """The least loss of one prediction for all samples, found by gradients; None where the loss does not take such numbers."""
    if prediction[0].numel() > _MAX_CONSTANT or (squash is not None and not bool(((prediction >= 0) & (prediction <= 1)).all())):
        return None
    constant = (torch.zeros_like(prediction[0]) if squash is not None else prediction.mean(0)).requires_grad_()
    search = torch.optim.LBFGS([constant], max_iter=60, line_search_fn="strong_wolfe")
    losses: list[float] = []

    def closure() -> torch.Tensor:
        constant.grad = None
        value = constant if squash is None else squash(constant)
        loss: torch.Tensor = scene.loop.train_loss_forward(batch, value.expand_as(prediction).clone())
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        return loss

    try:
        with torch.enable_grad():
            search.step(closure)  # type: ignore[no-untyped-call]
    except Exception:  # whatever a loss does with numbers that are no prediction of the model: then there is no baseline
        return None
    return min(losses, default=None)


def check_initial_loss(scene: Scene) -> Finding:
    """Is the loss of an untrained model that of chance?"""
    if scene.loop.step_num or scene.loop.epoch_num:
        return not_applicable("the model is trained already")
    batch = scene.batches[0]
    with scene.training(), torch.no_grad():
        prediction, value = scene.loss_of(batch)
    loss = float(value)
    if not math.isfinite(loss):
        return failed(f"the first loss is {loss}", "NonFinite() finds the module that it comes from")
    baseline = baseline_of(scene, batch, prediction, loss)
    if baseline is None:
        return not_applicable(f"the first loss is {number(loss)}; what chance would give is not known for this loss")
    if baseline.num_classes is None:
        return _judge_constant(loss, baseline.constant)
    chance = f"chance is ln({baseline.num_classes}) = {number(baseline.chance)}"
    if loss > _ABOVE_CHANCE * baseline.chance:
        return failed(
            f"the first loss is {number(loss)}; {chance}",
            "the model is sure of wrong answers from the start: normalise the inputs, make the weights of the last layer smaller",
        )
    if loss < _BELOW_CHANCE * min(baseline.chance, baseline.constant):
        return failed(
            f"the first loss is {number(loss)}; {chance}",
            "an untrained model cannot know that: look for labels in the inputs; a model with trained weights may, leave this check out",
        )
    return passed(f"the first loss is {number(loss)}; {chance}")


def _judge_constant(loss: float, constant: float) -> Finding:
    found = f"the first loss is {number(loss)}; the best constant prediction has {number(constant)}"
    if constant < 1e-9:
        return not_applicable(f"{found}: the targets of the first batch are all the same")
    if loss > _ABOVE_CONSTANT * constant:
        return failed(found, "the first steps will only learn the scale: normalise the targets, or start the last bias at their mean")
    return passed(found)
