"""Writers that others listen to."""

from __future__ import annotations

from typing import Any

from trainmaster import MemoryWriter
from trainmaster.loop.writer import Mirrored
from trainmaster.manager.run_writer import RunWriter


def test_a_mirror_gets_what_was_and_what_comes_until_it_is_stopped() -> None:
    writer = MemoryWriter()
    writer.add_scalar("a", 1, 0)
    seen: list[Any] = []
    stop = writer.mirror(lambda *row: seen.append(row))
    writer.add_scalars("b", {"c": 2}, 1)
    writer.add_text("d", "words")
    stop()
    writer.add_scalar("a", 3, 2)
    assert seen == [("a", 1.0, 0), ("b/c", 2.0, 1), ("d", "words", None)]


def test_a_mirror_of_a_run_gets_the_rows_of_its_log_first_and_none_that_is_held_or_muted() -> None:
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


def test_both_writers_can_be_listened_to_and_others_need_not() -> None:
    class Plain:
        def add_scalar(self) -> None: ...

    assert isinstance(MemoryWriter(), Mirrored)
    assert isinstance(RunWriter(), Mirrored)
    assert not isinstance(Plain(), Mirrored)
