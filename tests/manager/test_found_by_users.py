"""Regression tests for problems that first-time users found."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from trainmaster import Extension, Manager
from trainmaster.errors import SettingError
from trainmaster.store import Store
from trainmaster.store.attempt_records import EVENTS, OUTCOME, RESUME


class Counter(Manager):
    def train(self) -> None:
        self.ckpt["x"] = self.ckpt.get("x", 0) + 1

    def eval(self) -> Any:
        return {"loss_test": -float(self.ckpt.get("x", 0))}


class Epochs(Extension):
    """Counts the trained epochs of a run, and keeps the last count as a tensor."""

    def __init__(self) -> None:
        self.num, self.last = 0, torch.zeros(1)

    def post_work_train(self) -> None:
        self.num, self.last = self.num + 1, self.last + 1

    def state_dict(self) -> dict[str, Any]:
        return {"num": self.num, "last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num, self.last = state["num"], state["last"]


def test_the_states_of_extensions_are_saved_with_user_written_epochs(tmp_path: Path) -> None:
    class Counted(Counter):
        extensions = [Epochs()]

    first = Counted(tmp_path, verbose=False)
    first.process({"lr": 1.0}, num_epochs=3)
    first.process({"lr": 2.0}, num_epochs=1)
    assert first.extensions["epochs"].num == 1  # each run begins with the initial state
    second = Counted(tmp_path, verbose=False)
    second.process({"lr": 1.0}, num_epochs=5)
    assert (second.extensions["epochs"].num, second.extensions["epochs"].last.tolist()) == (5, [5.0])
    assert second.ckpt.keys() == {"eval_records", "x"}


def test_a_setup_that_changes_its_config_is_refused_before_training() -> None:
    class Changing(Counter):
        def setup(self, config: Any) -> None:
            config["lr"] *= 2
            super().setup(config)

    manager = Changing(verbose=False)
    with pytest.raises(SettingError, match=r"`Changing\.setup\(\)` changed the config of run .*\n  try     change configs in `get_config`"):
        manager.process({"lr": 1.0}, num_epochs=1)


def test_prune_keeps_the_trained_run_after_a_fresh_start_that_failed(tmp_path: Path) -> None:
    manager = Counter(tmp_path, verbose=False)
    manager.process({"lr": 1.0}, num_epochs=3)

    class Failing(Counter):
        def eval(self) -> Any:
            raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        Failing(tmp_path, verbose=False).process({"lr": 1.0}, num_epochs=3, resume=False)
    manager.store.prune()
    assert manager.stats[manager.key]["epoch"] == 3
    assert manager.ckpts[manager.key]["x"] == 3


def test_one_damaged_record_does_not_stop_a_batch(tmp_path: Path) -> None:
    manager = Counter(tmp_path, verbose=False)
    manager.process({"lr": 1.0}, num_epochs=1)
    (tmp_path / manager.store.run(manager.key).path(1, OUTCOME)).write_bytes(b"half")
    with pytest.warns(UserWarning, match="outcome.json"):
        result = manager.batch([{"lr": 1.0}, {"lr": 2.0}], num_epochs=2)
    assert len(result.done) == 2


def test_a_run_with_damaged_records_counts_as_an_error_of_the_batch(tmp_path: Path) -> None:
    manager = Counter(tmp_path, verbose=False)
    manager.process({"lr": 1.0}, num_epochs=1)
    key = manager.key
    (tmp_path / manager.store.run(key).path(1, RESUME)).write_bytes(b"half")
    result = manager.batch([{"lr": 1.0}, {"lr": 2.0}], num_epochs=2, max_errors=5)
    assert list(result.failed) == [key]
    assert len(result.done) == 1
    with pytest.warns(UserWarning, match=f"run {key} is skipped"):
        assert len(dict(manager.stats.items())) == 1


def test_prune_keeps_a_checkpoint_whose_events_can_be_read(tmp_path: Path) -> None:
    manager = Counter(tmp_path, verbose=False)
    manager.process({"lr": 1.0}, num_epochs=4)
    log = tmp_path / manager.store.run(manager.key).path(1, EVENTS)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:4], b"x" + lines[4][1:]]))
    manager.store.prune(keep=1)
    latest = manager.store.run(manager.key).latest
    with pytest.warns(UserWarning, match="step 4 was saved"):
        found = latest()
    assert found is not None
    assert found.name.step == 3


def test_an_import_that_is_interrupted_after_its_commit_keeps_the_committed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Counter(verbose=False)
    source.process({"lr": 1.0}, num_epochs=2)
    target = Store(tmp_path / "target")
    create = target.files.create

    def interrupted(path: str, data: bytes) -> None:
        create(path, data)
        if path.endswith(RESUME):
            raise KeyboardInterrupt

    monkeypatch.setattr(target.files, "create", interrupted)
    with pytest.raises(KeyboardInterrupt):
        source.store.migrate(target)
    monkeypatch.undo()
    assert target.ckpts[source.key]["x"] == 2


def test_the_manifest_comes_first_in_an_archive(tmp_path: Path) -> None:
    import tarfile

    manager = Counter(verbose=False)
    manager.process({"lr": 1.0}, num_epochs=1)
    manager.store.export_tar(tmp_path / "runs.tar", compresslevel=0)
    with tarfile.open(tmp_path / "runs.tar") as archive:
        names = [name.split("/")[-1] for name in archive.getnames() if "step-" in name]
    assert names == ["manifest.json", "tree.json"] * 2


def test_fetch_does_not_change_the_random_number_generators() -> None:
    manager = Counter(verbose=False)
    manager.process({"lr": 1.0}, num_epochs=1)
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(1), random.random()
    torch.manual_seed(5)
    random.seed(5)
    manager.fetch(manager.key)
    assert (torch.rand(1), random.random()) == expected


@pytest.mark.parametrize(("value", "recorded"), [(torch.tensor([0.5]), 0.5), (torch.tensor(True), True), (torch.tensor(2), 2)])
def test_a_tensor_with_one_element_is_recorded_as_a_number(value: Any, recorded: Any) -> None:
    class Tensors(Counter):
        def eval(self) -> Any:
            return {"loss_test": value}

    manager = Tensors(verbose=False)
    manager.process({"lr": 1.0}, num_epochs=0)
    assert manager.previews[manager.key] == {"loss_test": recorded}


@pytest.mark.parametrize("found", [{"loss": torch.ones(3)}, {1: 2.0}, {"f": print}])
def test_an_invalid_result_of_eval_is_reported(found: Any) -> None:
    class Odd(Counter):
        def eval(self) -> Any:
            return found

    with pytest.raises(SettingError, match=r"`Odd\.eval\(\)` returned values that cannot be recorded"):
        Odd(verbose=False).process({"lr": 1.0}, num_epochs=0)


def test_an_error_about_weights_that_do_not_fit_suggests_what_to_do() -> None:
    class Changed(Counter):
        def load_ckpt(self) -> None:
            super().load_ckpt()
            raise RuntimeError("size mismatch")

    manager = Changed(verbose=False)
    manager.process({"lr": 1.0}, num_epochs=1)
    with pytest.raises(RuntimeError, match="size mismatch") as caught:
        manager.process({"lr": 1.0}, num_epochs=1)
    assert "`--fresh` (`resume=False`) trains it from scratch" in caught.value.__notes__[0]


def test_a_config_in_place_of_the_store_folder_is_refused() -> None:
    with pytest.raises(SettingError, match=r"expected a folder\n  try     defaults come second"):
        Counter({"lr": 1.0})  # type: ignore[arg-type]
