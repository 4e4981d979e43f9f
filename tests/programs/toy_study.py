"""A manager whose accuracy is a function of its config and its seed, and a hypothesis or an ablation about it.

Usage: python toy_study.py STORE hypothesis|ablation NAME WORKERS [SECONDS]
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from trainmaster import Manager
from trainmaster.analysis import Ablation, Hypothesis

EPOCHS = 2
GAINS = {"true": 0.02, "false": -0.01, "small": 0.006}
"""The true improvement of each claim; the margin is 0.005, and the differences have a spread of 0.007."""


class Toy(Manager):
    defaults: Any = {"act": "relu", "helps": 1, "hurts": 1, "idle": 1, "gain": 0.0, "seed": 0, "wait": 0.0}

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["num_epochs"] = 0

    def train(self) -> None:
        time.sleep(self.config.wait)
        self.ckpt["num_epochs"] += 1

    def eval(self) -> dict[str, float]:
        return {"accuracy": accuracy(self.config) - 0.1 / max(1, self.epoch)}


def accuracy(config: Any) -> float:
    shared = random.Random(f"seed {config.seed}").gauss(0.9, 0.01)
    own = random.Random(f"{config.act} {config.helps} {config.hurts} {config.idle} {config.seed}").gauss(0, 0.005)
    effect = config.gain * (config.act == "gelu") + 0.03 * config.helps - 0.03 * config.hurts + 0.02 * config.helps * config.idle * 0
    return shared + own + effect


def hypothesis(kind: str, wait: float = 0.0, **settings: Any) -> Hypothesis:
    base = {"gain": GAINS[kind], "wait": wait}
    given: dict[str, Any] = {"by": 0.005, "budget": 10, "base": base, "epochs": EPOCHS, "name": kind, **settings}
    return Hypothesis("act=gelu", better_than="act=relu", on="accuracy", **given)


def ablation(wait: float = 0.0, **settings: Any) -> Ablation:
    factors = {"helps": {"helps": 0}, "hurts": {"hurts": 0}, "idle": {"idle": 0}}
    given: dict[str, Any] = {"seeds": 5, "on": "accuracy", "epochs": EPOCHS, "name": "parts", **settings}
    return Ablation({"wait": wait}, factors, **given)


if __name__ == "__main__":
    folder, kind, name, workers, *seconds = sys.argv[1:]
    manager, wait = Toy(folder, verbose=False, lease_time=5.0), float(seconds[0]) if seconds else 0.0
    if kind == "hypothesis":
        hypothesis(name, wait).test(manager, workers=int(workers))
    else:
        ablation(wait).run(manager, workers=int(workers))
