"""Keys as people type them: the first digits are enough where they are one run's only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

from trainmaster.errors import KeyTextError, StoreError, UnknownRunError, did_you_mean

if TYPE_CHECKING:
    from trainmaster.store import Store

_DIGITS = re.compile(r"[0-9a-f]{1,64}")
_MAX_SHOWN = 10
_MAX_COMPARED = 3000
"""Among how many keys the nearest are looked for."""
_MAX_COMPLETED = 40


def resolve_key(store: Store, text: str) -> str:
    """The key of the run whose key is `text`, or starts with it. Looks into one folder of the 256, if `text` has two digits or more."""
    text = text.strip().lower()
    if _DIGITS.fullmatch(text) is None:
        raise KeyTextError(f"{text!r:.80} is no key", hint="a key is 8 to 64 of the digits 0-9 and a-f; the first of them are enough")
    keys = keys_from(store, text)
    if len(keys) == 1 or text in keys:
        return text if text in keys else keys[0]
    if keys:
        shown = [*keys[:_MAX_SHOWN], *([f"... and {len(keys) - _MAX_SHOWN:,} more"] if len(keys) > _MAX_SHOWN else [])]
        raise StoreError(f"{len(keys):,} keys start with `{text}`", known="\n".join(shown), hint="write more digits")
    near = keys_from(store, text[:2])
    if not did_you_mean(text, near):
        near = [key for folder in store.files.names("configs") if len(near) < _MAX_COMPARED for key in keys_from(store, folder)]
    near = sorted({key[: len(text)]: key for key in near[:_MAX_COMPARED]}) if len(text) < 8 else near[:_MAX_COMPARED]
    raise UnknownRunError(f"no run has a key that starts with `{text}`", hint=did_you_mean(text, near) or "`trainmaster ls` lists the runs")


def keys_from(store: Store, start: str) -> list[str]:
    """All keys that start with some digits, sorted."""
    from trainmaster.store.keys import is_key

    folders = [start[:2]] if len(start) >= 2 else [name for name in store.files.names("configs") if name.startswith(start)]
    names = [name for folder in folders for name in store.files.names(f"configs/{folder}")]
    return sorted(key for name in names if (key := name.removesuffix(".json")) != name and key.startswith(start) and is_key(key))


def complete_key(ctx: typer.Context, incomplete: str) -> list[Any]:
    """Keys for the shell, each with its state; none where anything is wrong, because a shell cannot be told."""
    try:
        from trainmaster.cli.opening import found_store
        from trainmaster.store.summary import summarize

        store = found_store(ctx.params.get("store"))
        if store is None or (incomplete and _DIGITS.fullmatch(incomplete) is None):
            return []
        return [(key, summarize(store, key).state) for key in keys_from(store, incomplete)[:_MAX_COMPLETED]]
    except Exception:  # whatever it is, the command itself will say it
        return []
