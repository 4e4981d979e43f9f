"""`trainmaster replay`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The capsule that FailureCapsule kept: train_dir/capsules/1.capsule.")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET", help="What builds the loop, if it is not where it was: a manager, or a function.", show_default=False
        ),
    ] = None,
) -> None:
    """Do the batch that a training failed on again, and say whether it raises the same error.

    TARGET is the manager, or a function without parameters that returns a TrainManager. Nothing is saved. Exit code 0: the same error.

    \b
    Examples:
      trainmaster replay runs/previews/3f/3fa9c1d2/attempt-0001/capsules/1.capsule
      trainmaster replay out/capsules/1.capsule --target train.py:make_loop
    """
    import os
    import sys

    from trainmaster.cli.failure import failure
    from trainmaster.cli.target import Target
    from trainmaster.errors import SettingError
    from trainmaster.extensions.capsule import Capsule, text_of, type_of
    from trainmaster.extensions.replay import replay
    from trainmaster.store.printable import printable, printable_lines

    capsule = Capsule.load(file)
    known = capsule.work.get("target")
    if target is None and not isinstance(known, str):
        raise SettingError(
            "the capsule does not say what builds the loop", hint=f"name it: `trainmaster replay {file} --target train.py:make_loop`"
        )
    folder = capsule.work.get("folder")
    if target is None and isinstance(folder, str) and os.path.isdir(folder):
        sys.path[:0] = [folder, os.getcwd()]  # in this order: a module here may have the same name
        if isinstance(known, str) and known.partition(":")[0].endswith(".py"):
            known = os.path.join(folder, known)
    found = Target.parse(target if target is not None else str(known))
    print(f"target {printable(found.text)}", flush=True)
    replayed = replay(capsule, found.loop(lambda manager: capsule.work.get("config")))
    if replayed.error is not None:
        print(printable_lines(failure(replayed.error).rpartition("\n")[0]))  # all but the advice, which is for other commands
    place = ", ".join(
        [f"stage {capsule.place['stage']}"]
        + [f"{name} {capsule.place[name]}" for name in ("epoch_num", "batch_num", "step_num") if capsule.place.get(name) is not None]
    )
    if replayed.is_same:
        print(printable(f"replayed: the same error ({place})"))
        return
    got = "no error" if replayed.error is None else f"{type_of(replayed.error)}: {text_of(replayed.error)}"
    lines = [f"not replayed: {got}", f"  wanted  {capsule.error['type']}: {capsule.error['message']}", f"  where   {place}"]
    lines += [f"  why     {reason}" for reason in replayed.reasons()]
    print(printable_lines("\n".join(lines)))
    raise typer.Exit(1)
