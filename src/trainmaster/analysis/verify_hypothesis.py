"""Verifies a verdict by recomputing it from the runs in the store. The original training program is not needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from trainmaster.analysis.arms import RunValue
from trainmaster.analysis.boundary import Design
from trainmaster.analysis.hypothesis_driver import HypothesisRecords
from trainmaster.analysis.replicate_spread import group_of_run
from trainmaster.analysis.verdict import HypothesisPlan, Pair, Verdict, decide
from trainmaster.errors import TrainmasterError
from trainmaster.store import Store
from trainmaster.store.epoch_values import epoch_values

_TOLERANCE = 1e-6
"""The tolerance for rounding differences between versions of numerical libraries."""


class Verification(NamedTuple):
    """A recomputed verdict, and the problems that were found."""

    verdict: Verdict
    problems: list[str]

    @property
    def is_confirmed(self) -> bool:
        return not self.problems


def verify_hypothesis(store: Store, name: str) -> Verification:
    """Recompute the verdict of a hypothesis from the plan and the logs of its runs.

    The critical values in the plan are checked, and so are the seed and the config of every run. Every recorded value is
    compared with the run's log, and the recorded verdict is compared with the recomputed verdict.
    """
    records = HypothesisRecords(store, name)
    plan, pairs = records.plan(), records.pairs()
    verdict = decide(plan, pairs)
    problems = [*_check_plan(plan)]
    for index, pair in enumerate(pairs):
        problems += _check_pair(store, plan, index, pair)
    keys = [run.key for pair in pairs for run in (pair.a, pair.b)]
    problems += [f"run {key} is counted twice" for key in sorted({*keys}) if keys.count(key) > 1]
    recorded = records.read("verdict.json")
    if recorded is not None:
        found = json.loads(json.dumps(verdict.to_dict()))
        for member in ("state", "n", "mean", "low", "high"):
            if not _is_close(recorded[member], found[member]):
                problems.append(f"the recorded verdict has {member} {recorded[member]}; its pairs give {found[member]}")
    return Verification(verdict, problems)


def _check_plan(plan: HypothesisPlan) -> Iterator[str]:
    if plan.budget is None:
        return
    expected = Design(plan.settings["alpha"], plan.budget).criticals(plan.budget).tolist()
    pairs = zip(plan.criticals, expected, strict=False)
    if len(plan.criticals) != len(expected) or not all(planned is None or _is_close(planned, critical) for planned, critical in pairs):
        yield f"the boundary of the plan does not match alpha={plan.settings['alpha']:g} and {plan.budget} pairs"


def _check_pair(store: Store, plan: HypothesisPlan, index: int, pair: Pair) -> Iterator[str]:
    where = f"pair {index + 1} (seed {pair.seed})"
    if index >= len(plan.seeds) or pair.seed != plan.seeds[index]:
        yield f"{where} does not have the seed that the plan declares for it"
    for run, group in zip((pair.a, pair.b), plan.groups, strict=True):
        try:
            seed = store.configs[run.key].get(plan.seed_key)
            if seed != pair.seed:
                yield f"{where}: run {run.key} was trained with the seed {seed}"
            if group_of_run(store, run.key) != group:
                yield f"{where}: run {run.key} has a different config than planned"
            yield from (f"{where}: {text}" for text in _check_value(store, run))
        except TrainmasterError as error:
            yield f"{where}: {error.fact}"


def _check_value(store: Store, run: RunValue) -> Iterator[str]:
    if run.epoch is None:  # the run failed before it had a value
        return
    found = (epoch_values(store.run(run.key).history, run.metric, run.epoch) or {}).get(run.epoch)
    if run.value is None:
        if found is not None and abs(found) < float("inf"):
            yield f"run {run.key} counts as failed, but its log has {run.metric} {found:.6g} at epoch {run.epoch}"
    elif found != run.value:
        yield f"run {run.key} is recorded with {run.metric} {run.value!r} at epoch {run.epoch}; its log has {found!r}"


def _is_close(one: object, two: object) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        return abs(one - two) <= _TOLERANCE * max(1.0, abs(one), abs(two))
    return one == two
