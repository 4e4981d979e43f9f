"""`RunQueries`: the methods of a manager that list, compare and clean up runs."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trainmaster.config import Config, group_of, key_of
from trainmaster.config.config import stored_key
from trainmaster.config.identity import canonical
from trainmaster.config.seed import replicate_key
from trainmaster.config.to_plain import is_same
from trainmaster.errors import ConfigError, RunBusyError, StoreDamagedError
from trainmaster.manager.overview import Overview, Row, overview_of, ranking_of
from trainmaster.store import Store
from trainmaster.store.archives import CheckpointArchive, PreviewArchive, StatsArchive
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.dict_filter import Condition
from trainmaster.store.keys import is_key
from trainmaster.store.run_table import row_values
from trainmaster.store.store import Records
from trainmaster.store.verify import check_run

if TYPE_CHECKING:
    from trainmaster.manager.job_runner import JobRunner


class RunQueries:
    """Queries about the runs in a store. Instead of a config, you can pass the key of a run."""

    store: Store
    job_runner: JobRunner

    def complete_config(self, config: Any) -> Any:
        """Return the config that `process` would train, with all defaults filled in."""
        raise NotImplementedError

    @property
    def configs(self) -> ConfigArchive:
        return self.store.configs

    @property
    def stats(self) -> StatsArchive:
        return self.store.stats

    @property
    def ckpts(self) -> CheckpointArchive:
        return self.store.ckpts

    @property
    def previews(self) -> PreviewArchive:
        return self.store.previews

    def completed(
        self, min_epoch: int = 0, cond: Condition | None = None, within_hours: float | None = None
    ) -> Iterator[tuple[str, Config]]:
        """Yield the key and the config of each run that was saved at `min_epoch` or later and meets `cond`.

        `cond` maps dotted or nested keys to a value, a list of values, a range `(low, high)`, or a function that
        returns a bool.
        """
        return ((key, config) for key, _, config in self.store.completed(min_epoch, cond, within_hours))

    def best_work(
        self, min_epoch: int = 0, cond: Condition | None = None, p_key: str | None = None, reverse: bool | None = None
    ) -> str | None:
        """Return the key of the run with the smallest value of the metric `p_key`, or the largest if `reverse`.

        Returns None if no run has a number for this metric.

        `p_key` is the name of a metric, or the last part of the name. By default it is the metric that the runs
        monitor, or `loss_test` if they monitor none. `reverse` defaults to the direction in which the runs monitor this
        metric. If they do not monitor it, the direction is inferred from the name: accuracies, returns and other
        well-known scores are maximized, losses and errors are minimized. Raises an error if the direction cannot be
        inferred from the name. NaN is never the best.
        """
        ranking = ranking_of(self._rows(min_epoch, cond), p_key, reverse)
        return ranking.rows[0][1] if ranking is not None and ranking.rows else None

    def overview(
        self,
        configs: Iterable[Any] | None = None,
        min_epoch: int = 0,
        p_keys: str | Iterable[str] | None = None,
        *,
        cond: Condition | None = None,
    ) -> Overview:
        """Return the epochs, times and previews of many runs as arrays, and print a summary.

        `p_keys` selects metrics by their names or the ends of their names. By default, all metrics are included.
        `configs` and `cond` select runs.
        """
        keys = None
        if configs is not None:
            found = [each if is_key(each) else self.find_key(each) for each in configs]
            keys = [key for key in found if key is not None]
        overview = overview_of(self._rows(min_epoch, cond, keys), p_keys)
        for line in str(overview).split("\n"):
            self.job_runner.console.print(line)
        return overview

    def _rows(self, min_epoch: int, cond: Condition | None, keys: list[str] | None = None) -> list[Row]:
        """Return the key, stats and metrics of each saved run that meets `cond`, in the order of `keys`.

        Damaged runs are skipped with a warning.
        """
        table = self.store.index.runs(keys)
        names = ("reason", "epoch", "t_train", "t_eval", *(name for name in table.facts if name.startswith("best.")))
        facts = [*zip(table.keys, table.fact("state"), *map(table.fact, names), strict=True)]
        rows: dict[str, Row] = {}
        for row in table.matching(cond):
            key, state, reason, epoch, t_train, t_eval, *best = facts[row]
            if state == "damaged":
                warnings.warn(f"run {key} is skipped: {reason}", stacklevel=3)
            elif epoch is not None and epoch >= min_epoch:
                monitored = {name.removeprefix("best."): value for name, value in zip(names[4:], best, strict=True)}
                stats = {"epoch": epoch, "t_train": t_train, "t_eval": t_eval, "best": monitored}
                rows[key] = key, stats, dict(row_values(table.metrics, row))
        return [*rows.values()] if keys is None else [rows[key] for key in keys if key in rows]

    def find_key(self, config: Any) -> str | None:
        """Return the key of a config's run, or None if the store has no such run."""
        complete = self.complete_config(config)
        return self.stored_key(config, complete) or self.configs.get_key(complete)

    def stored_key(self, config: Any, complete: Any) -> str | None:
        """Return the key of a config if the config was read from the store and has not been changed since, or None otherwise.

        `complete` is the same config with the defaults filled in. It has a different key if defaults were added after
        the config was stored.
        """
        key = stored_key(config)
        if key is None or key not in self.configs:
            return None
        stored = self.complete_config(self.configs[key])
        return key if canonical(stored) == canonical(complete) and self.configs.is_extended_by(key, stored) else None

    def compare(self, configs: Iterable[Any]) -> tuple[Config, list[Config]]:
        """Return the values that all configs share, and the remaining values of each config."""
        flat = [self._as_free(each).flatten() for each in configs]
        shared = {
            key: value
            for key, value in (flat[0] if flat else {}).items()
            if all(key in each and is_same(each[key], value) for each in flat)
        }
        return Config(shared), [Config({key: value for key, value in each.items() if key not in shared}) for each in flat]

    def group(self, configs: Iterable[Any]) -> list[list[Config]]:
        """Return groups of configs that differ only in keys ending in `seed`.

        If several configs in a group have the same seed, only the first of them is returned.
        """
        groups: dict[str, dict[str, Config]] = {}
        for each in configs:
            config = self.complete_config(self.configs[each] if is_key(each) else each)  # a typed config knows its replicate fields
            groups.setdefault(group_of(config), {}).setdefault(replicate_key(config), self._as_free(each))
        return [list(group.values()) for group in groups.values()]

    def _as_free(self, config: Any) -> Config:
        if is_key(config):
            return self.configs[config]
        complete = self.complete_config(config)
        return complete if isinstance(complete, Config) else Config(complete.to_dict())

    def pop(self, key: str) -> Records:
        """Remove a run, and return its config, stats, checkpoint and preview. Raises an error if another process is training the run."""
        return self.store.pop(key)

    def get_duplicates(self) -> list[list[str]]:
        """Return groups of runs for which `get_config` now returns the same config, with the longest-trained run of each group first.

        The store never has two equal configs, but two runs can become equal when you add a default later.
        """
        groups: dict[str, list[str]] = {}
        for key, config in self.configs.items():
            with contextlib.suppress(ConfigError):  # a config that this manager refuses is not a duplicate
                groups.setdefault(key_of(self.complete_config(config), 64), []).append(key)
        return [sorted(keys, key=functools.partial(self._duplicate_rank, full)) for full, keys in sorted(groups.items()) if len(keys) > 1]

    def _duplicate_rank(self, full_hash: str, key: str) -> tuple[bool, int, bool, str]:
        """Return a sort key: the run trained longest comes first, and damaged runs come last.

        Among runs trained equally long, the one that `process` would find comes first.
        """
        try:
            epoch, is_damaged = (self.stats.get(key) or {"epoch": -1})["epoch"], bool(check_run(self.store.run(key)))
        except StoreDamagedError:
            epoch, is_damaged = -1, True
        return is_damaged, -epoch, not full_hash.startswith(key), key

    def remove_dups(self) -> list[str]:
        """Remove duplicate runs and return their keys. In each group, the run that was trained longest is kept.

        That run may have been stored without a default that you added later. `fetch(key)` can still load it, but
        `process` would train the config again with that default. If another process is training a duplicate, that run
        is kept, and a warning is issued.
        """
        removed = []
        for key in [key for _, *others in self.get_duplicates() for key in others]:
            try:
                self.store.remove(key)
                removed.append(key)
            except RunBusyError as error:
                warnings.warn(f"duplicate not removed: {error.fact}", stacklevel=2)
        return removed

    def copy_to(
        self,
        store_dir: str | os.PathLike[str] | Store,
        min_epoch: int = 0,
        cond: Condition | None = None,
        keys: Iterable[str] | None = None,
        overwrite: bool = False,
    ) -> list[str]:
        """Copy runs to another store and return their keys there. By default, all runs with a checkpoint are copied.

        A run that the other store already has is replaced only if it was trained further in this store, or if you set
        `overwrite`.
        """
        return self.store.migrate(store_dir, min_epoch, cond, keys, newer_only=not overwrite)
