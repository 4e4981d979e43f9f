"""The command `trainmaster replay`."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.console import print_line
from trainmaster.cli.formatting import format_user_error
from trainmaster.cli.load_manager import check_recorded_target
from trainmaster.cli.options import TargetOption, Trust
from trainmaster.cli.target import Target
from trainmaster.errors import SettingError
from trainmaster.text import printable_lines

if TYPE_CHECKING:
    from trainmaster.extensions.capsule import Capsule

_NO_CHANGE = "no change of the code was found; if you have repaired something else, such as a data file, that was the cause"
_NO_REASON = "no change of the code or of the versions was found; the error may depend on something else, such as a file or the time"


def command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file that FailureCapsule saved: train_dir/capsules/1.capsule.")],
    target: TargetOption = None,
    is_trusted: Trust = False,
) -> None:
    """Replay the batch that a training run failed on.

    Reports whether the same error is raised. The exit code is 0 if the error is the same, or if you have changed the code
    and the batch now trains without an error. TARGET is a `make_loop` function, a manager, or a function without
    parameters that returns a TrainManager. Nothing is saved.

    \b
    Examples:
      trainmaster replay runs/previews/3f/3fa9c1d2/attempt-0001/capsules/1.capsule
      trainmaster replay out/capsules/1.capsule --target train.py:make_loop
    """
    from trainmaster.extensions.capsule import Capsule, error_message, error_type
    from trainmaster.extensions.replay import replay
    from trainmaster.manager.code_check import list_files

    capsule = Capsule.load(file)
    found = Target.parse(target) if target is not None else _get_recorded_target(capsule, file, is_trusted)
    print_line(f"target {found.text}")
    loop, _ = found.load_loop(lambda manager: capsule.origin.get("config"))
    replayed = replay(capsule, loop)
    if replayed.error is not None:
        print(printable_lines(format_user_error(replayed.error)))
    position = [f"stage {capsule.location['stage']}"]
    position += [
        f"{name} {capsule.location[name]}" for name in ("epoch_num", "batch_num", "step_num") if capsule.location.get(name) is not None
    ]
    if replayed.is_same:
        print_line(f"replayed: the same error ({', '.join(position)})")
        return
    reasons = replayed.reasons()
    changed = _list_changed_files(capsule, found) if not reasons else []
    if changed and replayed.error is None:
        print_line(f"the batch trains without the error now ({', '.join(position)})")
        print_line(f"changed since the error: {list_files(changed)}")
        return
    if replayed.error is None:
        result = "the error did not occur again: the batch trains without it"
        reasons = reasons or [_NO_CHANGE]
    else:
        result = f"not replayed: {error_type(replayed.error)}: {error_message(replayed.error)}"
        reasons = reasons or [f"changed since the error: {list_files(changed)}" if changed else _NO_REASON]
    lines = [
        result,
        f"  expected  {capsule.error['type']}: {capsule.error['message']}",
        f"  where     {', '.join(position)}",
    ]
    lines += [f"  why       {reason}" for reason in reasons]
    print(printable_lines("\n".join(lines)))
    raise typer.Exit(1)


def _get_recorded_target(capsule: Capsule, file: str, is_trusted: bool) -> Target:
    text, digest = capsule.origin.get("target"), capsule.origin.get("digest")
    if not isinstance(text, str):
        raise SettingError("the capsule does not record a TARGET", hint=f"name it: `trainmaster replay {file} --target train.py:make_loop`")
    command = shlex.join(["trainmaster", "replay", file])
    recorded = digest if isinstance(digest, str) else None
    return check_recorded_target(text, capsule.origin.get("folder"), recorded, _find_store_root(file), is_trusted, command)


def _list_changed_files(capsule: Capsule, target: Target) -> list[str]:
    """Return the files of the project that have changed since the capsule was saved. If this is unknown, return an empty list."""
    from trainmaster.extensions.failure_capsule import program_of_target
    from trainmaster.store.program import Program

    before = Program.from_record(capsule.origin.get("program"))
    return [] if before is None or target.file is None else program_of_target(target.file).changed_since(before)


def _find_store_root(capsule: str) -> str:
    """Return the folder of the store that contains a capsule, or the path of the capsule if no store contains it."""
    folder = path = os.path.realpath(capsule)
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        if os.path.exists(os.path.join(folder, "store.json")):
            return folder
    return path
