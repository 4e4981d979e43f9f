"""Extensions that observe every step never synchronize with the device."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainmaster.extensions.activation_stats import ActivationStats
from trainmaster.extensions.csv_logger import CSVLogger
from trainmaster.extensions.gradients import GradCoeffRMSVis, GradNormVis
from trainmaster.extensions.loss_plot import LossPlot
from trainmaster.extensions.update_ratio import UpdateRatio
from trainmaster.loop import TrainManager
from trainmaster.loop.progress import Progress
from trainmaster.stages import Extension

WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten._to_copy.default,
}
"""Operations that make the host wait for a GPU.

They include `item`, `float(tensor)`, `if tensor`, sizes that depend on values, and copies to the host.
"""
FIRST, LAST = 330, 380


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every tensor report that it is not on the CPU, so that the code behaves as it does on a GPU."""
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)


class Reads(TorchFunctionMode):
    """Records `tolist`, `cpu` and `numpy`, which are not dispatched as operations on the CPU."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func in (torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


class Waits(TorchDispatchMode):
    """Records every operation that would make the host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        is_cast = func is torch.ops.aten._to_copy.default and kwargs.get("device") is None
        if func in WAITING and not is_cast:
            self.found.append(str(func))
        return func(*args, **kwargs)


class Watch(Extension):
    """Records the waits in 50 steps in the middle of an epoch, including those in hooks."""

    def __init__(self) -> None:
        self.waits = Waits()
        self.reads = Reads(self.waits.found)
        self.num_steps = 0

    def pre_train_step_batch(self, batch_num: int) -> None:
        if batch_num == FIRST:
            self.waits.__enter__()
            self.reads.__enter__()
        if FIRST <= batch_num < LAST:
            self.num_steps += 1
        if batch_num == LAST:
            self.reads.__exit__(None, None, None)
            self.waits.__exit__(None, None, None)


def found_with(*extensions: object) -> list[str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    batches = [((inputs := torch.randn(4, 8)), inputs[:, :3].argmax(1)) for _ in range(400)]

    class Loop(TrainManager):
        def model_forward(self, batch: Any) -> Any:
            return self.model(batch[0])

    watch = Watch()
    manager = Loop(
        model,
        lambda batch, prediction: nn.functional.cross_entropy(prediction, batch[1]),
        1,
        batches,
        {"valid": batches[:2]},
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        extensions=[watch, *extensions],
        device="cpu",
    )
    manager.train()
    assert watch.num_steps == 50
    return watch.waits.found


def bars() -> Progress:
    return Progress(console=Console(file=io.StringIO(), force_terminal=True, width=100))


def test_loss_plot_gradients_progress_and_csv_log_never_wait_within_steps(tmp_path: Path) -> None:
    """The progress bar shows no number here. A number would make the host wait a few times per second, but not in each step."""
    quiet = Progress(show=[], console=Console(file=io.StringIO(), force_terminal=True, width=100))
    assert found_with(LossPlot("samples", path=tmp_path), GradNormVis(), quiet, CSVLogger(tmp_path / "metrics.csv")) == []


def test_a_progress_bar_with_the_loss_waits_four_times_a_second_at_most() -> None:
    assert len(found_with(bars())) <= 25


@pytest.mark.parametrize("extension", [GradCoeffRMSVis(), GradNormVis(every=1000), UpdateRatio(every=5), ActivationStats(every=5)])
def test_extensions_that_measure_the_model_never_wait_within_steps(extension: object) -> None:
    assert found_with(extension) == []


@pytest.mark.parametrize("act", [torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, float, bool, torch.nonzero])
def test_an_extension_that_waits_is_found(act: Any) -> None:
    class Wait(Extension):
        def post_train_step_batch(self, loss: torch.Tensor) -> None:
            act(loss.detach())

    assert len(found_with(Wait())) == 50
