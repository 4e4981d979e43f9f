"""Finds the random seed of a run in its config."""

from __future__ import annotations

from typing import Any

from trainmaster.config.config_base import ConfigBase
from trainmaster.config.fields import REPLICATE
from trainmaster.config.identity import identity_tree, key_of, key_of_tree, without_seeds
from trainmaster.config.to_plain import to_plain

DEFAULT_SEED = 0
_NAMES = ("seed", "random_seed")


def seed_of(config: Any) -> int:
    """Return the seed of a run.

    This is the first value that is not None among `seed`, the field marked `Replicate`, and `random_seed`. All runs
    without a seed use seed 0, so a sweep compares settings rather than initial weights.

    >>> seed_of({"lr": 0.1, "random_seed": 3}), seed_of({"lr": 0.1}), seed_of({"seed": None})
    (3, 0, 0)
    """
    return _seed_field(config)[1]


def replicate_key(config: Any, length: int = 8) -> str:
    """Return a key as `key_of` does, except that configs that specify the same seed in different ways have the same key.

    >>> replicate_key({"lr": 0.1}) == replicate_key({"lr": 0.1, "random_seed": 0})
    True
    """
    return key_of_tree(_with_seed(identity_tree(config), *_seed_field(config)), length)


def replicate_facts(tree: dict[str, Any], full: str, length: int) -> tuple[str, str, int]:
    """Return the results of `group_of`, `replicate_key` and `seed_of` for a stored free-form config.

    `tree` is the identity of the config, and `full` is its full hash. Calling the three functions would be slower, because they
    spend most of their time on converting the config to plain values.
    """
    name, seed = _seed_in(tree, _NAMES)
    is_moved = name != _NAMES[0] or tree[name] != seed or tree.get(_NAMES[1], seed) is None
    replicate = key_of_tree(_with_seed(tree, name, seed), length) if is_moved else full[:length]
    return key_of_tree(without_seeds(tree), length), replicate, seed


def _with_seed(tree: dict[str, Any], name: str | None, seed: int) -> dict[str, Any]:
    """Return a copy of a config in which the seed is moved from the field `name` to the field `seed`."""
    rest = {key: value for key, value in tree.items() if key != name and not (key in _NAMES and value is None)}
    return {**rest, _NAMES[0]: seed}


def seed_key(config: Any) -> str | None:
    """Return the key under which a config contains its seed, or None for a typed config that has no field for a seed.

    >>> seed_key({"lr": 0.1}), seed_key({"random_seed": 3})
    ('seed', 'random_seed')
    """
    is_typed = isinstance(config, ConfigBase)
    values = config.to_dict() if is_typed else to_plain(config)
    return next((name for name in _candidates(config) if name in values), None if is_typed else _NAMES[0])


def _candidates(config: Any) -> tuple[str, ...]:
    """Return the keys that may contain the seed, in order of precedence."""
    is_typed = isinstance(config, ConfigBase)
    marked = [name for name, field in config._schema().fields.items() if field.state is REPLICATE] if is_typed else []
    return (_NAMES[0], *marked, _NAMES[1])


def _seed_field(config: Any) -> tuple[str | None, int]:
    """Return the name of the field that contains the seed, and the seed. Without such a field, return None and 0.

    A value that is not an integer from 0 to 2**63 - 1 is hashed.
    """
    return _seed_in(config.to_dict() if isinstance(config, ConfigBase) else to_plain(config), _candidates(config))


def _seed_in(values: dict[str, Any], names: tuple[str, ...]) -> tuple[str | None, int]:
    for name in names:
        value = values.get(name)
        if value is not None:
            is_plain = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
            return name, value if is_plain else int(key_of({"seed": value}), 16)
    return None, DEFAULT_SEED
