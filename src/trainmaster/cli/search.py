"""The command `trainmaster search`."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from trainmaster.cli.completion import complete_override
from trainmaster.cli.executors import Address, CpusPerRun, ExecutorName, GpusPerRun, Workers, make_workers
from trainmaster.cli.load_manager import load_manager
from trainmaster.cli.open_store import find_store, get_store_path
from trainmaster.cli.options import ConfigFile, DryRun, Epochs, Quiet, SameProgram, StoreOption, StrictCode, TargetArgument
from trainmaster.errors import SettingError

_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}


def command(
    target: TargetArgument,
    space: Annotated[
        list[str],
        typer.Argument(
            metavar="SPACE...",
            help="key=log(low,high), key=float(low,high), key=int(low,high), key=a,b,c; key=value is fixed.",
            autocompletion=complete_override,
        ),
    ],
    store: StoreOption = None,
    config: ConfigFile = None,
    trials: Annotated[int, typer.Option(min=1, metavar="N", help="Number of trials in total; a larger number continues a search.")] = 100,
    workers: Workers = None,
    executor: ExecutorName = "local",
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    monitor: Annotated[list[str] | None, typer.Option(metavar="METRIC", help="The metric to improve; several for NSGA-II or TPE.")] = None,
    mode: Annotated[
        list[str] | None, typer.Option(metavar="min|max", help="Whether smaller or larger is better (default: by name).")
    ] = None,
    sampler: Annotated[str, typer.Option(metavar="NAME", help="grid, random, qmc, tpe, gp, cmaes or nsga2.")] = "tpe",
    pruner: Annotated[str, typer.Option(metavar="NAME", help="none, median, asha, hyperband or wilcoxon.")] = "none",
    replicates: Annotated[int, typer.Option(min=1, metavar="N", help="Runs per trial, with different seeds.")] = 1,
    seed: Annotated[int, typer.Option(metavar="N", help="The seed of the sampler.")] = 0,
    epochs: Epochs = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Start no trial after this time: 90s, 30m, 2h.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="A name for the search (default: from its settings).")] = None,
    window: Annotated[
        str,
        typer.Option(
            metavar="N|none",
            help="Trial n waits for the results of trials up to n - N; with `none`, it does not wait, and the search is not repeatable.",
        ),
    ] = "auto",
    is_warm: Annotated[bool, typer.Option("--warm-start", help="Give the sampler the results of matching runs in the store.")] = False,
    is_strict_code: StrictCode = False,
    is_same_program: SameProgram = False,
    is_quiet: Quiet = False,
    is_dry: DryRun = False,
) -> int:
    """Search for the values that give the best metric.

    Optuna proposes the trials. The search is recorded in the store, so the same command continues it after a crash. To share the work,
    start the same command on another machine that has access to the store. The exit code is 1 if no trial succeeded.

    \b
    Examples:
      trainmaster search train.py lr='log(1e-5,1e-1)' width='int(8,256)' --trials 50 --workers 2
      trainmaster search train.py lr='log(1e-4,1)' optim.name=sgd,adam --pruner asha --epochs 20
      trainmaster search train.py lr='log(1e-4,1)' --monitor valid/accuracy --timeout 2h
      trainmaster search train.py lr='log(1e-4,1)' --executor ray --address auto --workers 8 --gpus-per-run 0.5
    """
    from trainmaster.cli.build_config import build_search
    from trainmaster.store.recorded_metrics import unknown_metrics
    from trainmaster.sweep.search import plan_search, search
    from trainmaster.sweep.search_report import plan_lines, space_texts

    seconds = _parse_time(timeout)
    chosen = make_workers(executor, workers, address, cpus_per_run, gpus_per_run)
    path = get_store_path(store)
    is_new = is_dry and find_store(store) is None  # a dry run must not create the store
    manager = load_manager(target, None if is_new else path, is_quiet, is_strict_code, is_same_program)
    searched, base = build_search(manager, space, config)
    settings: dict[str, Any] = {
        "mode": (mode[0] if len(mode) == 1 else tuple(mode)) if mode else None,
        "sampler": sampler,
        "pruner": pruner,
        "seed": seed,
        "epochs": epochs,
        "base": base,
        "name": name,
        "window": window if window == "auto" else None if window == "none" else _parse_window(window),
        "replicates": replicates,
    }
    metrics = "loss" if not monitor else monitor[0] if len(monitor) == 1 else tuple(monitor)
    if is_dry:
        plan = plan_search(manager, searched, metrics, workers=chosen, **settings)
        print(*plan_lines(plan, trials, ()), *(f"  {key} = {text}" for key, text in space_texts(plan)), sep="\n")
        print(f"store: {path} (nothing was written)")
        for each in unknown_metrics(manager.store, plan.monitor):
            print(f"no run in the store has the metric `{each}`; if the program does not record it, the search fails after its first run")
        return 0
    result = search(manager, searched, trials, metrics, workers=chosen, warm_start=is_warm, timeout=seconds, **settings)
    return 0 if result.best is not None else 1


def _parse_time(text: str | None) -> float | None:
    if text is None:
        return None
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise SettingError(f"--timeout {text}: expected a time", hint="write 90s, 30m, 2h or 1d")
    return float(match[1]) * _SECONDS[match[2]]


def _parse_window(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise SettingError(f"--window {text}: expected a number of trials, or none")
    return int(text)
