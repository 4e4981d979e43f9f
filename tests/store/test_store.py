"""`Store` keeps its four archives in a folder or in memory. Covers opening, formats, and removing runs (J4, J21)."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm

from trainmaster.errors import (
    KeyTextError,
    RunBusyError,
    SettingError,
    StoreAccessError,
    StoreDamagedError,
    StoreError,
    StoreFormatError,
    UnknownRunError,
)
from trainmaster.store import Attempt, Records, Store
from trainmaster.store.checkpoint import TREE
from trainmaster.store.keys import config_path

Take = Callable[..., Attempt]
Save = Callable[..., None]


def trained(store: Store, take: Take, save: Save, *steps: int) -> str:
    key = store.configs.add({"lr": 0.1})
    attempt = take(store.files, key)
    for step in steps:
        attempt.log.append({"epoch": step})
        save(attempt, step)
    attempt.release("saved")
    return key


# ---- opening (J4)


def test_a_store_is_created_if_there_is_none(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "store"
    Store(root)
    assert json.loads((root / "store.json").read_text())["format"] == 1


def test_each_archive_has_its_folder_from_the_start(disk: Store) -> None:  # J4
    assert sorted(os.listdir(str(disk.root))) == ["ckpts", "configs", "previews", "stats", "store.json"]


def test_a_store_without_a_root_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(None)
    store.ckpts[store.configs.add({"lr": 0.1})] = 1
    assert store.root is None
    assert os.listdir(tmp_path) == []


def test_two_stores_on_one_folder_share_their_runs(disk: Store, take: Take, save: Save) -> None:
    other = Store(disk.root)
    key = trained(disk, take, save, 1)
    assert other.configs[key] == {"lr": 0.1}
    assert other.ckpts[key] == {"step": 1}
    other.ckpts[key] = "edited"
    assert disk.ckpts[key] == "edited"


def test_a_lease_is_valid_for_all_stores_on_one_folder(disk: Store, take: Take, tmp_path: Path) -> None:  # L20
    (tmp_path / "link").symlink_to(str(disk.root))
    key = disk.configs.add({"lr": 0.1})
    take(disk.files, key)
    with pytest.raises(RunBusyError):
        Store(tmp_path / "link").ckpts[key] = 1


def test_opening_again_changes_nothing(disk: Store) -> None:
    before = Path(str(disk.root), "store.json").read_bytes()
    Store(disk.root)
    assert Path(str(disk.root), "store.json").read_bytes() == before


def test_a_store_may_be_moved(disk: Store, take: Take, save: Save, tmp_path: Path) -> None:
    key = trained(disk, take, save, 1)
    os.rename(str(disk.root), tmp_path / "moved")
    assert Store(tmp_path / "moved").ckpts[key] == {"step": 1}


def test_a_relative_root_is_resolved_when_the_store_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store("store")
    monkeypatch.chdir("/")
    store.configs.add({"lr": 0.1})
    assert len(Store(tmp_path / "store").configs) == 1


@pytest.mark.parametrize(("number", "hint"), [(0, "the version of trainmaster that wrote it"), (2, "a newer version of trainmaster")])
def test_a_store_of_another_format_is_refused(disk: Store, number: int, hint: str) -> None:  # I13
    Path(str(disk.root), "store.json").write_text(json.dumps({"format": number}))
    with pytest.raises(StoreFormatError, match=f"the store has format {number}; this version of trainmaster supports format 1") as caught:
        Store(disk.root)
    assert hint in caught.value.rows["hint"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": "1"}', b'{"format": true}', b"\xff", b"[" * 100_000])
def test_a_damaged_store_file_is_reported(disk: Store, content: bytes) -> None:
    Path(str(disk.root), "store.json").write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"`store\.json` does not describe a store"):
        Store(disk.root)


@pytest.mark.parametrize("archive", ["configs", "stats", "ckpts", "previews"])
def test_a_folder_with_archives_but_without_a_store_file_is_not_taken_over(tmp_path: Path, archive: str) -> None:
    (tmp_path / archive / "ab").mkdir(parents=True)
    with pytest.raises(StoreFormatError, match=f"has files in `{archive}`, but no `store.json`"):
        Store(tmp_path)
    assert os.listdir(tmp_path) == [archive]


@pytest.mark.parametrize("archives", [["configs"], ["configs", "stats", "ckpts", "previews"]])
def test_a_new_store_can_use_empty_archive_folders(tmp_path: Path, archives: list[str]) -> None:  # J4
    for archive in archives:
        (tmp_path / archive).mkdir()
    store = Store(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["ckpts", "configs", "previews", "stats", "store.json"]
    assert len(store.configs) == 0


def test_a_missing_archive_folder_is_created_when_the_store_is_opened(disk: Store) -> None:
    Path(str(disk.root), "previews").rmdir()
    Store(disk.root)
    assert Path(str(disk.root), "previews").is_dir()


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC])
def test_a_store_that_cannot_be_written_to_opens_without_its_missing_folders(
    disk: Store, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = disk.configs.add({"lr": 0.1})
    Path(str(disk.root), "previews").rmdir()

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "mkdir", refuse)
    assert Store(disk.root).configs[key] == {"lr": 0.1}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_new_store_whose_folders_cannot_be_created_is_an_error(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def refuse(name: Any, *args: Any, **kwargs: Any) -> None:
        if name == "configs":
            raise OSError(code, os.strerror(code))
        mkdir(name, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(StoreAccessError, match="`configs` cannot be written"):
        patch.setattr(os, "mkdir", refuse)
        Store(tmp_path / "store")
    assert Store(tmp_path / "store").configs.add({"lr": 0.1})


def test_a_root_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file"):
        Store(tmp_path / "file")


@pytest.mark.parametrize("lease_time", [0, -1, float("nan"), float("inf"), True, "60", None])
def test_a_lease_time_must_be_a_positive_number(lease_time: Any) -> None:
    with pytest.raises(SettingError, match="`lease_time` must be a number above 0"):
        Store(None, lease_time=lease_time)


def test_the_repr_of_a_store_has_its_path(disk: Store) -> None:
    assert repr(disk) == f"Store({disk.root!r})"


def test_a_store_that_was_removed_is_reported(disk: Store) -> None:
    shutil.rmtree(str(disk.root))
    with pytest.raises(StoreAccessError, match="was removed"):
        disk.configs.add({"lr": 0.1})
    assert not os.path.exists(str(disk.root))


def test_using_a_store_does_not_import_torch(disk: Store) -> None:
    code = (
        "import sys\nfrom trainmaster.store import Store\nstore = Store(sys.argv[1])\nkey = store.configs.add({'lr': 0.1})\n"
        "store.ckpts[key] = {'w': [1.0]}\nassert store.ckpts[key] == {'w': [1.0]}\nassert store.verify() == []\nstore.pop(key)\n"
        "print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-W", "error", "-c", code, str(disk.root)], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("False\n", "")


def test_eight_processes_that_open_a_new_store_create_one(tmp_path: Path) -> None:
    code = "import sys\nfrom trainmaster.store import Store\nprint(Store(sys.argv[1]).configs.add({'lr': 0.1}))"
    command = [sys.executable, "-c", code, str(tmp_path / "store")]
    processes = [warm.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    answers = {process.communicate()[0] for process in processes}
    assert answers == {f"{Store(None).configs.add({'lr': 0.1})}\n"}
    assert len(Store(tmp_path / "store").configs) == 1


# ---- removing a run (J21)


def test_pop_returns_all_four_records_and_removes_them(store: Store, take: Take, save: Save) -> None:
    key = trained(store, take, save, 1, 2)
    status = {"epoch": 2, "toc": 0.0, "t_train": None, "t_eval": None}
    assert store.pop(key) == Records({"lr": 0.1}, status, {"step": 2}, {"loss": 1 / 3})  # type: ignore[arg-type]
    for archive in (store.configs, store.stats, store.ckpts, store.previews):
        assert key not in archive
        assert [*archive] == []
    assert store.run(key).events() == []
    assert store.verify() == []


def test_only_the_attempt_number_of_a_popped_run_is_kept(store: Store, take: Take, save: Save) -> None:
    key = trained(store, take, save, 1, 2)
    store.pop(key)
    assert store.files.names(f"configs/{key[:2]}") == []
    assert store.files.names(f"ckpts/{key[:2]}/{key}") == []
    assert store.files.names(f"previews/{key[:2]}/{key}") == []
    assert store.files.names(f"stats/{key[:2]}/{key}") == ["attempt-0002"]


def test_a_run_that_never_started_can_be_popped(store: Store) -> None:
    key = store.configs.add({"lr": 0.1})
    assert store.pop(key) == Records({"lr": 0.1}, None, None, None)  # type: ignore[arg-type]
    assert key not in store.configs


def test_an_unknown_run_cannot_be_popped(store: Store) -> None:
    with pytest.raises(UnknownRunError, match="no config has the key 00000000"):
        store.pop("00000000")
    with pytest.raises(KeyTextError):
        store.pop("../../etc")
    assert store.files.names("stats") == []


def test_a_run_cannot_be_popped_twice(store: Store, take: Take, save: Save) -> None:
    key = trained(store, take, save, 1)
    store.pop(key)
    with pytest.raises(UnknownRunError):
        store.pop(key)


def test_a_run_that_is_held_cannot_be_popped(store: Store, take: Take, save: Save) -> None:
    key = trained(store, take, save, 1)
    attempt = take(store.files, key)
    with pytest.raises(RunBusyError):
        store.pop(key)
    save(attempt, 2)
    assert store.ckpts[key] == {"step": 2}


def test_a_run_that_another_process_holds_cannot_be_popped(disk: Store, held_elsewhere: Callable[..., Any]) -> None:
    key = disk.configs.add({"lr": 0.1})
    disk.ckpts[key] = 1
    process = held_elsewhere(disk, key)
    with pytest.raises(RunBusyError, match=f"held by process {process.pid}"):
        disk.pop(key)
    process.kill()
    process.wait()
    assert disk.pop(key).ckpt == 1


def test_a_popped_run_starts_from_scratch(store: Store, take: Take, save: Save) -> None:
    key = trained(store, take, save, 1, 2)
    store.pop(key)
    assert store.configs.add({"lr": 0.1}) == key
    assert (key in store.stats, key in store.ckpts) == (False, False)
    attempt = take(store.files, key)
    assert store.stats[key]["epoch"] == -1
    save(attempt, 1, "anew")
    assert store.ckpts[key] == "anew"
    assert store.verify() == []


def test_a_damaged_run_can_be_popped(store: Store, take: Take, save: Save) -> None:
    key = trained(store, take, save, 1)
    for name in store.run(key).checkpoints():
        store.files.replace(f"{name.folder(key)}/{TREE}", b"bad")
    found = store.pop(key)
    assert found.ckpt is None
    assert found.stats is not None
    assert store.verify() == []


def test_a_run_whose_attempts_are_damaged_can_be_popped(store: Store, take: Take, save: Save) -> None:
    key = trained(store, take, save, 1)
    store.files.replace(store.run(key).path(1, "resume.json"), b"bad")
    assert store.pop(key) == Records({"lr": 0.1}, None, None, None)  # type: ignore[arg-type]
    assert store.verify() == []


MOMENTS = [
    ("create", "attempt-0002/attempt.json", False),
    ("create", "attempt-0002/resume.json", False),
    ("delete_folder", "ckpts/{}/attempt-0001", True),
    ("delete_folder", "previews/{}/attempt-0001", True),
    ("delete_folder", "stats/{}/attempt-0001", True),
    ("delete", "{}.json", True),
    ("create", "attempt-0002/outcome.json", True),
]


@pytest.mark.parametrize(("method", "ending", "is_gone"), MOMENTS)
def test_a_pop_that_is_killed_at_any_moment_removes_everything_or_nothing(
    store: Store, take: Take, save: Save, before: Callable[..., Any], method: str, ending: str, is_gone: bool
) -> None:
    key = trained(store, take, save, 1, 2)
    killed: list[None] = []

    class Killed(BaseException): ...

    def kill() -> None:
        killed.append(None)
        raise Killed

    other = Store(None)
    place = config_path(key) if ending == "{}.json" else ending.format(f"{key[:2]}/{key}")
    real, other.files = store.files, before(store.files, method, place, kill)
    other.configs = store.configs
    with pytest.raises(Killed):
        other.pop(key)
    assert killed
    store.files = real
    is_removed = store.run(key).chain() == []
    assert is_removed is is_gone
    assert store.ckpts.get(key) == (None if is_removed else {"step": 2})
    assert store.verify() == []
    store.configs.add({"lr": 0.1})
    store.pop(key)
    assert store.verify() == []
    assert store.files.names(f"ckpts/{key[:2]}/{key}") == []
    assert store.configs.add({"lr": 0.1}) == key
    attempt = take(store.files, key)
    save(attempt, 7)
    assert store.ckpts[key] == {"step": 7}


def test_only_one_of_several_threads_can_pop_a_run(store: Store, take: Take, save: Save) -> None:
    key = trained(store, take, save, 1)
    got: list[Records] = []
    refused: list[StoreError] = []
    barrier = threading.Barrier(4)

    def pop() -> None:
        barrier.wait()
        try:
            found = store.pop(key)
            if found.ckpt is not None:
                got.append(found)
        except StoreError as error:
            refused.append(error)

    threads = [threading.Thread(target=pop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.ckpt for found in got] == [{"step": 1}]
    assert all(isinstance(error, RunBusyError | UnknownRunError) for error in refused)
    assert store.verify() == []


# ---- selecting runs (J18)


def test_completed_runs_were_saved_at_the_requested_epoch_or_later(store: Store, take: Take, save: Save) -> None:
    keys = []
    for number in range(4):
        keys.append(store.configs.add({"n": number}))
        attempt = take(store.files, keys[-1])
        if number:
            save(attempt, number)
        attempt.release("saved")
    assert {key for key, _, _ in store.completed()} == {*keys[1:]}
    assert {key for key, _, _ in store.completed(min_epoch=2)} == {*keys[2:]}
    assert {(key, stats["epoch"], config.n) for key, stats, config in store.completed(3)} == {(keys[3], 3, 3)}


@pytest.mark.parametrize(
    ("cond", "wanted"),
    [
        ({"n": 1}, {1}),
        ({"n": [0, 2]}, {0, 2}),
        ({"n": (1, None)}, {1, 2, 3}),
        ({"n": (None, 1)}, {0, 1}),
        ({"n": (1, 2), "deep.even": True}, {2}),
        ({"n": lambda n: n > 2}, {3}),
        ({"missing": 1}, set()),
        ({"n": True}, set()),
        ({"n": 1.0}, set()),
        ({}, {0, 1, 2, 3}),
        (None, {0, 1, 2, 3}),
    ],
)
def test_configs_are_selected_by_conditions(store: Store, cond: Any, wanted: set[int]) -> None:
    store.configs.add_many({"n": number, "deep": {"even": number % 2 == 0}} for number in range(4))
    assert {config.n for _, config in store.select(cond)} == wanted


def test_within_hours_selects_runs_of_the_last_hours(store: Store) -> None:  # J22: the unit is hours
    key = store.configs.add({"lr": 0.1})
    store.ckpts[key] = 1
    old = store.configs.add({"lr": 0.2})
    with store.attempt(old, "test") as attempt:
        attempt.start(None)
        attempt.save(0, 1, {"epoch": 0, "toc": store.stats[key]["toc"] - 7_200}, {})
    assert {key for key, _, _ in store.completed(within_hours=1)} == {key}
    assert {key for key, _, _ in store.completed(within_hours=3)} == {key, old}
