"""Pruning deletes unused files and nothing else, even while other processes work (contract J8, fault L12)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster.errors import SettingError
from trainmaster.store import Attempt, Store
from trainmaster.store.attempt import claim
from trainmaster.store.attempt_records import ATTEMPT, RESUME
from trainmaster.store.checkpoint import TREE, CheckpointName
from trainmaster.store.files import SAFE_AGE
from trainmaster.store.prune import prune
from trainmaster.store.run import Run

Take = Callable[..., Attempt]
Save = Callable[..., None]


@pytest.fixture
def key(store: Store) -> str:
    return store.configs.add({"lr": 0.1})


def saved(store: Store, key: str, take: Take, save: Save, *steps: int) -> Attempt:
    attempt = take(store.files, key)
    for step in steps:
        attempt.log.append({"epoch": step})
        save(attempt, step, keep=10)
    return attempt


def steps(store: Store, key: str) -> list[int]:
    return [name.step for name in store.run(key).checkpoints()]


def test_an_empty_store_has_nothing_to_prune(store: Store) -> None:
    assert store.prune() == []


@pytest.mark.parametrize("keep", [0, -1, True, 1.0, None, "3"])
def test_keeping_no_checkpoint_is_refused(store: Store, keep: Any) -> None:
    with pytest.raises(SettingError, match="`keep` must be a whole number of at least 1"):
        store.prune(keep)


def test_all_but_the_last_checkpoints_are_deleted(store: Store, key: str, take: Take, save: Save) -> None:
    saved(store, key, take, save, 1, 2, 3).release("saved")
    saved(store, key, take, save, 4, 5).release("saved")
    dropped = store.prune(keep=3)
    assert steps(store, key) == [5, 4, 3]
    assert sorted(dropped) == [CheckpointName(1, step, 1).folder(key) for step in (1, 2)]


def test_pruning_again_deletes_nothing(store: Store, key: str, take: Take, save: Save) -> None:
    saved(store, key, take, save, 1, 2, 3).release("saved")
    store.prune(keep=1)
    assert store.prune(keep=1) == []
    assert steps(store, key) == [3]


def test_stats_preview_and_events_are_kept(store: Store, key: str, take: Take, save: Save) -> None:
    saved(store, key, take, save, 1, 2, 3).release("saved")
    before = (store.stats[key], store.previews[key], store.run(key).events(), store.ckpts[key])
    store.prune(keep=1)
    assert (store.stats[key], store.previews[key], store.run(key).events(), store.ckpts[key]) == before
    assert store.verify() == []


def test_damaged_checkpoints_are_deleted_if_good_ones_remain(store: Store, key: str, take: Take, save: Save) -> None:  # J8
    saved(store, key, take, save, 1, 2, 3).release("saved")
    store.files.replace(f"{CheckpointName(1, 2, 1).folder(key)}/{TREE}", b"bad")
    assert store.prune(keep=2) == [CheckpointName(1, 2, 1).folder(key)]
    assert steps(store, key) == [3, 1]


def test_if_all_checkpoints_are_damaged_none_is_deleted(store: Store, key: str, take: Take, save: Save) -> None:
    saved(store, key, take, save, 1, 2).release("saved")
    for step in (1, 2):
        store.files.replace(f"{CheckpointName(1, step, 1).folder(key)}/{TREE}", b"bad")
    assert store.prune(keep=1) == []
    assert steps(store, key) == [2, 1]


def test_a_damaged_run_is_not_pruned(store: Store, key: str, take: Take, save: Save) -> None:
    saved(store, key, take, save, 1, 2).release("saved")
    store.files.replace(store.run(key).path(1, RESUME), b"bad")
    other = store.configs.add({"lr": 0.2})
    saved(store, other, take, save, 1, 2).release("saved")
    store.prune(keep=1)
    assert len(store.files.names(f"ckpts/{key[:2]}/{key}/attempt-0001")) == 2
    assert steps(store, other) == [2], "the other run is still pruned"


def test_a_run_whose_checkpoints_are_lost_keeps_its_records(store: Store, key: str, take: Take, save: Save) -> None:
    saved(store, key, take, save, 1).release("saved")
    store.files.delete_folder(f"ckpts/{key[:2]}/{key}")
    store.prune()
    assert store.stats[key]["epoch"] == 1


def test_the_records_of_a_run_that_never_saved_are_deleted(store: Store, key: str, take: Take) -> None:  # J8
    take(store.files, key).release("failed")
    assert store.prune() == [f"stats/{key[:2]}/{key}"]
    assert key not in store.stats
    assert key not in store.previews
    assert key in store.configs


def test_a_run_that_was_pruned_can_be_trained(store: Store, key: str, take: Take, save: Save) -> None:
    take(store.files, key).release("failed")
    store.prune()
    saved(store, key, take, save, 1)
    assert store.ckpts[key] == {"step": 1}
    assert store.verify() == []


def test_an_incomplete_checkpoint_is_deleted(store: Store, key: str, take: Take, save: Save) -> None:
    saved(store, key, take, save, 1).release("saved")
    half = CheckpointName(1, 2, 1).folder(key)
    store.files.write(f"{half}/{TREE}", [b"half"])
    assert store.prune() == [half]
    assert not store.files.has(f"{half}/{TREE}")


def test_checkpoints_outside_the_chain_are_deleted(store: Store, key: str, take: Take, save: Save) -> None:
    saved(store, key, take, save, 1).release("saved")
    fresh = claim(store.run(key), "test", 60)
    fresh.start(None)
    fresh.release("saved")
    again = claim(store.run(key), "test", 60)
    again.start(None)
    save(again, 1)
    again.release("saved")
    store.prune()
    assert [store.run(key).own_checkpoints(number) for number in (1, 2, 3)] == [[], [], [CheckpointName(3, 1, 1)]]


def test_a_run_that_is_held_is_skipped(store: Store, key: str, take: Take, save: Save) -> None:
    saved(store, key, take, save, 1, 2, 3)
    store.files.write(f"{CheckpointName(1, 4, 1).folder(key)}/{TREE}", [b"in the making"])
    assert store.prune(keep=1) == []
    assert steps(store, key) == [3, 2, 1]


def test_a_run_that_another_machine_may_hold_is_skipped(store: Store, key: str, take: Take, save: Save, claimed_by: Any) -> None:
    saved(store, key, take, save, 1, 2, 3).release("saved")
    claimed_by(store, key, 2)
    assert store.prune(keep=1) == []
    assert steps(store, key) == [3, 2, 1]


def test_a_run_that_saves_for_the_first_time_during_pruning_loses_nothing(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any]
) -> None:
    take(store.files, key).release("failed")
    files = before(store.files, "create", ATTEMPT, lambda: saved(store, key, take, save, 1).release("saved"))
    [*prune(files, 3, 60)]
    assert store.ckpts.get(key) == {"step": 1}, "an acknowledged checkpoint is lost"
    assert store.stats[key]["epoch"] == 1


@pytest.mark.parametrize(("method", "ending"), [("open", TREE), ("delete", "manifest.json"), ("delete_folder", "step-000001")])
def test_a_run_that_is_resumed_during_pruning_loses_nothing(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any], method: str, ending: str
) -> None:
    saved(store, key, take, save, 1, 2).release("saved")
    files = before(store.files, method, ending, lambda: saved(store, key, take, save, 3))
    [*prune(files, 1, 60)]
    assert store.ckpts.get(key) == {"step": 3}, "an acknowledged checkpoint is lost"
    assert store.verify() == []


def test_leftovers_of_a_killed_removal_are_deleted(
    store: Store, key: str, take: Take, save: Save, crash: Callable[..., None], before: Callable[..., Any]
) -> None:
    saved(store, key, take, save, 1, 2).release("saved")

    def kill() -> None:
        raise KeyboardInterrupt

    removal = claim(Run(before(store.files, "delete_folder", "attempt-0001", kill), key), "pop", 60)
    with pytest.raises(KeyboardInterrupt):
        removal.remove()
    crash(removal)
    store.prune()
    assert store.files.names(f"ckpts/{key[:2]}/{key}") == []
    assert store.run(key).attempts() == [2]
    assert store.verify() == []


@pytest.mark.parametrize(
    "folder", ["configs/{0}", "stats/{1}/attempt-0001", "previews/{1}/attempt-0001", "ckpts/{1}/attempt-0001/step-000001", "index"]
)
def test_old_temporary_files_are_deleted_everywhere(disk: Store, take: Take, save: Save, folder: str) -> None:  # C16
    key = disk.configs.add({"lr": 0.1})
    saved(disk, key, take, save, 1).release("saved")
    assert key in dict(disk.index)
    path = Path(str(disk.root), folder.format(key[:2], f"{key[:2]}/{key}"), ".0123.tmp")
    path.write_bytes(b"half")
    now = path.stat().st_mtime
    disk.prune()
    assert path.exists(), "a process may still be writing it"
    os.utime(path, (now - SAFE_AGE - 60,) * 2)
    disk.prune()
    assert not path.exists()
