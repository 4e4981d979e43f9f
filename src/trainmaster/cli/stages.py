"""The command `trainmaster stages`."""

from __future__ import annotations

from trainmaster.cli.load_manager import load_manager
from trainmaster.cli.options import Overrides, TargetArgument
from trainmaster.text import printable_lines


def command(target: TargetArgument, overrides: Overrides = None) -> None:
    """Print the stages and the hooks that will run.

    Shows the stages of the manager and of its loop, the fixtures of each stage, and the hooks in the order in which they run.

    \b
    Example:
      trainmaster stages train.py
    """
    from trainmaster.cli.build_config import build_config

    manager = load_manager(target, None)
    print(printable_lines(manager.describe()))
    if manager.has_make_loop:
        manager.setup(build_config(manager, None, overrides or []))
        assert manager.loop is not None
        print(f"\n{printable_lines(manager.loop.describe())}")
