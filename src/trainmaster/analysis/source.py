"""Opens the store that `Results` reads."""

from __future__ import annotations

import os
from typing import Any

from trainmaster.config import ConfigBase
from trainmaster.errors import SettingError, StoreFormatError, shown
from trainmaster.store import Store
from trainmaster.store.store import ABOUT


def trial_folder(config: Any, experiment_dir: str | os.PathLike[str]) -> str:
    """Return the folder of the store: the subfolder named by the config's `experiment_id` if it is a store, or else `experiment_dir`."""
    inner = os.path.join(experiment_dir, str(getattr(config, "experiment_id", None) or ""))
    return inner if os.path.lexists(os.path.join(inner, ABOUT)) else os.fspath(experiment_dir)


def open_source(source: Any) -> Store:
    """Return the store of `source`, which is a store, a manager, or the folder of a store. The store must exist."""
    if isinstance(source, Store):
        return source
    store = getattr(source, "store", None)
    if isinstance(store, Store):
        return store
    if isinstance(source, ConfigBase):
        raise SettingError("the results of a config need the folder of its store", hint="Results(config, experiment_dir)")
    if not isinstance(source, str | os.PathLike):
        raise SettingError(f"`source` must be a store, its folder or a manager, not {shown(source)}", hint='Results("runs")')
    path = os.fspath(source)
    if not os.path.lexists(os.path.join(path, ABOUT)):
        hint = "a store is the folder of a manager: `runs`"
        raise StoreFormatError(f"there is no store at `{path}`", where=os.path.abspath(path), hint=hint)
    return Store(path)
