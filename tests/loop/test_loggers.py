"""Loggers: their arguments, when and on which thread they are called, their errors, and what they get on resume."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Extension, Logger, Manager, MemoryWriter, Observer, TrainManager, Writer, always
from trainmaster.errors import SettingError
from trainmaster.manager.run_writer import RunWriter


@pytest.mark.parametrize("make", [MemoryWriter, RunWriter])
class TestLoggers:
    def test_a_failing_logger_is_detached_with_a_warning_and_the_row_stays_recorded(self, make: Any) -> None:
        def sends(tag: str, value: float | str, step: int | None) -> None:
            calls.append(tag)
            raise ConnectionError("no network")

        calls: list[str] = []
        others: list[Any] = []
        writer = make()
        writer.mirror(sends)
        writer.mirror(lambda *row: others.append(row))
        with pytest.warns(UserWarning, match=r"the logger `.*sends` failed at 'a' and gets no more rows: ConnectionError: no network"):
            writer.add_scalar("a", 1.0, 0)
        writer.add_scalar("a", 2.0, 1)
        assert calls == ["a"]
        assert others == [("a", 1.0, 0), ("a", 2.0, 1)]
        assert writer.history == {"a": [(0, 1.0), (1, 2.0)]}

    @pytest.mark.filterwarnings("error")
    def test_a_failing_logger_does_not_stop_training_if_warnings_are_errors(self, make: Any, capsys: pytest.CaptureFixture[str]) -> None:
        def sends(tag: str, value: float | str, step: int | None) -> None:
            raise ConnectionError("no network")

        others: list[Any] = []
        writer = make()
        writer.mirror(sends)
        writer.mirror(lambda *row: others.append(row))
        writer.add_scalar("a", 1.0, 0)
        writer.add_scalar("a", 2.0, 1)
        assert others == [("a", 1.0, 0), ("a", 2.0, 1)]
        assert capsys.readouterr().err.count("sends` failed at 'a' and gets no more rows: ConnectionError: no network\n") == 1

    def test_an_interrupt_in_a_logger_is_not_a_failure(self, make: Any) -> None:
        def interrupted(*row: Any) -> None:
            raise KeyboardInterrupt

        writer = make()
        writer.mirror(interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.add_scalar("a", 1.0, 0)

    def test_an_error_on_an_earlier_row_is_raised_and_nothing_is_attached(self, make: Any) -> None:
        def fails(*row: Any) -> None:
            calls.append(row)
            raise ValueError("wrong")

        calls: list[Any] = []
        writer = make()
        writer.add_scalar("a", 1.0, 0)
        with pytest.raises(ValueError, match="wrong"):
            writer.mirror(fails)
        writer.add_scalar("a", 2.0, 1)
        assert len(calls) == 1

    def test_an_object_that_is_not_callable_is_refused(self, make: Any) -> None:
        with pytest.raises(SettingError, match=r"`mirror` takes a function of \(tag, value, step\), not 'wandb' \(str\)"):
            make().mirror("wandb")

    def test_a_logger_can_be_attached_and_detached_twice_even_by_itself(self, make: Any) -> None:
        writer, calls = make(), list[Any]()

        def logger(*row: Any) -> None:
            calls.append(row)
            stops[0]()

        stops = [writer.mirror(logger), writer.mirror(logger)]
        writer.add_scalar("a", 1.0, 0)
        assert len(calls) == 2
        writer.add_scalar("a", 2.0, 1)
        assert len(calls) == 3
        stops[0]()


class Net(nn.Sequential):
    def forward(self, batch: Any) -> Any:
        return super().forward(batch[0])


class ByStep(Extension):
    """Records a value for each update, and fails once in the middle of the third epoch."""

    def __init__(self, is_failing: bool) -> None:
        self.is_failing = is_failing

    def post_train_step_batch(self, writer: Writer, step_num: int) -> None:
        writer.add_scalar("by_step", float(step_num), step_num)
        if self.is_failing and step_num == 6:
            raise OSError("killed")


class Keeps(Observer):
    """A logger like the one in the documentation: it is attached in `pre_train`, and clears its rows at each start."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.threads: set[int] = set()

    def pre_train(self, writer: Any) -> None:
        self.rows.clear()
        self.stop = writer.mirror(self.log)

    def log(self, tag: str, value: float | str, step: int | None) -> None:
        self.rows.append((tag, value, step))
        self.threads.add(threading.get_ident())

    @always
    def post_train(self) -> None:
        self.stop()


def loop(extensions: Any, **settings: Any) -> TrainManager:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 8).unsqueeze(1)
    batches = list(zip(x.split(4), (2 * x).split(4), strict=True))
    return TrainManager(
        Net(nn.Linear(1, 1)), lambda batch, out: (out - batch[1]).pow(2).mean(), 4, batches, {"valid": batches},
        extensions=extensions, device="cpu", progress=False, **settings,
    )  # fmt: skip


class Loops(Manager):
    is_failing = False
    keeps = Keeps()
    attached: list[Any] = []

    def make_loop(self, config: Any) -> TrainManager:
        made = loop({"by_step": ByStep(type(self).is_failing), "keeps": type(self).keeps})
        made.writer.mirror(lambda *row: type(self).attached.append(row))  # type: ignore[attr-defined]
        return made


def by_name(rows: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for tag, value, step in rows:
        found.setdefault(tag, []).append((step, value))
    return found


def test_after_a_kill_a_logger_has_each_row_once_and_none_after_the_resumed_step(tmp_path: Path) -> None:
    whole = loop([ByStep(False)])
    whole.train()
    with pytest.raises(OSError, match="killed"):
        loop([ByStep(True)], train_dir=tmp_path).train()
    keeps = Keeps()
    again = loop({"by_step": ByStep(False), "keeps": keeps}, train_dir=tmp_path)
    again.train()
    assert by_name(keeps.rows) == again.history == whole.history
    assert [step for step, _ in whole.history["by_step"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert keeps.threads == {threading.get_ident()}


def test_a_logger_that_is_attached_before_training_resumes_gets_all_rows(tmp_path: Path) -> None:
    loop([], train_dir=tmp_path, max_steps=4).train()
    again = loop([], train_dir=tmp_path)
    rows: list[Any] = []
    again.writer.mirror(lambda *row: rows.append(row))  # type: ignore[attr-defined]
    again.train()
    assert by_name(rows) == again.history


def test_under_a_manager_a_logger_has_each_row_once_wherever_it_was_attached(tmp_path: Path) -> None:
    kind = type("Loops", (Loops,), {"keeps": Keeps(), "attached": []})
    whole = kind(None, verbose=False)
    whole.process({"lr": 1})
    kind.is_failing = True
    with pytest.raises(OSError, match="killed"):
        kind(tmp_path, verbose=False).process({"lr": 1})
    kind.is_failing, kind.attached = False, []
    again = kind(tmp_path, verbose=False)
    again.process({"lr": 1})
    assert by_name(kind.keeps.rows) == by_name(kind.attached) == again.history == whole.history
    assert [step for step, _ in whole.history["by_step"]] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_typed_function_satisfies_the_logger_protocol() -> None:
    def logger(tag: str, value: float | str, step: int | None) -> None: ...

    typed: Logger = logger
    MemoryWriter().mirror(typed)


def test_a_logger_under_a_manager_gets_the_key_and_the_config_before_the_rows() -> None:
    class Knows(Keeps):
        def pre_work(self, key: str, config: Any) -> None:
            order.append(("work", key, config.lr))

        def log(self, tag: str, value: float | str, step: int | None) -> None:
            order.append(("row", tag, step))

    class Plain(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            return loop([])

    order: list[Any] = []
    manager = Plain(None, verbose=False)
    manager.add_extension("knows", Knows())
    manager.process({"lr": 1})
    assert order[:2] == [("work", manager.key, 1), ("row", "valid/loss", 0)]
