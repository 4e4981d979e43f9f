"""The command `trainmaster stop`."""

from __future__ import annotations

from trainmaster.cli.console import print_line
from trainmaster.cli.open_store import open_run
from trainmaster.cli.options import Key, StoreOption


def command(key: Key, store: StoreOption = None) -> None:
    """Ask a running run to save a checkpoint and stop.

    The process that trains the run finishes the current step first. You can stop a run from any machine that has access to the store.

    \b
    Example:
      trainmaster stop 3fa9
    """
    from trainmaster.store.attempt import request_stop

    _, run = open_run(store, key)
    owner = request_stop(run)
    print_line(f"asked {owner or 'an unknown process'} to stop run {run.key}; `trainmaster show {run.key}` shows its state")
