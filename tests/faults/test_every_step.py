"""A run built by `make_loop` can be stopped or killed after any batch; once resumed, it ends with the same bits as an undisturbed run.

By default, a random sample of the batches is tested; with `TRAINMASTER_FAULTS=full`, every batch.
"""

import random
import signal

import fault_loop_training as loops
import pytest
from campaign import IS_FULL, SEED
from fault_loop_training import KILLED, Act

from trainmaster.store import Store

NUM_EPOCHS = 5 if IS_FULL else 2
NUM_STEPS = NUM_EPOCHS * loops.NUM_BATCHES
SAVED_BY = {"epoch": {}, "step": {"every_steps": 1}}

WAYS = [(saved_by, loader) for saved_by in SAVED_BY for loader in (0, 2)]
in_all_ways = pytest.mark.parametrize(("saved_by", "loader"), WAYS)
in_one_way = pytest.mark.parametrize(("saved_by", "loader"), [pytest.param(*WAYS[0], marks=pytest.mark.smoke), *WAYS[1:]])

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600 if IS_FULL else 900)]


@pytest.fixture
def shop():
    with loops.workshop() as made:
        yield made


def stop_points(kind, saved_by, loader):
    """Return the batches after which to stop: all of them, or a random sample."""
    every = range(1, NUM_STEPS)
    found = list(every) if IS_FULL else random.Random(f"{SEED} {kind} {saved_by}").sample(every, 1 if loader else 2)
    print(f"stop points {found}; seed {SEED}")
    return found


@in_all_ways
def test_a_loop_that_a_hook_stops_after_any_batch_resumes_in_a_new_manager(shop, saved_by, loader):
    for number in stop_points("stop", saved_by, loader):
        config = {"seed": 1, "loader": loader, **SAVED_BY[saved_by]}
        job = shop.job(f"store-{number}", config, NUM_EPOCHS, stop_at=number, then=NUM_EPOCHS + 1)
        started = shop.start(job)
        started.succeed()
        assert started.place.count("train") == NUM_STEPS + loops.NUM_BATCHES, f"stopped after {number}: {started.text()}"
        loops.assert_undisturbed(job)


@in_one_way
def test_a_loop_that_is_killed_after_any_checkpoint_or_batch_resumes(shop, saved_by, loader):
    for number in stop_points("kill", saved_by, loader):
        config = {"seed": 2, "loader": loader, "accumulated": 1, **SAVED_BY[saved_by]}
        job = shop.job(f"store-{number}", config, NUM_EPOCHS)
        point = "save: ending" if saved_by == "step" else "train"
        assert shop.start(job, acts=[Act(point, number, "kill")]).wait() == KILLED, number
        if saved_by == "step":
            run = Store(job.store).run(Store(job.store).configs.get_key(config))
            assert run.latest().value["state"]["progress"]["step_num"] == number
        shop.start(job).succeed()
        loops.assert_undisturbed(job)


@pytest.mark.parametrize(("saved_by", "loader"), WAYS if IS_FULL else WAYS[-1:])
def test_a_loop_that_sigterm_stops_at_any_batch_resumes(shop, saved_by, loader):
    for number in stop_points("signal", saved_by, loader)[::4]:
        config = {"seed": 3, "loader": loader, **SAVED_BY[saved_by]}
        job = shop.job(f"store-{number}", config, NUM_EPOCHS)
        started = shop.start(job, acts=[Act("train", number, "signal", signal.SIGTERM), Act("train", number, "linger", 1.0)])
        started.succeed()
        assert started.place.count("train") == number + 1, f"signaled at {number}: {started.text()}"
        shop.start(job).succeed()
        loops.assert_undisturbed(job)
