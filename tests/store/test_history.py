"""The metric history of a run contains only valid events, and a long log is sampled."""

from __future__ import annotations

import time
from typing import Any

from trainmaster.store import Store
from trainmaster.store.events import event_line, seed_of
from trainmaster.store.history import MAX_POINTS, history


def log(store: Store, key: str, rows: list[dict[str, Any]], epoch: int, base: bool = True) -> None:
    with store.attempt(key, "process") as attempt:
        attempt.start(store.run(key).latest() if base else None)
        for row in rows:
            attempt.log.append(row)
        attempt.save(epoch, {}, {"epoch": epoch}, {})
        attempt.release("stopped")


def test_events_of_managers_and_of_loops_are_read(store: Store) -> None:
    key = store.configs.add({"lr": 1})
    log(store, key, [{"epoch": 0, "eval": {"loss": 2.0, "acc": 0.5}}, {"epoch": 1, "eval": {"loss": 1.0}}], 1)
    log(store, key, [{"tag": "loss", "value": 0.5, "step": 7}, {"tag": "note", "text": "hi", "step": 8}, {"odd": 1}], 2)
    found = history(store.run(key))
    assert found.points == {"loss": [(0.0, 2.0), (1.0, 1.0), (7.0, 0.5)], "acc": [(0.0, 0.5)]}
    assert not found.is_sampled


def test_events_that_a_parent_logged_after_its_child_resumed_are_left_out(store: Store) -> None:
    key = store.configs.add({"lr": 1})
    log(store, key, [{"tag": "loss", "value": 1.0, "step": 1}], 1)
    seed = seed_of(store.run(key).path(1, "events.jsonl"))
    log(store, key, [{"tag": "loss", "value": 3.0, "step": 2}], 2)
    appender = store.files.append(store.run(key).path(1, "events.jsonl"))
    appender.write(event_line(1, {"tag": "loss", "value": 2.0, "step": 2}, seed))
    appender.close()
    assert history(store.run(key)).points == {"loss": [(1.0, 1.0), (2.0, 3.0)]}


def test_reading_stops_at_the_first_incomplete_line(store: Store) -> None:
    key = store.configs.add({"lr": 1})
    log(store, key, [{"tag": "loss", "value": 1.0, "step": 1}], 1)
    path = store.run(key).path(1, "events.jsonl")
    appender = store.files.append(path)
    appender.write(b'{"n":1,"tag":"loss","val')
    appender.close()
    assert history(store.run(key)).points == {"loss": [(1.0, 1.0)]}


def test_a_long_log_is_sampled_and_keeps_every_point_of_a_rare_metric(disk: Store) -> None:
    """The goal is to show 10^6 events within 2 s; this test uses fewer events and measures CPU time."""
    key = disk.configs.add({"lr": 1})
    log(disk, key, [], 0)
    path = disk.run(key).path(1, "events.jsonl")
    seed, num = seed_of(path), 200_000
    appender = disk.files.append(path)
    lines = (
        event_line(n, {"tag": "rare" if n % 9973 == 5 else "often", "value": n / num, "step": n, "epoch": 0, "time": 1e9}, seed)
        for n in range(num)
    )
    appender.write(b"".join(lines))
    appender.write(b'{"n":200000,"tag":"often","value":7')
    appender.close()
    begun = time.process_time()
    found = history(disk.run(key))
    assert time.process_time() - begun < 1
    assert found.is_sampled
    often, rare = found.points["often"], found.points["rare"]
    assert often == sorted(often)
    assert often[0][0] < num / 100
    assert often[-1] == (num - 1.0, (num - 1) / num)
    assert len(often) > 1000
    assert len(rare) == 21
    assert len(often) <= MAX_POINTS
    assert all(value == step / num for step, value in often + rare)


def test_a_line_that_was_changed_in_a_long_log_is_left_out(disk: Store) -> None:
    key = disk.configs.add({"lr": 1})
    log(disk, key, [], 0)
    path = disk.run(key).path(1, "events.jsonl")
    seed = seed_of(path)
    data = b"".join(event_line(n, {"tag": "loss", "value": 1.0, "step": n}, seed) for n in range(60_000))
    appender = disk.files.append(path)
    appender.write(data.replace(b'"value":1.0', b'"value":9.0'))
    appender.close()
    assert history(disk.run(key)).points == {}
