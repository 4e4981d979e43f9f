"""The index: all configs in one file, for questions about all of them. A cache: it can be deleted at any time, and is made again."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from typing import Any

from trainmaster.errors import StoreAccessError, StoreDamagedError
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.files import Files

PATH = "index/configs.jsonl"
_STALE = 0.01
"""From which part of missing configs on the index is written again."""
_PER_LINE = 200
_encode = json.JSONEncoder(separators=(",", ":")).encode

Entry = tuple[str, tuple[int, int], dict[str, Any]]
"""The key of a config, the mark of its file, and the config."""


class Index:
    """Every config with its key, as plain values. Which there are is asked of the folders each time: the index only saves reading them."""

    def __init__(self, files: Files, configs: ConfigArchive) -> None:
        self._files, self._configs = files, configs

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        missing = dict(self._configs.marks())
        total = len(missing)
        for key, mark, config in self._entries():
            if missing.get(key) == mark:
                del missing[key]
                yield key, config
        is_stale = len(missing) > total * _STALE
        fresh: list[bytes] = []
        waiting: list[Entry] = []
        for key, mark in missing.items():
            try:
                config = self._configs.record(key)["config"]
            except FileNotFoundError:  # removed meanwhile
                continue
            except StoreDamagedError as error:
                why = ": ".join(filter(None, [error.fact, error.rows.get("why")]))
                warnings.warn(f"run {key} is left out: {why}", stacklevel=2)
                continue
            waiting.append((key, mark, config))
            if is_stale and len(waiting) >= _PER_LINE:
                fresh.append(_line(waiting))
                waiting = []
            yield key, config
        if is_stale and missing:
            self._write(missing.keys(), [*fresh, _line(waiting)])

    def _entries(self) -> Iterator[Entry]:
        """What the index says, if it is as it was written."""
        try:
            with self._files.open(PATH) as file:
                header = file.readline(100).strip()
                digest = hashlib.sha256()
                while block := file.read(2**20):
                    digest.update(block)
                if digest.hexdigest().encode() != header:
                    return
                file.seek(len(header) + 1)
                for line in file:
                    for key, size, time, config in json.loads(line):
                        if type(key) is str and type(config) is dict:
                            yield key, (size, time), config
        except (FileNotFoundError, StoreAccessError, StoreDamagedError):
            return
        except (ValueError, TypeError, RecursionError):  # somebody made it
            return

    def _write(self, replaced: Any, fresh: list[bytes]) -> None:
        """Write what is still right of the index, and what is new."""
        present = dict(self._configs.marks())
        lines, waiting = [], []
        for entry in self._entries():
            if entry[0] not in replaced and entry[0] in present:
                waiting.append(entry)
                if len(waiting) >= _PER_LINE:
                    lines.append(_line(waiting))
                    waiting = []
        body = b"".join([*lines, _line(waiting), *fresh])
        try:
            self._files.replace(PATH, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        except (StoreAccessError, StoreDamagedError):  # a store that can only be read has no index
            return


def _line(entries: list[Entry]) -> bytes:
    return _encode([[key, *mark, config] for key, mark, config in entries]).encode() + b"\n"
