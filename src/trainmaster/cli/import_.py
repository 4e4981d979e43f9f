"""The command `trainmaster import`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.console import print_line
from trainmaster.cli.open_store import find_store, get_store_path
from trainmaster.cli.options import DryRun, StoreOption
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.store.transfer import PackedRun


def command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A tar file written by `trainmaster export`.")],
    store: StoreOption = None,
    is_dry: DryRun = False,
) -> None:
    """Add the runs in a tar file to a store.

    If the store already has one of the runs, its copy is updated only if the run in the file was trained further. If anything in the
    file is invalid, nothing is imported.

    \b
    Example:
      trainmaster import best.tar.gz --store runs
    """
    from trainmaster.store import Store

    if not is_dry:
        keys = (find_store(store) or Store(get_store_path(store))).load_tar(file)
        for key in keys:
            print_line(key)
        print_line(f"imported {counted(len(keys), 'run')}")
        return
    found = find_store(store)
    num_new = 0
    for packed in _read_runs(file):
        status = found.run(packed.key).status() if found is not None and packed.key in found.configs else None
        is_new = status is None or status["epoch"] < packed.epoch
        num_new += is_new
        print_line(f"{packed.key}  epoch {packed.epoch}" + ("" if is_new else ", already in the store"))
    print_line(f"would import {counted(num_new, 'run')}; their content is checked during the import")


def _read_runs(file: str) -> Iterator[PackedRun]:
    """Yield the runs in a tar file, without their checkpoints."""
    from trainmaster.errors import StoreError
    from trainmaster.store.tar import read_tar, refused

    try:
        yield from read_tar(file, sys.maxsize, None)
    except StoreError:
        raise
    except Exception as error:  # a forged archive can raise any error inside tarfile and zlib
        raise refused(file, f"it cannot be read: {error}"[:500]) from error
