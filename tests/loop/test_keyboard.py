"""If a loop saves checkpoints, Ctrl-C during `train()` saves another one, and training can continue."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from trainmaster import Extension, TrainManager
from trainmaster.testing import ExtensionContract


class Interrupt(Extension):
    """Sends SIGINT to this process in the given batches."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def pre_train_step_batch(self, step_num: int) -> None:
        if step_num in self.steps:
            os.kill(os.getpid(), signal.SIGINT)


def make(*extensions: object, train_dir: Path | None = None) -> TrainManager:
    loop = ExtensionContract().loop(*extensions)
    return TrainManager(
        loop.model, loop.loss, 3, loop.train_data, loop.eval_data, extensions=list(extensions), progress=False, train_dir=train_dir
    )


@pytest.fixture(autouse=True)
def _handler() -> None:
    """Enable SIGINT, which is ignored if the tests run in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_the_batch_is_finished_and_the_same_training_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(Interrupt(8), train_dir=tmp_path).train()
    said = capsys.readouterr().err
    assert "trainmaster: Ctrl-C: finishing the batch and saving; Ctrl-C again stops at once" in said
    assert f"trainmaster: saved at epoch 1, batch 3 in {tmp_path / 'checkpoints'}; call train() again, or run the program again" in said
    resumed = make(train_dir=tmp_path)
    resumed.train()
    whole = make()
    whole.train()
    assert resumed.epoch_num == 3
    assert all(one.equal(other) for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True))


def test_the_loop_itself_can_continue(tmp_path: Path) -> None:
    loop = make(Interrupt(8), train_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        loop.train()
    loop.train()
    assert (loop.epoch_num, loop.step_num) == (3, 18)


def test_the_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    class Twice(Extension):
        def post_forward(self, step_num: int, mode_name: str) -> None:
            if step_num == 8 and mode_name == "train":
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    loop = make(Twice(), train_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        loop.train()
    assert loop.step_num == 8


def test_without_checkpoints_ctrl_c_stops_at_once() -> None:
    loop = make(Interrupt(8))
    with pytest.raises(KeyboardInterrupt):
        loop.train()
    assert loop.step_num == 8


def test_a_handler_of_the_program_is_left_alone(tmp_path: Path) -> None:
    calls: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    loop = make(Interrupt(8), train_dir=tmp_path)
    loop.train()
    assert (loop.epoch_num, calls) == (3, [signal.SIGINT])


def test_the_default_handler_is_back_after_training(tmp_path: Path) -> None:
    make(train_dir=tmp_path).train()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_another_thread_signals_are_left_alone(tmp_path: Path) -> None:
    loop = make(train_dir=tmp_path)
    thread = threading.Thread(target=loop.train)
    thread.start()
    thread.join()
    assert loop.epoch_num == 3
