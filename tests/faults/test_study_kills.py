"""Hypotheses and ablations whose workers and drivers are killed reach the same verdicts and train no run twice."""

from __future__ import annotations

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
from toy_study import EPOCHS, GAINS, Toy, ablation, hypothesis

from trainmaster.analysis import read_ablation, read_verdict, verify_hypothesis
from trainmaster.store import Store

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).parent.parent / "programs" / "toy_study.py"
STATES = {"true": "supported", "false": "refuted", "small": "inconclusive"}
WAIT = 0.1
"""The duration of an epoch in seconds, long enough for kills to hit runs in the middle."""
STUDIES = [("hypothesis", name) for name in GAINS] + [("ablation", "parts")]


def start(folder: Path, kind: str, name: str, workers: int = 2) -> Any:
    command = [sys.executable, str(PROGRAM), str(folder), kind, name, str(workers), str(WAIT)]
    with open(f"{folder}.log", "a") as log:
        return warm.Popen(command, start_new_session=True, stdout=log, stderr=log)


def result(store: Store, kind: str, name: str) -> dict[str, Any]:
    """Return the result of a study without the pairs that were trained in advance.

    The number of these pairs depends on the speed of the machine.
    """
    if kind == "ablation":
        return read_ablation(store, name).to_dict()
    found = read_verdict(store, name).to_dict()
    found["pairs"] = found["pairs"][: found["n"]]
    found["notes"] = [note for note in found["notes"] if "do not count" not in note]
    return found


def undisturbed(kind: str, name: str) -> dict[str, Any]:
    manager = Toy(None, verbose=False)
    if kind == "ablation":
        return ablation(WAIT).run(manager).to_dict()
    hypothesis(name, WAIT).test(manager)
    return result(manager.store, kind, name)


@pytest.mark.parametrize(("kind", "name"), STUDIES if IS_FULL else [("hypothesis", "true"), ("ablation", "parts")])
def test_a_study_under_kills_has_the_same_result_as_an_undisturbed_one(kind: str, name: str, tmp_path: Path) -> None:
    chance, folder, num_kills = random.Random(f"{SEED} {kind} {name}"), tmp_path / "killed", 0
    max_kills = 15 if IS_FULL else 3
    while True:
        driver = start(folder, kind, name)
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
        was_killed = driver.returncode == -signal.SIGKILL or log.rstrip().endswith("try the batch without workers first")
        assert was_killed, f"the driver ended with {driver.returncode}; {REPEAT}\n{log[-2000:]}"
    store = Store(folder)
    assert num_kills > 0
    assert result(store, kind, name) == undisturbed(kind, name), REPEAT
    if kind == "hypothesis":
        assert read_verdict(store, name).state == STATES[name]
        assert verify_hypothesis(store, name).problems == []
    for key in store.configs:
        epochs = [int(event["epoch"]) for event in store.run(key).events() if "eval" in event]
        assert epochs == list(range(len(epochs))), f"run {key} recorded the epochs {epochs}; {REPEAT}"
        assert len(epochs) <= EPOCHS + 1
    assert store.verify() == []


@pytest.mark.parametrize(("kind", "name"), [("hypothesis", "small"), ("ablation", "parts")])
def test_two_drivers_share_a_study(kind: str, name: str, tmp_path: Path) -> None:
    drivers = [start(tmp_path / "shared", kind, name, 0) for _ in range(2)]
    log = Path(f"{tmp_path / 'shared'}.log")
    assert [driver.wait() for driver in drivers] == [0, 0], log.read_text()[-2000:]
    store = Store(tmp_path / "shared")
    assert result(store, kind, name) == undisturbed(kind, name)
    assert all(store.run(key).attempts() == [1] for key in store.configs), "each run was trained by one of them"
