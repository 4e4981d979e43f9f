"""The command `trainmaster launch`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.console import print_line, print_pairs
from trainmaster.cli.open_store import get_store_path
from trainmaster.cli.options import Choices, ConfigFile, Epochs, SameProgram, StoreOption, StrictCode, TargetArgument
from trainmaster.cli.plan_sweep import plan_sweep
from trainmaster.errors import RunFailedError, SettingError, did_you_mean
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.store import Store
    from trainmaster.sweep.sweep_command import SweepCommand

_PLACES = {"slurm": "sbatch", "ssh": "sh"}
"""The ways to launch a sweep, each with the program that runs the script."""


def command(
    place: Annotated[str, typer.Argument(metavar="slurm|ssh", help="Where to launch it.", autocompletion=lambda: [*_PLACES])],
    target: TargetArgument,
    choices: Choices,
    nodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of Slurm tasks (default: 1), or of hosts (default: all).")
    ] = None,
    host: Annotated[list[str] | None, typer.Option(metavar="HOST", help="A host for ssh; repeat it for more.")] = None,
    hosts: Annotated[str | None, typer.Option(metavar="FILE", help="A file with one host per line.")] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of sbatch: time=2:00:00, gpus=1; repeat it for more.")
    ] = None,
    is_submitted: Annotated[bool, typer.Option("--submit", help="Submit the script to Slurm, or start the workers on the hosts.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="The script to write (default: TARGET-slurm.sh).")
    ] = None,
    store: StoreOption = None,
    config: ConfigFile = None,
    workers: Annotated[int, typer.Option(min=0, metavar="N", help="Number of worker processes on each node.")] = 0,
    epochs: Epochs = None,
    is_strict_code: StrictCode = False,
    is_same_program: SameProgram = False,
) -> None:
    """Train a sweep on several machines, with Slurm or ssh.

    The machines must share the store. This command writes a script that runs the same `trainmaster sweep` on each node. Each node trains
    one missing run after another until none is left. Before Slurm's time limit, each worker saves a checkpoint, and its task is requeued.
    Without --submit, only the script is written.

    \b
    Examples:
      trainmaster launch slurm train.py lr=0.1,0.01 depth=2,4 --nodes 4 --sbatch time=2:00:00
      trainmaster launch slurm train.py choices.yaml --nodes 8 --sbatch gpus=1 --submit
      trainmaster launch ssh train.py lr=0.1,0.01 --host alpha --host beta --submit
    """
    from trainmaster.store import Store
    from trainmaster.sweep.slurm import sbatch_directives
    from trainmaster.sweep.ssh import check_hosts, read_hosts
    from trainmaster.sweep.sweep_command import is_local_folder, job_name, quote

    _check_place(place, host, hosts, sbatch, is_submitted)
    directives = sbatch_directives(sbatch or [])
    quote(get_store_path(store))  # raises an error before anything is written
    machines = check_hosts([*(host or []), *(read_hosts(hosts) if hosts is not None else [])]) if place == "ssh" else []
    if nodes is not None and 0 < len(machines) < nodes:
        raise SettingError(f"--nodes {nodes} is more than the {counted(len(machines), 'host')} given", hint="name more with --host")
    options: list[str] = ["--workers", str(workers)] if workers else []
    options += [name for name, is_on in (("--strict-code", is_strict_code), ("--same-program", is_same_program)) if is_on]
    sweep = plan_sweep(target, choices, config, epochs, *options)
    num_asked = nodes or len(machines) or 1
    num_nodes = min(num_asked, -(-sweep.num_runs // max(1, workers)))
    path = os.path.abspath(output if output is not None else f"{job_name(sweep.target.text)}-{place}.sh")
    # If there is no store yet, create it now, because each node first checks whether it can access the store.
    shared = sweep.manager.store if sweep.manager.store.root is not None else Store(get_store_path(store))
    script = _write_text(place, path, shared, sweep.command, num_nodes, machines, directives)
    _save(path, script)
    print_pairs([("runs", f"{sweep.num_runs:,}"), ("nodes", num_nodes), ("store", shared.root), ("script", path)], indent="")
    if num_nodes < num_asked:
        print_line(f"{counted(num_asked, 'node')} for {counted(sweep.num_runs, 'run')}: the script uses {num_nodes}")
    if is_local_folder(str(shared.root)):
        print_line(f"warning: other machines may not have access to the store {shared.root}; a node without access exits")
    words = [_PLACES[place], path]
    if is_submitted:
        _submit(words)
    else:
        print_line(f"{'submit' if place == 'slurm' else 'start'} it with: {shlex.join(words)}")


def _check_place(place: str, host: list[str] | None, hosts: str | None, sbatch: list[str] | None, is_submitted: bool) -> None:
    if place not in _PLACES:
        raise SettingError(f"cannot launch on `{place[:80]}`", hint=did_you_mean(place, _PLACES) or "write slurm or ssh")
    if place == "slurm" and (host or hosts):
        raise SettingError("`--host` and `--hosts` are for ssh", hint="Slurm chooses the machines; --nodes N sets their number")
    if place == "ssh" and sbatch:
        raise SettingError("`--sbatch` is for slurm")
    program = "sbatch" if place == "slurm" else "ssh"
    if is_submitted and shutil.which(program) is None:
        raise SettingError(f"there is no program `{program}` here", hint="leave out --submit, and run the script where it is installed")


def _write_text(place: str, path: str, store: Store, sweep: SweepCommand, num_nodes: int, hosts: list[str], directives: str) -> str:
    from trainmaster.sweep.slurm import slurm_script
    from trainmaster.sweep.ssh import ssh_script
    from trainmaster.sweep.sweep_command import check_machine, job_name, quote, shell_command

    python = os.path.abspath(sys.executable)
    setup = check_machine(os.getcwd(), python, store)
    words = shell_command([python, "-m", "trainmaster", *sweep.words(str(store.root))])
    if place == "slurm":
        title = "Written by `trainmaster launch slurm`: each task of the array trains the next missing run of a sweep."
        return slurm_script(title, job_name(sweep.target), num_nodes, setup, words, directives)
    if path_of_modules := os.environ.get("PYTHONPATH"):  # Slurm already passes the environment on
        setup += f"export PYTHONPATH={quote(path_of_modules)}\n"
    title = "Written by `trainmaster launch ssh`: each host trains the next missing run of a sweep."
    return ssh_script(title, hosts[:num_nodes], setup, words, quote(f"{path.removesuffix('.sh')}-logs"))


def _save(path: str, script: str) -> None:
    """Write a script. Raise an error if the file exists with different content."""
    if os.path.isdir(path):
        raise SettingError(f"`{path}` is a folder", hint="--output FILE")
    if not os.path.isdir(os.path.dirname(path)):
        raise SettingError(f"there is no folder `{os.path.dirname(path)}`", hint="create it first")
    try:
        with open(path, "x", encoding="utf-8", errors="surrogateescape") as file:
            file.write(script)
        os.chmod(path, os.stat(path).st_mode | 0o100)
    except FileExistsError:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            if file.read() != script:
                raise SettingError(f"`{path}` exists with other content", hint="delete it, or choose another file with --output") from None


def _submit(words: list[str]) -> None:
    sys.stdout.flush()
    code = subprocess.run(words, check=False).returncode
    if code:
        raise RunFailedError(f"`{shlex.join(words)}` failed with exit code {code}", hint="its messages are above; the script is complete")
