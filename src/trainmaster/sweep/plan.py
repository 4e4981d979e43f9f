"""The plan of a search: everything that its proposals depend on, frozen when the search is created.

A plan and the outcomes of its trials determine all further proposals. A search is therefore not tied to a process: any number of
drivers can work on it, and after a crash, the next driver proposes the same points.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple

from trainmaster.errors import SettingError, did_you_mean
from trainmaster.store.summary import flat
from trainmaster.sweep.space import Space

SAMPLERS: dict[str, dict[str, Any]] = {
    "grid": {},
    "random": {},
    "qmc": {"qmc_type": "sobol", "scramble": True},
    "tpe": {"n_startup_trials": 10, "n_ei_candidates": 24, "multivariate": True, "group": False, "constant_liar": True},
    "gp": {"n_startup_trials": 10, "deterministic_objective": False},
    "cmaes": {"n_startup_trials": 1, "restart_strategy": None, "popsize": None, "use_separable_cma": False, "with_margin": True},
    "nsga2": {"population_size": 24, "mutation_prob": None, "crossover_prob": 0.9, "swapping_prob": 0.5},
}
"""The default arguments of each sampler. A plan records them, so that a new Optuna version does not change an existing search."""
PRUNERS: dict[str, dict[str, Any]] = {
    "none": {},
    "median": {"n_startup_trials": 5, "n_warmup_steps": 0, "interval_steps": 1, "n_min_trials": 1},
    "asha": {"min_resource": 1, "reduction_factor": 4, "min_early_stopping_rate": 0, "bootstrap_count": 0},
    "hyperband": {"min_resource": 1, "reduction_factor": 3, "bootstrap_count": 0},
    "wilcoxon": {"p_threshold": 0.1, "n_startup_steps": 2},
}
ALIASES = {"sobol": "qmc", "cma-es": "cmaes", "cma": "cmaes", "nsgaii": "nsga2", "nsga-ii": "nsga2", "halving": "asha", "sha": "asha"}
"""Other common names of samplers and pruners."""
WITHOUT_RESULTS = ("grid", "random", "qmc")
"""Samplers whose proposals do not depend on results."""
SEVERAL_OBJECTIVES = ("grid", "random", "qmc", "tpe", "gp", "nsga2")

State = Literal["running", "complete", "pruned", "failed", "invalid", "duplicate"]


class Trial(NamedTuple):
    """One proposed point of a search, and its outcome."""

    number: int
    parameters: Mapping[str, Any]
    """The parameters that Optuna proposed, by name. They are numbers, or indices of values."""
    state: State = "running"
    values: tuple[float, ...] | None = None
    """The value of each objective, once the trial is complete."""
    intermediate: Mapping[int, float] = {}
    """The monitored metric by epoch, or by replicate."""
    notes: Mapping[str, Any] = {}
    """Values that samplers and pruners attach to a trial, such as its generation in a genetic algorithm."""
    seen: tuple[int, ...] | None = None
    """In a search without a window, the finished trials that this proposal was based on."""
    keys: tuple[str, ...] = ()
    """The keys of the trial's runs."""
    config: Mapping[str, Any] = {}
    """The values of the searched keys."""
    epochs: int = 0
    """The number of trained epochs, summed over replicates."""
    reason: str = ""
    """Why the trial was pruned, failed, or was not run."""

    @property
    def is_finite(self) -> bool:
        return self.values is not None and all(map(math.isfinite, self.values))

    @property
    def is_finished(self) -> bool:
        return self.state != "running"

    @property
    def counts(self) -> bool:
        """Whether the trial counts toward the requested number of trials."""
        return self.state not in ("invalid", "duplicate")


@dataclass(frozen=True)
class Plan:
    """Everything that the proposals of a search depend on."""

    name: str
    space: Mapping[str, Any]
    base: Mapping[str, Any]
    """The values that are the same in every trial."""
    monitor: tuple[str, ...]
    directions: tuple[Literal["minimize", "maximize"], ...]
    epochs: int | None
    seed: int
    sampler: str
    sampler_arguments: Mapping[str, Any]
    pruner: str
    pruner_arguments: Mapping[str, Any]
    window: int | None
    """Proposal n waits for the results of trials up to n - window.

    If the window is None, proposals do not wait. Samplers and pruners then use the trials that happen to be finished,
    so the search is not repeatable.
    """
    num_replicates: int
    warm_start: tuple[Mapping[str, Any], ...]
    """The parameters and results of runs that were trained before the search."""
    optuna: str
    """The version of Optuna that created the plan."""

    @property
    def samples_from_results(self) -> bool:
        return self.sampler not in WITHOUT_RESULTS

    @property
    def is_repeatable(self) -> bool:
        return self.window is not None or not (self.samples_from_results or self.pruner != "none")

    def finished_before(self, number: int) -> range:
        """Return the numbers of the trials that proposal `number` waits for.

        The sampler and the pruner see only the results of these trials.
        """
        return range(0) if self.window is None else range(max(0, number - self.window + 1))

    def space_of(self) -> Space:
        return Space.of(self.space)

    def seed_for(self, number: int) -> int:
        """Return the seed of one proposal. It does not depend on the process that makes the proposal."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{number}".encode()).digest()[:4], "big")

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        given = {field.name: values[field.name] for field in fields(cls)}
        for name in ("monitor", "directions", "warm_start"):
            given[name] = tuple(given[name])
        return cls(**given)

    def differences(self, other: Plan) -> dict[str, tuple[Any, Any]]:
        """Return the differences between two plans with the same name, by dotted key.

        The Optuna version, the window and the warm-start points are ignored.
        """
        mine, theirs = flat(self.to_dict()), flat(other.to_dict())
        names = [name for name in {**mine, **theirs} if name.partition(".")[0] not in ("optuna", "warm_start", "window")]
        return {name: (mine.get(name), theirs.get(name)) for name in names if mine.get(name) != theirs.get(name)}


def sampler_named(name: str) -> str:
    return _known("sampler", name, SAMPLERS)


def pruner_named(name: str | None) -> str:
    return _known("pruner", name or "none", PRUNERS)


def default_window(sampler: str, pruner: str, workers: int) -> int | None:
    """Return the default window (see `Plan.window`): twice the number of workers, so that fast trials rarely wait for slow ones.

    Without workers, the window is 1, so that each proposal uses the results of all earlier trials. The window is None if neither
    the sampler nor the pruner uses results.
    """
    return None if sampler in WITHOUT_RESULTS and pruner == "none" else max(1, 2 * workers)


def _known(kind: str, name: str, known: Mapping[str, Any]) -> str:
    found = ALIASES.get(name.lower(), name.lower())
    if found not in known:
        raise SettingError(f"unknown {kind} {name!r}", known=", ".join(known), hint=did_you_mean(found, known) or None)
    return found
