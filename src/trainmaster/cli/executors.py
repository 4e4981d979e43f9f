"""The options of `sweep` and `search` that specify where runs are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.errors import SettingError, did_you_mean

if TYPE_CHECKING:
    from trainmaster.manager.executor import Executor

EXECUTORS = {"local": "processes on this machine", "ray": "actors on a Ray cluster"}
_NUM_RAY_WORKERS = 2

Workers = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Number of workers (default: 0, trains in this process; 2 with Ray).")
]
ExecutorName = Annotated[
    str,
    typer.Option(
        metavar="local|ray",
        help="Where the workers run: on this machine, or on a Ray cluster.",
        autocompletion=lambda: [*EXECUTORS.items()],
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="auto|HOST:PORT|ray://HOST:PORT",
        help="The Ray cluster to use (default: $RAY_ADDRESS, else Ray is started on this machine).",
    ),
]
CpusPerRun = Annotated[float | None, typer.Option(min=0, metavar="N", help="CPUs that Ray reserves for each run (default: 1).")]
GpusPerRun = Annotated[float | None, typer.Option(min=0, metavar="N", help="GPUs for each run with Ray; 0.5 shares one (default: 0).")]


def make_workers(executor: str, workers: int | None, address: str | None, cpus: float | None, gpus: float | None) -> int | Executor:
    """Return the value to pass as `workers` to `Manager.sweep` and `Manager.search`."""
    if executor not in EXECUTORS:
        raise SettingError(
            f"--executor {executor}: there is no such executor", known=", ".join(EXECUTORS), hint=did_you_mean(executor, EXECUTORS)
        )
    if executor == "local":
        given = [
            name for name, value in {"--address": address, "--cpus-per-run": cpus, "--gpus-per-run": gpus}.items() if value is not None
        ]
        if given:
            raise SettingError(f"{given[0]} is an option of Ray", hint="add --executor ray")
        return workers or 0
    if workers == 0:
        raise SettingError("--workers 0: Ray needs a worker", hint="leave --executor out to train in this process")
    from trainmaster.sweep import RayExecutor

    settings = {name: value for name, value in {"cpus_per_run": cpus, "gpus_per_run": gpus}.items() if value is not None}
    return RayExecutor(workers or _NUM_RAY_WORKERS, address, **settings)


def describe_workers(workers: int | Executor) -> str:
    """Describe the workers for a dry run.

    >>> describe_workers(2)
    '2'
    """
    if not isinstance(workers, int):
        return f"{getattr(workers, 'workers', 'some')} on Ray"
    return str(workers or "none: runs are trained one by one in this process")
