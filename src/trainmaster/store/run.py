"""Reads the attempts, checkpoints and events of a run.

Every start and every resume of a run is a new numbered *attempt*, which writes only into its own folders. The file
`resume.json` records from which checkpoint of an earlier attempt the new attempt resumed. The history of a run
is therefore a *chain*: the newest attempt that started, the attempt that it resumed from (up to that checkpoint), and
so on. Readers ignore everything that is not in the chain.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from trainmaster.errors import StoreDamagedError
from trainmaster.store.attempt_records import EVENTS, PREVIEW, RESUME, STATUS, AttemptRecords, decoded
from trainmaster.store.checkpoint import Checkpoint, CheckpointName, check_checkpoint, read_checkpoint, read_manifest, read_newest
from trainmaster.store.checksummed_json import Record, damaged
from trainmaster.store.events import RowsByName, read_events, read_lines, rows_by_name
from trainmaster.store.keys import attempt_number, run_folder
from trainmaster.text import html_table

NEVER_SAVED = {"epoch": -1, "t_train": None, "t_eval": None}
"""The status of a run before its first checkpoint."""
_MAX_LOOKS = 20
"""How many times a reader retries while another process is changing the run."""


class Link(NamedTuple):
    """An attempt in the chain of a run, and the part of the attempt that belongs to the run's history."""

    attempt: int
    last: CheckpointName | None
    """The last checkpoint that belongs to the history, or None if all of them do."""
    num_events: int | None
    """The number of events that belong to the history, or None if all of them do."""


class Run(AttemptRecords):
    """One run in a store. Every call reads the files again."""

    # ---- the chain

    def head(self) -> int | None:
        """Return the number of the newest attempt in the run's chain, or None if the run never started or was removed."""
        fresh: int | None = None
        for number in self.iter_attempts():
            resume = self.resume_of(number)
            if resume is None:
                continue
            if resume.get("is_removed"):
                break
            if resume["parent"] is not None or self.files.has(self.path(number, STATUS)) or self.own_checkpoints(number):
                return number
            fresh = number if fresh is None else fresh  # an attempt from scratch replaces older ones once it has saved a checkpoint
        return fresh

    def chain(self, head: int | None = None) -> list[Link]:
        """Return the run's chain of attempts, newest first. The list is empty if the run never started.

        `head` is the number of the newest attempt in the chain. The default is the result of `head()`. An attempt that started from
        scratch passes its own number, because `head()` may return an earlier attempt until the new one has saved a checkpoint.
        """
        head = self.head() if head is None else head
        links: list[Link] = []
        link = Link(head, None, None) if head is not None else None
        while link is not None:
            links.append(link)
            resume = self.resume_of(link.attempt)
            if resume is None:
                raise damaged(self.path(link.attempt, RESUME), "it is missing, though a later attempt resumed from this one")
            parent = resume["parent"]
            last = CheckpointName.parse(parent, resume["checkpoint"]) if parent is not None else None
            link = Link(parent, last, resume["events"]) if parent is not None else None
        return links

    def checkpoints(self, chain: list[Link] | None = None) -> list[CheckpointName]:
        """Return the checkpoints of the chain (by default the run's current chain), newest first."""
        links = self.chain() if chain is None else chain
        return [name for link in links for name in self.own_checkpoints(link.attempt) if link.last is None or name <= link.last]

    def status(self) -> dict[str, Any] | None:
        """Return the progress of the run (`epoch`, `toc`, `t_train`, `t_eval`), or None if the run was never claimed.

        Before the first checkpoint, the epoch is -1.
        """
        tree, path = self._of_head(STATUS)
        status = decoded(tree or self._claimed(), path)
        if status is not None and type(status.get("epoch")) is not int:
            raise damaged(path, "it has no epoch")
        return status

    def _claimed(self) -> Record | None:
        """Return the status of a run that was claimed but has not started yet, or None if it was never claimed."""
        number = self.newest()
        if number == 0 or self.is_removed(number):
            return None
        return {**NEVER_SAVED, "toc": self.claim_or_empty(number).get("toc")}

    def best(self) -> CheckpointName | None:
        """Return the best checkpoint according to the status, or None if no best checkpoint is recorded or it no longer exists."""
        best = (self.status() or {}).get("best")
        try:
            name = CheckpointName.parse(best["attempt"], best["checkpoint"]) if isinstance(best, dict) else None
        except (KeyError, TypeError):
            return None
        return name if name in self.checkpoints() else None

    def preview(self) -> dict[str, Any] | None:
        """Return the preview of the last save, or None if the run never started."""
        return decoded(*self._of_head(PREVIEW))

    def _of_head(self, file: str) -> tuple[Record | None, str]:
        """Return the encoded status or preview of the chain's newest attempt, and the path of the file that contains it.

        If that attempt has not saved yet, return the status or preview of the checkpoint that it resumed from.
        """
        head = self.head()
        if head is None:
            return None, run_folder("stats", self.key)
        member = file.removesuffix(".json")
        try:
            record = self.status_of(head) if file == STATUS else self.preview_of(head)
        except StoreDamagedError:  # the manifest of the last checkpoint contains the same record; `verify` reports the damage
            own = self.own_checkpoints(head)
            record = read_manifest(self.files, self.key, own[0]) if own else None
        return (record or self._resumed(head))[member], self.path(head, file if record else RESUME)

    def preview_with(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the preview of a checkpoint: the one in its manifest, or the one that was written later to replace it."""
        tree = self.preview_at(checkpoint.name)
        tree = checkpoint.manifest["preview"] if tree is None else tree
        return decoded(tree, self.path(checkpoint.name.attempt, PREVIEW)) or {}

    def preview_at(self, name: CheckpointName) -> Record | None:
        """Return the encoded preview that replaced the one in a checkpoint's manifest, or None if the manifest is up to date."""
        head = self.head()
        if head is None:
            return None
        resume = self._resumed(head)
        try:
            record = self.preview_of(head)
        except StoreDamagedError:  # use the preview in the checkpoint's manifest
            return None
        belongs = head == name.attempt or (resume["parent"], resume["checkpoint"]) == (name.attempt, name.text)
        if not belongs or (record is not None and (record.get("step"), record.get("checkpoint", name.text)) != (name.step, name.text)):
            return None
        preview: Record | None = record["preview"] if record is not None else resume["preview"] if head != name.attempt else None
        return preview

    def _resumed(self, number: int) -> Record:
        record = self.resume_of(number)
        assert record is not None  # `number` is the head of a chain
        return record

    def event_lines(self, chain: list[Link] | None = None) -> list[bytes]:
        """Return the lines of the chain's event logs, oldest first."""
        links = self.chain() if chain is None else chain
        return [line for link in reversed(links) for line in read_lines(self.files, self.path(link.attempt, EVENTS), link.num_events)]

    def events(self, head: int | None = None) -> list[dict[str, Any]]:
        """Return the events in the run's chain of attempts, oldest first. `head` is passed to `chain`."""
        return [
            event
            for link in reversed(self.chain(head))
            for event in read_events(self.files, self.path(link.attempt, EVENTS), link.num_events)
        ]

    @property
    def history(self) -> RowsByName:
        """The logged values by name, as (step, value) pairs in the order in which they were logged."""
        return rows_by_name(self.events())

    # ---- damage

    def _repr_html_(self) -> str:
        """Return HTML that shows a table with the last value of each metric, and the folder of the store."""
        status = self.status() or {}
        at = f" at epoch {status['epoch']}" if status.get("epoch", -1) >= 0 else ""
        rows = list((self.preview() or {}).items())
        root = getattr(self.files, "root", None)
        return html_table(f"run {self.key}{at}", ("metric", "last value"), rows, [] if root is None else [f"in {root}"])

    def has_saved(self) -> bool:
        """Return whether any file shows that the run has ever saved a checkpoint."""
        chain = self.chain()
        return bool(self.lost(self.last_saved(chain), None)) or bool(self.checkpoints(chain))

    def latest(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint with its values, or None if the run has never saved a checkpoint.

        Damaged checkpoints are skipped with a warning that names the file. If the run has saved checkpoints but all of them are damaged
        or missing, raise an error, because only the user can decide to start from scratch.
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
            # Another process may be saving and deleting checkpoints, so only trust a problem that is seen twice.
            before = (chain, saved, names)
        if found is None and problems:
            raise StoreDamagedError(
                f"run {self.key} has no good checkpoint left",
                why="\n".join(problems),
                hint="restore the files from a copy, or start again: `process(config, resume=False)`",
            )
        for problem in problems:
            warnings.warn(f"run {self.key} resumes from step {found.name.step if found else 0}: {problem}", stacklevel=2)
        return found

    def checkpoint(self, which: str | int = "last") -> Checkpoint | None:
        """Return the checkpoint that `which` selects ("last", "best" or a step number), or None if there is none."""
        if which == "last":
            return self.latest()
        name = self.best() if which == "best" else next((name for name in self.checkpoints() if name.step == which), None)
        return None if name is None else read_checkpoint(self.files, self.key, name)

    def _newest_good(self, names: list[CheckpointName], chain: list[Link]) -> tuple[Checkpoint | None, list[str]]:
        """Return the first undamaged checkpoint in `names`, or None if there is none, and the problems with the checkpoints before it."""

        def read(name: CheckpointName) -> Checkpoint:
            self.check_events(name, chain)
            return read_checkpoint(self.files, self.key, name)

        return read_newest(names, read)

    def is_good(self, name: CheckpointName, chain: list[Link]) -> bool:
        """Return whether a checkpoint and all events up to it can be read."""
        try:
            check_checkpoint(self.files, self.key, name)
            self.check_events(name, chain)
        except StoreDamagedError:
            return False
        return True

    def check_events(self, name: CheckpointName, chain: list[Link]) -> None:
        """Raise an error unless all events up to a checkpoint can be read. Without its events, a checkpoint cannot be used."""
        manifest = read_manifest(self.files, self.key, name)
        self.event_lines(self.chain_to(name, manifest["events"], chain))

    def chain_to(self, name: CheckpointName, num_events: int, chain: list[Link]) -> list[Link]:
        """Return the chain of attempts that led to a checkpoint.

        For the attempt that saved the checkpoint, the chain includes only its first `num_events` events.
        """
        return [Link(name.attempt, name, num_events), *(link for link in chain if link.attempt < name.attempt)]

    def last_saved(self, chain: list[Link]) -> CheckpointName | None:
        """Return the name of the last saved checkpoint according to the run's records, or None if there is none. Its files may be missing.

        Call this before you list the checkpoints. Otherwise, a checkpoint that another process saves in between would seem to be missing.
        """
        if not chain:
            newest = self.newest()
            numbers = [attempt_number(name) for name in self.files.names(run_folder("ckpts", self.key))]
            orphans = [name for number in numbers if number is not None and number > newest for name in self.own_checkpoints(number)]
            return max(orphans, default=None)  # checkpoints of attempts whose records are gone
        head = chain[0].attempt
        try:
            status = self.status_of(head)
        except StoreDamagedError:  # the caller notices the damage when it lists the checkpoints
            status = None
        if status is not None:
            return CheckpointName.parse(head, status["checkpoint"])
        return chain[1].last if len(chain) > 1 else None

    def lost(self, saved: CheckpointName | None, found: CheckpointName | None) -> str:
        """Describe the problem if `saved` is newer than `found`. Otherwise return an empty string.

        `saved` is the last checkpoint according to the run's records, and `found` is the newest one that can be read.
        """
        if saved is None or (found is not None and found >= saved):
            return ""
        if self.head() is None:
            return f"{run_folder('stats', self.key)}: the records of its attempts are missing, though there are checkpoints"
        return f"{saved.folder(self.key)}: step {saved.step} was saved, and its checkpoint is missing or damaged"
