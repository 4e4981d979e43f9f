"""Files in memory, for a store that lives only as long as its process."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from trainmaster.store.files import Appender, Written


class MemoryFiles:
    """Implements `Files` with a dict in memory instead of a disk."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self._changes: dict[str, int] = {}
        self._lock = threading.RLock()

    def read(self, path: str) -> bytes:
        try:
            return bytes(self._files[path])
        except KeyError:
            raise FileNotFoundError(path) from None

    def read_many(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        found = ((name, self._files.get(f"{folder}/{name}")) for name in names)
        return ((name, bytes(data)) for name, data in found if data is not None)

    def open(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read(path))

    def has(self, path: str) -> bool:
        return path in self._files

    def mark(self, path: str) -> tuple[int, int] | None:
        return (len(self._files[path]), self._changes[path]) if path in self._files else None

    def names(self, folder: str) -> list[str]:
        return list(self.marks(folder))

    def create(self, path: str, data: bytes) -> None:
        with self._lock:
            if path in self._files:
                raise FileExistsError(path)
            self.replace(path, data)

    def create_many(self, records: Iterable[tuple[str, bytes]]) -> list[str]:
        existing = []
        for path, data in records:
            try:
                self.create(path, data)
            except FileExistsError:
                existing.append(path)
        return existing

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Written:
        data = b"".join(chunks)
        self.create(path, data)
        return Written(len(data), hashlib.sha256(data).hexdigest())

    def replace(self, path: str, data: bytes) -> None:
        with self._lock:
            self._files[path] = bytearray(data)
            self._changes[path] = self._changes.get(path, 0) + 1

    def append(self, path: str) -> Appender:
        with self._lock:
            if path not in self._files:
                self.replace(path, b"")
        return _MemoryAppender(self, path)

    def beat(self, path: str) -> None:
        self.append(path).write(b".")

    def truncate(self, path: str, size: int) -> None:
        self.replace(path, self.read(path)[:size])

    def delete(self, path: str) -> None:
        with self._lock:
            self._files.pop(path, None)

    def delete_folder(self, folder: str) -> None:
        with self._lock:
            for path in [path for path in self._files if path.startswith(f"{folder}/")]:
                del self._files[path]

    def marks(self, folder: str) -> dict[str, tuple[int, int]]:
        start = f"{folder}/" if folder else ""
        marks: dict[str, tuple[int, int]] = {}
        with self._lock:
            for path, data in self._files.items():
                if path.startswith(start):
                    name, _, rest = path[len(start) :].partition("/")
                    count, changes = marks.get(name, (0, 0))
                    marks[name] = (count + 1 if rest else len(data), changes + self._changes[path])
        return marks

    def sweep(self, folder: str) -> list[str]:
        return []

    def extend(self, path: str, data: bytes) -> None:
        with self._lock:
            if path in self._files:  # appending must not recreate a deleted file
                self._files[path] += data
                self._changes[path] += 1


class _MemoryAppender:
    def __init__(self, files: MemoryFiles, path: str) -> None:
        self._files, self._path = files, path

    def write(self, data: bytes) -> None:
        self._files.extend(self._path, data)

    def sync(self) -> None: ...

    def close(self) -> None: ...
