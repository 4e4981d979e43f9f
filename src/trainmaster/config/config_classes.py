"""Finds config classes by name, and builds configs of the right class from mappings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster.config.any_config import CLASS, AnyConfig
from trainmaster.config.scalars import refuse
from trainmaster.config.value_table import short_repr
from trainmaster.errors import ConfigError, Problem, did_you_mean


def build_group(declared: type[AnyConfig], value: Any) -> AnyConfig:
    """Return a config for a field annotated with the class `declared`: a copy of `value`, or a new config if `value` is a mapping."""
    if isinstance(value, AnyConfig) and declared._accepts(type(value)):
        return value.clone()
    if isinstance(value, AnyConfig):
        is_redefined = type(value).__name__ == declared.__name__
        refuse(f"{declared.__name__}{' in its current definition; this object has an older one' if is_redefined else ''}")
    if not isinstance(value, Mapping):
        refuse(f"{declared.__name__}: a group of keys with values")
    kind = class_of_group(declared, value)
    if getattr(kind, "__abstractmethods__", None):
        refuse(f"a group that names its class: {kind.__name__} is abstract")
    config = kind.__new__(kind)
    config._fill({key: each for key, each in value.items() if key != CLASS} if CLASS in value else value)
    return config


def class_of_group(declared: type[AnyConfig], group: Mapping[str, Any]) -> type[AnyConfig]:
    """Return the class whose name is the value of the key `class` in a group. Without that key, return `declared`.

    If the class was defined more than once, for example in a notebook, the newest definition is returned.
    """
    if CLASS not in group:
        return declared
    name = group[CLASS]
    kinds = {(kind.__name__, kind.__module__, kind.__qualname__): kind for kind in _decorated(AnyConfig) if declared._accepts(kind)}
    matches = [kind for kind in kinds.values() if kind.__name__ == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        text = f"several config classes have this name: {', '.join(f'{kind.__module__}.{kind.__qualname__}' for kind in matches)}"
    else:
        names = sorted({kind.__name__ for kind in kinds.values()})
        text = f"no config class that fits here has this name; {did_you_mean(str(name), names) or 'known: ' + ', '.join(names)}"
    raise ConfigError.of(declared.__name__, [Problem(CLASS, text, short_repr(name))])


def find_class(declared: type[AnyConfig], group: Mapping[str, Any]) -> type[AnyConfig] | None:
    """Return the same class as `class_of_group`, or None if the name of the class is unknown or ambiguous."""
    try:
        return class_of_group(declared, group)
    except ConfigError:
        return None


def _decorated(base: type[AnyConfig]) -> Iterator[type[AnyConfig]]:
    for kind in base.__subclasses__():
        if "__config_schema__" in kind.__dict__:
            yield kind
        yield from _decorated(kind)
