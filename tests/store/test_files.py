"""A store uses the same file operations in memory and in a folder (faults C05, C07, C08, L21, S10, S17)."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainmaster.errors import StoreAccessError, StoreDamagedError, StoreError
from trainmaster.store.files import SAFE_AGE, Files, LocalFiles
from trainmaster.store.memory_files import MemoryFiles
from trainmaster.testing import FilesContract


@pytest.fixture
def local(tmp_path: Path) -> LocalFiles:
    files = LocalFiles(str(tmp_path / "root"))
    files.make_root()
    return files


def everything_in(root: str) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in Path(root).rglob("*"))


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


# ---- the contract of both


class TestMemoryFiles(FilesContract):
    def make(self, folder: Path) -> Files:
        return MemoryFiles()


class TestLocalFiles(FilesContract):
    def make(self, folder: Path) -> Files:
        files = LocalFiles(str(folder / "root"))
        files.make_root()
        return files


def test_create_many_from_a_failing_source_leaves_no_temporary_file(local: LocalFiles) -> None:
    def records() -> Iterator[tuple[str, bytes]]:
        yield "a/1", b"one"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.create_many(records())
    assert everything_in(local.root) == ["a"], "whole or not at all"


@pytest.mark.parametrize("writer", ["create", "replace", "write"])
def test_content_is_durable_before_its_name_and_the_name_before_the_call_ends(
    local: LocalFiles, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    local.create("a/old", b"old")
    order: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "link", "rename")}

    def fsync(fd: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        real["fsync"](fd)

    def named(name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: (order.append("name"), real[name](*args, **kwargs))[1]

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", named("link"))
    monkeypatch.setattr(os, "rename", named("rename"))
    WRITERS[writer](local)
    assert order == (["file", "folder"] if writer == "write" else ["file", "name", "folder"])


def test_a_new_folder_is_durable_before_anything_in_it(local: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), local.root))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    local.create("a/b/c", b"text")
    assert [path for path in synced if not path.endswith(".tmp")] == [".", "a", "a/b"]


# ---- temporary files (C16)


def test_the_temporary_file_of_a_killed_process_is_deleted_only_after_a_safe_age(local: LocalFiles) -> None:
    local.create("a/b", b"text")
    folder = Path(local.root, "a")
    for name, age in (("old", SAFE_AGE + 60), ("young", SAFE_AGE - 60)):
        (folder / f".{name}.tmp").write_bytes(b"half")
        now = (folder / "b").stat().st_mtime
        os.utime(folder / f".{name}.tmp", (now - age, now - age))
    assert local.sweep("a") == ["a/.old.tmp"]
    assert sorted(os.listdir(folder)) == [".young.tmp", "b"]


def test_temporary_files_are_not_listed(local: LocalFiles) -> None:
    local.create("a/b", b"text")
    Path(local.root, "a", ".0123.tmp").write_bytes(b"half")
    assert local.names("a") == ["b"]


# ---- errors (C05, C07): StoreAccessError with errno, path and hint, and no files left behind

WRITERS: dict[str, Callable[[LocalFiles], Any]] = {
    "create": lambda files: files.create("a/new", b"text"),
    "create_many": lambda files: files.create_many([("a/new", b"text"), ("a/newer", b"text")]),
    "replace": lambda files: files.replace("a/old", b"text"),
    "write": lambda files: files.write("a/new", [b"te", b"xt"]),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_write_that_the_disk_refuses_is_reported_and_changes_nothing(
    local: LocalFiles, monkeypatch: pytest.MonkeyPatch, writer: str, code: int
) -> None:
    local.create("a/old", b"old")
    monkeypatch.setattr(os, "write", failing(code))
    with pytest.raises(StoreAccessError, match=os.strerror(code)) as caught:
        WRITERS[writer](local)
    assert caught.value.errno == code
    assert caught.value.rows["where"].startswith(local.root)
    assert caught.value.rows["hint"]
    assert everything_in(local.root) == ["a", "a/old"]
    assert local.read("a/old") == b"old"


@pytest.mark.parametrize("writer", ["create", "replace", "write"])
def test_a_file_whose_sync_fails_is_not_created(local: LocalFiles, monkeypatch: pytest.MonkeyPatch, writer: str) -> None:  # C05
    local.create("a/old", b"old")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(StoreAccessError):
        WRITERS[writer](local)
    assert everything_in(local.root) == ["a", "a/old"]
    assert local.read("a/old") == b"old"


def test_an_interrupt_while_writing_leaves_nothing(local: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    local.create("a/old", b"old")

    def interrupt(*args: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupt)
    for write in WRITERS.values():
        with pytest.raises(KeyboardInterrupt):
            write(local)
    assert everything_in(local.root) == ["a", "a/old"]


def test_short_writes_are_continued(local: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:  # C08
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:3]))
    data = os.urandom(100)
    local.create("a/b", data)
    assert local.write("a/c", [data]).sha256 == hashlib.sha256(data).hexdigest()
    appender = local.append("a/d")
    appender.write(data)
    appender.close()
    assert [local.read(path) for path in ("a/b", "a/c", "a/d")] == [data] * 3


def test_a_partially_appended_record_is_removed(local: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    appender = local.append("a/b")
    appender.write(b"whole\n")
    write, calls = os.write, []

    def full(fd: int, data: memoryview) -> int:
        calls.append(fd)
        return write(fd, memoryview(data)[:2]) if len(calls) == 1 else failing(errno.ENOSPC)()

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreAccessError, match="disk is full"):
        appender.write(b"half\n")
    monkeypatch.undo()
    appender.write(b"later\n")
    appender.close()
    assert local.read("a/b") == b"whole\nlater\n"


def test_a_beat_on_a_full_disk_changes_the_mark(local: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    local.create("a/lease", b"")
    os.utime(Path(local.root, "a/lease"), (0, 0))
    mark = local.mark("a/lease")
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    local.beat("a/lease")
    assert local.mark("a/lease") != mark


def test_a_folder_that_was_removed_is_reported_when_it_is_written_to(local: LocalFiles) -> None:
    os.rmdir(local.root)
    with pytest.raises(StoreAccessError, match="was removed") as caught:
        local.create("a/b", b"text")
    assert caught.value.errno == errno.ENOENT
    assert not os.path.exists(local.root), "a store that was removed is not created again"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process that drops its privileges")
def test_a_folder_without_permissions_is_reported(local: LocalFiles) -> None:
    local.create("a/b", b"text")
    os.chmod(Path(local.root, "a"), 0)
    code = (
        "import os\nfrom trainmaster.store.files import LocalFiles\nfrom trainmaster.errors import StoreAccessError\nos.setuid(65534)\n"
        "files = LocalFiles('.')\n"
        "for act in (files.read, lambda path: files.create(path + 'c', b'')):\n"
        "    try:\n        act('a/b')\n    except StoreAccessError as error:\n        print(error.errno, error.rows['hint'])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=local.root, capture_output=True, text=True)
    line = f"{errno.EACCES} check the owner and mode of the store's folders\n"
    assert found.stdout == line * 2, found.stderr


def test_a_root_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError) as caught:
            LocalFiles(str(root)).make_root()
        assert str(tmp_path) in caught.value.rows["where"]


# ---- links are not followed (S10, S17)


@pytest.fixture
def victim(local: LocalFiles, tmp_path: Path) -> Path:
    """Create a file outside the store, and links to it (`link`) and to its folder (`folder`) inside the store."""
    path = tmp_path / "outside" / "victim"
    path.parent.mkdir()
    path.write_bytes(b"precious")
    os.symlink(path, os.path.join(local.root, "link"))
    os.symlink(path.parent, os.path.join(local.root, "folder"))
    return path


TOUCHES: dict[str, Callable[[LocalFiles, str], Any]] = {
    "read": lambda files, path: files.read(path),
    "append": lambda files, path: files.append(path),
    "beat": lambda files, path: files.beat(path),
    "truncate": lambda files, path: files.truncate(path, 1),
}


@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize("path", ["link", "folder/victim"])
def test_a_link_is_refused(local: LocalFiles, victim: Path, touch: str, path: str) -> None:
    with pytest.raises(StoreDamagedError, match=r"symbolic link|not a folder of the store"):
        TOUCHES[touch](local, path)
    assert victim.read_bytes() == b"precious"


def test_a_link_itself_is_replaced(local: LocalFiles, victim: Path) -> None:
    local.replace("link", b"new")
    assert local.read("link") == b"new"
    assert victim.read_bytes() == b"precious"


def test_a_link_itself_is_deleted(local: LocalFiles, victim: Path) -> None:
    local.delete("link")
    local.delete_folder("folder")
    assert local.names("") == []
    assert victim.read_bytes() == b"precious"


def test_deleting_a_folder_does_not_follow_links(local: LocalFiles, victim: Path) -> None:
    local.create("a/b", b"")
    os.symlink(victim.parent, os.path.join(local.root, "a", "link"))
    local.delete_folder("a")
    assert victim.read_bytes() == b"precious"


def test_nothing_is_created_through_a_link(local: LocalFiles, victim: Path) -> None:
    with pytest.raises(StoreDamagedError):
        local.create("folder/new", b"")
    with pytest.raises(FileExistsError):
        local.create("link", b"")
    assert os.listdir(victim.parent) == ["victim"]


def test_a_pipe_in_place_of_a_file_does_not_block(local: LocalFiles) -> None:  # L08
    os.mkfifo(os.path.join(local.root, "pipe"))
    with pytest.raises(StoreDamagedError, match="not a regular file"):
        local.read("pipe")


# ---- modes (L21)


@pytest.mark.parametrize(("mode", "file_mode"), [(0o2770, 0o660), (0o700, 0o600), (0o755, 0o644), (0o2775, 0o664)])
def test_all_files_have_the_mode_of_the_stores_folder_regardless_of_the_umask(tmp_path: Path, mode: int, file_mode: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    os.chmod(root, mode)
    umask = os.umask(0o077)
    try:
        files = LocalFiles(str(root))
        files.make_root()
        files.create("a/created", b"")
        files.create_many([("a/many", b"")])
        files.replace("a/replaced", b"")
        files.write("a/b/written", [b""])
        files.append("a/appended").close()
        files.beat("a/lease")
    finally:
        os.umask(umask)
    found = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in root.rglob("*") if path.is_file()}
    assert found == dict.fromkeys(found, oct(file_mode))


@pytest.mark.parametrize("mode", [0o2770, 0o700, 0o2775])
def test_all_folders_have_the_mode_of_the_stores_folder(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    os.chmod(root, mode)
    umask = os.umask(0o077)
    try:
        files = LocalFiles(str(root))
        files.make_root()
        files.create("a/b/c", b"")
    finally:
        os.umask(umask)
    assert [oct(stat.S_IMODE((root / path).stat().st_mode)) for path in ("a", "a/b")] == [oct(mode)] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another group")
def test_files_belong_to_the_group_of_a_shared_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    os.chown(root, -1, 4242)
    os.chmod(root, 0o2770)
    files = LocalFiles(str(root))
    files.make_root()
    files.create("a/b/c", b"")
    assert [(root / path).stat().st_gid for path in ("a", "a/b", "a/b/c")] == [4242] * 3


def test_an_existing_file_that_is_too_large_for_a_record_is_not_read_into_memory(local: LocalFiles) -> None:
    with open(os.path.join(local.root, "large"), "wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(StoreDamagedError, match="too large: more than 67,108,864 bytes"):
        local.read("large")


def test_a_file_that_is_being_written_is_not_visible_yet(local: LocalFiles) -> None:
    local.write("a/whole", [b"1"])
    (Path(local.root) / "a" / ".0123.tmp").write_bytes(b"half")
    assert local.names("a") == ["whole"]
    assert [*local.marks("a")] == ["whole"]


def test_new_files_get_the_permissions_of_an_existing_folder(tmp_path: Path) -> None:
    """Also without a call of `make_root`."""
    tmp_path.chmod(0o700)
    LocalFiles(str(tmp_path)).create("a/record.json", b"{}")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "record.json").stat().st_mode) == 0o600
