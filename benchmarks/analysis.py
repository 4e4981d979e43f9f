"""Measures how long the analysis of a large store takes: data frames (compared with json and pandas), parameter importance and the report.

Every number is the minimum CPU time of several fresh processes, printed next to its limit if there is one. `--store
PATH` keeps the store for next time, because creating it takes several minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
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

METRICS = ("train/loss", "valid/loss", "valid/accuracy", "test/loss", "test/accuracy", "lr", "grad_norm")


def configs(count: int) -> Iterator[dict[str, Any]]:
    """Return configs with 33 values, ten of which vary."""
    choose = random.Random(0)
    for number in range(count):
        yield {
            "seed": number % 5,
            "data": {"name": "digits", "path": "data/digits", "workers": 4, "is_shuffled": True, "batch_size": choose.choice([32, 64])},
            "model": {
                "arch": choose.choice(["ResNet18", "ResNet50", "ViT"]),
                "width": 64 * choose.randint(1, 8),
                "dropout": choose.uniform(0, 0.5),
                **{f"option_{each}": each for each in range(9)},
            },
            "train": {
                "lr": 10 ** choose.uniform(-5, -1),
                "weight_decay": 10 ** choose.uniform(-6, -2),
                "momentum": choose.uniform(0.8, 0.99),
                "schedule": choose.choice(["cosine", "constant"]),
                **{f"option_{each}": each / 7 for each in range(9)},
            },
            "number": number,
        }


def make(root: Path, count: int) -> None:
    """Write the files of finished runs without waiting for the disk."""
    owner = Owner.this().to_dict()
    store, generated = Store(root), configs(count)
    for _ in range(0, count, 10_000):
        some = list(itertools.islice(generated, 10_000))
        for config, key in zip(some, store.configs.add_many(some), strict=True):
            finish(root, key, config, owner)
    old = time.time() - 3600
    for folder in (root / "stats").glob("*/*"):
        os.utime(folder, (old, old))


def finish(root: Path, key: str, config: dict[str, Any], owner: dict[str, Any]) -> None:
    whose, toc = {"key": key, "attempt": 1}, 1.79e9
    loss = (math.log10(config["train"]["lr"]) + 3) ** 2 + config["model"]["dropout"] + 0.1 * random.Random(key).gauss(0, 1)
    preview = {name: loss + number for number, name in enumerate(METRICS)}
    best = {"metric": "valid/loss", "mode": "min", "value": loss, "epoch": 9, "step": 900, "checkpoint": "step-000900", "attempt": 1}
    status = {"epoch": 10, "step": 1000, "toc": toc, "t_train": 1.0, "t_eval": 0.1, "best": best}
    started = "2026-11-16T06:00:00.000+00:00"
    claim = {"by": "process", "token": "0" * 32, "owner": owner, "heartbeat": 10.0, "claimed": started, "toc": toc}
    resume = {"parent": None, "checkpoint": None, "step": None, "events": 0, "preview": {}, "status": {"epoch": -1}, "seed": config["seed"]}
    events = f"stats/{key[:2]}/{key}/attempt-0001/events.jsonl"
    rows = [{"tag": name, "value": value, "step": epoch, "over": "epoch"} for epoch in range(10) for name, value in preview.items()]
    seed = seed_of(events)
    files = {
        "stats/attempt.json": record_bytes({**whose, **claim}),
        "stats/resume.json": record_bytes({**whose, **resume}),
        "stats/status.json": record_bytes({**whose, "step": 1000, "checkpoint": "step-001000", "status": status}),
        "stats/outcome.json": record_bytes({**whose, "outcome": "finished", "epoch": 10, "ended": "2026-11-16T06:10:00.000+00:00"}),
        "stats/events.jsonl": b"".join(event_line(number, row, seed) for number, row in enumerate(rows)),
        "previews/preview.json": record_bytes({**whose, "step": 1000, "preview": preview}),
    }
    for path, data in files.items():
        archive, name = path.split("/")
        folder = root / archive / key[:2] / key / "attempt-0001"
        if name in ("attempt.json", "preview.json"):
            os.makedirs(folder)
        (folder / name).write_bytes(data)


# ---- the measurements, each in its own process


def build_index(root: str) -> Any:
    from trainmaster.store.index import PATH

    (Path(root) / PATH).unlink(missing_ok=True)
    return lambda: len(Store(root).index.runs())


def columns(root: str) -> Any:
    from trainmaster.analysis.results import Results

    return lambda: len(Results(root).columns)


def frame(root: str) -> Any:
    import pandas as pd  # noqa: F401 - its import is not what is measured

    from trainmaster.analysis.results import Results

    return lambda: Results(root).df.shape


def json_and_pandas(root: str) -> Any:
    """Do what a simple script would do: read and flatten each config and preview, and create a data frame."""
    import pandas as pd

    def flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for name, value in tree.items():
            yield from flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]

    def read() -> Any:
        rows = {}
        for path in Path(root).glob("configs/*/*.json"):
            key = path.stem
            preview = json.loads((Path(root) / "previews" / key[:2] / key / "attempt-0001" / "preview.json").read_bytes())["preview"]
            rows[key] = {**dict(flat(json.loads(path.read_bytes())["config"])), **preview}
        return pd.DataFrame.from_dict(rows, orient="index").shape

    return read


def importance(root: str, count: int) -> Any:
    import optuna  # noqa: F401 - its import is not what is measured

    from trainmaster.analysis.results import Results

    results = Results(root, where=f"number<{count}")
    return lambda: len(results.importance("valid/loss").values)


def report(root: str, count: int) -> Any:
    from trainmaster.analysis.report import write_report

    return lambda: f"{write_report(Path(root) / 'report.html', Store(root), where=f'number<{count}') / 1e6:.2f} MB"


def open_report(root: str) -> Any:
    """Open the report in a browser five times, and return the minimum wall time until its table has rows."""
    from playwright.sync_api import sync_playwright

    def open_once(browser: Any) -> float:
        page = browser.new_context().new_page()
        started = time.perf_counter()
        page.goto((Path(root) / "report.html").resolve().as_uri())
        page.wait_for_selector("#table tbody tr:not(.space)")
        return time.perf_counter() - started

    def measure() -> str:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
            return f"opened after {min(open_once(browser) for _ in range(5)):.2f} s"

    return measure


TASKS = {
    "index: first build": (build_index, None),
    "columns, with the index": (columns, 3.0),
    "frame, with the index": (frame, 3.0),
    "frame by plain json + pandas": (json_and_pandas, None),
    "importance of 1,000 runs": (lambda root: importance(root, 1000), None),
    "importance of 10,000 runs": (lambda root: importance(root, 10_000), None),
    "report of 10,000 runs": (lambda root: report(root, 10_000), None),
    "report of 10,000 runs, in chromium": (open_report, None),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--count", type=int, default=100_000)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--store", metavar="PATH", help="keep the store here, or use the one that is there")
    arguments.add_argument("--task", nargs=2, metavar=("NAME", "PATH"), help="used by itself")
    given = arguments.parse_args()
    if given.task:
        act = TASKS[given.task[0]][0](given.task[1])
        started = time.process_time()
        result = act()
        print(json.dumps([time.process_time() - started, str(result)]))
        return
    root = Path(given.store or tempfile.mkdtemp(prefix="trainmaster-bench-"))
    try:
        if not (root / "store.json").exists():
            make(root, given.count)
        print(f"{given.count:,} runs with 33 config values and {len(METRICS)} metrics, CPU seconds")
        for name, (_, limit) in TASKS.items():
            repeats = 1 if "build" in name else given.repeats
            command = [sys.executable, __file__, "--task", name, str(root)]
            found = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
            best = min(each[0] for each in found)
            print(f"  {name:<36} {best:8.2f} s   {f'limit {limit:g}' if limit else '':<10} {found[0][1]}", flush=True)
    finally:
        if not given.store:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
