"""All viewers share one table: a request updates it, only changed runs are read again, and outdated values are never shown silently."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dashboard_store
import pytest

from trainmaster.dashboard import live_table
from trainmaster.dashboard.app import Dashboard
from trainmaster.dashboard.live_table import LiveTable
from trainmaster.dashboard.run_rows import Query
from trainmaster.store import Store
from trainmaster.store.index import Index


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the keys of all runs whose files are read."""
    found: list[str] = []
    read = Index._row

    def recorded(self: Index, key: str, *rest: Any) -> Any:
        found.append(key)
        return read(self, key, *rest)

    monkeypatch.setattr(Index, "_row", recorded)
    return found


def test_only_runs_that_changed_are_read_again(tmp_path: Path, always_scanned: None, reads: list[str]) -> None:
    store, keys = dashboard_store.make_store(tmp_path)
    live = LiveTable(store)
    first = live.current()
    assert sorted(reads) == sorted(keys.values())
    reads.clear()
    assert live.current() is first
    assert reads == []
    new = dashboard_store.add_run(Store(tmp_path), {"lr": 5.0})
    second = live.current()
    assert reads == [new]
    assert (second.number, len(second.table)) == (first.number + 1, 7)


def test_a_resumed_run_is_read_again(tmp_path: Path, always_scanned: None) -> None:
    store, keys = dashboard_store.make_store(tmp_path)
    live, key = LiveTable(store), keys["failed"]
    assert live.current().table.fact("state").count("failed") == 1
    other = Store(tmp_path)
    with other.attempt(key, "process") as attempt:
        attempt.start(other.run(key).latest())
        assert live.current().table.facts["state"][live.current().rows[key]] == "running"
        attempt.save(60, {}, {"epoch": 6, "step": 60, "toc": 1.0}, {"valid/loss": 0.25})
        view = live.current()
        assert view.table.metrics["valid/loss"][view.rows[key]] == 0.25
        attempt.release("finished")
    view = live.current()
    assert (view.table.facts["state"][view.rows[key]], view.table.facts["epoch"][view.rows[key]]) == ("finished", 6)


def test_a_killed_run_is_read_once_more_and_then_left_alone(tmp_path: Path, always_scanned: None, reads: list[str]) -> None:
    store, keys = dashboard_store.make_store(tmp_path)
    key = keys["0.1-0"]
    (tmp_path / "stats" / key[:2] / key / "attempt-0001" / "outcome.json").unlink()
    live = LiveTable(store)
    view = live.current()
    assert view.table.facts["state"][view.rows[key]] == "killed"
    live.current()
    reads.clear()
    live.current()
    assert reads == []
    (tmp_path / "stats" / key[:2] / key / "attempt-0001" / "status.json").write_text("{")
    view = live.current()
    assert view.table.facts["state"][view.rows[key]] == "damaged"


def test_nobody_scans_twice_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = dashboard_store.make_store(tmp_path)
    live = LiveTable(store)
    first = live.current()
    dashboard_store.add_run(Store(tmp_path), {"lr": 5.0})
    monkeypatch.setattr(live_table, "PERIOD", 1000.0)
    assert live.current() is first
    live.forget()
    monkeypatch.setattr(live_table, "PERIOD", 0.0)
    assert len(live.current().table) == 7


def test_equal_values_are_stored_once(tmp_path: Path) -> None:
    store, _ = dashboard_store.make_store(tmp_path)
    columns = LiveTable(store).current().table.config
    assert len({id(value) for value in columns["model.arch"]}) == 2
    assert all(type(value) is float for value in columns["lr"])


def test_true_and_one_stay_apart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for value in (1, 1.0, True):
        store.configs.add({"x": value, "kind": type(value).__name__})
    table = LiveTable(store).current().table
    assert {kind: type(value).__name__ for kind, value in zip(table.config["kind"], table.config["x"], strict=True)} == {
        "int": "int",
        "float": "float",
        "bool": "bool",
    }


def test_many_changes_are_read_through_the_index_with_the_same_result(
    tmp_path: Path, always_scanned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan has already listed all folders, so the index does not list them again."""
    store, keys = dashboard_store.make_store(tmp_path)
    expected = LiveTable(store).current().table
    monkeypatch.setattr(live_table, "_MAX_SINGLE", 0)
    listed: list[str] = []
    marks = Index.run_marks
    monkeypatch.setattr(Index, "run_marks", lambda self: listed.append("stats") or marks(self))
    for _ in range(2):  # the second time, the index is already on disk
        live = LiveTable(store)
        table = live.current().table
        assert sorted(table.keys) == sorted(expected.keys)
        by_key = {key: row for row, key in enumerate(expected.keys)}
        order = [by_key[key] for key in table.keys]
        for name in ("state", "epoch", "started", "best.value", "reason"):
            assert table.fact(name) == [expected.fact(name)[row] for row in order]
    assert listed == ["stats"] * 2
    key = keys["failed"]
    with store.attempt(key, "process") as attempt:
        attempt.start(store.run(key).latest())
        assert live.current().table.facts["state"][live.current().rows[key]] == "running"
        attempt.release("stopped")


def test_the_first_page_is_computed_before_anybody_asks(tmp_path: Path) -> None:
    store, _ = dashboard_store.make_store(tmp_path)
    dashboard = Dashboard(store)
    dashboard.prepare()
    end = time.monotonic() + 60
    while Query() not in dashboard.selections._found:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert dashboard.describe()["num_runs"] == 6


def test_a_large_store_is_shown_from_its_index_before_its_folders_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first table shows the runs in the index. The first scan then removes a deleted run and adds a new one."""
    monkeypatch.setattr(live_table, "_MANY", 10)
    dashboard_store.write_many(tmp_path, 20, 3)
    store = Store(tmp_path)
    monkeypatch.setattr(live_table, "_MAX_SINGLE", 0)  # forces the use of the index, because these runs have no files
    expected = LiveTable(store)
    expected._scan()
    monkeypatch.undo()
    monkeypatch.setattr(live_table, "_MANY", 10)
    listed: list[str] = []
    marks = Index.run_marks
    monkeypatch.setattr(Index, "run_marks", lambda self: listed.append("stats") or marks(self))
    live = LiveTable(store)
    view = live.current()
    assert (len(view.table), view.number, listed) == (20, 1, [])
    full = expected.current().table
    order = [full.keys.index(key) for key in view.table.keys]
    for name, column in {**full.facts, **full.config, **full.metrics}.items():
        own = {**view.table.facts, **view.table.config, **view.table.metrics}[name]
        assert own == [column[row] for row in order], name
    gone = view.table.keys[0]
    store.remove(gone)
    new = dashboard_store.add_run(Store(tmp_path), {"lr": 5.0})
    assert live.current() is view
    live.forget()
    later = live.current()
    assert {*later.table.keys} == {*view.table.keys} - {gone} | {new}
    assert listed == ["stats"]


def test_a_scan_without_changes_keeps_the_table_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]) -> None:
    monkeypatch.setattr(live_table, "_MANY", 10)
    dashboard_store.write_many(tmp_path, 20, 3)
    live = LiveTable(Store(tmp_path))
    view = live.current()
    live.forget()
    assert live.current() is view
    assert reads == []
