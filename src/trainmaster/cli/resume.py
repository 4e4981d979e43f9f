"""The command `trainmaster resume`."""

from __future__ import annotations

from trainmaster.cli.load_manager import find_manager, print_next_steps, start_processes
from trainmaster.cli.open_store import open_run
from trainmaster.cli.options import Epochs, Key, Processes, Quiet, StoreOption, StrictCode, TargetOption, Trust
from trainmaster.loop.ranks import is_other_rank


def command(
    key: Key,
    store: StoreOption = None,
    epochs: Epochs = None,
    target: TargetOption = None,
    processes: Processes = None,
    is_trusted: Trust = False,
    is_strict_code: StrictCode = False,
    is_quiet: Quiet = False,
) -> None:
    """Resume a run from its last checkpoint.

    Trains up to the number of epochs that the run was started with, or up to --epochs.

    \b
    Examples:
      trainmaster resume 3fa9
      trainmaster resume 3fa9 --epochs 40
    """
    if processes is not None and start_processes(processes):
        return
    is_quiet = is_quiet or is_other_rank()
    found, run = open_run(store, key)
    manager, config, num_epochs = find_manager(found, run, target, "resume", is_quiet, is_trusted, is_strict_code)
    manager.process(config, num_epochs if epochs is None else epochs)
    if not is_quiet:
        print_next_steps(manager)
