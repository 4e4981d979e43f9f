"""A training run that can be stopped, killed and paused at chosen points.

`python fault_training.py JOB` runs a `Manager` in one process. The job sets the store, configs, epochs, lease time and
mode. The process keeps its position in a few bytes of shared memory, so that a test can read it after a kill.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import warm
from campaign import REPEAT
from torch import nn

from trainmaster import Extension, Manager
from trainmaster.errors import RunBusyError
from trainmaster.store import Store, attempt, process_identity
from trainmaster.store.files import LocalFiles

BUSY = 3
"""The exit code of a process that raised a `RunBusyError`."""
DAY, HOUR = 86400.0, 3600.0
_PATIENCE = 300.0
_NUM_WAITED = 20_000

SAVING = (
    *("save", "save: clear", "save: tensors", "save: tree", "save: before manifest", "save: manifest", "save: published"),
    *("save: preview", "save: status", "save: drop", "save: dropping", "save: ending"),
)
POINTS = ("start", "ready", "claim", "setup", "load", "init", "train", "eval", "event", *SAVING, "between", "end")


@dataclass(frozen=True)
class Act:
    """An action that a process performs at a named point in training, such as "save".

    If `epoch` is None, the process performs it the first time it reaches the point.
    """

    at: str
    epoch: int | None
    do: str
    argument: Any = None


@dataclass(frozen=True)
class Job:
    """The task of one process."""

    store: str
    configs: list[dict[str, Any]]
    num_epochs: int
    mode: str = "process"
    lease_time: float = 60.0
    eval_interval: int = 1
    save_interval: int = 1
    keep: int = 3
    max_attempts: int = 3
    acts: list[Act] = field(default_factory=list)
    boot: str = ""
    """The machine identity that this process uses, or the real one if empty."""
    clock: str = ""
    """How the wall clock is wrong: "ahead" or "behind" by an hour, or jumping in "steps" of days."""
    witness: str = ""
    """A folder with one file for each epoch of each run; training an epoch twice is an error."""
    gate: str = ""
    """A file that the process waits for before it opens the store."""
    is_tidied: bool = False
    """Whether the interpreter exits normally, which takes a second; otherwise the process exits immediately."""
    files: str = ""
    """The prefix of the names of the process's own files."""


# ---- the training run


class Training(Manager):
    """A model of about 90,000 weights whose training draws random numbers from all generators."""

    witness = ""

    def setup(self, config: Any) -> None:
        super().setup(config)
        if config.get("poison") == "setup":
            os.kill(os.getpid(), signal.SIGKILL)
        self.model = nn.Sequential(nn.Linear(16, 280), nn.ReLU(), nn.Dropout(0.25), nn.Linear(280, 280), nn.ReLU(), nn.Linear(280, 1))
        kinds = {"adam": functools.partial(torch.optim.Adam, lr=0.002), "sgd": functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)}
        self.optimizer = kinds[config.get("optimizer", "adam")](self.model.parameters())
        self.inputs = torch.randn(64, 16)
        self.targets = self.inputs.sin().sum(1, keepdim=True)

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["draws"] = []

    def train(self) -> None:
        if self.witness:
            os.close(os.open(f"{self.witness}/{self.key}-{self.epoch}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        if self.config.get("poison") == "train":
            os.kill(os.getpid(), signal.SIGKILL)
        self.model.train()
        for batch in torch.randperm(64).split(16):
            noise = torch.from_numpy(np.random.standard_normal((16, 1)).astype(np.float32))
            scale = random.uniform(0.5, 1.5)
            self.optimizer.zero_grad()
            loss = (self.model(self.inputs[batch]) - scale * self.targets[batch] - 0.1 * noise).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            self.ckpt["draws"].append((self.epoch, scale, loss.item()))

    def eval(self) -> dict[str, Any]:
        self.model.eval()
        with torch.no_grad():
            return {"loss_test": (self.model(self.inputs) - self.targets).pow(2).mean(), "drawn": float(np.random.random())}

    def save_ckpt(self) -> None:
        self.ckpt |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        super().save_ckpt()

    def load_ckpt(self) -> None:
        super().load_ckpt()
        self.model.load_state_dict(self.ckpt["model"])
        self.optimizer.load_state_dict(self.ckpt["optimizer"])


# ---- the position of a process


class Place:
    """The position of a process, in shared memory.

    It consists of the last point that was reached, how often each point was reached, and whether the run has a
    checkpoint.
    """

    _START = 4
    _SIZE = _START + 4 * len(POINTS)

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(fd, self._SIZE)
        self._memory = mmap.mmap(fd, self._SIZE)
        os.close(fd)

    @property
    def point(self) -> str:
        return POINTS[self._memory[0]]

    @point.setter
    def point(self, name: str) -> None:
        number = POINTS.index(name)
        at = self._START + 4 * number
        self._memory[0] = number
        struct.pack_into("<I", self._memory, at, struct.unpack_from("<I", self._memory, at)[0] + 1)

    @property
    def has_saved(self) -> bool:
        return bool(self._memory[1])

    @has_saved.setter
    def has_saved(self, value: bool) -> None:
        self._memory[1] = value

    @property
    def may_start(self) -> bool:
        return bool(self._memory[2])

    @may_start.setter
    def may_start(self, value: bool) -> None:
        self._memory[2] = value

    def count(self, name: str) -> int:
        return int(struct.unpack_from("<I", self._memory, self._START + 4 * POINTS.index(name))[0])


class Points(Extension):
    """Records each point that a process reaches, and performs the acts for that point."""

    def __init__(self, place: Place, acts: list[Act]) -> None:
        self._place, self._acts = place, list(acts)
        self._epoch: int | None = None
        self.is_saving = self._is_published = False

    def at(self, point: str) -> None:
        self._place.point = point
        for act in [act for act in self._acts if act.at == point and act.epoch in (None, self._epoch)]:
            self._acts.remove(act)
            DEEDS[act.do](act.argument)

    def published(self) -> None:
        self._is_published = self._place.has_saved = True
        self.at("save: published")

    def dropping(self) -> None:
        self.at("save: drop" if self._is_published else "save: clear")

    def pre_work_setup(self) -> None:
        self.at("setup")

    def pre_work_load(self) -> None:
        self.at("load")

    def pre_work_init(self) -> None:
        self.at("init")

    def pre_work_train(self, epoch: int) -> None:
        self._epoch = epoch
        self.at("train")

    def pre_work_eval(self, epoch: int) -> None:
        self._epoch = epoch
        self.at("eval")

    def post_work_eval(self) -> None:
        self.at("event")

    def pre_work_save(self, epoch: int) -> None:
        self._epoch = epoch
        self.is_saving, self._is_published = True, False
        self.at("save")

    def post_work_save(self) -> None:
        self.at("save: ending")
        self.is_saving = False
        self.at("between")


def note_files(points: Points) -> None:
    """Make the files of the store record the progress of a save."""
    stages = {
        ("write", "tensors.safetensors"): "save: tensors",
        ("write", "tree.json"): "save: tree",
        ("create", "manifest.json"): "save: before manifest",
        ("replace", "preview.json"): "save: preview",
        ("replace", "status.json"): "save: status",
    }

    def noted(method: str) -> Callable[..., Any]:
        call = getattr(LocalFiles, method)

        def noted_call(self: LocalFiles, path: str, *args: Any) -> Any:
            name = os.path.basename(path)
            is_here = points.is_saving and threading.current_thread() is threading.main_thread()
            if is_here and (method, name) in stages:
                points.at(stages[method, name])
            if is_here and method.startswith("delete"):
                points.dropping()
            found = call(self, path, *args)
            if is_here and name == "manifest.json":
                points.published() if method == "create" else points.at("save: dropping")
            return found

        return noted_call

    for method in ("write", "create", "replace", "delete", "delete_folder"):
        setattr(LocalFiles, method, noted(method))
    link = os.link

    def noted_link(source: str, target: str, **options: Any) -> None:
        if target == "manifest.json" and points.is_saving:
            points.at("save: manifest")  # the file has its content, but not yet its name
        link(source, target, **options)

    os.link = noted_link


def _wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.002)


def _hold_lock(seconds: float) -> None:
    """Sleep while holding the GIL, so that no other thread runs."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))


def _fork(how: str) -> None:
    """Fork this process.

    `how` specifies whether the parent or the child ends first, and whether the child continues or exits.
    """
    first, does = how.split(", ")
    parent = os.getpid()
    child = os.fork()
    if child:
        if first == "child first":
            os.waitpid(child, 0)
        return
    deadline = time.monotonic() + _PATIENCE
    while first == "parent first" and os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(0.01)
    if does == "leaves":
        raise SystemExit("the child leaves")


DEEDS: dict[str, Callable[[Any], None]] = {
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "linger": time.sleep,
    "wait": _wait_for,
    "hold Python's lock": _hold_lock,
    "fork": _fork,
}


# ---- one process


def work(job: Job) -> None:
    """Do a job. The result of a batch of runs is written next to the process's other files."""
    torch.set_num_threads(1)
    place = Place(f"{job.files}.place")
    while not place.may_start:  # wait until the test is ready
        time.sleep(0.0005)
    points = Points(place, job.acts)
    note_files(points)
    if job.boot:
        process_identity._boot = lambda: job.boot
    if job.clock:
        turn_clock(job.clock)
    place.point = "ready"
    if job.gate:
        _wait_for(job.gate)
    intervals = {"eval_interval": job.eval_interval, "save_interval": job.save_interval, "keep": job.keep}
    place.point = "claim"
    manager = Training(job.store, lease_time=job.lease_time, verbose=False, **intervals)
    manager.witness = job.witness
    manager.extensions = [points]
    if job.mode == "process":
        manager.process(job.configs[0], job.num_epochs)
    else:
        result = manager.batch(job.configs, job.num_epochs, max_attempts=job.max_attempts)
        Path(f"{job.files}.json").write_text(json.dumps(asdict(result)))
    place.point = "end"


def turn_clock(how: str) -> None:
    """Make the wall clock of this process wrong, as seen by the store."""
    now, draws = time.time, random.Random(7)
    offsets = {"ahead": lambda: HOUR, "behind": lambda: -HOUR, "steps": lambda: draws.choice([-DAY, 0.0, DAY])}
    time.time = lambda: now() + offsets[how]()

    class Dates(attempt.datetime):  # type: ignore[misc]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(time.time(), tz)

    attempt.datetime = Dates


def run_and_leave(job: Job, work: Callable[[Any], None]) -> None:
    """Do a job, and exit with a code that shows its outcome."""
    code = 0
    try:
        work(job)
    except RunBusyError as error:
        print(f"RunBusyError: {error}", file=sys.stderr)
        code = BUSY
    except SystemExit as error:
        print(error, file=sys.stderr)
    except Exception:
        traceback.print_exc()
        code = 1
    if job.is_tidied:
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _job_of(text: str) -> Job:
    given = json.loads(text)
    return Job(**{**given, "acts": [Act(**act) for act in given["acts"]]})


# ---- for tests


class Started:
    """A process that does a job."""

    def __init__(self, program: str, job: Job) -> None:
        self.job = job
        with open(f"{job.files}.out", "ab") as out:
            command = [sys.executable, program, json.dumps(asdict(job))]
            start = subprocess.Popen if job.is_tidied else warm.Popen
            self._process = start(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        self.pid = self._process.pid
        self._handle = os.pidfd_open(self.pid)
        self.place = Place(f"{job.files}.place")
        self.place.may_start = True

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)  # type: ignore[attr-defined]

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def wait(self, patience: float = _PATIENCE) -> int:
        """Wait for the process, and return its exit code."""
        return self._process.wait(patience)

    def has_ended(self) -> bool:
        return bool(select.select([self._handle], [], [], 0)[0])

    def wait_for(self, point: str, count: int = 1, patience: float = _PATIENCE) -> bool:
        """Wait until a point has been reached `count` times. Return False if the process ends first."""
        until(lambda: self.place.count(point) >= count or self.has_ended(), f"{point!r} of {self.text()}", patience, 0.0002)
        return self.place.count(point) >= count

    def wait_until_stopped(self) -> None:
        until(lambda: self.has_ended() or _state(self.pid) == "T", "a process that stops itself")
        assert not self.has_ended(), self.text()

    def text(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return Path(f"{self.job.files}.out").read_text()
        return ""

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(f"{self.job.files}.json").read_text())
        return found

    def succeed(self) -> None:
        assert self.wait() == 0, self.text()

    def close(self) -> None:
        self.kill()
        self._process.wait()
        os.close(self._handle)


class Workshop:
    """A folder for one test, its processes, and their default job."""

    program = __file__

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Started] = []

    def job(self, store: str, config: dict[str, Any], num_epochs: int, **more: Any) -> Job:
        return Job(str(self.folder / store), more.pop("configs", [config]), num_epochs, **more)

    def start(self, job: Job, **more: Any) -> Started:
        files = str(self.folder / f"process-{len(self._started):04}")
        started = Started(self.program, replace(job, files=files, **more))
        self._started.append(started)
        return started

    def close(self) -> None:
        for each in self._started:
            each.close()


@contextlib.contextmanager
def workshop() -> Iterator[Workshop]:
    """Create a workshop, in memory if possible.

    A kill is not a power failure, so nothing needs the disk, and thousands of syncs to it would be slow.
    """
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None, ignore_cleanup_errors=True) as made:
        shop = Workshop(Path(made))
        try:
            yield shop
        finally:
            shop.close()


def until(is_so: Callable[[], Any], what: str, patience: float = _PATIENCE, pause: float = 0.005) -> None:
    deadline = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < deadline, f"waited for {patience} s for {what}"
        time.sleep(pause)


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


# ---- the content of a store


class Result(NamedTuple):
    """The outcome of a run, without times and without its history of attempts."""

    epoch: int
    value: Any
    rng: Any
    events: Any
    preview: Any
    stats: Any


def result_of(root: str | Path, config: dict[str, Any]) -> Result:
    """Return the outcome of a run, exact to the last bit."""
    store = Store(root)
    key = store.configs.get_key(config)
    assert key is not None
    found = store.run(key)
    latest = found.latest()
    assert latest is not None
    stats = {name: value for name, value in store.stats[key].items() if name not in ("toc", "t_train", "t_eval")}
    events = [{name: value for name, value in event.items() if name != "time"} for event in found.events()]
    return Result(latest.name.step, bits(latest.value), bits(latest.context), bits(events), bits(store.previews[key]), bits(stats))


def seen_of(root: str | Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return everything about a run that readers see, including times and names of checkpoints."""
    store = Store(root)
    key = store.configs.get_key(config)
    assert key is not None
    found = store.run(key)
    return {
        "stats": store.stats.get(key),
        "preview": store.previews.get(key),
        "ckpt": bits(store.ckpts.get(key)),
        "context": bits(latest.context) if (latest := found.latest()) else None,
        "events": found.events(),
        "checkpoints": found.checkpoints(),
        "chain": found.chain(),
        "completed": list(store.completed()),
        "damage": store.verify(),
    }


def bits(value: Any) -> Any:
    """Convert a value to plain data that is equal only if every bit is equal. Large values are hashed."""
    if isinstance(value, torch.Tensor):
        return ["tensor", str(value.dtype), list(value.shape), hashlib.sha256(value.numpy().tobytes()).hexdigest()]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, dict):
        return ["dict", [[repr(name), bits(each)] for name, each in value.items()]]
    if isinstance(value, list | tuple):
        if len(value) > 500:
            return [type(value).__name__, hashlib.sha256(repr([bits(each) for each in value]).encode()).hexdigest()]
        return [type(value).__name__, [bits(each) for each in value]]
    return [type(value).__name__, value.hex() if isinstance(value, float) else repr(value)]


def undisturbed(config: dict[str, Any], num_epochs: int, **intervals: int) -> Result:
    """Return the outcome of an uninterrupted run of a config, trained once in a separate store."""
    return _undisturbed(json.dumps(config), num_epochs, tuple(intervals.items()))


@functools.cache
def _undisturbed(config: str, num_epochs: int, intervals: tuple[tuple[str, int], ...]) -> Result:
    with workshop() as shop:
        job = shop.job("store", json.loads(config), num_epochs, **dict(intervals))
        shop.start(job).succeed()
        found = result_of(job.store, json.loads(config))
    assert found.epoch == num_epochs
    return found


def assert_undisturbed(job: Job, config: dict[str, Any] | None = None) -> None:
    """Check that a run ended like an uninterrupted one, with each evaluation recorded once and every file intact."""
    config = job.configs[0] if config is None else config
    found = result_of(job.store, config)
    expected = undisturbed(config, job.num_epochs, eval_interval=job.eval_interval, save_interval=job.save_interval)
    for name in Result._fields:
        assert getattr(found, name) == getattr(expected, name), f"{name} of {config}; {REPEAT}"
    events = Store(job.store).run(Store(job.store).configs.get_key(config) or "").events()
    evaluated = [epoch for epoch in range(job.num_epochs + 1) if epoch % job.eval_interval == 0 or epoch == job.num_epochs]
    assert [event["epoch"] for event in events] == evaluated, REPEAT
    assert Store(job.store).verify() == [], REPEAT


if __name__ == "__main__":
    run_and_leave(_job_of(sys.argv[1]), work)
