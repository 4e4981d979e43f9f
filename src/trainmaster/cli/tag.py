"""The command `trainmaster tag`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.console import print_line
from trainmaster.cli.open_store import open_run
from trainmaster.cli.options import Key, StoreOption
from trainmaster.errors import SettingError, did_you_mean


def command(
    key: Key,
    labels: Annotated[list[str] | None, typer.Argument(metavar="LABEL", help="Labels; without any, the run's labels are printed.")] = None,
    store: StoreOption = None,
    is_removal: Annotated[bool, typer.Option("--remove", help="Remove the labels.")] = False,
) -> None:
    """Add labels to a run, or remove them.

    A label consists of 1 to 64 letters, digits, `.`, `_` and `-`.

    \b
    Examples:
      trainmaster tag 3fa9 best paper
      trainmaster tag 3fa9 paper --remove
      trainmaster ls --tag best
    """
    found, run = open_run(store, key)
    if is_removal:
        current = found.tags[run.key]
        missing = [label for label in labels or [] if label not in current]
        if missing or not labels:
            hint = did_you_mean(missing[0], current) if missing else ""
            fact = f"run {run.key} has no label `{missing[0][:80]}`" if missing else "`--remove` needs at least one label"
            raise SettingError(fact, hint=hint or f"it has {', '.join(current) or 'none'}")
        found.tags.remove(run.key, labels)
    else:
        found.tags.add(run.key, labels or [])
    print_line(f"{run.key}  {' '.join(found.tags[run.key]) or 'has no labels'}")
