"""Keys: which texts they are, and where the files of a run lie."""

from __future__ import annotations

import re
from typing import Any

from trainmaster.errors import KeyTextError

LENGTHS = (8, 16, 32, 64)
"""How many digits of a config's hash its key may have: the fewest that no other config has taken."""
_KEY = re.compile(r"[0-9a-f]{8,64}")
_ATTEMPT = re.compile(r"attempt-(\d{4,9})")


def is_key(text: Any) -> bool:
    return isinstance(text, str) and _KEY.fullmatch(text) is not None


def check_key(key: Any) -> str:
    """`key`, if it can be one; this is asked at every entrance, because keys become paths."""
    if not is_key(key):
        hint = "a key is text: write it with quotes" if isinstance(key, int | float) else "a key is 8 to 64 of the digits 0-9 and a-f"
        raise KeyTextError(f"{key!r:.80} is no key", hint=hint)
    return str(key)


def config_path(key: str) -> str:
    return f"configs/{key[:2]}/{key}.json"


def run_folder(archive: str, key: str) -> str:
    """The folder of a run in one of the archives `stats`, `ckpts` and `previews`."""
    return f"{archive}/{key[:2]}/{key}"


def attempt_folder(archive: str, key: str, number: int) -> str:
    return f"{run_folder(archive, key)}/attempt-{number:04}"


def attempt_number(name: str) -> int | None:
    """The number in the name of an attempt's folder; None for any other name."""
    found = _ATTEMPT.fullmatch(name)
    return int(found[1]) if found and f"attempt-{int(found[1]):04}" == name else None
