"""Sweeps whose workers and drivers are killed train every config once and leave no process behind.

A test starts drivers, and drivers start workers. `TRAINMASTER_FAULTS=full` uses more configs and more kills;
`TRAINMASTER_FAULTS_SEED` repeats a sequence of kills.
"""

import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace

import fault_loop_training as loops
import pytest
from campaign import IS_FULL, REPEAT, SEED
from fault_loop_training import KILLED, Act

from trainmaster.manager.batch import reason_to_give_up
from trainmaster.store import Store

NUM_EPOCHS = 3
TIME_TO_EXIT = 90.0
"""Seconds within which workers must exit after their driver was killed; the limit allows for busy machines."""
MAX_ATTEMPTS, SPARED = (4, 2) if IS_FULL else (2, 1)
"""Limits for the number of attempts in a row that end without a checkpoint.

After `MAX_ATTEMPTS`, the batch gives up on the run. After `SPARED`, the test stops killing the run, because the batch
would otherwise also give up on runs that do not kill their own workers.
"""
PATIENCE = 300.0
POISON = {"seed": 99, "poison": True}
PLAIN = {"accumulated": 3}

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600 if IS_FULL else 900)]


@pytest.fixture
def shop():
    with loops.workshop() as made:
        yield made


class Sweep:
    """A sweep and its current driver, which can be killed."""

    def __init__(self, shop, configs, **settings):
        self.shop, self.configs = shop, configs
        self.witness = shop.folder / "witness"
        self.witness.mkdir()
        settings = {"workers": 2, "pause": 0.3, "max_attempts": MAX_ATTEMPTS, **settings}
        self.job = shop.job("store", {}, NUM_EPOCHS, configs=configs, mode="batch", witness=str(self.witness), **settings)
        self.times_alone = []
        self.kills = Counter()
        self.driver = shop.start(self.job)

    def workers(self):
        """Return the workers of this driver that have built a loop, with their runs."""
        living = loops.members_of(self.driver.pid)
        named = {int(path.stem): path for path in self.witness.glob("*.pid") if int(path.stem) in living}
        return {pid: path.read_text() for pid, path in named.items()}

    def epochs(self):
        """Return how many times each epoch of each run was started."""
        return Counter(tuple(path.name.split("-")[:2]) for path in self.witness.glob("*.epoch"))

    def wait(self, is_so, what):
        loops.training.until(lambda: self.driver.has_ended() or is_so(), f"{what}; {self.driver.text()}; {REPEAT}", PATIENCE, 0.02)

    def kill(self, what):
        """Kill a worker, all workers, the driver, or everything. Return False if there was no such process."""
        workers = self.workers()
        store = Store(self.job.store)
        victims = {"a worker": list(workers)[:1], "the driver": []}.get(what, list(workers))
        is_spared = any(not workers[pid] or reason_to_give_up(store.run(workers[pid]), SPARED) for pid in victims)
        if self.driver.has_ended() or not workers or is_spared:
            return False
        if what in ("a worker", "the workers"):
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
        else:
            self.driver.kill()
            assert self.driver.wait() in (KILLED, 0)
            if what == "all":
                loops.kill_session(self.driver.pid)
            self._watch_those_left()
            self.driver = self.shop.start(self.job)
        self.kills[what] += 1
        return True

    def _watch_those_left(self):
        started, left = time.monotonic(), loops.members_of(self.driver.pid)
        while left:
            assert time.monotonic() < started + TIME_TO_EXIT, f"left after {TIME_TO_EXIT} s: {left}; {REPEAT}"
            time.sleep(0.05)
            left = loops.members_of(self.driver.pid)
        self.times_alone.append(time.monotonic() - started)

    def finish(self):
        """Wait until the sweep ends, and return its result."""
        assert self.driver.wait(PATIENCE) == 0, self.driver.text()
        times = ", ".join(f"{each:.1f}" for each in sorted(self.times_alone))
        print(f"kills: {dict(self.kills)}; seconds until no process was left: {times or 'none'}; seed {SEED}")
        return self.driver.result()


def key_of(job, config):
    return Store(job.store).configs.get_key(config)


def assert_each_trained_once(sweep, result):
    job, healthy = sweep.job, [config for config in sweep.configs if config != POISON]
    keys = sorted(key_of(job, config) for config in healthy)
    assert sorted([*result["done"], *result["found"]]) == keys, result
    assert (result["failed"], result["stopped"], result["left"]) == ({}, {}, []), result
    for config in healthy:
        loops.assert_undisturbed(job, config)
        assert Store(job.store).stats[key_of(job, config)]["is_over"]


def configs_of(num):
    return [{"seed": seed, "loader": 2 * (seed % 5 == 4), **PLAIN} for seed in range(num)]


def test_a_sweep_under_kills_trains_each_config_once_and_gives_up_on_the_one_that_kills_its_workers(shop):
    draws = random.Random(SEED)
    configs = configs_of(23 if IS_FULL else 4)
    sweep = Sweep(shop, [*configs[:3], POISON, *configs[3:]])
    plan = ["a worker", "the driver"]
    if IS_FULL:
        plan = draws.sample(["a worker"] * 14 + ["the workers"] * 4 + ["the driver"] * 6 + ["all"] * 3, 27)
    while plan and not sweep.driver.has_ended():
        sweep.wait(sweep.workers, "a worker at work")
        time.sleep(draws.uniform(0.0, 1.0))
        while not sweep.driver.has_ended() and not sweep.kill(plan[-1]):
            time.sleep(0.02)
        plan.pop()
    result = sweep.finish()
    assert_each_trained_once(sweep, result)
    key = key_of(sweep.job, POISON)
    assert result["given_up"] == {key: f"{MAX_ATTEMPTS} attempts in a row saved no new checkpoint; the last one: its process was killed"}
    assert len(Store(sweep.job.store).run(key).attempts()) == MAX_ATTEMPTS
    assert sum(sweep.kills.values()) >= (20 if IS_FULL else 1)


@pytest.mark.skipif(not IS_FULL, reason="each way takes a minute")
@pytest.mark.parametrize("what", ["a worker", "the workers", "the driver", "all"])
def test_a_sweep_continues_after_every_kind_of_kill_and_repeats_no_saved_epoch(shop, what):
    sweep = Sweep(shop, configs_of(6), pause=1.0)
    for _ in range(3):
        begun = sweep.epochs()
        sweep.wait(lambda begun=begun: sum((sweep.epochs() - begun).values()) >= 4, "some epochs")
        while not sweep.kill(what) and not sweep.driver.has_ended():
            time.sleep(0.05)
    result = sweep.finish()
    assert_each_trained_once(sweep, result)
    assert result["given_up"] == {}
    num_again = sum(sweep.epochs().values()) - NUM_EPOCHS * len(sweep.configs)
    print(f"{num_again} epochs were begun again")
    # Each of the two workers repeats the current epoch, and the previous one if its save was still running.
    assert 0 <= num_again <= 4 * sum(sweep.kills.values())


def test_two_drivers_share_a_sweep_and_each_config_is_trained_once(shop):
    configs = configs_of(8 if IS_FULL else 4)
    sweep = Sweep(shop, configs, workers=1)
    other = shop.start(replace(sweep.job, configs=configs[::-1]))
    assert other.wait(PATIENCE) == 0, other.text()
    results = [sweep.finish(), other.result()]
    for result in results:
        assert_each_trained_once(sweep, result)
        assert result["given_up"] == {}
    done = [key for result in results for key in result["done"]]
    assert sorted(done) == sorted(key_of(sweep.job, config) for config in configs)
    print("done by each:", [len(result["done"]) for result in results])
    assert set(sweep.epochs().values()) == {1}


# ---- runs that are resumed by another worker


@pytest.mark.parametrize("where", [pytest.param("one machine", marks=pytest.mark.smoke), "many machines"])
def test_a_run_whose_worker_was_killed_is_resumed_in_time_from_its_checkpoint(shop, where):
    lease_time = 60.0 if where == "one machine" else 1.8
    limit = 0.0 if where == "one machine" else lease_time * (1 + 2 / 6)
    times = []
    for number in range(20 if IS_FULL else 1):
        witness = shop.folder / f"witness-{number}"
        witness.mkdir()
        config = {"seed": number % 4, "every_steps": 1}
        job = shop.job(f"store-{number}", config, NUM_EPOCHS, mode="batch", lease_time=lease_time, witness=str(witness))
        boot = "" if where == "one machine" else "another machine"
        first = shop.start(job, boot=boot, acts=[Act("train", 20, "wait", str(shop.folder / "never"))])
        assert first.wait_for("train", 21)
        loops.training.until(lambda job=job, config=config: is_saved(job, config, 4), "the checkpoint of step 4")
        second = shop.start(job)
        time.sleep(1.0)
        assert second.place.count("setup") == 0, "the run was held"
        first.kill()
        killed = time.monotonic()
        assert second.wait_for("load"), second.text()
        times.append(time.monotonic() - killed)
        second.succeed()
        assert second.result()["done"] == [key_of(job, config)]
        assert second.place.count("train") == NUM_EPOCHS * loops.NUM_BATCHES - 4 * loops.ACCUMULATED
        loops.assert_undisturbed(job)
    print(f"taken over after {', '.join(f'{each:.2f}' for each in sorted(times))} s; lease {lease_time} s")
    assert max(times) <= limit + 15.0  # more time for a busy machine
    if IS_FULL:
        assert sorted(times)[len(times) // 2] <= limit + 2.0


@pytest.mark.parametrize("seconds", [0.0, 3.0], ids=["found by a save", "found by a look"])
def test_a_batch_that_was_suspended_past_its_lease_leaves_the_run_to_its_successor_and_continues(shop, seconds):
    configs = [{"seed": seed, "every_steps": 1} for seed in (5, 6)]
    job = shop.job("store", {}, NUM_EPOCHS, configs=configs, mode="batch", lease_time=1.0)
    sleeper = shop.start(job, boot="another machine", acts=[Act("train", 20, "stop"), Act("train", 20, "linger", seconds)])
    sleeper.wait_until_stopped()
    other = shop.start(replace(job, configs=configs[:1]))
    other.succeed()
    sleeper.send(signal.SIGCONT)
    sleeper.succeed()
    slept, next_one = (key_of(job, config) for config in configs)
    assert other.result()["done"] == [slept]
    assert (sleeper.result()["done"], sleeper.result()["found"]) == ([next_one], [slept]), sleeper.result()
    for config in configs:
        loops.assert_undisturbed(job, config)


def is_saved(job, config, step):
    store = Store(job.store)
    latest = store.run(store.configs.get_key(config)).latest()
    return latest is not None and latest.name.step >= step
