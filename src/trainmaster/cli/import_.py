"""`trainmaster import`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.options import DryRun, StoreOption

if TYPE_CHECKING:
    from trainmaster.store.transfer import Parcel


def command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A tar file that `trainmaster export` has written.")],
    store: StoreOption = None,
    is_dry: DryRun = False,
) -> None:
    """Adopt the runs of a tar file.

    Runs that are here already, and trained as far, stay as they are. Whatever is not as it should be refuses the whole file.

    \b
    Example:
      trainmaster import best.tar.gz --store runs
    """
    from trainmaster.cli.opening import found_store, store_path
    from trainmaster.cli.words import counted
    from trainmaster.store import Store

    if not is_dry:
        found_store(store)  # a folder that is no store is refused; one that is missing is made
        keys = Store(store_path(store)).load_tar(file)
        for key in keys:
            print(key)
        print(f"adopted {counted(len(keys), 'run')}")
        return
    here = found_store(store)
    count = 0
    for parcel in _parcels(file):
        status = here.run(parcel.key).status() if here is not None and parcel.key in here.configs else None
        is_new = status is None or status["epoch"] < parcel.epoch
        count += is_new
        print(
            f"{parcel.key}  epoch {parcel.epoch}" + ("" if is_new else f", stays as it is here: epoch {status['epoch'] if status else 0}")
        )
    print(f"would adopt {counted(count, 'run')}; their values are checked when they are")


def _parcels(file: str) -> Iterator[Parcel]:
    """The runs of a tar file, without what they have saved."""
    import sys

    from trainmaster.errors import StoreError
    from trainmaster.store.tar import read_tar, refused

    try:
        yield from read_tar(file, sys.maxsize, None)
    except StoreError:
        raise
    except Exception as error:  # whatever a made-up archive makes of tarfile and zlib
        raise refused(file, f"it cannot be read: {error}"[:500]) from error
