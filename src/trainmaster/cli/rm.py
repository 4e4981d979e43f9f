"""`trainmaster rm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.options import DryRun, Keys, StoreOption

if TYPE_CHECKING:
    from trainmaster.store import Store


def command(
    keys: Keys,
    store: StoreOption = None,
    is_sure: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    is_dry: DryRun = False,
) -> None:
    """Remove runs with all their records.

    Asks first, unless --yes is given; where nobody can answer, --yes is needed. If one of the runs is held, none is removed.

    \b
    Example:
      trainmaster rm 3fa9 81c0
    """
    import sys

    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.opening import needed_store
    from trainmaster.cli.words import counted
    from trainmaster.errors import SettingError
    from trainmaster.store.attempt import busy
    from trainmaster.store.lease import Hold, holder_of

    found = needed_store(store)
    chosen = [*dict.fromkeys(resolve_key(found, key) for key in keys)]
    holders = {key: holder_of(found.run(key)) for key in chosen}
    for key, holder in holders.items():
        if holder.hold is Hold.HELD:
            raise busy(found.run(key), holder)
    for key in chosen:
        print(_told(found, key))
    if is_dry:
        print(f"would remove {counted(len(chosen), 'run')}")
        return
    if not is_sure:
        if not sys.stdin.isatty():
            raise SettingError(f"to remove {counted(len(chosen), 'run')} needs a yes, and nobody can be asked", hint="add `--yes`")
        print(f"remove {counted(len(chosen), 'run')} for ever? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return
    for key in chosen:
        if holders[key].hold is Hold.UNKNOWN:
            print(f"run {key} may be held by {holders[key].owner}; watching its lease for up to {found.lease_time:g} s", file=sys.stderr)
        found.remove(key)
    print(f"removed {counted(len(chosen), 'run')}")


def _told(store: Store, key: str) -> str:
    """A run in one line, for somebody who is to say yes."""
    from trainmaster.cli.words import short
    from trainmaster.store.printable import printable
    from trainmaster.store.summary import summarize

    run = summarize(store, key)
    metrics = [f"{name} {short(value)}" for name, value in [*run.metrics.items()][:3]]
    parts = [run.state, f"epoch {run.epoch}" if run.epoch is not None else "", *metrics, *(f"[{label}]" for label in run.tags)]
    return printable("  ".join([key, *filter(None, parts)]))
