"""Opens the store that a command works on, and finds its runs. Commands that only read a store never create one.

A run can be named by the first digits of its key if no other key starts with these digits.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from trainmaster.cli.console import report_progress
from trainmaster.errors import KeyTextError, SettingError, StoreError, StoreFormatError, UnknownRunError, did_you_mean
from trainmaster.text import first_lines, printable

if TYPE_CHECKING:
    from trainmaster.store import Run, Store

VARIABLE = "TRAINMASTER_STORE"
DEFAULT = "runs"
_FIRST_RUN = "trainmaster run train.py"
_DIGITS = re.compile(r"[0-9a-f]{1,64}")
_MAX_LISTED = 10
_MAX_COMPARED = 3000
"""The maximum number of keys that an unknown key is compared with, to suggest a similar one."""


def get_store_path(option: str | None, argument: str | None = None) -> str:
    if option is not None and argument is not None and os.path.abspath(option) != os.path.abspath(argument):
        raise SettingError(f"the store is given twice: `{argument}` and `--store {option}`", hint="give it once")
    path = argument if argument is not None else option if option is not None else os.environ.get(VARIABLE) or DEFAULT
    if not path or "\0" in path:
        raise SettingError(f"{path!r:.80} cannot be the path of a store", hint="`--store runs` is the folder `runs`")
    return path


def find_store(option: str | None, argument: str | None = None) -> Store | None:
    """Open an existing store.

    Returns None if the folder does not exist, is empty, or contains only temporary files. Temporary files are left behind if
    a process is killed while it creates the store.
    """
    from trainmaster.store.files import access_error, is_temporary
    from trainmaster.store.store import ABOUT, Store

    path = get_store_path(option, argument)
    try:
        names = [name for name in os.listdir(path) if not is_temporary(name)]
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise StoreFormatError(f"`{path}` is a file, not a store", hint="a store is a folder") from None
    except OSError as error:
        raise access_error(error, os.path.abspath(path), "listed") from None
    if not names:
        return None
    if not os.path.lexists(os.path.join(path, ABOUT)):  # check again, because the listing may miss the file while other processes write
        raise StoreFormatError(
            f"`{path}` is not a trainmaster store: it has no `{ABOUT}`",
            where=os.path.abspath(path),
            has=", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else ""),
            hint=f"name the folder of a store: `--store PATH` or ${VARIABLE}",
        )
    return Store(path)


def open_store(option: str | None, argument: str | None = None) -> Store:
    """Open an existing store. Raise an error if there is none."""
    store = find_store(option, argument)
    if store is None:
        raise StoreFormatError(f"there is no store at `{get_store_path(option, argument)}` yet", hint=f"start a first run: `{_FIRST_RUN}`")
    return store


def open_run(option: str | None, key: str) -> tuple[Store, Run]:
    """Return the store and the run whose key is `key` or starts with it."""
    store = open_store(option)
    return store, store.run(resolve_key(store, key))


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


def print_no_runs(option: str | None, argument: str | None = None) -> None:
    """Print to stderr that there are no runs. stdout stays empty, because other programs may parse it."""
    print(f"no runs yet in `{printable(get_store_path(option, argument))}`; start a first one: {_FIRST_RUN}", file=sys.stderr)
