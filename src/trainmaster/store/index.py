"""The index: all configs in one file, for queries over many runs. It is a cache: you can delete it at any time."""

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
"""The share of missing configs at which the index is written again."""
_PER_LINE = 200
_encode = json.JSONEncoder(separators=(",", ":")).encode

Entry = tuple[str, tuple[int, int], dict[str, Any], list[str]]
"""The key of a config, the mark of its file, the config, and the dotted keys of its secrets."""


class Index:
    """All configs with their keys, as plain values. The folders are listed each time; with the index, the files do not have to be read."""

    def __init__(self, files: Files, configs: ConfigArchive) -> None:
        self._files, self._configs = files, configs

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        return ((key, config) for key, config, _ in self.with_secrets())

    def with_secrets(self) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """Key, config, and the dotted keys of its secrets."""
        missing = dict(self._configs.marks())
        total = len(missing)
        for key, mark, config, secrets in self._entries():
            if missing.get(key) == mark:
                del missing[key]
                yield key, config, secrets
        is_stale = len(missing) > total * _STALE
        fresh: list[bytes] = []
        waiting: list[Entry] = []
        for key, mark in missing.items():
            try:
                record = self._configs.record(key)
            except FileNotFoundError:  # removed in the meantime
                continue
            except StoreDamagedError as error:
                why = ": ".join(filter(None, [error.fact, error.rows.get("why")]))
                warnings.warn(f"run {key} is skipped: {why}", stacklevel=2)
                continue
            config, secrets = record["config"], record.get("secrets", [])
            waiting.append((key, mark, config, secrets))
            if is_stale and len(waiting) >= _PER_LINE:
                fresh.append(_line(waiting))
                waiting = []
            yield key, config, secrets
        if is_stale and missing:
            self._write(missing.keys(), [*fresh, _line(waiting)])

    def _entries(self) -> Iterator[Entry]:
        """The entries of the index, if its checksum matches."""
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
                    for key, size, time, config, secrets in json.loads(line):
                        if type(key) is str and type(config) is dict and type(secrets) is list:
                            yield key, (size, time), config, secrets
        except (FileNotFoundError, StoreAccessError, StoreDamagedError):
            return
        except (ValueError, TypeError, RecursionError):  # not written by trainmaster
            return

    def _write(self, replaced: Any, fresh: list[bytes]) -> None:
        """Write the entries that are still valid, and the new ones."""
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
        except (StoreAccessError, StoreDamagedError):  # a read-only store has no index
            return


def _line(entries: list[Entry]) -> bytes:
    return _encode([[key, *mark, config, secrets] for key, mark, config, secrets in entries]).encode() + b"\n"
