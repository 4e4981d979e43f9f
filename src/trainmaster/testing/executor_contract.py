"""The contract for executors, written as tests that pytest collects from a subclass."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from trainmaster.manager import Manager
from trainmaster.manager.executor import Executor

_EPOCHS = 5
_NOT_A_WORKER = "the executor ran a task in the process of the test, but this contract is for executors with worker processes"


class Countdown(Manager):
    """A manager that multiplies a number by 0.7 in each epoch. The config can make one epoch fail."""

    defaults: Any = {"x": 1.0, "fault": "", "at": 3, "pause": 0.0, "driver": 0}

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["x"] = self.config.x

    def train(self) -> None:
        marker = Path(str(self.store.root)) / f"fault-{self.key}"
        time.sleep(self.config.pause)
        if self.epoch == self.config.at and self.config.fault == "error":
            raise ArithmeticError("the third epoch fails")
        if self.epoch == self.config.at and self.config.fault == "kill" and not marker.exists():
            assert os.getpid() != self.config.driver, _NOT_A_WORKER
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.ckpt["x"] *= 0.7

    def eval(self) -> dict[str, float]:
        return {"loss": self.ckpt["x"], "process": os.getpid()}


class ExecutorContract:
    """Tests for your executor: write `class TestMyExecutor(ExecutorContract)` and override `make`.

    The executor must have two worker processes that can import this module and access the temporary folder of the test. Executors
    without worker processes, such as `InProcess`, fail, because some tests kill a worker.
    """

    def make(self) -> Executor:
        """Create the executor to test."""
        raise NotImplementedError(f"override {type(self).__name__}.make so that it returns the executor to test")

    def test_runs_end_as_in_this_process_and_workers_are_reused(self, tmp_path: Path) -> None:
        configs = [{"x": float(number)} for number in range(1, 7)]
        manager, here = Countdown(tmp_path / "there", verbose=False), Countdown(tmp_path / "here", verbose=False)
        result = manager.batch(configs, _EPOCHS, workers=self.make())
        assert (len(result.done), str(result)) == (6, "6 done"), result.failed
        here.batch(configs, _EPOCHS)
        assert {key: each["loss"] for key, each in manager.previews.items()} == {key: each["loss"] for key, each in here.previews.items()}
        processes = {each["process"] for each in manager.previews.values()}
        assert os.getpid() not in processes, _NOT_A_WORKER
        assert len(processes) <= 2, f"the executor has two workers, but the runs were trained in {len(processes)} processes"

    def test_a_failed_run_is_reported_with_its_error_and_does_not_stop_the_others(self, tmp_path: Path) -> None:
        manager = Countdown(tmp_path, verbose=False)
        result = manager.batch([{"x": 1.0}, {"x": 2.0, "fault": "error"}, {"x": 3.0}], _EPOCHS, max_errors=9, workers=self.make())
        assert len(result.done) == 2
        (error,) = result.failed.values()
        assert "ArithmeticError: the third epoch fails" in error

    def test_the_run_of_a_killed_worker_resumes_in_another_one_without_waiting_for_its_lease(self, tmp_path: Path) -> None:
        manager = Countdown(tmp_path, verbose=False, lease_time=10_000)
        result = manager.batch([{"x": 1.0, "fault": "kill", "driver": os.getpid()}, {"x": 2.0}], _EPOCHS, workers=self.make())
        assert len(result.done) == 2, result.failed
        key = next(key for key, config in manager.configs.items() if config["fault"])
        run = manager.store.run(key)
        assert sorted(run.attempts()) == [1, 2]
        assert manager.previews[key]["loss"] == pytest.approx(0.7**_EPOCHS)

    def test_a_stop_request_saves_all_runs(self, tmp_path: Path) -> None:
        manager = Countdown(tmp_path, verbose=False)
        executor, reports = self.make(), list[Any]()
        executor.open(manager, manager.job_runner.run_task)
        try:
            from trainmaster.manager.executor import Task
            from trainmaster.manager.job import make_job

            jobs = [make_job(manager, {"x": 1.0, "pause": 0.2}, 1000), make_job(manager, {"x": 2.0, "pause": 0.2}, 1000)]
            waiting, deadline = [*jobs], time.monotonic() + 120
            while len({each.key for each in reports if each.kind == "progress"}) < 2:
                assert time.monotonic() < deadline, reports
                if waiting and executor.has_room():
                    executor.submit(Task(waiting.pop(), resume=True))
                reports += executor.reports(0.2)
            executor.stop("enough")
            while sum(each.kind not in ("claimed", "progress") for each in reports) < 2:
                assert time.monotonic() < deadline, reports
                reports += executor.reports(0.2)
        finally:
            executor.close()
        assert {each.key: each.kind for each in reports if each.kind not in ("claimed", "progress")} == dict.fromkeys(
            [job.key for job in jobs], "stopped"
        )
        assert all(manager.stats[job.key]["epoch"] > 0 for job in jobs)
