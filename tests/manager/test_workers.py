"""Batches in worker processes give the same results, and leave no process behind after failures, kills and stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny

from trainmaster import Manager
from trainmaster.errors import SettingError
from trainmaster.manager.executor import InProcess, Report, Task
from trainmaster.manager.job import make_job
from trainmaster.manager.local_workers import LocalWorkers
from trainmaster.store import Store
from trainmaster.store.attempt import request_stop
from trainmaster.testing import ExecutorContract

LRS = (0.1, 0.05, 0.02, 0.01)

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.draw_nothing(monkeypatch.setattr)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Any]:
    with tiny.workshop(tmp_path) as found:
        yield found
        for each in found.processes:
            if each.has_ended:
                tiny.until(lambda each=each: not each.members(), "all workers to end")


def start(shop: Any, plan: dict[str, Any] | None = None, lrs: tuple[float, ...] = LRS, **options: Any) -> Any:
    return shop.start("train_many", plan, store=shop.store, configs=[{"lr": lr} for lr in lrs], workers=2, **options)


def result(process: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(process.out.splitlines()[-1])
    return found


def keys(shop: Any) -> dict[float, str]:
    return {config["lr"]: key for key, config in Store(shop.store).configs.items()}


def outcomes(shop: Any) -> dict[float, str]:
    """Return the outcomes of the runs that were started."""
    begun = {lr: key for lr, key in keys(shop).items() if Store(shop.store).run(key).attempts()}
    return {lr: str(tiny.outcome_of(shop.store, key).get("outcome")) for lr, key in begun.items()}


def log_of(shop: Any, lr: float, attempt: int) -> str:
    store = Store(shop.store)
    path = store.run(keys(shop)[lr]).path(attempt, "log")
    return store.files.read(path).decode() if store.files.has(path) else ""


def assert_whole(shop: Any, kind: str = "Tiny", lrs: tuple[float, ...] = LRS) -> None:
    """Check that every run can be resumed and then gives the undisturbed result."""
    assert Store(shop.store).verify() == []
    manager = tiny.MANAGERS[kind](shop.store, verbose=False)
    for lr in lrs:
        manager.process({"lr": lr})
        assert tiny.result_of(shop.store, keys(shop)[lr]) == tiny.undisturbed(kind, lr=lr)


class TestContract(ExecutorContract):
    def make(self) -> LocalWorkers:
        return LocalWorkers(2)


# ---- results


def test_workers_give_the_same_results_are_reused_and_have_the_extensions(shop: Any) -> None:
    process = start(shop, is_damped=True)
    assert process.wait() == 0, process.err
    found, by_lr = result(process), keys(shop)
    assert sorted(found["done"]) == sorted(by_lr.values())
    assert "[4/4] done " in process.out
    pids = {Store(shop.store).run(key).claim_of(1)["owner"]["pid"] for key in by_lr.values()}
    assert len(pids) <= 2, "a worker for each run"
    assert process.pid not in pids
    here = tiny.Tiny(shop.folder / "here", verbose=False)
    here.extensions = [tiny.Damping()]
    here.batch([{"lr": lr} for lr in LRS])
    for key in by_lr.values():
        assert tiny.result_of(shop.store, key) == tiny.result_of(shop.folder / "here", key)
    assert process.err == ""


@pytest.mark.smoke
def test_the_output_of_a_run_in_a_worker_is_in_its_log(shop: Any) -> None:
    plan = {"at": "train", "nth": 0, "do": "print", "text": "from the user's code", "if": {"lr": 0.05}}
    process = start(shop, plan, kind="Plain", lrs=(0.05,))
    assert process.wait() == 0, process.err
    assert (log_of(shop, 0.05, 1).count("from the user's code"), process.out.count("from the user's code")) == (3, 0)


# ---- errors


def test_the_first_error_is_raised_with_its_text_and_the_other_runs_are_saved(shop: Any) -> None:
    plan = {"at": "train", "nth": 2, "do": "raise", "text": "the user's own words", "if": {"lr": 0.05}}
    process = start(shop, plan, kind="Plain", max_errors=0)
    assert process.wait() == 1
    key = keys(shop)[0.05]
    assert f"RunFailedError: run {key} failed in a worker" in process.err
    assert "RuntimeError: the user's own words" in process.err
    found = outcomes(shop)
    assert found.pop(0.05) == "failed"
    assert set(found.values()) <= {"stopped", "finished"}
    assert_whole(shop, "Plain")


def test_with_max_errors_the_other_runs_continue_up_to_count_even_from_a_generator(shop: Any) -> None:
    plan = {"at": "train", "nth": 2, "do": "raise", "text": "the user's own words", "if": {"lr": 0.05}}
    process = start(shop, plan, kind="Plain", max_errors=3, count=3, is_generated=True)
    assert process.wait() == 0, process.err
    ((key, text),) = result(process)["failed"].items()
    assert (key, text.partition("\n")[0]) == (keys(shop)[0.05], "RuntimeError: the user's own words")
    assert sorted(result(process)["done"]) == sorted(keys(shop)[lr] for lr in (0.1, 0.02))
    assert 0.01 not in keys(shop)
    assert "Traceback" not in process.out + process.err


def test_the_batch_gives_up_on_a_run_that_always_ends_its_worker_and_trains_the_others(shop: Any) -> None:
    plan = {"at": "setup", "do": "exit", "code": 7, "if": {"lr": 0.05}}
    process = start(shop, plan, kind="Plain", lrs=(0.05, 0.1), max_errors=3, max_attempts=2)
    assert process.wait(40.0) == 0, process.err
    found = result(process)
    assert found["done"] == [keys(shop)[0.1]]
    assert list({**found["failed"], **found["given_up"]}) == [keys(shop)[0.05]]


# ---- workers that end


def test_a_killed_worker_is_replaced_and_a_single_run_can_be_stopped(shop: Any) -> None:
    plan = {"at": "train", "nth": 1, "do": "wait", "if": {"lr": 0.05}}
    process = start(shop, plan, kind="Plain")
    worker = process.until_at()
    os.kill(worker, signal.SIGKILL)
    (process.folder / "at").unlink()
    assert process.until_at() != worker
    assert f"run {keys(shop)[0.05]}: its worker was killed by SIGKILL; another worker resumes it" in process.out
    tiny.until(lambda: len(Store(shop.store).run(keys(shop)[0.05]).attempts()) == 2, "the second attempt")
    request_stop(Store(shop.store).run(keys(shop)[0.05]))
    tiny.until(lambda: "somebody asked this run to stop" in log_of(shop, 0.05, 2), "the worker to receive the request")
    tiny.until(lambda: sum(each == "finished" for each in outcomes(shop).values()) == 3, "the others to be trained meanwhile")
    process.go_on()
    assert process.wait() == 0, process.err
    found = result(process)
    assert found["stopped"] == {keys(shop)[0.05]: "somebody asked this run to stop"}
    assert len(found["done"]) == 3
    assert_whole(shop, "Plain")


def test_ctrl_c_saves_the_runs_of_all_workers_no_matter_how_long_it_takes(shop: Any) -> None:
    """Only the driver's grace period is short here; the workers' is not."""
    plan = {"at": "save_ckpt", "nth": 2, "do": "wait", "if": {"lr": 0.05}}
    process = start(shop, plan, kind="Plain", grace=0.5)
    process.until_at()
    os.killpg(process.pid, signal.SIGINT)
    process.until_said("Ctrl-C: finishing the step and saving")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2.0)
    process.go_on()
    assert process.wait() == 130
    assert "Traceback" not in process.err
    assert any(line.startswith("batch: ") and "stopped" in line for line in process.out.splitlines())
    assert set(outcomes(shop).values()) <= {"stopped", "finished"}
    assert_whole(shop, "Plain")


def test_ctrl_c_while_workers_start_prints_no_traceback(shop: Any) -> None:
    process = start(shop, kind="Plain")

    def are_importing() -> bool:
        return sum(pid != process.pid and has_mapped(pid, "libtorch") for pid in process.members()) == 2 or process.has_ended

    tiny.until(are_importing, "both workers to import torch", pause=0.001)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert process.err.splitlines() == ["Ctrl-C: finishing the step and saving; Ctrl-C again stops at once"]
    assert_whole(shop, "Plain")


def has_mapped(pid: int, name: str) -> bool:
    try:
        return name in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def test_workers_save_and_exit_when_their_driver_is_killed(shop: Any) -> None:
    plan = {"at": "train", "nth": 2, "do": "wait", "if": {"lr": 0.1}}
    process = start(shop, plan, kind="Plain", lrs=(0.1,))
    process.until_at()
    process.signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    tiny.until(lambda: "the process that started this worker is gone" in log_of(shop, 0.1, 1), "the worker to notice")
    process.go_on()
    tiny.until(lambda: not process.members(), "the workers to end")
    found = tiny.outcome_of(shop.store)
    assert (found["outcome"], found["reason"]) == ("stopped", "the process that started this worker is gone")
    assert_whole(shop, "Plain", lrs=(0.1,))


# ---- refused input


@pytest.mark.parametrize("workers", [True, -1, 1.5, "2"])
@pytest.mark.smoke
def test_an_invalid_number_of_workers_is_refused(tmp_path: Path, workers: Any) -> None:
    with pytest.raises(SettingError, match="`workers` must be a whole number"):
        tiny.Plain(tmp_path, verbose=False).batch([{}], workers=workers)


def test_workers_need_a_store_on_disk() -> None:
    with pytest.raises(SettingError, match="workers need a store on a disk"):
        tiny.Plain(verbose=False).batch([{}], workers=2)


class Called(Manager):
    """A manager with an argument that cannot be sent to another process."""

    def __init__(self, store_dir: Any, call: Callable[[], Any]) -> None:
        super().__init__(store_dir, verbose=False)


@pytest.mark.smoke
def test_arguments_that_cannot_be_pickled_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Called cannot be built in a worker") as caught:
        Called(tmp_path, lambda: None).batch([{}], workers=2)
    assert "without lambdas" in str(caught.value)
    assert not list(tmp_path.glob("stats/*/*"))


_PROGRAM = """
import multiprocessing, os, sys
from trainmaster import Manager

class Halving(Manager):
    def init_ckpt(self):
        super().init_ckpt()
        self.ckpt["x"] = 1.0

    def train(self):
        self.ckpt["x"] /= 2

    def eval(self):
        return {"loss_test": self.ckpt["x"]}
"""
_CALL = "Halving(sys.argv[1]).batch([{'x': x} for x in range(4)], 1, workers=2)\n"


def run_program(folder: Path, text: str, way: str = "a file") -> subprocess.CompletedProcess[str]:
    """Run a user program, and wait until it and all its children have ended."""
    program = folder / "program.py"
    program.write_text(text)
    words = {"a file": [str(program)], "a pipe": ["-"], "-c": ["-c", text]}[way]
    return subprocess.run(
        [sys.executable, *words, str(folder / "store")],
        input=text if way == "a pipe" else None,
        capture_output=True,
        text=True,
        timeout=tiny.PATIENCE,
        check=False,
        start_new_session=True,
    )


@pytest.mark.parametrize("way", ["a pipe", "-c"])
def test_a_class_that_was_defined_at_a_prompt_is_refused(tmp_path: Path, way: str) -> None:
    found = run_program(tmp_path, _PROGRAM + _CALL, way)
    assert found.returncode == 1
    assert "SettingError: workers cannot import Halving, which was defined in a notebook or at a prompt" in found.stderr
    assert "define it in a file" in found.stderr


def test_a_program_without_a_main_guard_gets_one_clear_message(tmp_path: Path) -> None:
    found = run_program(tmp_path, _PROGRAM + _CALL)
    assert found.returncode == 1
    assert found.stderr.count("Error: ") == 1, found.stderr
    assert 'put the code that starts the batch below `if __name__ == "__main__":`' in found.stderr
    assert not list((tmp_path / "store").glob("stats/*/*"))


def test_workers_that_die_before_they_start_a_run_end_the_batch(tmp_path: Path) -> None:
    text = 'if __name__ == "__mp_main__":\n    import os\n    os._exit(3)\n'
    found = run_program(tmp_path, text + _PROGRAM + 'if __name__ == "__main__":\n    ' + _CALL)
    assert found.returncode == 1
    assert "RunFailedError: workers exit before they start a run" in found.stderr
    assert "its worker failed with exit code 3; see its output above" in found.stderr
    assert "given up" not in found.stdout
    assert "gives up" not in found.stdout


_DIE_TWICE = """
if __name__ == "__mp_main__":
    import os, sys
    deaths = os.path.join(os.path.dirname(__file__), "deaths")
    if not os.path.exists(deaths) or os.path.getsize(deaths) < 2:
        with open(deaths, "a") as file:
            file.write(".")
        os._exit(3)
"""


def test_a_worker_that_dies_before_it_is_ready_does_not_count_against_its_run(tmp_path: Path) -> None:
    call = "print(Halving(sys.argv[1]).batch([{'x': 1}], 1, workers=1, max_attempts=1))\n"
    found = run_program(tmp_path, _DIE_TWICE + _PROGRAM + 'if __name__ == "__main__":\n    ' + call)
    assert (tmp_path / "deaths").read_text() == ".."
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines()[-1] == "1 done"
    assert found.stdout.count("its worker failed with exit code 3; another worker resumes it") == 2


class TestInProcessIsRefused(ExecutorContract):
    """The contract is for executors with worker processes. It says so, and does not kill the process of the test."""

    def make(self) -> InProcess:
        return InProcess()

    def test_runs_end_as_in_this_process_and_workers_are_reused(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match="ran a task in the process of the test"):
            super().test_runs_end_as_in_this_process_and_workers_are_reused(tmp_path)

    def test_the_run_of_a_killed_worker_resumes_in_another_one_without_waiting_for_its_lease(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match="ran a task in the process of the test"):
            super().test_the_run_of_a_killed_worker_resumes_in_another_one_without_waiting_for_its_lease(tmp_path)

    def test_a_stop_request_saves_all_runs(self, tmp_path: Path) -> None:
        pytest.skip("only one task at a time")


def test_a_manager_refuses_a_second_task_from_another_thread(tmp_path: Path) -> None:
    reports: list[Report] = []

    class Asks(Manager):
        def train(self) -> None:
            other = threading.Thread(
                target=lambda: reports.append(self.job_runner.run_task(Task(make_job(self, {"x": 2}, 1), resume=True)))
            )
            other.start()
            other.join()

        def eval(self) -> dict[str, float]:
            return {"loss": 1.0}

    manager = Asks(tmp_path, {"x": 1}, verbose=False)
    assert manager.batch([{"x": 1}], 1).done
    (report,) = reports
    assert (report.kind, "already running a task" in report.text) == ("failed", True)
    assert not manager.store.run(report.key).attempts()
