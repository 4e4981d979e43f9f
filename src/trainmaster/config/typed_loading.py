"""Loads typed configs from files, strictly or leniently."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from trainmaster.config.any_config import CLASS, AnyConfig
from trainmaster.config.checks import check_rules
from trainmaster.config.config_classes import find_class
from trainmaster.config.config_file import read_file
from trainmaster.config.origins import locate
from trainmaster.config.parsed_file import ParsedFile
from trainmaster.config.paths import dotted
from trainmaster.config.value_table import IN_CODE
from trainmaster.errors import ConfigError

_logger = logging.getLogger("trainmaster.config")


def load_typed(kind: type[AnyConfig], path: str | os.PathLike[str], is_lenient: bool) -> AnyConfig:
    """Load a config of class `kind` from a file. A lenient load warns where a strict one raises an error."""
    kind._schema()  # raises for a class without @configclass before the file is read
    parsed = read_file(path, keep_numerals=True)
    tree = parsed.group()
    config = kind.__new__(kind)
    try:
        config._fill(tree)
    except ConfigError as error:
        if not is_lenient:
            problems = [each._replace(where=parsed.where(_key_in_file(kind, parsed, each.key))) for each in error.problems]
            raise ConfigError.of(f"{kind.__name__} in `{parsed.name}`", problems) from None
        config = _build_leniently(kind, tree, parsed.name)
    locate(config, parsed)
    return config


def _key_in_file(kind: Any, parsed: ParsedFile, key: str) -> str:
    """Return a dotted key as it is written in the file, which may use former names of fields."""
    names: list[str] = []
    for part in key.split("."):
        field = kind._schema().fields.get(part) if kind is not None else None
        names.append(field.name_in(parsed.positions, "".join(f"{each}." for each in names)) if field else part)
        kind = field.group if field else None
    return dotted(names)


def _build_leniently(kind: type[AnyConfig], tree: Mapping[str, Any], source: str, at: str = "") -> AnyConfig:
    """Build a config from the valid values. Missing and invalid values become None, and unknown keys are ignored, each with a warning."""
    schema = kind._schema()
    given, _ = schema.rename_and_nest(tree)
    for name in [each for each in given if each not in schema.fields and each != CLASS]:
        _logger.warning("%s: `%s%s` is unknown and ignored", source, at, name)
    values: dict[str, Any] = dict.fromkeys(schema.fields)
    for name, field in schema.fields.items():
        if name not in given and not field.has_default:
            _logger.warning("%s: `%s%s` is missing and becomes None", source, at, name)
            continue
        value = given.get(name, field.default)
        try:
            values[name] = schema.validate_one(name, value)
        except ConfigError as error:
            nested = find_class(field.group, value) if field.group is not None and isinstance(value, Mapping) else None
            if nested is not None:
                values[name] = _build_leniently(nested, value, source, f"{at}{name}.")
            else:
                _logger.warning("%s: `%s%s` becomes None: %s", source, at, name, error.problems[0].text)
    config = kind.__new__(kind)
    config._set_all(values, {name: IN_CODE for name in given if name in schema.fields})
    try:
        check_rules(config)
    except Exception as error:  # the `problems()` of the class may not expect None
        _logger.warning("%s: %s%s", source, at and f"`{at[:-1]}`: ", "; ".join(map(str, getattr(error, "problems", ()))) or error)
    return config
