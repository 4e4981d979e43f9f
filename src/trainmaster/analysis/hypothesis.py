"""`Hypothesis`: a claim about two configs, tested with pairs of runs that share a seed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainmaster.analysis.arms import Arms, Overrides, base_values, checked_seeds, direction_of, parse_overrides, plain
from trainmaster.analysis.boundary import FIRST_LOOK, MAX_PAIRS, Design, budget_for, mean_pairs, power_of, smallest_distance
from trainmaster.analysis.plan_records import PlanRecords, plan_names
from trainmaster.analysis.replicate_spread import Spread, find_spread
from trainmaster.analysis.verdict import HypothesisPlan, Verdict
from trainmaster.arguments import check_choice, check_int, check_number
from trainmaster.config.difference import Difference, Missing, diff
from trainmaster.config.identity import EPOCH_KEYS
from trainmaster.errors import SettingError
from trainmaster.manager.varied_keys import values_to_replace
from trainmaster.store.recorded_metrics import refuse_misspelled_metric
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.manager.executor import Executor
    from trainmaster.manager.manager import Manager

A, B = "claim", "better_than"
"""The names of the two arms: the config that should be better, and the config to compare it with."""
DEFAULT_BUDGET = 20
_SHARED = "values that both arms share go into `--config FILE` or `base=...`"
_NEW_ONE = "the plan of a hypothesis cannot change; give the new hypothesis another name, or none"


class _Sides(NamedTuple):
    texts: tuple[str, str]
    """For each arm, the values that distinguish it from the other arm."""
    warnings: tuple[str, ...]
    """At most one line: a warning about keys that only one arm sets."""


@dataclass(frozen=True)
class Hypothesis:
    """The claim that one config is better than another, tested with pairs of runs.

    Both runs of a pair have the same seed. After each pair from the fifth on, the claim is supported if the interval of
    the mean improvement is completely above the margin `by`, and refuted if it is completely below `by`. The intervals
    account for the repeated tests: the probability of a wrong verdict of either kind is at most `alpha`. If there is no
    verdict when the budget is used up, the result is "inconclusive".

    The result of a run is the last value of the metric up to the run's target epoch.

    Args:
        claim: the config values that should be better: `"model.activation=gelu"`, a list of such strings, or a mapping.
        better_than: the config values to compare with, or an empty string for the base itself.
        on: the metric, or the last part of its name if that is unambiguous.
        by: the margin, in units of the metric. It is never negative, even if smaller values of the metric are better.
        budget: the maximum number of pairs. "auto" computes it from `effect`, `power` and `sd`, or uses 20 if there is no `effect`.
            None sets no limit: you can continue the test at any time, but the test then needs about 1.3 times as many pairs.
        effect: the true improvement that the test should be able to distinguish from the margin.
        sd: the standard deviation of the pairs' differences; by default, it is estimated from replicates of other configs in the store.
        seeds: the seeds to choose from. Seeds without existing runs are used first.
        direction: "max" or "min"; by default, it is inferred from the name of the metric.
        failed: what to do if a run fails or its value is not finite. "wait" leaves the verdict open; "worst" uses the worst value seen.
        hopeless: once half of the budget is used, the test stops if the probability of a verdict falls below this value.
        base: values that both configs share, or a config file with these values. If only one of `claim` and
            `better_than` sets a key, the configs differ in that key, because the other config has the value of the base
            or the default.
        epochs: the number of epochs for every run; by default, the config or the loop sets it.
    """

    claim: Overrides
    better_than: Overrides
    on: str
    by: float = 0.0
    alpha: float = 0.05
    budget: int | Literal["auto"] | None = "auto"
    effect: float | None = None
    power: float = 0.8
    sd: float | None = None
    seeds: Sequence[int] = range(1000)
    direction: Literal["min", "max"] | None = None
    failed: Literal["wait", "worst"] = "wait"
    hopeless: float = 0.05
    base: Any = None
    epochs: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_number("by", self.by, min=0, hint="`by` is the size of the improvement, even if a smaller value is better: by=0.005")
        check_number("alpha", self.alpha, above=0, below=1)
        check_number("power", self.power, above=0, below=1)
        check_number("hopeless", self.hopeless, min=0, below=0.5)
        check_choice("failed", self.failed, ("wait", "worst"), hint="failed='wait'")
        if self.budget not in ("auto", None):
            check_int("budget", self.budget, min=FIRST_LOOK, hint=f"there is no verdict before {FIRST_LOOK} pairs; budget=20")
            if isinstance(self.budget, int) and self.budget > MAX_PAIRS:
                hint = "200 pairs detect a difference of 0.23 sd"
                raise SettingError(f"`budget` must be at most {MAX_PAIRS} pairs, not {self.budget}", hint=hint)
        if self.effect is not None:
            check_number("effect", self.effect)
            if self.effect == self.by:
                hint = "`effect` is the true improvement at which the study should decide: pass one beyond the margin"
                raise SettingError(f"the effect and the margin are both {self.by:g}; no number of pairs can distinguish them", hint=hint)
        if self.sd is not None:
            check_number("sd", self.sd, above=0, hint="`sd` is the standard deviation of the differences between paired runs")
        if self.epochs is not None:
            check_int("epochs", self.epochs, min=1)
        if not isinstance(self.on, str) or not self.on:
            raise SettingError(f"on={self.on!r}: expected the name of a metric", hint='on="valid/accuracy"')
        direction_of(self.on, self.direction)
        checked_seeds(self.seeds)
        claim, better_than = self._given()
        if claim == better_than:
            raise SettingError("both sides of the hypothesis have the same values", hint="compare values that differ")

    # ---- the plan

    def plan(self, manager: Manager | None = None, is_dry: bool = False) -> HypothesisPlan:
        """Return the plan, which also states the differences that the test can detect.

        With a manager, the plan is checked and recorded in the store, and cannot change afterwards. With `is_dry`,
        nothing is recorded.
        """
        if manager is None:
            base, (claim, better_than) = base_values(self.base), self._given()
            settings = self._settings({}, claim, better_than)
            sides = self._compare(diff({**base, **claim}, {**base, **better_than}), "the default {}")
            return self._make_plan(self.name or "unnamed", settings, Spread(self.sd, "given"), sides, seed_key="seed", groups=("", ""))
        arms = self.arms(manager)
        arms.check("the hypothesis")
        sides = self._compare(arms.differences(A, B), "{} not set")
        settings = self._settings(arms.recorded_base(), arms.values[A], arms.values[B])
        groups = (arms.group(A), arms.group(B))
        records = PlanRecords(manager.store, "hypothesis", self.name or _name_of(settings, groups))
        recorded = records.read("hypothesis.json")
        if recorded is None:
            refuse_misspelled_metric(manager.store, self.on)
            is_given = self.sd or self.effect is None
            spread = Spread(self.sd, "given") if is_given else find_spread(manager.store, self.on, self.epochs, groups)
            known = {seed for seed in self.seeds[: self._num_candidates] if arms.is_known(A, seed) or arms.is_known(B, seed)}
            facts = {"groups": groups, "seed_key": arms.seed_key, "earlier": _earlier(manager, groups)}
            plan = self._make_plan(records.name, settings, spread, sides, known, **facts)
            if is_dry:
                return plan
            recorded = records.create("hypothesis.json", asdict(plan))
        records.refuse_changes(recorded["settings"], settings, _NEW_ONE)
        names = ("config of the claim", "config it is compared with")
        hint = f"the defaults of the config, or `get_config`, have changed since the plan was made; {_NEW_ONE}"
        records.refuse_changes(dict(zip(names, recorded["groups"], strict=True)), dict(zip(names, groups, strict=True)), hint)
        return HypothesisPlan.from_dict(recorded)

    def test(self, manager: Manager, workers: int | Executor = 0, max_pairs: int | None = None) -> Verdict:
        """Train pairs until there is a verdict, and return the verdict.

        The plan is recorded before the first pair is trained, and each pair is recorded as soon as its runs are done.
        Therefore, the same call continues the test after a crash, and several processes can make this call and share the work.
        `max_pairs` limits the total number of pairs, including pairs from earlier calls. If there is no verdict by then,
        the state is "pending".
        """
        from trainmaster.analysis.hypothesis_driver import run_hypothesis

        manager.job_runner.refuse_if_busy()
        if max_pairs is not None:
            check_int("max_pairs", max_pairs, min=1)
        elif self.budget is None:
            hint = "test(manager, max_pairs=40); a later call can continue it"
            raise SettingError("a hypothesis without a budget may never end", hint=hint)
        return run_hypothesis(self.plan(manager), self.arms(manager), workers, max_pairs)

    def arms(self, manager: Manager) -> Arms:
        claim, better_than = self._given(manager)
        return Arms(manager, base_values(self.base), {A: claim, B: better_than}, self.epochs)

    def _given(self, manager: Manager | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values of both arms. With a manager, a number given as text is converted to the type of the value that it replaces."""
        known = None if manager is None else values_to_replace(manager, base_values(self.base))
        return parse_overrides(self.claim, "the claim", known), parse_overrides(self.better_than, "`better_than`", known)

    def _compare(self, differences: Sequence[Difference], absent: str) -> _Sides:
        """Describe what distinguishes the two arms, and warn about keys that only one of them sets.

        If only one arm sets a key, the user may have meant to give both arms the same value. `absent` is the text for a key
        that an arm does not have.
        """
        claim, better_than = self._given()
        names = [key for key, *_ in differences]
        one_sided = [key for key in names if _is_named(key, claim) != _is_named(key, better_than)]
        texts = [
            ", ".join(absent.format(key) if kind is Missing else f"{key}={plain(value)}" for key, (kind, value) in side) or "the base"
            for side in ([(key, a) for key, a, _ in differences], [(key, b) for key, _, b in differences])
        ]
        named = [key for key in names if _is_named(key, claim) or _is_named(key, better_than)]  # the other keys follow from these
        if self.epochs is None and len(named) > 1 and any(key in EPOCH_KEYS for key in one_sided):
            fact = f"the arms differ in the number of epochs because only one of them names it: {texts[0]} against {texts[1]}"
            raise SettingError(fact, hint=f"{_SHARED}; to compare numbers of epochs, name them in both arms")
        if not one_sided or not claim or not better_than:  # if one arm is the base itself, the other sets all keys
            return _Sides((texts[0], texts[1]), ())
        warning = f"warning: the arms differ in {counted(len(names), 'key')}: {', '.join(names)}; only one arm names {', '.join(one_sided)}"
        return _Sides((texts[0], texts[1]), (f"{warning}; {_SHARED}",))

    @property
    def _num_candidates(self) -> int:
        """How many seeds are checked for existing runs. The number is limited, because each check computes the keys of two runs."""
        return MAX_PAIRS + (self.budget if isinstance(self.budget, int) else 0) * 2

    def _settings(self, recorded_base: dict[str, Any], claim: Mapping[str, Any], better_than: Mapping[str, Any]) -> dict[str, Any]:
        seeds = self.seeds
        return {
            A: {key: plain(value) for key, value in claim.items()},
            B: {key: plain(value) for key, value in better_than.items()},
            "base": recorded_base,
            "direction": direction_of(self.on, self.direction),
            "seeds": [seeds.start, seeds.stop, seeds.step] if isinstance(seeds, range) else {"listed": list(seeds)},
            **{name: getattr(self, name) for name in ("on", "by", "alpha", "budget", "effect", "power", "sd")},
            **{name: getattr(self, name) for name in ("failed", "hopeless", "epochs")},
        }

    def _make_plan(
        self, name: str, settings: dict[str, Any], spread: Spread, sides: _Sides, known: Collection[int] = (), **facts: Any
    ) -> HypothesisPlan:
        """Return the plan. The seeds in `known`, which already have runs, come last. `facts` are further fields of the plan."""
        budget = self._find_budget(spread)
        num_seeds = len(self.seeds)
        num_pairs = budget or min(MAX_PAIRS, num_seeds)
        if num_seeds < num_pairs:
            hint = "pass more seeds: seeds=range(1000)"
            raise SettingError(f"{num_pairs} pairs need {num_pairs} seeds, but there are {num_seeds}", hint=hint)
        candidates = self.seeds[: max(self._num_candidates, num_pairs)]
        chosen = tuple(sorted(candidates, key=known.__contains__)[:num_pairs])  # a stable sort
        design = Design(self.alpha, budget, self.hopeless)
        criticals = () if budget is None else tuple(None if math.isinf(each) else float(each) for each in design.criticals(budget))
        plan = HypothesisPlan(
            name=name,
            settings=settings,
            direction=settings["direction"],
            budget=budget,
            sd=spread.sd,
            sd_source=spread.source,
            seeds=chosen,
            known_seeds=tuple(seed for seed in chosen if seed in known),
            criticals=criticals,
            statement=(),
            arms=sides.texts,
            **facts,
        )
        return replace(plan, statement=(*sides.warnings, *self._state(plan)))

    def _find_budget(self, spread: Spread) -> int | None:
        if self.budget != "auto":
            return self.budget
        if self.effect is None:
            return DEFAULT_BUDGET
        if spread.sd is None:
            hint = "pass `sd` or `budget`; do not estimate `sd` from runs that the hypothesis will use"
            fact = "`effect` needs the spread of the differences to compute a budget, and it is unknown"
            raise SettingError(fact, why=spread.source, hint=hint)
        budget = budget_for(abs(self.effect - self.by) / spread.sd, self.power, self.alpha, self.hopeless)
        if budget is None:
            fact = f"{MAX_PAIRS} pairs do not distinguish the effect {self.effect:g} from the margin {self.by:g}; the sd is {spread.sd:g}"
            raise SettingError(fact, hint="test for a larger effect, or find a less noisy metric")
        return budget

    def _state(self, plan: HypothesisPlan) -> list[str]:
        """Return lines that describe the plan and the differences that it can detect."""
        design = plan.design
        last = plan.budget or 40
        distance = smallest_distance(design, self.power, last)
        unit = f" (with sd {plan.sd:.3g}: {distance * plan.sd:.3g})" if plan.sd else ""
        pairs = f"at most {plan.budget} pairs" if plan.budget else "no limit on pairs"
        seeds = f"seeds {plan.seeds[0]} to {plan.seeds[-1]}" if _is_run(plan.seeds) else f"seeds {', '.join(map(str, plan.seeds[:8]))}, ..."
        lines = [f"{pairs}, {seeds}; wrong verdicts: at most {self.alpha:.3g}"]
        lines.append(
            f"{last} pairs find a true difference of {distance:.2f} sd of the pairs' differences{unit} from the margin "
            f"in {self.power:.0%} of cases"
        )
        if self.effect is not None and plan.sd:
            away = abs(self.effect - self.by) / plan.sd
            average = f", with {mean_pairs(design, away):.1f} pairs on average" if plan.budget else ""
            lines.append(
                f"at a true improvement of {self.effect:g}, the chance of a verdict is {power_of(design, away, last):.0%}{average}"
            )
        if plan.sd:
            lines.append(f"sd {plan.sd:.3g}: {plan.sd_source}")
        criticals = design.criticals(last)
        shown = [n for n in (FIRST_LOOK, 10, 15, 20, 30, 50, 100, last) if n <= last]
        lines.append("critical |t|: " + ", ".join(f"{criticals[n]:.2f} after {n}" for n in dict.fromkeys(shown)))
        if plan.known_seeds:
            lines.append(
                f"too few new seeds: the runs of {counted(len(plan.known_seeds), 'seed')} were known before ({_listed(plan.known_seeds)})"
            )
        return lines


def _is_named(key: str, values: Mapping[str, Any]) -> bool:
    """Return whether an arm sets a key, or sets a whole group of keys that includes this key."""
    return any(key == name or key.startswith(f"{name}.") for name in values)


def _is_run(seeds: Sequence[int]) -> bool:
    return len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds[:10])) + (", ..." if len(seeds) > 10 else "")


def _name_of(settings: dict[str, Any], groups: tuple[str, str]) -> str:
    """Return the default name. It depends only on the settings, so the same call continues the hypothesis."""
    text = json.dumps([settings, groups], sort_keys=True)
    return f"hypothesis-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _earlier(manager: Manager, groups: tuple[str, str]) -> tuple[str, ...]:
    """Return the stored hypotheses about the same two arms.

    The report lists them, because a claim that is tested often enough will eventually be supported by chance.
    """
    names = plan_names(manager.store, "hypothesis")
    records = {name: PlanRecords(manager.store, "hypothesis", name).read("hypothesis.json") for name in names}
    return tuple(name for name, record in records.items() if record is not None and sorted(record["groups"]) == sorted(groups))
