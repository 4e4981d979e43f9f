"""YAML as a plain tree, with the place of every value, and nothing that could run or blow up.

It is read as version 1.2 has it: `1e-3` is a number, `no`, `12:30:45` and dates are text. Tags, merge keys, several documents and
duplicate keys are refused. Keys are always text, as written. Aliases are copies and count as what they expand to.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import yaml

from trainmaster.config.document import Document, floating, place_of, refuse, whole
from trainmaster.config.numerals import written
from trainmaster.config.paths import MAX_BYTES, MAX_DEPTH, MAX_VALUES, wrong_key

MAX_PATHS = 32 * 2**20
"""The characters of all dotted keys together: long keys around many values are a bomb too."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser, where PyYAML was built with it

_OTHER_BREAK = re.compile("[\x85\u2028\u2029]")
_INT = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL: dict[str, Any] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_SPECIAL |= {text: value for value in (True, False) for text in (str(value), str(value).lower(), str(value).upper())}
_SPECIAL |= {sign + text: float(sign + "inf") for sign in ("", "+", "-") for text in (".inf", ".Inf", ".INF")}
_SPECIAL |= dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan)


class _Open:
    """A mapping or sequence that is being read."""

    __slots__ = ("anchor", "before", "depth", "height", "key", "path", "value")

    def __init__(self, value: Any, path: str, anchor: str | None, before: tuple[int, int], depth: int) -> None:
        self.value, self.path, self.anchor, self.before, self.depth = value, path, anchor, before, depth
        self.height = 1
        """How deep it is nested below, itself included."""
        self.key: str | None = None

    @property
    def step(self) -> int:
        """How much deeper the next value lies than this one."""
        return 1 + (self.key.count(".") if self.key is not None else 0)


class _Anchored(NamedTuple):
    value: Any
    num_values: int
    num_chars: int
    height: int


class _Reader:
    """Reads one YAML text, event by event and without recursion, so that no text can cost more than its length."""

    def __init__(self, text: str, name: str, keep_numerals: bool) -> None:
        self.text, self.name, self.keep_numerals = text, name, keep_numerals
        self.marks: dict[str, tuple[int, int]] = {}
        self.anchors: dict[str, _Anchored] = {}
        self.open: list[_Open] = []
        self.tree: Any = None
        self.count = -1  # the config itself is not one of its values
        self.num_chars = self.num_path_chars = 0

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
            refuse(self.name, "is empty; a config without values is `{}`")
        return Document(self.tree, self.name, self.marks)

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
            refuse(self.name, why, place)
        except yaml.reader.ReaderError as error:
            index = self.text.find(chr(error.character)) if isinstance(error.character, int) else -1
            refuse(self.name, f"a character that YAML does not allow: {error.reason}", place_of(index, self.text) if index >= 0 else None)

    def _refuse(self, why: str, event: Any, hint: str = "") -> NoReturn:
        refuse(self.name, why, (event.start_mark.line + 1, event.start_mark.column + 1), hint)

    def _scalar(self, event: Any) -> None:
        self._check(event)
        top = self.open[-1] if self.open else None
        if top is not None and type(top.value) is dict and top.key is None:
            self._key(top, event)
            return
        path = self._path_of_next()
        value: Any = event.value
        self.num_chars += len(value)
        if event.implicit[0]:  # a plain scalar, neither quoted nor a block of text
            value = self._resolve(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = _Anchored(value, 1, len(event.value), 0)
        self._put(value, path, event)

    def _key(self, top: _Open, event: Any) -> None:
        key = event.value
        if event.anchor is not None:
            self._refuse("an anchor on a key", event)
        if key == "<<" and event.implicit[0]:
            self._refuse("merge keys (`<<`) are refused: YAML 1.2 does not have them", event, "write the values out")
        why = wrong_key(key)
        if why:
            self._refuse(f"{key!r:.80}: {why}", event)
        if top.depth + key.count(".") > MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} deep", event)
        path = _joined(top.path, key)
        self.num_chars += len(key)
        self._note_path(path, event)
        if path in self.marks:
            self._refuse(f"the key `{path}` is given twice, first in line {self.marks[path][0]}", event)
        top.key = key
        self.marks[path] = (event.start_mark.line + 1, event.start_mark.column + 1)

    def _resolve(self, event: Any) -> Any:
        value = self._value_of(event)
        is_number = type(value) is int or type(value) is float
        return written(value, event.value) if is_number and self.keep_numerals else value

    def _value_of(self, event: Any) -> Any:
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
            value = whole(text, lambda why: self._refuse(why, event))
        elif _OTHER_BASE.fullmatch(text):
            value = whole(text, lambda why: self._refuse(why, event))
        elif _FLOAT.fullmatch(text):
            value = floating(text, lambda why: self._refuse(why, event, f"quote it, if '{text[:40]}' is text"))
        return value

    def _note_path(self, path: str, event: Any) -> None:
        self.num_path_chars += len(path)
        if self.num_path_chars > MAX_PATHS:
            self._refuse(f"its keys are too long: written out with their groups, they have more than {MAX_PATHS:,} characters", event)

    def _start(self, value: Any, event: Any) -> None:
        self._check(event)
        depth = self.open[-1].depth + self.open[-1].step if self.open else 1
        if depth > MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} deep", event)
        path = self._path_of_next()
        self._mark_item(path, event)
        self.open.append(_Open(value, path, event.anchor, (self.count, self.num_chars), depth))

    def _end(self) -> None:
        done = self.open.pop()
        if done.anchor is not None:
            count, num_chars = done.before
            self.anchors[done.anchor] = _Anchored(done.value, self.count - count + 1, self.num_chars - num_chars, done.height)
        self._put(done.value, done.path, None, done.height)

    def _alias(self, event: Any) -> None:
        top = self.open[-1] if self.open else None
        if top is not None and type(top.value) is dict and top.key is None:
            self._refuse("an alias as a key", event)
        if event.anchor not in self.anchors:
            self._refuse(f"the alias *{event.anchor} has no anchor before it, or stands within it", event)
        anchored = self.anchors[event.anchor]
        self._count(anchored.num_values, event)
        self.num_chars += anchored.num_chars
        if self.num_chars > MAX_BYTES:
            self._refuse(f"more than {MAX_BYTES:,} characters, aliases expanded", event)
        if top is not None and top.depth + top.step - 1 + anchored.height > MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} deep, aliases expanded", event)
        path = self._path_of_next()
        self._put(copy.deepcopy(anchored.value), path, event, anchored.height)

    def _check(self, event: Any) -> None:
        if event.tag is not None:
            self._refuse(f"the tag {event.tag[:60]} is refused: a config is plain values", event)
        top = self.open[-1] if self.open else None
        if top is None or type(top.value) is not dict or top.key is not None:
            self._count(1, event)
        elif type(event) is not yaml.ScalarEvent:
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
            self._note_path(path, event)
            self.marks[path] = (event.start_mark.line + 1, event.start_mark.column + 1)

    def _put(self, value: Any, path: str, event: Any, height: int = 0) -> None:
        if event is not None:
            self._mark_item(path, event)
        if not self.open:
            self.tree = value
            return
        top = self.open[-1]
        top.height = max(top.height, top.step + height)
        if type(top.value) is dict:
            top.value[top.key] = value
            top.key = None
        else:
            top.value.append(value)


def _joined(path: str, key: str | int | None) -> str:
    return f"{path}.{key}" if path else str(key)


def read_yaml(text: str, name: str, keep_numerals: bool = False) -> Document:
    """A YAML text; `name` is what errors call it. With `keep_numerals`, numbers remember how they were written."""
    found = _OTHER_BREAK.search(text)
    if found:
        why = f"{found[0]!a} is a line break to some readers of YAML and none to others"
        refuse(name, why, place_of(found.start(), text), f"write it as {ascii(found[0])[1:-1]}, in double quotes")
    return _Reader(text, name, keep_numerals).read()
