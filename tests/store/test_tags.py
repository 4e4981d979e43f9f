"""Runs can have labels."""

from __future__ import annotations

import threading

import pytest

from trainmaster.errors import KeyTextError, StoreError, UnknownRunError
from trainmaster.store import Store


def test_labels_are_added_and_removed_one_by_one(store: Store) -> None:
    key = store.configs.add({"lr": 1})
    assert store.tags[key] == ()
    store.tags.add(key, ["b", "a"])
    store.tags.add(key, ["a", "c.d_e-f"])
    assert store.tags[key] == ("a", "b", "c.d_e-f")
    store.tags.remove(key, ["b", "never"])
    assert store.tags[key] == ("a", "c.d_e-f")


def test_all_labels_are_listed_by_run(store: Store) -> None:
    one, other, _ = (store.configs.add({"lr": number}) for number in range(3))
    store.tags.add(one, ["x"])
    store.tags.add(other, ["y", "x"])
    assert store.tags.all() == {one: ("x",), other: ("x", "y")}


def test_a_removed_run_leaves_no_labels(store: Store) -> None:
    one, other = (store.configs.add({"lr": number}) for number in range(2))
    for key in (one, other):
        store.tags.add(key, ["x"])
    store.pop(one)
    store.remove(other)
    assert store.tags.all() == {}
    assert store.files.names(f"tags/{one[:2]}") == []


@pytest.mark.parametrize("label", ["", ".", "..", "a/b", "a b", ".x", "-x", "x.tmp", "é", "a\n", "x" * 65, "\x1b"])
def test_an_invalid_label_is_refused_before_anything_is_written(store: Store, label: str) -> None:
    key = store.configs.add({"lr": 1})
    with pytest.raises(StoreError, match="is not a label"):
        store.tags.add(key, ["good", label])
    with pytest.raises(StoreError, match="is not a label"):
        store.tags.remove(key, [label])
    assert store.tags[key] == ()


def test_only_existing_runs_can_have_labels(store: Store) -> None:
    with pytest.raises(UnknownRunError):
        store.tags.add("0123abcd", ["x"])
    with pytest.raises(KeyTextError):
        store.tags.add("../../x", ["x"])
    assert store.tags.all() == {}


def test_threads_that_tag_one_run_at_once_lose_no_label(disk: Store) -> None:
    key = disk.configs.add({"lr": 1})

    def tag(start: int) -> None:
        for number in range(20):
            disk.tags.add(key, [f"t{start}-{number}", "both"])

    threads = [threading.Thread(target=tag, args=(start,)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(disk.tags[key]) == 61


def test_unknown_file_names_are_not_labels(disk: Store) -> None:
    key = disk.configs.add({"lr": 1})
    disk.files.create(f"tags/{key[:2]}/{key}/\x1b[2J", b"")
    disk.files.create("tags/zz/not a key/x", b"")
    assert disk.tags.all() == {}
    assert disk.verify() == []
