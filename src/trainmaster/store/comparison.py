"""Comparison: whether two runs are one and the same training, bit by bit, as their records tell.

What is compared is a checkpoint of each, and every row that was recorded up to it. What two trainings of one config may differ in is left
out: times, names of checkpoints, and the states of observers, without which a training is the same (what they recorded is compared).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trainmaster.errors import StoreDamagedError, UnknownRunError
from trainmaster.store.checkpoint import Checkpoint, read_checkpoint, read_manifest
from trainmaster.store.codec import decode
from trainmaster.store.differences import MISSING, ROW, TENSOR, VALUE, Difference, bits, differences, shown
from trainmaster.store.events import event_of
from trainmaster.store.record import Record
from trainmaster.store.run import EVENTS, Run

_OF_A_LOOP = {"state", "fixtures", "attribs", "best"}
"""What the checkpoint of a loop has."""
_BY_NAME = ("objects", "extensions", "observers")
"""The parts of a loop's state that are not compared as they are."""


class Row(NamedTuple):
    """One number, or text, that was recorded."""

    tag: str
    step: Any
    """The step, or of a manager's own evaluation the epoch."""
    value: Any


@dataclass(frozen=True)
class Recorded:
    """A run up to one of its checkpoints, held in memory: whatever becomes of the run meanwhile."""

    key: str
    epoch: int
    step: int
    status: Mapping[str, Any]
    """What was said of it when it was saved."""
    value: Any
    context: Any
    rows: Sequence[Row]
    has_state: bool = True
    """False where the checkpoint is gone, and only the rows are left."""


@dataclass(frozen=True)
class Comparison:
    """What was compared, and what differs."""

    epoch: int
    step: int
    """Where the first of the two was saved."""
    other_epoch: int
    other_step: int
    num_tensors: int
    num_numbers: int
    num_rows: int
    differences: tuple[Difference, ...]
    """Rows first, in the order in which they were recorded, then tensors, then other values."""

    @property
    def is_same(self) -> bool:
        return not self.differences

    def of(self, kind: str) -> list[Difference]:
        """The differences of one kind: `ROW`, `TENSOR` or `VALUE`."""
        return [each for each in self.differences if each.kind == kind]


def compare_runs(one: Run, other: Run) -> Comparison:
    """Compare the last checkpoints of two runs, and what was recorded up to them. `UnknownRunError` if one of them has none."""
    return compare(recorded(one), recorded(other))


def recorded(run: Run, epoch: int | None = None) -> Recorded:
    """A run as it was last saved, or as it was at the end of an epoch; of that one the checkpoint may be gone."""
    last = run.latest()
    if last is None:
        raise UnknownRunError(f"run {run.key} has no checkpoint", why="nothing was ever saved of it", hint="train it first")
    if epoch is None or _is_end_of(epoch, last.manifest):
        return _recorded(run, last)
    for name in run.checkpoints():
        with contextlib.suppress(FileNotFoundError, StoreDamagedError):  # dropped meanwhile; `verify` tells of damage
            if name < last.name and _is_end_of(epoch, read_manifest(run.files, run.key, name)):
                return _recorded(run, read_checkpoint(run.files, run.key, name))
    return replace(_recorded(run, last), epoch=epoch, step=-1, value=None, context=None, has_state=False)


def _is_end_of(epoch: int, manifest: Record) -> bool:
    status = manifest["status"]
    return bool(status.get("epoch") == epoch and status.get("batch", 0) == 0)


def _recorded(run: Run, checkpoint: Checkpoint) -> Recorded:
    name, manifest = checkpoint.name, checkpoint.manifest
    chain = run.chain_to(name, manifest["events"], run.chain())
    events = [event_of(line, run.path(name.attempt, EVENTS)) for line in run.event_lines(chain)]
    status = decode(manifest["status"])
    return Recorded(run.key, status.get("epoch", -1), name.step, status, checkpoint.value, checkpoint.context, rows_of(events))


def rows_of(events: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The rows of a run's events, in order, without the time they were written at.

    >>> rows_of([{"tag": "losses/train/loss", "value": 0.5, "step": 1, "time": 3.0}, {"epoch": 1, "eval": {"loss_test": 2.0}}])
    [Row(tag='losses/train/loss', step=1, value=0.5), Row(tag='loss_test', step=1, value=2.0)]
    """
    found: list[Row] = []
    for event in events:
        if isinstance(event.get("tag"), str):
            found.append(Row(event["tag"], event.get("step"), event.get("value", event.get("text"))))
        elif isinstance(event.get("eval"), Mapping):
            found += [Row(str(name), event.get("epoch"), value) for name, value in event["eval"].items()]
        else:
            found.append(Row("event", event.get("step"), {name: each for name, each in event.items() if name != "time"}))
    return found


def compare(one: Recorded, other: Recorded) -> Comparison:
    """Compare what was recorded of two trainings; of one without its state, the rows that the other has, too."""
    rows, num_rows = _compare_rows(one.rows, other.rows, is_cut=not one.has_state)
    found: list[Difference] = []
    num_tensors = num_numbers = 0
    if one.has_state and other.has_state:
        here, there = _parts(one, other), _parts(other, one)
        for group, name in dict.fromkeys([*here, *there]):
            if (group, name) not in here or (group, name) not in there:
                mine, its = (shown(parts[group, name]) if (group, name) in parts else MISSING for parts in (here, there))
                found.append(Difference(VALUE, name, mine, its))
                continue
            part = differences(here[group, name], there[group, name], name)
            found += part.found
            num_tensors, num_numbers = num_tensors + part.num_tensors, num_numbers + part.num_numbers
    found.sort(key=lambda each: each.kind != TENSOR)
    places = one.epoch, one.step, other.epoch, other.step
    return Comparison(*places, num_tensors, num_numbers, num_rows, (*rows, *found))


def _compare_rows(ones: Sequence[Row], others: Sequence[Row], is_cut: bool) -> tuple[list[Difference], int]:
    """The rows that differ, in order, and how many were compared.

    Those of one tag are compared one after the other. How tags follow each other is not: observers write what waits when a checkpoint is
    taken, and a training that was interrupted has taken more of them.
    """
    here, there = _by_tag(ones), _by_tag(others)
    found: list[tuple[int, Difference]] = []
    num_rows = 0
    for tag in dict.fromkeys([*here, *there]):
        for mine, its in itertools.zip_longest(here.get(tag, []), there.get(tag, [])):
            if its is None and is_cut:
                break
            num_rows += 1
            if mine is not None and its is not None and bits(mine[1][1:]) == bits(its[1][1:]):
                continue
            place, row = mine or its
            has_other_step = mine is not None and its is not None and bits(mine[1].step) != bits(its[1].step)
            one, other = (_shown(None if each is None else each[1], has_other_step) for each in (mine, its))
            found.append((place, Difference(ROW, tag, one, other, row.step if isinstance(row.step, int) else None)))
    found.sort(key=lambda each: each[0])
    return [each for _, each in found], num_rows


def _shown(row: Row | None, has_step: bool) -> str:
    return MISSING if row is None else f"{shown(row.value)} at {row.step}" if has_step else shown(row.value)


def _by_tag(rows: Sequence[Row]) -> dict[str, list[tuple[int, Row]]]:
    found: dict[str, list[tuple[int, Row]]] = {}
    for place, row in enumerate(rows):
        found.setdefault(row.tag, []).append((place, row))
    return found


def _parts(run: Recorded, other: Recorded) -> dict[tuple[str, str], Any]:
    """What is compared of a checkpoint, by group and name: of a loop, all but what observers hold, and the name of the best checkpoint."""
    value = run.value
    if not _is_of_a_loop(value):
        return {("", ""): value, ("", "context"): run.context}
    state, observers = value["state"], {*_observers(value), *_observers(other.value)}
    parts = {("objects", name): each for name, each in state["objects"].items()}
    parts |= {("state", name): each for name, each in state.items() if name not in _BY_NAME}
    parts |= {("", f"extensions.{name}"): each for name, each in state["extensions"].items() if name not in observers}
    parts |= {("", name): each for name, each in value.items() if name not in ("state", "best")}
    best = value["best"]
    parts["", "best"] = best[:3] if isinstance(best, tuple | list) else best  # the last tells the attempt
    return parts


def _is_of_a_loop(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value.keys() >= _OF_A_LOOP or not isinstance(value["state"], Mapping):
        return False
    return all(isinstance(value["state"].get(name), Mapping) for name in ("objects", "extensions"))


def _observers(value: Any) -> Sequence[str]:
    """The names of the extensions that a training goes on without."""
    return value["state"].get("observers", ()) if _is_of_a_loop(value) else ()
