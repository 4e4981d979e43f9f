"""`trainmaster prune`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.options import DryRun, StoreArgument, StoreOption


def command(
    store_dir: StoreArgument = None,
    store: StoreOption = None,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="How many good checkpoints of each run are kept.")] = 3,
    is_dry: DryRun = False,
) -> None:
    """Remove what counts for nothing any more.

    That is: all but the last N good checkpoints of each run and its best one, what kills have left, and the records of runs that never
    saved anything. Runs that somebody works on are left alone.

    \b
    Examples:
      trainmaster prune --keep 1 --dry-run
      trainmaster prune runs
    """
    from trainmaster.cli.opening import found_store, say_empty
    from trainmaster.cli.words import counted
    from trainmaster.store.printable import printable
    from trainmaster.store.prune import prunable

    found = found_store(store, store_dir)
    if found is None:
        say_empty(store, store_dir)
        return
    paths = list(prunable(found.files, keep)) if is_dry else found.prune(keep)
    for path in paths:
        print(printable(path))
    print(f"{'would remove' if is_dry else 'removed'} {counted(len(paths), 'path')}")
