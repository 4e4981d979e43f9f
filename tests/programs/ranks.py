"""Starts a program on several ranks, which train together.

Run as a program, this file trains a small model with the given options (JSON) and writes the results to `<out>.<rank>`.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainmaster import (
    EMA,
    CheckpointSaver,
    ClipGradients,
    EarlyStopping,
    Extension,
    GradientAccumulation,
    MixedPrecision,
    NaNGuard,
    Supervised,
    TrainManager,
)
from trainmaster.errors import TrainmasterError
from trainmaster.loop.ranks import LAUNCHED, find_ranks


def environment(rank: int, num: int, folder: Path) -> dict[str, str]:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num), LAUNCHED: str(folder / "rendezvous")}
    return {**os.environ, **own}


def start(num: int, words: list[str], cwd: Path, **options: Any) -> list[Any]:
    """Start a Python program on `num` ranks."""
    import warm

    folder = Path(tempfile.mkdtemp(dir=cwd))
    return [warm.Popen([sys.executable, *words], cwd=cwd, env=environment(rank, num, folder), text=True, **options) for rank in range(num)]


def run(num: int, folder: Path, options: dict[str, Any], timeout: float = 100.0) -> list[dict[str, Any]]:
    """Train with these options, and return the results of each rank, including its exit code (`code`)."""
    out = folder / f"out-{time.monotonic_ns()}"
    processes = start(num, [__file__, json.dumps(options), str(out)], folder, stderr=-1)
    try:
        errors = [each.communicate(timeout=timeout)[1] for each in processes]
    finally:
        for each in processes:
            each.kill()  # it may hang
    found = []
    for rank, (process, error) in enumerate(zip(processes, errors, strict=True)):
        path = Path(f"{out}.{rank}")
        found.append({"code": process.returncode, "err": error, **(torch.load(path, weights_only=True) if path.exists() else {})})
    return found


class Rows(Dataset[Any]):
    """Samples that may be augmented with random numbers."""

    def __init__(self, num: int, noise: float = 0.0, bad: int | None = None) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(num, 8, generator=generator)
        self.targets = (self.inputs.sum(1) > 0).long()
        self.noise = noise
        if bad is not None:
            self.inputs[bad] = float("nan")

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        inputs = self.inputs[index]
        return inputs + self.noise * torch.randn(8) if self.noise else inputs, self.targets[index]


class At(Extension):
    """Performs an action on one rank at one step."""

    on_every_rank = True

    def __init__(self, what: str, rank: int, step: int) -> None:
        self.what, self.rank, self.step = what, rank, step

    def post_train_step_batch(self, loop: TrainManager, step_num: int) -> None:
        if loop.ranks.rank == self.rank and step_num == self.step:
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "raise":
                raise ValueError("boom")
            loop.stop(self.what)


class OnlyFirst(Extension):
    """Runs on rank 0 only, and performs an action that needs all ranks or must happen on all of them."""

    def __init__(self, what: str) -> None:
        self.what = what

    def post_train_step_batch(self, loop: TrainManager, model: nn.Module) -> None:
        if self.what == "weights":
            with torch.no_grad():
                next(iter(model.parameters())).add_(1e-4)
        elif self.what != "predict":
            getattr(loop, self.what)()
        else:
            loop.predict([torch.zeros(2, 8)])


def accuracy(prediction: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (prediction.argmax(1) == targets).float().mean()


def extensions_of(options: dict[str, Any]) -> list[Any]:
    made: dict[str, Any] = {
        "accumulate": lambda: GradientAccumulation(2),
        "clip": lambda: ClipGradients(max_norm=0.1),
        "ema": lambda: EMA(0.9),
        "skip": lambda: NaNGuard("skip"),
        "float16": lambda: MixedPrecision("float16"),
        "bfloat16": lambda: MixedPrecision("bfloat16"),
        "early": lambda: EarlyStopping(patience=1, min_delta=1.0),
    }
    found = [made[name]() for name in options.get("extensions", ())]
    if "kind" in options:  # one of the extensions that come with trainmaster, by the name of its class
        import all_program

        found.append(all_program.one_of_each_kind()[options["kind"]])
    found += [At(*options["at"])] if "at" in options else []
    found += [OnlyFirst(options["only_first"])] if "only_first" in options else []
    is_saver_missing = "train_dir" in options and options.get("kind") != "CheckpointSaver"
    is_killed = options.get("at", [""])[0] == "kill"  # the last checkpoint before the kill must be complete
    return [*found, CheckpointSaver(every_steps=4, in_background=not is_killed)] if is_saver_missing else found


class Net(nn.Sequential):
    """A `Sequential` with its own `forward`, which `Compile` requires."""

    def forward(self, inputs: Any) -> Any:
        return super().forward(inputs)


def make_model(options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(options.get("seed", 0))
    layers: list[nn.Module] = [nn.Linear(8, 15), nn.Tanh()]
    layers += [nn.Dropout(options["dropout"])] if "dropout" in options else []
    layers += [nn.BatchNorm1d(15)] if "batch_norm" in options else []
    model = Net(*layers, nn.Linear(15, 2))
    if options.get("sharded"):
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        find_ranks()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for each in (model[0], model[-1], model):
            fully_shard(each, mesh=mesh)
    return model


class CountsTargets(Supervised):
    """A loop whose batch size is the number of targets that the loss does not ignore."""

    def get_true_batch_size(self, batch: Any) -> int:
        return int((batch[1] != self.loss.ignore_index).sum())


def make_loop(options: dict[str, Any]) -> Supervised:
    model = make_model(options)
    rows = Rows(options.get("rows", 67), options.get("noise", 0.0), options.get("bad"))
    data: Any = DataLoader(rows, batch_size=options.get("batch", 8), shuffle=True, num_workers=options.get("workers", 0))
    if "as_list" in options:
        data = list(DataLoader(rows, batch_size=8))
    valid = DataLoader(Rows(options.get("num_valid", 21)), batch_size=10)
    metrics: dict[str, Any] = {"accuracy": accuracy}
    if "torchmetrics" in options:
        import torchmetrics

        metrics["f1"] = torchmetrics.F1Score("multiclass", num_classes=2)
    plateau = functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, threshold=10.0)
    kind = CountsTargets if "ignored" in options else Supervised
    loss = nn.CrossEntropyLoss(torch.tensor([1.0, 3.0]) if "weighted" in options else None, ignore_index=options.get("ignored", -100))
    return kind(
        model,
        loss,
        options.get("epochs", 2),
        data,
        valid,
        metrics=None if options.get("kind") == "Metrics" else metrics,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        lr_schedule=plateau if "plateau" in options else None,
        schedule_by="valid/accuracy" if "plateau" in options else None,
        extensions=extensions_of(options),
        train_dir=options.get("train_dir"),
        max_steps=options.get("max_steps"),
        eval_every=options.get("eval_every", 1),
        progress=False,
    )


def train(options: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the weights, the state and the metrics."""
    loop = make_loop(options)
    if "eval_first" in options:
        loop.eval()
    loop.train()
    state = loop.capture()
    ema = loop.extensions.get("ema")
    return {
        "weights": state.objects["model"],
        "ema": ema.weights if isinstance(ema, EMA) else {},
        "history": {name: list(rows) for name, rows in loop.history.items()},
        "step": loop.step_num,
        "lr": loop.optimizer.param_groups[0]["lr"] if loop.optimizer is not None else 0.0,
        "draw": torch.rand(2),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked, out = json.loads(sys.argv[1]), sys.argv[2]
    try:
        results: dict[str, Any] = train(asked)
    except TrainmasterError as error:
        results = {"error": f"{type(error).__name__}: {error}"}
    torch.save(results, f"{out}.{os.environ.get('RANK', 0)}")
    if "error" in results:
        print(results["error"], file=sys.stderr)
        sys.exit(1)
