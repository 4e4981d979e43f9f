"""Ctrl-C and SIGTERM: asked once, whoever works finishes the step, saves, and ends.

Nothing is done in a signal handler. The kernel's word goes through a pipe to a thread, which says so at once, also while the main thread is
deep in somebody's hook; asks the work to stop until it does; and ends the process where it does not.
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
"""Seconds that a hook, or whatever else runs, has to return."""
_TICK = 0.25
_POLL = 1.0
_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}

_active: list[Interrupts] = []
_forking = threading.local()


class Interrupts:
    """While the block runs, Ctrl-C and SIGTERM are requests. Handlers are set only in the main thread; `poll` is asked anywhere.

    `polled` says, about once a second, why the work should stop, if it should; `say` prints a line.
    """

    def __init__(self, say: Callable[[str], None], polled: Callable[[], str | None] = lambda: None) -> None:
        self._say, self._polled = say, polled
        self.reason: str | None = None
        """Why the work is to stop, once it is."""
        self.signal: int | None = None
        """The signal that said so, if one did."""
        self._stop: Callable[[str], None] | None = None
        self._give_up: Callable[[str], None] | None = None
        self._deadline = float("inf")
        self._num_saving = 0
        self._is_over = threading.Event()
        self._before: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        self._pipe, self._pid = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC), os.getpid()
        if threading.current_thread() is threading.main_thread():
            found = {number: signal.getsignal(number) for number in _NAMES}
            self._before = {number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)}
        if self._before:
            self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            for number in self._before:
                signal.signal(number, _noted)
        _active.append(self)
        self._thread = threading.Thread(target=self._watch, name="trainmaster-interrupts", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if os.getpid() != self._pid:  # a child that a hook has forked: nothing of this is its own
            return
        self._is_over.set()
        if self._before:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wakeup)
        assert self._pipe is not None
        os.write(self._pipe[1], b"\0")  # wake it up
        self._thread.join()
        _active.remove(self)
        for fd in self._pipe or ():
            os.close(fd)

    @contextlib.contextmanager
    def stopping(self, stop: Callable[[str], None], give_up: Callable[[str], None]) -> Iterator[None]:
        """While the block runs, `stop(reason)` is how to ask for its end; `give_up(reason)` is the last word where it does not come."""
        self._stop, self._give_up = stop, give_up
        try:
            yield
        finally:
            self._stop = self._give_up = None

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """While the block runs, it is not given up: a save takes as long as it takes."""
        self._num_saving += 1
        try:
            yield
        finally:
            self._num_saving -= 1
            self._deadline = max(self._deadline, time.monotonic() + GRACE)

    def forget(self) -> None:
        """A request that no signal made was met: the next piece of work may go on."""
        if self.signal is None:
            self.reason, self._deadline = None, float("inf")

    def leave(self) -> None:
        """End as the signal would have it, if one came: `KeyboardInterrupt`, or exit code 143."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            raise SystemExit(128 + self.signal)

    # ---- the thread

    def _watch(self) -> None:
        assert self._pipe is not None
        asked_at = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe[0], selectors.EVENT_READ)
            while not self._is_over.is_set():
                if selector.select(_TICK):
                    for number in os.read(self._pipe[0], 100):
                        self._signalled(number)
                now = time.monotonic()
                if self.reason is None and now - asked_at >= _POLL:
                    asked_at = now
                    self._ask(self._polled())
                if self.reason is not None and not self._is_over.is_set():
                    if self._stop is not None:
                        with contextlib.suppress(Exception):  # nothing runs yet, or any more, that could be stopped
                            self._stop(self.reason)
                    if now > self._deadline and not self._num_saving:
                        self._end(f"{self.reason}; what ran did not return within {GRACE:g} s, and is given up")

    def _signalled(self, number: int) -> None:
        if number not in _NAMES:
            return
        if self.signal is not None:
            if number == signal.SIGINT:
                _show_cursor()
                os._exit(128 + number)
            return
        self.signal = number
        self._ask(_NAMES[signal.Signals(number)])

    def _ask(self, reason: str | None) -> None:
        if reason is None:
            return
        self.reason = self.reason or reason
        self._deadline = time.monotonic() + GRACE
        again = "; Ctrl-C once more stops at once" if self._before else ""
        # In a thread of its own: whoever holds the terminal may not let go of it.
        text = f"{reason}: finishing the step and saving{again}"
        threading.Thread(target=self._say, args=(text,), daemon=True).start()

    def _end(self, reason: str) -> None:
        """Leave without the main thread, which does not come back."""
        saying = threading.Thread(target=self._last_words, args=(reason,), daemon=True)
        saying.start()
        saying.join(5.0)
        for child in multiprocessing.active_children():
            child.kill()
        _show_cursor()
        os._exit(128 + self.signal if self.signal is not None else 1)

    def _last_words(self, reason: str) -> None:
        if self._give_up is not None:
            self._give_up(reason)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()


def _show_cursor() -> None:
    """Bars hide it, and nobody else will show it again. In a thread: a terminal may be stopped."""

    def show() -> None:
        with contextlib.suppress(OSError, ValueError):
            if sys.__stdout__ is not None and sys.__stdout__.isatty():
                os.write(sys.__stdout__.fileno(), b"\x1b[?25h")

    showing = threading.Thread(target=show, daemon=True)
    showing.start()
    showing.join(0.2)


def _noted(number: int, frame: object) -> None:
    """The signal has gone through the pipe by now."""


def _before_fork() -> None:
    """Ctrl-C goes to the whole group: in a child that still has its parent's pipe it would be a second one."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _NAMES)


def _in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_child() -> None:
    """A forked process, such as a loader's worker, leaves Ctrl-C to its parent, and ends on SIGTERM."""
    if _active and _active[-1]._before:
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _active.clear()
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
