"""The designs of ablations: which configs (arms) are trained, and how their results are combined into effects."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from trainmaster.analysis.statistics import smallest_detectable, smallest_significant
from trainmaster.errors import ConfigError, Problem, SettingError
from trainmaster.text import counted

DesignName = Literal["leave-one-out", "one-at-a-time", "factorial"]
DESIGNS: tuple[str, ...] = get_args(DesignName)
BASE = "base"
"""The name of the arm that trains the base config without changes."""
_MAX_FACTORS = 6
"""The maximum number of factors in a factorial design. Six factors need 2 ** 6 = 64 configs for each seed."""
_POWER = 0.8


class Effect(NamedTuple):
    """An effect to estimate: a weighted sum of the results of the arms, computed for each seed."""

    part: str
    weights: Mapping[str, float]
    """The weight of each arm."""
    is_interaction: bool = False


@dataclass(frozen=True)
class AblationPlan:
    """The runs that an ablation trains, and the effects that it estimates."""

    name: str
    settings: Mapping[str, Any]
    """The user's settings, with `factors` and the list of `seeds`."""
    direction: Literal["min", "max"]
    groups: Mapping[str, str]
    """The id of each arm's config without the seed. All runs of an arm share this id."""
    keys: Mapping[str, Sequence[str]]
    """For each arm, the keys of its runs in the order of the seeds."""
    revision: int = 1
    num_done: int = 0
    """How many runs were done when this revision of the plan was made."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """What each part changes in the complete base config. It is empty in plans from early versions of trainmaster."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.settings["seeds"])

    @property
    def effects(self) -> list[Effect]:
        return effects_of(self.settings["design"], list(self.settings["factors"]))

    @property
    def num_runs(self) -> int:
        return len(self.keys) * len(self.seeds)

    def statement(self) -> list[str]:
        """Return lines that describe the plan and the effects that it can detect."""
        n, m, level = len(self.seeds), len(self.effects), 1 - self.settings["alpha"]
        needed, found = smallest_significant(n, m, level), smallest_detectable(n, m, level, _POWER)
        return [
            f"{counted(len(self.keys), 'config')} x {counted(n, 'seed')} = {counted(self.num_runs, 'run')}, {self.settings['design']}",
            f"with {counted(n, 'seed')} and {counted(m, 'effect')}, an effect shows if it exceeds {needed:.1f} sd of its differences; "
            f"a true effect of {found:.1f} sd is found in {_POWER:.0%} of cases",
        ]

    def __str__(self) -> str:
        changes = [f"{part}: {text}" for part, text in self.changes.items()]
        return "\n".join([f"ablation {self.name} of {self.settings['on']}", *(f"  {line}" for line in [*changes, *self.statement()])])


def arms_of(design: str, factors: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the config values that each arm (variant) changes, by arm name.

    >>> arms_of("one-at-a-time", {"wide": {"width": 64}})
    {'base': {}, 'wide': {'width': 64}}
    """
    if design != "factorial":
        return {BASE: {}, **{name: dict(values) for name, values in factors.items()}}
    if len(factors) > _MAX_FACTORS:
        fact = f"a factorial design of {len(factors)} factors has {2 ** len(factors)} configs for each seed; at most {_MAX_FACTORS} factors"
        raise SettingError(fact, hint="design='leave-one-out' trains one config for each factor")
    arms: dict[str, dict[str, Any]] = {}
    for subset in _subsets(list(factors)):
        merged: dict[str, Any] = {}
        for name in subset:
            twice = [key for key in factors[name] if key in merged]
            if twice:
                raise ConfigError.of("the ablation", [Problem(twice[0], "is set by two factors, so they cannot be combined")])
            merged.update(factors[name])
        arms[arm_name(subset)] = merged
    return arms


def arm_name(subset: Sequence[str]) -> str:
    return " + ".join(subset) or BASE


def effects_of(design: str, factors: Sequence[str]) -> list[Effect]:
    """Return the effects that a design estimates.

    Leave-one-out: the result of the base minus the result without the part. One-at-a-time: the result with the change
    minus the result of the base. Factorial: for each change, its mean effect over all combinations of the other changes;
    for each pair of changes, their interaction, which is how much one change alters the effect of the other.
    """
    if design == "leave-one-out":
        return [Effect(name, {BASE: 1.0, name: -1.0}) for name in factors]
    if design == "one-at-a-time":
        return [Effect(name, {name: 1.0, BASE: -1.0}) for name in factors]
    subsets, k = _subsets(factors), len(factors)
    main = [Effect(name, {arm_name(s): _sign(name, s) / 2 ** (k - 1) for s in subsets}) for name in factors]
    pairs = [
        Effect(f"{one} * {two}", {arm_name(s): _sign(one, s) * _sign(two, s) / 2 ** (k - 2) for s in subsets}, True)
        for one, two in itertools.combinations(factors, 2)
    ]
    return main + pairs


def _sign(name: str, subset: Sequence[str]) -> float:
    return 1.0 if name in subset else -1.0


def _subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [subset for size in range(len(names) + 1) for subset in itertools.combinations(names, size)]
