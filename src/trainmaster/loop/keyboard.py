"""Turns Ctrl-C, or an interrupted notebook cell, into a request to stop.

The loop finishes the batch, saves a checkpoint, and then raises `KeyboardInterrupt`.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from trainmaster.errors import LoopError


@contextmanager
def stopping_on_interrupt(stop: Callable[[str], None], how_to_continue: Callable[[], str]) -> Iterator[None]:
    """While the block runs, the first SIGINT calls `stop`, and the second one raises `KeyboardInterrupt` at once.

    If a stop was requested, `how_to_continue()` is printed after the block, and `KeyboardInterrupt` is raised. If your
    program or a manager already handles SIGINT, this context manager does nothing.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_requested = False

    def request(number: int, frame: object) -> None:
        nonlocal is_requested
        is_requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            stop("Ctrl-C")
        except LoopError:  # training has not begun, or has just ended
            raise KeyboardInterrupt from None
        _say("Ctrl-C: finishing the batch and saving; Ctrl-C again stops at once")

    signal.signal(signal.SIGINT, request)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_requested:
        _say(how_to_continue())
        raise KeyboardInterrupt


def _say(text: str) -> None:
    with suppress(OSError, ValueError, RuntimeError):  # the stream is closed, or the interrupted code was writing to it
        print(f"trainmaster: {text}", file=sys.stderr, flush=True)
