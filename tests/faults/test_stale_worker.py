"""A worker that was suspended for longer than its lease and was replaced exits when it resumes; readers see no change.

On the same machine, the kernel reports a suspended process as alive, so the processes here pretend to run on different
machines.
"""

import re
import signal
import time
from pathlib import Path

import fault_training as training
import pytest
from campaign import IS_FULL
from fault_training import BUSY, Act

from trainmaster.store import Store

CONFIG = {"seed": 1}
NUM_EPOCHS, MIDDLE = 6, 5
LEASE = 1.0
ELSEWHERE = "another machine"
WHEN = [
    *(("train", 3), ("eval", 3), ("event", 3)),
    *(("save", 3), ("save: tensors", 3), ("save: tree", 3), ("save: before manifest", 3), ("save: manifest", 3), ("save: published", 3)),
    *(("save: preview", 3), ("save: status", 3), ("save: drop", 3), ("save: dropping", 3), ("save: ending", 3)),
    *(("eval", 0), ("save: before manifest", 0), ("save: manifest", 0), ("save: published", 0), ("save: ending", 0)),
]
USUAL = ("train", "eval", "save: tree", "save: manifest", "save: published", "save: drop")
SOME = [when for when in WHEN if IS_FULL or when[0] in USUAL]
BEFORE_CHECK = ("train", "eval", "event", "save", "save: tensors", "save: tree")
AT_THE_END = [("save: before manifest", NUM_EPOCHS), ("save: manifest", NUM_EPOCHS), ("save: published", NUM_EPOCHS)]
REPLACED = re.compile(r"^trainmaster\.errors\.LeaseLostError: attempt 1 of run [0-9a-f]{8} was replaced", re.MULTILINE)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture
def shop():
    with training.workshop() as made:
        yield made


class Stale:
    """A worker that suspends itself at one point, and the worker that replaces it."""

    def __init__(self, shop, when, **more):
        self.shop, (point, epoch) = shop, when
        self.name = f"stopped at {point!r} of epoch {epoch}"
        self.job = shop.job(f"store {self.name}", CONFIG, NUM_EPOCHS, lease_time=LEASE, **more)
        self.worker = shop.start(self.job, acts=[Act(point, epoch, "stop")])
        self.gate = Path(f"{self.job.store} gate")

    def replace(self, *acts):
        self.worker.wait_until_stopped()
        self.successor = self.shop.start(self.job, boot=ELSEWHERE, acts=list(acts))

    def seen(self):
        return training.seen_of(self.job.store, CONFIG)

    def wake(self):
        """Resume the worker, and return a list with a problem if it does not exit as expected."""
        self.worker.send(signal.SIGCONT)
        code = self.worker.wait()
        last = self.worker.text().strip().rpartition("\nTraceback")[2]
        return [] if code == 1 and REPLACED.search(last) else [f"{self.name}: it ended with {code}: {self.worker.text()[-800:]}"]


def wake_and_compare(stales):
    """Resume all workers, and return all problems: wrong exits, and changes that readers see."""
    before = [each.seen() for each in stales]
    problems = [problem for each in stales for problem in each.wake()]
    for each, old in zip(stales, before, strict=True):
        new = each.seen()
        problems += [f"{each.name}: {what} was {old[what]}, is {new[what]}" for what in old if new[what] != old[what]]
    return problems


def test_a_worker_that_resumes_after_its_successor_has_finished_exits_and_changes_nothing(shop):
    stales = [Stale(shop, when) for when in [*WHEN, *AT_THE_END]]
    for each in stales:
        each.replace()
    for each in stales:
        each.successor.succeed()
        training.assert_undisturbed(each.job)
    problems = wake_and_compare(stales)
    assert problems == [], "\n".join(problems)
    for each in stales:
        training.assert_undisturbed(each.job)


def test_a_worker_that_resumes_while_its_successor_trains_exits_and_changes_nothing(shop):
    stales = [Stale(shop, when) for when in SOME]
    for each in stales:
        each.replace(Act("train", MIDDLE, "wait", str(each.gate)))
    for each in stales:
        training.until(lambda each=each: _is_in_the_middle(each), f"the successor of one {each.name}")
    problems = wake_and_compare(stales)
    assert problems == [], "\n".join(problems)
    for each in stales:
        each.gate.touch()
        each.successor.succeed()
        training.assert_undisturbed(each.job)


def _is_in_the_middle(stale):
    assert not stale.successor.has_ended(), stale.successor.text()
    store = Store(stale.job.store)
    return stale.successor.place.point == "train" and store.stats[store.configs.get_key(CONFIG)]["epoch"] == MIDDLE - 1


@pytest.mark.parametrize("where", ["setup", "load"] if IS_FULL else ["load"])
def test_a_worker_that_resumes_before_its_successor_starts_exits_and_does_not_change_the_result(shop, where):
    stales = [Stale(shop, when) for when in SOME if when[1] > 0]
    for each in stales:
        each.replace(Act(where, None, "wait", str(each.gate)))
    for each in stales:
        assert each.successor.wait_for(where), each.successor.text()
    unchecked = [each for each in stales if each.worker.place.point not in BEFORE_CHECK]
    problems = wake_and_compare([each for each in stales if each not in unchecked])
    problems += [problem for each in unchecked for problem in each.wake()]  # a checkpoint that they complete now is valid
    assert problems == [], "\n".join(problems)
    for each in stales:
        each.gate.touch()
        each.successor.succeed()
        training.assert_undisturbed(each.job)


def test_a_worker_that_resumes_during_a_removal_deletes_nothing_of_its_successor(shop):
    whens = [
        (point, epoch)
        for point in ("save: manifest", "save: published", "save: drop", "save: dropping")
        for epoch in ((1, 3) if IS_FULL else (3,))
    ]
    stales = [Stale(shop, when, keep=1) for when in whens]
    for each in stales:
        each.replace(Act("train", None, "wait", str(each.gate)))
    for each in stales:
        assert each.successor.wait_for("train"), each.successor.text()
    problems = [problem for each in stales for problem in each.wake()]
    assert problems == [], "\n".join(problems)
    for each in stales:
        assert each.seen()["damage"] == []
        each.gate.touch()
        each.successor.succeed()
        training.assert_undisturbed(each.job)


def test_a_replaced_worker_of_a_batch_continues_with_other_runs(shop):
    configs = [CONFIG, {"seed": 2}]
    job = shop.job("store", {}, NUM_EPOCHS, configs=configs, mode="batch", lease_time=LEASE)
    worker = shop.start(job, acts=[Act("save: manifest", 3, "stop")])
    worker.wait_until_stopped()
    shop.start(job, boot=ELSEWHERE, configs=[CONFIG]).succeed()
    worker.send(signal.SIGCONT)
    worker.succeed()
    store = Store(job.store)
    first, second = (store.configs.get_key(config) for config in configs)
    assert worker.result() == {"done": [second], "found": [first], "failed": {}, "given_up": {}, "stopped": {}, "left": []}
    for config in configs:
        training.assert_undisturbed(job, config)


@pytest.mark.smoke
def test_a_worker_that_was_suspended_on_this_machine_is_not_replaced_and_continues(shop):
    job = shop.job("store", CONFIG, NUM_EPOCHS, lease_time=0.3)
    worker = shop.start(job, acts=[Act("save: manifest", 3, "stop")])
    worker.wait_until_stopped()
    time.sleep(1.0)
    other = shop.start(job)
    assert other.wait() == BUSY
    assert f"is held by process {worker.pid} on " in other.text()
    worker.send(signal.SIGCONT)
    worker.succeed()
    training.assert_undisturbed(job)


def test_a_step_that_blocks_other_threads_for_three_leases_never_leads_to_two_valid_writers(shop):
    whens = [("train", 3), ("eval", 3), ("save: before manifest", 3)]
    jobs = [shop.job(f"store {point}", CONFIG, NUM_EPOCHS, lease_time=LEASE) for point, _ in whens]
    starved, successors = [], []
    for job, (point, epoch) in zip(jobs, whens, strict=True):
        starved.append(shop.start(job, acts=[Act(point, epoch, "hold Python's lock", 4 * LEASE)]))
        assert starved[-1].wait_for(point, epoch + (point != "train")), starved[-1].text()
        time.sleep(0.1)
        successors.append(shop.start(job, boot=ELSEWHERE))
    for job, worker, successor in zip(jobs, starved, successors, strict=True):
        successor.succeed()
        assert worker.wait() == 1
        assert REPLACED.search(worker.text())
        assert re.search(r"its lease of 1 s was not renewed for [3-9]\d* s: a step held Python's GIL for that long", worker.text())
        assert re.search(r"give the manager a longer lease: lease_time=\d+", worker.text())
        training.assert_undisturbed(job)


# ---- forks


@pytest.mark.parametrize("does", ["leaves", "goes on"])
@pytest.mark.parametrize("first", ["child first", "parent first"])
@pytest.mark.parametrize("point", ["train", "eval", "event", "save", "save: ending"] if IS_FULL else ["train", "event", "save"])
def test_a_fork_in_a_hook_neither_ends_nor_affects_the_training_of_its_parent(shop, point, first, does):
    job = shop.job("store", CONFIG, NUM_EPOCHS, lease_time=LEASE)
    is_tidied = IS_FULL or (point, does) == ("train", "leaves")
    parent = shop.start(job, acts=[Act(point, 3, "fork", f"{first}, {does}")], is_tidied=is_tidied)
    parent.succeed()
    training.assert_undisturbed(job)
    store = Store(job.store)
    run = store.run(store.configs.get_key(CONFIG))
    ended = "the child leaves" if does == "leaves" else "LeaseLostError"
    training.until(lambda: ended in parent.text(), f"the end of the child in {parent.text()!r}")
    assert run.attempts() == [1]
    assert run.outcome_of(1)["outcome"] == "finished"
    training.assert_undisturbed(job)
