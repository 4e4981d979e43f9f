"""Starts the processes that `--processes N` asks for."""

from __future__ import annotations

import os
import sys

from typer.exceptions import Exit

from trainmaster.errors import SettingError
from trainmaster.loop.ranks import LAUNCHED, num_launched


def start_processes(num: int) -> bool:
    """Run this command in `num` processes, and wait until they end.

    Returns False without starting anything if `num` is 1, or if this process is itself one of the `num` processes.
    """
    if num_launched() > 1:
        if LAUNCHED not in os.environ:
            raise SettingError(
                f"--processes {num} starts processes, and this is already one of {num_launched()}",
                hint="leave out --processes under torchrun, or start the command without torchrun",
            )
        return False
    if num == 1:
        return False
    from trainmaster.manager.rank_processes import run_ranks

    is_script = os.path.basename(sys.argv[0]) == "trainmaster" and os.path.isfile(sys.argv[0])
    program = [sys.argv[0]] if is_script else ["-m", "trainmaster"]  # the name that the user typed, because rank 0 prints commands to copy
    code = run_ranks([sys.executable, *program, *sys.argv[1:]], num)
    if code:
        raise Exit(code)
    return True
