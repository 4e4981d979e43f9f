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
    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.launching import next_steps
    from trainmaster.cli.opening import needed_store
    from trainmaster.cli.taking_up import take_up

    found = needed_store(store)
    manager, config, num_epochs = take_up(found, resolve_key(found, key), target, is_quiet, "resume")
    manager.process(config, num_epochs if epochs is None else epochs)
    if not is_quiet:
        print("\n".join(next_steps(manager)))
