"""A search whose workers and drivers are killed trains each trial once, at the same points as an undisturbed search."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import warm
from campaign import IS_FULL, REPEAT, SEED, children_of
from toy_search import EPOCHS

from trainmaster.store import Store
from trainmaster.sweep.search_records import find_search
from trainmaster.sweep.search_session import read_result

pytest.importorskip("optuna")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).parent.parent / "programs" / "toy_search.py"
SAMPLERS = ["tpe", "grid", "random", "gp", "cmaes", "nsga2"] if IS_FULL else ["tpe", "cmaes"]
TRIALS = 24 if IS_FULL else 10
WAIT = 0.05
"""The duration of an epoch in seconds, long enough for kills to hit runs in the middle."""


def start(folder: Path, sampler: str, workers: int) -> Any:
    command = [sys.executable, str(PROGRAM), str(folder), sampler, str(TRIALS), str(workers), str(WAIT)]
    with open(f"{folder}.log", "a") as log:
        return warm.Popen(command, start_new_session=True, stdout=log, stderr=log)


def results(folder: Path) -> list[tuple[Any, ...]]:
    trials = read_result(find_search(Store(folder), "toy")).trials
    return [(trial.number, trial.state, trial.keys, json.dumps(dict(trial.config)), trial.values, trial.epochs) for trial in trials]


def epochs_trained(folder: Path) -> dict[str, list[int]]:
    """Return the epochs that the attempts of each run recorded, in order."""
    store = Store(folder)
    return {key: [int(event["epoch"]) for event in store.run(key).events() if "eval" in event] for key in store.configs}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_search_under_kills_has_the_same_points_and_results_as_an_undisturbed_one(sampler: str, tmp_path: Path) -> None:
    undisturbed = start(tmp_path / "undisturbed", sampler, 0)
    assert undisturbed.wait() == 0
    chance, folder, num_kills = random.Random(f"{SEED} {sampler}"), tmp_path / "killed", 0
    max_kills = 20 if IS_FULL else 5
    while True:
        driver = start(folder, sampler, 2)
        while driver.poll() is None:
            time.sleep(chance.uniform(0.3, 1.5))
            workers = children_of(driver.pid)
            if num_kills >= max_kills or driver.poll() is not None:
                continue
            num_kills += 1
            if chance.random() < 0.5 and workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
            else:
                os.killpg(driver.pid, signal.SIGKILL)
        if driver.wait() == 0:
            break
        log = Path(f"{folder}.log").read_text()
        # If three workers in a row are killed before they claim a run, a batch ends with an error.
        was_killed = driver.returncode == -signal.SIGKILL or log.rstrip().endswith("try the batch without workers first")
        assert was_killed, f"the driver ended with {driver.returncode}; {REPEAT}\n{log[-2000:]}"
    assert num_kills > 0
    assert results(folder) == results(tmp_path / "undisturbed"), REPEAT
    for key, epochs in epochs_trained(folder).items():
        assert epochs == list(range(len(epochs))), f"run {key} recorded the epochs {epochs}; {REPEAT}"
        assert len(epochs) <= EPOCHS + 1
    assert Store(folder).verify() == []


def test_two_drivers_share_a_search(tmp_path: Path) -> None:
    alone = start(tmp_path / "alone", "tpe", 0)
    assert alone.wait() == 0
    drivers = [start(tmp_path / "shared", "tpe", 1) for _ in range(2)]
    assert [driver.wait() for driver in drivers] == [0, 0]
    assert results(tmp_path / "shared") == results(tmp_path / "alone")
    store = Store(tmp_path / "shared")
    assert all(store.run(key).attempts() == [1] for key in store.configs)
