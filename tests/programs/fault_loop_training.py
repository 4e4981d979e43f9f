"""Training runs built by `make_loop` that can be stopped, killed and paused at any point, as in `fault_training.py`.

The position of a process is recorded twice: `Place` shows what the training thread does, and `Where` shows its epoch
and batch and the progress of a background save.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import random
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import fault_training as training
import numpy as np
import torch
from campaign import REPEAT
from fault_training import SAVING, Act, Result
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainmaster import CheckpointSaver, Extension, Fixtures, Manager, TrainManager
from trainmaster.manager.attempt_checkpoints import AttemptCheckpoints
from trainmaster.store import Store, process_identity
from trainmaster.store.events import EventLog
from trainmaster.store.files import LocalFiles

KILLED = -9
NUM_BATCHES = 12
"""The number of batches in an epoch."""
ACCUMULATED = 5
"""The number of batches per update. Epochs, and therefore most checkpoints, end between two updates."""

training.DEEDS["signal"] = lambda number: os.kill(os.getpid(), number)


@dataclass(frozen=True)
class LoopJob(training.Job):
    """The task of one process.

    In its `acts`, `epoch` is the total number of batches done when a batch begins or a save is requested.
    """

    workers: int = 0
    """The number of processes that train a batch of runs."""
    stop_at: int | None = None
    """The number of batches after which a hook stops the loop, or None to never stop it."""
    scribble_at: int | None = None
    """The number of batches after which the whole training state is overwritten, right after a save was requested."""
    pause: float = 0.0
    """The number of seconds by which each epoch is extended if `witness` is set."""
    then: int | None = None
    """If given, a second manager in the same process continues the run up to this number of epochs."""


# ---- the training run


class Augmented(Dataset[Any]):
    """Samples that differ each time they are read, because they use random numbers from all generators."""

    def __init__(self, num: int) -> None:
        self.inputs = torch.randn(num, 16)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.randn(16) * 0.1 + float(np.random.standard_normal()) * 0.1
        scale = random.uniform(0.8, 1.2)
        return self.inputs[number] * scale + noise, self.inputs[number].sin().sum(0, keepdim=True)


class Accumulation(Extension):
    """Makes an update every few batches, counted across epochs."""

    def __init__(self, every: int) -> None:
        self._every, self._num = every, 0

    def pre_train_step_batch(self, fixtures: Fixtures) -> None:
        self._num += 1
        fixtures.modify("is_update", self._num % self._every == 0)

    def state_dict(self) -> dict[str, Any]:
        return {"num": self._num}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._num = state["num"]


class Jitter(Extension):
    """Adds noise to the inputs from its own generator, whose state is a new tensor each time."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def pre_forward(self, fixtures: Fixtures, mode_name: str) -> None:
        if mode_name == "train":
            inputs, targets = fixtures["batch"]
            fixtures.modify("batch", (inputs + 0.01 * torch.randn(inputs.shape, generator=self.generator), targets))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


class Rates(Extension):
    """Records the learning rate at every update."""

    def post_optimizer_step(self, writer: Any, lr_schedule: Any, step_num: int) -> None:
        writer.add_scalar("rate", lr_schedule.get_last_lr()[0], step_num)


def _rate(step: int) -> float:
    return 0.95**step * (1.0 if step % 3 else 0.5)


class Loop(TrainManager):
    def model_forward(self, batch: Any) -> Any:
        return self.model(batch[0])


class LoopTraining(Manager):
    """A model of about 90,000 weights with dropout. The config selects the loader, accumulation and saves.

    `witness` is a folder with a file for each process that created a loop and for each epoch that was started. If it
    is set, each epoch takes `pause` seconds longer.
    """

    def __init__(self, *args: Any, witness: str = "", pause: float = 0.0, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.witness, self.pause = witness, pause

    def make_loop(self, config: Any) -> TrainManager:
        torch.set_num_threads(1)  # more threads would add numbers in a different order
        if self.witness:
            Path(self.witness, f"{os.getpid()}.pid").write_text(self.key)
        if config.get("poison"):
            os.kill(os.getpid(), signal.SIGKILL)
        model = nn.Sequential(nn.Linear(16, 280), nn.ReLU(), nn.Dropout(0.25), nn.Linear(280, 280), nn.ReLU(), nn.Linear(280, 1))
        loaded = {"batch_size": 4, "num_workers": config.get("loader", 0)}
        saving = {name: config[name] for name in ("every_epochs", "every_steps", "in_background", "keep") if name in config}
        extensions: dict[str, Any] = {
            "accumulation": Accumulation(config.get("accumulated", ACCUMULATED)),
            "rates": Rates(),
            "jitter": Jitter(1),
            "other_jitter": Jitter(2),
        }
        if saving:
            extensions["checkpoint_saver"] = CheckpointSaver(**saving)
        if self.witness:
            extensions["witness"] = Witness(f"{self.witness}/{self.key}", self.pause)
        return Loop(
            model,
            lambda batch, prediction: (prediction - batch[1]).pow(2).mean(),
            1,  # the manager sets the number
            DataLoader(Augmented(4 * NUM_BATCHES), shuffle=True, **loaded),
            {"valid": DataLoader(Augmented(10), **loaded)},
            optimizer=functools.partial(torch.optim.Adam, lr=0.002),
            lr_schedule=functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=_rate),
            extensions=extensions,
        )


class Witness(Extension):
    """Creates a file each time an epoch starts, named after the run, the epoch and the process."""

    def __init__(self, path: str, pause: float) -> None:
        self._path, self._pause = path, pause

    def pre_train_step_epoch(self, epoch_num: int) -> None:
        Path(f"{self._path}-{epoch_num}-{os.getpid()}-{time.monotonic_ns()}.epoch").touch()
        time.sleep(self._pause)


# ---- the position of a process


class Where(NamedTuple):
    """The progress of a process, in addition to its `Place`."""

    epoch: int
    """The number of epochs done."""
    batch: int
    """The number of batches done in the current epoch."""
    saving: int
    """The stage of the running save: an index into `SAVING`, starting at 1, or 0 if no save is running."""
    is_beside: int
    """Whether the save runs in its own thread."""

    @classmethod
    def of(cls, files: str) -> Where:
        with contextlib.suppress(FileNotFoundError, struct.error):
            return cls(*struct.unpack("<4I", Path(f"{files}.where").read_bytes()))
        return cls(0, 0, 0, 0)

    @property
    def stage(self) -> str | None:
        return SAVING[self.saving - 1] if self.saving else None


class WhereMemory:
    """Shared memory that a process writes its position to, and that outlives the process."""

    def __init__(self, files: str) -> None:
        with open(f"{files}.where", "w+b") as file:
            file.truncate(16)
            self._memory = mmap.mmap(file.fileno(), 16)

    def train(self, epoch: int, batch: int) -> None:
        struct.pack_into("<2I", self._memory, 0, epoch, batch)

    def save(self, stage: str | None) -> None:
        is_beside = threading.current_thread() is not threading.main_thread()
        struct.pack_into("<2I", self._memory, 8, 0 if stage is None else SAVING.index(stage) + 1, is_beside and stage is not None)


class LoopPoints(training.Points):
    """Records the points that a loop and its background saves reach."""

    def __init__(self, place: Any, acts: list[Any], where: WhereMemory, job: LoopJob) -> None:
        super().__init__(place, acts)
        self._where, self._job = where, job
        self._num_saved = 0

    def at(self, point: str, number: int | None = None) -> None:
        self._place.point = point
        if point in SAVING:
            self._where.save(point)
        for act in [act for act in self._acts if act.at == point and act.epoch in (None, number)]:
            self._acts.remove(act)
            training.DEEDS[act.do](act.argument)

    def save_at(self, point: str) -> None:
        self.at(point, self._num_saved)

    @contextlib.contextmanager
    def save(self, moment: Any) -> Iterator[None]:
        self._num_saved = moment.epoch * NUM_BATCHES + moment.batch
        self.is_saving, self._is_published = True, False
        self.save_at("save")
        yield
        self.save_at("save: ending")
        self.is_saving = False
        self._where.save(None)

    def deleted(self) -> None:
        self.save_at("save: drop" if self._is_published else "save: clear")

    def published(self) -> None:
        self._is_published = self._place.has_saved = True
        self.save_at("save: published")

    def pre_work_train(self) -> None:
        """Do nothing, because in a loop this stage covers all epochs."""

    def pre_work_eval(self) -> None: ...

    def post_work_eval(self) -> None: ...

    def pre_work_save(self) -> None: ...

    def post_work_save(self) -> None: ...

    def pre_train_step_batch(self, train_manager: TrainManager, epoch_index: int, batch_num: int) -> None:
        number = epoch_index * NUM_BATCHES + batch_num
        self._where.train(epoch_index, batch_num)
        if number == self._job.scribble_at:
            scribble(train_manager)
        self.at("train", number)

    def post_train_step_batch(self, train_manager: TrainManager, epoch_index: int, batch_num: int) -> None:
        if epoch_index * NUM_BATCHES + batch_num + 1 == self._job.stop_at:
            train_manager.stop("the test stops it")

    def post_train_step_epoch(self, epoch_index: int) -> None:
        self.at("between", (epoch_index + 1) * NUM_BATCHES)

    def pre_eval(self, epoch_num: int) -> None:
        self._where.train(epoch_num, 0)
        self.at("eval", epoch_num * NUM_BATCHES)


def scribble(loop: TrainManager) -> None:
    """Overwrite the whole training state in place."""
    assert loop.optimizer is not None
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.zero_()
            if parameter.grad is not None:
                parameter.grad.zero_()
            for each in loop.optimizer.state[parameter].values():
                each.zero_()
    for name in ("jitter", "other_jitter"):
        loop.extensions[name].generator.manual_seed(0)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def note_saves(points: LoopPoints) -> None:
    """Make checkpoints, events and files record their progress, in any thread."""
    save, append, link = AttemptCheckpoints.save, EventLog.append, os.link
    before = {
        ("write", "tensors.safetensors"): "save: tensors",
        ("write", "tree.json"): "save: tree",
        ("create", "manifest.json"): "save: before manifest",
        ("replace", "preview.json"): "save: preview",
        ("replace", "status.json"): "save: status",
    }

    def noted_save(self: AttemptCheckpoints, moment: Any, *args: Any) -> Any:
        with points.save(moment):
            return save(self, moment, *args)

    def noted_append(self: EventLog, event: Any) -> None:
        append(self, event)
        points.at("event")

    def noted_link(source: str, target: str, **options: Any) -> None:
        if target == "manifest.json" and points.is_saving:
            points.save_at("save: manifest")
        link(source, target, **options)

    def noted(method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted_call(self: LocalFiles, path: str, *args: Any) -> Any:
            point = before.get((method, os.path.basename(path)))
            is_of_save = points.is_saving and "/ckpts/" in f"/{path}"
            if points.is_saving and point is not None:
                points.save_at(point)
            elif is_of_save and method.startswith("delete"):
                points.deleted()
            found = call(self, path, *args)
            if is_of_save and path.endswith("/manifest.json"):
                points.published() if method == "create" else points.save_at("save: dropping")
            return found

        return noted_call

    AttemptCheckpoints.save, EventLog.append, os.link = noted_save, noted_append, noted_link  # type: ignore[method-assign]
    for method in ("write", "create", "replace", "delete", "delete_folder"):
        setattr(LocalFiles, method, noted(method, getattr(LocalFiles, method)))


# ---- one process


def work(job: LoopJob) -> None:
    """Do a job, like `work` in `fault_training.py`, but for a manager that builds a loop."""
    torch.set_num_threads(1)
    place = training.Place(f"{job.files}.place")
    while not place.may_start:
        time.sleep(0.0005)
    if job.boot:
        process_identity._boot = lambda: job.boot
    place.point = "ready"
    if job.gate:
        training._wait_for(job.gate)
    settings = {"save_interval": job.save_interval, "keep": job.keep, "lease_time": job.lease_time, "verbose": False}
    make = functools.partial(LoopTraining, job.store, witness=job.witness, pause=job.pause, **settings)
    extensions = []
    if not job.workers:
        extensions = [LoopPoints(place, job.acts, WhereMemory(job.files), job)]
        note_saves(extensions[0])
    place.point = "claim"
    for num_epochs in (job.num_epochs, job.then):
        if num_epochs is None:
            continue
        manager = make()
        manager.extensions = extensions
        if job.mode == "batch":
            result = manager.batch(job.configs, num_epochs, max_attempts=job.max_attempts, workers=job.workers, max_errors=1000)
            Path(f"{job.files}.json").write_text(json.dumps(asdict(result)))
        else:
            manager.process(job.configs[0], num_epochs)
    place.point = "end"


def job_of(text: str) -> LoopJob:
    given = json.loads(text)
    return LoopJob(**{**given, "acts": [Act(**act) for act in given["acts"]]})


# ---- for tests


class LoopWorkshop(training.Workshop):
    program = __file__

    def job(self, store: str, config: dict[str, Any], num_epochs: int, **more: Any) -> LoopJob:
        return LoopJob(str(self.folder / store), more.pop("configs", [config]), num_epochs, **more)

    def close(self) -> None:
        super().close()
        for each in self._started:
            kill_session(each.pid)


@contextlib.contextmanager
def workshop() -> Iterator[LoopWorkshop]:
    """Create a workshop in memory, like the one in `fault_training.py`."""
    with training.workshop() as inner:
        shop = LoopWorkshop(inner.folder)
        try:
            yield shop
        finally:
            shop.close()


def members_of(session: int) -> dict[int, str]:
    """Return the living processes of a session and their command lines.

    Each process that a test starts begins a new session, so the session id is the process id.
    """
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def kill_session(session: int) -> None:
    """Kill the remaining processes of a session: the workers of its loaders, and other processes that were started."""
    while left := members_of(session):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


# ---- the content of a store


def result_of(root: str | Path, config: dict[str, Any]) -> Any:
    """Return the outcome of a run as in `fault_training.py`, without parts that depend on its attempts.

    These parts are the name of the best checkpoint and the plan.
    """
    found = training.result_of(root, config)
    told = _without(found.stats, "planned", "is_beyond_plan")[1]
    stats = [[name, _without(each, "attempt", "checkpoint") if name == "'best'" else each] for name, each in told]
    return found._replace(value=_without(found.value, "best"), stats=stats)


def _without(tree: list[Any], *names: str) -> list[Any]:
    """Return the bits of a dictionary without some of its items."""
    kind, members = tree
    return [kind, [each for each in members if each[0] not in map(repr, names)]]


def rows_of(run: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in event.items() if name != "time"} for event in run.events()]


@functools.cache
def _undisturbed(config: str, num_epochs: int) -> Any:
    with workshop() as shop:
        job = shop.job("store", json.loads(config), num_epochs)
        shop.start(job).succeed()
        return result_of(job.store, json.loads(config))


def assert_undisturbed(job: LoopJob, config: dict[str, Any] | None = None) -> None:
    """Check that a run ended like an uninterrupted one, with each value recorded once and every file intact."""
    config = job.configs[0] if config is None else config
    num_epochs = job.num_epochs if job.then is None else job.then
    found, expected = result_of(job.store, config), _undisturbed(json.dumps(config), num_epochs)
    for name in Result._fields:
        assert getattr(found, name) == getattr(expected, name), f"{name} of {config}; {REPEAT}"
    store = Store(job.store)
    rows = [(row["tag"], row["step"]) for row in rows_of(store.run(store.configs.get_key(config) or ""))]
    num_updates = num_epochs * NUM_BATCHES // config.get("accumulated", ACCUMULATED)
    wanted = [("train/loss", epoch) for epoch in range(1, num_epochs + 1)]
    wanted += [("valid/loss", epoch) for epoch in range(num_epochs + 1)]
    assert sorted(rows) == sorted([*wanted, *(("rate", step) for step in range(1, num_updates + 1))]), REPEAT
    assert store.verify() == [], REPEAT


if __name__ in ("__main__", "__mp_main__"):
    AttemptCheckpoints.draw = lambda self: None  # type: ignore[method-assign]  # drawing takes longer than training
if __name__ == "__main__":
    training.run_and_leave(job_of(sys.argv[1]), work)
