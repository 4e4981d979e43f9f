"""The store accesses all files through `Files`. Tests can therefore make any single step fail, and other storage,
such as a bucket, can replace the folder.

Paths are relative, with slashes. A file that is created or replaced appears complete and durable, or not at all:
it is written to a temporary name in the same folder and synced, then linked or renamed, and then the folder is synced.
Symbolic links in a store are never followed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import random
import secrets
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple, ParamSpec, Protocol, TypeVar

from trainmaster.errors import StoreAccessError, StoreDamagedError

MAX_RECORD = 64 * 2**20
"""The maximum size in bytes of a record that is read into memory."""
SAFE_AGE = 24 * 3600.0
"""The age in seconds at which a temporary file is considered abandoned."""
_TEMP = ".tmp"
_PAUSES = (0.01, 0.1, 0.5, 1.0)
_LARGE = 2**20
"""Files of at least this many bytes are hashed in a separate thread."""
_MAX_PENDING = 64
"""The maximum number of chunks that wait to be hashed. It limits memory use, because some of these chunks are copies."""


Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def is_temporary(name: str) -> bool:
    """Return whether the file with this name is temporary: it is being written, or a killed process left it behind."""
    return name.endswith(_TEMP)


class Written(NamedTuple):
    """The size and the checksum of the bytes that were written to a file."""

    size: int
    sha256: str


class Appender(Protocol):
    """A file opened for appending."""

    def write(self, data: bytes) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Files(Protocol):
    def read(self, path: str) -> bytes:
        """Return the content of a file. Raise `FileNotFoundError` if it does not exist."""

    def read_many(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the name and content of each of these files in a folder. Files that are missing or cannot be read are left out."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""

    def has(self, path: str) -> bool: ...

    def mark(self, path: str) -> tuple[int, int] | None:
        """Return the fingerprint of a file, a value that changes whenever the file changes. Return None if the file does not exist."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, without temporary files. The list is empty if the folder does not exist."""

    def marks(self, folder: str) -> dict[str, tuple[int, int]]:
        """Return the fingerprint (see `mark`) of each entry in a folder.

        The fingerprint of a subfolder changes when an entry is added to it or removed from it.
        """

    def create(self, path: str, data: bytes) -> None:
        """Create a file. Raise `FileExistsError` if it exists. If several processes try at once, exactly one succeeds."""

    def create_many(self, records: Iterable[tuple[str, bytes]]) -> list[str]:
        """Create many files and sync them to disk together. Return the paths that already existed, which are left unchanged."""

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Written:
        """Create a file directly under its final name, and hash it while writing.

        Use this only in folders that readers ignore until a manifest lists their files.
        """

    def replace(self, path: str, data: bytes) -> None:
        """Create a file or replace its content."""

    def append(self, path: str) -> Appender: ...

    def beat(self, path: str) -> None:
        """Change the fingerprint of a file (see `mark`). This works even if the disk is full."""

    def truncate(self, path: str, size: int) -> None:
        """Keep only the first `size` bytes of a file."""

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and its content if it exists."""

    def sweep(self, folder: str) -> list[str]:
        """Delete abandoned temporary files in a folder, and return their paths."""


def _retry_stale(act: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Retry an action a few times while a network file system reports a stale file handle."""

    @functools.wraps(act)
    def retried(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for pause in _PAUSES:
            try:
                return act(*args, **kwargs)
            except StoreAccessError as error:
                if error.errno != errno.ESTALE:
                    raise
                time.sleep(pause * random.SystemRandom().uniform(0.5, 1.5))
        return act(*args, **kwargs)

    return retried


class LocalFiles:
    """The files below a local folder or a mounted network folder."""

    def __init__(self, root: str) -> None:
        self.root = root

    @functools.cached_property
    def _mode(self) -> int:
        """The permissions of the root folder. New files and folders get the same permissions."""
        return stat.S_IMODE(os.stat(self.root).st_mode)

    def make_root(self) -> None:
        """Create the root folder if it is missing."""
        new = self.root
        while not os.path.lexists(new):
            new = os.path.dirname(new)
        try:
            os.makedirs(self.root, exist_ok=True)
        except OSError as error:
            why = error.strerror if os.path.isdir(new) else f"`{new}` is not a folder"
            known = _HINTS.get(error.errno or 0) if error.errno != errno.ENOENT else None
            hint = "; ".join(filter(None, [known, "choose another folder: `--store PATH`"]))
            refused = StoreAccessError("the folder of the store cannot be created", where=self.root, why=why, hint=hint)
            refused.errno = error.errno
            raise refused from error
        with _refusals(self.root, "created"):
            folder = self.root
            while folder != new:  # make each new folder durable
                folder = os.path.dirname(folder)
                sync_folder(folder)

    def make_folder(self, folder: str) -> None:
        """Create a folder below the root if it is missing."""
        with _refusals(self._shown(folder), "written"), self._folder(folder, create=True):
            pass

    # ---- reading

    @_retry_stale
    def read(self, path: str) -> bytes:
        with self._parent(path, "read") as (at, name):
            return self._read_in(at, name, path)

    def read_many(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        try:
            at = self._open_folder(folder, create=False)
        except (OSError, StoreDamagedError):
            return
        try:
            for name in names:
                try:
                    data = self._read_in(at, name, f"{folder}/{name}")
                except (OSError, StoreDamagedError):
                    continue
                yield name, data
        finally:
            os.close(at)

    @_retry_stale
    def open(self, path: str) -> BinaryIO:
        with self._parent(path, "read") as (at, name):
            return os.fdopen(self._open_to_read(at, name, path)[0], "rb")

    def has(self, path: str) -> bool:
        return self.mark(path) is not None

    @_retry_stale
    def mark(self, path: str) -> tuple[int, int] | None:
        try:
            with self._parent(path, "read") as (at, name):
                status = os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return status.st_size, status.st_mtime_ns

    @_retry_stale
    def names(self, folder: str) -> list[str]:
        try:
            with _refusals(self._shown(folder), "listed"), self._folder(folder) as at:
                return [name for name in os.listdir(at) if not is_temporary(name)]
        except FileNotFoundError:
            return []

    def marks(self, folder: str) -> dict[str, tuple[int, int]]:
        marks = {}
        with (
            contextlib.suppress(FileNotFoundError),
            _refusals(self._shown(folder), "listed"),
            self._folder(folder) as at,
            os.scandir(at) as entries,
        ):
            for entry in entries:
                if not is_temporary(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    # If a folder changes twice within one clock tick, its timestamp stays the same, but its link count or size changes.
                    size = status.st_size + status.st_nlink if stat.S_ISDIR(status.st_mode) else status.st_size
                    marks[entry.name] = (size, status.st_mtime_ns)
        return marks

    # ---- writing

    def create(self, path: str, data: bytes) -> None:
        with self._parent(path, "written", create=True) as (at, name):
            aside = self._write_aside(at, data)
            try:
                os.link(aside, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
            except FileExistsError:
                # If a network file system lost the reply and repeated the request, this call itself created the existing file.
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
                        folders[folder] = stack.enter_context(self._folder(folder, create=True))
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
            for folder, pairs in waiting.items():  # after an error, some files may not have been linked yet
                with contextlib.suppress(OSError, StoreDamagedError), self._folder(folder) as at:
                    for aside, _ in pairs:
                        _discard(aside, at)
        return existing

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Written:
        with self._parent(path, "written", create=True) as (at, name):
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
        with self._parent(path, "written", create=True) as (at, name):
            aside = self._write_aside(at, data)
            try:
                os.rename(aside, name, src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                _discard(aside, at)
                raise
            _sync_folder(at)

    def append(self, path: str) -> Appender:
        with self._parent(path, "written", create=True) as (at, name):
            fd = self._open_to_append(name, at)
            _sync_folder(at)
        return _LocalAppender(fd, self._shown(path))

    def beat(self, path: str) -> None:
        with self._parent(path, "written") as (at, name):
            fd = self._open_to_append(name, at)
            try:
                os.write(fd, b".")
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                os.utime(fd)
            finally:
                os.close(fd)

    def truncate(self, path: str, size: int) -> None:
        with self._parent(path, "written") as (at, name):
            fd = _only_here(os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at), name)
            try:
                os.ftruncate(fd, size)
                os.fsync(fd)
            finally:
                os.close(fd)

    # ---- removing

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._parent(path, "deleted") as (at, name):
            os.unlink(name, dir_fd=at)
            _sync_folder(at)

    def delete_folder(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._parent(folder, "deleted") as (at, name):
            _delete_tree(name, at)
            _sync_folder(at)

    def sweep(self, folder: str) -> list[str]:
        deleted = []
        with contextlib.suppress(FileNotFoundError), _refusals(self._shown(folder), "swept"), self._folder(folder) as at:
            old = [name for name in os.listdir(at) if is_temporary(name)]
            if not old:
                return []
            # Take the current time from the file system too, because the clock of this machine may be wrong.
            probe = self._write_aside(at, b"", is_synced=False)
            now = os.stat(probe, dir_fd=at).st_mtime
            _discard(probe, at)
            for name in old:
                with contextlib.suppress(FileNotFoundError):
                    if now - os.stat(name, dir_fd=at, follow_symlinks=False).st_mtime > SAFE_AGE:
                        _delete_tree(name, at)
                        deleted.append(f"{folder}/{name}")
        return deleted

    # ---- folders

    @contextlib.contextmanager
    def _parent(self, path: str, act: str, create: bool = False) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the parent folder of `path`, and the last part of `path`. Turn an `OSError` into a `StoreAccessError`."""
        folder, name = os.path.split(path)
        try:
            at = self._open_folder(folder, create)
            try:
                yield at, name
            finally:
                os.close(at)
        except OSError as error:
            _refuse(error, self._shown(path), act)
            raise

    @contextlib.contextmanager
    def _folder(self, folder: str, create: bool = False) -> Iterator[int]:
        at = self._open_folder(folder, create)
        try:
            yield at
        finally:
            os.close(at)

    def _open_folder(self, folder: str, create: bool) -> int:
        """Return a descriptor of a folder, opened without following links below the root.

        With `create`, missing folders are created durably. The root is never created here, because a missing root means that
        someone has removed the store.
        """
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in folder.split("/") if folder else ():
                try:
                    above, fd = fd, _step(fd, part, self._shown(folder))
                except FileNotFoundError:
                    if not create:
                        raise
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=fd)
                    _sync_folder(fd)
                    above, fd = fd, _step(fd, part, self._shown(folder))
                    _allow(fd, self._mode & 0o2777)
                os.close(above)
        except BaseException:
            os.close(fd)
            raise
        return fd

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

    def _read_in(self, at: int, name: str, path: str) -> bytes:
        """Return the content of the file `name` in the open folder `at`."""
        fd, size = self._open_to_read(at, name, path)
        try:
            if size > MAX_RECORD:
                raise StoreDamagedError(f"`{path}` is too large: more than {MAX_RECORD:,} bytes", where=self._shown(path))
            return _read_all(fd, size)
        finally:
            os.close(fd)

    def _open_to_read(self, at: int, name: str, path: str) -> tuple[int, int]:
        """Open a regular file for reading. Return its descriptor and its size."""
        # Open without blocking: if there is a pipe in place of the file, a blocking open would wait forever.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise StoreDamagedError(f"`{path}` is not a regular file", where=self._shown(path))
        return fd, status.st_size

    def _open_to_append(self, name: str, at: int) -> int:
        """Open a file for appending. Create it if it is missing."""
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=at)
        _allow(_only_here(fd, name), self._mode & 0o666)
        return fd

    def _shown(self, path: str) -> str:
        return f"{self.root}/{path}"


class _LocalAppender:
    """Appends complete records. If a write fails, the partial record is removed."""

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
    """Raise an error if an open file has a second hard link, because writing to it could change a file outside the store."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(fd)
        raise StoreDamagedError(f"`{name}` is not a regular file, or has several hard links")
    return fd


def _step(at: int, name: str, shown: str) -> int:
    """Open the folder `name` in the open folder `at`."""
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise StoreDamagedError(f"`{name}` in `{shown}` is not a folder of the store", where=shown) from None
        raise


def _read_all(fd: int, size: int) -> bytes:
    """Return the content of an open file. Its size may have changed since `size` was read."""
    data = os.read(fd, size + 1)
    if len(data) != size:
        while chunk := os.read(fd, _LARGE):
            data += chunk
    return data


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _write_hashed(fd: int, chunks: Iterable[bytes | memoryview]) -> Written:
    """Write and sync the chunks in this thread, and hash them in another one. Both operations release the GIL, so they run in parallel.

    A small file is hashed in this thread, because starting a thread would take longer.
    """
    from concurrent.futures import Future, ThreadPoolExecutor

    digest, size = hashlib.sha256(), 0
    with contextlib.ExitStack() as stack:
        hasher: ThreadPoolExecutor | None = None
        pending: deque[Future[None]] = deque()
        for chunk in chunks:
            if hasher is None and size + memoryview(chunk).nbytes >= _LARGE:
                hasher = stack.enter_context(ThreadPoolExecutor(1, "trainmaster-hash"))
            if hasher is None:
                digest.update(chunk)
            else:
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
        os.unlink(name, dir_fd=at)  # a file or a symbolic link, which is not followed
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
    """Give a file the permissions of the store's folder, so that a group of users can share a store regardless of their umasks."""
    with contextlib.suppress(OSError):  # not every file system supports permissions
        os.fchmod(fd, mode)


def _sync_folder(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems do not support syncing folders
            raise


def sync_folder(path: str) -> None:
    """Sync a folder to disk, so that new and renamed entries are durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync_folder(fd)
    finally:
        os.close(fd)


def _sync_everything(fd: int) -> None:
    """Sync the whole file system that contains the open file `fd`."""
    import ctypes

    syncfs: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
    elif syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


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
    """Call `_refuse` if the block raises an `OSError`."""
    try:
        yield
    except OSError as error:
        _refuse(error, shown, act)
        raise


def _refuse(error: OSError, shown: str, act: str) -> None:
    """Raise a `StoreAccessError` that describes `error`.

    Return without raising if the error is a `FileExistsError`, or if it is a `FileNotFoundError` and nothing was to be written.
    """
    if isinstance(error, StoreAccessError | FileExistsError) or (isinstance(error, FileNotFoundError) and act != "written"):
        return
    if error.errno == errno.ELOOP:
        raise StoreDamagedError(f"`{shown}` is a symbolic link", where=shown) from None
    raise access_error(error, shown, act) from error


def access_error(error: OSError, path: str, act: str) -> StoreAccessError:
    """Return a `StoreAccessError` with a hint for an operating system error."""
    refused = StoreAccessError(
        f"`{os.path.basename(path)}` cannot be {act}: {error.strerror}", where=path, hint=_HINTS.get(error.errno or 0)
    )
    refused.errno = error.errno
    return refused
