"""The command `trainmaster prune`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.console import print_line
from trainmaster.cli.open_store import find_store, print_no_runs
from trainmaster.cli.options import DryRun, StoreArgument, StoreOption
from trainmaster.text import counted


def command(
    store_dir: StoreArgument = None,
    store: StoreOption = None,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="How many valid checkpoints of each run to keep.")] = 3,
    is_dry: DryRun = False,
) -> None:
    """Delete old checkpoints and leftovers.

    Each run keeps its last N valid checkpoints and its best one. The command also deletes files that killed processes left behind, and the
    records of attempts that never saved a checkpoint. Runs that are being trained are skipped.

    \b
    Examples:
      trainmaster prune --keep 1 --dry-run
      trainmaster prune runs
    """
    from trainmaster.store.prune import prunable

    found = find_store(store, store_dir)
    if found is None:
        print_no_runs(store, store_dir)
        return
    paths = list(prunable(found.files, keep)) if is_dry else found.prune(keep)
    for path in paths:
        print_line(path)
    print_line(f"{'would delete' if is_dry else 'deleted'} {counted(len(paths), 'path')}")
