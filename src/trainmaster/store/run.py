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
from trainmaster.store.events import event_of, read_lines
from trainmaster.store.files import Files
from trainmaster.store.keys import attempt_folder, attempt_number, run_folder
from trainmaster.store.record import Members, Record, damaged, find_record, read_record

ATTEMPT, RESUME, STATUS, OUTCOME, EVENTS, LEASE, PREVIEW = (
    "attempt.json",
    "resume.json",
    "status.json",
    "outcome.json",
    "events.jsonl",
    "lease",
    "preview.json",
)
NEVER_SAVED = {"epoch": -1, "t_train": None, "t_eval": None}
"""What the status of a run says before its first checkpoint."""
IMPORT, IMPORTED = "import", "imported"
"""What an attempt is made for that brings a run from another store, and how it ends."""
_NUMBER_OR_NONE = (int, type(None))
_MAX_LOOKS = 20
"""How often a checkpoint may be dropped by its owner while a reader reads it, before that is taken for damage."""


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
        return (number for number in numbers if self.files.has(self.path(number, ATTEMPT)))

    def claim_of(self, number: int) -> Record:
        """Who made an attempt, when and for what."""
        path = self.path(number, ATTEMPT)
        record = read_record(
            self.files, path, {"key": str, "attempt": int, "token": str, "by": str, "owner": dict, "heartbeat": (int, float)}
        )
        if (record["key"], record["attempt"]) != (self.key, number):
            raise damaged(path, "it belongs to another attempt")
        return record

    def resume_of(self, number: int) -> Record | None:
        """What an attempt went on from; None if it has not come so far."""
        path = self.path(number, RESUME)
        members: Members = {"parent": _NUMBER_OR_NONE, "step": _NUMBER_OR_NONE, "events": int, "status": dict, "preview": dict}
        record = find_record(self.files, path, members)
        if record is None:
            has_saved = self.own_checkpoints(number) or self.files.has(self.path(number, STATUS))
            if has_saved and not self._is_half_imported(number):
                raise damaged(path, "it is missing, though the attempt has saved something")
            return None
        parent = record["parent"]
        if parent is not None and (not 0 < parent < number or CheckpointName.parse(parent, str(record.get("checkpoint"))) is None):
            raise damaged(path, "it names a parent that cannot be")
        return record

    def _is_half_imported(self, number: int) -> bool:
        """True for an import that never came to its end, which is where it would have started."""
        outcome = self.outcome_of(number)
        return self._claim_or_none(number).get("by") == IMPORT and (outcome is None or outcome["outcome"] != IMPORTED)

    def outcome_of(self, number: int) -> Record | None:
        """How an attempt ended; None while it runs, or if it was killed."""
        return find_record(self.files, self.path(number, OUTCOME), {"outcome": str})

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
        for number in self._attempts():
            resume = self.resume_of(number)
            if resume is not None:
                return None if resume.get("is_removed") else number
        return None

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
        return self._decoded(self.encoded(STATUS) or self._claimed(), STATUS)

    def _claimed(self) -> Record | None:
        """The status of a run that somebody claimed, and that has not started yet."""
        number = self.newest()
        if number == 0 or self.is_removed(number):
            return None
        return {**NEVER_SAVED, "toc": self._claim_or_none(number).get("toc")}

    def preview(self) -> dict[str, Any] | None:
        """The preview of the last save; None for a run that never started."""
        return self._decoded(self.encoded(PREVIEW), PREVIEW)

    def encoded(self, file: str) -> Record | None:
        """`STATUS` or `PREVIEW` as it is stored: what the newest attempt that counts has written, or else what it went on from."""
        head = self.head()
        if head is None:
            return None
        member = file.removesuffix(".json")
        try:
            record = find_record(self.files, self.path(head, file), {member: dict})
        except StoreDamagedError:  # `verify` tells; the manifest of the last checkpoint has it, too
            own = self.own_checkpoints(head)
            record = read_manifest(self.files, self.key, own[0]) if own else None
        found: Record = (record or self._resumed(head))[member]
        return found

    def _decoded(self, tree: Record | None, name: str) -> dict[str, Any] | None:
        if tree is None:
            return None
        try:
            value = decode(tree)
        except StoreDamagedError as error:
            raise damaged(f"{run_folder('stats', self.key)}/*/{name}", str(error)) from error
        if not isinstance(value, dict) or (name == STATUS and type(value.get("epoch")) is not int):
            raise damaged(f"{run_folder('stats', self.key)}/*/{name}", "it does not say what it should")
        return value

    def preview_with(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The preview that belongs to a checkpoint."""
        tree = self.preview_at(checkpoint.name)
        tree = checkpoint.manifest["preview"] if tree is None else tree
        return self._decoded(tree, PREVIEW) or {}

    def preview_at(self, name: CheckpointName) -> Record | None:
        """The encoded preview that was last set for a checkpoint; None if that is the checkpoint's own."""
        head = self.head()
        if head is None:
            return None
        resume = self._resumed(head)
        try:
            record = find_record(self.files, self.path(head, PREVIEW), {"preview": dict})
        except StoreDamagedError:  # the checkpoint has its own
            return None
        is_its_own = head == name.attempt or (resume["parent"], resume["checkpoint"]) == (name.attempt, name.text)
        if not is_its_own or (record is not None and record.get("step") != name.step):
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
        return [event_of(line, self.path(0, EVENTS)) for line in self.event_lines()]

    # ---- damage

    def has_saved(self) -> bool:
        """Whether the run was ever saved, as far as any file tells."""
        chain = self.chain()
        return bool(self.lost(self.saved_step(chain), None)) or bool(self.checkpoints(chain))

    def latest(self) -> Checkpoint | None:
        """The newest good checkpoint with its values; None if nothing was ever saved.

        Damaged ones are passed over with a warning that names the file. Where something was saved and nothing of it is good, that is an
        error: to start again from zero is for the user to say.
        """
        for _ in range(_MAX_LOOKS):
            chain = self.chain()
            saved = self.saved_step(chain)
            found, problems, is_dropped = self._newest_good(chain)
            if not is_dropped:
                break
        else:
            problems.append("checkpoints vanish while they are read")
        lost = self.lost(saved, found.name if found else None)
        problems += [lost] if lost and not problems else []
        if found is None and problems:
            raise StoreDamagedError(
                f"run {self.key} has no good checkpoint left",
                why="\n".join(problems),
                hint="put the files back from a copy; or start again: `process(config, resume=False)`",
            )
        for problem in problems:
            warnings.warn(f"run {self.key} goes on from step {found.name.step if found else 0}: {problem}", stacklevel=2)
        return found

    def _newest_good(self, chain: list[Link]) -> tuple[Checkpoint | None, list[str], bool]:
        """The newest good checkpoint, what is wrong with newer ones, and whether one was dropped while it was read."""
        problems: list[str] = []
        for name in self.checkpoints(chain):
            try:
                self.check_events(name, chain)
                return read_checkpoint(self.files, self.key, name), problems, False
            except (StoreDamagedError, FileNotFoundError) as error:
                if not self.files.has(f"{name.folder(self.key)}/{MANIFEST}"):
                    return None, problems, True  # its owner has saved newer ones meanwhile
                problems.append(f"{error.fact}: {error.rows.get('why', '')}" if isinstance(error, StoreDamagedError) else f"{error}")
        return None, problems, False

    def check_events(self, name: CheckpointName, chain: list[Link]) -> None:
        """Raise unless all events that a checkpoint counts can be read: a checkpoint is good together with what was recorded up to it."""
        manifest = read_manifest(self.files, self.key, name)
        self.event_lines(self.chain_to(name, manifest["events"], chain))

    def chain_to(self, name: CheckpointName, num_events: int, chain: list[Link]) -> list[Link]:
        """The chain up to one of its checkpoints, which counts so many events of its own attempt."""
        return [Link(name.attempt, name, num_events), *(link for link in chain if link.attempt < name.attempt)]

    def saved_step(self, chain: list[Link]) -> int | None:
        """The step that was last saved, as the records of the run say; None if none was.

        Ask before the checkpoints are listed: a writer may go on meanwhile.
        """
        if not chain:
            newest = self.newest()
            numbers = [attempt_number(name) for name in self.files.names(run_folder("ckpts", self.key))]
            orphans = [name for number in numbers if number is not None and number > newest for name in self.own_checkpoints(number)]
            return max((name.step for name in orphans), default=None)  # checkpoints of attempts whose records are gone
        head = chain[0].attempt
        try:
            record = find_record(self.files, self.path(head, STATUS), {"step": int}) or self._resumed(head)
        except StoreDamagedError:
            record = self._resumed(head)
        step: int | None = record["step"]
        return step

    def lost(self, saved: int | None, found: CheckpointName | None) -> str:
        """What is missing if `saved` was the last step and `found` is the newest checkpoint; empty if nothing is."""
        if saved is None or (found is not None and found.step >= saved):
            return ""
        if self.head() is None:
            return f"{run_folder('stats', self.key)}: the records of its attempts are missing, though there are checkpoints"
        return f"{run_folder('ckpts', self.key)}: step {saved} was saved, and its checkpoint is missing or damaged"
