"""Duplicate runs can be found and removed. Any run can be copied to another store or removed with `pop` (J8, J21)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster import Manager, Store
from trainmaster.errors import KeyTextError


class Counting(Manager):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, verbose=False, **kwargs)

    def train(self) -> None: ...

    def eval(self) -> dict[str, float]:
        return {"loss_test": 1.0 / (1 + self.epoch)}


class _Renaming(Counting):
    """A manager that ignores the key `name`, so that runs that differ only in `name` become equal."""

    def get_config(self, config: Any = None) -> Any:
        found = super().get_config(config)
        found.pop("name", None)
        return found


def test_pop_returns_all_four_records_and_removes_them() -> None:  # J21
    manager = Counting()
    manager.process({"lr": 0.1}, 2)
    records = manager.pop(manager.key)
    assert (records.config, records.stats["epoch"], records.preview) == ({"lr": 0.1}, 2, {"loss_test": 1 / 3})  # type: ignore[index]
    assert [*manager.configs, *manager.stats, *manager.ckpts, *manager.previews] == []


def test_pop_requires_a_key() -> None:
    with pytest.raises(KeyTextError):
        Counting().pop("nope")


class TestDuplicates:
    """Covers contract J8."""

    @pytest.fixture
    def grown(self, tmp_path: Path) -> tuple[Counting, str, str]:
        """Return a manager whose new default makes two runs equal, and the keys of the shorter and the longer run."""
        before = Counting(tmp_path)
        before.process({"lr": 0.1, "width": 8}, 1)
        short = before.key
        before.process({"lr": 0.1}, 3)
        long = before.key
        before.process({"lr": 0.2}, 1)
        return Counting(tmp_path, {"width": 8}), short, long

    def test_runs_whose_configs_became_equal_are_duplicates_with_the_longest_trained_first(self, grown: tuple[Counting, str, str]) -> None:
        manager, short, long = grown
        assert manager.get_duplicates() == [[long, short]]

    def test_only_the_longest_trained_run_is_kept(self, grown: tuple[Counting, str, str]) -> None:
        manager, short, long = grown
        assert manager.remove_dups() == [short]
        assert long in manager.ckpts
        assert short not in manager.configs
        assert len(manager.configs) == 2
        assert manager.get_duplicates() == manager.remove_dups() == []

    def test_of_equally_trained_runs_the_one_that_process_finds_is_kept(self, grown: tuple[Counting, str, str]) -> None:
        manager, short, long = grown
        manager.process({"lr": 0.1, "width": 8}, 3)
        assert manager.key == short
        assert manager.get_duplicates() == [[short, long]]

    def test_a_run_in_training_is_left_alone_and_the_other_duplicates_are_removed(self, grown: tuple[Counting, str, str]) -> None:
        manager, short, _ = grown
        for name, epochs in (("a", 1), ("b", 2)):
            before = Counting(manager.store.root, {"width": 8})
            before.process({"lr": 0.5, "name": name}, epochs)
        same_name = _Renaming(manager.store.root, {"width": 8})
        with manager.store.attempt(short, "test"), pytest.warns(UserWarning, match=f"duplicate not removed: run {short} is held by"):
            removed = same_name.remove_dups()
        assert len(removed) == 1
        assert short in manager.ckpts

    def test_a_damaged_run_is_never_the_one_that_is_kept(self, grown: tuple[Counting, str, str]) -> None:
        manager, short, long = grown
        for file in Path(str(manager.store.root)).glob(f"ckpts/*/{long}/**/manifest.json"):
            file.write_text("{}")
        assert manager.remove_dups() == [long]
        assert short in manager.ckpts

    def test_a_store_without_duplicates_returns_an_empty_list(self) -> None:
        manager = Counting()
        manager.process({"lr": 0.1}, 1)
        manager.process({"lr": 0.2}, 1)
        assert manager.get_duplicates() == []


class TestCopies:
    """Covers contract J8."""

    @pytest.fixture
    def manager(self) -> Counting:
        manager = Counting()
        for lr, epochs in ((0.1, 1), (0.2, 2), (0.3, 3)):
            manager.process({"lr": lr}, epochs)
        return manager

    def test_all_runs_are_copied_to_a_folder(self, manager: Counting, tmp_path: Path) -> None:
        copied = manager.copy_to(tmp_path / "copy")
        assert sorted(copied) == sorted(manager.configs)
        assert dict(Store(tmp_path / "copy").ckpts.items()) == dict(manager.ckpts.items())

    def test_runs_can_be_selected_by_key_epoch_or_condition(self, manager: Counting) -> None:
        keys = {config.lr: key for key, config in manager.configs.items()}
        assert manager.copy_to(Store(None), keys=[keys[0.1]]) == [keys[0.1]]
        assert sorted(manager.copy_to(Store(None), min_epoch=2)) == sorted([keys[0.2], keys[0.3]])
        assert manager.copy_to(Store(None), cond={"lr": 0.2}) == [keys[0.2]]

    def test_a_run_that_is_trained_further_in_the_other_store_is_replaced_only_with_overwrite(self, manager: Counting) -> None:
        target = Counting()
        target.process({"lr": 0.1}, 5)
        assert target.key not in manager.copy_to(target.store)
        assert target.stats[target.key]["epoch"] == 5
        assert manager.copy_to(target.store, keys=[target.key], overwrite=True) == [target.key]
        assert target.stats[target.key]["epoch"] == 1
