"""Starts the ranks of one run as processes on this machine, watches them, and ends all of them if one fails.

Each rank has its own session, so Ctrl-C reaches only the process that watches the ranks. This process passes the
signal on to rank 0. Rank 0 asks the others to stop after the same batch, and the run is saved once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import IO, Any

from trainmaster.loop.ranks import FOLLOWED, LAUNCHED
from trainmaster.manager.error_text import describe_exit

GRACE = 3.0
"""Seconds that ranks have to exit by themselves after one of them has failed."""
_TICK = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_ranks(command: Sequence[str], num: int) -> int:
    """Run a command in `num` processes, which find each other through environment variables. Return the exit code."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-ranks-") as folder:
        environment = {**os.environ, LAUNCHED: os.path.join(folder, "rendezvous"), "WORLD_SIZE": str(num), "LOCAL_WORLD_SIZE": str(num)}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num)))
        with RankProcesses(command, num, environment) as ranks:
            return ranks.wait()


class RankProcesses:
    """Starts the processes of all ranks, and watches them until they end."""

    def __init__(self, command: Sequence[str], num: int, environment: dict[str, str]) -> None:
        self._command, self._num, self._environment = command, num, environment
        self._processes: list[Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        self._handlers: dict[int, Any] = {}
        self._num_signals = 0

    def __enter__(self) -> RankProcesses:
        self._handlers = {number: signal.signal(number, self._pass_on) for number in _SIGNALS}
        for rank in range(self._num):
            environment = {**self._environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = Popen(
                self._command,
                env=environment,
                start_new_session=True,
                stdin=None if rank == 0 else DEVNULL,
                stdout=None if rank == 0 else PIPE,
                stderr=None if rank == 0 else STDOUT,
            )
            self._processes.append(process)
            if process.stdout is not None:
                reader = threading.Thread(target=_print_lines, args=(process.stdout, f"rank {rank}: "), daemon=True)
                reader.start()
                self._readers.append(reader)
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        for reader in self._readers:
            reader.join(1.0)
        for process in self._processes:
            if process.stdout is not None:
                process.stdout.close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def wait(self) -> int:
        """Wait until all ranks have ended, and return the exit code. If one fails, the others have `GRACE` seconds to exit."""
        failed: int | None = None
        deadline = float("inf")
        while True:
            codes = [each.poll() for each in self._processes]
            if any(codes) and (failed is None or codes[failed] == FOLLOWED):
                failed = _cause(codes)  # ranks that exit because of the failure may end before the rank that caused it
                deadline = min(deadline, time.monotonic() + GRACE)
            if None not in codes:
                break
            if time.monotonic() > deadline:
                self._kill()
            time.sleep(_TICK)
        for reader in self._readers:
            reader.join(1.0)
        if failed is None:
            return 0
        code = codes[failed] or 0
        if code > 128 and self._num_signals:  # rank 0 has saved the run and printed a message
            return code
        print(f"rank {failed} of {self._num} {describe_exit(code)}, so all ranks have ended", file=sys.stderr, flush=True)
        return code if 0 < code != FOLLOWED else 1

    def _pass_on(self, number: int, frame: object) -> None:
        self._num_signals += 1
        for each in self._processes if self._num_signals > 1 and number == signal.SIGINT else self._processes[:1]:
            with contextlib.suppress(ProcessLookupError):
                each.send_signal(number)

    def _kill(self) -> None:
        for each in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if each.poll() is None:
                    os.killpg(each.pid, signal.SIGKILL)  # also ends its loader workers
        for each in self._processes:
            each.wait()


def _cause(codes: Sequence[int | None]) -> int:
    """Return the rank that caused the failure.

    Ranks that exited because another rank failed are ignored. Among the rest, a rank that was killed by a signal
    takes precedence over a rank that failed by itself.
    """
    failed = [rank for rank, code in enumerate(codes) if code]
    own = [rank for rank in failed if codes[rank] != FOLLOWED] or failed
    return min(own, key=lambda rank: ((codes[rank] or 0) > 0, rank))


def _print_lines(source: IO[bytes], prefix: str) -> None:
    """Print each line of a rank's output with a prefix."""
    with contextlib.suppress(OSError, ValueError):  # stderr is closed
        for line in source:
            sys.stderr.write(prefix + line.decode(errors="replace"))
            sys.stderr.flush()


def watch_parent() -> Callable[[], str | None]:
    """Return a function that returns a reason to stop if the process that started this rank has ended, else None."""
    parent = os.getppid()
    return lambda: None if os.getppid() == parent else "the process that started the ranks is gone"
