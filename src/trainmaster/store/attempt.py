"""An attempt is the exclusive right to write to a run. A lease protects this right, and `release` ends the attempt with an outcome."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from trainmaster.arguments import check_int
from trainmaster.config.masking import Mask
from trainmaster.errors import LeaseLostError, RunBusyError, StoreAccessError, StoreDamagedError, StoreError
from trainmaster.store.attempt_records import ATTEMPT, EVENTS, LEASE, LOG, OUTCOME, PREVIEW, RESUME, STATUS, STOP
from trainmaster.store.checkpoint import MANIFEST, Checkpoint, CheckpointName, Pruner, write_checkpoint
from trainmaster.store.checksummed_json import Record, record_bytes
from trainmaster.store.codec import encode_plain
from trainmaster.store.events import EventLog
from trainmaster.store.files import Appender
from trainmaster.store.keys import attempt_folder, attempt_number, run_folder
from trainmaster.store.lease import BEATS_PER_LEASE, ExpiredLease, Heartbeat, Hold, Holder, Watch, holder_of, holding
from trainmaster.store.process_identity import Owner
from trainmaster.store.run import NEVER_SAVED, Run

CURVES = "curves.png"
"""The file name of the plot that shows all metrics of a run."""
Facts = Mapping[str, Any]
_NO_FACTS: Facts = MappingProxyType({})
_FROM_SCRATCH: Record = {"parent": None, "checkpoint": None, "step": None, "events": 0, "preview": {}}
"""The resume record of an attempt that starts from scratch."""


def utc_now() -> str:
    """Return the current time in UTC as text, for display only."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def claim(run: Run, by: str, lease_time: float, watch: Watch | ExpiredLease | None = None, facts: Facts = _NO_FACTS) -> Attempt:
    """Create a new attempt on a run. Raise `RunBusyError` if another process holds the run or may hold it.

    If `watch` has observed that the holder's lease expired, the new attempt replaces the old one. `facts` are recorded
    with the attempt. They include the information that `trainmaster resume` needs to continue training.
    """
    while True:
        holder = holder_of(run)
        if holder.hold is Hold.UNKNOWN and watch is not None and watch.look(run, holder) is Hold.FREE:
            holder = holder._replace(hold=Hold.FREE)
        if holder.hold is not Hold.FREE:
            raise busy(run, holder)
        try:
            attempt = Attempt(run, holder.attempt + 1, by, lease_time / BEATS_PER_LEASE, facts)
        except FileExistsError:  # another process was faster
            continue
        if holder.attempt and run.is_removed(holder.attempt):  # the process that removed the run may have died before deleting everything
            remove_records(run, before=holder.attempt)
        return attempt


def claim_or_watch(
    run: Run,
    by: str,
    lease_time: float,
    report: Callable[[str], None] | None = None,
    facts: Facts = _NO_FACTS,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Attempt:
    """Claim a run as `claim` does. If necessary, watch the lease of the current holder first.

    If the lease is the only way to tell whether the holder is alive, wait until the lease changes or expires. Call
    `report` with a message when the wait begins.
    """
    watch = Watch(run.files, lease_time)
    while True:
        holder = holder_of(run)
        if holder.hold is Hold.UNKNOWN and watch.look(run, holder) is Hold.HELD:
            raise busy(run, holder)
        if holder.hold is Hold.UNKNOWN and report is not None:
            report(f"run {run.key} may be held by {holder.owner or 'an unknown process'}; watching its lease for up to {lease_time:g} s")
            report = None
        if holder.hold is Hold.UNKNOWN and is_cancelled():
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
        hint=f"wait until it ends, or stop it after its next checkpoint: `trainmaster stop {run.key}`",
    )


def plot_path(key: str, attempt: int, name: str) -> str:
    """Return the path of a plot, which is stored next to the attempt's preview."""
    return f"{attempt_folder('previews', key, attempt)}/plots/{name}"


class Attempt:
    """The exclusive right to write to a run.

    An attempt writes only into its own folders. `save` commits checkpoints. The attempt ends with `release` or when the process dies.
    """

    def __init__(self, run: Run, number: int, by: str, heartbeat: float, facts: Facts = _NO_FACTS) -> None:
        self.run, self.number, self.by = run, number, by
        self._token = secrets.token_hex(16)
        self._files = run.files
        self.log = EventLog(self._files, run.path(number, EVENTS))
        self._checkpoints: list[CheckpointName] = []
        self._pruner = Pruner[CheckpointName](lambda name: name.folder(run.key), f"run {run.key}")
        self._step: int | None = None
        self._checkpoint: str | None = None
        self._has_started = False
        self._is_tidy = False
        self._is_over = False
        self.mask = Mask.of()
        """The secrets that this attempt masks in all text: those in environment variables, and those passed to `hide`."""
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
                # Create the file now. If the disk becomes full, existing files can still be changed, but no new files can be created.
                self._files.beat(run.path(number, LEASE))
            self._heartbeat = Heartbeat(run, number, self._token, heartbeat)
        # Give up the run if an interrupt discards this object before the caller has stored it.
        weakref.finalize(self, self._heartbeat.abandon).atexit = False

    def __repr__(self) -> str:
        own = vars(self)
        return f"{type(self).__name__}({own.get('number')} of {own.get('run')!r})"

    @property
    def key(self) -> str:
        return self.run.key

    def hide(self, values: Iterable[str]) -> None:
        """Mask the secret strings in `values`, and the secrets in environment variables, in all text written from now on."""
        self.mask = Mask.of(values)

    def _masked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a status or preview with all secrets masked. The entry `best` is not masked, because it contains no free text."""
        return {name: each if name == "best" else self.mask.tree(each, has_names=False) for name, each in values.items()}

    def start(self, base: Checkpoint | None, preview: Mapping[str, Any] | None = None, facts: Facts = _NO_FACTS) -> None:
        """Record which checkpoint this attempt resumes from: `base`, or None if it starts from scratch.

        From now on, readers use the records of this attempt. If it starts a run again from scratch, readers use the earlier records
        until this attempt has saved a checkpoint.

        The attempt starts with the preview of the checkpoint, or with `preview` if there is no checkpoint. `facts`, such as the seed, are
        recorded too.
        """
        self.check()
        if base is None:
            record: Record = {
                **_FROM_SCRATCH,
                "status": {**NEVER_SAVED, "toc": time.time()},
                "preview": encode_plain(self._masked(preview or {})),
            }
        else:
            record = {"parent": base.name.attempt, "checkpoint": base.name.text}
            record |= {name: base.manifest[name] for name in ("step", "events", "status", "preview")}
            later = self.run.preview_at(base.name)
            record["preview"] = record["preview"] if later is None else later
        self._start({**facts, **record})
        self._checkpoints = self.run.checkpoints() if base is not None else []

    def remove(self) -> None:
        """Mark the run as removed, then delete the records of all earlier attempts.

        The record of this attempt is kept, so that its number is never used again. Otherwise, a suspended process could wake up and
        mistake a new attempt for its own.
        """
        self.check()
        self._start({**_FROM_SCRATCH, "status": NEVER_SAVED, "is_removed": True})
        remove_records(self.run, before=self.number)

    def _start(self, record: Record) -> None:
        self._files.create(self.run.path(self.number, RESUME), self._record({**record, "started": utc_now()}))
        self._step, self._checkpoint = record["step"], record["checkpoint"]
        self._has_started = True

    @property
    def is_lost(self) -> bool:
        """Whether the heartbeat thread has noticed that this attempt was replaced.

        Unlike `check`, this does not read any files.
        """
        return self._heartbeat.is_lost

    def check(self) -> None:
        """Raise `LeaseLostError` if this attempt was replaced or has ended. This is called before every commit."""
        self._check_process()
        if self._is_over:
            raise LeaseLostError(f"attempt {self.number} of run {self.key} was released", hint="start a new attempt")
        if self._heartbeat.is_lost or not self._heartbeat.is_newest():
            why, hint = self._heartbeat.why_lost()
            raise LeaseLostError(
                f"attempt {self.number} of run {self.key} was replaced: its lease had expired, or the run was removed",
                where=run_folder("stats", self.key),
                why=why,
                hint=hint,
            )

    def _check_process(self) -> None:
        if self._heartbeat.is_inherited:
            raise LeaseLostError(
                f"process {os.getpid()} was forked from the holder of run {self.key} and cannot write to it",
                hint="end forked processes with `os._exit()`, or start processes with `multiprocessing`",
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
        replaced: CheckpointName | None = None,
    ) -> CheckpointName:
        """Commit a checkpoint with all events logged so far. Then write the preview and the status, and delete old checkpoints.

        The last `keep` checkpoints and those in `pinned` are kept. If an old checkpoint cannot be deleted, a warning is
        issued, and the next save tries again.

        The manifest also contains the status and the preview, so they are not lost if the process is killed between these steps. If more
        events were logged since `value` was captured, pass the number of events at the time of the capture as `num_events`. `replaced` is
        the name of an earlier checkpoint of the same state. That checkpoint is deleted after the new one is committed.
        """
        check_int("step", step, min=0)
        check_int("keep", keep, min=1)
        if not self._has_started:
            raise StoreError(
                f"attempt {self.number} of run {self.key} has not started yet, so it cannot save", hint="call `start(checkpoint)` first"
            )
        self.check()
        facts = {
            "key": self.key,
            "attempt": self.number,
            "token": self._token,
            "step": step,
            "saved": utc_now(),
            "status": encode_plain(self._masked(status)),
            "preview": encode_plain(self._masked(preview)),
        }
        self.log.sync()
        facts["events"] = self.log.count if num_events is None else num_events
        name = self.next_name(step)
        try:
            write_checkpoint(self._files, name.folder(self.key), value, context, facts, self.check, self.mask)
        except StoreAccessError:
            self.check()  # raises a clearer error if another attempt has replaced this one and deleted its unfinished files
            raise
        self._checkpoints.insert(0, name)
        self._publish(name, facts["status"], facts["preview"])
        self.check()  # if another attempt has replaced this one, that attempt resumes from the new checkpoint, which is already durable
        self._checkpoints = self._pruner.prune(self._files, self._checkpoints, keep, pinned, replaced)
        self._delete_unfinished()
        return name

    def adopt(self, checkpoints: Mapping[CheckpointName, Record], status: Record, preview: Record, facts: Facts = _NO_FACTS) -> None:
        """Commit checkpoints that were copied from another store. Then start the attempt, so that readers see them."""
        self.check()
        self.log.sync()
        for name, manifest in checkpoints.items():
            own = {**manifest, "key": self.key, "attempt": self.number, "token": self._token}
            self._files.create(f"{name.folder(self.key)}/{MANIFEST}", record_bytes(own))
        self._publish(max(checkpoints), status, preview)
        self._start({**facts, **_FROM_SCRATCH, "status": status, "preview": preview})

    def _publish(self, name: CheckpointName, status: Record, preview: Record) -> None:
        """Replace the preview and then the status. This completes a save."""
        self._step, self._checkpoint = name.step, name.text
        self._replace(PREVIEW, {"preview": preview})
        self._replace(STATUS, {"status": status})

    def _replace(self, file: str, members: Record) -> None:
        """Replace the preview or the status of the last checkpoint."""
        record = self._record({"step": self._step, "checkpoint": self._checkpoint, **members})
        self._files.replace(self.run.path(self.number, file), record)

    def _record(self, members: Record) -> bytes:
        """Return the bytes of a record that also contains the run's key and the number of this attempt."""
        return record_bytes({"key": self.key, "attempt": self.number, **members})

    def publish_preview(self, preview: Mapping[str, Any]) -> None:
        """Replace the preview of the last checkpoint."""
        self._check_process()
        self._replace(PREVIEW, {"preview": encode_plain(self._masked(preview))})

    def next_name(self, step: int) -> CheckpointName:
        """Return a checkpoint name for `step` that this attempt has not used yet."""
        repeats = [name.repeat for name in self.run.own_checkpoints(self.number) if name.step == step]
        return CheckpointName(self.number, step, max(repeats, default=0) + 1)

    def _delete_unfinished(self) -> None:
        """Delete the incomplete checkpoints of earlier attempts, once per attempt."""
        if not self._is_tidy:
            try:
                for name, folder in checkpoint_folders(self.run, before=self.number):
                    if name is None or not self.run.files.has(f"{folder}/{MANIFEST}"):
                        self.run.files.delete_folder(folder)
                self._is_tidy = True
            except (StoreAccessError, StoreDamagedError) as error:
                self._pruner.warn(error.fact)

    def write_plot(self, name: str, data: bytes) -> None:
        """Write a plot next to the preview. An existing plot with the same name is replaced."""
        self._check_process()
        self._files.replace(plot_path(self.key, self.number, name), data)

    def is_stop_requested(self) -> bool:
        """Return whether `request_stop` was called for this attempt, by any process."""
        return self._files.has(self.run.path(self.number, STOP))

    def open_log(self) -> Appender:
        """Open the attempt's log file, which contains messages and printed output."""
        self._check_process()
        return self._files.append(self.run.path(self.number, LOG))

    def release(self, outcome: str, **facts: Any) -> None:
        """End the attempt with its outcome ("finished", "saved", "failed", "interrupted", ...) and details in `facts`."""
        if self._is_over or self._heartbeat.is_inherited:
            return
        self._is_over = True
        self._heartbeat.stop()
        with contextlib.suppress(StoreAccessError):
            self.log.close()
        if self._heartbeat.is_newest():
            facts = self.mask.tree(facts, has_names=False)
            self._files.create(self.run.path(self.number, OUTCOME), self._record({"outcome": outcome, **facts, "ended": utc_now()}))


def request_stop(run: Run) -> Owner | None:
    """Ask the process that holds a run to save and stop, and return that process. Raise `StoreError` if no process holds the run."""
    holder = holder_of(run)
    if holder.hold is Hold.FREE:
        raise StoreError(f"no process is training run {run.key}", hint=f"`trainmaster show {run.key}` prints its state")
    with contextlib.suppress(FileExistsError):  # already requested
        run.files.create(run.path(holder.attempt, STOP), record_bytes({"key": run.key, "attempt": holder.attempt, "asked": utc_now()}))
    return holder.owner


def record_finished(run: Run, epoch: int) -> None:
    """Write the outcome "finished" for a run's newest attempt if that attempt was killed after its last save.

    Do nothing if a process holds or may hold the run, or if the attempt already has an outcome.
    """
    holder = holder_of(run)
    if holder.hold is Hold.FREE and holder.attempt:
        record = {"key": run.key, "attempt": holder.attempt, "outcome": "finished", "epoch": epoch, "ended": utc_now()}
        with contextlib.suppress(FileExistsError):
            run.files.create(run.path(holder.attempt, OUTCOME), record_bytes(record))


def checkpoint_folders(run: Run, before: int) -> Iterator[tuple[CheckpointName | None, str]]:
    """Yield all checkpoint folders, complete or not, of attempts with a number below `before`."""
    for text in run.files.names(run_folder("ckpts", run.key)):
        number = attempt_number(text)
        if number is not None and number < before:
            folder = attempt_folder("ckpts", run.key, number)
            yield from ((CheckpointName.parse(number, each), f"{folder}/{each}") for each in run.files.names(folder))


def remove_records(run: Run, before: int) -> None:
    """Delete the records of all attempts with a number below `before`."""
    for archive in ("ckpts", "previews", "stats"):
        for text in run.files.names(run_folder(archive, run.key)):
            number = attempt_number(text)
            if number is not None and number < before:
                run.files.delete_folder(f"{run_folder(archive, run.key)}/{text}")
