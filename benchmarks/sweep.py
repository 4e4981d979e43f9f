"""Measures the overhead of a trial beyond its training, and how long a proposal takes in a long search.

    python benchmarks/sweep.py [--repeats 3] [--many 16]

A trial trains a tiny model for 300 steps with 10 evaluations. Two local workers train 4 trials and then 16; the
difference, divided by 12, is the time per trial without the time to start the workers. The CPU time includes this
process and all workers; the minimum of several repeats is robust on a busy machine. For comparison, the same loop is
trained without a manager. If Ray is installed, `RayExecutor` and `ray.tune` train the same loop on one local Ray
instance, `ray.tune` both with its defaults and with `reuse_actors=True`. The CPU time of Ray's processes, which are not
our children, is read from /proc while they run, so up to a fifth of a second at the end of each process is missing.

The second table shows the CPU time of a proposal by the number of earlier trials. CMA-ES replays the search once in
each process; the column "first" includes this replay.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import torch
from torch import nn

from trainmaster import Manager, Supervised
from trainmaster.sweep import RayExecutor
from trainmaster.sweep.optuna_study import Proposer
from trainmaster.sweep.plan import SAMPLERS, Plan, Trial
from trainmaster.sweep.ray_cluster import connect, import_ray
from trainmaster.sweep.space import Space

EPOCHS, STEPS, FEW, WORKERS = 10, 30, 4, 2
SPACE = {"lr": "log(1e-3,1e-1)", "width": "int(8,32)"}
SIZES = {"random": (100, 1_000, 10_000), "qmc": (100, 1_000, 10_000), "tpe": (100, 1_000, 10_000), "gp": (100, 300), "cmaes": (100, 1_000),
         "nsga2": (100, 1_000)}  # fmt: skip


def tiny_loop(config: Any, progress: bool = True) -> Supervised:
    torch.manual_seed(0)
    batches = [(torch.randn(16, 32), torch.randint(0, 4, (16,))) for _ in range(STEPS)]
    model = nn.Sequential(nn.Linear(32, config["width"]), nn.ReLU(), nn.Linear(config["width"], 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    return Supervised(
        model, nn.CrossEntropyLoss(), epochs=EPOCHS, train_data=batches, eval_data=batches[:1], optimizer=optimizer, progress=progress
    )


class Tiny(Manager):
    defaults: Any = {"lr": 0.01, "width": 16}

    def make_loop(self, config: Any) -> Supervised:
        return tiny_loop(config)


# ---- the cost of a trial


class Times(NamedTuple):
    cpu: float
    wall: float


def timed(work: Callable[[], object]) -> Times:
    """Return the CPU and wall time of `work`. CPU time includes joined children and running descendants."""
    with Descendants() as descendants:
        wall, cpu = time.perf_counter(), _cpu() + descendants.cpu()
        work()
        return Times(_cpu() + descendants.cpu() - cpu, time.perf_counter() - wall)


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Descendants:
    """Measures the CPU time of Ray's processes, even if they end early.

    Workers of trainmaster are left out: this process joins them, so their time is already counted.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Descendants:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.2):
            self.cpu()

    def cpu(self) -> float:
        processes: dict[str, tuple[str, str, float]] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    name, _, rest = (folder / "stat").read_text().rpartition(")")
                    fields = rest.split()
                    processes[folder.name] = (fields[1], name, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
        for pid, (parent, _, seconds) in processes.items():
            line = [pid]
            while parent in processes and parent != str(os.getpid()):
                line.append(parent)
                parent = processes[parent][0]
            if parent == str(os.getpid()) and any("ray" in processes[each][1] or "gcs_server" in processes[each][1] for each in line):
                self._seconds[pid] = seconds
        return sum(self._seconds.values())


def search(num_trials: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = Tiny(folder, verbose=False).search(SPACE, num_trials, "valid/loss", sampler="random", workers=WORKERS)
        assert result.count("complete") == num_trials


def batch(num_trials: int, workers: Any = WORKERS) -> None:
    configs = [{"lr": 0.001 * (1 + number), "width": 8 + number} for number in range(num_trials)]
    with tempfile.TemporaryDirectory() as folder:
        assert len(Tiny(folder, verbose=False).batch(configs, workers=workers).done) == num_trials


def batch_on_ray(num_trials: int) -> None:
    batch(num_trials, RayExecutor(WORKERS))


def train_alone(num_trials: int) -> None:
    torch.set_num_threads(1)
    for number in range(num_trials):
        tiny_loop({"lr": 0.01, "width": 8 + number}, progress=False).train()


def ray_tune(reuse_actors: bool) -> Callable[[int], None]:
    from ray import tune

    def train(config: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        loop = tiny_loop(config, progress=False)
        loop.train()
        for _, value in loop.history["valid/loss"]:
            tune.report({"loss": float(value)})

    def run(num_trials: int) -> None:
        settings = tune.TuneConfig(
            num_samples=num_trials, max_concurrent_trials=WORKERS, reuse_actors=reuse_actors, metric="loss", mode="min"
        )
        space = {"lr": tune.loguniform(1e-3, 1e-1), "width": tune.randint(8, 33)}
        with tempfile.TemporaryDirectory() as folder:
            tuner = tune.Tuner(train, param_space=space, tune_config=settings, run_config=tune.RunConfig(storage_path=folder, verbose=0))
            assert tuner.fit().num_errors == 0

    return run


def print_trial_costs(repeats: int, many: int) -> None:
    subjects: dict[str, Callable[[int], None]] = {
        "training alone": train_alone,
        "Manager.batch": batch,
        "Manager.search, random": search,
    }
    try:
        ray = import_ray()
        connect(ray, "local", WORKERS)
        subjects["Manager.batch, RayExecutor"] = batch_on_ray
        subjects |= {"ray.tune, defaults": ray_tune(False), "ray.tune, reuse_actors=True": ray_tune(True)}
    except ImportError as error:
        print(f"without Ray: {error}")
    few_times: dict[str, list[Times]] = {name: [] for name in subjects}
    many_times: dict[str, list[Times]] = {name: [] for name in subjects}
    train_alone(1)  # the first training run in a process is slower
    for _ in range(repeats):
        for name, subject in subjects.items():
            few_times[name].append(timed(lambda: subject(FEW)))  # noqa: B023
            many_times[name].append(timed(lambda: subject(many)))  # noqa: B023
    print(f"a trial of {EPOCHS * STEPS} steps and {EPOCHS} evaluations, {WORKERS} workers, slope from {FEW} to {many} trials")
    print(f"{'':28} {'CPU s':>8} {'beyond training':>20} {'wall s':>8}")
    alone = 0.0
    for name in subjects:
        least = [min(each[index] for each in many_times[name]) - min(each[index] for each in few_times[name]) for index in (0, 1)]
        cpu, wall = (each / (many - FEW) for each in least)
        alone = alone or cpu
        print(f"{name:28} {cpu:8.3f} {cpu - alone:20.3f} {wall:8.3f}")


# ---- the cost of a proposal


def plan_of(sampler: str) -> Plan:
    return Plan(
        name="cost", space=Space.of(SPACE).to_dict(), base={}, monitor=("value",), directions=("minimize",), epochs=None, seed=0,
        sampler=sampler, sampler_arguments=SAMPLERS[sampler], pruner="none", pruner_arguments={}, window=4, num_replicates=1, warm_start=(),
        optuna=optuna.__version__,
    )  # fmt: skip


def recorded_trials(sampler: str, count: int) -> list[Trial]:
    """Return the trials of a search.

    CMA-ES replays its trials and checks that it proposed their points; the other samplers accept random points.
    """
    proposer, trials = Proposer(plan_of(sampler if sampler == "cmaes" else "random")), list[Trial]()
    for number in range(count):
        point = proposer.propose(trials)
        assert point is not None
        value = (point.values["lr"] - 0.01) ** 2 + point.values["width"] / 100
        notes = {"NSGAIISampler:generation": number // 24} if sampler == "nsga2" else {}
        trials.append(Trial(number, point.parameters, "complete", (value,), notes=notes))
    return trials


def print_proposal_costs() -> None:
    print("\nCPU ms of a proposal, by the number of trials before it: the first in a process, and the next")
    print(f"{'sampler':10}" + "".join(f"{f'{size:,} first':>14}{'next':>9}" for size in (100, 300, 1_000, 10_000)))
    for sampler, sizes in SIZES.items():
        trials = recorded_trials(sampler, max(sizes) + 1)
        row = f"{sampler:10}"
        for size in (100, 300, 1_000, 10_000):
            if size not in sizes:
                row += f"{'-':>14}{'-':>9}"
                continue
            proposer, times = Proposer(plan_of(sampler)), list[float]()
            for number in (size, size + 1):
                started = time.process_time()
                proposer.propose(trials[:number])
                times.append((time.process_time() - started) * 1e3)
            row += f"{times[0]:14,.0f}{times[1]:9,.0f}"
        print(row, flush=True)
    print("gp takes seconds after a few hundred trials, and a search warns about it; cmaes replays the search once in each process")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--many", type=int, default=16)
    options = parser.parse_args()
    print_trial_costs(options.repeats, options.many)
    print_proposal_costs()


if __name__ == "__main__":
    main()
