"""Curves keep their peaks when points are left out, a mean needs a value from every run, and only new lines of a log are read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import dashboard_store
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.dashboard.curves import Curve, band_of, metric_names, read_curve, t_quantile, thin
from trainmaster.dashboard.event_columns import EventColumns
from trainmaster.store import Store


def curve(y: list[float], x: list[float] | None = None) -> Curve:
    return Curve("update", np.array(range(len(y)) if x is None else x, dtype=float), np.array(y, dtype=float))


def test_few_points_are_all_kept() -> None:
    part = thin(curve([1.0] * 100), 100)
    assert ([*part.rows], part.is_sampled) == ([*range(100)], False)


@given(st.integers(0, 2**32 - 1), st.integers(300, 3000), st.integers(50, 200))
def test_peaks_first_and_last_points_survive(seed: int, size: int, points: int) -> None:
    values = np.random.default_rng(seed).standard_cauchy(size).tolist()
    part = thin(curve(values), points)
    kept = [values[row] for row in part.rows]
    assert len(kept) <= points + 10
    assert (min(kept), max(kept)) == (min(values), max(values))
    assert (part.rows[0], part.rows[-1]) == (0, len(values) - 1)
    assert [*part.rows] == sorted({*part.rows})


def test_a_nan_among_many_points_is_kept() -> None:
    values = [1.0] * 10_000
    values[777] = math.nan
    assert 777 in thin(curve(values), 100).rows


def test_points_do_not_jump_while_a_curve_grows() -> None:
    values = np.sin(np.arange(5000) / 7).tolist()
    before, after = thin(curve(values[:4400]), 500), thin(curve(values[:4500]), 500)
    assert {row for row in before.rows if row < 4000} == {row for row in after.rows if row < 4000}


def test_zoom_gives_every_point_between_its_edges() -> None:
    part = thin(curve([float(each % 97) for each in range(100_000)]), 1000, 500.0, 900.0)
    assert ([*part.rows], part.is_sampled) == ([*range(499, 902)], False)


def test_a_mean_is_taken_only_where_all_runs_have_a_value() -> None:
    band = band_of([curve([1.0, 2.0, 3.0]), curve([3.0, 4.0]), curve([5.0, 6.0, 7.0], [0.0, 1.0, 9.0])])
    assert (band.x.tolist(), band.mean.tolist()) == ([0.0, 1.0], [3.0, 4.0])


def test_one_run_has_no_interval() -> None:
    assert np.isnan(band_of([curve([1.0, 2.0])]).low).all()


def test_epochs_and_updates_are_never_averaged() -> None:
    assert len(band_of([curve([1.0]), curve([1.0])._replace(over="epoch")]).x) == 0


@pytest.mark.parametrize("df", [1, 2, 5, 29, 30, 31, 60, 500])
def test_t_quantiles(df: int) -> None:
    special = pytest.importorskip("scipy.special")
    assert t_quantile(df) == pytest.approx(special.stdtrit(df, 0.975), abs=1e-3)


# ---- logs


def test_a_log_is_read_on_where_the_last_read_ended(tmp_path: Path) -> None:
    store, columns = Store(tmp_path), EventColumns()
    key = store.configs.add({"lr": 0.1})
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        run = store.run(key)
        for step in range(5):
            attempt.log.append({"tag": "loss", "value": float(step), "step": step, "time": 1.0})
        attempt.log.sync()
        path = tmp_path / "stats" / key[:2] / key / "attempt-0001" / "events.jsonl"
        size = path.stat().st_size
        assert columns.of(run, 1).size == size
        with path.open("ab") as file:
            file.write(b'{"n":5,"tag":"loss","val')  # this line is still being written
        log = columns.of(run, 1)
        assert (log.size, log.num_events) == (size, 5)
        path.write_bytes(path.read_bytes()[:size])
        attempt.log.append({"tag": "loss", "value": math.inf, "step": 5, "time": 1.0})
        found = read_curve(columns, run, "loss")
        assert found is not None
        assert found.y.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, math.inf]
        attempt.release("stopped")


def test_a_line_with_a_wrong_checksum_ends_the_log(tmp_path: Path) -> None:
    store = Store(tmp_path)
    key = dashboard_store.add_run(store, {"lr": 0.1})
    path = tmp_path / "stats" / key[:2] / key / "attempt-0001" / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"value":', b'"value":1')
    path.write_bytes(b"".join(lines))
    assert EventColumns().of(store.run(key), 1).num_events == 3


def test_rows_that_a_resumed_run_has_dropped_are_not_drawn(tmp_path: Path) -> None:
    """The first attempt logged two more epochs after its last checkpoint and was killed; the second repeats them."""
    store, columns = Store(tmp_path), EventColumns()
    key = store.configs.add({"lr": 0.1})
    for number, epochs in enumerate([(1, 2, 3), (2, 3)]):
        with store.attempt(key, "process") as attempt:
            attempt.start(store.run(key).latest())
            for epoch in epochs:
                attempt.log.append({"tag": "loss", "value": epoch + 10.0 * number, "step": epoch, "over": "epoch", "time": 1.0})
                if number or epoch == 1:
                    attempt.save(epoch, {}, {"epoch": epoch, "step": epoch, "toc": 1.0}, {})
            attempt.release("stopped")
    found = read_curve(columns, store.run(key), "loss")
    assert found is not None
    assert (found.x.tolist(), found.y.tolist()) == ([1.0, 2.0, 3.0], [1.0, 12.0, 13.0])
    assert metric_names(columns, store.run(key)) == ["loss"]


def test_numbers_of_a_managers_evaluation_are_curves(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = [{"epoch": epoch, "eval": {"loss_test": 1.0 / epoch, "note": "x"}} for epoch in (1, 2)]
    key = dashboard_store.add_run(store, {"lr": 0.1}, metrics=["m"], rows=rows)
    found = read_curve(EventColumns(), store.run(key), "loss_test")
    assert found is not None
    assert (found.over, found.y.tolist()) == ("epoch", [1.0, 0.5])


def test_old_logs_are_forgotten_before_memory_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster.dashboard.event_columns.MAX_VALUES", 40)
    store, columns = Store(tmp_path), EventColumns()
    keys = [dashboard_store.add_run(store, {"lr": float(number)}) for number in range(5)]
    for key in keys:
        columns.of(store.run(key), 1)
    assert sum(log.num_values for log in columns._logs.values()) <= 40
    assert json.dumps([*columns.of(store.run(keys[0]), 1).series]) == '["valid/loss", "valid/accuracy", "train/loss"]'


def positions(*sizes: tuple[int, int]) -> list[dict[str, object]]:
    """Return the events at the end of each epoch, given the numbers of updates and samples in each epoch."""
    updates = np.cumsum([size[0] for size in sizes]).tolist()
    return [
        {
            "tag": "train/loss",
            "value": 1.0,
            "step": number,
            "over": "epoch",
            "time": dashboard_store.START,
            "position": {"epoch": number, "update": update, "num_batches": size[0], "num_samples": size[1]},
        }
        for number, (update, size) in enumerate(zip(updates, sizes, strict=True), 1)
    ]


def steps(name: str, xs: list[float], over: str) -> list[dict[str, object]]:
    return [{"tag": name, "value": float(x), "step": x, "over": over, "time": dashboard_store.START + x} for x in xs]


def by(store: Store, key: str, metric: str, axis: str) -> list[float] | None:
    """Return the x values of a metric on an axis, or None if it cannot be drawn on that axis."""
    found = read_curve(EventColumns(), store.run(key), metric, axis)
    assert found is not None
    return found.x.tolist() if found.is_placed else None


def test_an_axis_is_converted_with_what_the_run_recorded(tmp_path: Path) -> None:
    """The second epoch has twice as many updates as the first, so converting with the mean would be off by 2."""
    store = Store(tmp_path)
    rows = [*positions((4, 64), (8, 100)), *steps("lr", [1, 2, 4, 8, 12, 13], "update"), *steps("loss", [0, 1, 1.5, 2], "epoch")]
    key = dashboard_store.add_run(store, {"lr": 0.1}, metrics=(), rows=[*rows, *steps("seen", [32, 64, 114], "sample")])
    assert by(store, key, "loss", "update") == [0, 4, 8, 12]
    assert by(store, key, "loss", "sample") == [0, 64, 114, 164]
    assert by(store, key, "lr", "epoch") == [0.25, 0.5, 1, 1.5, 2], "update 13 is in an epoch that has not ended"
    assert by(store, key, "seen", "update") == [2, 4, 8]
    assert by(store, key, "loss", "epoch") == by(store, key, "loss", "step") == [0, 1, 1.5, 2]


def test_a_metric_is_not_drawn_where_its_place_is_unknown(tmp_path: Path) -> None:
    store = Store(tmp_path)
    key = dashboard_store.add_run(store, {"lr": 0.1}, metrics=("valid/loss",), rows=steps("lr", [1, 2], "update"))
    assert by(store, key, "valid/loss", "update") is None
    assert by(store, key, "lr", "epoch") is None
    assert by(store, key, "valid/loss", "time") is not None
    unknown = [{"tag": "own", "value": 1.0, "step": 3, "time": dashboard_store.START}]
    other = dashboard_store.add_run(store, {"lr": 0.2}, metrics=(), rows=[*positions((4, 64)), *unknown])
    assert (by(store, other, "own", "step"), by(store, other, "own", "epoch")) == ([3.0], None)


def test_an_epoch_without_a_recorded_end_is_not_guessed(tmp_path: Path) -> None:
    """The end of epoch 2 was not recorded, as happens after an upgrade during a run, and epoch 4 made no updates."""
    store = Store(tmp_path)
    first, _, third, fourth = positions((4, 64), (4, 64), (4, 64), (0, 64))
    key = dashboard_store.add_run(store, {}, metrics=(), rows=[first, third, fourth, *steps("loss", [1, 1.5, 2, 3, 4], "epoch")])
    assert by(store, key, "loss", "update") == [4, 12, 12]
    assert by(store, key, "loss", "sample") is None


def test_a_metric_logged_over_two_units_has_only_a_time_axis(tmp_path: Path) -> None:
    store = Store(tmp_path)
    key = dashboard_store.add_run(store, {}, metrics=(), rows=[*steps("loss", [1, 2], "epoch"), *steps("loss", [30], "update")])
    assert [by(store, key, "loss", axis) is None for axis in ("step", "epoch", "update", "time")] == [True, True, True, False]


def test_values_without_a_step_are_counted_over_all_attempts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    key = store.configs.add({"lr": 0.1})
    for number in (1, 2):
        with store.attempt(key, "process") as attempt:
            attempt.start(store.run(key).latest() if number > 1 else None)
            for value in (1.0, 2.0):
                attempt.log.append({"tag": "m", "value": value * number, "time": dashboard_store.START})
            attempt.save(number, {}, {"epoch": number, "step": number, "toc": 1.0}, {})
            attempt.release("stopped")
    found = read_curve(EventColumns(), store.run(key), "m")
    assert found is not None
    assert (found.x.tolist(), found.y.tolist()) == ([0, 1, 2, 3], [1, 2, 2, 4])
