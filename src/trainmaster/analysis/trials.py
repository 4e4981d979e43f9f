"""The trials of a `ParallelConfig`: the runs in a store that a search with this config could have proposed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.config import ConfigBase, ParallelConfig, SearchSpace
from trainmaster.config.search_space import spaces_in
from trainmaster.config.to_plain import is_same, to_plain
from trainmaster.errors import SettingError, shown
from trainmaster.store.run_table import MISSING, RunTable
from trainmaster.store.summary import flat


def is_range_by_key(config: Any) -> dict[str, bool]:
    """For each searched key, return whether its space is a range of numbers. Raise `SettingError` if the config has no search space."""
    return {key: space.value_range is not None for key, space in _spaces(config).items()}


def trial_rows(table: RunTable, config: ParallelConfig) -> list[int]:
    """Return the rows whose searched values are in the search space, and whose other values match the config."""
    spaces = _spaces(config)
    searched = tuple(config.search_space)
    fixed = {
        name: value
        for name, value in flat(to_plain(config)).items()
        if not any(name == key or name.startswith(f"{key}.") for key in searched) and name in table.config
    }
    missing = [MISSING] * len(table)
    return [
        row
        for row in range(len(table))
        if all(is_same(table.config[name][row], value) for name, value in fixed.items())
        and all((value := table.config.get(key, missing)[row]) is not MISSING and space.contains(value) for key, space in spaces.items())
    ]


def _spaces(config: Any) -> dict[str, SearchSpace]:
    if not isinstance(config, ParallelConfig) or not config.search_space:
        kind = "the config of a single run" if isinstance(config, ConfigBase) else f"not {shown(config)}"
        fact = f"the results of a search need a ParallelConfig with a search space; this is {kind}"
        raise SettingError(fact, hint='Results("runs") reads a whole store')
    spaces: Mapping[str, SearchSpace] = config.search_space
    found: dict[str, SearchSpace] = {}
    for key, space in spaces.items():
        if space.sub_configuration is not None:
            found |= dict(spaces_in(space.sub_configuration, f"{key}."))
        elif space.subspaces is None:
            found[key] = space
    return found
