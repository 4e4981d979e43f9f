"""Computes the report of an ablation from the runs in the store. The report shows how much each part contributes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from trainmaster.analysis.ablation_plan import AblationPlan, Effect
from trainmaster.analysis.arms import RunValue, read_value, seed_notes
from trainmaster.analysis.plan_records import PlanRecords
from trainmaster.analysis.report_table import Table, as_number, as_signed
from trainmaster.analysis.statistics import holm, paired_difference
from trainmaster.errors import PlanError, StoreDamagedError
from trainmaster.manager.job import Job, config_epochs, is_done
from trainmaster.store import Store
from trainmaster.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trainmaster.figures.panels import Panel

Word = Literal["helps", "hurts", "interacts", "unclear", "incomplete"]


@dataclass(frozen=True)
class Contribution:
    """The effect of one part on the metric. A positive effect is an improvement. Numbers that cannot be computed are nan."""

    part: str
    n: int
    """The number of seeds for which all runs that the effect depends on have a result."""
    mean: float
    low: float
    high: float
    """The upper end of the interval. With a probability of at least 1 - alpha, all intervals in the table contain their true effects."""
    p: float
    """The p-value, adjusted by Holm's method for all effects in the table."""
    effect_size: float
    verdict: Word
    """The verdict, based on whether the adjusted p-value is at most alpha.

    "unclear" does not mean that the part has no effect.
    """


@dataclass(frozen=True)
class AblationReport:
    """The contributions of all parts, and the runs from which the contributions are computed."""

    plan: AblationPlan
    contributions: tuple[Contribution, ...]
    runs: Mapping[str, tuple[RunValue, ...]]
    """The runs of each arm, in the order of the seeds."""

    @property
    def missing(self) -> list[str]:
        """One line for each run without a result, with the reason."""
        return [
            f"{arm}, seed {seed}, run {run.key}: {run.why}"
            for arm, runs in self.runs.items()
            for seed, run in zip(self.plan.seeds, runs, strict=True)
            if run.value is None
        ]

    @property
    def is_complete(self) -> bool:
        return not self.missing

    @property
    def notes(self) -> tuple[str, ...]:
        settings, notes = self.plan.settings, []
        better = "higher" if self.plan.direction == "max" else "lower"
        level = f"{100 * (1 - settings['alpha']):.4g}%"
        notes.append(f"positive is better ({better} {settings['on']}); simultaneous intervals at {level}, p by Holm's method")
        if settings["design"] == "factorial":
            notes.append("an effect is the mean over all combinations of the other changes; a * b is how much b changes the effect of a")
        targets = _targets(self.runs)
        if len(targets) > 1:
            shorter = next(run.key for each in self.runs.values() for run in each if run.target == targets[0])
            notes.append(
                f"the runs were trained for {targets[0]} to {targets[-1]} epochs, so only values up to epoch {targets[0]} are used, "
                f"the last epoch of run {shorter}"
            )
        missing = self.missing
        if missing:
            some = "; ".join(missing[:3]) + (f"; and {len(missing) - 3} more" if len(missing) > 3 else "")
            notes.append(f"{counted(len(missing), 'run')} without a result, so some effects have no verdict: {some}")
        constant = [each.part for each in self.contributions if each.verdict == "unclear" and math.isnan(each.low)]
        if constant:
            notes.append(f"no interval for {', '.join(constant)}: the differences are the same for all seeds, so their spread is unknown")
        notes += seed_notes(self.runs.values())
        if self.plan.revision > 1 and self.plan.num_done:
            notes.append(
                f"extended after {counted(self.plan.num_done, 'run')} had results; the intervals do not account for that: "
                "to confirm a finding, test it as a hypothesis on new seeds"
            )
        return tuple(notes)

    @property
    def table(self) -> Table:
        rows = tuple(
            (each.part, str(each.n), as_signed(each.mean), as_signed(each.low), as_signed(each.high), as_number(each.p), each.verdict)
            for each in self.contributions
        )
        what = "effect" if self.plan.settings["design"] == "factorial" else "contribution"
        columns = ("part", "n", what, "low", "high", "p (Holm)", "verdict")
        return Table(columns, rows, (1, 2, 3, 4, 5), f"ablation {self.plan.name}: {self.plan.settings['on']}", self.notes)

    def __str__(self) -> str:
        return str(self.table)

    def to_markdown(self) -> str:
        return self.table.to_markdown()

    def to_latex(self) -> str:
        return self.table.to_latex()

    def _repr_html_(self) -> str:
        return self.table.to_html()

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as plain values; nan becomes None."""
        rows = [{key: None if value != value else value for key, value in asdict(each).items()} for each in self.contributions]
        runs = {arm: [run._asdict() for run in runs] for arm, runs in self.runs.items()}
        return {"name": self.plan.name, "contributions": rows, "notes": list(self.notes), "runs": runs, "plan": asdict(self.plan)}

    def panels(self) -> list[Panel]:
        from trainmaster.figures.panels import Forest, ForestRow

        colors: dict[str, Any] = {"helps": "good", "hurts": "bad"}
        rows = [ForestRow(each.part, each.mean, each.low, each.high, colors.get(each.verdict, "unclear")) for each in self.contributions]
        what = "effect on" if self.plan.settings["design"] == "factorial" else "contribution to"
        return [Forest(f"{self.plan.name} (positive is better)", f"{what} {self.plan.settings['on']}", rows)]

    def figure(self) -> Figure:
        """Return a forest plot of the contributions."""
        from trainmaster.figures.png import draw

        return draw(self.panels())


def read_ablation(store: Store, name: str) -> AblationReport:
    """Return the report of an ablation, computed from its plan and its runs in the store."""
    return report_of(store, newest_plan(PlanRecords(store, "ablation", name)))


def newest_plan(records: PlanRecords) -> AblationPlan:
    revision = 1
    found = records.require(plan_path(revision))
    while (newer := records.read(plan_path(revision + 1))) is not None:
        found, revision = newer, revision + 1
    return AblationPlan(**found)


def plan_path(revision: int) -> str:
    return f"ablation-{revision:03}.json"


def report_of(store: Store, plan: AblationPlan) -> AblationReport:
    runs = {arm: tuple(_result(store, plan, key) for key in keys) for arm, keys in plan.keys.items()}
    names = sorted({run.metric for each in runs.values() for run in each if run.metric})
    if len(names) > 1:
        raise PlanError(f"`{plan.settings['on']}` is not the same metric in all runs: {' and '.join(names)}", hint="use the full name")
    targets = _targets(runs)
    if len(targets) > 1:  # values from different epochs cannot be compared
        runs = {arm: tuple(_at(store, plan, run, targets[0]) for run in each) for arm, each in runs.items()}
    effects = plan.effects
    found = [_contribution(plan, effect, runs, 1 - plan.settings["alpha"] / len(effects)) for effect in effects]
    adjusted = holm([each.p for each in found])
    judged = [replace(each, p=p, verdict=_word(each, p, effect, plan)) for each, p, effect in zip(found, adjusted, effects, strict=True)]
    return AblationReport(plan, tuple(judged), runs)


def _targets(runs: Mapping[str, tuple[RunValue, ...]]) -> list[int]:
    """Return the distinct target epochs of the runs. Runs whose target is set by the plan or the config are left out."""
    return sorted({run.target for each in runs.values() for run in each if run.target is not None})


def _at(store: Store, plan: AblationPlan, run: RunValue, epochs: int) -> RunValue:
    """Return the result of a run after `epochs` epochs, so that runs with different targets can be compared."""
    if run.target is None or run.target == epochs:
        return run
    try:
        return read_value(store, run.key, plan.settings["on"], epochs)._replace(target=run.target)
    except PlanError as error:
        return RunValue(run.key, None, why=error.fact, target=run.target)


def _contribution(plan: AblationPlan, effect: Effect, runs: Mapping[str, tuple[RunValue, ...]], level: float) -> Contribution:
    sign = 1.0 if plan.direction == "max" else -1.0
    plus: list[float] = []
    minus: list[float] = []
    for index in range(len(plan.seeds)):
        values = {arm: runs[arm][index].value for arm in effect.weights}
        if None not in values.values():
            scores = {arm: sign * weight * (values[arm] or 0.0) for arm, weight in effect.weights.items()}
            plus.append(sum(score for arm, score in scores.items() if effect.weights[arm] > 0))
            minus.append(-sum(score for arm, score in scores.items() if effect.weights[arm] < 0))
    found = paired_difference(plus, minus, level)
    is_complete = len(plus) == len(plan.seeds)
    low, high, p, size = (found.low, found.high, found.p, found.effect_size) if is_complete else (math.nan,) * 4
    return Contribution(effect.part, len(plus), found.mean, low, high, p, size, "unclear" if is_complete else "incomplete")


def _word(found: Contribution, p: float, effect: Effect, plan: AblationPlan) -> Word:
    if found.verdict == "incomplete" or not p <= plan.settings["alpha"]:
        return found.verdict
    if effect.is_interaction:
        return "interacts"
    return "helps" if found.mean > 0 else "hurts"


def _result(store: Store, plan: AblationPlan, key: str) -> RunValue:
    """Return the result of a run. If the run has no value, the field `why` of the result gives the reason."""
    run = store.run(key)
    if key not in store.configs and run.attempts():  # `rm` records the removal as an attempt
        return RunValue(key, None, why=f"removed; the same `ablate` command (name {plan.name}) trains it again")
    if not run.attempts():
        return RunValue(key, None, why="not trained yet")
    try:
        epochs = plan.settings["epochs"]
        target = config_epochs(store.configs[key]) if epochs is None else epochs
        if not is_done(store, Job(key, "", None, target if isinstance(target, int) else None)):
            outcome = run.outcome_of(run.newest()) or {}
            failed = outcome.get("outcome") == "failed"
            return RunValue(key, None, why=f"failed: {str(outcome.get('error')).splitlines()[0]}" if failed else "not done")
        return read_value(store, key, plan.settings["on"], epochs)
    except (PlanError, StoreDamagedError) as error:
        return RunValue(key, None, why=error.fact)
