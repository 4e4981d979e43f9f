"""Identifies the process that holds a run, and checks whether that process is alive.

A host name and a process id are not enough: two machines may have the same name, and process ids are reused. The
kernel's boot id identifies a machine until its next reboot. Within one boot, a process id, its namespace and its
start time identify a process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Owner:
    """Identifies a process uniquely, even across machines and reboots."""

    host: str
    boot: str
    """The kernel's boot id and the process's PID and time namespaces. Empty on systems without them."""
    pid: int
    start: str
    """The start time of the process in kernel ticks."""

    @classmethod
    def this(cls) -> Owner:
        return _this(os.getpid())

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Owner | None:
        """Return the owner described by a record, or None if the record is invalid."""
        host, boot, pid, start = (record.get(name) for name in ("host", "boot", "pid", "start"))
        if isinstance(host, str) and isinstance(boot, str) and type(pid) is int and pid > 0 and isinstance(start, str):
            return cls(host, boot, pid, start)
        return None

    def is_alive(self) -> bool | None:
        """Return whether the process is alive, or None if this cannot be determined, for example from another machine or container."""
        if not self.boot or not self.start or self.boot != _boot():
            return None
        state, start = _process(self.pid)
        if not start and _exists(self.pid):
            return None  # the process exists, but the kernel hides its details from this user
        return start == self.start and state not in ("Z", "X")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@functools.lru_cache(1)  # cached by process id, because a fork is a different process
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
    """Return the state and the start time of a process. Both are empty if the process does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the process name before the last `)` may contain anything
        return fields[0].decode(), fields[19].decode()
    except (OSError, IndexError):
        return "", ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
