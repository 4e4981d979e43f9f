"""`PlotAnalysis`: draws every metric against every config key."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.analysis.columns import distinct, exact_text
from trainmaster.analysis.plots import attribute_panel, is_number_axis
from trainmaster.config.varying import short_values
from trainmaster.errors import SettingError
from trainmaster.figures.drawing import Drawing
from trainmaster.store.metric_names import listed
from trainmaster.store.run_table import MISSING

if TYPE_CHECKING:
    from trainmaster.analysis.results import Results

_UNBALANCED = 2.0
"""A design is unbalanced if one value of a key has at least this many times as many runs as another."""


class PlotAnalysis:
    """Draws each metric against each config key: violins for categories, and points with a regression line for numbers.

    ```python
    PlotAnalysis(Results("runs")).make_figures({"valid/loss": "validation loss"}, save_dir="figures")
    ```
    """

    def __init__(self, results: Results) -> None:
        self.results = results

    @property
    def numerical(self) -> list[str]:
        """The keys that are drawn as numbers."""
        return [name for name in self._attributes() if is_number_axis(self.results, name, self._column(name))]

    @property
    def categorical(self) -> list[str]:
        """The keys that are drawn as categories."""
        numerical = {*self.numerical}
        return [name for name in self._attributes() if name not in numerical]

    def make_figures(
        self,
        metric_name_remap: Mapping[str, str] | None = None,
        attribute_name_remap: Mapping[str, str] | None = None,
        save_dir: str | PathLike[str] | None = None,
    ) -> dict[tuple[str, str], Drawing]:
        """Return a dict with a figure for each combination of a metric and a config key. Its keys are `(metric, config key)` tuples.

        `metric_name_remap` and `attribute_name_remap` contain the metrics and config keys to draw, with their labels. By default,
        all metrics are drawn against all config keys that vary or were searched.

        With `save_dir`, each figure is written to `<save_dir>/<metric>/<key>.png`. If one value of a config key
        has far fewer runs than another, you get a warning, because a difference in the metric may then be caused by other
        config keys.
        """
        results = self.results
        metrics = {results.ranked_by(name).metric: label for name, label in (metric_name_remap or {}).items()}
        metrics = metrics or {name: name for name in results.table.metrics}
        attributes = {results.find(name).full: label for name, label in (attribute_name_remap or {}).items()}
        attributes = attributes or {name: name for name in self._attributes()}
        if not attributes or not metrics:
            missing = "config key varies" if not attributes else "metric exists"
            raise SettingError(f"there is nothing to draw: no {missing}", known=listed(results.table.config), hint="train other configs")
        self._warn_if_unbalanced([name for name in attributes if name in self.categorical])
        labels = {**metrics, **attributes}
        figures = {(metric, name): Drawing([attribute_panel(results, name, metric, labels)]) for metric in metrics for name in attributes}
        if save_dir is not None:
            folders, files = _file_names(metrics), _file_names(attributes)
            for (metric, name), drawing in figures.items():
                drawing.save(Path(save_dir) / folders[metric] / f"{files[name]}.png")
        return figures

    def _attributes(self) -> list[str]:
        searched = self.results.attributes
        return self.results.varying if searched is None else [name for name in searched if name in self.results.table.config]

    def _column(self, name: str) -> list[object]:
        return [value for value in self.results.table.config[name] if value is not MISSING]

    def _warn_if_unbalanced(self, names: list[str]) -> None:
        for name in names:
            column = self._column(name)
            counts = Counter(map(exact_text, column))
            if counts and max(counts.values()) >= _UNBALANCED * min(counts.values()):
                values = distinct(column)
                shown = zip(short_values(values), (counts[exact_text(value)] for value in values), strict=True)
                runs = ", ".join(f"{count} with {text}" for text, count in shown)
                warnings.warn(f"the design is unbalanced in {name}: {runs} (runs)", stacklevel=3)


def _file_names(names: Iterable[str]) -> dict[str, str]:
    """Map the name of each metric or config key to a unique file name."""
    found: dict[str, str] = {}
    for name in names:
        text = file_name(name)
        found[name] = text if text not in found.values() else f"{text}-{len(found) + 1}"
    return found


def file_name(name: str) -> str:
    """Return a name that is safe to use as a file name.

    >>> file_name("valid/loss")
    'valid-loss'
    """
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".")[:80] or "unnamed"
