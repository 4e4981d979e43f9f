"""`trainmaster verify`."""

from __future__ import annotations

from trainmaster.cli.options import Json, StoreArgument, StoreOption


def command(store_dir: StoreArgument = None, store: StoreOption = None, is_json: Json = False) -> None:
    """Read every file of a store, and list all that is damaged.

    The exit code is 1 if there is any. Runs may be trained meanwhile.

    \b
    Example:
      trainmaster verify runs
    """
    from typer.exceptions import Exit

    from trainmaster.cli.opening import found_store, say_empty
    from trainmaster.cli.strict_json import print_json
    from trainmaster.cli.terminal import the_terminal
    from trainmaster.cli.words import counted
    from trainmaster.store.printable import printable

    found = found_store(store, store_dir)
    if found is None:
        say_empty(store, store_dir)
    damage = found.verify() if found is not None else []
    if is_json:
        print_json([each._asdict() for each in damage])
    elif found is not None:
        terminal = the_terminal()
        for each in damage:
            print(terminal.paint(printable(each), "bad" if each.is_fatal else "warn"))
        fatal = sum(each.is_fatal for each in damage)
        told = f"damaged: {counted(len(damage), 'file')}; the runs of {len(damage) - fatal} of them go on all the same"
        print(told if damage else f"{counted(len(found.configs), 'run')}, all as it was written")
    if damage:
        raise Exit(1)
