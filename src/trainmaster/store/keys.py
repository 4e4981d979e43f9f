"""Keys of runs, and the paths of a run's files."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainmaster.errors import KeyTextError

if TYPE_CHECKING:
    from trainmaster.store.files import Files

LENGTHS = (8, 16, 32, 64)
"""The possible lengths of a key.

A key is a prefix of the config's hash. It has the shortest of these lengths for which no other config uses the same
prefix.
"""
_KEY = re.compile(r"[0-9a-f]{8,64}")
_ATTEMPT = re.compile(r"attempt-(\d{4,9})")


def is_key(text: Any) -> bool:
    return isinstance(text, str) and _KEY.fullmatch(text) is not None


def check_key(key: Any) -> str:
    """Return `key` if it is valid, otherwise raise an error. Every public function checks its keys, because they become paths."""
    if not is_key(key):
        hint = "a key is text: write it with quotes" if isinstance(key, int | float) else "a key has 8 to 64 of the digits 0-9 and a-f"
        raise KeyTextError(f"{key!r:.80} is not a key", hint=hint)
    return str(key)


def config_path(key: str) -> str:
    return f"configs/{key[:2]}/{key}.json"


def run_folder(archive: str, key: str) -> str:
    """Return the folder of a run in one of the archives: `stats`, `ckpts`, `previews` or `tags`."""
    return f"{archive}/{key[:2]}/{key}"


def attempt_folder(archive: str, key: str, number: int) -> str:
    return f"{run_folder(archive, key)}/attempt-{number:04}"


def attempt_number(name: str) -> int | None:
    """Return the attempt number in a folder name such as `attempt-0003`, or None if `name` does not have this form."""
    found = _ATTEMPT.fullmatch(name)
    return int(found[1]) if found and f"attempt-{int(found[1]):04}" == name else None


def stored_keys(files: Files, archive: str) -> Iterator[str]:
    """Yield the keys of all runs in an archive.

    Subfolders are searched in random order, so that parallel workers rarely try to claim the same run.
    """
    folders = [name for name in files.names(archive) if len(name) == 2]
    random.SystemRandom().shuffle(folders)
    ending = ".json" if archive == "configs" else ""
    for folder in folders:
        names = [name.removesuffix(ending) for name in files.names(f"{archive}/{folder}") if name.endswith(ending)]
        yield from (name for name in names if is_key(name) and name.startswith(folder))
