"""The TensorBoard extension writes real event files, which the tests read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, Manager, TrainManager
from trainmaster.errors import MissingExtraError, SettingError
from trainmaster.extensions.tensorboard import TensorBoard
from trainmaster.testing import ExtensionContract

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

INPUTS = torch.linspace(-1, 1, 24).unsqueeze(1)
BATCHES = list(zip(INPUTS.split(8), (INPUTS**2).split(8), strict=True))


class Net(nn.Sequential):
    def forward(self, batch: Any) -> Any:
        return super().forward(batch[0])


def make(*extensions: object, epochs: int = 3, **settings: Any) -> TrainManager:
    torch.manual_seed(0)
    model = Net(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    return TrainManager(
        model,
        lambda batch, prediction: (prediction - batch[1]).pow(2).mean(),
        epochs,
        BATCHES,
        {"valid": BATCHES},
        extensions=extensions,
        **settings,
    )


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


class TestContract(ExtensionContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def make(self) -> object:
        return TensorBoard(self.path)


def as_read(rows: Any) -> list[tuple[int, float]]:
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in rows]


def test_recorded_metrics_are_read_back_from_the_event_files(tmp_path: Path) -> None:
    tm = make(TensorBoard(), train_dir=tmp_path)
    tm.train()
    found = scalars(tmp_path / "tensorboard")
    assert found["valid/loss"] == as_read(tm.history["valid/loss"])
    assert set(found) == {"train/loss", "valid/loss"}


def test_texts_are_mirrored_too(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Talk(Extension):
        def post_train(self, writer: Any) -> None:
            writer.add_text("words", "hello")

    make(Talk(), TensorBoard(tmp_path)).train()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert found.Tags()["tensors"] == ["words/text_summary"]


def test_training_that_resumes_has_every_value_once(tmp_path: Path) -> None:
    make(TensorBoard(), train_dir=tmp_path, epochs=2).train()
    again = make(TensorBoard(), train_dir=tmp_path, epochs=4)
    again.train()
    assert scalars(tmp_path / "tensorboard")["valid/loss"] == as_read(again.history["valid/loss"])
    assert [step for step, _ in again.history["valid/loss"]] == [0, 1, 2, 3, 4]


def test_a_run_that_resumes_in_a_new_attempt_has_every_value_once(tmp_path: Path) -> None:
    class Small(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            return make(TensorBoard())

    for epochs in (1, 3):
        manager = Small(tmp_path, verbose=False)
        manager.process({"lr": 1}, epochs)
    newest = max(tmp_path.rglob("tensorboard"))
    found = scalars(newest)
    events = manager.store.run(manager.key).events()
    for tag in ("train/loss", "valid/loss"):
        assert found[tag] == as_read([(event["step"], event["value"]) for event in events if event.get("tag") == tag])


def test_other_files_in_the_folder_are_not_changed(tmp_path: Path) -> None:
    other = tmp_path / "events.out.tfevents.1.host"
    other.write_bytes(b"")
    make(TensorBoard(tmp_path)).train()
    make(TensorBoard(tmp_path)).train()
    assert other.exists()
    assert len(list(tmp_path.glob("*.trainmaster"))) == 1


def test_without_tensorboard_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"^TensorBoard needs: pip install 'trainmaster\[tensorboard\]'"):
        make(TensorBoard(tmp_path)).train()


def test_without_a_folder_it_is_refused_before_the_first_batch() -> None:
    with pytest.raises(SettingError, match="TensorBoard has no path to write to"):
        make(TensorBoard()).train()


def test_a_full_disk_causes_a_warning_and_training_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.tensorboard import SummaryWriter

    def full(self: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SummaryWriter, "flush", full)
    tm = make(TensorBoard(tmp_path))
    with pytest.warns(UserWarning, match=r"TensorBoard stops writing event files to .*: No space left on device"):
        tm.train()
    assert tm.epoch_num == 3


def test_a_folder_that_is_a_file_causes_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    tm = make(TensorBoard(tmp_path / "file"))
    with pytest.warns(UserWarning, match="File exists"):
        tm.train()
    assert tm.epoch_num == 3


def test_attached_during_training_it_starts_with_the_next_call_of_train(tmp_path: Path) -> None:
    class Attach(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num == 2:
                train_manager.add_extension("tensor_board", TensorBoard(tmp_path))

    tm = make(Attach())
    tm.train()
    assert (tm.epoch_num, list(tmp_path.iterdir())) == (3, [])
