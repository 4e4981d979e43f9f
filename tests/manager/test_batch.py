"""Batches and sweeps decide which runs to train, skip, give up on, or leave to other processes."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import warm

from trainmaster import Config, ConfigBase, Grid, Manager, configclass, key_of
from trainmaster.errors import ConfigError, RunBusyError, SettingError
from trainmaster.manager import BatchResult
from trainmaster.manager.executor import InProcess, Report, Task
from trainmaster.store import Attempt

CONFIGS = [{"a": 1}, {"a": 2}, {"a": 3}]
KEYS = [key_of(config) for config in CONFIGS]


class Counting(Manager):
    """Trains by counting its epochs. Configs whose `a` is in `bad` fail in the method named by `where`."""

    def __init__(self, *args: Any, verbose: bool = False, bad: tuple[int, ...] = (), where: str = "train", **kwargs: Any) -> None:
        super().__init__(*args, verbose=verbose, **kwargs)
        self.bad, self.where = bad, where
        self.trained: list[Any] = []
        self.error: type[BaseException] = ValueError

    def _fail(self, where: str) -> None:
        if self.config["a"] in self.bad and where == self.where:
            raise self.error(f"{self.config['a']} is bad")

    def setup(self, config: Any) -> None:
        super().setup(config)
        self._fail("setup")

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["x"] = 0

    def train(self) -> None:
        self._fail("train")
        self.trained.append(self.config["a"])
        self.ckpt["x"] += 1

    def eval(self) -> Any:
        return {"loss_test": float(self.ckpt["x"])}


class Damaging(Counting):
    """Damages all stored configs while it trains the config with a=2."""

    def train(self) -> None:
        if self.config["a"] == 2:
            for path in Path(str(self.store.root)).glob("configs/*/*.json"):
                path.write_text(f"{path.read_text()}x")
        super().train()


# ---- trained and skipped runs (J12)


def test_a_batch_trains_all_configs_in_the_given_order() -> None:
    manager = Counting()
    result = manager.batch(CONFIGS, num_epochs=2)
    assert manager.trained == [1, 1, 2, 2, 3, 3]
    assert result == BatchResult(done=KEYS)


def test_finished_runs_are_skipped() -> None:
    manager = Counting()
    manager.process({"a": 2}, num_epochs=1)
    manager.trained.clear()
    result = manager.batch(CONFIGS, num_epochs=1)
    assert manager.trained == [1, 3]
    assert result == BatchResult(done=[KEYS[0], KEYS[2]], found=[KEYS[1]])


def test_whether_a_run_is_finished_depends_on_the_target() -> None:
    manager = Counting()
    manager.batch(CONFIGS, num_epochs=1)
    manager.trained.clear()
    assert manager.batch(CONFIGS, num_epochs=2).done == KEYS
    assert manager.trained == [1, 2, 3]


def test_each_config_can_set_its_own_number_of_epochs() -> None:
    manager = Counting()
    manager.batch([{"a": 1, "epochs": 1}, {"a": 2, "epochs": 3}])
    assert manager.trained == [1, 2, 2, 2]


def test_resume_false_trains_finished_runs_again() -> None:
    manager = Counting()
    manager.batch(CONFIGS[:1], num_epochs=2)
    assert manager.batch(CONFIGS[:1], num_epochs=1, resume=False) == BatchResult(done=KEYS[:1])
    assert manager.stats[KEYS[0]]["epoch"] == 1


def test_count_limits_how_many_runs_are_trained() -> None:
    manager = Counting()
    assert manager.batch(CONFIGS, num_epochs=1, count=2) == BatchResult(done=KEYS[:2])
    assert manager.trained == [1, 2]


def test_runs_that_were_already_done_do_not_count() -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=1)
    assert manager.batch(CONFIGS, num_epochs=1, count=1) == BatchResult(done=[KEYS[1]], found=[KEYS[0]])


def test_a_generator_of_configs_is_consumed_only_as_far_as_needed() -> None:
    taken: list[int] = []

    def configs() -> Iterator[dict[str, int]]:
        for number in range(1, 1000):
            taken.append(number)
            yield {"a": number}

    Counting().batch(configs(), num_epochs=1, count=2)
    assert taken == [1, 2]


def test_a_config_that_occurs_twice_is_trained_once() -> None:
    manager = Counting()
    assert manager.batch([*CONFIGS, {"a": 1}, Config({"a": 2})], num_epochs=1, resume=False) == BatchResult(done=KEYS)
    assert manager.trained == [1, 2, 3]


def test_a_batch_accepts_typed_configs() -> None:
    @configclass
    class Typed(ConfigBase):
        a: int = 0
        epochs: int = 2

    manager = Counting()
    manager.batch([Typed(a=1), Typed(a=2, epochs=1)])
    assert manager.trained == [1, 1, 2]


def test_an_empty_batch_has_nothing_to_do() -> None:
    result = Counting().batch([], num_epochs=1)
    assert result == BatchResult()
    assert str(result) == "nothing to do"


def test_the_result_lists_the_outcome_of_every_run() -> None:
    manager = Counting(bad=(3,))
    manager.process({"a": 1}, num_epochs=1)
    result = manager.batch(CONFIGS, num_epochs=1, max_errors=5)
    assert result == BatchResult(done=[KEYS[1]], found=[KEYS[0]], failed={KEYS[2]: "ValueError: 3 is bad"})
    assert str(result) == "1 done, 1 already done, 1 failed"


def test_the_manager_can_be_used_again_after_a_batch() -> None:
    manager = Counting()
    manager.batch(CONFIGS, num_epochs=1)
    manager.process({"a": 9}, num_epochs=1)
    assert manager.trained == [1, 2, 3, 9]


# ---- errors (J13)


def test_without_max_errors_the_first_error_is_raised() -> None:
    manager = Counting(bad=(2,))
    with pytest.raises(ValueError, match="2 is bad"):
        manager.batch(CONFIGS, num_epochs=1)
    assert manager.trained == [1]


def test_the_first_error_is_raised_even_if_the_best_runs_cannot_be_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="2 is bad"):
        Damaging(tmp_path, verbose=True, bad=(2,)).batch(CONFIGS[:2], num_epochs=1)
    assert "is better)" not in capsys.readouterr().out


def test_a_batch_with_damaged_configs_returns_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = Damaging(tmp_path, verbose=True).batch(CONFIGS[:2], num_epochs=1)
    assert result == BatchResult(done=KEYS[:2])
    assert "loss_test (lower is better)" in capsys.readouterr().out


@pytest.mark.parametrize(("max_errors", "trained"), [(1, [1]), (2, [1, 3]), (3, [1, 3, 5])])
def test_a_batch_ends_without_an_exception_at_the_nth_error(max_errors: int, trained: list[int]) -> None:
    manager = Counting(bad=(2, 4))
    result = manager.batch([{"a": number} for number in range(1, 6)], num_epochs=1, max_errors=max_errors)
    assert manager.trained == trained
    assert list(result.failed.values()) == ["ValueError: 2 is bad", "ValueError: 4 is bad"][:max_errors]


def test_a_failed_run_counts_towards_count() -> None:
    manager = Counting(bad=(1,))
    result = manager.batch(CONFIGS, num_epochs=1, count=2, max_errors=9)
    assert (list(result.failed), result.done) == (KEYS[:1], [KEYS[1]])


@pytest.mark.parametrize("max_errors", [0, 5])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_always_stops_the_batch(max_errors: int, error: type[BaseException]) -> None:
    manager = Counting(bad=(2,))
    manager.error = error
    with pytest.raises(error):
        manager.batch(CONFIGS, num_epochs=1, max_errors=max_errors)
    assert manager.trained == [1]
    run = manager.store.run(KEYS[1])
    assert (run.outcome_of(run.newest()) or {})["outcome"] == ("interrupted" if error is KeyboardInterrupt else "failed")


def test_a_config_that_get_config_refuses_counts_as_an_error() -> None:
    class Choosy(Counting):
        def get_config(self, config: Any = None) -> Any:
            config = super().get_config(config)
            if config["a"] == 2:
                raise ValueError("2 is refused")
            return config

    manager = Choosy()
    result = manager.batch(CONFIGS, num_epochs=1, max_errors=5)
    assert manager.trained == [1, 3]
    assert list(result.failed.values()) == ["ValueError: 2 is refused"]


@configclass
class Pair(ConfigBase):
    a: int = 1
    b: int = 1


def test_the_line_about_a_failed_config_contains_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting(None, Pair, verbose=True)
    result = manager.batch([{"a": 1}, {"a": "x", "b": "y"}, {"a": 3}], num_epochs=1, max_errors=5)
    assert manager.trained == [1, 3]
    assert len(result.failed) == 1
    reason = "ConfigError: 2 problems in Pair: a = 'x': expected a whole number; b = 'y': expected a whole number"
    assert capsys.readouterr().out.count(reason) == 2, "after the run, and in the summary"


def test_a_sweep_that_stops_at_the_first_error_reports_wrong_values_before_it_trains() -> None:
    manager = Counting(None, Pair)
    with pytest.raises(ConfigError, match=r"2 problems in the sweep\n +wrong +a = 'x': .*\n +a = 'y': expected a whole number"):
        manager.sweep({"a": [1, "x", 2, "y"]}, num_epochs=1)
    assert manager.trained == []


def test_a_problem_that_only_differs_in_its_numbers_is_counted_once() -> None:
    @configclass
    class Product(ConfigBase):
        a: int = 1
        b: int = 1
        c: int = 1

        def problems(self) -> Iterator[tuple[str, str]]:
            if self.a * self.b > 20:
                yield "a", f"a * b = {self.a * self.b}, which is more than 20"

    with pytest.raises(ConfigError) as found:
        Counting(None, Product).sweep({"a": [1, 10], "b": [1, 3, 4, 5], "c": [1, 2, 3], "d": [1, 2]}, num_epochs=1)
    assert [each.key for each in found.value.problems] == ["d"], "an unknown key hides the other checks"
    with pytest.raises(ConfigError) as found:
        Counting(None, Product).sweep({"a": [1, 10], "b": [1, 3, 4, 5], "c": [1, 2, 3]}, num_epochs=1)
    assert [str(each) for each in found.value.problems] == ["a = 10: a * b = 30, which is more than 20 (and 2 more with other numbers)"]


def test_a_sweep_that_accepts_errors_trains_the_other_configs() -> None:
    manager = Counting(None, Pair)
    result = manager.sweep({"a": [1, "x", 2, "y"]}, num_epochs=1, max_errors=5)
    assert (sorted(manager.trained), len(result.failed)) == ([1, 2], 2)


# ---- giving up


def test_a_batch_gives_up_on_a_run_after_three_attempts_without_a_checkpoint() -> None:
    manager = Counting(bad=(1,), where="setup")
    for _ in range(3):
        assert list(manager.batch(CONFIGS[:1], num_epochs=1, max_errors=9).failed) == KEYS[:1]
    result = manager.batch(CONFIGS[:1], num_epochs=1, max_errors=9)
    why = "3 attempts in a row saved no new checkpoint; the last one: ValueError: 1 is bad"
    assert result == BatchResult(given_up={KEYS[0]: why})
    assert str(result) == "1 given up"


def test_an_attempt_that_saved_a_checkpoint_resets_the_count() -> None:
    manager = Counting(bad=(1,))
    for _ in range(4):  # the first attempt saves epoch 0
        assert list(manager.batch(CONFIGS[:1], num_epochs=1, max_errors=9).failed) == KEYS[:1]
    assert list(manager.batch(CONFIGS[:1], num_epochs=1, max_errors=9).given_up) == KEYS[:1]


def test_max_attempts_limits_the_attempts_without_a_checkpoint() -> None:
    manager = Counting(bad=(1,), where="setup")
    manager.batch(CONFIGS[:1], num_epochs=1, max_errors=9, max_attempts=1)
    assert list(manager.batch(CONFIGS[:1], num_epochs=1, max_errors=9, max_attempts=1).given_up) == KEYS[:1]
    assert list(manager.batch(CONFIGS[:1], num_epochs=1, max_errors=9, max_attempts=2).failed) == KEYS[:1]


def test_giving_up_on_a_run_is_not_an_error_and_the_other_runs_are_trained() -> None:
    manager = Counting(bad=(1,), where="setup")
    for _ in range(3):
        manager.batch(CONFIGS[:1], num_epochs=1, max_errors=9)
    result = manager.batch(CONFIGS, num_epochs=1, count=2)
    assert (list(result.given_up), result.done) == (KEYS[:1], KEYS[1:])


@pytest.fixture
def given_up() -> Counting:
    manager = Counting(bad=(1,), where="setup")
    for _ in range(3):
        manager.batch(CONFIGS[:1], num_epochs=1, max_errors=9)
    return manager


def test_process_trains_a_run_that_a_batch_gave_up_on(given_up: Counting) -> None:
    given_up.bad = ()
    given_up.process({"a": 1}, num_epochs=1)
    assert given_up.stats[KEYS[0]]["epoch"] == 1


def test_process_resets_the_count_of_attempts_even_if_it_fails(given_up: Counting) -> None:
    with pytest.raises(ValueError, match="1 is bad"):
        given_up.process({"a": 1}, num_epochs=1)
    for _ in range(3):
        assert list(given_up.batch(CONFIGS[:1], num_epochs=1, max_errors=9).failed) == KEYS[:1]
    assert list(given_up.batch(CONFIGS[:1], num_epochs=1, max_errors=9).given_up) == KEYS[:1]


def test_an_interrupted_attempt_does_not_count() -> None:
    manager = Counting(bad=(1,), where="setup")
    manager.error = KeyboardInterrupt
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            manager.batch(CONFIGS[:1], num_epochs=1)
    manager.bad = ()
    assert manager.batch(CONFIGS[:1], num_epochs=1).done == KEYS[:1]


def test_a_run_that_was_given_up_for_one_target_is_done_for_a_smaller_one() -> None:
    manager = Counting(bad=(1,))
    for _ in range(5):
        manager.batch(CONFIGS[:1], num_epochs=1, max_errors=9)
    assert manager.batch(CONFIGS[:1], num_epochs=0) == BatchResult(found=KEYS[:1])


# ---- sweeps (J16)


def test_a_sweep_trains_every_combination_once() -> None:
    manager = Counting()
    result = manager.sweep({"a": [1, 2, 3], "optim": {"b": [4, 5]}}, num_epochs=1)
    assert len(result.done) == 6
    assert {(config["a"], config["optim"]["b"]) for _, config in manager.completed()} == {(a, b) for a in (1, 2, 3) for b in (4, 5)}


def test_a_sweep_uses_a_random_order() -> None:
    orders = set()
    for _ in range(6):  # the probability that all six orders are equal is below 1e-40
        manager = Counting()
        manager.sweep({"a": list(range(12))}, num_epochs=1)
        orders.add(tuple(manager.trained))
    assert len(orders) > 1


def test_a_sweep_accepts_the_arguments_of_a_batch() -> None:
    manager = Counting(bad=(1, 2, 3))
    result = manager.sweep({"a": [1, 2, 3]}, num_epochs=1, count=3, max_errors=2)
    assert len(result.failed) == 2


def test_combinations_that_normalize_to_one_config_are_trained_once() -> None:
    class Normal(Counting):
        def get_config(self, config: Any = None) -> Any:
            config = super().get_config(config)
            if config["arch"] == "linear":
                config["a"] = 0
            return config

    manager = Normal()
    result = manager.sweep({"arch": ["linear", "deep"], "a": [1, 2, 3]}, num_epochs=1)
    assert sorted(manager.trained) == [0, 1, 2, 3]
    assert len(result.done) == 4


def test_a_sweep_over_a_grid_uses_the_order_of_the_grid() -> None:
    choices = Grid({"a": [1, 2, 3, 4]}, seed=5)
    manager = Counting()
    manager.sweep(choices, num_epochs=1)
    assert manager.trained == [config["a"] for config in choices]


def test_a_sweep_reads_its_choices_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "choices.yaml"
    path.write_text("a: [1, 2]\n")
    manager = Counting()
    manager.sweep(path, num_epochs=1)
    assert sorted(manager.trained) == [1, 2]


def test_every_combination_is_completed_with_the_defaults() -> None:
    manager = Counting(None, {"lr": 0.1})
    manager.sweep({"a": [1, 2]}, num_epochs=1)
    assert all(config["lr"] == 0.1 for _, config in manager.completed())


# ---- bad arguments


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [("count", -1, 0), ("count", 1.0, 0), ("max_errors", -1, 0), ("max_errors", None, 0), ("max_attempts", 0, 1), ("num_epochs", -1, 0)],
)
def test_an_invalid_number_is_refused(name: str, value: Any, least: int) -> None:
    with pytest.raises(SettingError, match=f"`{name}` must be a whole number of at least {least}, not "):
        Counting().batch(CONFIGS, **{"num_epochs": 1, name: value})


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), True, "4"])
def test_an_invalid_patience_is_refused(value: Any) -> None:
    with pytest.raises(SettingError, match=r"`patience` must be a number of at least 0, not .*\n  try     `patience` is a number of hours"):
        Counting().batch(CONFIGS, num_epochs=1, patience=value)


@pytest.mark.parametrize("configs", [{"a": [1, 2]}, Config({"a": 1}), "configs.yaml", Path("configs.yaml")])
def test_a_single_config_is_not_a_batch(configs: Any) -> None:
    with pytest.raises(SettingError, match="expected a sequence of configs") as caught:
        Counting().batch(configs, num_epochs=1)
    assert "`process` takes one; `sweep` takes choices" in str(caught.value)


def test_an_unknown_order_of_a_sweep_is_refused() -> None:
    with pytest.raises(SettingError, match="order='smart': 'random' is the only order"):
        Counting().sweep({"a": [1]}, num_epochs=1, order="smart")


def test_an_empty_list_of_choices_is_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("a = []: has no values to choose from")):
        Counting().sweep({"a": []}, num_epochs=1)


# ---- other processes


class Other(NamedTuple):
    """A live process that holds the run of `{"a": 1}` until `let_go` is called."""

    store_dir: Path
    process: subprocess.Popen[str]
    gate: Path

    def let_go(self) -> None:
        self.gate.touch()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    program = Path(__file__).parents[1] / "programs" / "hold_program.py"
    store_dir, gate = tmp_path / "store", tmp_path / "gate"
    with warm.Popen([sys.executable, str(program), str(store_dir), str(gate)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "holding\n"
            yield Other(store_dir, process, gate)
        finally:
            process.kill()


def test_a_batch_waits_for_a_run_that_another_process_holds(other: Other, capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting(other.store_dir, verbose=True, lease_time=2, same_program=True)
    timer = threading.Timer(0.5, other.let_go)
    timer.start()
    result = manager.batch(CONFIGS[:2], num_epochs=2)
    timer.join()
    assert result == BatchResult(done=[KEYS[1]], found=[KEYS[0]])
    assert manager.trained == [2, 2]  # only the free run
    assert "other processes hold 1 of the runs; waiting for them" in capsys.readouterr().out


def test_process_refuses_a_held_run_and_a_batch_with_count_leaves_it(other: Other) -> None:
    manager = Counting(other.store_dir, same_program=True)
    with pytest.raises(RunBusyError, match=f"run {KEYS[0]} is held by process {other.process.pid} on .*\n") as caught:
        manager.process({"a": 1}, num_epochs=2)
    assert "wait until it ends, or stop it after its next checkpoint: `trainmaster stop " in str(caught.value)
    result = manager.batch(CONFIGS, num_epochs=1, count=1)
    assert result == BatchResult(done=[KEYS[1]], found=[KEYS[0]])  # the other process has saved epoch 1
    result = manager.batch(CONFIGS, num_epochs=2, count=1)
    assert result == BatchResult(done=[KEYS[1]], left=[KEYS[0]])


def test_a_run_that_a_killed_process_held_is_resumed_at_once(other: Other) -> None:  # J15
    other.process.kill()
    other.process.wait()
    manager = Counting(other.store_dir, same_program=True)
    assert manager.batch(CONFIGS[:1], num_epochs=2).done == KEYS[:1]
    assert manager.trained == [1]  # it resumes from epoch 1, which was saved


def test_a_batch_that_loses_a_run_prints_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Losing(Counting):
        def train(self) -> None:
            run = self.store.run(self.key)
            if run.newest() == 1:
                other = Attempt(run, 2, "test", 10.0)
                other.start(run.latest())
                other.release("saved")
            super().train()

    result = Losing(tmp_path, verbose=True).batch(CONFIGS[:1], num_epochs=1)
    assert result.done == KEYS[:1]
    told = [line for line in capsys.readouterr().out.splitlines() if "is left to another process" in line]
    assert len(told) == 1
    assert told[0].startswith(f"run {KEYS[0]} is left to another process: attempt 1 of run {KEYS[0]} was replaced: ")
    assert re.search(r"its lease of 60 s was renewed \d+ s before|its lease had expired", told[0])  # depends on the speed of the machine


def test_the_attempt_that_a_dead_worker_reports_is_replaced_without_waiting_for_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker on another machine is only known to be dead when its lease expires, which takes an hour here."""
    from trainmaster.store import process_identity

    manager = Counting(tmp_path, lease_time=3600.0)

    class DiesOnce(InProcess):
        """Lets a worker on another machine claim the first task and die."""

        dead: Attempt | None = None

        def submit(self, task: Task) -> None:
            if self.dead is not None:
                return super().submit(task)
            with monkeypatch.context() as patch:
                patch.setattr(process_identity, "_boot", lambda: "another machine")
                process_identity._this.cache_clear()
                self.dead = Attempt(manager.store.run(task.job.key), 1, "batch", 1000.0)
            process_identity._this.cache_clear()
            self._reports.append(Report(task.job.key, "died", "its worker is gone", attempt=1))
            return None

    executor = DiesOnce()
    assert manager.batch(CONFIGS[:1], num_epochs=1, workers=executor) == BatchResult(done=[KEYS[0]])
    assert manager.store.run(KEYS[0]).attempts() == [2, 1]
    assert executor.dead is not None


def test_a_task_makes_no_attempt_if_its_run_was_trained_while_it_waited(tmp_path: Path) -> None:
    from trainmaster.manager.job import make_job

    manager = Counting(tmp_path)
    job = make_job(manager, CONFIGS[0], 2)
    manager.process(CONFIGS[0], 2)
    assert manager.job_runner.run_task(Task(job, resume=True)).kind == "found"
    assert len(manager.store.run(job.key).attempts()) == 1
    assert manager.batch(CONFIGS[:1], 2).found == [job.key]


def test_a_run_that_was_trained_while_its_task_waited_is_not_shown_as_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Slow(InProcess):
        def submit(self, task: Task) -> None:
            Counting(tmp_path).process(task.job.config, task.job.num_epochs)
            super().submit(task)

    manager = Counting(tmp_path, verbose=True)
    assert manager.batch(CONFIGS[:2], num_epochs=1, count=1, workers=Slow()) == BatchResult(found=KEYS[:2])
    assert "other processes hold" not in "".join(capsys.readouterr())
