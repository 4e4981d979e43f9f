"""What many commands take: a store, keys, `--json`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.keys import complete_key

_WHERE = "Only runs that meet a condition, such as 'lr<0.01 and arch=ResNet18'."

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="PATH", help="The folder of the store; by default $TRAINMASTER_STORE, else ./runs.", show_default=False
    ),
]
StoreArgument = Annotated[str | None, typer.Argument(metavar="STORE", help="The folder of the store, as with --store.", show_default=False)]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key of a run, or its first digits.", autocompletion=complete_key)]
Keys = Annotated[list[str], typer.Argument(metavar="KEY", help="Keys of runs, or their first digits.", autocompletion=complete_key)]
Json = Annotated[bool, typer.Option("--json", help='Print JSON and nothing else; NaN and infinities as "nan", "inf" and "-inf".')]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and touch nothing.")]
WhereOption = Annotated[str | None, typer.Option("--where", metavar="EXPR", help=_WHERE, show_default=False)]
TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="The manager: file.py:Name or package.module:Name; a class, an object or a function.")
]
Epochs = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Train up to N epochs in all; by default as the config or the loop says.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
