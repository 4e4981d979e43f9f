"""The states of a manager's extensions before their first run."""

from __future__ import annotations

from typing import Any


class InitialStates:
    """Keeps the states that extensions had before their first run, so that every run begins with these states."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[object, Any]] = {}

    def restore(self, extension: object) -> None:
        from trainmaster.loop.state import is_stateful, own_copy

        if is_stateful(extension):
            _, state = self._states.setdefault(id(extension), (extension, own_copy(extension.state_dict())))
            extension.load_state_dict(own_copy(state))
