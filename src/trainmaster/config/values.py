"""Converts the values of a typed config to plain values, copies them, and freezes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from trainmaster.config.any_config import CLASS, AnyConfig
from trainmaster.config.fields import ABSENT, REPLICATE, SECRET, Field
from trainmaster.config.frozen import FrozenDict, FrozenList
from trainmaster.config.identity import REPLICATE_ENDING
from trainmaster.config.paths import dotted, get_child, map_leaves
from trainmaster.config.secret_patterns import mask_texts
from trainmaster.config.to_plain import is_same, scalar_to_plain, value_to_plain
from trainmaster.config.value_table import short_repr
from trainmaster.errors import ConfigError, Problem, did_you_mean


class Form(NamedTuple):
    """Determines which fields of a config a plain tree contains, and whether the tree uses their original names."""

    stateful_only: bool = False
    first_names: bool = False
    replicates: bool = True
    secrets: bool = True


WHOLE = Form()
MASKED = Form(secrets=False)
STATEFUL = Form(stateful_only=True)
IDENTITY = Form(stateful_only=True, first_names=True)
GROUP = Form(stateful_only=True, first_names=True, replicates=False)


def tree_of(config: AnyConfig, form: Form) -> dict[str, Any]:
    """Convert a config to nested dicts of plain values."""
    schema, values = config._schema(), config._identity_values() if form.first_names else vars(config)
    result: dict[str, Any] = {}
    for field in schema.stateful if form.stateful_only else schema.fields.values():
        if not form.replicates and (field.state is REPLICATE or field.name.endswith(REPLICATE_ENDING)):
            continue
        value = values[field.name]
        if (form.first_names or not form.secrets) and type(value) in (list, dict, tuple):  # the tree is used for a key or a record
            value = schema.validate_one(field.name, value)  # a value may have been changed in place
        value = plain_form(value, field.configs, form)
        if field.state is SECRET and not form.secrets:
            value = mask_texts(value)
        if not form.first_names:
            result[field.name] = value
        elif not field.is_added or not _is_default(value, plain_form(schema.added_defaults[field.name], field.configs, form)):
            result[field.first_name] = value
    return result


def _is_default(value: Any, default: Any) -> bool:
    return is_same(value_to_plain(value, (), []), value_to_plain(default, (), []))  # this also nests dotted keys


def plain_form(value: Any, declared: tuple[type, ...], form: Form) -> Any:
    """Convert the value of a field to plain values. A config whose class is not the declared one gets the key `class`."""
    kind = type(value)
    if value is None or kind is str or kind is int or kind is float or kind is bool:
        return value
    if isinstance(value, AnyConfig):
        tree = tree_of(value, form)
        return tree if declared == (kind,) else {CLASS: kind.__name__, **tree}
    if isinstance(value, dict | list | tuple):
        return map_leaves(value, lambda leaf: plain_form(leaf, declared, form))
    try:
        return scalar_to_plain(value)
    except TypeError:  # user code changed a list or dict in place
        raise ConfigError.of("the config", [Problem("", "cannot be stored in a config", short_repr(value))]) from None


def cloned(value: Any) -> Any:
    """Return a copy that shares nothing with `value` and is not frozen."""
    if isinstance(value, (dict, list, tuple)):
        return map_leaves(value, cloned)
    return value.clone() if isinstance(value, AnyConfig) else value


def frozen(value: Any) -> Any:
    """Return a copy whose lists, dicts and configs cannot be changed."""
    if isinstance(value, AnyConfig):
        return value.freeze()
    if isinstance(value, list):
        return FrozenList(frozen(each) for each in value)
    if isinstance(value, tuple):
        return tuple(frozen(each) for each in value)
    return FrozenDict({key: frozen(each) for key, each in value.items()}) if isinstance(value, dict) else value


_NESTED = (AnyConfig, dict, list, tuple)


def configs_in(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    """Yield the configs in the value of a field, with their dotted keys."""
    if isinstance(value, AnyConfig):
        yield at, value
    elif isinstance(value, dict | list | tuple):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(each, _NESTED):  # most values are numbers and strings
                yield from configs_in(each, f"{at}.{key}")


def fields_in(config: AnyConfig, at: str = "") -> Iterator[tuple[str, AnyConfig, Field]]:
    """Yield every field of a config and of the configs inside it, with its dotted key and the config that it belongs to."""
    for field in config._schema().fields.values():
        yield f"{at}{field.name}", config, field
        for path, nested in configs_in(vars(config)[field.name], f"{at}{field.name}"):
            yield from fields_in(nested, f"{path}.")


def value_at(path: tuple[str, ...], value: Any, key: str) -> Any:
    """Return the value at `path` inside the value of a field. `key` is the whole dotted key, for the error message."""
    while path:
        if isinstance(value, AnyConfig) or (isinstance(value, dict) and dotted(path) in value):  # a key of a dict may have dots
            return value[dotted(path)]
        child = get_child(value, path[0], ABSENT)
        if child is ABSENT:
            meant = did_you_mean(path[0], value) if isinstance(value, dict) else ""
            raise ConfigError.of(
                "the config", [Problem(key, f"`{path[0]}` does not exist{'; ' + meant if meant else ''}", is_unknown=True)]
            )
        value, path = child, path[1:]
    return value
