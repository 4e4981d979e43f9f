"""Transfer: a run as it counts now, taken out of one store and adopted by another.

What is taken out is the chain made straight: one list of events, the checkpoints that count, the status and the preview. The other store
adopts it as one new attempt, which readers see once it is complete. So an import that dies half-way has changed nothing.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

from trainmaster.errors import StoreDamagedError, StoreError
from trainmaster.store.attempt import Attempt, claim_or_watch
from trainmaster.store.checkpoint import MANIFEST, CheckpointName, check_checkpoint, check_manifest, read_manifest
from trainmaster.store.codec import decode
from trainmaster.store.configs import ConfigArchive, check_config
from trainmaster.store.events import event_line, event_of, seed_of
from trainmaster.store.files import MAX_RECORD, Files
from trainmaster.store.keys import attempt_folder, config_path
from trainmaster.store.record import Record, damaged, parse_record
from trainmaster.store.run import EVENTS, IMPORT, IMPORTED, RESUME, Link, Run

CONFIG, RUN = "config.json", "run.json"
_BLOCK = 4 * 2**20
_MAX_LOOKS = 20


@dataclass(frozen=True)
class Parcel:
    """A run on its way: its config, what `run.json` says, and its files by name, each to be opened once."""

    key: str
    config: bytes
    facts: Record
    """`status` and `preview`, encoded; `checkpoints`, oldest first: name, step and how many events it counts."""
    events: list[bytes]
    files: Mapping[str, Callable[[], BinaryIO]] = field(default_factory=dict)
    """By `step-000012/tree.json`."""

    @property
    def epoch(self) -> int:
        return int(self.facts["status"]["epoch"])

    def close(self) -> None:
        """Close what is open of the files."""
        for opened in self.files.values():
            opened().close()

    def numbered_events(self) -> Iterator[bytes]:
        """The lines of the events, numbered as those of one log."""
        for number, line in enumerate(self.events):
            tree = json.loads(line)
            yield event_line(number, {name: value for name, value in tree.items() if name not in ("n", "crc")}, seed_of(EVENTS))


def pack(files: Files, key: str) -> Parcel | None:
    """A run ready to be taken out: its files are open, so that nothing that happens to it meanwhile can change them."""
    for _ in range(_MAX_LOOKS):
        try:
            with contextlib.ExitStack() as stack:
                parcel = _packed(files, key, stack)
                stack.pop_all()  # from here on the parcel closes its files
                return parcel
        except FileNotFoundError:  # a checkpoint was dropped meanwhile, because there are newer ones
            continue
    raise damaged(config_path(key), "its run cannot be read: what is listed is not there")


def _packed(files: Files, key: str, stack: contextlib.ExitStack) -> Parcel | None:
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
        for file in (MANIFEST, *manifest["files"]):  # in the order in which they are read again
            opened[f"{label}/{file}"] = stack.enter_context(files.open(f"{name.folder(key)}/{file}"))
    events = run.event_lines(chain)  # after the manifests, which count some of them
    preview = run.preview_at(names[0])
    preview = manifest["preview"] if preview is None else preview
    facts: Record = {"key": key, "status": manifest["status"], "preview": preview, "checkpoints": checkpoints}
    return Parcel(key, files.read(config_path(key)), facts, events, {path: partial(_same, file) for path, file in opened.items()})


def _is_good(run: Run, name: CheckpointName, chain: list[Link]) -> bool:
    try:
        check_checkpoint(run.files, run.key, name)
        run.check_events(name, chain)
    except StoreDamagedError as error:
        if not run.files.has(f"{name.folder(run.key)}/{MANIFEST}"):
            raise FileNotFoundError(name.text) from None  # dropped meanwhile
        warnings.warn(f"run {run.key} is sent without step {name.step}: {error.fact}: {error.rows.get('why', '')}", stacklevel=2)
        return False
    return True


def _events_before(chain: list[Link]) -> dict[int, int]:
    """How many events count before those of each attempt itself."""
    before, total = {}, 0
    for link in reversed(chain):
        before[link.attempt] = total
        if link.num_events is not None:
            total += link.num_events
    return before


def _same(file: BinaryIO) -> BinaryIO:
    return file


def adopt(files: Files, configs: ConfigArchive, parcel: Parcel, lease_time: float, newer_only: bool) -> str | None:
    """The key of the run as it is here now; None if it is here already, trained as far or further."""
    with contextlib.closing(parcel):
        return _adopted(files, configs, parcel, lease_time, newer_only)


def _adopted(files: Files, configs: ConfigArchive, parcel: Parcel, lease_time: float, newer_only: bool) -> str | None:
    record = check_config(parcel.config, f"{parcel.key}/{CONFIG}", parcel.key)
    key = configs.add_record(record, parcel.config)
    run = Run(files, key)
    status = run.status()
    if newer_only and status is not None and status["epoch"] >= parcel.epoch:
        return None
    attempt = claim_or_watch(run, IMPORT, lease_time)
    try:
        _unpack(attempt, parcel)
    except BaseException as error:
        with contextlib.suppress(StoreError):
            if not files.has(run.path(attempt.number, RESUME)):  # else it counts already, whatever came after that
                files.delete_folder(attempt_folder("ckpts", key, attempt.number))
        with contextlib.suppress(StoreError):
            attempt.release("failed", error=f"{type(error).__name__}: {error}"[:2000])
        raise
    attempt.release(IMPORTED)
    return key


def _unpack(attempt: Attempt, parcel: Parcel) -> None:
    files, run = attempt.run.files, attempt.run
    for line in parcel.events:
        attempt.log.append(event_of(line, f"{parcel.key}/{EVENTS}"))
    manifests: dict[CheckpointName, Record] = {}
    for facts in parcel.facts["checkpoints"]:
        name = CheckpointName.parse(attempt.number, facts["name"])
        if name is None or name in manifests or name.step != facts["step"] or not 0 <= facts["events"] <= len(parcel.events):
            raise damaged(f"{parcel.key}/{RUN}", f"it names a checkpoint that cannot be: {facts!r:.100}")
        path = f"{parcel.key}/{name.text}/{MANIFEST}"
        manifest = check_manifest(parse_record(_read(parcel, f"{name.text}/{MANIFEST}"), path), path)
        for file, written in manifest["files"].items():
            if f"{name.text}/{file}" not in parcel.files:
                raise damaged(f"{parcel.key}/{name.text}/{file}", "it is missing, and the manifest names it")
            with parcel.files[f"{name.text}/{file}"]() as source:
                here = files.write(f"{name.folder(run.key)}/{file}", _blocks(source, written["size"], f"{parcel.key}/{name.text}/{file}"))
            if (here.size, here.sha256) != (written["size"], written["sha256"]):
                raise damaged(f"{parcel.key}/{name.text}/{file}", "it is not what its manifest says")
        manifests[name] = {**manifest, "step": name.step, "events": facts["events"]}
    attempt.adopt(manifests, parcel.facts["status"], parcel.facts["preview"])


def _read(parcel: Parcel, path: str) -> bytes:
    if path not in parcel.files:
        raise StoreDamagedError(f"`{parcel.key}/{path}` is missing")
    with parcel.files[path]() as file:
        return b"".join(_blocks(file, MAX_RECORD, f"{parcel.key}/{path}"))


def _blocks(file: BinaryIO, size: int, path: str) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        size -= len(block)
        if size < 0:
            raise damaged(path, "it is larger than it should be")
        yield block


def check_facts(record: Any, path: str) -> Record:
    """`run.json`, if all that is used of it is of the right kind."""
    found: Record = record
    is_sound = (
        isinstance(found.get("status"), dict)
        and type(found["status"].get("epoch")) is int
        and isinstance(found.get("preview"), dict)
        and isinstance(found.get("checkpoints"), list)
        and found["checkpoints"]
        and all(
            isinstance(each, dict)
            and isinstance(each.get("name"), str)
            and type(each.get("step")) is int
            and type(each.get("events")) is int
            for each in found["checkpoints"]
        )
    )
    if not is_sound:
        raise damaged(path, "it does not say what it should")
    try:
        decode(found["status"])
        decode(found["preview"])
    except StoreDamagedError as error:
        raise damaged(path, str(error)) from error
    return found
