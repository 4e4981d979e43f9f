"""Loads the manager of a TARGET, starts the processes that `--processes N` asks for, and prints commands that are useful after a run."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from typer.exceptions import Exit

from trainmaster.cli.target import Target
from trainmaster.errors import SettingError
from trainmaster.loop.ranks import LAUNCHED, num_launched
from trainmaster.text import printable

if TYPE_CHECKING:
    from trainmaster.manager import Manager


def load_manager(
    target: Target | str, store_dir: str | None, is_quiet: bool = False, is_strict_code: bool = False, is_same_program: bool = False
) -> Manager:
    """Load the manager of a target. The target is printed before its code is imported."""
    from trainmaster.manager.invocation import Invocation

    target = Target.parse(target) if isinstance(target, str) else target
    if not is_quiet:
        print(f"target {printable(target.text)}", flush=True)
    manager = target.load_manager(store_dir, is_quiet)
    settings: dict[str, Any] = {"is_strict_code": is_strict_code, "is_same_program": is_same_program}
    if target.name is not None and target.name != manager.definition.__name__:
        settings["target_name"] = target.name
    if LAUNCHED in os.environ:  # this process was started by `--processes`
        from trainmaster.manager.rank_processes import watch_parent

        settings |= {"stop_reason": watch_parent(), "num_processes": num_launched()}
    manager.job_runner.configure(Invocation(target.text, get_program(), file=target.file, **settings))
    return manager


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


def get_program() -> tuple[str, ...]:
    """Return the command that starts this program in a shell: its name if it is on the PATH, otherwise its full path."""
    is_script = os.path.basename(sys.argv[0] or "").startswith("trainmaster")
    path = sys.argv[0] if is_script else sys.executable
    name = os.path.basename(path)
    found = shutil.which(name)
    word = name if found is not None and os.path.abspath(found) == os.path.abspath(path) else os.path.abspath(path)
    return (word,) if is_script else (word, "-m", "trainmaster")


def print_next_steps(manager: Manager) -> None:
    command, store = manager.job_runner.invocation.command, manager.store
    print(f"next: {command(store, 'show', manager.key)}\n      {command(store, 'ls')}")
