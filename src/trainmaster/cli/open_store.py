"""Opens the store that a command works on. Commands that only read a store never create one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from trainmaster.errors import SettingError, StoreFormatError
from trainmaster.text import printable

if TYPE_CHECKING:
    from trainmaster.store import Run, Store

VARIABLE = "TRAINMASTER_STORE"
DEFAULT = "runs"
FIRST_RUN = "trainmaster run train.py"


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
    if not os.path.lexists(os.path.join(path, ABOUT)):  # checked again, because the listing may miss it while other processes write
        raise StoreFormatError(
            f"`{path}` is not a trainmaster store: it has no `{ABOUT}`",
            where=os.path.abspath(path),
            has=", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else ""),
            hint=f"name the folder of a store: `--store PATH` or ${VARIABLE}",
        )
    return Store(path)


def open_or_create_store(option: str | None) -> Store:
    from trainmaster.store import Store

    return find_store(option) or Store(get_store_path(option))


def open_store(option: str | None) -> Store:
    """Open an existing store. Raise an error if there is none."""
    store = find_store(option)
    if store is None:
        raise StoreFormatError(f"there is no store at `{get_store_path(option)}` yet", hint=f"start a first run: `{FIRST_RUN}`")
    return store


def open_run(option: str | None, key: str) -> tuple[Store, Run]:
    """Return the store and the run whose key is `key` or starts with it."""
    from trainmaster.cli.keys import resolve_key

    store = open_store(option)
    return store, store.run(resolve_key(store, key))


def print_no_runs(option: str | None, argument: str | None = None) -> None:
    """Print to stderr that there are no runs. stdout stays empty for programs that read it."""
    print(f"no runs yet in `{printable(get_store_path(option, argument))}`; start a first one: {FIRST_RUN}", file=sys.stderr)
