"""Finds the manager of a stored run. A run records its TARGET, which is imported if that is safe.

A store may come from somebody else, and importing a file runs its code. A recorded TARGET is therefore imported only if
its file is outside of the store and has not changed, or if the user passes `--trust`.
"""

from __future__ import annotations

import os
import shlex
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.cli.load_manager import load_manager
from trainmaster.cli.target import Target
from trainmaster.errors import SettingError

if TYPE_CHECKING:
    from trainmaster.manager import Manager
    from trainmaster.store import Run, Store


class FoundManager(NamedTuple):
    """The manager of a run, and the run's config."""

    manager: Manager
    config: Any
    num_epochs: int | None
    """The number of epochs that was requested when the run was started, if any."""


def find_manager(
    store: Store,
    run: Run,
    target: str | None,
    command: str,
    is_quiet: bool = False,
    is_trusted: bool = False,
    is_strict_code: bool = False,
) -> FoundManager:
    """Load the manager of a run.

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
    return FoundManager(manager, config, num_epochs if isinstance(num_epochs, int) else None)


def check_recorded_target(text: str, folder: object, digest: str | None, store_root: str, is_trusted: bool, command: str) -> Target:
    """Return the recorded target of a run or capsule. Raise an error if its file is inside the store or has changed.

    `folder` is the folder in which the run was started. It is added to `sys.path`, unless it is inside the store.
    `digest` is the recorded digest of the file. `is_trusted` skips the checks. `command` is the command that error messages suggest.
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
