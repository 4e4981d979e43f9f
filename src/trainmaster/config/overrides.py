"""Applies overrides to configs: `a.b=3` changes a value, `+a.c=1` adds one. Values are YAML."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from trainmaster.arguments import is_number
from trainmaster.config.near_miss import suggestions, unknown_key_message
from trainmaster.config.paths import dotted, get_child, key_problem, leaves
from trainmaster.config.value_table import short_repr
from trainmaster.config.yaml_reader import read_yaml
from trainmaster.errors import ConfigError, ConfigFileError, Problem, ask_about


class Override(NamedTuple):
    path: tuple[str, ...]
    value: Any
    is_new: bool
    text: str

    @property
    def origin(self) -> str:
        return f"override {self.text}"


def parse(texts: Iterable[str]) -> tuple[list[Override], list[Problem]]:
    """Parse overrides. Return the parsed overrides, and a problem for each one that cannot be parsed.

    >>> parse(["train.lr=1e-3", "+tags=[a, b]"])[0][0][:3]
    (('train', 'lr'), 0.001, False)
    """
    found: list[Override] = []
    problems: list[Problem] = []
    taken: dict[tuple[str, ...], Override] = {}
    groups: dict[tuple[str, ...], Override] = {}  # the groups that contain paths in `taken`
    for before, text in pairwise(["", *([texts] if isinstance(texts, str) else texts)]):
        if not isinstance(text, str):
            problems.append(Problem("", "expected text of the form key=value; write override(*texts)", short_repr(text)))
            continue
        try:
            override = _parse_one(text)
        except ConfigFileError as error:
            problems.append(Problem(text.partition("=")[0], error.fact.partition(": ")[2] or error.fact, where=text))
            continue
        except ValueError as error:
            problems.append(Problem("", "; ".join(filter(None, [str(error), part_of_list(before, text)])), where=text))
            continue
        # No override's path may be equal to, or a prefix of, another override's path.
        prefixes = [override.path[:length] for length in range(1, len(override.path) + 1)]
        other = next((taken[path] for path in prefixes if path in taken), groups.get(override.path))
        if other is None:
            found.append(override)
            taken[override.path] = override
            groups.update(dict.fromkeys(prefixes, override))
        else:
            problems.append(Problem(dotted(override.path), f"is set by another override too: {other.text}", where=text))
    return found, problems


def alternatives_text(text: str) -> str:
    """Return the text after `key=` as a YAML list of alternatives.

    If the text is a single list, its elements are the alternatives. If it is several lists, each of them is an alternative.

    >>> [alternatives_text(text) for text in ("0.1,0.01", "3", "[a, b]", "[16],[16, 16]", "[[16, 16]]")]
    ['[0.1,0.01]', '[3]', '[a, b]', '[[16],[16, 16]]', '[[16, 16]]']
    """
    if not text.lstrip().startswith("["):
        return f"[{text}]" if text.strip() else text
    for each in (text, f"[{text}]"):
        with contextlib.suppress(ConfigFileError):
            read_yaml(each, "value")
            return each
    return text  # parsing it as an override reports what is wrong


def explain_lists(problem: Problem) -> Problem:
    """If the problem is that the value must be a list, explain that each alternative must be a list."""
    if not problem.text.startswith("expected a list"):
        return problem
    return problem._replace(text=f"{problem.text}; a list of alternatives contains lists: [[16, 16], [32]]")


def part_of_list(before: Any, text: str) -> str:
    """Return a hint if `text` is probably the rest of a list that the shell split at a space, otherwise an empty string.

    For example, the shell splits `lr=0.1, 0.01` into two arguments.
    """
    is_rest = "=" not in text and (str(before).removesuffix("]").endswith(",") or text.startswith(","))
    return "a list is written without spaces: lr=0.1,0.01" if is_rest else ""


def _parse_one(text: str) -> Override:
    key, equals, value = text.partition("=")
    is_new = key.startswith("+")
    key = key.removeprefix("+").strip()
    if not equals:
        raise ValueError("expected key=value")
    why = key_problem(key)
    if why:
        raise ValueError(f"{key!r}: {why}")
    if key.startswith("-"):
        raise ValueError(f"a key has no dashes in front; write {key.lstrip('-')}={value}")
    if re.match(r"\s*(---|\.\.\.)(\s|$)", value):
        raise ValueError("expected a value, not a document; quote it if it is text")
    if not value.strip() or value.lstrip().startswith("#"):
        raise ValueError(f"has no value; write {key}=null for none, or {key}='' for empty text")
    return Override(tuple(key.split(".")), read_yaml(value, "value", keep_numerals=True).tree, is_new, text)


def apply_overrides(
    tree: Mapping[str, Any],
    texts: Iterable[str],
    owner: str,
    takes_any: bool = False,
    replaced: Mapping[str, Any] | None = None,
    has_choices: bool = False,
) -> tuple[Any, list[Override]]:
    """Return a copy of `tree` with the overrides applied, and the parsed overrides. `takes_any` allows new keys without a `+`.

    If `replaced` contains a float for a key, an int in the override of this key becomes a float. With `has_choices`,
    the value of each override is a list of alternatives for its key.
    """
    parsed, problems = parse(texts)
    overrides = [follow_types(each, replaced or {}, problems, has_choices) for each in parsed]
    for each in overrides:
        try:
            tree = set_in(tree, each) if takes_any else changed(tree, each)
        except Misfit as misfit:
            problems.append(misfit.problem)
    if problems:
        raise ConfigError.of(owner, suggest_full_keys(problems, tree))
    return tree, overrides


def follow_types(override: Override, replaced: Mapping[str, Any], problems: list[Problem], has_choices: bool = False) -> Override:
    """Return an override whose value fits the number that it replaces. If that number is a float, `0` becomes `0.0`.

    Without this conversion, `dropout=0` and `dropout=0.0` would lead to two runs with the same results. A float may replace an
    int, because defaults such as `lr: 1` are common. A problem is added to `problems` if the new value of a number is neither
    a number nor null. With `has_choices`, a problem is also added if the old value is a list and no alternative is a list or
    null, because the user probably meant `[16, 16]` as one value and not as two alternatives.
    """
    old: Any = replaced
    for part in override.path:
        old = get_child(old, part)
    if has_choices and isinstance(old, list | tuple) and not any(each is None or isinstance(each, list) for each in override.value):
        wrong_list = Problem(dotted(override.path), f"expected a list, because it replaces {short_repr(old)}", where=override.text)
        problems.append(explain_lists(wrong_list))
    if not is_number(old):
        return override
    values = override.value if has_choices else [override.value]
    expected = f"expected a number, because it replaces {short_repr(old)}"
    wrong = [each for each in values if each is not None and not is_number(each)]
    problems += [Problem(dotted(override.path), expected, short_repr(each), override.text) for each in wrong]
    if isinstance(old, float):
        values = [_to_float(each) if isinstance(each, int) and is_number(each) else each for each in values]
    return override._replace(value=values if has_choices else values[0])


def _to_float(number: int) -> int | float:
    """Convert an int to a float if the float has exactly the same value. Otherwise return the int."""
    try:
        return float(number) if float(number) == number else number
    except OverflowError:
        return number


def set_in(tree: Any, override: Override) -> Any:
    """Return a copy of `tree` with the override applied. If `tree` does not have the key, the key is added."""
    try:
        return changed(tree, override)
    except Misfit as misfit:
        if not misfit.problem.is_unknown:
            raise
        return changed(tree, override._replace(is_new=True))


def suggest_full_keys(problems: Iterable[Problem], tree: Mapping[str, Any]) -> list[Problem]:
    """Add suggestions to problems. For example, if `lr` is unknown and the config has `optim.lr`, suggest `optim.lr`."""
    by_name: dict[str, list[str]] = {}
    for key, _ in leaves(tree, into_lists=False):
        group, _, last = key.rpartition(".")
        by_name.setdefault(last, []).extend([key] if group else [])
    found = []
    for each in problems:
        meant = by_name.get(each.key.rpartition(".")[2], []) if each.is_unknown else []
        found.append(each._replace(text=f"{each.text.partition(';')[0]}; {ask_about(meant[:3])}") if meant else each)
    return found


class Misfit(Exception):
    """Raised for an override that cannot be applied to the config. `problem` states the reason."""

    def __init__(self, override: Override, text: str, is_unknown: bool = False) -> None:
        super().__init__(text)
        self.problem = Problem(dotted(override.path), text, where=override.text, is_unknown=is_unknown)


def changed(node: Any, override: Override, start: int = 0) -> Any:
    """Return a copy of `node` with the override applied. `override.path[:start]` is the path of `node`."""
    rest = override.path[start:]
    if not rest:
        return override.value
    at = dotted(override.path[:start])
    if isinstance(node, list | tuple):
        if not rest[0].isdecimal() or len(rest[0]) > 9 or int(rest[0]) >= len(node):
            raise Misfit(override, f"`{at}` is a list of {len(node)}; expected an index below that")
        items = list(node)
        items[int(rest[0])] = changed(items[int(rest[0])], override, start + 1)
        return tuple(items) if isinstance(node, tuple) else items
    if not isinstance(node, Mapping):
        raise Misfit(override, f"`{at}` is {short_repr(node)}, not a group")
    keys = node.keys()  # `in` on a Config would also find dotted keys
    length = next((each for each in range(len(rest), 0, -1) if dotted(rest[:each]) in keys), 0)  # a key of a dict may have dots
    if length == len(rest) and override.is_new:
        raise Misfit(override, f"exists already; write {override.text.removeprefix('+')} to change it")
    if length == 0 and not override.is_new:
        close = [f"{at}.{name}" if at else name for name in suggestions(rest[0], node)]
        raise Misfit(override, unknown_key_message(close, f"write +{override.text} to add it"), is_unknown=True)
    key = dotted(rest[: length or 1])
    return {**node, key: changed(node[key] if length else {}, override, start + (length or 1))}
