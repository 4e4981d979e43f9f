"""`ReadOnce`: caches files and folders while a run is summarized."""

from __future__ import annotations

from functools import cache

from trainmaster.store.files import Files


class ReadOnce:
    """Reads each file and lists each folder only once. Without this cache, a summary would read most records of a run several times.

    Use a new `ReadOnce` for each summary. It provides only the reading methods of `Files`.
    """

    def __init__(self, files: Files) -> None:
        @cache
        def find(path: str) -> bytes | None:
            try:
                return files.read(path)
            except FileNotFoundError:
                return None

        self._find, self.names, self.mark = find, cache(files.names), cache(files.mark)

    def read(self, path: str) -> bytes:
        data = self._find(path)
        if data is None:
            raise FileNotFoundError(path)
        return data

    def has(self, path: str) -> bool:
        return self.mark(path) is not None
