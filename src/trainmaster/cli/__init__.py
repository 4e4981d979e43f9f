"""The command line: one file a command, each of which parses, calls the library, and prints."""

from __future__ import annotations

from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run a command; the code to exit with. `args` None takes those of this process."""
    from trainmaster.cli.app import run

    return run(args)
