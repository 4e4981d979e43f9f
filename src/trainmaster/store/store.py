"""`Store`: the records of many runs, below one folder."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trainmaster.config import Config
from trainmaster.errors import (
    ArchiveError,
    SettingError,
    StoreAccessError,
    StoreDamagedError,
    StoreError,
    StoreFormatError,
    UnknownRunError,
)
from trainmaster.store.archives import CheckpointArchive, PreviewArchive, StatsArchive
from trainmaster.store.attempt import Attempt, claim, claim_or_watch
from trainmaster.store.checkpoint import read_checkpoint
from trainmaster.store.conditions import Condition, matcher
from trainmaster.store.configs import ConfigArchive, config_of
from trainmaster.store.files import Files, LocalFiles, access_error
from trainmaster.store.index import Index
from trainmaster.store.keys import attempt_folder, check_key, config_path
from trainmaster.store.lease import LEASE_TIME, Seen, Watch
from trainmaster.store.memory_files import MemoryFiles
from trainmaster.store.prune import prune
from trainmaster.store.record import damaged
from trainmaster.store.run import Run
from trainmaster.store.tags import Tags
from trainmaster.store.tar import export_tar, free_space, read_tar, refused
from trainmaster.store.transfer import Parcel, adopt, pack
from trainmaster.store.verify import Damage, verify

FORMAT = 1
ARCHIVES = ("configs", "stats", "ckpts", "previews")
_ABOUT = "store.json"


class Records(NamedTuple):
    """The four records of a run."""

    config: Config
    stats: dict[str, Any] | None
    ckpt: Any
    preview: dict[str, Any] | None


class Store:
    """Four archives below `root`: `configs`, `stats`, `ckpts` and `previews`; in memory if `root` is None.

    Any number of processes, on any number of machines that see the folder, may use it at once. Nothing is ever locked: who trains a run
    holds a lease on it, which is taken over when its holder is gone for `lease_time` seconds.

    >>> store = Store(None)
    >>> key = store.configs.add({"lr": 0.1})
    >>> store.ckpts[key] = {"weights": [1.0, 2.0]}
    >>> store.ckpts[key]
    {'weights': [1.0, 2.0]}
    """

    def __init__(self, root: str | os.PathLike[str] | None, lease_time: float = LEASE_TIME) -> None:
        if isinstance(lease_time, bool) or not isinstance(lease_time, int | float) or not 0 < lease_time < float("inf"):
            raise SettingError(f"lease_time={lease_time!r}: wanted a number of seconds")
        self.root = os.path.abspath(os.fspath(root)) if root is not None else None
        self.lease_time = lease_time
        self.files: Files = _opened(self.root) if self.root is not None else MemoryFiles()
        self._writing: dict[str, Attempt] = {}
        self.configs = ConfigArchive(self.files)
        self.stats = StatsArchive(self.files, self.writing)
        self.ckpts = CheckpointArchive(self.files, self.writing)
        self.previews = PreviewArchive(self.files, self.writing)
        self.tags = Tags(self.files, self.configs)
        self.index = Index(self.files, self.configs)

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    # ---- runs

    def run(self, key: str) -> Run:
        """What the files say about a run."""
        return Run(self.files, check_key(key))

    @contextlib.contextmanager
    def attempt(
        self,
        key: str,
        by: str,
        watch: Watch | Seen | None = None,
        say: Callable[[str], None] | None = None,
        facts: Mapping[str, Any] | None = None,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> Iterator[Attempt]:
        """Hold a run while the block runs; `RunBusyError` if somebody else does. The block is to `release` the attempt with its outcome.

        Where only watching a lease can tell, `watch` is what the caller has seen of it; without one it is watched here, and `say` told so.
        `facts` are recorded with it.
        """
        run, facts, time = self.run(key), facts or {}, self.lease_time
        attempt = claim_or_watch(run, by, time, say, facts, gives_up) if watch is None else claim(run, by, time, watch, facts)
        self._writing[key] = attempt
        try:
            yield attempt
        except BaseException:
            with contextlib.suppress(StoreAccessError):  # the error that is on its way is the one to see
                attempt.release("failed")
            raise
        finally:
            self._writing.pop(key, None)  # in another thread it may be held again, and released
        attempt.release("saved")

    @contextlib.contextmanager
    def writing(self, key: str) -> Iterator[Attempt]:
        """The attempt that holds a run here; where none does, one for this block."""
        if key in self._writing:
            yield self._writing[key]
            return
        if key not in self.configs:
            raise UnknownRunError(f"no config has the key {key}", hint="`configs.add(config)` gives a config its key")
        with self.attempt(key, "write") as attempt:
            attempt.start(attempt.run.latest(), attempt.run.preview())
            yield attempt

    def folder_of(self, attempt: Attempt) -> str | None:
        """Where an attempt may keep plots and the like, beside its preview; None for a store in memory."""
        return None if self.root is None else os.path.join(self.root, attempt_folder("previews", attempt.key, attempt.number))

    def watch(self, patience: float | None = None) -> Watch:
        """A watcher of leases, which takes one for expired after `patience` seconds without a change."""
        return Watch(self.files, self.lease_time if patience is None else patience)

    def pop(self, key: str) -> Records:
        """Remove a run with all its records, and return them; refused while somebody trains it.

        A checkpoint that is damaged is removed, too, and comes as None.
        """
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
        """Remove a run with all its records, without reading them; refused while somebody trains it."""
        if check_key(key) not in self.configs:
            raise UnknownRunError(f"no config has the key {key}", hint="`configs.keys()` has all keys")
        with self.attempt(key, "remove") as attempt:
            self._remove(attempt)

    def _remove(self, attempt: Attempt) -> None:
        attempt.remove()
        self.tags.clear(attempt.key)
        self.files.delete(config_path(attempt.key))
        attempt.release("removed")

    # ---- the whole store

    def select(self, cond: Condition | None = None) -> Iterator[tuple[str, Config]]:
        """Key and config of all configs that meet `cond`, trained or not."""
        is_met = matcher(cond)
        return ((key, config_of(tree, key)) for key, tree in self.index if is_met(tree))

    def completed(
        self, min_epoch: int = 0, cond: Condition | None = None, within_hours: float | None = None
    ) -> Iterator[tuple[str, dict[str, Any], Config]]:
        """Key, stats and config of all runs saved at `min_epoch` or later, if they meet `cond`; if asked, only those of the last hours.

        Runs that are damaged are left out, with a warning.
        """
        for key, config in self.select(cond):
            try:
                stats = self.run(key).status()
            except StoreDamagedError as error:
                warnings.warn(f"run {key} is left out: {error.fact}: {error.rows.get('why', '')}", stacklevel=2)
                continue
            if stats is None or stats["epoch"] < max(0, min_epoch):
                continue
            if within_hours is None or time.time() - (stats.get("toc") or 0) <= within_hours * 3600:
                yield key, stats, config

    def verify(self) -> list[Damage]:
        """Everything in the store that is not as it was written; empty if all is well. Reads every byte of it."""
        return list(verify(self.files, self.configs))

    def prune(self, keep: int = 3) -> list[str]:
        """Remove what counts for nothing: all but the last `keep` good checkpoints of each run, what kills and damage have left,
        and the records of runs that never saved anything. Returns what was removed.
        """
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise SettingError(f"keep={keep!r}: wanted a number of checkpoints, 1 at least")
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
        """Write runs, by default all that were saved, to a tar file, which is compressed unless `compresslevel` is 0; how many there were.

        They are chosen by `keys`, or as in `completed`. Each is taken as it stands at that moment, also while it is trained.
        """
        return export_tar(path, self._parcels(keys, min_epoch, cond, within_hours), compresslevel)

    def _parcels(
        self, keys: Iterable[str] | None, min_epoch: int, cond: Condition | None, within_hours: float | None = None
    ) -> Iterator[Parcel]:
        if keys is None:
            keys = (key for key, _, _ in self.completed(min_epoch, cond, within_hours))
        for key in keys:
            if check_key(key) not in self.configs:
                raise UnknownRunError(f"no config has the key {key}", hint="`configs.keys()` has all keys")
            parcel = pack(self.files, key)
            if parcel is not None:
                with contextlib.closing(parcel):
                    yield parcel

    def load_tar(self, path: str | os.PathLike[str], newer_only: bool = True, max_bytes: int | None = None) -> list[str]:
        """Adopt the runs of a tar file; their keys here. With `newer_only`, those that are here already and trained as far are left out.

        It is first unpacked into a store of its own, beside, and every value in it is read. So whatever is not as it should be refuses the
        whole file, and leaves nothing. `max_bytes` is how much it may unpack to, by default 200 times its own size.
        """
        with self._aside() as aside:
            room = free_space(aside.root) if aside.root is not None else sys.maxsize
            try:
                for parcel in read_tar(path, room, max_bytes):
                    adopt(aside.files, aside.configs, parcel, aside.lease_time, newer_only=True)
                aside.read_all()
            except (ArchiveError, StoreAccessError, KeyboardInterrupt):
                raise
            except StoreError as error:
                raise refused(os.fspath(path), ": ".join(filter(None, [error.fact, error.rows.get("why")]))) from error
            except Exception as error:  # whatever a made-up archive makes of tarfile and zlib
                raise refused(os.fspath(path), f"it cannot be read: {error}"[:500]) from error
            return aside.migrate(self, newer_only=newer_only)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[Store]:
        """A store for a moment, on the same disk."""
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
        """Read every value of every run; raises at the first that is damaged."""
        for key in self.configs:
            run = self.run(key)
            for name in run.checkpoints():
                read_checkpoint(self.files, key, name)
            if run.status() is None or run.preview() is None or run.latest() is None:
                raise damaged(config_path(key), "its run has saved nothing")
            run.events()

    def migrate(
        self,
        target: Store | str | os.PathLike[str],
        min_epoch: int = 0,
        cond: Condition | None = None,
        keys: Iterable[str] | None = None,
        newer_only: bool = True,
    ) -> list[str]:
        """Copy runs to another store, chosen as in `export_tar` and adopted as in `load_tar`; their keys there."""
        target = target if isinstance(target, Store) else Store(target, self.lease_time)
        parcels = self._parcels(keys, min_epoch, cond)
        found = (adopt(target.files, target.configs, parcel, target.lease_time, newer_only) for parcel in parcels)
        return [key for key in found if key is not None]


def _or_none(read: Any) -> Any:
    try:
        return read()
    except StoreDamagedError:
        return None


def _opened(root: str) -> LocalFiles:
    """The files of a store, which is made if there is none."""
    files = LocalFiles(root)
    files.make_root()
    try:
        about = json.loads(files.read(_ABOUT))
    except FileNotFoundError:
        about = _founded(files, root)
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or type(about.get("format")) is not int:
        hint = f'if it is one, write {{"format": {FORMAT}}} into it'
        raise StoreDamagedError(f"`{_ABOUT}` is not that of a store", where=os.path.join(root, _ABOUT), hint=hint)
    if about["format"] != FORMAT:
        raise StoreFormatError(
            f"the store has format {about['format']}, and this version of trainmaster knows format {FORMAT}",
            where=os.path.join(root, _ABOUT),
            hint="use the version of trainmaster that wrote it" if about["format"] < FORMAT else "use a newer version of trainmaster",
        )
    return files


def _founded(files: LocalFiles, root: str) -> dict[str, Any]:
    taken = [name for name in ARCHIVES if name in files.names("")]
    if taken and files.has(_ABOUT):  # founded by somebody else, who always makes this file first
        found: dict[str, Any] = json.loads(files.read(_ABOUT))
        return found
    if taken:
        raise StoreFormatError(
            f"`{root}` has a folder `{taken[0]}`, but no `{_ABOUT}`: it is no store of trainmaster, or has lost that file",
            where=root,
            hint=f'if it is one, write {{"format": {FORMAT}}} into `{_ABOUT}`; else choose another folder',
        )
    about = {"format": FORMAT, "about": "a store of trainmaster; configs, stats, ckpts and previews are its archives", "made": time.time()}
    with contextlib.suppress(FileExistsError):  # two at once
        files.create(_ABOUT, json.dumps(about, indent=1).encode() + b"\n")
    return about
