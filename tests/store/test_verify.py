"""`verify` reads every byte of a store, and lists all damage without raising an error (I03, I14, L08, S10)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trainmaster.store import Attempt, Damage, Store
from trainmaster.store import attempt as attempt_module
from trainmaster.store.attempt import claim
from trainmaster.store.attempt_records import ATTEMPT, EVENTS, OUTCOME, PREVIEW, RESUME, STATUS
from trainmaster.store.checkpoint import CheckpointName
from trainmaster.store.keys import config_path

Take = Callable[..., Attempt]
Save = Callable[..., None]


@pytest.fixture
def key(store: Store, take: Take, save: Save) -> str:
    """Create a run with two attempts, each with checkpoints."""
    key = store.configs.add({"lr": 0.1})
    for steps in ((1, 2), (3,)):
        attempt = take(store.files, key)
        for step in steps:
            attempt.log.append({"epoch": step})
            save(attempt, step, {"step": step, "w": [0.5] * 10})
        attempt.release("saved")
    return key


def files_of(store: Store, folder: str = "") -> list[str]:
    """Return all files in a store."""
    found = []
    for name in store.files.names(folder):
        path = f"{folder}/{name}" if folder else name
        below = files_of(store, path) if not store.files.has(path) or os.path.isdir(os.path.join(str(store.root), path)) else []
        found += below or [path]
    return found


def test_an_empty_store_has_no_damage(store: Store) -> None:
    assert store.verify() == []


def test_a_store_with_all_kinds_of_runs_has_no_damage(store: Store, key: str, crash: Callable[..., None], take: Take, save: Save) -> None:
    crash(take(store.files, key))
    store.configs.add({"never": "started"})
    claim(store.run(store.configs.add({"only": "claimed"})), "test", 60).release("failed")
    take(store.files, store.configs.add({"only": "started"})).release("failed")
    store.pop(store.configs.add({"popped": "at once"}))
    popped = store.configs.add({"popped": "later"})
    store.ckpts[popped] = 1
    store.pop(popped)
    assert key in dict(store.index)
    assert store.verify() == []


def test_a_run_that_is_being_written_has_no_damage(store: Store, key: str, take: Take, save: Save) -> None:
    attempt = take(store.files, key)
    attempt.log.append({"epoch": 4})
    store.files.write(f"{CheckpointName(3, 4, 1).folder(key)}/tree.json", [b"half"])
    assert store.verify() == []


def test_a_changed_byte_in_any_file_is_found(store: Store, key: str) -> None:
    checked = 0
    for path in files_of(store):
        if path.rpartition("/")[2] in ("lease", "store.json"):
            continue
        good = store.files.read(path)
        for place in (0, len(good) // 2, len(good) - 1):
            changed = bytearray(good)
            changed[place] ^= 1
            store.files.replace(path, bytes(changed))
            assert store.verify(), f"byte {place} of {path}"
            checked += 1
        store.files.replace(path, good)
    assert checked > 30
    assert store.verify() == []


def test_a_truncated_file_is_found(store: Store, key: str) -> None:
    for path in files_of(store):
        if path.rpartition("/")[2] in ("lease", "store.json"):
            continue
        good = store.files.read(path)
        for size in (0, len(good) // 2, len(good) - 1):
            store.files.replace(path, good[:size])
            assert store.verify(), f"{path} cut to {size} bytes"
        store.files.replace(path, good)


@pytest.mark.parametrize(
    "path",
    ["configs", "stats/*/attempt-0001/resume.json", "stats/*/attempt-0002/resume.json", "ckpts/*/attempt-0001/step-000002/tree.json"],
)
def test_a_missing_file_is_found(store: Store, key: str, path: str) -> None:
    store.files.delete(config_path(key) if path == "configs" else path.replace("*", f"{key[:2]}/{key}"))
    assert store.verify()


def test_a_missing_config_is_reported_by_its_path(store: Store, key: str) -> None:
    store.files.delete(config_path(key))
    assert store.verify() == [Damage(config_path(key), "it is missing, though the run has records")]


def test_a_missing_checkpoint_is_found(store: Store, key: str) -> None:
    store.files.delete_folder(f"ckpts/{key[:2]}/{key}")
    (found,) = store.verify()
    assert found.path == f"ckpts/{key[:2]}/{key}/attempt-0002/step-000003"
    assert found.why == "step 3 was saved, and its checkpoint is missing or damaged"


def test_a_missing_newest_checkpoint_is_found(store: Store, key: str) -> None:
    store.files.delete_folder(CheckpointName(2, 3, 1).folder(key))
    assert [each.why for each in store.verify()] == ["step 3 was saved, and its checkpoint is missing or damaged"]


def test_missing_events_are_found(store: Store, key: str) -> None:
    store.files.delete(store.run(key).path(1, EVENTS))
    assert any("events were saved in it" in each.why for each in store.verify())


@pytest.mark.parametrize("file", [ATTEMPT, OUTCOME, STATUS, PREVIEW])
def test_damage_that_does_not_prevent_a_resume_is_reported_as_such(store: Store, key: str, file: str) -> None:
    path = store.run(key).path(1, file)
    store.files.replace(path, b"half")
    found = store.verify()
    assert [(each.path, each.is_fatal) for each in found] == [(path, False)]
    assert str(found[0]) == f"{path}: it is truncated, or was not written by trainmaster"


def test_damage_that_prevents_a_resume_is_reported_as_such(store: Store, key: str) -> None:
    path = store.run(key).path(2, RESUME)
    store.files.replace(path, b"half")
    assert [(each.path, each.is_fatal) for each in store.verify()] == [(path, True)]


def test_damage_in_one_run_does_not_hide_damage_in_another(store: Store, key: str) -> None:
    other = store.configs.add({"lr": 0.2})
    store.ckpts[other] = 1
    for each in (key, other):
        store.files.replace(store.run(each).path(1, RESUME), b"half")
    assert {each.path for each in store.verify()} == {store.run(each).path(1, RESUME) for each in (key, other)}


@pytest.mark.parametrize(
    "path", ["configs/notes.txt", "configs/ab/notes.txt", "configs/ab/cd123456.json", "stats/ab/readme", "ckpts/xyz/a", "previews/AB/a"]
)
def test_unknown_files_in_a_store_are_reported(store: Store, path: str) -> None:
    store.files.create(path, b"")
    (found,) = store.verify()
    assert path.startswith(found.path)
    assert found.why.startswith("this is not a f")


def test_deleted_files_that_nfs_keeps_open_are_not_damage(store: Store) -> None:
    store.files.create("configs/ab/.nfs000000000abc", b"")
    assert store.verify() == []


@pytest.mark.parametrize("plant", ["link", "pipe", "file"])
@pytest.mark.parametrize("archive", ["configs", "stats", "ckpts", "previews"])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_another_object_in_place_of_a_folder_is_reported_and_not_raised(
    tmp_path: Path, take: Take, save: Save, plant: str, archive: str, depth: int
) -> None:
    disk = Store(tmp_path / "store")
    key = disk.configs.add({"lr": 0.1})
    disk.ckpts[key] = 1
    place = [archive, key[:2], key if archive != "configs" else f"{key}.json", "attempt-0001"][: depth + 1]
    if archive == "configs" and depth == 3:
        pytest.skip("a config is a file")
    path = Path(str(disk.root), *place)
    os.rename(path, tmp_path / "aside")
    if plant == "link":
        path.symlink_to(tmp_path / "aside")
    elif plant == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"")
    assert disk.verify() != []


def test_a_removal_that_was_killed_at_any_moment_is_not_damage(store: Store, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal is killed right after it writes its record, and after each file that it deletes, in any order."""
    crashed = claim(store.run(key), "pop", 60)
    monkeypatch.setattr(attempt_module, "remove_records", lambda run, before: None)
    crashed.remove()
    crashed._heartbeat.stop()
    assert store.verify() == []
    for archive in ("ckpts", "previews", "stats"):
        for path in reversed(files_of(store, f"{archive}/{key[:2]}/{key}")):
            if "attempt-0003" not in path:
                store.files.delete(path)
                assert store.verify() == [], f"after {path}"
    store.files.delete(config_path(key))
    assert store.verify() == []
