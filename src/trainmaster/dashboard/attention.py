"""Finds what needs attention in a store: runs that stalled, failed, diverged or became slow, and a disk that is almost full."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

from trainmaster.dashboard.event_columns import EventColumns
from trainmaster.dashboard.live_table import View
from trainmaster.errors import StoreError
from trainmaster.store import Store
from trainmaster.text import counted

STALLED = 300.0
"""A running run is reported as stalled after this many seconds without progress, as in `trainmaster ls`."""
MIN_FREE = 0.03
"""The disk is reported as almost full if less than this fraction is free."""
_MIN_FREE_BYTES = 2 * 2**30
_MAX_KEYS = 50
_MAX_CHECKED = 20
"""The maximum number of running runs that are checked for slow steps."""
_MIN_STEPS = 8
_RECENT = 3


def needs_attention(store: Store, view: View, columns: EventColumns) -> list[dict[str, Any]]:
    """Return a list of problems, each with `kind`, `text`, the `keys` of the affected runs, and a `where` filter that selects them."""
    table = view.table
    states, progressed = table.fact("state"), table.fact("progressed")
    now = time.time()
    running = [row for row, state in enumerate(states) if state in ("running", "held?")]
    stalled = [row for row in running if isinstance(progressed[row], float) and now - progressed[row] > STALLED]
    found = [_item("stalled", [table.keys[row] for row in stalled], f"no progress for {STALLED / 60:.0f} minutes")]
    for state in ("failed", "damaged"):
        count = states.count(state)
        if count:
            found.append({"kind": state, "text": counted(count, "run"), "keys": [], "where": f"state={state}"})
    found.append(_item("diverged", _diverged(view), "NaN or infinity in a metric"))
    slow = [table.keys[row] for row in running[:_MAX_CHECKED] if _is_slow(store, columns, table.keys[row])]
    found.append(_item("slow", slow, "the time per step has doubled"))
    return [*_disk(store), *(each for each in found if each is not None)]


def _item(kind: str, keys: list[str], why: str) -> dict[str, Any] | None:
    if not keys:
        return None
    where = f"key in ({', '.join(keys[:_MAX_KEYS])})"
    return {"kind": kind, "text": f"{counted(len(keys), 'run')}: {why}", "keys": keys[:_MAX_KEYS], "where": where}


def _diverged(view: View) -> list[str]:
    """Return the runs in which the last value of a metric is not finite."""
    rows = {
        row
        for column in view.table.metrics.values()
        if not ({*map(type, column)} <= {int, float} and math.isfinite(sum(column)))  # a fast way to skip columns with only finite values
        for row, value in enumerate(column)
        if type(value) is float and not math.isfinite(value)
    }
    return [view.table.keys[row] for row in sorted(rows)]


def _is_slow(store: Store, columns: EventColumns, key: str) -> bool:
    """Return whether recent steps took more than twice as long as earlier steps of the same attempt."""
    try:
        run = store.run(key)
        log = columns.of(run, run.newest())
    except (StoreError, FileNotFoundError):
        return False
    series = max(log.series.values(), key=lambda each: len(each.time), default=None)
    if series is None or len(series.time) < _MIN_STEPS:
        return False
    pace = [
        (later - sooner) / (x - before)
        for before, x, sooner, later in zip(series.x, series.x[1:], series.time, series.time[1:], strict=False)
        if x > before
    ]
    if len(pace) < _MIN_STEPS - 1:
        return False
    return statistics.median(pace[-_RECENT:]) > 2 * statistics.median(pace[:-_RECENT])


def _disk(store: Store) -> Iterator[dict[str, Any]]:
    if store.root is None:
        return
    if not os.path.isdir(store.root):
        yield {"kind": "missing", "text": "the folder of the store is gone", "keys": [], "where": ""}
        return
    try:
        disk = os.statvfs(store.root)
    except OSError:
        return
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    if total and free < min(MIN_FREE * total, _MIN_FREE_BYTES):
        yield {"kind": "disk", "text": f"the disk of the store has {free / 2**30:.1f} GiB left", "keys": [], "where": ""}
