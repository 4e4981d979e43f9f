"""Opening the store that a command is about. Commands that only read never make one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from trainmaster.errors import SettingError, StoreFormatError

if TYPE_CHECKING:
    from trainmaster.store import Store

VARIABLE = "TRAINMASTER_STORE"
DEFAULT = "runs"
FIRST_RUN = "trainmaster run train.py:MyManager"


def store_path(option: str | None, argument: str | None = None) -> str:
    """Which folder is meant."""
    if option is not None and argument is not None and os.path.abspath(option) != os.path.abspath(argument):
        raise SettingError(f"the store is given twice: `{argument}` and `--store {option}`", hint="give it once")
    path = argument if argument is not None else option if option is not None else os.environ.get(VARIABLE) or DEFAULT
    if not path or "\0" in path:
        raise SettingError(f"{path!r:.80} is no path of a store", hint="`--store runs` is the folder `runs`")
    return path


def found_store(option: str | None, argument: str | None = None) -> Store | None:
    """The store, to be read; None where there is none yet: the folder is missing or empty."""
    path = store_path(option, argument)
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise StoreFormatError(f"`{path}` is a file, not a store", hint="a store is a folder") from None
    if not names:
        return None
    if "store.json" not in names:
        shown = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
        raise StoreFormatError(
            f"`{path}` is no store of trainmaster: it has no `store.json`",
            where=os.path.abspath(path),
            open=shown,
            hint=f"name the folder of a store: `--store PATH` or ${VARIABLE}",
        )
    from trainmaster.store import Store

    return Store(path)


def needed_store(option: str | None, argument: str | None = None) -> Store:
    """The store, for a command that names a run in it."""
    store = found_store(option, argument)
    if store is None:
        raise StoreFormatError(f"there is no store at `{store_path(option, argument)}` yet", hint=f"make a first run: `{FIRST_RUN}`")
    return store


def say_empty(option: str | None, argument: str | None = None) -> None:
    """How to go on from nothing; on stderr, so that a program that reads stdout finds what it expects."""
    from trainmaster.store.printable import printable

    print(f"no runs yet in `{printable(store_path(option, argument))}`; make a first one: {FIRST_RUN}", file=sys.stderr)
