"""Observers change nothing: random numbers, modes and grad mode are restored after their hooks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster.loop import TrainManager
from trainmaster.loop.stages import TRAIN_MANAGER
from trainmaster.stages import Extension, Observer
from trainmaster.testing import ExtensionContract


@pytest.fixture(autouse=True)
def _own_random_numbers() -> Iterator[None]:
    threads, bit_generator = torch.get_num_threads(), np.random.get_bit_generator()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    np.random.set_bit_generator(bit_generator)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.4)
        self.last = nn.Linear(6, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.last(self.dropout(self.norm(self.first(batch[0]))))


def mse(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return ((prediction - batch[1]) ** 2).mean()


def make_loader(seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    data = TensorDataset(torch.randn(16, 3, generator=generator), torch.randn(16, 1, generator=generator))
    return DataLoader(data, batch_size=4, shuffle=True)


class Jitter(Extension):
    """Draws from all three generators in each batch.

    It draws an odd number of Gaussians from the generators that cache the second one of a pair.
    """

    def pre_train_step_batch(self, fixtures: Any, batch: Any) -> None:
        noise = random.gauss(0, 1) + np.random.randn() + random.random() + np.random.rand() + torch.randn(()).item()
        fixtures.modify("batch", (batch[0] + 0.1 * noise, batch[1]))

    def post_optimizer_step(self, model: Any) -> None:
        with torch.no_grad():
            model.last.bias.add_(0.1 * np.random.randn() + 0.1 * random.gauss(0, 1))


def trained(*extensions: Extension, evaluate_first: bool = True, eval_data: bool = True) -> torch.Tensor:
    """Train with these extensions so that every stage occurs, and return the weights."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    tm = TrainManager(
        Net(), mse, 2, make_loader(), {"valid": make_loader(1)} if eval_data else None, extensions=list(extensions),
        evaluate_first=evaluate_first, device="cpu",
    )  # fmt: skip
    tm.eval()
    tm.epochs = 1
    tm.train()
    tm.predict(make_loader(2))
    tm.epochs = 2
    tm.train()
    return torch.cat([value.flatten().double() for value in tm.model.state_dict().values()])


def draw_python(model: Any) -> None:
    random.random()


def draw_python_gauss(model: Any) -> None:
    random.gauss(0, 1)


def draw_numpy(model: Any) -> None:
    np.random.rand(3)


def draw_numpy_odd_gaussians(model: Any) -> None:
    np.random.randn(3)


def draw_one_numpy_gaussian(model: Any) -> None:
    """Draw one Gaussian, which may be the one that NumPy has cached; in that case, only the cache changes."""
    np.random.randn()


def draw_torch(model: Any) -> None:
    torch.rand(5)


def seed_all(model: Any) -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def replace_numpy_state(model: Any) -> None:
    np.random.set_state(np.random.RandomState(3).get_state())


def eval_mode(model: Any) -> None:
    model.eval()


def train_mode(model: Any) -> None:
    model.train()


def switch_one_module(model: Any) -> None:
    model.dropout.train(not model.training)


def switch_gradients(model: Any) -> None:
    torch.set_grad_enabled(not model.training)


def everything(model: Any) -> None:
    for each in (draw_python, draw_python_gauss, draw_numpy, draw_numpy_odd_gaussians, draw_torch, switch_one_module, switch_gradients):
        each(model)


MISDEEDS = [
    draw_python, draw_python_gauss, draw_numpy, draw_numpy_odd_gaussians, draw_one_numpy_gaussian, draw_torch, seed_all,
    replace_numpy_state, eval_mode, train_mode, switch_one_module, switch_gradients, everything,
]  # fmt: skip


def everywhere(act: Callable[[Any], None], base: type = Observer, name: str = "nuisance") -> Any:
    """Return an extension that calls `act` in each hook of each stage; an around hook calls it twice."""
    calls: list[str] = []

    def plain(hook: str) -> Any:
        def call(self: Any, model: Any) -> None:
            calls.append(hook)
            act(model)

        return call

    def generator(hook: str) -> Any:
        def call(self: Any, model: Any) -> Iterator[None]:
            calls.append(hook)
            act(model)
            yield
            act(model)

        return call

    hooks: dict[str, Any] = {}
    for stage in TRAIN_MANAGER.paths:
        hooks |= {f"pre_{stage}": plain(f"pre_{stage}"), f"post_{stage}": plain(f"post_{stage}")}
        if stage != "train_manager":
            hooks[f"around_{stage}"] = generator(f"around_{stage}")
    extension = type("Nuisance", (base,), {**hooks, "name": name})()
    extension.calls = calls
    return extension


class TestObservers:
    @pytest.mark.parametrize("act", MISDEEDS, ids=lambda act: act.__name__)
    def test_a_misbehaving_observer_in_every_hook_changes_no_weight(self, act: Callable[[Any], None]) -> None:
        """Random state, train or eval mode, and grad mode are restored after every hook of an observer."""
        assert torch.equal(trained(everywhere(act)), trained())

    @pytest.mark.parametrize("act", MISDEEDS, ids=lambda act: act.__name__)
    def test_nor_if_training_itself_draws_random_numbers_in_each_batch(self, act: Callable[[Any], None]) -> None:
        """A misbehaving observer changes no weight in this case either."""
        assert torch.equal(trained(Jitter(), everywhere(act)), trained(Jitter()))

    def test_nor_do_two_of_them_around_an_extension_that_draws_random_numbers(self) -> None:
        """Two misbehaving observers change no weight either."""
        watched = trained(everywhere(everything, name="first"), Jitter(), everywhere(everything, name="second"))
        assert torch.equal(watched, trained(Jitter()))

    def test_the_misbehaving_observer_is_really_called_in_every_hook(self) -> None:
        nuisance = everywhere(draw_torch)
        trained(nuisance)
        hooks = {f"{phase}_{stage}" for stage in TRAIN_MANAGER.paths for phase in ("pre", "around", "post")}
        assert set(nuisance.calls) == hooks - {"around_train_manager", "post_train_manager"}

    @pytest.mark.parametrize("act", [draw_torch, eval_mode, switch_one_module], ids=lambda act: act.__name__)
    def test_a_plain_extension_that_does_the_same_changes_the_weights(self, act: Callable[[Any], None]) -> None:
        """This test shows that the tests above can fail."""
        assert not torch.equal(trained(everywhere(act, base=Extension)), trained())

    @pytest.mark.parametrize("act", [draw_python, draw_python_gauss, draw_numpy, draw_one_numpy_gaussian], ids=lambda act: act.__name__)
    def test_a_plain_extension_that_draws_random_numbers_changes_training_that_draws_too(self, act: Callable[[Any], None]) -> None:
        """This test shows that the tests above can fail."""
        assert not torch.equal(trained(Jitter(), everywhere(act, base=Extension)), trained(Jitter()))

    def test_an_observer_that_raises_does_not_change_the_random_state(self) -> None:
        states: list[torch.Tensor] = []

        class Note(Extension):
            def pre_train_step_batch(self) -> None:
                states.append(torch.get_rng_state())

        class Breaks(Observer):
            def pre_train_step_batch(self, model: Any) -> None:
                everything(model)
                raise ZeroDivisionError

        model = Net()
        tm = TrainManager(model, mse, 1, make_loader(), extensions=[Note(), Breaks()], device="cpu")
        with pytest.raises(ZeroDivisionError):
            tm.train()
        assert torch.equal(torch.get_rng_state(), states[0])
        assert (torch.is_grad_enabled(), model.dropout.training) == (True, True)

    def test_consecutive_observers_are_both_called_in_order(self) -> None:
        calls: list[str] = []

        class Note(Observer):
            def __init__(self, name: str) -> None:
                self.name = name

            def post_run(self) -> None:
                calls.append(self.name or "")

        trained(Note("one"), Note("two"), Extension(), Note("three"))
        assert calls == ["one", "two", "three"] * 4

    def test_an_observer_draws_the_same_numbers_until_training_draws_some(self) -> None:
        """The observer sees the random state of training and restores it, so it draws the same number again."""
        drawn: list[float] = []

        class Draw(Observer):
            def pre_train(self) -> None:
                drawn.append(torch.rand(()).item())

            def post_load_checkpoint(self) -> None:
                drawn.append(torch.rand(()).item())

        TrainManager(Net(), mse, 0, make_loader(), extensions=[Draw()], device="cpu").train()
        assert drawn[0] == drawn[1]


class TestNumpysBitGenerator:
    @pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox, np.random.MT19937])
    def test_another_bit_generator_of_numpy_is_guarded_too(self, kind: Any) -> None:

        def run(*extensions: Extension) -> torch.Tensor:
            class Install(Extension):
                def pre_run(self, step_num: int) -> None:
                    if step_num == 0:
                        np.random.set_bit_generator(kind(7))

            np.random.set_bit_generator(np.random.MT19937(1))
            return trained(Install(), Jitter(), *extensions)

        assert torch.equal(run(everywhere(draw_numpy_odd_gaussians)), run())

    def test_a_bit_generator_installed_during_training_is_guarded_too(self) -> None:

        def run(*extensions: Extension) -> torch.Tensor:
            class Install(Extension):
                def pre_train_step_batch(self, step_num: int) -> None:
                    if step_num == 2:
                        np.random.set_bit_generator(np.random.PCG64(7))

            np.random.set_bit_generator(np.random.MT19937(1))
            return trained(Install(), Jitter(), *extensions)

        assert torch.equal(run(everywhere(draw_numpy_odd_gaussians)), run())


class TestEvaluation:
    def test_with_a_shuffled_loader_it_does_not_change_training(self) -> None:
        """An evaluation restores the random state of training afterwards."""
        assert torch.equal(trained(Jitter()), trained(Jitter(), eval_data=False))

    def test_the_evaluation_before_training_does_not_change_training(self) -> None:
        assert torch.equal(trained(Jitter()), trained(Jitter(), evaluate_first=False))

    def test_a_plain_extension_that_draws_in_an_evaluation_does_not_change_training(self) -> None:
        """The whole evaluation is guarded, no matter which extension draws random numbers."""

        class Draws(Extension):
            def post_eval_step_batch(self, model: Any) -> None:
                everything(model)

        assert torch.equal(trained(Jitter(), Draws()), trained(Jitter()))

    def test_enabling_dropout_in_an_evaluation_does_not_change_training(self) -> None:
        """Monte Carlo dropout does this."""

        class Sample(Extension):
            def pre_eval_step_epoch(self, model: Any) -> None:
                model.dropout.train()

        assert torch.equal(trained(Jitter(), Sample()), trained(Jitter()))

    def test_an_evaluation_within_a_training_batch_does_not_change_training(self) -> None:

        class Often(Extension):
            def post_train_step_batch(self, train_manager: Any, step_num: int) -> None:
                if step_num % 2:
                    train_manager.eval()

        assert torch.equal(trained(Jitter(), Often()), trained(Jitter()))


def test_an_observer_may_replace_numpys_generator() -> None:
    """The new generator is removed after the hook, and training continues with the original one."""

    class Swaps(Observer):
        def post_train_step_batch(self) -> None:
            np.random.set_bit_generator(np.random.PCG64(3))

    before = np.random.get_bit_generator()
    try:
        contract = ExtensionContract()
        plain = contract.loop()
        plain.train()
        watched = contract.loop(Swaps())
        watched.train()
        assert np.random.get_bit_generator() is before
    finally:
        np.random.set_bit_generator(before)
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), watched.model.parameters(), strict=True))


def test_the_gaussian_that_numpy_caches_is_restored_even_if_its_words_did_not_change() -> None:
    drawn: dict[str, list[float]] = {"plain": [], "watched": []}

    class Draws(Extension):
        """Seeds NumPy in each batch, draws one Gaussian at its start, and the cached second one at its end."""

        def __init__(self, who: str) -> None:
            self.who = who

        def pre_train_step_batch(self) -> None:
            np.random.seed(0)
            drawn[self.who].append(float(np.random.randn()))

        def post_train_step_batch(self) -> None:
            drawn[self.who].append(float(np.random.randn()))

    class Watches(Observer):
        def pre_backward(self) -> None:
            np.random.randn()

    ExtensionContract().loop(Draws("plain")).train()
    ExtensionContract().loop(Draws("watched"), Watches()).train()
    assert drawn["plain"] == drawn["watched"]
