"""Verify: read every file of a store, and list all that is not what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from trainmaster.errors import StoreAccessError, StoreDamagedError
from trainmaster.store.checkpoint import check_checkpoint
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.files import Files
from trainmaster.store.keys import config_path, is_key
from trainmaster.store.record import find_record
from trainmaster.store.run import ATTEMPT, EVENTS, OUTCOME, PREVIEW, RESUME, STATUS, Run


class Damage(NamedTuple):
    """Something that is not as it was written."""

    path: str
    why: str
    is_fatal: bool = True
    """False where the run goes on all the same."""

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


def verify(files: Files, configs: ConfigArchive) -> Iterator[Damage]:
    """Everything that is wrong in a store, file by file."""
    for archive in ("configs", "stats", "ckpts", "previews"):
        yield from _strangers(files, archive)
    for key in configs:
        yield from _damage(config_path(key), partial(configs.record, key))
    for folder in sorted(files.names("stats")):
        for key in sorted(files.names(f"stats/{folder}")) if len(folder) == 2 else ():
            if is_key(key) and key.startswith(folder):
                yield from check_run(Run(files, key))
                if key not in configs and not _is_removed(Run(files, key)):
                    yield Damage(config_path(key), "it is missing, though the run has records")


def check_run(run: Run, is_deep: bool = True) -> Iterator[Damage]:
    """What is wrong with the files of a run; `is_deep` reads its checkpoints, too."""
    for number in run.attempts():
        yield from _damage(run.path(number, ATTEMPT), partial(run.claim_of, number), False)
        yield from _damage(run.path(number, OUTCOME), partial(run.outcome_of, number), False)
        yield from _damage(run.path(number, RESUME), partial(run.resume_of, number))
        for file in (STATUS, PREVIEW):
            yield from _damage(run.path(number, file), partial(find_record, run.files, run.path(number, file)), False)
    try:
        chain = run.chain()
        names = run.checkpoints(chain)
    except StoreDamagedError:  # told above
        return
    if not is_deep:
        return
    good = []
    for name in names:
        found = [
            *_damage(name.folder(run.key), partial(check_checkpoint, run.files, run.key, name)),
            *_damage(name.folder(run.key), partial(run.check_events, name, chain)),
        ]
        good += [name] if not found else []
        yield from found
    yield from _damage(run.path(chain[0].attempt, EVENTS), partial(run.event_lines, chain)) if chain else ()
    lost = run.lost(chain, good[0] if good else None) if not names else ""
    if lost:
        path, _, why = lost.partition(": ")
        yield Damage(path, why)


def _is_removed(run: Run) -> bool:
    try:
        return run.head() is None
    except StoreDamagedError:
        return False


def _damage(path: str, read: Callable[[], Any], is_fatal: bool = True) -> Iterator[Damage]:
    try:
        read()
    except (StoreDamagedError, StoreAccessError) as error:
        yield Damage(path, error.rows.get("why") or error.fact, is_fatal)
    except FileNotFoundError:  # removed meanwhile
        return


def _strangers(files: Files, archive: str) -> Iterator[Damage]:
    """What lies where only folders and files of ours should."""
    for folder in sorted(_listed(files, archive)):
        if len(folder) != 2 or not set(folder) <= set("0123456789abcdef"):
            yield Damage(f"{archive}/{folder}", "this is no folder of a store")
            continue
        try:
            names = files.names(f"{archive}/{folder}")
        except (StoreDamagedError, StoreAccessError) as error:
            yield Damage(f"{archive}/{folder}", error.fact)
            continue
        for name in sorted(names):
            key = name.removesuffix(".json") if archive == "configs" else name
            if name.startswith(".nfs"):  # what a network file system makes of a deleted file that is still open
                continue
            if not is_key(key) or not key.startswith(folder) or (archive == "configs" and key == name):
                yield Damage(f"{archive}/{folder}/{name}", "this is no file of a store; trainmaster never reads it")


def _listed(files: Files, folder: str) -> list[str]:
    try:
        return files.names(folder)
    except (StoreDamagedError, StoreAccessError):
        return []
