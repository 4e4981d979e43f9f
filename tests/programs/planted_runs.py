"""Runs with known results, written into a store as a loop under a manager would leave them."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.store import Store


def add_run(
    store: Store,
    config: Any,
    epochs: Sequence[Mapping[str, float]] = ({"valid/loss": 1.0},),
    outcome: str = "finished",
    monitor: tuple[str, str] | None = ("valid/loss", "min"),
    seed: int | None = None,
    **facts: Any,
) -> str:
    """Add a run with one attempt and an evaluation after each epoch."""
    key = store.configs.add(config)
    with store.attempt(key, "process") as attempt:
        attempt.start(store.run(key).latest(), facts={} if seed is None else {"seed": seed})
        for epoch, numbers in enumerate(epochs):
            for name, value in numbers.items():
                attempt.log.append({"tag": name, "value": value, "step": epoch, "over": "epoch", "time": 0.0})
            status = {"epoch": epoch, "step": 10 * epoch, "toc": time.time(), "t_train": 2.0, "t_eval": 0.5}
            if monitor is not None:
                status["best"] = {"metric": monitor[0], "mode": monitor[1], "value": numbers.get(monitor[0], math.nan), "step": 10 * epoch}
            attempt.save(epoch, {"x": epoch}, status, dict(numbers))
        attempt.release(outcome, **facts)
    return key


def make_old(store: Store) -> None:
    """Make all runs look as if they were started an hour ago.

    The index leaves out files that have just changed.
    """
    for folder in os.scandir(f"{store.root}/stats"):
        for run in os.scandir(folder.path):
            os.utime(run.path, (time.time() - 3600, time.time() - 3600))


def planted_sweep(store: Store, num_configs: int = 40, num_seeds: int = 2) -> list[str]:
    """Add a sweep in which the learning rate matters most, the activation a little, and the batch size not at all."""
    choose = random.Random(0)
    keys = []
    for _ in range(num_configs):
        lr, activation, batch_size = 10 ** choose.uniform(-4, -1), choose.choice(["relu", "gelu"]), choose.choice([32, 64, 128])
        for seed in range(num_seeds):
            loss = 0.2 + (math.log10(lr) + 2.5) ** 2 / 4 + (0.1 if activation == "relu" else 0.0) + choose.gauss(0, 0.02)
            config = {"optim": {"lr": lr, "batch_size": batch_size}, "model": {"activation": activation, "depth": 3}, "seed": seed}
            epochs = [
                {"valid/loss": loss + 2 * math.exp(-epoch / 2), "valid/accuracy": 1 - loss / 4 - math.exp(-epoch / 2)} for epoch in range(6)
            ]
            keys.append(add_run(store, config, epochs, seed=seed))
    return keys
