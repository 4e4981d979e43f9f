"""Reads and writes config files in YAML and JSON."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import stat
from pathlib import Path
from typing import Any

from trainmaster.config.json_reader import read_json
from trainmaster.config.parsed_file import ParsedFile, fail, position_of
from trainmaster.config.paths import MAX_BYTES
from trainmaster.config.to_plain import to_plain
from trainmaster.config.writer import json_text, yaml_text
from trainmaster.config.yaml_reader import read_yaml
from trainmaster.errors import ConfigFileError, ask_about, nearest


def read_file(path: str | os.PathLike[str], keep_numerals: bool = False) -> ParsedFile:
    """Parse a file as JSON if its name ends in `.json`, otherwise as YAML. `keep_numerals` keeps the original text of numbers."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigFileError(f"{path!r:.60} is not a file name")
    name = os.fspath(path)
    data = _read_bytes(name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        fail(name, f"not valid UTF-8: byte 0x{data[error.start]:02x}", position_of(len(before), before))
    if "\r" in text:
        fail(name, "has carriage returns as line ends", position_of(text.index("\r"), text), f"sed -i 's/\\r$//' {shlex.quote(name)}")
    if text.startswith("\ufeff"):
        fail(name, "starts with a byte order mark", (1, 1), "save it as UTF-8 without BOM")
    read = read_json if name.endswith(".json") else read_yaml
    return read(text, name, keep_numerals)


def _read_bytes(name: str) -> bytes:
    try:
        status = os.stat(name)
        if stat.S_ISDIR(status.st_mode):
            fail(name, "is a folder, not a file")
        if not stat.S_ISREG(status.st_mode):  # reading a FIFO could block forever
            fail(name, "is not a regular file")
        if status.st_size > MAX_BYTES:
            fail(name, f"has {status.st_size:,} bytes; a config has at most {MAX_BYTES:,}")
        return Path(name).read_bytes()
    except OSError as error:
        fail(name, f"cannot be read: {error.strerror}", hint=_similar_files(name))


def _similar_files(name: str) -> str:
    try:
        similar = nearest(os.path.basename(name), os.listdir(os.path.dirname(name) or "."))
    except OSError:
        return ""
    return ask_about(str(Path(name).with_name(each)) for each in similar)


def write_file(tree: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write `tree` as JSON if the name ends in `.json`, otherwise as YAML. An interrupted write leaves no partial file."""
    name = os.fspath(path)
    to_plain(tree)  # raises for a tree that could not be read back
    data = (json_text(tree) if name.endswith(".json") else yaml_text(tree)).encode()
    if len(data) > MAX_BYTES:
        raise ConfigFileError(f"`{name}` cannot be written: {len(data):,} bytes, and a config has at most {MAX_BYTES:,}", where=name)
    temporary = os.path.join(os.path.dirname(name), f".{secrets.token_hex(8)}.tmp")  # short, because `name` may have the maximum length
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name)
    except OSError as error:
        raise ConfigFileError(f"`{name}` cannot be written: {error.strerror}", where=name) from None
    finally:
        with contextlib.suppress(OSError):  # after a successful replace, the temporary file no longer exists
            os.unlink(temporary)
