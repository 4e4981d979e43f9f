"""`RayExecutor` gives the same results as training in this process, and wrong settings raise errors immediately."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_training as program
import warm
from cifar_program import CifarSearch, MyModel, MyModelWrapper, config_for
from ray_training import Slow
from toy_search import EPOCHS, SPACE, Toy

from trainmaster import Manager, ParallelTrainer
from trainmaster.cli.executors import make_workers
from trainmaster.errors import MissingExtraError, SettingError
from trainmaster.sweep import RayExecutor
from trainmaster.sweep.ray_worker import Place, find_versions, shared_environment
from trainmaster.testing import ExecutorContract


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Return a function that opens executors; they are closed after the test."""
    executors: list[RayExecutor] = []

    def open_with(executor: RayExecutor, manager: Manager | None = None) -> None:
        executors.append(executor)
        executor.open(manager or Slow(tmp_path), lambda task: None)  # type: ignore[arg-type, return-value]

    yield open_with
    for each in executors:
        each.close()


# ---- without Ray running


@pytest.mark.parametrize("address", ["nonsense", "ray://somewhere", "host:port"])
def test_an_invalid_address_is_refused(opened: Any, address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(SettingError, match="expected the address of a Ray cluster"):
        opened(RayExecutor(address=address))


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_a_port_without_a_listener_is_an_error_within_seconds(opened: Any, prefix: str) -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        started = time.monotonic()
        with pytest.raises(SettingError, match="there is no Ray cluster at address") as caught:
            opened(RayExecutor(address=f"{prefix}127.0.0.1:{taken.getsockname()[1]}"))
    assert "refused" in str(caught.value)
    assert "ray start --head" in str(caught.value)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_port_that_another_program_has_taken_is_an_error_within_seconds(opened: Any, answer: bytes) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(SettingError, match="there is no Ray cluster at address") as caught:
            opened(RayExecutor(address=f"127.0.0.1:{server.getsockname()[1]}"))
        thread.join()
    assert "another program listens there" in str(caught.value)


def test_without_ray_an_error_says_what_to_install(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError) as caught:
        opened(RayExecutor())
    assert str(caught.value) == "RayExecutor needs: pip install 'trainmaster[ray]'"


def test_a_store_in_memory_is_refused(opened: Any) -> None:
    with pytest.raises(SettingError, match="workers need a store on a disk"):
        opened(RayExecutor(), Manager(verbose=False))


def test_a_manager_that_cannot_be_pickled_is_refused_before_ray_starts(opened: Any, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    with open(os.devnull) as file, pytest.raises(SettingError, match="Slow cannot be built in a worker") as caught:
        opened(RayExecutor(), Slow(tmp_path, seconds=file))  # type: ignore[arg-type]
    assert "cannot be sent to another process" in str(caught.value)
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    "arguments", [{"workers": 0}, {"workers": "2"}, {"cpus_per_run": -1}, {"gpus_per_run": "all"}, {"gpus_per_run": 1.5}, {"workers": True}]
)
def test_wrong_numbers_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(arguments))):
        RayExecutor(**arguments)


def test_the_command_line_knows_executors_by_name() -> None:
    assert make_workers("local", None, None, None, None) == 0
    assert make_workers("local", 3, None, None, None) == 3
    executor: Any = make_workers("ray", 8, "auto", None, 0.5)
    assert (executor.workers, executor.address, executor.cpus_per_run, executor.gpus_per_run) == (8, "auto", 1, 0.5)
    for wrong, message in [
        (("rya", None, None, None, None), "there is no such executor"),
        (("local", 2, "auto", None, None), "--address is an option of Ray"),
        (("local", 2, None, None, 1.0), "--gpus-per-run is an option of Ray"),
        (("ray", 0, None, None, None), "Ray needs a worker"),
    ]:
        with pytest.raises(SettingError, match=message):
            make_workers(*wrong)  # type: ignore[arg-type]


def test_workers_get_the_environment_without_machine_specific_variables() -> None:
    environment = {"DATA": "/data", "API_KEY": "x", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "RAY_AUTH_TOKEN": "t", "HOME": "/home/me"}
    assert shared_environment(environment) == {"DATA": "/data", "API_KEY": "x"}


PREPARE = """
import os, pickle, sys
from trainmaster.sweep.ray_worker import RayWorker
print(repr(RayWorker().prepare(*pickle.loads(bytes.fromhex(sys.argv[1])))), sys.path[0], os.getcwd(), os.environ.get("NEW"))
"""


def prepared(tmp_path: Path, **changes: Any) -> str:
    """Let a worker in another process check its node, and return the problem that it reports."""
    store = tmp_path / "store"
    (store / "sweeps").mkdir(parents=True, exist_ok=True)
    probe = store / "sweeps" / "probe.tmp"
    probe.write_text("token")
    place = Place(("/first", *sys.path), str(tmp_path), {"NEW": "1"}, None, str(store), str(probe), "token", find_versions())
    words = pickle.dumps((place._replace(**changes), b"")).hex()
    return str(warm.run([sys.executable, "-c", PREPARE, words], capture_output=True, text=True, check=True).stdout)


def test_a_worker_checks_versions_store_and_manager_before_it_trains(tmp_path: Path) -> None:
    text = prepared(tmp_path, versions={**find_versions(), "torch": "1.0", "Python": "2.7"})
    assert "instead of 2.7" in text
    assert "instead of 1.0" in text
    assert "same versions" in text
    text = prepared(tmp_path, versions={"trainmaster": "0.0"})
    assert "instead of 0.0" in text
    assert "it does not see the store" in prepared(tmp_path, probe=str(tmp_path / "elsewhere"))
    assert "is not the driver's store" in prepared(tmp_path, token="another")
    text = prepared(tmp_path)
    assert "the manager cannot be built there: EOFError" in text
    assert text.split()[-3:] == ["/first", str(tmp_path), "1"]


# ---- with Ray


@pytest.fixture(scope="module")
def local_ray() -> Iterator[Any]:
    """Start one Ray instance for all tests in this file, as if the user had called `ray.init`.

    RayExecutor leaves it running.
    """
    from trainmaster.sweep.ray_cluster import connect, import_ray

    pytest.importorskip("ray")
    ray = import_ray()
    assert connect(ray, "local", 2).is_ours
    yield ray
    ray.shutdown()


@pytest.mark.integration
@pytest.mark.usefixtures("local_ray")
class TestContract(ExecutorContract):
    def make(self) -> RayExecutor:
        return RayExecutor(2)


@pytest.mark.integration
@pytest.mark.usefixtures("local_ray")
def test_the_weights_are_bit_for_bit_the_same_in_process_with_local_workers_and_with_ray(tmp_path: Path) -> None:
    weights = []
    for workers in (0, 2, RayExecutor(2)):
        store = tmp_path / type(workers).__name__ / str(workers if isinstance(workers, int) else "")
        assert len(Slow(store).batch(program.configs_of(4), workers=workers).done) == 4
        weights.append(program.weights_of(store))
    assert weights[0] == weights[1] == weights[2]


@pytest.mark.integration
@pytest.mark.usefixtures("local_ray")
def test_a_search_on_ray_has_the_same_trials_as_a_search_in_this_process(tmp_path: Path) -> None:
    def search(store: Path, workers: Any) -> list[Any]:
        settings: dict[str, Any] = {"sampler": "tpe", "pruner": "median", "epochs": EPOCHS, "window": 4}
        result = Toy(store, verbose=False).search(SPACE, 6, workers=workers, **settings)
        return [(trial.config, trial.state, trial.values) for trial in result.trials]

    here = search(tmp_path / "here", 0)
    assert len(here) == 6
    assert search(tmp_path / "ray", RayExecutor(2)) == here


@pytest.mark.integration
@pytest.mark.usefixtures("local_ray")
def test_a_parallel_trainer_runs_its_trials_on_ray(tmp_path: Path) -> None:
    values = {"search_space": {"train_config.optimizer_config.arguments.lr": {"categorical_values": [0.05, 0.2]}}, "eval_epoch": 1}
    trainer = ParallelTrainer(MyModelWrapper(MyModel), config_for(CifarSearch, tmp_path, **values))
    assert [trial.state for trial in trainer.launch(workers=RayExecutor(2)).trials] == ["complete", "complete"]


@pytest.mark.integration
@pytest.mark.usefixtures("local_ray")
def test_requesting_more_gpus_or_cpus_than_any_node_has_is_an_error_at_once(opened: Any) -> None:
    with pytest.raises(SettingError, match="no node of the Ray cluster has 1 CPU and 64 GPUs for a run"):
        opened(RayExecutor(gpus_per_run=64))
    with pytest.raises(SettingError, match="no node of the Ray cluster has 500 CPUs for a run"):
        opened(RayExecutor(cpus_per_run=500))


@pytest.mark.integration
@pytest.mark.usefixtures("local_ray")
def test_a_worker_that_cannot_train_is_an_error_before_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster.sweep.ray_executor.find_versions", lambda: {"torch": "1.0"})
    with pytest.raises(SettingError, match=r"a Ray worker on .* cannot train") as caught:
        Slow(tmp_path).batch(program.configs_of(2), workers=RayExecutor(1))
    assert "instead of 1.0" in str(caught.value)
    assert program.epochs_of(tmp_path) == []
    assert not list((tmp_path / "sweeps").iterdir())


@pytest.mark.integration
@pytest.mark.usefixtures("local_ray")
def test_two_drivers_share_a_sweep(tmp_path: Path) -> None:
    store = tmp_path / "store"
    environment = {**os.environ, "PYTHONPATH": str(Path(program.__file__).parent)}
    with warm.Popen([sys.executable, "-c", OTHER_DRIVER, str(store)], env=environment, stdout=subprocess.PIPE, text=True) as other:
        result = Slow(store, 0.5).batch(program.configs_of(6), workers=RayExecutor(2))
        out, _ = other.communicate(timeout=300)
    assert len(result.done) + len(result.found) == 6
    assert other.returncode == 0
    assert int(out.split()[0]) + len(result.done) == 6
    assert {tuple(each) for each in program.endings_of(store).values()} == {("finished",)}


OTHER_DRIVER = """
import sys
import ray_training
if __name__ == "__main__":
    result = ray_training.Slow(sys.argv[1], 0.5).batch(ray_training.configs_of(6)[::-1])
    print(len(result.done))
"""

NOTEBOOK = """
import json, sys
from trainmaster import Manager
from trainmaster.sweep import RayExecutor

def halved(value):
    return value / 2

class Halving(Manager):
    def init_ckpt(self):
        super().init_ckpt()
        self.ckpt["x"] = self.config.x

    def train(self):
        self.ckpt["x"] = halved(self.ckpt["x"])

    def eval(self):
        return {"loss": self.ckpt["x"]}

manager = Halving(sys.argv[1])
result = manager.batch([{"x": 1.0}, {"x": 3.0}], num_epochs=2, workers=RayExecutor(1))
again = Halving(sys.argv[1]).batch([{"x": 1.0}, {"x": 3.0}], num_epochs=2)
print(json.dumps([len(result.done), len(again.found), sorted(each["loss"] for each in manager.previews.values())]))
"""


@pytest.mark.integration
def test_a_notebook_trains_on_a_local_ray_that_leaves_nothing_behind(tmp_path: Path) -> None:
    """A class from a notebook, or from a program without a main guard, is sent to the workers by value."""
    pytest.importorskip("ray")
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK, str(tmp_path / "store")],
        env={**environment, "HOME": str(home)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == [2, 2, [0.25, 0.75]]
    assert "changed since" not in out
    assert "RunFailedError" not in err
    assert not (home / ".ray").exists()
    assert left_in_session(process.pid) == []


@pytest.mark.integration
def test_ctrl_c_saves_the_runs_and_kill_9_leaves_no_process(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    store = tmp_path / "store"
    command = [sys.executable, program.__file__, str(store), "local", "2", "3"]
    leaders = []
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        with subprocess.Popen(
            command, env={**os.environ, "HOME": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        ) as process:
            end = time.monotonic() + 300
            while not is_training(store, process.pid) and process.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
            if number == signal.SIGINT:
                os.killpg(process.pid, number)  # as a terminal does
            else:
                process.kill()
            out, _ = process.communicate(timeout=300)
        assert process.returncode in (code, -number), out.decode()
        leaders.append(process.pid)
    endings = program.endings_of(store).values()
    resumed = [each for each in endings if len(each) == 2]  # one of the runs may not have been claimed again
    assert resumed
    assert {each[-1] for each in resumed} == {"stopped"}
    Slow(store).batch(program.configs_of(2))  # one of the runs may not have started
    Slow(tmp_path / "undisturbed").batch(program.configs_of(2))
    assert program.weights_of(store) == program.weights_of(tmp_path / "undisturbed")
    end = time.monotonic() + 300
    while any(map(left_in_session, leaders)) and time.monotonic() < end:  # some of Ray's agents need a minute after a kill
        time.sleep(0.5)
    assert [left_in_session(each) for each in leaders] == [[], []]


def is_training(store: Path, leader: int) -> bool:
    """Return whether a process in a session has started an epoch. A killed driver's workers may still start one."""
    for _, _, pid in program.epochs_of(store):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                return True
    return False


def left_in_session(leader: int) -> list[str]:
    """Return the processes of a session that are still running, including Ray's."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    found.append((each / "cmdline").read_text().replace("\0", " ")[:100])
            except OSError:
                continue
    return found
