"""The command `trainmaster verify`."""

from __future__ import annotations

import typer

from trainmaster.cli.console import print_json, print_line
from trainmaster.cli.open_store import find_store, print_no_runs
from trainmaster.cli.options import Json, StoreArgument, StoreOption
from trainmaster.text import counted


def command(store_dir: StoreArgument = None, store: StoreOption = None, is_json: Json = False) -> None:
    """Read every file in a store and list the damaged ones.

    The exit code is 1 if a file is damaged. You can verify a store while runs are being trained.

    \b
    Example:
      trainmaster verify runs
    """
    found = find_store(store, store_dir)
    if found is None:
        print_no_runs(store, store_dir)
    damage = found.verify() if found is not None else []
    if is_json:
        print_json([each._asdict() for each in damage])
    elif found is not None:
        for each in damage:
            print_line(each, "red" if each.is_fatal else "yellow")
        num_harmless = sum(not each.is_fatal for each in damage)
        print_line(
            f"{counted(len(damage), 'damaged file')}; {num_harmless} of them do not prevent their runs from resuming"
            if damage
            else f"{counted(len(found.configs), 'run')}, no damage"
        )
    if damage:
        raise typer.Exit(1)
