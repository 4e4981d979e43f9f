"""Copies runs from one store to another.

A packed run contains the whole history of a run: one list of events, the checkpoints, the status and the
preview. The other store imports it as one new attempt, which is invisible to readers until it is complete. An import that is
interrupted therefore changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO

from trainmaster.errors import StoreDamagedError, StoreError
from trainmaster.store.attempt import Attempt, claim_or_watch
from trainmaster.store.attempt_records import EVENTS, IMPORT, IMPORTED, RESUME
from trainmaster.store.checkpoint import MANIFEST, CheckpointName, check_checkpoint, check_manifest, read_manifest
from trainmaster.store.checksummed_json import Record, check_members, damaged, parse_record
from trainmaster.store.codec import decode
from trainmaster.store.configs import ConfigArchive, check_config
from trainmaster.store.events import event_line, event_of, seed_of
from trainmaster.store.files import MAX_RECORD, Files
from trainmaster.store.keys import attempt_folder, config_path
from trainmaster.store.run import Link, Run

CONFIG, RUN = "config.json", "run.json"
STARTED_WITH = ("program", "seed")
"""The members of `resume.json` that are copied with the run. They are written at the start of an attempt."""
_BLOCK = 4 * 2**20
_MAX_LOOKS = 20


@dataclass(frozen=True)
class PackedRun:
    """A run to be copied: its config, the content of `run.json`, its events, and its checkpoint files. Each file can be opened once."""

    key: str
    config: bytes
    facts: Record
    """The content of `run.json`: the encoded status and preview, and the name, step and event count of each checkpoint, oldest first."""
    events: list[bytes]
    files: Mapping[str, Callable[[], BinaryIO]] = field(default_factory=dict)
    """Maps names such as `step-000012/tree.json` to functions that open the files."""

    @property
    def epoch(self) -> int:
        return int(self.facts["status"]["epoch"])

    def close(self) -> None:
        """Close all open files."""
        for opened in self.files.values():
            opened().close()

    def numbered_events(self) -> Iterator[bytes]:
        """Yield the event lines, renumbered as in a single log."""
        for number, line in enumerate(self.events):
            tree = json.loads(line)
            yield event_line(number, {name: value for name, value in tree.items() if name not in ("n", "crc")}, seed_of(EVENTS))


def pack(files: Files, key: str) -> PackedRun | None:
    """Pack a run, or return None if it has no undamaged checkpoint.

    The run's files are opened now, so later changes to the run do not affect the packed run.
    """
    for _ in range(_MAX_LOOKS):
        try:
            with contextlib.ExitStack() as stack:
                packed = _pack(files, key, stack)
                stack.pop_all()  # from now on, the packed run closes its files
                return packed
        except FileNotFoundError:  # an old checkpoint was deleted in the meantime
            continue
    raise damaged(config_path(key), "its run changes too fast to be read")


def _pack(files: Files, key: str, stack: contextlib.ExitStack) -> PackedRun | None:
    run = Run(files, key)
    chain = run.chain()
    checkpoints: list[Record] = []
    opened: dict[str, BinaryIO] = {}
    names = [name for name in run.checkpoints(chain) if _is_good(run, name, chain)]
    if not names:
        return None
    before = _events_before(chain)
    for name in reversed(names):
        manifest = read_manifest(files, key, name)
        repeat = 1 + sum(each["step"] == name.step for each in checkpoints)
        label = CheckpointName(1, name.step, repeat).text
        checkpoints.append({"name": label, "step": name.step, "events": before[name.attempt] + manifest["events"]})
        for file in (MANIFEST, *manifest["files"]):  # in the order in which they will be read
            opened[f"{label}/{file}"] = stack.enter_context(files.open(f"{name.folder(key)}/{file}"))
    events = run.event_lines(chain)  # read after the manifests, so that all events counted in a manifest are included
    preview = run.preview_at(names[0])
    preview = manifest["preview"] if preview is None else preview
    facts: Record = {"key": key, "status": manifest["status"], "preview": preview, "checkpoints": checkpoints}
    facts |= {name: each for name, each in (run.resume_of(names[0].attempt) or {}).items() if name in STARTED_WITH}
    return PackedRun(key, files.read(config_path(key)), facts, events, {path: partial(_opened, file) for path, file in opened.items()})


def _is_good(run: Run, name: CheckpointName, chain: list[Link]) -> bool:
    try:
        check_checkpoint(run.files, run.key, name)
        run.check_events(name, chain)
    except StoreDamagedError as error:
        if not run.files.has(f"{name.folder(run.key)}/{MANIFEST}"):
            raise FileNotFoundError(name.text) from None  # deleted in the meantime
        warnings.warn(f"run {run.key} is copied without step {name.step}: {error.fact}: {error.rows.get('why', '')}", stacklevel=2)
        return False
    return True


def _events_before(chain: list[Link]) -> dict[int, int]:
    """Return, for each attempt in the chain, the number of events before that attempt."""
    before, total = {}, 0
    for link in reversed(chain):
        before[link.attempt] = total
        if link.num_events is not None:
            total += link.num_events
    return before


def _opened(file: BinaryIO) -> BinaryIO:
    return file


def adopt(files: Files, configs: ConfigArchive, packed: PackedRun, lease_time: float, newer_only: bool) -> str | None:
    """Import a packed run and return its key.

    With `newer_only`, skip the run and return None if this store already contains at least as many epochs of it.
    """
    with contextlib.closing(packed):
        return _import(files, configs, packed, lease_time, newer_only)


def _import(files: Files, configs: ConfigArchive, packed: PackedRun, lease_time: float, newer_only: bool) -> str | None:
    record = check_config(packed.config, f"{packed.key}/{CONFIG}", packed.key)
    key = configs.add_record(record, packed.config)
    run = Run(files, key)
    status = run.status()
    if newer_only and status is not None and status["epoch"] >= packed.epoch:
        return None
    attempt = claim_or_watch(run, IMPORT, lease_time)
    try:
        _unpack(attempt, packed)
    except BaseException as error:
        with contextlib.suppress(StoreError):
            if not files.has(run.path(attempt.number, RESUME)):  # once this file exists, readers see the attempt
                files.delete_folder(attempt_folder("ckpts", key, attempt.number))
        with contextlib.suppress(StoreError):
            attempt.release("failed", error=f"{type(error).__name__}: {error}"[:2000])
        raise
    attempt.release(IMPORTED)
    return key


def _unpack(attempt: Attempt, packed: PackedRun) -> None:
    files, run = attempt.run.files, attempt.run
    for line in packed.events:
        attempt.log.append(event_of(line, f"{packed.key}/{EVENTS}"))
    manifests: dict[CheckpointName, Record] = {}
    for facts in packed.facts["checkpoints"]:
        name = CheckpointName.parse(attempt.number, facts["name"])
        if name is None or name in manifests or name.step != facts["step"] or not 0 <= facts["events"] <= len(packed.events):
            raise damaged(f"{packed.key}/{RUN}", f"it lists an impossible checkpoint: {facts!r:.100}")
        path = f"{packed.key}/{name.text}/{MANIFEST}"
        manifest = check_manifest(parse_record(_read(packed, f"{name.text}/{MANIFEST}"), path), path)
        for file, written in manifest["files"].items():
            if f"{name.text}/{file}" not in packed.files:
                raise damaged(f"{packed.key}/{name.text}/{file}", "it is missing, though the manifest lists it")
            with packed.files[f"{name.text}/{file}"]() as source:
                here = files.write(f"{name.folder(run.key)}/{file}", _blocks(source, written["size"], f"{packed.key}/{name.text}/{file}"))
            if (here.size, here.sha256) != (written["size"], written["sha256"]):
                raise damaged(f"{packed.key}/{name.text}/{file}", "it does not match its manifest")
        manifests[name] = {**manifest, "step": name.step, "events": facts["events"]}
    started = {name: packed.facts[name] for name in STARTED_WITH if name in packed.facts}
    attempt.adopt(manifests, packed.facts["status"], packed.facts["preview"], started)


def _read(packed: PackedRun, path: str) -> bytes:
    if path not in packed.files:
        raise StoreDamagedError(f"`{packed.key}/{path}` is missing")
    with packed.files[path]() as file:
        return b"".join(_blocks(file, MAX_RECORD, f"{packed.key}/{path}"))


def _blocks(file: BinaryIO, size: int, path: str) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        size -= len(block)
        if size < 0:
            raise damaged(path, "it is larger than its manifest says")
        yield block


def check_facts(record: Record, path: str) -> Record:
    """Return the content of `run.json`. Raise an error if it is invalid."""
    check_members(record, path, {"status": dict, "preview": dict, "checkpoints": list})
    for each in record["checkpoints"]:
        check_members(each if isinstance(each, dict) else {}, path, {"name": str, "step": int, "events": int})
    if not record["checkpoints"] or type(record["status"].get("epoch")) is not int:
        raise damaged(path, "it has no checkpoint or no epoch")
    try:
        decode(record["status"])
        decode(record["preview"])
    except StoreDamagedError as error:
        raise damaged(path, str(error)) from error
    return record
