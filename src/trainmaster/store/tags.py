"""Tags: labels that people give to runs. Each is an empty file of its own, so that two who tag one run never meet."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from trainmaster.errors import StoreError, UnknownRunError
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.files import Files
from trainmaster.store.keys import check_key, is_key, run_folder

_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


def is_label(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None and not text.endswith(".tmp")


def check_label(text: str) -> str:
    """`text`, if it can be a label; this is asked at every entrance, because labels become names of files."""
    if not is_label(text):
        raise StoreError(
            f"{text!r:.80} is no label",
            hint="a label is 1 to 64 of the letters A-Z and a-z, digits, `.`, `_` and `-`; it starts with none of `.` and `-`",
        )
    return text


class Tags:
    """The labels of runs, by key: `tags[key]` has those of one run, sorted.

    >>> from trainmaster.store import Store
    >>> store = Store(None)
    >>> key = store.configs.add({"lr": 0.1})
    >>> store.tags.add(key, ["best", "paper"])
    >>> store.tags[key]
    ('best', 'paper')
    """

    def __init__(self, files: Files, configs: ConfigArchive) -> None:
        self._files, self._configs = files, configs

    def __getitem__(self, key: str) -> tuple[str, ...]:
        return tuple(sorted(filter(is_label, self._files.names(run_folder("tags", check_key(key))))))

    def add(self, key: str, labels: Iterable[str]) -> None:
        """Give labels to a run; those that it has already stay."""
        paths = self._paths(key, labels)
        if key not in self._configs:
            raise UnknownRunError(f"no config has the key {key}", hint="`configs.keys()` has all keys")
        for path in paths:
            with contextlib.suppress(FileExistsError):
                self._files.create(path, b"")

    def remove(self, key: str, labels: Iterable[str]) -> None:
        """Take labels from a run; nothing happens for those that it does not have."""
        for path in self._paths(key, labels):
            self._files.delete(path)

    def clear(self, key: str) -> None:
        """Take all labels from a run."""
        self._files.delete_folder(run_folder("tags", check_key(key)))

    def all(self) -> dict[str, tuple[str, ...]]:
        """The labels of all runs that have some."""
        keys = [key for folder in self._files.names("tags") if len(folder) == 2 for key in self._files.names(f"tags/{folder}")]
        found = {key: self[key] for key in keys if is_key(key)}
        return {key: labels for key, labels in found.items() if labels}

    def _paths(self, key: str, labels: Iterable[str]) -> list[str]:
        """Where labels lie, once all of them are seen to be some."""
        folder = run_folder("tags", check_key(key))
        return [f"{folder}/{check_label(label)}" for label in labels]
