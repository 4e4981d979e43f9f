"""The command line: one file per command. Each command parses its options, calls the library and prints the result."""

from __future__ import annotations

from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. `args` defaults to the arguments of this process."""
    from trainmaster.cli.app import run

    return run(args)
