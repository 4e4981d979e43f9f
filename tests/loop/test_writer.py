"""Writers record metrics and pass them to their loggers."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster import Manager, MemoryWriter, Writer
from trainmaster.errors import MetricNameError
from trainmaster.loop.loggers import Mirrored
from trainmaster.manager.run_writer import RunWriter


def test_a_mirror_gets_earlier_and_later_rows_until_it_is_detached() -> None:
    writer = MemoryWriter()
    writer.add_scalar("a", 1, 0)
    seen: list[Any] = []
    stop = writer.mirror(lambda *row: seen.append(row))
    writer.add_scalars("b", {"c": 2}, 1)
    writer.add_text("d", "words")
    stop()
    writer.add_scalar("a", 3, 2)
    assert seen == [("a", 1.0, 0), ("b/c", 2.0, 1), ("d", "words", None)]


def test_a_mirror_of_a_run_gets_the_rows_of_its_log_first_and_none_that_are_held_back() -> None:
    log: list[Any] = [{"tag": "old", "value": 0.5, "step": 1, "time": 0.0}, {"epoch": 1, "eval": {}}]
    writer = RunWriter()
    writer.append_to(log.append, lambda: list(log))
    seen: list[Any] = []
    writer.mirror(lambda *row: seen.append(row))
    assert seen == [("old", 0.5, 1)]
    writer.hold()
    writer.add_scalar("held", 1, 2)
    writer.let_go(is_complete=False)
    writer.mute(True)
    writer.add_scalar("muted", 1, 2)
    writer.mute(False)
    writer.hold()
    writer.add_scalar("told", 1, 2)
    assert len(seen) == 1
    writer.let_go(is_complete=True)
    assert seen[1:] == [("told", 1.0, 2)]


@pytest.mark.parametrize("is_read", [False, True], ids=["unread", "read"])
@pytest.mark.parametrize("is_logged", [False, True], ids=["in memory", "with a log"])
def test_a_nested_evaluation_adds_its_rows_to_the_outer_one_or_drops_only_its_own(is_logged: bool, is_read: bool) -> None:
    log: list[Any] = []
    writer, seen = RunWriter(), list[Any]()
    writer.add_scalar("valid/loss", 1, 0)
    if is_logged:
        writer.append_to(log.append, lambda: list(log))
        writer.add_scalar("valid/loss", 1, 0)
    if is_read:
        assert writer.history == {"valid/loss": [(0, 1.0)]}
    writer.hold()
    writer.add_scalar("valid/loss", 2, 1)
    writer.mirror(lambda *row: seen.append(row))
    for is_complete in (True, False):
        writer.hold()
        writer.add_scalar("valid/loss", 3 if is_complete else 4, 1)
        writer.add_scalar(f"test/{is_complete}", 5, 1)
        assert (writer.last("valid/loss"), f"test/{is_complete}" in writer.names()) == (3 if is_complete else 4, True)
        assert len(writer.history["valid/loss"]) == (3 if is_complete else 4)
        writer.let_go(is_complete)
        assert (writer.last("valid/loss"), writer.names()) == (3, ["valid/loss", "test/True"])
    assert seen == [("valid/loss", 1.0, 0)]
    writer.let_go(is_complete=True)
    assert seen[1:] == [("valid/loss", 2.0, 1), ("valid/loss", 3.0, 1), ("test/True", 5.0, 1)]
    assert writer.history == {"valid/loss": [(0, 1.0), (1, 2.0), (1, 3.0)], "test/True": [(1, 5.0)]}
    assert [row["tag"] for row in log[1:]] == (["valid/loss", "valid/loss", "test/True"] if is_logged else [])


def test_the_log_of_a_run_is_read_once_and_only_on_request() -> None:
    def rows() -> list[Any]:
        reads.append(len(log))
        return list(log)

    reads: list[int] = []
    log: list[Any] = [{"tag": "a", "value": 0.5, "step": 1, "time": 0.0}]
    writer = RunWriter()
    writer.append_to(log.append, rows)
    writer.add_scalar("a", 1, 2)
    assert reads == []
    assert writer.history == {"a": [(1, 0.5), (2, 1.0)]}
    writer.add_scalar("a", 2, 3)
    writer.detach()
    writer.add_scalar("a", 3, 4)
    assert writer.history == {"a": [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0)]}
    assert reads == [2]


def test_both_writers_support_mirror_and_others_need_not() -> None:
    class Plain:
        def add_scalar(self) -> None: ...

    assert isinstance(MemoryWriter(), Mirrored)
    assert isinstance(RunWriter(), Mirrored)
    assert not isinstance(Plain(), Mirrored)


@pytest.mark.parametrize("make", [MemoryWriter, RunWriter])
def test_a_name_of_a_megabyte_is_refused_and_nothing_is_written(make: Any) -> None:
    writer = make()
    for write in (
        lambda: writer.add_scalar("x" * 10**6, 1.0, 0),
        lambda: writer.add_scalars("x" * 150, {"y" * 150: 1.0}, 0),
        lambda: writer.add_text("x" * 201, "words", 0),
    ):
        with pytest.raises(MetricNameError, match=r"a metric name has [\d,]+ characters; the limit is 200"):
            write()
    assert writer.names() == []
    writer.add_scalar("x" * 200, 1.0, 0)
    assert writer.names() == ["x" * 200]


def test_a_manager_refuses_such_a_name_too() -> None:
    class Talks(Manager):
        def train(self) -> None: ...

        def eval(self) -> Any:
            return {"x" * 10**6: 1.0}

    with pytest.raises(MetricNameError, match="1,000,000 characters"):
        Talks(None, verbose=False).process({"lr": 1.0}, num_epochs=1)


@pytest.mark.parametrize("make", [MemoryWriter, RunWriter])
def test_both_writers_can_be_flushed(make: Any) -> None:
    writer = make()
    assert isinstance(writer, Writer)
    writer.add_scalar("a", 1.0, 0)
    writer.flush()
    assert writer.last("a") == 1.0
