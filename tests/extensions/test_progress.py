"""Progress shows bars on a terminal and lines elsewhere, and has no effect on the results."""

from __future__ import annotations

import io
import random
import re
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from trainmaster import CheckpointSaver, Extension, LoopComponent, Metrics, Progress, Supervised, TrainManager, TrainTestLoop, fixture
from trainmaster.errors import SettingError
from trainmaster.loop import progress as progress_file
from trainmaster.testing import ExtensionContract


class TestProgress(ExtensionContract):
    def make(self) -> Progress:
        return Progress(console=Console(file=io.StringIO()))


class TestProgressOnATerminal(ExtensionContract):
    def make(self) -> Progress:
        return Progress(show=["loss", "true_batch_size"], console=Console(file=io.StringIO(), force_terminal=True, width=120))


def printed_by(progress_console: Console, test: ExtensionContract) -> str:
    test.loop(Progress(console=progress_console)).train()
    assert isinstance(progress_console.file, io.StringIO)
    return progress_console.file.getvalue()


def test_without_a_terminal_it_prints_one_plain_line_per_evaluation() -> None:
    lines = printed_by(Console(file=io.StringIO()), ExtensionContract()).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("epoch 0/3  valid loss ")
    assert lines[3].startswith("epoch 3/3  valid loss ")
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_it_draws_bars_for_the_run_and_the_epoch() -> None:
    text = printed_by(Console(file=io.StringIO(), force_terminal=True, width=120), ExtensionContract())
    assert "run" in text
    assert "epoch 3" in text


def test_the_bars_are_removed_after_an_error() -> None:
    class Broken(Exception): ...

    class Raise:
        def post_train_step_batch(self, step_num: int) -> None:
            if step_num == 4:
                raise Broken

    console = Console(file=io.StringIO(), force_terminal=True)
    manager = ExtensionContract().loop(Progress(console=console), Raise())
    with pytest.raises(Broken):
        manager.train()
    assert manager["progress"]._bars is None


def test_it_works_as_a_component_of_a_train_test_loop() -> None:
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


def lines_of(*extensions: object, epochs: int = 3, show: tuple[str, ...] = ("loss",)) -> list[str]:
    lines: list[str] = []
    manager = ExtensionContract().loop(Progress(show, output=lines.append), *extensions)
    manager.epochs = epochs
    manager.train()
    return lines


def test_a_line_shows_the_remaining_time_of_the_whole_run() -> None:
    class Sleeps(Extension):
        def post_train_step_epoch(self) -> None:
            time.sleep(0.6)

    lines = lines_of(Sleeps(), epochs=4)
    assert re.search(r"^epoch 1/4 .*  0:0[2-9] left$", lines[1])
    assert lines[0].endswith(" s"), "before the first epoch, the time cannot be estimated"
    assert lines[4].endswith(" s"), "after the last epoch, no time is left"


def test_a_loss_that_is_not_the_best_is_shown_with_the_best() -> None:
    class Worse(Extension):
        def post_train_step_epoch(self, model: nn.Module) -> None:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1.0)

    lines = lines_of(Worse())
    best = re.search(r"valid loss ([\d.]+)", lines[0])
    assert best is not None
    assert f"(best loss {best[1]})" in lines[3]


def test_the_best_loss_is_known_after_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train(epochs: int) -> list[str]:
        torch.manual_seed(0)
        inputs = torch.randn(64, 4)
        batches = list(zip(inputs.split(16), inputs.sum(1, keepdim=True).split(16), strict=True))
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.9)  # diverges after the first epoch
        Supervised(model, nn.MSELoss(), epochs, batches, batches, optimizer=optimizer, train_dir=tmp_path).train()
        return capsys.readouterr().out.splitlines()

    best = re.search(r"\(best loss [\d.]+\)", train(3)[-1])
    assert best is not None
    assert all(best[0] in line for line in train(6) if line.startswith(("epoch 4", "epoch 5", "epoch 6")))


@pytest.mark.parametrize(
    ("mode", "shown"), [("max", ["", "", "", "(best quality 0.9000)"]), ("min", ["", "", *["(best quality 0.5000)"] * 2])]
)
def test_the_best_value_is_that_of_the_monitored_metric(tmp_path: Path, mode: str, shown: list[str]) -> None:
    values = iter([0.1, 0.5, 0.9, 0.7])
    lines: list[str] = []
    manager = ExtensionContract().loop(
        Progress(output=lines.append),
        Metrics({"quality": lambda prediction, targets: next(values)}),
        CheckpointSaver(tmp_path, monitor="quality", mode=mode),
    )
    manager.train()
    assert ["".join(re.findall(r"\(best.*\)", line)) for line in lines] == shown


def test_all_sets_of_an_evaluation_are_in_one_line() -> None:
    lines: list[str] = []
    manager = ExtensionContract().loop(Progress(output=lines.append))
    manager.eval_data["other"] = manager.eval_data["valid"]
    manager.train()
    assert len(lines) == 4
    assert re.search(r"valid loss [\d.]+  other loss [\d.]+", lines[0])


@pytest.mark.parametrize("is_first", [True, False], ids=["before Metrics", "after Metrics"])
def test_a_line_shows_the_metrics_of_each_set_next_to_its_loss(is_first: bool) -> None:
    def mean(prediction: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return prediction.mean()

    lines: list[str] = []
    extensions = [Progress(output=lines.append), Metrics({"mean": mean, "both": lambda prediction, targets: {"a": 1, "b": 2}})]
    manager = ExtensionContract().loop(*(extensions if is_first else reversed(extensions)))
    manager.eval_data["other"] = manager.eval_data["valid"]
    manager.train()
    numbers = r"loss -?[\d.]+  mean -?[\d.]+  both/a 1\.0000  both/b 2\.0000"
    assert re.match(rf"epoch 0/3  valid {numbers}  other {numbers}  [\d.]+ s", lines[0])
    assert f"mean {manager.history['valid/mean'][-1][1]:.4f}" in lines[3]


def test_a_bar_of_80_columns_has_room_for_the_loss_and_a_metric() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    metrics = Metrics({"accuracy": lambda prediction, targets: 0.75})
    ExtensionContract().loop(Progress(console=console, has_lines=False), metrics).train()
    assert isinstance(console.file, io.StringIO)
    assert re.search(r"run .*3/3.*valid loss [\d.]+  accuracy 0\.7500", console.file.getvalue())


def test_a_long_epoch_prints_lines_during_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract E44: the lines include the requested fixtures, even lazy ones."""

    class Doubled(Extension):
        @fixture("train_step_batch", after="loss")
        def doubled(self, loss: torch.Tensor) -> torch.Tensor:
            return loss * 2

    monkeypatch.setattr(progress_file, "_LINE_EVERY", 0.0)
    monkeypatch.setattr(progress_file, "_UPDATE_EVERY", 0.0)
    within = [line for line in lines_of(Doubled(), show=("doubled",)) if "batch" in line]
    assert len(within) == 18
    assert re.search(r"^epoch 2/3  batch 1/6  doubled \d\.\d{4}  [\d,]+ samples/s  \d:\d\d left$", within[6])


class Clock:
    """A clock that moves on by 2 seconds for each training batch."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class SlowSteps(Extension):
    def __init__(self, clock: Clock, stop_at: int | None = None) -> None:
        self.clock, self.stop_at = clock, stop_at

    def pre_forward(self, mode_name: str) -> None:
        self.clock.now += 2 if mode_name == "train" else 0

    def post_train_step_batch(self, loop: TrainManager, batch_num: int) -> None:
        if batch_num + 1 == self.stop_at:
            loop.stop()


def rates_of(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.search(r"batch .* ([\d,]+) samples/s", line))]


def test_samples_per_second_are_those_of_the_epoch_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = Clock(), list[str]()
    monkeypatch.setattr(progress_file, "time", clock)
    data = [*torch.randn(59, 32, 3), torch.randn(1, 3)]  # 60 batches, of which the last is small
    extensions = [SlowSteps(clock), Progress(output=lines.append)]
    TrainManager(nn.Linear(3, 1), lambda _, out: out.pow(2).mean(), 2, data, data[:2], extensions=extensions, device="cpu").train()
    assert rates_of(lines) == [16, 16, 16, 16]


def test_batches_that_were_skipped_on_resuming_do_not_count_as_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = Clock(), list[str]()
    monkeypatch.setattr(progress_file, "time", clock)
    data = list(torch.randn(100, 32, 3))
    extensions = [SlowSteps(clock, stop_at=50), Progress(output=lines.append)]
    loop = TrainManager(nn.Linear(3, 1), lambda _, out: out.pow(2).mean(), 1, data, data[:2], extensions=extensions, device="cpu")
    loop.train()
    lines.clear()
    loop.train()
    assert rates_of(lines) == [16]


def test_a_running_evaluation_has_its_own_bar() -> None:
    found = []

    class Looks(Extension):
        def post_eval_step_batch(self, train_manager: object) -> None:
            bars = manager["progress"]._bars
            found.append([task.description for task in bars.tasks])

    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    manager = ExtensionContract().loop(Progress(console=console), Looks())
    manager.train()
    assert found[-1] == ["run", "epoch 3", "  valid"]
    assert len(found) == 12


def test_with_max_steps_the_progress_of_the_run_is_that_of_the_steps() -> None:
    manager = ExtensionContract().loop()
    manager.epochs, manager.max_steps = None, 12
    pace = progress_file.Pace()
    assert pace.done(manager, 0) == 0.0
    manager.train()
    assert pace.done(manager, 0) == 1.0


def test_random_numbers_that_rich_draws_do_not_change_training() -> None:
    class Draws(Console):
        def print(self, *args: object, **kwargs: object) -> None:
            random.random()

    random.seed(3)
    ExtensionContract().loop(Progress(console=Draws(file=io.StringIO()))).train()
    found = random.random()
    random.seed(3)
    assert random.random() == found


def test_a_progress_that_is_added_during_an_epoch_shows_the_next_ones() -> None:
    lines = list[str]()
    progress = Progress(output=lines.append)

    class Adds(Extension):
        def pre_train_step_epoch(self, loop: TrainManager) -> None:
            loop.extensions.setdefault("progress", progress)

    loop = ExtensionContract().loop(Adds())
    loop.eval_data = {}
    loop.train()
    assert loop.epoch_num == 3
    assert [line[:9] for line in lines if "batch" not in line] == ["epoch 2/3", "epoch 3/3"]


def test_a_training_without_an_end_has_a_remaining_time() -> None:
    assert progress_file.clock(86400.0 * 10**10 + 61) == "10000000000 days 0:01:01"
    assert [progress_file.clock(each) for each in (0, 59.6, 600, 3600, 86400)] == ["0:00", "1:00", "10:00", "1:00:00", "1 day 0:00:00"]
