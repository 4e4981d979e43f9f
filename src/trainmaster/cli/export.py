"""The command `trainmaster export`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from trainmaster.cli.completion import complete_key
from trainmaster.cli.console import print_line
from trainmaster.cli.open_store import open_store, select_keys
from trainmaster.cli.options import DryRun, StoreOption, WhereOption
from trainmaster.errors import SettingError
from trainmaster.text import counted

_MAX_LISTED = 10


def command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The tar file to write.")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Keys of runs, or their first digits (default: all runs).", autocompletion=complete_key),
    ] = None,
    store: StoreOption = None,
    where: WhereOption = None,
    is_forced: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    is_dry: DryRun = False,
) -> None:
    """Write runs to a tar file.

    A run that is being trained is exported in its current state. Runs without a checkpoint are left out.

    \b
    Examples:
      trainmaster export best.tar.gz 3fa9 81c0
      trainmaster export small.tar.gz --where 'width<=64' --dry-run
    """
    if not file.endswith((".tar", ".tar.gz", ".tgz")):
        raise SettingError(
            f"`{file}` does not end with .tar, .tar.gz or .tgz, but `export` writes a tar file with whole runs",
            hint=f"trainmaster export {file}.tar.gz ...; to save weights: torch.save(manager.fetch(key).model.state_dict(), ...)",
        )
    found = open_store(store)
    selected = select_keys(found, keys, where)
    if os.path.lexists(file) and not is_forced:
        raise SettingError(f"`{file}` already exists", hint="`--force` replaces it")
    saved = [key for key in selected if found.run(key).checkpoints()]
    left_out = [key for key in selected if key not in saved]
    if is_dry:
        for key in saved:
            print_line(key)
        print_line(f"would write {counted(len(saved), 'run')} to {file}{_describe_left_out(left_out)}")
        return
    if not saved:
        raise SettingError("there is nothing to export: none of these runs has a checkpoint", hint="`trainmaster ls` lists the runs")
    count = found.export_tar(file, compresslevel=0 if file.endswith(".tar") else 1, keys=saved)
    print_line(f"wrote {counted(count, 'run')} to {file}{_describe_left_out(left_out)}")


def _describe_left_out(keys: list[str]) -> str:
    listed = ", ".join([*keys[:_MAX_LISTED], *(["..."] if len(keys) > _MAX_LISTED else [])])
    return f"; left out {counted(len(keys), 'run')} without a checkpoint: {listed}" if keys else ""
