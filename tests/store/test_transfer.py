"""Runs can be copied between stores, completely or not at all; the chain of attempts becomes one attempt (J22)."""

from __future__ import annotations

import gc
import io
import os
import tarfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trainmaster.config import ConfigBase, Stateless, configclass
from trainmaster.errors import ArchiveError, RunBusyError, StoreAccessError, StoreDamagedError, UnknownRunError
from trainmaster.store import Attempt, Store
from trainmaster.store.attempt_records import RESUME
from trainmaster.store.checkpoint import TREE, CheckpointName
from trainmaster.store.transfer import adopt, pack

Take = Callable[..., Attempt]
Save = Callable[..., None]
Send = Callable[..., list[str]]


@configclass
class Noted(ConfigBase):
    lr: float = 0.1
    note: Stateless[str] = ""


@pytest.fixture
def source() -> Store:
    return Store(None)


@pytest.fixture(params=["tar", "plain tar", "migrate"])
def send(request: pytest.FixtureRequest, tmp_path: Path) -> Send:
    """Return a function that copies runs from one store to another: through a tar file, or with `migrate`."""

    def send(source: Store, target: Store, newer_only: bool = True, **chosen: Any) -> list[str]:
        if request.param == "migrate":
            return source.migrate(target, newer_only=newer_only, **chosen)
        source.export_tar(tmp_path / "runs.tar", compresslevel=1 if request.param == "tar" else 0, **chosen)
        return target.load_tar(tmp_path / "runs.tar", newer_only=newer_only)

    return send


@pytest.fixture
def key(source: Store, take: Take, save: Save) -> str:
    """Create a run with three attempts. Each attempt after the first dropped the last event of the previous one."""
    key = source.configs.add({"lr": 0.1})
    for steps in ((1, 2), (3,), (4,)):
        attempt = take(source.files, key)
        for step in steps:
            attempt.log.append({"epoch": step, "by": attempt.number})
            save(attempt, step, {"step": step, "w": [0.1] * 5})
        attempt.log.append({"epoch": steps[-1] + 1, "by": attempt.number, "lost": attempt.number < 3})
        attempt.release("saved")
    return key


def told(store: Store, key: str) -> list[Any]:
    run = store.run(key)
    return [
        store.configs[key],
        run.status(),
        run.preview(),
        run.events(),
        store.ckpts[key],
        [(name.step, name.repeat) for name in run.checkpoints()],
    ]


def trained(store: Store, take: Take, save: Save, step: int, config: Any = None) -> str:
    key = store.configs.add(config or {"lr": 0.1})
    attempt = take(store.files, key)
    attempt.log.append({"epoch": step})
    save(attempt, step)
    attempt.release("saved")
    return key


def test_a_copied_run_is_unchanged(source: Store, store: Store, key: str, send: Send) -> None:
    assert send(source, store) == [key]
    assert told(store, key) == told(source, key)
    assert store.verify() == []


def test_events_of_several_attempts_are_copied_as_one_log(source: Store, store: Store, key: str, send: Send) -> None:
    send(source, store)
    assert [(event["by"], event["epoch"]) for event in store.run(key).events()] == [(1, 1), (1, 2), (2, 3), (3, 4), (3, 5)]
    assert store.run(key).attempts() == [1]


def test_an_imported_run_can_be_resumed_from_any_of_its_checkpoints(source: Store, store: Store, key: str, send: Send, take: Take) -> None:
    send(source, store)
    store.files.delete_folder(CheckpointName(1, 4, 1).folder(key))
    with pytest.warns(UserWarning, match="resumes from step 3"):
        take(store.files, key)
    assert [event["epoch"] for event in store.run(key).events()] == [1, 2, 3]
    assert store.ckpts[key]["step"] == 3


def test_the_epoch_is_kept(source: Store, store: Store, key: str, send: Send) -> None:
    send(source, store)
    assert store.stats[key]["epoch"] == 4


def test_a_run_that_is_copied_twice_is_unchanged(source: Store, store: Store, key: str, send: Send) -> None:
    send(source, store)
    third = Store(None)
    send(store, third)
    first, last = pack(source.files, key), pack(third.files, key)
    assert first is not None
    assert last is not None
    assert (first.config, first.facts) == (last.config, last.facts)
    assert [*first.numbered_events()] == [*last.numbered_events()]
    for name in first.files:
        with first.files[name]() as one, last.files[name]() as other:
            if not name.endswith("manifest.json"):
                assert one.read() == other.read()


def test_two_exports_of_a_store_are_equal(source: Store, key: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert source.export_tar(tmp_path / name, compresslevel=0) == 1
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_tensors_are_copied(source: Store, store: Store, send: Send) -> None:
    key = source.configs.add({"lr": 0.1})
    weights = torch.arange(1_000.0)
    source.ckpts[key] = {"w": weights}
    send(source, store)
    assert torch.equal(store.ckpts[key]["w"], weights)


# ---- runs that already exist


def test_a_run_that_was_trained_equally_far_is_not_replaced(source: Store, store: Store, send: Send, take: Take, save: Save) -> None:
    key = trained(source, take, save, 3)
    trained(store, take, save, 3)
    before = told(store, key)
    assert send(source, store) == []
    assert told(store, key) == before
    assert store.run(key).attempts() == [1]


def test_a_run_that_was_trained_further_is_not_replaced(source: Store, store: Store, send: Send, take: Take, save: Save) -> None:
    key = trained(source, take, save, 3)
    trained(store, take, save, 5)
    assert send(source, store) == []
    assert store.stats[key]["epoch"] == 5


def test_a_run_that_was_trained_less_far_is_replaced(source: Store, store: Store, send: Send, take: Take, save: Save) -> None:
    key = trained(source, take, save, 5)
    trained(store, take, save, 3)
    assert send(source, store) == [key]
    assert told(store, key) == told(source, key)


def test_a_run_that_was_trained_further_is_replaced_on_request(source: Store, store: Store, send: Send, take: Take, save: Save) -> None:
    key = trained(source, take, save, 3)
    trained(store, take, save, 5)
    assert send(source, store, newer_only=False) == [key]
    assert told(store, key) == told(source, key)


def test_an_existing_config_keeps_its_stateless_values(source: Store, store: Store, send: Send, take: Take, save: Save) -> None:
    key = trained(source, take, save, 3, Noted(note="sent"))
    store.configs.add(Noted(note="there"))
    send(source, store)
    assert store.configs[key].note == "there"


def test_a_run_whose_key_is_taken_by_another_config_gets_a_longer_one(
    source: Store, store: Store, send: Send, take: Take, save: Save
) -> None:
    short = trained(source, take, save, 3, {"n": 13654})
    trained(store, take, save, 1, {"n": 7335})
    (key,) = send(source, store)
    assert len(key) == 16
    assert key.startswith(short)
    assert store.ckpts[key] == {"step": 3}
    assert store.ckpts[short] == {"step": 1}
    assert store.verify() == []


def test_a_run_with_a_long_key_gets_the_short_one_if_it_is_free(source: Store, store: Store, send: Send, take: Take, save: Save) -> None:
    source.configs.add({"n": 7335})
    long = trained(source, take, save, 3, {"n": 13654})
    assert send(source, store, keys=[long]) == [long[:8]]
    assert store.ckpts[long[:8]] == {"step": 3}
    assert store.verify() == []


def test_a_run_that_is_held_is_not_replaced(source: Store, store: Store, send: Send, take: Take, save: Save) -> None:
    key = trained(source, take, save, 5)
    take(store.files, key)
    with pytest.raises(RunBusyError):
        send(source, store)
    assert store.stats[key]["epoch"] == -1


def test_a_run_that_is_skipped_leaves_no_file_open(disk: Store, take: Take, save: Save) -> None:  # R03
    trained(disk, take, save, 3)
    target = Store(None)
    disk.migrate(target)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        assert disk.migrate(target) == []
        gc.collect()
    assert [str(each.message) for each in caught] == []


# ---- selecting runs


def test_all_runs_that_were_saved_are_copied(source: Store, store: Store, send: Send, take: Take, save: Save) -> None:
    keys = [trained(source, take, save, 1, {"n": number}) for number in range(3)]
    source.configs.add({"never": "started"})
    take(source.files, source.configs.add({"only": "started"})).release("failed")
    assert sorted(send(source, store)) == sorted(keys)
    assert sorted(store.configs) == sorted(keys)


def test_runs_are_selected_by_key(source: Store, store: Store, send: Send, take: Take, save: Save) -> None:
    keys = [trained(source, take, save, 1, {"n": number}) for number in range(3)]
    assert send(source, store, keys=keys[1:2]) == keys[1:2]


def test_runs_are_selected_by_epoch_and_condition(source: Store, store: Store, send: Send, take: Take, save: Save) -> None:
    keys = [trained(source, take, save, number, {"n": number}) for number in range(4)]
    assert sorted(send(source, store, min_epoch=1, cond={"n": (None, 2)})) == sorted(keys[1:3])


def test_an_unknown_key_is_reported(source: Store, store: Store, send: Send) -> None:
    with pytest.raises(UnknownRunError, match="no config has the key 00000000"):
        send(source, store, keys=["00000000"])


def test_an_empty_store_can_be_copied(source: Store, store: Store, send: Send) -> None:
    assert send(source, store) == []


def test_a_preview_of_several_megabytes_is_copied(source: Store, store: Store, send: Send) -> None:
    key = source.configs.add({"lr": 0.1})
    with source.attempt(key, "test") as attempt:
        attempt.start(None)
        attempt.save(1, 0, {"epoch": 1}, {"plot": "x" * 5_000_000})
    send(source, store)
    assert len(store.previews[key]["plot"]) == 5_000_000


# ---- the same step more than once


def test_if_several_attempts_saved_a_step_the_last_checkpoint_is_also_the_latest_in_the_copy(
    source: Store, store: Store, send: Send
) -> None:
    key = source.configs.add({"lr": 0.1})
    for value in range(5):
        source.ckpts[key] = value
    send(source, store)
    assert store.ckpts[key] == 4
    assert len(store.run(key).checkpoints()) == 3


def test_if_the_first_of_two_attempts_saved_a_step_twice_the_last_checkpoint_is_also_the_latest_in_the_copy(
    source: Store, store: Store, send: Send, take: Take, save: Save
) -> None:
    key = source.configs.add({"lr": 0.1})
    first = take(source.files, key)
    save(first, 1, "first", keep=1)
    save(first, 1, "second", keep=1)
    save(take(source.files, key), 1, "third", keep=2)
    assert source.ckpts[key] == "third"
    send(source, store)
    assert store.ckpts[key] == "third"


# ---- concurrent work and errors


def test_a_run_that_is_being_trained_is_copied_in_its_current_state(
    source: Store, store: Store, take: Take, save: Save, before: Callable[..., Any]
) -> None:  # L12
    key = source.configs.add({"lr": 0.1})
    attempt = take(source.files, key)
    save(attempt, 1, keep=1)
    for method, ending in (("read", "manifest.json"), ("open", TREE), ("open", "manifest.json")):
        step = source.stats[key]["epoch"]
        files = before(source.files, method, ending, lambda step=step: save(attempt, step + 1, keep=1))
        parcel = pack(files, key)
        assert parcel is not None
        assert parcel.facts["checkpoints"], "the run had a checkpoint the whole time"
        for opened in parcel.files.values():
            opened().close()


def test_a_file_that_is_damaged_in_transfer_is_refused_and_changes_nothing(
    source: Store, store: Store, key: str, take: Take, save: Save
) -> None:
    trained(store, take, save, 1)
    before = told(store, key)
    parcel = pack(source.files, key)
    assert parcel is not None
    name = next(name for name in parcel.files if name.endswith(TREE))
    with parcel.files[name]() as file:
        changed = file.read().replace(b"1", b"2").replace(b"0", b"3")
    parcel = replace(parcel, files={**parcel.files, name: lambda: io.BytesIO(changed)})
    with pytest.raises(StoreDamagedError, match="is damaged") as caught:
        adopt(store.files, store.configs, parcel, 60, newer_only=True)
    assert caught.value.rows["why"] == "it does not match its manifest"
    assert told(store, key) == before
    assert store.files.names(f"ckpts/{key[:2]}/{key}/attempt-0002") == []
    assert store.verify() == []


@pytest.mark.parametrize("cut", [0, 1, 100, 1_000, -1_000])
def test_a_truncated_archive_is_refused(source: Store, store: Store, key: str, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "runs.tar"
    source.export_tar(path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ArchiveError, match=r"runs\.tar"):
        store.load_tar(path)
    assert [*store.stats] == []


def test_a_missing_archive_is_reported(store: Store, tmp_path: Path) -> None:
    with pytest.raises((ArchiveError, StoreAccessError), match="No such file"):
        store.load_tar(tmp_path / "missing.tar")


def test_an_archive_of_something_else_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.add(tmp_path / "file", "../../outside")
    with pytest.raises(ArchiveError, match="was not imported"):
        store.load_tar(tmp_path / "other.tar")
    assert [*store.configs] == []


def test_an_export_skips_a_damaged_checkpoint_and_leaves_no_file_if_it_fails(source: Store, key: str, tmp_path: Path) -> None:
    path = f"{CheckpointName(3, 4, 1).folder(key)}/manifest.json"
    source.files.replace(path, b"bad")
    with pytest.warns(UserWarning, match="is copied without step 4"):
        assert source.export_tar(tmp_path / "runs.tar") == 1
    source.files.replace(source.run(key).path(2, RESUME), b"bad")
    with pytest.raises(StoreDamagedError):
        source.export_tar(tmp_path / "more.tar", keys=[key])
    assert os.listdir(tmp_path) == ["runs.tar"]


def test_an_export_to_a_missing_folder_is_reported(source: Store, key: str, tmp_path: Path) -> None:
    with pytest.raises(StoreAccessError, match="cannot be written: No such file or directory"):
        source.export_tar(tmp_path / "missing" / "runs.tar")


def test_an_export_replaces_an_older_one_completely(source: Store, key: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.tar"
    path.write_bytes(b"old")
    assert source.export_tar(path) == 1
    assert os.listdir(tmp_path) == ["runs.tar"]
    assert Store(None).load_tar(path) == [key]
