"""Compares a metric between two sets of runs."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmaster.analysis.columns import exact_text
from trainmaster.analysis.groups import by_value, config_means, has_direction, rows_with
from trainmaster.analysis.statistics import Difference, paired_difference, welch_difference
from trainmaster.arguments import is_number
from trainmaster.errors import SettingError
from trainmaster.store.query import OWN, parse_where
from trainmaster.text import counted, printable

if TYPE_CHECKING:
    from trainmaster.analysis.results import Results


@dataclass(frozen=True)
class Comparison:
    """The difference a - b in a metric between two sets of runs."""

    a: str
    b: str
    metric: str
    is_greater_better: bool | None
    """Whether larger values of the metric are better, or None if neither the runs nor its name show it."""
    difference: Difference
    unit: str
    """What one value stands for: a "seed", or a "config" (the mean over its seeds) if a side contains several configs."""
    pairs: tuple[tuple[str, str], ...]
    """The keys of the two runs in each pair. The tuple is empty if there are no pairs."""
    unpaired: tuple[str, ...]
    """The keys of the runs that were left out because the other side has no run to pair them with."""
    epochs: tuple[int, ...]
    """The different numbers of epochs that the compared runs were trained for, sorted.

    If there is more than one number, some runs may be better only because they were trained for longer.
    """

    def __str__(self) -> str:
        better = {True: " (higher is better)", False: " (lower is better)", None: ""}[self.is_greater_better]
        alone = "" if self.pairs else "; the runs are not paired: none has a partner with the same seed and the same other settings"
        left = f"; {counted(len(self.unpaired), 'run')} without a partner left out" if self.unpaired else ""
        mixed = f"; the runs were trained for {self.epochs[0]} to {self.epochs[-1]} epochs" if len(self.epochs) > 1 else ""
        return f"{self.metric}{better}, {self.a} minus {self.b}, by {self.unit}: {self.difference}{alone}{left}{mixed}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(printable(str(self)))}</p>"


def compare(results: Results, a: str, b: str, on: str | None) -> Comparison:
    metric, is_greater = results.ranked_by(on)
    is_greater_better = is_greater if has_direction(results.table, metric) else None
    rows_a, rows_b = _rows(results, a, metric), _rows(results, b, metric)
    if both := {*rows_a} & {*rows_b}:
        key = results.keys[min(both)]
        raise SettingError(f"run {key} meets both conditions: `{a}` and `{b}`", hint="compare runs that exclude each other")
    names = {name for text in (a, b) for each in parse_where(text).comparisons() if (name := _config_name(results, each.name))}
    partners_a, partners_b = (_by_partner(results, rows, names) for rows in (rows_a, rows_b))
    pairs = [(row, partners_b[partner]) for partner, row in partners_a.items() if partner in partners_b]
    configs = results.config_ids
    values = results.metrics[metric]
    if pairs:
        settings = by_value(range(len(pairs)), [(configs[one], configs[other]) for one, other in pairs])
        sides = [[float(values[row]) for row in side] for side in zip(*pairs, strict=True)]
        if len(settings) > 1:
            sides = [[float(np.mean([side[at] for at in members])) for members in settings.values()] for side in sides]
        unit, difference = "config" if len(settings) > 1 else "seed", paired_difference(sides[0], sides[1])
    else:
        is_mixed = max(len({configs[row] for row in rows}) for rows in (rows_a, rows_b)) > 1
        sides = [config_means(results, metric, rows) if is_mixed else [float(values[row]) for row in rows] for rows in (rows_a, rows_b)]
        unit, difference = "config" if is_mixed else "seed", welch_difference(sides[0], sides[1])
    paired = {row for pair in pairs for row in pair}
    unpaired = tuple(results.keys[row] for row in [*rows_a, *rows_b] if pairs and row not in paired)
    keys = tuple((results.keys[one], results.keys[other]) for one, other in pairs)
    trained = results.table.fact("epoch")
    epochs = tuple(sorted({trained[row] for row in paired or [*rows_a, *rows_b] if trained[row] is not None}))
    return Comparison(a, b, metric, is_greater_better, difference, unit, keys, unpaired, epochs)


def _rows(results: Results, text: str, metric: str) -> list[int]:
    """Return the rows that meet a condition and have the metric. If several runs have the same config and seed, only one is returned."""
    part = results[text]
    chosen = {*part.keys}
    rows = rows_with(results, metric, (row for row, key in enumerate(results.keys) if key in chosen))
    if not rows:
        why = f"{counted(len(part), 'run')} found, none with `{metric}`" if len(part) else _why_none(results, text)
        hint = None if len(part) else "a label is rounded; `group.where` is the exact condition of a group"
        raise SettingError(f"there is nothing to compare for `{text}`", why=why, found=part.describe(), hint=hint)
    return rows


def _why_none(results: Results, text: str) -> str:
    """Explain why no run meets a condition. If the condition contains a number that no run has, name the nearest existing number."""
    for each in parse_where(text).comparisons():
        wanted = each.values[0].value
        if each.sign in ("=", "==") and is_number(wanted) and (name := _config_name(results, each.name)):
            numbers = [value for value in results.table.config[name] if is_number(value) and value == value]
            if numbers and wanted not in numbers:
                nearest = min(numbers, key=lambda number: abs(number - wanted))
                return f"no finished run has {name}={each.values[0].text}; the nearest value is {nearest}"
    return "no finished run meets it"


def _config_name(results: Results, name: str) -> str | None:
    return None if name in OWN or (found := results.find(name)).is_metric else found.full


def _by_partner(results: Results, rows: list[int], names: set[str]) -> dict[tuple[Any, ...], int]:
    """Map the seed and config values of each row to the row, without the config keys in `names` (the keys to compare).

    Two runs with the same seed and the same remaining config values form a pair. A run whose seed is unknown is left out.
    """
    columns = [results.table.config[name] for name in results.varying if name not in names]
    found: dict[tuple[Any, ...], int] = {}
    for row in rows:
        if results.seeds[row] is not None:
            found.setdefault((results.seeds[row], *(exact_text(column[row]) for column in columns)), row)
    return found
