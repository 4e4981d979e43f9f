"""`Store`: the records of many runs in one folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trainmaster.arguments import check_int, check_number
from trainmaster.config import Config
from trainmaster.errors import ArchiveError, StoreAccessError, StoreDamagedError, StoreError, StoreFormatError
from trainmaster.store.archives import CheckpointArchive, PreviewArchive, StatsArchive
from trainmaster.store.attempt import Attempt, claim, claim_or_watch
from trainmaster.store.checkpoint import read_checkpoint
from trainmaster.store.checksummed_json import damaged
from trainmaster.store.configs import ConfigArchive, config_of
from trainmaster.store.dict_filter import Condition, Nothing, value_at
from trainmaster.store.files import Files, LocalFiles, access_error
from trainmaster.store.index import Index
from trainmaster.store.keys import attempt_folder, check_key, config_path
from trainmaster.store.lease import LEASE_TIME, ExpiredLease, Watch
from trainmaster.store.memory_files import MemoryFiles
from trainmaster.store.notes import Notes
from trainmaster.store.prune import prune
from trainmaster.store.run import Run
from trainmaster.store.tags import Tags
from trainmaster.store.tar import export_tar, read_tar, refused
from trainmaster.store.transfer import PackedRun, adopt, pack
from trainmaster.store.verify import Damage, verify

FORMAT = 1
ARCHIVES = ("configs", "stats", "ckpts", "previews")
ABOUT = "store.json"


class Records(NamedTuple):
    """The config, stats, checkpoint and preview of a run."""

    config: Config
    stats: dict[str, Any] | None
    ckpt: Any
    preview: dict[str, Any] | None


class Store:
    """The records of many runs (`configs`, `stats`, `ckpts` and `previews`), in the folder `root` or, if it is None, in memory.

    Any number of processes, on any machine that shares the folder, can use the store at the same time. There are no locks.
    Instead, a process that writes to a run holds a lease on that run. The lease expires if the process does not renew it
    for `lease_time` seconds.

    >>> store = Store(None)
    >>> key = store.configs.add({"lr": 0.1})
    >>> store.ckpts[key] = {"weights": [1.0, 2.0]}
    >>> store.ckpts[key]
    {'weights': [1.0, 2.0]}
    """

    def __init__(self, root: str | os.PathLike[str] | None, lease_time: float = LEASE_TIME) -> None:
        check_number("lease_time", lease_time, above=0)
        self.root = os.path.abspath(os.fspath(root)) if root is not None else None
        self.lease_time = lease_time
        self.files: Files = _opened(self.root) if self.root is not None else MemoryFiles()
        self._writing: dict[str, Attempt] = {}
        self.configs = ConfigArchive(self.files, self.remove)
        self.stats = StatsArchive(self.files, self.writing, self._reset)
        self.ckpts = CheckpointArchive(self.files, self.writing, self._reset)
        self.previews = PreviewArchive(self.files, self.writing, self._reset)
        self.tags = Tags(self.files, self.configs)
        self.notes = Notes(self.files, self.configs)
        self.index = Index(self.files, self.configs)

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    # ---- runs

    def run(self, key: str) -> Run:
        """Return the run with this key, for reading."""
        return Run(self.files, check_key(key))

    @contextlib.contextmanager
    def attempt(
        self,
        key: str,
        by: str,
        watch: Watch | ExpiredLease | None = None,
        report: Callable[[str], None] | None = None,
        facts: Mapping[str, Any] | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[Attempt]:
        """Claim a run and hold it during the `with` block. The block may call the attempt's `release` with an outcome.

        Raise `RunBusyError` if another process holds the run. If the lease is the only way to tell whether that process
        is alive, `watch` determines whether the lease has expired. If `watch` is None, this method calls `report` with
        a message and then watches the lease itself. `facts` are recorded with the attempt.
        """
        run, facts, time = self.run(key), facts or {}, self.lease_time
        attempt = claim_or_watch(run, by, time, report, facts, is_cancelled) if watch is None else claim(run, by, time, watch, facts)
        self._writing[key] = attempt
        try:
            yield attempt
        except BaseException:
            with contextlib.suppress(StoreAccessError):  # the user should see the error that the block raised
                attempt.release("failed")
            raise
        finally:
            self._writing.pop(key, None)  # the key may be gone if another thread has claimed and released the run
        attempt.release("saved")

    @contextlib.contextmanager
    def writing(self, key: str) -> Iterator[Attempt]:
        """Yield the attempt through which this store already holds the run. If there is none, claim the run for the `with` block."""
        if key in self._writing:
            yield self._writing[key]
            return
        self.configs.require(key)
        with self.attempt(key, "write") as attempt:
            attempt.start(attempt.run.latest(), attempt.run.preview())
            yield attempt

    def folder_of(self, attempt: Attempt) -> str | None:
        """Return the folder for an attempt's preview, plots and other files, or None if the store is in memory."""
        return None if self.root is None else os.path.join(self.root, attempt_folder("previews", attempt.key, attempt.number))

    def watch(self, patience: float | None = None) -> Watch:
        """Return an object that watches leases. It considers a lease expired after `patience` seconds without a change."""
        return Watch(self.files, self.lease_time if patience is None else patience)

    def pop(self, key: str) -> Records:
        """Remove a run and return its records. A damaged record is returned as None. Raise an error if a process holds the run."""
        config = self.configs[key]
        run = self.run(key)
        with self.attempt(key, "pop") as attempt:
            records = Records(
                config,
                _or_none(lambda: run.status() if run.head() else None),
                _or_none(lambda: (ckpt := run.latest()) and ckpt.value),
                _or_none(run.preview),
            )
            self._remove(attempt)
        return records

    def remove(self, key: str) -> None:
        """Remove a run and all its records, without reading them. Raise an error if a process holds the run."""
        self.configs.require(key)
        with self.attempt(key, "remove") as attempt:
            self._remove(attempt)

    def _reset(self, key: str, read: Callable[[Run], Any]) -> Any:
        """Call `read` with the run, then remove everything except the run's config. Return the result of `read`.

        If `read` finds a damaged record, return None, but still remove everything. Raise an error if a process holds the run.
        """
        with self.attempt(key, "reset") as attempt:
            value = _or_none(lambda: read(attempt.run))
            attempt.remove()
            attempt.release("removed")
        return value

    def _remove(self, attempt: Attempt) -> None:
        attempt.remove()
        self.tags.clear(attempt.key)
        self.notes.clear(attempt.key)
        self.files.delete(config_path(attempt.key))
        attempt.release("removed")

    # ---- the whole store

    def select(self, cond: Condition | None = None) -> Iterator[tuple[str, Config]]:
        """Yield the key and config of each run that meets `cond`, whether or not the run was ever started."""
        table = self.index.configs()
        table = table.take(table.matching(cond))
        rows = zip(table.keys, table.trees(), table.fact("secrets"), strict=True)
        return ((key, config_of(tree, key, secrets or ())) for key, tree, secrets in rows)

    def keys_in_use(self, keys: Iterable[str]) -> set[str]:
        """Return the dotted keys in `keys` that at least one config in this store has."""
        unused, used = {*keys}, set[str]()
        for _, tree in self.index:
            used |= {key for key in unused if value_at(tree, key.split(".")) is not Nothing.MISSING}
            unused -= used
            if not unused:
                break
        return used

    def completed(
        self, min_epoch: int = 0, cond: Condition | None = None, within_hours: float | None = None
    ) -> Iterator[tuple[str, dict[str, Any], Config]]:
        """Yield the key, stats and config of each run that meets `cond` and has saved a checkpoint at epoch `min_epoch` or later.

        With `within_hours`, yield only runs that were last saved or claimed at most that many hours ago. Damaged runs
        are skipped with a warning.
        """
        for key, config in self.select(cond):
            try:
                stats = self.run(key).status()
            except StoreDamagedError as error:
                warnings.warn(f"run {key} is skipped: {error.fact}: {error.rows.get('why', '')}", stacklevel=2)
                continue
            if stats is None or stats["epoch"] < max(0, min_epoch):
                continue
            if within_hours is None or time.time() - (stats.get("toc") or 0) <= within_hours * 3600:
                yield key, stats, config

    def verify(self) -> list[Damage]:
        """Return all damage in the store. This reads every file completely."""
        return list(verify(self.files, self.configs))

    def prune(self, keep: int = 3) -> list[str]:
        """Delete old checkpoints and return the deleted paths. Keep the last `keep` undamaged checkpoints and the best one of each run.

        Also delete files left behind by killed processes, and the records of runs that never saved a checkpoint.
        """
        check_int("keep", keep, min=1)
        return list(prune(self.files, keep, self.lease_time))

    def export_tar(
        self,
        path: str | os.PathLike[str],
        compresslevel: int = 1,
        min_epoch: int = 0,
        cond: Condition | None = None,
        keys: Iterable[str] | None = None,
        within_hours: float | None = None,
    ) -> int:
        """Write runs to a tar file and return their number. By default, write all runs that have saved a checkpoint.

        Select runs with `keys`, or with the arguments of `completed`. A run that is still in progress is exported in its current state.
        The file is compressed unless `compresslevel` is 0.
        """
        return export_tar(path, self._packed_runs(keys, min_epoch, cond, within_hours), compresslevel)

    def _packed_runs(
        self, keys: Iterable[str] | None, min_epoch: int, cond: Condition | None, within_hours: float | None = None
    ) -> Iterator[PackedRun]:
        if keys is None:
            keys = (key for key, _, _ in self.completed(min_epoch, cond, within_hours))
        for key in keys:
            self.configs.require(key)
            packed = pack(self.files, key)
            if packed is not None:
                with contextlib.closing(packed):
                    yield packed

    def load_tar(self, path: str | os.PathLike[str], newer_only: bool = True, max_bytes: int | None = None) -> list[str]:
        """Import the runs in a tar file and return their keys.

        With `newer_only`, skip a run if this store already contains at least as many epochs of it.

        The file is first unpacked into a temporary store, and every value in it is read. If anything is invalid, an error is raised
        and nothing is imported. `max_bytes` limits the unpacked size. The default is about 200 times the size of the file.
        """
        with self._aside() as aside:
            room = shutil.disk_usage(aside.root).free if aside.root is not None else sys.maxsize
            try:
                for packed in read_tar(path, room, max_bytes):
                    adopt(aside.files, aside.configs, packed, aside.lease_time, newer_only=True)
                aside.read_all()
            except (ArchiveError, StoreAccessError, KeyboardInterrupt):
                raise
            except StoreError as error:
                raise refused(os.fspath(path), ": ".join(filter(None, [error.fact, error.rows.get("why")]))) from error
            except Exception as error:  # tarfile and zlib raise various errors for a forged archive
                raise refused(os.fspath(path), f"it cannot be read: {error}"[:500]) from error
            return aside.migrate(self, newer_only=newer_only)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[Store]:
        """Yield a temporary store in a subfolder of this store, or in memory if this store is in memory."""
        if self.root is None:
            yield Store(None, self.lease_time)
            return
        try:
            folder = tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=self.root, ignore_cleanup_errors=True)
        except OSError as error:
            raise access_error(error, self.root, "written") from error
        with folder as path:
            yield Store(path, self.lease_time)

    def read_all(self) -> None:
        """Read every value of every run. Raise an error at the first damaged file."""
        for key in self.configs:
            run = self.run(key)
            for name in run.checkpoints():
                read_checkpoint(self.files, key, name)
            if run.status() is None or run.preview() is None or run.latest() is None:
                raise damaged(config_path(key), "its run has no checkpoint")
            run.events()

    def migrate(
        self,
        target: Store | str | os.PathLike[str],
        min_epoch: int = 0,
        cond: Condition | None = None,
        keys: Iterable[str] | None = None,
        newer_only: bool = True,
    ) -> list[str]:
        """Copy runs to another store. They are selected as in `export_tar` and imported as in `load_tar`.

        Return the keys of the copied runs in that store.
        """
        target = target if isinstance(target, Store) else Store(target, self.lease_time)
        packed_runs = self._packed_runs(keys, min_epoch, cond)
        imported = (adopt(target.files, target.configs, each, target.lease_time, newer_only) for each in packed_runs)
        return [key for key in imported if key is not None]


def _or_none(read: Any) -> Any:
    try:
        return read()
    except StoreDamagedError:
        return None


def _opened(root: str) -> LocalFiles:
    """Open the files of a store. Create the store if it does not exist."""
    files, is_new = LocalFiles(root), False
    files.make_root()
    try:
        about = files.read(ABOUT)
    except FileNotFoundError:
        about, is_new = _create_about(files, root), True
    _check_about(about, root)
    existing = files.names("")
    try:
        for name in ARCHIVES:
            if name not in existing:
                files.make_folder(name)
    except StoreAccessError:
        if is_new:
            raise
        # An existing store can be read even if the disk is full or read-only. The first write will raise an error.
    return files


def check_format(store: Store) -> None:
    """Raise an error if the format of a store has changed since it was opened. Do nothing if the store was removed."""
    if store.root is not None:
        with contextlib.suppress(FileNotFoundError):
            _check_about(store.files.read(ABOUT), store.root)


def _check_about(data: bytes, root: str) -> None:
    try:
        about = json.loads(data)
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or type(about.get("format")) is not int:
        hint = f'if this is a store, write {{"format": {FORMAT}}} into the file'
        raise StoreDamagedError(f"`{ABOUT}` does not describe a store", where=os.path.join(root, ABOUT), hint=hint)
    if about["format"] != FORMAT:
        raise StoreFormatError(
            f"the store has format {about['format']}; this version of trainmaster supports format {FORMAT}",
            where=os.path.join(root, ABOUT),
            hint="use the version of trainmaster that wrote it" if about["format"] < FORMAT else "use a newer version of trainmaster",
        )


def _create_about(files: LocalFiles, root: str) -> bytes:
    taken = [name for name in ARCHIVES if files.names(name)]
    if taken and files.has(ABOUT):  # another process has just created the store, beginning with this file
        return files.read(ABOUT)
    if taken:
        raise StoreFormatError(
            f"`{root}` has files in `{taken[0]}`, but no `{ABOUT}`: it is not a trainmaster store, or that file was lost",
            where=root,
            hint=f'if it is one, write {{"format": {FORMAT}}} into `{ABOUT}`; otherwise choose another folder',
        )
    about = {"format": FORMAT, "about": "a store of trainmaster; configs, stats, ckpts and previews are its archives", "made": time.time()}
    data = json.dumps(about, indent=1).encode() + b"\n"
    with contextlib.suppress(FileExistsError):  # another process was faster
        files.create(ABOUT, data)
    return data
