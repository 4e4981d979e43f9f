"""Only complete lines of an event log are read, even if a kill interrupted the writing of the last one (fault I02)."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.errors import CodecError, StoreAccessError, StoreDamagedError
from trainmaster.store import Store
from trainmaster.store.events import EventLog, event_line, read_events, read_lines, seed_of
from trainmaster.store.files import Files
from trainmaster.store.memory_files import MemoryFiles

PATH = "stats/events.jsonl"
EVENTS = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "text": "ü\n"}, {"epoch": 3, "shape": (1, 2), "none": None}]
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.tuples(st.integers(), st.text())


def logged(files: Files, events: list[dict[str, Any]] = EVENTS) -> EventLog:
    log = EventLog(files, PATH)
    for event in events:
        log.append(event)
    log.sync()
    log.close()
    return log


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.text().filter(lambda name: name not in ("n", "crc")), VALUES, max_size=4), max_size=5))
def test_events_are_read_as_they_were_written(events: list[dict[str, Any]]) -> None:
    files = MemoryFiles()
    assert logged(files, events).count == len(events)
    assert repr(read_events(files, PATH)) == repr(events)


def test_each_line_is_json_with_number_and_checksum(store: Store) -> None:
    logged(store.files)
    lines = [json.loads(line) for line in store.files.read(PATH).splitlines()]
    assert [line["n"] for line in lines] == [0, 1, 2]
    assert all(len(line["crc"]) == 8 for line in lines)


def test_nan_and_infinities_are_events_in_strict_json(store: Store) -> None:  # I15
    logged(store.files, [{"loss": math.nan, "best": -math.inf}])
    json.loads(store.files.read(PATH), parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    (event,) = read_events(store.files, PATH)
    assert math.isnan(event["loss"])
    assert event["best"] == -math.inf


def test_a_log_without_events_has_no_file(store: Store) -> None:
    logged(store.files, [])
    assert not store.files.has(PATH)
    assert read_events(store.files, PATH) == []


def test_a_truncated_last_line_is_never_read() -> None:
    files = MemoryFiles()
    logged(files)
    whole = files.read(PATH)
    ends = [number for number, byte in enumerate(whole, 1) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        files.replace(PATH, whole[:size])
        assert read_events(files, PATH) == EVENTS[: sum(end <= size for end in ends)]


def test_a_truncated_last_line_is_removed_and_later_events_can_be_read(store: Store) -> None:
    logged(store.files)
    whole = store.files.read(PATH)
    for size in range(len(whole) - 30, len(whole), 5):
        store.files.replace(PATH, whole[:size])
        log = logged(store.files, [{"epoch": 9}])
        assert read_events(store.files, PATH) == [*EVENTS[:2], {"epoch": 9}]
        assert log.count == 3


def test_readers_stop_at_the_first_bad_line() -> None:
    files = MemoryFiles()
    logged(files)
    lines = files.read(PATH).splitlines(keepends=True)
    for place in range(len(lines[1])):
        changed = bytearray(lines[1])
        changed[place] ^= 1
        files.replace(PATH, lines[0] + changed + lines[2])
        assert read_events(files, PATH) == EVENTS[:1], f"byte {place} was changed"


@pytest.mark.parametrize("order", [[1, 0, 2], [0, 2], [0, 0, 1], [1, 2]])
def test_complete_lines_that_are_out_of_order_are_not_read(order: list[int]) -> None:
    files = MemoryFiles()
    logged(files)
    lines = files.read(PATH).splitlines(keepends=True)
    files.replace(PATH, b"".join(lines[number] for number in order))
    assert read_events(files, PATH) == (EVENTS[:1] if order[0] == 0 else [])


def test_only_the_requested_number_of_events_is_read(store: Store) -> None:
    logged(store.files)
    assert [len(read_events(store.files, PATH, count)) for count in range(4)] == [0, 1, 2, 3]


def test_fewer_events_than_were_saved_are_damage(store: Store) -> None:
    logged(store.files)
    with pytest.raises(StoreDamagedError) as caught:
        read_lines(store.files, PATH, 4)
    assert caught.value.rows["why"] == "4 events were saved in it, and 3 can be read"


def test_a_missing_log_with_saved_events_is_damage(store: Store) -> None:
    with pytest.raises(StoreDamagedError, match=r"events\.jsonl"):
        read_lines(store.files, PATH, 1)


@pytest.mark.parametrize("name", ["n", "crc"])
def test_names_that_the_log_uses_itself_are_refused(name: str) -> None:
    log = EventLog(MemoryFiles(), PATH)
    with pytest.raises(ValueError, match=f"an event cannot have a member `{name}`: the log uses that name itself"):
        log.append({name: 1})
    assert log.count == 0


def test_an_event_that_cannot_be_stored_does_not_change_the_log(store: Store) -> None:
    log = EventLog(store.files, PATH)
    log.append(EVENTS[0])
    with pytest.raises(CodecError):
        log.append({"model": object()})
    log.append(EVENTS[1])
    log.close()
    assert read_events(store.files, PATH) == EVENTS[:2]


def test_an_event_too_large_to_be_read_is_not_written(store: Store) -> None:
    log = EventLog(store.files, PATH)
    log.append(EVENTS[0])
    with pytest.raises(CodecError):
        log.append({"text": "x" * (17 * 2**20)})
    log.append(EVENTS[1])
    log.close()
    assert read_events(store.files, PATH) == EVENTS[:2], "everything that was written can be read"


def test_after_a_full_disk_the_log_continues(disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(disk.files, PATH)
    log.append(EVENTS[0])
    write, calls = os.write, []

    def full(fd: int, data: Any) -> int:
        calls.append(fd)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:10])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreAccessError):
        log.append(EVENTS[1])
    monkeypatch.undo()
    log.append(EVENTS[2])
    log.close()
    assert read_events(disk.files, PATH) == [EVENTS[0], EVENTS[2]]


def test_a_complete_line_that_is_not_an_event_is_damage(store: Store) -> None:
    store.files.replace(PATH, event_line(0, {"a": {".strange": 1}}, seed_of(PATH)))
    with pytest.raises(StoreDamagedError, match=r"events\.jsonl"):
        read_events(store.files, PATH)


def test_appending_to_a_long_log_takes_no_longer(store: Store, counted: Callable[..., Any]) -> None:  # R02
    files = counted(store.files)
    log = EventLog(files, PATH)
    log.append(EVENTS[0])
    asked = dict(files.calls)
    for _ in range(100):
        log.append(EVENTS[0])
    assert files.calls == asked, "only the open file is written to"
    log.close()
