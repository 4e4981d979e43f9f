"""Leases determine which process may write to a run, and let other processes notice when that process is gone.

The process that holds a lease renews it by changing a file at regular intervals. Expiry is *observed*: a watcher
measures with its own monotonic clock how long the file has been unchanged. Wall clocks and the clocks of other machines
are not used. If the holder runs on the same machine and the machine was not rebooted, the kernel knows at once whether
the holder is alive. If a suspended holder wakes up after another process has taken over the run, it can write only to
the folders of its own attempt, which readers now ignore.

The lease is renewed by a thread, which cannot run while a training step holds the GIL. If a step holds the GIL for
longer than the lease lasts, another machine or container can take over the run. The error message then explains the
cause and recommends a longer lease. A separate process could renew the lease even during such a step, but it would cost
memory and startup time for each run, and it would keep the lease even if training hangs.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from trainmaster.errors import StoreAccessError, StoreDamagedError, StoreError
from trainmaster.store.attempt_records import LEASE
from trainmaster.store.files import Files
from trainmaster.store.keys import run_folder
from trainmaster.store.process_identity import Owner
from trainmaster.store.run import Run

LEASE_TIME = 60.0
"""A lease expires if its file does not change for this many seconds."""
BEATS_PER_LEASE = 6

_held: set[str] = set()
"""The tokens of the attempts that this process holds. An attempt of this process that is not listed and has no outcome was abandoned."""


@contextlib.contextmanager
def holding(token: str) -> Iterator[None]:
    """Register the token of an attempt before the `with` block creates the attempt, so that no other thread considers it abandoned.

    If the block fails, the token is removed again.
    """
    _held.add(token)
    try:
        yield
    except BaseException:
        _held.discard(token)
        raise


class Hold(Enum):
    FREE = "no process holds the run"
    HELD = "a live process holds the run"
    UNKNOWN = "only watching the lease can show whether the holder is alive"


class Holder(NamedTuple):
    hold: Hold
    attempt: int
    owner: Owner | None = None
    heartbeat: float = 0.0


def holder_of(run: Run) -> Holder:
    """Return whether a process holds a run, and which one. The result is `UNKNOWN` if this cannot be determined with a single check."""
    number = run.newest()
    if number == 0 or _has_ended(run, number):
        return Holder(Hold.FREE, number)
    try:
        claim = run.claim_of(number)
    except (StoreDamagedError, FileNotFoundError):
        return Holder(Hold.UNKNOWN, number)
    owner = Owner.of(claim["owner"])
    is_alive = owner.is_alive() if owner is not None else None
    if owner == Owner.this() and claim["token"] not in _held:
        is_alive = False
    hold = {True: Hold.HELD, False: Hold.FREE, None: Hold.UNKNOWN}[is_alive]
    return Holder(hold, number, owner, float(claim["heartbeat"]))


def _has_ended(run: Run, number: int) -> bool:
    try:
        return run.outcome_of(number) is not None
    except StoreDamagedError:  # the outcome is damaged, but it exists, so the attempt has ended
        return True


class Watch:
    """Watches the leases of other processes."""

    def __init__(self, files: Files, lease_time: float) -> None:
        self._files, self._lease_time = files, lease_time
        self._seen: dict[tuple[str, int], tuple[object, float, float]] = {}

    def look(self, run: Run, holder: Holder) -> Hold:
        """Check a lease. Return FREE if it has expired, HELD if it has changed since the last check, and otherwise UNKNOWN."""
        at = (run.key, holder.attempt)
        try:
            mark: object = self._files.mark(run.path(holder.attempt, LEASE))
        except StoreError:
            mark = None
        now = time.monotonic()
        if at not in self._seen:
            self._seen[at] = (mark, now, 0.0)
            return Hold.UNKNOWN
        before, looked, still = self._seen[at]
        if mark != before:
            self._seen[at] = (mark, now, 0.0)
            return Hold.HELD
        # This process itself may have been suspended since the last check, so add at most one heartbeat interval.
        still += min(now - looked, max(1.0, self._lease_time / BEATS_PER_LEASE))
        self._seen[at] = (mark, now, still)
        return Hold.FREE if still >= max(self._lease_time, 3 * holder.heartbeat) else Hold.UNKNOWN


class ExpiredLease:
    """Used instead of a `Watch` if another process has already observed that the lease of an attempt has expired."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt

    def look(self, run: Run, holder: Holder) -> Hold:
        return Hold.FREE if holder.attempt == self._attempt else Hold.UNKNOWN


class Heartbeat:
    """Renews the lease of an attempt in a thread until `stop` is called, and checks whether the attempt was replaced."""

    def __init__(self, run: Run, number: int, token: str, interval: float) -> None:
        self._run, self._number, self._token, self._interval = run, number, token, interval
        self._pid = os.getpid()
        self._stopped = threading.Event()
        self.is_lost = False
        self._renewed = time.monotonic()
        self._silence: float | None = None
        """The number of seconds from the last renewal until this process noticed that it had lost the lease."""
        self._problem = ""
        """Why the last heartbeat failed. Empty if it succeeded."""
        self._thread = threading.Thread(target=self._beat, name=f"trainmaster-lease-{run.key}", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopped.wait(self._interval) and not self.is_lost and self._token in _held:
            try:
                self.renew()
            except (StoreAccessError, StoreDamagedError, FileNotFoundError) as error:  # the next heartbeat may succeed
                self._problem = error.fact if isinstance(error, StoreError) else str(error)

    def renew(self) -> None:
        """Check whether another attempt has replaced this one. If not, change the lease file."""
        self.is_lost = self.is_lost or not self.is_newest()
        if not self.is_lost:
            self._run.files.beat(self._run.path(self._number, LEASE))
            self._renewed, self._problem = time.monotonic(), ""

    def why_lost(self) -> tuple[str, str]:
        """Return the likely reason why this attempt was replaced, and a hint."""
        silence, lease = self._silence or time.monotonic() - self._renewed, self._interval * BEATS_PER_LEASE
        fenced = "nothing is lost: the attempt that replaced it resumes from the last checkpoint"
        if silence < lease:
            return (
                f"its lease of {lease:g} s was renewed {silence:.0f} s ago, by the clock of this machine: the machine was suspended, or "
                "another process used a shorter lease time, or the run was removed",
                fenced,
            )
        lasted = f"its lease of {lease:g} s was not renewed for {silence:.0f} s"
        if self._problem:
            return f"{lasted}: {self._problem}", fenced
        return (
            f"{lasted}: a step held Python's GIL for that long, so no other thread could run, or this process was suspended",
            f"{fenced}; if your steps take that long, give the manager a longer lease: lease_time={math.ceil(2 * silence)}",
        )

    def is_newest(self) -> bool:
        """Return whether this is still the newest attempt. Raise `StoreAccessError` if the run no longer has any attempts."""
        if self.is_inherited:
            return False
        newest = self._run.newest()
        if newest > self._number and self._silence is None:
            self._silence = time.monotonic() - self._renewed
        if newest == 0:
            folder = run_folder("stats", self._run.key)
            raise StoreAccessError(
                f"the records of run {self._run.key} are gone", where=folder, hint="the store was removed, or is not mounted"
            )
        return newest == self._number

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the holder. If so, it has no heartbeat thread and must not write."""
        return os.getpid() != self._pid

    def stop(self) -> None:
        self.abandon()
        if not self.is_inherited and self._thread is not threading.current_thread():
            self._thread.join()

    def abandon(self) -> None:
        """Give up the attempt without writing an outcome. The heartbeat thread ends by itself."""
        if not self.is_inherited:  # in a forked process, a thread that no longer exists may hold the lock of `_stopped`
            self._stopped.set()
            _held.discard(self._token)
