"""Owners: which process holds a run, and what this machine can say about its life.

A host name and a process id tell nothing: two machines may share a name, and ids are used again. The kernel's boot id is one machine's,
from one start to the next, and within it a process id, its namespace and its start time are one process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Owner:
    """One process, on one machine, in one boot of it."""

    host: str
    boot: str
    """The kernel's boot id with the namespaces that process ids and times are counted in; empty where there is no such thing."""
    pid: int
    start: str
    """When the process started, in the kernel's ticks."""

    @classmethod
    def this(cls) -> Owner:
        return _this(os.getpid())

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Owner | None:
        """The owner that a record names; None where it names none that makes sense."""
        values = [record.get(name) for name in ("host", "boot", "pid", "start")]
        host, boot, pid, start = values
        if isinstance(host, str) and isinstance(boot, str) and type(pid) is int and pid > 0 and isinstance(start, str):
            return cls(host, boot, pid, start)
        return None

    def is_alive(self) -> bool | None:
        """What the kernel says; None if it cannot know: another machine, another boot, another container."""
        if not self.boot or not self.start or self.boot != _boot():
            return None
        state, start = _process(self.pid)
        if not start and _exists(self.pid):
            return None  # hidden from this user
        return start == self.start and state not in ("Z", "X")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@functools.lru_cache(1)  # by process id: a fork asks again
def _this(pid: int) -> Owner:
    import socket

    return Owner(socket.gethostname(), _boot(), pid, _process(pid)[1])


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "time") if os.path.lexists(f"/proc/self/ns/{name}")]
        return "/".join([boot, *spaces])
    except OSError:
        return ""


def _process(pid: int) -> tuple[str, str]:
    """State and start time of a process; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may hold anything
        return fields[0].decode(), fields[19].decode()
    except (OSError, IndexError):
        return "", ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
