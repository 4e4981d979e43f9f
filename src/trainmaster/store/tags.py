"""Labels on runs. Each label is an empty file, so that two processes can tag the same run without a conflict."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from trainmaster.errors import StoreAccessError, StoreDamagedError, StoreError
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.files import Files
from trainmaster.store.keys import check_key, run_folder, stored_keys

_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


def is_label(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None and not text.endswith(".tmp")


def check_label(text: str) -> str:
    """Return `text` if it is a valid label, otherwise raise an error. Labels are checked because they become file names."""
    if not is_label(text):
        raise StoreError(
            f"{text!r:.80} is not a label",
            hint="a label has 1 to 64 letters A-Z and a-z, digits, `.`, `_` and `-`, and does not start with `.` or `-`",
        )
    return text


class Tags:
    """The labels of runs. `tags[key]` returns the sorted labels of one run.

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
        """Add labels to a run."""
        paths = self._paths(key, labels)
        self._configs.require(key)
        for path in paths:
            with contextlib.suppress(FileExistsError):
                self._files.create(path, b"")

    def remove(self, key: str, labels: Iterable[str]) -> None:
        """Remove labels from a run. Labels that the run does not have are ignored."""
        for path in self._paths(key, labels):
            self._files.delete(path)

    def clear(self, key: str) -> None:
        """Remove all labels from a run."""
        self._files.delete_folder(run_folder("tags", check_key(key)))

    def all(self) -> dict[str, tuple[str, ...]]:
        """Return the labels of all runs that have any. Labels that cannot be read are left out."""
        found = {}
        for key in stored_keys(self._files, "tags"):
            with contextlib.suppress(StoreDamagedError, StoreAccessError):
                found[key] = self[key]
        return {key: labels for key, labels in found.items() if labels}

    def _paths(self, key: str, labels: Iterable[str]) -> list[str]:
        """Check all labels, then return their paths."""
        folder = run_folder("tags", check_key(key))
        return [f"{folder}/{check_label(label)}" for label in labels]
