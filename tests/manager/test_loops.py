"""A manager with `make_loop` saves checkpoints, records metrics and resumes runs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import EMA, CheckpointSaver, Config, ConfigBase, Extension, Manager, TrainManager, configclass
from trainmaster.errors import ExtensionError, SettingError, UnknownHookError, UnknownRunError
from trainmaster.store import Store

CONFIG = {"lr": 0.01}


class Loop(TrainManager):
    def model_forward(self, batch: Any) -> Any:
        return self.model(batch[0])


def mse(batch: Any, prediction: Any) -> Any:
    return (prediction - batch[1]).pow(2).mean()


class Small(Manager):
    epochs: int | None = 3
    settings: dict[str, Any] = {}

    def make_loop(self, config: Any) -> TrainManager:
        inputs = torch.randn(16, 4)
        targets = inputs.sum(1, keepdim=True)
        data = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
        settings = {"eval_data": {"valid": [(inputs, targets)]}, "device": "cpu", **self.settings}
        if "extensions" in settings:
            settings["extensions"] = settings["extensions"]()
        return Loop(model, mse, self.epochs, data, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=config.lr), **settings)


def small(store_dir: Path | None = None, **attributes: Any) -> Manager:
    kind = type("Small", (Small,), attributes)
    manager: Manager = kind(store_dir, verbose=False)
    return manager


def key_of(manager: Manager, config: Any = CONFIG) -> str:
    key = manager.configs.get_key(manager.get_config(config))
    assert key is not None
    return key


def rows(manager: Manager, config: Any = CONFIG) -> list[tuple[Any, ...]]:
    events = manager.store.run(key_of(manager, config)).events()
    return [(event["tag"], event["step"], event["value"]) for event in events]


def weights(manager: Manager) -> list[torch.Tensor]:
    assert manager.loop is not None
    return [each.detach().clone() for each in manager.loop.model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def undisturbed() -> tuple[list[torch.Tensor], list[tuple[Any, ...]]]:
    manager = small(epochs=4)
    manager.process(CONFIG)
    return weights(manager), rows(manager)


class TestProcess:
    def test_the_loop_sets_the_number_of_epochs(self) -> None:
        manager = small()
        manager.process(CONFIG)
        assert manager.epoch == 3
        assert manager.stats[manager.key]["epoch"] == 3
        assert manager.stats[manager.key]["step"] == 12

    def test_num_epochs_overrides_the_epochs_of_the_loop(self) -> None:
        manager = small()
        manager.process(CONFIG, num_epochs=1)
        assert manager.epoch == 1

    def test_epochs_in_the_config_override_those_of_the_loop(self) -> None:
        manager = small()
        manager.process({**CONFIG, "epochs": 2})
        assert manager.epoch == 2

    def test_more_epochs_continue_with_the_same_bits_and_rows(self, tmp_path: Path, undisturbed: Any) -> None:
        """Covers contract E38."""
        small(tmp_path).process(CONFIG, num_epochs=1)
        manager = small(tmp_path)
        manager.process(CONFIG, num_epochs=4)
        assert same(weights(manager), undisturbed[0])
        assert rows(manager) == undisturbed[1]

    def test_a_run_continues_if_its_loop_now_has_more_epochs(self, tmp_path: Path, undisturbed: Any) -> None:
        small(tmp_path, epochs=2).process(CONFIG)
        manager = small(tmp_path, epochs=4)
        manager.process(CONFIG)
        assert manager.epoch == 4
        assert same(weights(manager), undisturbed[0])

    def test_a_finished_run_is_not_trained_again(self, tmp_path: Path) -> None:
        small(tmp_path).process(CONFIG)
        manager = small(tmp_path)
        manager.process(CONFIG)
        assert manager.store.run(manager.key).attempts() == [1]
        assert manager.epoch == 3
        assert manager.loop is not None
        assert manager.loop.epoch_num == 3

    def test_zero_epochs_only_evaluate_the_run(self) -> None:
        manager = small()
        manager.process(CONFIG, num_epochs=0)
        assert [tag for tag, _, _ in rows(manager)] == ["valid/loss"]
        assert manager.stats[manager.key]["epoch"] == 0

    def test_a_fresh_start_is_a_new_attempt_with_the_same_bits(self, tmp_path: Path) -> None:
        manager = small(tmp_path)
        manager.process(CONFIG)
        before = weights(manager)
        manager.process(CONFIG, resume=False)
        assert same(weights(manager), before)
        assert manager.store.run(manager.key).attempts() == [2, 1]

    def test_random_numbers_depend_only_on_the_config(self) -> None:
        one, other = small(), small()
        one.process(CONFIG)
        torch.manual_seed(99)
        other.process(CONFIG)
        assert same(weights(one), weights(other))

    def test_a_run_that_a_hook_stops_is_finished(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        class Early(Extension):
            def post_eval(self, train_manager: TrainManager, epoch_num: int) -> None:
                if epoch_num == 2:
                    train_manager.stop("no better any more")

        class Stopping(Small):
            extensions = [Early()]

        manager = Stopping(tmp_path, verbose=False)
        manager.process(CONFIG, num_epochs=10)
        run = manager.store.run(manager.key)
        assert run.outcome_of(1)["outcome"] == "finished"  # type: ignore[index]
        assert manager.stats[manager.key]["stopped"] == "no better any more"
        assert Stopping(tmp_path, verbose=False).batch([CONFIG], num_epochs=10).found == [manager.key]
        Stopping(tmp_path).process(CONFIG, num_epochs=10)
        assert capsys.readouterr().out == f"run {manager.key} is at epoch 2 already, no better any more\n"
        manager = Stopping(tmp_path, verbose=False)
        manager.process(CONFIG, num_epochs=12)  # a larger target continues the run
        assert manager.store.run(manager.key).attempts() == [2, 1]

    def test_a_run_that_reaches_max_steps_is_finished(self, tmp_path: Path) -> None:
        manager = small(tmp_path, settings={"max_steps": 6})
        manager.process(CONFIG)
        assert manager.stats[manager.key]["step"] == 6
        assert manager.store.run(manager.key).outcome_of(1)["outcome"] == "finished"  # type: ignore[index]
        assert small(tmp_path, settings={"max_steps": 6}).batch([CONFIG]).found == [manager.key]

    def test_a_run_that_reaches_max_time_is_saved_and_can_be_resumed(self, tmp_path: Path) -> None:
        manager = small(tmp_path, epochs=10**6, settings={"max_time": 0.2})
        manager.process(CONFIG)
        run = manager.store.run(manager.key)
        assert run.outcome_of(1)["outcome"] == "stopped"  # type: ignore[index]
        assert run.outcome_of(1)["reason"] == "max_time was reached"  # type: ignore[index]
        before = manager.stats[manager.key]["step"]
        manager.process(CONFIG)
        assert manager.stats[manager.key]["step"] > before

    def test_an_error_is_recorded_with_its_reason_and_the_last_checkpoint_is_kept(self, tmp_path: Path) -> None:
        class Failing(Extension):
            def pre_train_step_batch(self, step_num: int) -> None:
                if step_num == 9:
                    raise ValueError("no luck")

        class Broken(Small):
            extensions = [Failing()]

        manager = Broken(tmp_path, verbose=False)
        with pytest.raises(ValueError, match="no luck") as caught:
            manager.process(CONFIG)
        assert any("stage run > train > train_step_epoch > train_step_batch" in note for note in caught.value.__notes__)
        run = manager.store.run(manager.key)
        assert run.outcome_of(1)["error"] == "ValueError: no luck"  # type: ignore[index]
        assert manager.stats[manager.key]["epoch"] == 2


class TestRecords:
    def test_every_number_becomes_one_row_of_the_event_log(self) -> None:
        manager = small(epochs=2)
        manager.process(CONFIG)
        assert [(tag, step) for tag, step, _ in rows(manager)] == [
            ("valid/loss", 0),
            ("train/loss", 1),
            ("valid/loss", 1),
            ("train/loss", 2),
            ("valid/loss", 2),
        ]

    def test_the_training_loss_is_the_mean_over_samples(self) -> None:
        losses: list[tuple[float, int]] = []

        class Losses(Extension):
            def post_train_step_batch(self, loss: Any, true_batch_size: int) -> None:
                losses.append((float(loss.detach()), true_batch_size))

        manager = small(epochs=1)
        manager.add_extension("losses", Losses())
        manager.process(CONFIG)
        mean = sum(loss * size for loss, size in losses) / sum(size for _, size in losses)
        assert {tag: value for tag, _, value in rows(manager)}["train/loss"] == mean

    def test_the_preview_has_the_last_value_of_each_metric(self) -> None:
        manager = small()
        manager.process(CONFIG)
        last = {tag: value for tag, _, value in rows(manager)}
        assert manager.previews[manager.key] == last
        assert manager.best_work(p_key="valid/loss") == manager.key

    def test_a_stopped_evaluation_leaves_no_rows(self, tmp_path: Path, undisturbed: Any) -> None:
        """Fault C10: the evaluation is repeated, so each row is recorded once."""

        class StopInEval(Extension):
            is_on = True

            def post_eval_step_epoch(self, train_manager: TrainManager, datasource_name: str, epoch_num: int) -> None:
                if self.is_on and epoch_num == 2:
                    raise KeyboardInterrupt

        class Stopping(Small):
            epochs = 4
            extensions = [StopInEval()]

        manager = Stopping(tmp_path, verbose=False)
        with pytest.raises(KeyboardInterrupt):
            manager.process(CONFIG)
        assert max(step for _, step, _ in rows(manager)) == 2
        again = small(tmp_path, epochs=4)
        again.process(CONFIG)
        assert rows(again) == undisturbed[1]
        assert same(weights(again), undisturbed[0])

    def test_curves_are_drawn_next_to_the_preview(self, tmp_path: Path) -> None:
        manager = small(tmp_path)
        manager.process(CONFIG)
        (picture,) = (tmp_path / "previews").glob("*/*/attempt-0001/plots/curves.png")
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert manager.store.verify() == []

    def test_the_runs_of_a_batch_get_no_curves(self, tmp_path: Path) -> None:
        small(tmp_path).batch([CONFIG])
        assert not list((tmp_path / "previews").glob("*/*/*/plots"))

    def test_the_path_of_the_saver_is_the_folder_of_the_checkpoints_in_the_store(self, tmp_path: Path) -> None:
        manager = small(tmp_path)
        manager.process(CONFIG)
        assert manager.loop is not None
        path = manager.loop["checkpoint_saver"].path  # type: ignore[attr-defined]
        assert path == tmp_path / "ckpts" / manager.key[:2] / manager.key / "attempt-0001"
        assert list(path.iterdir())
        in_memory = small()
        in_memory.process(CONFIG)
        assert in_memory.loop is not None
        assert in_memory.loop["checkpoint_saver"].path is None  # type: ignore[attr-defined]

    def test_one_saver_can_be_used_for_several_runs(self, tmp_path: Path) -> None:
        saver = CheckpointSaver(keep=2)
        manager = small(tmp_path, settings={"extensions": lambda: {"checkpoint_saver": saver}})
        manager.process(CONFIG, num_epochs=1)
        manager.process({"lr": 0.02}, num_epochs=1)
        assert len(list(manager.completed())) == 2

    def test_the_folder_of_the_preview_is_the_train_dir_of_the_loop(self, tmp_path: Path) -> None:
        manager = small(tmp_path)
        manager.process(CONFIG)
        assert manager.loop is not None
        assert manager.loop.train_dir == tmp_path / "previews" / manager.key[:2] / manager.key / "attempt-0001"

    def test_printed_lines_are_in_the_log_of_the_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        manager = small(tmp_path)
        manager.process(CONFIG)
        assert capsys.readouterr().out == ""
        (log,) = (tmp_path / "stats").glob("*/*/attempt-0001/log")
        lines = log.read_text().splitlines()
        assert lines[0] == f"run {manager.key} starts"
        assert lines[-1] == f"run {manager.key} is done: epoch 3"

    def test_the_traceback_of_an_error_is_in_the_log(self, tmp_path: Path) -> None:
        manager = small(tmp_path, settings={"eval_data": {"valid": [("no", "tensors")]}})
        with pytest.raises(TypeError):
            manager.process(CONFIG)
        (log,) = (tmp_path / "stats").glob("*/*/attempt-0001/log")
        assert "Traceback (most recent call last):" in log.read_text()


class TestCheckpoints:
    def test_the_last_checkpoints_and_the_best_one_are_kept(self, tmp_path: Path) -> None:
        class Worse(Loop):
            def eval_loss_forward(self, batch: Any, prediction: Any) -> Any:
                return torch.tensor([9.0, 1.0, 5.0, 6.0, 7.0, 8.0, 9.0][self.epoch_num])

        class Worsening(Small):
            def make_loop(self, config: Any) -> TrainManager:
                made = super().make_loop(config)
                return Worse(made.model, mse, 6, made.train_data, made.eval_data, device="cpu")

        manager = Worsening(tmp_path, verbose=False, keep=2)
        manager.process(CONFIG)
        run = manager.store.run(manager.key)
        assert [name.step for name in run.checkpoints()] == [24, 20, 4]
        assert manager.stats[manager.key]["best"]["value"] == 1.0
        assert manager.store.prune(keep=1)
        assert [name.step for name in run.checkpoints()] == [24, 4]
        manager.fetch(manager.key, "best")
        assert manager.loop is not None
        assert manager.loop.epoch_num == 1
        assert manager.fetch(manager.key).epoch == 6
        assert manager.fetch(manager.key, 4).epoch == 1

    def test_a_saver_of_the_loop_decides_when_to_save(self, tmp_path: Path) -> None:
        manager = small(tmp_path, settings={"extensions": lambda: [CheckpointSaver(every_steps=3, every_epochs=None, keep=20)]})
        manager.process(CONFIG)
        steps = [name.step for name in manager.store.run(manager.key).checkpoints()]
        assert steps == [12, 9, 6, 3]

    def test_save_interval_is_a_number_of_epochs(self, tmp_path: Path) -> None:
        class Rare(Small):
            epochs = 5

        manager = Rare(tmp_path, verbose=False, save_interval=2, keep=20)
        manager.process(CONFIG)
        assert [name.step for name in manager.store.run(manager.key).checkpoints()] == [20, 16, 8]

    def test_a_step_limit_within_an_epoch_ends_the_run_even_if_that_step_is_already_saved(self, tmp_path: Path) -> None:
        saving = {"extensions": lambda: [CheckpointSaver(every_steps=1, keep=20)], "max_steps": 6}
        manager = small(tmp_path, settings=saving)
        manager.process(CONFIG)
        assert [name.step for name in manager.store.run(manager.key).checkpoints()] == [6, 5, 4, 3, 2, 1]
        assert manager.stats[manager.key]["is_over"] is True

    def test_a_saver_with_its_own_path_is_refused(self) -> None:
        manager = small(settings={"extensions": lambda: [CheckpointSaver("elsewhere")]})
        with pytest.raises(SettingError, match="under a manager checkpoints go to the store"):
            manager.process(CONFIG)

    def test_an_eval_interval_is_refused(self) -> None:
        with pytest.raises(SettingError, match="a loop evaluates after every epoch"):
            Small(verbose=False, eval_interval=2).process(CONFIG)

    def test_make_loop_must_return_a_loop(self) -> None:
        class Wrong(Manager):
            def make_loop(self, config: Any) -> Any:
                return nn.Linear(1, 1)

        with pytest.raises(SettingError, match=r"`Wrong\.make_loop\(\)` returned Linear.*: expected a TrainManager"):
            Wrong(verbose=False).process(CONFIG)


class TestFetch:
    def test_fetch_returns_the_trained_model(self, tmp_path: Path) -> None:
        """Covers contract J23."""
        manager = small(tmp_path)
        manager.process(CONFIG)
        fetched = small(tmp_path).fetch(manager.key)
        assert same(weights(fetched), weights(manager))
        assert fetched.model is fetched.loop.model  # type: ignore[attr-defined,union-attr]

    @pytest.mark.parametrize("which", ["last", "best"])
    def test_a_fetched_model_has_the_averages_that_evaluations_use(self, tmp_path: Path, which: str) -> None:
        plain, manager = small(tmp_path / "plain"), small(tmp_path / "ema")
        for each in (plain, manager):
            if each is manager:
                each.add_extension("ema", EMA(0.5))
            each.process(CONFIG)
            each.fetch(each.key, which)
        assert manager.loop is not None
        batch = next(iter(manager.loop.train_data))
        inputs = batch[0]
        with torch.no_grad():
            assert torch.equal(manager.model(inputs), manager.loop.predict([batch])[0])
            assert not torch.equal(manager.model(inputs), manager.loop.model(inputs))
        assert not manager.model.training
        if which == "last":  # the loop has the weights of training, so that it can continue exactly
            assert same(weights(manager), weights(plain))

    def test_a_fetched_model_that_cannot_be_copied_keeps_its_weights_with_a_warning(self, tmp_path: Path) -> None:
        manager = small(tmp_path)
        manager.add_extension("ema", EMA(0.5))
        manager.process(CONFIG)

        class Uncopied(Small):
            def make_loop(self, config: Any) -> TrainManager:
                loop = super().make_loop(config)
                loop.model.history = next(loop.model.parameters()) * 2
                return loop

        other = Uncopied(tmp_path, verbose=False)
        other.add_extension("ema", EMA(0.5))
        with pytest.warns(UserWarning, match="has the weights of training, not the averages of EMA.*cannot be copied"):
            other.fetch(manager.key)
        assert other.loop is not None
        assert other.model is other.loop.model

    def test_a_fetched_model_predicts_without_dropout(self, tmp_path: Path) -> None:
        manager = small(tmp_path)
        manager.process(CONFIG)
        for which in ("last", "best"):
            model = small(tmp_path).fetch(manager.key, which).model  # type: ignore[attr-defined]
            assert not any(module.training for module in model.modules())

    def test_fetch_between_two_calls_of_process_does_not_change_the_second(self, tmp_path: Path) -> None:
        alone, other = small(tmp_path / "alone", epochs=6), small(tmp_path / "other", epochs=6)
        alone.process(CONFIG)
        other.process(CONFIG, 3)
        other.fetch(other.key)
        other.process(CONFIG)
        assert same(weights(alone), weights(other))

    def test_a_model_fetched_after_user_written_epochs_predicts_without_dropout(self) -> None:
        class Own(Manager):
            def setup(self, config: Any) -> None:
                super().setup(config)
                self.model = nn.Dropout()

            def train(self) -> None: ...
            def eval(self) -> dict[str, float]:
                return {"loss": 0.0}

        manager = Own(verbose=False)
        manager.process(CONFIG, 1)
        assert manager.model.training
        assert not manager.fetch(manager.key).model.training

    @pytest.mark.parametrize("which", ["bset", True, 1.5])
    def test_an_invalid_name_of_a_checkpoint_is_refused(self, which: Any) -> None:
        manager = small()
        manager.process(CONFIG)
        with pytest.raises(SettingError, match="expected 'last', 'best', or the number of a step"):
            manager.fetch(manager.key, which)

    def test_a_step_without_a_checkpoint_is_an_error(self) -> None:
        manager = small()
        manager.process(CONFIG)
        with pytest.raises(UnknownRunError, match="has no 7 checkpoint"):
            manager.fetch(manager.key, 7)


class TestLineage:
    def test_a_run_that_starts_from_another_ones_weights_is_a_new_run_and_records_it(self, tmp_path: Path) -> None:
        manager = small(tmp_path)
        manager.process(CONFIG)
        first, before = manager.key, weights(manager)
        manager.process({"lr": 0.5}, num_epochs=0, start_from=first)
        assert manager.configs[manager.key]["start_from"] == f"{first}@12"
        assert same(weights(manager), before)
        assert manager.key not in (first, manager.configs.get_key({"lr": 0.5}))

    def test_best_and_steps_are_resolved_when_the_run_is_requested(self, tmp_path: Path) -> None:
        manager = small(tmp_path)
        manager.process(CONFIG)
        first = manager.key
        best = manager.stats[first]["best"]["step"]
        manager.process(CONFIG, num_epochs=0, start_from=f"{first}@best")
        assert manager.configs[manager.key]["start_from"] == f"{first}@{best}"

    @pytest.mark.parametrize("text", ["@best", "ab12cd34", "KEY@bset", "KEY@7", "KEY@"])
    def test_an_unknown_origin_is_refused_before_anything_is_stored(self, text: str) -> None:
        manager = small()
        manager.process(CONFIG)
        number = len(list(manager.configs.keys()))
        if text == "KEY@":
            return
        with pytest.raises((SettingError, UnknownRunError, ValueError)):
            manager.process({"lr": 0.5}, start_from=text.replace("KEY", manager.key))
        assert len(list(manager.configs.keys())) == number

    def test_a_typed_config_needs_a_field_for_it_which_changes_no_other_key(self, tmp_path: Path) -> None:
        @configclass
        class Train(ConfigBase):
            lr: float = 0.1

        @configclass
        class LaterTrain(ConfigBase):
            lr: float = 0.1
            start_from: str | None = None

        manager = small(tmp_path, defaults=Train)
        manager.process({})
        first, before = manager.key, weights(manager)
        with pytest.raises(SettingError, match=r"add the field `start_from: str \| None = None` to the class"):
            manager.process({"lr": 0.5}, start_from=first)
        manager = small(tmp_path, defaults=LaterTrain)
        manager.process({"lr": 0.5}, num_epochs=0, start_from=first)
        assert same(weights(manager), before)
        manager.process({})
        assert manager.key == first
        found = manager.sweep({"start_from": [None, f"{first}@12"]}, num_epochs=0)
        assert (len(found.found), len(found.done)) == (1, 1), "runs with and without it can be compared"

    def test_user_written_epochs_cannot_start_from_another_run(self) -> None:
        class Plain(Manager):
            def train(self) -> None: ...

            def eval(self) -> None: ...

        with pytest.raises(SettingError, match="only a manager with `make_loop`"):
            Plain(verbose=False).process({}, start_from="ab12cd34")


class TestExtensions:
    def test_hooks_for_the_manager_and_for_the_loop_are_called(self) -> None:
        calls: list[str] = []

        class Both(Extension):
            def pre_work_train(self, key: str) -> None:
                calls.append("work")

            def pre_train(self, train_manager: TrainManager) -> None:
                calls.append("train")

            def post_train_step_epoch(self, epoch_num: int) -> None:
                calls.append(f"epoch {epoch_num}")

        manager = small(epochs=2)
        manager.add_extension("both", Both())
        manager.process(CONFIG)
        assert calls == ["work", "train", "epoch 1", "epoch 2"]

    def test_a_hook_for_the_manager_is_refused_if_only_the_loop_has_the_extension(self, tmp_path: Path) -> None:
        calls: list[str] = []

        class Knows(Extension):
            def pre_work(self, key: str) -> None:
                calls.append("work")

            def pre_train(self) -> None:
                calls.append("train")

        manager = small(tmp_path, settings={"extensions": lambda: [Knows()]})
        for train in (lambda: manager.process(CONFIG), lambda: manager.batch([CONFIG])):
            with pytest.raises(ExtensionError, match=r"`Knows\.pre_work` would never run: `work` is a stage of the manager") as caught:
                train()
            assert "attach `knows` to the manager" in caught.value.rows["hint"]
        assert calls == []
        both = Knows()
        manager = small(settings={"extensions": lambda: [both]}, extensions=[both])
        manager.process(CONFIG)
        assert calls == ["work", "train"]

    def test_a_misspelled_hook_is_refused_when_it_is_attached(self) -> None:
        class Typo(Extension):
            def pre_train_step_bach(self) -> None: ...

        with pytest.raises(UnknownHookError, match="did you mean `pre_train_step_batch`"):
            small().add_extension("typo", Typo())

    def test_a_stage_of_the_manager_is_suggested_only_where_it_is_accepted(self) -> None:
        class Typo(Extension):
            def pre_wark(self) -> None: ...

        manager = small()
        with pytest.raises(UnknownHookError, match="did you mean `pre_work`"):
            manager.add_extension("typo", Typo())
        with pytest.raises(UnknownHookError) as caught:
            manager.make_loop(manager.get_config(CONFIG)).add_extension("typo", Typo())
        assert "pre_work" not in str(caught.value)

    def test_hooks_for_a_loop_are_refused_if_there_is_no_loop(self) -> None:
        class Plain(Manager): ...

        class Own(Extension):
            def pre_train_step_batch(self) -> None: ...

        with pytest.raises(UnknownHookError, match="no stage `train_step_batch`"):
            Plain().add_extension("own", Own())

    def test_no_run_starts_with_the_extension_state_of_another_run(self, tmp_path: Path) -> None:
        class Counting(Extension):
            def __init__(self) -> None:
                self.count = 0

            def post_train_step_batch(self) -> None:
                self.count += 1

            def state_dict(self) -> dict[str, int]:
                return {"count": self.count}

            def load_state_dict(self, state: dict[str, int]) -> None:
                self.count = state["count"]

        counting = Counting()
        manager = small(tmp_path)
        manager.add_extension("counting", counting)
        manager.process(CONFIG)
        assert counting.count == 12
        manager.process({"lr": 0.5}, num_epochs=1)
        assert counting.count == 4
        manager.process(CONFIG, num_epochs=4)
        assert counting.count == 16


def test_a_batch_trains_loops_and_counts_finished_ones_as_done(tmp_path: Path) -> None:
    manager = small(tmp_path)
    result = manager.batch([{"lr": 0.1}, {"lr": 0.2}])
    assert len(result.done) == 2
    assert small(tmp_path).batch([{"lr": 0.1}, {"lr": 0.2}]).found == result.done
    assert len(small(tmp_path).batch([{"lr": 0.1}, {"lr": 0.2}], num_epochs=5).done) == 2


def test_a_run_that_was_killed_before_its_last_evaluation_is_not_finished(tmp_path: Path) -> None:
    class Dying(Extension):
        def pre_eval(self, epoch_num: int) -> None:
            if epoch_num == 3:
                raise KeyboardInterrupt  # as after a kill, nothing is saved

    class Killed(Small):
        extensions = [Dying()]

    manager = Killed(tmp_path, verbose=False)
    with pytest.raises(KeyboardInterrupt):
        manager.process(CONFIG)
    assert manager.stats[manager.key]["epoch"] == 2
    again = small(tmp_path)
    assert again.batch([CONFIG], num_epochs=3).done == [manager.key]
    assert rows(again)[-1][:2] == ("valid/loss", 3)


def test_the_status_on_disk_is_plain_json(tmp_path: Path) -> None:
    manager = small(tmp_path)
    manager.process(CONFIG)
    (path,) = (tmp_path / "stats").glob("*/*/attempt-0001/status.json")
    status = json.loads(path.read_text())["status"]
    assert (status["epoch"], status["step"], status["target"], status["is_over"]) == (3, 12, 3, True)
    assert Store(tmp_path).verify() == []


# ---- rows that hooks record when training is interrupted


class EpochNorm(Extension):
    """Records a metric before and after each epoch, as users do."""

    def __init__(self, interrupted_at: tuple[int, int] | None = None) -> None:
        self.interrupted_at = interrupted_at

    def pre_train_step_epoch(self, writer: Any, epoch_num: int) -> None:
        writer.add_scalar("begun", epoch_num, epoch_num)

    def post_train_step_batch(self, loop: TrainManager, epoch_num: int, batch_num: int) -> None:
        self.interrupt(loop, (epoch_num, batch_num))

    def post_eval(self, loop: TrainManager, epoch_num: int) -> None:
        self.interrupt(loop, (epoch_num, -1))

    def interrupt(self, loop: TrainManager, moment: tuple[int, int]) -> None:
        if moment == self.interrupted_at:
            self.interrupted_at = None
            os.kill(os.getpid(), signal.SIGINT)
            while loop.fixtures["stopped"] is None:
                time.sleep(0.001)

    def post_train_step_epoch(self, model: nn.Module, writer: Any, epoch_num: int) -> None:
        writer.add_scalar("norm", next(model.parameters()).norm(), epoch_num)

    def post_train(self, model: nn.Module, writer: Any, epoch_num: int) -> None:
        writer.add_scalar("final", next(model.parameters()).norm(), epoch_num)


@pytest.mark.parametrize("moment", [(1, 0), (1, 1), (1, 3), (1, -1)])
def test_hooks_record_no_rows_when_an_epoch_is_interrupted(tmp_path: Path, moment: Any) -> None:
    whole = small(tmp_path / "whole", settings={"extensions": lambda: [EpochNorm()]})
    whole.process(CONFIG)
    part = small(tmp_path / "part", settings={"extensions": lambda: [EpochNorm(moment)]})
    with pytest.raises(KeyboardInterrupt):
        part.process(CONFIG)
    recorded = {tag: (step, value) for tag, step, value in rows(part)}
    assert recorded["norm"][0] == 1
    assert "final" not in recorded
    assert Store(tmp_path / "part").run(key_of(part)).preview()["norm"] == recorded["norm"][1]
    resumed = small(tmp_path / "part", settings={"extensions": lambda: [EpochNorm()]})
    resumed.process(CONFIG)
    assert rows(resumed) == rows(whole)
    assert resumed.loop is not None
    assert whole.loop is not None
    assert resumed.loop.history == whole.loop.history


@pytest.mark.parametrize("moment", [(1, 2), (1, 3), (1, -1)])
@pytest.mark.parametrize("is_new_process", [True, False])
def test_the_same_holds_for_a_loop_without_a_manager(tmp_path: Path, is_new_process: bool, moment: Any) -> None:
    def make(folder: str, *extensions: object) -> TrainManager:
        torch.manual_seed(0)
        return small(settings={"extensions": lambda: extensions, "train_dir": tmp_path / folder, "progress": False}).make_loop(
            Config(CONFIG)
        )

    whole = make("whole", EpochNorm())
    whole.train()
    loop = make("part", EpochNorm(moment))
    with pytest.raises(KeyboardInterrupt):
        loop.train()
    assert [step for step, _ in loop.history["norm"]] == [1]
    loop.eval({"other": [(torch.randn(4, 4), torch.randn(4, 1))]})
    assert len(loop.history.pop("other/loss")) == 1  # evaluations between two calls of train() are recorded
    if is_new_process:
        loop = make("part", EpochNorm())
    loop.train()
    assert loop.history == whole.history


class Final(Extension):
    def post_train(self, writer: Any) -> None:
        writer.add_scalar("final", 7.0, 0)


def test_a_metric_that_is_recorded_after_the_last_checkpoint_is_in_the_preview(tmp_path: Path) -> None:
    manager = small(tmp_path, settings={"extensions": lambda: [Final()]})
    manager.process(CONFIG)
    assert Store(tmp_path).run(key_of(manager)).preview()["final"] == 7.0
    assert manager.previews[key_of(manager)]["final"] == 7.0
