"""Nondeterministic operations are errors while a loop runs, and the settings are restored afterwards."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster.extensions.deterministic import CUBLAS, Deterministic, Settings, apply, current_settings
from trainmaster.loop import TrainManager
from trainmaster.stages import Extension
from trainmaster.testing import ExtensionContract

DATA = [torch.ones(2, 3)] * 2


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = current_settings()
    yield
    apply(before)


class TestDeterministic(ExtensionContract):
    def make(self) -> object:
        return Deterministic()


class Look(Extension):
    """Records the settings during each run."""

    def __init__(self) -> None:
        self.found: list[Settings] = []

    def post_load_checkpoint(self) -> None:
        self.found.append(current_settings())


class Puts(nn.Module):
    """Writes two values to the same index.

    The result is undefined, and torch has no deterministic algorithm for it on any device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        torch.zeros(3).put_(torch.tensor([0, 1, 1]), torch.ones(3))
        return self.layer(batch)  # type: ignore[no-any-return]


def manager(*extensions: object, model: nn.Module | None = None, **settings: Any) -> TrainManager:
    return TrainManager(
        model or nn.Linear(3, 1), lambda _, out: out.pow(2).mean(), 1, DATA, extensions=extensions, device="cpu", **settings
    )


@pytest.mark.parametrize("warn_only", [False, True])
def test_all_settings_are_set_and_restored(warn_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CUBLAS, raising=False)
    before = current_settings()
    tm = manager(look := Look(), Deterministic(warn_only=warn_only), eval_data={"valid": DATA})
    for routine in (tm.train, tm.eval, lambda: tm.predict(DATA)):
        routine()
        assert current_settings() == before
    assert look.found == [Settings(True, warn_only, False, True, ":4096:8")] * 3
    assert CUBLAS not in os.environ


def test_it_restores_settings_that_were_set_before(monkeypatch: pytest.MonkeyPatch) -> None:
    others = Settings(True, True, True, False, ":16:8")
    monkeypatch.setenv(CUBLAS, ":16:8")
    apply(others)
    manager(look := Look(), Deterministic()).train()
    assert look.found == [Settings(True, False, False, True, ":16:8")]
    assert current_settings() == others


def test_an_operation_without_a_deterministic_algorithm_is_an_error() -> None:
    before = current_settings()
    manager(model=Puts()).train()
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        manager(Deterministic(), model=Puts()).train()
    assert current_settings() == before


def test_warn_only_turns_the_error_into_a_warning() -> None:
    tm = manager(Deterministic(warn_only=True), model=Puts())
    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        tm.train()
    assert tm.epoch_num == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_an_error_before_training_restores_the_settings(is_first: bool) -> None:
    class Fails(Extension):
        def pre_run(self) -> None:
            raise ValueError("no luck")

    before = current_settings()
    extensions = [Fails(), Deterministic()] if is_first else [Deterministic(), Fails()]
    with pytest.raises(ValueError, match="no luck"):
        manager(*extensions).train()
    assert current_settings() == before


def test_a_nested_loop_restores_the_settings_of_the_outer_one() -> None:
    deterministic = Deterministic()

    class Inner(Extension):
        def pre_train(self) -> None:
            manager(deterministic).train()
            self.found = current_settings()

    before = current_settings()
    manager(deterministic, inner := Inner()).train()
    assert inner.found.is_deterministic
    assert current_settings() == before


def test_it_warns_if_cuda_was_initialized_without_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CUBLAS, raising=False)
    deterministic = Deterministic()
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        with pytest.warns(UserWarning, match="CUDA was initialized without CUBLAS_WORKSPACE_CONFIG: matrix products may differ"):
            deterministic.pre_run()
        deterministic.post_run()
        patch.setenv(CUBLAS, ":4096:8")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            deterministic.pre_run()
        deterministic.post_run()


def test_it_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Deterministic(warn_only=True))).warn_only
