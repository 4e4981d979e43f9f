"""Defines the length of the fault campaigns: short by default, or full with `TRAINMASTER_FAULTS=full`.

The short form uses the same sample every time, so a failure points to the change under test. The full form
draws a new seed and prints it when something fails; `TRAINMASTER_FAULTS_SEED` repeats that run, in either form.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

IS_FULL = os.environ.get("TRAINMASTER_FAULTS") == "full"
SEED = int(os.environ.get("TRAINMASTER_FAULTS_SEED") or (random.SystemRandom().randrange(10**6) if IS_FULL else 0))
REPEAT = f"repeat with TRAINMASTER_FAULTS_SEED={SEED}"


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(folder.name))
    return found
