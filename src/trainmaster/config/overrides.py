"""Overrides: `a.b=3` changes a value, `+a.c=1` adds one. Values are YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from trainmaster.config.paths import dotted, wrong_key
from trainmaster.config.reader import Texts, read_yaml
from trainmaster.errors import ConfigError, ConfigFileError, Problem, nearest


class Override(NamedTuple):
    path: tuple[str, ...]
    value: Any
    is_new: bool
    text: str
    texts: Texts = {}
    """By dotted key, numbers as they were written."""

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
    for text in [texts] if isinstance(texts, str) else texts:
        try:
            override = _parse_one(text)
        except ConfigFileError as error:
            problems.append(Problem(text.partition("=")[0], error.fact.partition(": ")[2] or error.fact, where=text))
            continue
        except ValueError as error:
            problems.append(Problem("", str(error), where=text))
            continue
        other = next((each for each in found if all(map(str.__eq__, each.path, override.path))), None)
        if other is None:
            found.append(override)
        else:
            problems.append(Problem(dotted(override.path), f"is set by another override too: {other.text}", where=text))
    return found, problems


def _parse_one(text: str) -> Override:
    key, equals, value = text.partition("=")
    is_new = key.startswith("+")
    key = key.removeprefix("+").strip()
    if not equals:
        raise ValueError("wanted key=value")
    why = wrong_key(key)
    if why:
        raise ValueError(f"{key!r}: {why}")
    if not value.strip():
        raise ValueError(f"no value; write {key}=null for none, or {key}='' for empty text")
    document = read_yaml(value, "value")
    texts = {f"{key}.{below}" if below else key: pair for below, pair in document.texts.items()}
    return Override(tuple(key.split(".")), document.tree, is_new, text, texts)


def apply_all(tree: Mapping[str, Any], texts: Iterable[str], owner: str, is_new: bool = False) -> tuple[dict[str, Any], list[Override]]:
    """A copy of a nested dict with overrides applied, and these; `is_new` takes every key as if it had its plus."""
    overrides, problems = parse(texts)
    if is_new:
        overrides = [each._replace(is_new=True) for each in overrides]
    result = _copied(tree)
    problems += [problem for each in overrides if (problem := apply_one(result, each))]
    if problems:
        raise ConfigError.of(owner, problems)
    return result, overrides


def apply_one(tree: Any, override: Override, start: int = 0) -> Problem | None:
    """Change `tree`, which stands at `override.path[:start]`; what does not fit is the problem."""
    node = tree
    key = dotted(override.path)
    for number, part in enumerate(override.path[start:], start):
        is_last = number == len(override.path) - 1
        at = dotted(override.path[:number])
        if isinstance(node, list):
            if not part.isdecimal() or int(part) >= len(node):
                return Problem(key, f"`{at}` is a list of {len(node)}; wanted an index below that", where=override.text)
            slot: Any = int(part)
        elif isinstance(node, dict):
            slot = part
            whole = dotted(override.path[number:])
            if not is_last and whole in node:  # a key with dots
                node[whole] = override.value
                return None
            if part not in node and not override.is_new:
                close = [f"`{at}.{name}`" if at else f"`{name}`" for name in nearest(part, node)]
                advice = f"did you mean {' or '.join(close)}?" if close else f"write +{override.text} to add it"
                return Problem(key, f"no such key; {advice}", where=override.text, is_unknown=True)
            if is_last and part in node and override.is_new:
                return Problem(key, f"exists already; write {override.text[1:]} to change it", where=override.text)
            if not is_last:
                node.setdefault(part, {})
        else:
            return Problem(key, f"`{at}` is {node!r:.60}, not a group", where=override.text)
        if is_last:
            node[slot] = override.value
        else:
            if isinstance(node[slot], tuple):
                node[slot] = list(node[slot])
            node = node[slot]
    return None


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    return type(value)(_copied(each) for each in value) if type(value) in (list, tuple) else value
