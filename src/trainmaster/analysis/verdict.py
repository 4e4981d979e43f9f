"""Computes the verdict of a hypothesis. The verdict depends only on the plan and the recorded pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainmaster.analysis.arms import RunValue, seed_notes
from trainmaster.analysis.boundary import FIRST_LOOK, Design
from trainmaster.analysis.report_table import Table, as_signed
from trainmaster.analysis.statistics import has_spread, mean_and_sd
from trainmaster.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trainmaster.figures.panels import Panel

State = Literal["supported", "refuted", "inconclusive", "pending"]
_NO_SPREAD = "all differences are equal, so their spread is unknown"


class Pair(NamedTuple):
    """Two runs with the same seed, one for each arm."""

    seed: int
    a: RunValue
    b: RunValue


class Look(NamedTuple):
    """The result of one interim analysis, after a number of pairs."""

    n: int
    mean: float
    sd: float
    t: float | None
    """The t statistic, or None if all differences are equal, because their spread is then unknown."""
    critical: float


@dataclass(frozen=True)
class HypothesisPlan:
    """Everything that a verdict depends on besides the pairs. The plan is fixed before the first pair is trained."""

    name: str
    settings: Mapping[str, Any]
    """The user's settings."""
    direction: Literal["min", "max"]
    budget: int | None
    sd: float | None
    """The standard deviation of the pairs' differences that the plan assumes, or None if it is unknown."""
    sd_source: str
    seeds: tuple[int, ...]
    """The seeds, in the order in which their pairs are used."""
    known_seeds: tuple[int, ...]
    """The seeds for which a run was started before the plan was made."""
    groups: tuple[str, str]
    """The group ids of both arms."""
    seed_key: str
    """The name of the config key that holds the seed."""
    criticals: tuple[float | None, ...]
    """The critical |t| for each number of pairs, or None where the data is not analyzed.

    The tuple is empty for a plan without a budget.
    """
    statement: tuple[str, ...]
    """Lines that describe the plan and the differences that it can detect."""
    earlier: tuple[str, ...] = ()
    """Earlier hypotheses about the same two arms."""
    arms: tuple[str, ...] = ()
    """For each arm, the keys in which the complete configs of the two arms differ, with the arm's values.

    The tuple is empty in plans from early versions of trainmaster.
    """

    @property
    def design(self) -> Design:
        return Design(self.settings["alpha"], self.budget, self.settings["hopeless"])

    @property
    def claim(self) -> str:
        margin = f" by more than {self.settings['by']:g}" if self.settings["by"] else ""
        better = "higher" if self.direction == "max" else "lower"
        a, b = self.arms or (_given_values(self.settings[arm]) for arm in ("claim", "better_than"))
        return f"{a} has a {better} {self.settings['on']} than {b}{margin}"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HypothesisPlan:
        lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists})

    def __str__(self) -> str:
        return "\n".join([f"hypothesis {self.name}: {self.claim}", *(f"  {line}" for line in self.statement)])


def _given_values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "the base"


@dataclass(frozen=True)
class Verdict:
    """The result of a hypothesis: its `state`, the mean difference with its interval, the pairs, and the looks (interim analyses)."""

    plan: HypothesisPlan
    state: State
    why: str
    n: int
    """The number of pairs that the verdict uses."""
    mean: float
    """The mean improvement, or nan if there are no pairs. A positive value is better, even if smaller values of the metric are better."""
    low: float
    high: float
    pairs: tuple[Pair, ...]
    """The recorded pairs up to the first missing one, in the planned order of seeds. The verdict uses only the first `n`."""
    looks: tuple[Look, ...]

    @property
    def known_seeds(self) -> tuple[int, ...]:
        """The seeds of the first `n` pairs for which a run already existed before the plan was made."""
        return tuple(pair.seed for pair in self.pairs[: self.n] if pair.seed in self.plan.known_seeds)

    @property
    def notes(self) -> list[str]:
        """Notes that help to interpret the numbers."""
        notes = []
        if self.known_seeds:
            listed = ", ".join(map(str, self.known_seeds))
            notes.append(f"known before the plan was made, and therefore weaker evidence: the runs of the seeds {listed}")
        if self.plan.earlier:
            notes.append(f"earlier hypotheses about the same runs: {', '.join(self.plan.earlier)}")
        failed = [run for pair in self.pairs[: self.n] for run in (pair.a, pair.b) if run.value is None]
        if failed:
            notes.append(f"{counted(len(failed), 'run')} without a value count as the worst value seen: {', '.join(r.key for r in failed)}")
        notes += seed_notes([[pair.a for pair in self.pairs[: self.n]], [pair.b for pair in self.pairs[: self.n]]])
        if self.state in ("supported", "refuted") and (self.plan.budget is None or self.n < self.plan.budget):
            notes.append("a study that stops early overstates the distance from the margin a little; the interval accounts for that")
        if len(self.pairs) > self.n:
            notes.append(f"{counted(len(self.pairs) - self.n, 'later pair')} were also trained, and do not count")
        return notes

    @property
    def table(self) -> Table:
        """The pairs that the verdict uses, with their runs."""
        columns = ("seed", "claim", "run", "against", "run", "difference")
        rows = []
        for index, difference in enumerate(differences(self.plan, self.pairs[: self.n])):
            pair = self.pairs[index]
            cells = (_value(pair.a), pair.a.key, _value(pair.b), pair.b.key, as_signed(difference))
            rows.append((str(pair.seed), *cells))
        return Table(columns, tuple(rows), numbers=(0, 1, 3, 5), title=f"{self.plan.claim}: {self.state}", notes=(self.why, *self.notes))

    def to_dict(self) -> dict[str, Any]:
        """Return the whole verdict as plain values; nan and infinities become None."""
        looks = [{**look._asdict(), **{name: _finite(getattr(look, name)) for name in ("mean", "sd", "critical")}} for look in self.looks]
        return {
            **{name: getattr(self.plan, name) for name in ("name", "claim")},
            **{name: getattr(self, name) for name in ("state", "why", "n", "notes")},
            **{name: _finite(getattr(self, name)) for name in ("mean", "low", "high")},
            "known_seeds": list(self.known_seeds),
            "looks": looks,
            "pairs": [{"seed": pair.seed, "a": pair.a._asdict(), "b": pair.b._asdict()} for pair in self.pairs],
            "plan": asdict(self.plan),
        }

    def __str__(self) -> str:
        lines = [f"hypothesis {self.plan.name}: {self.plan.claim}", f"{self.state}: {self.why}", *(f"note: {each}" for each in self.notes)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.table.to_html()

    def panels(self) -> list[Panel]:
        """Return two panels: one shows the pairs' differences and the margin, the other shows the looks and the boundary."""
        from trainmaster.figures.panels import Forest, ForestRow, Line, Lines

        counted_pairs = self.pairs[: self.n]
        rows = [
            ForestRow(f"seed {pair.seed}", value) for pair, value in zip(counted_pairs, differences(self.plan, counted_pairs), strict=True)
        ]
        color: Any = {"supported": "good", "refuted": "bad"}.get(self.state, "unclear")
        rows.append(ForestRow(f"mean of {self.n}", self.mean, self.low, self.high, color, is_summary=True))
        title = f"{self.plan.name}: {self.state} (dashed: margin {self.plan.settings['by']:g})"
        forest = Forest(title, f"improvement of {self.plan.settings['on']}", rows, line=self.plan.settings["by"])
        boundary = [(n, each) for n, each in enumerate(self.plan.criticals) if each] or [(look.n, look.critical) for look in self.looks]
        lines = [
            Line("|t| of the data", [look.n for look in self.looks], [math.nan if look.t is None else abs(look.t) for look in self.looks]),
            Line("boundary", [n for n, _ in boundary], [each for _, each in boundary]),
        ]
        return [forest, Lines("looks", "pairs", "|t|", lines, is_log=False)]

    def figure(self) -> Figure:
        from trainmaster.figures.png import draw

        return draw(self.panels(), self.plan.claim)


def decide(plan: HypothesisPlan, pairs: Sequence[Pair], reason_to_wait: str = "") -> Verdict:
    """Compute the verdict from `pairs`, which must be in the planned order of seeds.

    The first look (interim analysis) that crosses the boundary determines the verdict. All looks are recomputed here, so it
    does not matter how many times the study was analyzed before.
    """
    design, by = plan.design, plan.settings["by"]
    last = len(pairs) if plan.budget is None else plan.budget
    criticals = [math.inf if each is None else each for each in plan.criticals] or [*map(float, design.criticals(max(last, FIRST_LOOK)))]
    looks: list[Look] = []
    state: State = "pending"
    why = ""
    for n in range(FIRST_LOOK, len(pairs) + 1):
        look = _look(plan, pairs[:n], criticals[n])
        looks.append(look)
        if look.t is not None and abs(look.t) >= look.critical:
            state = "supported" if look.t > 0 else "refuted"
        elif plan.budget is not None and n >= plan.budget:
            state, why = "inconclusive", f"the budget of {plan.budget} pairs is used up"
            why += f"; {_NO_SPREAD}" if look.t is None and not math.isnan(look.mean) else ""
        elif look.t is not None and design.is_hopeless(n, look.t, criticals[-1]):
            chance = f"{plan.settings['hopeless']:.0%}"
            state, why = "inconclusive", f"the chance of a verdict within the budget of {plan.budget} pairs is below {chance}"
        if state != "pending":
            break
    n = looks[-1].n if looks else len(pairs)
    look = looks[-1] if looks else _look(plan, pairs, math.inf)
    margin = look.critical * look.sd / math.sqrt(n) if look.t is not None and math.isfinite(look.critical) else math.nan
    verdict = Verdict(plan, state, "", n, look.mean, look.mean - margin, look.mean + margin, tuple(pairs), tuple(looks))
    return replace(verdict, why=_explain(verdict, reason_to_wait if state == "pending" else why, by))


def _look(plan: HypothesisPlan, pairs: Sequence[Pair], critical: float) -> Look:
    found = differences(plan, pairs)
    mean, sd = mean_and_sd(found)
    values = [run.value for pair in pairs for run in (pair.a, pair.b) if run.value is not None]
    t = math.sqrt(len(pairs)) * (mean - plan.settings["by"]) / sd if has_spread(sd, values) else None
    return Look(len(pairs), mean, sd, t, critical)


def differences(plan: HypothesisPlan, pairs: Sequence[Pair]) -> list[float]:
    """Return, for each pair, how much better the run of the claim is than the other run.

    A run without a value gets the worst value among all runs in these pairs.
    """
    sign = 1.0 if plan.direction == "max" else -1.0
    known = [sign * run.value for pair in pairs for run in (pair.a, pair.b) if run.value is not None]
    worst = min(known, default=math.nan)
    scores = [[worst if run.value is None else sign * run.value for run in (pair.a, pair.b)] for pair in pairs]
    return [a - b for a, b in scores]


def _explain(verdict: Verdict, reason: str, by: float) -> str:
    if not verdict.pairs:
        return reason or "no pair is complete yet"
    level = f"{100 * (1 - verdict.plan.settings['alpha']):.4g}%"
    mean = f"the mean improvement is {verdict.mean:+.4g}" if math.isfinite(verdict.mean) else "no run has a value"
    mean = f"after {counted(verdict.n, 'pair')}, {mean}"
    if math.isnan(verdict.low):
        few = f"; there is no verdict before {FIRST_LOOK} pairs" if verdict.n < FIRST_LOOK else ""
        return mean + few + (f"; {reason}" if reason else f"; {_NO_SPREAD}" if not few and math.isfinite(verdict.mean) else "")
    where = {"supported": "wholly above", "refuted": "wholly below"}.get(verdict.state, "on both sides of")
    interval = f"[{verdict.low:+.4g}, {verdict.high:+.4g}]"
    return f"{mean}, with the {level} interval {interval} {where} the margin {by:g}" + (f"; {reason}" if reason else "")


def _value(run: RunValue) -> str:
    return f"{run.value:.6g}" if run.value is not None else "failed"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
