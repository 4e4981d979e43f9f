"""JSON as a plain tree: strict, without duplicate keys, within the limits."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from trainmaster.config.document import Document, floating, refuse, whole
from trainmaster.config.numerals import written
from trainmaster.config.paths import MAX_DEPTH, MAX_VALUES, wrong_key
from trainmaster.config.plain import wrong_scalar


def read_json(text: str, name: str, keep_numerals: bool = False) -> Document:
    """A JSON text; it has no marks, because the standard library's reader keeps none."""

    def unique(pairs: list[tuple[str, Any]]) -> Any:
        tree = dict(pairs)
        if len(tree) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            refuse(name, f"has the key {twice!r:.80} twice")
        if tree.keys() == {".float"} and tree[".float"] in ("nan", "inf", "-inf"):
            return float(tree[".float"])
        for key in tree:
            why = wrong_key(key)
            if why:
                refuse(name, f"has the key {key!r:.80}: {why}")
        return tree

    def number(digits: str) -> float:
        value = floating(digits, lambda why: refuse(name, why))
        return written(value, digits) if keep_numerals else value

    def integer(digits: str) -> int:
        return whole(digits, lambda why: refuse(name, why))

    def no_constant(text: str) -> NoReturn:
        refuse(name, f"has {text}, which JSON does not have")

    try:
        tree = json.loads(text, object_pairs_hook=unique, parse_float=number, parse_int=integer, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        refuse(name, error.msg, (error.lineno, error.colno))
    except RecursionError:
        refuse(name, f"is nested more than {MAX_DEPTH} deep")
    _check_size(tree, name)
    return Document(tree, name, {})


def _check_size(tree: Any, name: str) -> None:
    """Refuse too many values and too much nesting, dots counted; without recursion."""
    rest, count = [(tree, 1)], 0
    while rest:
        node, depth = rest.pop()
        if isinstance(node, str) and wrong_scalar(node):
            refuse(name, wrong_scalar(node))
        if not isinstance(node, dict | list):
            continue
        if depth > MAX_DEPTH:
            refuse(name, f"is nested more than {MAX_DEPTH} deep")
        count += len(node)
        if count > MAX_VALUES:
            refuse(name, f"has more than {MAX_VALUES:,} values")
        if isinstance(node, dict):
            if any(depth + key.count(".") > MAX_DEPTH for key in node):
                refuse(name, f"is nested more than {MAX_DEPTH} deep")
            rest += [(each, depth + 1 + key.count(".")) for key, each in node.items()]
        else:
            rest += [(each, depth + 1) for each in node]
