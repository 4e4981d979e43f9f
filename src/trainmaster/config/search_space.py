"""`SearchSpace`: the values that a search may try for one key of a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from annotated_types import Gt
from pydantic import BeforeValidator

from trainmaster.config.any_config import CLASS
from trainmaster.config.config_base import ConfigBase
from trainmaster.config.configclass import configclass
from trainmaster.config.to_plain import is_same, value_to_plain
from trainmaster.errors import ConfigError, Problem

_KINDS = ("value_range", "categorical_values", "subspaces", "sub_configuration")


def _as_plain(value: Any) -> Any:
    """Convert the search spaces in a mapping to plain mappings."""
    if isinstance(value, SearchSpace):
        return value.to_dict()
    return {key: _as_plain(each) for key, each in value.items()} if isinstance(value, Mapping) else value


@configclass
class SearchSpace(ConfigBase):
    """A range of numbers, a list of values, a list of alternative spaces, or a mapping from names to fixed values or spaces.

    >>> SearchSpace(value_range=(1e-4, 1e-1), log=True).contains(0.01)
    True
    """

    value_range: tuple[float, float] | None = None
    value_type: Literal["int", "float"] = "float"
    categorical_values: list[Any] | None = None
    subspaces: list[Self] | None = None
    sub_configuration: Annotated[dict[str, Any] | None, BeforeValidator(_as_plain)] = None
    n_bins: Annotated[int, Gt(0)] | None = None
    log: bool = False

    def problems(self) -> Iterator[tuple[str, str]]:
        given = [kind for kind in _KINDS if self[kind] is not None]
        if len(given) != 1:
            yield "", f"expected exactly one of {', '.join(_KINDS)}; given: {', '.join(given) or 'none'}"
        yield from self._range_problems()
        for name in ("categorical_values", "subspaces", "sub_configuration"):
            if self[name] is not None and not self[name]:
                yield name, "is empty"
        try:
            list(spaces_in(self.sub_configuration or {}))
        except ConfigError as error:
            for each in error.problems:
                yield "sub_configuration", str(each)

    def _range_problems(self) -> Iterator[tuple[str, str]]:
        if self.value_range is None:
            for name, default in (("n_bins", None), ("log", False), ("value_type", "float")):
                if self[name] != default:
                    yield name, "is only allowed with a value_range"
            return
        low, high = self.value_range
        if not float("-inf") < low < high < float("inf"):
            yield "value_range", "expected two finite numbers, the smaller one first"
        elif self.log and low <= 0:
            yield "value_range", "a logarithmic range must start above 0"
        elif self.value_type == "int" and not (low.is_integer() and high.is_integer()):
            yield "value_range", "a range of whole numbers must have whole numbers as its ends"

    def contains(self, value: Any) -> bool:
        """Return whether a search of this space could propose `value`."""
        problems: list[Problem] = []
        value = value_to_plain(value.to_dict() if isinstance(value, ConfigBase) else value, (), problems)
        if problems:
            return False
        if self.value_range is not None:
            is_kind = type(value) is int or (type(value) is float and (self.value_type == "float" or value.is_integer()))
            return is_kind and self.value_range[0] <= value <= self.value_range[1]
        if self.categorical_values is not None:
            return any(is_same(value, each) for each in self.categorical_values)
        if self.subspaces is not None:
            return any(space.contains(value) for space in self.subspaces)
        return _contains(self.sub_configuration, value)


def is_search_space(value: Any) -> bool:
    """Return whether a plain value describes a search space: a mapping with a key such as `value_range` and no unknown keys."""
    return isinstance(value, Mapping) and any(kind in value for kind in _KINDS) and value.keys() <= {CLASS, *SearchSpace._schema().fields}


def as_search_space(value: Mapping[str, Any]) -> SearchSpace:
    """Return the `SearchSpace` that a plain mapping describes."""
    return SearchSpace(**{name: each for name, each in value.items() if name != CLASS})


def spaces_in(group: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, SearchSpace]]:
    """Yield every search space inside a mapping, with its dotted key."""
    for key, value in group.items():
        if is_search_space(value):
            yield f"{prefix}{key}", as_search_space(value)
        elif isinstance(value, Mapping):
            yield from spaces_in(value, f"{prefix}{key}.")


def _contains(wanted: Any, value: Any) -> bool:
    if is_search_space(wanted):
        return as_search_space(wanted).contains(value)
    if not isinstance(wanted, Mapping) or not isinstance(value, Mapping):
        return is_same(wanted, value)
    return value.keys() == wanted.keys() and all(_contains(each, value[key]) for key, each in wanted.items())
