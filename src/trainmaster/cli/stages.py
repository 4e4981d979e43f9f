"""`trainmaster stages`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.options import TargetArgument


def command(
    target: TargetArgument,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the config that the loop is made from.", show_default=False),
    ] = None,
) -> None:
    """Print the stages of a manager and of its loop, with their fixtures and, in order, the hooks that will run.

    \b
    Example:
      trainmaster stages train.py:MyManager
    """
    from trainmaster.cli.launching import config_from, launched
    from trainmaster.cli.target import Target
    from trainmaster.store.printable import printable_lines

    manager = launched(Target.parse(target), None)
    print(printable_lines(manager.describe()))
    if manager.makes_loops:
        manager.setup(config_from(manager, None, overrides or []))
        assert manager.loop is not None
        print()
        print(printable_lines(manager.loop.describe()))
