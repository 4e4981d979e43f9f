"""Opens the results that a command shows, and reports the runs that are left out."""

from __future__ import annotations

import sys

from trainmaster.analysis.results import Results
from trainmaster.cli.console import report_progress
from trainmaster.cli.open_store import find_store, print_no_runs
from trainmaster.figures.drawing import Drawing
from trainmaster.store.query import parse_where
from trainmaster.text import counted, printable

_MAX_KEYS = 3


def open_results(option: str | None, argument: str | None, where: str | None) -> Results | None:
    """Return the results of a store, and print to stderr which runs are left out. If there are no runs, print a message and return None."""
    if where is not None:
        parse_where(where)  # report a wrong filter before a large store is read
    store = find_store(option, argument)
    if store is None or next(iter(store.configs), None) is None:
        print_no_runs(option, argument)
        return None
    results = Results(store, where=where, progress=report_progress)
    for state, keys in sorted(results.left_out.items()):
        some = ", ".join(keys[:_MAX_KEYS]) + (", ..." if len(keys) > _MAX_KEYS else "")
        print(f"left out: {counted(len(keys), f'{state} run')}: {some}", file=sys.stderr)
    return results


def save_figure(drawing: Drawing, path: str) -> None:
    drawing.save(path)
    print(f"wrote {printable(path)}")
