"""What the values of a typed config's fields can be turned into: plain values, a copy, a frozen form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from trainmaster.config.any_config import CLASS, AnyConfig
from trainmaster.config.describe import shorten
from trainmaster.config.fields import REPLICATE
from trainmaster.config.frozen import FrozenDict, FrozenList
from trainmaster.config.identity import REPLICATE_ENDING
from trainmaster.config.paths import dotted
from trainmaster.config.plain import plain_scalar, plain_value, same
from trainmaster.errors import ConfigError, Problem, did_you_mean


class Form(NamedTuple):
    """Which fields a tree has, and by which names."""

    stateful_only: bool = False
    first_names: bool = False
    replicates: bool = True


WHOLE = Form()
STATEFUL = Form(stateful_only=True)
IDENTITY = Form(stateful_only=True, first_names=True)
GROUP = Form(stateful_only=True, first_names=True, replicates=False)


def tree_of(config: AnyConfig, form: Form) -> dict[str, Any]:
    """A config as nested dicts of plain values."""
    schema, values = config._schema(), config._meaning() if form.first_names else vars(config)
    result: dict[str, Any] = {}
    for field in schema.stateful if form.stateful_only else schema.fields.values():
        if not form.replicates and (field.state is REPLICATE or field.name.endswith(REPLICATE_ENDING)):
            continue
        value = values[field.name]
        if form.first_names and type(value) in (list, dict, tuple):
            value = schema.validate_one(field.name, value)  # it may have been changed in place, behind our back
        value = plain_form(value, field.configs, form)
        if not form.first_names:
            result[field.name] = value
        elif not field.is_added or not _is_default(value, plain_form(schema.added_defaults[field.name], field.configs, form)):
            result[field.first_name] = value
    return result


def _is_default(value: Any, default: Any) -> bool:
    return same(plain_value(value, (), []), plain_value(default, (), []))  # with dotted keys nested


def plain_form(value: Any, declared: tuple[type, ...], form: Form) -> Any:
    """A field's value as plain values; a config of another class than the one declared says which."""
    kind = type(value)
    if value is None or kind is str or kind is int or kind is float or kind is bool:
        return value
    if isinstance(value, AnyConfig):
        tree = tree_of(value, form)
        return tree if declared == (kind,) else {CLASS: kind.__name__, **tree}
    if isinstance(value, dict):
        return {key: plain_form(each, declared, form) for key, each in value.items()}
    if isinstance(value, list | tuple):
        elements = [plain_form(each, declared, form) for each in value]
        return tuple(elements) if isinstance(value, tuple) else elements
    try:
        return plain_scalar(value)
    except TypeError:  # put into a list or dict behind our back
        raise ConfigError.of("the config", [Problem("", "cannot be stored in a config", shorten(value))]) from None


def cloned(value: Any) -> Any:
    """A copy that shares nothing, and is not frozen."""
    if isinstance(value, AnyConfig):
        return value.clone()
    if isinstance(value, list):
        return [cloned(each) for each in value]
    if isinstance(value, tuple):
        return tuple(cloned(each) for each in value)
    return {key: cloned(each) for key, each in value.items()} if isinstance(value, dict) else value


def frozen(value: Any) -> Any:
    """The same, with lists, dicts and configs that refuse to be changed."""
    if isinstance(value, AnyConfig):
        return value.freeze()
    if isinstance(value, list):
        return FrozenList(frozen(each) for each in value)
    if isinstance(value, tuple):
        return tuple(frozen(each) for each in value)
    return FrozenDict({key: frozen(each) for key, each in value.items()}) if isinstance(value, dict) else value


def configs_in(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    """The configs that a field holds, with their dotted keys."""
    if isinstance(value, AnyConfig):
        yield at, value
    elif isinstance(value, dict | list | tuple):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from configs_in(each, f"{at}.{key}")


def inside(value: Any, rest: tuple[str, ...], key: str) -> Any:
    """What `rest` of a dotted key leads to, from the value of a field on."""
    while rest:
        whole, part = dotted(rest), rest[0]
        if isinstance(value, AnyConfig) or (isinstance(value, dict) and whole in value):  # or a key with dots
            return value[whole]
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list | tuple) and part.isdecimal() and len(part) < 10 and int(part) < len(value):
            value = value[int(part)]
        else:
            meant = did_you_mean(part, value) if isinstance(value, dict) else ""
            raise ConfigError.of("the config", [Problem(key, f"`{part}` is not there{'; ' + meant if meant else ''}", is_unknown=True)])
        rest = rest[1:]
    return value
