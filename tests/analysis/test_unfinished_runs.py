"""The results of a store's unfinished runs can be forecast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_store
from report_store import EPOCHS, add_run, draw_curves

from trainmaster.analysis.forecast import Forecast, NoForecast
from trainmaster.analysis.unfinished_runs import RunForecasts, UnfinishedRun, forecast_runs
from trainmaster.store import Store

METRIC = "valid/accuracy"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def cut(epoch: int, **config: Any) -> dict[str, dict[int, float]]:
    curves = draw_curves(np.random.default_rng(9), 0.01, 64, "gelu", **config)
    return {name: {x: y for x, y in curve.items() if x <= epoch} for name, curve in curves.items()}


def forecasts_of(store: Store, metric: str = METRIC) -> dict[str, UnfinishedRun]:
    return {run.key: run for run in forecast_runs(store, store.index.runs(), metric)}


def reason_of(run: UnfinishedRun) -> str:
    assert isinstance(run.forecast, NoForecast)
    return run.forecast.reason


def test_stopped_runs_have_a_forecast_and_failed_and_finished_runs_have_none(store: Store) -> None:
    report_store.fill(store)
    found = forecasts_of(store)
    assert len(found) == 5
    assert all(isinstance(run.forecast, Forecast) for run in found.values())
    assert {run.state for run in found.values()} == {"stopped"}


def test_a_running_run_has_a_forecast(store: Store) -> None:
    report_store.fill(store, num_seeds=2, has_problems=False)
    key = store.configs.add({"lr": 0.01, "seed": 77})
    with store.attempt(key, "process", facts={"num_epochs": EPOCHS}) as attempt:
        attempt.start(None)
        for name, curve in cut(5).items():
            for epoch, value in curve.items():
                attempt.log.append({"tag": name, "value": value, "step": epoch, "over": "epoch"})
        attempt.save(5, {}, {"epoch": 5, "toc": 1.0}, {METRIC: 0.5})
        run = forecasts_of(store)[key]
        attempt.release("finished")
    assert run.state == "running"
    assert isinstance(run.forecast, Forecast)
    assert max(run.curve) == 5


def test_19_finished_runs_are_too_few_for_a_forecast(store: Store) -> None:
    keys = report_store.fill(store, num_seeds=2, has_problems=False)
    for key in keys[19:]:
        store.remove(key)
    add_run(store, {"lr": 0.01, "seed": 77}, cut(5), "stopped")
    (run,) = forecasts_of(store).values()
    assert reason_of(run) == "19 finished curves of this kind; a forecast needs 20"


def test_runs_with_another_number_of_epochs_are_not_used(store: Store) -> None:
    report_store.fill(store, num_seeds=2, has_problems=False)
    key = add_run(store, {"lr": 0.01, "seed": 77}, cut(5), "stopped", target=2 * EPOCHS)
    assert reason_of(forecasts_of(store)[key]) == "0 finished curves of this kind; a forecast needs 20"


def test_an_unknown_target_or_a_metric_that_was_not_logged_by_epoch_gives_no_forecast(store: Store) -> None:
    report_store.fill(store, num_seeds=2, has_problems=False)
    without = add_run(store, {"lr": 0.01, "seed": 77}, cut(5), "stopped", target=None)
    other = add_run(store, {"lr": 0.01, "seed": 78}, {"train/loss": {1: 0.5}}, "stopped")
    found = forecasts_of(store)
    assert reason_of(found[without]) == "its number of epochs was not recorded"
    assert reason_of(found[other]) == "it has no value yet"


def test_the_notes_state_the_coverage_and_why_runs_have_no_forecast(store: Store) -> None:
    report_store.fill(store)
    add_run(store, {"lr": 0.01, "seed": 77}, cut(5), "stopped", target=None)
    notes = RunForecasts(METRIC, list(forecasts_of(store).values())).notes
    assert len(notes) == 2
    assert notes[0].startswith(f"bands for 90% of {METRIC} at epoch {EPOCHS}, from 48 finished curves; with one curve left out at a time, ")
    assert notes[1] == "no forecast for 1 run: its number of epochs was not recorded"
