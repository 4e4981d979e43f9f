"""Leases: who may write to a run now, and how a watcher learns that the holder is gone.

A lease is kept by changing a file again and again. Expiry is *observed*: a watcher times with its own monotonic clock how long that
file has not changed; no wall clock and no time of another machine decides anything. An owner in this very boot is known at once, by the
kernel's word. A holder that was replaced and wakes up can write only below its own attempt, where nobody looks any more.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from trainmaster.errors import StoreAccessError, StoreDamagedError, StoreError
from trainmaster.store.files import Files
from trainmaster.store.keys import run_folder
from trainmaster.store.owner import Owner
from trainmaster.store.run import LEASE, Run

LEASE_TIME = 60.0
"""Seconds without a change after which a lease is taken over."""
BEATS_PER_LEASE = 6

_held: set[str] = set()
"""The tokens of the attempts that this process holds. An attempt of this process that is not among them was given up without a word."""


@contextlib.contextmanager
def holding(token: str) -> Iterator[None]:
    """Hold the attempt that the block makes, from before it can be seen; not if the block fails."""
    _held.add(token)
    try:
        yield
    except BaseException:
        _held.discard(token)
        raise


class Hold(Enum):
    FREE = "nobody holds the run"
    HELD = "a live process holds the run"
    UNKNOWN = "only watching the lease can tell"


class Holder(NamedTuple):
    hold: Hold
    attempt: int
    owner: Owner | None = None
    heartbeat: float = 0.0


def holder_of(run: Run) -> Holder:
    """Who holds a run now, as far as one look can tell."""
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
    except StoreDamagedError:  # it was written, by an attempt that had ended
        return True


class Watch:
    """What one watcher has seen of the leases of others."""

    def __init__(self, files: Files, lease_time: float) -> None:
        self._files, self._lease_time = files, lease_time
        self._seen: dict[tuple[str, int], tuple[object, float, float]] = {}

    def look(self, run: Run, holder: Holder) -> Hold:
        """FREE once the lease has not changed for long enough, HELD if it has changed since the last look, UNKNOWN in between."""
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
        # A watcher that was itself stopped in between has not watched: a pause counts as one beat at most.
        still += min(now - looked, max(1.0, self._lease_time / BEATS_PER_LEASE))
        self._seen[at] = (mark, now, still)
        return Hold.FREE if still >= max(self._lease_time, 3 * holder.heartbeat) else Hold.UNKNOWN


class Seen:
    """What another watcher has seen: that the lease of one attempt has expired."""

    def __init__(self, expired: int) -> None:
        self._expired = expired

    def look(self, run: Run, holder: Holder) -> Hold:
        return Hold.FREE if holder.attempt == self._expired else Hold.UNKNOWN


class Heartbeat:
    """A thread that keeps a lease until it is stopped, and looks whether the attempt was replaced."""

    def __init__(self, run: Run, number: int, token: str, interval: float) -> None:
        self._run, self._number, self._token, self._interval = run, number, token, interval
        self._pid = os.getpid()
        self._stopped = threading.Event()
        self.is_lost = False
        self._thread = threading.Thread(target=self._beat, name=f"trainmaster-lease-{run.key}", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopped.wait(self._interval) and not self.is_lost and self._token in _held:
            with contextlib.suppress(StoreAccessError, StoreDamagedError, FileNotFoundError):  # the next beat may succeed
                self.renew()

    def renew(self) -> None:
        """Change the lease's file, and look for a successor."""
        self.is_lost = self.is_lost or not self.is_newest()
        if not self.is_lost:
            self._run.files.beat(self._run.path(self._number, LEASE))

    def is_newest(self) -> bool:
        """Whether no other attempt has replaced this one; a `StoreAccessError` if there is no record of any."""
        newest = self._run.newest()
        if newest == 0:
            folder = run_folder("stats", self._run.key)
            raise StoreAccessError(
                f"the records of run {self._run.key} are gone", where=folder, hint="the store was removed, or is not mounted"
            )
        return os.getpid() == self._pid and newest == self._number

    def stop(self) -> None:
        self.abandon()
        if os.getpid() == self._pid and self._thread is not threading.current_thread():
            self._thread.join()

    def abandon(self) -> None:
        """Hold the attempt no longer, without a word; the thread ends by itself."""
        self._stopped.set()
        if os.getpid() == self._pid:
            _held.discard(self._token)
