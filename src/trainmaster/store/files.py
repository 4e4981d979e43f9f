"""Files: the one door of `store/` to a disk, so that a test can break any single step, and a bucket can stand in for a folder.

Paths are relative, with slashes. What is created or replaced appears whole and durable, or not at all: a temporary name in the same
folder, write, fsync, link or rename, fsync the folder. No link of a store is ever followed, whoever put it there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import secrets
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

from trainmaster.errors import StoreAccessError, StoreDamagedError

MAX_RECORD = 64 * 2**20
"""How much of a record, a tree or a log is read at most into memory at once."""
SAFE_AGE = 24 * 3600.0
"""After how many seconds a temporary file belongs to nobody."""
_TEMP = ".tmp"
_PAUSES = (0.01, 0.1, 0.5, 1.0)
_MAX_PENDING = 64
"""How many chunks may wait to be hashed: most are views of tensors, some are copies."""


Result = TypeVar("Result")


class Written(NamedTuple):
    """What a file was when it was written."""

    size: int
    sha256: str


class Appender(Protocol):
    """A file that grows at its end."""

    def write(self, data: bytes) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Files(Protocol):
    def read(self, path: str) -> bytes:
        """All of a file; `FileNotFoundError` where there is none."""

    def open(self, path: str) -> BinaryIO:
        """A file to read from."""

    def has(self, path: str) -> bool: ...

    def mark(self, path: str) -> tuple[int, int] | None:
        """Something that changes when the file does; None where there is no file."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder, temporary ones left out; none if there is no folder."""

    def marks(self, folder: str) -> dict[str, tuple[int, int]]:
        """The mark of each file in a folder; none if there is no folder."""

    def create(self, path: str, data: bytes) -> None:
        """A new file; `FileExistsError` where there is one already. Of several that try at once, one succeeds."""

    def create_many(self, records: Iterable[tuple[str, bytes]]) -> list[str]:
        """New files with one sync for all of them; returns the paths that existed already."""

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Written:
        """A new file under its own name, for folders that count only once a record names their files; hashed while it is written."""

    def replace(self, path: str, data: bytes) -> None:
        """A file with new content."""

    def append(self, path: str) -> Appender: ...

    def beat(self, path: str) -> None:
        """Change the mark of a file, also on a full disk."""

    def cut(self, path: str, size: int) -> None:
        """Leave the first `size` bytes of a file."""

    def delete(self, path: str) -> None:
        """Remove a file; nothing happens where there is none."""

    def delete_folder(self, folder: str) -> None:
        """Remove a folder with all that is in it; nothing happens where there is none."""

    def sweep(self, folder: str) -> list[str]:
        """Remove the temporary files in a folder that nobody can be writing any more; their paths."""


class LocalFiles:
    """The files below a folder of this machine, or of a network that looks like one."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._mode = 0o777

    def make_root(self) -> None:
        """Make the folder of the store, if it is missing."""
        with _refusals(self.root, "made"):
            new = self.root
            while not os.path.lexists(new):
                new = os.path.dirname(new)
            try:
                os.makedirs(self.root, exist_ok=True)
            except FileExistsError:
                raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder") from None
            made = self.root
            while made != new:  # durable, up to what was there before
                made = os.path.dirname(made)
                sync_folder(made)
            self._mode = stat.S_IMODE(os.stat(self.root).st_mode)

    # ---- reading

    def read(self, path: str) -> bytes:
        with self.open(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(min(size, MAX_RECORD) + 1)  # not at once as much as there could be: all of that would be allocated
        if len(data) > MAX_RECORD:
            raise StoreDamagedError(f"`{path}` is too large: more than {MAX_RECORD:,} bytes", where=self._shown(path))
        return data

    def open(self, path: str) -> BinaryIO:
        return _patiently(lambda: self._open(path))

    def _open(self, path: str) -> BinaryIO:
        folder, name = os.path.split(path)
        with _refusals(self._shown(path), "read"), self._folder(folder) as at:
            # Not blocking, so that a pipe in a file's place cannot hold us.
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise StoreDamagedError(f"`{path}` is not a plain file", where=self._shown(path))
            return os.fdopen(fd, "rb")

    def has(self, path: str) -> bool:
        return self.mark(path) is not None

    def mark(self, path: str) -> tuple[int, int] | None:
        return _patiently(lambda: self._mark(path))

    def _mark(self, path: str) -> tuple[int, int] | None:
        folder, name = os.path.split(path)
        try:
            with _refusals(self._shown(path), "read"), self._folder(folder) as at:
                found = os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return found.st_size, found.st_mtime_ns

    def names(self, folder: str) -> list[str]:
        return _patiently(lambda: self._names(folder))

    def _names(self, folder: str) -> list[str]:
        try:
            with _refusals(self._shown(folder), "listed"), self._folder(folder) as at:
                return [name for name in os.listdir(at) if not name.endswith(_TEMP)]
        except FileNotFoundError:
            return []

    def marks(self, folder: str) -> dict[str, tuple[int, int]]:
        found = {}
        with (
            contextlib.suppress(FileNotFoundError),
            _refusals(self._shown(folder), "listed"),
            self._folder(folder) as at,
            os.scandir(at) as entries,
        ):
            for entry in entries:
                if not entry.name.endswith(_TEMP):
                    status = entry.stat(follow_symlinks=False)
                    found[entry.name] = (status.st_size, status.st_mtime_ns)
        return found

    # ---- writing

    def create(self, path: str, data: bytes) -> None:
        folder, name = os.path.split(path)
        with _refusals(self._shown(path), "written"), self._made_folder(folder) as at:
            aside = self._write_aside(at, data)
            try:
                os.link(aside, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
            except FileExistsError:
                # Over a network an answer may be lost, and the same request asked again: then the file that exists is ours.
                if os.stat(aside, dir_fd=at).st_nlink != 2:
                    raise
            finally:
                _discard(aside, at)
            _sync_folder(at)

    def create_many(self, records: Iterable[tuple[str, bytes]]) -> list[str]:
        waiting: dict[str, list[tuple[str, str]]] = {}
        existing = []
        try:
            with contextlib.ExitStack() as stack, _refusals(self.root, "written"):
                folders: dict[str, int] = {}
                for path, data in records:
                    folder, name = os.path.split(path)
                    if folder not in folders:
                        folders[folder] = stack.enter_context(self._made_folder(folder))
                    waiting.setdefault(folder, []).append((self._write_aside(folders[folder], data, is_synced=False), name))
                if waiting:
                    with self._folder("") as at:
                        _sync_everything(at)
                for folder, pairs in waiting.items():
                    at = folders[folder]
                    while pairs:
                        aside, name = pairs[-1]
                        try:
                            os.link(aside, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
                        except FileExistsError:
                            existing.append(f"{folder}/{name}")
                        os.unlink(aside, dir_fd=at)
                        pairs.pop()
                    _sync_folder(at)
        finally:
            for folder, pairs in waiting.items():  # what is left after an error
                with contextlib.suppress(OSError, StoreDamagedError), self._folder(folder) as at:
                    for aside, _ in pairs:
                        _discard(aside, at)
        return existing

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Written:
        folder, name = os.path.split(path)
        with _refusals(self._shown(path), "written"), self._made_folder(folder) as at:
            fd = self._new(name, at)
            try:
                written = _write_hashed(fd, chunks)
            except BaseException:
                _discard(name, at)
                raise
            finally:
                os.close(fd)
            _sync_folder(at)
        return written

    def replace(self, path: str, data: bytes) -> None:
        folder, name = os.path.split(path)
        with _refusals(self._shown(path), "written"), self._made_folder(folder) as at:
            aside = self._write_aside(at, data)
            try:
                os.rename(aside, name, src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                _discard(aside, at)
                raise
            _sync_folder(at)

    def append(self, path: str) -> Appender:
        folder, name = os.path.split(path)
        with _refusals(self._shown(path), "written"), self._made_folder(folder) as at:
            fd = self._grown(name, at)
            _sync_folder(at)
        return _LocalAppender(fd, self._shown(path))

    def beat(self, path: str) -> None:
        folder, name = os.path.split(path)
        with _refusals(self._shown(path), "written"), self._folder(folder) as at:
            fd = self._grown(name, at)
            try:
                os.write(fd, b".")
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                os.utime(fd)
            finally:
                os.close(fd)

    def cut(self, path: str, size: int) -> None:
        folder, name = os.path.split(path)
        with _refusals(self._shown(path), "written"), self._folder(folder) as at:
            fd = _only_here(os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at), name)
            try:
                os.ftruncate(fd, size)
                os.fsync(fd)
            finally:
                os.close(fd)

    # ---- removing

    def delete(self, path: str) -> None:
        folder, name = os.path.split(path)
        with contextlib.suppress(FileNotFoundError), _refusals(self._shown(path), "deleted"), self._folder(folder) as at:
            os.unlink(name, dir_fd=at)
            _sync_folder(at)

    def delete_folder(self, folder: str) -> None:
        above, name = os.path.split(folder)
        with contextlib.suppress(FileNotFoundError), _refusals(self._shown(folder), "deleted"), self._folder(above) as at:
            _delete_tree(name, at)
            _sync_folder(at)

    def sweep(self, folder: str) -> list[str]:
        swept = []
        with contextlib.suppress(FileNotFoundError), _refusals(self._shown(folder), "swept"), self._folder(folder) as at:
            old = [name for name in os.listdir(at) if name.endswith(_TEMP)]
            if not old:
                return []
            # The file system's own clock on both sides: this machine's may be wrong by any amount.
            probe = self._write_aside(at, b"", is_synced=False)
            now = os.stat(probe, dir_fd=at).st_mtime
            _discard(probe, at)
            for name in old:
                with contextlib.suppress(FileNotFoundError):
                    if now - os.stat(name, dir_fd=at, follow_symlinks=False).st_mtime > SAFE_AGE:
                        _delete_tree(name, at)
                        swept.append(f"{folder}/{name}")
        return swept

    # ---- folders

    @contextlib.contextmanager
    def _folder(self, folder: str) -> Iterator[int]:
        """An open folder, reached without following a link below the root."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in folder.split("/") if folder else ():
                above, fd = fd, _step(fd, part, self._shown(folder))
                os.close(above)
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _made_folder(self, folder: str) -> Iterator[int]:
        """As `_folder`, and what is missing on the way is made, durably. The root itself is not: whoever removed it meant it."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in folder.split("/") if folder else ():
                try:
                    above, fd = fd, _step(fd, part, self._shown(folder))
                except FileNotFoundError:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=fd)
                    _sync_folder(fd)
                    above, fd = fd, _step(fd, part, self._shown(folder))
                    _allow(fd, self._mode & 0o2777)
                os.close(above)
            yield fd
        finally:
            os.close(fd)

    def _write_aside(self, at: int, data: bytes, is_synced: bool = True) -> str:
        name = f".{secrets.token_hex(8)}{_TEMP}"
        fd = self._new(name, at)
        try:
            _write_all(fd, data)
            if is_synced:
                os.fsync(fd)
        except BaseException:
            _discard(name, at)
            raise
        finally:
            os.close(fd)
        return name

    def _new(self, name: str, at: int) -> int:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=at)
        _allow(fd, self._mode & 0o666)
        return fd

    def _grown(self, name: str, at: int) -> int:
        """A file to be appended to, which is made if it is missing."""
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=at)
        _allow(_only_here(fd, name), self._mode & 0o666)
        return fd

    def _shown(self, path: str) -> str:
        return os.path.join(self.root, path)


class _LocalAppender:
    """Records appended whole: after a write that failed half-way, the half is cut off again."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd, self._name = fd, name
        self._size = os.fstat(fd).st_size

    def write(self, data: bytes) -> None:
        with _refusals(self._name, "written"):
            try:
                _write_all(self._fd, data)
            except BaseException:
                os.ftruncate(self._fd, self._size)
                raise
            self._size += len(data)

    def sync(self) -> None:
        with _refusals(self._name, "written"):
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _only_here(fd: int, name: str) -> int:
    """An open file, unless it is known by another name, too, which somebody may have planted."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(fd)
        raise StoreDamagedError(f"`{name}` is not a plain file of the store alone")
    return fd


def _step(at: int, name: str, shown: str) -> int:
    """The folder `name` in the open folder `at`."""
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise StoreDamagedError(f"`{name}` in `{shown}` is not a folder of the store", where=shown) from None
        raise


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _write_hashed(fd: int, chunks: Iterable[bytes | memoryview]) -> Written:
    """Write and sync in this thread, hash in another: both leave Python's lock, so two cores share the work."""
    from concurrent.futures import Future, ThreadPoolExecutor

    digest, size = hashlib.sha256(), 0
    with ThreadPoolExecutor(1, "trainmaster-hash") as hasher:
        pending: deque[Future[None]] = deque()
        for chunk in chunks:
            pending.append(hasher.submit(digest.update, chunk))
            _write_all(fd, chunk)
            size += len(chunk)
            if len(pending) > _MAX_PENDING:
                pending.popleft().result()
        os.fsync(fd)
    return Written(size, digest.hexdigest())


def _delete_tree(name: str, at: int) -> None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        os.unlink(name, dir_fd=at)  # a link or a file: itself, not what it points to
        return
    try:
        for each in os.listdir(fd):
            with contextlib.suppress(FileNotFoundError):
                _delete_tree(each, fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=at)


def _discard(name: str, at: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=at)


def _allow(fd: int, mode: int) -> None:
    """Files follow the mode of the store's folder, so that a group can share one, whatever each user's umask is."""
    with contextlib.suppress(OSError):  # not every file system has modes
        os.fchmod(fd, mode)


def _sync_folder(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that does not sync folders
            raise


def sync_folder(path: str) -> None:
    """Make durable what was made or renamed in a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync_folder(fd)
    finally:
        os.close(fd)


def _sync_everything(fd: int) -> None:
    """All that was written to the file system of `fd`."""
    import ctypes

    syncfs: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
    elif syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _patiently(act: Callable[[], Result]) -> Result:
    """Ask again, a few times, where a network file system says that what it had at hand is out of date (J6)."""
    for pause in _PAUSES:
        try:
            return act()
        except StoreAccessError as error:
            if error.errno != errno.ESTALE:
                raise
            time.sleep(pause * random.SystemRandom().uniform(0.5, 1.5))
    return act()


_HINTS = {
    errno.ENOSPC: "the disk is full: free some space and start again; everything saved so far is untouched",
    errno.EDQUOT: "the quota is used up: free some space and start again; everything saved so far is untouched",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "check the owner and mode of the store's folders",
    errno.EPERM: "check the owner and mode of the store's folders, and that the file system has hard links",
    errno.EIO: "the disk or network reports an error; everything saved so far is untouched",
    errno.ENOENT: "a folder of the store was removed",
    errno.ENAMETOOLONG: "choose a shorter path for the store",
}


@contextlib.contextmanager
def _refusals(shown: str, act: str) -> Iterator[None]:
    """What the system refuses, as an error of ours; that a file exists or does not is for the caller."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreAccessError | FileExistsError) or (isinstance(error, FileNotFoundError) and act != "written"):
            raise
        if error.errno == errno.ELOOP:
            raise StoreDamagedError(f"`{shown}` is a symbolic link", where=shown) from None
        raise access_error(error, shown, act) from error


def access_error(error: OSError, shown: str, act: str) -> StoreAccessError:
    """What the system said, with what to do about it."""
    refused = StoreAccessError(
        f"`{os.path.basename(shown)}` cannot be {act}: {error.strerror}", where=shown, hint=_HINTS.get(error.errno or 0)
    )
    refused.errno = error.errno
    return refused
