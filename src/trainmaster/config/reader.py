"""YAML and JSON as plain trees, with the line of every value, and nothing that could run or blow up.

YAML is read as version 1.2 has it: `1e-3` is a number, `no`, `12:30:45` and dates are text. Tags, merge keys, several documents and
duplicate keys are refused. Keys are always text, as written. Aliases are copies and count as what they expand to.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, NamedTuple, NoReturn

import yaml

from trainmaster.config.paths import MAX_DEPTH, wrong_key
from trainmaster.config.plain import MAX_DIGITS
from trainmaster.errors import ConfigFileError, nearest

MAX_BYTES = 4 * 2**20
MAX_VALUES = 100_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser, where PyYAML was built with it

_INT = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL: dict[str, Any] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_SPECIAL |= {text: value for value in (True, False) for text in (str(value), str(value).lower(), str(value).upper())}
_SPECIAL |= {sign + text: float(sign + "inf") for sign in ("", "+", "-") for text in (".inf", ".Inf", ".INF")}
_SPECIAL |= dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan)


Texts = dict[str, tuple[str, str]]
"""By dotted key, a number as Python writes it and as it was written, where they differ: `("1.1", "1.10")`."""


class Document(NamedTuple):
    """What was read: the tree, with dotted keys as they were written; by dotted key, the place of each value, and the text of each
    number that Python would write otherwise."""

    tree: Any
    name: str
    marks: dict[str, tuple[int, int]]
    texts: Texts

    def where(self, key: str) -> str:
        """The place of a dotted key, or of the nearest group around it: `run.yaml:3:5`."""
        while key and key not in self.marks:
            key = key.rpartition(".")[0]
        place = self.marks.get(key)
        return f"{self.name}:{place[0]}:{place[1]}" if place else self.name


def read_file(path: str | os.PathLike[str]) -> Document:
    """The file's content: JSON if its name ends in `.json`, else YAML."""
    name = os.fspath(path)
    data = _bytes_of(name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8").rpartition("\n")
        _refuse(name, f"not valid UTF-8: byte 0x{data[error.start]:02x}", (data.count(b"\n", 0, error.start) + 1, len(before[2]) + 1))
    if "\r" in text:
        _refuse(name, "has carriage returns as line ends", _place(text, text.index("\r")), f"sed -i 's/\\r$//' {name}")
    if text.startswith("\ufeff"):
        _refuse(name, "starts with a byte order mark", (1, 1), "save it as UTF-8 without BOM")
    return read_json(text, name) if name.endswith(".json") else read_yaml(text, name)


def _bytes_of(name: str) -> bytes:
    try:
        with open(name, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:  # a FIFO must not hold us up
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                _refuse(name, "is not a regular file")
            if status.st_size > MAX_BYTES:
                _refuse(name, f"has {status.st_size:,} bytes; a config has at most {MAX_BYTES:,}")
            return file.read(MAX_BYTES + 1)[:MAX_BYTES]
    except IsADirectoryError:
        _refuse(name, "is a folder, not a file")
    except OSError as error:
        beside = nearest(os.path.basename(name), _names_beside(name))
        hint = f"did you mean {' or '.join(f'`{FilePath(name).with_name(each)}`' for each in beside)}?" if beside else ""
        _refuse(name, f"cannot be read: {error.strerror}", hint=hint)
    except ValueError as error:  # a name with a NUL
        _refuse(repr(name), f"is no file name: {error}")


def _names_beside(name: str) -> list[str]:
    try:
        return os.listdir(os.path.dirname(name) or ".")
    except OSError:
        return []


def _refuse(name: str, why: str, place: tuple[int, int] | None = None, hint: str = "") -> NoReturn:
    where = f"{name}:{place[0]}:{place[1]}" if place else name
    raise ConfigFileError(f"`{name}` {why}" if place is None else f"`{name}`, line {place[0]}: {why}", where=where, hint=hint)


def _place(text: str, index: int) -> tuple[int, int]:
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)


# ---- JSON


def read_json(text: str, name: str) -> Document:
    """A JSON text; it has no marks, because the standard library's reader keeps none."""

    def unique(pairs: list[tuple[str, Any]]) -> Any:
        tree = dict(pairs)
        if len(tree) < len(pairs):
            keys = [key for key, _ in pairs]
            _refuse(name, f"has the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
        if tree.keys() == {".float"} and tree[".float"] in ("nan", "inf", "-inf"):
            return float(tree[".float"])
        return tree

    def number(digits: str) -> float:
        return _float(digits, lambda why: _refuse(name, why))

    def whole(digits: str) -> int:
        return _whole(digits, lambda why: _refuse(name, why))

    def no_constant(text: str) -> NoReturn:
        _refuse(name, f"has {text}, which JSON does not have")

    try:
        tree = json.loads(text, object_pairs_hook=unique, parse_float=number, parse_int=whole, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        _refuse(name, error.msg, (error.lineno, error.colno))
    except RecursionError:
        _refuse(name, f"is nested more than {MAX_DEPTH} deep")
    _check_size(tree, name)
    return Document(tree, name, {}, {})


def _check_size(tree: Any, name: str) -> None:
    level, count = [tree], 0
    for _ in range(MAX_DEPTH + 1):
        below = [each for node in level for each in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())]
        count += len(below)
        if count > MAX_VALUES:
            _refuse(name, f"has more than {MAX_VALUES:,} values")
        if not below:
            return
        level = below
    _refuse(name, f"is nested more than {MAX_DEPTH} deep")


# ---- YAML


class _Open:
    """A mapping or sequence that is being read."""

    __slots__ = ("anchor", "before", "key", "path", "value")

    def __init__(self, value: Any, path: str, anchor: str | None, before: int) -> None:
        self.value, self.path, self.anchor, self.before = value, path, anchor, before
        self.key: str | None = None


class _Reader:
    """Reads one YAML text, event by event and without recursion, so that no text can cost more than its length."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.marks: dict[str, tuple[int, int]] = {}
        self.texts: Texts = {}
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.open: list[_Open] = []
        self.tree: Any = None
        self.count = 0

    def read(self) -> Document:
        num_documents = 0
        for event in self._events():
            kind = type(event)
            if kind is yaml.DocumentStartEvent:
                num_documents += 1
                if num_documents > 1:
                    self._refuse("a second document starts here; a config is one", event)
                if event.version or event.tags:
                    self._refuse("directives are refused", event)
            elif kind is yaml.ScalarEvent:
                self._scalar(event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._start({} if kind is yaml.MappingStartEvent else [], event)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._end()
            elif kind is yaml.AliasEvent:
                self._alias(event)
        if num_documents == 0:
            _refuse(self.name, "is empty; a config without values is `{}`")
        return Document(self.tree, self.name, self.marks, self.texts)

    def _events(self) -> Iterator[Any]:
        try:
            loader = _Loader(self.text)
            while loader.check_event():
                yield loader.get_event()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = (mark.line + 1, mark.column + 1) if mark else None
            why = " ".join(filter(None, [error.context, error.problem])) or "is not YAML"
            if place and "".join(self.text.split("\n")[place[0] - 1 : place[0]])[place[1] - 1 :].startswith("\t"):
                why = "a tab where YAML wants spaces"
            _refuse(self.name, why, place)
        except yaml.reader.ReaderError as error:
            index = self.text.find(chr(error.character)) if isinstance(error.character, int) else -1
            _refuse(self.name, f"a character that YAML does not allow: {error.reason}", _place(self.text, index) if index >= 0 else None)

    def _refuse(self, why: str, event: Any, hint: str = "") -> NoReturn:
        _refuse(self.name, why, (event.start_mark.line + 1, event.start_mark.column + 1), hint)

    def _scalar(self, event: Any) -> None:
        self._check(event)
        top = self.open[-1] if self.open else None
        if top is not None and type(top.value) is dict and top.key is None:
            self._key(top, event)
            return
        path = self._path_of_next()
        value: Any = event.value
        if event.implicit[0]:  # a plain scalar, neither quoted nor a block of text
            value = self._resolve(event, path)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)
        self._put(value, path, event)

    def _key(self, top: _Open, event: Any) -> None:
        key = event.value
        if event.anchor is not None:
            self._refuse("an anchor on a key", event)
        if key == "<<" and event.implicit[0]:
            self._refuse("merge keys (`<<`) are refused: YAML 1.2 does not have them", event, "write the values out")
        why = wrong_key(key)
        if why:
            self._refuse(f"{key!r}: {why}", event)
        path = _joined(top.path, key)
        if path in self.marks:
            self._refuse(f"the key `{path}` is given twice, first in line {self.marks[path][0]}", event)
        top.key = key
        self.marks[path] = (event.start_mark.line + 1, event.start_mark.column + 1)

    def _resolve(self, event: Any, path: str) -> Any:
        text = event.value
        if text in _SPECIAL:
            return _SPECIAL[text]
        first = text[0]
        if not (first.isdigit() or first in "+-."):
            return text
        value: Any = text
        if _INT.fullmatch(text):
            if text.lstrip("+-").startswith("0") and len(text.lstrip("+-")) > 1:
                self._refuse(
                    f"{text[:40]} is octal to some readers and decimal to others",
                    event,
                    f"write it without zeros, or '{text[:40]}' for text",
                )
            value = _whole(text, lambda why: self._refuse(why, event))
        elif _OTHER_BASE.fullmatch(text):
            value = _whole(text, lambda why: self._refuse(why, event))
        elif _FLOAT.fullmatch(text):
            value = _float(text, lambda why: self._refuse(why, event, f"quote it, if '{text[:40]}' is text"))
        if value is not text and str(value) != text:
            self.texts[path] = (str(value), text)
        return value

    def _start(self, value: Any, event: Any) -> None:
        self._check(event)
        if len(self.open) >= MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} deep", event)
        path = self._path_of_next()
        self._mark_item(path, event)
        self.open.append(_Open(value, path, event.anchor, self.count))

    def _end(self) -> None:
        done = self.open.pop()
        if done.anchor is not None:
            self.anchors[done.anchor] = (done.value, self.count - done.before + 1)
        self._put(done.value, done.path, None)

    def _alias(self, event: Any) -> None:
        top = self.open[-1] if self.open else None
        if top is not None and type(top.value) is dict and top.key is None:
            self._refuse("an alias as a key", event)
        if event.anchor not in self.anchors:
            self._refuse(f"the alias *{event.anchor} has no anchor before it, or stands within it", event)
        value, size = self.anchors[event.anchor]
        self._count(size, event)
        self._put(copy.deepcopy(value), self._path_of_next(), event)

    def _check(self, event: Any) -> None:
        if event.tag is not None:
            self._refuse(f"the tag {event.tag[:60]} is refused: a config is plain values", event)
        self._count(1, event)
        top = self.open[-1] if self.open else None
        if top is not None and type(top.value) is dict and top.key is None and type(event) is not yaml.ScalarEvent:
            self._refuse("a key is text, not a list or a group", event)

    def _count(self, size: int, event: Any) -> None:
        self.count += size
        if self.count > MAX_VALUES:
            self._refuse(f"more than {MAX_VALUES:,} values, aliases expanded", event)

    def _path_of_next(self) -> str:
        if not self.open:
            return ""
        top = self.open[-1]
        return _joined(top.path, top.key if type(top.value) is dict else len(top.value))

    def _mark_item(self, path: str, event: Any) -> None:
        if path not in self.marks:
            self.marks[path] = (event.start_mark.line + 1, event.start_mark.column + 1)

    def _put(self, value: Any, path: str, event: Any) -> None:
        if event is not None:
            self._mark_item(path, event)
        if not self.open:
            self.tree = value
            return
        top = self.open[-1]
        if type(top.value) is dict:
            top.value[top.key] = value
            top.key = None
        else:
            top.value.append(value)


def _joined(path: str, key: str | int | None) -> str:
    return f"{path}.{key}" if path else str(key)


def read_yaml(text: str, name: str) -> Document:
    """A YAML text; `name` is what errors call it."""
    return _Reader(text, name).read()


def _whole(text: str, refuse: Any) -> int:
    if len(text) > MAX_DIGITS:
        refuse(f"an integer of {len(text):,} digits; at most {MAX_DIGITS:,}")
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


def _float(text: str, refuse: Any) -> float:
    value = float(text)
    if math.isinf(value):
        refuse(f"{text[:40]} is beyond the range of a float")
    if value == 0.0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        refuse(f"{text[:40]} is too small for a float")
    return value
