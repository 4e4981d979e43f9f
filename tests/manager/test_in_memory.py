"""A manager without a store directory keeps everything in memory, and has the same features as one with a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from trainmaster import Manager
from trainmaster.errors import UnknownRunError


class Learning(Manager):
    """Trains a tensor, so that tests can check that saved values share no memory with the current ones."""

    def __init__(self, *args: Any, verbose: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, verbose=verbose, **kwargs)
        self.num_trained = 0

    def setup(self, config: Any) -> None:
        super().setup(config)
        self.weights = torch.zeros(3)

    def train(self) -> None:
        self.num_trained += 1
        self.weights += self.config["step"]

    def eval(self) -> Any:
        return {"loss_test": float((self.weights - 1).square().sum())}

    def save_ckpt(self) -> None:
        self.ckpt["weights"] = self.weights
        super().save_ckpt()

    def load_ckpt(self) -> None:
        super().load_ckpt()
        self.weights = self.ckpt["weights"]


@pytest.fixture
def manager() -> Learning:
    return Learning(None, {"step": 0.25})


def test_a_store_in_memory_writes_nothing_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    manager = Learning()
    manager.sweep({"step": [0.1, 0.2]}, num_epochs=1)
    manager.overview()
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_memory_is_the_default() -> None:
    assert Learning().store.root is None


def test_a_run_is_trained_and_resumed(manager: Learning) -> None:
    manager.process({}, num_epochs=2)
    manager.process({}, num_epochs=3)
    assert manager.num_trained == 3
    assert manager.ckpts[manager.key]["weights"].tolist() == [0.75] * 3
    assert manager.stats[manager.key]["epoch"] == 3


def test_training_does_not_change_saved_values(manager: Learning) -> None:
    manager.process({}, num_epochs=1)
    manager.weights += 100
    manager.ckpt["weights"] += 100
    assert manager.ckpts[manager.key]["weights"].tolist() == [0.25] * 3
    manager.ckpts[manager.key]["weights"].zero_()
    assert manager.fetch(manager.key).weights.tolist() == [0.25] * 3


def test_a_batch_skips_finished_runs(manager: Learning) -> None:
    manager.batch([{"step": 0.1}], num_epochs=1)
    result = manager.batch([{"step": 0.1}, {"step": 0.2}], num_epochs=1)
    assert (len(result.found), len(result.done)) == (1, 1)


def test_a_sweep_has_a_best_run_and_its_model_can_be_fetched(manager: Learning) -> None:
    manager.sweep({"step": [0.1, 0.5, 0.9]}, num_epochs=2)
    key = manager.best_work()
    assert key is not None
    assert manager.configs[key]["step"] == 0.5
    assert manager.fetch(key).weights.tolist() == [1.0] * 3


def test_queries_about_many_runs_work(manager: Learning) -> None:
    manager.sweep({"step": [0.1, 0.5], "seed": [1, 2]}, num_epochs=1)
    keys = [key for key, _ in manager.completed(cond={"step": (0.2, 1.0)})]
    assert len(keys) == 2
    assert manager.overview(keys).previews["loss_test"].tolist() == [0.75, 0.75]
    assert manager.compare(keys)[0] == {"step": 0.5}
    assert [len(group) for group in manager.group(keys)] == [2]


def test_a_failure_is_recorded_and_the_batch_gives_up_on_the_run(manager: Learning) -> None:
    for _ in range(4):
        manager.batch([{"step": "much"}], num_epochs=1, max_errors=5)
    result = manager.batch([{"step": "much"}], num_epochs=1, max_errors=5)
    (reason,) = result.given_up.values()
    assert reason.startswith("3 attempts in a row saved no new checkpoint; the last one: TypeError")


def test_resume_false_starts_from_scratch(manager: Learning) -> None:
    manager.process({}, num_epochs=3)
    manager.process({}, num_epochs=1, resume=False)
    assert manager.stats[manager.key]["epoch"] == 1


def test_pop_removes_a_run_and_returns_its_records(manager: Learning) -> None:  # J21
    manager.process({}, num_epochs=1)
    records = manager.store.pop(manager.key)
    assert (records.config, records.stats["epoch"], records.ckpt["weights"].tolist()) == ({"step": 0.25}, 1, [0.25] * 3)
    assert manager.key not in manager.configs
    with pytest.raises(UnknownRunError):
        manager.fetch(manager.key)


def test_two_managers_share_nothing() -> None:
    one, two = Learning(), Learning()
    one.process({"step": 0.5}, num_epochs=1)
    assert len(two.configs) == 0
    two.process({"step": 0.5}, num_epochs=1)
    assert two.num_trained == 1


def test_runs_in_memory_can_be_copied_to_a_folder(manager: Learning, tmp_path: Path) -> None:  # J8
    manager.process({}, num_epochs=2)
    there = Learning(tmp_path, {"step": 0.25})
    manager.store.migrate(there.store)
    there.process({}, num_epochs=3)
    assert there.num_trained == 1
    assert there.weights.tolist() == [0.75] * 3


def test_training_in_memory_gives_the_same_bits_as_on_disk(manager: Learning, tmp_path: Path) -> None:
    on_disk = Learning(tmp_path, {"step": 0.25})
    for each in (manager, on_disk):
        each.process({"step": 0.3}, num_epochs=2)
    assert manager.key == on_disk.key
    assert torch.equal(manager.weights, on_disk.weights)
    assert manager.ckpt["eval_records"] == on_disk.ckpt["eval_records"]
