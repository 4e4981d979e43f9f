"""A run that is repeatedly killed at random moments and resumed ends with the same bits as an undisturbed run.

By default, there are a few dozen kills; with `TRAINMASTER_FAULTS=full`, hundreds. `TRAINMASTER_FAULTS_SEED` repeats a
sequence of kills.
"""

import random
import time
from collections import Counter

import fault_training as training
import pytest
from campaign import IS_FULL, REPEAT, SEED
from fault_training import SAVING, Act

from trainmaster.store import Store

NUM_KILLS = 240 if IS_FULL else 25
NUM_EPOCHS = 6
KILLED = -9
PLANS = [
    ({"seed": 1}, {}),
    ({"seed": 2, "optimizer": "sgd"}, {"save_interval": 2, "eval_interval": 3}),
    ({"seed": 3}, {"save_interval": 2, "eval_interval": 3}),
    ({"optimizer": "sgd"}, {}),  # without a seed, the key determines the random numbers
]
EARLY = ["claim", "setup", "init", "eval", "event", *SAVING[: SAVING.index("save: published")]]
RESUMING = ["claim", "setup", "load"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800 if IS_FULL else 900)]


@pytest.fixture
def shop():
    with training.workshop() as made:
        yield made


class Aim:
    """Decides when to kill a process: shortly after it has reached a point for the n-th time.

    Some processes pause at that point, so that the kill hits them there.
    """

    def __init__(self, draws, number, has_saved):
        self.count = draws.choice([1, 1, 2])
        if number == 0 or (not has_saved and draws.random() < 0.3):
            self.point, self.count = draws.choice(EARLY), 1
        elif number % 2:
            self.point = draws.choice(SAVING)
        else:
            self.point = draws.choice(["train", "train", "eval", "event", "between", *RESUMING])
        self.delay = draws.uniform(0.0, 0.006)
        # The first process of each run waits at its point, so that some kills come before the first checkpoint.
        self.is_lingering = number == 0 or (self.count == 1 and draws.random() < (0.8 if number % 2 else 0.4))

    def acts(self):
        return [Act(self.point, None, "linger", 0.5)] if self.is_lingering else []


def kill_once(shop, job, aim, has_saved):
    """Start a process and kill it.

    Return where it was killed and whether the run had a checkpoint, or None if the process ended before the kill.
    """
    started = shop.start(job, acts=aim.acts())
    started.place.has_saved = has_saved
    if started.wait_for(aim.point, aim.count):
        time.sleep(aim.delay)
    started.kill()
    code = started.wait()
    assert code in (KILLED, 0), started.text()
    return (started.place.point, started.place.has_saved) if code == KILLED else None


def test_a_run_that_is_killed_at_random_moments_gives_the_same_bits_as_an_undisturbed_one(shop):
    draws = random.Random(SEED)
    landed, num_kills, num_early, num_runs, most = Counter(), 0, 0, 0, 0
    while num_kills < NUM_KILLS:
        config, intervals = PLANS[num_runs % len(PLANS)]
        num_runs += 1
        job = shop.job(f"store-{num_runs}", config, NUM_EPOCHS, **intervals)
        has_saved, kills_of_run = False, 0
        for number in range(draws.randint(5, 9)):
            died = kill_once(shop, job, Aim(draws, number, has_saved), has_saved)
            if died is None:
                break
            point, has_saved_now = died
            landed[point] += 1
            num_early += not has_saved_now
            kills_of_run += 1
            assert Store(job.store).verify() == [], f"after a kill at {point!r}; {REPEAT}"
            has_saved = has_saved_now
        shop.start(job).succeed()
        training.assert_undisturbed(job)
        num_kills, most = num_kills + kills_of_run, max(most, kills_of_run)
    num_saving = sum(landed[point] for point in SAVING)
    lines = [f"{landed[point]:5}  {point}" for point in training.POINTS if landed[point]]
    head = f"{num_kills} kills in {num_runs} runs, up to {most} in one: {num_saving / num_kills:.0%} inside a save, "
    print(head + f"{num_early / num_kills:.0%} before the first checkpoint; seed {SEED}", *lines, sep="\n")
    assert num_kills >= 2 * num_runs
    assert num_early >= 0.1 * num_kills
    assert num_saving >= (0.3 if IS_FULL else 0.15) * num_kills  # with few kills, the numbers vary by chance


def test_a_run_that_is_killed_twenty_times_while_it_resumes_continues_the_next_time(shop):
    draws = random.Random(SEED)
    config, intervals = PLANS[1]
    job = shop.job("store", config, NUM_EPOCHS, **intervals)
    landed = Counter()
    assert shop.start(job, acts=[Act("train", 3, "kill")]).wait() == KILLED
    before = training.result_of(job.store, config)
    for number in range(20):
        point = RESUMING[number % len(RESUMING)]
        started = shop.start(job, acts=[Act(point, None, "linger", 5.0)] if draws.random() < 0.5 else [Act("train", None, "linger", 5.0)])
        assert started.wait_for(point)
        time.sleep(draws.uniform(0.0, 0.01))
        started.kill()
        assert started.wait() == KILLED, started.text()
        landed[started.place.point] += 1
        assert training.result_of(job.store, config) == before
    print(dict(landed))
    shop.start(job).succeed()
    training.assert_undisturbed(job)


@pytest.mark.parametrize("number", [0, 1], ids=["all epochs", "some epochs"])
def test_each_evaluation_is_recorded_once_if_kills_come_between_a_checkpoint_and_its_records(shop, number):
    config, intervals = PLANS[number]
    job = shop.job("store", config, NUM_EPOCHS, keep=2, **intervals)
    saved = [epoch for epoch in range(NUM_EPOCHS + 1) if epoch % intervals.get("save_interval", 1) == 0]
    published = [["save: published", "save: preview", "save: status"], ["save: drop", "save: ending"]][number]
    for epoch, last in zip(
        saved[1::2], published, strict=True
    ):  # the first killed process has saved the previous epoch and logged this one
        for point in ("save: before manifest", "save: manifest", last):
            assert shop.start(job, acts=[Act(point, epoch, "kill")]).wait() == KILLED, f"{point} of epoch {epoch}"
            run = Store(job.store).run(Store(job.store).configs.get_key(config))
            epochs = [event["epoch"] for event in run.events()]
            assert epochs == sorted(set(epochs)), f"after a kill at {point!r} of epoch {epoch}"
    shop.start(job).succeed()
    training.assert_undisturbed(job)


@pytest.mark.smoke
def test_a_checkpoint_without_records_because_of_a_kill_is_not_trained_again(shop):
    config, intervals = PLANS[0]
    job = shop.job("store", config, NUM_EPOCHS, **intervals)
    assert shop.start(job, acts=[Act("save: published", NUM_EPOCHS, "kill")]).wait() == KILLED
    again = shop.start(job)
    again.succeed()
    assert again.place.count("train") == 0
    assert again.place.count("load") == 1
    training.assert_undisturbed(job)


@pytest.mark.smoke
def test_a_run_that_keeps_one_checkpoint_has_a_valid_one_after_every_kill_during_its_removal(shop):
    config, intervals = PLANS[0]
    job = shop.job("store", config, NUM_EPOCHS, keep=1, **intervals)
    points = ["save: drop", "save: dropping", "save: ending", "save: status", "save: published"]
    for epoch in range(1, NUM_EPOCHS):
        code = shop.start(job, acts=[Act(points[epoch % len(points)], epoch, "kill")]).wait()
        assert code == KILLED
        assert training.result_of(job.store, config).epoch == epoch
    shop.start(job).succeed()
    training.assert_undisturbed(job)
    assert len(Store(job.store).run(Store(job.store).configs.get_key(config)).checkpoints()) == 1
