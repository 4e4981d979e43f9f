"""The command `trainmaster run`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.load_manager import load_manager, print_next_steps, start_processes
from trainmaster.cli.open_store import find_store, get_store_path, open_store, resolve_key
from trainmaster.cli.options import (
    ConfigFile,
    DryRun,
    Epochs,
    Fresh,
    Overrides,
    Processes,
    Quiet,
    SameProgram,
    StoreOption,
    StrictCode,
    TargetArgument,
)
from trainmaster.loop.ranks import is_other_rank


def command(
    target: TargetArgument,
    overrides: Overrides = None,
    store: StoreOption = None,
    config: ConfigFile = None,
    epochs: Epochs = None,
    start_from: Annotated[str | None, typer.Option("--from", metavar="KEY[@best]", help="Start with the weights of another run.")] = None,
    processes: Processes = None,
    is_fresh: Fresh = False,
    is_strict_code: StrictCode = False,
    is_same_program: SameProgram = False,
    is_quiet: Quiet = False,
    is_dry: DryRun = False,
) -> None:
    """Train one config.

    If this config already has a run, the run resumes from its last checkpoint. TARGET is a Manager class, a manager, a function that
    returns a manager, or a function `make_loop(config)` that returns a TrainManager. Ctrl-C finishes the current step, saves a checkpoint
    and prints the command that resumes the run.

    \b
    Examples:
      trainmaster run train.py lr=0.01 --epochs 20
      trainmaster run lab.train:MyManager --config base.yaml --dry-run
      trainmaster run train.py:MyManager lr=0.001 --from 3fa9@best
      trainmaster run train.py --processes 2
    """
    from trainmaster.cli.build_config import build_config, warn_about_any_key
    from trainmaster.cli.print_plan import print_run_plan
    from trainmaster.manager.start_from import config_starting_from

    if processes is not None and not is_dry and start_processes(processes):
        return
    is_quiet = is_quiet or is_other_rank()
    path = get_store_path(store)
    manager = load_manager(target, None if is_dry else path, is_quiet, is_strict_code, is_same_program)
    built = build_config(manager, config, overrides or [])
    if not is_quiet:
        warn_about_any_key(manager, overrides or [])
    if start_from is not None:
        source = open_store(store) if manager.store.root is None else manager.store
        key, at, which = start_from.partition("@")
        built = config_starting_from(manager, built, resolve_key(source, key) + at + which, source)
    if is_dry:
        print_run_plan(manager, built, epochs, path, None if is_fresh else find_store(store))
        return
    manager.process(built, epochs, resume=not is_fresh)
    if not is_quiet:
        print_next_steps(manager)
