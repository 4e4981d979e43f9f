"""Starts Python processes in milliseconds, by forking a warm interpreter that has imported torch but computed nothing.

`run` and `Popen` replace the ones in `subprocess` for commands of the form `python -c CODE`, `-m MODULE` or a file. A
process has its own pid, session, streams, environment, signals and exit code, so it can be killed, interrupted and
given a terminal like any other. Use a real `subprocess` to test what an interpreter does when it starts or exits:
imports, hash seeds, locales, OpenMP threads, finalizers.

OpenMP does not survive a fork once it has threads. The warm interpreter imports and never computes, so each child
starts its own threads.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import json
import multiprocessing.process
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_IMPORTS = (
    *("torch", "torch._dynamo", "torch.utils.data", "numpy", "safetensors.torch", "matplotlib.backends.backend_agg", "matplotlib.figure"),
    *("rich.progress", "rich.table", "rich.live", "multiprocessing.spawn", "multiprocessing.connection", "pydantic", "typer.main"),
    *("trainmaster.cli.app", "trainmaster.cli.run", "trainmaster.cli.show", "trainmaster.manager", "trainmaster.loop"),
)
_ENVIRON = dict(os.environ)
"""The environment before any test changes it. The warm interpreter starts with it."""
READ_AT_START = (
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "LC_ALL",
    "LC_CTYPE",
    "LANG",
    "TZ",
)
_HEAD = struct.Struct("!I")
_ANSWER = struct.Struct("!i")


# ---- for tests


class Popen(subprocess.Popen[Any]):
    """Like `subprocess.Popen`, for a Python program that is forked from the warm interpreter, in its own session."""

    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(super()._execute_child).bind(*given).arguments  # type: ignore[misc]
        refused = [name for name in ("executable", "preexec_fn", "pass_fds", "shell", "uid", "gid") if asked[name]]
        assert not refused, f"a forked process has no {', '.join(refused)}"
        words, cwd, env = [os.fspath(word) for word in asked["args"]], asked["cwd"], asked["env"]
        pipes = [asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        assert words[0] == sys.executable, f"only {sys.executable} is warm, not {words[0]}"
        env = dict(os.environ if env is None else env)
        changed = [name for name in READ_AT_START if env.get(name) != _ENVIRON.get(name)]
        assert not changed, f"an interpreter reads {', '.join(changed)} when it starts: use subprocess"
        job = {"words": words, "cwd": os.fspath(cwd or os.getcwd()), "env": env}
        inputs, _, _, outputs, _, errors = pipes
        with open(os.devnull, "r+b", buffering=0) as nothing:
            streams = [
                fd if fd != -1 else number if _is_open(number) else nothing.fileno() for number, fd in enumerate((inputs, outputs, errors))
            ]
            self._answers = _server().start(job, streams)
        self.pid = _ANSWER.unpack(_read(self._answers, _ANSWER.size))[0]
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], None if timeout is None else max(0.0, timeout))[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = _ANSWER.unpack(_read(self._answers, _ANSWER.size))[0]
            self._answers.close()
        return self.returncode


def run(
    args: list[Any], *, input: Any = None, capture_output: bool = False, timeout: float = 500.0, check: bool = False, **options: Any
) -> Any:
    """Like `subprocess.run`, for a Python program that is forked from the warm interpreter."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    with Popen(args, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


class _Server:
    """The warm interpreter, as seen by a test. It ends when the control socket closes."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL, env=_ENVIRON, cwd="/"
        )
        theirs.close()
        self._pid, self._lock = os.getpid(), threading.Lock()
        atexit.register(self.close)

    def start(self, job: dict[str, Any], streams: list[int]) -> socket.socket:
        """Fork a process. The socket receives its pid and later its exit code."""
        mine, theirs = socket.socketpair()
        text = json.dumps(job).encode()
        with theirs, self._lock:
            socket.send_fds(self._control, [_HEAD.pack(len(text))], [*streams, theirs.fileno()])
            self._control.sendall(text)
        return mine

    def close(self) -> None:
        if os.getpid() == self._pid:  # a fork runs the same exit functions, but must not end the interpreter
            self._control.shutdown(socket.SHUT_RDWR)
            self._control.close()
            self._process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


def _read(source: socket.socket, num: int) -> bytes:
    found = b""
    while len(found) < num:
        more = source.recv(num - len(found))
        if not more:
            raise EOFError("the warm interpreter has ended")
        found += more
    return found


# ---- the warm interpreter


def serve(control: socket.socket) -> Callable[[], None]:
    """Fork a process for each request.

    The function returns only in a forked process; it returns the program to run.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the forked processes handle SIGINT
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    alive: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        while alive and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with alive.pop(ended[0]) as answers, contextlib.suppress(OSError):  # the client may be gone
                answers.sendall(_ANSWER.pack(os.waitstatus_to_exitcode(ended[1])))
        if control not in ready:
            continue
        request = _received(control)
        if request is None:
            break
        job, streams, answers = request
        ready, is_ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ready)
            signal.set_wakeup_fd(-1)
            for end in (wake, woken):
                os.close(end)
            for each in (control, answers, *alive.values()):
                each.close()
            _begin_session(is_ready)
            return _become(job, streams)
        for fd in (*streams, is_ready):
            os.close(fd)
        os.read(ready, 1)  # from here on, the process handles signals like any other
        os.close(ready)
        alive[pid] = answers
        with contextlib.suppress(OSError):  # the client may be gone
            answers.sendall(_ANSWER.pack(pid))
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def _received(control: socket.socket) -> tuple[dict[str, Any], list[int], socket.socket] | None:
    head, fds, _, _ = socket.recv_fds(control, _HEAD.size, 4)
    if not head:
        return None
    job = json.loads(_read(control, _HEAD.unpack(head)[0]))
    return job, fds[:3], socket.socket(fileno=fds[3])


def _begin_session(is_ready: int) -> None:
    """Start a session with the signal handlers of a new interpreter. SIGINT is blocked until the program begins."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.setsid()
    os.close(is_ready)


def _become(job: Mapping[str, Any], streams: list[int]) -> Callable[[], None]:
    """Give this process the environment and streams of a new interpreter."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    for fd in set(streams) - {0, 1, 2}:
        os.close(fd)
    if os.isatty(0):
        import fcntl
        import termios

        with contextlib.suppress(OSError):  # the terminal of the tests themselves
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdin, sys.stdout, sys.stderr = (_opened(number) for number in range(3))
    os.chdir(job["cwd"])
    multiprocessing.process.ORIGINAL_DIR = job["cwd"]  # type: ignore[attr-defined]
    before = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(job["env"])
    _seed_anew()
    return _program(job["words"], len(before.split(os.pathsep)) if before else 0)


def _opened(number: int) -> Any:
    """Open a stream of this process with the encoding that the interpreter chose when it started."""
    was: Any = (sys.__stdin__, sys.__stdout__, sys.__stderr__)[number]
    is_by_line = number == 2 or (number == 1 and os.isatty(1))
    return open(number, "w" if number else "r", 1 if is_by_line else -1, was.encoding, was.errors, closefd=False)


def _seed_anew() -> None:
    """Seed the generators again, because forks would share the random numbers of their parent."""
    import random

    import numpy as np

    random.seed()
    np.random.seed()


def _program(words: list[str], num_inherited: int) -> Callable[[], None]:
    sys.orig_argv[:] = words
    rest = words[1:]
    filters = os.environ.get("PYTHONWARNINGS", "").split(",")
    while rest[0] == "-W":
        filters, rest = [*filters, rest[1]], rest[2:]
    sys.warnoptions[:] = filter(None, filters)
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    base = sys.path[1 + num_inherited :]
    if rest[0] == "-c":
        sys.argv, sys.path[:] = ["-c", *rest[2:]], ["", *own, *base]
        return lambda: exec(compile(rest[1], "<string>", "exec"), main.__dict__)
    if rest[0] == "-m":
        import runpy

        sys.argv, sys.path[:] = ["-m", *rest[2:]], [os.getcwd(), *own, *base]
        return lambda: runpy._run_module_as_main(rest[1])  # type: ignore[attr-defined]
    assert not rest[0].startswith("-"), f"the option {rest[0]} needs a real interpreter: use subprocess"
    sys.argv, sys.path[:] = rest, [os.path.dirname(os.path.abspath(rest[0])), *own, *base]
    main.__file__ = os.path.abspath(rest[0])
    return lambda: exec(compile(Path(rest[0]).read_bytes(), rest[0], "exec"), main.__dict__)


def _show_own_frames(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Print a traceback that starts at the program, without the frames of this file."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


def _leave(program: Callable[[], None]) -> None:
    """Run a program, and exit like an interpreter.

    Modules are not torn down, because that takes longer than most programs run.
    """
    code = 0
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        program()
    except SystemExit as end:
        code = end.code & 0xFF if isinstance(end.code, int) else 0 if end.code is None else 1
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            code = code or 120
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _main() -> None:
    import gc
    import importlib

    for name in _IMPORTS:
        importlib.import_module(name)
    assert threading.active_count() == 1, f"forks are not safe with other threads: {threading.enumerate()}"
    gc.collect()
    gc.freeze()
    sys.excepthook = _show_own_frames
    _leave(serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    _main()
