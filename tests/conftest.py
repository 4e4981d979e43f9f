"""Settings for all tests: one thread for tiny tensors, working signals, and temporary files in memory.

`make test` runs the smoke tests and the tests without the marker `integration`; `make integration` runs the rest.
"""

from __future__ import annotations

import os
import shutil
import signal

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads would mostly wait for each other; child processes inherit this setting

MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**31 and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)  # thousands of fsyncs are slow on a disk

# Hypothesis uses the same examples in every run, locally and in CI; `make faults` draws new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("random", deadline=None, print_blob=True)


def pytest_configure() -> None:
    """Enable Ctrl-C, which is ignored under `nohup` and in a script's background jobs.

    Otherwise, child processes would ignore it too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("random" if os.environ.get("TRAINMASTER_FAULTS") == "full" else "repeatable")
