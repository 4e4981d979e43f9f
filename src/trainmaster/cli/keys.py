"""Resolves keys that users type, and selects runs. The first digits of a key are enough if only one key starts with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from trainmaster.errors import KeyTextError, StoreError, UnknownRunError, did_you_mean
from trainmaster.text import first_lines

if TYPE_CHECKING:
    from trainmaster.store import Store

_DIGITS = re.compile(r"[0-9a-f]{1,64}")
_MAX_LISTED = 10
_MAX_COMPARED = 3000
"""The maximum number of keys that are searched for a similar key."""


def resolve_key(store: Store, text: str) -> str:
    """Return the key that is `text` or starts with it.

    If `text` has at least two digits, only one folder is listed, because the store has a folder for each combination of the
    first two digits of a key.
    """
    text = text.strip().lower()
    if _DIGITS.fullmatch(text) is None:
        raise KeyTextError(f"{text!r:.80} is not a key", hint="a key has 8 to 64 of the digits 0-9 and a-f; its first digits are enough")
    keys = list_keys(store, text)
    if len(keys) == 1 or text in keys:
        return text if text in keys else keys[0]
    if keys:
        listed = "\n".join(first_lines(keys, len(keys), _MAX_LISTED))
        raise StoreError(f"{len(keys):,} keys start with `{text}`", known=listed, hint="type more digits")
    known = [*list_keys(store, text[:2]), *islice(store.configs, _MAX_COMPARED)]
    near = did_you_mean(text, {key[: len(text)] if len(text) < 8 else key for key in known})
    raise UnknownRunError(f"no run has a key that starts with `{text}`", hint=near or "`trainmaster ls` lists the runs")


def select_keys(store: Store, keys: Sequence[str] | None, where: str | None) -> list[str]:
    """Return the keys that the user named (by default, all keys). With `where`, return only the keys of runs that match this filter."""
    from trainmaster.cli.slow_progress import report_progress
    from trainmaster.store.query import parse_where
    from trainmaster.store.run_query import select

    query = parse_where(where) if where is not None else None
    chosen = [*dict.fromkeys(resolve_key(store, key) for key in keys)] if keys else sorted(store.configs)
    if query is None:
        return chosen
    matching = {*select(store, query, report_progress)}
    return [key for key in chosen if key in matching]


def list_keys(store: Store, start: str) -> list[str]:
    """Return all keys that start with `start`, sorted."""
    from trainmaster.store.keys import is_key

    folders = [start[:2]] if len(start) >= 2 else [name for name in store.files.names("configs") if name.startswith(start)]
    names = [name for folder in folders for name in store.files.names(f"configs/{folder}")]
    return sorted(key for name in names if (key := name.removesuffix(".json")) != name and key.startswith(start) and is_key(key))
