"""`Manager`: trains each config once and keeps the results in a store. Interrupted runs are resumed."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from trainmaster.arguments import check_int, check_number, is_int
from trainmaster.config import Config, ConfigBase, Grid
from trainmaster.config.identity import START_FROM
from trainmaster.errors import SettingError, UnknownKeyError
from trainmaster.loop.ranks import is_other_rank, num_ranks
from trainmaster.loop.stages import TRAIN_MANAGER, WORK
from trainmaster.manager.batch import BatchResult, Policy
from trainmaster.manager.batch_session import run_batch
from trainmaster.manager.config_completer import ConfigCompleter, checked_keys, load_defaults
from trainmaster.manager.console import Console
from trainmaster.manager.executor import Executor
from trainmaster.manager.invocation import Invocation
from trainmaster.manager.job import Job, job_to_load, make_job
from trainmaster.manager.job_runner import JobRunner
from trainmaster.manager.make_loop import annotated_class, checked_function, refuse_other_defaults
from trainmaster.manager.rank_roles import rank_store
from trainmaster.manager.run_queries import RunQueries
from trainmaster.manager.start_from import Origin, config_starting_from
from trainmaster.manager.user_epochs import EVAL_RECORDS
from trainmaster.manager.varied_keys import refuse_idle_choices, refuse_invalid_choices
from trainmaster.stages import Extensible, StageTree
from trainmaster.stages.hooks import Guard, Hook
from trainmaster.store import Store
from trainmaster.store.events import RowsByName
from trainmaster.store.lease import LEASE_TIME
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager
    from trainmaster.sweep.search import SearchResult


class Manager(RunQueries, Extensible):
    """Trains each config once, and keeps the results in a store.

    The simplest way to use it is to pass a function `make_loop(config)` that returns a `TrainManager`, or to write
    `make_loop` as a method of a subclass. The manager then records metrics, saves checkpoints and resumes runs exactly.
    If you pass no `defaults`, the annotation in `def make_loop(config: Train)` determines the config class.

    To train each epoch with your own code, write a subclass: `setup(config)` builds the model, `train()` trains one
    epoch, and `eval()` returns the metrics to record. `save_ckpt()` stores values in `self.ckpt`, and `load_ckpt()`
    reads them. `monitor = "accuracy"` in the class body names the metric that decides which checkpoint and which run are the best.

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
    >>> manager.process({"x": 1.0}, num_epochs=5)  # continues from epoch 3
    >>> key = manager.best_work()
    >>> manager.stats[key]["epoch"], manager.previews[key]
    (5, {'loss_test': 0.03125})
    """

    tree = WORK
    shares_extensions = True

    config: Any
    """The config of the current run."""
    key: str
    """The key of the current run."""
    epoch: int
    """The epoch that the current run has reached. In `train()`, it is the epoch to train. It is -1 before a run is loaded or started."""
    ckpt: dict[str, Any]
    """The contents of the next checkpoint."""
    preview: dict[str, Any]
    """Metrics that can be read without loading the checkpoint."""
    loop: TrainManager | None
    """The loop of the current run, if the manager has a `make_loop`."""
    defaults: Any = None
    """Default values for all configs: a config, a config class, or a file.

    A subclass may set them for all its instances.
    """
    secrets: Collection[str] = ()
    """Dotted keys of secrets in free-form configs. Their values are never stored and are not part of a config's identity."""
    public: Collection[str] = ()
    """Dotted keys whose values look like secrets but may be stored."""
    new_keys: Collection[str] = ()
    """Dotted keys that are correct, although they look like misspelled defaults."""
    monitor: str | None = None
    """The metric of `eval()` by which the best checkpoint is chosen and runs are ranked.

    A subclass with its own `train` and `eval` may set it. With `make_loop`, pass it to the loop's `CheckpointSaver` instead.
    """
    mode: Literal["min", "max"] | None = None
    """Whether lower or higher values of `monitor` are better. You can omit it if the name implies the direction, as with `loss_test`."""

    _function: Any = None  # a type checker would mistake a function in the class body for a method
    """The function `make_loop` that was passed to the constructor."""

    def __init__(
        self,
        store_dir: str | os.PathLike[str] | None = None,
        defaults: Mapping[str, Any] | ConfigBase | type[ConfigBase] | str | os.PathLike[str] | None = None,
        *,
        make_loop: Callable[[Any], TrainManager] | None = None,
        secrets: Collection[str] | None = None,
        public: Collection[str] | None = None,
        new_keys: Collection[str] | None = None,
        eval_interval: int = 1,
        save_interval: int = 1,
        disp_interval: int = 1,
        keep: int = 3,
        lease_time: float = LEASE_TIME,
        strict_code: bool = False,
        same_program: bool = False,
        verbose: bool = True,
    ) -> None:
        intervals = {"eval_interval": eval_interval, "save_interval": save_interval, "disp_interval": disp_interval, "keep": keep}
        for name, value in intervals.items():
            check_int(name, value, min=1)
        if isinstance(store_dir, Mapping | ConfigBase):
            raise SettingError(
                f"store_dir={store_dir!r:.60}: expected a folder", hint="defaults come second: `Manager(store_dir, defaults)`"
            )
        self.secrets = checked_keys("secrets", type(self).secrets if secrets is None else secrets)
        self.public = checked_keys("public", type(self).public if public is None else public)
        self.new_keys = checked_keys("new_keys", type(self).new_keys if new_keys is None else new_keys)
        if make_loop is not None:
            self._function = checked_function(make_loop, type(self), Manager)
        defaults = type(self).defaults if defaults is None else defaults
        if defaults is None and self.has_make_loop:
            defaults = annotated_class(self._function or self.make_loop)
        self.defaults = load_defaults(defaults, self.secrets)
        self.completer = ConfigCompleter(self.secrets, self.new_keys)
        if self._function is not None:
            refuse_other_defaults(self._function, self.defaults)
        self.store = Store(store_dir, lease_time)
        self.eval_interval, self.save_interval, self.keep = eval_interval, save_interval, keep
        invocation = Invocation(is_strict_code=strict_code, is_same_program=same_program)
        self.job_runner = JobRunner(self, Console(verbose, disp_interval), invocation)
        self.enter_run(Job("", "", None, None))

    def __repr__(self) -> str:
        values = vars(self)  # some attributes are missing if the constructor failed
        run = f", run {values['key']} at epoch {values.get('epoch')}" if values.get("key") else ""
        return f"{type(self).__name__}({getattr(values.get('store'), 'root', None)!r}{run})"

    @property
    def history(self) -> RowsByName:
        """The recorded metrics of the current run: for each name, a list of (step or epoch, value) pairs in order."""
        if not self.key:
            raise SettingError("no run is set up, so there is no history", hint="`process(config)` or `fetch(key)` first")
        return self.loop.history if self.loop is not None else self.store.run(self.key).history

    @functools.cached_property
    def model(self) -> Any:
        """The model of the current run. `setup` sets it."""
        if not self.has_make_loop and type(self).setup is Manager.setup:
            raise AttributeError(
                "this manager cannot build a model, because it has no `make_loop`:"
                " pass the function that built the loop of the run, `Manager(store_dir, make_loop=make_loop)`"
            )
        if not self.key:
            raise AttributeError("no run is set up, so there is no model: call `process(config)` or `fetch(key)` first")
        raise AttributeError(f"`{type(self).__name__}.setup()` did not set `self.model`")

    @property
    def stopped(self) -> str | None:
        """Why the last run was stopped and saved before its last epoch, or None if it was not stopped."""
        return self.job_runner.stopped

    # ---- methods that a subclass may override

    def get_config(self, config: Any = None) -> Any:
        """Return the config to train: `config` with the defaults filled in.

        An override may change the config further, and must be idempotent. If a stored config has `***` in place of a
        secret, the secret is taken from the environment or the defaults.
        """
        return self.completer.complete(config, self.defaults, self.store)

    def make_loop(self, config: Any) -> TrainManager:
        """Build the loop that trains a config. A manager with its own `train` and `eval` does not need this method."""
        if self._function is None:
            raise NotImplementedError(f"{type(self).__name__} has no `make_loop(config)`")
        try:
            loop: TrainManager = self._function(config)
        except UnknownKeyError as error:
            if isinstance(self.defaults, Config) and not self.defaults:
                error.add_note(
                    f"there are no defaults; for the command line, define `defaults = {{...}}` next to `{self._function.__name__}`"
                )
            raise
        return loop

    def setup(self, config: Any) -> None:
        """Build the model and everything else that is trained.

        The base method sets `self.config` and `self.key`, and builds the loop if there is a `make_loop`.

        Setting up a run stores nothing. A config that comes from the store keeps its key even if you have added defaults
        since then.
        """
        job = self.job_runner.take_job(config)
        if job is None:
            complete = self.complete_config(config)
            job = job_to_load(complete, self.stored_key(config, complete) or self.configs.key_for(complete))
            self.enter_run(job)
        if self.has_make_loop:
            self.loop = self.job_runner.make_loop(job)
            self.model = self.loop.model

    def init_ckpt(self) -> None:
        """Start at epoch 0. If `start_from` in the config names another run, load the weights of that run."""
        self.epoch, self.ckpt, self.preview = 0, {EVAL_RECORDS: {}}, {}
        if self.loop is not None and START_FROM in self.config and self.config[START_FROM] is not None and self.loop.ranks.is_first:
            from trainmaster.manager.loop_runner import load_weights

            load_weights(self.loop, Origin.parse(self.config[START_FROM]).read(self.store))

    def save_ckpt(self) -> None:
        """Save `self.ckpt` as a checkpoint. An override first puts its values into `self.ckpt`, and then calls this method."""
        runner = self.job_runner
        if runner.attempt is None:
            raise SettingError("`save_ckpt()` only works while `process` trains a run", hint="`ckpts[key] = ...` saves a value")
        runner.session.save(runner.attempt, self.epoch, self.ckpt, self.preview, self.keep, self.extensions)

    def load_ckpt(self) -> None:
        """Load the checkpoint, by default the last one, into `self.ckpt`. If there is a loop, restore the loop instead.

        An override calls this method first, and then reads its values from `self.ckpt`.
        """
        if not self.key:
            raise SettingError("nothing is set up", hint="call `setup(config)` first")
        checkpoint, preview = self.job_runner.load()
        self.advance_to(checkpoint.manifest["status"]["epoch"], preview)
        if self.loop is None:
            self.ckpt = checkpoint.value

    def train(self) -> None:
        """Train one epoch. `self.epoch` is the number of this epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no `train()`, which trains one epoch")

    def eval(self) -> Mapping[str, Any] | None:
        """Evaluate, and return metrics by name. They are recorded for this epoch and become the run's preview."""
        raise NotImplementedError(f"{type(self).__name__} has no `eval()`, which returns metrics by name")

    # ---- training

    def process(self, config: Any = None, num_epochs: int | None = None, resume: bool = True, start_from: str | None = None) -> None:
        """Train a config up to `num_epochs` epochs in total, starting from its last checkpoint if it has one.

        A new run is first evaluated at epoch 0. A manager without `make_loop` also saves a checkpoint at epoch 0.
        `num_epochs` defaults to `epochs` or `num_epochs` in the config, or else to the loop's number of epochs (0
        without a loop). If `num_epochs` is 0, the run is only evaluated. `resume=False` starts from scratch in a new
        attempt; the old attempt is kept. `start_from` starts a new run with the weights of another run: `"ab12cd34"`,
        `"ab12cd34@best"`, or `"ab12cd34@120"` for a step. This value becomes part of the config. Raises `RunBusyError`
        if another process is training the run. After Ctrl-C, SIGTERM or SIGUSR1, the run is saved, and the process then
        ends as usual.
        """
        self.job_runner.refuse_if_busy()
        if start_from is not None:
            config = config_starting_from(self, config, start_from)
        with rank_store(self):
            job = make_job(self, config, num_epochs)
            stored_key = self.stored_key(config, job.config)
            if stored_key not in (None, job.key):
                self.job_runner.console.print(
                    f"run {stored_key} was stored before a default was added: with that default, the config is run {job.key}"
                )
            self.job_runner.process(job, resume)

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
        """Train many configs. To share the work, make the same call in other processes, on any machine with access to the store.

        If another process is training a run, the batch waits until the run is done, or until its lease has not been
        renewed for `patience` hours (by default, the manager's `lease_time`, which is in seconds). `count` limits how
        many runs this call trains; 0 means all. With `max_errors=0` the first error is raised; otherwise the batch ends without an
        exception after `max_errors` errors. The batch gives up on a run after `max_attempts` attempts in a row without a
        new checkpoint. `workers` is an executor or a number of worker processes, which are reused from one config to
        the next. With 0, the runs are trained in this process.
        """
        check_int("count", count, min=0)
        check_int("max_errors", max_errors, min=0)
        check_int("max_attempts", max_attempts, min=1)
        if patience is not None:
            check_number("patience", patience, min=0, hint="`patience` is a number of hours")
        self.job_runner.refuse_if_busy()
        if num_ranks() > 1:
            raise SettingError(
                f"`batch` does not work with {num_ranks()} ranks",
                hint="`process` trains one config on all ranks; `batch(..., workers=2)` trains several at once, without torchrun",
            )
        if isinstance(configs, Mapping | ConfigBase | str | os.PathLike):
            raise SettingError(f"expected a sequence of configs, not {configs!r:.60}", hint="`process` takes one; `sweep` takes choices")
        return run_batch(self, configs, Policy(num_epochs, resume, count, max_errors, max_attempts), patience, workers)

    def sweep(self, choices: Any, num_epochs: int | None = None, *, order: str = "random", **batch: Any) -> BatchResult:
        """Train every combination of the values in `choices`, in random order.

        `choices` is a config whose leaves are lists. The other arguments are the same as for `batch`. With
        `max_errors=0`, invalid values are reported before the first run.
        """
        if order != "random":
            raise SettingError(f"order={order!r}: 'random' is the only order")
        choices = choices if isinstance(choices, Grid) else Grid(choices, seed=int.from_bytes(os.urandom(6)))
        refuse_idle_choices(self, choices)
        if not batch.get("max_errors"):
            refuse_invalid_choices(self, choices)
        self.job_runner.console.print(f"sweep: {counted(choices.count, 'combination')}")
        return self.batch(choices, num_epochs, **batch)

    def search(self, space: Mapping[str, Any], trials: int = 100, monitor: str | Sequence[str] = "loss", **settings: Any) -> SearchResult:
        """Search for the config values that optimize `monitor`, with Optuna's samplers and pruners.

        `space` maps each dotted key to a range, a list of values or a `SearchSpace`: `{"lr": "log(1e-5,1e-1)", "width":
        "int(8,256)", "optim.name": ["sgd", "adam"]}`. The search is recorded in the store. The same call continues it
        after a crash, and extends it if `trials` is larger. Several processes that make the same call share the work.

        Args:
            trials: the total number of trials.
            monitor: the metric to improve; with several metrics, the search looks for the best trade-offs.
            settings: `mode` ("min" or "max"; required if the direction cannot be inferred from the name of the metric),
                `workers` (a number or an executor), `sampler` ("grid", "random", "qmc", "tpe", "gp", "cmaes", "nsga2"),
                `pruner` ("none", "median", "asha", "hyperband", "wilcoxon"), `seed`, `epochs`, `base` (values that all
                trials share), `name`, `window`, `replicates` (runs per trial, with different seeds), `warm_start` (use
                matching runs in the store), `timeout` (in seconds).
        """
        from trainmaster.sweep.search import search

        self.job_runner.refuse_if_busy()
        return search(self, space, trials, monitor, **settings)

    def fetch(self, key: str, which: str | int = "last") -> Self:
        """Set up and load a trained run, and return this manager: `model = manager.fetch(key).model`.

        `which` selects the checkpoint: "last", "best", or a step number. The model is in eval mode. If the loop has an `EMA`,
        the model is a copy with the averaged weights, which evaluations and predictions use; `fetch(key).loop.model` has the
        weights before averaging.
        """
        if not (which in ("last", "best") or is_int(which)):
            raise SettingError(f"which={which!r}: expected 'last', 'best', or the number of a step")
        self.job_runner.refuse_if_busy()
        config = self.complete_config(self.configs[key])
        if not self.configs.is_extended_by(key, config):
            raise SettingError(
                f"`get_config` changes the stored config of run {key}",
                hint="give `defaults` the class of config that it was stored as, and keep `get_config` idempotent",
            )
        self.job_runner.restore(job_to_load(config, key), which)
        if self.loop is not None and self.model is self.loop.model:
            from trainmaster.manager.loop_runner import model_of_evaluations

            self.model = model_of_evaluations(self.loop)
        return self

    # ---- configs and the store

    def complete_config(self, config: Any) -> Any:
        """Return the config from `get_config`. If an override returns a new config, the manager's secrets are declared in it again."""
        return self.completer.declare_secrets(self.get_config(config))

    @property
    def has_make_loop(self) -> bool:
        return self._function is not None or type(self).make_loop is not Manager.make_loop

    @property
    def definition(self) -> Any:
        """The object whose code a run records: the manager's class or its `make_loop` function."""
        return type(self) if self._function is None else self._function

    @contextlib.contextmanager
    def using_store(self, store: Store) -> Iterator[None]:
        """While the `with` block runs, use a different store."""
        own, self.store = self.store, store
        try:
            yield
        finally:
            self.store = own

    # ---- the current run

    def enter_run(self, job: Job, which: str | int = "last") -> None:
        """Make the run of `job` the current run, and discard the state of the previous run."""
        self.job_runner.start_session(which)
        self.config, self.key, self.loop = job.config, job.key, None
        self.epoch, self.ckpt, self.preview = -1, {EVAL_RECORDS: {}}, {}

    def advance_to(self, epoch: int, preview: dict[str, Any] | None = None) -> None:
        self.epoch = epoch
        if preview is not None:
            self.preview = preview

    # ---- for the stages

    def read_fixture(self, name: str) -> Any:
        if name in ("epoch", "ckpt", "preview"):
            return getattr(self, name)
        raise AttributeError(name)

    def has_undeclared_fixtures(self) -> bool:
        return False

    def partner_trees(self) -> tuple[StageTree, ...]:
        return (TRAIN_MANAGER,) if self.has_make_loop else ()

    def observer_guard(self) -> Guard | None:
        return _kept_rng

    def adapt_hook(self, hook: Hook, extension: object) -> Hook | None:
        return None if is_other_rank() and getattr(extension, "on_every_rank", False) is not True else hook


def _kept_rng() -> contextlib.AbstractContextManager[None]:
    """Return a context manager that restores the state of the random number generators after an observer has run.

    The import is inside the function, so torch is loaded only when an observer runs.
    """
    from trainmaster.loop.rng import kept_rng

    return kept_rng()
