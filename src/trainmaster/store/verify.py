"""Reads every file in a store and lists all damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from trainmaster.errors import StoreAccessError, StoreDamagedError
from trainmaster.store.attempt_records import ATTEMPT, EVENTS, OUTCOME, PREVIEW, RESUME, STATUS
from trainmaster.store.checkpoint import check_checkpoint
from trainmaster.store.checksummed_json import damaged, read_record
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.files import Files
from trainmaster.store.keys import config_path, is_key, run_folder
from trainmaster.store.run import Run


class Damage(NamedTuple):
    """A file that was changed, is missing, or does not belong to the store."""

    path: str
    why: str
    is_fatal: bool = True
    """False if the run can still be resumed."""

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


def verify(files: Files, configs: ConfigArchive) -> Iterator[Damage]:
    """Yield all damage in a store, file by file."""
    keys: dict[str, list[str]] = {}
    for archive in ("configs", "stats", "ckpts", "previews"):
        keys[archive], damage = _survey(files, archive)
        yield from damage
    for key in keys["configs"]:
        yield from _damage(config_path(key), partial(configs.record, key))
    for key in keys["stats"]:
        run = Run(files, key)
        yield from check_run(run)
        if key not in keys["configs"] and _has_head(run):
            yield Damage(config_path(key), "it is missing, though the run has records")
    for key in sorted({*keys["ckpts"]} - {*keys["stats"]}):
        yield from _check_chain(Run(files, key))
    yield from _check_searches(files)


def _check_searches(files: Files) -> Iterator[Damage]:
    """Yield damaged records of searches, ablations and hypotheses."""
    for search in files.names("sweeps"):
        folders = [f"sweeps/{search}", *(f"sweeps/{search}/{kind}" for kind in ("proposals", "outcomes", "pairs"))]
        paths = [f"{folder}/{name}" for folder in folders for name in files.names(folder) if name.endswith(".json")]
        for path in paths:
            yield from _damage(path, partial(read_record, files, path))


def check_run(run: Run, is_deep: bool = True) -> list[Damage]:
    """Return the damage in the files of a run. With `is_deep`, also read its checkpoints.

    Another process may be changing the run's files, so damage is reported only if two checks in a row find the same damage.
    """
    damage, before = list(_check_run(run, is_deep)), None
    while damage and damage != before:
        damage, before = list(_check_run(run, is_deep)), damage
    return damage


def _check_run(run: Run, is_deep: bool) -> Iterator[Damage]:
    try:
        numbers = run.attempts()
    except (StoreDamagedError, StoreAccessError) as error:
        yield Damage(run_folder("stats", run.key), error.fact)
        return
    for number in numbers:
        yield from _damage(run.path(number, ATTEMPT), partial(run.claim_of, number), False)
        yield from _damage(run.path(number, OUTCOME), partial(run.outcome_of, number), False)
        yield from _damage(run.path(number, STATUS), partial(run.status_of, number), False)
        yield from _damage(run.path(number, PREVIEW), partial(run.preview_of, number), False)
        yield from _damage(run.path(number, RESUME), partial(run.resume_of, number))
        yield from _damage(run.path(number, PREVIEW), partial(_check_preview, run, number), False)
        if run.is_removed(number):
            break  # older attempts may be partly deleted
    if is_deep:
        yield from _check_chain(run)


def _check_preview(run: Run, number: int) -> None:
    """Raise an error if an attempt has a status but no preview. The preview is always written before the status."""
    if run.files.has(run.path(number, STATUS)) and not run.files.has(run.path(number, PREVIEW)):
        raise damaged(run.path(number, PREVIEW), "it is missing, though the attempt has saved something")


def _check_chain(run: Run) -> Iterator[Damage]:
    """Yield damaged checkpoints and event logs of the run."""
    try:
        chain = run.chain()
        saved = run.last_saved(chain)
        names = run.checkpoints(chain)
    except StoreDamagedError as error:
        if not error.path.startswith("stats/"):  # damage in `stats` was already reported
            yield Damage(run_folder("ckpts", run.key), error.fact)
        return
    for name in names:
        yield from _damage(name.folder(run.key), partial(check_checkpoint, run.files, run.key, name))
        yield from _damage(name.folder(run.key), partial(run.check_events, name, chain))
    if chain:
        yield from _damage(run.path(chain[0].attempt, EVENTS), partial(run.event_lines, chain))
    lost = run.lost(saved, names[0] if names else None)
    if lost:
        path, _, why = lost.partition(": ")
        yield Damage(path, why)


def _has_head(run: Run) -> bool:
    try:
        return run.head() is not None
    except StoreDamagedError:
        return True


def _damage(path: str, read: Callable[[], Any], is_fatal: bool = True) -> Iterator[Damage]:
    try:
        read()
    except (StoreDamagedError, StoreAccessError) as error:
        yield Damage(getattr(error, "path", "") or path, error.rows.get("why") or error.fact, is_fatal)
    except FileNotFoundError:  # the file was removed in the meantime
        return


def _survey(files: Files, archive: str) -> tuple[list[str], list[Damage]]:
    """Return the keys of the runs in an archive, and the damage: unknown files and folders, and folders that cannot be listed."""
    keys: list[str] = []
    damage: list[Damage] = []

    def listed(folder: str) -> list[str]:
        try:
            return sorted(files.names(folder))
        except (StoreDamagedError, StoreAccessError) as error:
            damage.append(Damage(folder, error.fact))
            return []

    for folder in listed(archive):
        if len(folder) != 2 or not set(folder) <= set("0123456789abcdef"):
            damage.append(Damage(f"{archive}/{folder}", "this is not a folder of a store"))
            continue
        for name in listed(f"{archive}/{folder}"):
            key = name.removesuffix(".json") if archive == "configs" else name
            if name.startswith(".nfs"):  # NFS renames a deleted file that is still open
                continue
            if not is_key(key) or not key.startswith(folder) or (archive == "configs" and key == name):
                damage.append(Damage(f"{archive}/{folder}/{name}", "this is not a file of a store; trainmaster never reads it"))
                continue
            keys.append(key)
            for attempt in listed(f"{archive}/{folder}/{name}") if archive != "configs" else ():
                listed(f"{archive}/{folder}/{name}/{attempt}")
    return keys, damage
