"""Extensions that change a step act in the order of a hand-written loop, no matter how they are listed."""

from __future__ import annotations

import copy
import math
from itertools import permutations
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainmaster import Extension, TrainManager
from trainmaster.extensions.clip_gradients import ClipGradients
from trainmaster.extensions.ema import EMA
from trainmaster.extensions.gradient_accumulation import GradientAccumulation
from trainmaster.extensions.mixed_precision import MixedPrecision
from trainmaster.extensions.nan_guard import NaNGuard
from trainmaster.loop import TrainingState
from trainmaster.testing.extension_contract import same_bits

GROUP, MAX_NORM, DECAY, EPOCHS = 2, 0.4, 0.8, 2
NUM_BATCHES = 5  # so the last group of an epoch has one batch
Batch = tuple[torch.Tensor, torch.Tensor]
LARGE = 3e3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))

    def forward(self, batch: Batch) -> Any:
        return self.layers(batch[0])


def loss_of(batch: Batch, prediction: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(prediction, batch[1]) * batch[0][0, 0].detach().clamp(1)


def batches(*, large: tuple[int, ...] = (), nan: tuple[int, ...] = ()) -> list[Batch]:
    """Return batches, the last of which is smaller.

    In the batches `large`, gradients overflow in float16 at a scaler's initial scale.
    """
    generator = torch.Generator().manual_seed(3)
    found = []
    for number in range(NUM_BATCHES):
        inputs = torch.randn(6 if number < NUM_BATCHES - 1 else 4, 5, generator=generator)
        labels = inputs[:, :3].argmax(1)
        inputs[0, 0] = LARGE if number in large else torch.nan if number in nan else inputs[0, 0]
        found.append((inputs, labels))
    return found


class Course(NamedTuple):
    """The result of training."""

    weights: dict[str, torch.Tensor]
    averages: dict[str, torch.Tensor]
    rates: list[float]
    scale: float | None
    num_updates: int


def new_model() -> Net:
    torch.manual_seed(0)
    return Net()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9, weight_decay=0.01)


def falling(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def by_hand(
    data: list[Batch], dtype: torch.dtype | None = None, group: int = GROUP, max_norm: float = MAX_NORM, epochs: int = EPOCHS
) -> Course:
    """Train with a plain loop.

    Batches with non-finite losses are skipped; the update uses the other batches of the group, if there are any.
    """
    model = new_model()
    optimizer = sgd(model.parameters())
    schedule = falling(optimizer)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    rates, num_updates, num_waiting = [], 0, 0
    torch.manual_seed(1)
    for _ in range(epochs):
        for number, batch in enumerate(data):
            size = min(group, len(data) - number // group * group)
            buffers = [each.clone() for each in model.buffers()]
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = loss_of(batch, model(batch))
            if math.isfinite(loss.item()):
                scaler.scale(loss / size).backward()
                num_waiting += 1
            else:
                for buffer, before in zip(model.buffers(), buffers, strict=True):
                    buffer.copy_(before)
            if (number + 1) % group == 0 or number + 1 == len(data):
                if num_waiting:
                    scaler.unscale_(optimizer)
                    is_finite = all(each.grad.isfinite().all() for each in model.parameters() if each.grad is not None)
                    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                    scaler.step(optimizer)
                    scaler.update()
                    if is_finite:
                        schedule.step()
                        average.update_parameters(model)
                        num_updates += 1
                optimizer.zero_grad()
                num_waiting = 0
            rates.append(optimizer.param_groups[0]["lr"])
    averages = {name: each.detach() for name, each in average.module.named_parameters()} if num_updates else {}
    scale = scaler.get_scale() if dtype is torch.float16 else None
    return Course(copy.deepcopy(model.state_dict()), averages, rates, scale, num_updates)


class Rates(Extension):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def post_train_step_batch(self, optimizer: Any) -> None:
        self.seen.append(optimizer.param_groups[0]["lr"])


def manager_of(data: list[Batch], extensions: Any, epochs: int = EPOCHS, **more: Any) -> TrainManager:
    model = new_model()
    manager = TrainManager(
        model, loss_of, epochs, data, optimizer=sgd, lr_schedule=falling, schedule_by="update", extensions=extensions, device="cpu", **more
    )
    torch.manual_seed(1)
    return manager


def course_of(manager: TrainManager, rates: list[float]) -> Course:
    averages = next((each.weights for each in manager.extensions.values() if isinstance(each, EMA)), {})
    scale = next((each.scale for each in manager.extensions.values() if isinstance(each, MixedPrecision)), None)
    return Course(manager.model.state_dict(), averages, rates, scale, manager.step_num)


def by_extensions(data: list[Batch], extensions: Any, epochs: int = EPOCHS) -> Course:
    rates = Rates()
    manager = manager_of(data, [*extensions, rates], epochs)
    manager.train()
    return course_of(manager, rates.seen)


def acting(dtype: torch.dtype | None = None, policy: str | None = None) -> list[Extension]:
    parts: list[Extension] = [GradientAccumulation(GROUP), ClipGradients(MAX_NORM), EMA(DECAY)]
    return [*parts, *([] if dtype is None else [MixedPrecision(dtype)]), *([] if policy is None else [NaNGuard(policy)])]


def is_same(one: Course, other: Course) -> bool:
    return all(map(same_bits, one, other))


CASES = [None, torch.bfloat16, torch.float16]
NAMES = ["float32", "bfloat16", "float16"]


@pytest.mark.parametrize("dtype", CASES, ids=NAMES)
def test_in_every_order_training_equals_a_hand_written_loop(dtype: torch.dtype | None) -> None:
    """All extensions that change a step take part; in float16, the second group overflows."""
    data = batches(large=(2,))
    wanted = by_hand(data, dtype)
    assert wanted.num_updates == (6 if dtype is not torch.float16 else 4)
    assert wanted.scale == (2.0**14 if dtype is torch.float16 else None)
    for order in permutations(range(3 if dtype is None else 4)):
        parts = acting(dtype)
        assert is_same(by_extensions(data, [parts[place] for place in order]), wanted), f"different bits in the order {order}"


@pytest.mark.parametrize(
    ("extension", "wanted"),
    [
        (GradientAccumulation(3), {"group": 3}),
        (GradientAccumulation(1), {}),
        (ClipGradients(MAX_NORM), {"max_norm": MAX_NORM}),
        (EMA(DECAY), {}),
        (MixedPrecision(), {"dtype": torch.bfloat16}),
        (MixedPrecision("float16"), {"dtype": torch.float16}),
    ],
    ids=["GradientAccumulation(3)", "GradientAccumulation(1)", "ClipGradients", "EMA", "bfloat16", "float16"],
)
def test_each_alone_equals_a_hand_written_loop(extension: Extension, wanted: dict[str, Any]) -> None:
    data = batches(large=(2,))
    hand = by_hand(data, **{"group": 1, "max_norm": math.inf, **wanted})
    assert is_same(by_extensions(data, [extension]), hand if isinstance(extension, EMA) else hand._replace(averages={}))


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:the loss is nan in stage")
@pytest.mark.parametrize("dtype", CASES, ids=NAMES)
def test_with_skipped_batches_every_order_still_equals_a_hand_written_loop(dtype: torch.dtype | None) -> None:
    """In one group, the update uses only the good batch; in another, the good batch overflows in float16."""
    data = batches(large=(2,), nan=(1, 3))
    wanted = by_hand(data, dtype, epochs=1)
    assert wanted.num_updates == (3 if dtype is not torch.float16 else 2)
    orders = list(permutations(range(4 if dtype is None else 5)))
    for order in orders[::5] if dtype is torch.bfloat16 else orders:  # without a scaler, the order matters little
        parts = acting(dtype, "skip")
        assert is_same(by_extensions(data, [parts[place] for place in order], epochs=1), wanted), f"different bits in the order {order}"


@pytest.mark.filterwarnings("ignore:the loss is nan in stage")
@pytest.mark.parametrize("nan", [(0,), (4,), (0, 1), (1, 2), (0, 1, 4)])
def test_skipping_any_or_all_batches_of_a_group_does_not_change_the_scale(nan: tuple[int, ...]) -> None:
    data = batches(large=(3,), nan=nan)
    wanted = by_hand(data, torch.float16)
    for parts in (acting(torch.float16, "skip"), acting(torch.float16, "skip")[::-1]):
        assert is_same(by_extensions(data, parts), wanted)


@pytest.mark.parametrize("policy", ["stop", "skip", "continue"])
def test_other_extensions_ignore_gradients_that_overflow_only_because_of_the_scale(policy: str) -> None:
    data = batches(large=(2,))
    wanted = by_hand(data, torch.float16)
    for parts in (acting(torch.float16, policy), acting(torch.float16, policy)[::-1]):
        assert is_same(by_extensions(data, parts), wanted)


class CaptureAt(Extension):
    """Captures the state before or after the other extensions act, depending on its position in the list."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.state: TrainingState | None = None

    def post_train_step_batch(self, train_manager: TrainManager, epoch_index: int, batch_num: int) -> None:
        if (epoch_index, batch_num) == (1, self.batch):
            self.state = train_manager.capture()


@pytest.mark.filterwarnings("ignore:the loss is nan in stage")
@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("dtype", CASES, ids=NAMES)
def test_training_captured_within_a_group_resumes_bit_for_bit(
    dtype: torch.dtype | None, batch: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last batch of the group is skipped, so its update uses only the captured gradients."""
    data = batches(large=(0,), nan=(3,))
    for is_first in (True, False):
        capture = CaptureAt(batch)
        *parts, non_finite = acting(dtype, "skip")
        whole = manager_of(data, [non_finite, capture, *parts] if is_first else [non_finite, *parts, capture])
        whole.train()
        assert capture.state is not None
        resumed = manager_of(data, acting(dtype, "skip")[::-1])
        resumed.restore(TrainingState.from_dict(capture.state.to_dict()))
        resumed.train()
        assert is_same(course_of(resumed, []), course_of(whole, []))
        assert whole.step_num == by_hand(data, dtype).num_updates


@pytest.mark.parametrize("dtype", CASES, ids=NAMES)
def test_training_stopped_within_a_group_continues_bit_for_bit(dtype: torch.dtype | None, capsys: pytest.CaptureFixture[str]) -> None:
    class Stop(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, epoch_index: int, batch_num: int) -> None:
            if batch_num == 2:
                train_manager.stop("a pause")

    data = batches(large=(0,))
    manager = manager_of(data, [*acting(dtype), Stop(), rates := Rates()])
    for _ in range(3):
        manager.train()
    assert is_same(course_of(manager, rates.seen), by_hand(data, dtype))


def test_all_extensions_see_unscaled_losses() -> None:
    class Losses(Extension):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def post_backward(self, loss: torch.Tensor) -> None:
            self.seen.append(loss.item())

    data = batches()
    manager_of(data, [plain := Losses()], max_steps=1).train()
    manager_of(data, [watched := Losses(), *acting(torch.float16)], max_steps=1).train()
    assert watched.seen[0] == pytest.approx(plain.seen[0], rel=1e-2)


def test_a_subclass_with_its_own_backward_gets_the_scaled_objective() -> None:
    class Own(TrainManager):
        def backward(self, loss: Any) -> None:
            (2 * loss).backward()

        def optimizer_step(self) -> None:
            with torch.no_grad():
                for each in self.model.parameters():
                    each -= 0.5 * each.grad if each.grad is not None else 0

    def moved(*extensions: Extension) -> float:
        model = new_model()
        start = copy.deepcopy(model)
        Own(model, loss_of, 1, batches()[:2], optimizer=None, extensions=extensions, device="cpu").train()
        with torch.no_grad():
            return math.sqrt(sum((a - b).square().sum().item() for a, b in zip(model.parameters(), start.parameters(), strict=True)))

    assert moved(MixedPrecision("float16"), GradientAccumulation(2), ClipGradients(0.1)) == pytest.approx(0.5 * 0.1, rel=1e-3)
    assert moved(MixedPrecision("float16"), GradientAccumulation(2)) == pytest.approx(moved(GradientAccumulation(2)), rel=0.05)
