"""A training run of a few milliseconds that can be paused, broken and observed at chosen points.

`python tiny_training.py CALL ARGUMENTS` makes one call, for example to `Manager.process` or the command line. The
environment contains the plan, which specifies an action and its point, so that loader and batch workers also get it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainmaster import Extension, Manager, TrainManager
from trainmaster.store import Store, files

PATIENCE = 300.0
PLAN = "TINY_PLAN"
_counts: Counter[str] = Counter()


# ---- actions at a point


def at(point: str, **facts: Any) -> None:
    """Perform the planned action if the plan names this point.

    A plan is, for example, `{"at": point, "nth": 1, "do": deed, "folder": ..., "if": {"lr": 0.1}}`.
    """
    text = os.environ.get(PLAN)
    plan = json.loads(text) if text else {}
    if plan.get("at") != point or any(facts.get(name) != value for name, value in plan.get("if", {}).items()):
        return
    _counts[point] += 1
    if _counts[point] == plan.get("nth", 1) or plan.get("nth") == 0:
        DEEDS[plan["do"]](plan)


def _reached(plan: dict[str, Any]) -> None:
    Path(plan["folder"], "at").write_text(str(os.getpid()))


def _wait(plan: dict[str, Any]) -> None:
    _reached(plan)
    until(lambda: Path(plan["folder"], "go").exists(), "the signal to continue")


def _sleep(plan: dict[str, Any]) -> None:
    _reached(plan)
    while True:  # one long sleep could miss a signal that arrives just before it
        time.sleep(0.05)


def _lock(plan: dict[str, Any]) -> None:
    _reached(plan)
    lock = threading.Lock()
    lock.acquire()
    while not lock.acquire(timeout=0.05):
        pass


def _raise(plan: dict[str, Any]) -> None:
    raise RuntimeError(plan["text"])


def _wait_then_raise(plan: dict[str, Any]) -> None:
    _wait(plan)
    raise RuntimeError("no more")


def _exit(plan: dict[str, Any]) -> None:
    sys.exit(plan["code"])


def _leave(plan: dict[str, Any]) -> None:
    os._exit(plan["code"])


def _signal(plan: dict[str, Any]) -> None:
    """Send a signal, and wait until the thread that handles it has asked the loop to stop.

    Otherwise, the loop could run several short steps before it stops.
    """
    from trainmaster.manager import interrupts

    watched = interrupts._active[-1] if interrupts._active else None
    stop, requested = getattr(watched, "_stop", None), threading.Event()

    def note(reason: str) -> None:
        try:
            stop(reason)
        finally:
            requested.set()

    if stop is not None:
        watched._stop = note
    os.kill(os.getpid(), plan["signal"])
    if stop is not None:
        assert requested.wait(PATIENCE)


def _segfault(plan: dict[str, Any]) -> None:
    ctypes.string_at(0)


def _fork(plan: dict[str, Any]) -> None:
    """Fork this process. The child reports what it finds, and exits; then the parent continues."""
    from trainmaster.manager import interrupts

    if plan.get("in_save"):
        until(Path(plan["folder"], "saving").exists, "a save to begin")
    parent = os.getpid()
    child = os.fork()
    if child:
        try:
            status = until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG), "the child to end", patience=60.0)
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            raise
        Path(plan["folder"], "child").write_text(f"{status.si_status}")
        _wait(plan)
        return
    wakeup = signal.set_wakeup_fd(-1)
    told = {
        "wakeup": wakeup,
        "active": len(interrupts._active),
        "int": str(signal.getsignal(signal.SIGINT)),
        "term": str(signal.getsignal(signal.SIGTERM)),
        "usr1": str(signal.getsignal(signal.SIGUSR1)),
        "parent": parent,
    }
    Path(plan["folder"], "told").write_text(json.dumps(told))
    if plan["how"] == "leaves":
        os._exit(0)
    if plan["how"] == "fails":
        raise RuntimeError("of the child")
    if plan["how"] == "raises":
        raise SystemExit(3)


def _print(plan: dict[str, Any]) -> None:
    print(plan["text"], flush=True)


DEEDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "wait": _wait,
    "sleep": _sleep,
    "lock": _lock,
    "raise": _raise,
    "wait then raise": _wait_then_raise,
    "exit": _exit,
    "leave": _leave,
    "signal": _signal,
    "segfault": _segfault,
    "fork": _fork,
    "print": _print,
}


# ---- the training run


class WorkPoints(Extension):
    """Calls `at` in the stages of a manager's work."""

    def pre_work_setup(self) -> None:
        at("pre_work_setup")

    def post_work_setup(self) -> None:
        at("post_work_setup")

    def pre_work_init(self) -> None:
        at("pre_work_init")

    def pre_work_train(self) -> None:
        at("pre_work_train")

    def post_work_train(self) -> None:
        at("post_work_train")

    def post_work(self) -> None:
        at("post_work")


class Points(Extension):
    """Calls `at` in the stages of a loop."""

    def __init__(self, lr: float = 0.0) -> None:
        self._lr = lr

    def pre_run(self) -> None:
        at("pre_run", lr=self._lr)

    def pre_train(self) -> None:
        at("pre_train", lr=self._lr)

    def pre_train_step_epoch(self) -> None:
        at("pre_train_step_epoch", lr=self._lr)

    def pre_train_step_batch(self) -> None:
        at("pre_train_step_batch", lr=self._lr)

    def pre_backward(self) -> None:
        at("pre_backward", lr=self._lr)

    def post_optimizer_step(self) -> None:
        at("post_optimizer_step", lr=self._lr)

    def post_train_step_batch(self) -> None:
        at("post_train_step_batch", lr=self._lr)

    def post_train_step_epoch(self) -> None:
        at("post_train_step_epoch", lr=self._lr)

    def pre_eval(self) -> None:
        at("pre_eval", lr=self._lr)

    def pre_eval_step_batch(self) -> None:
        at("pre_eval_step_batch", lr=self._lr)

    def post_eval(self) -> None:
        at("post_eval", lr=self._lr)

    def post_train(self) -> None:
        at("post_train", lr=self._lr)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, batch: Any) -> torch.Tensor:
        at("forward" if self.training else "eval forward")
        found: torch.Tensor = self.layers(batch[0])
        return found


class Numbers(Dataset[Any]):
    """Sixteen samples, created in the process that reads them."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        at("dataset")
        inputs = torch.arange(4) * 0.1 + index * 0.05 + torch.rand(4) * 0.01
        return inputs, inputs.sum().reshape(1)


def _worker_init(number: int) -> None:
    at("loader worker")


class Tiny(Manager):
    """A manager whose loop has three epochs of four batches."""

    defaults = {"lr": 0.1, "seed": 0, "loaders": 0, "epochs": 3}

    def make_loop(self, config: Any) -> TrainManager:
        at("make_loop", lr=config.lr)
        torch.set_num_threads(1)
        starting = {"num_workers": config.loaders, "worker_init_fn": _worker_init} if config.loaders else {}
        valid = [(torch.ones(4, 4) * number, torch.ones(4, 1)) for number in range(2)]
        return TrainManager(
            Net(),
            lambda batch, prediction: (prediction - batch[1]).pow(2).mean(),
            config.epochs,
            DataLoader(Numbers(), batch_size=4, shuffle=True, **starting),
            {"valid": valid},
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=config.lr, momentum=0.9),
            extensions=[Points(config.lr)],
            device="cpu",
        )


class Plain(Manager):
    """A manager that implements its own epochs."""

    defaults = {"lr": 0.1, "epochs": 3}

    def setup(self, config: Any) -> None:
        super().setup(config)
        at("setup", lr=config.lr)

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["x"] = torch.rand(3)

    def train(self) -> None:
        at("train", lr=self.config.lr)
        self.ckpt["x"] = self.ckpt["x"] * 0.5 + torch.rand(3) * self.config.lr

    def eval(self) -> dict[str, float]:
        at("eval", lr=self.config.lr)
        return {"loss_test": float(self.ckpt["x"].sum())}

    def save_ckpt(self) -> None:
        at("save_ckpt", lr=self.config.lr)
        super().save_ckpt()


def _hold_save() -> None:
    """Wait until a child that was forked in the middle of a save has ended."""
    plan = json.loads(os.environ.get(PLAN) or "{}")
    if plan.get("in_save"):
        saving, child = Path(plan["folder"], "saving"), Path(plan["folder"], "child")
        saving.touch()
        with contextlib.suppress(AssertionError):
            until(child.exists, "the child to end", patience=60.0)
        saving.unlink()


def watch_saves() -> None:
    """Call `at` in the middle of each save, in any thread."""
    write = files.LocalFiles.write

    def written(self: files.LocalFiles, path: str, *args: Any) -> Any:
        found = write(self, path, *args)
        if path.endswith("tree.json"):
            at("save")
            _hold_save()
        return found

    files.LocalFiles.write = written  # type: ignore[method-assign]


def draw_nothing(set_attribute: Callable[[Any, str, Any], None]) -> None:
    """Disable figures, because drawing them takes longer than these training runs."""
    from trainmaster.manager.attempt_checkpoints import AttemptCheckpoints

    set_attribute(AttemptCheckpoints, "draw", lambda self: None)


MANAGERS = {"Tiny": Tiny, "Plain": Plain}


def train(store: str, kind: str = "Tiny", grace: float | None = None, **config: Any) -> None:
    """Call `Manager.process` as a user's program would."""
    from trainmaster.manager import interrupts

    if grace is not None:
        interrupts.GRACE = grace
    watch_saves()
    manager = MANAGERS[kind](store)
    manager.extensions = [WorkPoints()]
    manager.process(config)


def train_deaf(**more: Any) -> None:
    """Train in a process that ignores Ctrl-C, like one that a shell started in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    train(**more)


def train_nested(store: str) -> None:
    """Run one manager in a hook of another one."""

    class Nesting(Extension):
        def pre_work_train(self) -> None:
            Tiny(store).process({"lr": 0.05})

    manager = Plain(store)
    manager.extensions = [Nesting()]
    manager.process()


def train_often(store: str, num: int) -> None:
    """Train many runs in one process, and print which file descriptors, threads and handlers are left."""

    def left() -> dict[str, Any]:
        return {
            "fds": len(os.listdir("/proc/self/fd")),
            "threads": sorted(each.name for each in threading.enumerate()),
            "handlers": [repr(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
        }

    kinds = {"loop": Tiny(None, verbose=False), "plain": Plain(store, verbose=False)}
    before = left()
    wakeup = signal.set_wakeup_fd(-1)
    kinds["plain"].process({"lr": 0.5})
    kinds["loop"].process({"lr": 0.5})
    first = left()
    for number in range(num):
        kinds["loop" if number % 10 == 0 else "plain"].process({"lr": number, "epochs": 1})
    after = left()
    in_thread = threading.Thread(target=kinds["plain"].process, args=({"lr": 1e6},))
    in_thread.start()
    in_thread.join()
    epoch = kinds["plain"].epoch
    told = {
        "before": before,
        "first": first,
        "after": after,
        "wakeup": [wakeup, signal.set_wakeup_fd(-1)],
        "thread": left(),
        "epoch": epoch,
    }
    print(json.dumps(told), flush=True)


class Damping(Extension):
    """Changes every step, so that training without this extension gives different results."""

    def pre_optimizer_step(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)


def train_many(
    store: str,
    configs: list[dict[str, Any]],
    kind: str = "Tiny",
    lease_time: float = 60.0,
    is_generated: bool = False,
    is_damped: bool = False,
    grace: float | None = None,
    **options: Any,
) -> None:
    """Call `Manager.batch`, and print the result as the last line."""
    from trainmaster.manager import interrupts

    if grace is not None:
        interrupts.GRACE = grace
    manager = MANAGERS[kind](store, lease_time=lease_time)
    if is_damped:
        manager.extensions = [Damping()]
    result = manager.batch((each for each in configs) if is_generated else configs, **options)
    print(json.dumps(vars(result)), flush=True)


def command_line(words: list[str]) -> int:
    """Run the program `trainmaster`."""
    from trainmaster.cli import main

    sys.argv = ["trainmaster", *words]
    return main(words)


CALLS: dict[str, Callable[..., int | None]] = {
    each.__name__: each for each in (train, train_deaf, train_nested, train_often, train_many, command_line)
}


def main(call: str, arguments: dict[str, Any]) -> None:
    """Make a call, and exit with its exit code."""
    draw_nothing(setattr)
    try:
        code = CALLS[call](**arguments) or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


# ---- results


def bits(value: Any) -> Any:
    """Convert a value to plain data that is equal only if every bit is equal."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.numpy().tobytes().hex()[:4096]]
    if isinstance(value, dict):
        return {str(name): bits(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [bits(each) for each in value]
    return value.hex() if isinstance(value, float) else repr(value)


def result_of(store: str | Path, key: str | None = None) -> dict[str, Any]:
    """Return the outcome of a run, without times and without its history of attempts."""
    found = Store(store)
    key = key or next(iter(found.configs.keys()))
    run = found.run(key)
    latest = run.latest()
    assert latest is not None, "nothing is saved"
    value = dict(latest.value)
    if value.get("best") is not None:
        value["best"] = value["best"][:3]  # without the name of the checkpoint, which contains the attempt
    events = [{name: each for name, each in event.items() if name != "time"} for event in run.events()]
    return {"epoch": found.stats[key]["epoch"], "value": bits(value), "events": bits(events), "preview": bits(found.previews[key])}


def outcome_of(store: str | Path, key: str | None = None) -> dict[str, Any]:
    """Return how the newest attempt of a run ended, or an empty dict if the attempt is running or was killed."""
    found = Store(store)
    run = found.run(key or next(iter(found.configs.keys())))
    return run.outcome_of(run.newest()) or {}


@functools.cache
def _undisturbed(kind: str, config: str) -> dict[str, Any]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        MANAGERS[kind](folder, verbose=False).process(json.loads(config))
        return result_of(folder)


def undisturbed(kind: str = "Tiny", **config: Any) -> dict[str, Any]:
    """Return the outcome of an uninterrupted run of a config."""
    return _undisturbed(kind, json.dumps(config))


def until(is_so: Callable[[], Any], what: str, patience: float = PATIENCE, pause: float = 0.005) -> Any:
    deadline = time.monotonic() + patience
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"waited for {patience:g} s for {what}"
        time.sleep(pause)
    return found


# ---- processes


class Started:
    """A process that makes one of the calls in `CALLS`."""

    def __init__(self, call: str, arguments: dict[str, Any], env: dict[str, str], shop: Path, folder: Path, tty: str) -> None:
        import warm  # imported here, because tests copy this file to places without that module

        self.folder, self._files = folder, {name: folder / f"text.{name}" for name in ("out", "err")}
        inherited = {name: value for name, value in os.environ.items() if name not in (PLAN, "NO_COLOR", "TRAINMASTER_STORE")}
        environment = {**inherited, "TERM": "xterm-256color", "PYTHONWARNINGS": "default", **env}
        with contextlib.ExitStack() as files:
            if tty:
                streams = [os.open(tty, os.O_RDWR | os.O_NOCTTY)] * 3
                files.callback(os.close, streams[0])
            else:
                streams = [subprocess.DEVNULL, *(files.enter_context(path.open("ab")).fileno() for path in self._files.values())]
            names = dict(zip(("stdin", "stdout", "stderr"), streams, strict=True))
            command = [sys.executable, __file__, call, json.dumps(arguments)]
            self._process = warm.Popen(command, cwd=shop, env=environment, **names)
        self.pid = self._process.pid

    def _text(self, name: str) -> str:
        path = self._files[name]
        return path.read_bytes().decode(errors="replace") if path.exists() else ""

    @property
    def out(self) -> str:
        return self._text("out")

    @property
    def err(self) -> str:
        return self._text("err")

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, patience: float = PATIENCE) -> int:
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired as error:
            error.add_note(f"stdout: {self.out[-2000:]}\nstderr: {self.err[-2000:]}")
            raise

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def until_at(self) -> int:
        """Wait until a process reaches the point in the plan, and return its id."""

        def is_there() -> str:
            assert not self.has_ended, f"it ended before it got there\n{self.out}\n{self.err}"
            path = self.folder / "at"
            return path.read_text() if path.exists() else ""

        return int(until(is_there, "the point of the plan"))

    def until_said(self, text: str, patience: float = PATIENCE) -> None:
        until(lambda: text in self.err, f"`{text}` on stderr", patience)

    def go_on(self) -> None:
        (self.folder / "go").touch()

    def members(self) -> list[int]:
        """Return the living processes of this process's session."""
        return session_of(self.pid)

    def close(self) -> None:
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not self.has_ended:
            self.wait()


def session_of(leader: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] not in "ZX":
                    found.append(int(name))
    return found


class Workshop:
    """A folder for one test, and its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = str(folder / "store")
        self.processes: list[Started] = []

    def start(
        self, call: str, plan: dict[str, Any] | None = None, tty: str = "", env: dict[str, str] | None = None, **more: Any
    ) -> Started:
        folder = self.folder / f"process-{len(self.processes)}"
        folder.mkdir()
        planned = {PLAN: json.dumps({"folder": str(folder), **plan})} if plan else {}
        started = Started(call, more, {**(env or {}), **planned}, self.folder, folder, tty)
        self.processes.append(started)
        return started

    def train(self, plan: dict[str, Any] | None = None, **more: Any) -> Started:
        return self.start("train", plan, store=self.store, **more)

    def outcome(self) -> str:
        return str(outcome_of(self.store).get("outcome"))

    def damage(self) -> list[Any]:
        return Store(self.store).verify()

    def close(self) -> None:
        for each in self.processes:
            each.close()


@contextlib.contextmanager
def workshop(folder: Path) -> Iterator[Workshop]:
    shop = Workshop(folder)
    try:
        yield shop
    finally:
        shop.close()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
