"""Checks the keys and values that a sweep, search, ablation or hypothesis varies, before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.config import Config, ConfigBase, Grid
from trainmaster.config.declared_secrets import refuse_undeclared
from trainmaster.config.identity import START_FROM, identity_tree
from trainmaster.config.overrides import explain_lists
from trainmaster.errors import ConfigError, Problem, SettingError, did_you_mean

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager


_MAX_LISTED = 20
_NUMBER = re.compile(r"[-+]?\d[\d.]*(e[-+]?\d+)?")
_MAX_CHECKED = 10_000
"""If a sweep has at most this many combinations, all of them are checked before the first run."""


def values_to_replace(manager: Manager, values: Any) -> Config:
    """Return `values` with all defaults filled in. Arguments such as `lr=0.1` will replace some of these values.

    The type of a replaced value determines the type of the new value. If the manager has a typed config, the result is
    empty, because a typed config converts new values itself.
    """
    config = manager.get_config(values) if isinstance(manager.defaults, Config) else None
    return config if isinstance(config, Config) else Config()


def problem_of_key(manager: Manager, config: Any, key: str) -> Problem | None:
    """Return why a key cannot be varied (it is unknown, or all its values lead to the same run), or None if it can."""
    values = config if isinstance(config, Config) else Config(config.to_dict())
    if key == START_FROM and key in values:  # None is not part of the identity, but other values are
        return None
    if key in values:
        is_idle = key not in Config(identity_tree(config))
        return Problem(key, "all its values give the same run: it is not part of the config's identity") if is_idle else None
    takes_any = isinstance(config, Config) and not (isinstance(manager.defaults, Config) and manager.defaults)
    if takes_any or key in manager.new_keys or _is_in_free_group(config, key):
        return None
    known = [*values.flatten()]
    listed = ", ".join([*known[:_MAX_LISTED], *(["..."] if len(known) > _MAX_LISTED else [])])
    return Problem(key, f"the config has no such key; {did_you_mean(key, known) or f'it has {listed}'}", is_unknown=True)


def _is_in_free_group(config: Any, key: str) -> bool:
    """Return whether a key is a new entry in a dict field, such as `optimizer_config.arguments.lr`."""
    group = key.rpartition(".")[0]
    return isinstance(config, ConfigBase) and bool(group) and group in config and isinstance(config[group], dict)


def refuse_idle_choices(manager: Manager, choices: Grid) -> None:
    """Raise an error if all values of a swept key lead to the same run, because the hash of a config does not depend on that key."""
    try:
        config = manager.complete_config(choices[0])
    except (ConfigError, SettingError):  # the batch reports it as a failed config
        return
    found = [problem_of_key(manager, config, key) for key in choices.swept]
    idle = [problem for problem in found if problem is not None and not problem.is_unknown]
    if idle:
        raise ConfigError.of("the sweep", idle, hint="`Stateless` and secret values cannot be swept")


def refuse_invalid_choices(manager: Manager, choices: Grid) -> None:
    """Raise one error that lists all invalid values of a sweep.

    If there are more than `_MAX_CHECKED` combinations, only a few combinations that together contain every value are
    checked. If `get_config` raises an error other than `ConfigError`, the batch reports it later, because it may affect
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
