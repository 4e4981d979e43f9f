"""The archives of runs work like dicts, and writing to them requires the run's lease (contracts J6, J11 and J21)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainmaster.errors import RunBusyError, StoreError, UnknownRunError
from trainmaster.store import Attempt, Store

Take = Callable[..., Attempt]
Save = Callable[..., None]


@pytest.fixture
def key(store: Store) -> str:
    return store.configs.add({"lr": 0.1})


@pytest.fixture(params=["stats", "ckpts", "previews"])
def archive(request: pytest.FixtureRequest, store: Store) -> Any:
    return getattr(store, request.param)


def test_a_run_that_never_started_is_in_no_archive(archive: Any, key: str) -> None:
    assert key not in archive
    assert archive.get(key) is None
    assert archive.get(key, 3) == 3
    assert len(archive) == 0
    assert [*archive.items()] == []
    with pytest.raises(UnknownRunError, match=f"run {key} has no .* yet"):
        archive[key]


def test_a_run_that_was_saved_is_in_each_archive(store: Store, archive: Any, key: str) -> None:
    store.ckpts[key] = {"w": 1}
    assert key in archive
    assert [*archive] == [*archive.keys()] == [key]
    assert [*archive.values()] == [archive[key]] == [archive.get(key)]
    assert [*archive.items()] == [(key, archive[key])]
    assert len(archive) == 1


def test_a_run_whose_checkpoint_is_damaged_can_be_reset(store: Store, key: str) -> None:
    store.ckpts[key] = {"w": 1}
    folder = f"ckpts/{key[:2]}/{key}/attempt-0001/step-000000"
    store.files.replace(f"{folder}/tree.json", b"{}")
    assert store.ckpts.pop(key) is None
    assert key not in store.stats
    assert store.configs[key] == {"lr": 0.1}


def test_an_archive_without_runs_is_true(archive: Any) -> None:
    assert archive


@pytest.mark.parametrize("wrong", [3, None, "x", "AB12CD34"])
def test_an_invalid_key_is_in_no_archive(archive: Any, wrong: Any) -> None:
    assert wrong not in archive


def test_archives_iterate_over_all_runs(store: Store, archive: Any) -> None:
    keys = store.configs.add_many({"n": number} for number in range(10))
    for key in keys[:7]:
        store.ckpts[key] = key
    assert sorted(archive) == sorted(keys[:7])


def test_iterating_reads_nothing_before_it_is_needed(store: Store, archive: Any) -> None:  # J6: these are generators
    for number in range(3):
        store.ckpts[store.configs.add({"n": number})] = number
    for found in (archive.keys(), archive.values(), archive.items()):
        assert isinstance(found, Iterator)
        next(found)


# ---- like dicts (J6)


@pytest.fixture(params=["configs", "stats", "ckpts", "previews"])
def any_archive(request: pytest.FixtureRequest, store: Store) -> Any:
    return getattr(store, request.param)


def test_get_with_an_invalid_key_returns_the_default(any_archive: Any) -> None:
    assert any_archive.get("nope", 5) == 5
    assert any_archive.get("nope") is None


def test_an_invalid_key_raises_a_key_error(any_archive: Any) -> None:
    for get in (any_archive.__getitem__, any_archive.pop):
        with pytest.raises(KeyError, match="'nope' is not a key"):
            get("nope")


def test_pop_of_a_missing_run_returns_the_default_or_raises(store: Store, any_archive: Any) -> None:
    assert any_archive.pop("0" * 8, 5) == 5
    with pytest.raises(KeyError):
        any_archive.pop("0" * 8)
    assert store.run("0" * 8).attempts() == []


@pytest.mark.parametrize("name", ["stats", "ckpts"])
def test_pop_returns_a_record_and_resets_the_run(store: Store, key: str, name: str) -> None:
    store.ckpts[key] = {"w": 1}
    before = getattr(store, name)[key]
    assert getattr(store, name).pop(key) == before
    assert [key in each for each in (store.configs, store.stats, store.ckpts, store.previews)] == [True, False, False, False]
    store.ckpts[key] = {"w": 2}
    assert store.ckpts[key] == {"w": 2}
    assert store.verify() == []


def test_pop_of_a_preview_empties_it_and_keeps_the_checkpoint(store: Store, key: str) -> None:
    store.ckpts[key] = {"w": 1}
    store.previews[key] = {"loss": 0.5}
    assert store.previews.pop(key) == {"loss": 0.5}
    assert (store.previews[key], store.ckpts[key]) == ({}, {"w": 1})


def test_pop_of_a_config_removes_its_run(store: Store, key: str) -> None:
    store.ckpts[key] = {"w": 1}
    assert store.configs.pop(key) == {"lr": 0.1}
    assert [key in each for each in (store.configs, store.stats, store.ckpts, store.previews)] == [False] * 4


def test_pop_is_refused_while_a_process_trains_the_run(store: Store, key: str, any_archive: Any, take: Take, save: Save) -> None:
    store.ckpts[key] = {"w": 1}
    take(store.files, key)
    with pytest.raises(RunBusyError):
        any_archive.pop(key)
    assert store.ckpts[key] == {"w": 1}


# ---- checkpoints


@pytest.mark.parametrize("value", [0, False, "", [], {}, {"w": [1.0]}, (1, {2}), b"x"], ids=repr)
def test_a_checkpoint_that_was_set_can_be_read(store: Store, key: str, value: Any) -> None:
    store.ckpts[key] = value
    assert store.ckpts[key] == value
    assert type(store.ckpts[key]) is type(value)


def test_setting_a_checkpoint_again_replaces_it(store: Store, key: str) -> None:
    for value in range(6):
        store.ckpts[key] = value
        assert store.ckpts[key] == value


def test_a_checkpoint_that_is_set_keeps_epoch_preview_and_events(store: Store, key: str, take: Take, save: Save) -> None:
    attempt = take(store.files, key)
    attempt.log.append({"epoch": 7})
    save(attempt, 7)
    attempt.release("saved")
    store.ckpts[key] = "edited"
    assert store.stats[key]["epoch"] == 7
    assert store.previews[key] == {"loss": 1 / 8}
    assert store.run(key).events() == [{"epoch": 7}]


def test_a_value_that_cannot_be_stored_changes_nothing(store: Store, key: str) -> None:
    store.ckpts[key] = 1
    with pytest.raises(StoreError):
        store.ckpts[key] = object()
    assert store.ckpts[key] == 1
    store.ckpts[key] = 2
    assert store.ckpts[key] == 2


# ---- stats


def test_the_stats_of_a_run_contain_epoch_and_times(store: Store, key: str) -> None:  # J11
    store.ckpts[key] = 1
    assert store.stats[key].keys() == {"epoch", "toc", "t_train", "t_eval"}
    assert store.stats[key]["epoch"] == 0


def test_a_claim_before_any_checkpoint_has_epoch_minus_one(store: Store, key: str, take: Take) -> None:  # J11
    take(store.files, key)
    assert store.stats[key]["epoch"] == -1
    assert key not in store.ckpts


def test_stats_cannot_be_set(store: Store, key: str) -> None:
    with pytest.raises(StoreError, match=f"the stats of run {key} cannot be set: they are derived from its checkpoints"):
        store.stats[key] = {"epoch": 100}
    assert key not in store.stats


# ---- previews


def test_a_preview_that_was_set_can_be_read(store: Store, key: str) -> None:
    store.ckpts[key] = 1
    store.previews[key] = {"loss": 0.5, "shape": (1, 2)}
    assert store.previews[key] == {"loss": 0.5, "shape": (1, 2)}
    assert store.ckpts[key] == 1


def test_a_preview_survives_the_next_checkpoint_that_is_set(store: Store, key: str) -> None:
    store.ckpts[key] = 1
    store.previews[key] = {"loss": 0.5}
    store.ckpts[key] = 2
    assert store.previews[key] == {"loss": 0.5}


def test_a_preview_that_was_set_before_any_checkpoint_survives_the_first_one(store: Store, key: str) -> None:
    store.previews[key] = {"loss": 0.5}
    assert store.previews[key] == {"loss": 0.5}
    store.ckpts[key] = 1
    assert store.previews[key] == {"loss": 0.5}


def test_no_checkpoint_is_written_for_a_preview(store: Store, key: str) -> None:
    store.ckpts[key] = {"w": 1}
    store.previews[key] = {"loss": 0.5}
    assert len(store.run(key).checkpoints()) == 1


# ---- the lease


def test_setting_is_refused_while_another_process_holds_the_run(disk: Store, held_elsewhere: Callable[..., Any]) -> None:
    key = disk.configs.add({"lr": 0.1})
    disk.ckpts[key] = 1
    process = held_elsewhere(disk, key)
    for archive, value in ((disk.ckpts, 2), (disk.previews, {"loss": 1})):
        with pytest.raises(RunBusyError, match=f"run {key} is held by process {process.pid}"):
            archive[key] = value
    assert (disk.ckpts[key], disk.previews[key]) == (1, {})


def test_reading_is_not_refused_while_another_process_holds_the_run(disk: Store, held_elsewhere: Callable[..., Any]) -> None:
    key = disk.configs.add({"lr": 0.1})
    disk.ckpts[key] = 1
    held_elsewhere(disk, key)
    assert disk.ckpts[key] == 1
    assert disk.stats[key]["epoch"] == 0


def test_setting_works_once_the_other_process_has_ended(disk: Store, held_elsewhere: Callable[..., Any]) -> None:
    key = disk.configs.add({"lr": 0.1})
    process = held_elsewhere(disk, key)
    process.communicate()
    disk.ckpts[key] = 2
    assert disk.ckpts[key] == 2


def test_setting_uses_the_attempt_that_this_store_holds(store: Store, key: str) -> None:
    with store.attempt(key, "test") as attempt:
        attempt.start(None)
        store.ckpts[key] = 1
        store.previews[key] = {"loss": 1}
    assert store.run(key).newest() == 1
    assert (store.ckpts[key], store.previews[key]) == (1, {"loss": 1})


def test_setting_releases_the_run(store: Store, key: str) -> None:
    store.ckpts[key] = 1
    with store.attempt(key, "test"):
        pass
    assert store._writing == {}


def test_a_run_without_a_config_cannot_be_set(store: Store) -> None:
    with pytest.raises(UnknownRunError):
        store.ckpts["00000000"] = 1
    assert "00000000" not in store.ckpts


def test_archives_runs_and_attempts_have_a_useful_repr(disk: Store) -> None:
    key = disk.configs.add({"lr": 0.1})
    root = repr(disk.root)
    assert repr(disk.configs) == f"ConfigArchive({root})"
    assert [repr(each) for each in (disk.stats, disk.ckpts, disk.previews)] == [
        f"StatsArchive({root})",
        f"CheckpointArchive({root})",
        f"PreviewArchive({root})",
    ]
    assert repr(disk.run(key)) == f"Run('{key}' in {root})"
    with disk.attempt(key, "process") as attempt:
        assert repr(attempt) == f"Attempt(1 of Run('{key}' in {root}))"
        attempt.release("stopped")
    assert repr(Store(None).stats) == "StatsArchive(None)"
    for kind in (type(disk.stats), type(disk.configs), type(disk.run(key)), Attempt):
        assert repr(object.__new__(kind)).startswith(kind.__name__)
