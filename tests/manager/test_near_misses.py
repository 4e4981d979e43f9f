"""A key that looks like a misspelled default is refused, in Python and on the command line; other keys are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster import Config, Manager
from trainmaster.errors import ConfigError, SettingError, UnknownKeyError

DEFAULTS = {"lr": 0.1, "beta1": 0.9, "lr_g": 0.1, "width": 3, "dropout": 0.0, "n": 1, "optim": {"momentum": 0.9}}


class Counting(Manager):
    """Trains epochs in which nothing happens."""

    defaults = DEFAULTS

    def train(self) -> None: ...

    def eval(self) -> dict[str, Any]:
        return {"loss_test": 1.0}


@pytest.mark.parametrize(
    "work",
    [
        lambda manager: manager.get_config({"lrr": 0.2}),
        lambda manager: manager.process({"lrr": 0.2}, num_epochs=1),
        lambda manager: manager.batch([{"lrr": 0.2}], num_epochs=1),
        lambda manager: manager.sweep({"lrr": [0.2, 0.3]}, num_epochs=1),
        lambda manager: manager.setup({"lrr": 0.2}),
    ],
)
def test_a_typo_of_a_default_is_refused_and_nothing_is_stored(work: Any) -> None:
    manager = Counting(verbose=False)
    with pytest.raises(UnknownKeyError) as error:
        work(manager)
    head, *rows = str(error.value).splitlines()
    assert head in ("a problem in the config", "a problem in the sweep")
    assert rows[:2] == [
        "  wrong   lrr: no such key; did you mean `lr`?",
        '  try     if it is a new key, pass the manager `new_keys=("lrr",)`',
    ]
    assert list(manager.configs) == []


def test_all_typos_are_reported_at_once_including_those_in_groups() -> None:
    with pytest.raises(ConfigError) as error:
        Counting(verbose=False).get_config({"lrr": 0.2, "optim": {"momentun": 0.5}, "seed": 1})
    assert str(error.value).splitlines() == [
        "2 problems in the config",
        "  wrong   lrr: no such key; did you mean `lr`?",
        "          optim.momentun: no such key; did you mean `optim.momentum`?",
        '  try     if it is a new key, pass the manager `new_keys=("lrr", "optim.momentun")`',
    ]


@pytest.mark.parametrize("key", ["beta2", "lr_d", "width2", "dropout_in", "m", "wd", "seed", "optim.nesterov", "warmup.steps", "note"])
def test_a_clearly_different_key_is_accepted(key: str) -> None:
    manager = Counting(verbose=False)
    manager.process({key: 1}, num_epochs=1)
    assert manager.configs[manager.key] == Config(DEFAULTS) | {key: 1}


def test_a_key_that_is_set_together_with_the_similar_one_is_accepted() -> None:
    assert Counting(verbose=False).get_config({"lrr": 0.2, "lr": 0.3})["lrr"] == 0.2


def test_a_key_that_the_manager_declares_is_accepted() -> None:
    class Own(Counting):
        new_keys = ("optim.momentun",)

    manager = Counting(new_keys=["lrr"], verbose=False)
    manager.process({"lrr": 0.2}, num_epochs=1)
    assert manager.configs[manager.key].lrr == 0.2
    assert Own(verbose=False).get_config({"optim.momentun": 1}).optim.momentun == 1
    with pytest.raises(SettingError, match="new_keys='lrr': expected dotted keys"):
        Counting(new_keys="lrr")


def test_a_key_that_stored_runs_have_is_accepted(tmp_path: Path) -> None:
    Counting(tmp_path, {"depth": 1}, verbose=False).process({"lrr": 0.2}, num_epochs=1)
    manager = Counting(tmp_path, verbose=False)
    manager.process({"lrr": 0.3}, num_epochs=1)
    assert manager.configs[manager.key].lrr == 0.3
    with pytest.raises(UnknownKeyError, match="widht"):
        manager.process({"lrr": 0.3, "widht": 4}, num_epochs=1)


def test_the_store_is_only_searched_for_a_near_miss(tmp_path: Path) -> None:
    manager = Counting(tmp_path, verbose=False)
    manager.configs.add({"lrr": 1})
    manager.get_config({"note": 1})
    assert not (tmp_path / "index").exists()
    manager.get_config({"lrr": 1})
    (tmp_path / "configs").rename(tmp_path / "gone")
    assert manager.get_config({"lrr": 2})["lrr"] == 2  # the store is searched only once


def test_the_result_of_get_config_can_be_passed_to_get_config_again() -> None:
    manager = Counting(new_keys=("lrr",), verbose=False)
    made = manager.get_config({"lrr": 0.2})
    assert Counting(verbose=False).get_config(made) == made


def test_a_manager_without_defaults_accepts_any_key() -> None:
    assert Counting(None, {}, verbose=False).get_config({"lrr": 1}) == {"lrr": 1}
