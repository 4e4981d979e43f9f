"""What all tests share: one thread for tiny tensors, signals that work, and layers.

`make test` runs what is not marked `integration`, and the smoke tests of what is; `make integration` runs the rest.
"""

from __future__ import annotations

import os
import shutil
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # on a few cores, threads wait for each other most of the time; in child processes, too

MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**31 and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)  # thousands of syncs of tiny files: no power fails here


def pytest_configure() -> None:
    """Under `nohup` or in the background of a script, Ctrl-C is ignored, and every child process would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
