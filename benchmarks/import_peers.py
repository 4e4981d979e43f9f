"""Measures what trainmaster and its peers add to torch: the CPU time of their import, and the size of their packages.

    python benchmarks/import_peers.py [--repeats 5]

The time is the minimum CPU time of a fresh process that imports torch and then the tool, minus the time to import only
torch. The size counts the files of the package and of everything it requires (with only the extras that the import
needs), minus what torch requires. The files of an editable install are not counted. Missing tools are skipped.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement

TOOLS = {
    "trainmaster": "from trainmaster import Supervised, Manager",
    "lightning": "import lightning",
    "pytorch-ignite": "import ignite.engine, ignite.handlers, ignite.metrics",
    "transformers": "from transformers import Trainer, TrainingArguments",
    "hydra-core": "import hydra",
    "wandb": "import wandb",
    "ray": "from ray import tune",
    "optuna": "import optuna",
}
EXTRAS = {"ray": ("tune",), "transformers": ("torch",)}
"""The extras that the imported part needs."""


def cpu_seconds(code: str, repeats: int) -> float:
    found = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def closure(name: str, extras: tuple[str, ...] = ()) -> set[str]:
    """Return the normalized names of a package and of everything it requires."""
    names: set[str] = set()
    waiting = [(name, extras)]
    while waiting:
        name, extras = waiting.pop()
        normalized = re.sub(r"[-_.]+", "-", name).lower()
        if normalized in names and not extras:
            continue
        try:
            required = distribution(normalized).requires or ()
        except PackageNotFoundError:
            continue
        names.add(normalized)
        for each in map(Requirement, required):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((each.name, tuple(each.extras)))
    return names


def megabytes(names: set[str]) -> float:
    files = (file for name in names for file in distribution(name).files or ())
    return sum(path.stat().st_size for file in files if (path := file.locate()).is_file() and path.suffix != ".pyc") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    base, torch_alone = closure("torch"), cpu_seconds("import torch", repeats)
    print(f"{'':<28}{'import, CPU s':>14}{'packages':>10}{'MB':>8}")
    print(f"{'torch alone':<28}{torch_alone:>14.2f}{len(base):>10}{megabytes(base):>8.0f}")
    for name, code in TOOLS.items():
        try:
            version = distribution(name).version
        except PackageNotFoundError:
            continue
        added = closure(name, EXTRAS.get(name, ())) - base
        seconds = cpu_seconds(f"import torch; {code}", repeats) - torch_alone
        print(f"{name + ' ' + version:<28}{seconds:>14.2f}{len(added):>10}{megabytes(added):>8.0f}", flush=True)


if __name__ == "__main__":
    main()
