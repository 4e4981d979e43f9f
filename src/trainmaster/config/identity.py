"""The identity of a config: its canonical form, and the key that is a hash of it.

Two configs with the same meaning have the same key, in any process and on any machine:

- The order of keys does not matter, the order of lists does; `{"a.b": 1}` is `{"a": {"b": 1}}`.
- Tuples and lists are alike. NumPy's scalars, enums and paths are the plain values they stand for.
- `1`, `1.0`, `True` and `"1"` differ; so do a missing key, a key that is None and an empty group.
- Every NaN is the same NaN; the infinities are themselves; -0.0 is 0.0, as it is equal to it; integers are exact.
- Text is compared by its code points: nothing is normalised, so two spellings of an accented letter differ.
- How long to train is no part of it: `epochs` and `num_epochs` at the top are left out.
- The value of a secret is no part of it: `***` stands in its place, so a new password makes no new run (`secret_fields.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from trainmaster.config.plain import plain
from trainmaster.config.secret_fields import masked_config, may_hide_secrets
from trainmaster.errors import ConfigError, Problem

HOW_LONG = ("epochs", "num_epochs")
REPLICATE_ENDING = "seed"


def canonical(config: Any) -> str:
    """The canonical form: strict JSON, keys sorted, no spaces.

    A float that JSON does not have is written as `{".float":"nan"}`, which no config can contain: its key has an empty part.

    >>> canonical({"b": (1, 2.0), "a": float("nan")})
    '{"a":{".float":"nan"},"b":[1,2.0]}'
    """
    tree = plain(config)
    for name in HOW_LONG:
        tree.pop(name, None)
    text = _text(tree)
    if may_hide_secrets(text):
        shown = masked_config(tree)
        return text if shown is tree else _text(shown)
    return text


def key_of(config: Any, length: int = 8) -> str:
    """The key of a typed config, a `Config` or a dict: the first `length` hex digits of the SHA-256 of its canonical form.

    >>> key_of({"arch": "ResNet18", "lr": 1e-3}) == key_of({"lr": 0.001, "arch": "ResNet18"})
    True
    """
    return _digits(canonical(config), length)


def group_of(config: Any, length: int = 8) -> str:
    """The key that all replicates of a config share: like `key_of`, without the replicate fields.

    These are what a typed config marks `Replicate[...]`, and every key that ends in `seed`.

    >>> group_of({"lr": 0.1, "seed": 1}) == group_of({"lr": 0.1, "seed": 2})
    True
    """
    tree = _without_seeds(plain(config, replicates=False))
    return _digits(canonical(tree), length)


def _digits(text: str, length: int) -> str:
    if not isinstance(length, int) or not 8 <= length <= 64:
        raise ConfigError.of("a key's length", [Problem("length", "a key has 8 to 64 digits", repr(length))])
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _without_seeds(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_seeds(value) for key, value in tree.items() if not key.endswith(REPLICATE_ENDING)}
    return [_without_seeds(each) for each in tree] if isinstance(tree, list) else tree


def _text(tree: Any) -> str:
    try:
        text = _encoder.encode(tree)
    except ValueError:  # a float that JSON does not have
        tree = strict(tree)
        text = _encoder.encode(tree)
    return _encoder.encode(_positive_zeros(tree)) if "-0.0" in text else text


_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _positive_zeros(tree: Any) -> Any:
    kind = type(tree)
    if kind is float:
        return tree + 0.0
    if kind is dict:
        return {key: _positive_zeros(value) for key, value in tree.items()}
    return [_positive_zeros(each) for each in tree] if kind is list else tree


def strict(tree: Any) -> Any:
    """A plain tree as strict JSON has it: NaN and the infinities as `{".float": "nan"}`."""
    if isinstance(tree, dict):
        return {key: strict(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [strict(each) for each in tree]
    return {".float": repr(tree)} if isinstance(tree, float) and not math.isfinite(tree) else tree
