"""Checks that train a little: one batch must be learned by heart, and shuffled labels must not be learned at all."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any, Final, NamedTuple

import torch

from trainmaster.extensions.example_batch import count_examples, rebuilt
from trainmaster.extensions.sanity.loss import baseline_of
from trainmaster.extensions.sanity.report import Finding, counted, failed, not_applicable, number, passed
from trainmaster.extensions.sanity.scene import Scene, few_of
from trainmaster.loop.batches import tensors_in
from trainmaster.loop.guard import mode

_OVERFIT_SIZE: Final = 16
_OVERFIT_STEPS: Final = 200
_OVERFIT_TIME: Final = 20.0
"""Seconds, for all rates together."""
_RATES: Final = (1.0, 10.0, 100.0)
"""Times the loop's own: a rate that is right for a long training may be slow for 200 steps."""
_ENOUGH: Final = 0.1
"""Of the first loss: no need to go further down."""
_CLEARLY: Final = 0.5

_SHUFFLED_STEPS: Final = 100
_SHUFFLED_TIME: Final = 5.0
"""Seconds, for each training: with true labels and with shuffled ones, at each rate."""
_SHUFFLED_RATES: Final = (1.0, 10.0)
_BETTER: Final = 0.9
"""Of the loss of a constant: what lies below was not had by chance."""
_NUM_DEALS: Final = 4
_MIN_SAMPLES: Final = 16
_MANY_SAMPLES: Final = 256
_MIN_MEMBERS: Final = 10
"""To tell chance from knowledge: samples, how many are enough, and samples of a class."""


def check_overfit(scene: Scene) -> Finding:
    """Can the model learn one small batch by heart?"""
    if scene.why_no_optimizer is not None:
        return not_applicable(scene.why_no_optimizer)
    batch = _small(scene)
    size = counted(count_examples(batch) or 1, "sample")
    with scene.training(has_dropout=False), torch.no_grad():
        prediction, loss = scene.loss_of(batch)
        start = float(loss)
        if not math.isfinite(start):
            return failed(f"the loss of {size} is {start} before any step", "NonFinite() finds the module that it comes from")
        baseline = baseline_of(scene, batch, prediction, start)
    constant = None if baseline is None else baseline.constant
    if abs(start) < 1e-9:
        return not_applicable(f"the loss of {size} is {number(start)} before any step")
    until, best = time.monotonic() + _OVERFIT_TIME, (start, 0, 1.0)
    for factor in _RATES:
        scene.renew()
        steps = scene.train_on(itertools.repeat(batch, _OVERFIT_STEPS + 1), until, factor, has_dropout=False)
        for num, value in enumerate(steps):
            if not math.isfinite(value):
                break
            best = min(best, (value, num, factor))
            if value < start - (1 - _ENOUGH) * abs(start) and (constant is None or value < _ENOUGH * constant):
                break
        if _is_learned(start, best[0], constant) or time.monotonic() >= until:
            break
    end, num, factor = best
    rate = "" if factor == 1.0 else f", at {factor:g} times the learning rate"
    found = f"{size} for {counted(num, 'step')}{rate}: the loss went from {number(start)} to {number(end)}"
    if _is_learned(start, end, constant):
        return passed(found)
    if time.monotonic() >= until:  # a slow or busy machine is no fault of the model
        return not_applicable(f"{found}; {_OVERFIT_TIME:g} s were not enough to tell")
    known = "" if constant is None else f"; a constant prediction has {number(constant)}"
    return failed(
        f"{found}{known}",
        "the model cannot learn what it sees: look at the labels, for .detach() in the forward pass, at the sign and the scale of the loss",
    )


def _is_learned(start: float, end: float, constant: float | None) -> bool:
    """Whether the loss fell clearly, and further than without looking at the inputs."""
    has_fallen = end < start - _CLEARLY * abs(start)
    if constant is None or constant < 1e-9:
        return has_fallen
    return end < _CLEARLY * constant and (has_fallen or end < _ENOUGH * constant)


def _small(scene: Scene) -> Any:
    """A few samples of the first batch; the whole batch where the model insists on its size."""
    batch = scene.batches[0]
    small = few_of(batch, _OVERFIT_SIZE)
    try:
        with scene.training(), torch.no_grad():
            scene.loss_of(small)
    except Exception:  # whatever a model says to another size; the whole batch will tell if it is not about the size
        return batch
    finally:
        scene.renew()
    return small


class _Trained(NamedTuple):
    loss: float
    """Of data that was not trained on."""
    num_steps: int


def check_shuffled_labels(scene: Scene) -> Finding:
    """Can labels be predicted that were dealt out at random? Only a model that sees them can."""
    if scene.why_no_optimizer is not None:
        return not_applicable(scene.why_no_optimizer)
    batches, others = _parted(scene)
    labels = [scene.labels_of(batch) for batch in (*batches, *others)]
    if any(each is None for each in labels):
        return not_applicable(
            "the batch does not tell what its labels are", 'say it: labels=1 or labels="name"; --labels on the command line'
        )
    column = _label_column(scene, (*batches, *others))
    if column is not None:
        return failed(f"{column} is the label itself", "leave it out of the inputs")
    if not others:
        return not_applicable("there are no samples that are not trained on", "give eval_data, or more than one batch")
    num = sum(len(each) for each in labels[len(batches) :] if each is not None)
    if num < _MIN_SAMPLES or all(map(_is_constant, labels)):
        return not_applicable(f"the labels of {counted(num, 'sample')} are too few or too much alike to shuffle")
    uses = _uses_of_labels(scene, next(each for each in (*others, *batches) if not _is_constant(scene.labels_of(each))))
    if not uses.is_in_loss:
        return not_applicable(f"the loss does not use {scene.label_name}", "say what the labels are: labels=...")
    if uses.is_in_model and any(each is not None and not each.is_floating_point() and each.ndim > 1 for each in labels):
        return not_applicable(f"the model reads {scene.label_name}, sequences of labels, as it may to predict what follows")
    constant = _constant(scene, others)
    if constant is None:
        return not_applicable("the loss of a constant prediction cannot be had, so there is nothing to compare with")
    dealt = [_shuffled(scene, each, seed) for seed, each in enumerate(batches)]
    drawn = _dealt(scene, others, _NUM_DEALS if uses.is_in_model else 1)
    until = time.monotonic() + 2 * _SHUFFLED_TIME
    for factor in _SHUFFLED_RATES:
        scene.renew()
        shuffled = _trained(scene, dealt, drawn, factor)
        scene.renew()
        true = _trained(scene, batches, others, factor)
        has_leaked = uses.is_in_model and shuffled.loss < _BETTER * constant
        has_learned = true.loss < _BETTER * min(constant, shuffled.loss)
        if has_leaked or has_learned or time.monotonic() >= until:
            break
    rate = "" if factor == 1.0 else f" at {factor:g} times the learning rate"
    found = (
        f"loss of new samples after {counted(true.num_steps, 'step')}{rate}: {number(true.loss)} with the true labels, "
        f"{number(shuffled.loss)} with shuffled ones, {number(constant)} for a constant"
    )
    if has_leaked:
        return failed(
            f"{found}\nlabels that were dealt out at random are predicted: the forward pass reads {scene.label_name}",
            "keep the labels out of what the model sees",
        )
    return passed(found) if has_learned else not_applicable(f"{found}: in so few steps the true labels taught nothing either")


def _parted(scene: Scene) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What is trained on, and what is not."""
    half = (len(scene.batches) + 1) // 2
    batches, others = (scene.batches, scene.eval_batches) if scene.eval_batches else (scene.batches[:half], scene.batches[half:])
    sizes = itertools.accumulate(count_examples(each) or 1 for each in others)
    num_enough = next((num for num, size in enumerate(sizes, 1) if size >= _MANY_SAMPLES), len(others))
    return batches, others[:num_enough]


def _trained(scene: Scene, batches: Any, others: Any, factor: float) -> _Trained:
    """Train for a moment on some batches; the loss of the others."""
    steps = scene.train_on(itertools.islice(itertools.cycle(batches), _SHUFFLED_STEPS), time.monotonic() + _SHUFFLED_TIME, factor)
    num_steps = sum(1 for _ in steps)
    total = num = 0.0
    with mode(scene.loop.model, is_training=False):
        for batch in others:
            size = count_examples(batch) or 1
            total += float(scene.eval_loss_of(batch)[1]) * size
            num += size
    return _Trained(total / num if math.isfinite(total) else math.inf, num_steps)


def _constant(scene: Scene, batches: Any) -> float | None:
    """The loss of the best constant for each batch: a little less than one constant for all would have."""
    total = num = 0.0
    with mode(scene.loop.model, is_training=False):
        for batch in batches:
            prediction, loss = scene.eval_loss_of(batch)
            baseline = baseline_of(scene, batch, prediction, float(loss))
            if baseline is None:
                return None
            size = count_examples(batch) or 1
            total += baseline.constant * size
            num += size
    return total / num


def _shuffled(scene: Scene, batch: Any, seed: int) -> Any:
    """The batch with its labels dealt out anew."""
    labels = scene.labels_of(batch)
    assert labels is not None
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return scene.with_labels(batch, labels[order.to(labels.device)])


def _dealt(scene: Scene, batches: tuple[Any, ...], num_deals: int) -> list[Any]:
    """All batches with other labels, several times: one deal may be lucky."""
    return [_shuffled(scene, each, 1000 + seed) for seed, each in enumerate(batches * num_deals)]


class _Uses(NamedTuple):
    is_in_model: bool
    is_in_loss: bool


def _uses_of_labels(scene: Scene, batch: Any) -> _Uses:
    """Who reads the labels, seen by giving others."""
    labels = scene.labels_of(batch)
    assert labels is not None
    other = scene.with_labels(batch, labels.roll(1, 0))
    with mode(scene.loop.model, is_training=False):
        prediction = scene.eval_loss_of(batch)[0]
        is_in_model = not _same(tensors_in(prediction), tensors_in(scene.eval_loss_of(other)[0]))
        return _Uses(is_in_model, not _same(_loss_grads(scene, batch, prediction), _loss_grads(scene, other, prediction)))


def _loss_grads(scene: Scene, batch: Any, prediction: Any) -> list[torch.Tensor]:
    """The loss and its gradients in a prediction: equal losses alone say little, those of a model that begins with zeros are."""
    leaves: list[torch.Tensor] = []

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        leaves.append(tensor.detach().clone().requires_grad_())
        return leaves[-1]

    with torch.enable_grad():
        loss = scene.loop.eval_loss_forward(batch, rebuilt(prediction, None, leaf, leaf))
        grads = torch.autograd.grad(loss, leaves, allow_unused=True) if leaves and loss.requires_grad else ()
    return [loss.detach(), *(each for each in grads if each is not None)]


def _same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def _is_constant(labels: torch.Tensor | None) -> bool:
    return labels is None or bool((labels == labels[:1]).all())


def _label_column(scene: Scene, batches: tuple[Any, ...]) -> str | None:
    """The number of the inputs that is the label, or says which class it is; looked for where a sample has one label.

    Shuffling cannot show this: the numbers in the inputs do not move with the labels.
    """
    labels = [each for batch in batches if (each := scene.labels_of(batch)) is not None]
    if any(each[0].numel() != 1 for each in labels):
        return None
    wanted = torch.cat([each.reshape(-1) for each in labels]).double().cpu()
    classes, counts = torch.unique(wanted, return_counts=True)
    if len(wanted) - int(counts.max()) < _MIN_MEMBERS:
        return None
    leaves = [tensors_in(scene.without_labels(batch)) for batch in batches]
    for number_of_leaf, parts in enumerate(zip(*leaves, strict=False)):
        if any(each.ndim == 0 or each.shape[1:] != parts[0].shape[1:] for each in parts):
            continue
        columns = torch.cat([each.reshape(len(each), -1) for each in parts]).double().cpu()
        if len(columns) != len(wanted):
            continue
        is_label = (columns == wanted[:, None]).all(0)
        for each in classes[counts >= _MIN_MEMBERS][:100]:
            is_label |= (columns == (wanted == each).double()[:, None]).all(0)
        if bool(is_label.any()):
            return f"number {int(is_label.nonzero()[0])} of each sample in tensor {number_of_leaf} of the inputs"
    return None
