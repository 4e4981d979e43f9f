"""Proposals and pruning decisions depend neither on the process nor on the order in which trials finish."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest

from trainmaster.errors import SearchError
from trainmaster.sweep.optuna_study import Proposer, importances, judge, quiet_optuna
from trainmaster.sweep.plan import PRUNERS, SAMPLERS, Plan, Trial
from trainmaster.sweep.space import Space

optuna = pytest.importorskip("optuna")
pytest.importorskip("cmaes")

SPACE = {"x": "float(-5,10)", "y": "float(0,15)", "kind": ["a", "b", "c"], "n": "int(1,20)"}
FEW = {"x": "float(-5,10,bins=4)", "y": "float(0,15,bins=3)", "kind": ["a", "b"]}


def plan_of(sampler: str = "tpe", window: int | None = 3, pruner: str = "none", **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "name": "test",
        "space": Space.of(FEW if sampler == "grid" else SPACE).to_dict(),
        "base": {},
        "monitor": ("valid/loss",),
        "directions": ("minimize",),
        "epochs": 9,
        "seed": 3,
        "sampler": sampler,
        "sampler_arguments": {**SAMPLERS[sampler], **({"population_size": 6} if sampler == "nsga2" else {})},
        "pruner": pruner,
        "pruner_arguments": {**PRUNERS[pruner], **({"max_resource": 9} if pruner == "hyperband" else {})},
        "window": None if sampler in ("grid", "random", "qmc") and pruner == "none" else window,
        "num_replicates": 1,
        "warm_start": (),
        "optuna": optuna.__version__,
    }
    return Plan(**(values | changes))


def objective(parameters: Any) -> float:
    return (parameters["x"] - 1) ** 2 + (parameters["y"] - 3) ** 2 + parameters["kind"] + abs(parameters.get("n", 7) - 7) / 3


def complete(plan: Plan, trials: list[Trial], number: int) -> Trial:
    return trials[number]._replace(state="complete", values=(objective(trials[number].parameters),))


def search(plan: Plan, num_trials: int, order: int = 0, restarts: float = 0.0, finish: Any = complete) -> list[Trial]:
    """Run a search whose trials finish in a random order, and continue with a new proposer after some proposals."""
    chance = random.Random(order)
    proposer, trials = Proposer(plan), list[Trial]()
    while len(trials) < num_trials or not all(trial.is_finished for trial in trials):
        number = len(trials)
        is_ready = number < num_trials and all(trials[each].is_finished for each in plan.finished_before(number))
        unfinished = [trial.number for trial in trials if not trial.is_finished]
        if is_ready and (not unfinished or chance.random() < 0.6):
            if chance.random() < restarts:
                proposer = Proposer(plan)
            point = proposer.propose(trials)
            assert point is not None
            trials.append(Trial(number, point.parameters, notes=point.notes))
        else:
            one = chance.choice(unfinished)
            trials[one] = finish(plan, trials, one)
    return trials


@pytest.mark.parametrize("sampler", ["grid", "random", "qmc", "tpe", "cmaes", "nsga2", "gp"])
def test_proposals_are_the_same_after_restarts_and_in_any_finishing_order(sampler: str) -> None:
    plan, count = plan_of(sampler), 12 if sampler == "gp" else 24
    undisturbed = [trial.parameters for trial in search(plan, count)]
    assert [trial.parameters for trial in search(plan, count, order=1, restarts=1.0)] == undisturbed
    assert [trial.parameters for trial in search(plan, count, order=2, restarts=0.2)] == undisturbed
    assert len({str(sorted(each.items())) for each in undisturbed}) > count * 0.7  # otherwise, a sampler that repeats one point would pass


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2", "cmaes"])
def test_with_window_1_proposals_equal_those_of_a_plain_ask_and_tell_loop(sampler: str) -> None:
    plan, count = plan_of(sampler, window=1), 12
    make = {
        "tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler,
        "nsga2": optuna.samplers.NSGAIISampler, "cmaes": optuna.samplers.CmaEsSampler,
    }[sampler]  # fmt: skip
    study, expected = optuna.create_study(), list[dict[str, Any]]()
    for number in range(count):
        seed = int.from_bytes(hashlib.sha256(f"3/{number}".encode()).digest()[:4], "big")
        if sampler == "nsga2":  # the study would keep the cached parents of an older generation
            trials, study = study.trials, optuna.create_study()
            study.add_trials(trials)
        with quiet_optuna():
            study.sampler = make(seed=seed, **plan.sampler_arguments)
        trial = study.ask()
        x, y = trial.suggest_float("x", -5, 10), trial.suggest_float("y", 0, 15)
        kind, n = trial.suggest_categorical("kind", range(3)), trial.suggest_int("n", 1, 20)
        expected.append({"x": x, "y": y, "kind": kind, "n": n})
        study.tell(trial, objective(expected[-1]))
    assert [trial.parameters for trial in search(plan, count)] == expected


def test_proposals_depend_only_on_results_outside_the_window() -> None:
    plan = plan_of("tpe", window=3)
    trials = search(plan, 15)
    point = Proposer(plan).propose(trials)
    inside = [*trials[:-2], *(trial._replace(state="failed", values=None) for trial in trials[-2:])]
    best = min(trials[:-2], key=lambda trial: trial.values or (0.0,)).number
    outside = [trial._replace(values=(1000.0,)) if trial.number == best else trial for trial in trials]
    assert Proposer(plan).propose(inside) == point
    assert Proposer(plan).propose(outside) != point


def test_the_sampler_sees_points_inside_the_window_as_running() -> None:
    plan = plan_of("tpe", window=3)
    trials = search(plan, 15)
    point = Proposer(plan).propose(trials)
    assert point is not None
    taken = [*trials[:-2], *(trial._replace(parameters=point.parameters) for trial in trials[-2:])]
    assert Proposer(plan).propose(taken) != point


def test_another_seed_proposes_other_points() -> None:
    assert search(plan_of("random"), 3) != search(plan_of("random", seed=4), 3)


def test_a_grid_ends_after_its_last_point_instead_of_starting_over() -> None:
    plan = plan_of("grid")
    assert Proposer(plan).propose(search(plan, 24)) is None  # A43, except that a grid does not start over


def test_a_replay_with_other_points_is_an_error_that_names_the_version() -> None:
    plan = plan_of("cmaes", optuna="4.0.0")
    trials = search(plan, 6)
    trials[3] = trials[3]._replace(parameters={**trials[3].parameters, "x": 0.5})
    with pytest.raises(SearchError, match="trial 3 of the search test cannot be repeated") as caught:
        Proposer(plan).propose(trials)
    assert "optuna==4.0.0" in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_missing_or_infinite_value_is_treated_as_the_worst(value: float | None) -> None:
    plan = plan_of("tpe", window=1)  # A47
    trials = search(plan, 12)
    worst = [trials[0]._replace(values=None if value is None else (value,)), *trials[1:]]
    huge = [trials[0]._replace(values=(1e300,)), *trials[1:]]
    assert Proposer(plan).propose(worst) == Proposer(plan).propose(huge)


@pytest.mark.parametrize("state", ["invalid", "duplicate", "failed"])
@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "qmc", "gp", "nsga2"])
def test_points_without_a_result_do_not_stop_a_search(sampler: str, state: Any) -> None:
    def finish(plan: Plan, trials: list[Trial], number: int) -> Trial:
        return trials[number]._replace(state=state) if number % 3 == 1 else complete(plan, trials, number)

    assert len(search(plan_of(sampler, window=1), 7, finish=finish, restarts=0.5)) == 7


def test_a_search_can_have_two_objectives() -> None:
    trials = [trial._replace(values=(objective(trial.parameters), trial.parameters["n"])) for trial in search(plan_of("random"), 8)]
    for sampler in ("nsga2", "tpe"):
        plan = plan_of(sampler, monitor=("valid/loss", "size"), directions=("minimize", "minimize"))
        assert Proposer(plan).propose(trials) is not None


def test_warm_start_points_change_the_first_proposal() -> None:
    warm = tuple({"parameters": dict(trial.parameters), "values": [objective(trial.parameters)]} for trial in search(plan_of("random"), 12))
    assert Proposer(plan_of("tpe", window=1, warm_start=warm)).propose([]) != Proposer(plan_of("tpe", window=1)).propose([])


# ---- pruning


def curve(trial: Trial) -> dict[int, float]:
    return {epoch: objective(trial.parameters) * (1 + 2 / epoch) for epoch in range(1, 10)}


def finish_or_prune(plan: Plan, trials: list[Trial], number: int) -> Trial:
    whole, trial = curve(trials[number]), trials[number]
    last, notes = judge(plan, trials, number, whole)
    trial = trial._replace(notes={**trial.notes, **notes})
    if last is None:
        return trial._replace(state="complete", values=(whole[9],), intermediate=whole)
    return trial._replace(state="pruned", intermediate={step: value for step, value in whole.items() if step <= last})


@pytest.mark.parametrize(
    ("sampler", "pruner"), [("tpe", "median"), ("tpe", "asha"), ("tpe", "hyperband"), ("random", "median"), ("qmc", "asha")]
)
def test_pruning_decisions_are_the_same_in_any_finishing_order(sampler: str, pruner: str) -> None:
    plan = plan_of(sampler, window=4, pruner=pruner)
    first = search(plan, 24, finish=finish_or_prune)
    assert {trial.state for trial in first} == {"complete", "pruned"}
    for order in (1, 2):
        assert search(plan, 24, order, restarts=0.5, finish=finish_or_prune) == first


def test_the_pruned_step_does_not_depend_on_how_far_the_run_was_trained() -> None:
    plan = plan_of("random", pruner="median")
    trials = search(plan, 20, finish=finish_or_prune)
    bad = next(trial for trial in trials if trial.state == "pruned")
    at = max(bad.intermediate)
    for length in range(1, 10):
        last, _ = judge(plan, trials, bad.number, {step: value for step, value in curve(bad).items() if step <= length})
        assert last == (at if length >= at else None)


def test_replicates_are_compared_pair_by_pair_with_the_best_trial() -> None:
    plan = plan_of("random", pruner="wilcoxon", window=1, num_replicates=8)
    best = {seed: 1.0 + 0.1 * seed for seed in range(8)}
    one, two = search(plan, 2)
    trials = [one._replace(values=(1.35,), intermediate=best), two._replace(state="running", values=None)]
    worse, _ = judge(plan, trials, 1, {seed: value + 0.5 + 0.01 * seed for seed, value in best.items()})
    equal, _ = judge(plan, trials, 1, {seed: value + (-1) ** seed * 0.01 * seed for seed, value in best.items()})
    assert worse is not None
    assert equal is None


def test_the_parameter_with_the_largest_effect_has_the_largest_importance() -> None:
    trials = [trial._replace(values=((trial.parameters["x"] - 1) ** 2,)) for trial in search(plan_of("random"), 40)]
    found = importances(plan_of("random"), trials)
    assert max(found, key=lambda name: found[name]) == "x"
    assert sum(found.values()) == pytest.approx(1.0)
    assert importances(plan_of("random"), trials[:3]) == {}
