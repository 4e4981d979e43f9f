"""Metric names, such as `valid/loss`, and their short forms.

The part before the slash is the name of a data set. Metrics without a data set have names such as `lr` or `grad_norm/0.weight`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from trainmaster.errors import MetricNameError, ask_about, nearest
from trainmaster.text import printable

MAX_LENGTH = 200
"""The maximum length of a metric name."""
_LESS: Final = ("loss", "err", "mse", "mae", "mape", "nll", "perplexity", "ppl", "divergence", "distance")
_GREATER: Final = ("acc", "return", "reward", "f1", "auc", "auroc", "precision", "recall", "bleu", "rouge", "psnr", "ssim")
_GREATER_WORDS: Final = {"map", "iou", "miou", "dice", "r2"}
_COUNTS: Final = ("non_finite/",)
"""The prefixes of running counts such as `non_finite/losses`, which `NaNGuard` records. Such a count has no best value."""
_MAX_LISTED = 20
_MAX_SHOWN = 80
_MAX_BROKEN = 4


def resolve_metric(name: str, known: Iterable[str]) -> str:
    """Return the full name of the metric that `name` refers to. `name` may be a full name or the end of one.

    If several names match, metrics of evaluation sets have the highest precedence, then metrics without a data set, then
    training metrics. Raise `MetricNameError` if no name matches, or if several names have the highest precedence.

    >>> resolve_metric("loss", ["train/loss", "valid/loss", "lr"])
    'valid/loss'
    """
    names = {*known}
    matches = matching_metrics(name, names)
    if not matches:
        raise MetricNameError(
            f"there is no metric `{short_name(name)}`",
            known=listed(names) or "none",
            hint=suggest(name, names) or ("use one of these" if names else None),
        )
    if len(matches) > 1:
        raise MetricNameError(f"`{short_name(name)}` may refer to {len(matches)} metrics", known=listed(matches), hint="use the full name")
    return matches[0]


def matching_metrics(name: str, known: Iterable[str]) -> list[str]:
    """Return the metrics that `name` may refer to.

    This is the metric with this full name or, if there is none, all metrics whose names end with `name`. If there are several,
    only those with the highest precedence are returned: metrics of evaluation sets, then metrics without a data set, then
    training metrics.

    >>> matching_metrics("accuracy", ["train/accuracy", "test/accuracy", "valid/accuracy"])
    ['test/accuracy', 'valid/accuracy']
    """
    names = {*known}
    if name in names:
        return [name]
    endings = sorted(each for each in names if each.endswith(f"/{name}")) if name else []
    sets = {each.removesuffix("/loss") for each in names if each.endswith("/loss")}  # every data set has a loss
    trained = [each for each in endings if _is_of(each, {"train", *(one for one in sets if one.endswith("/train"))})]
    others = [each for each in endings if each not in trained]
    return [each for each in others if _is_of(each, sets)] or others or trained


def _is_of(name: str, sets: set[str]) -> bool:
    parts = name.split("/")
    return any("/".join(parts[:count]) in sets for count in range(1, len(parts)))


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a "did you mean ...?" question with the most similar names, or an empty string if no name is similar.

    `name` is compared with the full names and with their last parts, such as `loss` in `valid/loss`.

    >>> suggest("val_acc", ["train/accuracy", "valid/accuracy", "valid/loss"])
    'did you mean `valid/accuracy`?'
    """
    names = [each for each in known if len(each) <= MAX_LENGTH]
    found, wanted = {*names, *(each.rpartition("/")[2] for each in names)}, name[:MAX_LENGTH]
    return printable(ask_about(sorted(each for each in found if _have_same_words(wanted, each))[:3] or nearest(wanted, found)))


def refuse_misspelled(name: str, known: Iterable[str]) -> None:
    """Raise `MetricNameError` if `name` is not a known metric, but is an abbreviation or a misspelling of one.

    A name with a data set is compared with full names only, because `test/loss` is not a misspelling of `loss`. Names that
    are merely similar, such as `valid/mae` and `valid/mse`, are treated as different metrics.
    """
    names = {*known}
    if matching_metrics(name, names):
        return
    wanted = name[:MAX_LENGTH]
    candidates = names if "/" in name else {*names, *(each.rpartition("/")[2] for each in names)}
    meant = sorted(each for each in candidates if len(each) <= MAX_LENGTH and _have_same_words(wanted, each, _is_misspelled))
    if meant:
        raise MetricNameError(
            f"no run in the store has the metric `{short_name(name)}`",
            known=listed(names),
            hint=f"{printable(ask_about(meant[:3]))} If the metric is new, first train a run that records it",
        )


def _have_same_words(name: str, other: str, is_alike: Callable[[str, str], bool] = lambda one, two: False) -> bool:
    """Return whether two names match word by word, such as `val_acc` and `valid/accuracy`.

    Two words match if they are equal, if one is an abbreviation of the other, or if `is_alike` returns True for them.
    """
    words, others = (re.split("[/_]", each.lower()) for each in (name, other))
    return len(words) == len(others) and all(
        one == two or (min(len(one), len(two)) >= 3 and (one.startswith(two) or two.startswith(one))) or is_alike(one, two)
        for one, two in zip(words, others, strict=True)
    )


def _is_misspelled(word: str, other: str) -> bool:
    """Return whether two words start with the same letter, and differ only in one missing letter or two swapped letters.

    >>> [_is_misspelled(*pair) for pair in (("accurcy", "accuracy"), ("vaild", "valid"), ("mae", "mse"), ("rmse", "mse"))]
    [True, True, False, False]
    """
    short, long = sorted((word, other), key=len)
    if word[:1] != other[:1] or len(long) < 4:
        return False
    if len(short) == len(long):
        return any(short[:at] + short[at + 1] + short[at] + short[at + 2 :] == long for at in range(1, len(short) - 1))
    return any(long[:at] + long[at + 1 :] == short for at in range(1, len(long)))


def listed(names: Iterable[str]) -> str:
    """Format names for a message: sort them, and list at most 20."""
    shown = sorted(names)
    more = [f"... and {len(shown) - _MAX_LISTED:,} more"] if len(shown) > _MAX_LISTED else []
    return ", ".join([*map(short_name, shown[:_MAX_LISTED]), *more])


def short_name(name: str) -> str:
    """Return a name in printable and shortened form, for a message."""
    return printable(name if len(name) <= _MAX_SHOWN else f"{name[: _MAX_SHOWN - 3]}...")


def checked_metric_name(name: str) -> str:
    """Return `name` if it can be logged. Raise `MetricNameError` if it is too long for tables."""
    if len(name) > MAX_LENGTH:
        raise MetricNameError(
            f"a metric name has {len(name):,} characters; the limit is {MAX_LENGTH}: `{short_name(name)}`",
            hint="use a short name; log texts with `add_text`",
        )
    return name


def better_of(name: str) -> str | None:
    """Guess from the name of a metric whether lower values ("min") or higher values ("max") are better. Return None if this is unclear.

    >>> [better_of(name) for name in ("valid/loss", "valid/multiclass_accuracy", "valid/accuracy/avg", "valid/gap")]
    ['min', 'max', 'max', None]
    """
    if name.startswith(_COUNTS):
        return None
    words = name.lower().replace("/", "_").split("_")
    if any(each in name.lower().rpartition("/")[2] for each in _LESS):
        return "min"
    return "max" if any(word.startswith(_GREATER) or word in _GREATER_WORDS for word in words) else None


def describe_broken_losses(latest: Mapping[str, Any]) -> str | None:
    """Describe the losses that are NaN or infinite, in one line. Return None if there are none.

    >>> describe_broken_losses({"train/loss": float("nan"), "valid/loss": 0.5, "lr": float("inf")})
    'the last loss is not finite: train/loss nan'
    """
    broken = [
        f"{short_name(name)} {value:g}"
        for name, value in sorted(latest.items())
        if isinstance(value, float) and not math.isfinite(value) and "loss" in name.rpartition("/")[2]
    ]
    more = f" and {len(broken) - _MAX_BROKEN} more" if len(broken) > _MAX_BROKEN else ""
    return f"the last loss is not finite: {', '.join(broken[:_MAX_BROKEN])}{more}" if broken else None


def is_greater_better(name: str) -> bool:
    """Return whether greater values of a metric are better, judging by its name. If the name is unclear, return False."""
    return better_of(name) == "max"
