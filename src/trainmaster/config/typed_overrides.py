"""Applies overrides to a typed config, and checks them against its fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from trainmaster.config.any_config import AnyConfig
from trainmaster.config.checks import collecting
from trainmaster.config.origins import inherit_origins, set_origin
from trainmaster.config.overrides import Misfit, Override, changed, parse, suggest_full_keys
from trainmaster.config.paths import dotted
from trainmaster.config.values import configs_in
from trainmaster.errors import ConfigError, Problem

C = TypeVar("C", bound=AnyConfig)


def override_typed(config: C, texts: Iterable[str]) -> C:
    """Return a copy of `config` with the overrides applied. All problems are reported at once."""
    tree = config.to_dict()
    overrides, problems = parse(texts)
    for override in overrides:
        try:
            _apply(override, config, tree)
        except Misfit as misfit:
            problems.append(misfit.problem)
    result = type(config).__new__(type(config))
    wrong_values: list[Problem] = []
    with collecting(wrong_values):
        result._fill(tree)
    problems += [each._replace(where=_text_for(each.key, overrides)) for each in wrong_values]
    if problems:
        raise ConfigError.of(type(config).__name__, suggest_full_keys(problems, config.to_dict()))
    inherit_origins(result, config, {dotted(each.path) for each in overrides})
    for override in overrides:
        owner, name, _ = result._owner(dotted(override.path))
        owner._origins[name] = override.origin
        for _, nested in configs_in(vars(owner)[name], name):
            set_origin(nested, override.origin)
    return result


def _apply(override: Override, config: AnyConfig, tree: dict[str, Any]) -> None:
    """Put the value of an override into `tree`, the plain form of `config`."""
    schema = config._schema()
    node: Any = config
    for number, part in enumerate(override.path):
        field = schema.fields.get(part)
        if field is None:
            raise Misfit(override, schema.unknown(part).text, is_unknown=True)
        node = vars(node)[part] if isinstance(node, AnyConfig) else None
        rest = override.path[number + 1 :]
        if not rest and override.is_new:
            raise Misfit(override, f"exists already; write {override.text.removeprefix('+')} to change it")
        if isinstance(node, AnyConfig) and rest:
            schema = node._schema()
        elif node is None and rest and field.group is not None:  # the overrides create a config in an optional field
            schema = field.group._schema()
            tree[part] = tree.get(part) or {}
        elif override.is_new and field.configs and isinstance(node, dict) and dotted(rest) not in node:
            tree[part] = {**tree[part], dotted(rest): override.value}  # the keys of a group of configs may have dots
            return
        else:
            value = tree.get(part)
            if value is None and rest and not override.is_new and not field.configs:
                raise Misfit(override, f"`{dotted(override.path[: number + 1])}` is not set; write +{override.text}")
            tree[part] = changed({} if value is None and override.is_new else value, override, number + 1)
            return
        tree = tree[part]


def _text_for(key: str, overrides: Iterable[Override]) -> str:
    return next((each.text for each in overrides if f"{key}.".startswith(f"{dotted(each.path)}.")), "")
