"""The identity of a config: its canonical form, and the key, which is a hash of that form.

Two configs with the same meaning have the same key, in every process and on every machine:

- The order of the keys in a dict does not matter, but the order of the elements in a list does.
- `{"a.b": 1}` is the same as `{"a": {"b": 1}}`.
- Tuples and lists are the same. NumPy scalars, enum members and paths are the same as their plain values.
- `1`, `1.0`, `True` and `"1"` differ. A missing key, a key with the value None, and an empty group differ too.
- All NaNs are the same, -0.0 is the same as 0.0, and integers of any size are compared exactly.
- Text is compared by code points without normalization, so the composed and decomposed forms of an accented letter
  differ.
- Every field is included unless a marker such as `Stateless[...]` excludes it. Even `epochs` is included, because a
  schedule may depend on it. To continue a run for more epochs, pass `num_epochs` to `process` instead of changing `epochs`.
- A `start_from` of None is the same as a missing one, so you can add this field to a config class without changing the
  keys of its runs.
- Declared secrets are not included, so a new password does not lead to a new run. trainmaster never guesses from the
  name of a key whether its value is a secret.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from trainmaster.config.paths import get_child, map_leaves
from trainmaster.config.secret_patterns import secret_keys
from trainmaster.config.to_plain import to_plain
from trainmaster.errors import ConfigError, Problem

EPOCH_KEYS = ("epochs", "num_epochs")
"""Top-level config keys for the number of epochs of a run. The argument `num_epochs` of `process` takes precedence."""
START_FROM = "start_from"
"""The top-level config key for a checkpoint of another run. A new run starts with the weights of this checkpoint."""
REPLICATE_ENDING = "seed"


def canonical(config: Any) -> str:
    """Return the canonical form: strict JSON with sorted keys and no spaces.

    NaN and the infinities are written in the form `{".float":"nan"}`. A config cannot contain the key
    `.float`, because no part of a dotted key may be empty.

    >>> canonical({"b": (1, 2.0), "a": float("nan")})
    '{"a":{".float":"nan"},"b":[1,2.0]}'
    """
    return _text(identity_tree(config))


def key_of(config: Any, length: int = 8) -> str:
    """Return the key of a config: the first `length` hex digits of the SHA-256 of its canonical form.

    >>> key_of({"arch": "ResNet18", "lr": 1e-3}) == key_of({"lr": 0.001, "arch": "ResNet18"})
    True
    """
    return key_of_tree(identity_tree(config), length)


def group_of(config: Any, length: int = 8) -> str:
    """Return the key that all replicates of a config share: like `key_of`, but without the replicate fields.

    The replicate fields are those marked `Replicate[...]` and all keys that end in `seed`.

    >>> group_of({"lr": 0.1, "seed": 1}) == group_of({"lr": 0.1, "seed": 2})
    True
    """
    return key_of_tree(without_seeds(identity_tree(config, replicates=False)), length)


def key_of_tree(tree: dict[str, Any], length: int) -> str:
    """Return the key of a config that is already a tree of plain values, as `identity_tree` returns it. This is faster than `key_of`."""
    if not isinstance(length, int) or not 8 <= length <= 64:
        raise ConfigError.of("a key's length", [Problem("length", "a key has 8 to 64 digits", repr(length))])
    return hash_of(_text(tree))[:length]


def hash_of(identity: str) -> str:
    """Return the SHA-256 of a canonical form, in hex digits. Invalid Unicode, which a damaged file may contain, is hashed as well."""
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()


def identity_tree(config: Any, replicates: bool = True) -> dict[str, Any]:
    """Return the values that are part of a config's identity, without secrets and without groups that contain only secrets."""
    tree = to_plain(config, replicates)
    if tree.get(START_FROM, "") is None:
        del tree[START_FROM]
    for key in secret_keys(config):
        owners = [tree]
        *groups, last = key.split(".")
        for part in groups:
            owners.append(get_child(owners[-1], part))
        for owner, name in zip(reversed(owners), reversed([*groups, last]), strict=True):
            if not isinstance(owner, dict) or name not in owner:
                break
            del owner[name]
            if owner:
                break
    return tree


def without_seeds(tree: Any) -> Any:
    """Return a copy of a plain tree without the keys that end in `seed`."""
    if type(tree) is dict:
        return {
            key: without_seeds(value) if type(value) in (dict, list) else value
            for key, value in tree.items()
            if not key.endswith(REPLICATE_ENDING)
        }
    return [without_seeds(each) if type(each) in (dict, list) else each for each in tree]


def _text(tree: Any) -> str:
    try:
        text = _encoder.encode(tree)
    except ValueError:  # NaN or an infinity
        tree = to_strict_json(tree)
        text = _encoder.encode(tree)
    return _encoder.encode(map_leaves(tree, lambda leaf: leaf + 0.0 if type(leaf) is float else leaf)) if "-0.0" in text else text


_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def to_strict_json(tree: Any) -> Any:
    """Replace NaN and infinity, which JSON does not support, with dicts such as `{".float": "nan"}`."""
    return map_leaves(tree, lambda leaf: {".float": repr(leaf)} if isinstance(leaf, float) and not math.isfinite(leaf) else leaf)
