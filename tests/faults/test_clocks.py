"""Wrong or jumping clocks have no effect: a lease expires only if a watcher sees no renewal for its full duration.

The tests change the wall clock only inside a process, and change file times as the owner of the files, so they do not
need permission to set the system clock.
"""

import os
import random
import signal
import time

import fault_training as training
import pytest
from campaign import IS_FULL, SEED
from fault_training import BUSY, DAY, Act

from trainmaster.store import Store

CONFIG = {"seed": 1}
NUM_EPOCHS = 5
LEASE = 2.4
HEARTBEAT = LEASE / 6
KILLED = -9
CLOCKS = ["ahead", "behind", "steps"]
AWAY, HERE = "another machine", ""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture
def shop():
    with training.workshop() as made:
        yield made


def shift_times(root, seconds):
    """Set the times of all files below a folder, as a file server with a different clock would."""
    now = time.time() + seconds
    for folder, _, files in os.walk(root):
        for name in files:
            try:
                os.utime(os.path.join(folder, name), (now, now))
            except FileNotFoundError:
                continue


def run_of(job):
    store = Store(job.store)
    return store.run(store.configs.get_key(CONFIG))


def when_taken_over(jobs):
    """Return the time on the monotonic clock at which the second attempt of each run was created."""
    runs, found = [run_of(job) for job in jobs], {}

    def are_all_taken_over():
        for run in runs:
            if run not in found and len(run.attempts()) > 1:
                found[run] = time.monotonic()
        return len(found) == len(runs)

    training.until(are_all_taken_over, "take-overs", pause=0.01)
    return [found[run] for run in runs]


def start_and_hold(shop, name, **more):
    """Start a process that pretends to be on another machine and waits in epoch 3.

    Return its job, the process, and the file that releases it.
    """
    gate = shop.folder / f"gate {name}"
    job = shop.job(f"store {name}", CONFIG, NUM_EPOCHS, lease_time=LEASE)
    holder = shop.start(job, boot=AWAY, acts=[Act("train", 3, "wait", str(gate))], **more)
    assert holder.wait_for("train", 3), holder.text()
    return job, holder, gate


@pytest.mark.parametrize("clock", [pytest.param(CLOCKS[0], marks=pytest.mark.smoke), *CLOCKS[1:]])
def test_a_clock_that_is_wrong_or_jumps_does_not_change_the_result_of_a_run(shop, clock):
    draws = random.Random(SEED)
    job = shop.job("store", CONFIG, NUM_EPOCHS, lease_time=LEASE, clock=clock)
    for epoch, point in ((1, "train"), (2, "save: manifest"), (3, "save: published"), (4, "eval")):
        assert shop.start(job, acts=[Act(point, epoch, "kill")]).wait() == KILLED
        shift_times(job.store, draws.choice([-DAY, DAY]))
    shop.start(job).succeed()
    training.assert_undisturbed(job)
    shift_times(job.store, -DAY)
    again = shop.start(job, clock="")
    again.succeed()
    assert again.place.count("train") == 0


def test_a_process_with_a_wrong_clock_is_not_replaced_while_it_renews_its_lease(shop):
    """The times of one process's files jump by a day, which a watcher treats as a heartbeat."""
    held = [start_and_hold(shop, clock, clock=clock) for clock in CLOCKS]
    batches = [shop.start(job, mode="batch") for job, _, _ in held]
    asked = [shop.start(job, clock="ahead") for job, _, _ in held]
    deadline, day = time.monotonic() + 2.5 * LEASE, DAY
    while time.monotonic() < deadline:
        time.sleep(0.2)
        day = -day
        shift_times(held[-1][0].store, day)
    for each in asked:
        assert each.wait() == BUSY, each.text()
        assert "RunBusyError: run" in each.text()
    for (job, holder, gate), batch in zip(held, batches, strict=True):
        assert run_of(job).attempts() == [1]
        gate.touch()
        holder.succeed()
        batch.succeed()
        assert batch.place.count("train") == 0
        assert batch.result()["found"] == [run_of(job).key]
        training.assert_undisturbed(job)


def test_a_dead_process_is_replaced_when_its_lease_expires_whatever_the_clocks_show(shop):
    held = [start_and_hold(shop, f"{clock} {seconds}", clock=clock) for clock, seconds in zip(CLOCKS, (DAY, -DAY, DAY), strict=True)]
    for job, holder, _ in held:
        holder.kill()
        assert holder.wait() == KILLED
        shift_times(job.store, DAY)
    begun = time.monotonic()
    watchers = [shop.start(job, clock=clock) for (job, _, _), clock in zip(held, ["behind", "steps", "ahead"], strict=True)]
    for taken_over in when_taken_over([job for job, _, _ in held]):
        assert LEASE <= taken_over - begun < LEASE + 10.0
    for (job, _, _), watcher in zip(held, watchers, strict=True):
        watcher.succeed()
        training.assert_undisturbed(job)


def test_a_watcher_that_was_suspended_has_not_observed_an_expired_lease(shop):
    job, holder, gate = start_and_hold(shop, "stopped watcher")
    watcher = shop.start(job, mode="batch")
    assert watcher.wait_for("claim")
    time.sleep(0.5 * LEASE)
    for process in (watcher, holder):  # as if both machines had been suspended
        process.send(signal.SIGSTOP)
    time.sleep(1.5 * LEASE)
    watcher.send(signal.SIGCONT)
    time.sleep(0.1)
    holder.send(signal.SIGCONT)
    time.sleep(0.5 * LEASE)
    assert run_of(job).attempts() == [1]
    gate.touch()
    holder.succeed()
    watcher.succeed()
    training.assert_undisturbed(job)


def test_a_process_that_was_killed_elsewhere_is_replaced_within_a_lease_and_two_heartbeats(shop):
    took = []
    for number in range(7 if IS_FULL else 1):
        held = [start_and_hold(shop, f"{number} {each}") for each in range(3)]
        watchers = [shop.start(job, mode="batch") for job, _, _ in held]
        for watcher in watchers:
            assert watcher.wait_for("claim")
        time.sleep(2 * HEARTBEAT)
        killed = time.monotonic()
        for _, holder, _ in held:
            holder.kill()
        took += [taken_over - killed for taken_over in when_taken_over([job for job, _, _ in held])]
        for (job, _, _), watcher in zip(held, watchers, strict=True):
            watcher.succeed()
            training.assert_undisturbed(job)
    print(f"taken over after {min(took):.2f} to {max(took):.2f} s, with a lease of {LEASE} s and a heartbeat of {HEARTBEAT:.2f} s")
    assert min(took) >= LEASE - HEARTBEAT - 0.1
    assert max(took) <= LEASE + 2 * HEARTBEAT
