"""A manager whose loss is a function of its config, and a search over it.

Usage: python toy_search.py STORE SAMPLER TRIALS WORKERS [SECONDS]
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from trainmaster import Manager

SPACE: dict[str, Any] = {"x": "float(-5,10)", "y": "float(0,15)", "kind": ["a", "b"]}
GRID: dict[str, Any] = {"x": "float(-5,10,bins=4)", "y": "float(0,15,bins=3)", "kind": ["a", "b"]}
EPOCHS = 4


class Toy(Manager):
    defaults: Any = {"x": 0.0, "y": 0.0, "kind": "a", "seed": 0, "wait": 0.0}

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["num_epochs"] = 0

    def train(self) -> None:
        time.sleep(self.config.wait)
        self.ckpt["num_epochs"] += 1

    def eval(self) -> dict[str, float]:
        return {"loss": final_loss(self.config) * (1 + 2 / max(1, self.epoch)), "size": abs(self.config.x)}


class CannotBePickledError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.lock = threading.Lock()


class RaisesUnpicklable(Toy):
    def train(self) -> None:
        if self.config.kind == "b":
            raise CannotBePickledError("one", "two")
        super().train()


def final_loss(config: Any) -> float:
    return float((config["x"] - 1) ** 2 + (config["y"] - 3) ** 2 + (config["kind"] == "b") + 0.5 * config.get("seed", 0))


if __name__ == "__main__":
    folder, sampler, trials, workers, *seconds = sys.argv[1:]
    Toy(folder, verbose=False, lease_time=5.0).search(
        GRID if sampler == "grid" else SPACE,
        trials=int(trials),
        workers=int(workers),
        sampler=sampler,
        pruner="median" if sampler == "tpe" else "none",
        epochs=EPOCHS,
        name="toy",
        window=3 if sampler not in ("grid", "random") else "auto",
        monitor=("loss", "size") if sampler == "nsga2" else "loss",
        mode=("min", "min") if sampler == "nsga2" else None,
        base={"wait": float(seconds[0]) if seconds else 0.0},
    )
