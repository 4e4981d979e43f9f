"""A run, as its files tell it: attempts, the chain of those that count, checkpoints, events.

Every time somebody starts or goes on with a run, that is a new numbered *attempt*, which writes only into its own folders. Its file
`resume.json` says which checkpoint of which earlier attempt it went on from. So the history of a run is a chain, from the newest attempt
that started, back over the parts that were gone on from; whatever else an attempt wrote, during or after, counts for nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from trainmaster.errors import StoreDamagedError
from trainmaster.store.checkpoint import MANIFEST, Checkpoint, CheckpointName, read_checkpoint, read_manifest
from trainmaster.store.codec import decode
from trainmaster.store.events import read_events, read_lines
from trainmaster.store.files import Files
from trainmaster.store.keys import attempt_folder, attempt_number, run_folder
from trainmaster.store.record import Members, Record, damaged, find_record

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
NEVER_SAVED = {"epoch": -1, "t_train": None, "t_eval": None}
"""What the status of a run says before its first checkpoint."""
IMPORT, IMPORTED = "import", "imported"
"""What an attempt is made for that brings a run from another store, and how it ends."""
_NUMBER_OR_NONE = (int, type(None))
_MAX_HEARTBEAT = 30 * 24 * 3600.0
_MAX_EVENTS = 10**12
_MAX_LOOKS = 20
"""How often a reader looks again at a run that changes under its eyes."""


class Link(NamedTuple):
    """An attempt in the chain, and how much of it counts."""

    attempt: int
    last: CheckpointName | None
    """The last checkpoint that counts; None if all do."""
    num_events: int | None
    """How many events count; None if all do."""


class Run:
    """What the files say about one run, read anew at each call."""

    def __init__(self, files: Files, key: str) -> None:
        self.files, self.key = files, key

    def path(self, number: int, name: str) -> str:
        """Where an attempt keeps one of its files."""
        return f"{attempt_folder('previews' if name == PREVIEW else 'stats', self.key, number)}/{name}"

    # ---- attempts

    def attempts(self) -> list[int]:
        """The numbers of all attempts, newest first."""
        return list(self._attempts())

    def newest(self) -> int:
        """The number of the newest attempt; 0 where there is none."""
        return next(self._attempts(), 0)

    def _attempts(self) -> Iterator[int]:
        found = (attempt_number(name) for name in self.files.names(run_folder("stats", self.key)))
        numbers = sorted(filter(None, found), reverse=True)
        # Any file tells of one: a number whose claim was lost is not to be used again.
        return (number for number in numbers if self.files.names(attempt_folder("stats", self.key, number)))

    def claim_of(self, number: int) -> Record:
        """Who made an attempt, when and for what."""
        path = self.path(number, ATTEMPT)
        record = self._find(number, ATTEMPT, {"token": str, "by": str, "owner": dict, "heartbeat": (int, float)})
        if record is None:
            raise damaged(path, "it is missing, though the attempt has left other files")
        if not 0 < record["heartbeat"] <= _MAX_HEARTBEAT:
            raise damaged(path, "its heartbeat is no number of seconds")
        return record

    def _find(self, number: int, name: str, members: Members) -> Record | None:
        """One of an attempt's records, which must say whose it is; None where there is none."""
        path = self.path(number, name)
        record = find_record(self.files, path, members)
        if record is not None and (record.get("key"), record.get("attempt")) != (self.key, number):
            raise damaged(path, "it belongs to another run or attempt")
        return record

    def resume_of(self, number: int) -> Record | None:
        """What an attempt went on from; None if it has not come so far."""
        path = self.path(number, RESUME)
        members: Members = {"parent": _NUMBER_OR_NONE, "step": _NUMBER_OR_NONE, "events": int, "status": dict, "preview": dict}
        record = self._find(number, RESUME, members)
        if record is None:
            has_saved = self.own_checkpoints(number) or self.files.has(self.path(number, STATUS))
            if has_saved and not self._is_half_imported(number):
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
            raise damaged(path, "it names a parent that cannot be")
        return record

    def _is_half_imported(self, number: int) -> bool:
        """True for an import that never came to its end, which is where it would have started."""
        outcome = self.outcome_of(number)
        return self._claim_or_none(number).get("by") == IMPORT and (outcome is None or outcome["outcome"] != IMPORTED)

    def outcome_of(self, number: int) -> Record | None:
        """How an attempt ended; None while it runs, or if it was killed."""
        return self._find(number, OUTCOME, {"outcome": str})

    def status_of(self, number: int) -> Record | None:
        """The status that an attempt has written; None if it has saved nothing."""
        record = self._find(number, STATUS, {"status": dict, "step": int, "checkpoint": str})
        if record is not None:
            self._decoded(record["status"], self.path(number, STATUS))
        return record

    def preview_of(self, number: int) -> Record | None:
        """The preview that an attempt has written; None if it has written none."""
        record = self._find(number, PREVIEW, {"preview": dict, "step": _NUMBER_OR_NONE})
        if record is not None:
            self._decoded(record["preview"], self.path(number, PREVIEW))
        return record

    def is_removed(self, number: int) -> bool:
        """Whether the attempt was made to remove the run, and did so; not, as far as damage lets that be told."""
        try:
            resume = self.resume_of(number)
        except StoreDamagedError:
            return False
        return resume is not None and bool(resume.get("is_removed"))

    # ---- what counts

    def head(self) -> int | None:
        """The newest attempt that counts; None for a run that never started, or was removed."""
        fresh: int | None = None
        for number in self._attempts():
            resume = self.resume_of(number)
            if resume is None:
                continue
            if resume.get("is_removed"):
                break
            if resume["parent"] is not None or self.files.has(self.path(number, STATUS)) or self.own_checkpoints(number):
                return number
            fresh = number if fresh is None else fresh  # one from nothing takes the place of an older one with its first checkpoint
        return fresh

    def chain(self) -> list[Link]:
        """The attempts that count, newest first; none for a run that never started."""
        head = self.head()
        links: list[Link] = []
        link = Link(head, None, None) if head is not None else None
        while link is not None:
            links.append(link)
            resume = self.resume_of(link.attempt)
            if resume is None:
                raise damaged(self.path(link.attempt, RESUME), "it is missing, though a later attempt went on from this one")
            parent = resume["parent"]
            last = CheckpointName.parse(parent, resume["checkpoint"]) if parent is not None else None
            link = Link(parent, last, resume["events"]) if parent is not None else None
        return links

    def _claim_or_none(self, number: int) -> Record:
        try:
            return self.claim_of(number)
        except (StoreDamagedError, FileNotFoundError):  # an attempt that has not started counts for nothing; whoever goes on will say so
            return {}

    def own_checkpoints(self, number: int) -> list[CheckpointName]:
        """The checkpoints below one attempt's folder, newest first, whether they count or not."""
        folder = attempt_folder("ckpts", self.key, number)
        names = [CheckpointName.parse(number, text) for text in self.files.names(folder)]
        found = sorted((name for name in names if name is not None), reverse=True)
        return [name for name in found if self.files.has(f"{name.folder(self.key)}/{MANIFEST}")]

    def checkpoints(self, chain: list[Link] | None = None) -> list[CheckpointName]:
        """The checkpoints that count, newest first."""
        links = self.chain() if chain is None else chain
        return [name for link in links for name in self.own_checkpoints(link.attempt) if link.last is None or name <= link.last]

    def status(self) -> dict[str, Any] | None:
        """How far the run is: `epoch`, `toc`, `t_train`, `t_eval`; None for a run that nobody ever claimed.

        Before the first checkpoint the epoch is -1.
        """
        tree, path = self._of_head(STATUS)
        found = self._decoded(tree or self._claimed(), path)
        if found is not None and type(found.get("epoch")) is not int:
            raise damaged(path, "it does not say what it should")
        return found

    def _claimed(self) -> Record | None:
        """The status of a run that somebody claimed, and that has not started yet."""
        number = self.newest()
        if number == 0 or self.is_removed(number):
            return None
        return {**NEVER_SAVED, "toc": self._claim_or_none(number).get("toc")}

    def best(self) -> CheckpointName | None:
        """The checkpoint that the status calls the best, if it names one and it is there."""
        best = (self.status() or {}).get("best")
        try:
            name = CheckpointName.parse(best["attempt"], best["checkpoint"]) if isinstance(best, dict) else None
        except (KeyError, TypeError):
            return None
        return name if name in self.checkpoints() else None

    def preview(self) -> dict[str, Any] | None:
        """The preview of the last save; None for a run that never started."""
        return self._decoded(*self._of_head(PREVIEW))

    def _of_head(self, file: str) -> tuple[Record | None, str]:
        """A status or preview as it is stored, and where: what the newest attempt that counts has written, or else what it went on from."""
        head = self.head()
        if head is None:
            return None, run_folder("stats", self.key)
        member = file.removesuffix(".json")
        try:
            record = self.status_of(head) if file == STATUS else self.preview_of(head)
        except StoreDamagedError:  # `verify` tells; the manifest of the last checkpoint has it, too
            own = self.own_checkpoints(head)
            record = read_manifest(self.files, self.key, own[0]) if own else None
        return (record or self._resumed(head))[member], self.path(head, file if record else RESUME)

    def _decoded(self, tree: Record | None, path: str) -> dict[str, Any] | None:
        if tree is None:
            return None
        try:
            value = decode(tree)
        except StoreDamagedError as error:
            raise damaged(path, str(error)) from error
        if not isinstance(value, dict):
            raise damaged(path, "it does not say what it should")
        return value

    def preview_with(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The preview that belongs to a checkpoint."""
        tree = self.preview_at(checkpoint.name)
        tree = checkpoint.manifest["preview"] if tree is None else tree
        return self._decoded(tree, self.path(checkpoint.name.attempt, PREVIEW)) or {}

    def preview_at(self, name: CheckpointName) -> Record | None:
        """The encoded preview that was last set for a checkpoint; None if that is the checkpoint's own."""
        head = self.head()
        if head is None:
            return None
        resume = self._resumed(head)
        try:
            record = self.preview_of(head)
        except StoreDamagedError:  # the checkpoint has its own
            return None
        is_its_own = head == name.attempt or (resume["parent"], resume["checkpoint"]) == (name.attempt, name.text)
        if not is_its_own or (record is not None and (record.get("step"), record.get("checkpoint", name.text)) != (name.step, name.text)):
            return None
        found: Record | None = record["preview"] if record is not None else resume["preview"] if head != name.attempt else None
        return found

    def _resumed(self, number: int) -> Record:
        record = self.resume_of(number)
        assert record is not None  # it is the head of the chain
        return record

    def event_lines(self, chain: list[Link] | None = None) -> list[bytes]:
        """The lines of all events that count, oldest first."""
        links = self.chain() if chain is None else chain
        return [line for link in reversed(links) for line in read_lines(self.files, self.path(link.attempt, EVENTS), link.num_events)]

    def events(self) -> list[dict[str, Any]]:
        """All events that count, oldest first."""
        return [
            event for link in reversed(self.chain()) for event in read_events(self.files, self.path(link.attempt, EVENTS), link.num_events)
        ]

    # ---- damage

    def has_saved(self) -> bool:
        """Whether the run was ever saved, as far as any file tells."""
        chain = self.chain()
        return bool(self.lost(self.last_saved(chain), None)) or bool(self.checkpoints(chain))

    def latest(self) -> Checkpoint | None:
        """The newest good checkpoint with its values; None if nothing was ever saved.

        Damaged ones are passed over with a warning that names the file. Where something was saved and nothing of it is good, that is an
        error: to start again from zero is for the user to say.
        """
        before: Any = None
        for _ in range(_MAX_LOOKS):
            chain = self.chain()
            saved = self.last_saved(chain)
            names = self.checkpoints(chain)
            found, problems = self._newest_good(names, chain)
            if not problems:
                lost = self.lost(saved, found.name if found else None)
                problems += [lost] if lost else []
            if not problems or (chain, saved, names) == before:
                break
            before = chain, saved, names  # its owner may have saved and dropped something meanwhile: what looks wrong twice is wrong
        if found is None and problems:
            raise StoreDamagedError(
                f"run {self.key} has no good checkpoint left",
                why="\n".join(problems),
                hint="put the files back from a copy; or start again: `process(config, resume=False)`",
            )
        for problem in problems:
            warnings.warn(f"run {self.key} goes on from step {found.name.step if found else 0}: {problem}", stacklevel=2)
        return found

    def checkpoint(self, which: str | int = "last") -> Checkpoint | None:
        """The "last" good checkpoint, the "best", or the newest of a step; None where there is none."""
        if which == "last":
            return self.latest()
        name = self.best() if which == "best" else next((name for name in self.checkpoints() if name.step == which), None)
        return None if name is None else read_checkpoint(self.files, self.key, name)

    def _newest_good(self, names: list[CheckpointName], chain: list[Link]) -> tuple[Checkpoint | None, list[str]]:
        """The first good one of checkpoints, and what is wrong with those before it."""
        problems: list[str] = []
        for name in names:
            try:
                self.check_events(name, chain)
                return read_checkpoint(self.files, self.key, name), problems
            except StoreDamagedError as error:
                problems.append(": ".join(filter(None, [error.fact, error.rows.get("why")])))
            except FileNotFoundError as error:
                problems.append(f"`{error.filename}` is missing")
        return None, problems

    def check_events(self, name: CheckpointName, chain: list[Link]) -> None:
        """Raise unless all events that a checkpoint counts can be read: a checkpoint is good together with what was recorded up to it."""
        manifest = read_manifest(self.files, self.key, name)
        self.event_lines(self.chain_to(name, manifest["events"], chain))

    def chain_to(self, name: CheckpointName, num_events: int, chain: list[Link]) -> list[Link]:
        """The chain up to one of its checkpoints, which counts so many events of its own attempt."""
        return [Link(name.attempt, name, num_events), *(link for link in chain if link.attempt < name.attempt)]

    def last_saved(self, chain: list[Link]) -> CheckpointName | None:
        """The checkpoint that was last saved, as the records of the run say; None if none was.

        Ask before the checkpoints are listed: a writer may go on meanwhile.
        """
        if not chain:
            newest = self.newest()
            numbers = [attempt_number(name) for name in self.files.names(run_folder("ckpts", self.key))]
            orphans = [name for number in numbers if number is not None and number > newest for name in self.own_checkpoints(number)]
            return max(orphans, default=None)  # of attempts whose records are gone
        head = chain[0].attempt
        try:
            status = self.status_of(head)
        except StoreDamagedError:  # the checkpoints tell
            status = None
        if status is not None:
            return CheckpointName.parse(head, status["checkpoint"])
        return chain[1].last if len(chain) > 1 else None

    def lost(self, saved: CheckpointName | None, found: CheckpointName | None) -> str:
        """What is missing if `saved` was the last checkpoint and `found` is the newest one; empty if nothing is."""
        if saved is None or (found is not None and found >= saved):
            return ""
        if self.head() is None:
            return f"{run_folder('stats', self.key)}: the records of its attempts are missing, though there are checkpoints"
        return f"{saved.folder(self.key)}: step {saved.step} was saved, and its checkpoint is missing or damaged"
