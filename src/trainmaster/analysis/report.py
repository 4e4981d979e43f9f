"""The report: what the runs of a store show, in one HTML file."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from trainmaster.analysis.columns import distinct, exact_text
from trainmaster.analysis.forecast import Forecast
from trainmaster.analysis.groups import Group, Groups
from trainmaster.analysis.provenance import Fact, code_and_environment
from trainmaster.analysis.report_curves import forecast_figure, legend, make_figures, swatch
from trainmaster.analysis.report_page import Html, Section, element, join, notes, page, prose, runs_table, section, table
from trainmaster.analysis.report_studies import ablations_section, answers, importance_section, read_studies, verdicts_section
from trainmaster.analysis.results import Results
from trainmaster.analysis.unfinished_runs import RunForecasts, forecast_runs
from trainmaster.arguments import is_number
from trainmaster.config.varying import short_values
from trainmaster.errors import SettingError
from trainmaster.figures.svg import NUM_COLORS, draw_interval, draw_interval_axis, interval_scale
from trainmaster.store import Store
from trainmaster.store.files import access_error, sync_folder
from trainmaster.store.index import Progress
from trainmaster.store.monitored import RankedBy, ranked_by
from trainmaster.store.run_table import MISSING, Column, RunTable
from trainmaster.store.summary import STATES
from trainmaster.text import counted

_MAX_SETTINGS = 20
_MAX_VALUES = 12
_MAX_FORECASTS = 50
_MAX_KEYS = 6
_MAX_COLUMNS = 200
"""Of config keys, and of metrics, in the table of all runs."""
_FAILED = ("failed", "killed", "damaged")


def write_report(path: str | os.PathLike[str], store: Store, **arguments: Any) -> int:
    """Write the report of a store to a file, and return its size in bytes. See `make_report` for the arguments.

    The file appears complete or not at all.
    """
    target = os.fspath(path)
    data = make_report(store, **arguments).encode()
    aside = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.tmp")
    try:
        with open(aside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
        sync_folder(os.path.dirname(target) or ".")
    except OSError as error:
        raise access_error(error, target, "written") from error
    finally:
        with contextlib.suppress(OSError):  # it is gone after a successful replace
            os.unlink(aside)
    return len(data)


def make_report(
    store: Store,
    where: str | None = None,
    metric: str | None = None,
    title: str | None = None,
    date: datetime | None = None,
    progress: Progress = iter,
) -> str:
    """The report as an HTML page. For an unchanged store and the same date, the page is the same.

    Args:
        store: the store.
        where: which runs, as in `trainmaster ls --where`.
        metric: the metric that ranks them; by default the one that they monitor, else the one that most of them have.
        title: the question that the report answers.
        date: the date that is shown; today by default.
        progress: iterates over the keys of the runs that are read.
    """
    results = Results(store, where=where)
    runs = results.all_runs
    if not len(runs):
        raise SettingError("there is no run to report", where=store.root, hint="`trainmaster ls` lists the runs of a store")
    rank = _ranked_by(results, metric)
    groups = results.groups(metric=rank.metric) if rank is not None else None
    finished = runs if where is None else store.index.runs()
    forecasts = RunForecasts(rank.metric, forecast_runs(store, finished, rank.metric, {*runs.keys})) if rank is not None else None
    code, environment = code_and_environment(store, progress(runs.keys))
    studies = read_studies(store, None if where is None else {*runs.keys})
    name = os.path.basename(store.root or "in memory")
    claims = [each.verdict.plan.claim for each in studies.verdicts]
    title = title or (claims[0] if len(claims) == 1 else f"Runs of {name}")
    sections = [
        _settings_section(results, groups, rank),
        _curves_section(results, groups),
        importance_section(results, rank.metric) if rank is not None else None,
        ablations_section(studies),
        verdicts_section(studies),
        section("runs", "All runs", runs_table(), notes(_left_out_columns(runs))),
        _unfinished_section(forecasts),
        _failures_section(results, rank),
        _config_section(runs),
        _facts_section(
            "code", "Code", code, "No run has recorded its code: add the extension `CodeTracker` to keep the commit and all changes."
        ),
        _facts_section("environment", "Environment", environment, "No run has recorded its environment."),
    ]
    day = (date or datetime.now(UTC)).strftime("%-d %B %Y")
    facts = [counted(len(runs), "run"), _count_settings(groups), f"store {name}", f"where {where}" if where else "", day]
    states = [(state, runs.fact("state").count(state)) for state in STATES]
    head = join(
        [
            element("h1", title),
            element("p", " · ".join(filter(None, facts)), class_="sub"),
            element(
                "ul",
                *(element("li", element("b", f"{count:,}"), f" {state}", data_state=state) for state, count in states if count),
                class_="states",
            ),
            answers(studies) or _answer(groups, rank),
        ]
    )
    foot = f"Written by trainmaster on {day}. This file contains all its data and requests nothing."
    shown = [each for each in sections if each is not None]
    return page(title, head, shown, _columns(store, runs, rank), foot)


def _ranked_by(results: Results, metric: str | None) -> RankedBy | None:
    """The metric that ranks the runs; None if no finished run has one. If the runs do not agree on a metric, the most common one."""
    if metric is not None:
        return results.ranked_by(metric)
    counts = {name: sum(value is not MISSING for value in column) for name, column in results.table.metrics.items()}
    monitored = dict(zip(results.table.fact("best.metric"), results.table.fact("best.mode"), strict=True))
    modes = {name: mode for name, mode in monitored.items() if isinstance(name, str)}
    return ranked_by(None, counts, modes, is_lenient=True) if counts else None


# ---- the answer


def _count_settings(groups: Groups | None) -> str:
    if not groups:
        return ""
    sizes = sorted({group.n for group in groups})
    seeds = f"{sizes[0]} to {sizes[-1]} seeds" if len(sizes) > 1 else counted(sizes[0], "seed")
    return f"{counted(len(groups), 'setting')} of {seeds}"


def _answer(groups: Groups | None, rank: RankedBy | None) -> Html:
    """The best setting in two lines, with what a reader must know about it."""
    if not groups or rank is None or math.isnan(groups[0].mean):
        return Html()
    best: Group = groups[0]
    digits = _digits(groups)
    what = f"{'highest' if rank.is_greater_better else 'lowest'} {'mean ' if best.n > 1 else ''}{rank.metric}"
    lines = [join([element("strong", best.label), f" has the {what}: {_interval(best, digits)}, {counted(best.n, 'seed')}."])]
    if len(groups) > 1 and not math.isnan(groups[1].mean):
        lines.append(join(["Next: ", groups[1].label, f", {_interval(groups[1], digits)}."]))
        luck = "its mean is too good on average" if best.n > 1 else "part of its lead is luck, and one seed cannot show how much"
        chosen = f"It was chosen as the best of {len(groups):,} settings, so {luck}. Train it with new seeds before you rely on it."
        lines.append(element("span", chosen, class_="note"))
    return element("div", *(element("p", line) for line in lines), class_="card answer")


def _digits(groups: Sequence[Group]) -> int:
    """The decimals that show two digits of the narrowest interval."""
    widths = [group.high - group.low for group in groups[:_MAX_SETTINGS] if group.high > group.low]
    means = [abs(group.mean) for group in groups[:_MAX_SETTINGS] if math.isfinite(group.mean) and group.mean]
    smallest = min(widths, default=0.0) or 1e-3 * max(means, default=1.0)
    return min(max(2 - math.floor(math.log10(smallest)) - 1, 0), 12)


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) and abs(value) < 1e6 else f"{value:.4g}"


def _interval(group: Group, digits: int) -> str:
    mean = _number(group.mean, digits)
    return mean if math.isnan(group.low) else f"{mean} [{_number(group.low, digits)}, {_number(group.high, digits)}]"


# ---- sections


def _settings_section(results: Results, groups: Groups | None, rank: RankedBy | None) -> Section:
    if not groups or rank is None:
        fact = "No run has finished, so there is nothing to compare." if not len(results) else "None of the finished runs has a metric."
        return section("settings", "Settings", element("p", fact))
    shown: list[Group] = list(groups[:_MAX_SETTINGS])
    names = [name for name in groups.names if any(name in group.values for group in shown)][:8]
    texts = {name: iter(short_values([group.values[name] for group in shown if name in group.values])) for name in names}
    digits = _digits(shown)
    scale = interval_scale(value for group in shown for value in (group.mean, group.low, group.high))
    rows = []
    for number, group in enumerate(shown):
        color = number if number < NUM_COLORS else 6
        values = [next(texts[name]) if name in group.values else "" for name in names]
        drawn = Html(draw_interval(scale, group.mean, group.low, group.high, color=color)) if math.isfinite(group.mean) else ""
        mark = swatch(number) if number < NUM_COLORS else ""
        rows.append([mark, _interval(group, digits) + _describe_gaps(group), drawn, group.n, *values])
    heads = ["", f"{rank.metric}, mean [95%]", "", "seeds", *names]
    foot = ["", "", Html(draw_interval_axis(scale)), "", *([""] * len(names))]
    said = [
        f"Runs that differ only in their seed are one setting. {'Higher' if rank.is_greater_better else 'Lower'} {rank.metric} is better. "
        "The interval is Student's t over seeds; one seed, or equal values, give none."
    ]
    if len(groups) > len(shown):
        said.append(f"The best {len(shown)} of {len(groups):,} settings are shown; the table of all runs has the others.")
    return section("settings", "Settings", notes([" ".join(said)]), table(heads, rows, [1, 3], foot))


def _describe_gaps(group: Group) -> str:
    num_bad = sum(not math.isfinite(value) for value in group.numbers)
    gaps = [f"{num_bad} of {group.n} are NaN or infinite" if num_bad else "", f"{group.missing} without it" if group.missing else ""]
    return f" ({', '.join(filter(None, gaps))})" if any(gaps) else ""


def _curves_section(results: Results, groups: Groups | None) -> Section | None:
    if not groups:
        return None
    shown = list(groups[:NUM_COLORS])
    figures = make_figures(results, shown, groups.metric)
    if not figures:
        return None
    most = max(group.n for group in shown)
    what = "Each line is the mean over seeds; the band is the 95% interval of the mean." if most > 1 else "Each line is a single run."
    if len(groups) > len(shown):
        what = f"The best {len(shown)} settings. {what}"
    labels = [group.label for group in shown]
    return section("curves", "Curves", notes([what]), legend(labels), element("div", *figures, class_="figures"))


def _unfinished_section(forecasts: RunForecasts | None) -> Section | None:
    if forecasts is None or not forecasts.runs:
        return None
    runs = forecasts.runs
    rows = []
    for run in runs[:_MAX_FORECASTS]:
        last = f"{run.curve[max(run.curve)]:.4g}" if run.curve else ""
        epochs = f"{max(run.curve, default=0):g} of {run.target or '?'}"
        rows.append([element("code", run.key), element("span", run.state, data_state=run.state), epochs, last, forecasts.describe(run.key)])
    heads = ["run", "state", "epoch", forecasts.metric, "forecast [band]"]
    what = "Forecasts come from the finished runs that began most like these. They are no results."
    drawn = forecast_figure(runs, forecasts.metric) if any(isinstance(run.forecast, Forecast) for run in runs) else ""
    more = element("p", f"... and {len(runs) - _MAX_FORECASTS:,} more", class_="note") if len(runs) > _MAX_FORECASTS else ""
    return section("unfinished", "Unfinished runs", notes([what]), drawn, table(heads, rows, [2, 3, 4]), more, notes(forecasts.notes))


def _failures_section(results: Results, rank: RankedBy | None) -> Section | None:
    runs = results.all_runs
    reasons: dict[tuple[str, str], list[str]] = {}
    bad = runs.metrics.get(rank.metric, []) if rank is not None else []
    for row, (key, state, reason) in enumerate(zip(runs.keys, runs.fact("state"), runs.fact("reason"), strict=True)):
        if state in _FAILED:
            reasons.setdefault((state, str(reason or "no reason was recorded")), []).append(key)
        elif rank is not None and bad and isinstance(value := bad[row], float) and not math.isfinite(value):
            reasons.setdefault((state, f"{rank.metric} is {value}"), []).append(key)
    if not reasons:
        return None
    rows = []
    for (state, reason), keys in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        first, *rest = reason.split("\n")
        why = join([first, element("pre", "\n".join(rest))]) if rest else first
        more = f" and {len(keys) - _MAX_KEYS:,} more" if len(keys) > _MAX_KEYS else ""
        listed = join([element("code", ", ".join(sorted(keys)[:_MAX_KEYS])), more])
        rows.append([len(keys), element("span", state, data_state=state), why, listed])
    what = "`trainmaster logs KEY` prints the output of a run, and `trainmaster resume KEY` tries again from its last checkpoint."
    return section(
        "failures", "What failed and why", prose(what, class_="note"), table(["runs", "state", "why", "keys"], rows, [0], long=[2])
    )


def _config_section(runs: RunTable) -> Section:
    varying, constant = [], []
    for name, column in runs.config.items():
        values = distinct([each for each in column if each is not MISSING])
        num_missing = sum(value is MISSING for value in column)
        gap = f"; {num_missing:,} of {counted(len(column), 'run')} do not have it" if num_missing else ""
        if len(values) == 1 and not num_missing:
            constant.append([name, _config_text(values[0])])
        else:
            varying.append([name, len(values), _describe_values(values) + gap])
    parts: list[Html] = []
    if varying:
        parts += [element("h3", "Varied"), table(["key", "values", ""], varying, [1], long=[2])]
    if constant:
        parts += [element("h3", "The same in all runs"), table(["key", "value"], constant, long=[1])]
    return section("config", "Config", *parts) if parts else section("config", "Config", element("p", "The configs are empty."))


def _config_text(value: Any) -> str:
    return value if isinstance(value, str) else exact_text(value)


def _describe_values(values: Sequence[Any]) -> str:
    """All values if they are few; the range of many numbers; the first ones of many others."""
    if len(values) <= _MAX_VALUES:
        return ", ".join(map(_config_text, values))
    if all(map(is_number, values)):
        return f"from {min(values):.6g} to {max(values):.6g}"
    return f"{', '.join(map(_config_text, values[:_MAX_VALUES]))}, ..."


def _facts_section(name: str, title: str, facts: Sequence[Fact], otherwise: str) -> Section:
    if not facts:
        return section(name, title, prose(otherwise))
    rows = []
    for fact in facts:
        for number, (value, count) in enumerate(fact.values):
            rows.append([fact.name if number == 0 else "", value, f"{count:,}"])
        if fact.num_more:
            rows.append(["", f"... and {fact.num_more:,} other values", ""])
    differing = [fact.name for fact in facts if len(fact.values) > 1]
    note = f"These differ between runs: {', '.join(differing)}." if differing else "All runs agree."
    return section(name, title, notes([note]), table(["", "value", "runs"], rows, [2], long=[1]))


# ---- the table of all runs


def _columns(store: Store, runs: RunTable, rank: RankedBy | None) -> dict[str, list[Any]]:
    """The columns of the table of all runs: what identifies and ranks a run first, then what varies, then the other metrics."""
    order = _best_first(runs, rank)
    ordered = runs.take(order)
    tags = store.tags.all()
    metrics = sorted(ordered.metrics, key=lambda name: (rank is None or name != rank.metric, name))
    varying = _varying(ordered)
    found: dict[str, list[Any]] = {"run": ordered.keys, "state": ordered.fact("state")}
    found |= {name: [_metric_cell(value) for value in ordered.metrics[name]] for name in metrics[:1]}
    found |= {_free(name, found): [_config_cell(value) for value in column] for name, column in varying[:_MAX_COLUMNS]}
    found |= {_free("epoch", found): ordered.fact("epoch")}
    found |= {_free(name, found): [_metric_cell(value) for value in ordered.metrics[name]] for name in metrics[1:_MAX_COLUMNS]}
    found |= {_free("seconds", found): [None if each is None else round(each, 1) for each in ordered.fact("duration")]}
    if any(key in tags for key in ordered.keys):
        found |= {_free("tags", found): [", ".join(tags.get(key, ())) or None for key in ordered.keys]}
    found |= {_free("reason", found): [each or None for each in ordered.fact("reason")]}
    return found


def _varying(runs: RunTable) -> list[tuple[str, Column]]:
    return [(name, column) for name, column in runs.config.items() if len({*map(_cell_id, column)}) > 1]


def _left_out_columns(runs: RunTable) -> list[str]:
    numbers = {"config key": len(_varying(runs)) - _MAX_COLUMNS, "metric": len(runs.metrics) - _MAX_COLUMNS}
    return [f"the table has no column for {counted(number, f'more {what}')}" for what, number in numbers.items() if number > 0]


def _best_first(runs: RunTable, rank: RankedBy | None) -> list[int]:
    values = runs.metrics.get(rank.metric) if rank is not None else None
    sign = -1 if rank is not None and rank.is_greater_better else 1

    def position(row: int) -> tuple[bool, float, str]:
        value = values[row] if values is not None else math.nan
        number = float(value) if isinstance(value, int | float) else math.nan
        return math.isnan(number), 0.0 if math.isnan(number) else sign * number, runs.keys[row]

    return sorted(range(len(runs)), key=position)


def _free(name: str, taken: dict[str, list[Any]]) -> str:
    """A name for a column that no other column has."""
    return name if name not in taken else _free(f"{name} ", taken)


def _cell_id(value: Any) -> Any:
    return (type(value), value) if isinstance(value, str | int | float) else repr(value)


def _metric_cell(value: Any) -> Any:
    return None if value is MISSING else float(f"{value:.6g}") if isinstance(value, float) else value


def _config_cell(value: Any) -> Any:
    return None if value is MISSING else "none" if value is None else value
