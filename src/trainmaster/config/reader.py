"""Files that hold a config."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path as FilePath

from trainmaster.config.document import Document, place_of, refuse
from trainmaster.config.json_reader import read_json
from trainmaster.config.paths import MAX_BYTES
from trainmaster.config.yaml_reader import read_yaml
from trainmaster.errors import ConfigFileError, nearest


def read_file(path: str | os.PathLike[str], keep_numerals: bool = False) -> Document:
    """The file's content: JSON if its name ends in `.json`, else YAML. With `keep_numerals`, numbers remember how they were written."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigFileError(f"{path!r:.60} is no file name")
    name = os.fspath(path)
    data = _bytes_of(name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8").rpartition("\n")
        refuse(name, f"not valid UTF-8: byte 0x{data[error.start]:02x}", (data.count(b"\n", 0, error.start) + 1, len(before[2]) + 1))
    if "\r" in text:
        refuse(name, "has carriage returns as line ends", place_of(text.index("\r"), text), f"sed -i 's/\\r$//' {shlex.quote(name)}")
    if text.startswith("\ufeff"):
        refuse(name, "starts with a byte order mark", (1, 1), "save it as UTF-8 without BOM")
    read = read_json if name.endswith(".json") else read_yaml
    return read(text, name, keep_numerals)


def _bytes_of(name: str) -> bytes:
    try:
        with open(name, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:  # a FIFO must not hold us up
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                refuse(name, "is not a regular file")
            if status.st_size > MAX_BYTES:
                refuse(name, f"has {status.st_size:,} bytes; a config has at most {MAX_BYTES:,}")
            return file.read(MAX_BYTES + 1)[:MAX_BYTES]
    except ConfigFileError:
        raise
    except IsADirectoryError:
        refuse(name, "is a folder, not a file")
    except OSError as error:
        beside = nearest(os.path.basename(name), _names_beside(name))
        hint = f"did you mean {' or '.join(f'`{FilePath(name).with_name(each)}`' for each in beside)}?" if beside else ""
        refuse(name, f"cannot be read: {error.strerror}", hint=hint)
    except ValueError as error:  # a name with a NUL
        refuse(repr(name), f"is no file name: {error}")


def _names_beside(name: str) -> list[str]:
    try:
        return os.listdir(os.path.dirname(name) or ".")
    except OSError:
        return []
