"""Checks the choices of a sweep and the configs of a batch before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.config import Config, Grid
from trainmaster.config.declared_secrets import refuse_undeclared
from trainmaster.config.identity import START_FROM, identity_tree
from trainmaster.config.overrides import explain_lists
from trainmaster.errors import ConfigError, Problem, SettingError

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager


_NUMBER = re.compile(r"[-+]?\d[\d.]*(e[-+]?\d+)?")
_MAX_CHECKED = 10_000
"""If a sweep has at most this many combinations, all of them are checked before the first run."""


def refuse_idle_choices(manager: Manager, choices: Grid) -> None:
    """Raise an error if all values of a swept key lead to the same run, because the hash of a config does not depend on that key."""
    try:
        config = manager.complete_config(choices[0])
    except (ConfigError, SettingError):  # the batch reports it as a failed config
        return
    values, identity = config if isinstance(config, Config) else Config(config.to_dict()), Config(identity_tree(config))
    idle = [key for key in choices.swept if key in values and key not in identity and key != START_FROM]
    if idle:
        problems = [Problem(key, "all its values give the same run: it is not part of the config's identity") for key in idle]
        raise ConfigError.of("the sweep", problems, hint="`Stateless` and secret values cannot be swept")


def refuse_invalid_choices(manager: Manager, choices: Grid) -> None:
    """Raise one error that lists all invalid values of a sweep.

    If there are more than `_MAX_CHECKED` combinations, only a few combinations are checked, which together contain every
    value. If `get_config` raises an error other than `ConfigError`, the batch reports it later, because it may affect
    only one combination.
    """
    configs = map(choices.__getitem__, range(choices.count)) if choices.count <= _MAX_CHECKED else choices.covering()
    problems: dict[tuple[str, str, str], dict[Problem, None]] = {}
    rows: dict[str, str] = {}
    for each in configs:
        try:
            manager.complete_config(each)
        except ConfigError as error:
            for problem in error.problems or [Problem("", error.fact)]:
                problems.setdefault(_kind_of(problem), {})[problem] = None
            rows = {**error.rows, **rows}
        except Exception:  # the batch reports it as a failed config
            continue
    if problems:
        rows.pop("wrong", None)
        raise ConfigError.of("the sweep", [explain_lists(_first_of(each)) for each in problems.values()], **rows)


def _kind_of(problem: Problem) -> tuple[str, str, str]:
    """Return a value that is the same for all similar problems. Similar problems are reported as one.

    Problems are similar if they have the same key and value, and their texts differ only in numbers. For an unknown
    key, the value is ignored.
    """
    return problem.key, "" if problem.is_unknown else problem.value, _NUMBER.sub("0", problem.text)


def _first_of(similar: Collection[Problem]) -> Problem:
    """Return the first of several similar problems, and say in its text how many more there are."""
    first, num_others = next(iter(similar)), len(similar) - 1
    if first.is_unknown:
        return first._replace(value="") if num_others else first
    return first._replace(text=f"{first.text} (and {num_others} more with other numbers)") if num_others else first


def sample_configs(manager: Manager, configs: Iterable[Any]) -> Iterator[Any]:
    """Yield configs that together contain all values of a batch, with all defaults filled in.

    Raises an error if a config has an undeclared secret.

    If `configs` has a method `covering()`, this method selects the configs. Otherwise, all configs of a sequence are
    used. If `configs` is a generator, it is not consumed, and nothing is yielded.
    """
    covering = getattr(configs, "covering", None)
    known = covering() if callable(covering) else configs if isinstance(configs, Sequence) else ()
    for each in known:
        try:
            config = manager.complete_config(each)
        except Exception:  # the batch reports it as a failed config
            continue
        refuse_undeclared(config, manager.public)
        yield config
