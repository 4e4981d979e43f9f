"""A compiled model gives the same results and checkpoints as the uncompiled model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import LoopComponent, TrainManager, TrainTestLoop
from trainmaster.errors import SettingError, UnknownHookError
from trainmaster.extensions.compile import Compile
from trainmaster.extensions.ema import EMA
from trainmaster.testing import ExtensionContract
from trainmaster.testing.extension_contract import same_bits


class TestCompile(ExtensionContract):
    def make(self) -> Compile:
        return Compile(backend="eager")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))

    def forward(self, batch: torch.Tensor) -> Any:
        return self.layers(batch)


def loss(batch: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
    return (prediction - batch[:, :1]).pow(2).mean()


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 3, generator=generator) for size in (4, 4, 2)]


def manager_of(*extensions: Any, model: nn.Module | None = None, **more: Any) -> TrainManager:
    torch.manual_seed(0)
    model = Net() if model is None else model
    arguments: dict[str, Any] = {"epochs": 2, "eval_data": {"valid": batches()}, "device": "cpu", **more}
    return TrainManager(model, loss, train_data=batches(), extensions=extensions, **arguments)


class Counting:
    """A backend that runs each graph unchanged, and counts the graphs that it receives."""

    def __init__(self) -> None:
        self.num_graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.num_graphs += 1
        return graph.forward


def test_training_a_compiled_model_gives_the_same_bits() -> None:
    backend = Counting()
    plain = manager_of(EMA(0.5))
    plain.train()
    compiled = manager_of(Compile(backend=backend), EMA(0.5))
    compiled.train()
    assert backend.num_graphs > 0
    assert same_bits(plain.model.state_dict(), compiled.model.state_dict())
    assert plain.history == compiled.history


def test_the_model_is_compiled_once_and_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(Net, "compile", lambda self, **options: calls.append(options))
    manager = manager_of(Compile(backend="eager", fullgraph=True))
    manager.train()
    manager.eval()
    manager.predict(batches())
    assert calls == [{"backend": "eager", "fullgraph": True}]
    assert type(manager.model) is Net


@pytest.mark.parametrize("is_first_compiled", [True, False])
def test_a_checkpoint_resumes_with_and_without_it(is_first_compiled: bool, tmp_path: Path) -> None:
    def compiled(is_compiled: bool) -> list[Compile]:
        return [Compile(backend="eager")] if is_compiled else []

    manager_of(*compiled(is_first_compiled), epochs=1, train_dir=tmp_path).train()
    resumed = manager_of(*compiled(not is_first_compiled), train_dir=tmp_path)
    resumed.train()
    whole = manager_of()
    whole.train()
    assert resumed.epoch_num == 2
    assert same_bits(resumed.model.state_dict(), whole.model.state_dict())


def test_a_missing_compiler_is_an_error_before_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingError) as caught:
        manager_of(Compile()).train()
    assert str(caught.value).split("\n") == [
        "torch.compile needs a C++ compiler for the CPU, but there is no g++ on the PATH",
        "  try     install one (apt install g++, or conda install gxx), set the environment variable CXX,",
        '          or remove Compile; Compile(backend="eager") needs no compiler, but makes nothing faster',
    ]


def test_disabled_compilation_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    manager = manager_of(Compile(disable=True), epochs=1)
    manager.train()
    assert manager.step_num == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "nope"}, "Invalid backend: 'nope'"),
        ({"mode": "fast"}, "Unrecognized mode=fast, should be one of: default"),
    ],
)
def test_options_that_torch_refuses_are_an_error_before_the_first_batch(options: dict[str, Any], message: str) -> None:
    loop = manager_of(Compile(**options))
    with pytest.raises(RuntimeError, match=message):
        loop.train()
    assert loop.step_num == 0


def test_a_model_without_its_own_forward_is_refused() -> None:
    with pytest.raises(SettingError) as caught:
        manager_of(Compile(backend="eager"), model=nn.Sequential(nn.Linear(3, 1))).train()
    assert str(caught.value).startswith(
        "torch.compile would compile nothing in this Sequential\n  why     its `forward` belongs to PyTorch"
    )


def test_pytorch_still_does_not_compile_its_own_modules_in_place() -> None:
    """The error above exists because of this behavior. If this test fails, the error is no longer needed."""
    backend, model = Counting(), nn.Sequential(nn.Linear(3, 1))
    model.compile(backend=backend)
    model(torch.ones(2, 3))
    assert backend.num_graphs == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backnd": "eager"}, "torch.compile has no option `backnd`"),
        ({"model": nn.Linear(1, 1)}, "torch.compile has no option `model`"),
    ],
)
def test_unknown_options_are_refused_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        Compile(**options)
    assert str(caught.value).startswith(message)
    assert "fullgraph, dynamic, backend, mode, options" in caught.value.rows["known"]
    if "backnd" in options:
        assert caught.value.rows["hint"] == "did you mean `backend`?"


def test_attaching_it_to_a_train_test_loop_is_refused() -> None:
    with pytest.raises(UnknownHookError, match=r"`Compile.pre_run` is named like a hook, but there is no stage `run`"):
        TrainTestLoop(Net(), [LoopComponent(), Compile()], batches(), [])
