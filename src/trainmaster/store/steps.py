"""Reads every logged value of a run's metrics, for analysis. `history.py` reads only a sample of a long log, which is enough for a plot."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from trainmaster.arguments import is_number
from trainmaster.store.history import AXES
from trainmaster.store.replicates import to_float
from trainmaster.store.run import Run

STEP = "step"
"""The name of the x axis if none was logged."""


@dataclass(frozen=True)
class Steps:
    """The values of one metric, in the order in which they were logged."""

    over: str
    """What `xs` counts: "epoch", "update", "batch", "sample" or, if that was not logged, "step"."""
    xs: list[float] = field(default_factory=list)
    ys: list[float] = field(default_factory=list)


def read_steps(run: Run, names: Collection[str] | None = None) -> dict[str, Steps]:
    """Return the logged values of all metrics, or of those in `names`, by name.

    If two values were logged at the same step, return both. Raise `StoreDamagedError` if logged events are missing.
    """
    chain = run.chain()
    saved = next(iter(run.checkpoints(chain)), None)
    if saved is not None:  # its manifest records the number of events logged before it
        run.check_events(saved, chain)
    found: dict[str, Steps] = {}
    for event in json.loads(b"[%b]" % b",".join(run.event_lines(chain))):  # parsing all lines at once is four times faster
        if isinstance(tag := event.get("tag"), str):
            over = event.get("over")
            _add(found, names, tag, over if over in AXES else STEP, event.get("step"), event.get("value"))
        elif isinstance(values := event.get("eval"), dict):
            for name, value in values.items():
                _add(found, names, name, "epoch", event.get("epoch"), value)
    return found


def _add(found: dict[str, Steps], names: Collection[str] | None, name: str, over: str, x: Any, value: Any) -> None:
    number = _number(value)
    if (names is None or name in names) and number is not None:
        steps = found.setdefault(name, Steps(over))
        position = _number(x)
        steps.xs.append(len(steps.xs) if position is None else position)
        steps.ys.append(number)


def _number(value: Any) -> float | None:
    """Return a logged number as a float, or None if it is not a number.

    NaN and infinities are logged as objects such as `{".float": "nan"}`.
    """
    if type(value) is dict and value.keys() == {".float"}:
        value = float(value[".float"]) if value[".float"] in ("nan", "inf", "-inf") else None
    return to_float(value) if is_number(value) else None
