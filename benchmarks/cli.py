"""Measures the wall time of commands on a large store, from the start of the interpreter to its exit.

Every number is the minimum over several starts, next to its limit. The commands take turns, because the load on the
machine varies.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainmaster.store import Store
from trainmaster.store.checksummed_json import record_bytes
from trainmaster.store.events import event_line, seed_of
from trainmaster.store.process_identity import Owner


def configs(count: int) -> Iterator[dict[str, Any]]:
    """Return configs of a typical size: 20 values in 4 groups."""
    for number in range(count):
        yield {
            "seed": number,
            "data": {"name": "digits", "path": "data/digits", "workers": 4, "batch_size": 64, "is_shuffled": True},
            "model": {"arch": ["ResNet18", "ResNet50", "ViT"][number % 3], "width": 64 * (1 + number % 7), "depth": 12, "dropout": 0.1},
            "train": {"lr": 10 ** -(1 + number % 5), "momentum": 0.9, "weight_decay": 1e-4, "schedule": "cosine", "warmup": 500},
            "note": {"author": "someone", "purpose": "a benchmark", "tags": ["a", "b", "c"]},
        }


def make(root: Path, count: int) -> list[str]:
    """Write a store with trained runs: the files of each attempt, without waiting for the disk."""
    keys = Store(root).configs.add_many(configs(count))
    for number, key in enumerate(keys):
        finish(root, key, number)
    return keys


def finish(root: Path, key: str, number: int) -> None:
    """Write the records of one attempt of a run, as `process` does."""
    whose = {"key": key, "attempt": 1}
    status = {"epoch": 10, "toc": time.time(), "t_train": 1.0, "t_eval": 0.1}
    preview = {"valid/loss": 1 / (1 + number % 997), "accuracy": number % 1000 / 1000}
    owner = Owner.this().to_dict()
    started = "2026-11-16T06:00:00.000+00:00"
    claim = {"by": "process", "token": "0" * 32, "owner": owner, "heartbeat": 10.0, "claimed": started, "toc": status["toc"]}
    resume = {"parent": None, "checkpoint": None, "step": None, "events": 0, "preview": {}, "status": {"epoch": -1}, "started": started}
    events = f"stats/{key[:2]}/{key}/attempt-0001/events.jsonl"
    for path, data in {
        "stats/attempt.json": record_bytes({**whose, **claim}),
        "stats/resume.json": record_bytes({**whose, **resume}),
        "stats/status.json": record_bytes({**whose, "step": 10, "checkpoint": "step-000010", "status": status}),
        "stats/outcome.json": record_bytes({**whose, "outcome": "finished", "epoch": 10, "ended": "2026-11-16T06:10:00.000+00:00"}),
        "stats/events.jsonl": event_line(0, {"epoch": 10, "time": status["toc"], "eval": preview}, seed_of(events)),
        "previews/preview.json": record_bytes({**whose, "step": 10, "preview": preview}),
    }.items():
        archive, name = path.split("/")
        folder = root / archive / key[:2] / key / "attempt-0001"
        if name in ("attempt.json", "preview.json"):
            os.makedirs(folder)
        (folder / name).write_bytes(data)


def make_long(root: Path, num_events: int) -> str:
    """Write a run with a long log, as written by a loop that records every step, and return its key."""
    store = Store(root)
    key = store.configs.add({"long": num_events})
    finish(root, key, 0)
    path = f"stats/{key[:2]}/{key}/attempt-0001/events.jsonl"
    seed = seed_of(path)
    with open(root / path, "wb") as file:
        for number in range(num_events):
            is_rare = number % 10_000 == 0
            row = {
                "tag": "valid/loss" if is_rare else "train/loss",
                "value": 1 / (1 + number),
                "step": number,
                "epoch": 0,
                "time": 1.0e9,
            }
            file.write(event_line(number, row, seed))
    return key


def started(args: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "trainmaster", *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--count", type=int, default=100_000)
    arguments.add_argument("--events", type=int, default=1_000_000)
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--root", type=Path, help="a store from an earlier call, or a folder in which to create and keep one")
    given = arguments.parse_args()
    root = given.root or Path(tempfile.mkdtemp(prefix="trainmaster-bench-")) / "store"
    try:
        if not (root / "made").exists():
            begun = time.perf_counter()
            keys = make(root, given.count)
            (root / "made").write_text(f"{keys[0]} {make_long(root, given.events)}")
            print(f"created in {time.perf_counter() - begun:.0f} s")
        first, long = (root / "made").read_text().split()
        store = ["--store", str(root)]
        rows = {
            "--help": (["--help"], 0.4),
            "ls, the first page": (["ls", *store], 2.0),
            "ls --where, a part of the config": (["ls", *store, "--where", "train.lr<0.001 and model.arch=ViT"], 4.0),
            "ls --tag": (["ls", *store, "--tag", "best"], 2.0),
            "show": (["show", first[:6], *store], 0.5),
            f"show, with {given.events:,} events": (["show", long, *store], 2.0),
            "diff": (["diff", first, long, *store], 0.5),
        }
        started(["ls", *store, "--where", "seed=1"])  # creates the index
        best = {name: float("inf") for name in rows}
        for _ in range(given.repeats):
            best = {name: min(best[name], started(args)) for name, (args, _) in rows.items()}
        print(f"a store with {given.count:,} runs; the minimum of {given.repeats} starts")
        for name, (_, limit) in rows.items():
            print(f"  {name:<40} {best[name]:6.2f} s   limit {limit:g} s   {'' if best[name] <= limit else 'MISSED'}")
    finally:
        if given.root is None:
            shutil.rmtree(root.parent)


if __name__ == "__main__":
    main()
