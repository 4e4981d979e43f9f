"""`trainmaster run`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.options import DryRun, Epochs, Quiet, StoreOption, TargetArgument


def command(
    target: TargetArgument,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the config: lr=0.01, +new=1.", show_default=False)
    ] = None,
    store: StoreOption = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="A YAML or JSON file with the config.", show_default=False)] = None,
    epochs: Epochs = None,
    start_from: Annotated[
        str | None, typer.Option("--from", metavar="KEY[@best]", help="Begin with the weights of another run.", show_default=False)
    ] = None,
    is_fresh: Annotated[bool, typer.Option("--fresh", help="Start again, in a new attempt; what was trained stays.")] = False,
    is_quiet: Quiet = False,
    is_dry: DryRun = False,
) -> None:
    """Train one config; what was begun is taken up where it was saved.

    TARGET is the manager: a class, an object, or a function that returns one. Ctrl-C finishes the step, saves, and prints the command
    that resumes.

    \b
    Examples:
      trainmaster run train.py:MyManager lr=0.01 --epochs 20
      trainmaster run lab.train:MyManager --config base.yaml --dry-run
      trainmaster run train.py:MyManager lr=0.001 --from 3fa9@best
    """
    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.launching import config_from, launched, next_steps, plan_of
    from trainmaster.cli.opening import needed_store, store_path
    from trainmaster.cli.target import Target

    path = store_path(store)
    manager = launched(Target.parse(target), None if is_dry else path, is_quiet)
    found = config_from(manager, config, overrides or [])
    if start_from is not None:
        source = needed_store(store) if manager.store.root is None else manager.store
        key, at, which = start_from.partition("@")
        found = manager.starting_from(found, resolve_key(source, key) + at + which, source)
    if is_dry:
        print("\n".join(plan_of(manager, found, epochs, path)))
        return
    manager.process(found, epochs, resume=not is_fresh)
    if not is_quiet:
        print("\n".join(next_steps(manager)))
