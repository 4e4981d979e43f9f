"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from trainmaster.cli.completion import complete_key, complete_override, complete_target
from trainmaster.errors import SettingError

StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="PATH", help="Folder of the store (default: $TRAINMASTER_STORE, else ./runs).")
]
StoreArgument = Annotated[str | None, typer.Argument(metavar="STORE", help="Same as --store.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key of a run, or its first digits.", autocompletion=complete_key)]
Json = Annotated[bool, typer.Option("--json", help='Print only JSON; NaN and infinities become "nan", "inf" and "-inf".')]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would happen, and change nothing.")]
WhereOption = Annotated[
    str | None, typer.Option("--where", metavar="FILTER", help="Only runs that match, e.g. 'lr<0.01 and arch=ResNet18'.")
]
ByOption = Annotated[list[str] | None, typer.Option("--by", metavar="KEY", help="Group runs by this config key; repeat it for more.")]
FigureFile = Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the figure to this .png or .html file.")]
TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="What to train: train.py, train.py:make_loop or package.module:MyManager.", autocompletion=complete_target
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Use this TARGET, e.g. train.py:make_loop, instead of the recorded one.",
        autocompletion=complete_target,
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the config: lr=0.01, +new=1.", autocompletion=complete_override)
]
Choices = Annotated[
    list[str],
    typer.Argument(
        metavar="CHOICES", help="key=a,b,c arguments, or a YAML or JSON file whose lists are choices.", autocompletion=complete_override
    ),
]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Read config values from a YAML or JSON file; KEY=VALUE overrides them.")
]
Epochs = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Train up to N epochs in total (default: set by the config or the loop).")
]
Processes = Annotated[int | None, typer.Option(min=1, metavar="N", help="Train the model with N processes, each on a part of every batch.")]
WorkerProcesses = Annotated[int, typer.Option(min=0, metavar="N", help="Number of worker processes; 0 trains in this process.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over in a new attempt; earlier attempts are kept.")]
StrictCode = Annotated[bool, typer.Option("--strict-code", help="Refuse runs whose code has changed since they were trained.")]
SameProgram = Annotated[bool, typer.Option("--same-program", help="Accept runs that another program trained; this is recorded.")]
Trust = Annotated[bool, typer.Option("--trust", help="Import the recorded TARGET even if its file has changed or is inside the store.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]


def check_new_folder(option: str, text: str, store: str) -> str:
    """Return the absolute path of the folder that an option specifies. The folder must be new or empty, and outside of the store."""
    from trainmaster.store.files import is_temporary

    if not text or "\0" in text:
        raise SettingError(f"{option} {text!r:.80} cannot be the path of a folder", hint=f"`{option} again` is the folder `again`")
    path, root = os.path.realpath(text), os.path.realpath(store)
    if os.path.commonpath([path, root]) == root:
        raise SettingError(f"{option} {text}: this folder is inside the store", hint="choose a folder elsewhere")
    if os.path.lexists(path) and not os.path.isdir(path):
        raise SettingError(f"{option} {text}: this is a file", hint="choose a new folder")
    if os.path.isdir(path) and not all(map(is_temporary, os.listdir(path))):
        raise SettingError(f"{option} {text}: this folder is not empty", hint="choose a new or empty folder: nothing is overwritten")
    return path
