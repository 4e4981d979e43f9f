"""Stores for tests of the dashboard: runs with curves, written through the store in milliseconds, and thousands of runs at once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainmaster.store import Store

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
    """One run of one attempt. The loss falls with the learning rate and the seed, so each run has curves of its own."""
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
    """Six runs in three groups: two learning rates with two seeds each, one that failed, one that diverged."""
    store = Store(root)
    keys = {f"{lr}-{seed}": add_run(store, {"lr": lr, "model": {"arch": "vit"}, "seed": seed}) for lr in (0.1, 0.5) for seed in (0, 1)}
    keys["failed"] = add_run(store, {"lr": 9.0, "model": {"arch": "mlp"}, "seed": 0}, outcome="failed", error="ValueError: no")
    nan = [{"tag": "valid/loss", "value": math.nan, "step": 6, "over": "epoch", "time": START + 6}]
    keys["diverged"] = add_run(store, {"lr": 99.0, "model": {"arch": "mlp"}, "seed": 0}, rows=nan)
    return store, keys


def write_many(root: Path, num_runs: int, num_config: int = 30) -> None:
    """Thousands of finished runs: the files of one run, copied under other keys."""
    from trainmaster.store.checksummed_json import record_bytes

    store = Store(root)
    for number in range(num_runs):
        config = {
            "lr": (number % 100 + 1) / 1000,
            "seed": number % 5,
            "model": {"width": number // 5, "arch": ("vit", "mlp", "cnn")[number % 3]},
            **{f"field{each}": each * 1.5 for each in range(num_config)},
        }
        key = store.configs.add(config)
        folder = root / "stats" / key[:2] / key / "attempt-0001"
        folder.mkdir(parents=True)
        preview = root / "previews" / key[:2] / key / "attempt-0001"
        preview.mkdir(parents=True)
        owner = {"host": "elsewhere", "boot": "b", "pid": 1, "start": "1"}
        about = {"key": key, "attempt": 1}
        now = time.time()
        loss = 1 / (1 + number)
        best = {"metric": "valid/loss", "mode": "min", "value": loss, "epoch": 3, "step": 30, "checkpoint": "step-000030", "attempt": 1}
        status = {"epoch": 3, "step": 30, "toc": now, "t_train": 1.0, "t_eval": 0.1, "best": best, "is_over": True}
        claim = {"num_epochs": 3, **about, "by": "process", "token": "0" * 32, "owner": owner, "heartbeat": 10.0, "claimed": "", "toc": now}
        resume = {**about, "parent": None, "step": None, "checkpoint": None, "events": 0, "status": status, "preview": {}}
        records = {
            "attempt.json": claim,
            "resume.json": resume,
            "status.json": {**about, "step": 30, "checkpoint": "step-000030", "status": status},
            "outcome.json": {**about, "outcome": "finished", "epoch": 3, "ended": "2026-11-17T11:04:11.617+00:00"},
        }
        for name, record in records.items():
            (folder / name).write_bytes(record_bytes(record))
        (preview / "preview.json").write_bytes(
            record_bytes({**about, "preview": {"valid/loss": loss, "train/loss": loss / 2, "valid/accuracy": 1 - loss}, "step": 30})
        )
        (folder / "events.jsonl").write_bytes(b"")
