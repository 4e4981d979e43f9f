"""Without a manager, checkpoints are saved in `train_dir`, and training resumes bit for bit (E31, E36 to E38)."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import CheckpointLoader, CheckpointSaver, Extension, TrainManager, fixture
from trainmaster.errors import CodecError, RunBusyError, SettingError, StateError, StoreDamagedError
from trainmaster.loop.buffers import Buffers
from trainmaster.store.checkpoint_folder import CheckpointFolder, SavedAt


class Loop(TrainManager):
    def model_forward(self, batch: Any) -> Any:
        return self.model(batch[0])


def mse(batch: Any, prediction: Any) -> Any:
    return (prediction - batch[1]).pow(2).mean()


def make(train_dir: Path | None, epochs: int | None = 3, extensions: Any = (), **more: Any) -> TrainManager:
    torch.manual_seed(1)
    inputs = torch.randn(20, 4)
    targets = inputs.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    data = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True)
    settings: dict[str, Any] = {"eval_data": {"valid": [(inputs, targets)]}, **more}
    return Loop(model, mse, epochs, data, extensions=extensions, train_dir=train_dir, device="cpu", **settings)


def saved(train_dir: Path) -> list[str]:
    return sorted(name for name in os.listdir(train_dir / "checkpoints") if not name.startswith("."))


def same(one: TrainManager, other: TrainManager) -> bool:
    """Return whether weights, optimizer state, random numbers and history are equal."""
    weights = all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))
    assert one.optimizer is not None
    assert other.optimizer is not None
    states = [loop.optimizer.state_dict()["state"] for loop in (one, other)]  # type: ignore[union-attr]
    moments = all(torch.equal(states[0][key]["exp_avg"], states[1][key]["exp_avg"]) for key in states[0])
    return weights and moments and one.history == other.history and torch.equal(one.capture().rng["torch"], other.capture().rng["torch"])


@pytest.fixture
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> TrainManager:
    tm = make(tmp_path_factory.mktemp("undisturbed"), 5)
    tm.train()
    return tm


class TestDefaults:
    def test_the_saver_and_the_loader_come_last_if_there_is_a_train_dir(self, tmp_path: Path) -> None:
        """Covers contract E31."""

        class Own(Extension): ...

        tm = make(tmp_path, extensions=[Own()])
        assert list(tm.extensions) == ["setup", "eval_state", "train_loss", "own", "progress", "checkpoint_saver", "checkpoint_loader"]

    def test_without_a_train_dir_nothing_is_saved(self) -> None:
        """Covers contract E31."""
        assert list(make(None).extensions) == ["setup", "eval_state", "train_loss", "progress"]

    def test_an_extension_with_the_same_name_replaces_the_default(self, tmp_path: Path) -> None:
        """Covers contract E31."""
        own = CheckpointSaver(every_epochs=2)
        tm = make(tmp_path, 4, extensions=[own])
        tm.train()
        assert tm["checkpoint_saver"] is own
        assert saved(tmp_path) == ["2.ckpt", "4.ckpt"]


class TestSaver:
    def test_a_checkpoint_is_saved_after_each_epoch(self, tmp_path: Path) -> None:
        """Covers contracts E27 and E36."""
        make(tmp_path, 3).train()
        assert saved(tmp_path) == ["1.ckpt", "2.ckpt", "3.ckpt"]

    def test_after_training_its_path_is_the_folder_of_the_checkpoints(self, tmp_path: Path) -> None:
        tm = make(tmp_path / "one", 2)
        saver: Any = tm["checkpoint_saver"]
        assert saver.path is None
        tm.train()
        assert saver.path == tmp_path / "one" / "checkpoints"  # E36
        assert (saver.path / "2.ckpt").is_dir()
        assert saver.has_default_settings
        other = make(tmp_path / "two", 1, {"checkpoint_saver": saver})  # the next training run has a different folder
        other.train()
        assert saver.path == tmp_path / "two" / "checkpoints"
        assert saved(tmp_path / "two") == ["1.ckpt"]

    def test_gradients_that_an_update_has_used_are_not_stored(self, tmp_path: Path) -> None:
        """Covers contract E36."""
        tm = make(tmp_path, 1, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        tm.train()
        assert all(each.grad is not None for each in tm.model.parameters())  # hooks can still read them
        assert CheckpointFolder(tmp_path / "checkpoints").load(SavedAt(1))["state"]["grads"] == {"model": {}}

    def test_gradients_that_wait_for_an_update_are_stored(self, tmp_path: Path) -> None:
        """Covers contract E36."""

        class Every(Extension):
            def pre_train_step_batch(self, fixtures: Any, batch_num: int) -> None:
                fixtures.modify("is_update", batch_num % 2 == 1)

        tm = make(tmp_path, 1, extensions=[Every()])  # no update has used the gradients of the last of 5 batches yet
        tm.train()
        found = CheckpointFolder(tmp_path / "checkpoints").load(SavedAt(1))["state"]["grads"]["model"]
        assert all(torch.equal(found[name], each.grad) for name, each in tm.model.named_parameters())

    def test_training_with_gradients_that_are_never_zeroed_resumes_bit_for_bit(self, tmp_path: Path) -> None:
        class Fading(Loop):
            """Halves the gradients of the last batch instead of zeroing them."""

            def zero_grad(self) -> None:
                for each in self.model.parameters():
                    if each.grad is not None:
                        each.grad.mul_(0.5)

        class Two(Loop):
            critic: nn.Module

            def loss_forward(self, batch: Any, prediction: Any) -> Any:
                return mse(batch, prediction) + self.critic(batch[0]).pow(2).mean()

            def optimizer_step(self) -> None:
                super().optimizer_step()
                with torch.no_grad():
                    for each in self.critic.parameters():
                        each -= 0.01 * each.grad  # type: ignore[operator]

        for kind in (Fading, Two):

            def made(folder: Path, epochs: int, kind: Any = kind) -> Any:
                tm = make(None, epochs)
                loop = kind(tm.model, mse, epochs, tm.train_data, tm.eval_data, train_dir=folder, device="cpu")
                loop.critic = nn.Linear(4, 1)
                return loop

            whole = made(tmp_path / kind.__name__ / "whole", 4)
            whole.train()
            made(tmp_path / kind.__name__, 2).train()
            again = made(tmp_path / kind.__name__, 4)
            again.train()
            assert same(again, whole), kind
            assert torch.equal(again.critic.weight, whole.critic.weight), kind

    def test_an_epoch_is_saved_once_after_its_evaluation(self, tmp_path: Path) -> None:
        """Covers contract E36."""
        seen: list[tuple[str, int, list[str]]] = []

        class Look(Extension):
            def post_train_step_epoch(self, epoch_num: int) -> None:
                seen.append(("trained", epoch_num, saved(tmp_path)))

            def pre_train_step_epoch(self, epoch_num: int) -> None:
                seen.append(("begins", epoch_num, saved(tmp_path)))

        tm = make(tmp_path, 2, extensions=[Look(), CheckpointSaver(in_background=False)])
        tm.train()
        assert seen == [("begins", 0, []), ("trained", 1, []), ("begins", 1, ["1.ckpt"]), ("trained", 2, ["1.ckpt"])]
        found = CheckpointFolder(tmp_path / "checkpoints").load(SavedAt(2))["state"]
        assert found["progress"]["evaluated_at"] == (2, 0)
        assert found["objects"]["writer"]["history"] == tm.history
        again = make(tmp_path, 2)
        again.train()
        assert again.history == tm.history  # the epoch is not evaluated again
        assert saved(tmp_path) == ["1.ckpt", "2.ckpt"]

    def test_without_a_manager_all_checkpoints_are_kept_by_default(self, tmp_path: Path) -> None:
        make(tmp_path, 6).train()
        assert saved(tmp_path) == [f"{epoch}.ckpt" for epoch in range(1, 7)]

    def test_the_last_epoch_can_be_the_best_for_any_interval(self, tmp_path: Path) -> None:
        saver = CheckpointSaver(every_epochs=2, keep=1)
        tm = make(tmp_path, 3, extensions=[saver])
        tm.train()
        least = min(tm.history["valid/loss"][2:], key=lambda row: row[1])
        assert saver.best is not None
        assert saver.best[1:3] == (least[1], least[0])

    def test_a_state_saved_after_the_last_step_of_an_epoch_is_not_saved_again_after_the_epoch(self, tmp_path: Path) -> None:
        make(tmp_path, 3, extensions=[CheckpointSaver(every_steps=5, keep=3)]).train()
        names = saved(tmp_path)
        assert names == ["1.ckpt", "2.ckpt", "3.ckpt"]
        folder = CheckpointFolder(tmp_path / "checkpoints")
        weights = [folder.load(name)["state"]["objects"]["model"]["0.weight"] for name in folder.names()]
        assert not any(torch.equal(one, other) for one, other in itertools.pairwise(weights))

    def test_an_epoch_whose_evaluation_was_stopped_is_saved_once_after_it_is_evaluated(
        self, tmp_path: Path, undisturbed: TrainManager
    ) -> None:
        class StopIn(Extension):
            def pre_eval_step_batch(self, train_manager: TrainManager, epoch_num: int) -> None:
                if epoch_num == 2:
                    train_manager.stop("enough")

        make(tmp_path, 5, extensions=[StopIn()]).train()
        assert saved(tmp_path) == ["1.ckpt", "2.ckpt"]
        again = make(tmp_path, 5)
        again.train()
        assert same(again, undisturbed)
        assert saved(tmp_path) == ["1.ckpt", "2-2.ckpt", "3.ckpt", "4.ckpt", "5.ckpt"]

    def test_a_checkpoint_from_another_folder_replaces_no_checkpoint_with_the_same_name(self, tmp_path: Path) -> None:
        class StopIn(Extension):
            def pre_eval_step_batch(self, train_manager: TrainManager, epoch_num: int) -> None:
                if epoch_num == 1:
                    train_manager.stop("enough")

        make(tmp_path / "a", 1, extensions=[StopIn()]).train()
        make(tmp_path / "b", 1).train()
        make(tmp_path / "b", 1, extensions=[CheckpointLoader(ckpt_spec=tmp_path / "a" / "checkpoints" / "1.ckpt")]).train()
        assert saved(tmp_path / "b") == ["1-2.ckpt", "1.ckpt"]

    def test_the_effects_of_other_extensions_after_an_evaluation_are_saved_in_any_order(self, tmp_path: Path) -> None:
        class Seen(Extension):
            def __init__(self) -> None:
                self.epochs: list[int] = []

            def post_eval(self, epoch_num: int) -> None:
                self.epochs.append(epoch_num)

            def state_dict(self) -> dict[str, Any]:
                return {"epochs": list(self.epochs)}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.epochs = list(state["epochs"])

        make(tmp_path, 2, extensions=[CheckpointSaver(), Seen()]).train()
        seen = Seen()
        make(tmp_path, 4, extensions=[CheckpointSaver(), seen]).train()
        assert seen.epochs == [0, 1, 2, 3, 4]

    def test_an_evaluation_that_a_hook_starts_saves_nothing_and_is_never_the_best(self, tmp_path: Path) -> None:
        class Evaluating(Extension):
            def post_forward(self, train_manager: TrainManager, mode_name: str) -> None:
                if mode_name == "train":
                    train_manager.eval()

        class Better(Loop):
            def eval_loss_forward(self, batch: Any, prediction: Any) -> Any:
                return torch.tensor(-float(self.fixtures.get("batch_num", 0)) if self.is_own_evaluation else -100.0)

        tm = make(None, 3)
        saver = CheckpointSaver(every_epochs=2)
        settings: dict[str, Any] = {"train_dir": tmp_path, "extensions": [Evaluating(), saver], "device": "cpu"}
        Better(tm.model, mse, 3, tm.train_data, tm.eval_data, **settings).train()
        assert saved(tmp_path) == ["2.ckpt", "3.ckpt"]
        assert saver.best is not None
        assert saver.best.value == 0.0

    def test_the_last_epoch_is_saved_for_any_interval(self, tmp_path: Path) -> None:
        make(tmp_path, 3, extensions=[CheckpointSaver(every_epochs=2)]).train()
        assert saved(tmp_path) == ["2.ckpt", "3.ckpt"]

    def test_every_steps_counts_updates(self, tmp_path: Path) -> None:
        make(tmp_path, 2, extensions=[CheckpointSaver(every_epochs=None, every_steps=3)]).train()
        assert saved(tmp_path) == ["0+3.ckpt", "1+1.ckpt", "1+4.ckpt", "2.ckpt"]

    def test_a_stop_saves_the_current_position(self, tmp_path: Path) -> None:
        class StopAt(Extension):
            def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
                if step_num == 7:
                    train_manager.stop("enough")

        make(tmp_path, 3, extensions=[StopAt()]).train()
        assert saved(tmp_path) == ["1+2.ckpt", "1.ckpt"]

    @pytest.mark.parametrize("call", ["unlink", "rmdir"])
    def test_an_old_checkpoint_that_cannot_be_removed_causes_a_warning_and_is_removed_by_the_next_save(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        remove, refused = getattr(os, call), []

        def refuse(name: str, *, dir_fd: int) -> None:
            if not refused and not name.endswith(".tmp"):
                refused.append(saved(tmp_path))
                raise OSError(errno.EIO, "Input/output error")
            remove(name, dir_fd=dir_fd)

        monkeypatch.setattr(os, call, refuse)
        message = r"an old checkpoint of this training could not be deleted; .* again: \d\.ckpt: .* cannot be deleted: Input/output error"
        with pytest.warns(UserWarning, match=message):
            make(tmp_path, 5, extensions=[CheckpointSaver(keep=1)]).train()
        assert len(refused) == 1
        assert "5.ckpt" in saved(tmp_path)
        assert len(saved(tmp_path)) <= 2, "the last, and the best"

    def test_the_values_are_those_of_the_step_that_was_saved(self, tmp_path: Path) -> None:
        """Covers fault C12."""

        class Zeroing(CheckpointSaver):
            kept: dict[str, torch.Tensor]

            def post_eval(self, train_manager: Any, fixtures: Any, eval_losses: Any, epoch_num: int, stopped: str | None) -> None:
                self.kept = {name: each.clone() for name, each in train_manager.model.state_dict().items()}
                super().post_eval(train_manager, fixtures, eval_losses, epoch_num, stopped)
                with torch.no_grad():
                    for parameter in train_manager.model.parameters():
                        parameter.zero_()

        saver = Zeroing()
        tm = make(tmp_path, 1, extensions=[("checkpoint_saver", saver)])
        tm.train()
        found = CheckpointFolder(tmp_path / "checkpoints").load(SavedAt(1))["state"]["objects"]["model"]
        assert all(torch.equal(found[name], each) for name, each in saver.kept.items())
        assert any(each.abs().sum() > 0 for each in saver.kept.values())

    def test_a_save_runs_in_its_own_thread_by_default(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        threads: dict[bool, set[str]] = {True: set(), False: set()}
        save = CheckpointFolder.save
        for in_background, names in threads.items():

            def noted(self: Any, *args: Any, names: set[str] = names) -> Any:
                names.add(threading.current_thread().name)
                return save(self, *args)

            monkeypatch.setattr(CheckpointFolder, "save", noted)
            make(tmp_path / str(in_background), 2, extensions=[CheckpointSaver(in_background=in_background)]).train()
        assert threads[False] == {"MainThread"}
        assert all(name.startswith("trainmaster-save") for name in threads[True])

    def test_an_error_in_a_background_save_ends_training_at_the_next_batch(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> Any:
            raise OSError("the disk is full")

        monkeypatch.setattr(CheckpointFolder, "save", refuse)
        tm = make(tmp_path, 1000)
        with pytest.raises(OSError, match="the disk is full"):
            tm.train()
        assert tm.epoch_num < 100

    def test_saved_fixtures_are_saved_by_name_and_restored(self, tmp_path: Path) -> None:
        """Contracts E36 and E37: a hook changes a saved fixture with `modify`."""

        class Counting(Extension):
            creates = {"seen": "train_manager"}

            def pre_run(self, fixtures: Any) -> None:
                if "seen" not in fixtures:
                    fixtures["seen"] = 0

            def post_train_step_epoch(self, fixtures: Any) -> None:
                fixtures.modify("seen", fixtures["seen"] + 10)

        extensions = [Counting(), CheckpointSaver(saved_fixtures=["epoch_num", "seen"])]
        make(tmp_path, 2, extensions=extensions).train()
        assert CheckpointFolder(tmp_path / "checkpoints").load(SavedAt(2))["fixtures"] == {"epoch_num": 2, "seen": 20}

    def test_only_the_named_attributes_are_saved(self, tmp_path: Path) -> None:
        """Covers contract E36."""
        make(tmp_path, 1, extensions=[CheckpointSaver(saved_attribs=["model"])]).train()
        assert list(CheckpointFolder(tmp_path / "checkpoints").load(SavedAt(1))["state"]["objects"]) == ["model"]
        again = make(tmp_path, 2, extensions=[CheckpointSaver(saved_attribs=["model"])])
        again.train()
        assert again.epoch_num == 2

    def test_an_attribute_without_a_state_is_refused_before_training(self, tmp_path: Path) -> None:
        tm = make(tmp_path, 1, extensions=[CheckpointSaver(saved_attribs=["modle"])])
        with pytest.raises(SettingError, match="saved_attribs names `modle`, which has no state"):
            tm.train()
        assert tm.step_num == 0

    def test_a_model_with_lazy_modules_is_saved_and_resumed(self, tmp_path: Path) -> None:
        data = [(torch.ones(2, 4), torch.ones(2, 1))]
        for epochs in (1, 2):
            model = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 1))
            tm = Loop(model, mse, epochs, data, optimizer=lambda each: torch.optim.SGD(each, lr=0.1), train_dir=tmp_path, device="cpu")
            tm.train()
        assert (tm.epoch_num, tm.step_num) == (2, 2)

    def test_a_state_that_cannot_be_stored_is_an_error_before_the_first_step(self, tmp_path: Path) -> None:
        class Hoarder(Extension):
            def state_dict(self) -> dict[str, Any]:
                return {"function": print}

            def load_state_dict(self, state: Any) -> None: ...

        tm = make(tmp_path, extensions=[Hoarder()])
        with pytest.raises(CodecError, match=r"(?s)this training run cannot be saved.*state\.extensions\.hoarder\.function"):
            tm.train()
        assert tm.step_num == 0

    def test_keep_limits_the_number_of_checkpoints_but_never_deletes_the_best(self, tmp_path: Path) -> None:
        class Worse(Loop):
            def eval_loss_forward(self, batch: Any, prediction: Any) -> Any:
                return torch.tensor([0.0, 5.0, 1.0, 2.0, float("nan"), 4.0][self.epoch_num])

        tm = make(None, 5)
        worse = Worse(tm.model, mse, 5, tm.train_data, tm.eval_data, train_dir=tmp_path, extensions=[CheckpointSaver(keep=2)], device="cpu")
        worse.train()
        assert saved(tmp_path) == ["2.ckpt", "4.ckpt", "5.ckpt"]
        assert worse["checkpoint_saver"].best[:3] == ("valid/loss", 1.0, 2)

    def test_the_best_checkpoint_has_the_highest_accuracy(self, tmp_path: Path) -> None:
        class Accuracy(Extension):
            def post_eval_step_epoch(self, writer: Any, epoch_num: int) -> None:
                writer.add_scalar("acc/valid/accuracy", [0.1, 0.5, 0.9, 0.7][epoch_num], epoch_num)

        saver = CheckpointSaver(keep=1, monitor="acc/valid/accuracy")
        make(tmp_path, 3, extensions=[Accuracy(), saver]).train()
        assert saver.best is not None
        assert saver.best[:3] == ("acc/valid/accuracy", 0.9, 2)

    def test_a_metric_without_a_known_direction_needs_a_mode(self, tmp_path: Path) -> None:
        class Quality(Extension):
            def post_eval_step_epoch(self, writer: Any, epoch_num: int) -> None:
                writer.add_scalar("valid/quality", [0.1, 0.5, 0.9, 0.7][epoch_num], epoch_num)

        tm = make(tmp_path, 3, extensions=[Quality(), CheckpointSaver(monitor="valid/quality")])
        with pytest.raises(SettingError) as raised:
            tm.train()
        assert str(raised.value).split("\n")[:2] == [
            "CheckpointSaver does not know whether lower or higher is better for 'valid/quality'",
            '  try     CheckpointSaver(monitor="valid/quality", mode="max"), or "min"',
        ]
        assert tm.step_num == 0
        for mode, best in (("max", 0.9), ("min", 0.5)):
            saver = CheckpointSaver(monitor="valid/quality", mode=mode)
            make(tmp_path / mode, 3, extensions=[Quality(), saver]).train()
            assert saver.best is not None
            assert saver.best.value == best

    @pytest.mark.parametrize("monitor", [None, "valid", "loss", "train/loss"])
    def test_a_loss_needs_no_mode(self, tmp_path: Path, monitor: str | None) -> None:
        saver = CheckpointSaver(monitor=monitor)
        make(tmp_path, 1, extensions=[saver]).train()
        assert saver.best is not None
        assert saver.best.mode == "min"

    @pytest.mark.parametrize(
        "settings", [{"every_epochs": 0}, {"every_steps": True}, {"keep": 1.5}, {"saved_fixtures": "epoch_num"}, {"saved_attribs": "model"}]
    )
    def test_invalid_settings_are_refused_at_construction(self, settings: dict[str, Any]) -> None:
        with pytest.raises(SettingError, match=next(iter(settings))):
            CheckpointSaver(**settings)

    def test_a_saver_without_a_folder_is_an_error(self) -> None:
        with pytest.raises(SettingError, match="there is no folder for checkpoints"):
            make(None, extensions=[CheckpointSaver()]).train()

    def test_two_training_runs_cannot_save_to_one_folder_at_the_same_time(self, tmp_path: Path) -> None:
        class Another(Extension):
            def post_train_step_epoch(self) -> None:
                with pytest.raises(RunBusyError, match="another process is saving to this folder"):
                    make(tmp_path, 5).train()

        make(tmp_path, 1, extensions=[Another()]).train()
        make(tmp_path, 2).train()
        assert saved(tmp_path) == ["1.ckpt", "2.ckpt"]


class TestLoader:
    def test_increasing_epochs_continues_bit_for_bit_and_trains_only_the_new_epochs(
        self, tmp_path: Path, undisturbed: TrainManager
    ) -> None:
        """Covers contract E38."""
        make(tmp_path, 2).train()
        steps: list[int] = []

        class Steps(Extension):
            def post_train_step_batch(self, step_num: int) -> None:
                steps.append(step_num)

        again = make(tmp_path, 5, extensions=[Steps()])
        again.train()
        assert steps == list(range(11, 26))
        assert same(again, undisturbed)

    @pytest.mark.parametrize("name", ["0+3.ckpt", "1+4.ckpt"])
    def test_training_resumes_bit_for_bit_from_a_checkpoint_within_an_epoch(
        self, tmp_path: Path, name: str, undisturbed: TrainManager
    ) -> None:
        first = make(tmp_path, 2, extensions=[CheckpointSaver(every_steps=1)])
        first.train()
        for other in saved(tmp_path):
            if other != name:
                shutil.rmtree(tmp_path / "checkpoints" / other)
        again = make(tmp_path, 5)
        again.train()
        assert same(again, undisturbed)

    def test_a_number_selects_the_checkpoint_of_that_epoch(self, tmp_path: Path, undisturbed: TrainManager) -> None:
        """Covers contract E37."""
        make(tmp_path, 4).train()
        again = make(tmp_path, 5, extensions=[CheckpointLoader(ckpt_spec=2)])
        again.train()
        assert same(again, undisturbed)
        assert saved(tmp_path) == ["1.ckpt", "2.ckpt", "3-2.ckpt", "3.ckpt", "4-2.ckpt", "4.ckpt", "5.ckpt"]

    def test_best_selects_the_best_checkpoint_of_the_folder(self, tmp_path: Path) -> None:
        class Accuracy(Extension):
            def post_eval_step_epoch(self, writer: Any, epoch_num: int) -> None:
                writer.add_scalar("valid/accuracy", [0.1, 0.5, 0.9, 0.7, 0.8, 0.6][epoch_num], epoch_num)

        def loop(epochs: int, *extensions: Any) -> TrainManager:
            return make(tmp_path, epochs, extensions=[Accuracy(), CheckpointSaver(keep=1, monitor="accuracy"), *extensions])

        first = loop(4)
        first.train()
        assert saved(tmp_path) == ["2.ckpt", "4.ckpt"]
        found = loop(4, CheckpointLoader(ckpt_spec="best"))
        found.eval()
        assert found.history["valid/loss"] == [first.history["valid/loss"][2]]
        again = loop(5, CheckpointLoader(ckpt_spec="best"))
        again.train()
        assert again["checkpoint_saver"].best[:3] == ("valid/accuracy", 0.9, 2)
        assert saved(tmp_path) == ["2.ckpt", "5.ckpt"]
        assert [step for step, _ in again.history["valid/loss"]] == [0, 1, 2, 3, 4, 5]

    def test_a_missing_best_checkpoint_is_an_error_that_lists_the_checkpoints(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"there is no best checkpoint in .* it has no checkpoints"):
            make(tmp_path, 3, extensions=[CheckpointLoader(ckpt_spec="best")]).train()
        make(tmp_path, 2, eval_data=None).train()
        with pytest.raises(FileNotFoundError, match=r"no metric was monitored.*it has 2\.ckpt, 1\.ckpt; -1 is the latest checkpoint"):
            make(tmp_path, 3, eval_data=None, extensions=[CheckpointLoader(ckpt_spec="best")]).train()

    def test_the_latest_checkpoint_is_the_one_saved_last_not_the_one_with_the_highest_epoch(self, tmp_path: Path) -> None:
        make(tmp_path, 4).train()
        make(tmp_path, 3, extensions=[CheckpointLoader(ckpt_spec=2)]).train()
        assert CheckpointFolder(tmp_path / "checkpoints").names()[0] == SavedAt(3, 0, 2)

    def test_a_path_selects_a_checkpoint_in_any_folder(self, tmp_path: Path) -> None:
        """Covers contract E37."""
        make(tmp_path / "a", 2).train()
        again = make(tmp_path / "b", 2, extensions=[CheckpointLoader(ckpt_spec=tmp_path / "a" / "checkpoints" / "1.ckpt")])
        again.train()
        assert saved(tmp_path / "b") == ["2.ckpt"]

    def test_a_named_checkpoint_that_is_missing_is_always_an_error(self, tmp_path: Path) -> None:
        """Covers contract E37."""
        make(tmp_path, 2).train()
        for spec in (7, tmp_path / "checkpoints" / "9.ckpt", "nowhere"):
            with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
                make(tmp_path, 3, extensions=[CheckpointLoader(ckpt_spec=spec)]).train()

    def test_a_misspelled_best_is_an_error_that_lists_what_there_is(self, tmp_path: Path) -> None:
        make(tmp_path, 2).train()
        with pytest.raises(FileNotFoundError) as found:
            make(tmp_path, 3, extensions=[CheckpointLoader(ckpt_spec="bset")]).train()
        assert str(found.value).startswith("there is no checkpoint bset; did you mean `best`? -1 is the latest checkpoint")
        assert str(found.value).endswith(f"{tmp_path / 'checkpoints'} has 2.ckpt, 1.ckpt")
        with pytest.raises(FileNotFoundError, match="any other text is a path"):
            make(None, 3, eval_data=None, extensions=[CheckpointLoader(ckpt_spec="bset")]).train()

    def test_a_missing_latest_checkpoint_is_an_error_only_if_not_permissive(self, tmp_path: Path) -> None:
        """Covers contract E37."""
        with pytest.raises(FileNotFoundError, match="there is no checkpoint in"):
            make(tmp_path / "a", 1, extensions=[CheckpointLoader(permissive=False)]).train()
        make(tmp_path / "b", 1).train()

    def test_a_standalone_evaluation_loads_the_weights_and_needs_no_optimizer(self, tmp_path: Path) -> None:
        """Covers contract E37."""
        tm = make(tmp_path, 2)
        tm.train()
        found = make(tmp_path, 2)
        found.eval()
        assert found.optimizer is None
        assert found.history["valid/loss"] == [tm.history["valid/loss"][-1]]

    def test_a_standalone_evaluation_also_loads_the_state_of_extensions_that_change_evaluations(self, tmp_path: Path) -> None:
        """Covers contract E37."""

        class Shifted(Extension):
            shift = 0.0

            def post_optimizer_step(self) -> None:
                self.shift += 1.0

            def around_eval(self, model: Any) -> Any:
                with torch.no_grad():
                    model[2].bias += self.shift
                yield
                with torch.no_grad():
                    model[2].bias -= self.shift

            def state_dict(self) -> dict[str, Any]:
                return {"shift": self.shift}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.shift = state["shift"]

        tm = make(tmp_path, 2, [Shifted()])
        tm.train()
        found = make(tmp_path, 2, [Shifted()])
        found.eval()
        assert found.history["valid/loss"] == [tm.history["valid/loss"][-1]]

    def test_training_resumes_after_a_standalone_evaluation(self, tmp_path: Path, undisturbed: TrainManager) -> None:
        make(tmp_path, 2).train()
        again = make(tmp_path, 5)
        again.eval()
        again.train()
        assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), undisturbed.model.parameters(), strict=True))

    def test_loaded_parameters_are_not_initialized_again(self, tmp_path: Path) -> None:
        """Covers contract E32."""
        make(tmp_path, 1).train()
        calls: list[nn.Module] = []
        make(tmp_path, 2, initialization=calls.append).train()
        make(tmp_path, 2, initialization=calls.append).eval()
        assert calls == []

    def test_a_second_call_of_train_continues_from_memory(self, tmp_path: Path, undisturbed: TrainManager) -> None:
        tm = make(tmp_path, 2)
        tm.train()
        tm.epochs = 5
        tm.train()
        assert same(tm, undisturbed)
        assert saved(tmp_path) == ["1.ckpt", "2.ckpt", "3.ckpt", "4.ckpt", "5.ckpt"]

    def test_a_damaged_checkpoint_is_skipped_with_a_warning_that_names_the_file(self, tmp_path: Path, undisturbed: TrainManager) -> None:
        make(tmp_path, 3).train()
        path = tmp_path / "checkpoints" / "3.ckpt" / "tensors.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        again = make(tmp_path, 5)
        with pytest.warns(UserWarning, match=r"training resumes from 2\.ckpt: `3\.ckpt/tensors\.safetensors` is damaged: its checksum"):
            again.train()
        assert same(again, undisturbed)

    def test_if_all_checkpoints_are_damaged_training_does_not_start_from_scratch(self, tmp_path: Path) -> None:
        make(tmp_path, 2).train()
        for name in saved(tmp_path):
            (tmp_path / "checkpoints" / name / "tree.json").write_text("{}")
        with pytest.raises(StoreDamagedError, match="all checkpoints are damaged"):
            make(tmp_path, 3).train()

    def test_an_incomplete_checkpoint_is_replaced(self, tmp_path: Path) -> None:
        """Covers fault C14."""
        make(tmp_path, 2).train()
        (tmp_path / "checkpoints" / "2.ckpt" / "manifest.json").unlink()
        make(tmp_path, 3).train()
        assert saved(tmp_path) == ["1.ckpt", "2.ckpt", "3.ckpt"]
        assert CheckpointFolder(tmp_path / "checkpoints").names() == [SavedAt(3), SavedAt(2), SavedAt(1)]

    def test_an_unfinished_first_save_is_not_a_checkpoint(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoints" / "1.ckpt").mkdir(parents=True)
        make(tmp_path, 1).train()
        assert CheckpointFolder(tmp_path / "checkpoints").names() == [SavedAt(1)]

    def test_a_checkpoint_of_another_model_is_an_error_that_says_what_differs(self, tmp_path: Path) -> None:
        """Covers fault C19."""
        make(tmp_path, 1).train()
        other = make(tmp_path, 2)
        other.model[0] = nn.Linear(4, 9)  # type: ignore[index,operator]
        with pytest.raises(StateError, match="does not fit"):
            other.train()

    def test_resuming_with_other_batches_is_refused(self, tmp_path: Path) -> None:
        """Covers fault C19."""
        make(tmp_path, 1).train()
        other = make(tmp_path, 2)
        other.train_data = DataLoader(other.train_data.dataset, batch_size=5)  # type: ignore[attr-defined]
        with pytest.raises(StateError, match="train_data has 4 batches, but the state was captured with 5"):
            other.train()

    def test_resuming_with_another_number_of_workers_is_refused_if_loading_may_draw_random_numbers(self, tmp_path: Path) -> None:
        """Covers fault C19."""

        class Noisy(TensorDataset):
            def __getitem__(self, index: Any) -> Any:
                return tuple(each + torch.rand(1) for each in super().__getitem__(index))

        def with_workers(dataset: Any, num_workers: int, epochs: int) -> TrainManager:
            tm = make(tmp_path / type(dataset).__name__, epochs)
            tm.train_data = DataLoader(dataset, batch_size=4, num_workers=num_workers)
            return tm

        plain = make(None).train_data.dataset  # type: ignore[attr-defined]
        with_workers(plain, 0, 1).train()
        with_workers(plain, 1, 2).train()
        noisy = Noisy(*plain.tensors)
        with_workers(noisy, 0, 1).train()
        with pytest.raises(StateError, match="num_workers was 0, and is now 1"):
            with_workers(noisy, 1, 2).train()

    @pytest.mark.parametrize("spec", [True, -2, None, 1.5])
    def test_an_invalid_ckpt_spec_is_refused_at_construction(self, spec: Any) -> None:
        with pytest.raises(SettingError, match="ckpt_spec"):
            CheckpointLoader(ckpt_spec=spec)


class TestBuffers:
    def test_memory_is_reused_if_shapes_are_the_same(self) -> None:
        buffers = Buffers()
        first = buffers.copied({"a": torch.ones(3), "b": [torch.zeros(2)]})
        buffers.begin()
        second = buffers.copied({"a": torch.full((3,), 7.0), "b": [torch.ones(2)]})
        assert second["a"].data_ptr() == first["a"].data_ptr()
        assert second["a"].tolist() == [7.0, 7.0, 7.0]

    def test_a_copy_shares_no_memory_with_the_original(self) -> None:
        given = torch.ones(3, requires_grad=True)
        copied = Buffers().copied(given)
        with torch.no_grad():
            given.zero_()
        assert copied.tolist() == [1.0, 1.0, 1.0]
        assert not copied.requires_grad

    def test_two_tensors_of_one_shape_do_not_share_a_buffer(self) -> None:
        buffers = Buffers()
        buffers.copied([torch.ones(2), torch.zeros(2)])
        buffers.begin()
        assert [each.tolist() for each in buffers.copied([torch.full((2,), 3.0), torch.full((2,), 4.0)])] == [[3.0, 3.0], [4.0, 4.0]]

    def test_a_new_tensor_in_freed_memory_is_not_mistaken_for_the_old_one(self) -> None:
        buffers = Buffers()
        copied = [buffers.copied(torch.full((1000,), float(number))) for number in range(20)]
        assert [each[0].item() for each in copied] == [float(number) for number in range(20)]

    def test_originals_are_released_after_a_copy(self) -> None:
        buffers, given = Buffers(), torch.ones(3)
        held = weakref.ref(given)
        buffers.copied(given)
        buffers.end()
        del given
        assert held() is None

    def test_tied_tensors_stay_tied(self) -> None:
        one = torch.ones(2, 3)
        copied = Buffers().copied({"a": one, "b": one, "view": one.t()})
        assert copied["a"] is copied["b"]
        assert copied["view"].tolist() == one.t().tolist()


def test_a_loop_ignores_hooks_and_lazy_fixtures_for_a_manager() -> None:
    calls: list[str] = []

    class Both(Extension):
        def pre_train(self) -> None:
            calls.append("train")

        def pre_work_train(self, key: str) -> None:
            calls.append("work")

        @fixture("work")
        def colour(self) -> str:
            return "red"

    tm = make(None, 1, extensions=[Both()])
    tm.train()
    assert calls == ["train"]
    assert "colour" not in str(tm.describe())


def test_an_extension_with_hooks_for_a_manager_only_is_refused_by_a_loop() -> None:
    from trainmaster.errors import UnknownHookError

    class Wrong(Extension):
        def pre_work_train(self) -> None: ...

    with pytest.raises(UnknownHookError, match="extension `wrong` has no hook for any stage of this routine"):
        make(None, extensions=[Wrong()])


def test_a_best_checkpoint_that_is_saved_again_after_a_late_stop_is_not_kept_twice(tmp_path: Path) -> None:
    class StopsLate(Extension):
        def post_train(self, loop: Any) -> None:
            loop.stop("late")

    saver = CheckpointSaver(keep=1)
    tm = make(tmp_path, 2, [StopsLate(), saver])
    tm.train()
    assert saver.best is not None
    assert saver.best.epoch == 2  # the last epoch is the best, so one checkpoint is both
    assert saved(tmp_path) == ["2-2.ckpt"]
