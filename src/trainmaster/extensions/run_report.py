"""The words around a training: what it is, before its first step; what came of it, after its last."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trainmaster.errors import SettingError
from trainmaster.extensions.code.git import Deadline, GitFailedError, git, text
from trainmaster.extensions.model_summary import headline, layers_of
from trainmaster.extensions.progress import clock
from trainmaster.extensions.stopwatch import Stopwatch
from trainmaster.figures.series import Series
from trainmaster.figures.spark import spark
from trainmaster.loop.metric import is_greater_better
from trainmaster.loop.train_manager import TrainManager
from trainmaster.loop.writer import Mirrored
from trainmaster.stages import Observer, always

MAX_LINES = 15
"""How many lines the first words have at most."""
_MAX_METRICS = 8
_MAX_LAYERS = 5
Say = Callable[[str], Any]


class Recorded(NamedTuple):
    """How a recorded number went."""

    series: Series
    best: float
    best_step: int | None
    last: float


class RunReport(Observer):
    """Prints what is trained before a training begins, in at most 15 lines, and what came of it at its end.

    First: device, commit, data, model. Last: the best and the last of each number with its course, where the time went, and where the
    files are.

    Args:
        say: prints a line.
        facts: what a host knows of the run, as (label, text), to be printed first.
    """

    is_guarded = False

    def __init__(self, say: Say = print, facts: Iterable[tuple[str, str]] = ()) -> None:
        if not callable(say):
            raise SettingError(f"say={say!r}: wanted a function that prints a line", hint="RunReport(say=print)")
        self._say, self._facts = say, list(facts)
        self._watch = Stopwatch()
        self._courses: dict[str, Recorded] = {}
        self._stop: Callable[[], None] | None = None
        self._is_training = False

    def pre_train(self, train_manager: TrainManager) -> None:
        for line in opening(train_manager, self._facts):
            self._say(line)
        self._watch, self._courses = Stopwatch(), {}
        self._is_training = True
        if isinstance(train_manager.writer, Mirrored):
            self._stop = train_manager.writer.mirror(self._take)

    def pre_train_step_epoch(self, train_manager: TrainManager) -> None:
        self._watch.pre_train_step_epoch(train_manager)

    @always
    def post_train_step_epoch(self, train_manager: TrainManager) -> None:
        self._watch.post_train_step_epoch(train_manager)

    def pre_eval(self) -> None:
        self._watch.pre_eval()

    def post_eval(self) -> None:
        self._watch.post_eval()

    @always
    def post_run(self, train_manager: TrainManager, exc_type: type[BaseException] | None = None) -> None:
        """After `train`, where others still have something to say."""
        is_training, self._is_training = self._is_training, False
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()
        if is_training and exc_type is None:
            for line in closing(self._courses, self._watch.seconds(), train_manager.train_dir):
                self._say(line)

    def _take(self, tag: str, value: float | str, step: int | None) -> None:
        if isinstance(value, str):
            return
        course = self._courses.get(tag)
        if course is None:
            course = Recorded(Series(120), value, step, value)
        course.series.add(0.0 if step is None else step, value)
        is_better = value > course.best if is_greater_better(tag) else value < course.best
        if is_better or course.best != course.best:  # whatever comes is better than NaN
            course = course._replace(best=value, best_step=step)
        self._courses[tag] = course._replace(last=value)


def opening(train_manager: TrainManager, facts: Sequence[tuple[str, str]]) -> list[str]:
    """What is trained, with what, and where."""
    device = str(train_manager.device)
    if train_manager.device.type == "cuda":
        device += f" ({torch.cuda.get_device_name(train_manager.device)})"
    rows = [*facts, ("device", f"{device}, {_counted(torch.get_num_threads(), 'thread')}")]
    commit = commit_at_hand()
    rows += [("commit", commit)] if commit else []
    data = [sizes("train", train_manager.train_data), *(sizes(name, each) for name, each in train_manager.eval_data.items())]
    shown = [*data[:4], *([f"{len(data) - 4} more"] if len(data) > 4 else [])]
    rows += [("data", "; ".join(shown)), ("model", headline(train_manager.model))]
    lines = [f"{label:<8}{text}" for label, text in rows]
    layers = list(layers_of(train_manager.model, 1))
    while len(layers) == 1:  # a model that wraps another one
        inner = train_manager.model.get_submodule(layers[0].name)
        deeper = list(layers_of(inner, 1))
        if not deeper:
            break
        layers = [each._replace(name=f"{layers[0].name}.{each.name}") for each in deeper]
    room = min(_MAX_LAYERS, MAX_LINES - len(lines) - 1)
    if len(layers) > 0 and room > 1:
        width = max(len(each.name) for each in layers[:room])
        lines += [f"{'':8}  {each.name:<{width}}  {each.kind}  {each.num_parameters:,}" for each in layers[:room]]
        lines += [f"{'':8}  and {len(layers) - room} more"] if len(layers) > room else []
    return lines[:MAX_LINES]


def closing(courses: dict[str, Recorded], seconds: dict[str, float], train_dir: Path | None) -> list[str]:
    """What came of it."""
    lines = []
    shown = [tag for tag in courses if not tag.endswith("/loss_per_batch")]
    shown.sort(key=lambda tag: not tag.startswith("losses/"))
    width = max(map(len, shown[:_MAX_METRICS]), default=0)
    for tag in shown[:_MAX_METRICS]:
        course = courses[tag]
        at = "" if course.best_step is None else f" at {course.best_step:,}"
        best = f"best {course.best:.5g}{at}"
        marks = spark([point.mean for point in course.series.points()])
        lines.append(f"{tag:<{width}}  {best:<22}  last {course.last:<10.5g}  {marks}".rstrip())
    if len(shown) > _MAX_METRICS:
        lines.append(f"and {len(shown) - _MAX_METRICS} more numbers")
    whole = sum(seconds.values())
    if whole > 0:
        parts = [f"{part} {share / whole:.0%}" for part, share in seconds.items()]
        lines.append(f"time    {f'{whole:.1f} s' if whole < 60 else clock(whole)}: {', '.join(parts)}")
    if train_dir is not None:
        lines.append(f"files   {train_dir}")
    return lines


def sizes(name: str, data: Any) -> str:
    """
    >>> sizes("train", [1, 2, 3])
    'train 3 batches'
    """
    try:
        batches = _counted(len(data), "batch", "batches")
    except TypeError:
        return f"{name} of unknown length"
    try:
        return f"{name} {_counted(len(data.dataset), 'sample')} in {batches}"
    except (AttributeError, TypeError):
        return f"{name} {batches}"


def commit_at_hand() -> str:
    """The commit that the current folder is at, and whether files differ from it; empty outside of a repository, or without git."""
    deadline = Deadline(2.0)
    try:
        folder = os.getcwd()
        commit = text(git(folder, "rev-parse", "--short", "HEAD", deadline=deadline).strip())
        is_dirty = bool(git(folder, "status", "--porcelain", "--untracked-files=no", deadline=deadline))
    except (OSError, GitFailedError):  # the folder may have been removed
        return ""
    return f"{commit} with changes" if is_dirty else commit


def _counted(count: int, noun: str, nouns: str | None = None) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or noun + 's'}"
