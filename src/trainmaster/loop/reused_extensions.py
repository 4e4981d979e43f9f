"""Warns if an extension starts a new training run with the state of an earlier run."""

from __future__ import annotations

import hashlib
import json
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

from trainmaster.loop.state import Stateful, stateful_extensions
from trainmaster.store.codec import encode
from trainmaster.store.tensors import chunks

_first_uses: dict[int, tuple[weakref.ref[Any], weakref.ref[Any], str]] = {}
"""For each extension used in training: a reference to it, the first loop that used it, and the digest of its initial state."""


def states_before(loop: object, extensions: Mapping[str, object]) -> dict[str, str]:
    """Return digests of the states of all extensions that another loop has used in training. Call this before the first hook."""
    found = {}
    for name, extension in _own_extensions(extensions).items():
        used, first_loop, _ = _first_uses.get(id(extension), (None, None, ""))
        if used is not None and used() is extension and first_loop is not None and first_loop() is not loop:
            found[name] = _digest(extension)
    return found


def check_states(loop: object, extensions: Mapping[str, object], before: Mapping[str, str]) -> None:
    """Warn about extensions that start a new training run with the state of an earlier run.

    Call this after the first hooks have run, because they may reset the state. `before` is the result of `states_before`.
    """
    for name, extension in _own_extensions(extensions).items():
        digest = _digest(extension)
        if name not in before:
            _note_first_use(loop, extension, digest)
        elif digest and digest == before[name] and _first_uses[id(extension)][2] not in (digest, ""):
            warnings.warn(
                f"extension `{name}` ({type(extension).__name__}) begins a new training run with the state that it has from another loop; "
                "create a new extension for each loop, or reset the state in `pre_train`",
                stacklevel=4,
            )


def _own_extensions(extensions: Mapping[str, object]) -> dict[str, Stateful]:
    """Return the stateful extensions that users wrote. The extensions that come with trainmaster reset themselves."""
    found = stateful_extensions(extensions)
    return {name: each for name, each in found.items() if not type(each).__module__.startswith("trainmaster.")}


def _note_first_use(loop: object, extension: object, digest: str) -> None:
    number = id(extension)
    try:
        used = weakref.ref(extension, lambda _: _forget(number))
    except TypeError:  # its class has no `__weakref__`
        return
    _first_uses[number] = (used, weakref.ref(loop), digest)


def _forget(number: int) -> None:
    _first_uses.pop(number, None)


def _digest(extension: Stateful) -> str:
    try:
        encoded = encode(extension.state_dict())
    except Exception:
        return ""  # the state cannot be read or saved; if there is a saver, it reports the error
    digest = hashlib.sha256(json.dumps(encoded.tree).encode())
    for chunk in chunks(encoded.tensors):
        digest.update(chunk)
    return digest.hexdigest()
