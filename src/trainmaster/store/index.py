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
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Index:
    """Every config with its key, as plain values. Which there are is asked of the folders each time: the index only saves reading them."""

    def __init__(self, files: Files, configs: ConfigArchive) -> None:
        self._files, self._configs = files, configs

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        missing = dict(self._configs.marks())
        known, total = set(missing), len(missing)
        for line in self._lines():
            key, mark, config = _parsed(line)
            if key in missing and missing[key] == mark and isinstance(config, dict):
                del missing[key]
                yield key, config
        is_stale = len(missing) > total * _STALE
        kept = known - missing.keys()
        fresh = []
        for key, mark in missing.items():
            try:
                config = self._configs.record(key)["config"]
            except FileNotFoundError:  # removed meanwhile
                continue
            except StoreDamagedError as error:
                warnings.warn(f"run {key} is left out: {error.fact}: {error.rows.get('why', '')}", stacklevel=2)
                continue
            if is_stale:
                fresh.append(_encode([key, *mark, config]).encode("utf-8", "surrogatepass") + b"\n")
            yield key, config
        if fresh:
            self._write([*(line for line in self._lines() if _parsed(line)[0] in kept), *fresh])

    def _lines(self) -> Iterator[bytes]:
        """The lines of the index, if it is as it was written."""
        try:
            with self._files.open(PATH) as file:
                header = file.readline(100).strip()
                digest = hashlib.sha256()
                while block := file.read(2**20):
                    digest.update(block)
                if digest.hexdigest().encode() == header:
                    file.seek(len(header) + 1)
                    yield from file
        except (FileNotFoundError, StoreAccessError, StoreDamagedError):
            return

    def _write(self, lines: list[bytes]) -> None:
        body = b"".join(lines)
        try:
            self._files.replace(PATH, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        except (StoreAccessError, StoreDamagedError):  # a store that can only be read has no index
            return


def _parsed(line: bytes) -> tuple[Any, Any, Any]:
    """Key, mark and config of a line; Nones for a line that is none of ours."""
    try:
        key, size, time, config = json.loads(line)
        return str(key), (size, time), config
    except (ValueError, TypeError, RecursionError):
        return None, None, None
