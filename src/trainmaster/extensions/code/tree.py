"""Writing below a folder, and nowhere else: no link is followed on the way, and no repository's own files are touched."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from typing import IO, Final

from trainmaster.extensions.code.git import raw

GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""How a file system says that there is nothing at a path: none of its folders, or a link in place of one."""


def wrong_path(path: str) -> str:
    """Why nothing may be written to a path that somebody gave; empty if it may.

    >>> [bool(wrong_path(each)) for each in ("a/b.py", "../a", "/a", "a//b", ".git/config", "a/.GIT/hooks/x", ".gitignore")]
    [False, True, True, True, True, True, False]
    """
    try:
        data = raw(path)
    except UnicodeEncodeError:
        return "it is no name of a file"
    parts = path.split("/")
    if not data or b"\0" in data or any(each in ("", ".", "..") for each in parts):
        return "it leads elsewhere"
    if any(_is_git(each) for each in parts):
        return "it belongs to git itself"
    return ""


def _is_git(name: str) -> bool:
    """`.git`, also as some file systems read it: in other letters, with points at its end, with signs that are not seen."""
    seen = "".join(each for each in unicodedata.normalize("NFKC", name) if unicodedata.category(each) != "Cf")
    return seen.casefold().split(":")[0].rstrip(". ") in (".git", "git~1")


def wrong_paths(paths: Iterable[str]) -> str:
    """Why some paths cannot all be files of one tree; empty if they can."""
    seen: set[str] = set()
    for path in paths:
        why = wrong_path(path)
        if why:
            return f"the path {path!r:.100}: {why}"
        if path in seen:
            return f"the path {path!r:.100} is there twice"
        seen.add(path)
    for path in seen:
        parts = path.split("/")
        for end in range(1, len(parts)):
            if "/".join(parts[:end]) in seen:
                return f"the path {path!r:.100} lies below a file"
    return ""


class Tree:
    """A folder that is written to. A path that leads through a link, or out of the folder, is an `OSError`."""

    def __init__(self, root: str) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._root)

    @contextlib.contextmanager
    def _parent(self, path: str, is_made: bool = False) -> Iterator[tuple[int, bytes]]:
        *folders, name = raw(path).split(b"/")
        at = os.dup(self._root)
        try:
            for folder in folders:
                if is_made:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=at)
                below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                os.close(at)
                at = below
            yield at, name
        finally:
            os.close(at)

    def delete(self, path: str) -> None:
        """Remove a file, and the folders that are empty without it; nothing happens where there is none."""
        try:
            with self._parent(path) as (folder, name):
                is_folder = stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode)
                (os.rmdir if is_folder else os.unlink)(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (*GONE, errno.ENOTEMPTY):
                raise
            return
        while "/" in path:
            path = path.rpartition("/")[0]
            try:
                with self._parent(path) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
            except OSError:  # others are in it
                return

    @contextlib.contextmanager
    def new_file(self, path: str, is_program: bool) -> Iterator[IO[bytes]]:
        """A file to write to, in place of whatever file or link is there."""
        with self._parent(path, is_made=True) as (folder, name):
            _clear(folder, name)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, 0o777 if is_program else 0o666, dir_fd=folder), "wb") as file:
                yield file

    def link(self, path: str, target: bytes) -> None:
        with self._parent(path, is_made=True) as (folder, name):
            _clear(folder, name)
            os.symlink(target, name, dir_fd=folder)

    def make_folder(self, path: str) -> None:
        with self._parent(path, is_made=True) as (folder, name):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            os.close(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder))

    def status(self, path: str) -> os.stat_result:
        with self._parent(path) as (folder, name):
            return os.lstat(name, dir_fd=folder)

    def find(self, path: str) -> os.stat_result | None:
        """What is at a path, not through links; None where there is nothing."""
        try:
            return self.status(path)
        except OSError as error:
            if error.errno not in GONE:
                raise
            return None

    def read(self, path: str, limit: int) -> bytes:
        """The bytes of a file, or the target of a link; not more than `limit` and one more."""
        with self._parent(path) as (folder, name):
            if stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode):
                return os.readlink(name, dir_fd=folder)
            # Not blocking: a pipe may have taken the place of the file.
            with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
                return file.read(limit + 1)


def _clear(folder: int, name: bytes) -> None:
    """Make room for a file: what is there goes, unless it is a folder with others in it."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # the second on some systems
        os.rmdir(name, dir_fd=folder)  # that of a submodule, if it is empty
