"""Measures the overhead of a training step: trainmaster, its peers and a hand-written loop train the same tiny model.

    python benchmarks/step_overhead.py [--processes 5] [--repeats 15] [--steps 1000]

Every process runs all loops in turn, many times, and keeps the minimum CPU time of each. The table shows the median
over processes of the ratio to the hand-written loop. That loop runs twice: its ratio to itself is the error bar. Other
libraries are included if they are installed (pytorch-ignite, lightning, pytorch-pfn-extras, skorch). `component loop`
is our version of the classic component loop, which calls every callback on every component, even those that do nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache

Run = Callable[[], None]


@cache
def shared_batches(steps: int):
    """Return the tensors that all loops share, because their location in memory affects the time more than the loop does."""
    import torch

    torch.manual_seed(0)
    return [(torch.randn(16, 32), torch.randint(0, 4, (16,))) for _ in range(steps)]


def work(steps: int):
    import torch
    from torch import nn

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    return model, nn.functional.cross_entropy, shared_batches(steps)


def by_hand(steps: int) -> Run:
    import torch

    model, loss_function, batches = work(steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        model.train()
        for inputs, labels in batches:
            prediction = model(inputs)
            loss = loss_function(prediction, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def by_hand_with_mean_loss(steps: int) -> Run:
    """Also compute the mean training loss, which a `TrainManager` records by default."""
    import torch

    model, loss_function, batches = work(steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        model.train()
        total, num = 0.0, 0
        for inputs, labels in batches:
            prediction = model(inputs)
            loss = loss_function(prediction, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
            num += len(labels)
        print(total / num)

    return run


def _train_manager(steps: int, extensions: object, **options: object) -> Run:
    import torch

    from trainmaster import TrainManager

    class Manager(TrainManager):
        def model_forward(self, batch):
            return self.model(batch[0])

    model, loss_function, batches = work(steps)
    manager = Manager(
        model,
        lambda batch, prediction: loss_function(prediction, batch[1]),
        0,
        batches,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        extensions=extensions,
        evaluate_first=False,
        **options,
    )

    def run() -> None:
        manager.epochs += 1
        manager.train()

    return run


def train_manager_bare(steps: int) -> Run:
    return _train_manager(steps, [])


def train_manager_without_defaults(steps: int) -> Run:
    """Replace the default extension that records the mean loss with an empty one, and show no progress."""
    from trainmaster import Extension

    return _train_manager(steps, {"train_loss": Extension()}, progress=False)


def _five(base: type) -> list[object]:
    class Counter(base):
        def __init__(self, number: int) -> None:
            self.name = f"counter_{number}"
            self.num_before = self.num_after = 0

        def pre_train_step_batch(self, batch_num: int) -> None:
            self.num_before += 1

        def post_train_step_batch(self, batch_num: int, loss: object) -> None:
            self.num_after += 1

    return [Counter(number) for number in range(5)]


def train_manager_5_extensions(steps: int) -> Run:
    from trainmaster import Extension

    return _train_manager(steps, _five(Extension))


def train_manager_5_observers(steps: int) -> Run:
    from trainmaster import Observer

    return _train_manager(steps, _five(Observer))


def _components(base: type) -> list[object]:
    import torch
    from torch import nn

    class Work(base):
        def on_train_begin(self, loop):
            loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.01)

        def on_grads_reset(self, loop):
            loop.optimizer.zero_grad()

        def on_forward_pass(self, loop):
            loop.prediction = loop.model(loop.batch[0])

        def on_loss_compute(self, loop):
            loop.loss = nn.functional.cross_entropy(loop.prediction, loop.batch[1])

        def on_backward_pass(self, loop):
            loop.loss.backward()

        def on_optim_step(self, loop):
            loop.optimizer.step()

    class Counter(base):
        num_before = num_after = 0

        def on_batch_begin(self, loop):
            self.num_before += 1

        def on_batch_end(self, loop):
            self.num_after += 1

    return [Work(), *(Counter() for _ in range(5))]


def train_test_loop_6_components(steps: int) -> Run:
    from trainmaster import LoopComponent, TrainTestLoop

    model, _, batches = work(steps)
    loop = TrainTestLoop(model, _components(LoopComponent), batches, [])
    return lambda: loop.train(1)


def component_loop_6_components(steps: int) -> Run:
    names = (
        "train_begin epoch_begin batch_begin grads_reset forward_pass loss_compute backward_pass optim_step batch_end epoch_end train_end"
    )

    class Component:
        pass

    for name in names.split():
        setattr(Component, f"on_{name}", lambda self, loop: None)

    class Loop:
        def __init__(self, model, components, data) -> None:
            self.model, self.components, self.data = model, components, data

        def call(self, *points: str) -> None:
            for point in points:
                for component in self.components:
                    getattr(component, f"on_{point}")(self)

        def train(self) -> None:
            self.call("train_begin")
            self.model.train()
            self.call("epoch_begin")
            for batch_num, batch in enumerate(self.data):
                self.batch, self.batch_num = batch, batch_num
                self.call("grads_reset")
                self.call("batch_begin", "forward_pass", "loss_compute")
                self.call("backward_pass", "optim_step")
                self.call("batch_end")
            self.call("epoch_end")
            self.call("train_end")

    model, _, batches = work(steps)
    return Loop(model, _components(Component), batches).train


def ignite_5_handlers(steps: int) -> Run:
    import torch
    from ignite.engine import Engine, Events

    model, loss_function, batches = work(steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(engine, batch):
        model.train()
        prediction = model(batch[0])
        loss = loss_function(prediction, batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    engine = Engine(step)
    counts = [[0, 0] for _ in range(5)]
    for count in counts:

        def before(engine, count=count):
            count[0] += 1

        def after(engine, count=count):
            count[1] += 1

        engine.add_event_handler(Events.ITERATION_STARTED, before)
        engine.add_event_handler(Events.ITERATION_COMPLETED, after)
    return lambda: engine.run(batches, max_epochs=1)


def pfn_extras_5_extensions(steps: int) -> Run:
    import pytorch_pfn_extras as ppe
    import torch

    model, loss_function, batches = work(steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = tempfile.mkdtemp()

    def run() -> None:
        manager = ppe.training.ExtensionsManager({"main": model}, {"main": optimizer}, 1, iters_per_epoch=len(batches), out_dir=folder)
        counts = [0] * 5
        for number in range(5):

            @ppe.training.make_extension(trigger=(1, "iteration"))
            def count(manager, number=number):
                counts[number] += 1

            manager.extend(count, name=f"counter_{number}")
        model.train()
        for inputs, labels in batches:
            with manager.run_iteration():
                prediction = model(inputs)
                loss = loss_function(prediction, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return run


def skorch_5_callbacks(steps: int) -> Run:
    import torch
    from skorch import NeuralNet
    from skorch.callbacks import Callback

    model, _, batches = work(steps)

    class Counter(Callback):
        num_before = num_after = 0

        def on_batch_begin(self, net, **kwargs):
            self.num_before += 1

        def on_batch_end(self, net, **kwargs):
            self.num_after += 1

    net = NeuralNet(
        lambda: model,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        lr=0.01,
        iterator_train=lambda dataset, **kwargs: batches,
        train_split=None,
        callbacks=[(f"counter_{number}", Counter()) for number in range(5)],
        callbacks__print_log=None,
        callbacks__epoch_timer=None,
    )
    net.initialize()
    return lambda: net.fit_loop(batches, None, epochs=1)


def lightning_5_callbacks(steps: int) -> Run:
    import lightning as L
    import torch

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    model, loss_function, batches = work(steps)

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch, batch_idx):
            return loss_function(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Counter(L.Callback):
        num_before = num_after = 0

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            self.num_before += 1

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.num_after += 1

    class Batches:  # a plain list would be interpreted as a list of loaders
        def __iter__(self):
            return iter(batches)

        def __len__(self) -> int:
            return len(batches)

    module = Module()

    def run() -> None:
        trainer = L.Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[Counter() for _ in range(5)],
        )  # fmt: skip
        trainer.fit(module, Batches())

    return run


LOOPS: dict[str, Callable[[int], Run]] = {
    "by hand": by_hand,
    "by hand, again": by_hand,
    "by hand, with the mean loss": by_hand_with_mean_loss,
    "TrainTestLoop, 6 components": train_test_loop_6_components,
    "TrainManager, bare": train_manager_bare,
    "TrainManager, no loss or progress": train_manager_without_defaults,
    "TrainManager, 5 extensions": train_manager_5_extensions,
    "TrainManager, 5 observers": train_manager_5_observers,
    "component loop, 6 components": component_loop_6_components,
    "ignite, 5 handlers": ignite_5_handlers,
    "pytorch-pfn-extras, 5 extensions": pfn_extras_5_extensions,
    "skorch, 5 callbacks": skorch_5_callbacks,
    "Lightning, 5 callbacks": lightning_5_callbacks,
}


def measure(repeats: int, steps: int) -> dict[str, float]:
    """Return the minimum CPU time of each loop in this process, in seconds."""
    import torch

    torch.set_num_threads(1)
    runs: dict[str, Run] = {}
    for name, make in LOOPS.items():
        try:
            runs[name] = make(steps)
        except ImportError as error:
            print(f"left out: {name} ({error})", file=sys.stderr)
    least = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            gc.collect()
            started = time.process_time()
            run()
            least[name] = min(least[name], time.process_time() - started)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.repeats, args.steps)))
        return
    rows: list[dict[str, float]] = []
    command = [sys.executable, __file__, "--child", "--repeats", str(args.repeats), "--steps", str(args.steps)]
    for number in range(args.processes):
        errors = None if number == 0 else subprocess.DEVNULL
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=errors, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(f"process {number + 1} of {args.processes} done", file=sys.stderr)
    print(f"{'loop':<36}{'us per step':>12}{'ratio':>8}{'low':>8}{'high':>8}")
    for name in rows[0]:
        ratios = sorted(row[name] / row["by hand"] for row in rows)
        micros = statistics.median(row[name] for row in rows) / args.steps * 1e6
        print(f"{name:<36}{micros:>12.1f}{statistics.median(ratios):>8.3f}{ratios[0]:>8.3f}{ratios[-1]:>8.3f}")


if __name__ == "__main__":
    main()
