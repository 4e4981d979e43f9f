"""The command `trainmaster rm`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.completion import complete_key
from trainmaster.cli.console import print_line
from trainmaster.cli.formatting import format_short
from trainmaster.cli.open_store import open_store, select_keys
from trainmaster.cli.options import DryRun, StoreOption, WhereOption
from trainmaster.errors import SettingError
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.store import Store


def command(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY", help="Keys of runs, or their first digits.", autocompletion=complete_key)
    ] = None,
    store: StoreOption = None,
    where: WhereOption = None,
    is_confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    is_dry: DryRun = False,
) -> None:
    """Delete runs with all their files.

    Asks for confirmation unless you pass --yes; without a terminal, --yes is required. If one of the runs is being trained, none is
    deleted.

    \b
    Examples:
      trainmaster rm 3fa9 81c0
      trainmaster rm --where 'state=failed or lr>0.5' --dry-run
    """
    from trainmaster.store.attempt import busy
    from trainmaster.store.lease import Hold, holder_of

    if not keys and where is None:
        raise SettingError(
            "which runs? There is no KEY and no --where", hint="trainmaster rm 3fa9, or trainmaster rm --where 'state=failed'"
        )
    found = open_store(store)
    chosen = select_keys(found, keys, where)
    if not chosen:
        print_line("no run matches")
        return
    holders = {key: holder_of(found.run(key)) for key in chosen}
    for key, holder in holders.items():
        if holder.hold is Hold.HELD:
            raise busy(found.run(key), holder)
    for key in chosen:
        print_line(_describe_run(found, key))
    count = counted(len(chosen), "run")
    if is_dry:
        print_line(f"would delete {count}")
        return
    if not is_confirmed and not _confirm(count):
        print_line("nothing was deleted")
        return
    for key in chosen:
        if holders[key].hold is Hold.UNKNOWN:
            message = f"run {key} may be held by {holders[key].owner}; watching its lease for up to {found.lease_time:g} s"
            print(message, file=sys.stderr)
        found.remove(key)
    print_line(f"deleted {count}")


def _confirm(count: str) -> bool:
    if not sys.stdin.isatty():
        raise SettingError(f"deleting {count} needs a confirmation, and stdin is not a terminal", hint="add `--yes`")
    print(f"permanently delete {count}? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _describe_run(store: Store, key: str) -> str:
    from trainmaster.store.summary import summarize

    run = summarize(store, key)
    metrics = [f"{name} {format_short(value)}" for name, value in [*run.metrics.items()][:3]]
    parts = [run.state, f"epoch {run.epoch}" if run.epoch is not None else "", *metrics, *(f"[{label}]" for label in run.tags)]
    return "  ".join([key, *filter(None, parts)])
