"""Reads YAML 1.2 as plain values, with the position of each value. It is safe for untrusted files.

`1e-3` is a number, but `no`, `12:30:45` and dates are text. Keys are always text. Tags, merge keys, multiple documents and duplicate
keys are errors. An alias becomes a copy of its anchor's value, and the copy counts toward the limits on size and depth.
"""

from __future__ import annotations

import math
import re
from typing import Any, NoReturn

import yaml

from trainmaster.config.numerals import parse_float, parse_int, with_numeral
from trainmaster.config.parsed_file import ParsedFile, Position, fail, position_of
from trainmaster.config.paths import MAX_BYTES, MAX_DEPTH, MAX_VALUES, key_problem

MAX_PATHS = 32 * 2**20
"""The maximum total length of all dotted keys. Without this limit, a file with long keys and many values could use up all memory."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser, if PyYAML was built with it

_OTHER_BREAK = re.compile("[\x85\u2028\u2029]")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL: dict[str, Any] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_SPECIAL |= {text: value for value in (True, False) for text in (str(value), str(value).lower(), str(value).upper())}
_SPECIAL |= {sign + text: float(sign + "inf") for sign in ("", "+", "-") for text in (".inf", ".Inf", ".INF")}
_SPECIAL |= dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan)


def read_yaml(text: str, name: str, keep_numerals: bool = False) -> ParsedFile:
    """Parse YAML text. `name` is the file name for error messages, and `keep_numerals` keeps the original text of numbers."""
    other_break = _OTHER_BREAK.search(text)
    if other_break:
        why = f"some YAML parsers read {other_break[0]!a} as a line break and others do not"
        fail(name, why, position_of(other_break.start(), text), f"write it as {ascii(other_break[0])[1:-1]}, in double quotes")
    try:
        return _Reader(text, name, keep_numerals).read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = " ".join(filter(None, [error.context, error.problem])) or "is not YAML"
        if mark and "".join(text.split("\n")[mark.line : mark.line + 1])[mark.column :].startswith("\t"):
            why = "a tab where YAML requires spaces"
        fail(name, why, (mark.line + 1, mark.column + 1) if mark else None)
    except yaml.reader.ReaderError as error:
        index = text.find(chr(error.character)) if isinstance(error.character, int) else -1
        fail(name, f"a character that YAML does not allow: {error.reason}", position_of(index, text) if index >= 0 else None)


class _Reader:
    """Reads a YAML document from the parser's events.

    PyYAML's own composer is not used, because it recurses without a limit and resolves scalars according to YAML 1.1.
    """

    def __init__(self, text: str, name: str, keep_numerals: bool) -> None:
        self.loader = _Loader(text)
        self.name, self.keep_numerals = name, keep_numerals
        self.positions: dict[str, Position] = {}
        self.anchors: dict[str, Any] = {}
        self.num_values = -1  # the root does not count
        self.num_chars = self.num_path_chars = 0

    def read(self) -> ParsedFile:
        self.loader.get_event()  # the start of the stream
        if self.loader.check_event(yaml.StreamEndEvent):
            fail(self.name, "is empty; a config without values is `{}`")
        start = self.loader.get_event()
        if start.version or start.tags:
            self._fail("directives are refused", start)
        tree = self._node(self.loader.get_event(), "", 1)
        self.loader.get_event()  # the end of the document
        if not self.loader.check_event(yaml.StreamEndEvent):
            self._fail("a second document starts here, but a config is one document", self.loader.get_event())
        return ParsedFile(tree, self.name, self.positions)

    def _fail(self, why: str, event: Any, hint: str = "") -> NoReturn:
        fail(self.name, why, _position(event), hint)

    def _node(self, event: Any, path: str, depth: int) -> Any:
        if path not in self.positions:  # a value in a mapping has the position of its key
            self._add_position(path, event)
        kind = type(event)
        if kind is yaml.AliasEvent:
            if event.anchor not in self.anchors:
                self._fail(f"the alias *{event.anchor} has no anchor before it, or is inside the anchored value", event)
            return self._copy(self.anchors[event.anchor], event, depth)
        self._refuse_tag(event)
        self._count(event)
        value: Any
        if kind is yaml.ScalarEvent:
            self.num_chars += len(event.value)
            value = self._resolve(event) if event.implicit[0] else event.value  # quoted and block scalars are not implicit
        elif depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep", event)
        else:
            value = self._mapping(path, depth) if kind is yaml.MappingStartEvent else self._sequence(path, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = value
        return value

    def _mapping(self, path: str, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not self.loader.check_event(yaml.MappingEndEvent):
            event = self.loader.get_event()
            key = self._key(event, depth)
            child_path = f"{path}.{key}" if path else key
            if child_path in self.positions:
                self._fail(f"the key `{child_path}` is given twice, first in line {self.positions[child_path][0]}", event)
            self._add_position(child_path, event)
            result[key] = self._node(self.loader.get_event(), child_path, depth + 1 + key.count("."))
        self.loader.get_event()
        return result

    def _sequence(self, path: str, depth: int) -> list[Any]:
        result: list[Any] = []
        while not self.loader.check_event(yaml.SequenceEndEvent):
            result.append(self._node(self.loader.get_event(), f"{path}.{len(result)}" if path else str(len(result)), depth + 1))
        self.loader.get_event()
        return result

    def _key(self, event: Any, depth: int) -> str:
        if type(event) is yaml.AliasEvent:
            self._fail("an alias as a key", event)
        self._refuse_tag(event)
        if type(event) is not yaml.ScalarEvent:
            self._fail("a key is text, not a list or a group", event)
        key: str = event.value
        if event.anchor is not None:
            self._fail("an anchor on a key", event)
        if key == "<<" and event.implicit[0]:
            self._fail("merge keys (`<<`) are refused: YAML 1.2 does not have them", event, "write the values out")
        why = key_problem(key)
        if why:
            self._fail(f"{key!r:.80}: {why}", event)
        if depth + key.count(".") > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep", event)
        self.num_chars += len(key)
        return key

    def _resolve(self, event: Any) -> Any:
        text = event.value
        try:
            value = _resolve_plain(text)
        except ValueError as error:
            self._fail(str(error), event, f"quote it if '{text[:40]}' is text")
        return with_numeral(value, text) if self.keep_numerals and type(value) in (int, float) else value

    def _copy(self, value: Any, event: Any, depth: int) -> Any:
        """Copy the value that an alias refers to, and count the values in the copy toward the size limit."""
        self._count(event)
        if isinstance(value, str):
            self.num_chars += len(value)
        elif isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                self._fail(f"nested more than {MAX_DEPTH} deep, aliases expanded", event)
            if isinstance(value, list):
                return [self._copy(each, event, depth + 1) for each in value]
            self.num_chars += sum(map(len, value))
            return {key: self._copy(each, event, depth + 1 + key.count(".")) for key, each in value.items()}
        if self.num_chars > MAX_BYTES:
            self._fail(f"more than {MAX_BYTES:,} characters, aliases expanded", event)
        return value

    def _refuse_tag(self, event: Any) -> None:
        if event.tag is not None:
            self._fail(f"the tag {event.tag[:60]} is refused: a config holds plain values", event)

    def _count(self, event: Any) -> None:
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            self._fail(f"more than {MAX_VALUES:,} values, aliases expanded", event)

    def _add_position(self, path: str, event: Any) -> None:
        self.num_path_chars += len(path)
        if self.num_path_chars > MAX_PATHS:
            self._fail(f"its keys are too long: written out with their groups, they have more than {MAX_PATHS:,} characters", event)
        self.positions[path] = _position(event)


def _position(event: Any) -> Position:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _resolve_plain(text: str) -> Any:
    """Return the value of an unquoted scalar, according to the core schema of YAML 1.2."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if not (text[0].isdigit() or text[0] in "+-."):
        return text
    if _LEADING_ZERO.fullmatch(text):
        raise ValueError(f"some YAML parsers read {text[:40]} as octal and others as decimal")
    if _INT.fullmatch(text):
        return parse_int(text)
    return parse_float(text) if _FLOAT.fullmatch(text) else text
