"""Ends a process that was forked inside a routine and raised an error."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from typing import NoReturn

_MAX_SECONDS = 2.0
"""The timeout for printing. If another thread of the parent held a lock on the streams during the fork, printing would block forever."""


def exit_forked_process(error: BaseException) -> NoReturn:
    """Print the traceback, and exit with the exit code that Python would use, but without any cleanup.

    `finally` blocks, hooks and finalizers would clean up resources of the parent process: its lease, its files, and the workers of its
    data loaders. They would also wait for the parent's threads, which do not exist in this process.
    """
    code, text = 1, "".join(traceback.format_exception(error))
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        text = "" if isinstance(error.code, int | None) else f"{error.code}\n"
    output = threading.Thread(target=_write_output, args=(text,), daemon=True)
    output.start()
    output.join(_MAX_SECONDS)
    os._exit(code & 0xFF)


def _write_output(text: str) -> None:
    for stream, content in ((sys.__stdout__, ""), (sys.__stderr__, text)):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # the stream is closed
                stream.write(content)
                stream.flush()
