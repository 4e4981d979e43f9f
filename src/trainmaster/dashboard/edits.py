"""Actions that edit the labels and notes of runs, stop runs or delete them. They require `trainmaster ui --allow-edit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.errors import SettingError, StoreError
from trainmaster.store import Store
from trainmaster.store.attempt import busy, request_stop
from trainmaster.store.lease import Hold, holder_of


def edit_tags(store: Store, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Add labels to a run and remove labels from it."""
    add, remove = _texts(body, "add"), _texts(body, "remove")
    store.configs.require(key)
    store.tags.add(key, add)
    store.tags.remove(key, remove)
    return {"tags": store.tags[key]}


def edit_notes(store: Store, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the note of a run."""
    text = body.get("text")
    if not isinstance(text, str):
        raise SettingError("`text` is missing", hint='{"text": "..."}')
    store.notes.write(key, text)
    return {"notes": store.notes[key]}


def stop_run(store: Store, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the process that trains a run to save a checkpoint and stop."""
    _confirm(key, body)
    return {"owner": str(request_stop(store.run(key)) or "an unknown process")}


def delete_run(store: Store, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Delete a run with all its files. Raise an error if another process is or may be training the run."""
    _confirm(key, body)
    run = store.run(key)
    holder = holder_of(run)
    if holder.hold is Hold.HELD:
        raise busy(run, holder)
    if holder.hold is Hold.UNKNOWN:
        raise StoreError(f"run {key} may be held by {holder.owner}", hint=f"`trainmaster rm {key}` watches its lease first")
    store.remove(key)
    return {"deleted": key}


EDITS: Mapping[str, Callable[[Store, str, Mapping[str, Any]], dict[str, Any]]] = {
    "tags": edit_tags,
    "notes": edit_notes,
    "stop": stop_run,
    "delete": delete_run,
}
"""Maps the last part of an action's URL to its function."""


def _confirm(key: str, body: Mapping[str, Any]) -> None:
    if body.get("confirm") != key:
        raise SettingError(f"this needs a confirmation: the key {key}", hint=f'{{"confirm": "{key}"}}')


def _texts(body: Mapping[str, Any], name: str) -> list[str]:
    value = body.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise SettingError(f"`{name}` must be a list of labels", hint='{"add": ["best"], "remove": []}')
    return value
