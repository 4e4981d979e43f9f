"""Loads the manager of a TARGET or of a stored run, and starts the processes that `--processes N` asks for.

A run records its TARGET. A store may come from somebody else, and importing a file runs its code. A recorded TARGET is
therefore imported only if its file is outside of the store and has not changed, or if the user passes `--trust`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from typer.exceptions import Exit

from trainmaster.cli.target import Target
from trainmaster.errors import SettingError
from trainmaster.loop.ranks import LAUNCHED, num_launched
from trainmaster.text import printable

if TYPE_CHECKING:
    from trainmaster.manager import Manager
    from trainmaster.store import Run, Store


def load_manager(
    target: Target | str, store_dir: str | None, is_quiet: bool = False, is_strict_code: bool = False, is_same_program: bool = False
) -> Manager:
    """Load the manager of a target. The target is printed before its code is imported."""
    target = Target.parse(target) if isinstance(target, str) else target
    if not is_quiet:
        print(f"target {printable(target.text)}", flush=True)
    from trainmaster.manager.invocation import Invocation  # imports torch, which takes seconds

    manager = target.load_manager(store_dir, is_quiet)
    settings: dict[str, Any] = {"is_strict_code": is_strict_code, "is_same_program": is_same_program}
    if target.name is not None and target.name != manager.definition.__name__:
        settings["target_name"] = target.name
    if LAUNCHED in os.environ:  # this process was started by `--processes`
        from trainmaster.manager.rank_processes import watch_parent

        settings |= {"stop_reason": watch_parent(), "num_processes": num_launched()}
    manager.job_runner.configure(Invocation(target.text, get_program(), file=target.file, **settings))
    return manager


def find_manager(
    store: Store, run: Run, target: str | None, command: str, is_quiet: bool = False, is_trusted: bool = False, is_strict_code: bool = False
) -> tuple[Manager, Any, int | None]:
    """Return the manager of a run, the run's config, and the number of epochs that was requested when the run was started, if any.

    `target` replaces the recorded TARGET. `command` is the command that error messages suggest.
    """
    from trainmaster.manager.config_completer import refuse_hidden

    claim = next((claim for claim in map(run.claim_of, run.attempts()) if isinstance(claim.get("target"), str)), None)
    assert store.root is not None
    if target is not None:
        found = Target.parse(target)
    elif claim is not None:
        words = shlex.join(["trainmaster", command, run.key, "--store", store.root])
        found = check_recorded_target(claim["target"], claim.get("folder"), _get_recorded_digest(run), store.root, is_trusted, words)
    else:
        raise SettingError(
            f"run {run.key} was not started by `trainmaster run`, so its TARGET was not recorded",
            hint=f"name it: `trainmaster {command} {run.key} --target train.py:make_loop`",
        )
    manager = load_manager(found, store.root, is_quiet, is_strict_code, is_same_program=target is not None)
    config = manager.complete_config(manager.configs[run.key])
    if manager.store.root != store.root or manager.configs.get_key(config) != run.key:
        raise SettingError(
            f"`{found.text}` trains another run with the config of {run.key}",
            why="it uses another store" if manager.store.root != store.root else "its defaults or `get_config` have changed since",
            hint="name another TARGET with --target",
        )
    refuse_hidden(config)
    num_epochs = claim.get("num_epochs") if claim is not None else None
    return manager, config, num_epochs if isinstance(num_epochs, int) else None


def check_recorded_target(text: str, folder: object, digest: str | None, store_root: str, is_trusted: bool, command: str) -> Target:
    """Return the recorded target of a run or capsule. Raise an error if its file is inside the store or has changed.

    `folder` is the folder in which the run was started. It is added to `sys.path`, unless it is inside the store.
    `digest` is the recorded digest of the file. If `is_trusted` is True, the checks are skipped. `command` is the
    command that error messages suggest.
    """
    if isinstance(folder, str) and os.path.isdir(folder) and (is_trusted or not _is_below(folder, store_root)):
        sys.path[:0] = [folder, os.getcwd()]  # `folder` comes first, because the current folder may contain a module with the same name
        module, colon, name = text.rpartition(":")
        if module.endswith(".py"):
            text = f"{os.path.join(folder, module)}{colon}{name}"
    target = Target.parse(text)
    reason = None if is_trusted else _why_unsafe(target, digest, store_root)
    if reason is None:
        return target
    raise SettingError(
        f"the recorded target `{target.text}` was not imported",
        why=reason,
        hint=f"name the TARGET yourself: `{command} --target {target.text}`; `--trust` imports it anyway",
    )


def _why_unsafe(target: Target, digest: str | None, store_root: str) -> str | None:
    from trainmaster.store.program import has_digest

    path = _find_source(target)
    if path is None:
        return "its source file was not found"
    if _is_below(path, store_root):
        return f"its file is inside the store: {path}"
    if digest is None:
        return f"the content of {path} was not recorded"
    return None if has_digest(path, digest) else f"{path} has changed since"


def _is_below(path: str, folder: str) -> bool:
    """Return whether a path is `folder` or inside it, after links are resolved."""
    root = os.path.realpath(folder)
    return os.path.commonpath([os.path.realpath(path), root]) == root


def _find_source(target: Target) -> str | None:
    """Find the source file of a target without importing anything. Return None if it is not found."""
    if target.is_file:
        return target.module
    folders: list[str] | None = None
    parts = target.module.split(".")
    for number in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: number + 1]), folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
    return spec.origin if spec is not None and spec.origin is not None and spec.origin.endswith(".py") else None


def _get_recorded_digest(run: Run) -> str | None:
    """Return the recorded digest of the file that defines a run's manager."""
    from trainmaster.store.program import Program

    for number in run.attempts():
        program = Program.from_record((run.resume_of(number) or {}).get("program"))
        if program is not None:
            return program.files.get(program.file)
    return None


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
    program = [sys.argv[0]] if is_script else ["-m", "trainmaster"]  # keep the typed name, because rank 0 prints commands to copy
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
