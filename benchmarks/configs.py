"""Measures the cost of configs: creating one, computing its key, loading files, and importing `trainmaster.config`.

    python benchmarks/configs.py

Prints the minimum CPU time over many repeats, next to its limit and, for comparison, the time for the same data in
pydantic's own models and in plain `json`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from trainmaster.config import Config, ConfigBase, Grid, Stateless, configclass, key_of

REPEATS = 30


@configclass
class Optimizer(ConfigBase):
    name: str = "adamw"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01


@configclass
class Data(ConfigBase):
    name: str = "digits"
    split: str = "train"
    batch_size: int = 32
    num_workers: Stateless[int] = 2
    shuffle: bool = True
    sizes: list[int] = [64, 64, 10]


@configclass
class Model(ConfigBase):
    arch: str = "resnet"
    depth: int = 18
    width: int = 64
    dropout: float = 0.1
    norm: str | None = None
    activation: str = "relu"
    heads: int = 8
    kernel: tuple[int, int] = (3, 3)


@configclass
class Run(ConfigBase):
    model: Model
    data: Data
    optimizer: Optimizer
    seed: int = 0
    epochs: Stateless[int] = 10
    device: Stateless[str] = "auto"
    amp: Stateless[bool] = True
    note: Stateless[str | None] = None
    clip: float | None = None
    ema: float | None = None
    warmup: int = 100
    schedule: str = "cosine"
    metric: str = "loss"


def pydantic_twin(kind: type[ConfigBase]) -> type[BaseModel]:
    """Return an ordinary pydantic model with the same fields."""
    from pydantic import create_model

    fields = {}
    for name, field in kind._schema().fields.items():
        nested = field.configs[0] if field.configs else None
        fields[name] = (pydantic_twin(nested), ...) if nested else (field.written, field.default)
    return create_model(kind.__name__, **fields)


def least(work: Callable[[], object], rounds: int) -> float:
    """Return the minimum CPU time per round over many repeats, in microseconds."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in range(rounds):
            work()
        best = min(best, (time.process_time() - start) / rounds)
    return best * 1e6


def import_time() -> float:
    code = "import time; a = time.process_time(); import trainmaster.config; print(time.process_time() - a)"
    return min(float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout) for _ in range(10))


def load_time(folder: Path, ending: str, load: Callable[[Path], object]) -> float:
    files = sorted(folder.glob(f"*.{ending}"))
    assert len(files) == 1_000
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        for file in files:
            load(file)
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    values = Run(model={}, data={}, optimizer={}).to_dict()
    run = Run(**values)
    num_fields = len(values) - 3 + sum(len(values[group]) for group in ("model", "data", "optimizer"))
    twin = pydantic_twin(Run)
    print(f"a nested config of {num_fields} fields" + " " * 20 + "CPU time     limit")
    rows = [
        ("build", least(lambda: Run(**values), 500), 100),
        ("build, the same in pydantic's BaseModel", least(lambda: twin(**values), 500), None),
        ("key", least(lambda: run.key, 500), 100),
        ("key of the same plain dict", least(lambda: key_of(values), 500), None),
        ("json.dumps of it, for scale", least(lambda: json.dumps(values, sort_keys=True), 500), None),
        ("read an attribute", least(lambda: run.seed, 50_000), None),
        ("clone", least(run.clone, 500), None),
        ("to_yaml", least(run.to_yaml, 100), None),
    ]
    for name, took, limit in rows:
        print(f"  {name:<42} {took:8.1f} us   {f'{limit} us' if limit else '':>7}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(1_000):
            config = run.override(f"seed={number}")
            config.write(folder / f"{number}.yaml")
            config.write(folder / f"{number}.json")
        print(f"  {'load 1,000 YAML files, typed':<42} {load_time(folder, 'yaml', Run.load):8.2f} s        2 s")
        print(f"  {'load 1,000 YAML files, untyped':<42} {load_time(folder, 'yaml', Config.load):8.2f} s        2 s")
        print(f"  {'load 1,000 JSON files, typed':<42} {load_time(folder, 'json', Run.load):8.2f} s        2 s")
    big = Grid({f"key{number}": list(range(10)) for number in range(9)})
    combinations = iter(big)
    print(f"  {'the next of 10^9 combinations':<42} {least(lambda: next(combinations), 500):8.1f} us")
    print(f"  {'import trainmaster.config':<42} {import_time():8.3f} s      0.3 s")


if __name__ == "__main__":
    main()
