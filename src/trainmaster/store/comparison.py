"""Compares two runs bit for bit.

The comparison covers one checkpoint of each run and everything that was logged before it. Times, checkpoint names and the states of
observers are ignored, because they may differ between two runs of the same config. However, the rows that observers log are compared.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trainmaster.errors import StoreDamagedError, UnknownRunError
from trainmaster.store.attempt_records import EVENTS
from trainmaster.store.checkpoint import Checkpoint, read_checkpoint, read_manifest
from trainmaster.store.checksummed_json import Record
from trainmaster.store.codec import decode
from trainmaster.store.events import event_of
from trainmaster.store.layout import bytes_of, dtype_name
from trainmaster.store.run import Run

ROW, TENSOR, VALUE = "row", "tensor", "value"
"""The kinds of differences. `ROW` stands for logged rows, `TENSOR` for tensors and arrays, and `VALUE` for all other values."""
MISSING = "missing"
_ABSENT: Any = object()
_LOOP_CHECKPOINT = {"state", "fixtures", "attribs", "best"}
"""The keys of a loop's checkpoint."""
_MAX_SHOWN = 60


class Row(NamedTuple):
    """One logged number or text."""

    tag: str
    step: Any
    """The step of the row, or its epoch if the row is part of an evaluation that a manager logged."""
    value: Any


@dataclass(frozen=True)
class Recorded:
    """A copy of a run up to one of its checkpoints, in memory. Later changes to the run do not affect the copy."""

    key: str
    epoch: int
    step: int
    status: Mapping[str, Any]
    """The status that was saved with the checkpoint."""
    value: Any
    context: Any
    rows: Sequence[Row]
    has_state: bool = True
    """False if the checkpoint was deleted and only the logged rows are left."""


class Difference(NamedTuple):
    """One difference between two runs."""

    kind: str
    """`ROW`, `TENSOR` or `VALUE`."""
    name: str
    """The dotted path of the value, or the tag of the row."""
    one: str
    """The value in the first run, shortened for display, or `MISSING`."""
    other: str
    step: int | None = None
    """The step or epoch of a row."""
    num: int | None = None
    """The number of tensor elements that differ."""
    size: int | None = None
    """The number of elements in the tensor."""
    max_distance: float | None = None
    """The largest finite absolute difference between corresponding elements of two tensors."""

    def __str__(self) -> str:
        if self.num is None:
            at = "" if self.step is None else f" at {self.step}"
            return f"{self.name}{at}: {self.one} against {self.other}"
        distance = "" if self.max_distance is None else f", by up to {self.max_distance:.3g}"
        return f"{self.name}: {self.num:,} of {self.size:,} elements differ{distance}"


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two runs: how much was compared, and what differs."""

    epoch: int
    step: int
    """The epoch and step of the first run's checkpoint."""
    other_epoch: int
    other_step: int
    num_tensors: int
    num_values: int
    num_rows: int
    differences: tuple[Difference, ...]
    """All differences: first rows in the order they were logged, then tensors, then other values."""

    @property
    def is_same(self) -> bool:
        return not self.differences

    def of(self, kind: str) -> list[Difference]:
        """Return the differences of one kind: `ROW`, `TENSOR` or `VALUE`."""
        return [each for each in self.differences if each.kind == kind]


def compare_runs(one: Run, other: Run) -> Comparison:
    """Compare the last checkpoints of two runs, and all rows logged before them. Raise `UnknownRunError` if a run has no checkpoint."""
    return compare(recorded(one), recorded(other))


# ---- reading a run


def recorded(run: Run, epoch: int | None = None) -> Recorded:
    """Read a run up to its last checkpoint or, if `epoch` is passed, up to the end of that epoch.

    If the checkpoint of that epoch was deleted, the result has no state, and contains all rows up to the run's last checkpoint.
    """
    last = run.latest()
    if last is None:
        raise UnknownRunError(f"run {run.key} has no checkpoint", why="it never saved one", hint="train it first")
    if epoch is None or _is_end_of(epoch, last.manifest):
        return _recorded(run, last)
    for name in run.checkpoints():
        with contextlib.suppress(FileNotFoundError, StoreDamagedError):  # it was deleted in the meantime, or is damaged
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
    """Convert a run's events to rows, in order. Timestamps are left out.

    >>> rows_of([{"tag": "train/loss", "value": 0.5, "step": 1, "time": 3.0}, {"epoch": 1, "eval": {"loss_test": 2.0}}])
    [Row(tag='train/loss', step=1, value=0.5), Row(tag='loss_test', step=1, value=2.0)]
    """
    rows: list[Row] = []
    for event in events:
        if isinstance(event.get("tag"), str):
            rows.append(Row(event["tag"], event.get("step"), event.get("value", event.get("text"))))
        elif isinstance(event.get("eval"), Mapping):
            rows += [Row(str(name), event.get("epoch"), value) for name, value in event["eval"].items()]
        else:
            rows.append(Row("event", event.get("step"), {name: each for name, each in event.items() if name != "time"}))
    return rows


# ---- comparing


def compare(one: Recorded, other: Recorded) -> Comparison:
    """Compare two runs.

    If the checkpoint of `one` was deleted, compare only the logged rows. The rows of `one` may then continue after the end of `other`;
    those rows are ignored.
    """
    differences, num_rows = _compare_rows(one.rows, other.rows, is_cut=not one.has_state)
    num_tensors = num_values = 0
    if one.has_state and other.has_state:
        found: list[Difference] = []
        for (prefix, here), (_, there) in zip(_parts(one, other), _parts(other, one), strict=True):
            leaves = dict(_leaves(here, prefix)), dict(_leaves(there, prefix))
            paths = dict.fromkeys([*leaves[0], *leaves[1]])
            arrays = {path for path in paths if all(_is_array(each.get(path)) for each in leaves)}
            num_tensors, num_values = num_tensors + len(arrays), num_values + len(paths) - len(arrays)
            found += filter(None, (_difference(".".join(map(str, path)), *(each.get(path, _ABSENT) for each in leaves)) for path in paths))
        differences += sorted(found, key=lambda each: each.kind != TENSOR)
    return Comparison(one.epoch, one.step, other.epoch, other.step, num_tensors, num_values, num_rows, tuple(differences))


def _parts(run: Recorded, other: Recorded) -> list[tuple[tuple[str, ...], Any]]:
    """Return the parts of a checkpoint to compare. Each part comes with a prefix for the paths of its values."""
    if not (_is_loop_checkpoint(run.value) and _is_loop_checkpoint(other.value)):
        return [((), run.value), (("context",), run.context)]
    state, best = run.value["state"], run.value["best"]
    observers = {*state.get("observers", ()), *other.value["state"].get("observers", ())}
    return [
        ((), state["objects"]),
        ((), {name: each for name, each in state.items() if name not in ("objects", "extensions", "observers")}),
        (("extensions",), {name: each for name, each in state["extensions"].items() if name not in observers}),
        ((), {name: run.value[name] for name in ("fixtures", "attribs")}),
        (("best",), best[:3] if isinstance(best, tuple | list) else best),  # without the name of the checkpoint
    ]


def _is_loop_checkpoint(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value.keys() >= _LOOP_CHECKPOINT or not isinstance(value["state"], Mapping):
        return False
    return all(isinstance(value["state"].get(name), Mapping) for name in ("objects", "extensions"))


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path and value of each leaf in nested containers. A sequence of plain values, such as an RNG state, is one leaf."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _leaves(each, (*path, key))
    elif isinstance(value, list | tuple) and any(isinstance(each, Mapping | list | tuple) or _is_array(each) for each in value):
        for number, each in enumerate(value):
            yield from _leaves(each, (*path, number))
    else:
        yield path, value


def _difference(name: str, one: Any, other: Any) -> Difference | None:
    is_array = _is_array(one) and _is_array(other)
    kind = TENSOR if is_array else VALUE
    here, there = _shown(one), _shown(other)
    if is_array and type(one) is type(other) and here == there:
        differs = _bytes(one) != _bytes(other)
        if not differs.any():
            return None
        size = max(1, len(differs) // one.itemsize)
        num = int(differs.reshape(size, -1).any(axis=1).sum())
        return Difference(kind, name, here, there, num=num, size=size, max_distance=_max_distance(one, other))
    if not is_array and _is_same(one, other):
        return None
    if type(one) is not type(other) and MISSING not in (here, there):
        here, there = f"{here} ({type(one).__name__})", f"{there} ({type(other).__name__})"
    return Difference(kind, name, here, there)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two plain values have the same type and bits.

    This compares their reprs, because a repr distinguishes 0.0 from -0.0 and 1 from True, and shows every digit.
    """
    if isinstance(one, set | frozenset) and type(one) is type(other):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return type(one) is type(other) and repr(one) == repr(other)


def _compare_rows(ones: Sequence[Row], others: Sequence[Row], is_cut: bool) -> tuple[list[Difference], int]:
    """Return the differences between rows, in the order in which the rows were logged, and the number of rows compared.

    Rows are compared separately for each tag. The order of rows with different tags does not matter, because it depends on when
    checkpoints were saved: each save makes observers write their buffered rows, and an interrupted run has additional saves.
    """
    here, there = _by_tag(ones), _by_tag(others)
    found: list[tuple[int, Difference]] = []
    num_rows = 0
    for tag in dict.fromkeys([*here, *there]):
        for mine, its in itertools.zip_longest(here.get(tag, []), there.get(tag, [])):
            if its is None and is_cut:
                break
            num_rows += 1
            if mine and its and _is_same(mine[1][1:], its[1][1:]):
                continue
            index, row = mine or its
            has_moved = bool(mine and its and mine[1].step != its[1].step)
            one, other = (_shown_row(each and each[1], has_moved) for each in (mine, its))
            found.append((index, Difference(ROW, tag, one, other, row.step if isinstance(row.step, int) else None)))
    found.sort(key=lambda each: each[0])
    return [each for _, each in found], num_rows


def _by_tag(rows: Sequence[Row]) -> dict[str, list[tuple[int, Row]]]:
    by_tag: dict[str, list[tuple[int, Row]]] = {}
    for index, row in enumerate(rows):
        by_tag.setdefault(row.tag, []).append((index, row))
    return by_tag


def _shown_row(row: Row | None, has_step: bool) -> str:
    return MISSING if row is None else f"{_shown(row.value)} at {row.step}" if has_step else _shown(row.value)


def _shown(value: Any) -> str:
    """Format a value as a short string."""
    if value is _ABSENT:
        return MISSING
    if _is_array(value):
        return f"{dtype_name(value)} {[*value.shape]}"
    if isinstance(value, Mapping | list | tuple | set | frozenset) and len(value) > 4:
        return f"{type(value).__name__} of {len(value):,}"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 4]} ..."


# ---- arrays and tensors, recognized without importing NumPy or torch


def _is_array(value: Any) -> bool:
    """Return whether a value is a torch tensor or a NumPy array. A NumPy scalar is neither."""
    return hasattr(value, "dtype") and hasattr(value, "__setitem__")


def _bytes(array: Any) -> Any:
    if hasattr(array, "numel"):
        return bytes_of(array.detach().resolve_conj().resolve_neg().cpu())
    import numpy

    return bytes_of(numpy.ascontiguousarray(array))


def _max_distance(one: Any, other: Any) -> float | None:
    """Return the largest finite absolute difference between corresponding elements, or None if there is none."""
    import numpy

    try:
        with numpy.errstate(all="ignore"):
            distances = numpy.abs(_widened(one) - _widened(other))
            distances = distances[numpy.isfinite(distances)]
        return float(distances.max()) if distances.size else None
    except (TypeError, ValueError, RuntimeError):  # text, times, or a dtype that torch cannot convert
        return None


def _widened(array: Any) -> Any:
    """Convert an array to double precision, so that subtraction causes no overflow and hardly any rounding error."""
    wide = "complex128" if "complex" in dtype_name(array) else "float64"
    if hasattr(array, "numel"):
        import torch

        return array.detach().cpu().to(getattr(torch, wide)).numpy()
    return array.astype(wide)
