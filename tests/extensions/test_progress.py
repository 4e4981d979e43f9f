"""Progress: a bar on a terminal, lines elsewhere, and nothing changed either way."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from torch import nn

from trainmaster import LoopComponent, Progress, TrainTestLoop
from trainmaster.errors import SettingError
from trainmaster.testing import ExtensionContract


class TestProgress(ExtensionContract):
    def make(self) -> Progress:
        return Progress(console=Console(file=io.StringIO()))


class TestProgressOnATerminal(ExtensionContract):
    def make(self) -> Progress:
        return Progress(show=["loss", "true_batch_size"], console=Console(file=io.StringIO(), force_terminal=True, width=120))


def printed_by(progress_console: Console, test: ExtensionContract) -> str:
    test.manager(Progress(console=progress_console)).train()
    assert isinstance(progress_console.file, io.StringIO)
    return progress_console.file.getvalue()


def test_off_a_terminal_it_prints_one_plain_line_per_evaluation() -> None:
    lines = printed_by(Console(file=io.StringIO()), ExtensionContract()).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("epoch 0/3  valid loss ")
    assert lines[3].startswith("epoch 3/3  valid loss ")
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_it_draws_bars_for_the_run_and_the_epoch() -> None:
    text = printed_by(Console(file=io.StringIO(), force_terminal=True, width=120), ExtensionContract())
    assert "run" in text
    assert "epoch 3" in text


def test_the_bars_are_gone_after_an_error() -> None:
    class Broken(Exception): ...

    class Raise:
        def post_train_step_batch(self, step_num: int) -> None:
            if step_num == 4:
                raise Broken

    console = Console(file=io.StringIO(), force_terminal=True)
    manager = ExtensionContract().manager(Progress(console=console), Raise())
    with pytest.raises(Broken):
        manager.train()
    assert manager["progress"]._bars is None


def test_it_works_among_the_components_of_a_train_test_loop() -> None:
    class Work(LoopComponent):
        def on_forward_pass(self, loop):
            loop.loss = loop.model(loop.batch).sum()

    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    loop = TrainTestLoop(nn.Linear(2, 1), [Work(), Progress(console=console)], [torch.ones(1, 2)] * 3, [])
    loop.train(2)
    assert isinstance(console.file, io.StringIO)
    assert "epoch 2" in console.file.getvalue()


def test_a_single_name_for_show_is_refused() -> None:
    with pytest.raises(SettingError, match="list of fixture names, not 'loss'"):
        Progress(show="loss")
