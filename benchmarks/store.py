"""Measures the store at scale, and the cost of a durable checkpoint compared with `torch.save`.

Every number is printed next to its limit. File operations depend more on the disk than on the code, so compare the
ratios where there are any.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trainmaster.store import Store

MB = 2**20


def configs(count: int) -> Iterator[dict[str, object]]:
    """Return configs of a typical size: 20 values in 4 groups."""
    for number in range(count):
        yield {
            "seed": number,
            "data": {"name": "digits", "path": "data/digits", "workers": 4, "batch_size": 64, "is_shuffled": True},
            "model": {"arch": ["ResNet18", "ResNet50", "ViT"][number % 3], "width": 64 * (1 + number % 7), "depth": 12, "dropout": 0.1},
            "train": {"lr": 10 ** -(1 + number % 5), "momentum": 0.9, "weight_decay": 1e-4, "schedule": "cosine", "warmup": 500},
            "note": {"author": "someone", "purpose": "a benchmark", "tags": ["a", "b", "c"]},
        }


def timed(act: Callable[[], object]) -> tuple[float, object]:
    started = time.perf_counter()
    result = act()
    return time.perf_counter() - started, result


def scale(root: Path, count: int) -> None:
    """Measure the store at scale. This runs in a separate process, so that its memory can be measured too."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = Store(root)
    rows: list[tuple[str, float, str, float]] = []
    took, keys = timed(lambda: store.configs.add_many(configs(count)))
    assert isinstance(keys, list)
    assert len(set(keys)) == count
    rows.append((f"add {count:,} configs in bulk", took, "s", 60))
    some = list(configs(200))
    took = min(timed(lambda each=each: store.configs.add(each))[0] for each in some)
    rows.append(("add one that is there", took * 1e3, "ms", 5))
    took = max(timed(lambda key=key: store.configs[key])[0] for key in keys[:: max(1, count // 200)])
    rows.append(("find one by key, the slowest of 200", took * 1e3, "ms", 5))
    took = max(timed(lambda each=each: store.configs.get_key(each))[0] for each in some)
    rows.append(("find one by config, the slowest of 200", took * 1e3, "ms", 5))
    cond = {"model.arch": "ViT", "train.lr": (None, 0.001), "model.width": 64}
    took, found = timed(lambda: sum(1 for _ in store.select(cond)))
    rows.append((f"filter without an index, which is made ({found:,} found)", took, "s", 20))
    took = min(timed(lambda: sum(1 for _ in store.select(cond)))[0] for _ in range(3))
    rows.append(("filter with the index", took, "s", 2))
    rows.append(("memory beyond the imports", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, "MB", 200))
    for name, value, unit, limit in rows:
        print(f"  {name:<56} {value:8.2f} {unit:<3} limit {limit:g}")


def start_a_run(root: Path) -> None:
    """Do what `process` does before the first epoch, to count system calls."""
    store = Store(root)
    key = store.configs.add({"seed": -1, "model": "new"})
    with store.attempt(key, "process") as attempt:
        attempt.start(store.run(key).latest())
        attempt.save(0, {"x": 1}, {"epoch": 0}, {})
    store.pop(key)


def system_calls(root: Path) -> int:
    """Return how many system calls on files it takes to start a run."""
    script = str(Path(__file__).resolve())
    with tempfile.NamedTemporaryFile("r") as trace:
        kinds = "trace=%file,%desc"
        subprocess.run(["strace", "-f", "-o", trace.name, "-e", kinds, sys.executable, script, "--start", str(root)], check=True)
        lines = trace.read().splitlines()
    first = next(number for number, line in enumerate(lines) if f'"{root}"' in line)
    return len(lines) - first


def checkpoints(root: Path, repeats: int) -> None:
    import torch

    torch.set_num_threads(1)
    tensors = {f"layer{number}.weight": torch.randn(1024, 1280) for number in range(20)}
    size = sum(each.numel() * 4 for each in tensors.values())
    store = Store(root)
    key = store.configs.add({"checkpoint": "cost"})

    def by_torch() -> None:
        with open(root / "plain.pt", "wb") as file:
            torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())

    times: dict[str, list[float]] = {"torch.save + fsync": [], "trainmaster": []}
    loads: dict[str, list[float]] = {"torch.load": [], "trainmaster": []}
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        for number in range(repeats):
            times["torch.save + fsync"].append(timed(by_torch)[0])
            times["trainmaster"].append(timed(lambda step=number: attempt.save(step, tensors, {"epoch": step}, {}, keep=1))[0])
            loads["torch.load"].append(timed(lambda: torch.load(root / "plain.pt"))[0])
            loads["trainmaster"].append(timed(lambda: store.run(key).latest())[0])
    print(f"\na checkpoint of {size / MB:.0f} MB, minimum and median of {repeats}, in turn")
    base = times["torch.save + fsync"]
    for name, found in times.items():
        middle = sorted(found)[len(found) // 2]
        ratios = f"{min(found) / min(base):5.2f}  {middle / sorted(base)[len(base) // 2]:5.2f}"
        limit = "limit 1.25" if found is not base else ""
        print(f"  save  {name:<22} {min(found) * 1e3:7.0f} ms {middle * 1e3:7.0f} ms   ratios {ratios}   {limit}")
    for name, found in loads.items():
        print(f"  load  {name:<22} {min(found) * 1e3:7.0f} ms   {'checked byte by byte' if name == 'trainmaster' else ''}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--count", type=int, default=100_000)
    arguments.add_argument("--repeats", type=int, default=15)
    arguments.add_argument("--scale", metavar="ROOT", help="used by itself")
    arguments.add_argument("--start", metavar="ROOT", help="used by itself")
    given = arguments.parse_args()
    if given.scale:
        scale(Path(given.scale), given.count)
        return
    if given.start:
        start_a_run(Path(given.start))
        return
    root = Path(tempfile.mkdtemp(prefix="trainmaster-bench-"))
    try:
        print(f"a store with {given.count:,} configs")
        subprocess.run([sys.executable, __file__, "--count", str(given.count), "--scale", str(root / "large")], check=True)
        if shutil.which("strace"):
            small = Store(root / "small")
            small.configs.add_many(configs(10))
            few, many = system_calls(root / "small"), system_calls(root / "large")
            print(f"  system calls to start a run: {few} with 10 configs, {many} with {given.count:,}")
        else:
            print("  system calls to start a run: not counted, because strace is missing")
        checkpoints(root, given.repeats)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
