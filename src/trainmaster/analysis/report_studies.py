"""The report sections about the verdicts of hypotheses, the results of ablations, and the importance of config keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from trainmaster.analysis.plan_records import Kind, plan_names
from trainmaster.analysis.report_page import Html, Section, element, notes, section, table
from trainmaster.errors import MissingExtraError, SettingError, TrainmasterError
from trainmaster.figures.svg import draw_bar, draw_interval, draw_interval_axis, interval_scale
from trainmaster.store import Store
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.analysis.contributions import AblationReport
    from trainmaster.analysis.results import Results
    from trainmaster.analysis.verify_hypothesis import Verification

_COLORS = {"supported": 2, "helps": 2, "refuted": 1, "hurts": 1}
_SEED = "seed"
_T = TypeVar("_T")


class Studies(NamedTuple):
    """The hypotheses and ablations in a store, recomputed from its runs."""

    verdicts: list[Verification]
    ablations: list[AblationReport]
    problems: list[str]
    """The studies that are left out although they include selected runs, with the reasons."""


def read_studies(store: Store, keys: Collection[str] | None) -> Studies:
    """Return all studies or, if `keys` is not None, only the studies whose runs are all in `keys`.

    If only some runs of a study are in `keys`, the study is listed in `problems`.
    """
    problems: list[str] = []

    def read(kind: Kind, read_one: Callable[[Store, str], _T], runs_of: Callable[[_T], set[str]]) -> list[_T]:
        found = []
        for name in plan_names(store, kind):
            try:
                study = read_one(store, name)
            except (TrainmasterError, KeyError, TypeError, ValueError) as error:  # another version may have written the record
                fact = f"another version wrote its records ({type(error).__name__}: {error})"
                problems.append(f"the {kind} {name} cannot be read: {error.fact if isinstance(error, TrainmasterError) else fact}")
                continue
            runs = {key for key in runs_of(study) if key in store.configs}  # a run in the plan may not have started yet
            num_selected = len(runs) if keys is None else len(runs.intersection(keys))
            if keys is None or (runs and num_selected == len(runs)):
                found.append(study)
            elif num_selected:
                problems.append(f"the {kind} {name} is left out: only {num_selected} of its {counted(len(runs), 'run')} are selected")
        return found

    if not store.files.names("sweeps"):
        return Studies([], [], [])
    from trainmaster.analysis.contributions import read_ablation
    from trainmaster.analysis.verify_hypothesis import verify_hypothesis

    verdicts = read("hypothesis", verify_hypothesis, lambda each: {run.key for pair in each.verdict.pairs for run in (pair.a, pair.b)})
    ablations = read("ablation", read_ablation, lambda each: {key for keys in each.plan.keys.values() for key in keys})
    return Studies(verdicts, ablations, problems)


def verdict_card(verification: Verification) -> Html:
    """Return a card with a claim, its verdict, and a drawing of the interval and the margin."""
    verdict, problems = verification
    by = verdict.plan.settings["by"]
    parts: list[Html] = [
        element("p", element("strong", f"{verdict.state.capitalize()}."), " ", verdict.plan.claim, "."),
        notes([verdict.why]),
    ]
    if math.isfinite(verdict.low):
        scale = interval_scale([verdict.low, verdict.high, by, 0.0])
        drawn = draw_interval(scale, verdict.mean, verdict.low, verdict.high, [by], _COLORS.get(verdict.state, 4))
        axis = draw_interval_axis(scale)
        parts.append(
            element("div", Html(drawn), Html(axis), element("small", f"improvement; the dashed line is the margin {by:g}"), class_="drawn")
        )
    checked = f"Checked against the runs in the store: {'; '.join(problems) if problems else 'every value agrees'}."
    return element("div", *parts, element("p", checked, class_="note wrong" if problems else "note"), class_=f"card answer {verdict.state}")


def verdicts_section(studies: Studies) -> Section | None:
    """Return a section with the pairs of each verdict."""
    if not studies.verdicts and not studies.problems:
        return None
    parts: list[Html] = [element("p", f"{each[:1].upper()}{each[1:]}.", class_="wrong") for each in studies.problems]
    for verdict, _ in studies.verdicts:
        pairs = verdict.table
        said = notes([*verdict.plan.statement, *verdict.notes])
        parts += [
            element("h3", f"{verdict.plan.name}: {verdict.plan.claim}"),
            said,
            table(pairs.columns, pairs.rows, pairs.numbers) if pairs.rows else Html(),
        ]
    return section("verdicts", "Verdicts", *parts)


def ablations_section(studies: Studies) -> Section | None:
    if not studies.ablations:
        return None
    parts: list[Html] = []
    for report in studies.ablations:
        known = report.contributions
        scale = interval_scale([0.0, *(value for each in known for value in (each.mean, each.low, each.high))])
        rows = []
        for each in known:
            drawn = Html(draw_interval(scale, each.mean, each.low, each.high, [0.0], _COLORS.get(each.verdict, 6)))
            interval = f"{each.mean:+.4g}" + ("" if math.isnan(each.low) else f" [{each.low:+.4g}, {each.high:+.4g}]")
            rows.append([each.part, interval, drawn, each.n, "" if math.isnan(each.p) else f"{each.p:.2g}", each.verdict])
        what = report.table.columns[2]
        heads = ["part", f"{what} to {report.plan.settings['on']}" if what == "contribution" else what, "", "seeds", "p (Holm)", "verdict"]
        foot = ["", "", Html(draw_interval_axis(scale)), "", "", ""]
        parts += [element("h3", f"Ablation {report.plan.name}"), table(heads, rows, [1, 3, 4], foot), notes(report.notes)]
    return section("ablations", "Ablations", *parts)


def importance_section(results: Results, metric: str) -> Section | None:
    """Return a section with a bar for each config key. The bar of the seed shows how large the noise is."""
    if not len(results):
        return None
    try:
        found = results.importance(metric)
    except (SettingError, MissingExtraError) as error:
        why = ": ".join(filter(None, [error.fact, error.rows.get("why")]))
        return section("importance", "Parameter importance", notes([why]))
    seed = found.values.get(_SEED)
    largest = max(found.values.values(), default=0.0) or 1.0
    rows = []
    for name, share in found.values.items():
        drawn = Html(draw_bar(share / largest, "bar seed" if name == _SEED else "bar", None if seed is None else seed / largest))
        note = "noise" if name == _SEED else "" if seed is None or share > seed else "not above the seed"
        rows.append([name, f"{share:.1%}", drawn, note])
    what = f"How much each key matters for {metric}: Optuna's PED-ANOVA over {counted(found.num_runs, 'run')}."
    bar = "The dashed line is the share of the seed: smaller shares are noise."
    if seed is None:
        bar = "All runs have the same seed, so the size of the noise is unknown."
    heads = ["key", "share", "", ""]
    return section("importance", "Parameter importance", notes([f"{what} {bar}"]), table(heads, rows, [1]), notes(found.notes))
