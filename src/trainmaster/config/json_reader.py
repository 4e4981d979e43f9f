"""Reads strict JSON. Duplicate keys, NaN literals, and files that exceed the limits on size and depth are errors."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from trainmaster.config.numerals import parse_float, parse_int, with_numeral
from trainmaster.config.parsed_file import ParsedFile, fail
from trainmaster.config.paths import MAX_DEPTH, MAX_VALUES, key_problem
from trainmaster.config.to_plain import scalar_problem

_TOO_DEEP = f"is nested more than {MAX_DEPTH} deep"


def read_json(text: str, name: str, keep_numerals: bool = False) -> ParsedFile:
    """Parse JSON text. `name` is the file name for error messages, and `keep_numerals` keeps the original text of numbers."""

    def number(digits: str) -> float:
        return with_numeral(parse_float(digits), digits) if keep_numerals else parse_float(digits)

    try:
        tree = json.loads(text, object_pairs_hook=_mapping, parse_float=number, parse_int=parse_int, parse_constant=_refuse_constant)
        _check_size(tree)
    except json.JSONDecodeError as error:
        fail(name, error.msg, (error.lineno, error.colno))
    except RecursionError:
        fail(name, _TOO_DEEP)
    except ValueError as error:
        fail(name, str(error))
    return ParsedFile(tree, name, {})


def _mapping(pairs: list[tuple[str, Any]]) -> Any:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        duplicate = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"has the key {duplicate!r:.80} twice")
    if tree.keys() == {".float"} and tree[".float"] in ("nan", "inf", "-inf"):
        return float(tree[".float"])
    for key in tree:
        why = key_problem(key)
        if why:
            raise ValueError(f"has the key {key!r:.80}: {why}")
    return tree


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"has {text}, which is not valid JSON")


def _check_size(tree: Any) -> None:
    rest, count = [(tree, 1)], 0
    while rest:
        node, depth = rest.pop()
        if isinstance(node, str) and scalar_problem(node):
            raise ValueError(scalar_problem(node))
        if not isinstance(node, dict | list):
            continue
        count += len(node)
        if count > MAX_VALUES:
            raise ValueError(f"has more than {MAX_VALUES:,} values")
        # Each part of a dotted key counts as one level.
        deepest = depth + max((key.count(".") for key in node), default=0) if isinstance(node, dict) else depth
        if deepest > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        if isinstance(node, dict):
            rest += [(each, depth + 1 + key.count(".")) for key, each in node.items()]
        else:
            rest += [(each, depth + 1) for each in node]
