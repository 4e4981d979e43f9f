"""The command `trainmaster init`."""

from __future__ import annotations

import os
import shlex
from typing import Annotated

import typer

from trainmaster.cli.console import print_line
from trainmaster.cli.starter import TEMPLATES, read_template, write_project
from trainmaster.errors import SettingError
from trainmaster.text import printable


def command(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new or empty folder.")] = ".",
    template: Annotated[
        str,
        typer.Option(
            "--template", "-t", metavar="|".join(TEMPLATES), help="What to start with.", autocompletion=lambda: [*TEMPLATES.items()]
        ),
    ] = next(iter(TEMPLATES)),
) -> None:
    """Write a starter project that you can train at once.

    The project contains tests, a README, and a training program with a typed config and an extension. It trains on synthetic data.
    Templates: "supervised" is a function make_loop(config) with a model, a loss and data loaders; "wrapper" is a ModelWrapper, for a
    model that computes its own loss; "manager" is a Manager whose epochs you write; "loop" is a TrainTestLoop whose components you write.

    \b
    Examples:
      trainmaster init my_project
      trainmaster init my_project --template manager
    """
    if not folder or "\0" in folder:
        raise SettingError(f"{folder!r:.80} cannot be the name of a folder", hint="`trainmaster init my_project`")
    title = printable(os.path.basename(os.path.abspath(folder))) or "My project"
    texts = read_template(template, title)
    write_project(folder, texts)
    for number, name in enumerate(texts):
        print_line(f"{'wrote' if number == 0 else '':<5} {os.path.normpath(os.path.join(folder, name))}")
    enter = shlex.join(["cd", folder if not folder.startswith("-") else os.path.join(".", folder)])
    is_here = os.path.abspath(folder) == os.getcwd()
    commands = ["trainmaster run train.py", "pytest"] if is_here else [enter, "trainmaster run train.py"]
    for number, line in enumerate(commands):
        print_line(f"{'next:' if number == 0 else '':<5} {line}")
