"""Overrides: `a.b=3` changes a value, `+a.c=1` adds one. Values are YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from trainmaster.config.describe import shorten
from trainmaster.config.paths import dotted, wrong_key
from trainmaster.config.yaml_reader import read_yaml
from trainmaster.errors import ConfigError, ConfigFileError, Problem, nearest


class Override(NamedTuple):
    path: tuple[str, ...]
    value: Any
    is_new: bool
    text: str

    @property
    def origin(self) -> str:
        return f"override {self.text}"


def parse(texts: Iterable[str]) -> tuple[list[Override], list[Problem]]:
    """The overrides in `texts`, and a problem for every one that cannot be read.

    >>> parse(["train.lr=1e-3", "+tags=[a, b]"])[0][0][:3]
    (('train', 'lr'), 0.001, False)
    """
    found: list[Override] = []
    problems: list[Problem] = []
    taken: dict[tuple[str, ...], Override] = {}
    groups: dict[tuple[str, ...], Override] = {}  # what lies around a path that is taken
    for text in [texts] if isinstance(texts, str) else texts:
        if not isinstance(text, str):
            problems.append(Problem("", "wanted text of the form key=value; write override(*texts)", shorten(text)))
            continue
        try:
            override = _parse_one(text)
        except ConfigFileError as error:
            problems.append(Problem(text.partition("=")[0], error.fact.partition(": ")[2] or error.fact, where=text))
            continue
        except ValueError as error:
            problems.append(Problem("", str(error), where=text))
            continue
        other = next((taken[path] for path in _prefixes(override.path) if path in taken), groups.get(override.path))
        if other is None:
            found.append(override)
            taken[override.path] = override
            groups.update(dict.fromkeys(_prefixes(override.path), override))
        else:
            problems.append(Problem(dotted(override.path), f"is set by another override too: {other.text}", where=text))
    return found, problems


def _prefixes(path: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [path[:length] for length in range(1, len(path) + 1)]


def _parse_one(text: str) -> Override:
    key, equals, value = text.partition("=")
    is_new = key.startswith("+")
    key = key.removeprefix("+").strip()
    if not equals:
        raise ValueError("wanted key=value")
    why = wrong_key(key)
    if why:
        raise ValueError(f"{key!r}: {why}")
    if key.startswith("-"):
        raise ValueError(f"a key has no dashes in front; write {key.lstrip('-')}={value}")
    if re.match(r"\s*(---|\.\.\.)(\s|$)", value):
        raise ValueError("a value, not a document; quote it if it is text")
    if not value.strip() or value.lstrip().startswith("#"):
        raise ValueError(f"no value; write {key}=null for none, or {key}='' for empty text")
    return Override(tuple(key.split(".")), read_yaml(value, "value", keep_numerals=True).tree, is_new, text)


def apply_all(tree: Mapping[str, Any], texts: Iterable[str], owner: str, is_new: bool = False) -> tuple[Any, list[Override]]:
    """A nested dict with overrides applied, and these; `is_new` takes every key as if it had its plus. The given one stays as it is."""
    overrides, problems = parse(texts)
    for each in overrides:
        try:
            tree = changed(tree, each._replace(is_new=is_new or each.is_new))
        except Misfit as misfit:
            problems.append(misfit.problem)
    if problems:
        raise ConfigError.of(owner, problems)
    return tree, overrides


class Misfit(Exception):
    """An override that leads nowhere, with the problem that it is."""

    def __init__(self, override: Override, text: str, is_unknown: bool = False) -> None:
        super().__init__(text)
        self.problem = Problem(dotted(override.path), text, where=override.text, is_unknown=is_unknown)


def changed(node: Any, override: Override, start: int = 0) -> Any:
    """`node`, which stands at `override.path[:start]`, with the override applied: a copy as far as it changes."""
    rest = override.path[start:]
    if not rest:
        return override.value
    at = dotted(override.path[:start])
    if isinstance(node, list | tuple):
        if not rest[0].isdecimal() or len(rest[0]) > 9 or int(rest[0]) >= len(node):
            raise Misfit(override, f"`{at}` is a list of {len(node)}; wanted an index below that")
        items = list(node)
        items[int(rest[0])] = changed(items[int(rest[0])], override, start + 1)
        return tuple(items) if isinstance(node, tuple) else items
    if not isinstance(node, Mapping):
        raise Misfit(override, f"`{at}` is {shorten(node)}, not a group")
    keys = node.keys()  # a Config itself would answer for dotted keys too
    length = next((each for each in range(len(rest), 0, -1) if dotted(rest[:each]) in keys), 0)  # a key may have dots
    if length == len(rest) and override.is_new:
        raise Misfit(override, f"exists already; write {override.text.removeprefix('+')} to change it")
    if length == 0 and not override.is_new:
        close = [f"`{at}.{name}`" if at else f"`{name}`" for name in nearest(rest[0], node)]
        advice = f"did you mean {' or '.join(close)}?" if close else f"write +{override.text} to add it"
        raise Misfit(override, f"no such key; {advice}", is_unknown=True)
    key = dotted(rest[: length or 1])
    return {**node, key: changed(node[key] if length else {}, override, start + (length or 1))}
