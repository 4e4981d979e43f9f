"""The command `trainmaster sweep`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trainmaster.cli.executors import Address, CpusPerRun, ExecutorName, GpusPerRun, Workers, make_workers
from trainmaster.cli.load_manager import load_manager
from trainmaster.cli.open_store import find_store, get_store_path
from trainmaster.cli.options import Choices, ConfigFile, DryRun, Epochs, Fresh, Quiet, SameProgram, StoreOption, StrictCode, TargetArgument


def command(
    target: TargetArgument,
    choices: Choices,
    store: StoreOption = None,
    config: ConfigFile = None,
    workers: Workers = None,
    executor: ExecutorName = "local",
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    epochs: Epochs = None,
    max_errors: Annotated[int | None, typer.Option(min=0, metavar="N", help="Stop after N failed runs (default: never).")] = None,
    is_fresh: Fresh = False,
    is_strict_code: StrictCode = False,
    is_same_program: SameProgram = False,
    is_quiet: Quiet = False,
    is_dry: DryRun = False,
) -> int:
    """Train every combination of config values.

    Each combination is trained once. To share the work, start the same command on another machine that has access to the store. If a run
    fails, the others continue, and the exit code is 1.

    \b
    Examples:
      trainmaster sweep train.py lr=0.1,0.01,0.001 depth=2,4 --workers 2
      trainmaster sweep train.py lr=0.1,0.01 --config base.yaml
      trainmaster sweep train.py:MyManager choices.yaml --dry-run
      trainmaster sweep train.py lr=0.1,0.01 --executor ray --address auto --workers 8 --gpus-per-run 0.5
    """
    from trainmaster.cli.build_config import build_choices, warn_about_any_key
    from trainmaster.cli.print_plan import print_sweep_plan

    chosen = make_workers(executor, workers, address, cpus_per_run, gpus_per_run)
    path = get_store_path(store)
    manager = load_manager(target, None if is_dry else path, is_quiet, is_strict_code, is_same_program)
    built = build_choices(manager, choices, config)
    if not is_quiet:
        warn_about_any_key(manager, choices)
    if is_dry or not is_quiet:
        done_in = find_store(store) if is_dry and not is_fresh else None
        print_sweep_plan(manager, built, epochs, chosen, path, has_keys=is_dry, done_in=done_in)
    if is_dry:
        return 0
    limit = sys.maxsize if max_errors is None else max_errors
    result = manager.sweep(built, epochs, workers=chosen, max_errors=limit, resume=not is_fresh)
    return 1 if result.failed or result.given_up else 0
