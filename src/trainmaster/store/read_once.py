"""`ReadOnce`: caches files and folders while a run is summarized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from trainmaster.store.files import Files

Result = TypeVar("Result")


class ReadOnce:
    """Reads each file and lists each folder only once. Without this cache, a summary would read most records of a run several times.

    Use a new `ReadOnce` for each summary. It provides only the reading methods of `Files`.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[tuple[Any, str], Any] = {}

    def _once(self, read: Callable[[str], Result], path: str) -> Result:
        if (read, path) not in self._known:
            try:
                self._known[read, path] = read(path)
            except FileNotFoundError as error:
                self._known[read, path] = error
        found = self._known[read, path]
        if isinstance(found, FileNotFoundError):
            raise found
        return found  # type: ignore[no-any-return]

    def read(self, path: str) -> bytes:
        return self._once(self._files.read, path)

    def names(self, folder: str) -> list[str]:
        return self._once(self._files.names, folder)

    def mark(self, path: str) -> tuple[int, int] | None:
        return self._once(self._files.mark, path)

    def has(self, path: str) -> bool:
        return self.mark(path) is not None
