"""A store survives a disk that fills up, runs out of inodes, becomes read-only, or is removed.

The disks are small file systems in memory. Each has its own mount namespace, which disappears with its process.
"""

import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import store_driver as driver
from campaign import IS_FULL, REPEAT, SEED

from trainmaster.errors import LeaseLostError, StoreAccessError
from trainmaster.store import Store

PAGE = os.sysconf("SC_PAGE_SIZE")
FREE_SOME = "the disk is full: free some space and start again; everything saved so far is untouched"
STATUS = {"epoch": 1, "toc": 0.0, "t_train": None, "t_eval": None}

pytestmark = pytest.mark.timeout(3600 if IS_FULL else 900)


class Disk:
    """A separate file system at `folder`, kept alive by a shell in another namespace."""

    def __init__(self, place: Path, options: str) -> None:
        self._place = place
        place.mkdir()
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._shell = subprocess.Popen(["unshare", *user, "--mount", "sh"], text=True, bufsize=1, **pipes)
        self.folder = Path(f"/proc/{self._shell.pid}/root{place}")
        try:
            self._do(f"mount -t tmpfs -o {options} none '{place}'")
        except OSError:
            self.close()
            raise

    def _do(self, command: str) -> None:
        said = [""]
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.write(f"{command}; echo status $?\n")
            self._shell.stdin.flush()
        while not said[-1].startswith("status ") and (line := self._shell.stdout.readline()):
            said.append(line)
        if said[-1] != "status 0\n":
            raise OSError("".join(said).strip())

    def remount(self, options: str) -> None:
        self._do(f"mount -o remount,bind,{options} '{self._place}'")  # without `bind`, only root may remount

    def fill(self, free: int = 0) -> Path:
        """Fill the disk except for `free` bytes, in whole pages. Return the file that takes up the space."""
        ballast = self.folder / "ballast"
        size = shutil.disk_usage(self.folder).free - free
        with open(ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        assert shutil.disk_usage(self.folder).free == free
        return ballast

    def close(self) -> None:
        self._shell.kill()
        with contextlib.suppress(BrokenPipeError):
            self._shell.communicate()


@pytest.fixture
def new_disk(tmp_path):
    disks = []

    def made(options: str) -> Disk:
        try:
            disks.append(Disk(tmp_path / f"disk-{len(disks)}", options))
        except OSError as error:
            why = f"no disk can be mounted here: {error}"
            if os.environ.get("CI"):
                pytest.fail(why)
            pytest.skip(why)
        return disks[-1]

    yield made
    for disk in disks:
        disk.close()


def value_of(num_bytes: int):
    return {"weights": np.arange(num_bytes, dtype=np.uint8)}


def run_driver(folder: Path):
    return subprocess.run(
        [sys.executable, "-W", "error", driver.__file__, str(folder)], capture_output=True, text=True, check=False, env={**os.environ}
    )


def restart(folder: Path) -> None:
    ran = run_driver(folder)
    assert (ran.returncode, ran.stderr) == (0, "")
    driver.assert_ended_right(folder)


# ---- no space


def test_a_save_on_a_full_disk_is_an_error_and_the_last_checkpoint_is_kept(new_disk):
    disk = new_disk("size=1m")
    store = Store(disk.folder / "store")
    key = store.configs.add({"lr": 0.1})
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        attempt.save(1, value_of(100_000), STATUS, {"loss": 0.5})
        ballast = disk.fill(200_704)
        for _ in range(3):
            with pytest.raises(StoreAccessError) as caught:
                attempt.save(2, value_of(300_000), {**STATUS, "epoch": 2}, {})
            assert str(caught.value).startswith("`tensors.safetensors` cannot be written: No space left on device\n")
            assert f"\n  try     {FREE_SOME}" in str(caught.value)
            assert caught.value.errno == errno.ENOSPC
            assert shutil.disk_usage(disk.folder).free == 200_704
            assert [path.name for path in disk.folder.glob("store/ckpts/*/*/*/*")] == ["step-000001"]
            assert store.run(key).latest().value["weights"].nbytes == 100_000
            assert (store.run(key).status()["epoch"], store.run(key).preview()) == (1, {"loss": 0.5})
        assert store.verify() == []
        ballast.unlink()
        attempt.save(2, value_of(300_000), {**STATUS, "epoch": 2}, {})
        assert store.run(key).latest().value["weights"].nbytes == 300_000
        attempt.release("finished")
    assert store.verify() == []


@pytest.mark.integration
def test_a_program_that_a_full_disk_stopped_anywhere_resumes_when_there_is_space(new_disk):
    disk = new_disk("size=4m")
    before = shutil.disk_usage(disk.folder).free
    restart(disk.folder)
    needed = (before - shutil.disk_usage(disk.folder).free) // PAGE
    assert needed > 20
    amounts = range(needed) if IS_FULL else random.Random(SEED).sample(range(needed), 3)
    for number in amounts:
        folder = disk.folder / "new"
        folder.mkdir()
        ballast = disk.fill(number * PAGE)
        ran = run_driver(folder)
        again = f"{number} pages of {needed}; {REPEAT}\n{ran.stderr}"
        if ran.returncode == driver.OTHER:  # an archive that would not fit is refused before it is unpacked
            assert ran.stderr.startswith("ArchiveError: `runs.tar.gz` was not imported\n"), again
            assert "it unpacks to more than" in ran.stderr, again
        else:
            assert ran.returncode == driver.ACCESS, again
            assert ran.stderr.startswith("StoreAccessError: `"), again
            assert "No space left on device" in ran.stderr, again
            assert f"\n  try     {FREE_SOME}" in ran.stderr, again
        driver.assert_kept(folder, ran.stdout.splitlines())
        ballast.unlink()
        restart(folder)
        shutil.rmtree(folder)


def test_an_event_that_did_not_fit_leaves_no_partial_line_and_can_be_logged_again(new_disk):
    disk = new_disk("size=256k")
    store = Store(disk.folder / "store")
    key = store.configs.add({"lr": 0.1})
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        attempt.log.append({"step": 1})
        ballast = disk.fill()
        with pytest.raises(StoreAccessError, match=r"`events\.jsonl` cannot be written: No space left on device") as caught:
            attempt.log.append({"text": "x" * 2 * PAGE})  # part of it fits into the current page
        assert FREE_SOME in str(caught.value)
        assert store.run(key).events() == [{"step": 1}]
        attempt.log.append({"step": 2})  # a small event still fits
        ballast.unlink()
        attempt.log.append({"text": "x" * 2 * PAGE})
        attempt.save(1, value_of(10), STATUS, {})
        assert store.run(key).events() == [{"step": 1}, {"step": 2}, {"text": "x" * 2 * PAGE}]
        attempt.release("finished")
    assert store.verify() == []


def test_an_export_to_a_full_disk_is_an_error_and_keeps_the_old_file(new_disk, tmp_path):
    disk = new_disk("size=1m")
    store = Store(tmp_path / "store")
    key = store.configs.add({"lr": 0.1})
    store.ckpts[key] = value_of(50_000)
    store.export_tar(disk.folder / "runs.tar", compresslevel=0)
    before = (disk.folder / "runs.tar").read_bytes()
    store.ckpts[key] = value_of(500_000)
    disk.fill(100 * PAGE)
    with pytest.raises(StoreAccessError) as caught:
        store.export_tar(disk.folder / "runs.tar", compresslevel=0)
    assert str(caught.value).startswith("`runs.tar` cannot be written: No space left on device\n")
    assert "\n  try     the disk is full: free some space and start again" in str(caught.value)
    assert (disk.folder / "runs.tar").read_bytes() == before
    assert sorted(path.name for path in disk.folder.iterdir()) == ["ballast", "runs.tar"]


def test_runs_that_do_not_fit_are_not_imported_partially(new_disk, tmp_path):
    disk = new_disk("size=4m")
    store, target = Store(tmp_path / "store"), Store(disk.folder / "store")
    key = store.configs.add({"lr": 0.1})
    store.ckpts[key] = value_of(50_000)
    assert store.migrate(target) == [key]
    with store.attempt(key, "process") as attempt:
        attempt.start(store.run(key).latest())
        attempt.save(2, value_of(150_000), {**STATUS, "epoch": 2}, {})
        attempt.release("finished")
    for num_pages in range(0, 56, 1 if IS_FULL else 7):
        ballast = disk.fill(num_pages * PAGE)
        with pytest.raises(StoreAccessError, match="No space left on device"):
            store.migrate(target)
        assert target.verify() == []
        assert target.run(key).latest().value["weights"].nbytes == 50_000
        ballast.unlink()
    assert store.migrate(target) == [key]
    assert target.run(key).latest().value["weights"].nbytes == 150_000
    assert target.verify() == []


# ---- the lease


@pytest.mark.parametrize("is_page_full", [False, True])
@pytest.mark.parametrize("what", ["space", "names"])
def test_a_lease_is_renewed_on_a_full_disk(new_disk, what, is_page_full):
    disk = new_disk("size=1m,nr_inodes=100")
    store = Store(disk.folder / "store", lease_time=3600.0)
    key = store.configs.add({"lr": 0.1})
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        path = attempt.run.path(attempt.number, "lease")
        if is_page_full:  # after hours of heartbeats, the next one needs a new page
            attempt._heartbeat.renew()
            with open(disk.folder / "store" / path, "ab") as file:
                file.write(b"." * (PAGE - file.tell()))
        _use_up(disk, what)
        for _ in range(3):
            before = store.files.mark(path)
            time.sleep(0.02)  # longer than a tick of the file system's clock
            attempt._heartbeat.renew()
            assert store.files.mark(path) not in (before, None)
        for path in disk.folder.iterdir():
            if path.name != "store":
                path.unlink()
        attempt.release("finished")


def _use_up(disk: Disk, what: str) -> None:
    ballast = disk.fill()
    if what == "names":
        names = [disk.folder / f"name-{number}" for number in range(os.statvfs(disk.folder).f_ffree)]
        for name in names:
            name.touch()
        assert os.statvfs(disk.folder).f_ffree == 0
    else:
        with open(ballast, "ab") as file, pytest.raises(OSError, match="No space left on device"):
            file.write(b"x" * 2 * PAGE)
            file.flush()


def test_a_release_on_a_full_disk_fails_but_the_run_is_free(new_disk):
    disk = new_disk("size=1m")
    store = Store(disk.folder / "store")
    key = store.configs.add({"lr": 0.1})
    ballast = None
    with pytest.raises(StoreAccessError, match=r"`outcome\.json` cannot be written: No space left on device"):
        with store.attempt(key, "process") as attempt:
            attempt.start(None)
            attempt.save(1, value_of(10), STATUS, {})
            ballast = disk.fill()
            attempt.release("finished")
    ballast.unlink()
    with store.attempt(key, "process") as attempt:
        attempt.start(store.run(key).latest())
        attempt.release("finished")
    assert store.run(key).status()["epoch"] == 1


# ---- no inodes, no write access, no folder


@pytest.mark.integration
def test_a_program_that_ran_out_of_inodes_resumes_when_there_are_some_again(new_disk):
    disk = new_disk("size=4m,nr_inodes=2000")
    before = os.statvfs(disk.folder).f_ffree
    restart(disk.folder)
    needed = before - os.statvfs(disk.folder).f_ffree
    assert needed > 50
    shutil.rmtree(disk.folder / "store")
    amounts = range(5, needed, 1 if IS_FULL else 1 + needed // 2)
    for number in amounts:
        folder = disk.folder / f"new-{number}"
        folder.mkdir()
        names = disk.folder / "names"
        names.mkdir()
        for name in range(os.statvfs(disk.folder).f_ffree - number):
            (names / str(name)).touch()
        ran = run_driver(folder)
        assert ran.returncode == driver.ACCESS, f"{number} of {needed} inodes: {ran.stderr}"
        assert "No space left on device" in ran.stderr
        assert f"\n  try     {FREE_SOME}" in ran.stderr
        driver.assert_kept(folder, ran.stdout.splitlines())
        shutil.rmtree(names)
        restart(folder)
        shutil.rmtree(folder)


def test_a_read_only_disk_can_be_read_and_writers_get_an_error(new_disk):
    disk = new_disk("size=1m")
    store = Store(disk.folder / "store")
    key = store.configs.add({"lr": 0.1})
    store.ckpts[key] = value_of(1000)
    disk.remount("ro")
    for write in (
        lambda: store.configs.add({"lr": 0.2}),
        lambda: store.configs.add_many([{"lr": 0.3}]),
        lambda: store.ckpts.__setitem__(key, value_of(2000)),
        lambda: store.pop(key),
        lambda: Store(disk.folder / "another"),
    ):
        with pytest.raises(StoreAccessError, match="Read-only file system") as caught:
            write()
        assert caught.value.errno == errno.EROFS
        assert "\n  try     the file system is read-only" in str(caught.value)
    again = Store(disk.folder / "store")
    assert again.ckpts[key]["weights"].nbytes == 1000
    assert [each for each, _ in again.index] == [key]
    assert again.verify() == []
    disk.remount("rw")
    store.ckpts[key] = value_of(2000)
    assert store.ckpts[key]["weights"].nbytes == 2000


def test_a_disk_that_becomes_read_only_during_training_loses_nothing(new_disk):
    disk = new_disk("size=1m")
    store = Store(disk.folder / "store")
    key = store.configs.add({"lr": 0.1})
    with pytest.raises(StoreAccessError, match="cannot be written: Read-only file system"):
        with store.attempt(key, "process") as attempt:
            attempt.start(None)
            attempt.log.append({"step": 1})
            attempt.save(1, value_of(1000), STATUS, {})
            attempt.log.append({"step": 2})
            attempt.log.close()  # a file system with an open file cannot become read-only
            disk.remount("ro")
            attempt.save(2, value_of(2000), {**STATUS, "epoch": 2}, {})
    disk.remount("rw")
    with store.attempt(key, "process") as attempt:
        latest = store.run(key).latest()
        assert latest.name.step == 1
        attempt.start(latest)
        assert store.run(key).events() == [{"step": 1}]
        attempt.save(2, value_of(2000), {**STATUS, "epoch": 2}, {})
        attempt.release("finished")
    assert store.verify() == []


def test_a_store_that_is_removed_during_training_is_an_error_and_not_created_again(tmp_path):
    folder = tmp_path / "store"
    store = Store(folder)
    key = store.configs.add({"lr": 0.1})
    with pytest.raises((LeaseLostError, StoreAccessError)) as caught:
        with store.attempt(key, "process") as attempt:
            attempt.start(None)
            attempt.save(1, value_of(1000), STATUS, {})
            shutil.rmtree(folder)
            attempt._heartbeat.renew()
            attempt.save(2, value_of(2000), {**STATUS, "epoch": 2}, {})
    assert f"the records of run {key} are gone" in str(caught.value)
    assert not folder.exists()
    with pytest.raises(StoreAccessError, match="cannot be written: No such file or directory") as caught:
        store.configs.add({"lr": 0.2})
    assert "\n  try     a folder of the store was removed" in str(caught.value)
    assert not folder.exists()


@pytest.mark.integration
def test_a_program_whose_store_was_removed_starts_over(new_disk):
    disk = new_disk("size=4m")
    restart(disk.folder)
    shutil.rmtree(disk.folder / "store")
    restart(disk.folder)
