"""`trainmaster resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.options import Epochs, Key, Quiet, StoreOption


def command(
    key: Key,
    store: StoreOption = None,
    epochs: Epochs = None,
    target: Annotated[
        str | None, typer.Option(metavar="TARGET", help="The manager, if it is not where it was.", show_default=False)
    ] = None,
    is_quiet: Quiet = False,
) -> None:
    """Go on with a run from its last checkpoint, as far as it was to be trained, or up to N epochs.

    \b
    Examples:
      trainmaster resume 3fa9
      trainmaster resume 3fa9 --epochs 40
    """
    import os
    import sys

    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.launching import launched, next_steps
    from trainmaster.cli.opening import needed_store
    from trainmaster.cli.target import Target
    from trainmaster.errors import SettingError

    found = needed_store(store)
    whole = resolve_key(found, key)
    run = found.run(whole)
    claims = [run.claim_of(number) for number in run.attempts()]
    started = next((claim for claim in claims if isinstance(claim.get("target"), str)), None)
    if target is None and started is None:
        raise SettingError(
            f"run {whole} was not started by `trainmaster run`, so nobody knows its manager",
            hint=f"name it: `trainmaster resume {whole} --target train.py:MyManager`",
        )
    if started is not None:
        folder = started.get("folder")
        if isinstance(folder, str) and os.path.isdir(folder):
            sys.path[:0] = [folder, os.getcwd()]  # in this order: a module here may have the same name
        if epochs is None and isinstance(started.get("num_epochs"), int):
            epochs = started["num_epochs"]
    assert found.root is not None
    manager = launched(Target.parse(target if target is not None else str(started and started["target"])), found.root, is_quiet)
    config = manager.get_config(manager.configs[whole])
    if manager.store.root != found.root or manager.configs.get_key(config) != whole:
        raise SettingError(
            f"this manager makes another run of the config of {whole}",
            why="it has another store" if manager.store.root != found.root else "its defaults or `get_config` have changed since",
            hint="name another one with --target",
        )
    manager.process(config, epochs)
    if not is_quiet:
        print("\n".join(next_steps(manager)))
