"""Stores for tests of the dashboard: some runs with curves, or thousands of runs, all written without training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainmaster.store import Store
from trainmaster.store.checksummed_json import record_bytes
from trainmaster.store.run_table import MISSING, table_of

START = 1_790_000_000.0


def add_run(
    store: Store,
    config: Mapping[str, Any],
    num_epochs: int = 5,
    outcome: str = "finished",
    metrics: Iterable[str] = ("valid/loss", "valid/accuracy", "train/loss"),
    error: str = "",
    rows: Iterable[Mapping[str, Any]] = (),
) -> str:
    """Add a run with one attempt. Its curves depend on the learning rate and the seed."""
    key = store.configs.add(config)
    facts = {"num_epochs": num_epochs}
    with store.attempt(key, "process", facts=facts) as attempt:
        attempt.start(None)
        last: dict[str, float] = {}
        for epoch in range(num_epochs + 1):
            for name in metrics:
                last[name] = value_at(name, config, epoch)
                attempt.log.append({"tag": name, "value": last[name], "step": epoch, "over": "epoch", "time": START + epoch})
        for row in rows:
            attempt.log.append(row)
        names = [*last]
        step = num_epochs * 10
        best = {"metric": names[0], "mode": "min", "value": last[names[0]], "epoch": num_epochs, "step": step} if names else None
        status = {"epoch": num_epochs, "step": step, "toc": START, "t_train": 1.0, "t_eval": 0.1, "best": best}
        attempt.save(step, {"weights": [1.0]}, status, last)
        attempt.release(outcome, **({"error": error} if error else {}))
    return key


def value_at(name: str, config: Mapping[str, Any], epoch: int) -> float:
    seed = config.get("seed", 0)
    lr = config.get("lr", 0.1)
    lr = lr if isinstance(lr, float) else 0.1
    loss = (1 + 0.05 * seed) * math.exp(-lr * epoch)
    return 1 - loss / 2 if name.endswith("accuracy") else loss


def make_store(root: Path) -> tuple[Store, dict[str, str]]:
    """Create six runs: two learning rates with two seeds each, one run that failed, and one that diverged."""
    store = Store(root)
    keys = {f"{lr}-{seed}": add_run(store, {"lr": lr, "model": {"arch": "vit"}, "seed": seed}) for lr in (0.1, 0.5) for seed in (0, 1)}
    keys["failed"] = add_run(store, {"lr": 9.0, "model": {"arch": "mlp"}, "seed": 0}, outcome="failed", error="ValueError: no")
    nan = [{"tag": "valid/loss", "value": math.nan, "step": 6, "over": "epoch", "time": START + 6}]
    keys["diverged"] = add_run(store, {"lr": 99.0, "model": {"arch": "mlp"}, "seed": 0}, rows=nan)
    return store, keys


def write_search(root: Path, name: str, keys: list[str], directions: list[str], values: list[Any]) -> None:
    """Add a search with one trial per run. Each trial has its objectives, or a state such as `pruned`, or an empty list while it runs."""
    folder = root / "sweeps" / name
    for kind in ("proposals", "outcomes"):
        (folder / kind).mkdir(parents=True)
    plan = {
        "name": name,
        "monitor": ["valid/loss", "size"][: len(directions)],
        "directions": directions,
        "sampler": "tpe",
        "pruner": "none",
    }
    plan |= {"num_replicates": 1, "epochs": 5, "seed": 0, "space": {}}
    (folder / "plan.json").write_bytes(record_bytes(plan))
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        proposal = {"number": number, "parameters": {}, "values": {"lr": 0.1 * (number + 1)}, "keys": [key], "state": "running"}
        (folder / "proposals" / f"{number:06}.json").write_bytes(record_bytes(proposal))
        if value:
            state, objectives = (value, None) if isinstance(value, str) else ("complete", value)
            outcome = {"state": state, "values": objectives, "intermediate": {}, "epoch": 5, "reason": "", "notes": {}}
            (folder / "outcomes" / f"{number:06}.json").write_bytes(record_bytes(outcome))


def write_many(root: Path, num_runs: int, num_config: int = 30) -> None:
    """Write thousands of finished runs.

    Their configs, folders and the index are written, so that nothing else has to be read.
    """
    store = Store(root)
    configs = (
        {
            "lr": (number // 5 % 100 + 1) / 1000,
            "seed": number % 5,
            "model": {"width": number // 5, "arch": ("vit", "mlp", "cnn")[number // 5 % 3]},
            **{f"field{each}": each * 1.5 for each in range(num_config)},
        }
        for number in range(num_runs)
    )
    for key in store.configs.add_many(configs):
        (root / "stats" / key[:2] / key / "attempt-0001").mkdir(parents=True)
    table, marks = store.index.configs(), store.index.run_marks()
    rows = []
    for number, key in enumerate(table.keys):
        config = {name: column[number] for name, column in table.config.items()}
        loss = config["lr"] + config["seed"] / 100 + config["model.width"] / num_runs
        facts = {name: column[number] for name, column in table.facts.items() if column[number] is not MISSING}
        facts |= {"state": "finished", "reason": "", "epoch": 3, "step": 30, "num_epochs": 3, "changed": START, "num_attempts": 1}
        facts |= {"best.metric": "valid/loss", "best.mode": "min", "best.value": loss, "best.epoch": 3, "best.step": 30}
        facts |= {"run_size": marks[key][0], "run_time": marks[key][1]}
        metrics = {"valid/loss": loss, "train/loss": loss / 2, "valid/accuracy": 1 - loss / 2, "lr": config["lr"]}
        rows.append((key, facts, config, metrics))
    store.index._write([], table_of(rows))
