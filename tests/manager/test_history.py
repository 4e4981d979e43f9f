"""`manager.history`, `loop.history` and `run.history` show the recorded metrics, during training and afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import CheckpointSaver, Extension, Manager, MemoryWriter, Observer, RunReport, TrainManager
from trainmaster.errors import SettingError


class Net(nn.Sequential):
    def forward(self, batch: Any) -> Any:
        return super().forward(batch[0])


def loop(extensions: Any, **settings: Any) -> TrainManager:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 8).unsqueeze(1)
    batches = list(zip(x.split(4), (2 * x).split(4), strict=True))
    return TrainManager(
        Net(nn.Linear(1, 1)), lambda batch, out: (out - batch[1]).pow(2).mean(), 4, batches, {"valid": batches},
        extensions=extensions, device="cpu", progress=False, **settings,
    )  # fmt: skip


class Reads(Observer):
    """Reads the history of the loop in a hook, which works with and without a manager."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def post_eval_step_epoch(self, loop: Any) -> None:
        self.seen.append(len(loop.history["valid/loss"]))


def test_the_history_of_a_run_is_available_during_and_after_training_and_by_fetch(tmp_path: Path) -> None:
    alone = loop([reads := Reads()])
    alone.train()
    assert reads.seen == [1, 2, 3, 4, 5]

    class Hosted(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            return loop([hosted])

    hosted = Reads()
    manager = Hosted(tmp_path, verbose=False)
    manager.process({"lr": 1})
    assert hosted.seen == reads.seen
    assert manager.loop is not None
    assert manager.history == manager.loop.history == manager.store.run(manager.key).history
    assert list(manager.history) == list(alone.history)
    fresh = Hosted(tmp_path, verbose=False)
    assert fresh.fetch(manager.key).history == manager.history
    fresh.process({"lr": 1})  # the run is already done
    assert fresh.history == manager.history


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_a_fresh_start_reports_only_its_own_rows(tmp_path: Path, store: str) -> None:
    offset, lines, seen = 0.0, [], []

    class Logs(Observer):
        def pre_train(self, loop: Any) -> None:
            seen.append(dict(loop.history))
            loop.writer.mirror(lambda tag, value, step: seen.append((tag, value)))

    class Hosted(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            made = loop([RunReport(output=lines.append), Logs()])
            made.loss = lambda batch, out: offset + (out - batch[1]).pow(2).mean()
            return made

    manager = Hosted(tmp_path if store == "disk" else None, verbose=False)
    manager.process({"lr": 1})
    offset = 100.0
    lines.clear()
    seen.clear()
    manager.process({"lr": 1}, resume=False)
    assert seen[0] == {}
    assert all(value >= 100 for tag, value in seen[1:] if tag.endswith("/loss"))
    (row,) = [line for line in lines if line.startswith("valid/loss")]
    assert row.split()[:2] == ["valid/loss", "best"]
    assert float(row.split()[2]) >= 100
    assert all(value >= 100 for _, value in manager.history["valid/loss"])


def test_the_history_of_user_written_epochs_has_the_results_of_eval() -> None:
    class Counts(Manager):
        def train(self) -> None: ...

        def eval(self) -> Any:
            return {"loss_test": 1.0 / (1 + self.epoch)}

    manager = Counts(None, verbose=False)
    with pytest.raises(SettingError, match="no run is set up, so there is no history"):
        _ = manager.history
    manager.process({"lr": 1}, num_epochs=2)
    assert manager.history == {"loss_test": [(0, 1.0), (1, 0.5), (2, 1 / 3)]}


def test_a_writer_from_make_loop_gets_the_new_rows_of_each_attempt(tmp_path: Path) -> None:
    class Mine:
        def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
            rows.append((tag, global_step))

        def add_scalars(self, *_: Any) -> None: ...
        def add_text(self, *_: Any) -> None: ...

    class Own(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            return loop([], writer=Mine())

    rows: list[Any] = []
    Own(tmp_path, verbose=False).process({"lr": 1}, num_epochs=1)
    assert rows == [("valid/loss", 0), ("train/loss", 1), ("valid/loss", 1)]
    Own(tmp_path, verbose=False).process({"lr": 1}, num_epochs=2)
    assert rows[3:] == [("train/loss", 2), ("valid/loss", 2)]


def test_a_subclass_of_the_default_writer_gets_the_new_rows_of_each_attempt() -> None:
    class Mine(MemoryWriter):
        def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
            super().add_scalar(f"mine/{tag}", scalar_value, global_step)

    def make_loop(config: Any) -> TrainManager:
        writer.mirror(lambda *row: seen.append(row))
        return loop([], writer=writer)

    writer, seen = Mine(), list[Any]()
    manager = Manager(None, make_loop=make_loop, verbose=False)
    manager.process({"lr": 1}, num_epochs=1)
    assert writer.history == {f"mine/{name}": rows for name, rows in manager.history.items()}
    assert [row[0] for row in seen] == ["mine/valid/loss", "mine/train/loss", "mine/valid/loss"]


def test_evaluating_a_finished_run_adds_to_its_history_but_not_to_its_records(tmp_path: Path) -> None:
    class Plain(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            return loop([])

    manager = Plain(tmp_path, verbose=False)
    manager.process({"lr": 1})
    before = manager.store.run(manager.key).events()
    assert manager.loop is not None
    data = manager.loop.eval_data["valid"]
    for each in (manager, Plain(tmp_path, verbose=False).fetch(manager.key)):
        assert each.loop is not None
        each.loop.eval({"test": data})
        assert each.loop.history["test/loss"] == [(4, pytest.approx(each.history["valid/loss"][-1][1]))]
        assert set(each.loop.history) == {*manager.store.run(manager.key).history, "test/loss"}
    assert manager.store.run(manager.key).events() == before


@pytest.mark.parametrize("stage", ["post_eval", "post_eval_step_epoch", "pre_eval", "post_train_step_epoch"])
def test_an_evaluation_in_a_hook_does_not_affect_the_outer_evaluation(stage: str) -> None:
    def hook(self: Any, train_manager: TrainManager) -> None:
        if stage.startswith("post_train") or train_manager.is_own_evaluation:
            train_manager.eval({"test": train_manager.eval_data["valid"]})

    def made(config: Any) -> TrainManager:
        return loop({"tests": type("Tests", (Extension,), {stage: hook})()})

    def saved(config: Any) -> TrainManager:
        found = made(config)
        found.add_extension("checkpoint_saver", CheckpointSaver(monitor="valid/loss"))
        return found

    alone = made(None)
    alone.train()
    manager = Manager(None, make_loop=saved, verbose=False)
    manager.process({"lr": 1})
    assert manager.history == alone.history
    assert manager.store.run(manager.key).history == alone.history
    assert {name: len(rows) for name, rows in alone.history.items()}["valid/loss"] == 5
    assert manager.preview["valid/loss"] == alone.history["valid/loss"][-1][1]
    assert manager.stats[manager.key]["best"]["metric"] == "valid/loss"


def test_an_evaluation_that_fails_at_its_start_does_not_affect_the_outer_one() -> None:
    class Fails(Extension):
        def pre_eval(self, train_manager: TrainManager) -> None:
            if not train_manager.is_own_evaluation:
                raise ValueError("no test today")

    class Tries(Extension):
        def post_eval_step_epoch(self, train_manager: TrainManager) -> None:
            with pytest.raises(ValueError, match="no test today"):
                train_manager.eval({"test": train_manager.eval_data["valid"]})

    manager = Manager(None, make_loop=lambda config: loop([Fails(), Tries()]), verbose=False)
    manager.process({"lr": 1})
    assert [step for step, _ in manager.history["valid/loss"]] == [0, 1, 2, 3, 4]


class Flushed:
    """A writer that remembers how many rows it had at each flush."""

    def __init__(self, fails: bool = False) -> None:
        self.tags: list[str] = []
        self.at_flush: list[int] = []
        self.fails = fails

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
        self.tags.append(tag)

    def add_scalars(self, *_: Any) -> None: ...
    def add_text(self, *_: Any) -> None: ...
    def flush(self) -> None:
        self.at_flush.append(len(self.tags))
        if self.fails:
            raise OSError("no network")


def test_a_writer_is_flushed_before_each_checkpoint_and_at_the_end_with_and_without_a_manager(tmp_path: Path) -> None:
    alone, unsaved, hosted = Flushed(), Flushed(), Flushed()
    loop([], writer=alone, train_dir=tmp_path).train()
    loop([], writer=unsaved).train()
    Manager(None, make_loop=lambda config: loop([], writer=hosted), verbose=False).process({"lr": 1})
    assert alone.at_flush == hosted.at_flush == [3, 5, 7, 9, 9]
    assert unsaved.at_flush == [9]


def test_a_writer_is_flushed_when_training_fails_and_the_training_error_is_raised() -> None:
    class Fails(Extension):
        def post_train_step_epoch(self) -> None:
            raise ValueError("the user's error")

    writer = Flushed(fails=True)
    with pytest.raises(ValueError, match="the user's error"):
        loop([Fails()], writer=writer).train()
    assert len(writer.at_flush) == 1


def test_a_writer_that_cannot_be_flushed_does_not_stop_a_run() -> None:
    writer = Flushed(fails=True)
    manager = Manager(None, make_loop=lambda config: loop([], writer=writer), verbose=False)
    with pytest.warns(UserWarning, match=r"the logger `Flushed` failed to flush and gets no more rows: OSError: no network"):
        manager.process({"lr": 1})
    assert (writer.at_flush, manager.epoch) == ([3], 4)
