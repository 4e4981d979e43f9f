"""`trainmaster sweep`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.options import DryRun, Epochs, Quiet, StoreOption, TargetArgument


def command(
    target: TargetArgument,
    choices: Annotated[
        list[str], typer.Argument(metavar="CHOICES", help="A YAML or JSON file whose lists are choices, or key=a,b,c words.")
    ],
    store: StoreOption = None,
    workers: Annotated[int, typer.Option(min=0, metavar="N", help="Processes to train in; 0 trains here, one after the other.")] = 0,
    epochs: Epochs = None,
    max_errors: Annotated[int | None, typer.Option(min=0, metavar="N", help="Stop at so many failed runs; by default never.")] = None,
    is_quiet: Quiet = False,
    is_dry: DryRun = False,
) -> int:
    """Train every combination of choices, each once; the same command on another machine that sees the store joins in.

    Exit code 1 if a run failed. Failed runs do not stop the others.

    \b
    Examples:
      trainmaster sweep train.py:MyManager lr=0.1,0.01,0.001 depth=2,4 --workers 2
      trainmaster sweep train.py:MyManager choices.yaml --dry-run
    """
    import sys

    from trainmaster.cli.launching import choices_from, launched, sweep_plan
    from trainmaster.cli.opening import store_path
    from trainmaster.cli.target import Target

    path = store_path(store)
    manager = launched(Target.parse(target), None if is_dry else path, is_quiet)
    found = choices_from(manager, choices)
    if is_dry or not is_quiet:
        print("\n".join(sweep_plan(found, epochs, workers, path, shows_keys=is_dry, manager=manager)))
    if is_dry:
        return 0
    result = manager.sweep(found, epochs, workers=workers, max_errors=sys.maxsize if max_errors is None else max_errors)
    return 1 if result.failed or result.given_up else 0
