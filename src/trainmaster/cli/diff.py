"""`trainmaster diff`."""

from __future__ import annotations

from trainmaster.cli.options import Json, Key, StoreOption


def command(one: Key, other: Key, store: StoreOption = None, is_json: Json = False) -> None:
    """Show what differs between two runs.

    First the values of their configs, then their metrics.

    \b
    Example:
      trainmaster diff 3fa9 81c0
    """
    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.opening import needed_store
    from trainmaster.cli.strict_json import print_json
    from trainmaster.cli.table import Cell, Column, table
    from trainmaster.cli.terminal import the_terminal
    from trainmaster.cli.words import exact, short
    from trainmaster.config.difference import Missing, diff
    from trainmaster.store.summary import flat, summarize

    found = needed_store(store)
    runs = [summarize(found, resolve_key(found, each)) for each in (one, other)]
    configs = diff(*(dict(flat(run.config)) for run in runs))
    metrics = diff(*(run.metrics for run in runs))
    if is_json:
        sides = ("one", "other")
        parts = {
            part: {
                name: {side: value for side, (kind, value) in zip(sides, values, strict=True) if kind is not Missing}
                for name, *values in differences
            }
            for part, differences in (("config", configs), ("metrics", metrics))
        }
        print_json({"one": runs[0].key, "other": runs[1].key, **parts})
        return
    terminal = the_terminal()
    for title, differences, written in (("CONFIG", configs, exact), ("METRIC", metrics, short)):
        if differences:
            cells = [[Cell("-", "dim") if side[0] is Missing else Cell(written(side[1])) for side in sides] for _, *sides in differences]
            columns = [Column(run.key, [each[number] for each in cells]) for number, run in enumerate(runs)]
            for line in table([Column(title, [Cell(name) for name, *_ in differences]), *columns], terminal, num_fixed=3)[0]:
                print(line)
    if not configs and not metrics:
        print("the runs do not differ" if runs[0].key != runs[1].key else "this is one and the same run")
