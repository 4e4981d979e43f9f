"""The index of runs knows when its rows can be used, and when a run must be read again (fault I03)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_runs import add_run, make_old

from trainmaster.config import Config, group_of
from trainmaster.config.seed import replicate_key, seed_of
from trainmaster.errors import StoreAccessError
from trainmaster.store import Store
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.dict_filter import value_at, value_tests
from trainmaster.store.index import PATH, Index, summary_at
from trainmaster.store.run_table import MISSING, RunTable, joined, table_of
from trainmaster.store.summary import Summary, summarize


def summaries(store: Store) -> dict[str, Summary]:
    table = store.index.runs()
    return {key: summary_at(table, row, store.tags[key]) for row, key in enumerate(table.keys)}


def summarized(store: Store) -> dict[str, Summary]:
    return {key: summarize(store, key) for key in store.configs}


def is_read_again(store: Store, counted: Callable[..., Any]) -> bool:
    files = counted(store.files)
    Index(files, ConfigArchive(files, pytest.fail)).runs()
    return files.calls["read"] > 0


@pytest.fixture
def filled(disk: Store) -> list[str]:
    """Create ten runs in several states, and write them to the index."""
    keys = [add_run(disk, {"n": number, "model": {"width": 8 * number}}, [{"valid/loss": 1 / (1 + number)}]) for number in range(7)]
    keys.append(add_run(disk, {"n": 7}, outcome="failed", error="boom"))
    keys.append(add_run(disk, {"n": 8, "deep": {"a": None, "b": []}}, outcome="stopped", reason="asked to"))
    keys.append(disk.configs.add({"n": 9, "lr": float("nan")}))
    make_old(disk)
    assert len(disk.index.runs()) == 10
    return keys


def test_a_row_of_the_index_is_the_summary_of_its_run(disk: Store, filled: list[str]) -> None:
    assert disk.files.has(PATH)
    found, wanted = summaries(disk), summarized(disk)
    nan = filled[9]
    assert str(found.pop(nan)) == str(wanted.pop(nan))  # NaN is not equal to itself
    assert found == wanted


def test_runs_that_have_ended_are_not_read_again(disk: Store, filled: list[str], counted: Callable[..., Any]) -> None:
    assert not is_read_again(disk, counted)


def test_a_run_that_was_resumed_is_read_again(disk: Store, filled: list[str]) -> None:
    add_run(disk, {"n": 0, "model": {"width": 0}}, [{"valid/loss": 0.5}, {"valid/loss": 0.25}])
    assert summaries(disk)[filled[0]].metrics == {"valid/loss": 0.25}


def test_a_run_that_was_resumed_within_one_tick_of_the_clock_is_read_again(disk: Store, filled: list[str]) -> None:
    """The timestamps are equal on file systems that store whole seconds, or if the clock was set back."""
    folder = f"{disk.root}/stats/{filled[0][:2]}/{filled[0]}"
    before = os.stat(folder)
    add_run(disk, {"n": 0, "model": {"width": 0}}, [{"valid/loss": 0.25}])
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert summaries(disk)[filled[0]].metrics == {"valid/loss": 0.25}


@pytest.mark.parametrize("hours", [-48, 48])
def test_the_index_is_correct_if_the_clock_jumps(disk: Store, filled: list[str], hours: int) -> None:
    folder = f"{disk.root}/stats/{filled[0][:2]}/{filled[0]}"
    moment = time.time() + 3600 * hours
    os.utime(folder, (moment, moment))
    disk.index.runs()
    add_run(disk, {"n": 0, "model": {"width": 0}}, [{"valid/loss": 0.25}])
    os.utime(folder, (moment - 60, moment - 60))
    assert summaries(disk)[filled[0]].metrics == {"valid/loss": 0.25}


def test_a_run_that_has_just_changed_is_not_cached(disk: Store, filled: list[str], counted: Callable[..., Any]) -> None:
    add_run(disk, {"n": 0, "model": {"width": 0}}, [{"valid/loss": 0.25}])
    disk.index.runs()
    assert is_read_again(disk, counted)
    make_old(disk)
    disk.index.runs()
    assert not is_read_again(disk, counted)


def test_a_running_run_is_read_each_time(disk: Store, filled: list[str]) -> None:
    with disk.attempt(filled[0], "process") as attempt:
        attempt.start(disk.run(filled[0]).latest())
        for step in range(1, 4):
            attempt.save(step, {}, {"epoch": step}, {"valid/loss": float(step)})
            make_old(disk)
            assert summaries(disk)[filled[0]].state == "running"
            assert summaries(disk)[filled[0]].metrics == {"valid/loss": float(step)}
        attempt.release("finished")
    make_old(disk)
    assert summaries(disk)[filled[0]].state == "finished"


def test_a_killed_run_is_read_each_time(disk: Store, held_elsewhere: Callable[..., Any]) -> None:
    """A killed run has no outcome, but one may still be written into its folder."""
    key = add_run(disk, {"n": 1})
    process = held_elsewhere(disk, key)
    make_old(disk)
    assert summaries(disk)[key].state == "running"
    process.kill()
    process.wait()
    make_old(disk)
    assert summaries(disk)[key].state == "finished"  # the killed attempt saved nothing
    from trainmaster.store.attempt import record_finished

    record_finished(disk.run(key), 3)
    assert summaries(disk)[key] == summarize(disk, key)


def test_labels_are_always_current(disk: Store, filled: list[str]) -> None:
    disk.tags.add(filled[0], ["paper"])
    assert summaries(disk)[filled[0]].tags == ("paper",)
    disk.tags.remove(filled[0], ["paper"])
    assert summaries(disk)[filled[0]].tags == ()


def test_removed_and_imported_runs_are_noticed(disk: Store, filled: list[str], tmp_path: Path) -> None:
    disk.export_tar(tmp_path / "one.tar", keys=[filled[1]])
    disk.remove(filled[1])
    assert filled[1] not in summaries(disk)
    disk.load_tar(tmp_path / "one.tar")
    make_old(disk)
    for _ in range(2):
        assert summaries(disk)[filled[1]] == summarize(disk, filled[1])


def test_a_run_that_was_reset_is_new_until_it_is_trained_again(disk: Store, filled: list[str]) -> None:
    disk.ckpts.pop(filled[2])
    make_old(disk)
    for _ in range(2):
        assert summaries(disk)[filled[2]].state == "new"
    add_run(disk, {"n": 2, "model": {"width": 16}}, [{"valid/loss": 7.0}])
    assert summaries(disk)[filled[2]].metrics == {"valid/loss": 7.0}


def test_a_preview_that_was_set_by_hand_is_noticed(disk: Store, filled: list[str]) -> None:
    disk.previews[filled[0]] = {"valid/loss": 9.0}
    assert summaries(disk)[filled[0]].metrics == {"valid/loss": 9.0}


def test_pruning_does_not_change_summaries(disk: Store) -> None:
    key = add_run(disk, {"n": 1}, [{"valid/loss": float(epoch)} for epoch in range(3)])
    make_old(disk)
    before = summaries(disk)[key]
    assert disk.prune(keep=1)
    assert summaries(disk)[key] == before == summarize(disk, key)


def test_a_damaged_run_is_not_cached_and_its_repair_is_noticed(disk: Store, filled: list[str]) -> None:
    path = Path(f"{disk.root}/{disk.run(filled[0]).path(1, 'resume.json')}")
    good = path.read_bytes()
    path.write_bytes(b"XX" + good[2:])
    disk.files.delete(PATH)
    assert summaries(disk)[filled[0]].state == "damaged"
    path.write_bytes(good)
    assert summaries(disk)[filled[0]].state == "finished"


def test_a_damaged_config_is_a_damaged_run(disk: Store, filled: list[str]) -> None:
    Path(f"{disk.root}/configs/{filled[0][:2]}/{filled[0]}.json").write_bytes(b"half")
    found = summaries(disk)[filled[0]]
    assert (found.state, found.config) == ("damaged", {})
    assert "truncated" in found.reason


@pytest.mark.parametrize("place", [0, 70, 300, -2])
def test_a_damaged_index_is_ignored(disk: Store, filled: list[str], place: int) -> None:
    wanted = summarized(disk)
    data = bytearray(disk.files.read(PATH))
    data[place] ^= 1
    disk.files.replace(PATH, bytes(data))
    assert str(summaries(disk)[filled[0]]) == str(wanted[filled[0]])
    assert len(disk.index.runs()) == 10


@pytest.mark.parametrize(
    "line", [b"[]", b"[1,[],{},{}]", b'[2,["a"],{},{},{}]', b'[1,["a"],{"config_size":[1,2,3]},{},{}]', b"nonsense", b"7"]
)
def test_an_index_that_another_program_wrote_is_ignored(disk: Store, filled: list[str], line: bytes) -> None:
    import hashlib

    disk.files.replace(PATH, hashlib.sha256(line + b"\n").hexdigest().encode() + b"\n" + line + b"\n")
    assert len(disk.index.runs()) == 10


def test_the_index_of_another_store_is_ignored(disk: Store, filled: list[str], tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    key = add_run(other, {"n": 0, "model": {"width": 0}}, [{"valid/loss": 123.0}])
    other.files.replace(PATH, disk.files.read(PATH))
    assert key == filled[0]
    assert summaries(other)[key].metrics == {"valid/loss": 123.0}


def test_a_store_that_cannot_be_written_is_read_without_an_index(disk: Store, before: Callable[..., Any]) -> None:
    key = add_run(disk, {"n": 1})
    make_old(disk)

    def refuse() -> None:
        raise StoreAccessError("read-only")

    files = before(disk.files, "replace", PATH, refuse)
    assert Index(files, ConfigArchive(files, pytest.fail)).runs().keys == [key]
    assert not disk.files.has(PATH)


def test_several_threads_can_write_the_index_at_once(disk: Store, filled: list[str]) -> None:
    disk.files.delete(PATH)
    found: list[RunTable] = []
    threads = [threading.Thread(target=lambda: found.append(Store(disk.root).index.runs())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [{*each.keys} for each in found] == [{*filled}] * 4
    assert len(disk.index.runs()) == 10


def test_reading_the_configs_keeps_the_summaries_in_the_index(disk: Store, filled: list[str], counted: Callable[..., Any]) -> None:
    disk.configs.add_many({"new": number} for number in range(5))
    assert len(disk.index.configs()) == 15  # writes the index again
    disk.index.runs([*disk.configs])
    assert not is_read_again(disk, counted)


def test_some_runs_can_be_read_without_the_others(disk: Store, filled: list[str], counted: Callable[..., Any]) -> None:
    disk.files.delete(PATH)
    read: list[str] = []

    def progress(keys: list[str]) -> list[str]:
        read.extend(keys)
        return keys

    assert {*disk.index.runs(filled[:2], progress).keys} == {*filled[:2]} == {*read}


def test_a_large_index_has_several_lines_and_keeps_those_that_do_not_change(store: Store) -> None:
    store.configs.add_many({"n": number, "constant": "x"} for number in range(4500))
    store.index.runs()
    lines = store.files.read(PATH).splitlines()[1:]
    assert len(lines) == 3
    assert lines[0].count(b'"x"') == 1
    store.configs.add_many({"n": number, "other": 1} for number in range(100))
    assert len(store.index.runs()) == 4600
    assert lines[0] in store.files.read(PATH).splitlines()


# ---- tables


def test_a_table_keeps_the_types_of_values_and_missing_values() -> None:
    rows = [
        ("a", {"state": "new"}, {"x": 1, "l": [1, 2]}, {}),
        ("b", {}, {"x": True, "l": []}, {"m": float("inf")}),
        ("c", {}, {"x": 1.0}, {}),
    ]
    table = RunTable.decode(table_of(rows).encode())
    assert [type(value) for value in table.config["x"]] == [int, bool, float]
    assert table.config["l"] == [[1, 2], [], MISSING]
    assert table.metrics["m"] == [MISSING, float("inf"), MISSING]
    assert table.fact("state") == ["new", None, None]


def test_a_constant_column_is_stored_once_and_1_differs_from_true() -> None:
    table = table_of(("k", {}, {"x": value}, {}) for value in (1, True, 1.0))
    assert [type(value) for value in RunTable.decode(table.encode()).config["x"]] == [int, bool, float]


def test_joined_tables_have_the_columns_of_all() -> None:
    one, other = table_of([("a", {}, {"x": 1}, {})]), table_of([("b", {}, {"y": 2}, {})])
    table = joined([one, other])
    assert (table.config["x"], table.config["y"]) == ([1, MISSING], [MISSING, 2])
    assert table.take([1, 0]).keys == ["b", "a"]
    assert list(table.trees()) == [{"x": 1}, {"y": 2}]


def test_a_key_can_be_a_value_in_one_config_and_a_group_in_another() -> None:
    table = table_of([("a", {}, {"x": 1}, {}), ("b", {}, {"x.y": 2}, {})])
    assert list(table.trees()) == [{"x": 1}, {"x": {"y": 2}}]


VALUES = st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=2) | st.lists(st.integers(0, 2), max_size=2)
NAMES = st.sampled_from(["seed", "random_seed", "lr", "data_seed", "model", "width"])
TREES = st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=4)


@given(st.lists(TREES, min_size=1, max_size=5), st.booleans())
def test_replicates_are_the_same_from_the_index_as_from_the_config(trees: list[dict[str, Any]], has_secret: bool) -> None:
    store = Store(None)
    configs = {store.configs.add(each): each for each in (Config(tree, secrets=["lr"] if has_secret else []) for tree in trees)}
    table = store.index.configs()
    for key, group, replicate, seed in zip(table.keys, *map(table.fact, ("group", "replicate", "config_seed")), strict=True):
        config = configs[key]
        assert (group, replicate, seed) == (group_of(config, 16), replicate_key(config, 16), seed_of(config))


ACCEPTED = VALUES.filter(lambda value: value is None or value == value) | st.tuples(
    st.none() | st.integers(0, 2), st.none() | st.integers(0, 2)
)


@given(st.lists(TREES, max_size=5), st.dictionaries(NAMES | st.just("model.width"), ACCEPTED | st.just(callable), max_size=2))
def test_the_rows_that_meet_a_condition_are_those_whose_configs_meet_it(trees: list[dict[str, Any]], condition: dict[str, Any]) -> None:
    store = Store(None)
    store.configs.add_many(trees)
    table = store.index.configs()
    tests = [(key.split("."), is_accepted) for key, is_accepted in value_tests(condition)]
    expected = []
    for row, tree in enumerate(table.trees()):
        values = [(value_at(tree, path), is_accepted) for path, is_accepted in tests]
        if all(value is not MISSING and is_accepted(value) for value, is_accepted in values):
            expected.append(row)
    assert table.matching(condition) == expected


def test_a_condition_on_a_group_compares_the_whole_group() -> None:
    table = table_of(
        [("a", {}, {"model.width": 1, "lr": 1}, {}), ("b", {}, {"model.width": 1, "model.depth": 2}, {}), ("c", {}, {"models": 1}, {})]
    )
    assert table.matching({"model": lambda group: group == {"width": 1}}) == [0]
    assert table.matching({"model.width": 1}) == [0, 1]
    assert table.matching(None) == [0, 1, 2]


def test_a_condition_function_cannot_change_the_table() -> None:
    table = table_of([("a", {}, {"sizes": [3, 1]}, {})])
    assert table.matching({"sizes": lambda sizes: sizes.sort() is None}) == [0]
    assert table.config["sizes"] == [[3, 1]]


@pytest.mark.parametrize("rows", [range(-1), range(1, 3), range(3), range(2, 0, -1)])
def test_rows_can_be_taken_as_a_range(rows: range) -> None:
    table = table_of((name, {}, {"x": name}, {}) for name in "abc")
    assert table.take(rows).keys == ["abc"[row] for row in rows]
    with pytest.raises(IndexError):
        table.take(range(1, 9))


def test_the_configs_of_many_runs_are_in_the_order_of_the_rows() -> None:
    table = table_of((str(number), {}, {"n": number, **({"x.y": 1} if number > 2500 else {})}, {}) for number in range(4001))
    assert [*table.trees()] == [{"n": number, **({"x": {"y": 1}} if number > 2500 else {})} for number in range(4001)]
