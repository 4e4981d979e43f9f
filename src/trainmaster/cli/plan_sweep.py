"""Checks the sweep for `launch` and `container` before they write any files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from trainmaster.cli.load_manager import load_manager
from trainmaster.cli.target import Target
from trainmaster.errors import SettingError

if TYPE_CHECKING:
    from trainmaster.manager import Manager
    from trainmaster.sweep.sweep_command import SweepCommand


class PlannedSweep(NamedTuple):
    """A loaded target, and a command that trains valid choices for it."""

    target: Target
    manager: Manager
    command: SweepCommand
    num_runs: int


def plan_sweep(text: str, choices: list[str], config: str | None, epochs: int | None, *options: str) -> PlannedSweep:
    """Load the target and build its choices. Nothing is written. `options` are further options of `trainmaster sweep`."""
    from trainmaster.cli.build_config import build_choices, warn_about_any_key
    from trainmaster.sweep.sweep_command import SweepCommand

    target = Target.parse(text)
    manager = load_manager(target, None)
    warn_about_any_key(manager, choices)
    num_runs = 0
    if choices:
        built = build_choices(manager, choices, config)
        _refuse_secrets(manager, built[0], choices)
        num_runs = built.count
    words = [*options, *(["--epochs", str(epochs)] if epochs is not None else [])]
    words += ["--config", os.path.abspath(config)] if config is not None else []
    is_file = len(choices) == 1 and "=" not in choices[0]
    command = SweepCommand(target.text, (os.path.abspath(choices[0]),) if is_file else tuple(choices), tuple(words))
    return PlannedSweep(target, manager, command, num_runs)


def _refuse_secrets(manager: Manager, config: object, words: list[str]) -> None:
    """Raise an error if an argument sets a secret, because the written files would contain the secret."""
    from trainmaster.config.declared_secrets import secret_texts
    from trainmaster.config.masking import Mask, argv_secrets

    mask = Mask([*argv_secrets(words), *secret_texts(manager.complete_config(config))])
    wrong = [word.partition("=")[0] for word in words if mask and mask.is_in(word)]
    if wrong:
        raise SettingError(
            f"`{wrong[0]}=...` is a secret, and the script would contain it",
            hint="leave it out, and set it in the environment of the jobs or in your code",
        )
