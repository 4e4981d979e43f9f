"""The command `trainmaster diff`."""

from __future__ import annotations

from typing import Any

from trainmaster.cli.console import Column, print_json, print_line, print_table
from trainmaster.cli.formatting import format_exact, format_short
from trainmaster.cli.open_store import open_store, resolve_key
from trainmaster.cli.options import Json, Key, StoreOption


def command(one: Key, other: Key, store: StoreOption = None, is_json: Json = False) -> None:
    """Compare the configs and metrics of two runs.

    Prints only what differs.

    \b
    Example:
      trainmaster diff 3fa9 81c0
    """
    from trainmaster.config.difference import Missing, diff
    from trainmaster.store.summary import flat, summarize

    found = open_store(store)
    first, second = (summarize(found, resolve_key(found, key)) for key in (one, other))
    config = diff(flat(first.config), flat(second.config))
    metrics = diff(first.metrics, second.metrics)
    if is_json:
        print_json({"one": first.key, "other": second.key, "config": _to_dict(config, Missing), "metrics": _to_dict(metrics, Missing)})
        return
    for title, differences, format_value in (("CONFIG", config, format_exact), ("METRIC", metrics, format_short)):
        if differences:
            rows = [["-" if kind is Missing else format_value(value) for kind, value in sides] for _, *sides in differences]
            columns = [Column(title, [name for name, *_ in differences])]
            styles = [["dim" if kind is Missing else "" for kind, _ in sides] for _, *sides in differences]
            for at, run in enumerate((first, second)):
                columns.append(Column(run.key, [row[at] for row in rows], style=[row[at] for row in styles]))
            print_table(columns)
    if not config and not metrics:
        print_line("the runs do not differ" if first.key != second.key else "both keys name the same run")


def _to_dict(differences: list[Any], missing: Any) -> dict[str, dict[str, Any]]:
    return {
        name: {side: value for side, (kind, value) in zip(("one", "other"), sides, strict=True) if kind is not missing}
        for name, *sides in differences
    }
