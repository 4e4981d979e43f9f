"""Compares TPE in trainmaster, which replays its trials, with a long-lived Optuna TPE sampler.

Both have the same budget and ask for as many trials ahead as the window allows, so both see the same number of results
at each proposal. The margin was fixed before the first run: the median best value over the seeds may be worse
than Optuna's by at most 10 % of the difference between random search and Optuna.

The last row is a real training run on scikit-learn's digits: a small MLP, 4 epochs, 15 trials, window 1, the lowest
`valid/loss`. One side uses `Manager.search`, and the other trains the same loop in one Optuna study. The results vary
more between the five seeds than between the samplers, so the margin of this row, fixed before the first run, is 20 % of
Optuna's median.

    python benchmarks/search_quality.py [--seeds 20] [--trials 60] [--window 4] [--digits-seeds 5]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import optuna
import torch
from search_pruning import SPACE as DIGITS_SPACE
from search_pruning import Digits, digits_loop

from trainmaster.sweep.optuna_study import Proposer
from trainmaster.sweep.plan import SAMPLERS, Plan, Trial
from trainmaster.sweep.space import Space

MARGIN = 0.10
DIGITS_MARGIN, DIGITS_TRIALS, DIGITS_EPOCHS = 0.20, 15, 4

Point = Mapping[str, Any]


def branin(point: Point) -> float:
    x, y = point["x0"], point["x1"]
    return (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887


def hartmann6(point: Point) -> float:
    a = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
    p = [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ]
    weights = [1.0, 1.2, 3.0, 3.2]
    total = 0.0
    for weight, row, center in zip(weights, a, p, strict=True):
        total -= weight * math.exp(-sum(scale * (point[f"x{i}"] - c) ** 2 for i, (scale, c) in enumerate(zip(row, center, strict=True))))
    return total + 3.32237


def noisy(point: Point) -> float:
    """Return a value for a log-scaled learning rate and a width, with noise that depends only on the point."""
    chance = random.Random(repr(sorted(point.items())))
    return abs(math.log10(point["lr"]) + 2.5) + 0.002 * abs(point["width"] - 100) + (0.3 if point["act"] else 0.0) + chance.gauss(0, 0.1)


FUNCTIONS: dict[str, tuple[Callable[[Point], float], dict[str, Any]]] = {
    "Branin": (branin, {"x0": "float(-5,10)", "x1": "float(0,15)"}),
    "Hartmann 6": (hartmann6, {f"x{number}": "float(0,1)" for number in range(6)}),
    "noisy": (noisy, {"lr": "log(1e-5,1)", "width": "int(8,256)", "act": [0, 1]}),
}


def through_trainmaster(function: Callable[[Point], float], space: dict[str, Any], seed: int, num_trials: int, window: int) -> float:
    plan = Plan(
        name="quality", space=Space.of(space).to_dict(), base={}, monitor=("value",), directions=("minimize",), epochs=None, seed=seed,
        sampler="tpe", sampler_arguments=SAMPLERS["tpe"], pruner="none", pruner_arguments={}, window=window, num_replicates=1,
        warm_start=(), optuna=optuna.__version__,
    )  # fmt: skip
    proposer, trials = Proposer(plan), list[Trial]()
    for number in range(num_trials):
        point = proposer.propose(trials)
        assert point is not None
        trials.append(Trial(number, point.parameters, "complete", (function(point.values),), notes=point.notes))
    return min(trial.values[0] for trial in trials if trial.values)


def by_optuna(function: Callable[[Point], float], space: dict[str, Any], sampler: Any, num_trials: int, window: int) -> float:
    """Search with one sampler object for the whole study.

    `window` trials are always running, and the oldest one finishes first.
    """
    spaces, study = Space.of(space), optuna.create_study(sampler=sampler)
    open_trials: list[tuple[Any, float]] = []
    for _ in range(num_trials):
        if len(open_trials) == window:
            study.tell(*open_trials.pop(0))
        trial = study.ask()
        open_trials.append((trial, function(spaces.suggest(trial))))
    for trial, value in open_trials:
        study.tell(trial, value)
    return float(study.best_value)


def digits(point: Point) -> float:
    loop = digits_loop(point, DIGITS_EPOCHS, progress=False)
    loop.train()
    return float(loop.history["valid/loss"][-1][1])


def digits_through_trainmaster(seed: int) -> float:
    settings: dict[str, Any] = {"seed": seed, "sampler": "tpe", "base": {"epochs": DIGITS_EPOCHS}}
    best = Digits(verbose=False).search(DIGITS_SPACE, DIGITS_TRIALS, "valid/loss", **settings).best
    assert best is not None
    assert best.values is not None
    return best.values[0]


def compare_on_digits(num_seeds: int) -> None:
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {"random": [], "optuna": [], "ours": []}
    for seed in range(num_seeds):
        found["ours"].append(digits_through_trainmaster(seed))
        for name, sampler in (
            ("optuna", optuna.samplers.TPESampler(seed=seed, **SAMPLERS["tpe"])),
            ("random", optuna.samplers.RandomSampler(seed=seed)),
        ):
            found[name].append(by_optuna(digits, DIGITS_SPACE, sampler, DIGITS_TRIALS, 1))
    middle = {who: statistics.median(values) for who, values in found.items()}
    print_row("digits", middle, middle["optuna"] * (1 + DIGITS_MARGIN))


def print_row(name: str, middle: Mapping[str, float], allowed: float) -> None:
    verdict = "ok" if middle["ours"] <= allowed else "WORSE"
    print(f"{name:12} {middle['random']:9.4f} {middle['optuna']:11.4f} {middle['ours']:12.4f} {allowed:9.4f}  {verdict}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--digits-seeds", type=int, default=5)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(f"median best value of {given.seeds} seeds, {given.trials} trials, window {given.window} (0 is the optimum, except for noise)")
    print(f"{'function':12} {'random':>9} {'Optuna TPE':>11} {'trainmaster':>12} {'allowed':>9}")
    for name, (function, space) in FUNCTIONS.items():
        found: dict[str, list[float]] = {"random": [], "optuna": [], "ours": []}
        for seed in range(given.seeds):
            found["ours"].append(through_trainmaster(function, space, seed, given.trials, given.window))
            sampler = optuna.samplers.TPESampler(seed=seed, **SAMPLERS["tpe"])
            found["optuna"].append(by_optuna(function, space, sampler, given.trials, given.window))
            found["random"].append(by_optuna(function, space, optuna.samplers.RandomSampler(seed=seed), given.trials, given.window))
        middle = {who: statistics.median(values) for who, values in found.items()}
        print_row(name, middle, middle["optuna"] + MARGIN * abs(middle["random"] - middle["optuna"]))
    compare_on_digits(given.digits_seeds)


if __name__ == "__main__":
    main()
