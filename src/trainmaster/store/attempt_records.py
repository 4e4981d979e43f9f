"""Reads and checks the records of a run's attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainmaster.errors import StoreDamagedError
from trainmaster.store.checkpoint import MANIFEST, CheckpointName
from trainmaster.store.checksummed_json import Members, Record, damaged, find_record
from trainmaster.store.codec import decode
from trainmaster.store.files import Files
from trainmaster.store.keys import attempt_folder, attempt_number, run_folder

ATTEMPT, RESUME, STATUS, OUTCOME, EVENTS, LEASE, PREVIEW, LOG, STOP = (
    "attempt.json",
    "resume.json",
    "status.json",
    "outcome.json",
    "events.jsonl",
    "lease",
    "preview.json",
    "log",
    "stop",
)
IMPORT, IMPORTED = "import", "imported"
"""The purpose and the outcome of an attempt that imports a run from another store."""
_NUMBER_OR_NONE = (int, type(None))
_MAX_HEARTBEAT = 30 * 24 * 3600.0
_MAX_EVENTS = 10**12


class AttemptRecords:
    """The records of a run's attempts: who claimed each attempt, which checkpoint it resumed from, what it saved, and how it ended."""

    def __init__(self, files: Files, key: str) -> None:
        self.files, self.key = files, key

    def __repr__(self) -> str:
        own = vars(self)
        return f"{type(self).__name__}({own.get('key')!r} in {getattr(own.get('files'), 'root', None)!r})"

    def path(self, number: int, name: str) -> str:
        """Return the path of one of an attempt's files."""
        return f"{attempt_folder('previews' if name == PREVIEW else 'stats', self.key, number)}/{name}"

    # ---- attempts

    def attempts(self) -> list[int]:
        """Return the numbers of all attempts, newest first."""
        return list(self.iter_attempts())

    def newest(self) -> int:
        """Return the number of the newest attempt, or 0 if there is none."""
        return next(self.iter_attempts(), 0)

    def iter_attempts(self) -> Iterator[int]:
        numbers = sorted(filter(None, map(attempt_number, self.files.names(run_folder("stats", self.key)))), reverse=True)
        # Every folder that contains a file counts as an attempt, even if its claim was lost, because attempt numbers must not be reused.
        return (number for number in numbers if self.files.names(attempt_folder("stats", self.key, number)))

    def claim_of(self, number: int) -> Record:
        """Return the claim of an attempt. It records the process that started the attempt, the time and the purpose."""
        path = self.path(number, ATTEMPT)
        record = self._find(number, ATTEMPT, {"token": str, "by": str, "owner": dict, "heartbeat": (int, float)})
        if record is None:
            raise damaged(path, "it is missing, though the attempt has left other files")
        if not 0 < record["heartbeat"] <= _MAX_HEARTBEAT:
            raise damaged(path, "its heartbeat is out of range")
        return record

    def _find(self, number: int, name: str, members: Members) -> Record | None:
        """Return a record of an attempt, or None if there is none. Raise an error if the record belongs to a different run or attempt."""
        path = self.path(number, name)
        record = find_record(self.files, path, members)
        if record is not None and (record.get("key"), record.get("attempt")) != (self.key, number):
            raise damaged(path, "it belongs to another run or attempt")
        return record

    def resume_of(self, number: int) -> Record | None:
        """Return the record of the checkpoint that an attempt resumed from, or None if the attempt has not started yet."""
        path = self.path(number, RESUME)
        members: Members = {"parent": _NUMBER_OR_NONE, "step": _NUMBER_OR_NONE, "events": int, "status": dict, "preview": dict}
        record = self._find(number, RESUME, members)
        if record is None:
            if not self.own_checkpoints(number) and not self.files.has(self.path(number, STATUS)):
                return None
            record = self._find(number, RESUME, members)  # a live attempt may have written it, and then saved, since the first look
        if record is None:
            if not self._is_half_imported(number):
                raise damaged(path, "it is missing, though the attempt has saved something")
            return None
        parent, name = record["parent"], record.get("checkpoint")
        if parent is None:
            is_possible = name is None and record["events"] == 0
        else:
            is_possible = (
                0 < parent < number and CheckpointName.parse(parent, str(name)) is not None and 0 <= record["events"] < _MAX_EVENTS
            )
        if not is_possible:
            raise damaged(path, "it names an impossible parent")
        return record

    def _is_half_imported(self, number: int) -> bool:
        """Return whether an attempt is an interrupted import, which may have checkpoints but no `resume.json`."""
        outcome = self.outcome_of(number)
        return self.claim_or_empty(number).get("by") == IMPORT and (outcome is None or outcome["outcome"] != IMPORTED)

    def outcome_of(self, number: int) -> Record | None:
        """Return the record of how an attempt ended, or None if it is still running or was killed."""
        return self._find(number, OUTCOME, {"outcome": str})

    def status_of(self, number: int) -> Record | None:
        """Return the status that an attempt has written, or None if it has not saved a checkpoint yet."""
        record = self._find(number, STATUS, {"status": dict, "step": int, "checkpoint": str})
        if record is not None:
            decoded(record["status"], self.path(number, STATUS))
        return record

    def preview_of(self, number: int) -> Record | None:
        """Return the preview that an attempt has written, or None if it has not written one."""
        record = self._find(number, PREVIEW, {"preview": dict, "step": _NUMBER_OR_NONE})
        if record is not None:
            decoded(record["preview"], self.path(number, PREVIEW))
        return record

    def is_removed(self, number: int) -> bool:
        """Return whether the attempt removed the run. Return False if the attempt's record is damaged."""
        try:
            resume = self.resume_of(number)
        except StoreDamagedError:
            return False
        return resume is not None and bool(resume.get("is_removed"))

    def claim_or_empty(self, number: int) -> Record:
        """Return the claim of an attempt, or an empty dict if the claim is damaged. The damage is reported when the run is resumed."""
        try:
            return self.claim_of(number)
        except (StoreDamagedError, FileNotFoundError):
            return {}

    def own_checkpoints(self, number: int) -> list[CheckpointName]:
        """Return all checkpoints of one attempt, newest first, including those that no longer belong to the run's history."""
        folder = attempt_folder("ckpts", self.key, number)
        names = [CheckpointName.parse(number, text) for text in self.files.names(folder)]
        names_newest_first = sorted(filter(None, names), reverse=True)
        return [name for name in names_newest_first if self.files.has(f"{name.folder(self.key)}/{MANIFEST}")]


def decoded(tree: Record | None, path: str) -> dict[str, Any] | None:
    if tree is None:
        return None
    try:
        value = decode(tree)
    except StoreDamagedError as error:
        raise damaged(path, str(error)) from error
    if not isinstance(value, dict):
        raise damaged(path, "it is not a mapping")
    return value
