"""Records are readable JSON files with one member per line. The last member is the SHA-256 of everything before it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from trainmaster.errors import StoreDamagedError
from trainmaster.store.files import Files

Record = dict[str, Any]
Members = Mapping[str, type | tuple[type, ...]]

_ENDING = re.compile(rb',\n "checksum": "([0-9a-f]{64})"\n}\n\Z')
_LENGTH = len(',\n "checksum": "') + 64 + len('"\n}\n')
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def record_bytes(members: Mapping[str, Any]) -> bytes:
    """Return the bytes of a record.

    >>> print(record_bytes({"epoch": 3})[:13].decode())
    {
     "epoch": 3
    """
    lines = ",\n".join([f" {_encode(name)}: {_encode(value)}" for name, value in members.items()])
    body = b"{\n" + lines.encode("utf-8", "surrogatepass")
    return b'%b,\n "checksum": "%b"\n}\n' % (body, hashlib.sha256(body).hexdigest().encode())


def parse_record(data: bytes, path: str, members: Members | None = None) -> Record:
    """Return the members of a record. Raise `StoreDamagedError` if a byte was changed.

    `members` maps the required members to their types. The types are checked too, because a forged record can have a
    correct checksum.
    """
    ending = _ENDING.search(data[-_LENGTH:])
    if ending is None:
        raise damaged(path, "it is empty" if not data else "it is truncated, or was not written by trainmaster")
    if hashlib.sha256(data[:-_LENGTH]).hexdigest().encode() != ending[1]:
        raise damaged(path, "its checksum does not match: it was changed after it was written")
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise damaged(path, "it is not a JSON object")
    record.pop("checksum", None)
    check_members(record, path, members or {})
    return record


def check_members(record: Record, path: str, members: Members) -> None:
    for name, kind in members.items():
        value = record.get(name, ...)
        if not isinstance(value, kind) or isinstance(value, bool):  # True is an int in Python
            raise damaged(path, f"its `{name}` is missing or of the wrong type")


def read_record(files: Files, path: str, members: Members | None = None) -> Record:
    """Return the record at `path`. Raise `FileNotFoundError` if there is none."""
    return parse_record(files.read(path), path, members)


def find_record(files: Files, path: str, members: Members | None = None) -> Record | None:
    """Return the record at `path`, or None if there is none."""
    try:
        return read_record(files, path, members)
    except FileNotFoundError:
        return None


def damaged(path: str, why: str, hint: str | None = None) -> StoreDamagedError:
    return StoreDamagedError.of(path, why, hint or "restore the file from a copy; `verify()` lists all damaged files")
