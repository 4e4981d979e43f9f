"""Writes tables as text: CSV and JSON with exact values; Markdown, LaTeX and HTML with rounded values."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.analysis.report_table import Table as ReportTable
from trainmaster.analysis.result_table import Estimate, Table, run_table
from trainmaster.arguments import is_number
from trainmaster.config.paths import map_leaves
from trainmaster.text import printable

if TYPE_CHECKING:
    from trainmaster.analysis.results import Results

_NUM_ROWS = 10
"""How many rows a notebook shows."""


def to_csv(table: Table) -> str:
    """Return comma-separated values. Text that a spreadsheet would run as a formula is prefixed with an apostrophe."""
    text = io.StringIO()
    rows = _expanded(table)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_no_formula(name) for name in rows])
    writer.writerows([_no_formula(_plain(value)) for value in row] for row in zip(*rows.values(), strict=True))
    return text.getvalue()


def to_json(table: Table) -> str:
    """Return a JSON list of rows. NaN and infinities become the strings "nan", "inf" and "-inf"."""
    rows = _expanded(table)
    found = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
    return json.dumps(map_leaves(found, _strict), indent=1, allow_nan=False, default=str) + "\n"


def to_markdown(table: Table) -> str:
    return _rounded(table).to_markdown()


def to_latex(table: Table) -> str:
    """Return a LaTeX `tabular` that needs the package booktabs."""
    return _rounded(table).to_latex()


def to_html(table: Table, num_rows: int = _NUM_ROWS) -> str:
    num_all = len(next(iter(table.values()), []))
    shown = {name: column[:num_rows] for name, column in table.items()}
    more = f"<p>... and {num_all - num_rows:,} more</p>" if num_all > num_rows else ""
    return _rounded(shown).to_html() + more


def results_html(results: Results) -> str:
    """Return the HTML for a notebook: how many runs there are, which runs were left out, and the first rows of the table."""
    lines = [f"<p><b>{html.escape(results.describe())}</b> in {html.escape(printable(results.store.root or 'memory'))}</p>"]
    for state, keys in sorted(results.left_out.items()):
        some = ", ".join(keys[:_NUM_ROWS]) + (", ..." if len(keys) > _NUM_ROWS else "")
        lines.append(f"<p>{html.escape(state)}: {html.escape(some)}</p>")
    if len(results) and results.table.metrics:
        lines.append(to_html(run_table(results)))
    return "".join(lines)


def texts_of(table: Table) -> dict[str, list[str]]:
    """Return the columns as rounded texts, for a terminal."""
    return {name: [*map(_text, column)] for name, column in table.items()}


def format_estimate(estimate: Estimate) -> str:
    """Format the mean with as many digits as the standard deviation justifies. If some runs lack the metric, append the sample size `n`.

    >>> format_estimate(Estimate(0.912345, 0.00451, 0, 1, 5)), format_estimate(Estimate(0.5, math.nan, 0, 1, 1))
    ('0.9123 ± 0.0045', '0.5')
    """
    mean, sd = estimate.mean, estimate.sd
    count = f" (n={estimate.n})" if estimate.is_partial else ""
    if not math.isfinite(sd) or not 1e-6 <= sd < 1e4 or not abs(mean) < 1e6:
        return (f"{mean:.4g}" if not math.isfinite(sd) else f"{mean:.4g} ± {sd:.2g}") + count
    digits = max(0, 1 - math.floor(math.log10(sd)))
    return f"{mean:.{digits}f} ± {sd:.{digits}f}{count}"


def _rounded(table: Table) -> ReportTable:
    numbers = tuple(number for number, column in enumerate(table.values()) if is_number_column(column))
    return ReportTable(tuple(table), tuple(zip(*texts_of(table).values(), strict=True)), numbers)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Estimate):
        return format_estimate(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else str(_plain(value))


def is_number_column(column: Sequence[Any]) -> bool:
    """Return whether a column contains numbers and is therefore aligned to the right."""
    return all(value is None or isinstance(value, Estimate) or is_number(value) for value in column)


def _expanded(table: Table) -> Table:
    """Split a column of estimates into a column of means and columns for the other statistics."""
    found: Table = {}
    for name, column in table.items():
        if not any(isinstance(value, Estimate) for value in column):
            found[name] = column
            continue
        for part, ending in {"mean": "", "sd": " sd", "low": " low", "high": " high", "n": " n"}.items():
            found[f"{name}{ending}"] = [None if value is None else getattr(value, part) for value in column]
    return found


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, default=str)


def _strict(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
