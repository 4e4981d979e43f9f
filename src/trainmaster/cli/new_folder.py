"""A folder that an option names, for a command to make."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainmaster.errors import SettingError

if TYPE_CHECKING:
    from trainmaster.store import Store


def new_folder(option: str, text: str, store: Store) -> str:
    """The whole path of a folder that is new or empty, and no part of the run's own store."""
    if not text or "\0" in text:
        raise SettingError(f"{option} {text!r:.80}: that is no path of a folder", hint=f"`{option} again` is the folder `again`")
    path, root = os.path.realpath(text), os.path.realpath(str(store.root))
    if os.path.commonpath([path, root]) == root:
        raise SettingError(f"{option} {text}: this is in the store of the run, which stays as it is", hint="name a folder elsewhere")
    if os.path.lexists(path) and not os.path.isdir(path):
        raise SettingError(f"{option} {text}: this is a file", hint="name a new folder")
    if os.path.isdir(path) and os.listdir(path):
        raise SettingError(f"{option} {text}: this folder is not empty", hint="name one that is new or empty: nothing is overwritten")
    return path
