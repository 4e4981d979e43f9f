"""`start_from`: a config value that makes a new run start with the weights in a checkpoint of another run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.config import ConfigBase
from trainmaster.config.identity import START_FROM
from trainmaster.errors import SettingError, UnknownRunError, did_you_mean
from trainmaster.store import Store
from trainmaster.store.keys import check_key

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager


class Origin(NamedTuple):
    """A checkpoint, written in a config as `ab12cd34@120`: run `ab12cd34` after step 120."""

    key: str
    step: int

    @property
    def text(self) -> str:
        return f"{self.key}@{self.step}"

    @classmethod
    def parse(cls, text: Any) -> Origin:
        """Parse the value of `start_from` in a config."""
        key, _, step = text.partition("@") if isinstance(text, str) else ("", "", "")
        if not step.isascii() or not step.isdigit():
            raise SettingError(f"{START_FROM}={text!r}: expected a run and a step, such as 'ab12cd34@120'")
        return cls(check_key(key), int(step))

    @classmethod
    def find(cls, store: Store, text: str) -> Origin:
        """Find the checkpoint that a user typed as a run key, optionally followed by `@` and a step, `best` or `last`."""
        key, _, which = text.partition("@")
        if which not in ("", "best", "last") and not which.isdigit():
            raise SettingError(
                f"start_from={text!r}: expected a step, `best` or `last` after the @", hint=did_you_mean(which, ["best", "last"]) or None
            )
        run = store.run(key)
        if key not in store.configs:
            raise UnknownRunError(
                f"no run has the key {key}", hint=did_you_mean(key, store.configs.keys()) or "`trainmaster ls` lists them"
            )
        checkpoint = run.checkpoint(int(which) if which.isdigit() else which or "last")
        if checkpoint is None:
            raise UnknownRunError(f"run {key} has no checkpoint {which or 'yet'}", hint="`trainmaster show` lists those it has")
        return cls(key, checkpoint.name.step)

    def read(self, store: Store) -> Any:
        """Return the content of the checkpoint."""
        checkpoint = store.run(self.key).checkpoint(self.step)
        if checkpoint is None:
            raise UnknownRunError(
                f"run {self.key} has no checkpoint of step {self.step}, which this run starts from",
                hint="it has been removed; choose another one",
            )
        return checkpoint.value


def config_starting_from(manager: Manager, config: Any, text: str, store: Store | None = None) -> Any:
    """Return `config` with its defaults filled in, and with `start_from` set to the checkpoint that `text` specifies.

    The checkpoint is looked up in `store`, by default the manager's own store.
    """
    if not manager.has_make_loop:
        raise SettingError(f"start_from={text!r}: only a manager with `make_loop` can start from another run's weights")
    config = manager.get_config(config)
    if isinstance(config, ConfigBase) and START_FROM not in config:
        raise SettingError(
            f"{type(config).__name__} has no field `{START_FROM}`, so a run cannot record that it starts from {text}",
            hint=f"add the field `{START_FROM}: str | None = None` to the class; the keys of its other runs stay the same",
        )
    config[START_FROM] = Origin.find(store or manager.store, text).text
    return config
