"""`Arms`: the variants of a config that an ablation or a hypothesis compares.

Runs of different arms with the same seed are compared with each other.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.arguments import is_int, is_number
from trainmaster.config import Config, ConfigBase, canonical
from trainmaster.config.config import with_origins
from trainmaster.config.difference import Difference, diff
from trainmaster.config.identity import group_of, identity_tree
from trainmaster.config.overrides import apply_overrides
from trainmaster.config.seed import seed_key
from trainmaster.errors import ConfigError, MetricNameError, PlanError, Problem, SettingError, did_you_mean, shown
from trainmaster.manager.batch import Policy
from trainmaster.manager.batch_session import run_batch
from trainmaster.manager.error_text import in_one_line, is_store_failure
from trainmaster.manager.job import Job, config_epochs, make_job
from trainmaster.manager.varied_keys import problem_of_key
from trainmaster.store import Store
from trainmaster.store.epoch_values import epoch_values
from trainmaster.store.metric_names import better_of, resolve_metric

if TYPE_CHECKING:
    from trainmaster.manager.executor import Executor
    from trainmaster.manager.manager import Manager

MAX_ATTEMPTS = 10
"""A run is marked as failed after this many attempts in a row without a new checkpoint.

Attempts by killed workers count too, so the limit is high.
"""

Overrides = str | Sequence[str] | Mapping[str, Any]
"""Config values: `"model.dropout=0"`, a list of such strings, or `{"model.dropout": 0}`."""


class RunValue(NamedTuple):
    """The result of one run: the last value of the metric up to the run's target epoch."""

    key: str
    value: float | None
    """The value of the metric, or None if the run failed or the value is not finite."""
    epoch: int | None = None
    metric: str = ""
    """The full name of the metric."""
    why: str = ""
    """Why there is no value."""
    target: int | None = None
    """The number of epochs that the run was trained for, or None if the plan or the config already specifies it."""


def seed_notes(arms: Iterable[Sequence[RunValue]]) -> list[str]:
    """Return a note if, in every arm, all runs have the same value although their seeds differ."""
    values = [[run.value for run in runs if run.value is not None] for runs in arms]
    if not all(len(each) > 1 and len({*each}) == 1 for each in values):
        return []
    return ["in each arm, all seeds gave the same value: does the program use the seed?"]


@dataclass(frozen=True)
class Arms:
    """The arms and the manager that trains them. Each arm is the base config with some values changed."""

    manager: Manager
    base: Mapping[str, Any]
    values: Mapping[str, Mapping[str, Any]]
    """The changed values of each arm, by arm name and dotted key."""
    epochs: int | None
    """The number of epochs for every run. If None, the config or the loop sets it."""

    def config(self, arm: str, seed: int) -> Any:
        """Return the complete config of the run with this arm and seed."""
        values = {**self.base, **self.values[arm], self.seed_key: seed}
        origins = {**dict.fromkeys(self.base, "base of the plan"), **dict.fromkeys(self.values[arm], f"arm {arm}")}
        return self.manager.complete_config(with_origins(values, {**origins, self.seed_key: "replicate"}))

    def key(self, arm: str, seed: int) -> str:
        """Return the key of the run with this arm and seed. The run need not exist yet."""
        return self.manager.configs.key_for(self.config(arm, seed))

    def job(self, arm: str, seed: int) -> Job:
        return make_job(self.manager, self.config(arm, seed), self.epochs)

    def read_value(self, key: str, metric: str) -> RunValue:
        return read_value(self.manager.store, key, metric, self.epochs)

    def samples(self, seeds: Sequence[int]) -> list[Any]:
        """Return the configs of all arms with the first seed, and the config of the first arm with the second seed.

        These few configs show which keys differ between the runs.
        """
        first = next(iter(self.values))
        return [*(self.config(arm, seeds[0]) for arm in self.values), *(self.config(first, seed) for seed in seeds[1:2])]

    def group(self, arm: str) -> str:
        """Return the group id of an arm. All runs of the arm have the same group id, whatever their seed."""
        return group_of(self.config(arm, 0), 64)

    def is_known(self, arm: str, seed: int) -> bool:
        """Return whether a run with this arm and seed has already been started."""
        key = self.manager.configs.get_key(self.config(arm, seed))
        return key is not None and bool(self.manager.store.run(key).attempts())

    def differences(self, one: str, other: str) -> list[Difference]:
        """Return the values in which the complete configs of two arms differ. Secrets are left out."""
        one_values, other_values = (Config(identity_tree(self.config(arm, 0))).flatten() for arm in (one, other))
        return diff(one_values, other_values)

    def recorded_base(self) -> dict[str, Any]:
        """Return the base values that are part of a run's identity, as plain values. Secrets are left out."""
        identity = Config(identity_tree(self.config(next(iter(self.values)), 0)))
        return {key: plain(value) for key, value in sorted(self.base.items()) if key in identity}

    @cached_property
    def seed_key(self) -> str:
        """The name of the config key that holds the seed."""
        name = seed_key(self.manager.complete_config({**self.base, **next(iter(self.values.values()))}))
        if name is None:
            raise SettingError("the config has no seed, so runs cannot be repeated with other seeds", hint="add a field `seed: int = 0`")
        return name

    def check(self, owner: str) -> None:
        """Raise an error if a key or value is invalid, if two arms have the same config, or if different seeds lead to the same run."""
        problems: list[Problem] = []
        first = next(iter(self.values))
        try:
            start = self.manager.complete_config(dict(self.base))
        except ConfigError:  # the base may be valid only together with the values of an arm
            start = self.manager.complete_config({**self.base, **self.values[first]})
        for values in self.values.values():
            for key in values:
                if key == self.seed_key:
                    problems.append(Problem(key, "is the seed, which all arms share"))
                else:
                    problems += [problem for problem in (self._near_miss(key), problem_of_key(self.manager, start, key)) if problem][:1]
        if problems:
            raise ConfigError.of(owner, dict.fromkeys(problems))
        names: dict[str, str] = {}
        for arm in self.values:
            other = names.setdefault(canonical(self.config(arm, 0)), arm)
            if other != arm:
                text = ", ".join(f"{key}={value!r}" for key, value in self.values[arm].items()) or "these values"
                problem = Problem(arm, f"gives the same runs as {other}: the config has {text} already")
                raise ConfigError.of(owner, [problem], hint="compare values that differ")
        if canonical(self.config(first, 0)) == canonical(self.config(first, 1)):
            hint = f"`{self.seed_key}` must be part of the config's identity, and `get_config` must keep it"
            raise SettingError("runs with different seeds are the same run, so there are no replicates", hint=hint)

    def train(
        self,
        plan: object,
        driver: Any,
        metric: str,
        workers: int | Executor,
        summarize: Callable[[bool], None],
        status: Callable[[], str] | None = None,
    ) -> None:
        """Print a plan, and train the runs that `driver` provides. `driver` is also the observer of the batch. See `run_batch`."""
        for line in str(plan).split("\n"):
            self.manager.job_runner.console.print(line)
        policy = Policy(self.epochs, True, 0, sys.maxsize, MAX_ATTEMPTS)
        run_batch(self.manager, driver, policy, None, workers, observer=driver, summarize=summarize, status=status, metric=metric)

    def _near_miss(self, key: str) -> Problem | None:
        """Return a `Problem` if a key looks like a misspelled key of the base config, otherwise None.

        Only configs without defaults need this check, because they accept any key.
        """
        if key in self.base or not isinstance(self.manager.defaults, Config) or self.manager.defaults:
            return None
        similar = did_you_mean(key, self.base)
        return Problem(key, f"the config has no such key; {similar}", is_unknown=True) if similar else None


def parse_overrides(given: Overrides | None, owner: str, replaced: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return config values by dotted key. A number given as text is converted to the type of its key's value in `replaced`.

    >>> parse_overrides("model.dropout=0", "the claim")
    {'model.dropout': 0}
    """
    if given is None or isinstance(given, Mapping):
        return Config(given or {}).flatten()
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise SettingError(f"{owner} must be config values, not {shown(given)}", hint='"model.dropout=0", or {"model.dropout": 0}')
    texts = [text for text in texts if text.strip()]
    return Config(apply_overrides({}, texts, owner, takes_any=True, replaced=replaced)[0]).flatten()


def base_values(base: Any) -> dict[str, Any]:
    """Return the values that all runs share, by dotted key."""
    if isinstance(base, str | os.PathLike):
        base = Config.load(base)
    return Config(base.to_dict() if isinstance(base, ConfigBase) else {} if base is None else base).flatten()


def read_value(store: Store, key: str, metric: str, epochs: int | None) -> RunValue:
    """Return the result of a finished run. Raise `PlanError` if the run does not have the metric."""
    history = store.run(key).history
    try:
        name = resolve_metric(metric, history)
    except MetricNameError as error:
        raise PlanError(f"run {key}: {error.fact}", **error.rows) from None
    target = config_epochs(store.configs[key]) if epochs is None else epochs
    trained_for = None if is_number(target) else (store.stats.get(key) or {}).get("target")
    values = epoch_values(history, name, target if is_number(target) else trained_for)
    if values is None:
        raise PlanError(f"run {key} has no value of `{name}` after its first epoch", hint="use an evaluation metric")
    epoch = max(values)
    is_finite = math.isfinite(values[epoch])
    why = "" if is_finite else f"its {name} is {values[epoch]}"
    return RunValue(key, values[epoch] if is_finite else None, epoch, name, why, trained_for)


def refuse_unsaved(key: str, text: str) -> None:
    """Raise `PlanError` if a run failed because the store could not be written."""
    if is_store_failure(text):
        hint = "repeat the command when the store can be written again; it resumes the run"
        raise PlanError(f"run {key} could not be saved", why=in_one_line(text), hint=hint)


def direction_of(metric: str, given: str | None) -> str:
    """Return "max" if larger values are better, or "min" if smaller ones are."""
    if given not in ("min", "max", None):
        raise SettingError(f"direction={given!r}: expected min or max")
    direction = given or better_of(metric)
    if direction is None:
        hint = "pass direction='min' or direction='max'"
        raise SettingError(f"is a smaller or a larger `{metric}` better? The name does not show it", hint=hint)
    return direction


def checked_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, str) or not isinstance(seeds, Sequence):
        raise SettingError(f"seeds={shown(seeds)}: expected a list of seeds", hint="seeds=[0, 1, 2, 3, 4]")
    found = tuple(seeds)
    wrong = [each for each in found if not is_int(each) or each < 0]
    if wrong:
        raise SettingError(f"a seed must be a whole number of at least 0, not {shown(wrong[0])}")
    if len({*found}) < len(found):
        twice = next(each for each in found if found.count(each) > 1)
        raise SettingError(f"the seed {twice} is given twice: its runs are the same, and would count twice")
    return found


def plain(value: Any) -> Any:
    """Convert a config value to a plain value for a JSON record."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
