"""Handles Ctrl-C, SIGTERM and SIGUSR1 as requests to stop.

After a request, the current step finishes, the run is saved, and the process exits. Cluster schedulers send SIGUSR1
before a job reaches its time limit. If your program already handles SIGUSR1, its handler is kept.

The signal handlers themselves do nothing. Instead, Python writes each signal into a pipe, and a thread reads it. The thread
prints a message immediately, even if the main thread is busy in a hook. It repeats the request until training stops,
and ends the process if training does not stop in time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

GRACE = 30.0
"""Seconds within which the current hook or step must return after a request to stop."""
_TICK = 0.25
_POLL = 1.0
_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGUSR1: "SIGUSR1"}

_active: list[Interrupts] = []
_forking = threading.local()


class Interrupts:
    """While the `with` block runs, Ctrl-C, SIGTERM and SIGUSR1 are requests to stop.

    Outside the main thread, only `poll` can request a stop.

    `poll` is called about once a second and returns why training should stop, or None; `warn` prints a line.
    """

    def __init__(self, warn: Callable[[str], None], poll: Callable[[], str | None] = lambda: None) -> None:
        self._warn, self._poll = warn, poll
        self.reason: str | None = None
        """Why training should stop, or None before a request."""
        self.signal: int | None = None
        """The signal that requested the stop, or None."""
        self._stop: Callable[[str], None] | None = None
        self._abandon: Callable[[str], None] | None = None
        self._deadline = float("inf")
        self._num_without_deadline = 0
        self._is_over = threading.Event()
        self._handlers: dict[int, Any] = {}
        """The handlers that were set before this block. They are restored after it."""

    def __enter__(self) -> Self:
        self._pipe, self._pid = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC), os.getpid()
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in _NAMES if number != signal.SIGUSR1 or _is_unused(number)}
            self._handlers = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
        if self._handlers:
            self._wakeup_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            for number in self._handlers:
                signal.signal(number, _ignore)
        _active.append(self)
        self._thread = threading.Thread(target=self._watch, name="trainmaster-interrupts", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if os.getpid() != self._pid:  # a child process that a hook forked must not clean up
            return
        self._is_over.set()
        if self._handlers:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wakeup_fd)
        os.write(self._pipe[1], b"\0")  # wakes up the thread
        self._thread.join()
        _active.remove(self)
        for fd in self._pipe:
            os.close(fd)

    @contextlib.contextmanager
    def stopping(self, stop: Callable[[str], None], abandon: Callable[[str], None]) -> Iterator[None]:
        """While the `with` block runs, call `stop(reason)` when a stop is requested.

        If the block does not end in time, `abandon(reason)` is called before the process exits.
        """
        self._stop, self._abandon = stop, abandon
        try:
            yield
        finally:
            self._stop = self._abandon = None

    @contextlib.contextmanager
    def no_deadline(self) -> Iterator[None]:
        """While the `with` block runs, the process is not ended by force, so that saving can take as long as necessary."""
        self._num_without_deadline += 1
        try:
            yield
        finally:
            self._num_without_deadline -= 1
            self._deadline = max(self._deadline, time.monotonic() + GRACE)

    def request_stop(self, reason: str) -> None:
        """Ask the current run to stop. This is called from the thread that trains the run."""
        self.reason = self.reason or reason

    def clear_request(self) -> None:
        """Drop a stop request that did not come from a signal.

        Unlike a signal, such a request applies only to the current run, so the next run may start.
        """
        if self.signal is None:
            self.reason, self._deadline = None, float("inf")

    def raise_signal(self) -> None:
        """After a signal, raise `KeyboardInterrupt`, or exit with code 143 (SIGTERM) or 138 (SIGUSR1)."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            raise SystemExit(128 + self.signal)

    # ---- the thread

    def _watch(self) -> None:
        polled_at = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe[0], selectors.EVENT_READ)
            while not self._is_over.is_set():
                if selector.select(_TICK):
                    for number in os.read(self._pipe[0], 100):
                        self._receive(number)
                now = time.monotonic()
                if self.reason is None and now - polled_at >= _POLL:
                    polled_at = now
                    self._request(self._poll())
                if self.reason is not None and not self._is_over.is_set():
                    if self._stop is not None:
                        with contextlib.suppress(Exception):  # the loop may not have started, or may have ended
                            self._stop(self.reason)
                    if now > self._deadline and not self._num_without_deadline:
                        self._exit(f"{self.reason}; the current step did not return within {GRACE:g} s, so the process exits")

    def _receive(self, number: int) -> None:
        if number not in _NAMES:
            return
        if self.signal is not None:
            if number == signal.SIGINT:
                _show_cursor()
                os._exit(128 + number)
            return
        self.signal = number
        self._request(_NAMES[signal.Signals(number)])

    def _request(self, reason: str | None) -> None:
        if reason is None:
            return
        self.reason = self.reason or reason
        self._deadline = time.monotonic() + GRACE
        again = "; Ctrl-C again stops at once" if self._handlers else ""
        # The message is printed in its own thread, because writing to a terminal can block.
        text = f"{reason}: finishing the step and saving{again}"
        threading.Thread(target=self._warn, args=(text,), daemon=True).start()

    def _exit(self, reason: str) -> None:
        """End the process while the main thread is still blocked."""
        thread = threading.Thread(target=self._run_abandon, args=(reason,), daemon=True)
        thread.start()
        thread.join(5.0)
        for child in multiprocessing.active_children():
            child.kill()
        _show_cursor()
        os._exit(128 + self.signal if self.signal is not None else 1)

    def _run_abandon(self, reason: str) -> None:
        if self._abandon is not None:
            self._abandon(reason)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()


def _show_cursor() -> None:
    """Show the cursor that a progress bar has hidden.

    A separate thread writes to the terminal, because writing blocks if the output is paused (Ctrl-S).
    """

    def show() -> None:
        with contextlib.suppress(OSError, ValueError):
            if sys.__stdout__ is not None and sys.__stdout__.isatty():
                os.write(sys.__stdout__.fileno(), b"\x1b[?25h")

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    thread.join(0.2)


def _ignore(number: int, frame: object) -> None:
    """Do nothing, because Python has already written the signal to the pipe."""


def _is_unused(number: int) -> bool:
    """Return whether a signal has no handler yet.

    `signal.getsignal` does not see handlers that `faulthandler.register` has installed.
    """
    if signal.getsignal(number) is not signal.SIG_DFL:
        return False
    with contextlib.suppress(OSError):  # not Linux
        with open("/proc/self/status") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
        return not int(caught.split()[1], 16) >> (number - 1) & 1
    return True


def _before_fork() -> None:
    """Block signals during a fork, because a new child that receives Ctrl-C would write it into its parent's pipe."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _NAMES)


def _in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_child() -> None:
    """Reset signals in a forked process, such as a loader worker: SIGTERM ends it, and Ctrl-C and SIGUSR1 are ignored."""
    if _active and (handlers := _active[-1]._handlers):
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if signal.SIGUSR1 in handlers:
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    _active.clear()
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
