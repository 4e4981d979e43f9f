"""Many processes request the same runs at the same time: each run is trained once, even if processes are killed.

`TRAINMASTER_FAULTS=full` runs more rounds. `TRAINMASTER_FAULTS_SEED` repeats a sequence of kills.
"""

import os
import random
import threading
import time

import fault_training as training
import pytest
from campaign import IS_FULL, SEED
from fault_training import BUSY, Act

from trainmaster.errors import RunBusyError
from trainmaster.store import Store
from trainmaster.store.attempt import Attempt, claim_or_watch
from trainmaster.store.attempt_records import ATTEMPT
from trainmaster.store.checksummed_json import record_bytes

CONFIG = {"seed": 1}
KILLED = -9

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800 if IS_FULL else 900)]


@pytest.fixture
def shop():
    with training.workshop() as made:
        yield made


def start_at_once(shop, jobs):
    """Start processes that all open the store at the same moment."""
    gate = shop.folder / f"gate-{random.getrandbits(60)}"
    started = [shop.start(job, gate=str(gate)) for job in jobs]
    for each in started:
        assert each.wait_for("ready"), each.text()
    gate.touch()
    return started


def witnessed(shop, name="witness"):
    """Return the file in which every process records what it trains."""
    folder = shop.folder / name
    folder.mkdir()
    return folder


def run_of(job, config):
    store = Store(job.store)
    return store.run(store.configs.get_key(config))


# ---- one config


@pytest.mark.parametrize("round_number", range(12 if IS_FULL else 2))
def test_one_of_sixteen_processes_that_start_a_config_at_once_trains_it(shop, round_number):
    witness = witnessed(shop)
    job = shop.job("store", CONFIG, 4, witness=str(witness))
    started = start_at_once(shop, [job] * 16)
    codes = [each.wait() for each in started]
    texts = "\n".join(each.text() for each in started)
    assert sorted(set(codes)) in ([0], [0, BUSY]), texts
    trained = [each for each in started if each.place.count("train")]
    assert [each.wait() for each in trained] == [0]
    assert trained[0].place.count("train") == 4
    assert all("RunBusyError: run" in each.text() and "is held by process" in each.text() for each in started if each.wait() == BUSY)
    assert len(os.listdir(witness)) == 4
    training.assert_undisturbed(job)


@pytest.mark.parametrize("round_number", range(12 if IS_FULL else 1))
@pytest.mark.smoke
def test_one_of_sixteen_batches_with_the_same_config_trains_it_and_the_others_wait(shop, round_number):
    witness = witnessed(shop)
    job = shop.job("store", CONFIG, 4, mode="batch", lease_time=2.0, witness=str(witness))
    started = start_at_once(shop, [job] * 16)
    for each in started:
        each.succeed()
    assert sum(each.place.count("train") > 0 for each in started) == 1
    for each in started:
        result = each.result()
        assert len(result["done"]) + len(result["found"]) == 1, result
    assert len(os.listdir(witness)) == 4
    training.assert_undisturbed(job)


@pytest.mark.smoke
def test_processes_that_create_the_same_store_at_once_all_succeed(shop):
    errors = []

    def open_and_add(root, barrier, number):
        barrier.wait()
        try:
            Store(root).configs.add({"number": number % 2})
        except Exception as error:
            errors.append(error)

    for number in range(300 if IS_FULL else 60):
        barrier = threading.Barrier(8)
        threads = [threading.Thread(target=open_and_add, args=(shop.folder / f"store-{number}", barrier, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == [], f"round {number}"
        assert len(Store(shop.folder / f"store-{number}").configs) == 2


@pytest.mark.parametrize("keep", [1, 3])
def test_a_reader_sees_no_damage_while_a_run_is_saved_repeatedly(shop, keep):
    store = Store(shop.folder / "store")
    key = store.configs.add(CONFIG)
    steps = range(1500 if IS_FULL else 300)

    def save_all():
        with Store(store.root).attempt(key, "process") as attempt:
            attempt.start(None)
            for step in steps:
                attempt.log.append({"step": step})
                attempt.save(step, {"step": step}, {"epoch": step, "toc": 0.0, "t_train": None, "t_eval": None}, {}, keep=keep)

    writer = threading.Thread(target=save_all)
    writer.start()
    last, problems = -1, []
    while writer.is_alive():
        try:
            latest = store.run(key).latest()  # a warning would be an error here
            step = -1 if latest is None else latest.value["step"]
            problems += [f"step {step} after step {last}"] if step < last else []
            last = max(step, last)
            problems += store.verify()
        except Exception as error:
            problems.append(error)
    writer.join()
    assert problems == []
    assert store.ckpts[key] == {"step": steps[-1]}


# ---- many configs


def test_eight_workers_train_each_of_twelve_configs_once(shop):
    witness = witnessed(shop)
    configs = [{"seed": seed} for seed in range(12)]
    job = shop.job("store", {}, 2, configs=configs, mode="batch", lease_time=2.0, witness=str(witness))
    started = start_at_once(shop, [job] * 8)
    for each in started:
        each.succeed()
    results = [each.result() for each in started]
    for result in results:
        assert len(result["done"]) + len(result["found"]) == 12
        assert (result["failed"], result["given_up"], result["left"]) == ({}, {}, [])
    assert len(os.listdir(witness)) == 24
    assert sum(each.place.count("train") for each in started) == 24
    for config in configs:
        training.assert_undisturbed(job, config)


def test_a_sweep_whose_workers_are_killed_and_restarted_trains_every_config_and_records_each_epoch_once(shop):
    draws = random.Random(SEED)
    configs = [{"seed": seed, "optimizer": ["adam", "sgd"][seed % 2]} for seed in range(24 if IS_FULL else 4)]
    job = shop.job("store", {}, 3, configs=configs, mode="batch", lease_time=2.0, max_attempts=1000)
    shuffled = [training.replace(job, configs=draws.sample(configs, len(configs))) for _ in range(4)]
    workers = [shop.start(each) for each in shuffled]
    num_kills, goal = 0, 60 if IS_FULL else 6
    while num_kills < goal and (living := [number for number in range(4) if not workers[number].has_ended()]):
        time.sleep(draws.uniform(0.0, 0.2))
        number = draws.choice(living)
        workers[number].kill()
        num_kills += workers[number].wait() == KILLED
        workers[number] = shop.start(shuffled[number])
    for each in workers:
        each.succeed()
    print(f"{num_kills} workers were killed; seed {SEED}")
    assert num_kills >= goal // 3
    for config in configs:
        training.assert_undisturbed(job, config)


def work_until_done(shop, jobs, limit):
    """Restart every killed worker. Return the results of all workers, and how many were killed."""
    workers = [shop.start(job) for job in jobs]
    num_kills, results = 0, []
    while workers:
        worker = workers.pop(0)
        if worker.wait() == KILLED:
            num_kills += 1
            assert num_kills <= limit, f"{num_kills} workers were killed"
            boot = f"{worker.job.boot.split('/')[0]}/{num_kills}" if worker.job.boot else ""
            workers.append(shop.start(worker.job, boot=boot))
        else:
            worker.succeed()
            results.append(worker.result())
    return results, num_kills


@pytest.mark.parametrize("where", ["one machine", "many machines"])
def test_a_batch_gives_up_on_a_config_that_always_kills_its_worker_and_completes_the_others(shop, where):
    healthy = [{"seed": seed} for seed in range(4)]
    poison = [{"seed": 9, "poison": "setup"}, {"seed": 9, "poison": "train"}]
    job = shop.job("store", {}, 2, configs=[*healthy[:2], *poison, *healthy[2:]], mode="batch", lease_time=0.6, max_attempts=3)
    boots = [""] * 3 if where == "one machine" else ["boot-1", "boot-2", "boot-3"]
    results, num_kills = work_until_done(shop, [training.replace(job, boot=boot) for boot in boots], 20)
    assert num_kills == 3 + 4  # one run saves epoch 0 in its first attempt, so that attempt does not count as failed
    for config, num_attempts in zip(poison, (3, 4), strict=True):
        key = run_of(job, config).key
        assert len(run_of(job, config).attempts()) == num_attempts
        reasons = {result["given_up"][key] for result in results}
        assert reasons == {"3 attempts in a row saved no new checkpoint; the last one: its process was killed"}
    for config in healthy:
        training.assert_undisturbed(job, config)


# ---- one dead lease


def hold_dead(store, key, number, **owner):
    """Create a claim by a process on another machine that never renews its lease."""
    owner = {"host": "elsewhere", "boot": "another boot", "pid": 1, "start": "1", **owner}
    claim = {"key": key, "attempt": number, "token": "0" * 32, "by": "process", "owner": owner, "heartbeat": 0.01}
    store.files.create(store.run(key).path(number, ATTEMPT), record_bytes(claim))


def test_exactly_one_of_many_waiters_for_a_dead_lease_gets_it(shop):
    store = Store(shop.folder / "store")
    num_waiters = 16 if IS_FULL else 8
    for number in range(200 if IS_FULL else 25):
        key = store.configs.add({"number": number})
        hold_dead(store, key, 1)
        barrier, found = threading.Barrier(num_waiters), []

        def wait(key=key, barrier=barrier, found=found):
            barrier.wait()
            try:
                found.append(claim_or_watch(Store(store.root).run(key), "process", 0.05))
            except Exception as error:
                found.append(error)

        threads = [threading.Thread(target=wait) for _ in range(num_waiters)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        taken = [each for each in found if isinstance(each, Attempt)]
        for each in taken:
            each.release("finished")
        assert [each.number for each in taken] == [2], found
        assert sum(isinstance(each, RunBusyError) for each in found) == num_waiters - 1, found


@pytest.mark.parametrize("round_number", range(10 if IS_FULL else 1))
def test_one_of_several_processes_that_watch_a_dead_lease_continues_the_run(shop, round_number):
    witness = witnessed(shop)
    job = shop.job("store", CONFIG, 4, lease_time=1.0)
    assert shop.start(job, boot="another machine", acts=[Act("train", 2, "kill")]).wait() == KILLED
    started = start_at_once(shop, [training.replace(job, witness=str(witness))] * 6)
    codes = [each.wait() for each in started]
    assert sorted(set(codes)) in ([0], [0, BUSY]), "\n".join(each.text() for each in started)
    assert sum(each.place.count("train") > 0 for each in started) == 1
    assert sorted(name.split("-")[1] for name in os.listdir(witness)) == ["2", "3", "4"]
    training.assert_undisturbed(job)
