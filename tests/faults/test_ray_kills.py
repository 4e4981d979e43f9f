"""A sweep on a Ray cluster survives if its workers or drivers, or the raylets or the head of the cluster, are killed.

Each run must end with the weights of undisturbed training, and no run may be trained again after it has finished.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

import ray_training as program

IS_FULL = os.environ.get("TRAINMASTER_FAULTS") == "full"
SEED = int(os.environ.get("TRAINMASTER_FAULTS_SEED", "0")) or random.SystemRandom().randrange(10**6)
PATIENCE = 500.0
SECONDS = 0.5
"""The duration of an epoch in seconds."""

pytestmark = pytest.mark.integration


class Nodes:
    """A cluster in a separate process."""

    def __init__(self, folder: Path, num: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, program.__file__, "cluster", str(num)],
            env=program.environment(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.alive, self._num = [*range(num)], num
        self.address = self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()
        assert self._read() == "ok", words

    def lose(self, how: str, number: int) -> None:
        """Make the cluster lose a node, and add another one."""
        self.tell(f"{how} {number}")
        self.alive.remove(number)
        self.tell("add")
        self.alive.append(self._num)
        self._num += 1

    def close(self) -> None:
        self._process.communicate(timeout=60)


@contextlib.contextmanager
def cluster(folder: Path, num: int) -> Iterator[Nodes]:
    nodes = Nodes(folder, num)
    try:
        yield nodes
    finally:
        nodes.close()


class Driver:
    def __init__(self, folder: Path, address: str, num: int, seconds: float = SECONDS) -> None:
        self.store, self._log = folder / "store", folder / "driver.log"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, program.__file__, str(self.store), address, str(num), str(seconds)],
                env=program.environment(folder), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def text(self) -> str:
        return self._log.read_text()

    def result(self) -> dict[str, Any]:
        assert self.wait() == 0, self.text()[-3000:]
        found: dict[str, Any] = json.loads(self.text().splitlines()[-1])
        return found


def until(check: Callable[[], Any], driver: Driver, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not check() and not driver.has_ended():
        assert time.monotonic() < end, f"waited for {what}: {driver.text()[-3000:]}"
        time.sleep(0.1)


def assert_each_trained_once(folder: Path, num: int, num_kills: int) -> None:
    undisturbed = folder / "undisturbed"
    program.Slow(undisturbed).batch(program.configs_of(num))
    assert program.weights_of(folder / "store") == program.weights_of(undisturbed)
    for seed, endings in program.endings_of(folder / "store").items():
        assert endings.count("finished") == 1, (seed, endings)
        assert endings[-1] == "finished", f"run {seed} was trained again after it had finished: {endings}"
    begun = Counter((seed, epoch) for seed, epoch, _ in program.epochs_of(folder / "store"))
    num_again = sum(begun.values()) - num * program.EPOCHS
    assert len(begun) == num * program.EPOCHS
    # Each killed run repeats the current epoch, and the previous one if its checkpoint was still being written.
    assert num_again <= 4 * num_kills, (num_again, num_kills)
    print(f"{num_again} of {len(begun)} epochs were begun again after {num_kills} kills; seed {SEED}")


def test_a_sweep_whose_workers_driver_and_nodes_are_killed_trains_each_run_once(tmp_path: Path) -> None:
    draws = random.Random(SEED)
    num = 24 if IS_FULL else 5
    plan = ["worker", "node", "driver"]
    if IS_FULL:
        plan = draws.sample(["worker"] * 8 + ["node"] * 4 + ["raylet"] * 4 + ["driver"] * 4, 20)
    kills: Counter[str] = Counter()
    with cluster(tmp_path, 2) as nodes:
        driver = Driver(tmp_path, nodes.address, num)
        for what in plan:
            begun = len(program.epochs_of(driver.store))
            until(lambda begun=begun, driver=driver: len(program.epochs_of(driver.store)) > begun, driver, "an epoch")
            time.sleep(draws.uniform(0.0, 1.0))
            if driver.has_ended():
                break
            kills[what] += 1
            if what == "driver":
                driver.kill()
                driver = Driver(tmp_path, nodes.address, num)
            elif what == "worker":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(program.epochs_of(driver.store)[-1][2], signal.SIGKILL)
            else:
                nodes.lose("kill" if what == "node" else "raylet", draws.choice(nodes.alive))
        result = driver.result()
    print(dict(kills), result)
    assert result["done"] + result["found"] == num
    assert (result["failed"], result["given_up"]) == ({}, {})
    assert_each_trained_once(tmp_path, num, sum(kills.values()))
    assert sum(kills.values()) >= (12 if IS_FULL else 2)


def test_the_next_driver_completes_the_sweep_after_the_head_was_lost(tmp_path: Path) -> None:
    num = 4
    with cluster(tmp_path, 2) as nodes:
        driver = Driver(tmp_path, nodes.address, num, seconds=15.0)  # without a head, the runs would continue for a while
        until(lambda: program.epochs_of(driver.store), driver, "an epoch")
        nodes.tell("head")
        if not IS_FULL:
            driver.kill()  # otherwise the driver would give up only after half a minute
        driver.wait()
        if IS_FULL:
            assert "the head node of the Ray cluster is gone" in driver.text()
    with cluster(tmp_path, 2) as nodes:
        result = Driver(tmp_path, nodes.address, num).result()
    assert result["done"] + result["found"] == num
    assert_each_trained_once(tmp_path, num, 2)
