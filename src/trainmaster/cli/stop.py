"""`trainmaster stop`."""

from __future__ import annotations

from trainmaster.cli.options import Key, StoreOption


def command(key: Key, store: StoreOption = None) -> None:
    """Ask whoever trains a run to finish the step, save and end; from anywhere that sees the store.

    \b
    Example:
      trainmaster stop 3fa9
    """
    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.opening import needed_store
    from trainmaster.store.attempt import ask_to_stop
    from trainmaster.store.printable import printable

    found = needed_store(store)
    whole = resolve_key(found, key)
    owner = ask_to_stop(found.run(whole))
    print(printable(f"asked {owner or 'an unknown process'} to save and end run {whole}; `trainmaster show {whole}` tells how far it is"))
