"""Lineage: which checkpoint of which run another one starts from."""

from __future__ import annotations

from typing import Any, NamedTuple

from trainmaster.errors import SettingError, UnknownRunError, did_you_mean
from trainmaster.store import Store
from trainmaster.store.keys import check_key

START_FROM = "start_from"
"""The key of a config that says so; it is part of the run's identity."""


class Origin(NamedTuple):
    """A checkpoint, as a config names it: `ab12cd34@120`, the one after step 120."""

    key: str
    step: int

    @property
    def text(self) -> str:
        return f"{self.key}@{self.step}"

    @classmethod
    def parse(cls, text: Any) -> Origin:
        """What a config says."""
        key, _, step = text.partition("@") if isinstance(text, str) else ("", "", "")
        if not step.isascii() or not step.isdigit():
            raise SettingError(f"{START_FROM}={text!r}: wanted a run and a step, such as 'ab12cd34@120'")
        return cls(check_key(key), int(step))

    @classmethod
    def find(cls, store: Store, text: str) -> Origin:
        """What somebody typed: a run, and after `@` a step, `best` or `last`."""
        key, _, which = text.partition("@")
        if which not in ("", "best", "last") and not which.isdigit():
            raise SettingError(
                f"start_from={text!r}: wanted a step, `best` or `last` after the @", hint=did_you_mean(which, ["best", "last"]) or None
            )
        run = store.run(key)
        if key not in store.configs:
            raise UnknownRunError(
                f"no run has the key {key}", hint=did_you_mean(key, store.configs.keys()) or "`trainmaster ls` lists them"
            )
        found = run.checkpoint(int(which) if which.isdigit() else which or "last")
        if found is None:
            raise UnknownRunError(f"run {key} has no checkpoint {which or 'yet'}", hint="`trainmaster show` lists those it has")
        return cls(key, found.name.step)

    def read(self, store: Store) -> Any:
        """What the checkpoint holds."""
        found = store.run(self.key).checkpoint(self.step)
        if found is None:
            raise UnknownRunError(
                f"run {self.key} has no checkpoint of step {self.step}, which this run starts from",
                hint="it was removed since; name another one",
            )
        return found.value
