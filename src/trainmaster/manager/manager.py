"""`Manager`: write `make_loop`, or `train` and `eval`, and have each config trained once, whoever asks and however often it is killed."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, Self

from trainmaster.config import Choices, Config, ConfigBase, group_of, key_of
from trainmaster.config.identity import HOW_LONG
from trainmaster.config.plain import plain, same
from trainmaster.errors import CodecError, RunBusyError, SettingError, StoreAccessError, StoreError, TrainmasterError, UnknownRunError
from trainmaster.loop.stages import TRAIN_MANAGER, WORK
from trainmaster.manager.batch import BY_BATCH, Batch, BatchResult, Policy, Works
from trainmaster.manager.batch_view import BatchView
from trainmaster.manager.display import Display, counted
from trainmaster.manager.executor import Executor, Here, Report, Task, reported
from trainmaster.manager.hidden import refuse_hidden, revealed
from trainmaster.manager.interrupts import Interrupts
from trainmaster.manager.launch import Launch
from trainmaster.manager.lineage import START_FROM, Origin
from trainmaster.manager.overview import Overview, number, overview_of
from trainmaster.manager.recipe import ManagerRecipe
from trainmaster.manager.recording import MeanTimes
from trainmaster.manager.work import Work, described
from trainmaster.stages import Extensible, StageTree
from trainmaster.stages.hooks import Guard
from trainmaster.stages.made_with import made_with
from trainmaster.store import Attempt, Store
from trainmaster.store.archives import CheckpointArchive, PreviewArchive, StatsArchive
from trainmaster.store.codec import encode_plain
from trainmaster.store.conditions import Condition, is_met
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.keys import is_key
from trainmaster.store.lease import LEASE_TIME, Seen
from trainmaster.store.verify import check_run

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager
    from trainmaster.manager.hosting import HostedLoop, Pristine

EVAL_RECORDS = "eval_records"


class Manager(Extensible):
    """Trains configs, each once, and keeps what comes of it in a store.

    A subclass has `make_loop(config)`, which returns a `TrainManager`, and needs nothing else: exact checkpoints, metrics and resuming
    come with it. Or it writes its epochs itself: `setup(config)` makes what is trained, `train()` is one epoch of it, and `eval()` returns
    the numbers to record; `save_ckpt()` puts into `self.ckpt` what `load_ckpt()` takes out again.

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
    hands_on = True

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
    defaults: Any = None
    """What a config is filled up with: a config, a class of configs, or a file; in a subclass, those of its objects."""
    loop: TrainManager | None = None
    """The loop of the work at hand, if there is a `make_loop`."""
    stopped: str | None = None
    """Why the last work was saved before its end, if it was."""

    _which: str | int
    """The checkpoint to load."""

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
        self.defaults = _defaults(type(self).defaults if defaults is None else defaults)
        self.eval_interval, self.save_interval, self.keep = eval_interval, save_interval, keep
        self._display = Display(verbose, disp_interval)
        self._attempt: Attempt | None = None
        self._rng: Any = None
        self._saved_epoch: int | None = None
        self._is_set_up = False
        self._times = MeanTimes()
        self._hosted: HostedLoop | None = None
        self._pristine: Pristine | None = None
        self._interrupts: Interrupts | None = None
        self.launch = Launch()
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
        """The config to train: `config` with the defaults filled in. An override may adjust it, and changes nothing when asked twice.

        Where one from the store has `***` for a secret, the environment and the defaults are asked for it.
        """
        if isinstance(config, ConfigBase):
            return revealed(config.clone(), self.defaults)
        given = Config.load(config) if isinstance(config, str | os.PathLike) else Config({} if config is None else config)
        revealed(given, self.defaults)
        if isinstance(self.defaults, type):
            return self.defaults(**given.asdict())
        if isinstance(self.defaults, ConfigBase):
            values = Config(self.defaults.to_dict())
            values.update(given)
            return type(self.defaults)(**values.asdict())
        given.fill(self.defaults)
        return given

    def make_loop(self, config: Any) -> TrainManager:
        """The loop that trains a config; for managers that write no epochs themselves."""
        raise NotImplementedError(f"{type(self).__name__} has no `make_loop(config)`")

    def setup(self, config: Any) -> None:
        """Make what is trained, from a config. The base notes the config and its key, and makes the loop, if there is a `make_loop`."""
        config = self.get_config(config)
        self._place(config, self.configs.add(config))
        self._is_set_up = True
        if self.makes_loops:
            self._host(self.make_loop(config))

    def init_ckpt(self) -> None:
        """Start at epoch 0, with nothing but an empty list of evaluations, or with the weights of the run that the config starts from."""
        self.epoch = 0
        self.ckpt = {EVAL_RECORDS: {}}
        self.preview = {}
        if self.loop is not None and START_FROM in self.config and self.config[START_FROM] is not None:
            from trainmaster.manager.hosting import load_weights

            load_weights(self.loop, Origin.parse(self.config[START_FROM]).read(self.store))

    def save_ckpt(self) -> None:
        """Save `self.ckpt`. An override puts into it what has to be kept, and then calls this."""
        if self._attempt is None:
            raise SettingError("`save_ckpt()` saves the work of `process`, and none is going on", hint="`ckpts[key] = ...` saves a value")
        from trainmaster.loop.rng import get_rng, plain_rng

        status = {"epoch": self.epoch, "toc": time.time(), **self._times.means}
        self._attempt.save(self.epoch, self.ckpt, status, self.preview, {"rng": plain_rng(get_rng())}, self.keep)
        self._saved_epoch = self.epoch

    def load_ckpt(self) -> None:
        """Load the last checkpoint into `self.ckpt`. An override calls this, and then takes out of it what it has put there."""
        if not self.key:
            raise SettingError("nothing is set up", hint="call `setup(config)` first")
        run = self.store.run(self.key) if self._attempt is None else self._attempt.run
        latest = run.checkpoint(self._which)
        if latest is None:
            is_any = self._which == "last"
            raise UnknownRunError(f"run {self.key} has no {'' if is_any else f'{self._which} '}checkpoint", hint="`process` trains it")
        status = latest.manifest["status"]
        self.epoch, self.ckpt, self.preview = status["epoch"], latest.value, run.preview_with(latest)
        self._times.means = {name: status.get(name) for name in ("t_train", "t_eval")}
        self._rng = (latest.context or {}).get("rng")
        self._saved_epoch = self.epoch
        if self._attempt is not None:
            for damage in check_run(run, is_deep=False):
                warnings.warn(f"run {self.key} goes on without it: {damage}", stacklevel=2)
            self._attempt.start(latest)
        if self._hosted is not None:
            from trainmaster.loop.checkpoint_loader import checked, take_up

            take_up(self._hosted.loop, checked(latest.value), latest.name)
            self._hosted.resume(status, self.preview)

    def train(self) -> None:
        """Train for one epoch, the `self.epoch`-th."""
        raise NotImplementedError(f"{type(self).__name__} has no `train()`: one epoch of training")

    def eval(self) -> Mapping[str, Any] | None:
        """Evaluate. What is returned, numbers by name, is recorded for this epoch, and is the preview of the run."""
        raise NotImplementedError(f"{type(self).__name__} has no `eval()`: an evaluation")

    # ---- work

    def process(self, config: Any = None, num_epochs: int | None = None, resume: bool = True, start_from: str | None = None) -> None:
        """Train a config up to `num_epochs` epochs in all, from the last checkpoint on, or from epoch 0, which is evaluated and saved.

        `num_epochs` None takes the config's own `epochs` or `num_epochs`, or else the loop's; 0, or a config that has none, only evaluates.
        `resume=False` starts again, in a new attempt; the old one stays. `start_from` is the key of a run whose weights a new run begins
        with: `"ab12cd34"`, `"ab12cd34@best"`, `"ab12cd34@120"` for a step; it becomes part of the config. Raises `RunBusyError` if somebody
        else is at it. Ctrl-C and SIGTERM save first, and then end it as they would.
        """
        self._refuse_if_at_work()
        if start_from is not None:
            config = self.starting_from(config, start_from)
        work = self._admit(config, num_epochs)
        if resume and self._is_done(work):
            self._stand_at(work.config, work.key)
            if self._is_enough(work):  # the last checkpoint may have turned out to be damaged
                self._display.say(f"run {work.key} is at epoch {self.epoch} already")
                return
        with self._interruptible() as interrupts:
            facts = self.launch.facts(work.num_epochs)
            try:
                with self.store.attempt(
                    work.key, "process", say=self._display.say, facts=facts, gives_up=lambda: interrupts.reason is not None
                ) as attempt:
                    self._work(work, attempt, resume, interrupts)
            except RunBusyError:
                interrupts.leave()
                raise
            interrupts.leave()

    def batch(
        self,
        configs: Iterable[Any],
        num_epochs: int | None = None,
        resume: bool = True,
        count: int = 0,
        patience: float | None = None,
        max_errors: int = 0,
        max_attempts: int = 3,
        workers: int | Executor = 0,
    ) -> BatchResult:
        """Train many configs; the same call in other processes, on any machine that sees the store, shares the work.

        What others hold is watched until it is done, or until its lease has not moved for `patience` hours (by default the manager's
        `lease_time`). `count` is how many to do here, 0 for all. With `max_errors` 0 the first error is raised; else the batch ends
        quietly at that many. A run of which `max_attempts` attempts in a row brought no new checkpoint is given up. `workers` is a number
        of processes to train in, which stay warm from one config to the next, or an executor; 0 trains here.
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
        works = Works(self.store, self._admit, self._is_done, self._display.say)
        watch = self.store.watch(None if patience is None else patience * 3600)
        with self._interruptible() as interrupts, contextlib.ExitStack() as stack:
            executor = self._executor(workers)
            if not isinstance(executor, Here):
                stack.enter_context(interrupts.patient())  # each worker is given up by itself
            stack.callback(executor.close)
            executor.open(self, self.do)
            view = None
            if not isinstance(executor, Here) and self._display.is_verbose:
                view = stack.enter_context(BatchView(_number_of(configs), self._display.say))
            batch = Batch(works, policy, watch, executor, interrupts, view)
            try:
                batch.run(configs)
            finally:
                stack.close()
                self._tell_of(batch.result)
                if interrupts.reason is not None:
                    self._display.say(f"go on with: {self.launch.again()}")
            interrupts.leave()
            return batch.result

    def _executor(self, workers: int | Executor) -> Executor:
        if not isinstance(workers, int):
            if not hasattr(workers, "submit"):
                _check_whole("workers", workers, 0)  # raises
            return workers
        _check_whole("workers", workers, 0)
        if workers == 0:
            return Here()
        from trainmaster.manager.local_workers import LocalWorkers

        return LocalWorkers(workers)

    def _tell_of(self, result: BatchResult) -> None:
        """What became of a batch, and how each failure is repeated."""
        self._display.say(f"batch: {result}")
        for key, reason in {**result.failed, **result.given_up}.items():
            again = f"; again: {self.launch.repeating(self.store, key)}" if is_key(key) else ""
            self._display.say(f"  {key}  {reason.partition(chr(10))[0]}{again}")

    def sweep(self, choices: Any, num_epochs: int | None = None, *, order: str = "random", **batch: Any) -> BatchResult:
        """Train every combination of `choices`, a config whose leaves are lists, in random order; `batch` are arguments of `batch`."""
        if order != "random":
            raise SettingError(f"order={order!r}: the one order there is, is 'random'")
        found = choices if isinstance(choices, Choices) else Choices(choices, seed=int.from_bytes(os.urandom(6)))
        self._display.say(f"sweep: {found.count:,} combinations")
        return self.batch(found, num_epochs, **batch)

    def fetch(self, key: str, which: str | int = "last") -> Self:
        """This manager with a trained run set up and loaded: `model = manager.fetch(key).model`.

        `which` is the "last" checkpoint, the "best", or the one of a step.
        """
        if not (which in ("last", "best") or (isinstance(which, int) and not isinstance(which, bool))):
            raise SettingError(f"which={which!r}: wanted 'last', 'best', or the number of a step")
        self._refuse_if_at_work()
        config = self.get_config(self.configs[key])
        found = self.configs.get_key(config)
        if found != key:
            raise SettingError(
                f"the stored config of run {key} is another one by `get_config`: its key would be {found or 'a new one'}",
                hint="give `defaults` the class of config that it was stored as, and keep `get_config` idempotent",
            )
        self._stand_at(config, key, which)
        return self

    def loop_of(self, config: Any = None) -> TrainManager:
        """The loop of a config, just as a run of it begins, random numbers included; nothing is stored."""
        self._refuse_if_at_work()
        if not self.makes_loops:
            raise SettingError(f"`{type(self).__name__}` has no `make_loop`")
        config = self.get_config(config)
        refuse_hidden(config)
        store, self.store = self.store, Store(None)
        try:
            self._prepare(config, self.configs.add(config))
        finally:
            self.store = store
        assert self.loop is not None
        return self.loop

    def _stand_at(self, config: Any, key: str, which: str | int = "last") -> None:
        """Set up a run and load it, only to look at it: random numbers stay as they were."""
        with _undisturbed():
            self._prepare(config, key)
            self._which = which
            self._load()

    def starting_from(self, config: Any, text: str, store: Store | None = None) -> Any:
        """A config that says which weights it starts with: those that `text` names in a store, by default the manager's."""
        if not self.makes_loops:
            raise SettingError(f"start_from={text!r}: only a manager with `make_loop` can start from another run's weights")
        config = self.get_config(config)
        config[START_FROM] = Origin.find(store or self.store, text).text
        return config

    def _admit(self, config: Any, num_epochs: int | None) -> Work:
        """A config with its key, stored if it is new, and how many epochs it is to be trained."""
        config = self.get_config(config)
        refuse_hidden(config)
        if num_epochs is None:
            own = None if self.makes_loops else 0
            num_epochs = next((config[name] for name in HOW_LONG if name in config and config[name] is not None), own)
        if num_epochs is not None:
            _check_whole("num_epochs", num_epochs, 0)
        if key_of(self.get_config(config), 64) != key_of(config, 64):
            raise SettingError(
                f"`{type(self).__name__}.get_config()` changes a config that it has made itself",
                hint="make it idempotent: what it returns, given to it again, is to stay as it is",
            )
        return Work(self.configs.add(config), config, num_epochs)

    def _is_done(self, work: Work) -> bool:
        """Whether a run was trained, evaluated and saved as far as it is to be."""
        status = self.stats.get(work.key)
        if status is None or status["epoch"] < 0:
            return False
        epoch, wanted, target = status["epoch"], work.num_epochs, status.get("target")
        if wanted is None:
            return bool(status.get("is_over"))
        is_over_before = bool(status.get("is_over")) and target is not None and target >= wanted
        return epoch > wanted or (epoch == wanted and status.get("is_evaluated", True)) or is_over_before

    def _is_enough(self, work: Work) -> bool:
        """Whether what was loaded is as far as it is to be."""
        if self.loop is None:
            return self.epoch >= (work.num_epochs or 0)
        if work.num_epochs is not None:
            return self._is_done(work)
        return self.loop.is_over() or bool((self.stats.get(work.key) or {}).get("stopped"))

    def do(self, task: Task) -> Report:
        """One run of a batch, for an executor."""
        return reported(task, self._do)

    def _do(self, task: Task) -> Report:
        work = task.work
        with self._interruptible() as interrupts, contextlib.ExitStack() as stack:
            facts = self.launch.facts(work.num_epochs)
            try:
                attempt = stack.enter_context(self.store.attempt(work.key, BY_BATCH, Seen(task.expired), facts=facts))
            except RunBusyError:
                return Report(work.key, "held")
            self._work(work, attempt, task.resume, interrupts)
        return Report(work.key, "done") if self.stopped is None else Report(work.key, "stopped", self.stopped)

    def _refuse_if_at_work(self) -> None:
        if self._attempt is not None:
            raise SettingError(f"this manager is at work on run {self._attempt.key}", hint="use another manager")

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[Interrupts]:
        """Ctrl-C, SIGTERM and `trainmaster stop` are requests while the block runs; the outermost block counts."""
        if self._interrupts is not None:
            yield self._interrupts
            return
        with Interrupts(self._display.warn, self._asked) as self._interrupts:
            try:
                yield self._interrupts
            finally:
                self._interrupts = None

    def _asked(self) -> str | None:
        """Why the work at hand should end, if somebody says so. Asked from another thread."""
        attempt = self._attempt
        if attempt is None:
            return self.launch.asked()
        if attempt.is_lost:
            return "the lease of this run was lost"
        with contextlib.suppress(StoreError):  # the store may be away for a moment
            if attempt.is_asked_to_stop() and attempt is self._attempt:
                return "somebody asked this run to stop"
        return self.launch.asked()

    def _work(self, work: Work, attempt: Attempt, resume: bool, interrupts: Interrupts) -> None:
        try:
            self._work_on(work, attempt, resume, interrupts)
        finally:
            interrupts.forget()

    def _work_on(self, work: Work, attempt: Attempt, resume: bool, interrupts: Interrupts) -> None:
        self.forget()  # what an interrupt may have left open
        self._place(work.config, work.key)
        attempt.hide(work.config.to_dict() if isinstance(work.config, ConfigBase) else plain(work.config))
        self._attempt, self.stopped = attempt, None
        with self._display.logging(attempt, self.launch.flush):
            try:
                self._pipeline(work, attempt, resume, interrupts)
            except BaseException as error:
                self._record_failure(attempt, error)
                raise
            finally:
                self._attempt = None
            is_short = not self._hosted.is_over if self._hosted is not None else self.epoch < (work.num_epochs or 0)
            if is_short:
                self.stopped = interrupts.reason or "max_time is over"
                attempt.check()  # a lease that was lost is the reason, then
                attempt.release("stopped" if interrupts.signal is None else "interrupted", reason=self.stopped, epoch=self.epoch)
                is_kept = not self.launch.is_passing
                self._display.say(f"run {work.key} {'is saved' if is_kept else 'has stopped'} at epoch {self.epoch}: {self.stopped}")
                self._display.say(f"{'resume it' if is_kept else 'start again'} with: {self.launch.resuming(self.store, work.key)}")
            else:
                attempt.release("finished", epoch=self.epoch)
                reason = f", {self._hosted.stopped}" if self._hosted is not None and self._hosted.stopped is not None else ""
                self._display.say(f"run {work.key} is done: epoch {self.epoch}{reason}")

    def _give_up(self, attempt: Attempt, reason: str) -> None:
        """The last words of a process whose main thread does not come back."""
        with contextlib.suppress(StoreError):
            attempt.release("interrupted", reason=reason)
        self._display.warn(f"{reason}: the last checkpoint of run {attempt.key} stands")
        self._display.warn(f"resume it with: {self.launch.resuming(self.store, attempt.key)}")

    def _record_failure(self, attempt: Attempt, error: BaseException) -> None:
        is_signal = isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code in (130, 143))
        outcome = "interrupted" if is_signal else "failed"
        text = attempt.mask("".join(traceback.format_exception(error)))
        self._display.log(text)
        with contextlib.suppress(StoreAccessError):  # the error that is on its way is the one to see
            attempt.release(outcome, error=described(error, attempt.mask), traceback=text[-20000:])

    def _pipeline(self, work: Work, attempt: Attempt, resume: bool, interrupts: Interrupts) -> None:
        """The pipeline, in plain sight."""
        key, config, num_epochs = work
        with (
            interrupts.stopping(self._ask_to_stop, functools.partial(self._give_up, attempt)),
            self.staged("work", {"manager": self, "config": config, "key": key, "num_epochs": num_epochs}),
        ):
            with self.staged("work_setup"):
                self._prepare(config, key)
            if resume and attempt.run.has_saved():
                with self.staged("work_load"):
                    self._load()
                of = "" if num_epochs is None else f" to {num_epochs}"
                self._display.say(f"run {key} goes on from epoch {self.epoch}{of}")
            else:
                attempt.start(None)
                with self.staged("work_init"):
                    self.init_ckpt()
                if self.epoch != 0:
                    raise SettingError(
                        f"`{type(self).__name__}.init_ckpt()` starts at no epoch", hint="call `super().init_ckpt()` first in it"
                    )
                of = "" if num_epochs is None else f", for {counted(num_epochs, 'epoch')}"
                self._display.say(f"run {key} is only evaluated" if num_epochs == 0 else f"run {key} starts{of}")
            if self._hosted is not None:
                self._train_loop(self._hosted, attempt, num_epochs, interrupts)
                return
            num_epochs = num_epochs or 0
            if self._saved_epoch is None:
                self._evaluate(attempt)
                with interrupts.patient():
                    self._save()
                self._display.epoch(key, self.epoch, num_epochs, 0.0, self.preview)
            while self.epoch < num_epochs and interrupts.reason is None:
                self.epoch += 1
                attempt.check()
                with self.staged("work_train"):
                    started = time.monotonic()
                    self.train()
                    seconds = self._times.took("t_train", started)
                if self.epoch % self.eval_interval == 0 or self.epoch == num_epochs:
                    self._evaluate(attempt)
                if self.epoch % self.save_interval == 0 or self.epoch == num_epochs or interrupts.reason is not None:
                    with interrupts.patient():
                        self._save()
                self._display.epoch(key, self.epoch, num_epochs, seconds, self.preview)
                self.launch.tell(Report(key, "progress", epoch=self.epoch, num_epochs=num_epochs))

    def _train_loop(self, hosted: HostedLoop, attempt: Attempt, num_epochs: int | None, interrupts: Interrupts) -> None:
        """All of `TrainManager.train()`."""
        hosted.loop.settle(epochs=num_epochs, train_dir=self.store.folder_of(attempt))
        is_drawn = self.store.root is not None
        hosted.work_for(attempt, self.keep, lambda: interrupts.reason, interrupts.patient, is_drawn)
        with self.staged("work_train"):
            hosted.loop.train()
        self.epoch, self.preview = hosted.loop.epoch_num, hosted.preview()

    def _ask_to_stop(self, reason: str) -> None:
        """Ask the loop to end after the batch. Asked again and again, from another thread."""
        if self.loop is not None:
            self.loop.stop(reason)

    def _host(self, loop: Any) -> None:
        """Attach to a loop all that makes a run of it."""
        from trainmaster.loop.train_manager import TrainManager
        from trainmaster.manager.hosting import HostedLoop, Pristine

        if not isinstance(loop, TrainManager):
            raise SettingError(f"`{type(self).__name__}.make_loop()` returned {loop!r:.60}: wanted a TrainManager")
        if self.eval_interval != 1:
            raise SettingError(f"eval_interval={self.eval_interval}: a loop evaluates after every epoch", hint="leave it out")
        self._pristine = self._pristine or Pristine()
        self._hosted = HostedLoop(loop, self.save_interval, self._told)
        self._hosted.equip(self.extensions, self._pristine, self._shows())
        self.loop, self.model = loop, loop.model

    def _shows(self) -> dict[str, object]:
        """What tells of a loop, on the screen and in the log of its run: more of a single run than of one of a batch."""
        from trainmaster.extensions.progress import Progress
        from trainmaster.extensions.run_report import RunReport

        if self._attempt is None:
            return {}
        is_single = self._attempt.by != BY_BATCH
        say = self._display.say if is_single else self._display.keep
        seed = self.config["seed"] if "seed" in self.config else f"of the key, {int(self.key[:8], 16)}"
        facts = [("seed", f"{seed}"), ("store", self.store.root or "in memory")]
        progress = Progress(has_lines=False) if self._display.is_live else Progress(has_lines=False, say=say)
        return {"run_report": RunReport(say, facts), "progress": progress}

    def _told(self, seconds: float) -> None:
        """A loop has evaluated."""
        assert self._hosted is not None
        loop = self._hosted.loop
        self.epoch, self.preview = loop.epoch_num, self._hosted.preview()
        self._display.epoch(self.key, self.epoch, loop.epochs, seconds, self.preview)
        self.launch.tell(Report(self.key, "progress", epoch=self.epoch, num_epochs=loop.epochs))

    @property
    def makes_loops(self) -> bool:
        return type(self).make_loop is not Manager.make_loop

    def launched(self, launch: Launch) -> None:
        """Tell a manager who started it: how its work is taken up again, who listens, and who may end it."""
        self.launch = launch

    def hush(self) -> None:
        """Print nothing any more; runs keep their logs."""
        self._display.is_verbose = False

    def keep_text(self, text: str) -> bool:
        """Put a text into the log of the work at hand; False if there is none."""
        return self._display.log(text)

    def recipe(self) -> ManagerRecipe:
        """What it takes to make this manager once more, in another process."""
        made = made_with(self)
        assert made is not None
        return ManagerRecipe(type(self), made.args, made.kwargs, list(self.extensions.items()))

    def _place(self, config: Any, key: str) -> None:
        self.config, self.key = config, key
        self.epoch, self.ckpt, self.preview = -1, {EVAL_RECORDS: {}}, {}
        self._times = MeanTimes()
        self._rng = self._saved_epoch = self._hosted = self.loop = None
        self._which = "last"

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
            self._times.took("t_eval", started)
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

    # ---- for the engine

    def read_fixture(self, name: str) -> Any:
        if name in ("epoch", "ckpt", "preview"):
            return getattr(self, name)
        raise AttributeError(name)

    def answers_undeclared(self) -> bool:
        return False

    def partner_trees(self) -> tuple[StageTree, ...]:
        return (TRAIN_MANAGER,) if self.makes_loops else ()

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


def _number_of(configs: Iterable[Any]) -> int | None:
    """How many configs there are, if they know; combinations may be more than Python can count."""
    try:
        return len(configs) if isinstance(configs, Sized) else None
    except OverflowError:
        return None


def _undisturbed() -> contextlib.AbstractContextManager[None]:
    """Random numbers as they were, whatever an observer does. Torch is imported when there is something to keep."""
    from trainmaster.loop.rng import kept_rng

    return kept_rng()


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
