"""`Manager` calls its methods in a fixed order, keeps the state of a run, and raises helpful errors."""

from __future__ import annotations

import contextlib
import copy
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainmaster import Config, ConfigBase, ConfigError, Manager, Replicate, Stateless, configclass, key_of
from trainmaster.errors import KeyTextError, RunBusyError, SettingError, UnknownKeyError, UnknownRunError
from trainmaster.store.lease import Hold, holder_of


class Counting(Manager):
    """Trains by counting its epochs, and records which method was called in which epoch."""

    def __init__(self, *args: Any, verbose: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, verbose=verbose, **kwargs)
        self.calls: list[tuple[str, int]] = []

    def setup(self, config: Any) -> None:
        super().setup(config)
        self.calls.append(("setup", self.epoch))

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["x"] = 0
        self.calls.append(("init", self.epoch))

    def train(self) -> None:
        self.calls.append(("train", self.epoch))
        self.ckpt["x"] += 1

    def eval(self) -> Any:
        self.calls.append(("eval", self.epoch))
        return {"loss_test": float(self.ckpt["x"])}

    def save_ckpt(self) -> None:
        self.calls.append(("save", self.epoch))
        super().save_ckpt()

    def load_ckpt(self) -> None:
        super().load_ckpt()
        self.calls.append(("load", self.epoch))

    def epochs_of(self, name: str) -> list[int]:
        return [epoch for each, epoch in self.calls if each == name]


class Failing(Counting):
    """Raises `error` in the method named by `where`, at epoch `at` or at any epoch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.where, self.at = "", None
        self.error: BaseException = ValueError("the disk sings")

    def _fail(self, where: str) -> None:
        if where == self.where and self.at in (None, self.epoch):
            raise self.error

    def setup(self, config: Any) -> None:
        super().setup(config)
        self._fail("setup")

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self._fail("init")

    def train(self) -> None:
        super().train()
        self._fail("train")

    def eval(self) -> Any:
        self._fail("eval")
        return super().eval()

    def save_ckpt(self) -> None:
        self._fail("save")
        super().save_ckpt()

    def load_ckpt(self) -> None:
        super().load_ckpt()
        self._fail("load")


class Drawing(Counting):
    """Sums random numbers from all generators: two sums are equal only if all random numbers are equal."""

    def setup(self, config: Any) -> None:
        super().setup(config)
        self.start = float(torch.rand(()))

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["x"] = self.start

    def train(self) -> None:
        self.ckpt["x"] += float(torch.rand(())) + random.random() + float(np.random.rand()) + random.gauss(0, 1)


def outcome(manager: Manager, key: str) -> dict[str, Any]:
    """Return the outcome of the newest attempt of a run."""
    run = manager.store.run(key)
    found = run.outcome_of(run.newest())
    assert found is not None
    return found


# ---- the order of calls, and the epochs they see (J9, J10)


def test_a_new_run_is_set_up_initialized_evaluated_saved_and_then_trained() -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=2)
    assert manager.calls == [
        ("setup", -1), ("init", 0), ("eval", 0), ("save", 0),
        ("train", 1), ("eval", 1), ("save", 1),
        ("train", 2), ("eval", 2), ("save", 2),
    ]  # fmt: skip


def test_a_resumed_run_is_set_up_and_loaded_and_not_initialized() -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=1)
    manager.calls.clear()
    manager.process({"a": 1}, num_epochs=2)
    assert manager.calls == [("setup", -1), ("load", 1), ("train", 2), ("eval", 2), ("save", 2)]


def test_epoch_0_is_evaluated_and_saved() -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=0)
    assert manager.stats[manager.key]["epoch"] == 0
    assert manager.ckpts[manager.key] == {"eval_records": {0: {"loss_test": 0.0}}, "x": 0}
    assert manager.previews[manager.key] == {"loss_test": 0.0}


def test_num_epochs_0_only_evaluates() -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=0)
    assert manager.epochs_of("train") == []
    assert manager.epochs_of("eval") == [0]


def test_num_epochs_is_the_total_number_of_epochs() -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=3)
    manager.process({"a": 1}, num_epochs=3)
    manager.process({"a": 1}, num_epochs=5)
    assert manager.epochs_of("train") == [1, 2, 3, 4, 5]
    assert manager.ckpts[manager.key]["x"] == 5


def test_a_run_that_has_reached_its_target_is_loaded_and_not_changed() -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=3)
    before = manager.stats[manager.key]
    manager.calls.clear()
    manager.process({"a": 1}, num_epochs=2)
    assert manager.calls == [("setup", -1), ("load", 3)]
    assert (manager.epoch, manager.ckpt["x"]) == (3, 3)
    assert manager.stats[manager.key] == before


@pytest.mark.parametrize("name", ["epochs", "num_epochs"])
def test_num_epochs_defaults_to_the_epochs_of_the_config(name: str) -> None:
    manager = Counting(None, {name: 2})
    manager.process({"a": 1})
    assert manager.epochs_of("train") == [1, 2]


def test_without_any_number_of_epochs_a_run_is_only_evaluated() -> None:
    manager = Counting()
    manager.process({"a": 1})
    assert (manager.epochs_of("train"), manager.epochs_of("eval")) == ([], [0])


def test_epochs_in_the_config_are_part_of_the_key_and_the_target_is_not() -> None:
    manager = Counting()
    manager.process({"a": 1, "epochs": 1})
    manager.process({"a": 1, "epochs": 1}, num_epochs=3)
    assert manager.epochs_of("train") == [1, 2, 3]
    assert len(manager.configs) == 1
    manager.process({"a": 1, "epochs": 3})
    assert manager.epochs_of("train") == [1, 2, 3, 1, 2, 3]
    assert len(manager.configs) == 2


def test_num_epochs_overrides_the_epochs_of_the_config() -> None:
    manager = Counting()
    manager.process({"a": 1, "epochs": 5}, num_epochs=1)
    assert manager.epochs_of("train") == [1]


def test_a_run_is_evaluated_every_eval_interval_and_at_the_end() -> None:
    manager = Counting(eval_interval=3)
    manager.process({"a": 1}, num_epochs=7)
    assert manager.epochs_of("eval") == [0, 3, 6, 7]
    assert list(manager.ckpts[manager.key]["eval_records"]) == [0, 3, 6, 7]


def test_a_run_is_saved_every_save_interval_and_at_the_end() -> None:
    manager = Counting(save_interval=3)
    manager.process({"a": 1}, num_epochs=7)
    assert manager.epochs_of("save") == [0, 3, 6, 7]


def test_an_epoch_is_evaluated_before_it_is_saved() -> None:
    manager = Counting(eval_interval=5, save_interval=5)
    manager.process({"a": 1}, num_epochs=5)
    assert manager.calls[-2:] == [("eval", 5), ("save", 5)]


def test_a_failed_run_resumes_from_its_last_checkpoint() -> None:
    manager = Failing(save_interval=2)
    manager.where, manager.at = "train", 4
    with pytest.raises(ValueError, match="the disk sings"):
        manager.process({"a": 1}, num_epochs=5)
    manager.where = ""
    manager.calls.clear()
    manager.process({"a": 1}, num_epochs=5)
    assert manager.calls[1] == ("load", 2)
    assert manager.epochs_of("train") == [3, 4, 5]
    assert manager.ckpts[manager.key]["x"] == 5


def test_the_evaluations_of_repeated_epochs_are_recorded_once() -> None:
    manager = Failing(save_interval=2)
    manager.where, manager.at = "train", 4
    with contextlib.suppress(ValueError):
        manager.process({"a": 1}, num_epochs=4)
    manager.where = ""
    manager.process({"a": 1}, num_epochs=4)
    assert [event["epoch"] for event in manager.store.run(manager.key).events()] == [0, 1, 2, 3, 4]
    assert list(manager.ckpts[manager.key]["eval_records"]) == [0, 1, 2, 3, 4]


# ---- the state in user methods (J9)


def test_ckpt_and_preview_start_empty_except_for_the_eval_records() -> None:
    seen: list[Any] = []

    class Looking(Counting):
        def init_ckpt(self) -> None:
            Manager.init_ckpt(self)
            seen.append(copy.deepcopy((self.ckpt, self.preview)))
            self.ckpt["x"] = 0

    Looking().process({"a": 1}, num_epochs=1)
    assert seen == [({"eval_records": {}}, {})]


def test_a_second_run_has_no_state_of_the_first() -> None:
    class Looking(Counting):
        def setup(self, config: Any) -> None:
            super().setup(config)
            self.seen = copy.deepcopy((self.epoch, self.ckpt, self.preview, self.config["a"]))

    manager = Looking()
    manager.process({"a": 1}, num_epochs=2)
    manager.process({"a": 2}, num_epochs=0)
    assert manager.seen == (-1, {"eval_records": {}}, {}, 2)


def test_the_result_of_eval_is_recorded_and_becomes_the_preview() -> None:
    class Naming(Counting):
        def eval(self) -> Any:
            return {"loss_test": 0.5, "name": f"epoch {self.epoch}", "curve": [1, 2]}

    manager = Naming()
    manager.process({"a": 1}, num_epochs=1)
    found = {"loss_test": 0.5, "name": "epoch 1", "curve": [1, 2]}
    assert manager.ckpts[manager.key]["eval_records"][1] == found
    assert manager.previews[manager.key] == found


def test_scalars_of_torch_and_numpy_are_recorded_as_plain_numbers() -> None:
    class Scalars(Counting):
        def eval(self) -> Any:
            return {"t": torch.tensor(2.0, requires_grad=True), "n": np.float64(0.5), "i": np.int64(3)}

    manager = Scalars()
    manager.process({"a": 1}, num_epochs=0)
    preview = manager.previews[manager.key]
    assert preview == {"t": 2.0, "n": 0.5, "i": 3}
    assert [type(value) for value in preview.values()] == [float, float, int]


def test_an_eval_that_returns_none_may_fill_records_and_preview_itself() -> None:
    class OldStyle(Counting):
        def eval(self) -> Any:
            self.ckpt["eval_records"][self.epoch] = {"acc": 0.5}
            self.preview["acc_test"] = 0.5

    manager = OldStyle()
    manager.process({"a": 1}, num_epochs=1)
    assert manager.ckpts[manager.key]["eval_records"] == {0: {"acc": 0.5}, 1: {"acc": 0.5}}
    assert manager.previews[manager.key] == {"acc_test": 0.5}


def test_a_nan_from_eval_is_recorded_as_nan() -> None:
    class Lost(Counting):
        def eval(self) -> Any:
            return {"loss_test": float("nan"), "most": float("inf")}

    manager = Lost()
    manager.process({"a": 1}, num_epochs=1)
    assert np.isnan(manager.previews[manager.key]["loss_test"])
    assert manager.previews[manager.key]["most"] == float("inf")


def test_an_eval_that_does_not_return_a_mapping_is_an_error() -> None:
    class Bare(Counting):
        def eval(self) -> Any:
            return 0.5

    with pytest.raises(SettingError, match=re.escape("`Bare.eval()` returned 0.5: expected numbers by name")):
        Bare().process({"a": 1}, num_epochs=1)


def test_user_methods_can_use_the_archives() -> None:
    class Looking(Counting):
        def train(self) -> None:
            super().train()
            self.seen = (self.configs[self.key]["a"], self.stats[self.key]["epoch"], self.ckpts[self.key]["x"], self.previews[self.key])

    manager = Looking()
    manager.process({"a": 7}, num_epochs=2)
    assert manager.seen == (7, 1, 1, {"loss_test": 1.0})


def test_only_the_last_checkpoints_are_kept() -> None:
    manager = Counting(keep=2)
    manager.process({"a": 1}, num_epochs=5)
    assert [name.step for name in manager.store.run(manager.key).checkpoints()] == [5, 4]


def test_changing_a_value_after_the_save_does_not_change_the_store() -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=1)
    manager.ckpt["eval_records"].clear()
    manager.preview["loss_test"] = -1.0
    assert list(manager.ckpts[manager.key]["eval_records"]) == [0, 1]
    assert manager.previews[manager.key] == {"loss_test": 1.0}


# ---- resume=False


@pytest.fixture
def started_again() -> Counting:
    """Return a manager that trained a run for three epochs, and then again from scratch for two epochs."""
    manager = Counting()
    manager.process({"a": 1}, num_epochs=3)
    manager.calls.clear()
    manager.process({"a": 1}, num_epochs=2, resume=False)
    return manager


def test_resume_false_starts_at_epoch_0(started_again: Counting) -> None:
    assert started_again.epochs_of("train") == [1, 2]
    assert started_again.epochs_of("load") == []
    assert started_again.stats[started_again.key]["epoch"] == 2
    assert started_again.ckpts[started_again.key]["x"] == 2


def test_resume_false_creates_a_new_attempt_and_keeps_the_old_one(started_again: Counting) -> None:
    run = started_again.store.run(started_again.key)
    assert run.attempts() == [2, 1]
    first, second = run.outcome_of(1), run.outcome_of(2)
    assert first is not None
    assert second is not None
    assert (first["outcome"], first["epoch"], second["outcome"], second["epoch"]) == ("finished", 3, "finished", 2)
    assert [event["epoch"] for event in run.events()] == [0, 1, 2]


def test_resume_false_keeps_the_checkpoints_of_the_old_attempt(started_again: Counting) -> None:
    assert [name.step for name in started_again.store.run(started_again.key).own_checkpoints(1)] == [3, 2, 1]


def test_a_fresh_start_that_fails_in_setup_keeps_the_old_result() -> None:
    manager = Failing()
    manager.process({"a": 1}, num_epochs=3)
    manager.where = "setup"
    with contextlib.suppress(ValueError):
        manager.process({"a": 1}, num_epochs=5, resume=False)
    assert manager.stats[manager.key]["epoch"] == 3


# ---- stats (J11)


def test_stats_have_the_epoch_and_the_times_of_a_run() -> None:
    before = time.time()
    manager = Counting()
    manager.process({"a": 1}, num_epochs=2)
    stats = manager.stats[manager.key]
    assert set(stats) == {"epoch", "toc", "t_train", "t_eval"}
    assert stats["epoch"] == 2
    assert before <= stats["toc"] <= time.time()
    assert 0 < stats["t_train"] < 1
    assert 0 < stats["t_eval"] < 1


def test_the_epoch_is_minus_1_before_the_first_checkpoint() -> None:
    class Looking(Counting):
        def eval(self) -> Any:
            self.seen = getattr(self, "seen", None) or self.stats[self.key]
            return super().eval()

    before = time.time()
    manager = Looking()
    manager.process({"a": 1}, num_epochs=1)
    assert manager.seen | {"toc": None} == {"epoch": -1, "t_train": None, "t_eval": None, "toc": None}
    assert before <= manager.seen["toc"] <= time.time()


def test_a_claim_is_visible_while_the_run_is_set_up() -> None:
    class Looking(Counting):
        def setup(self, config: Any) -> None:
            super().setup(config)
            self.seen = self.stats.get(self.key)

    manager = Looking()
    manager.process({"a": 1}, num_epochs=0)
    assert manager.seen is not None
    assert manager.seen["epoch"] == -1


class Slow(Counting):
    """Sleeps, and measures how long it slept."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mean = None

    def train(self) -> None:
        super().train()
        started = time.monotonic()
        time.sleep(0.2 if self.epoch == 1 else 0.0)
        seconds = time.monotonic() - started
        self.mean = seconds if self.mean is None else 0.8 * self.mean + 0.2 * seconds


def test_times_are_running_means_with_a_weight_of_four_fifths() -> None:
    manager = Slow()
    manager.process({"a": 1}, num_epochs=3)
    assert manager.stats[manager.key]["t_train"] == pytest.approx(manager.mean, abs=0.03)


def test_mean_times_are_restored_when_a_run_resumes() -> None:
    manager = Slow()
    manager.process({"a": 1}, num_epochs=1)
    manager.process({"a": 2}, num_epochs=0)  # trains another run in between
    manager.process({"a": 1}, num_epochs=2)
    assert manager.stats[manager.key]["t_train"] == pytest.approx(manager.mean, abs=0.03)


# ---- methods that are missing, or do not call the base method


def test_a_manager_without_train_is_an_error() -> None:
    class Idle(Manager):
        def eval(self) -> Any:
            return {}

    with pytest.raises(NotImplementedError, match=re.escape("Idle has no `train()`, which trains one epoch")):
        Idle(verbose=False).process({"a": 1}, num_epochs=1)


def test_a_manager_without_eval_is_an_error() -> None:
    class Blind(Manager):
        def train(self) -> None: ...

    with pytest.raises(NotImplementedError, match=re.escape("Blind has no `eval()`, which returns metrics by name")):
        Blind(verbose=False).process({"a": 1}, num_epochs=1)


def test_a_save_ckpt_without_the_base_call_is_an_error() -> None:
    class Forgetful(Counting):
        def save_ckpt(self) -> None:
            self.ckpt["y"] = 1

    with pytest.raises(
        SettingError, match=r"`Forgetful\.save_ckpt\(\)` saves nothing\n  try     call `super\(\)\.save_ckpt\(\)` at its end"
    ):
        Forgetful().process({"a": 1}, num_epochs=1)


def test_a_save_ckpt_without_the_base_call_is_an_error_after_a_resume() -> None:
    class Forgetful(Counting):
        def save_ckpt(self) -> None:
            if self.epoch < 2:
                super().save_ckpt()

    manager = Forgetful()
    manager.process({"a": 1}, num_epochs=1)
    with pytest.raises(SettingError, match=r"`Forgetful\.save_ckpt\(\)` saves nothing"):
        manager.process({"a": 1}, num_epochs=2)


def test_a_load_ckpt_without_the_base_call_is_an_error() -> None:
    class Forgetful(Counting):
        def load_ckpt(self) -> None:
            self.y = 1

    manager = Forgetful()
    manager.process({"a": 1}, num_epochs=1)
    with pytest.raises(SettingError, match=r"`Forgetful\.load_ckpt\(\)` loads nothing\n  try     call `super\(\)\.load_ckpt\(\)` first"):
        manager.process({"a": 1}, num_epochs=2)


def test_an_init_ckpt_without_the_base_call_is_an_error() -> None:
    class Forgetful(Counting):
        def init_ckpt(self) -> None:
            self.ckpt["x"] = 0

    manager = Forgetful()
    with pytest.raises(SettingError, match=r"`Forgetful\.init_ckpt\(\)` .*\n  try     call `super\(\)\.init_ckpt\(\)` first"):
        manager.process({"a": 1}, num_epochs=2)


def test_a_setup_without_the_base_call_cannot_load_the_checkpoint_of_another_run() -> None:
    class Forgetful(Counting):
        def setup(self, config: Any) -> None:
            self.a = config["a"]

    manager = Forgetful()
    with pytest.raises(SettingError, match=r"`Forgetful\.setup\(\)` .*\n  try     call `super\(\)\.setup\(config\)` first"):
        manager.process({"a": 1}, num_epochs=3)
        key = manager.key
        manager.process({"a": 2}, num_epochs=5)
        manager.setup(manager.configs[key])
        manager.load_ckpt()


def test_the_base_load_ckpt_raises_if_there_is_no_checkpoint() -> None:
    manager = Counting()
    manager.setup({"a": 1})
    with pytest.raises(UnknownRunError, match=f"run {manager.key} has no checkpoint\n  try     `process` trains it"):
        manager.load_ckpt()


def test_load_ckpt_before_setup_is_an_error() -> None:
    with pytest.raises(SettingError, match=r"nothing is set up\n  try     call `setup\(config\)` first"):
        Counting().load_ckpt()


def test_save_ckpt_outside_of_training_is_refused() -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=1)
    with pytest.raises(SettingError, match=r"`save_ckpt\(\)` only works while `process` trains a run\n  try     `ckpts\[key\] = ...`"):
        manager.save_ckpt()


# ---- one manager trains one run at a time


@pytest.mark.parametrize("where", ["setup", "train", "eval"])
@pytest.mark.parametrize("call", ["fetch", "process", "process done"])
def test_a_manager_refuses_to_start_another_run_during_training(where: str, call: str) -> None:
    class Distracted(Counting):
        other = ""

        def _turn(self, here: str) -> None:
            if self.other and here == where:
                other, self.other = self.other, ""
                if call == "fetch":
                    self.fetch(other)
                else:
                    self.process({"a": 1}, num_epochs=9 if call == "process" else 1)

        def setup(self, config: Any) -> None:
            super().setup(config)
            self._turn("setup")

        def train(self) -> None:
            super().train()
            self._turn("train")

        def eval(self) -> Any:
            self._turn("eval")
            return super().eval()

    manager = Distracted()
    manager.process({"a": 1}, num_epochs=2)
    manager.other = manager.key
    key = key_of({"a": 2})
    with pytest.raises(SettingError, match=f"this manager is already training run {key}\n  try     use another manager"):
        manager.process({"a": 2}, num_epochs=2)
    manager.process({"a": 2}, num_epochs=2)
    assert manager.ckpts[key]["x"] == 2


def test_a_run_that_another_manager_of_this_process_holds_is_busy(tmp_path: Path) -> None:
    class Nested(Counting):
        def train(self) -> None:
            super().train()
            Counting(tmp_path).process({"a": 1}, num_epochs=5)

    with pytest.raises(RunBusyError, match=f"run {key_of({'a': 1})} is held by process"):
        Nested(tmp_path).process({"a": 1}, num_epochs=1)


# ---- bad arguments


@pytest.mark.parametrize("name", ["eval_interval", "save_interval", "disp_interval", "keep"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2", None])
def test_an_invalid_interval_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"`{name}` must be a whole number of at least 1, not "):
        Counting(**{name: value})


@pytest.mark.parametrize("value", [-1, 1.0, True, "3"])
def test_an_invalid_num_epochs_is_refused(value: Any) -> None:
    manager = Counting()
    with pytest.raises(SettingError, match="`num_epochs` must be a whole number of at least 0, not "):
        manager.process({"a": 1}, num_epochs=value)
    assert manager.calls == []


def test_epochs_of_none_count_as_missing() -> None:
    manager = Counting()
    manager.process({"a": 1, "epochs": None})
    assert (manager.epochs_of("train"), manager.epochs_of("eval")) == ([], [0])


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), True, "60"])
def test_an_invalid_lease_time_is_refused(value: Any) -> None:
    with pytest.raises(Exception, match="`lease_time` must be a number above 0"):
        Counting(lease_time=value)


@pytest.mark.parametrize("config", [[1], 3, 0, False, (("a",),)])
def test_an_invalid_config_is_refused_and_nothing_is_stored(config: Any) -> None:
    manager = Counting()
    with pytest.raises(ConfigError, match="expected a dict"):
        manager.process(config, num_epochs=1)
    assert len(manager.configs) == 0


def test_invalid_defaults_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected a dict"):
        Counting(None, 3)


def test_a_missing_file_of_defaults_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml` cannot be read"):
        Counting(None, tmp_path / "missing.yaml")


def test_a_value_that_cannot_be_stored_is_refused_before_training() -> None:
    manager = Counting()
    with pytest.raises(ConfigError, match="set cannot be stored in a config: a set has no order; write a sorted list"):
        manager.process({"a": {1, 2}}, num_epochs=1)
    assert manager.calls == []


@pytest.mark.parametrize("key", ["zz", "", "ABCDEF12", 12345678])
def test_fetch_accepts_only_keys(key: Any) -> None:
    with pytest.raises(KeyTextError, match="is not a key"):
        Counting().fetch(key)


def test_fetch_of_an_unknown_key_is_an_error() -> None:
    with pytest.raises(UnknownRunError, match="no config has the key aaaaaaaa"):
        Counting().fetch("aaaaaaaa")


def test_fetch_of_a_run_without_a_checkpoint_is_an_error() -> None:
    manager = Counting()
    key = manager.configs.add({"a": 1})
    with pytest.raises(UnknownRunError, match=f"run {key} has no checkpoint"):
        manager.fetch(key)


# ---- failures (J14)


@pytest.mark.parametrize("where", ["setup", "init", "train", "eval", "save"])
def test_an_error_in_user_code_is_recorded_with_its_reason(where: str) -> None:
    manager = Failing()
    manager.where = where
    with pytest.raises(ValueError, match="the disk sings"):
        manager.process({"a": 1}, num_epochs=1)
    found = outcome(manager, manager.key)
    assert (found["outcome"], found["error"]) == ("failed", "ValueError: the disk sings")
    assert "in _fail" in found["traceback"]


def test_an_error_in_load_ckpt_is_recorded_with_its_reason() -> None:
    manager = Failing()
    manager.process({"a": 1}, num_epochs=1)
    manager.where = "load"
    with pytest.raises(ValueError, match="the disk sings"):
        manager.process({"a": 1}, num_epochs=2)
    assert outcome(manager, manager.key)["error"] == "ValueError: the disk sings"


@pytest.mark.parametrize("where", ["setup", "init", "train", "eval", "save"])
def test_an_error_in_user_code_releases_the_run_at_once(where: str, tmp_path: Path) -> None:
    manager = Failing(tmp_path)
    manager.where = where
    with contextlib.suppress(ValueError):
        manager.process({"a": 1}, num_epochs=1)
    assert holder_of(manager.store.run(manager.key)).hold is Hold.FREE
    Counting(tmp_path).process({"a": 1}, num_epochs=1)
    assert manager.stats[manager.key]["epoch"] == 1


def test_an_error_names_the_stage_the_key_and_the_epoch() -> None:
    manager = Failing()
    manager.where, manager.at = "train", 2
    with pytest.raises(ValueError, match="the disk sings") as caught:
        manager.process({"a": 1}, num_epochs=3)
    assert caught.value.__notes__ == [f"in stage work > work_train, key {manager.key}, epoch 2"]


@pytest.mark.parametrize(
    ("error", "recorded"), [(KeyboardInterrupt(), "interrupted"), (SystemExit(143), "interrupted"), (SystemExit(3), "failed")]
)
def test_an_interrupt_is_recorded_as_interrupted_and_an_exit_as_failed(error: BaseException, recorded: str) -> None:
    manager = Failing()
    manager.where, manager.error = "train", error
    with pytest.raises(type(error)):
        manager.process({"a": 1}, num_epochs=1)
    found = outcome(manager, manager.key)
    assert found["outcome"] == recorded
    assert found["error"].startswith(type(error).__name__)
    assert holder_of(manager.store.run(manager.key)).hold is Hold.FREE


def test_the_same_manager_can_be_used_after_an_interrupt() -> None:
    manager = Failing()
    manager.where, manager.error = "train", KeyboardInterrupt()
    with contextlib.suppress(KeyboardInterrupt):
        manager.process({"a": 1}, num_epochs=1)
    manager.where = ""
    manager.process({"a": 1}, num_epochs=2)
    assert manager.stats[manager.key]["epoch"] == 2


def test_a_run_that_reaches_its_target_is_recorded_as_finished() -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=2)
    found = outcome(manager, manager.key)
    assert (found["outcome"], found["epoch"]) == ("finished", 2)


def test_an_error_whose_text_cannot_be_computed_is_still_raised() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    manager = Failing()
    manager.where, manager.error = "train", MuteError()
    with pytest.raises(MuteError):
        manager.process({"a": 1}, num_epochs=1)
    assert outcome(manager, manager.key)["error"].startswith("MuteError")


def test_a_number_that_is_too_large_for_a_float_does_not_stop_training() -> None:
    class Exact(Counting):
        def eval(self) -> Any:
            return {"num_paths": 10**400}

    manager = Exact()
    manager.process({"a": 1}, num_epochs=1)
    assert manager.previews[manager.key] == {"num_paths": 10**400}


# ---- free configs


def test_defaults_complete_a_plain_dict() -> None:
    manager = Counting(None, {"lr": 0.1, "optim": {"momentum": 0.9, "name": "sgd"}})
    assert manager.get_config({"optim": {"name": "adam"}}) == {"lr": 0.1, "optim": {"momentum": 0.9, "name": "adam"}}
    assert manager.get_config({"optim.name": "adam"}) == {"lr": 0.1, "optim": {"momentum": 0.9, "name": "adam"}}


def test_process_without_a_config_trains_the_defaults() -> None:
    manager = Counting(None, {"lr": 0.1})
    manager.process(num_epochs=1)
    assert manager.configs[manager.key] == {"lr": 0.1}


def test_setup_completes_a_plain_dict_with_the_defaults() -> None:
    manager = Counting(None, {"lr": 0.1})
    manager.setup({"a": 1})
    assert manager.config == {"a": 1, "lr": 0.1}
    assert manager.key == key_of({"a": 1, "lr": 0.1})


def test_overview_compare_and_group_complete_plain_dicts_with_the_defaults() -> None:
    manager = Counting(None, {"lr": 0.1})
    manager.process({"a": 1}, num_epochs=1)
    assert manager.overview([{"a": 1}]).keys == [manager.key]
    assert manager.compare([{"a": 1}, {"a": 2}])[0] == {"lr": 0.1}
    assert manager.group([{"a": 1}]) == [[{"a": 1, "lr": 0.1}]]


def test_a_config_can_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("a: 1\nepochs: 2\n")
    manager = Counting(None, {"lr": 0.1})
    manager.process(path)
    assert (manager.config["a"], manager.config["lr"], manager.epoch) == (1, 0.1, 2)


def test_neither_the_config_nor_the_defaults_are_modified() -> None:
    class Meddling(Counting):
        def setup(self, config: Any) -> None:
            super().setup(config)
            self.config["optim"]["name"] = "changed"
            self.config["sizes"].append(9)
            config["sizes"].append(8)

    given, defaults = {"optim": Config({"lr": 1.0})}, {"optim": {"name": "sgd"}, "sizes": [1]}
    manager = Meddling(None, defaults)
    manager.process(given, num_epochs=1)
    assert given == {"optim": {"lr": 1.0}}
    assert manager.defaults == defaults == {"optim": {"name": "sgd"}, "sizes": [1]}
    assert manager.configs[manager.key] == {"optim": {"lr": 1.0, "name": "sgd"}, "sizes": [1]}


def test_configs_that_get_config_normalizes_to_the_same_values_are_one_run() -> None:
    class Normal(Counting):
        def get_config(self, config: Any = None) -> Any:
            config = super().get_config(config)
            if config["arch"] == "linear":
                config["depth"] = 1
            return config

    manager = Normal(None, {"depth": 3})
    manager.process({"arch": "linear", "depth": 5}, num_epochs=1)
    manager.process({"arch": "linear"}, num_epochs=1)
    assert manager.epochs_of("train") == [1]
    assert list(manager.configs.values()) == [{"arch": "linear", "depth": 1}]


def test_get_config_is_called_once_and_checked_once() -> None:
    calls: list[Any] = []

    class Adjusting(Counting):
        def get_config(self, config: Any = None) -> Any:
            calls.append(config)
            return super().get_config(config)

    manager = Adjusting(None, {"b": 2})
    manager.process({"a": 1}, num_epochs=1)
    assert calls == [{"a": 1}, {"a": 1, "b": 2}]
    assert calls[1] is manager.config  # the second call checks that `get_config` is idempotent


def test_a_get_config_that_is_not_idempotent_is_refused() -> None:
    class Restless(Counting):
        def get_config(self, config: Any = None) -> Any:
            config = super().get_config(config)
            config["n"] = config.get("n", 0) + 1
            return config

    manager = Restless()
    with pytest.raises(SettingError, match=r"`Restless\.get_config\(\)` changes a config that it returned itself"):
        manager.process({"a": 1}, num_epochs=1)
    assert manager.epochs_of("train") == []


# ---- typed configs


@configclass
class Typed(ConfigBase):
    lr: float = 0.1
    epochs: int = 2
    note: Stateless[str] = ""


@configclass
class Repeated(ConfigBase):
    a: int = 1
    fold: Replicate[int] = 0
    random_seed: int | None = None


@configclass
class Strict(ConfigBase):
    lr: float


@pytest.mark.parametrize("defaults", [Typed, Typed()], ids=["class", "instance"])
def test_a_plain_dict_becomes_a_typed_config_of_the_class_of_the_defaults(defaults: Any) -> None:
    manager = Counting(None, defaults)
    manager.process({"lr": 0.5})
    assert manager.config == Typed(lr=0.5)
    assert manager.epochs_of("train") == [1, 2]


def test_an_instance_as_defaults_provides_its_values() -> None:
    manager = Counting(None, Typed(lr=0.7, epochs=1))
    manager.process()
    assert manager.config == Typed(lr=0.7, epochs=1)
    assert manager.epochs_of("train") == [1]


def test_a_typed_config_is_checked_before_anything_is_stored() -> None:
    manager = Counting(None, Typed)
    with pytest.raises(ConfigError, match="lr = 'much': expected a number"):
        manager.process({"lr": "much"})
    with pytest.raises(UnknownKeyError, match="lx = 1: Typed has no such field"):
        manager.process({"lx": 1})
    assert len(manager.configs) == 0


def test_a_class_with_a_required_field_can_be_the_defaults() -> None:
    manager = Counting(None, Strict)
    manager.process({"lr": 0.5}, num_epochs=1)
    assert manager.config == Strict(lr=0.5)


@pytest.mark.parametrize("defaults", [None, {"z": 1}, Typed], ids=["none", "free", "typed"])
def test_a_typed_config_is_trained_with_its_own_values(defaults: Any) -> None:
    manager = Counting(None, defaults)
    manager.process(Typed(lr=0.5, epochs=1))
    assert manager.config == Typed(lr=0.5, epochs=1)
    assert manager.key == key_of(Typed(lr=0.5, epochs=1))
    assert manager.epochs_of("train") == [1]


def test_stateless_fields_do_not_create_another_run() -> None:
    manager = Counting(None, Typed)
    manager.process(Typed(note="first"))
    manager.process({"note": "second"}, num_epochs=3)
    assert manager.epochs_of("train") == [1, 2, 3]
    assert len(manager.configs) == 1


def test_fetch_returns_a_typed_config() -> None:
    manager = Counting(None, Typed)
    manager.process({"lr": 0.5, "note": "mine"})
    key = manager.key
    manager.process({"lr": 0.6})
    assert manager.fetch(key).config == Typed(lr=0.5, note="mine")


def test_fetch_without_the_class_of_the_config_says_what_to_pass() -> None:
    manager = Counting()
    manager.process(Typed(lr=0.5))
    with pytest.raises(SettingError, match=f"`get_config` changes the stored config of run {manager.key}") as caught:
        manager.fetch(manager.key)
    assert "give `defaults` the class of config that it was stored as" in str(caught.value)


def test_changing_a_typed_config_after_the_call_has_no_effect() -> None:
    config = Typed(lr=0.5)
    manager = Counting()
    manager.process(config)
    config.lr = 0.9
    assert manager.config.lr == 0.5


# ---- random numbers


def trained(config: Any, before: Callable[[], Any] = lambda: None, **kwargs: Any) -> float:
    before()
    manager = Drawing(**kwargs)
    manager.process(config, num_epochs=3)
    return float(manager.ckpt["x"])


def test_earlier_work_in_the_process_does_not_affect_a_run() -> None:
    def stir() -> None:
        torch.rand(5)
        np.random.rand(3)
        random.gauss(0, 1)
        trained({"a": 5})

    assert trained({"a": 1}) == trained({"a": 1}, before=stir)


def test_the_seed_of_the_config_determines_the_random_numbers() -> None:
    assert trained({"a": 1, "seed": 3}) == trained({"a": 2, "seed": 3})
    assert trained({"a": 1, "seed": 3}) != trained({"a": 1, "seed": 4})


def test_configs_without_a_seed_start_with_the_same_random_numbers() -> None:
    assert trained({"a": 1}) == trained({"a": 2}) == trained({"a": 1, "seed": 0}) == trained({"a": 1, "random_seed": None})
    assert trained({"a": 1, "random_seed": 1}) != trained({"a": 1, "random_seed": 2})


def test_the_field_marked_replicate_is_the_seed() -> None:
    assert trained(Repeated(fold=1)) == trained({"a": 1, "seed": 1}) != trained(Repeated(fold=2))
    assert trained(Repeated(fold=1, random_seed=5)) == trained(Repeated(fold=1)), (
        "the field marked `Replicate` takes precedence over the name"
    )


@pytest.mark.parametrize(
    ("config", "seed"), [({"a": 1}, 0), ({"seed": 7}, 7), ({"random_seed": 8}, 8), ({"seed": None, "random_seed": 3}, 3)]
)
def test_the_seed_is_recorded_with_the_attempt(config: dict[str, Any], seed: int) -> None:
    manager = Drawing()
    manager.process(config, num_epochs=1)
    assert manager.store.run(manager.key).resume_of(1)["seed"] == seed  # type: ignore[index]


def test_configs_with_the_same_effective_seed_are_one_replicate() -> None:
    manager = Drawing()
    assert manager.group([{"a": 1}, {"a": 1, "seed": 0}, {"a": 1, "random_seed": None}, {"a": 1, "seed": 2}, {"a": 2}]) == [
        [{"a": 1}, {"a": 1, "seed": 2}],
        [{"a": 2}],
    ]


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**32, 2**63, 2**64, 2**100, None, "seven", True, 1.5])
def test_any_seed_in_a_config_is_accepted(seed: Any) -> None:
    assert trained({"seed": seed}) == trained({"seed": seed})


def test_two_managers_that_alternate_do_not_affect_each_other() -> None:
    one, two = Drawing(), Drawing()
    for num_epochs in (1, 2, 3):
        one.process({"a": 1}, num_epochs=num_epochs)
        two.process({"a": 2}, num_epochs=num_epochs)
    assert (one.ckpt["x"], two.ckpt["x"]) == (trained({"a": 1}), trained({"a": 2}))


def test_a_resumed_run_draws_the_same_random_numbers_as_an_uninterrupted_one() -> None:
    class Flaky(Drawing):
        is_broken = True

        def train(self) -> None:
            super().train()
            if self.epoch == 2 and self.is_broken:
                raise ValueError("killed")

    manager = Flaky()
    with contextlib.suppress(ValueError):
        manager.process({"a": 1}, num_epochs=3)
    manager.is_broken = False
    manager.process({"a": 1}, num_epochs=3)
    assert manager.ckpt["x"] == trained({"a": 1})


def test_an_eval_that_draws_random_numbers_does_not_affect_training() -> None:
    class Sampling(Drawing):
        def eval(self) -> Any:
            return {"loss_test": float(torch.rand(()))}

    often, seldom = Sampling(), Sampling(eval_interval=2)
    often.process({"a": 1}, num_epochs=3)
    seldom.process({"a": 1}, num_epochs=3)
    assert often.ckpt["x"] == seldom.ckpt["x"]


def test_raising_the_target_later_gives_the_same_result_as_training_at_once() -> None:
    class Sampling(Drawing):
        def eval(self) -> Any:
            return {"loss_test": float(torch.rand(()))}

    in_steps, at_once = Sampling(eval_interval=2, save_interval=2), Sampling(eval_interval=2, save_interval=2)
    for num_epochs in (1, 3, 6):  # each target ends with an evaluation
        in_steps.process({"a": 1}, num_epochs=num_epochs)
    at_once.process({"a": 1}, num_epochs=6)
    assert in_steps.ckpt["x"] == at_once.ckpt["x"]


def test_the_repr_of_a_manager_has_its_store_and_the_current_run(tmp_path: Path) -> None:
    class Plain(Manager):
        def train(self) -> None: ...

        def eval(self) -> dict[str, float]:
            return {"loss_test": 1.0}

    manager = Plain(tmp_path / "runs", secrets=("token",), verbose=False)
    root = str(tmp_path / "runs")
    assert repr(manager) == f"Plain({root!r})"
    manager.process({"lr": 0.1, "token": "a-secret-value"}, num_epochs=2)
    assert repr(manager) == f"Plain({root!r}, run {manager.key} at epoch 2)"
    assert repr(Manager()) == repr(object.__new__(Manager)) == "Manager(None)"
