"""Reads strict JSON. Duplicate keys, NaN literals, and files that exceed the limits on size and depth are errors."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from trainmaster.config.numerals import parse_float, parse_int, with_numeral
from trainmaster.config.parsed_file import ParsedFile, fail
from trainmaster.config.paths import MAX_DEPTH
from trainmaster.config.to_plain import value_to_plain
from trainmaster.errors import Problem


def read_json(text: str, name: str, keep_numerals: bool = False) -> ParsedFile:
    """Parse JSON text. `name` is the file name for error messages, and `keep_numerals` keeps the original text of numbers."""

    def number(digits: str) -> float:
        return with_numeral(parse_float(digits), digits) if keep_numerals else parse_float(digits)

    try:
        tree = json.loads(text, object_pairs_hook=_mapping, parse_float=number, parse_int=parse_int, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        fail(name, error.msg, (error.lineno, error.colno))
    except RecursionError:
        fail(name, f"is nested more than {MAX_DEPTH} deep")
    except ValueError as error:
        fail(name, str(error))
    problems: list[Problem] = []
    value_to_plain(tree, (), problems)  # finds invalid keys and text, and trees that are too large or too deep
    if problems:
        fail(name, str(problems[0]))
    return ParsedFile(tree, name, {})


def _mapping(pairs: list[tuple[str, Any]]) -> Any:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        duplicate = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"has the key {duplicate!r:.80} twice")
    if tree.keys() == {".float"} and tree[".float"] in ("nan", "inf", "-inf"):
        return float(tree[".float"])
    return tree


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"has {text}, which is not valid JSON")
