"""Prints a short report before training starts, and another one when it ends."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from trainmaster.extensions.model_summary import Layer, headline, layers_of
from trainmaster.figures.series import Series
from trainmaster.figures.spark import spark
from trainmaster.loop.loggers import Mirrored
from trainmaster.loop.metric import mode_of
from trainmaster.loop.progress import clock
from trainmaster.loop.train_manager import TrainManager
from trainmaster.stages import Observer, always
from trainmaster.text import counted

MAX_LINES = 15
"""The maximum number of lines in the first report."""
_MAX_METRICS = 8
_MAX_LAYERS = 5
_MAX_SETS = 4


class MetricSummary(NamedTuple):
    """The best and the last value of a metric, and its history."""

    mode: str | None
    """"min" if lower is better, "max" if higher is better, or None if this is not known. With None, `best` has no meaning."""
    series: Series
    best: float
    """The best finite value, or NaN if no value was finite."""
    best_step: int | None
    last: float


class RunReport(Observer):
    """Prints the device, commit, data and model before training (at most 15 lines), and the metrics, time and files after training.

    For each metric, it shows the last value and the trend, and the best value if it is known whether lower or higher is better.

    Args:
        output: a function that is called with each line.
        facts: (label, text) pairs to print first.
    """

    is_guarded = False

    def __init__(self, output: Callable[[str], object] = print, facts: Iterable[tuple[str, str]] = ()) -> None:
        self._output, self._facts = output, list(facts)
        self._metrics: dict[str, MetricSummary] = {}
        self._started: float | None = None
        self._eval_started = self._eval_seconds = 0.0
        self._detach: Callable[[], None] | None = None

    def pre_train(self, train_manager: TrainManager) -> None:
        for line in start_report(train_manager, self._facts):
            self._output(line)
        self._metrics, self._eval_seconds = {}, 0.0
        self._started = time.perf_counter()
        if isinstance(train_manager.writer, Mirrored):
            self._detach = train_manager.writer.mirror(partial(self._add, train_manager))

    def pre_eval(self) -> None:
        self._eval_started = time.perf_counter()

    def post_eval(self) -> None:
        self._eval_seconds += time.perf_counter() - self._eval_started

    @always
    def post_run(self, train_manager: TrainManager, exc_type: type[BaseException] | None = None) -> None:
        """Print the final report. This is not done in `post_train`, because other extensions may still log or print there."""
        started, self._started = self._started, None
        if self._detach is not None:
            self._detach()
            self._detach = None
        if started is not None and exc_type is None:
            seconds = time.perf_counter() - started
            for line in end_report(self._metrics, seconds, self._eval_seconds, train_manager.train_dir):
                self._output(line)

    def _add(self, loop: TrainManager, tag: str, value: float | str, step: int | None) -> None:
        if isinstance(value, str):
            return
        metric = self._metrics.get(tag) or MetricSummary(mode_of(tag, loop), Series(120), math.nan, None, value)
        metric.series.add(0.0 if step is None else step, value)
        is_better = value > metric.best if metric.mode == "max" else value < metric.best
        if math.isfinite(value) and (is_better or math.isnan(metric.best)):
            metric = metric._replace(best=value, best_step=step)
        self._metrics[tag] = metric._replace(last=value)


def start_report(loop: TrainManager, facts: Sequence[tuple[str, str]]) -> list[str]:
    device = str(loop.device)
    if loop.device.type == "cuda":
        device += f" ({torch.cuda.get_device_name(loop.device)})"
    data = [data_size("train", loop.train_data), *(data_size(name, each) for name, each in loop.eval_data.items())]
    more = [f"{len(data) - _MAX_SETS} more"] if len(data) > _MAX_SETS else []
    commits = [] if "commit" in dict(facts) else [("commit", current_commit())]
    rows = [
        *facts,
        ("device", f"{device}, {counted(torch.get_num_threads(), 'thread')}"),
        *commits,
        ("data", "; ".join([*data[:_MAX_SETS], *more])),
        ("model", headline(loop.model)),
    ]
    lines = [f"{label:<8}{text}" for label, text in rows if text]
    layers = top_layers(loop.model)
    num_shown = min(_MAX_LAYERS, MAX_LINES - len(lines) - 1)
    if layers and num_shown > 1:
        width = max(len(each.name) for each in layers[:num_shown])
        lines += [f"{'':8}  {each.name:<{width}}  {each.kind}  {each.num_parameters:,}" for each in layers[:num_shown]]
        lines += [f"{'':8}  and {len(layers) - num_shown} more"] if len(layers) > num_shown else []
    return lines[:MAX_LINES]


def end_report(metrics: dict[str, MetricSummary], seconds: float, eval_seconds: float, train_dir: Path | None) -> list[str]:
    lines = []
    tags = sorted(metrics, key=lambda tag: not tag.endswith("/loss"))
    width = max(map(len, tags[:_MAX_METRICS]), default=0)
    for tag in tags[:_MAX_METRICS]:
        metric = metrics[tag]
        at = "" if metric.best_step is None else f" at {metric.best_step:,}"
        best = "" if metric.mode is None or math.isnan(metric.best) else f"best {metric.best:.5g}{at}"
        trend = spark([point.mean for point in metric.series.points()])
        lines.append(f"{tag:<{width}}  {best:<22}  last {metric.last:<10.5g}  {trend}".rstrip())
    if len(tags) > _MAX_METRICS:
        lines.append(f"and {len(tags) - _MAX_METRICS} more metrics")
    total = f"{seconds:.1f} s" if seconds < 60 else clock(seconds)
    lines.append(f"time    {total}, {eval_seconds / seconds:.0%} of it in evaluations")
    if train_dir is not None:
        lines.append(f"files   {train_dir}")
    return lines


def top_layers(model: nn.Module) -> list[Layer]:
    """Return the layers at the outermost level of nesting that has more than one layer.

    If no level has more than one layer, return the layers at the innermost level.
    """
    depth = 1
    layers = list(layers_of(model, depth))
    while len(layers) == 1:
        depth += 1
        deeper = [each for each in layers_of(model, depth) if each.depth == depth]
        if not deeper:
            break
        layers = deeper
    return layers


def data_size(name: str, data: Any) -> str:
    """Describe the size of a data set.

    >>> data_size("train", [1, 2, 3])
    'train 3 batches'
    """
    try:
        batches = counted(len(data), "batch")
    except TypeError:
        return f"{name} of unknown length"
    try:
        return f"{name} {counted(len(data.dataset), 'sample')} in {batches}"
    except (AttributeError, TypeError):
        return f"{name} {batches}"


def current_commit() -> str:
    """Return the commit of the current folder, followed by "-dirty" if files differ from it.

    The result is empty if there is no repository or git is not installed.
    """
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
