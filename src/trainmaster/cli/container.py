"""The command `trainmaster container`."""

from __future__ import annotations

import os
import shlex
from typing import Annotated

import typer

from trainmaster.cli.completion import complete_override
from trainmaster.cli.console import print_line, print_pairs
from trainmaster.cli.open_store import get_store_path
from trainmaster.cli.options import ConfigFile, Epochs, StoreOption, TargetArgument, check_new_folder
from trainmaster.cli.plan_sweep import plan_sweep
from trainmaster.errors import SettingError
from trainmaster.text import first_lines

_MAX_SHOWN = 10


def command(
    target: TargetArgument,
    choices: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CHOICES", help="key=a,b,c arguments of the sweep that the container trains.", autocompletion=complete_override
        ),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="A new or empty folder.")] = "container",
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Number of worker containers, and of Slurm tasks.")] = 2,
    store: StoreOption = None,
    config: ConfigFile = None,
    epochs: Epochs = None,
) -> None:
    """Write the files of a container that trains TARGET.

    The folder contains a Dockerfile, your code with its uncommitted changes, the versions of the installed packages, a compose file that
    starts a Ray cluster, and a Slurm script that uses Apptainer. Stores, secrets and .git are left out.

    \b
    Examples:
      trainmaster container train.py -o image
      trainmaster container train.py lr=0.1,0.01 depth=2,4 --workers 4 -o image
    """
    from trainmaster.config.declared_secrets import secret_texts
    from trainmaster.config.masking import secret_values
    from trainmaster.sweep.container import write_context

    path = get_store_path(store)
    folder = check_new_folder("--output", output, path)
    sweep = plan_sweep(target, choices or [], config, epochs)
    if sweep.manager.store.root is not None:
        hint = "name a make_loop function or a manager class: the image gives it the store /store"
        raise SettingError(f"`{sweep.target.text}` has its own store, {sweep.manager.store.root}", hint=hint)
    file = sweep.target.file
    if file is None:
        raise SettingError(f"the source of `{sweep.target.text}` was not found", hint="name its file: train.py:make_loop")
    defaults = sweep.manager.defaults
    secrets = sorted({*secret_values(os.environ), *(() if isinstance(defaults, type) else secret_texts(defaults))})
    context = write_context(folder, file, sweep.command, workers, secrets, [path])
    changes = " with uncommitted changes" if context.is_dirty else ""
    code = f"commit {context.commit[:12]}{changes}" if context.commit else "the files of a repository without a commit"
    packages = ", ".join(f"{name} {version}" for name, version in context.packages.items())
    print_pairs([("folder", context.folder), ("code", code), ("packages", packages)], indent="")
    for line in first_lines(context.left_out, len(context.left_out), _MAX_SHOWN):
        print_line(f"left out: {line}")
    for line in context.warnings:
        print_line(f"warning: {line}")
    print_line(f"next: {shlex.join(['docker', 'build', '-t', context.name, folder])}")
    print_line("      compose.yaml and slurm.sh start with the commands that run them")
