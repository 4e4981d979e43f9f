"""Invalid config files, each with a different problem. `test_bad_files.py` imports this file and also runs it.

The program loads every file with `Config.load` and with the `load` of a typed config, each in its own forked process.
It prints the errors, times and memory as JSON.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from trainmaster.config import Config, ConfigBase, configclass

GOOD = """\
# a comment
name: "first run"
lr: 1e-3
sizes: [1, 2, 3]
options:
  text: 'it''s'
  group: {a: 1, b: 2}
"""
PLACE = r"\d+:\d+"


class Bad(NamedTuple):
    """An invalid file.

    The fields are its content, a pattern for the error message, the `line:column` in the message, and the loaders that
    must refuse it.
    """

    content: bytes | Callable[[Path], None]
    says: str
    place: str = ""
    ending: str = "yaml"
    loaders: tuple[str, ...] = ("free", "typed")


def yaml(text: str, says: str, place: str = PLACE, **more: Any) -> Bad:
    return Bad(text.encode("utf-8"), says, place, **more)


def of_json(text: str, says: str, place: str = "") -> Bad:
    return Bad(text.encode("utf-8"), says, place, "json")


def typed(text: str, says: str, place: str = PLACE, ending: str = "yaml") -> Bad:
    """Return a file that only the typed config must refuse."""
    return Bad(text.encode("utf-8"), says, place, ending, ("typed",))


def free(text: str, says: str, place: str) -> Bad:
    """Return a file that only the free-form config must refuse."""
    return Bad(text.encode("utf-8"), says, place, "yaml", ("free",))


def nothing(path: Path) -> None:
    """Do nothing, so that the file does not exist."""


def block_nesting(depth: int) -> str:
    return "".join(f"{' ' * level}a:\n" for level in range(depth))


def laughs(start: str, each: str, end: str, levels: int = 30) -> str:
    """Return a billion laughs attack: each line refers ten times to the line before it."""
    lines = [f"a0: &a0 {start}x{end}" if start == "[" else "a0: &a0 {x: 1}"]
    for level in range(1, levels):
        inside = ", ".join(each.format(number=number, before=f"*a{level - 1}") for number in range(10))
        lines.append(f"a{level}: &a{level} {start}{inside}{end}")
    return "\n".join(lines) + "\n"


FILES: dict[str, Bad] = {
    # incomplete files
    "cut in a flow list": yaml(GOOD[: GOOD.index("2, 3]")], "flow", "4:11|5:1"),
    "cut in a flow map": yaml("name: x\ngroup: {a: 1, b: 2", "flow mapping", PLACE),
    "cut after a flow comma": yaml("name: x\nsizes: [1,", "flow", PLACE),
    "cut in double quotes": yaml(GOOD[: GOOD.index(' run"')], "quoted scalar", "2:1?13"),
    "cut in single quotes": yaml(GOOD[: GOOD.index("''s'")], "quoted scalar", PLACE),
    "cut in an escape": yaml('name: "a\\u12', "quoted|escape|scanning", PLACE),
    "cut in a key": yaml("name: x\nlr: 1\nsiz", "expected ':'", PLACE),
    "cut in an alias": yaml("name: &a x\nother: *", "alias", "2:[89]"),
    "list item among keys": yaml(GOOD + "  - no\n", "expected|block mapping", "8:3"),
    "too little indentation": yaml("a:\n    b: 1\n  c: 2\n", "expected|block", "3:3"),
    "too much indentation": yaml("a: 1\n  b: 2\n", "mapping values are not allowed", "2:4"),
    "two colons": yaml("a: b: c\n", "mapping values are not allowed", "1:5"),
    "closing bracket too many": yaml("a: [1]]\n", "expected|block", "1:7"),
    "wrong closing bracket": yaml("a: [1, 2}\n", "flow", "1:9"),
    "at sign": yaml("a: @x\n", "cannot start any token", "1:4"),
    "backtick": yaml("a: `x`\n", "cannot start any token", "1:4"),
    "percent": yaml("a: %x\n", "cannot start any token", "1:4"),
    "unknown escape": yaml('a: "\\q"\n', "escape", "1:[456]"),
    "bad block header": yaml("a: |99\n  x\n", "block scalar", "1:[456]"),
    # empty files
    "zero bytes": yaml("", "is empty", ""),
    "comments only": yaml("# one\n\n# two\n", "is empty", ""),
    "spaces only": yaml("   \n  \n", "is empty", ""),
    "newlines only": yaml("\n\n\n", "is empty", ""),
    "document end only": yaml("...\n", "is empty|expected|NoneType", ""),
    "document start only": yaml("---\n", "NoneType", ""),
    "null": yaml("null\n", "NoneType", ""),
    # bytes
    "lone continuation byte": Bad(b"a: 1\nb: \x80x\n", "not valid UTF-8: byte 0x80", "2:4"),
    "overlong slash": Bad(b"a: \xc0\xaf\n", "not valid UTF-8: byte 0xc0", "1:4"),
    "truncated sequence": Bad(b"a: 1\nname: \xe2\x82", "not valid UTF-8: byte 0xe2", "2:7"),
    "encoded surrogate": Bad(b"a: \xed\xa0\x80\n", "not valid UTF-8: byte 0xed", "1:4"),
    "beyond unicode": Bad(b"a: \xf4\x90\x80\x80\n", "not valid UTF-8: byte 0xf4", "1:4"),
    "latin-1": Bad("a: 1\nname: 'é'\n".encode("latin-1"), "not valid UTF-8: byte 0xe9", "2:8"),
    "UTF-16 with mark": Bad("a: 1\n".encode("utf-16"), "not valid UTF-8: byte 0xff", "1:1"),
    "UTF-16 without mark": Bad("a: 1\n".encode("utf-16-le"), "character", "1:2"),
    "UTF-32 with mark": Bad("a: 1\n".encode("utf-32"), "not valid UTF-8: byte 0xff", "1:1"),
    "byte order mark": Bad(b"\xef\xbb\xbfa: 1\n", "byte order mark", "1:1"),
    "CRLF": Bad(b"a: 1\r\nb: 2\r\n", "carriage return", "1:5"),
    "lone CR": Bad(b"a: 1\nb: 2\rc: 3\n", "carriage return", "2:5"),
    "CR in quotes": Bad(b'a: "x\r"\n', "carriage return", "1:6"),
    "NUL": Bad(b"a: 1\nb: x\x00y\n", "character", "2:5"),
    "NUL first": Bad(b"\x00", "character", "1:1"),
    "ten thousand NULs": Bad(b"\x00" * 10_000, "character", "1:1"),
    "NUL in quotes": Bad(b'a: "x\x00"\n', "character", "1:6"),
    "bell": Bad(b"a: x\x07\n", "character", "1:5"),
    "escape sequence": Bad(b"a: 1\nb: \x1b[31mred\n", "character", "2:4"),
    "delete": Bad(b"a: x\x7f\n", "character", "1:5"),
    "C1 control": yaml("a: x\x9f\n", "character", "1:5"),
    "the second of two equal controls": yaml('a: "\\x07"\nb: \x07\n', "character", "2:4"),
    "noncharacter": yaml("a: x\uffff\n", "character", "1:5"),
    "random bytes": Bad(bytes(range(256)) * 4, "not valid UTF-8|carriage return", PLACE),
    "gzip": Bad(bytes.fromhex("1f8b0800000000000003") + b"\x4b\xb4\x52\x30", "not valid UTF-8: byte 0x8b", "1:2"),
    # line breaks in YAML 1.1 that version 1.2 does not recognize: one line in an editor must not become two
    "line separator between keys": yaml("a: x\u2028b: 2\n", "line|break|character", "1:5"),
    "line separator in a comment": yaml("lr: 1 # old\u2028name: hidden\n", "line|break|character", "1:12"),
    "paragraph separator in quotes": yaml('name: "x \u2029 y"\n', "line|break|character", "1:10"),
    "next line in quotes": yaml('name: "x\x85y"\n', "line|break|character", "1:9"),
    # tabs
    "tab as indentation": yaml("a:\n\tb: 1\n", "a tab where YAML requires spaces", "2:1"),
    "tab after spaces": yaml("a:\n  b: 1\n  \tc: 2\n", "tab|token", PLACE),
    "tab before a first key": yaml("\ta: 1\n", "a tab where YAML requires spaces", "1:1"),
    "tab before an item": yaml("a:\n\t- 1\n", "a tab where YAML requires spaces", "2:1"),
    "tab after a dash": yaml("a:\n  -\tb: 1\n    c: 2\n", "tab|token|not allowed", PLACE),
    # documents and directives
    "two documents": yaml("a: 1\n---\nb: 2\n", "a second document starts here", "2:1"),
    "two documents with an end": yaml("a: 1\n...\n---\nb: 2\n", "a second document starts here", "3:1"),
    "two starts": yaml("---\n---\na: 1\n", "a second document starts here", "2:1"),
    "empty second document": yaml("a: 1\n---\n", "a second document starts here", "2:1"),
    "text after the end": yaml("a: 1\n...\nb: 2\n", "second document|expected '?<document start>", "3:1"),
    "keys beside the start": yaml("--- a: 1\n", "mapping values are not allowed", "1:6"),
    "version directive": yaml("%YAML 1.2\n---\na: 1\n", "directives are refused", "1:1"),
    "old version directive": yaml("%YAML 1.1\n---\na: no\n", "directives are refused", "1:1"),
    "strange version directive": yaml("%YAML 9.9\n---\na: 1\n", "incompatible|directive", "1:1"),
    "tag directive": yaml("%TAG !e! tag:example.com,2000:\n---\na: 1\n", "directives are refused", "1:1"),
    "directive without a document": yaml("%YAML 1.2\na: 1\n", "document start", PLACE),
    # tags
    "python object": yaml("a: !!python/object/apply:os.system ['touch ran']\n", "the tag tag:yaml.org,2002:python/object/apply", "1:4"),
    "python object new": yaml("a: !!python/object/new:os.system [echo]\n", "the tag tag:yaml.org,2002:python/object/new", "1:4"),
    "python name": yaml("a: !!python/name:os.system\n", "the tag tag:yaml.org,2002:python/name", "1:4"),
    "python module": yaml("a: !!python/module:os\n", "the tag tag:yaml.org,2002:python/module", "1:4"),
    "python tuple": yaml("a: !!python/tuple [1, 2]\n", "the tag tag:yaml.org,2002:python/tuple", "1:4"),
    "binary": yaml("a: !!binary aGVsbG8=\n", "the tag tag:yaml.org,2002:binary", "1:4"),
    "set": yaml("a: !!set {x, y}\n", "the tag tag:yaml.org,2002:set", "1:4"),
    "ordered map": yaml("a: !!omap [x: 1]\n", "the tag tag:yaml.org,2002:omap", "1:4"),
    "timestamp": yaml("a: !!timestamp 2020-01-01\n", "the tag tag:yaml.org,2002:timestamp", "1:4"),
    "custom tag": yaml("a: !custom x\n", "the tag !custom", "1:4"),
    "tag of text": yaml("a: 1\nb: !!str 2\n", "the tag tag:yaml.org,2002:str", "2:4"),
    "tag of quoted text": yaml('a: !!int "2"\n', "the tag tag:yaml.org,2002:int", "1:4"),
    "non-specific tag": yaml("a: ! 2\n", "the tag !", "1:4"),
    "non-specific tag on a group": yaml("a: ! {b: 1}\n", "the tag !", "1:4"),
    "verbatim tag": yaml("a: !<x> 2\n", "the tag x", "1:4"),
    "undefined tag handle": yaml("a: !e!x 2\n", "tag", "1:4"),
    "tag on a key": yaml("!!str a: 1\n", "the tag tag:yaml.org,2002:str", "1:1"),
    "tag on the whole": yaml("!!map\na: 1\n", "the tag tag:yaml.org,2002:map", "1:1"),
    # anchors and aliases
    "merge key": yaml("base: &b {x: 1}\na:\n  <<: *b\n", "merge keys", "3:3"),
    "merge key with a list": yaml("base: &b {x: 1}\n<<: [*b]\n", "merge keys", "2:1"),
    "undefined alias": yaml("a: 1\nb: *x\n", r"the alias \*x has no anchor", "2:4"),
    "recursive alias": yaml("a: &x [1, *x]\n", r"the alias \*x has no anchor before it, or is inside the anchored value", "1:11"),
    "recursive alias in a map": yaml("a: &x {b: 1, c: *x}\n", r"the alias \*x has no anchor", "1:17"),
    "alias of the whole": yaml("&x\na: *x\n", r"the alias \*x has no anchor", "2:4"),
    "alias as a key": yaml("a: &x b\n*x : 1\n", "an alias as a key", "2:1"),
    "anchor on a key": yaml("&x a: 1\nb: *x\n", "an anchor on a key", "1:1"),
    "billion laughs in lists": yaml(laughs("[", "{before}", "]"), "more than 50,000 values, aliases expanded", PLACE),
    "billion laughs in maps": yaml(laughs("{", "k{number}: {before}", "}"), "more than 50,000 values, aliases expanded", PLACE),
    "wide alias bomb": yaml(
        f"a: &a [{', '.join(['x'] * 10_000)}]\nb: [{', '.join(['*a'] * 10_000)}]\n", "more than 50,000 values", "2:[0-9]+"
    ),
    "alias bomb of text": yaml(
        f'a: &a "{"x" * 1_000_000}"\nb: [{", ".join(["*a"] * 90_000)}]\n', "more than [0-9,]+ (values|bytes|characters)", "2:[0-9]+"
    ),
    "nesting by aliases": yaml(
        "a0: &a0 [1]\n" + "".join(f"a{number}: &a{number} [*a{number - 1}]\n" for number in range(1, 430)),
        "nested more than 100 deep",
        PLACE,
    ),
    "nesting by aliases in maps": yaml(
        "a0: &a0 {b: 1}\n" + "".join(f"a{number}: &a{number} {{b: *a{number - 1}}}\n" for number in range(1, 300)),
        "nested more than 100 deep",
        PLACE,
    ),
    # keys
    "list as a key": yaml("? [a, b]\n: 1\n", "a key is text, not a list or a group", "1:3"),
    "map as a key": yaml("{a: 1}: 2\n", "a key is text, not a list or a group", "1:1"),
    "duplicate key": yaml("a: 1\nb: 2\na: 3\n", "the key `a` is given twice, first in line 1", "3:1"),
    "duplicate key in quotes": yaml("a: 1\n'a': 3\n", "the key `a` is given twice", "2:1"),
    "duplicate nested key": yaml("g:\n  a: 1\n  b: 2\n  a: 1\n", "the key `g.a` is given twice, first in line 2", "4:3"),
    "duplicate key in a list": yaml("g: [{a: 1, a: 2}]\n", "the key `g.0.a` is given twice", "1:12"),
    "dotted key then nested": yaml("a.b: 1\na:\n  b: 2\n", "the key `a.b` is given twice, first in line 1", "3:3"),
    "nested key then dotted": yaml("a:\n  b: 2\na.b: 1\n", "the key `a.b` is given twice, first in line 2", "3:1"),
    "dotted key into a value": yaml("options: 1\noptions.b: 2\n", "options", PLACE),
    "dotted key into a value below": yaml("options: {a: 1, a.b: 2}\n", "given twice|that group exists too", PLACE),
    "dotted key into an alias": yaml("x: &x {b: 1}\noptions: *x\noptions.b: 2\n", "twice", PLACE),
    "empty key": yaml('"": 1\n', "a key has no empty parts", "1:1"),
    "key of null": yaml(": 1\n", "a key has no empty parts|did not find expected key", "1:1"),
    "empty first part": yaml(".a: 1\n", "a key has no empty parts", "1:1"),
    "empty last part": yaml("b: 1\na.: 1\n", "a key has no empty parts", "2:1"),
    "empty middle part": yaml("a..b: 1\n", "a key has no empty parts", "1:1"),
    "a dot": yaml("g: {.: 1}\n", "a key has no empty parts", "1:5"),
    "dotted key of 200 parts": yaml(".".join(["a"] * 200) + ": 1\n", "(nested more than|at most) 100 deep", "1:1"),
    "dotted key of 2,000 parts": yaml(
        "options:\n  ? " + ".".join(["a"] * 2_000) + "\n  : 1\n", "(nested more than|at most) 100 deep", "2:5"
    ),
    "dotted key of 500,000 parts": yaml("? " + ".".join(["a"] * 500_000) + "\n: 1\n", "(nested more than|at most) 100 deep", "1:3"),
    "dotted keys within dotted keys": yaml(
        "".join(f"{' ' * level}{'.'.join(['a'] * 10)}:\n" for level in range(50)), "nested more than 100 deep", PLACE
    ),
    "long key above many values": yaml(f"? {'k' * 100_000}\n: [{', '.join(['1'] * 50_000)}]\n", "", PLACE),
    "long keys above each other": yaml(
        "".join(f"{' ' * level}? {'k' * 20_000}\n{' ' * level}:\n" for level in range(90)) + " " * 91 + f"[{', '.join(['1'] * 20_000)}]\n",
        "",
        PLACE,
    ),
    # numbers
    "integer of 1,000,000 digits": yaml("a: " + "1" * 10**6 + "\n", "an integer of 1,000,000 digits", "1:4"),
    "hex integer of 1,000,000 digits": yaml("a: 0x" + "f" * 10**6 + "\n", "an integer of [0-9,]+ digits", "1:4"),
    "octal integer of 1,000,000 digits": yaml("a: 0o" + "7" * 10**6 + "\n", "an integer of [0-9,]+ digits", "1:4"),
    "hex integer of 4,000 digits": yaml("a: 0x" + "f" * 4_000 + "\n", "an integer of|more than 4,?300 digits", "1:4"),
    "integer of 4,301 digits": yaml("a: " + "1" * 4_301 + "\n", "an integer of 4,301 digits; at most 4,300", "1:4"),
    "float of 1,000,000 digits": yaml("a: " + "1" * 10**6 + ".5\n", "beyond the range of a float", "1:4"),
    "1e400": yaml("a: 1\nb: 1e400\n", "1e400 is beyond the range of a float", "2:4"),
    "-1e400": yaml("b: [0, -1e400]\n", "-1e400 is beyond the range of a float", "1:8"),
    "1e-400": yaml("b: 1e-400\n", "1e-400 is too small for a float", "1:4"),
    "exponent of 1,000,000 digits": yaml("b: 1e" + "9" * 10**6 + "\n", "beyond the range of a float", "1:4"),
    "leading zero": yaml("a: 0777\n", "some YAML parsers read 0777 as octal", "1:4"),
    "leading zero and sign": yaml("a: [-010]\n", "some YAML parsers read -010 as octal", "1:5"),
    "two zeros": yaml("a: 00\n", "some YAML parsers read 00 as octal", "1:4"),
    "leading zero of a decimal": yaml("a: 089\n", "some YAML parsers read 089 as octal", "1:4"),
    # size
    "10,000 flow lists": yaml("a: " + "[" * 10_000 + "]" * 10_000, "nested more than 100 deep", "1:103"),
    "10,000 flow maps": yaml("a: " + "{a: " * 10_000 + "}" * 10_000, "nested more than 100 deep", PLACE),
    "1,000,000 open lists": yaml("a: " + "[" * 10**6, "nested more than 100 deep", "1:103"),
    "1,000,000 open maps": yaml("{" * 10**6, "a key is text|nested more than 100 deep", PLACE),
    "1,000 levels of indentation": yaml(block_nesting(1_000), "nested more than 100 deep", PLACE),
    "2,800 levels of indentation": yaml(block_nesting(2_800), "nested more than 100 deep", PLACE),
    "10,000 nested items": yaml("a:\n" + "- " * 10_000 + "x\n", "nested more than 100 deep", PLACE),
    "1,000,000 nested items": yaml("- " * 10**6 + "x\n", "nested more than 100 deep", PLACE),
    "102 flow lists": yaml("a: " + "[" * 102 + "]" * 102, "nested more than 100 deep", "1:10[345]"),
    "100,000 question marks": yaml("? " * 10**5, "a key is text|nested more than 100 deep", PLACE),
    "50 MB": Bad(lambda path: path.write_bytes(b"a: b\n" * 10_000_000) and None, "has 50,000,000 bytes; a config has at most 4,194,304"),
    "50 MB of one line": Bad(lambda path: path.write_bytes(b"a" * 50_000_000) and None, "has 50,000,000 bytes"),
    "300,000 scalars": yaml("a:\n" + "- 1\n" * 300_000, "more than 50,000 values", PLACE),
    "300,000 keys": yaml("".join(f"k{number}: 1\n" for number in range(300_000)), "more than 50,000 values", PLACE),
    "300,000 empty groups": yaml("a: [" + "{}," * 300_000 + "]", "more than 50,000 values", PLACE),
    "300,000 anchors": yaml("a: [" + ",".join(f"&a{number} 1" for number in range(300_000)) + "]", "more than 50,000 values", PLACE),
    "a sparse terabyte": Bad(lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 2**40), "has 1,099,511,627,776 bytes"),
    # text
    "lone high surrogate": yaml('a: "\\ud800"\n', "escape|surrogate|Unicode", PLACE),
    "lone low surrogate": yaml('a: "x\\udc00"\n', "escape|surrogate|Unicode", PLACE),
    "surrogate pair": yaml('a: "\\ud83d\\ude00"\n', "escape|surrogate|Unicode", PLACE),
    "escape beyond unicode": yaml('a: "\\U00110000"\n', "escape|Unicode", PLACE),
    "lone surrogate in a key": yaml('"\\udfff": 1\n', "escape|surrogate|Unicode", PLACE),
    # files without keys
    "top-level text": yaml("hello\n", "it holds a str, not keys with values", ""),
    "top-level number": yaml("3\n", "it holds a int, not keys with values", ""),
    "top-level list": yaml("- a: 1\n- b: 2\n", "it holds a list, not keys with values", ""),
    "top-level empty list": yaml("[]\n", "it holds a list, not keys with values", ""),
    # paths that are not files
    "folder": Bad(lambda path: path.mkdir(), "is a folder, not a file"),
    "FIFO": Bad(lambda path: os.mkfifo(path), "is not a regular file"),
    "device": Bad(lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "missing": Bad(nothing, "cannot be read: No such file or directory"),
    "missing folder": Bad(lambda path: path.symlink_to("not/there"), "cannot be read: No such file or directory"),
    "link to itself": Bad(lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
    # JSON
    "cut JSON list": of_json('{"a": [1, 2', "Expecting|delimiter", "1:12"),
    "cut JSON key": of_json('{\n  "a": 1,\n  "b', "Unterminated string", "3:3"),
    "cut JSON value": of_json('{"a": ', "Expecting value", "1:7"),
    "cut JSON after a comma": of_json('{"a": 1,', "Expecting property name", "1:[89]"),
    "empty JSON": of_json("", "Expecting value", "1:1"),
    "spaces as JSON": of_json("  \n ", "Expecting value", PLACE),
    "YAML as JSON": of_json("a: 1\n", "Expecting value", "1:1"),
    "comment in JSON": of_json('{"a": 1} // one', "Extra data", "1:10"),
    "garbage after JSON": of_json('{"a": 1}\n}', "Extra data", "2:1"),
    "two JSON documents": of_json('{"a": 1}\n{"b": 2}\n', "Extra data", "2:1"),
    "trailing comma in JSON": of_json('{"a": [1, ]}', "Expecting value|trailing comma", PLACE),
    "single quotes in JSON": of_json("{'a': 1}", "Expecting property name", "1:2"),
    "control character in JSON": of_json('{"a": "x\ty"}', "Invalid control character", "1:9"),
    "NUL in JSON": of_json('{"a": \x00}', "Expecting value", "1:7"),
    "bad escape in JSON": of_json('{"a": "\\x"}', "escape", PLACE),
    "byte order mark in JSON": Bad(b'\xef\xbb\xbf{"a": 1}', "byte order mark", "1:1", "json"),
    "CRLF in JSON": Bad(b'{"a": 1}\r\n', "carriage return", "1:9", "json"),
    "latin-1 in JSON": Bad(b'{"a": "\xe9"}', "not valid UTF-8: byte 0xe9", "1:8", "json"),
    "leading zero in JSON": of_json('{"a": 01}', "delimiter", "1:8"),
    "duplicate key in JSON": of_json('{"a": 1, "b": 2, "a": 3}', "the key 'a' twice"),
    "duplicate nested key in JSON": of_json('{"g": {"a": 1, "a": 3}}', "the key 'a' twice"),
    "late duplicate key in JSON": of_json(
        "{" + "".join(f'"{number}":1,' for number in range(300_000)) + '"x":1,"x":1}', "the key 'x' twice|more than 50,000 values"
    ),
    "dotted and nested key in JSON": of_json('{"options.b": 1, "options": {"b": 2}}', "options"),
    "empty key in JSON": of_json('{"": 1}', "a key has no empty parts"),
    "empty part in JSON": of_json('{"options": {"a.": 1}}', "a key has no empty parts"),
    "NaN in JSON": of_json('{"a": NaN}', "has NaN, which is not valid JSON"),
    "Infinity in JSON": of_json('{"a": [-Infinity]}', "has -Infinity, which is not valid JSON"),
    "1e999 in JSON": of_json('{"a": 1e999}', "1e999 is beyond the range of a float"),
    "1e-999 in JSON": of_json('{"a": 1e-999}', "1e-999 is too small for a float"),
    "1,000,000 digits in JSON": of_json('{"a": ' + "1" * 10**6 + "}", "an integer of 1,000,000 digits"),
    "10,000 lists in JSON": of_json('{"a": ' + "[" * 10**4 + "]" * 10**4 + "}", "nested more than 100 deep"),
    "100,000 lists in JSON": of_json('{"a": ' + "[" * 10**5 + "]" * 10**5 + "}", "nested more than 100 deep"),
    "100,000 groups in JSON": of_json('{"a":' * 10**5 + "1" + "}" * 10**5, "nested more than 100 deep"),
    "102 lists in JSON": of_json('{"a": ' + "[" * 102 + "]" * 102 + "}", "nested more than 100 deep"),
    "300,000 scalars in JSON": of_json('{"a": [' + "1," * 300_000 + "1]}", "a config has at most 50,000 values"),
    "dotted key of 200 parts in JSON": of_json('{"' + ".".join(["a"] * 200) + '": 1}', "(nested more than|at most) 100 deep"),
    "dotted key of 2,000 parts in JSON": of_json(
        '{"options": {"' + ".".join(["a"] * 2_000) + '": 1}}', "(nested more than|at most) 100 deep"
    ),
    "dotted key of 500,000 parts in JSON": of_json('{"' + ".".join(["a"] * 500_000) + '": 1}', "(nested more than|at most) 100 deep"),
    "lone surrogate in JSON": of_json('{"name": "\\ud800"}', "[Uu]nicode|surrogate"),
    "lone surrogate in a JSON key": of_json('{"options": {"\\udfff": 1}}', "[Uu]nicode|surrogate"),
    "top-level JSON list": of_json('[{"a": 1}]', "it holds a list, not keys with values"),
    "top-level JSON null": of_json("null", "it holds a NoneType, not keys with values"),
    "top-level JSON NaN": of_json('{".float": "nan"}', "it holds a float, not keys with values"),
    "unknown JSON float": of_json('{"options": {".float": "x"}}', "a key has no empty parts"),
    "50 MB of JSON": Bad(lambda path: path.write_bytes(b" " * 50_000_000) and None, "has 50,000,000 bytes", "", "json"),
    # files that only a free-form config refuses
    "name of a method": free("lr: 1\nupdate: 2\n", "`update` is a method of Config", "2:1"),
    "name of a method below": free("lr: 1\ngroup:\n  a: {keys: 2}\n", "`keys` is a method of Config", "3:7"),
    "name of a method in a list": free("groups:\n  - a: 1\n  - items: 2\n", "`items` is a method of Config", "3:5"),
    "name of a method in dots": free("lr: 1\ngroup.copy.a: 2\n", "`copy` is a method of Config", "2:1"),
    # files that only a typed config refuses
    "unknown keys by the thousand": typed("".join(f"namf{number}: 1\n" for number in range(45_000)), "45000 problems", "1:1"),
    "wrong items by the thousand": typed("sizes: [" + "x," * 45_000 + "]", "expected a whole number", "1:9"),
    "dotted keys by the thousand": typed(
        "".join(f"options.k{number}: 1\n" for number in range(40_000)) + "nam: 1\n", "did you mean `name`", "40001:1"
    ),
    "dotted keys below by the thousand": typed(
        "nam: 1\noptions:\n" + "".join(f"  a.k{number}: 1\n" for number in range(40_000)), "did you mean `name`", "1:1"
    ),
    "dotted and nested keys below": typed("options:\n  b: {c: 1}\n  b.d: 2\n", "that group exists too", "2:3|3:3|1:1"),
    "a number too big": typed("lr: 1" + "0" * 400 + "\n", "expected a number within the range of a float", "1:1"),
    "half a number": typed("sizes: [1, 2.5]\n", "fraction would be lost", "1:12"),
}


def path_of(name: str, folder: Path) -> Path:
    return folder / f"{name.replace(' ', '_').replace(',', '')}.{FILES[name].ending}"


def write_all(folder: Path) -> None:
    for name, bad in FILES.items():
        path = path_of(name, folder)
        if isinstance(bad.content, bytes):
            path.write_bytes(bad.content)
        else:
            bad.content(path)


# ---- the program


@configclass
class Typed(ConfigBase):
    name: str = ""
    lr: float = 0.1
    sizes: list[int] = []
    options: dict[str, Any] = {}


LOADERS: dict[str, Callable[[str], Any]] = {"free": Config.load, "typed": Typed.load}


def memory(field: str) -> int:
    """Return a field of this process's status in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{field}:"))


def said(load: Callable[[str], Any], path: str) -> dict[str, Any]:
    """Return the error that loading raises."""
    error: BaseException | None = None
    try:
        load(path)
    except BaseException as caught:
        error = caught
    return {"kinds": [kind.__name__ for kind in type(error).__mro__], "text": str(error)[:5_000], "length": len(str(error))}


def measure(load: Callable[[str], Any], path: str) -> dict[str, Any]:
    """Return the error, time and memory of loading a file.

    A separate process loads the file, so that files do not affect each other.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_CPU, (2, 3))
            signal.alarm(10)  # in case loading hangs
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # reset the peak
            before, start = memory("VmRSS"), time.process_time()
            found = said(load, path)
            found |= {"seconds": time.process_time() - start, "bytes": memory("VmHWM") - before}
            with open(writing, "w") as file:
                json.dump(found, file)
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as file:
        report = file.read()
    status = os.waitpid(child, 0)[1]
    if not report:
        how = f"killed by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else "no report"
        return {"kinds": [how], "text": "", "length": 0, "seconds": 99.0, "bytes": 0}
    return json.loads(report)


def measured(load: Callable[[str], Any], path: str) -> dict[str, Any]:
    """Call `measure`, and repeat it if it was slow, because the machine may have been busy."""
    found = measure(load, path)
    for _ in range(6):
        if not 0.9 < found["seconds"] < 3.0:
            break
        found = min(found, measure(load, path), key=lambda each: each["seconds"])
    return found


def main(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    for load in LOADERS.values():  # imports and caches must not count toward the cost of a file
        for name in ("duplicate key in quotes", "unknown JSON float", "half a number", "missing"):
            measure_here(load, str(path_of(name, folder)))
    jobs = {name: (str(path_of(name, folder)), bad.loaders) for name, bad in FILES.items()}
    FILES.clear()  # a small process forks quickly
    gc.collect()
    gc.freeze()
    json.dump({name: {loader: measured(LOADERS[loader], path) for loader in loaders} for name, (path, loaders) in jobs.items()}, sys.stdout)


def measure_here(load: Callable[[str], Any], path: str) -> None:
    with contextlib.suppress(ValueError):
        load(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
