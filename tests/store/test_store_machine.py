"""Readers see one history of a store whose workers may be killed, suspended or replaced (L03, L12, L13, L18).

After every step, the store is compared with a model of what readers must see.
"""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from trainmaster.errors import LeaseLostError, RunBusyError
from trainmaster.store import Attempt, Records, Store
from trainmaster.store.attempt import claim
from trainmaster.store.checkpoint import CheckpointName

NUMBERS = st.integers(0, 1)
"""The number of one of the two configs."""


@dataclass
class Saved:
    step: int
    value: int
    num_events: int
    status: dict[str, Any]
    preview: dict[str, Any]


@dataclass
class Expected:
    """The state of a run that readers should see. A run that never started has no status."""

    status: dict[str, Any] | None = None
    preview: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    """The checkpoints, oldest first."""

    @property
    def epoch(self) -> int:
        return -2 if self.status is None else self.status["epoch"]

    def start(self) -> None:
        """Resume from the last checkpoint, and drop everything after it."""
        if self.saved:
            last = self.saved[-1]
            self.events = self.events[: last.num_events]
            self.status, self.preview = last.status, last.preview
        else:
            self.events, self.status, self.preview = [], {"epoch": -1}, {}


def check(store: Store, key: str, expected: Expected) -> None:
    run = store.run(key)
    status, latest = run.status(), run.latest()
    assert (None if status is None else status["epoch"]) == (None if expected.status is None else expected.status["epoch"])
    assert run.preview() == expected.preview
    assert run.events() == expected.events
    assert (None if latest is None else latest.value) == (expected.saved[-1].value if expected.saved else None)
    assert [name.step for name in reversed(run.checkpoints())] == [each.step for each in expected.saved]
    assert (key in store.stats, key in store.ckpts) == (expected.status is not None, bool(expected.saved))


class Workers(RuleBasedStateMachine):
    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory() if self.kind == "disk" else None
        self.store = Store(self.folder.name if self.folder else None)
        self.other = Store(None)
        self.keys: dict[int, str] = {}
        self.here: dict[int, Expected] = {}
        self.there: dict[int, Expected] = {}
        self.working: dict[int, Attempt] = {}
        self.stale: list[Attempt] = []
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count

    # ---- configs and attempts

    @rule(number=NUMBERS)
    def add(self, number: int) -> None:
        key = self.store.configs.add({"n": number})
        assert self.keys.setdefault(number, key) == key
        self.here.setdefault(number, Expected())

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*self.here]))
        run = self.store.run(self.keys[number])
        if number in self.working:
            with pytest.raises(RunBusyError):
                claim(run, "machine", 60)
            return
        self.begin(number, claim(run, "machine", 60))

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def take_over(self, data: st.DataObject) -> None:
        """Take over from a worker that is only suspended, as if its lease had expired."""
        number = data.draw(st.sampled_from([*self.working]))
        run = self.store.run(self.keys[number])
        self.stale.append(self.working[number])
        self.begin(number, Attempt(run, run.newest() + 1, "machine", 10.0))

    def begin(self, number: int, attempt: Attempt) -> None:
        attempt.start(attempt.run.latest())
        self.working[number] = attempt
        self.here[number].start()

    # ---- work

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def log(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*self.working]))
        event = {"i": self.next()}
        self.working[number].log.append(event)
        self.here[number].events.append(event)

    @precondition(lambda self: self.working)
    @rule(data=st.data(), progress=st.integers(0, 2), keep=st.integers(1, 3))
    def save(self, data: st.DataObject, progress: int, keep: int) -> None:
        number = data.draw(st.sampled_from([*self.working]))
        expected = self.here[number]
        step = max(0, expected.epoch) + progress
        saved = Saved(step, self.next(), len(expected.events), {"epoch": step}, {"loss": self.count})
        self.working[number].save(step, saved.value, saved.status, saved.preview, keep=keep)
        expected.saved = [*expected.saved, saved][-keep:]
        expected.status, expected.preview = saved.status, saved.preview

    @precondition(lambda self: any(self.here[number].saved for number in self.working))
    @rule(data=st.data())
    def publish_preview(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([number for number in self.working if self.here[number].saved]))
        expected = self.here[number]
        expected.preview = expected.saved[-1].preview = {"plot": self.next()}
        self.working[number].publish_preview(expected.preview)

    @precondition(lambda self: self.working)
    @rule(data=st.data(), outcome=st.sampled_from(["finished", "failed", "saved"]))
    def release(self, data: st.DataObject, outcome: str) -> None:
        number = data.draw(st.sampled_from([*self.working]))
        self.working.pop(number).release(outcome)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*self.working]))
        attempt = self.working.pop(number)
        attempt._heartbeat.stop()
        self.stale.append(attempt)

    # ---- suspended workers wake up

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), act=st.sampled_from(["save", "log", "publish", "beat", "release"]))
    def wake(self, data: st.DataObject, act: str) -> None:
        attempt = data.draw(st.sampled_from(self.stale))
        if attempt.run.newest() == attempt.number:
            return  # it crashed and was not replaced, so it cannot wake up
        if attempt.run.head() == attempt.number:
            return  # its successor started from scratch and has no checkpoint yet, so readers still see this attempt
        if act == "save":
            with pytest.raises(LeaseLostError):
                attempt.save(99, "stale", {"epoch": 99}, {"loss": -1})
        elif act == "log":
            attempt.log.append({"i": "stale"})
        elif act == "publish" and attempt.run.own_checkpoints(attempt.number):
            attempt._publish(CheckpointName(attempt.number, 99, 1), {"epoch": 99}, {"loss": -1})
        elif act == "beat":
            attempt._heartbeat.renew()
        elif act == "release":
            attempt.release("finished")
            self.stale.remove(attempt)

    # ---- the whole store

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*self.here]))
        key, expected = self.keys[number], self.here[number]
        if number in self.working:
            with pytest.raises(RunBusyError):
                self.store.pop(key)
            return
        found = self.store.pop(key)
        assert isinstance(found, Records)
        assert found.config.n == number
        assert (found.stats or {"epoch": -1})["epoch"] == max(-1, expected.epoch)
        assert found.ckpt == (expected.saved[-1].value if expected.saved else None)
        assert found.preview == expected.preview
        del self.here[number]
        check(self.store, key, Expected())

    @rule(keep=st.integers(1, 3))
    def prune(self, keep: int) -> None:
        self.store.prune(keep)
        for number, expected in self.here.items():
            if number not in self.working:
                if expected.saved:
                    expected.saved = expected.saved[-keep:]
                else:
                    self.here[number] = Expected()

    @precondition(lambda self: any(expected.saved for expected in self.here.values()))
    @rule(by_tar=st.booleans())
    def send(self, by_tar: bool) -> None:
        self.move(self.store, self.here, self.other, self.there, by_tar)

    @precondition(lambda self: self.there and not self.working)
    @rule(by_tar=st.booleans())
    def send_back(self, by_tar: bool) -> None:
        self.move(self.other, self.there, self.store, self.here, by_tar)

    def move(self, source: Store, sent: dict[int, Expected], target: Store, got: dict[int, Expected], by_tar: bool) -> None:
        if by_tar:
            with tempfile.TemporaryDirectory() as folder:
                source.export_tar(f"{folder}/runs.tar")
                moved = target.load_tar(f"{folder}/runs.tar")
        else:
            moved = source.migrate(target)
        wanted = {
            number for number, expected in sent.items() if expected.saved and (number not in got or got[number].epoch < expected.epoch)
        }
        assert sorted(moved) == sorted(self.keys[number] for number in wanted)
        for number in wanted:
            got[number] = copy.deepcopy(sent[number])

    # ---- invariants

    @invariant()
    def readers_see_what_was_acknowledged(self) -> None:
        for number, expected in self.here.items():
            check(self.store, self.keys[number], expected)
        for number, expected in self.there.items():
            check(self.other, self.keys[number], expected)

    @invariant()
    def the_stores_are_well(self) -> None:
        assert self.store.verify() == []
        assert self.other.verify() == []

    @invariant()
    def each_config_is_there_once(self) -> None:
        assert sorted(self.store.configs) == sorted(self.keys[number] for number in self.here)
        assert {key for key, _ in self.store.index} == set(self.store.configs)

    def teardown(self) -> None:
        for attempt in [*self.working.values(), *self.stale]:
            attempt._heartbeat.stop()
            attempt.log.close()
        if self.folder:
            self.folder.cleanup()


class DiskWorkers(Workers):
    kind = "disk"


@pytest.mark.parametrize(("machine", "examples", "steps"), [(Workers, 25, 40), (DiskWorkers, 5, 20)], ids=["memory", "disk"])
def test_readers_see_one_history_no_matter_what_workers_do(machine: type[Workers], examples: int, steps: int) -> None:
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # no `shrink`: finding the shortest history takes minutes
    )
    run_state_machine_as_test(machine, settings=options)  # type: ignore[no-untyped-call]
