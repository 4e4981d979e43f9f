"""Commands that read, export, prune or remove runs during writes never find incomplete files (faults L12 and L13)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm

from trainmaster.errors import RunBusyError
from trainmaster.store import Store

CONFIG = {"name": "busy"}
NUM_STEPS = 120
WRITER = f"""
import sys, time
import numpy as np
from trainmaster.store import Store
store = Store(sys.argv[1])
key = store.configs.add({CONFIG!r})
with store.attempt(key, "process") as attempt:
    attempt.start(None)
    for step in range({NUM_STEPS}):
        attempt.log.append({{"step": step}})
        attempt.save(step, {{"step": step, "w": np.full(1000, step)}}, {{"epoch": step}}, {{"step": step}}, keep=2)
        time.sleep(0.005)
    sys.stdin.readline()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def key(store: Store) -> str:
    return store.configs.add(CONFIG)


@pytest.fixture
def writer(store: Store, key: str) -> Iterator[subprocess.Popen[bytes]]:
    process = warm.Popen([sys.executable, "-W", "error", "-c", WRITER, str(store.root)], stdin=subprocess.PIPE)
    try:
        while not store.run(key).has_saved():
            assert process.poll() is None
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.wait()


def is_writing(store: Store, key: str) -> bool:
    return bool(store.stats[key]["epoch"] < NUM_STEPS - 1)


@pytest.mark.integration
def test_a_reader_sees_only_complete_values_and_never_older_ones(store: Store, key: str, writer: subprocess.Popen[bytes]) -> None:
    epochs, steps, counts, previews = [-1], [-1], [0], [-1]
    while is_writing(store, key) and writer.poll() is None:
        run = store.run(key)
        epochs.append((run.status() or {})["epoch"])
        latest = run.latest()
        assert latest is not None
        assert latest.value["step"] == latest.name.step == latest.value["w"].min() == latest.value["w"].max()
        steps.append(latest.name.step)
        events = [event["step"] for event in run.events()]
        assert events == list(range(len(events)))
        counts.append(len(events))
        previews.append((run.preview() or {}).get("step", -1))
    writer.communicate(b"\n")
    assert writer.returncode == 0
    for seen in (epochs, steps, counts, previews):
        assert seen == sorted(seen)
    assert len(epochs) > 20
    assert store.verify() == []


@pytest.mark.integration
def test_a_run_in_training_can_be_exported_and_verified_but_neither_removed_nor_pruned(
    store: Store, key: str, writer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    rounds = 0
    while is_writing(store, key) and writer.poll() is None:
        with pytest.raises(RunBusyError, match=f"run {key} is held by process {writer.pid}"):
            store.pop(key)
        assert store.prune(keep=1) == []
        assert store.export_tar(tmp_path / "run.tar", compresslevel=0, keys=[key]) == 1
        copy = Store(None)
        assert copy.load_tar(tmp_path / "run.tar") == [key]
        assert copy.ckpts[key]["step"] == copy.stats[key]["epoch"] <= len(copy.run(key).events())
        assert copy.verify() == []
        rounds += 1
    writer.communicate(b"\n")
    assert writer.returncode == 0
    assert rounds > 3
    assert store.stats[key]["epoch"] == NUM_STEPS - 1
