"""Leases: dead owners, watched leases, and what a replaced attempt cannot do (faults L03, L05, L06, L08, R07)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from trainmaster.errors import LeaseLostError, RunBusyError, StoreAccessError
from trainmaster.store import Attempt, Store, lease, process_identity
from trainmaster.store.attempt import claim, claim_or_watch
from trainmaster.store.attempt_records import ATTEMPT, LEASE, OUTCOME
from trainmaster.store.checkpoint import MANIFEST, CheckpointName
from trainmaster.store.files import Files
from trainmaster.store.lease import Hold, Holder, Watch, holder_of
from trainmaster.store.process_identity import Owner
from trainmaster.store.run import Run

Take = Callable[..., Attempt]
Save = Callable[..., None]

linux = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="only Linux reports when a process started")


class Clock:
    """A monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease.time, "monotonic", clock)
    return clock


@pytest.fixture
def key(store: Store) -> str:
    return store.configs.add({"lr": 0.1})


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def owner_of(pid: int) -> Owner:
    return replace(Owner.this(), pid=pid, start=process_identity._process(pid)[1])


# ---- what the kernel knows about an owner


@linux
def test_this_process_is_alive() -> None:
    assert Owner.this().is_alive() is True


@linux
def test_a_process_is_alive_until_it_is_killed(child: subprocess.Popen[bytes]) -> None:
    found = owner_of(child.pid)
    assert found.is_alive() is True
    child.kill()
    child.wait()
    assert found.is_alive() is False


@linux
def test_a_zombie_process_is_dead(child: subprocess.Popen[bytes]) -> None:
    found = owner_of(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_identity._process(child.pid)[0] == "Z"
    assert found.is_alive() is False


@linux
def test_another_process_with_the_same_number_is_not_the_owner(child: subprocess.Popen[bytes]) -> None:
    assert replace(owner_of(child.pid), start="1").is_alive() is False


@linux
def test_a_stopped_process_is_alive(child: subprocess.Popen[bytes]) -> None:
    found = owner_of(child.pid)
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert found.is_alive() is True


@pytest.mark.parametrize("change", [{"boot": "another"}, {"boot": ""}, {"start": ""}])
def test_nothing_is_known_about_a_process_of_another_boot_or_container(change: dict[str, str]) -> None:
    assert replace(Owner.this(), **change).is_alive() is None


@linux
def test_the_name_of_a_host_is_not_used() -> None:
    assert replace(Owner.this(), host="elsewhere").is_alive() is True


@linux
def test_nothing_is_known_about_a_process_that_is_hidden_from_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    this = Owner.this()
    monkeypatch.setattr(process_identity, "_process", lambda pid: ("", ""))
    assert this.is_alive() is None


@linux
def test_a_process_may_have_any_name(tmp_path: Path) -> None:
    link = tmp_path / "a) R 1 (b c"
    link.symlink_to(sys.executable)
    code = "import sys, time; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen([link, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    state, start = process_identity._process(process.pid)
    assert (len(state), start.isdigit()) == (1, True)
    process.communicate()


@pytest.mark.parametrize("change", [{"pid": 0}, {"pid": -1}, {"pid": True}, {"pid": "1"}, {"host": None}, {"boot": 3}, {"start": None}])
def test_a_record_with_an_invalid_owner_has_none(change: dict[str, Any]) -> None:
    assert Owner.of({**Owner.this().to_dict(), **change}) is None


def test_an_owner_is_read_as_it_was_written() -> None:
    assert Owner.of(Owner.this().to_dict()) == Owner.this()


# ---- which process holds a run


def test_a_run_without_attempts_is_free(store: Store, key: str) -> None:
    assert holder_of(store.run(key)) == Holder(Hold.FREE, 0)


def test_a_run_whose_attempt_has_ended_is_free(store: Store, key: str, take: Take) -> None:
    take(store.files, key).release("saved")
    assert holder_of(store.run(key)) == Holder(Hold.FREE, 1)


def test_a_run_of_this_process_is_held(store: Store, key: str, take: Take) -> None:
    take(store.files, key)
    assert holder_of(store.run(key)) == Holder(Hold.HELD, 1, Owner.this(), 10.0)


def test_an_attempt_of_this_process_that_was_abandoned_is_free(store: Store, key: str, take: Take, crash: Callable[..., None]) -> None:
    crash(take(store.files, key))
    assert holder_of(store.run(key)).hold is Hold.FREE


@linux
def test_a_run_of_a_dead_process_is_free(store: Store, key: str, child: subprocess.Popen[bytes], claimed_by: Callable[..., str]) -> None:
    claimed_by(store, key, **owner_of(child.pid).to_dict())
    assert holder_of(store.run(key)).hold is Hold.HELD
    child.kill()
    child.wait()
    assert holder_of(store.run(key)).hold is Hold.FREE


def test_a_run_of_another_machine_must_be_watched(store: Store, key: str, claimed_by: Callable[..., str]) -> None:
    claimed_by(store, key, heartbeat=7.0)
    found = holder_of(store.run(key))
    assert (found.hold, found.attempt, found.heartbeat) == (Hold.UNKNOWN, 1, 7.0)


@pytest.mark.parametrize("content", [b"", b"garbage", b"{}", b"\0" * 1000])
def test_a_claim_that_cannot_be_read_must_be_watched(store: Store, key: str, claimed_by: Callable[..., str], content: bytes) -> None:
    store.files.replace(claimed_by(store, key), content)
    assert holder_of(store.run(key)).hold is Hold.UNKNOWN


@pytest.mark.parametrize("plant", ["link", "pipe", "folder"])
def test_a_lease_with_another_object_in_place_of_its_claim_must_be_watched(disk: Store, tmp_path: Path, plant: str) -> None:  # L08
    key = disk.configs.add({"lr": 0.1})
    path = Path(str(disk.root), disk.run(key).path(1, ATTEMPT))
    path.parent.mkdir(parents=True)
    if plant == "link":
        path.symlink_to(tmp_path / "outside")
    elif plant == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert holder_of(disk.run(key)).hold is Hold.UNKNOWN


def test_an_attempt_with_a_damaged_outcome_has_ended(store: Store, key: str, claimed_by: Callable[..., str]) -> None:
    claimed_by(store, key)
    store.files.create(store.run(key).path(1, OUTCOME), b"half")
    assert holder_of(store.run(key)).hold is Hold.FREE


# ---- watching


def beats(store: Store, key: str) -> None:
    store.files.beat(store.run(key).path(1, LEASE))


def looks(store: Store, key: str, watch: Watch) -> Hold:
    run = store.run(key)
    return watch.look(run, holder_of(run))


def test_a_lease_expires_after_it_was_observed_unchanged_for_its_time(
    store: Store, key: str, clock: Clock, claimed_by: Callable[..., str]
) -> None:
    claimed_by(store, key)
    watch = store.watch()
    assert looks(store, key, watch) is Hold.UNKNOWN
    for _ in range(11):
        clock.now += 5
        assert looks(store, key, watch) is Hold.UNKNOWN
    clock.now += 5
    assert looks(store, key, watch) is Hold.FREE


def test_a_lease_that_changes_is_held_and_its_time_restarts(store: Store, key: str, clock: Clock, claimed_by: Callable[..., str]) -> None:
    claimed_by(store, key)
    watch = store.watch()
    looks(store, key, watch)
    for _ in range(3):
        for _ in range(11):
            clock.now += 5
            assert looks(store, key, watch) is Hold.UNKNOWN
        beats(store, key)
        assert looks(store, key, watch) is Hold.HELD


@pytest.mark.parametrize("pause", [60, 3_600, 86_400])
def test_a_watcher_that_was_paused_does_not_count_its_pause(
    store: Store, key: str, clock: Clock, claimed_by: Callable[..., str], pause: int
) -> None:
    claimed_by(store, key)
    watch = store.watch()
    looks(store, key, watch)
    clock.now += 5
    looks(store, key, watch)
    clock.now += pause
    assert looks(store, key, watch) is Hold.UNKNOWN
    beats(store, key)
    assert looks(store, key, watch) is Hold.HELD


def test_a_slow_heartbeat_is_allowed_three_intervals(store: Store, key: str, clock: Clock, claimed_by: Callable[..., str]) -> None:
    claimed_by(store, key, heartbeat=100.0)
    watch = store.watch()
    looks(store, key, watch)
    found = []
    for _ in range(60):
        clock.now += 5
        found.append(looks(store, key, watch))
    assert found == [Hold.UNKNOWN] * 59 + [Hold.FREE]


def test_patience_is_how_long_a_watcher_waits(store: Store, key: str, clock: Clock, claimed_by: Callable[..., str]) -> None:  # J12
    claimed_by(store, key, heartbeat=1.0)
    watch = store.watch(patience=120)
    looks(store, key, watch)
    found = []
    for _ in range(24):
        clock.now += 5
        found.append(looks(store, key, watch))
    assert found == [Hold.UNKNOWN] * 23 + [Hold.FREE]


def test_a_new_attempt_is_watched_from_its_beginning(store: Store, key: str, clock: Clock, claimed_by: Callable[..., str]) -> None:
    claimed_by(store, key)
    watch = store.watch()
    looks(store, key, watch)
    for _ in range(11):
        clock.now += 5
        looks(store, key, watch)
    claimed_by(store, key, number=2)
    assert looks(store, key, watch) is Hold.UNKNOWN
    clock.now += 5
    assert looks(store, key, watch) is Hold.UNKNOWN


def test_watchers_do_not_share_observations(store: Store, key: str, clock: Clock, claimed_by: Callable[..., str]) -> None:
    claimed_by(store, key)
    watch = store.watch()
    for _ in range(13):
        looks(store, key, watch)
        clock.now += 5
    assert looks(store, key, watch) is Hold.FREE
    assert looks(store, key, store.watch()) is Hold.UNKNOWN


@pytest.mark.parametrize("step", [86_400, -86_400, 10**10])
def test_the_wall_clock_is_not_used(
    store: Store, key: str, clock: Clock, claimed_by: Callable[..., str], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    claimed_by(store, key)
    watch = store.watch()
    looks(store, key, watch)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + step)
    for _ in range(11):
        clock.now += 5
        assert looks(store, key, watch) is Hold.UNKNOWN
    clock.now += 5
    assert looks(store, key, watch) is Hold.FREE


@pytest.mark.parametrize("mtime", [0, 1, 2**31 - 1, 4_000_000_000])
def test_the_times_of_files_are_not_used(disk: Store, clock: Clock, claimed_by: Callable[..., str], mtime: int) -> None:
    key = disk.configs.add({"lr": 0.1})
    claimed_by(disk, key)
    beats(disk, key)
    os.utime(Path(str(disk.root), disk.run(key).path(1, LEASE)), (mtime, mtime))
    watch = disk.watch()
    looks(disk, key, watch)
    for _ in range(11):
        clock.now += 5
        assert looks(disk, key, watch) is Hold.UNKNOWN
    clock.now += 5
    assert looks(disk, key, watch) is Hold.FREE


def test_a_beat_with_the_same_time_as_the_last_one_is_noticed(disk: Store, clock: Clock, claimed_by: Callable[..., str]) -> None:
    key = disk.configs.add({"lr": 0.1})
    claimed_by(disk, key)
    watch = disk.watch()
    for _ in range(3):
        beats(disk, key)
        os.utime(Path(str(disk.root), disk.run(key).path(1, LEASE)), (0, 0))
        found = looks(disk, key, watch)
    assert found is Hold.HELD


@pytest.mark.parametrize("plant", ["link", "pipe", "folder"])
def test_a_lease_with_another_object_in_place_of_its_file_expires(
    disk: Store, clock: Clock, claimed_by: Callable[..., str], tmp_path: Path, plant: str
) -> None:  # L08
    key = disk.configs.add({"lr": 0.1})
    claimed_by(disk, key)
    path = Path(str(disk.root), disk.run(key).path(1, LEASE))
    if plant == "link":
        path.symlink_to(tmp_path / "outside")
    elif plant == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    watch = disk.watch()
    looks(disk, key, watch)
    for _ in range(12):
        clock.now += 5
        found = looks(disk, key, watch)
    assert found is Hold.FREE


def test_a_claim_with_a_watch_takes_over_only_an_expired_lease(
    store: Store, key: str, clock: Clock, claimed_by: Callable[..., str]
) -> None:
    claimed_by(store, key)
    watch = store.watch()
    for _ in range(12):
        with pytest.raises(RunBusyError, match="held by process 1 on elsewhere"):
            claim(store.run(key), "test", 60, watch)
        clock.now += 5
    attempt = claim(store.run(key), "test", 60, watch)
    assert attempt.number == 2
    attempt.release("saved")


def test_a_claim_without_a_watch_never_takes_over_an_unknown_lease(store: Store, key: str, claimed_by: Callable[..., str]) -> None:
    claimed_by(store, key)
    for _ in range(3):
        with pytest.raises(RunBusyError):
            claim(store.run(key), "test", 0.001)


def test_an_unknown_lease_is_watched_until_it_expires(store: Store, key: str, claimed_by: Callable[..., str]) -> None:
    claimed_by(store, key, heartbeat=0.05)
    start = time.monotonic()
    attempt = claim_or_watch(store.run(key), "test", 0.5)
    assert 0.4 < time.monotonic() - start < 20
    assert attempt.number == 2
    attempt.release("saved")


def test_a_run_whose_unknown_lease_changes_is_busy(store: Store, key: str, claimed_by: Callable[..., str]) -> None:
    claimed_by(store, key)
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(0.05):
            beats(store, key)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(RunBusyError):
            claim_or_watch(store.run(key), "test", 60)
    finally:
        stopped.set()
        thread.join()


# ---- the heartbeat


def test_a_held_lease_is_renewed_automatically(store: Store, key: str) -> None:
    attempt = claim(store.run(key), "test", 0.06)
    path = store.run(key).path(1, LEASE)
    marks = set()
    end = time.monotonic() + 20
    while len(marks) < 4 and time.monotonic() < end:
        marks.add(store.files.mark(path))
        time.sleep(0.005)
    attempt.release("saved")
    assert len(marks) >= 4


def test_a_released_lease_is_not_renewed(store: Store, key: str) -> None:
    attempt = claim(store.run(key), "test", 0.006)
    attempt.release("saved")
    mark = store.files.mark(store.run(key).path(1, LEASE))
    time.sleep(0.02)
    assert store.files.mark(store.run(key).path(1, LEASE)) == mark


def test_the_heartbeat_of_a_replaced_attempt_stops(store: Store, key: str, take: Take) -> None:
    first = Attempt(store.run(key), 1, "test", 0.005)
    take(store.files, key)
    end = time.monotonic() + 20
    while not first._heartbeat.is_lost and time.monotonic() < end:
        time.sleep(0.005)
    assert first._heartbeat.is_lost
    first._heartbeat.stop()


def replaced(store: Store, key: str, attempt: Attempt, take: Take) -> str:
    """Replace an attempt with another one, and return the error that the first attempt gets."""
    take(store.files, key)
    with pytest.raises(LeaseLostError) as caught:
        attempt.check()
    attempt._heartbeat.stop()
    return f"{caught.value.rows['why']}; {caught.value.rows['hint']}"


def test_the_error_for_a_lost_lease_says_how_long_it_was_not_renewed_and_why(
    store: Store, key: str, take: Take, clock: Clock
) -> None:  # L06
    attempt = Attempt(store.run(key), 1, "test", 10.0)
    clock.now += 70.4
    told = replaced(store, key, attempt, take)
    assert told.startswith("its lease of 60 s was not renewed for 70 s: a step held Python's GIL for that long, so no other thread")
    assert told.endswith("give the manager a longer lease: lease_time=141")
    clock.now += 1000  # reporting the error later does not change it
    with pytest.raises(LeaseLostError, match="not renewed for 70 s"):
        attempt.check()


def test_the_error_for_a_lost_lease_contains_the_error_of_the_heartbeat(store: Store, key: str, take: Take, clock: Clock) -> None:
    refused = threading.Event()

    class Refused:
        def __getattr__(self, name: str) -> Any:
            if name == "beat":
                refused.set()
                raise StoreAccessError("`lease` cannot be written: Input/output error")
            return getattr(store.files, name)

    attempt = Attempt(Run(cast(Files, Refused()), key), 1, "test", 0.005)
    refused.clear()  # the claim itself causes the first heartbeat
    for _ in range(2):  # the second heartbeat starts only after the first one was recorded
        assert refused.wait(20)
        refused.clear()
    clock.now += 100.0
    told = replaced(store, key, attempt, take)
    assert "was not renewed for 100 s: `lease` cannot be written: Input/output error" in told
    attempt._heartbeat.renew()  # another heartbeat after the lease was lost
    assert "`lease` cannot be written" in attempt._heartbeat.why_lost()[0]


def test_the_error_does_not_blame_a_step_if_the_lease_was_renewed_in_time(store: Store, key: str, take: Take, clock: Clock) -> None:
    attempt = Attempt(store.run(key), 1, "test", 10.0)
    clock.now += 5.0
    told = replaced(store, key, attempt, take)
    assert "its lease of 60 s was renewed 5 s ago" in told
    assert "GIL" not in told


def test_a_heartbeat_that_cannot_write_for_a_while_continues(store: Store, key: str, take: Take, before: Callable[..., Any]) -> None:
    def fail() -> None:
        raise StoreAccessError("the disk is full")

    files = before(store.files, "beat", LEASE, fail)
    attempt = Attempt(Run(files, key), 1, "test", 0.005)
    end = time.monotonic() + 20
    while store.files.mark(store.run(key).path(1, LEASE)) is None and time.monotonic() < end:
        time.sleep(0.005)
    assert store.files.mark(store.run(key).path(1, LEASE)) is not None
    attempt.release("saved")


# ---- a replaced attempt can do nothing that a reader sees (L03)


def seen(store: Store, key: str) -> list[Any]:
    run = store.run(key)
    latest = run.latest()
    return [run.status(), run.preview(), run.events(), latest and latest.value, run.checkpoints(), run.chain()]


@pytest.fixture
def stale(store: Store, key: str, take: Take, save: Save) -> Attempt:
    """Return an attempt that has saved step 1 and was replaced by one that has saved step 2."""
    first = take(store.files, key)
    first.log.append({"epoch": 1})
    save(first, 1)
    second = take(store.files, key)
    second.log.append({"epoch": 2})
    save(second, 2)
    return first


LATE: dict[str, Callable[[Attempt, Save], Any]] = {
    "save": lambda attempt, save: save(attempt, 9),
    "events": lambda attempt, save: [attempt.log.append({"epoch": 9}), attempt.log.sync()],
    "preview": lambda attempt, save: attempt.publish_preview({"loss": -1}),
    "outcome": lambda attempt, save: attempt.release("finished"),
    "publish": lambda attempt, save: attempt._publish(CheckpointName(attempt.number, 9, 1), {"epoch": 9}, {"loss": -1}),
    "beat": lambda attempt, save: attempt._heartbeat.renew(),
}


@pytest.mark.parametrize("act", LATE)
def test_a_replaced_attempt_changes_nothing_that_readers_see(store: Store, key: str, stale: Attempt, save: Save, act: str) -> None:
    found = seen(store, key)
    try:
        LATE[act](stale, save)
    except LeaseLostError:
        assert act == "save"
    assert seen(store, key) == found
    assert store.verify() == []


@pytest.mark.parametrize("act", LATE)
def test_a_replaced_attempt_does_not_release_its_successor(store: Store, key: str, stale: Attempt, save: Save, act: str) -> None:
    with contextlib.suppress(LeaseLostError):
        LATE[act](stale, save)
    assert holder_of(store.run(key)) == Holder(Hold.HELD, 2, Owner.this(), 10.0)


def test_a_replaced_attempt_gets_an_error_with_the_reason(store: Store, key: str, stale: Attempt, save: Save) -> None:
    with pytest.raises(LeaseLostError, match=f"attempt 1 of run {key} was replaced") as caught:
        save(stale, 9)
    assert "nothing is lost" in caught.value.rows["hint"]


MOMENTS = [("write", "tree.json"), ("create", MANIFEST), ("replace", "preview.json"), ("replace", "status.json"), ("delete", MANIFEST)]


@pytest.mark.parametrize(("method", "ending"), MOMENTS)
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_takeover_at_any_moment_of_a_save_is_harmless(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any], method: str, ending: str, goes_on: bool
) -> None:
    first = take(store.files, key)
    for step in (1, 2):
        first.log.append({"epoch": step})
        save(first, step)
    after: list[Any] = []

    def take_over() -> None:
        second = take(store.files, key)
        second.log.append({"epoch": "second"})
        if goes_on:
            save(second, 3, "of the second")
        after.append(seen(store, key))

    files = before(store.files, method, ending, take_over)
    first._files = files
    first.run = Run(files, key)
    first.log.append({"epoch": 3})
    with contextlib.suppress(LeaseLostError):
        save(first, 3, "of the first", keep=1)
    found = seen(store, key)
    if method == "delete":  # the checkpoint that was resumed from is durable by then, so older ones may be deleted
        assert found[4][0] == after[0][4][0]
        found[4] = after[0][4]
    assert found == after[0]
    assert store.verify() == []


@pytest.mark.parametrize(("method", "ending"), MOMENTS)
def test_a_removal_at_any_moment_of_a_save_removes_the_run(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any], crash: Callable[..., None], method: str, ending: str
) -> None:
    first = take(store.files, key)
    for step in (1, 2):
        save(first, step)

    def pop() -> None:
        lease._held.discard(first._token)
        store.pop(key)

    files = before(store.files, method, ending, pop)
    first._files = files
    first.run = Run(files, key)
    with contextlib.suppress(LeaseLostError):
        save(first, 3, keep=1)
    crash(first)
    assert store.configs.add({"lr": 0.1}) == key
    assert seen(store, key) == [None, None, [], None, [], []]
    assert store.verify() == []


def test_a_save_of_a_replaced_attempt_raises_an_error(store: Store, key: str, take: Take, save: Save, before: Callable[..., Any]) -> None:
    first = take(store.files, key)
    save(first, 1)
    first._files = before(store.files, "create", MANIFEST, lambda: take(store.files, key))
    with pytest.raises(LeaseLostError):
        save(first, 2)


def test_an_attempt_that_is_replaced_while_it_writes_weights_commits_no_checkpoint(
    store: Store, key: str, take: Take, save: Save, before: Callable[..., Any]
) -> None:
    first = take(store.files, key)
    save(first, 1)
    first._files = before(store.files, "write", "tree.json", lambda: take(store.files, key))
    with pytest.raises(LeaseLostError):
        save(first, 2)
    assert [name.step for name in store.run(key).own_checkpoints(1)] == [1]
