"""Checks typed configs and the configs inside them. All problems are reported in one error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trainmaster.config.any_config import AnyConfig
from trainmaster.config.fields import DERIVED
from trainmaster.config.value_table import short_repr
from trainmaster.config.values import fields_in
from trainmaster.errors import ConfigError, Problem


@contextmanager
def collecting(problems: list[Problem], at: str = "") -> Iterator[None]:
    """Catch a `ConfigError` in the block, and add its problems to `problems`. Prefix their keys with the path `at`."""
    try:
        yield
    except ConfigError as error:
        problems += [each._replace(key=".".join(filter(None, [at, each.key]))) for each in error.problems]


def check_rules(config: AnyConfig) -> None:
    """If the config's `problems()` method yields any problems, raise one error that lists them all."""
    problems = [Problem(key, text, short_repr(config[key]) if key in config else "") for key, text in config.problems() or ()]
    if problems:
        raise ConfigError.of(type(config).__name__, problems)


def check_values(config: AnyConfig, check_nested: Callable[[Any], None] | None = None) -> None:
    """Check all values and nested configs again, because a value may have been changed in place since it was assigned."""
    problems: list[Problem] = []
    with collecting(problems):
        config._schema().validate(config._values())
    with collecting(problems):
        check_rules(config)
    for path, nested in config._nested():
        with collecting(problems, path):
            (check_nested or check_values)(nested)
    if problems:
        raise ConfigError.of(type(config).__name__, problems)


def check_derived(config: AnyConfig) -> None:
    """Raise an error if a required `Derived` field is still None."""
    problems = [
        Problem(key, "is a derived field that has not been set")
        for key, owner, field in fields_in(config)
        if field.state is DERIVED and not field.is_optional and vars(owner)[field.name] is None
    ]
    if problems:
        raise ConfigError.of(type(config).__name__, problems)
