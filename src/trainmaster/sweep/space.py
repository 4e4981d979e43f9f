"""`Space`: the dotted keys that a search varies, and the possible values of each.

Optuna only sees numbers: a value of a binned range or of a list is represented by its index, and so is the choice of a sub-space.
Therefore, a search can use any value that a config can contain, and the recorded parameters are plain numbers.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmaster.config import SearchSpace
from trainmaster.config.overrides import Override, alternatives_text, follow_types
from trainmaster.config.search_space import as_search_space, is_search_space, spaces_in
from trainmaster.config.to_plain import is_same
from trainmaster.config.yaml_reader import read_yaml
from trainmaster.errors import ConfigError, ConfigFileError, Problem, did_you_mean
from trainmaster.text import counted

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

_CALL = re.compile(r"(?P<kind>[A-Za-z_]+)\((?P<arguments>.*)\)", re.DOTALL)
_RANGE_START = re.compile(r"\s*[A-Za-z_]+\(")
_KINDS = ("float", "int", "log")


@dataclass(frozen=True)
class Space:
    """The keys that a search varies, each with its `SearchSpace`."""

    keys: Mapping[str, SearchSpace]

    @classmethod
    def of(cls, spaces: Mapping[str, Any]) -> Space:
        """Create a space from a mapping such as `{"lr": SearchSpace(...), "width": "int(8,256)", "optim.name": ["sgd", "adam"]}`.

        If the mapping is invalid, raise a `ConfigError` that lists all problems.
        """
        found: dict[str, SearchSpace] = {}
        problems: list[Problem] = []
        for key, given in spaces.items():
            try:
                found[key] = _search_space(given)
            except ConfigError as error:
                problems += [Problem(key, each.text if not each.key else f"{each.key}: {each.text}", each.value) for each in error.problems]
            except ValueError as error:
                problems.append(Problem(key, str(error), repr(given)))
        if problems:
            raise ConfigError.of("the search space", problems)
        if not found:
            raise ConfigError.of("the search space", [Problem("", "has no keys")], hint="for example lr=log(1e-5,1e-1)")
        return cls(found)

    def to_dict(self) -> dict[str, Any]:
        """Return the space as plain values, for the plan in the store."""
        return {key: _without_defaults(space) for key, space in self.keys.items()}

    def suggest(self, trial: BaseTrial | _FirstValues) -> dict[str, Any]:
        """Ask an Optuna trial for one point: a value for each key."""
        return {key: _suggest(trial, key, space) for key, space in self.keys.items()}

    def example(self) -> dict[str, Any]:
        """Return one example point: the low end of each range, and the first value of each list."""
        return self.suggest(_FirstValues())

    def parameters_of(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the Optuna parameters for the values of a config, or None if the space does not contain these values."""
        return _merged(_parameters(key, space, values[key]) if key in values else None for key, space in self.keys.items())

    # ---- grids

    def check_is_countable(self) -> None:
        """Raise `ConfigError` unless every range has bins. Without bins, a grid would have infinitely many points."""
        problems = [
            Problem(key, "a grid needs bins for a range", hint) for key, space in self.keys.items() for hint in _ranges_without_bins(space)
        ]
        if problems:
            raise ConfigError.of("the search space", problems, hint="write float(0,1,bins=5), or `n_bins=5` in a SearchSpace")

    @property
    def num_points(self) -> int:
        """The number of points in a grid over this space."""
        return math.prod(_count(space) for space in self.keys.values())

    def point(self, index: int) -> dict[str, int]:
        """Return the parameters of point number `index` of a grid. The last key changes fastest."""
        return _grid_point([*self.keys.items()], index)


class _FirstValues:
    """Used in place of an Optuna trial to suggest the first value of each parameter."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        return low

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        return low

    def suggest_categorical(self, name: str, choices: Sequence[int]) -> int:
        return choices[0]


def parse_space(words: Sequence[str], replaced: Mapping[str, Any] | None = None) -> tuple[Space | None, list[str]]:
    """Split command-line words into the space to search and the overrides that stay fixed.

    `replaced` contains the config values that the words replace. Each number in a list is converted to the type of the value
    that it replaces.

    >>> space, fixed = parse_space(["lr=log(1e-5,1e-1)", "optim.name=sgd,adam", "epochs=5"])
    >>> space.keys["lr"].log, space.keys["optim.name"].categorical_values, fixed
    (True, ['sgd', 'adam'], ['epochs=5'])
    >>> parse_space(["hidden=[[16, 16]]", "lr=[0.1]"])
    (None, ['hidden=[16, 16]', 'lr=0.1'])
    """
    searched: dict[str, Any] = {}
    fixed: list[str] = []
    problems: list[Problem] = []
    for word in words:
        key, _, text = word.partition("=")
        values = text.strip() if is_range(text) else _values(key, text)
        if not isinstance(values, str):
            override = Override(tuple(key.strip().split(".")), values, False, word)
            values = follow_types(override, replaced or {}, problems, has_choices=True).value
        if isinstance(values, str) or len(values) > 1:
            searched[key.strip()] = values
        elif values and text.lstrip().startswith("["):  # a list with one alternative, which is the fixed value
            fixed.append(f"{key}={text.strip()[1:-1].strip().removesuffix(',')}")
        else:
            fixed.append(word)
    if problems:
        raise ConfigError.of("the search space", problems)
    return Space.of(searched) if searched else None, fixed


def is_range(text: str) -> bool:
    """Return whether a string looks like a range, such as `log(1e-5,1e-1)`, even if the range is invalid."""
    return _RANGE_START.match(text) is not None


def _values(key: str, text: str) -> list[Any]:
    """Parse a list of values such as `a,b,c` or `[a, b, c]` as YAML. Return an empty list if the text cannot be parsed."""
    try:
        values = read_yaml(alternatives_text(text), key).tree
    except ConfigFileError:  # the problem is reported when the text is parsed as an override
        return []
    return values if isinstance(values, list) else []


def _search_space(given: Any) -> SearchSpace:
    if isinstance(given, SearchSpace):
        return given
    if isinstance(given, str):
        return _parse_range(given)
    if isinstance(given, Mapping):
        return as_search_space(given)
    if isinstance(given, list | tuple):
        return SearchSpace(categorical_values=list(given))
    raise ValueError("expected a SearchSpace, a list of values, or a range such as log(1e-5,1e-1)")


def _parse_range(text: str) -> SearchSpace:
    """Parse `float(0,0.5)`, `int(8,256)` or `log(1e-5,1e-1)`, optionally with `bins=5` or `log=true`."""
    match = _CALL.fullmatch(text.strip())
    if match is None or match["kind"] not in _KINDS:
        meant = did_you_mean(match["kind"], _KINDS) if match else ""
        raise ValueError(f"expected one of float(low,high), int(low,high), log(low,high){f'; {meant}' if meant else ''}")
    ends: list[float] = []
    options: dict[str, Any] = {"value_type": "int" if match["kind"] == "int" else "float", "log": match["kind"] == "log"}
    for part in match["arguments"].split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals:
            ends.append(_number(part))
        elif name == "bins":
            options["n_bins"] = int(_number(value))
        elif name == "log":
            options["log"] = value.lower() == "true"
        else:
            raise ValueError(f"unknown option `{name}`; known: bins, log")
    if len(ends) != 2:
        raise ValueError(f"expected a low and a high end, not {counted(len(ends), 'number')}")
    return SearchSpace(value_range=(ends[0], ends[1]), **options)


def _number(text: str) -> float:
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, not `{text.strip()}`")
    return float(value)


# ---- one key


def _suggest(trial: BaseTrial | _FirstValues, name: str, space: SearchSpace) -> Any:
    if space.value_range is not None:
        bins = _bins(space)
        if bins is not None:
            return bins[trial.suggest_int(name, 0, len(bins) - 1)]
        low, high = space.value_range
        if space.value_type == "int":
            return trial.suggest_int(name, int(low), int(high), log=space.log)
        return trial.suggest_float(name, low, high, log=space.log)
    if space.categorical_values is not None:
        return space.categorical_values[trial.suggest_categorical(name, range(len(space.categorical_values)))]
    if space.subspaces is not None:
        index = trial.suggest_categorical(name, range(len(space.subspaces)))
        return _suggest(trial, f"{name}/{index}", space.subspaces[index])
    return _suggest_group(trial, name, space.sub_configuration or {})


def _suggest_group(trial: BaseTrial | _FirstValues, name: str, group: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in group.items():
        below = f"{name}.{key}"
        if is_search_space(value):
            values[key] = _suggest(trial, below, as_search_space(value))
        else:
            values[key] = _suggest_group(trial, below, value) if isinstance(value, Mapping) else value
    return values


def extremes(space: SearchSpace) -> list[Any]:
    """Return the values of a space that are most likely to be invalid: both ends of a range, or every listed value."""
    if space.value_range is not None:
        return [int(end) if space.value_type == "int" else end for end in space.value_range]
    return list(space.categorical_values or ())


def _parameters(name: str, space: SearchSpace, value: Any) -> dict[str, Any] | None:
    """Return the Optuna parameters for the value of one key, or None if the space does not contain this value."""
    if not space.contains(value):
        return None
    if space.value_range is not None:
        bins = _bins(space)
        if bins is None:
            return {name: value}
        return {name: bins.index(value)} if value in bins else None
    if space.categorical_values is not None:
        return {name: next(index for index, each in enumerate(space.categorical_values) if is_same(each, value))}
    if space.subspaces is not None:
        for index, below in enumerate(space.subspaces):
            found = _parameters(f"{name}/{index}", below, value)
            if found is not None:
                return {name: index, **found}
        return None
    return _merged(
        _parameters(f"{name}{suffix}", below, functools.reduce(operator.getitem, suffix.split(".")[1:], value))
        for suffix, below in _spaces_below(space)
    )


def _merged(parts: Iterable[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return all parameters in `parts`, or None if a part is None."""
    merged: dict[str, Any] = {}
    for part in parts:
        if part is None:
            return None
        merged.update(part)
    return merged


def _bins(space: SearchSpace) -> list[Any] | None:
    """Return the distinct values of a binned range, or None for a range without bins."""
    if space.n_bins is None or space.value_range is None:
        return None
    low, high = space.value_range
    last = max(1, space.n_bins - 1)
    shares = [number / last for number in range(space.n_bins)]
    exact = [low * (high / low) ** share if space.log else low + (high - low) * share for share in shares]
    if space.value_type == "int":
        return sorted({round(value) for value in exact})
    return list(dict.fromkeys(float(f"{value:.12g}") for value in exact))  # 0.001, not 0.0010000000000000002


def _ranges_without_bins(space: SearchSpace) -> Iterator[str]:
    if space.value_range is not None and space.n_bins is None:
        yield f"{space.value_range[0]:g} to {space.value_range[1]:g}"
    for _, below in _spaces_below(space):
        yield from _ranges_without_bins(below)


def _spaces_below(space: SearchSpace) -> Iterator[tuple[str, SearchSpace]]:
    for index, below in enumerate(space.subspaces or ()):
        yield f"/{index}", below
    yield from spaces_in(space.sub_configuration or {}, ".")


def _count(space: SearchSpace) -> int:
    if space.value_range is not None:
        return len(_bins(space) or ())
    if space.categorical_values is not None:
        return len(space.categorical_values)
    if space.subspaces is not None:
        return sum(map(_count, space.subspaces))
    return math.prod(_count(below) for _, below in _spaces_below(space))


def _grid_parameters(name: str, space: SearchSpace, index: int) -> dict[str, int]:
    if space.subspaces is not None:
        for number, below in enumerate(space.subspaces):
            if index < _count(below):
                return {name: number, **_grid_parameters(f"{name}/{number}", below, index)}
            index -= _count(below)
    if space.sub_configuration is not None:
        return _grid_point([(f"{name}{suffix}", below) for suffix, below in _spaces_below(space)], index)
    return {name: index}


def _grid_point(spaces: Sequence[tuple[str, SearchSpace]], index: int) -> dict[str, int]:
    """Return the parameters of point number `index` in the product of several spaces. The last space changes fastest."""
    parameters: dict[str, int] = {}
    for name, space in reversed(spaces):
        index, own = divmod(index, _count(space))
        parameters.update(_grid_parameters(name, space, own))
    return parameters


def _without_defaults(space: SearchSpace) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in space.to_dict().items():
        if name == "subspaces" and value is not None:
            plain[name] = [_without_defaults(below) for below in space.subspaces or ()]
        elif value not in (None, False) and (name, value) != ("value_type", "float"):
            plain[name] = value
    return plain
