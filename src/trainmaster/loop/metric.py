"""Numbers by which a training is judged: the loss of an evaluation set, or whatever else was recorded, by its name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Metric(NamedTuple):
    """A number, under the name it is recorded by."""

    name: str
    value: float

    @property
    def is_greater_better(self) -> bool:
        return is_greater_better(self.name)


_LESS: Final = ("loss", "err", "mse", "mae", "mape", "nll", "perplexity", "ppl", "divergence", "distance")
_GREATER: Final = ("acc", "return", "reward", "f1", "auc", "auroc", "precision", "recall", "bleu", "rouge", "psnr", "ssim")
_GREATER_WORDS: Final = {"map", "iou", "miou", "dice", "r2"}


def better_of(name: str) -> str | None:
    """What is better of the number of this name, "min" or "max"; None where the name does not tell.

    >>> [better_of(name) for name in ("losses/valid/loss", "metrics/valid/multiclass_accuracy", "accuracy/valid/avg", "metrics/valid/gap")]
    ['min', 'max', 'max', None]
    """
    words = name.lower().replace("/", "_").split("_")
    if any(each in name.lower().rpartition("/")[2] for each in _LESS):
        return "min"
    return "max" if any(word.startswith(_GREATER) or word in _GREATER_WORDS for word in words) else None


def is_greater_better(name: str) -> bool:
    """Whether the greatest is the best; where the name does not tell, it is the least."""
    return better_of(name) == "max"


def is_recorded_name(name: str) -> bool:
    """Whether it names a recorded number, such as `metrics/valid/accuracy`, and not an evaluation set."""
    return "/" in name


def find_metric(name: str | None, eval_losses: Mapping[str, float], writer: Any) -> Metric | None:
    """The number of this name at the end of an evaluation, None if nobody has recorded it.

    The name is that of an evaluation set, for its loss, or of a recorded number; without one it is the loss of the first set.
    """
    if name is None:
        name = next(iter(eval_losses), None)
    if name is None:
        return None
    if name in eval_losses:
        return Metric(f"losses/{name}/loss", eval_losses[name])
    last = getattr(writer, "last", None)
    value = last(name) if callable(last) else None
    return Metric(name, float(value)) if isinstance(value, int | float) else None


def takes_metric(schedule: Any) -> bool:
    """Whether a schedule's `step` wants a number, as that of ReduceLROnPlateau does; others would take it for the number of an epoch."""
    parameters = inspect.signature(schedule.step).parameters.values()
    return any(each.name == "metrics" or (each.default is each.empty and each.kind is not each.VAR_KEYWORD) for each in parameters)
