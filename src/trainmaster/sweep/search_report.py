"""The output of a search: its plan, a status line while it runs, and a summary at the end."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.manager.batch_view import Column, table_lines
from trainmaster.manager.console import short_number
from trainmaster.sweep.optuna_study import optuna_version
from trainmaster.sweep.plan import Plan, Trial
from trainmaster.sweep.search_records import SearchRecords, num_counted
from trainmaster.text import counted, html_table, printable

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager
    from trainmaster.sweep.search_session import SearchResult

_NUM_BEST = 10
_MAX_REASONS = 5
_MIN_FOR_IMPORTANCE = 10
"""Importances are printed once this many trials are complete. With fewer trials, they are mostly noise."""
_MANY_FOR_IMPORTANCE = 100
"""With fewer complete trials, the line with the importances also states how large the importance of a key without any effect can be."""
_MAX_GP = 300
_WIDTH = 100
"""The width of tables if the output is not a terminal."""


def plan_lines(plan: Plan, num_trials: int, trials: Sequence[Trial]) -> Iterator[str]:
    """Yield the lines that are printed when a search starts: a description of its plan, and the number of recorded trials."""
    goals = ", ".join(
        f"{'lowest' if way == 'minimize' else 'highest'} {name}" for name, way in zip(plan.monitor, plan.directions, strict=True)
    )
    limit = counted(num_trials, "trial") if num_trials < sys.maxsize else "trials until you stop it,"
    parts = [f"search {plan.name}: {limit} by {plan.sampler}"]
    parts += [f"pruned by {plan.pruner}"] if plan.pruner != "none" else []
    parts += [f"{plan.num_replicates} replicates each"] if plan.num_replicates > 1 else []
    yield ", ".join([*parts, f"for the {goals}"])
    if trials:
        yield f"{num_counted(trials)} of the trials are recorded already; the search continues"
    if not plan.is_repeatable:
        yield "window none: proposals use whatever is finished, so this search is not repeatable"
    if plan.sampler == "gp" and num_trials > _MAX_GP:
        yield f"the sampler gp takes seconds for each proposal after {_MAX_GP} trials; tpe takes milliseconds"
    if plan.optuna != optuna_version():
        yield f"the search was created with Optuna {plan.optuna}; this is {optuna_version()}, which may propose other points"


def space_texts(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield each searched key with a short description of its values."""
    for key, space in plan.space_of().keys.items():
        if space.value_range is not None:
            kind = "log" if space.log and space.value_type == "float" else space.value_type
            ends = ", ".join(f"{end:g}" for end in space.value_range)
            yield key, f"{kind}({ends}{f', bins={space.n_bins}' if space.n_bins else ''})"
        else:
            yield key, ", ".join(map(str, space.categorical_values or ())) or "sub-spaces"


def status_line(records: SearchRecords) -> str:
    """Return one line for the live view, with the number of trials in each state and the best result so far."""
    plan, trials = records.plan(), records.trials()
    assert plan is not None
    counts = Counter(trial.state for trial in trials)
    text = ", ".join(f"{counts[state]} {state}" for state in ("complete", "pruned", "failed", "running") if counts[state])
    values = {trial.number: trial.values[0] for trial in trials if trial.state == "complete" and trial.values and trial.is_finite}
    if not values or len(plan.monitor) > 1:
        return text
    best = (min if plan.directions[0] == "minimize" else max)(values, key=values.__getitem__)
    shown = "  ".join(f"{key}={_value(value)}" for key, value in trials[best].config.items())
    return f"{text}; best {plan.monitor[0]} {short_number(values[best])}: {shown}"


def summary_lines(result: SearchResult, manager: Manager, is_over: bool, width: int | None) -> Iterator[str]:
    """Yield lines with the best trials, parameter importances, the reasons for pruned, failed and invalid trials, and useful commands."""
    plan, store, invocation = result.plan, manager.store, manager.job_runner.invocation
    yield f"search {plan.name}: {result}" + (f"; {result.end_reason}" if result.end_reason else "")
    ranking = result.ranking
    if ranking:
        several = len(plan.monitor) > 1
        yield (
            "Pareto front: no other trial is as good in every metric and better in one" if several else f"best trials by {plan.monitor[0]}"
        )
        yield from _table_lines(plan, ranking[:_NUM_BEST], width or _WIDTH)
    if len(result.importances) > 1 and result.count("complete") >= _MIN_FOR_IMPORTANCE:
        shares = sorted(result.importances.items(), key=lambda each: -each[1])
        count = result.count("complete")
        rough = f"; with {count} trials, a key without any effect may get up to 20%" if count < _MANY_FOR_IMPORTANCE else ""
        yield f"importance for {plan.monitor[0]}: " + ", ".join(f"{name} {share:.0%}" for name, share in shares) + rough
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    if pruned:
        yield f"pruned {counted(len(pruned), 'trial')} after {_mean_epochs(pruned)} on average; the last: {pruned[-1].reason}"
    num_without = sum(trial.state == "complete" and not trial.is_finite for trial in result.trials)
    if num_without:
        yield f"  {counted(num_without, 'trial')} ended with a {' or '.join(plan.monitor)} that is not finite"
    yield from _reason_lines(result.trials)
    if ranking and is_over:
        yield f"next: {invocation.show_command(store, ranking[0].keys[0])}"
        yield f"      {invocation.command(store, 'ls', '--search', plan.name)}"


def ranking_html(result: SearchResult) -> str:
    """Return the best trials as HTML, for a notebook."""
    plan, ranking = result.plan, result.ranking
    rows = [
        (trial.number, trial.keys[0], *map(short_number, trial.values or ()), *(_value(trial.config.get(name)) for name in plan.space))
        for trial in ranking[:_NUM_BEST]
    ]
    notes = [f"and {len(ranking) - _NUM_BEST:,} more"] if len(ranking) > _NUM_BEST else []
    columns = ("trial", "run", *plan.monitor, *plan.space)
    return html_table(f"search {plan.name}: {result}", columns, rows, [*notes, *([result.end_reason] if result.end_reason else [])])


def _table_lines(plan: Plan, trials: Sequence[Trial], width: int) -> list[str]:
    values = [
        Column(name, [short_number((trial.values or ())[index]) for trial in trials], True) for index, name in enumerate(plan.monitor)
    ]
    keys = [Column(name, [_value(trial.config.get(name)) for trial in trials], True) for name in plan.space]
    columns = [Column("TRIAL", [str(trial.number) for trial in trials], True), Column("RUN", [trial.keys[0] for trial in trials])]
    return table_lines([*columns, *values, *keys], width)


def _reason_lines(trials: Sequence[Trial]) -> Iterator[str]:
    """Yield the distinct reasons why trials failed or were invalid."""
    for state in ("failed", "invalid"):
        reasons = Counter(trial.reason for trial in trials if trial.state == state)
        for reason, count in reasons.most_common(_MAX_REASONS):
            yield f"  {counted(count, 'trial')} {state}: {printable(reason)}"


def _mean_epochs(trials: Sequence[Trial]) -> str:
    text = f"{sum(trial.epochs for trial in trials) / len(trials):.3g}"
    return f"{text} {'epoch' if text == '1' else 'epochs'}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return short_number(value)
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_value(each)}" for key, each in value.items())
    return str(value)
