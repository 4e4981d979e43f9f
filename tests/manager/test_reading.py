"""Reading a run by its key fills in defaults that were added later, and writes nothing (contract J23)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster import Config, ConfigBase, Manager, TrainManager, configclass, key_of
from trainmaster.errors import SettingError, UnknownRunError


class Counting(Manager):
    """A manager that counts its epochs."""

    def train(self) -> None:
        self.ckpt["epochs"] = self.ckpt.get("epochs", 0) + 1

    def eval(self) -> dict[str, Any]:
        return {"loss_test": 1.0 / (1 + self.epoch)}


def class_of(*names: str) -> type[ConfigBase]:
    """Return a config class whose fields have these names."""
    body = {"__annotations__": dict.fromkeys(names, float), "__module__": __name__, **dict.fromkeys(names, 0.5)}
    return configclass(type("Train", (ConfigBase,), body))


BEFORE_AND_AFTER = [({"lr": 0.5}, {"lr": 0.5, "width": 0.5}), (class_of("lr"), class_of("lr", "width"))]


def files_of(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def by_fetch(manager: Manager, key: str) -> None:
    manager.fetch(key)


def by_setup(manager: Manager, key: str) -> None:
    manager.setup(manager.configs[key])
    manager.load_ckpt()


@pytest.mark.parametrize("read", [by_fetch, by_setup])
@pytest.mark.parametrize(("before", "after"), BEFORE_AND_AFTER)
def test_a_run_can_be_read_after_a_default_was_added(tmp_path: Path, before: Any, after: Any, read: Callable[[Manager, str], None]) -> None:
    old = Counting(tmp_path, before, verbose=False)
    old.process({"lr": 0.1}, num_epochs=2)
    files = files_of(tmp_path)
    new = Counting(tmp_path, after, verbose=False)
    read(new, old.key)
    assert (new.key, new.epoch, new.ckpt["epochs"]) == (old.key, 2, 2)
    assert (new.config["lr"], new.config["width"]) == (0.1, 0.5)
    assert files_of(tmp_path) == files


def test_a_loop_is_built_with_defaults_that_were_added_later(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Looping(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            width = config.width if "width" in config else 3
            model = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Linear(width, 1))
            batches = [torch.ones(4, 2)]
            return TrainManager(model, lambda batch, out: out.mean(), 1, batches, optimizer=torch.optim.SGD(model.parameters(), config.lr))

    old = Looping(tmp_path, {"lr": 0.5}, verbose=False)
    old.process()
    files = files_of(tmp_path)
    new = Looping(tmp_path, {"lr": 0.5, "width": 3}, verbose=False)
    model = new.fetch(old.key).model  # type: ignore[attr-defined]
    assert new.config == {"lr": 0.5, "width": 3}
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), old.model.parameters(), strict=True))  # type: ignore[attr-defined]
    assert files_of(tmp_path) == files


def test_setup_of_a_config_that_is_not_stored_stores_nothing(tmp_path: Path) -> None:
    manager = Counting(tmp_path, {"lr": 0.5}, verbose=False)
    manager.setup({"a": 1})
    assert (manager.key, list(manager.configs)) == (key_of({"a": 1, "lr": 0.5}), [])
    with pytest.raises(UnknownRunError, match="has no checkpoint"):
        manager.load_ckpt()


def test_a_config_that_is_not_stored_does_not_get_the_key_of_another_one() -> None:
    manager = Counting(verbose=False)
    one, other = {"n": 7335}, {"n": 13654}  # the first eight digits of their hashes are the same
    manager.process(one, num_epochs=1)
    assert manager.key == key_of(other)
    manager.setup(other)
    assert manager.key == key_of(other, 16)
    with pytest.raises(UnknownRunError, match="has no checkpoint"):
        manager.load_ckpt()


@pytest.mark.parametrize("copied", [Config, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config)), Config.clone])
def test_a_copy_of_a_stored_config_keeps_its_key(copied: Callable[[Config], Config]) -> None:
    manager = Counting(verbose=False)
    manager.process({"lr": 0.1}, num_epochs=1)
    key = manager.key
    manager.defaults = Config({"width": 64})
    manager.setup(copied(manager.configs[key]))
    assert (manager.key, manager.config) == (key, {"lr": 0.1, "width": 64})


def test_a_config_from_a_query_keeps_its_key() -> None:
    manager = Counting(verbose=False)
    manager.process({"lr": 0.1}, num_epochs=1)
    key = manager.key
    manager.defaults = Config({"width": 64})
    [(_, config)] = manager.completed()
    manager.setup(config)
    assert manager.key == key
    assert manager.overview(manager.configs.values()).keys == [key]


@pytest.mark.parametrize("change", [{"lr": 0.2}, {"more": 1}, {"width": 32}])
def test_a_stored_config_that_was_changed_has_another_key(change: dict[str, Any]) -> None:
    manager = Counting(verbose=False)
    manager.process({"lr": 0.1}, num_epochs=1)
    manager.defaults = Config({"width": 64})
    config = manager.configs[manager.key]
    config.update(change)
    manager.setup(config)
    assert manager.key == key_of({"lr": 0.1, "width": 64, **change})


def test_an_override_of_setup_may_complete_the_config_first() -> None:
    class Own(Counting):
        def setup(self, config: Any) -> None:
            super().setup(self.get_config(config))

    manager = Own(verbose=False)
    manager.process({"lr": 0.1}, num_epochs=1)
    key = manager.key
    manager.defaults = Config({"width": 64})
    manager.setup(manager.configs[key])
    assert manager.key == manager.fetch(key).key == key


def test_a_get_config_that_changes_stored_values_is_refused() -> None:
    class Own(Counting):
        scale = 1

        def get_config(self, config: Any = None) -> Any:
            found = super().get_config(config)
            found.lr = self.scale
            return found

    manager = Own(verbose=False)
    manager.process({"lr": 5}, num_epochs=1)
    manager.scale = 2
    with pytest.raises(SettingError, match=f"`get_config` changes the stored config of run {manager.key}"):
        manager.fetch(manager.key)


def test_training_a_stored_config_with_a_new_default_is_another_run_and_prints_both_keys(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting()
    manager.process({"lr": 0.1}, num_epochs=1)
    key = manager.key
    manager.process(manager.configs[key], num_epochs=2)
    assert manager.key == key
    assert "defaults" not in capsys.readouterr().out
    manager.defaults = Config({"width": 64})
    manager.process(manager.configs[key], num_epochs=2)
    assert manager.key == key_of({"lr": 0.1, "width": 64})
    assert f"run {key} was stored before a default was added: with that default, the config is run {manager.key}" in capsys.readouterr().out
    assert manager.stats[key]["epoch"] == 2
