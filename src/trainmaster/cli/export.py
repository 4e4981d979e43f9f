"""`trainmaster export`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.keys import complete_key
from trainmaster.cli.options import DryRun, StoreOption, WhereOption


def command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The tar file to write.")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY",
            help="Runs, by their keys or the first digits; by default all.",
            show_default=False,
            autocompletion=complete_key,
        ),
    ] = None,
    store: StoreOption = None,
    where: WhereOption = None,
    is_forced: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    is_dry: DryRun = False,
) -> None:
    """Write runs to one tar file.

    Each is taken as it stands, also while it is trained. Runs that have saved nothing are left out.

    \b
    Examples:
      trainmaster export best.tar.gz 3fa9 81c0
      trainmaster export small.tar.gz --where 'width<=64' --dry-run
    """
    import os

    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.opening import needed_store
    from trainmaster.cli.patience import told
    from trainmaster.cli.words import counted
    from trainmaster.errors import SettingError
    from trainmaster.store.printable import printable
    from trainmaster.store.selection import select
    from trainmaster.store.where import parse_where

    condition = parse_where(where) if where is not None else None
    found = needed_store(store)
    chosen = [resolve_key(found, key) for key in keys or []]
    if condition is not None:
        met = select(found, condition, told)
        chosen = [key for key in chosen if key in {*met}] if keys else sorted(met)
    elif not keys:
        chosen = sorted(found.configs)
    if os.path.lexists(file) and not is_forced:
        raise SettingError(f"`{file}` is there already", hint="`--force` replaces it")
    saved = [key for key in dict.fromkeys(chosen) if found.run(key).checkpoints()]
    if is_dry:
        for key in saved:
            print(key)
        print(f"would write {counted(len(saved), 'run')} to {printable(file)}")
        return
    if not saved:
        raise SettingError("none of these runs has saved anything: there is nothing to write", hint="`trainmaster ls` lists the runs")
    count = found.export_tar(file, compresslevel=0 if file.endswith(".tar") else 1, keys=saved)
    print(f"wrote {counted(count, 'run')} to {printable(file)}")
