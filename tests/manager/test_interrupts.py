"""Real processes stop on Ctrl-C, SIGTERM, SIGUSR1 and stop requests in every stage (C09 to C11, L15, X03, X04, R03)."""

from __future__ import annotations

import faulthandler
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny

from trainmaster import Extension
from trainmaster.manager.interrupts import Interrupts
from trainmaster.store import Store
from trainmaster.store.attempt import Attempt, request_stop
from trainmaster.store.lease import Hold, holder_of
from trainmaster.store.summary import summarize

INT, TERM, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1
NAMES = {INT: "Ctrl-C", TERM: "SIGTERM", USR1: "SIGUSR1"}
CODES = {INT: 130, TERM: 143, USR1: 138}

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.draw_nothing(monkeypatch.setattr)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Any]:
    with tiny.workshop(tmp_path) as found:
        yield found


def key_of(store: str) -> str:
    return next(iter(Store(store).configs.keys()))


def is_free(store: str) -> bool:
    return holder_of(Store(store).run(key_of(store))).hold is Hold.FREE


def assert_goes_on(shop: Any, kind: str = "Tiny", **config: Any) -> None:
    """Check that the store is valid, no process holds the run, and the next start gives the undisturbed result."""
    assert shop.damage() == []
    assert is_free(shop.store)
    tiny.MANAGERS[kind](shop.store, verbose=False).process(config)
    assert tiny.result_of(shop.store) == tiny.undisturbed(kind, **config)


def interrupted(shop: Any, process: Any, number: int) -> int:
    """Send a signal to a process that waits at the point in its plan.

    Check that the process prints a message, and return its exit code.
    """
    process.until_at()
    process.signal(number)
    process.until_said(f"{NAMES[signal.Signals(number)]}: finishing the step and saving")
    assert not process.has_ended
    process.go_on()
    code: int = process.wait()
    assert "Traceback" not in process.err + process.out
    return code


# ---- in every stage


EARLY = ["pre_work_setup", "make_loop", "post_work_setup", "pre_work_init", "pre_work_train"]
MIDDLE = [
    ("pre_run", 1),
    ("pre_train", 1),
    ("pre_eval", 1),
    ("eval forward", 1),
    ("post_eval", 1),
    ("pre_train_step_epoch", 1),
    ("dataset", 2),
    ("pre_train_step_batch", 2),
    pytest.param("forward", 4, marks=pytest.mark.smoke),
    ("pre_backward", 6),
    ("post_optimizer_step", 3),
    ("post_train_step_batch", 8),
    ("post_train_step_epoch", 1),
    pytest.param("save", 1, marks=pytest.mark.smoke),
    ("pre_eval_step_batch", 3),
    ("eval forward", 4),
]
LATE = ["post_train", "post_work_train", "post_work"]


@pytest.mark.parametrize(("point", "nth"), MIDDLE)
def test_a_signal_in_any_stage_saves_the_run_and_the_next_start_resumes_it(shop: Any, point: str, nth: int) -> None:
    number = TERM if nth % 2 else INT
    process = shop.train({"at": point, "nth": nth, "do": "wait"})
    assert interrupted(shop, process, number) == CODES[number]
    assert tiny.outcome_of(shop.store)["outcome"] == "interrupted"
    assert tiny.outcome_of(shop.store)["reason"] == NAMES[number]
    assert f"run {key_of(shop.store)} is saved" in process.out
    assert "resume it with: " in process.out
    assert_goes_on(shop)


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.smoke
def test_sigusr1_saves_the_run_like_sigterm(shop: Any, is_batch: bool) -> None:
    plan = {"at": "forward", "nth": 6, "do": "wait"}
    process = shop.start("train_many", plan, store=shop.store, configs=[{}]) if is_batch else shop.train(plan)
    assert interrupted(shop, process, USR1) == 138
    assert tiny.outcome_of(shop.store)["outcome"] == "interrupted"
    assert tiny.outcome_of(shop.store)["reason"] == "SIGUSR1"
    assert_goes_on(shop)


@pytest.mark.smoke
def test_a_program_that_handles_sigusr1_itself_keeps_its_handler(tmp_path: Path) -> None:
    before, got = signal.getsignal(USR1), list[int]()
    try:
        signal.signal(USR1, lambda number, _: got.append(number))
        with Interrupts(print) as interrupts:
            os.kill(os.getpid(), USR1)
            assert (got, interrupts.signal) == ([USR1], None)
        signal.signal(USR1, signal.SIG_DFL)
        with open(tmp_path / "stack", "w+") as file:
            faulthandler.register(USR1, file)
            with Interrupts(print) as interrupts:
                os.kill(os.getpid(), USR1)
            os.kill(os.getpid(), USR1)  # without the handler, the signal would end this process
            faulthandler.unregister(USR1)
            assert (tmp_path / "stack").read_text().count("test_a_program_that_handles") == 2
            assert interrupts.signal is None
    finally:
        signal.signal(USR1, before)


@pytest.mark.parametrize("point", EARLY)
def test_a_signal_before_the_first_step_trains_nothing(shop: Any, point: str) -> None:
    number = TERM if EARLY.index(point) % 2 else INT
    process = shop.train({"at": point, "do": "wait"})
    assert interrupted(shop, process, number) == CODES[number]
    assert shop.outcome() == "interrupted"
    assert (Store(shop.store).stats[key_of(shop.store)]["epoch"], "epoch 1 of" in process.out) == (0, False)
    assert_goes_on(shop)


@pytest.mark.parametrize("point", LATE)
@pytest.mark.smoke
def test_a_signal_after_the_last_step_leaves_a_finished_run(shop: Any, point: str) -> None:
    number = TERM if LATE.index(point) % 2 else INT
    process = shop.train({"at": point, "do": "wait"})
    assert interrupted(shop, process, number) == CODES[number]
    assert shop.outcome() == "finished"
    assert_goes_on(shop)


KILL = {"do": "signal", "signal": signal.SIGKILL}


def state_of(shop: Any) -> tuple[str, int | None, int]:
    found = summarize(Store(shop.store), key_of(shop.store))
    return found.state, found.epoch, found.num_attempts


@pytest.mark.parametrize("kind", ["Tiny", "Plain"])
@pytest.mark.parametrize("call", ["process", "batch"])
@pytest.mark.smoke
def test_a_finished_run_that_was_killed_before_its_outcome_was_recorded_is_recorded_as_finished(shop: Any, kind: str, call: str) -> None:
    process = shop.train({"at": "post_work", **KILL}, kind=kind)
    assert process.wait() == -signal.SIGKILL
    assert state_of(shop) == ("killed", 3, 1)
    manager = tiny.MANAGERS[kind](shop.store, verbose=False)
    _ = manager.process({}) if call == "process" else manager.batch([{}])
    assert state_of(shop) == ("finished", 3, 1)
    assert tiny.result_of(shop.store) == tiny.undisturbed(kind)
    assert shop.damage() == []


def test_an_unfinished_run_is_not_recorded_as_finished_by_a_smaller_target(shop: Any) -> None:
    process = shop.train({"at": "save_ckpt", "nth": 4, **KILL}, kind="Plain")
    assert process.wait() == -signal.SIGKILL
    tiny.Plain(shop.store, verbose=False).process({}, num_epochs=1)
    assert state_of(shop) == ("killed", 2, 1)
    assert_goes_on(shop, "Plain")
    assert state_of(shop) == ("finished", 3, 2)


@pytest.mark.parametrize(("point", "nth", "epoch"), [("setup", 1, 0), ("train", 2, 2), ("eval", 2, 1), ("save_ckpt", 2, 1)])
def test_user_written_epochs_finish_the_epoch_and_save_it(shop: Any, point: str, nth: int, epoch: int) -> None:
    process = shop.train({"at": point, "nth": nth, "do": "wait"}, kind="Plain")
    assert interrupted(shop, process, TERM) == 143
    assert (shop.outcome(), Store(shop.store).stats[key_of(shop.store)]["epoch"]) == ("interrupted", epoch)
    assert_goes_on(shop, "Plain")


@pytest.mark.parametrize("point", ["loader worker", "forward"])
def test_ctrl_c_in_a_terminal_also_reaches_loader_workers_which_print_nothing(shop: Any, point: str) -> None:
    process = shop.train({"at": point, "do": "wait"}, loaders=2)
    process.until_at()
    os.killpg(process.pid, INT)
    process.until_said("Ctrl-C: finishing")
    process.go_on()
    assert process.wait() == 130
    assert process.err.splitlines() == ["Ctrl-C: finishing the step and saving; Ctrl-C again stops at once"]
    tiny.until(lambda: not process.members(), "the loader's workers to end")
    assert shop.outcome() == "interrupted"
    assert_goes_on(shop, loaders=2)


def test_a_user_program_exits_with_the_code_of_ctrl_c_and_prints_how_to_resume(shop: Any) -> None:
    """This test starts a real interpreter instead of forking the warm one."""
    program = shop.folder / "my training.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(tiny.__file__).parent)!r})\nimport tiny_training\n"
        f"tiny_training.Plain({shop.store!r}).process()\n"
    )
    plan = {"at": "train", "nth": 2, "do": "wait", "folder": str(shop.folder)}
    command, said = [sys.executable, str(program)], shop.folder / "said"
    with said.open("wb") as file:
        real = subprocess.Popen(command, env={**os.environ, tiny.PLAN: json.dumps(plan)}, stdout=file, stderr=file)
    try:
        tiny.until(lambda: (shop.folder / "at").exists() or real.poll() is not None, "the point")
        real.send_signal(INT)
        tiny.until(lambda: "Ctrl-C: finishing" in said.read_text(), "the word")
        (shop.folder / "go").touch()
        assert real.wait(tiny.PATIENCE) == -INT, said.read_text()  # a shell reports this as 130
    finally:
        real.kill()
        real.wait()
    resume = next(line for line in said.read_text().splitlines() if line.startswith("resume it with: "))
    assert shlex.split(resume.removeprefix("resume it with: ")) == command
    assert_goes_on(shop, "Plain")


# ---- code that does not return


@pytest.mark.parametrize(("deed", "number"), [("sleep", TERM), ("lock", INT)])
def test_the_process_exits_if_a_hook_never_returns_and_keeps_the_last_checkpoint(shop: Any, deed: str, number: int) -> None:
    process = shop.train({"at": "forward", "nth": 6, "do": deed}, grace=1.0)
    process.until_at()
    process.signal(number)
    assert process.wait() == CODES[number]
    assert "the current step did not return within 1 s, so the process exits" in process.err
    assert f"the last checkpoint of run {key_of(shop.store)} is kept" in process.err
    assert "resume it with: " in process.err
    assert shop.outcome() == "interrupted"
    assert Store(shop.store).stats[key_of(shop.store)]["epoch"] == 1
    assert_goes_on(shop)


def test_a_hook_that_never_returns_receives_the_request_to_stop(shop: Any) -> None:
    process = shop.train({"at": "forward", "nth": 6, "do": "lock"}, grace=1.0)
    process.until_at()
    request_stop(Store(shop.store).run(key_of(shop.store)))
    assert process.wait() == 1
    assert "somebody asked this run to stop; the current step did not return within 1 s" in process.err
    assert_goes_on(shop)


def test_loader_workers_end_when_the_process_exits_because_of_a_hook(shop: Any) -> None:
    process = shop.train({"at": "forward", "nth": 2, "do": "sleep"}, grace=0.5, loaders=2)
    process.until_at()
    assert len(process.members()) == 3
    process.signal(TERM)
    assert process.wait() == 143
    tiny.until(lambda: not process.members(), "the loader's workers to end")


@pytest.mark.parametrize(("kind", "nth"), [("Tiny", 1), ("Plain", 1), ("Plain", 2)])  # the second save of a loop is its last
def test_a_save_may_take_longer_than_the_deadline(shop: Any, kind: str, nth: int) -> None:
    process = shop.train({"at": "save", "nth": nth, "do": "wait"}, grace=0.1, kind=kind)
    process.until_at()
    process.signal(TERM)
    process.until_said("SIGTERM: finishing")
    with pytest.raises(subprocess.TimeoutExpired):  # five times the grace period
        process.wait(0.5)
    process.go_on()
    assert process.wait() == 143
    assert "given up" not in process.err
    assert "gives up" not in process.err
    assert shop.outcome() == "interrupted"
    assert_goes_on(shop, kind)


@pytest.mark.parametrize("point", ["forward", "save"])
@pytest.mark.smoke
def test_a_second_ctrl_c_ends_the_process_at_once_without_damage(shop: Any, point: str) -> None:
    process = shop.train({"at": point, "nth": 2, "do": "sleep"})
    process.until_at()
    process.signal(INT)
    process.until_said("Ctrl-C: finishing")
    process.signal(INT)
    assert process.wait() == 130
    assert "given up" not in process.err
    assert "gives up" not in process.err
    assert_goes_on(shop)


def test_a_second_sigterm_has_no_effect_and_ctrl_c_after_it_ends_the_process_at_once(shop: Any) -> None:
    process = shop.train({"at": "forward", "nth": 2, "do": "wait"})
    process.until_at()
    for _ in range(3):
        process.signal(TERM)
        process.until_said("SIGTERM: finishing")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    assert process.err.count("SIGTERM") == 1
    process.signal(INT)
    assert process.wait() == 130
    assert_goes_on(shop)


def test_ctrl_c_ends_the_wait_for_a_lease_of_another_machine(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster.store import process_identity

    store = Store(shop.store)
    key = store.configs.add(tiny.Tiny(None, verbose=False).get_config())
    with monkeypatch.context() as patch:
        patch.setattr(process_identity, "_boot", lambda: "another machine")
        process_identity._this.cache_clear()
        attempt = Attempt(store.run(key), 1, "process", 1000.0)
    process_identity._this.cache_clear()
    try:
        process = shop.train()
        tiny.until(lambda: "watching its lease" in process.out, "the lease to be watched")
        process.signal(INT)
        assert process.wait() == 130
    finally:
        attempt.release("failed")


def test_a_process_that_ignores_ctrl_c_keeps_ignoring_it(shop: Any) -> None:
    """A shell makes the background commands of a script (`command &`) ignore Ctrl-C."""
    process = shop.start("train_deaf", {"at": "forward", "nth": 2, "do": "wait"}, store=shop.store)
    process.until_at()
    process.signal(INT)  # the kernel discards the signal immediately
    process.go_on()
    assert process.wait() == 0
    assert (process.err, shop.outcome()) == ("", "finished")


# ---- other ways to end


def test_a_killed_loader_worker_raises_an_error_and_the_run_is_released(shop: Any) -> None:
    process = shop.train({"at": "loader worker", "do": "wait"}, loaders=2)
    worker = process.until_at()
    assert worker != process.pid
    os.kill(worker, signal.SIGKILL)
    process.go_on()
    assert process.wait() == 1
    found = tiny.outcome_of(shop.store)
    assert found["outcome"] == "failed"
    assert found["error"].startswith("RuntimeError: DataLoader worker (pid")  # torch has two messages for it
    assert str(worker) in found["error"]
    tiny.until(lambda: not process.members(), "the other worker to end")
    assert_goes_on(shop, loaders=2)


@pytest.mark.parametrize(
    ("plan", "code", "outcome"),
    [
        ({"do": "exit", "code": 7}, 7, "failed"),
        ({"do": "leave", "code": 9}, 9, "None"),
        ({"do": "segfault"}, -signal.SIGSEGV, "None"),
        ({"do": "raise", "text": "no more"}, 1, "failed"),
    ],
    ids=["sys.exit", "os._exit", "a segmentation fault", "an error"],
)
def test_a_hook_that_exits_the_process_keeps_its_exit_code(shop: Any, plan: dict[str, Any], code: int, outcome: str) -> None:
    process = shop.train({"at": "post_optimizer_step", "nth": 6, **plan})
    assert process.wait() == code
    assert shop.outcome() == outcome
    assert_goes_on(shop)


@pytest.mark.parametrize("how", ["leaves", "raises"])
@pytest.mark.smoke
def test_a_child_that_a_hook_forks_does_not_take_part_in_training(shop: Any, how: str) -> None:
    process = shop.train({"at": "forward", "nth": 2, "do": "fork", "how": how})
    process.until_at()
    told = json.loads((process.folder / "told").read_text())
    assert (told["wakeup"], told["active"]) == (-1, 0)
    assert (told["int"], told["term"], told["usr1"]) == (str(signal.SIG_IGN), str(signal.SIG_DFL), str(signal.SIG_IGN))
    assert (process.folder / "child").read_text() == ("0" if how == "leaves" else "3"), process.err
    assert tiny.outcome_of(shop.store) == {}, "the child has released the lease of its parent"
    assert not is_free(shop.store)
    assert "Error" not in process.err
    process.signal(TERM)  # the parent still receives signals
    process.until_said("SIGTERM: finishing")
    process.go_on()
    assert process.wait() == 143
    assert process.out.count("resume it with") == 1
    assert_goes_on(shop)


ENDS = {"leaves": "0", "raises": "3", "fails": "1", "goes on": "1"}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.smoke
def test_a_child_that_is_forked_during_a_save_exits_at_once_and_changes_nothing(shop: Any, how: str) -> None:  # L15
    process = shop.train({"at": "pre_train_step_batch", "nth": 5, "do": "fork", "how": how, "in_save": True})  # the first batch of epoch 2
    process.until_at()
    assert (process.folder / "child").read_text() == ENDS[how], process.err
    assert tiny.outcome_of(shop.store) == {}
    assert not is_free(shop.store)
    assert ("RuntimeError: of the child" in process.err) == (how == "fails")
    assert ("was forked from a training process, and cannot save checkpoints" in process.err) == (how == "goes on")
    process.go_on()
    assert process.wait() == 0, process.err
    assert (shop.outcome(), len(Store(shop.store).run(key_of(shop.store)).attempts())) == ("finished", 1)
    assert tiny.result_of(shop.store) == tiny.undisturbed()
    assert shop.damage() == []


@pytest.mark.parametrize("how", ["raises", "fails"])
@pytest.mark.parametrize("point", ["make_loop", "forward", "eval forward", "dataset", "post_train_step_epoch", "post_train", "post_work"])
def test_a_failing_child_that_is_forked_anywhere_does_not_end_training(shop: Any, point: str, how: str) -> None:  # L15
    process = shop.train({"at": point, "do": "fork", "how": how})
    process.until_at()
    assert (process.folder / "child").read_text() == ENDS[how], process.err
    assert tiny.outcome_of(shop.store) == {}
    process.go_on()
    assert process.wait() == 0, process.err
    assert "of the child" not in Store(shop.store).files.read(Store(shop.store).run(key_of(shop.store)).path(1, "log")).decode()
    assert tiny.result_of(shop.store) == tiny.undisturbed()


@pytest.mark.parametrize("how", ["raises", "fails"])
def test_a_failing_child_does_not_take_batches_or_loaders_from_its_parent(shop: Any, how: str) -> None:  # L15
    process = shop.train({"at": "forward", "nth": 2, "do": "fork", "how": how}, loaders=2)
    process.until_at()
    assert (process.folder / "child").read_text() == ENDS[how], process.err
    process.go_on()
    assert process.wait() == 0, process.err
    assert tiny.result_of(shop.store) == tiny.undisturbed(loaders=2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failing_child_does_not_continue_with_the_batch(shop: Any, workers: int) -> None:  # L15
    plan = {"at": "train", "do": "fork", "how": "fails"}
    configs = [{"lr": lr} for lr in (0.1, 0.2, 0.3)]
    process = shop.start("train_many", plan, store=shop.store, configs=configs, kind="Plain", workers=workers, max_errors=5)
    process.until_at()
    assert (process.folder / "child").read_text() == "1", process.err
    store = Store(shop.store)
    assert sum(len(store.run(key).attempts()) for key in store.configs) == 1, "the child continues the training"
    process.go_on()
    assert process.wait() == 0, process.err
    assert len(json.loads(process.out.splitlines()[-1])["done"]) == 3


def test_two_hundred_runs_leave_no_threads_files_or_handlers_behind(shop: Any) -> None:
    process = shop.start("train_often", store=shop.store, num=200)
    assert process.wait() == 0, process.err
    told = json.loads(process.out.splitlines()[-1])
    assert told["after"]["threads"] == told["before"]["threads"]
    assert told["thread"]["threads"] == told["before"]["threads"]
    assert told["after"]["handlers"] == told["before"]["handlers"]
    assert told["wakeup"] == [-1, -1]
    assert told["after"]["fds"] <= told["first"]["fds"]
    assert told["epoch"] == 3, "a run outside the main thread"


def test_a_manager_that_trains_in_a_hook_of_another_manager_is_saved_too(shop: Any) -> None:
    process = shop.start("train_nested", {"at": "forward", "nth": 6, "do": "wait"}, store=shop.store)
    assert interrupted(shop, process, TERM) == 143
    store = Store(shop.store)
    outcomes = {len(config): tiny.outcome_of(shop.store, key)["outcome"] for key, config in store.configs.items()}
    assert set(outcomes.values()) == {"interrupted"}
    again = shop.start("train_nested", store=shop.store)
    assert again.wait() == 0, again.err
    inner = next(key for key, config in store.configs.items() if "loaders" in config)
    outer = next(key for key, config in store.configs.items() if "loaders" not in config)
    assert tiny.result_of(shop.store, inner) == tiny.undisturbed(lr=0.05)
    assert tiny.outcome_of(shop.store, outer)["outcome"] == "finished"


# ---- requests to stop


@pytest.mark.smoke
def test_a_run_that_is_asked_to_stop_is_saved_and_can_be_resumed(shop: Any) -> None:
    process = shop.train({"at": "forward", "nth": 6, "do": "wait"})
    process.until_at()
    owner = request_stop(Store(shop.store).run(key_of(shop.store)))
    assert owner is not None
    assert owner.pid == process.pid
    process.until_said("somebody asked this run to stop: finishing the step and saving")
    process.go_on()
    assert process.wait() == 0
    assert tiny.outcome_of(shop.store)["outcome"] == "stopped"
    assert tiny.outcome_of(shop.store)["reason"] == "somebody asked this run to stop"
    assert "resume it with: " in process.out
    assert_goes_on(shop)


def _configs() -> list[dict[str, Any]]:
    return [{"lr": lr, "epochs": 2} for lr in (0.1, 0.2, 0.3)]


def _keys(shop: Any) -> dict[float, str]:
    return {config["lr"]: key for key, config in Store(shop.store).configs.items()}


def test_the_other_runs_of_a_batch_continue_when_one_is_asked_to_stop(shop: Any) -> None:
    plan = {"at": "post_train_step_batch", "do": "wait", "if": {"lr": 0.2}}
    process = shop.start("train_many", plan, store=shop.store, configs=_configs())
    process.until_at()
    key = _keys(shop)[0.2]
    request_stop(Store(shop.store).run(key))
    process.until_said("somebody asked this run to stop")
    process.go_on()
    assert process.wait() == 0, process.err
    result = json.loads(process.out.splitlines()[-1])
    assert result["stopped"] == {key: "somebody asked this run to stop"}
    assert sorted(result["done"]) == sorted(_keys(shop)[lr] for lr in (0.1, 0.3))


def test_the_other_runs_of_a_batch_continue_when_one_fails_after_a_request_to_stop(shop: Any) -> None:
    plan = {"at": "post_train_step_batch", "do": "wait then raise", "if": {"lr": 0.2}}
    process = shop.start("train_many", plan, store=shop.store, configs=_configs(), max_errors=5)
    process.until_at()
    key = _keys(shop)[0.2]
    request_stop(Store(shop.store).run(key))
    process.until_said("somebody asked this run to stop")
    process.go_on()
    assert process.wait() == 0, process.err
    result = json.loads(process.out.splitlines()[-1])
    assert list(result["failed"]) == [key]
    assert sorted(result["done"]) == sorted(_keys(shop)[lr] for lr in (0.1, 0.3))


def test_the_other_runs_of_a_batch_continue_when_one_loses_its_lease(shop: Any) -> None:
    plan = {"at": "post_train_step_batch", "do": "wait", "if": {"lr": 0.1}}
    process = shop.start("train_many", plan, store=shop.store, configs=_configs(), lease_time=3.0)
    process.until_at()
    run = Store(shop.store).run(_keys(shop)[0.1])
    successor = Attempt(run, run.newest() + 1, "process", 1.0)
    process.until_said("the lease of this run was lost", 10.0)
    process.go_on()
    tiny.until(lambda: len(_keys(shop)) == 3 or process.has_ended, "the next run to begin")
    successor.release("interrupted")
    assert process.wait() == 0, process.err
    result = json.loads(process.out.splitlines()[-1])
    assert (len(result["done"]), result["left"]) == (3, [])


def test_ctrl_c_in_a_batch_saves_the_current_run_and_starts_no_other(shop: Any) -> None:
    plan = {"at": "post_train_step_batch", "do": "wait", "if": {"lr": 0.2}}
    process = shop.start("train_many", plan, store=shop.store, configs=_configs())
    assert interrupted(shop, process, INT) == 130
    keys = _keys(shop)
    assert tiny.outcome_of(shop.store, keys[0.2])["outcome"] == "interrupted"
    assert sum(key in process.out for key in keys.values()) == 2, "the run of 0.3 was started"
    again = shop.start("train_many", store=shop.store, configs=_configs())
    assert again.wait() == 0
    for lr, key in _keys(shop).items():
        assert tiny.result_of(shop.store, key) == tiny.undisturbed(lr=lr, epochs=2)


@pytest.mark.parametrize("hook", ["post_train_step_epoch", "post_eval"])
@pytest.mark.smoke
def test_a_hook_that_stops_the_loop_keeps_the_finished_epoch(hook: str) -> None:
    """Early stopping ends a run in this way."""

    class Stopping(Extension):
        def stop(self, train_manager: Any, epoch_num: int) -> None:
            if epoch_num == 2:
                train_manager.stop("no improvement")

    setattr(Stopping, hook, Stopping.stop)
    manager = tiny.Tiny(None, verbose=False)
    manager.extensions = [Stopping()]
    manager.process()
    (key,) = manager.configs.keys()
    recorded = {(event["tag"], event["step"]) for event in manager.store.run(key).events()}
    assert ("train/loss", 2) in recorded
    if hook == "post_eval":
        assert ("valid/loss", 2) in recorded
        assert "valid/loss" in manager.previews[key]
        before = tiny.Tiny(None, verbose=False)
        before.process(num_epochs=2)
        assert manager.stats[key]["best"]["value"] == before.stats[key]["best"]["value"]
    assert (manager.store.run(key).outcome_of(1) or {})["outcome"] == "finished"
