"""The index is a cache: it may be deleted, damaged or outdated without any harm (faults I03 and R01)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainmaster.config import ConfigBase, Stateless, configclass
from trainmaster.errors import StoreAccessError
from trainmaster.store import Store
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.index import PATH, Index
from trainmaster.store.keys import config_path


@configclass
class Noted(ConfigBase):
    lr: float = 0.1
    note: Stateless[str] = ""


def filled(store: Store, size: int = 30) -> dict[str, Any]:
    """Add configs, and write them to the index."""
    keys = store.configs.add_many({"n": number, "name": "ü\u2028\n", "deep": {"a": None}} for number in range(size))
    found = dict(store.index)
    assert found.keys() == set(keys)
    return found


def test_the_index_has_every_config_with_its_key(store: Store) -> None:
    found = filled(store)
    assert found == {key: config.asdict() for key, config in store.configs.items()}


def test_the_index_of_an_empty_store_is_empty(store: Store) -> None:
    assert [*store.index] == []


def test_the_second_query_reads_no_configs(store: Store, counted: Callable[..., Any]) -> None:
    found = filled(store)
    files = counted(store.files)
    assert dict(Index(files, ConfigArchive(files, pytest.fail))) == found
    assert files.calls["read"] == files.calls["read_many"] == 0
    assert files.calls["open"] == 1
    assert files.calls["replace"] == 0


def test_a_deleted_index_is_rebuilt(store: Store) -> None:
    found = filled(store)
    store.files.delete_folder("index")
    assert dict(store.index) == found
    assert store.files.has(PATH)


@pytest.mark.parametrize("place", [0, 10, 63, 64, 65, 200, -1])
@pytest.mark.filterwarnings("error")
def test_a_damaged_index_is_ignored_and_rebuilt(store: Store, place: int) -> None:
    found = filled(store)
    good = store.files.read(PATH)
    changed = bytearray(good)
    changed[place] ^= 1
    store.files.replace(PATH, bytes(changed))
    assert dict(store.index) == found
    assert len(store.files.read(PATH)) == len(good)


@pytest.mark.parametrize("content", [b"", b"\n", b"garbage\n" * 50, b"\0" * 500])
def test_an_invalid_index_file_is_ignored(store: Store, content: bytes) -> None:
    found = filled(store)
    store.files.replace(PATH, content)
    assert dict(store.index) == found


def test_a_truncated_index_is_ignored(store: Store) -> None:
    found = filled(store)
    whole = store.files.read(PATH)
    for size in range(0, len(whole), 97):
        store.files.replace(PATH, whole[:size])
        assert dict(store.index) == found


def test_new_configs_are_seen_at_once(store: Store) -> None:
    found = filled(store, 300)
    for number in range(5):
        key = store.configs.add({"new": number})
        found[key] = {"new": number}
        assert dict(store.index) == found


def test_popped_configs_disappear_at_once(store: Store) -> None:
    found = filled(store)
    for key in [*found][:5]:
        store.pop(key)
        del found[key]
        assert dict(store.index) == found


def test_a_config_whose_file_is_missing_is_not_listed_even_if_the_index_has_it(store: Store) -> None:
    key, *others = filled(store)
    store.files.delete(config_path(key))
    assert {found for found, _ in store.index} == {*others}


def test_a_config_that_was_popped_and_added_again_has_the_new_stateless_value(store: Store) -> None:
    key = store.configs.add(Noted(note="first"))
    assert dict(store.index) == {key: {"lr": 0.1, "note": "first"}}
    store.pop(key)
    assert store.configs.add(Noted(note="second")) == key
    assert dict(store.index) == {key: {"lr": 0.1, "note": "second"}}


def test_each_config_is_reported_once(store: Store) -> None:
    filled(store)
    for number in range(3):
        key = store.configs.add({"new": number})
        assert key in dict(store.index)
        store.pop(key)
        store.configs.add({"new": number})
        keys = [key for key, _ in store.index]
        assert len(keys) == len(set(keys)) == 31 + number


def test_a_store_works_if_the_index_cannot_be_written(store: Store, before: Callable[..., Any]) -> None:
    keys = store.configs.add_many({"n": number} for number in range(5))

    def refuse() -> None:
        raise StoreAccessError("read-only")

    files = before(store.files, "replace", PATH, refuse)
    assert {key for key, _ in Index(files, store.configs)} == set(keys)
    assert not store.files.has(PATH)


def test_a_damaged_config_is_left_out_with_a_warning(store: Store) -> None:
    keys = store.configs.add_many({"n": number} for number in range(3))
    store.files.replace(config_path(keys[1]), b"half")
    with pytest.warns(UserWarning, match=f"run {keys[1]} is skipped: `{config_path(keys[1])}` is damaged: it is truncated"):
        found = dict(store.index)
    assert found.keys() == {keys[0], keys[2]}


def test_a_config_that_is_popped_at_the_same_time_is_left_out(store: Store, before: Callable[..., Any]) -> None:
    keys = store.configs.add_many({"n": number} for number in range(3))
    files = before(store.files, "read_many", f"configs/{keys[1][:2]}", lambda: store.pop(keys[1]))
    assert {key for key, _ in Index(files, ConfigArchive(files, pytest.fail))} == {keys[0], keys[2]}


def test_one_new_config_among_many_does_not_write_the_index_again(store: Store, counted: Callable[..., Any]) -> None:
    filled(store, 300)
    store.configs.add({"new": 1})
    files = counted(store.files)
    assert len([*Index(files, ConfigArchive(files, pytest.fail))]) == 301
    assert files.calls["replace"] == 0
    assert (files.calls["read"], files.calls["read_many"]) == (0, 1)


def test_two_queries_can_write_the_index_at_once(store: Store) -> None:
    keys = store.configs.add_many({"n": number} for number in range(20))
    one, other = iter(store.index), iter(store.index)
    for _ in range(10):
        next(one), next(other)
    assert len([*one]) == len([*other]) == 10
    assert dict(store.index).keys() == set(keys)
