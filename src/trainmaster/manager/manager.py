"""`Manager`: write `train` and `eval`, and have each config trained once, whoever asks for it and however often it is killed."""

from __future__ import annotations

import contextlib
import math
import os
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from trainmaster.config import Choices, Config, ConfigBase, group_of, key_of
from trainmaster.config.identity import HOW_LONG
from trainmaster.config.plain import same
from trainmaster.errors import CodecError, RunBusyError, SettingError, StoreAccessError, TrainmasterError, UnknownRunError
from trainmaster.manager.batch import BY_BATCH, Batch, BatchResult, Policy, Work, Works, described
from trainmaster.manager.display import Display, counted
from trainmaster.manager.overview import Overview, number, overview_of
from trainmaster.manager.stages import WORK
from trainmaster.stages import Extensible
from trainmaster.stages.hooks import Guard
from trainmaster.store import Attempt, Store
from trainmaster.store.archives import CheckpointArchive, PreviewArchive, StatsArchive
from trainmaster.store.codec import encode_plain
from trainmaster.store.conditions import Condition, is_met
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.keys import is_key
from trainmaster.store.lease import LEASE_TIME, Watch
from trainmaster.store.run import NEVER_SAVED
from trainmaster.store.verify import check_run

EVAL_RECORDS = "eval_records"
_OLD_WEIGHT = 0.8
"""How much of a running mean of times is what it was."""


class Manager(Extensible):
    """Trains configs, each once, and keeps what comes of it in a store.

    A subclass has `setup(config)`, which makes what is trained, `train()`, one epoch of it, and `eval()`, which returns the numbers
    to record; `save_ckpt()` puts into `self.ckpt` what `load_ckpt()` takes out again.

    >>> class Halving(Manager):
    ...     def init_ckpt(self):
    ...         super().init_ckpt()
    ...         self.ckpt["x"] = self.config.x
    ...     def train(self):
    ...         self.ckpt["x"] /= 2
    ...     def eval(self):
    ...         return {"loss_test": self.ckpt["x"]}
    >>> manager = Halving(verbose=False)
    >>> manager.process({"x": 1.0}, num_epochs=3)
    >>> manager.process({"x": 1.0}, num_epochs=5)  # goes on from epoch 3
    >>> key = manager.best_work()
    >>> manager.stats[key]["epoch"], manager.previews[key]
    (5, {'loss_test': 0.03125})
    """

    tree = WORK

    config: Any
    """The config of the work at hand."""
    key: str
    """Its key."""
    epoch: int
    """How many epochs it was trained, the one at hand included; -1 before it was set up."""
    ckpt: dict[str, Any]
    """What the next checkpoint will hold."""
    preview: dict[str, Any]
    """What is worth knowing without loading the checkpoint."""

    def __init__(
        self,
        store_dir: str | os.PathLike[str] | None = None,
        defaults: Mapping[str, Any] | ConfigBase | type[ConfigBase] | str | os.PathLike[str] | None = None,
        *,
        eval_interval: int = 1,
        save_interval: int = 1,
        disp_interval: int = 1,
        keep: int = 3,
        lease_time: float = LEASE_TIME,
        verbose: bool = True,
    ) -> None:
        for name, value in (
            ("eval_interval", eval_interval),
            ("save_interval", save_interval),
            ("disp_interval", disp_interval),
            ("keep", keep),
        ):
            _check_whole(name, value, 1)
        if isinstance(store_dir, Mapping | ConfigBase):
            raise SettingError(f"store_dir={store_dir!r:.60}: wanted a folder", hint="defaults come second: `Manager(store_dir, defaults)`")
        self.store = Store(store_dir, lease_time)
        self.defaults = _defaults(defaults)
        self.eval_interval, self.save_interval, self.keep = eval_interval, save_interval, keep
        self._display = Display(verbose, disp_interval)
        self._attempt: Attempt | None = None
        self._rng: Any = None
        self._saved_epoch: int | None = None
        self._is_set_up = False
        self._times: dict[str, float | None] = {}
        self._place(None, "")

    # ---- the archives

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

    # ---- what a subclass says

    def get_config(self, config: Any = None) -> Any:
        """The config to train: `config` with the defaults filled in. An override may adjust it, and changes nothing when asked twice."""
        if isinstance(config, ConfigBase):
            return config.clone()
        given = Config.load(config) if isinstance(config, str | os.PathLike) else Config({} if config is None else config)
        if isinstance(self.defaults, type):
            return self.defaults(**given.asdict())
        if isinstance(self.defaults, ConfigBase):
            values = Config(self.defaults.to_dict())
            values.update(given)
            return type(self.defaults)(**values.asdict())
        given.fill(self.defaults)
        return given

    def setup(self, config: Any) -> None:
        """Make what is trained, from a config. The base only notes the config and its key."""
        config = self.get_config(config)
        self._place(config, self.configs.add(config))
        self._is_set_up = True

    def init_ckpt(self) -> None:
        """Start at epoch 0, with nothing but an empty list of evaluations."""
        self.epoch = 0
        self.ckpt = {EVAL_RECORDS: {}}
        self.preview = {}

    def save_ckpt(self) -> None:
        """Save `self.ckpt`. An override puts into it what has to be kept, and then calls this."""
        if self._attempt is None:
            raise SettingError("`save_ckpt()` saves the work of `process`, and none is going on", hint="`ckpts[key] = ...` saves a value")
        from trainmaster.loop.rng import get_rng, plain_rng

        status = {"epoch": self.epoch, "toc": time.time(), **self._times}
        self._attempt.save(self.epoch, self.ckpt, status, self.preview, {"rng": plain_rng(get_rng())}, self.keep)
        self._saved_epoch = self.epoch

    def load_ckpt(self) -> None:
        """Load the last checkpoint into `self.ckpt`. An override calls this, and then takes out of it what it has put there."""
        if not self.key:
            raise SettingError("nothing is set up", hint="call `setup(config)` first")
        run = self.store.run(self.key) if self._attempt is None else self._attempt.run
        latest = run.latest()
        if latest is None:
            raise UnknownRunError(f"run {self.key} has no checkpoint", hint="`process` trains it")
        status = latest.manifest["status"]
        self.epoch, self.ckpt, self.preview = latest.name.step, latest.value, run.preview_with(latest)
        self._times = {name: status.get(name) for name in ("t_train", "t_eval")}
        self._rng = (latest.context or {}).get("rng")
        self._saved_epoch = self.epoch
        if self._attempt is not None:
            for damage in check_run(run, is_deep=False):
                warnings.warn(f"run {self.key} goes on without it: {damage}", stacklevel=2)
            self._attempt.start(latest)

    def train(self) -> None:
        """Train for one epoch, the `self.epoch`-th."""
        raise NotImplementedError(f"{type(self).__name__} has no `train()`: one epoch of training")

    def eval(self) -> Mapping[str, Any] | None:
        """Evaluate. What is returned, numbers by name, is recorded for this epoch, and is the preview of the run."""
        raise NotImplementedError(f"{type(self).__name__} has no `eval()`: an evaluation")

    # ---- work

    def process(self, config: Any = None, num_epochs: int | None = None, resume: bool = True) -> None:
        """Train a config up to `num_epochs` epochs in all, from the last checkpoint on, or from epoch 0, which is evaluated and saved.

        `num_epochs` None takes the config's own `epochs` or `num_epochs`; 0, or a config that has none, only evaluates. `resume=False`
        starts again, in a new attempt; the old one stays. Raises `RunBusyError` if somebody else is at it.
        """
        self._refuse_if_at_work()
        work = self._admit(config, num_epochs)
        if resume and self._is_done(work):
            self._stand_at(work.config, work.key)
            if self.epoch >= work.num_epochs:  # the last checkpoint may have turned out to be damaged
                self._display.say(f"run {work.key} is at epoch {self.epoch} already")
                return
        with self.store.attempt(work.key, "process", say=self._display.say) as attempt:
            self._work(work, attempt, resume)

    def batch(
        self,
        configs: Iterable[Any],
        num_epochs: int | None = None,
        resume: bool = True,
        count: int = 0,
        patience: float | None = None,
        max_errors: int = 0,
        max_attempts: int = 3,
    ) -> BatchResult:
        """Train many configs; the same call in other processes, on any machine that sees the store, shares the work.

        What others hold is watched until it is done, or until its lease has not moved for `patience` hours (by default the manager's
        `lease_time`). `count` is how many to do here, 0 for all. With `max_errors` 0 the first error is raised; else the batch ends
        quietly at that many. A run of which `max_attempts` attempts in a row brought no new checkpoint is given up.
        """
        _check_whole("count", count, 0)
        _check_whole("max_errors", max_errors, 0)
        _check_whole("max_attempts", max_attempts, 1)
        if patience is not None and (
            isinstance(patience, bool) or not isinstance(patience, int | float) or not 0 <= patience < float("inf")
        ):
            raise SettingError(f"patience={patience!r}: wanted a number of hours")
        self._refuse_if_at_work()
        if isinstance(configs, Mapping | ConfigBase | str | os.PathLike):
            raise SettingError(
                f"wanted configs, one after the other, not {configs!r:.60}", hint="`process` takes one; `sweep` takes choices"
            )
        policy = Policy(num_epochs, resume, count, max_errors, max_attempts)
        works = Works(self.store, self._admit, self._is_done, self._do, self._display.say)
        batch = Batch(works, policy, self.store.watch(None if patience is None else patience * 3600))
        try:
            return batch.run(configs)
        finally:
            self._display.say(f"batch: {batch.result}")

    def sweep(self, choices: Any, num_epochs: int | None = None, *, order: str = "random", **batch: Any) -> BatchResult:
        """Train every combination of `choices`, a config whose leaves are lists, in random order; `batch` are arguments of `batch`."""
        if order != "random":
            raise SettingError(f"order={order!r}: the one order there is, is 'random'")
        found = choices if isinstance(choices, Choices) else Choices(choices, seed=int.from_bytes(os.urandom(6)))
        self._display.say(f"sweep: {found.count:,} combinations")
        return self.batch(found, num_epochs, **batch)

    def fetch(self, key: str) -> Self:
        """This manager with a trained run set up and loaded: `model = manager.fetch(key).model`."""
        self._refuse_if_at_work()
        config = self.get_config(self.configs[key])
        found = self.configs.get_key(config)
        if found != key:
            raise SettingError(
                f"the stored config of run {key} is another one by `get_config`: its key would be {found or 'a new one'}",
                hint="give `defaults` the class of config that it was stored as, and keep `get_config` idempotent",
            )
        self._stand_at(config, key)
        return self

    def _stand_at(self, config: Any, key: str) -> None:
        """Set up a run and load it, only to look at it: random numbers stay as they were."""
        with _undisturbed():
            self._prepare(config, key)
            self._load()

    def _admit(self, config: Any, num_epochs: int | None) -> Work:
        """A config with its key, stored if it is new, and how many epochs it is to be trained."""
        config = self.get_config(config)
        if num_epochs is None:
            num_epochs = next((config[name] for name in HOW_LONG if name in config and config[name] is not None), 0)
        _check_whole("num_epochs", num_epochs, 0)
        if key_of(self.get_config(config), 64) != key_of(config, 64):
            raise SettingError(
                f"`{type(self).__name__}.get_config()` changes a config that it has made itself",
                hint="make it idempotent: what it returns, given to it again, is to stay as it is",
            )
        return Work(self.configs.add(config), config, num_epochs)

    def _is_done(self, work: Work) -> bool:
        """Whether a run was trained and saved as far as it is to be."""
        status = self.stats.get(work.key)
        return status is not None and status["epoch"] >= work.num_epochs

    def _do(self, work: Work, resume: bool, watch: Watch) -> bool:
        """One run of a batch; False if somebody else holds it."""
        with contextlib.ExitStack() as stack:
            try:
                attempt = stack.enter_context(self.store.attempt(work.key, BY_BATCH, watch))
            except RunBusyError:
                return False
            self._work(work, attempt, resume)
        return True

    def _refuse_if_at_work(self) -> None:
        if self._attempt is not None:
            raise SettingError(f"this manager is at work on run {self._attempt.key}", hint="use another manager")

    def _work(self, work: Work, attempt: Attempt, resume: bool) -> None:
        self.forget()  # what an interrupt may have left open
        self._place(work.config, work.key)
        self._attempt = attempt
        try:
            self._pipeline(work, attempt, resume)
        except BaseException as error:
            _record_failure(attempt, error)
            raise
        finally:
            self._attempt = None
        attempt.release("finished", epoch=self.epoch)
        self._display.say(f"run {work.key} is done: epoch {self.epoch}")

    def _pipeline(self, work: Work, attempt: Attempt, resume: bool) -> None:
        """The pipeline, in plain sight."""
        key, config, num_epochs = work
        with self.staged("work", {"manager": self, "config": config, "key": key, "num_epochs": num_epochs}):
            with self.staged("work_setup"):
                self._prepare(config, key)
            if resume and attempt.run.has_saved():
                with self.staged("work_load"):
                    self._load()
                self._display.say(f"run {key} goes on from epoch {self.epoch} to {num_epochs}")
            else:
                attempt.start(None)
                with self.staged("work_init"):
                    self.init_ckpt()
                if self.epoch != 0:
                    raise SettingError(
                        f"`{type(self).__name__}.init_ckpt()` starts at no epoch", hint="call `super().init_ckpt()` first in it"
                    )
                self._display.say(f"run {key} starts, for {counted(num_epochs, 'epoch')}" if num_epochs else f"run {key} is only evaluated")
                self._evaluate(attempt)
                self._save()
                self._display.epoch(key, self.epoch, num_epochs, 0.0, self.preview)
            while self.epoch < num_epochs:
                self.epoch += 1
                attempt.check()
                with self.staged("work_train"):
                    started = time.monotonic()
                    self.train()
                    seconds = self._took("t_train", started)
                if self.epoch % self.eval_interval == 0 or self.epoch == num_epochs:
                    self._evaluate(attempt)
                if self.epoch % self.save_interval == 0 or self.epoch == num_epochs:
                    self._save()
                self._display.epoch(key, self.epoch, num_epochs, seconds, self.preview)

    def _place(self, config: Any, key: str) -> None:
        self.config, self.key = config, key
        self.epoch, self.ckpt, self.preview = -1, {EVAL_RECORDS: {}}, {}
        self._times = {name: None for name in NEVER_SAVED if name != "epoch"}
        self._rng = self._saved_epoch = None

    def _prepare(self, config: Any, key: str) -> None:
        """Set up for a config, with random numbers that depend on it alone: on its `seed`, or else on its key."""
        from trainmaster.loop.rng import seed_rng

        self._place(config, key)
        seed = config["seed"] if "seed" in config else None  # noqa: SIM401 - a typed config has no `get`
        seed_rng(seed % 2**63 if isinstance(seed, int) and not isinstance(seed, bool) else int(key[:8], 16))
        self._is_set_up = False
        self.setup(config)
        if not self._is_set_up:
            raise SettingError(f"`{type(self).__name__}.setup()` notes no config", hint="call `super().setup(config)` first in it")
        if self.key != key:
            raise SettingError(
                f"`{type(self).__name__}.setup()` changed the config of run {key}: it is that of run {self.key} now",
                hint="change configs in `get_config`, before they have a key",
            )

    def _load(self) -> None:
        from trainmaster.loop.rng import rng_of, set_rng

        try:
            self.load_ckpt()
        except (RuntimeError, KeyError, AttributeError, TypeError, ValueError) as error:
            if not isinstance(error, TrainmasterError):
                error.add_note(
                    f"run {self.key} was saved by other code or with another model; `process(config, resume=False)` starts again"
                )
            raise
        if self._saved_epoch is None:
            raise SettingError(f"`{type(self).__name__}.load_ckpt()` loads nothing", hint="call `super().load_ckpt()` first in it")
        if self._rng is not None:
            set_rng(rng_of(self._rng))

    def _evaluate(self, attempt: Attempt) -> None:
        with self.staged("work_eval"):
            started = time.monotonic()
            with _undisturbed():  # so that it makes no difference how often there is an evaluation
                found = self.eval()
            self._took("t_eval", started)
            if found is not None and not isinstance(found, Mapping):
                raise SettingError(
                    f"`{type(self).__name__}.eval()` returned {found!r:.60}: wanted numbers by name", hint='return {"loss_test": ...}'
                )
            if found is not None:
                record = self._recordable(found)
                self.ckpt.setdefault(EVAL_RECORDS, {})[self.epoch] = record
                self.preview.update(record)
        recorded = self.ckpt.get(EVAL_RECORDS, {}).get(self.epoch)
        numbers = {str(name): number(value) for name, value in recorded.items()} if isinstance(recorded, Mapping) else {}
        row = {name: value for name, value in numbers.items() if value is not None}
        attempt.check()
        attempt.log.append({"epoch": self.epoch, "time": time.time(), "eval": row})

    def _recordable(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """What an evaluation returned, with scalars of NumPy and torch as plain ones."""
        record = {name: value.item() if _is_single(value) else value for name, value in found.items()}
        try:
            encode_plain(record)
            if all(isinstance(name, str) for name in record):
                return record
            wrong = "names are text"
        except CodecError as error:
            wrong = error.rows["wrong"]
        raise SettingError(f"`{type(self).__name__}.eval()` returned what cannot be recorded", wrong=wrong, hint="return numbers by name")

    def _save(self) -> None:
        with self.staged("work_save"):
            self.save_ckpt()
        if self._saved_epoch != self.epoch:
            raise SettingError(f"`{type(self).__name__}.save_ckpt()` saves nothing", hint="call `super().save_ckpt()` at its end")

    def _took(self, name: str, started: float) -> float:
        seconds = time.monotonic() - started
        before = self._times.get(name)
        self._times[name] = seconds if before is None else _OLD_WEIGHT * before + (1 - _OLD_WEIGHT) * seconds
        return seconds

    # ---- for the engine

    def read_fixture(self, name: str) -> Any:
        if name in ("epoch", "ckpt", "preview"):
            return getattr(self, name)
        raise AttributeError(name)

    def answers_undeclared(self) -> bool:
        return False

    def observer_guard(self) -> Guard | None:
        return _undisturbed

    # ---- looking at many runs

    def completed(
        self, min_epoch: int = 0, cond: Condition | None = None, within_hours: float | None = None
    ) -> Iterator[tuple[str, Config]]:
        """Key and config of all runs saved at `min_epoch` or later, if they meet `cond`.

        `cond` has, for dotted keys, a value, a list of values, a range `(low, high)`, or a function that says yes or no.
        """
        return ((key, config) for key, _, config in self.store.completed(min_epoch, cond, within_hours))

    def best_work(
        self, min_epoch: int = 0, cond: Condition | None = None, p_key: str = "loss_test", reverse: bool | None = None
    ) -> str | None:
        """The key of the run whose preview has the least `p_key`, or the greatest if `reverse`; None if no run has that number.

        `reverse` None takes the greatest for a name that starts with `acc` or `return`. NaN is never the best.
        """
        if reverse is None:
            reverse = p_key.startswith(("acc", "return"))
        best: tuple[float, str] | None = None
        for key, _ in self.completed(min_epoch, cond):
            value = number((self.previews.get(key) or {}).get(p_key))
            if value is None or math.isnan(value):
                continue
            candidate = (-value if reverse else value, key)
            best = candidate if best is None else min(best, candidate)
        return None if best is None else best[1]

    def overview(
        self,
        configs: Iterable[Any] | None = None,
        min_epoch: int = 0,
        cond: Condition | None = None,
        p_keys: str | Iterable[str] | None = None,
    ) -> Overview:
        """Epochs, times and previews of many runs, as arrays, and printed as a summary.

        The runs are those of `configs`, given as such or by their keys, or all; of them, those that meet `cond`.
        """
        if configs is None:
            found = [(key, stats) for key, stats, _ in self.store.completed(min_epoch, cond)]
        else:
            keys = [each if is_key(each) else self.configs.get_key(self.get_config(each)) for each in configs]
            known = [key for key in keys if key is not None and key in self.configs and is_met(cond, self.configs.record(key)["config"])]
            found = [(key, stats) for key in known if (stats := self.stats.get(key)) is not None and stats["epoch"] >= min_epoch]
        overview = overview_of(((key, stats, self.previews.get(key) or {}) for key, stats in found), p_keys)
        for line in str(overview).split("\n"):
            self._display.say(line)
        return overview

    def compare(self, configs: Iterable[Any]) -> tuple[Config, list[Config]]:
        """What configs, given as such or by their keys, have in common, and what each has beyond that."""
        flat = [self._as_free(each).flatten() for each in configs]
        shared = {
            key: value for key, value in (flat[0] if flat else {}).items() if all(key in each and same(each[key], value) for each in flat)
        }
        return Config(shared), [Config({key: value for key, value in each.items() if key not in shared}) for each in flat]

    def group(self, configs: Iterable[Any]) -> list[list[Config]]:
        """Configs, given as such or by their keys, in groups that are equal but for what ends in `seed`."""
        groups: dict[str, list[Config]] = {}
        for each in configs:
            config = self.get_config(self.configs[each] if is_key(each) else each)  # typed, if it can be: that knows its replicates
            groups.setdefault(group_of(config), []).append(self._as_free(each))
        return list(groups.values())

    def _as_free(self, config: Any) -> Config:
        if is_key(config):
            return self.configs[config]
        found = self.get_config(config)
        return found if isinstance(found, Config) else Config(found.to_dict())


def _record_failure(attempt: Attempt, error: BaseException) -> None:
    outcome = "failed" if isinstance(error, Exception) else "interrupted"
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(StoreAccessError):  # the error that is on its way is the one to see
        attempt.release(outcome, error=described(error), traceback=text[-20000:])


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Random numbers as they were, whatever an observer does."""
    from trainmaster.loop.rng import get_rng, set_rng

    before = get_rng()
    try:
        yield
    finally:
        set_rng(before)


def _defaults(given: Any) -> Config | ConfigBase | type[ConfigBase]:
    if isinstance(given, ConfigBase) or (isinstance(given, type) and issubclass(given, ConfigBase)):
        return given
    return Config.load(given) if isinstance(given, str | os.PathLike) else Config({} if given is None else given)


def _is_single(value: Any) -> bool:
    """True for an array or tensor of one element."""
    return hasattr(value, "item") and getattr(value, "ndim", None) is not None and math.prod(getattr(value, "shape", ())) == 1


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingError(f"{name}={value!r}: wanted a whole number, {least} or more")
