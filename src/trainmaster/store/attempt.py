"""Attempts: the right to write to a run, taken exclusively, kept by a lease, and given back with a reason."""

from __future__ import annotations

import contextlib
import secrets
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from trainmaster.config.secrets import Mask
from trainmaster.errors import LeaseLostError, RunBusyError, StoreAccessError, StoreDamagedError, StoreError
from trainmaster.store.checkpoint import MANIFEST, Checkpoint, CheckpointName, write_checkpoint
from trainmaster.store.codec import encode_plain
from trainmaster.store.events import EventLog
from trainmaster.store.files import Appender
from trainmaster.store.keys import attempt_folder, attempt_number, run_folder
from trainmaster.store.lease import BEATS_PER_LEASE, Heartbeat, Hold, Holder, Seen, Watch, holder_of, holding
from trainmaster.store.owner import Owner
from trainmaster.store.record import Record, record_bytes
from trainmaster.store.run import ATTEMPT, EVENTS, LEASE, LOG, NEVER_SAVED, OUTCOME, PREVIEW, RESUME, STATUS, STOP, Run

PLOTS = "plots"
"""The folder for pictures, beside a preview."""
Facts = Mapping[str, Any]
_NO_FACTS: Facts = MappingProxyType({})
_NOTHING: Record = {"parent": None, "checkpoint": None, "step": None, "events": 0, "preview": {}}
"""What an attempt goes on from that starts anew."""


def utc_now() -> str:
    """For people to read; nothing is decided by it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def claim(run: Run, by: str, lease_time: float, watch: Watch | Seen | None = None, facts: Facts = _NO_FACTS) -> Attempt:
    """A new attempt on a run that nobody holds; `RunBusyError` if somebody does, or may.

    `watch` is what the caller knows of the lease: where it has seen it expire, the run is taken over. `facts` are recorded with it: what
    it takes to go on with the work.
    """
    while True:
        holder = holder_of(run)
        if holder.hold is Hold.UNKNOWN and watch is not None and watch.look(run, holder) is Hold.FREE:
            holder = holder._replace(hold=Hold.FREE)
        if holder.hold is not Hold.FREE:
            raise busy(run, holder)
        try:
            attempt = Attempt(run, holder.attempt + 1, by, lease_time / BEATS_PER_LEASE, facts)
        except FileExistsError:  # somebody was faster
            continue
        if holder.attempt and run.is_removed(holder.attempt):  # by somebody who may not have come to the end of it
            remove_records(run, before=holder.attempt)
        return attempt


def claim_or_watch(
    run: Run,
    by: str,
    lease_time: float,
    say: Callable[[str], None] | None = None,
    facts: Facts = _NO_FACTS,
    gives_up: Callable[[], bool] = lambda: False,
) -> Attempt:
    """As `claim`, but where only watching the lease can tell, watch it until it changes or expires; `say` tells of that."""
    watch = Watch(run.files, lease_time)
    while True:
        holder = holder_of(run)
        if holder.hold is Hold.UNKNOWN and watch.look(run, holder) is Hold.HELD:
            raise busy(run, holder)
        if holder.hold is Hold.UNKNOWN and say is not None:
            say(f"run {run.key} may be held by {holder.owner or 'an unknown process'}; watching its lease, for {lease_time:g} s at most")
            say = None
        if holder.hold is Hold.UNKNOWN and gives_up():
            raise busy(run, holder)
        try:
            return claim(run, by, lease_time, watch, facts)
        except RunBusyError:
            if holder.hold is not Hold.UNKNOWN:
                raise
        time.sleep(min(1.0, lease_time / 20))


def busy(run: Run, holder: Holder) -> RunBusyError:
    return RunBusyError(
        f"run {run.key} is held by {holder.owner or 'an unknown process'}",
        where=run.path(holder.attempt, ATTEMPT),
        hint="wait for it, or leave it to `batch`, which does other work meanwhile",
    )


class Attempt:
    """The right to write to a run.

    It writes below its own folders only. `save` commits checkpoints, `release` ends it; a process that dies ends it, too.
    """

    def __init__(self, run: Run, number: int, by: str, heartbeat: float, facts: Facts = _NO_FACTS) -> None:
        self.run, self.number, self.by = run, number, by
        self._token = secrets.token_hex(16)
        self._files = run.files
        self.log = EventLog(self._files, run.path(number, EVENTS))
        self._counting: list[CheckpointName] = []
        self._step: int | None = None
        self._checkpoint: str | None = None
        self._has_started = False
        self._is_tidy = False
        self._is_over = False
        self.mask = Mask.of()
        """The secrets that no text of this attempt shows: those of the environment, and of the config once it is told."""
        record = {
            **facts,
            "key": run.key,
            "attempt": number,
            "by": by,
            "token": self._token,
            "owner": Owner.this().to_dict(),
            "heartbeat": heartbeat,
            "claimed": utc_now(),
            "toc": time.time(),
        }
        with holding(self._token):
            self._files.create(run.path(number, ATTEMPT), record_bytes(record))
            with contextlib.suppress(StoreAccessError):
                self._files.beat(run.path(number, LEASE))  # made now: on a full disk it can be changed, not made
            self._heartbeat = Heartbeat(run, number, self._token, heartbeat)
        # An attempt that an interrupt let fall between two lines is held no longer.
        weakref.finalize(self, self._heartbeat.abandon).atexit = False

    @property
    def key(self) -> str:
        return self.run.key

    def hide(self, config: Mapping[str, Any]) -> None:
        """Write no text from now on that shows a secret of this config, a plain tree."""
        self.mask = Mask.of(config)

    def _shown(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A status or preview without secrets. What names a checkpoint is no text."""
        return {name: each if name == "best" else self.mask.tree(each, has_names=False) for name, each in values.items()}

    def start(self, base: Checkpoint | None, preview: Mapping[str, Any] | None = None) -> None:
        """Say what this attempt goes on from: a checkpoint, or nothing. From here on it is what readers see.

        The preview is that of the checkpoint; where there is none, `preview`.
        """
        self.check()
        if base is None:
            record: Record = {
                **_NOTHING,
                "status": {**NEVER_SAVED, "toc": time.time()},
                "preview": encode_plain(self._shown(preview or {})),
            }
        else:
            record = {"parent": base.name.attempt, "checkpoint": base.name.text}
            record |= {name: base.manifest[name] for name in ("step", "events", "status", "preview")}
            later = self.run.preview_at(base.name)
            record["preview"] = record["preview"] if later is None else later
        self._start(record)
        self._counting = self.run.checkpoints() if base is not None else []

    def remove(self) -> None:
        """Say that the run is gone, and then remove all that earlier attempts have left of it.

        The attempt itself stays: its number is never used again, so that nobody who sleeps can wake up as somebody else.
        """
        self.check()
        self._start({**_NOTHING, "status": NEVER_SAVED, "is_removed": True})
        remove_records(self.run, before=self.number)

    def _start(self, record: Record) -> None:
        self._files.create(self.run.path(self.number, RESUME), self._record({**record, "started": utc_now()}))
        self._step, self._checkpoint = record["step"], record["checkpoint"]
        self._has_started = True

    @property
    def is_lost(self) -> bool:
        """Whether the heart has noticed that this attempt was replaced; `check` looks anew."""
        return self._heartbeat.is_lost

    def check(self) -> None:
        """Raise `LeaseLostError` if this attempt was replaced; asked before every commit."""
        if self._is_over:
            raise LeaseLostError(f"attempt {self.number} of run {self.key} was released", hint="make a new attempt")
        if self._heartbeat.is_lost or not self._heartbeat.is_newest():
            raise LeaseLostError(
                f"attempt {self.number} of run {self.key} was replaced: its lease had expired, or the run was removed",
                where=run_folder("stats", self.key),
                why="this process was stopped, or could not write, for longer than the lease lasts",
                hint="nothing is lost: the attempt that replaced it goes on from the last checkpoint",
            )

    def save(
        self,
        step: int,
        value: Any,
        status: Mapping[str, Any],
        preview: Mapping[str, Any],
        context: Any = None,
        keep: int = 3,
        pinned: Collection[CheckpointName] = (),
        num_events: int | None = None,
    ) -> CheckpointName:
        """Commit a checkpoint with all events logged so far, then the preview and the status, then drop all but the last `keep`.

        Those that are `pinned` are kept, too. The status and the preview lie in the checkpoint's manifest, too: where a kill comes between,
        whoever goes on has them from there. `num_events` is how many events belong to it, where some were logged since `value` was taken.
        """
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
            raise StoreError(f"step={step!r}: wanted a whole number, 0 or more")
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise StoreError(f"keep={keep!r}: wanted a number of checkpoints, 1 or more")
        if not self._has_started:
            raise StoreError(f"attempt {self.number} of run {self.key} saves before it has started", hint="call `start(checkpoint)` first")
        self.check()
        facts = {
            "key": self.key,
            "attempt": self.number,
            "token": self._token,
            "step": step,
            "saved": utc_now(),
            "status": encode_plain(self._shown(status)),
            "preview": encode_plain(self._shown(preview)),
        }
        self.log.sync()
        facts["events"] = self.log.count if num_events is None else num_events
        name = self._free_name(step)
        try:
            write_checkpoint(self._files, name.folder(self.key), value, context, facts, self.check, self.mask)
        except BaseException as error:
            with contextlib.suppress(StoreAccessError, StoreDamagedError):
                if name not in self.run.own_checkpoints(self.number):
                    self._files.delete_folder(name.folder(self.key))
            if isinstance(error, StoreAccessError):
                self.check()  # whoever replaced this attempt has tidied up after it: that is what happened, then
            raise
        self._counting.insert(0, name)
        self._publish(name, facts["status"], facts["preview"])
        spared = {*self._counting[:keep], *pinned}
        self._drop([each for each in self._counting if each not in spared])
        self._counting = [each for each in self._counting if each in spared]
        return name

    def adopt(self, checkpoints: Mapping[CheckpointName, Record], status: Record, preview: Record) -> None:
        """Commit what was brought from another store: checkpoints, whose files lie here already, and last that the attempt has started."""
        self.check()
        self.log.sync()
        for name, manifest in checkpoints.items():
            facts = {**manifest, "key": self.key, "attempt": self.number, "token": self._token}
            self._files.create(f"{name.folder(self.key)}/{MANIFEST}", record_bytes(facts))
        self._publish(max(checkpoints), status, preview)
        self._start({**_NOTHING, "status": status, "preview": preview})

    def _publish(self, name: CheckpointName, status: Record, preview: Record) -> None:
        """Replace the preview, then the status, which says that a save is complete."""
        self._step, self._checkpoint = name.step, name.text
        self._files.replace(
            self.run.path(self.number, PREVIEW), self._record({"step": name.step, "checkpoint": name.text, "preview": preview})
        )
        self._files.replace(
            self.run.path(self.number, STATUS), self._record({"step": name.step, "checkpoint": name.text, "status": status})
        )

    def _record(self, members: Record) -> bytes:
        """A record that says whose it is."""
        return record_bytes({"key": self.key, "attempt": self.number, **members})

    def publish_preview(self, preview: Mapping[str, Any]) -> None:
        """Replace the preview of the last checkpoint."""
        record = self._record({"step": self._step, "checkpoint": self._checkpoint, "preview": encode_plain(self._shown(preview))})
        self._files.replace(self.run.path(self.number, PREVIEW), record)

    def _free_name(self, step: int) -> CheckpointName:
        """The next name for a checkpoint of `step`; what a failed save left under it is removed."""
        repeats = [name.repeat for name in self.run.own_checkpoints(self.number) if name.step == step]
        name = CheckpointName(self.number, step, max(repeats, default=0) + 1)
        self._files.delete_folder(name.folder(self.key))
        return name

    def _drop(self, names: list[CheckpointName]) -> None:
        self.check()  # a new checkpoint is durable by now, so whoever replaces this attempt goes on from that one
        for name in names:
            self._files.delete(f"{name.folder(self.key)}/{MANIFEST}")  # first: half a checkpoint is none
            self._files.delete_folder(name.folder(self.key))
        if not self._is_tidy:
            self._is_tidy = True
            drop_unfinished(self.run, before=self.number)

    def keep_plot(self, name: str, data: bytes) -> None:
        """Put a picture beside the preview, in place of its namesake."""
        self._files.replace(f"{attempt_folder('previews', self.key, self.number)}/{PLOTS}/{name}", data)

    def is_asked_to_stop(self) -> bool:
        """Whether somebody who sees the store wants this attempt to end."""
        return self._files.has(self.run.path(self.number, STOP))

    def open_log(self) -> Appender:
        """The text that the run prints, for people to read."""
        return self._files.append(self.run.path(self.number, LOG))

    def release(self, outcome: str, **facts: Any) -> None:
        """End the attempt with its outcome: "finished", "saved", "failed", "interrupted", ..., and why."""
        if self._is_over:
            return
        self._is_over = True
        self._heartbeat.stop()
        with contextlib.suppress(StoreAccessError):
            self.log.close()
        if self._heartbeat.is_newest():
            facts = self.mask.tree(facts, has_names=False)
            self._files.create(self.run.path(self.number, OUTCOME), self._record({"outcome": outcome, **facts, "ended": utc_now()}))


def ask_to_stop(run: Run) -> Owner | None:
    """Ask whoever holds a run to save and end; who that is. `StoreError` if nobody does."""
    holder = holder_of(run)
    if holder.hold is Hold.FREE:
        raise StoreError(f"nobody is at work on run {run.key}", hint=f"`trainmaster show {run.key}` tells how far it is")
    with contextlib.suppress(FileExistsError):  # asked already
        run.files.create(run.path(holder.attempt, STOP), record_bytes({"key": run.key, "attempt": holder.attempt, "asked": utc_now()}))
    return holder.owner


def drop_unfinished(run: Run, before: int) -> None:
    """Remove the saves that attempts before `before` never finished."""
    for name, folder in saved_by(run, before):
        if name is None or not run.files.has(f"{folder}/{MANIFEST}"):
            run.files.delete_folder(folder)


def drop_all_but(run: Run, kept: list[CheckpointName], before: int) -> Iterator[str]:
    """Remove all that attempts before `before` have saved, but for what is `kept`; the paths."""
    for name, folder in saved_by(run, before):
        if name not in kept:
            run.files.delete(f"{folder}/{MANIFEST}")  # first: half a checkpoint is none
            run.files.delete_folder(folder)
            yield folder


def saved_by(run: Run, before: int) -> Iterator[tuple[CheckpointName | None, str]]:
    """What lies where the attempts before `before` save."""
    for text in run.files.names(run_folder("ckpts", run.key)):
        number = attempt_number(text)
        if number is not None and number < before:
            folder = attempt_folder("ckpts", run.key, number)
            yield from ((CheckpointName.parse(number, each), f"{folder}/{each}") for each in run.files.names(folder))


def remove_records(run: Run, before: int) -> None:
    """Remove all that attempts before `before` have left."""
    for archive in ("ckpts", "previews", "stats"):
        for text in run.files.names(run_folder(archive, run.key)):
            number = attempt_number(text)
            if number is not None and number < before:
                run.files.delete_folder(f"{run_folder(archive, run.key)}/{text}")
