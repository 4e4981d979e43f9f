"""A run built by `make_loop` that is repeatedly killed, mostly during saves, ends with the bits of an undisturbed run.

By default, there are a few dozen kills; with `TRAINMASTER_FAULTS=full`, hundreds. `TRAINMASTER_FAULTS_SEED` repeats a
sequence of kills.
"""

import os
import random
import time
from collections import Counter
from pathlib import Path

import fault_loop_training as loops
import pytest
from campaign import IS_FULL, REPEAT, SEED
from fault_loop_training import KILLED, SAVING, Act

from trainmaster.store import Store

NUM_KILLS = 210 if IS_FULL else 3
NUM_EPOCHS = 4
CAMPAIGNS = {
    "every epoch": {},
    "every step": {"every_steps": 1},
    "every third step, waiting": {"every_steps": 3, "in_background": False},
}
EARLY = ["claim", "setup", "init", "eval", "event", "train", *SAVING[: SAVING.index("save: published")]]
RESUMING = ["claim", "setup", "load"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600 if IS_FULL else 900)]


@pytest.fixture
def shop():
    with loops.workshop() as made:
        yield made


def run_of(job):
    store = Store(job.store)
    return store.run(store.configs.get_key(job.configs[0]))


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
            self.point = draws.choice(["train", "train", "train", "eval", "event", "between", *RESUMING])
        if self.point == "train":
            self.count = draws.randint(1, 10)
        self.delay = draws.uniform(0.0, 0.01)
        self.is_lingering = number == 0 or draws.random() < (0.8 if number % 2 else 0.4)
        self.is_of_all = draws.random() < 0.5

    def acts(self):
        return [Act(self.point, None, "linger", 0.5)] if self.is_lingering and self.count == 1 else []


def kill_once(shop, job, aim, has_saved):
    """Start a process and kill it or its whole session. Return the process, and whether it ended before the kill."""
    started = shop.start(job, acts=aim.acts())
    started.place.has_saved = has_saved
    if started.wait_for(aim.point, aim.count):
        time.sleep(aim.delay)
    if aim.is_of_all and not started.has_ended():
        loops.kill_session(started.pid)
    started.kill()
    code = started.wait()
    assert code in (KILLED, 0), f"{started.text()}; {REPEAT}"
    return started, code == 0


@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_a_loop_that_is_killed_at_random_moments_gives_the_same_bits_as_an_undisturbed_one(shop, campaign):
    draws = random.Random(f"{SEED} {campaign}")
    landed, kills_of_epochs, num_kills, num_early, num_saving, num_beside, num_runs, most = Counter(), Counter(), 0, 0, 0, 0, 0, 0
    while num_kills < NUM_KILLS:
        config = {"seed": num_runs % 4, "loader": 2 * (num_runs % 2), **CAMPAIGNS[campaign]}
        num_runs += 1
        job = shop.job(f"store-{num_runs}", config, NUM_EPOCHS)
        has_saved, kills_of_run = False, 0
        for number in range(draws.randint(5, 9) if IS_FULL else NUM_KILLS):
            started, has_finished = kill_once(shop, job, Aim(draws, number, has_saved), has_saved)
            if has_finished:
                break
            where = loops.Where.of(started.job.files)
            landed[where.stage or started.place.point] += 1
            kills_of_epochs[num_runs, where.epoch] += 1
            has_saved = started.place.has_saved
            num_early += not has_saved
            num_saving += where.stage is not None
            num_beside += where.is_beside
            kills_of_run += 1
            assert Store(job.store).verify() == [], f"after a kill at {where}, {started.place.point!r}; {REPEAT}"
        shop.start(job).succeed()
        loops.assert_undisturbed(job)
        num_kills, most = num_kills + kills_of_run, max(most, kills_of_run)
    num_twice = sum(num > 1 for num in kills_of_epochs.values())
    lines = [f"{landed[point]:5}  {point}" for point in loops.training.POINTS if landed[point]]
    shares = f"{num_saving / num_kills:.0%} inside a save ({num_beside / num_kills:.0%} in the background)"
    print(f"{num_kills} kills in {num_runs} runs, up to {most} in one, {num_twice} epochs with two or more: {shares},")
    print(f"{num_early / num_kills:.0%} before the first checkpoint; seed {SEED}", *lines, sep="\n")
    if IS_FULL:  # with few kills, the numbers vary by chance
        assert num_saving >= 0.3 * num_kills
        assert num_early >= 0.1 * num_kills
        assert num_twice >= 1


@pytest.mark.parametrize("loader", [pytest.param(0, marks=pytest.mark.smoke), 2])
def test_a_loop_that_is_killed_at_several_batches_of_one_epoch_resumes_each_time(shop, loader):
    job = shop.job("store", {"seed": 5, "loader": loader, "every_steps": 1}, 3)
    for number in (13, 16, 17, 21, 22):  # some kills come after a new checkpoint
        assert shop.start(job, acts=[Act("train", number, "kill")]).wait() == KILLED, number
    shop.start(job).succeed()
    loops.assert_undisturbed(job)


def test_a_loop_that_is_killed_twenty_times_while_it_resumes_continues_the_next_time(shop):
    draws = random.Random(SEED)
    job = shop.job("store", {"seed": 6, "every_steps": 1}, 3)
    landed = Counter()
    assert shop.start(job, acts=[Act("train", 18, "kill")]).wait() == KILLED
    before = loops.result_of(job.store, job.configs[0])
    for number in range(20):
        point = RESUMING[number % len(RESUMING)]
        lingering = point if draws.random() < 0.5 else "train"
        started = shop.start(job, acts=[Act(lingering, None, "linger", 20.0)])
        assert started.wait_for(point)
        time.sleep(draws.uniform(0.0, 0.02))
        started.kill()
        assert started.wait() == KILLED, started.text()
        landed[started.place.point] += 1
        # Rows that were written after the last checkpoint exist until the run resumes.
        assert loops.result_of(job.store, job.configs[0])._replace(events=None) == before._replace(events=None), REPEAT
    print(dict(landed))
    shop.start(job).succeed()
    loops.assert_undisturbed(job)


# ---- saves


@pytest.mark.parametrize("point", ["save", "save: tensors", "save: tree"] if IS_FULL else ["save: tensors"])
def test_a_checkpoint_has_the_values_of_its_step_even_if_they_change_while_it_is_written(shop, point):
    job = shop.job("store", {"seed": 7, "every_steps": 1}, 3)
    acts = [Act(point, 15, "wait", str(shop.folder / "gate")), Act("save: ending", 15, "kill")]
    started = shop.start(job, acts=acts, scribble_at=15)
    assert started.wait_for("train", 16)  # everything has been overwritten by then, while the save waits
    (shop.folder / "gate").touch()
    assert started.wait() == KILLED, started.text()
    shop.start(job).succeed()
    loops.assert_undisturbed(job)


def test_a_loop_that_keeps_one_checkpoint_has_a_valid_one_after_every_kill_during_its_removal(shop):
    job = shop.job("store", {"seed": 8, "every_steps": 1, "keep": 1}, 3)
    points = ["save: published", "save: preview", "save: status", "save: drop", "save: dropping", "save: ending"]
    for number, saved in enumerate((10, 12, 15, 20, 24, 25) * (4 if IS_FULL else 1)):
        point = points[(number + number // 6) % 6]
        started = shop.start(job, acts=[Act(point, saved, "kill")])
        code = started.wait()
        assert code in (KILLED, 0), started.text()
        latest = run_of(job).latest()  # a warning would be an error here
        assert latest is not None
        assert code == 0 or latest.value["state"]["progress"]["step_num"] == saved // loops.ACCUMULATED, f"after {point!r} of {saved}"
    shop.start(job).succeed()
    loops.assert_undisturbed(job)
    assert 1 <= len(run_of(job).checkpoints()) <= 2  # the last checkpoint and the best one
    assert run_of(job).checkpoint("best") is not None


def test_a_reader_always_finds_a_valid_checkpoint_if_only_one_is_kept(shop):
    job = shop.job("store", {"seed": 9, "every_steps": 1, "keep": 1, "accumulated": 1}, 6 if IS_FULL else 2)
    started = shop.start(job)
    assert started.wait_for("save: ending")
    last, num_looks = -1, 0
    while not started.has_ended():
        latest = run_of(job).latest()  # a warning would be an error here
        assert latest is not None
        assert latest.name.step >= last
        last, num_looks = latest.name.step, num_looks + 1
    started.succeed()
    print(f"{num_looks} looks")
    assert num_looks > 0
    loops.assert_undisturbed(job)


def test_leftovers_of_killed_saves_of_one_step_are_replaced_by_the_next_save(shop):
    job = shop.job("store", {"seed": 10, "every_steps": 1}, 3)
    for point in ["save", *SAVING[SAVING.index("save: tensors") : SAVING.index("save: published")]]:
        assert shop.start(job, acts=[Act(point, 15, "kill")]).wait() == KILLED, point
        assert run_of(job).latest().value["state"]["progress"]["step_num"] == 2, point
    assert half_saved(job), "no incomplete checkpoint was left"
    shop.start(job).succeed()
    loops.assert_undisturbed(job)
    assert half_saved(job) == []


def half_saved(job):
    """Return the folders of checkpoints without a manifest."""
    folder = Path(job.store) / "ckpts"
    found = [Path(path) for path, _, _ in os.walk(folder) if Path(path).name.startswith("step-")]
    return [path for path in found if not (path / "manifest.json").exists()]


@pytest.mark.parametrize("in_background", [True, False])
@pytest.mark.parametrize("point", ["save: tensors", "save: manifest", "save: status"] if IS_FULL else ["save: manifest"])
def test_a_loop_that_sigterm_stops_during_a_save_is_saved_and_resumes(shop, point, in_background):
    job = shop.job("store", {"seed": 11, "every_steps": 1, "in_background": in_background}, 3)
    started = shop.start(job, acts=[Act(point, 15, "signal", 15)])
    assert started.wait() == 0, started.text()  # the test program catches the SystemExit and prints its code
    assert started.text().rstrip().endswith("143")
    run = run_of(job)
    assert run.outcome_of(run.newest())["outcome"] == "interrupted"
    assert not Store(job.store).stats[run.key]["is_over"]
    shop.start(job).succeed()
    loops.assert_undisturbed(job)


@pytest.mark.parametrize("saving", [{}, {"every_steps": 1, "accumulated": 1}])
def test_a_loop_that_is_killed_in_an_evaluation_resumes_from_the_checkpoint_before_it_and_knows_its_best(shop, saving):
    job = shop.job("store", {"seed": 12, **saving}, 3)
    for epoch in (1, 2, 3):
        for _ in range(2):
            assert shop.start(job, acts=[Act("eval", loops.NUM_BATCHES * epoch, "kill")]).wait() == KILLED
            assert epoch == 1 or Store(job.store).stats[run_of(job).key]["epoch"] == epoch - 1
        assert shop.start(job, acts=[Act("save: ending", loops.NUM_BATCHES * epoch, "kill")]).wait() == KILLED
    shop.start(job).succeed()
    loops.assert_undisturbed(job)
    run = run_of(job)
    best = Store(job.store).stats[run.key]["best"]
    assert run.checkpoint("best").value["state"]["progress"]["epoch_num"] == best["epoch"]


@pytest.mark.parametrize(
    "point", ["save: before manifest", "save: published", *(["save: preview", "save: status", "save: ending"] if IS_FULL else [])]
)
@pytest.mark.smoke
def test_a_loop_that_is_killed_in_its_last_save_has_the_metrics_of_its_last_evaluation(shop, point):
    job = shop.job("store", {"seed": 13}, 2)
    assert shop.start(job, acts=[Act(point, 24, "kill")]).wait() == KILLED
    again = shop.start(job)
    again.succeed()
    is_lost = point == "save: before manifest"  # the epoch is trained and evaluated again
    assert again.place.count("train") == loops.NUM_BATCHES * is_lost
    assert again.place.count("eval") == is_lost
    loops.assert_undisturbed(job)
