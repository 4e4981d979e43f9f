"""Writes a report about the runs in a store as one HTML file."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from trainmaster.analysis.forecast import Forecast
from trainmaster.analysis.groups import Group, Groups, has_direction, metric_counts, rank_groups
from trainmaster.analysis.provenance import code_and_environment
from trainmaster.analysis.report_curves import forecast_figure, legend, make_figures, swatch
from trainmaster.analysis.report_facts import config_section, facts_section, failures_section
from trainmaster.analysis.report_page import Html, Section, element, join, notes, page, section, table
from trainmaster.analysis.report_runs import runs_columns, runs_section
from trainmaster.analysis.report_studies import ablations_section, importance_section, read_studies, verdict_card, verdicts_section
from trainmaster.analysis.results import Results
from trainmaster.analysis.unfinished_runs import RunForecasts, forecast_runs
from trainmaster.config.varying import short_names, short_values
from trainmaster.errors import SettingError
from trainmaster.figures.svg import NUM_COLORS, draw_interval, draw_interval_axis, interval_scale
from trainmaster.store import Store
from trainmaster.store.files import access_error, sync_folder
from trainmaster.store.index import Progress
from trainmaster.store.monitored import RankedBy, is_guess, ranked_by
from trainmaster.store.summary import STATES
from trainmaster.text import counted

_MAX_SETTINGS = 20
_MAX_FORECASTS = 50
_NO_CODE = "No run has recorded its code: add the extension `CodeTracker` to keep the commit and all changes."


def write_report(
    path: str | os.PathLike[str],
    store: Store,
    where: str | None = None,
    metric: str | None = None,
    title: str | None = None,
    progress: Progress = iter,
) -> int:
    """Write the report of a store to a file, and return the size of the file in bytes. See `make_report` for the arguments.

    The file is replaced atomically.
    """
    target = os.fspath(path)
    folder = os.path.dirname(target) or "."
    if not os.path.isdir(folder):
        raise SettingError(f"there is no folder `{folder}` for the report", hint="create it, or choose another one")
    data = make_report(store, where, metric, title, progress=progress).encode()
    aside = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        with open(aside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
        sync_folder(folder)
    except OSError as error:
        raise access_error(error, target, "written") from error
    finally:
        with contextlib.suppress(OSError):  # after a successful replace, the temporary file no longer exists
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
    """Return the report as an HTML page. The page depends only on the store, the arguments and the date.

    Args:
        store: the store to summarize.
        where: a condition that selects runs, as in `trainmaster ls --where`.
        metric: the metric that ranks the runs. The default is the metric that the runs monitor. If they monitor several, it is the most
            common of these. If they monitor none, it is `loss_test` or, if no run has that, the most common metric.
        title: the title of the page, for example the question that the report answers.
        date: the date in the report; today by default.
        progress: a function that takes the run keys and yields them one by one, for example to show a progress bar.
    """
    results = Results(store, where=where, progress=progress)
    runs = results.all_runs
    if not len(runs):
        raise SettingError("there is no run to report", where=store.root, hint="`trainmaster ls` lists the runs in a store")
    rank, note = _ranked_by(results, metric)
    groups = rank_groups(results, None, rank) if rank is not None else None
    finished = runs if where is None else store.index.runs()
    forecasts = RunForecasts(rank.metric, forecast_runs(store, finished, rank.metric, {*runs.keys})) if rank is not None else None
    code, environment = code_and_environment(store, progress(runs.keys))
    studies = read_studies(store, None if where is None else {*runs.keys})
    name = _name_of(store)
    claims = [each.verdict.plan.claim for each in studies.verdicts]
    title = title or (claims[0] if len(claims) == 1 else f"Runs in {name}")
    sections = [
        _settings_section(results, groups, rank, note),
        _curves_section(results, groups),
        importance_section(results, rank.metric) if rank is not None else None,
        ablations_section(studies),
        verdicts_section(studies),
        runs_section(runs),
        _unfinished_section(forecasts),
        failures_section(runs, rank),
        config_section(runs),
        facts_section("code", "Code", code, _NO_CODE),
        facts_section("environment", "Environment", environment, "No run has recorded its environment."),
    ]
    day = (date or datetime.now(UTC)).strftime("%-d %B %Y")
    facts = [counted(len(runs), "run"), _count_settings(groups), f"store {name}", f"where {where}" if where else "", day]
    states = [(state, runs.fact("state").count(state)) for state in STATES]
    counts = [element("li", element("b", f"{count:,}"), f" {state}", data_state=state) for state, count in states if count]
    sub = element("p", " · ".join(filter(None, facts)), class_="sub")
    answer = join(map(verdict_card, studies.verdicts)) or _answer(results, groups, rank, note)
    head = join([element("h1", title), sub, element("ul", *counts, class_="states"), answer])
    foot = f"Written by trainmaster on {day}. This file contains all its data and loads nothing from the network."
    shown = [each for each in sections if each is not None]
    return page(title, head, shown, runs_columns(runs, results.tags, rank), foot)


def _name_of(store: Store) -> str:
    """Return the name of the store's folder. If the name is `runs`, the parent folder is included: `digits/runs`."""
    if store.root is None:
        return "memory"
    path = os.path.abspath(store.root)
    name = os.path.basename(path)
    return os.path.join(os.path.basename(os.path.dirname(path)), name) if name == "runs" else name


def _ranked_by(results: Results, metric: str | None) -> tuple[RankedBy | None, str]:
    """Return the metric that ranks the runs and, if this metric or its direction is a guess, a note about it (otherwise an empty string).

    The metric is None if no finished run has one. See `make_report` for the default of `metric`.
    """
    counts, modes = metric_counts(results.table)
    if metric is None and not counts:
        return None, ""
    rank = ranked_by(None, counts, modes, is_lenient=True) if metric is None else results.ranked_by(metric)
    said = []
    if metric is None and is_guess(counts, modes):
        said.append(f"The runs do not monitor one metric, so {rank.metric} is a guess: `--metric NAME` chooses another.")
    if not has_direction(results.table, rank.metric):
        said.append(f"That lower {rank.metric} is better is a guess: runs that monitor it with `mode` record what is better.")
    return rank, " ".join(said)


# ---- the answer


def _count_settings(groups: Groups | None) -> str:
    if not groups:
        return ""
    sizes = sorted({group.n for group in groups})
    seeds = f"{sizes[0]} to {sizes[-1]} seeds" if len(sizes) > 1 else counted(sizes[0], "seed")
    return f"{counted(len(groups), 'setting')} of {seeds}"


def _titles(results: Results, groups: Groups) -> dict[str, str]:
    """Return the shortest unambiguous name of each config key in which the settings differ."""
    return short_names(groups.names, ".", results.table.config)


def _value_texts(groups: Sequence[Group], name: str) -> list[str]:
    """Return the value of a config key in each setting, as text.

    The text is empty if the runs of a setting have different values or no value.
    """
    texts = iter(short_values([group.values[name] for group in groups if name in group.values]))
    return [next(texts) if name in group.values else "" for group in groups]


def _labels(results: Results, groups: Groups) -> list[str]:
    """Return the values that distinguish each of the best settings from the others, as text: `lr=0.1, width=64`."""
    shown = groups[:_MAX_SETTINGS]
    columns = [
        [f"{title}={text}" if text else "" for text in _value_texts(shown, name)] for name, title in _titles(results, groups).items()
    ]
    return [", ".join(filter(None, row)) or "all runs" for row in zip(*columns, strict=True)] if columns else ["all runs"] * len(shown)


def _answer(results: Results, groups: Groups | None, rank: RankedBy | None, note: str) -> Html:
    """Return a summary for the top of the report: the two best settings, `note`, and a warning that the best result may be due to luck."""
    if not groups or rank is None or math.isnan(groups[0].mean):
        return Html()
    best: Group = groups[0]
    labels = _labels(results, groups)
    digits = _digits(groups)
    what = f"{'highest' if rank.is_greater_better else 'lowest'} {'mean ' if best.n > 1 else ''}{rank.metric}"
    lines = [join([element("strong", labels[0]), f" has the {what}: {_interval(best, digits)}, {counted(best.n, 'seed')}."])]
    if len(groups) > 1 and not math.isnan(groups[1].mean):
        lines.append(join(["Next: ", labels[1], f", {_interval(groups[1], digits)}."]))
        if groups.num_lucky > 1:
            lines.append(join([f"The best setting with several seeds is {_best_of_several(results, groups, digits)}."]))
        luck = "its mean is probably too good" if best.n > 1 else "part of its lead is luck, and one seed cannot show how much"
        chosen = f"It was chosen as the best of {len(groups):,} settings, so {luck}. Train it with new seeds before you rely on it."
        lines.append(element("span", chosen, class_="note"))
    if note:
        lines.append(element("span", note, class_="note"))
    return element("div", *(element("p", line) for line in lines), class_="card answer")


def _best_of_several(results: Results, groups: Groups, digits: int) -> str:
    """Describe the best setting with several seeds."""
    best: Group = groups[groups.num_lucky]
    label = _labels(results, replace(groups, members=(best,)))[0]
    return f"{label}: {_interval(best, digits)}, {counted(best.n, 'seed')}"


def _digits(groups: Sequence[Group]) -> int:
    """Return how many decimals are needed to show two significant digits of the width of a typical interval."""
    widths = sorted(width for group in groups[:_MAX_SETTINGS] if math.isfinite(width := group.high - group.low) and width > 0)
    means = [abs(group.mean) for group in groups[:_MAX_SETTINGS] if math.isfinite(group.mean) and group.mean]
    typical = widths[len(widths) // 2] if widths else 1e-3 * max(means, default=1.0)
    return min(max(1 - math.floor(math.log10(typical)), 0), 12)


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) and abs(value) < 1e6 else f"{value:.4g}"


def _interval(group: Group, digits: int) -> str:
    mean = _number(group.mean, digits)
    return mean if math.isnan(group.low) else f"{mean} [{_number(group.low, digits)}, {_number(group.high, digits)}]"


# ---- sections


def _settings_section(results: Results, groups: Groups | None, rank: RankedBy | None, note: str) -> Section:
    if not groups or rank is None:
        fact = "No run has finished, so there is nothing to compare." if not len(results) else "None of the finished runs has a metric."
        return section("settings", "Settings", element("p", fact))
    shown: list[Group] = list(groups[:_MAX_SETTINGS])
    titles = _titles(results, groups)
    columns = [[title, *texts] for name, title in titles.items() if any(texts := _value_texts(shown, name))]
    digits = _digits(shown)
    scale = interval_scale(value for group in shown for value in (group.mean, group.low, group.high))
    rows = []
    for number, group in enumerate(shown):
        color = number if number < NUM_COLORS else 6
        drawn = Html(draw_interval(scale, group.mean, group.low, group.high, color=color)) if math.isfinite(group.mean) else ""
        mark = swatch(number) if number < NUM_COLORS else ""
        rows.append([mark, _interval(group, digits) + _describe_gaps(group), drawn, group.n, *(column[number + 1] for column in columns)])
    heads = ["", f"{rank.metric}, mean [95%]", "", "seeds", *(column[0] for column in columns)]
    foot = ["", "", Html(draw_interval_axis(scale)), "", *([""] * len(columns))]
    said = [
        f"Runs that differ only in their seed are one setting. {'Higher' if rank.is_greater_better else 'Lower'} {rank.metric} is better. "
        "The interval is Student's t over seeds; there is none for one seed or equal values."
    ]
    if note:
        said.append(note)
    if groups.num_lucky:
        who = f"The first {groups.num_lucky} settings have one seed each" if groups.num_lucky > 1 else "The first setting has one seed"
        said.append(f"{who}, which may be a lucky one. The best setting with several seeds is {_best_of_several(results, groups, digits)}.")
    epochs = sorted({each for each in results.table.fact("epoch") if each is not None})
    if len(epochs) > 1:
        said.append(f"These runs were trained for different numbers of epochs: {epochs[0]} to {epochs[-1]}.")
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
    labels = _labels(results, groups)[: len(shown)]
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
    what = "Forecasts are based on the finished runs with the most similar start. They are not results."
    drawn = forecast_figure(runs, forecasts.metric) if any(isinstance(run.forecast, Forecast) for run in runs) else ""
    more = element("p", f"... and {len(runs) - _MAX_FORECASTS:,} more", class_="note") if len(runs) > _MAX_FORECASTS else ""
    return section("unfinished", "Unfinished runs", notes([what]), drawn, table(heads, rows, [2, 3, 4]), more, notes(forecasts.notes))
