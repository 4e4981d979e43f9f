"""Uses every feature of a store once, in a fixed order. After a kill, the next start continues to the same result.

Run as `python store_driver.py FOLDER`, it writes below FOLDER only, without torch. It prints each action before the
action begins (`@save`) and, when the action is done, the result that must survive a kill (`saved 4c1d2a90 2`). If the
store raises an error, the exit code is 3 for a file system error, and 2 for any other error.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np

from trainmaster.errors import StoreAccessError, StoreError
from trainmaster.store import Store

ACTS = (
    *("create", "add", "add_many", "claim", "start", "log", "renew", "save", "publish", "finish"),
    *("index", "prune", "export", "open", "import", "migrate", "pop"),
)
CONFIG, THROWN = {"lr": 0.1, "depth": 18}, {"lr": 0.2, "depth": 34}
OTHERS = [{"lr": 0.1, "depth": depth} for depth in (50, 101)]
NUM_STEPS, NUM_THROWN_STEPS = 3, 1
LEASE_TIME = 36_000.0  # no heartbeat is sent automatically while the program runs
ACCESS, OTHER = 3, 2


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def main(folder: Path) -> None:
    say("@create")
    store = Store(folder / "store", LEASE_TIME)
    say("created")
    say("@add")
    key, thrown = store.configs.add(CONFIG), store.configs.add(THROWN)
    say("added")
    say("@add_many")
    store.configs.add_many(OTHERS)
    say("added_many")
    train(store, key, NUM_STEPS)
    train(store, thrown, NUM_THROWN_STEPS)
    say("@index")
    assert len(dict(store.index)) == 2 + len(OTHERS)
    say("@prune")
    store.prune(keep=1)
    say("@export")
    assert store.export_tar(folder / "runs.tar.gz", keys=[key, thrown]) == 2
    say("exported")
    say("@open")
    imported, migrated = Store(folder / "imported", LEASE_TIME), Store(folder / "migrated", LEASE_TIME)
    say("@import")
    imported.load_tar(folder / "runs.tar.gz")
    say("imported")
    say("@migrate")
    store.migrate(migrated, keys=[key])
    say("migrated")
    say("@pop")
    popped = store.pop(thrown)
    assert_alike(popped.ckpt, state(NUM_THROWN_STEPS))
    say("popped")


def train(store: Store, key: str, num_steps: int) -> None:
    status, preview = store.run(key).status(), store.run(key).preview()
    if status is not None and status["epoch"] == num_steps and preview == final_preview(num_steps):
        return
    say("@claim")
    with store.attempt(key, "process") as attempt:
        latest = store.run(key).latest()
        say("@start")
        attempt.start(latest)
        done, value = (latest.name.step, latest.value) if latest is not None else (0, state(0))
        for step in range(done + 1, num_steps + 1):
            value = next_state(value)
            say("@log")
            for event in events(step):
                attempt.log.append(event)
            say("@renew")
            attempt._heartbeat.renew()
            say("@save")
            attempt.save(step, value, {"epoch": step, "toc": 0.0, "t_train": 0.5, "t_eval": None}, {"step": step}, {"seed": step}, keep=2)
            say(f"saved {key} {step}")
        say("@publish")
        attempt.publish_preview(final_preview(num_steps))
        say("published")
        say("@finish")
        attempt.release("finished")
        say(f"finished {key}")


# ---- expected values


def state(step: int):
    value = {"weights": np.linspace(-1.0, 1.0, 300), "counts": np.zeros(7, np.int32), "seen": (0, [])}
    for _ in range(step):
        value = next_state(value)
    return value


def next_state(value):
    """Return the state after one training step. The bits differ if a step is repeated or skipped."""
    weights, counts, (step, sizes) = value["weights"], value["counts"], value["seen"]
    return {"weights": np.sin(weights * 3.7 + step), "counts": counts * 3 + 1, "seen": (step + 1, [*sizes, float(weights[step])])}


def events(step: int) -> list[dict[str, object]]:
    return [{"step": step, "batch": batch, "loss": 1.0 / (step + batch)} for batch in (1, 2)]


def final_preview(num_steps: int) -> dict[str, object]:
    return {"step": num_steps, "best": 0.125 * num_steps}


def assert_alike(found, expected) -> None:
    assert found is not None
    assert found.keys() == expected.keys()
    for name in ("weights", "counts"):
        assert found[name].dtype == expected[name].dtype
        assert found[name].tobytes() == expected[name].tobytes(), name
    assert found["seen"] == expected["seen"]


def assert_undamaged(store: Store) -> None:
    damage = store.verify()
    assert damage == [], f"{store}: {damage}"


def assert_trained(store: Store, key: str, num_steps: int) -> None:
    run = store.run(key)
    status, latest = run.status(), run.latest()
    assert (status or {}).get("epoch") == num_steps, f"{store}: {status}"
    assert run.preview() == final_preview(num_steps), f"{store}: {run.preview()}"
    assert run.events() == [event for step in range(1, num_steps + 1) for event in events(step)], f"{store}: {run.events()}"
    assert latest is not None
    assert latest.name.step == num_steps, f"{store}: {latest.name}"
    assert latest.context == {"seed": num_steps}
    assert_alike(latest.value, state(num_steps))


def assert_kept(folder: Path, said: list[str]) -> None:
    """Raise an error unless everything that the program reported as done exists, and all files can be read.

    This changes nothing.
    """
    stores = {name: Store(folder / name) for name in ("store", "imported", "migrated") if (folder / name / "store.json").exists()}
    store, runs = stores.get("store"), folder / "runs.tar.gz"
    for each in stores.values():
        assert_undamaged(each)
    assert store is not None or "created" not in said
    if store is None:
        return
    key, thrown = store.configs.get_key(CONFIG), store.configs.get_key(THROWN)
    assert (key and thrown) or "added" not in said or "@pop" in said
    assert all(store.configs.get_key(config) for config in OTHERS) or "added_many" not in said
    saved = dict(line.split()[1:] for line in said if line.startswith("saved "))
    for each in filter(None, (key, thrown)):
        is_gone = each == thrown and "@pop" in said and store.run(each).status() is None  # each run is complete or missing
        assert_saved(store, each, 0 if is_gone else int(saved.get(each, 0)))
    if key and f"finished {key}" in said:
        assert (store.run(key).outcome_of(store.run(key).newest()) or {})["outcome"] == "finished"
    if runs.exists() or "exported" in said:
        assert len(Store(None).load_tar(runs)) == 2
    if "imported" in said:
        assert_trained(stores["imported"], key, NUM_STEPS)
        assert_trained(stores["imported"], stores["imported"].configs.get_key(THROWN), NUM_THROWN_STEPS)
    if "migrated" in said:
        assert_trained(stores["migrated"], key, NUM_STEPS)
    assert thrown is None or "popped" not in said


def assert_saved(store: Store, key: str, step: int) -> None:
    """Raise an error unless `step`, or a later one, is saved with all events up to it."""
    run = store.run(key)
    latest, status = run.latest(), run.status()
    found = latest.name.step if latest is not None else 0
    assert found >= step, f"step {step} of run {key} was saved, but the latest checkpoint is {latest and latest.name}"
    assert step == 0 or (status or {})["epoch"] >= step, f"step {step} of run {key} was saved, but the status is {status}"
    assert run.events()[: 2 * found] == [event for each in range(1, found + 1) for event in events(each)]
    if latest is not None:
        assert_alike(latest.value, state(found))


def assert_ended_right(folder: Path) -> None:
    """Raise an error unless `folder` has the files of an uninterrupted program, except those that `prune` removes."""
    store, imported, migrated = stores = Store(folder / "store"), Store(folder / "imported"), Store(folder / "migrated")
    key, thrown = store.configs.get_key(CONFIG), imported.configs.get_key(THROWN)
    assert key is not None
    assert thrown is not None
    for each in stores:
        assert_undamaged(each)
        each.prune()
        assert_undamaged(each)
        assert_trained(each, key, NUM_STEPS)
    assert_trained(imported, thrown, NUM_THROWN_STEPS)
    assert sorted(store.configs) == sorted([key, *(store.configs.get_key(config) for config in OTHERS)])
    assert sorted(imported.configs) == sorted([key, thrown])
    assert sorted(migrated.configs) == [key]
    assert store.configs[key] == CONFIG
    assert (store.run(thrown).status(), store.run(thrown).latest(), store.run(thrown).checkpoints()) == (None, None, [])
    assert not [path for name in ("ckpts", "previews") for path in folder.glob(f"store/{name}/*/{thrown}/**/*") if path.is_file()]
    assert sorted(Store(None).load_tar(folder / "runs.tar.gz")) == sorted([key, thrown])
    unfinished = [path for path in folder.glob("*/ckpts/*/*/*/*") if not (path / "manifest.json").exists()]
    assert not unfinished, unfinished


if __name__ == "__main__":
    random.SystemRandom = lambda: random.Random(0)  # type: ignore[assignment,misc]  # the order of keys, too, is the same each time
    try:
        main(Path(sys.argv[1]))
    except StoreError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(ACCESS if isinstance(error, StoreAccessError) else OTHER)
    finally:
        assert "torch" not in sys.modules
