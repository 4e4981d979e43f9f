"""Computes the importance of each config key for a metric, with Optuna's PED-ANOVA.

PED-ANOVA compares the distribution of a parameter among the best runs with its distribution among all runs. A numeric
parameter that has only a few different values must be treated as a category. For example, if a batch size of 32, 64 or
128 were treated as a range, the gaps between these values would give it an importance of 40 % with 10,000 runs, even if the
batch size had no effect.
"""

from __future__ import annotations

import contextlib
import html
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmaster.analysis.columns import distinct, exact_text
from trainmaster.analysis.groups import has_direction, rows_with
from trainmaster.arguments import is_number
from trainmaster.errors import MissingExtraError, SettingError
from trainmaster.figures.panels import Bars
from trainmaster.store.metric_names import listed, short_name
from trainmaster.store.run_table import MISSING, Column
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.analysis.results import Results
    from trainmaster.figures.drawing import Drawing

SEED = "seed"
MAX_CATEGORIES = 10
"""Numbers with at most this many different values are treated as categories."""
_MAX_TEXTS = 50
"""A text key with more different values than this is left out, because it is probably a name and not a setting."""
_LOG_RATIO = 100.0
_MIN_RUNS = 10
_MANY_RUNS = 200
"""With at least this many runs, the best 10 % are compared with all runs. With fewer runs, the better half is used instead."""


@dataclass(frozen=True)
class Importance:
    """The importance of each config key for a metric, as shares that add up to 1."""

    metric: str
    num_runs: int
    values: Mapping[str, float]
    """The share of each key, the largest first. `seed` stands for the seed that the runs used. Shares below that of the seed are noise."""
    notes: tuple[str, ...]
    """Notes about keys and runs that were left out, and how much the shares vary."""

    def figure(self) -> Drawing:
        from trainmaster.figures.drawing import Drawing

        title = f"importance for {self.metric}, {counted(self.num_runs, 'run')}"
        marks = {SEED: "noise"} if SEED in self.values else {}
        return Drawing([Bars(title, "share", [*self.values], [*self.values.values()], marks=marks)])

    def __str__(self) -> str:
        shares = [f"  {share:5.1%}  {name}" for name, share in self.values.items()]
        return "\n".join([f"importance for {self.metric}, {counted(self.num_runs, 'run')}", *shares, *(f"  {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def importance(results: Results, metric: str | None) -> Importance:
    name, is_greater_better = results.ranked_by(metric)
    values = results.metrics[name]
    rows = [row for row in rows_with(results, name) if math.isfinite(values[row])]
    notes = []
    if num_others := len(results) - len(rows):
        notes.append(f"{counted(num_others, 'run')} repeated or without a finite {short_name(name)} left out")
    fact = f"the importance for `{short_name(name)}` cannot be computed"
    if len(rows) < _MIN_RUNS:
        why = f"{counted(len(rows), 'finished run')} with a finite `{short_name(name)}`; at least {_MIN_RUNS} are needed"
        raise SettingError(fact, why=why, hint="train more configs")
    if np.ptp(values[rows]) == 0:
        raise SettingError(fact, why=f"all {len(rows)} runs have the same value, {values[rows[0]]:g}")
    parameters = _parameters(results, rows, notes)
    if not parameters:
        raise SettingError("no config key varies between these runs", known=listed(results.table.config) or "no keys")
    if not has_direction(results.table, name):
        notes.append(f"nothing says whether lower or higher {short_name(name)} is better; these are the shares for low values")
    shares = _evaluate(parameters, [float(values[row]) for row in rows], is_greater_better)
    notes.append(f"with {len(rows):,} runs, a share varies by about {_noise(len(rows))}")
    return Importance(name, len(rows), dict(sorted(shares.items(), key=lambda each: -each[1])), tuple(notes))


def _parameters(results: Results, rows: list[int], notes: list[str]) -> dict[str, tuple[Any, list[Any]]]:
    """Return the Optuna distribution and the values of each config key, including the seed. Keys that cannot be evaluated are left out."""
    columns = {each: [results.table.config[each][row] for row in rows] for each in results.varying}
    seeds = [results.seeds[row] for row in rows]
    if len({*seeds}) > 1 and SEED not in columns:
        columns[SEED] = [MISSING if seed is None else seed for seed in seeds]
    found = {}
    for name, column in columns.items():
        parameter = _parameter(column)
        if isinstance(parameter, str):
            notes.append(f"{name} left out: {parameter}")
        elif parameter is not None:
            found[name] = parameter
    return found


def _parameter(column: Column) -> tuple[Any, list[Any]] | str | None:
    """Return the Optuna distribution and the values of a column.

    If the column cannot be evaluated, return the reason as text. If its values do not vary, return None.
    """
    with _quiet_optuna():
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found = distinct(column)
    if len(found) + (MISSING in column) < 2:
        return None
    are_numbers = all(map(is_number, found))
    if len(found) <= MAX_CATEGORIES or (not are_numbers and len(found) <= _MAX_TEXTS):
        texts = [exact_text(value) for value in column]
        return CategoricalDistribution([*dict.fromkeys(texts)]), texts
    if not are_numbers:
        return f"it has {len(found):,} different values that are not numbers"
    if MISSING in column:
        return "some runs do not have it"
    if not all(map(math.isfinite, found)):
        return "some of its values are not finite"
    low, high = min(found), max(found)
    is_log = low > 0 and high / low >= _LOG_RATIO
    if all(isinstance(value, int) for value in found) and max(abs(low), abs(high)) < 2**53:
        return IntDistribution(low, high, log=is_log), column
    return FloatDistribution(float(low), float(high), log=is_log), [float(value) for value in column]


def _evaluate(parameters: Mapping[str, tuple[Any, list[Any]]], values: list[float], is_greater_better: bool) -> dict[str, float]:
    with _quiet_optuna() as optuna:
        study = optuna.create_study(direction="maximize" if is_greater_better else "minimize")
        distributions = {name: distribution for name, (distribution, _) in parameters.items()}
        columns = zip(*(column for _, column in parameters.values()), strict=True)
        trials = [
            optuna.trial.create_trial(params=dict(zip(parameters, row, strict=True)), distributions=distributions, value=value)
            for row, value in zip(columns, values, strict=True)
        ]
        study.add_trials(trials)
        quantile = 0.1 if len(values) >= _MANY_RUNS else 0.5
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(shares.get(name, 0.0)) for name in parameters}


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[Any]:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("importance needs Optuna: pip install 'trainmaster[analysis]'") from None
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(level)


def _noise(num_runs: int) -> str:
    """Return, as text, the importance that a key without any effect may get by chance, as measured on simulated runs."""
    return next(text for limit, text in ((100, "0.06 to 0.2"), (1000, "0.02 to 0.05"), (math.inf, "0.01")) if num_runs < limit)
