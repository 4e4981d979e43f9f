"""The programs in the README of an earlier project (seed 003) run unchanged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.optim import SGD as MyOptimizer
from torch.optim.lr_scheduler import OneCycleLR

from trainmaster import LoopComponent, TrainTestLoop


class MainLoop(LoopComponent):
    def on_train_begin(self, loop):
        loop.loss_func = CrossEntropyLoss()
        loop.optimizer = MyOptimizer(loop.model.parameters(), lr=3e-4)
        loop.scheduler = MyScheduler(loop.optimizer, loop.n_optim_steps)

    def on_grads_reset(self, loop):
        loop.model.zero_grad()

    def on_forward_pass(self, loop):
        model, batch = (loop.model, loop.batch)
        loop.scores = model(batch.data)

    def on_loss_compute(self, loop):
        scores, labels = (loop.scores, loop.batch.labels)
        loop.loss = loop.loss_func(scores, labels)

    def on_backward_pass(self, loop):
        loop.loss.backward()

    def on_optim_step(self, loop):
        loop.optimizer.step()
        loop.scheduler.step()

    def on_train_end(self, loop):
        print("Done.")


class SaveModel(LoopComponent):
    def on_train_end(self, loop):
        torch.save(loop.model.state_dict(), "./model_state.pth")
        print("Saved.")


def MyScheduler(optimizer, n_optim_steps):
    return OneCycleLR(optimizer, max_lr=0.1, total_steps=n_optim_steps)


class Batches:
    """Four batches of a separable problem, with `.data` and `.labels` as in the README."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        data = torch.randn(4, 16, 2, generator=generator)
        self._batches = [SimpleNamespace(data=each, labels=(each[:, 0] > 0).long()) for each in data]

    def __len__(self):
        return len(self._batches)

    def __iter__(self):
        return iter(self._batches)


@pytest.fixture
def my_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def finished(my_model, monkeypatch, tmp_path):
    """Run the README's program in its own folder, and return its loop."""
    monkeypatch.chdir(tmp_path)
    my_train_data, my_valid_data = Batches(1), Batches(2)
    loop = TrainTestLoop(model=my_model, components=[MainLoop(), SaveModel()],
                         train_data=my_train_data, valid_data=my_valid_data)  # fmt: skip
    loop.train(n_epochs=10)
    return loop


def test_the_program_prints_exactly_what_the_readme_shows(capsys, request):
    """Contracts L1 and L2: the output is the one that the README shows."""
    request.getfixturevalue("finished")
    assert capsys.readouterr() == ("Done.\nSaved.\n", "")


def test_the_program_saves_the_trained_weights(finished, tmp_path):
    saved = torch.load(tmp_path / "model_state.pth", weights_only=True)
    assert all(torch.equal(saved[name], value) for name, value in finished.model.state_dict().items())


def test_the_program_learns_the_problem(finished):
    batches = list(Batches(3))
    right = sum((finished.model(each.data).argmax(1) == each.labels).sum().item() for each in batches)
    assert right / sum(len(each.labels) for each in batches) > 0.9


def test_the_programs_schedule_reaches_its_last_step(finished):
    """Contract L5: `n_optim_steps` in `on_train_begin` is the number of steps in the schedule."""
    assert finished.scheduler.last_epoch == finished.n_optim_steps == 10 * 4


class Named(LoopComponent):
    """A component that records its calls. The README leaves these components to the reader."""

    def on_batch_begin(self, loop):
        loop.called.append(type(self).__name__)


class MyInitializer(Named): ...


class MyBatchProcessor(Named): ...


class MyOptimManager(Named): ...


class MyStats(Named): ...


class MyPreprocessing(Named): ...


def manipulated(my_model, train_data, valid_data):
    # Create a train/test loop.
    my_components = (MyInitializer(), MyBatchProcessor(), MyOptimManager(), MyStats())
    loop = TrainTestLoop(my_model, my_components, train_data, valid_data)

    # Insert a new component in the second position to preprocess batches.
    loop.components.insert(1, MyPreprocessing())

    # Delete the last component.
    del loop.components[-1]
    return loop


def test_the_lines_that_edit_components_give_the_list_they_describe(my_model):
    """Contract L11: the components are passed as a tuple, which becomes a list."""
    loop = manipulated(my_model, Batches(1), Batches(2))
    assert isinstance(loop.components, list)
    assert [type(each) for each in loop.components] == [MyInitializer, MyPreprocessing, MyBatchProcessor, MyOptimManager]


def test_the_lines_that_edit_components_decide_which_are_called(my_model):
    """Contracts L11 and L3: components are called in list order, and deleted ones are no longer called."""
    loop = manipulated(my_model, [1], [])
    loop.called = []
    loop.train(1)
    assert loop.called == ["MyInitializer", "MyPreprocessing", "MyBatchProcessor", "MyOptimManager"]
