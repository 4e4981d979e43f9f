"""Only one attempt at a time holds a run, and a save is complete or has no effect (C03, C05, C13, C14, L10, L15)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import warm

from trainmaster.errors import CodecError, LeaseLostError, RunBusyError, StoreAccessError, StoreDamagedError, StoreError
from trainmaster.store import Attempt, Store
from trainmaster.store.attempt import claim, claim_or_watch
from trainmaster.store.attempt_records import OUTCOME, RESUME
from trainmaster.store.checkpoint import MANIFEST, TENSORS, TREE, CheckpointName
from trainmaster.store.lease import LEASE_TIME, Hold, holder_of
from trainmaster.store.run import Run

Take = Callable[..., Attempt]
Save = Callable[..., None]

_CLAIM = """
import sys
from trainmaster.store import Store
from trainmaster.store.attempt import claim
from trainmaster.errors import RunBusyError
store = Store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    attempt = claim(store.run(sys.argv[2]), "test", 60)
    print("got", attempt.number, flush=True)
except RunBusyError:
    print("busy", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def key(store: Store) -> str:
    return store.configs.add({"lr": 0.1})


def value_of(run: Run) -> Any:
    latest = run.latest()
    return None if latest is None else latest.value


def saved_steps(run: Run) -> list[int]:
    return [name.step for name in run.checkpoints()]


# ---- claims


def test_exactly_one_of_sixteen_threads_can_claim_a_run(store: Store, key: str) -> None:
    for round_number in range(3):
        got: list[Attempt] = []
        refused: list[RunBusyError] = []
        barrier = threading.Barrier(16)

        def take(barrier: threading.Barrier = barrier, got: list[Attempt] = got, refused: list[RunBusyError] = refused) -> None:
            barrier.wait()
            try:
                got.append(claim(store.run(key), "test", 60))
            except RunBusyError as error:
                refused.append(error)

        threads = [threading.Thread(target=take) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for attempt in got:
            attempt.release("saved")
        assert [attempt.number for attempt in got] == [round_number + 1]
        assert len(refused) == 15


def test_an_attempt_is_held_from_the_moment_its_claim_can_be_seen(disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key = disk.configs.add({"lr": 0.1})
    seen: list[Any] = []
    fsync = os.fsync

    def look(fd: int) -> None:
        fsync(fd)
        if disk.run(key).newest() and not seen:
            seen.append(None)
            with pytest.raises(RunBusyError):
                claim(disk.run(key), "another thread", 60)

    monkeypatch.setattr(os, "fsync", look)
    attempt = claim(disk.run(key), "test", 60)
    attempt.release("saved")
    assert seen
    assert attempt.number == 1


def test_exactly_one_of_eight_processes_can_claim_a_run(disk: Store) -> None:
    key = disk.configs.add({"lr": 0.1})
    command = [sys.executable, "-c", _CLAIM, str(disk.root), key]
    processes = [warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = sorted(process.stdout.readline() for process in processes if process.stdout is not None)
        assert answers == ["busy\n"] * 7 + ["got 1\n"]
    finally:
        for process in processes:
            process.communicate("end\n")


def test_the_error_for_a_busy_run_names_its_owner_and_what_to_do(store: Store, key: str, take: Take) -> None:
    take(store.files, key)
    with pytest.raises(RunBusyError) as caught:
        claim(store.run(key), "test", 60)
    assert caught.value.fact.startswith(f"run {key} is held by process {os.getpid()} on ")
    assert caught.value.rows["where"] == store.run(key).path(1, "attempt.json")
    assert caught.value.rows["hint"] == f"wait until it ends, or stop it after its next checkpoint: `trainmaster stop {key}`"


def test_a_claim_does_not_wait_for_a_held_run(store: Store, key: str, take: Take) -> None:
    take(store.files, key)
    start = time.monotonic()
    with pytest.raises(RunBusyError):
        claim_or_watch(store.run(key), "test", 60)
    assert time.monotonic() - start < 5


def test_a_released_run_can_be_claimed_at_once(store: Store, key: str) -> None:
    for number in (1, 2, 3):
        attempt = claim(store.run(key), "test", 60)
        assert attempt.number == number
        attempt.release("saved")


def test_a_claim_records_its_process_time_and_purpose(store: Store, key: str) -> None:
    attempt = claim(store.run(key), "a purpose", 60)
    found = store.run(key).claim_of(1)
    assert (found["by"], found["owner"]["pid"], found["heartbeat"]) == ("a purpose", os.getpid(), 10.0)
    attempt.release("saved")


def test_the_run_of_a_killed_process_is_free_at_once(disk: Store, held_elsewhere: Callable[..., Any]) -> None:  # L05
    key = disk.configs.add({"lr": 0.1})
    process = held_elsewhere(disk, key)
    with pytest.raises(RunBusyError, match=f"held by process {process.pid} on "):
        claim(disk.run(key), "test", 60)
    process.kill()
    process.wait()
    attempt = claim(disk.run(key), "test", 60)
    assert attempt.number == 2
    attempt.release("saved")


def test_exactly_one_of_sixteen_threads_takes_over_from_a_dead_process(disk: Store, held_elsewhere: Callable[..., Any]) -> None:  # L10
    key = disk.configs.add({"lr": 0.1})
    process = held_elsewhere(disk, key)
    process.kill()
    process.wait()
    got: list[Attempt] = []
    barrier = threading.Barrier(16)

    def take() -> None:
        barrier.wait()
        with contextlib.suppress(RunBusyError):
            got.append(claim(disk.run(key), "test", 60))

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for attempt in got:
        attempt.release("saved")
    assert [attempt.number for attempt in got] == [2]


def test_a_claim_that_finds_damage_releases_the_run(store: Store, key: str, take: Take, save: Save) -> None:
    attempt = take(store.files, key)
    save(attempt, 1)
    attempt.release("saved")
    store.files.replace(store.run(key).path(1, RESUME), b"bad")
    with contextlib.suppress(StoreDamagedError):
        claim(store.run(key), "test", 60).release("failed")
    assert holder_of(store.run(key)).hold is Hold.FREE


def test_a_damaged_run_can_be_started_from_scratch(store: Store, key: str, take: Take, save: Save) -> None:
    attempt = take(store.files, key)
    save(attempt, 1)
    attempt.release("saved")
    store.files.replace(store.run(key).path(1, RESUME), b"bad")
    with store.attempt(key, "test") as attempt:
        attempt.start(None)
        save(attempt, 7)
    assert value_of(store.run(key)) == {"step": 7}


def test_an_attempt_from_scratch_keeps_the_checkpoints_of_the_old_one(store: Store, key: str, take: Take, save: Save) -> None:
    attempt = take(store.files, key)
    save(attempt, 1)
    attempt.release("saved")
    with store.attempt(key, "test") as attempt:
        attempt.start(None)
        save(attempt, 1, "anew")
    assert value_of(store.run(key)) == "anew"
    assert store.run(key).own_checkpoints(1) == [CheckpointName(1, 1, 1)]


# ---- saving


def test_a_saved_value_is_restored_with_its_context(store: Store, key: str, take: Take) -> None:
    attempt = take(store.files, key)
    value = {"weights": [1.0, float("inf")], 3: (None, b"x"), "set": {1, 2}}
    attempt.save(4, value, {"epoch": 4}, {"loss": 0.5}, context={"rng": (1, 2)})
    latest = store.run(key).latest()
    assert latest is not None
    assert (latest.value, latest.context, latest.name.step) == (value, {"rng": (1, 2)}, 4)
    assert store.run(key).status() == {"epoch": 4}
    assert store.run(key).preview() == {"loss": 0.5}


def test_tensors_are_restored(store: Store, key: str, take: Take, save: Save) -> None:
    weights = torch.arange(12.0).reshape(3, 4).t()
    save(take(store.files, key), 1, {"w": weights})
    assert torch.equal(value_of(store.run(key))["w"], weights)
    assert store.files.has(f"{CheckpointName(1, 1, 1).folder(key)}/{TENSORS}")


def test_the_last_checkpoints_are_kept_even_those_of_earlier_attempts(store: Store, key: str, take: Take, save: Save) -> None:
    first = take(store.files, key)
    for step in (1, 2, 3, 4):
        save(first, step)
    assert saved_steps(store.run(key)) == [4, 3, 2]
    second = take(store.files, key)
    save(second, 5)
    assert saved_steps(store.run(key)) == [5, 4, 3]
    for step in (6, 7, 8):
        save(second, step)
    assert saved_steps(store.run(key)) == [8, 7, 6]


def test_a_deleted_checkpoint_is_removed_from_the_disk(store: Store, key: str, take: Take, save: Save) -> None:
    attempt = take(store.files, key)
    for step in (1, 2, 3):
        save(attempt, step, keep=1)
    assert store.files.names(f"ckpts/{key[:2]}/{key}/attempt-0001") == ["step-000003"]


@pytest.mark.parametrize(("method", "ending"), [("delete", f"step-000001/{MANIFEST}"), ("delete_folder", "step-000001")])
def test_an_old_checkpoint_that_cannot_be_deleted_is_reported_and_deleted_by_the_next_save(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any], method: str, ending: str
) -> None:
    attempt = take(store.files, key)
    save(attempt, 1, keep=1)

    def fail() -> None:
        raise StoreAccessError("`tree.json` cannot be deleted: Input/output error")

    attempt._files = before(store.files, method, ending, fail)
    with pytest.warns(UserWarning, match="an old checkpoint of run .* could not be deleted; the next save tries again: step-000001: `tree"):
        save(attempt, 2, keep=1)
    assert value_of(store.run(key)) == {"step": 2}
    assert len(store.files.names(f"ckpts/{key[:2]}/{key}/attempt-0001")) == 2
    save(attempt, 3, keep=1)
    assert store.files.names(f"ckpts/{key[:2]}/{key}/attempt-0001") == ["step-000003"]


def test_an_incomplete_checkpoint_that_cannot_be_deleted_is_reported_and_deleted_by_the_next_save(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any]
) -> None:
    save(take(store.files, key), 1)
    half = CheckpointName(1, 2, 1).folder(key)
    store.files.write(f"{half}/{TREE}", [b"half"])

    def fail() -> None:
        raise StoreAccessError("`step-000002` cannot be deleted: Input/output error")

    attempt = take(store.files, key)
    attempt.run = Run(before(store.files, "delete_folder", half, fail), key)
    with pytest.warns(UserWarning, match="`step-000002` cannot be deleted"):
        save(attempt, 2)
    save(attempt, 3)
    assert store.files.names(f"ckpts/{key[:2]}/{key}/attempt-0001") == ["step-000001"]


def test_a_checkpoint_can_be_loaded_at_every_moment_of_a_save(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any]
) -> None:  # C13
    attempt = take(store.files, key)
    save(attempt, 1, keep=1)
    seen = []

    def look() -> None:
        seen.append(value_of(store.run(key)))

    for step, (method, ending) in enumerate(
        [("write", TREE), ("create", MANIFEST), ("replace", "preview.json"), ("replace", "status.json"), ("delete", MANIFEST)], 2
    ):
        files = before(store.files, method, ending, look)
        attempt._files = files
        attempt.run = Run(files, key)
        save(attempt, step, keep=1)
    assert seen == [{"step": 1}, {"step": 2}, {"step": 4}, {"step": 5}, {"step": 6}]


@pytest.mark.parametrize(("method", "ending"), [("write", TREE), ("create", MANIFEST)])
@pytest.mark.parametrize("error", [StoreAccessError("the disk is full"), KeyboardInterrupt()], ids=["refused", "interrupted"])
def test_a_save_that_fails_leaves_the_last_checkpoint_and_a_later_one_works(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any], method: str, ending: str, error: BaseException
) -> None:
    attempt = take(store.files, key)
    save(attempt, 1)

    def fail() -> None:
        raise error

    attempt._files = before(store.files, method, ending, fail)
    attempt.log.append({"epoch": 2})
    with pytest.raises(type(error)):
        save(attempt, 2)
    assert value_of(store.run(key)) == {"step": 1}
    assert store.files.names(f"ckpts/{key[:2]}/{key}/attempt-0001") == ["step-000001"], "nothing is left behind"
    save(attempt, 2)
    assert value_of(store.run(key)) == {"step": 2}
    assert store.run(key).events() == [{"epoch": 2}]


def test_a_value_that_cannot_be_stored_changes_nothing(store: Store, key: str, take: Take, save: Save) -> None:
    attempt = take(store.files, key)
    save(attempt, 1)
    for fail in (
        lambda: save(attempt, 2, {"model": object()}),
        lambda: attempt.save(2, 0, {"epoch": object()}, {}),
        lambda: attempt.save(2, 0, {"epoch": 2}, {"plot": object()}),
    ):
        with pytest.raises(CodecError):
            fail()
    assert value_of(store.run(key)) == {"step": 1}
    assert store.files.names(f"ckpts/{key[:2]}/{key}/attempt-0001") == ["step-000001"]


def test_an_incomplete_checkpoint_of_a_killed_process_is_replaced(store: Store, key: str, take: Take, save: Save) -> None:  # C14
    attempt = take(store.files, key)
    store.files.write(f"{CheckpointName(1, 1, 1).folder(key)}/{TREE}", [b"half"])
    save(attempt, 1)
    assert value_of(store.run(key)) == {"step": 1}


def test_an_incomplete_checkpoint_of_a_killed_process_is_removed_by_the_next_attempt(
    store: Store, key: str, take: Take, save: Save
) -> None:
    save(take(store.files, key), 1)
    store.files.write(f"{CheckpointName(1, 2, 1).folder(key)}/{TREE}", [b"half"])
    save(take(store.files, key), 2)
    assert store.files.names(f"ckpts/{key[:2]}/{key}/attempt-0001") == ["step-000001"]


@pytest.mark.parametrize("step", [-1, 1.5, "1", None, True])
def test_a_step_that_is_not_a_whole_number_is_refused(store: Store, key: str, take: Take, step: Any) -> None:
    attempt = take(store.files, key)
    with pytest.raises((StoreError, ValueError, TypeError)):
        attempt.save(step, 0, {"epoch": 1}, {})


def test_keeping_no_checkpoint_is_refused(store: Store, key: str, take: Take, save: Save) -> None:
    attempt = take(store.files, key)
    with pytest.raises((StoreError, ValueError)):
        save(attempt, 1, keep=0)


def test_a_checkpoint_cannot_be_saved_before_the_attempt_has_started(store: Store, key: str, take: Take, save: Save) -> None:
    save(take(store.files, key), 1)
    second = Attempt(store.run(key), 2, "test", 10.0)
    with pytest.raises((StoreError, RuntimeError), match="start"):
        save(second, 2)
    second.release("failed")
    assert value_of(store.run(key)) == {"step": 1}


def test_events_are_durable_with_the_save_that_counts_them(disk: Store, take: Take, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    key = disk.configs.add({"lr": 0.1})
    attempt = take(disk.files, key)
    attempt.log.append({"epoch": 1})
    log = f"{disk.root}/{disk.run(key).path(1, 'events.jsonl')}"
    order: list[str] = []
    fsync, link = os.fsync, os.link

    def synced(fd: int) -> None:
        order.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def linked(source: str, target: str, **kwargs: Any) -> None:
        order.append(target)
        link(source, target, **kwargs)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    save(attempt, 1)
    assert log in order[: order.index(MANIFEST)]


# ---- the end


def test_the_outcome_is_recorded_with_its_reason(store: Store, key: str, take: Take) -> None:
    take(store.files, key).release("failed", error="ValueError: no")
    outcome = store.run(key).outcome_of(1)
    assert outcome is not None
    assert (outcome["outcome"], outcome["error"]) == ("failed", "ValueError: no")


def test_releasing_again_changes_nothing(store: Store, key: str, take: Take) -> None:
    attempt = take(store.files, key)
    attempt.release("finished")
    attempt.release("failed")
    outcome = store.run(key).outcome_of(1)
    assert outcome is not None
    assert outcome["outcome"] == "finished"


def test_no_thread_and_no_open_file_is_left_after_a_release(disk: Store, take: Take, save: Save) -> None:  # R03
    key = disk.configs.add({"lr": 0.1})
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    for step in range(3):
        attempt = take(disk.files, key)
        attempt.log.append({"epoch": step})
        save(attempt, step)
        attempt.release("saved")
    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) == files


def test_the_outcome_of_a_block_follows_from_how_it_ends(store: Store, key: str) -> None:
    with store.attempt(key, "test"):
        pass
    with pytest.raises(ZeroDivisionError), store.attempt(key, "test"):
        raise ZeroDivisionError
    with store.attempt(key, "test") as attempt:
        attempt.release("finished")
    outcomes = [store.run(key).outcome_of(number) for number in (1, 2, 3)]
    assert [outcome and outcome["outcome"] for outcome in outcomes] == ["saved", "failed", "finished"]


def test_a_block_that_succeeds_while_an_error_is_handled_has_not_failed(store: Store, key: str) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        with store.attempt(key, "test"):
            pass
    outcome = store.run(key).outcome_of(1)
    assert outcome is not None
    assert outcome["outcome"] == "saved"


# ---- fork (L15)


def in_a_fork(act: Callable[[], None]) -> int:
    """Call a function in a forked child, and return the child's exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_does_not_release_the_lease_of_its_parent(disk: Store, take: Take, save: Save) -> None:
    key = disk.configs.add({"lr": 0.1})
    attempt = take(disk.files, key)
    attempt.log.append({"epoch": 1})
    assert in_a_fork(lambda: attempt.release("failed")) == 0
    assert not disk.files.has(disk.run(key).path(1, OUTCOME))
    save(attempt, 1)
    assert disk.run(key).events() == [{"epoch": 1}]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_hold_the_run_of_its_parent(disk: Store, take: Take, save: Save) -> None:
    key = disk.configs.add({"lr": 0.1})
    attempt = take(disk.files, key)

    def try_all() -> None:
        with pytest.raises(LeaseLostError):
            save(attempt, 1)
        with pytest.raises(RunBusyError):
            claim(disk.run(key), "child", LEASE_TIME)

    assert in_a_fork(try_all) == 0
    assert disk.run(key).latest() is None
    assert disk.run(key).newest() == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_lease_of_a_parent_ends_even_if_its_child_is_alive(disk: Store, take: Take) -> None:
    key = disk.configs.add({"lr": 0.1})
    take(disk.files, key).release("saved")

    def claim_it() -> None:
        claim(disk.run(key), "child", LEASE_TIME).release("saved")

    assert in_a_fork(claim_it) == 0
    assert disk.run(key).newest() == 2


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_does_not_write_to_the_log_of_its_parent(disk: Store, take: Take, save: Save) -> None:
    key = disk.configs.add({"lr": 0.1})
    attempt = take(disk.files, key)
    attempt.log.append({"epoch": 1})
    in_a_fork(lambda: attempt.log.append({"epoch": 100}))
    attempt.log.append({"epoch": 2})
    save(attempt, 2)
    assert disk.run(key).events() == [{"epoch": 1}, {"epoch": 2}]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_gets_an_error_that_names_its_parent(disk: Store, take: Take, save: Save) -> None:
    key = disk.configs.add({"lr": 0.1})
    attempt = take(disk.files, key)
    save(attempt, 1)
    files = sorted(path for path in Path(str(disk.root)).rglob("*") if path.name != "lease")

    def try_all() -> None:
        acts: list[Callable[[], Any]] = [
            attempt.check,
            attempt.open_log,
            lambda: save(attempt, 2),
            lambda: attempt.publish_preview({"loss": 0.0}),
            lambda: attempt.write_plot("curves.png", b""),
            attempt.remove,
        ]
        for act in acts:
            with pytest.raises(LeaseLostError, match="was forked from the holder of run"):
                act()
        attempt.release("failed")

    assert in_a_fork(try_all) == 0
    assert sorted(path for path in Path(str(disk.root)).rglob("*") if path.name != "lease") == files
    assert disk.previews[key] == {"loss": 0.5}
    attempt.check()
