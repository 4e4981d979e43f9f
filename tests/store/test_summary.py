"""Summaries show the state, progress and metrics of runs."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster.errors import UnknownRunError
from trainmaster.store import Store
from trainmaster.store.summary import STATES, Summary, attempts_of, newest_first, numbers_of, summarize


def work(store: Store, key: str, outcome: str, epochs: int = 1, **facts: Any) -> None:
    """Create an attempt that resumes the run."""
    with store.attempt(key, "process") as attempt:
        attempt.start(store.run(key).latest())
        begun = (store.run(key).status() or {"epoch": -1})["epoch"] + 1
        for epoch in range(begun, begun + epochs):
            attempt.save(epoch, {"x": 1}, {"epoch": epoch, "toc": time.time()}, {"loss": 1 / (1 + epoch)})
        attempt.release(outcome, **facts)


def test_a_config_alone_is_a_new_run(store: Store) -> None:
    key = store.configs.add({"model": {"width": 8}})
    found = summarize(store, key)
    assert (found.state, found.epoch, found.num_attempts, found.config) == ("new", None, 0, {"model": {"width": 8}})


@pytest.mark.parametrize("outcome", ["finished", "stopped", "interrupted", "failed"])
def test_the_state_of_a_run_depends_on_how_its_last_attempt_ended(store: Store, outcome: str) -> None:
    key = store.configs.add({"lr": 1})
    work(store, key, outcome, epochs=3, error="because")
    found = summarize(store, key)
    assert (found.state, found.reason, found.epoch, found.metrics) == (outcome, "because", 2, {"loss": 1 / 3})
    assert found.changed is not None
    assert abs(found.changed - time.time()) < 60
    assert (found.owner, found.progressed) == ("", None)


def test_a_finished_run_stays_finished_if_later_attempts_did_nothing(store: Store) -> None:
    key = store.configs.add({"lr": 1})
    work(store, key, "finished")
    work(store, key, "interrupted", epochs=0)
    store.previews[key] = {"loss": 5.0}
    with store.attempt(key, "process"):
        pass
    found = summarize(store, key)
    assert (found.state, found.num_attempts, found.metrics) == ("finished", 4, {"loss": 5.0})


@pytest.mark.parametrize(("outcome", "epochs"), [("failed", 0), ("failed", 1), ("interrupted", 1)])
def test_the_state_of_a_finished_run_that_was_resumed_comes_from_the_last_attempt(store: Store, outcome: str, epochs: int) -> None:
    key = store.configs.add({"lr": 1})
    work(store, key, "finished")
    work(store, key, outcome, epochs)
    assert summarize(store, key).state == outcome


def test_a_run_that_this_process_holds_is_running_with_its_owner(disk: Store) -> None:
    key = disk.configs.add({"lr": 1})
    with disk.attempt(key, "process", facts={"num_epochs": 9, "target": "train.py:M"}) as attempt:
        attempt.start(None)
        found = summarize(disk, key)
        attempt.release("finished")
    assert (found.state, found.num_epochs, found.target) == ("running", 9, "train.py:M")
    assert found.owner.startswith(f"process {os.getpid()} on ")
    assert found.progressed is not None
    assert abs(found.progressed - time.time()) < 60


def test_progress_is_the_last_event_or_save_and_not_the_lease(disk: Store) -> None:
    """Fault L07: a heartbeat that continues during a deadlock is not progress."""
    key = disk.configs.add({"lr": 1})
    with disk.attempt(key, "process") as attempt:
        attempt.start(None)
        attempt.log.append({"epoch": 1})
        for name in ("events.jsonl",):
            os.utime(f"{disk.root}/{attempt.run.path(1, name)}", (1e9, time.time() + 500))
        ahead = summarize(disk, key).progressed
        disk.files.beat(attempt.run.path(1, "lease"))
        assert summarize(disk, key).progressed == ahead
        attempt.release("finished")
    assert ahead is not None
    assert ahead > time.time() + 400


def test_a_killed_run_has_the_state_killed(disk: Store, held_elsewhere: Callable[[Store, str], subprocess.Popen[str]]) -> None:
    key = disk.configs.add({"lr": 1})
    process = held_elsewhere(disk, key)
    assert summarize(disk, key).state == "running"
    process.kill()
    process.wait()
    assert summarize(disk, key).state == "killed"


def test_an_owner_on_another_machine_may_hold_it(disk: Store) -> None:
    from trainmaster.store.checksummed_json import parse_record, record_bytes

    key = disk.configs.add({"lr": 1})
    with disk.attempt(key, "process") as attempt:
        path = Path(f"{disk.root}/{attempt.run.path(1, 'attempt.json')}")
        record = parse_record(path.read_bytes(), "")
        path.write_bytes(record_bytes({**record, "owner": {**record["owner"], "boot": "another", "host": "far"}}))
        found = summarize(disk, key)
        attempt.release("finished")
    assert (found.state, found.owner) == ("held?", f"process {os.getpid()} on far")


def test_a_removed_run_that_is_added_again_is_new(store: Store) -> None:
    key = store.configs.add({"lr": 1})
    work(store, key, "finished")
    store.pop(key)
    with pytest.raises(UnknownRunError):
        summarize(store, key)
    assert store.configs.add({"lr": 1}) == key
    assert summarize(store, key).state == "new"


@pytest.mark.parametrize("file", ["resume.json", "outcome.json"])
def test_damage_is_a_state_and_not_an_error(disk: Store, file: str) -> None:
    key = disk.configs.add({"lr": 1})
    work(disk, key, "finished")
    Path(f"{disk.root}/{disk.run(key).path(1, file)}").write_bytes(b"nonsense")
    found = summarize(disk, key)
    assert found.state == "damaged"
    assert file in found.reason
    assert found.config == {"lr": 1}


def test_the_summary_of_an_imported_run_says_so(disk: Store, tmp_path: Path) -> None:
    key = disk.configs.add({"lr": 1})
    work(disk, key, "finished")
    disk.migrate(tmp_path / "other")
    found = summarize(Store(tmp_path / "other"), key)
    assert (found.state, found.reason) == ("stopped", "imported from another store")


def test_the_metrics_of_a_loop_are_in_the_summary(store: Store) -> None:
    key = store.configs.add({"lr": 1})
    best = {"metric": "loss", "value": 0.5, "step": 7, "checkpoint": "step-000007"}
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        attempt.save(7, {}, {"epoch": 2, "step": 7, "best": best, "stopped": "no better for 5 epochs"}, {"loss": 0.5})
        attempt.release("stopped")
    found = summarize(store, key)
    assert (found.step, found.best, found.reason) == (7, best, "no better for 5 epochs")


def test_a_summary_cannot_be_changed_and_has_a_known_state() -> None:
    found = Summary("ab", "new")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.state = "old"  # type: ignore[misc]
    assert found.state in STATES


def test_attempts_are_listed_oldest_first(store: Store) -> None:
    key = store.configs.add({"lr": 1})
    work(store, key, "interrupted", epochs=2)
    work(store, key, "failed", epochs=0, error="boom")
    one, other = attempts_of(store.run(key))
    assert (one.number, one.outcome, one.step, one.has_started) == (1, "interrupted", None, True)
    assert (other.number, other.outcome, other.reason, other.parent, other.step) == (2, "failed", "boom", 1, 1)


def test_the_newest_run_comes_first_and_runs_without_a_config_are_left_out(disk: Store) -> None:
    keys = [disk.configs.add({"seed": number}) for number in range(5)]
    for number, key in enumerate(keys):
        work(disk, key, "finished")
        os.utime(f"{disk.root}/stats/{key[:2]}/{key}", (number, number))
    disk.pop(keys[2])
    assert newest_first(disk) == [keys[number] for number in (4, 3, 1, 0)]


def test_the_order_is_the_same_in_memory() -> None:
    store = Store(None)
    keys = {store.configs.add({"seed": number}) for number in range(5)}
    assert {*newest_first(store)} == keys


def test_the_numbers_of_a_preview_are_plain_numbers() -> None:
    import numpy as np

    preview = {"a": 1, "b": 2.5, "c": np.float32(0.5), "d": True, "e": "text", "f": None, "g": float("nan"), 3: 4}
    found = numbers_of(preview)
    assert found.pop("g") != 0
    assert found == {"a": 1, "b": 2.5, "c": 0.5, "3": 4}


# ---- duration


def aged(store: Store, key: str, number: int, seconds: float) -> None:
    """Make an attempt look as if it had been claimed earlier."""
    from trainmaster.store.checksummed_json import parse_record, record_bytes

    path = Path(str(store.root), store.run(key).path(number, "attempt.json"))
    path.write_bytes(record_bytes({**parse_record(path.read_bytes(), str(path)), "toc": time.time() - seconds}))


def test_the_duration_includes_the_attempts_that_were_resumed_from(disk: Store) -> None:
    key = disk.configs.add({"lr": 1})
    assert summarize(disk, key).duration is None
    for number in (1, 2):
        work(disk, key, "interrupted")
        aged(disk, key, number, 1000)
    assert summarize(disk, key).duration == pytest.approx(2000, abs=60)
    with disk.attempt(key, "process") as attempt:
        attempt.start(None)
        aged(disk, key, 3, 500)
        assert summarize(disk, key).duration == pytest.approx(500, abs=60)  # it was resumed and is still running
        attempt.release("stopped")


def test_a_killed_attempt_lasted_until_it_last_wrote_a_file(
    disk: Store, held_elsewhere: Callable[[Store, str], subprocess.Popen[str]]
) -> None:
    key = disk.configs.add({"lr": 1})
    work(disk, key, "finished")
    os.unlink(f"{disk.root}/{disk.run(key).path(1, 'outcome.json')}")
    aged(disk, key, 1, 1000)
    path = f"{disk.root}/{disk.run(key).path(1, 'status.json')}"
    os.utime(path, (time.time() - 400, time.time() - 400))
    found = summarize(disk, key)
    assert (found.state, found.duration) == ("killed", pytest.approx(600, abs=60))


def test_the_duration_of_an_imported_run_is_unknown(disk: Store, tmp_path: Path) -> None:
    key = disk.configs.add({"lr": 1})
    work(disk, key, "finished")
    disk.export_tar(tmp_path / "all.tar")
    other = Store(tmp_path / "other")
    other.load_tar(tmp_path / "all.tar")
    assert summarize(other, key).duration is None
