"""Forecasts the final metrics of unfinished runs from the finished runs in a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from trainmaster.analysis.forecast import LEVEL, MAX_CURVES, Curve, FinishedCurves, Forecast, NoForecast
from trainmaster.errors import StoreError
from trainmaster.store import Store
from trainmaster.store.run_table import RunTable
from trainmaster.store.steps import read_steps
from trainmaster.text import counted

UNFINISHED = ("running", "held?", "stopped", "interrupted", "killed")
"""The states of runs that get a forecast. Failed runs get none, because the error may occur again."""


@dataclass(frozen=True)
class UnfinishedRun:
    """A run that has not reached its target epoch, and the forecast of its final value."""

    key: str
    state: str
    target: int | None
    curve: Curve
    """The values of the metric so far, by epoch."""
    forecast: Forecast | NoForecast


def read_curve(store: Store, key: str, metric: str) -> Curve:
    """Return the values of a metric by epoch. The result is empty if the metric was not logged by epoch, or if the run is damaged."""
    try:
        steps = read_steps(store.run(key), [metric]).get(metric)
    except (StoreError, FileNotFoundError):
        return {}
    return dict(zip(steps.xs, steps.ys, strict=True)) if steps is not None and steps.over == "epoch" else {}


def forecast_runs(store: Store, runs: RunTable, metric: str, keys: Collection[str] | None = None) -> list[UnfinishedRun]:
    """Return the unfinished runs in a table with their forecasts, sorted by key. If `keys` is given, only these runs are returned.

    The forecasts are based on the finished runs in the table, so the table should contain all runs in the store.
    """
    names = ("state", "num_epochs", "epoch", "group")
    rows = sorted(zip(runs.keys, *map(runs.fact, names), strict=True))
    finished: dict[int, FinishedCurves] = {}
    found = []
    for key, state, target, epoch, _ in rows:
        is_wanted = (keys is None or key in keys) and state in UNFINISHED and epoch is not None and (target is None or epoch < target)
        if not is_wanted:
            continue
        curve = read_curve(store, key, metric)
        if target is None:
            forecast: Forecast | NoForecast = NoForecast("its number of epochs was not recorded")
        else:
            if target not in finished:
                members = [(each, group or each) for each, state, epochs, _, group in rows if state == "finished" and epochs == target]
                finished[target] = _read_finished(store, members, metric, target)
            forecast = finished[target].forecast(curve)
        found.append(UnfinishedRun(key, state, target, curve, forecast))
    return found


def _read_finished(store: Store, members: Iterable[tuple[str, str]], metric: str, target: int) -> FinishedCurves:
    """Return the curves of at most `MAX_CURVES` finished runs. Keys are hashes, so the first keys are a random sample."""
    curves, groups = [], []
    for key, group in members:
        curve = read_curve(store, key, metric)
        if target in curve:
            curves.append(curve)
            groups.append(group)
        if len(curves) >= MAX_CURVES:
            break
    return FinishedCurves(curves, groups, target)


@dataclass(frozen=True)
class RunForecasts:
    """The forecasts of one metric for unfinished runs."""

    metric: str
    runs: Sequence[UnfinishedRun]

    @cached_property
    def _by_key(self) -> Mapping[str, UnfinishedRun]:
        return {run.key: run for run in self.runs}

    def describe(self, key: str) -> str:
        """Return the forecast of an unfinished run as text, or "none" if there is no forecast. For other runs, the text is empty."""
        run = self._by_key.get(key)
        return "" if run is None else str(run.forecast) if isinstance(run.forecast, Forecast) else "none"

    def to_json(self, key: str) -> dict[str, Any]:
        """Return the forecast of an unfinished run as plain values, or an empty dict for other runs."""
        run = self._by_key.get(key)
        return {} if run is None else {"forecast": {"metric": self.metric, "epoch": run.target, **asdict(run.forecast)}}

    @property
    def notes(self) -> list[str]:
        """Notes about the data behind the forecasts, the coverage of the bands, and the reasons why some runs have no forecast."""
        bands: dict[tuple[int | None, str], list[Forecast]] = {}
        reasons: Counter[str] = Counter()
        for run in self.runs:
            if isinstance(run.forecast, Forecast):
                bands.setdefault((run.target, run.forecast.held_out), []).append(run.forecast)
            else:
                reasons[run.forecast.reason] += 1
        lines = [self._describe_bands(target, held_out, each) for (target, held_out), each in sorted(bands.items(), key=str)]
        return [*lines, *(f"no forecast for {counted(count, 'run')}: {reason}" for reason, count in sorted(reasons.items()))]

    def _describe_bands(self, target: int | None, held_out: str, forecasts: Sequence[Forecast]) -> str:
        shares = sorted({f"{each.coverage:.0%}" for each in forecasts}, key=lambda share: int(share[:-1]))
        measured = shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]}, depending on the epoch,"
        left_out = "all seeds of a setting" if held_out == "setting" else "one curve"
        return (
            f"bands for {LEVEL:.0%} of {self.metric} at epoch {target}, from {max(each.num_curves for each in forecasts)} finished curves; "
            f"with {left_out} left out at a time, {measured} of their final values were inside"
        )
