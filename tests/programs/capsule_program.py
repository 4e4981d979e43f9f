"""Training runs that fail in different ways.

`fail FOLDER` trains them and saves capsules, and `replay FOLDER` raises their errors again. Both print a line of JSON
for each run. The two processes have different seeds, so only the contents of a capsule are the same in both.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainmaster import Extension, LoopComponent, TrainManager, TrainTestLoop
from trainmaster.extensions.failure_capsule import FailureCapsule
from trainmaster.extensions.nan_guard import NaNGuard
from trainmaster.extensions.replay import replay

cross_entropy = nn.functional.cross_entropy


class BadSampleError(Exception):
    """An exception whose constructor takes several arguments."""

    def __init__(self, sample: int, reason: str) -> None:
        super().__init__(sample, reason)
        self.sample, self.reason = sample, reason

    def __str__(self) -> str:
        return f"sample {self.sample}: {self.reason}"


class Net(nn.Module):
    """A model with dropout, batch norm and an embedding.

    `check` is called with the input and the output, and may raise any error.
    """

    def __init__(self, check: Callable[[torch.Tensor, torch.Tensor], Any] | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        self.check = check

    def forward(self, batch: Any) -> torch.Tensor:
        inputs = batch[0] if isinstance(batch, (tuple, list)) else batch["x"] if isinstance(batch, dict) else batch.x
        inputs = self.embedding(inputs).mean(1) if not inputs.is_floating_point() else inputs
        output: torch.Tensor = self.layers(inputs)
        if self.check is not None:
            self.check(inputs, output)
        return output


def loss(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    labels = batch[1] if isinstance(batch, (tuple, list)) else batch["y"] if isinstance(batch, dict) else batch.y
    return cross_entropy(prediction, labels)


def batches(num: int = 6) -> list[Any]:
    return [(torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(num)]


def made(folder: Path, data: Any, *extensions: Any, model: nn.Module | None = None, epochs: int = 2, **more: Any) -> TrainManager:
    capsules = FailureCapsule(folder, target="capsule_program.py:nothing")
    arguments: dict[str, Any] = {"loss": loss, "evaluate_first": False, "device": "cpu", **more}
    return TrainManager(model or Net(), epochs=epochs, train_data=data, extensions=[capsules, *extensions], progress=False, **arguments)


# Each function below builds one training run that fails.


def wrong_shape_in_forward(folder: Path) -> TrainManager:
    return made(folder, [*batches(3), (torch.randn(4, 5), torch.zeros(4, dtype=torch.long))])


def index_out_of_range_in_an_embedding(folder: Path) -> TrainManager:
    return made(folder, [(torch.randint(10, (4, 2)), torch.randint(3, (4,))), (torch.full((4, 2), 12), torch.randint(3, (4,)))])


def label_out_of_range_in_the_loss(folder: Path) -> TrainManager:
    return made(folder, [*batches(2), (torch.randn(4, 6), torch.full((4,), 7))])


def nan_loss(folder: Path) -> TrainManager:
    bad = torch.randn(4, 6)
    bad[1, 2] = float("nan")
    return made(folder, [*batches(3), (bad, torch.zeros(4, dtype=torch.long))], NaNGuard("stop"))


def overflow_in_the_loss(folder: Path) -> TrainManager:
    def loss_of(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
        return loss(batch, prediction) + (prediction[0, 0] * 1e3).exp()

    return made(folder, batches(40), NaNGuard("stop"), loss=loss_of, epochs=20)


def loss_without_gradient(folder: Path) -> TrainManager:
    def loss_of(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
        found = loss(batch, prediction)
        return found.detach() if len(batch[0]) == 2 else found

    return made(folder, [*batches(2), (torch.randn(2, 6), torch.randint(3, (2,)))], loss=loss_of)


class Ceiling(Extension):
    def post_forward(self, prediction: torch.Tensor, batch: Any) -> None:
        if len(batch[0]) == 3:
            raise ValueError(f"the prediction is too large: {prediction.abs().max().item()!r}")


def hook_that_raises(folder: Path) -> TrainManager:
    return made(folder, [*batches(3), (torch.randn(3, 6), torch.randint(3, (3,)))], Ceiling())


def draw_of_torch(folder: Path) -> TrainManager:
    def check(inputs: torch.Tensor, output: torch.Tensor) -> None:
        drawn = torch.rand(()).item()
        if drawn < 0.1:
            raise RuntimeError(f"drew {drawn!r}")

    return made(folder, batches(), model=Net(check), epochs=50)


def draw_of_python_and_numpy(folder: Path) -> TrainManager:
    def check(inputs: torch.Tensor, output: torch.Tensor) -> None:
        drawn = random.random(), float(np.random.rand())
        if drawn[0] < 0.1:
            raise RuntimeError(f"drew {drawn!r}")

    return made(folder, batches(), model=Net(check), epochs=50)


class Picky(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        norm = sum(float(each.grad.norm()) for group in self.param_groups for each in group["params"] if each.grad is not None)
        if len(self.state) and norm > 0.5 and self.param_groups[0]["num_steps"] > 4:
            raise ArithmeticError(f"step {self.param_groups[0]['num_steps']} has the norm {norm!r}")
        self.param_groups[0]["num_steps"] += 1
        return super().step(closure)


def optimizer_step_that_raises(folder: Path) -> TrainManager:
    def optimizer(parameters: Any) -> Picky:
        found = Picky(parameters, lr=0.1, momentum=0.9)
        found.param_groups[0]["num_steps"] = 0
        return found

    return made(folder, batches(), optimizer=optimizer)


def exception_of_ones_own(folder: Path) -> TrainManager:
    def check(inputs: torch.Tensor, output: torch.Tensor) -> None:
        worst = inputs.max(1).values.argmax().item()
        if len(inputs) == 5:
            raise BadSampleError(int(worst), f"scored {output[int(worst)].max().item()!r}")

    return made(folder, [*batches(3), (torch.randn(5, 6), torch.randint(3, (5,)))], model=Net(check))


def assertion_about_the_data(folder: Path) -> TrainManager:
    def check(inputs: torch.Tensor, output: torch.Tensor) -> None:
        assert inputs.abs().max() < 10, f"inputs up to {inputs.abs().max().item()!r}"

    return made(folder, [*batches(4), (torch.randn(4, 6) * 100, torch.randint(3, (4,)))], model=Net(check))


def error_in_an_evaluation_batch(folder: Path) -> TrainManager:
    sets = {"first": batches(2), "second": [*batches(3), (torch.randn(4, 7), torch.zeros(4, dtype=torch.long))]}
    return made(folder, batches(), eval_data=sets)


class SumCheck(Extension):
    def post_eval_step_batch(self, num_batches: int, cum_loss: Any) -> None:
        if num_batches == 3:
            raise RuntimeError(f"the losses add up to {float(cum_loss)!r}")


def error_that_depends_on_the_evaluation_so_far(folder: Path) -> TrainManager:
    return made(folder, batches(), SumCheck(), eval_data={"valid": batches(5)}, evaluate_first=True)


def missing_key(folder: Path) -> TrainManager:
    def named(batch: Any) -> dict[str, torch.Tensor]:
        return {"x": batch[0], "y": batch[1]}

    return made(folder, [*map(named, batches(3)), {"x": torch.randn(4, 6), "label": torch.randint(3, (4,))}])


class Counter(Extension):
    """Raises an error at the fifth batch whose first number is positive."""

    def __init__(self) -> None:
        self.num_high = 0

    def post_loss(self, batch: Any, loss: torch.Tensor) -> None:
        self.num_high += int(batch[0][0, 0] > 0)
        if self.num_high == 5:
            raise RuntimeError(f"five batches are high; the loss is {loss.item()!r}")

    def state_dict(self) -> dict[str, Any]:
        return {"num_high": self.num_high}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_high = state["num_high"]


def counter_in_an_extension(folder: Path) -> TrainManager:
    return made(folder, batches(), Counter(), epochs=20)


def out_of_memory(folder: Path) -> TrainManager:
    def check(inputs: torch.Tensor, output: torch.Tensor) -> None:
        if len(inputs) > 100:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {inputs.numel()} GiB.")

    return made(folder, [*batches(2), (torch.randn(200, 6), torch.randint(3, (200,)))], model=Net(check))


class Flawed(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> Any:
        if number == 17:
            raise OSError(f"cannot read sample {number}")
        return torch.full((6,), float(number)), number % 3


def error_in_reading_the_data(folder: Path) -> TrainManager:
    return made(folder, DataLoader(Flawed(), 4, shuffle=True))


class Unlabeled(Flawed):
    def __getitem__(self, number: int) -> Any:
        return torch.ones(6), {17: None}[number] if number % 8 == 5 else number % 3


def missing_key_in_a_loader_worker(folder: Path) -> TrainManager:
    return made(folder, DataLoader(Unlabeled(), 4, num_workers=2))


def error_in_reading_evaluation_data(folder: Path) -> TrainManager:
    return made(folder, batches(2), eval_data={"valid": DataLoader(Flawed(), 4)})


class Odd:
    """A batch that cannot be stored."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y


class OddData:
    """Five shuffled batches, one of which has wrong labels."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        for number in torch.randperm(5).tolist():
            yield Odd(torch.full((4, 6), float(number)), torch.full((4,), 8 if number == 3 else 1))


def batch_that_cannot_be_stored(folder: Path) -> TrainManager:
    return made(folder, OddData())


@dataclass
class Samples:
    x: torch.Tensor
    y: torch.Tensor


class Pair(NamedTuple):
    x: Samples
    y: int


def dataclass_in_a_named_tuple(folder: Path) -> TrainManager:
    def loss_of(batch: Pair, prediction: torch.Tensor) -> torch.Tensor:
        if batch.y == 2:
            raise KeyError(type(batch).__name__, type(batch.x).__name__)
        return loss(batch.x, prediction)

    def pair(number: int) -> Pair:
        return Pair(Samples(torch.randn(4, 6), torch.randint(3, (4,))), number)

    class Inner(Net):
        def forward(self, batch: Any) -> torch.Tensor:
            return super().forward(batch.x)

    return made(folder, [pair(0), pair(1), pair(2)], loss=loss_of, model=Inner())


class EveryThird(Extension):
    def pre_train_step_batch(self, fixtures: Any, batch_num: int) -> None:
        fixtures.modify("is_update", batch_num % 3 == 2)

    def pre_backward(self, model: nn.Module, batch: Any) -> None:
        if len(batch[0]) == 2:
            raise RuntimeError(f"gradients wait: {[None if each.grad is None else each.grad.sum().item() for each in model.parameters()]}")


def accumulation_under_way(folder: Path) -> TrainManager:
    return made(folder, [*batches(4), (torch.randn(2, 6), torch.randint(3, (2,)))], EveryThird())


class Late(Extension):
    def post_train_step_batch(self, step_num: int, batch_num: int) -> None:
        if step_num == 4:
            raise RuntimeError(f"step {step_num} is over, of batch {batch_num}")


def hook_after_the_update(folder: Path) -> TrainManager:
    return made(folder, batches(), Late())


def skipped_batch(folder: Path) -> TrainManager:
    """Build a run with a batch that is skipped without an error, but still saved."""
    return made(folder, [*batches(2), (torch.full((4, 6), float("inf")), torch.zeros(4, dtype=torch.long))], NaNGuard("skip"))


class Steps(LoopComponent):
    def on_train_begin(self, loop: Any) -> None:
        loop.optimizer = torch.optim.Adam(loop.model.parameters())

    def on_grads_reset(self, loop: Any) -> None:
        loop.optimizer.zero_grad()

    def on_forward_pass(self, loop: Any) -> None:
        loop.output = loop.model(loop.batch)
        if len(loop.batch[0]) == 3:
            raise RuntimeError(f"batch {loop.batch_num}, epoch {loop.epoch_num}: {loop.output.sum().item()!r}")

    def on_loss_compute(self, loop: Any) -> None:
        loop.loss = loss(loop.batch, loop.output)

    def on_backward_pass(self, loop: Any) -> None:
        loop.loss.backward()

    def on_optim_step(self, loop: Any) -> None:
        loop.optimizer.step()


def train_test_loop(folder: Path) -> Any:
    bad = (torch.randn(3, 6), torch.randint(3, (3,)))
    return TrainTestLoop(Net(), [FailureCapsule(folder), Steps()], [*batches(3), bad], [])


def validation_of_a_train_test_loop(folder: Path) -> Any:
    bad = (torch.randn(3, 6), torch.randint(3, (3,)))
    return TrainTestLoop(Net(), [FailureCapsule(folder), Steps()], batches(3), [*batches(2), bad])


KINDS = {
    each.__name__: each
    for each in (
        wrong_shape_in_forward,
        index_out_of_range_in_an_embedding,
        label_out_of_range_in_the_loss,
        nan_loss,
        overflow_in_the_loss,
        loss_without_gradient,
        hook_that_raises,
        draw_of_torch,
        draw_of_python_and_numpy,
        optimizer_step_that_raises,
        exception_of_ones_own,
        assertion_about_the_data,
        error_in_an_evaluation_batch,
        error_that_depends_on_the_evaluation_so_far,
        missing_key,
        counter_in_an_extension,
        out_of_memory,
        error_in_reading_the_data,
        missing_key_in_a_loader_worker,
        error_in_reading_evaluation_data,
        batch_that_cannot_be_stored,
        dataclass_in_a_named_tuple,
        accumulation_under_way,
        hook_after_the_update,
        skipped_batch,
        train_test_loop,
        validation_of_a_train_test_loop,
    )
}


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def fail(name: str, folder: Path) -> dict[str, Any]:
    seed(1)
    loop = KINDS[name](folder)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            loop.train(2) if isinstance(loop, TrainTestLoop) else loop.train()
        except Exception as error:
            return {"type": type(error).__name__, "message": str(error), "notes": error.__notes__}
    return {"type": None, "message": None, "notes": [str(each.message) for each in warned]}


def again(name: str, folder: Path) -> dict[str, Any]:
    seed(1234)
    replayed = replay(folder / "1.capsule", KINDS[name](folder / "none"))
    error = replayed.error
    return {"type": type(error).__name__, "message": str(error), "is_same": replayed.is_same, "reasons": replayed.reasons()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in KINDS:
        print(json.dumps({"kind": kind, **{"fail": fail, "replay": again}[sys.argv[1]](kind, Path(sys.argv[2]) / kind)}), flush=True)
