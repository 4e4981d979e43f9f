"""A sweep on Ray that tests can disturb, and a cluster of several nodes on one machine.

python ray_training.py STORE ADDRESS NUM_RUNS SECONDS   trains the runs; the last line of output is the result
python ray_training.py cluster NUM_NODES                         starts a head without CPUs, and nodes with one CPU each

A cluster reads commands: `add`, `kill NODE` (all processes of a node), `raylet NODE`, `head`. It answers each with a
line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainmaster import Extension, Manager, Supervised
from trainmaster.store import Store

EPOCHS = 4
TOKEN = "0123456789abcdef" * 4
SMALL_STORE = 80 * 2**20


class Witness(Extension):
    """Records each epoch that starts, and makes it longer."""

    def __init__(self, file: Path, seed: int, seconds: float) -> None:
        self.file, self.seed, self.seconds = file, seed, seconds

    def pre_train_step_epoch(self, epoch_num: int) -> None:
        with self.file.open("a") as file:
            file.write(f"{self.seed} {epoch_num} {os.getpid()}\n")
        time.sleep(self.seconds)


class Slow(Manager):
    defaults: Any = {"seed": 0}

    def __init__(self, store_dir: str | os.PathLike[str], seconds: float = 0.0, **options: Any) -> None:
        self.seconds = seconds
        super().__init__(store_dir, verbose=False, **options)

    def make_loop(self, config: Any) -> Supervised:
        batches = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(5)]
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
        witness = Witness(Path(str(self.store.root)).with_suffix(".epochs"), config["seed"], self.seconds)
        return Supervised(model, nn.CrossEntropyLoss(), EPOCHS, batches, batches[:1], extensions={"witness": witness})


def configs_of(num: int) -> list[dict[str, int]]:
    return [{"seed": seed} for seed in range(num)]


def epochs_of(store: str | os.PathLike[str]) -> list[tuple[int, int, int]]:
    """Return the seed, the epoch number and the process of each epoch that has started."""
    file = Path(store).with_suffix(".epochs")
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(seed), int(epoch), int(pid)) for seed, epoch, pid in map(str.split, lines)]


def weights_of(store: str | os.PathLike[str]) -> dict[int, list[Any]]:
    """Return the final weights of each run, by seed."""
    found = Store(store)
    states = {config["seed"]: found.run(key).checkpoint("last").value["state"] for key, config in found.configs.items()}
    return {seed: [each.tolist() for each in state["objects"]["model"].values()] for seed, state in states.items()}


def endings_of(store: str | os.PathLike[str]) -> dict[int, list[str]]:
    """Return how the attempts of each run ended, by seed."""
    found = Store(store)
    endings = {}
    for key, config in found.configs.items():
        run = found.run(key)
        endings[config["seed"]] = [str((run.outcome_of(number) or {}).get("outcome", "killed")) for number in sorted(run.attempts())]
    return endings


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which Ray writes only to one folder."""
    return {**os.environ, "HOME": str(folder), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}


def train(store: str, address: str, num: int, seconds: float) -> None:
    from trainmaster.sweep import RayExecutor

    executor = RayExecutor(2, None if address == "local" else address)
    result = Slow(store, seconds).batch(configs_of(num), workers=executor, max_attempts=50)
    print(json.dumps({"done": len(result.done), "found": len(result.found), "failed": result.failed, "given_up": result.given_up}))


def run_cluster(num_nodes: int) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": SMALL_STORE})
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=SMALL_STORE, wait=False) for _ in range(num_nodes)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["add"]:
                nodes.append(cluster.add_node(num_cpus=1, object_store_memory=SMALL_STORE, wait=False))
            case ["kill", number]:
                cluster.remove_node(nodes[int(number)], allow_graceful=False)
            case ["raylet", number]:
                nodes[int(number)].kill_raylet(check_alive=False)
            case ["head"]:
                cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
        print("ok", flush=True)
    for node in [*nodes, cluster.head_node]:
        node.kill_all_processes(check_alive=False, allow_graceful=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "cluster":
        run_cluster(int(sys.argv[2]))
    else:
        train(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
