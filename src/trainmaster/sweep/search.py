"""`search`: optimizes config values with Optuna's samplers and pruners."""

from __future__ import annotations

import hashlib
import importlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from trainmaster.arguments import check_int, check_number
from trainmaster.config import Config, ConfigBase
from trainmaster.config.identity import identity_tree
from trainmaster.config.overrides import explain_lists
from trainmaster.errors import ConfigError, MissingExtraError, Problem, SettingError
from trainmaster.manager.executor import Executor
from trainmaster.manager.job import config_epochs
from trainmaster.manager.varied_keys import problem_of_key
from trainmaster.store.epoch_values import epoch_values
from trainmaster.store.metric_names import better_of
from trainmaster.store.recorded_metrics import refuse_misspelled_metric
from trainmaster.sweep.plan import (
    PRUNERS,
    SAMPLERS,
    SEVERAL_OBJECTIVES,
    Plan,
    default_window,
    pruner_named,
    sampler_named,
)
from trainmaster.sweep.search_records import SearchRecords
from trainmaster.sweep.search_session import SearchResult, run_search
from trainmaster.sweep.space import Space, extremes

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager

__all__ = ["SearchResult", "plan_search", "search"]

Mode = Literal["min", "max"]


def search(
    manager: Manager,
    space: Mapping[str, Any] | Space,
    trials: int = 100,
    monitor: str | Sequence[str] = "loss",
    *,
    workers: int | Executor = 0,
    base: Any = None,
    warm_start: bool = False,
    timeout: float | None = None,
    **settings: Any,
) -> SearchResult:
    """Search `space` for the values that optimize the metric `monitor`.

    `settings` are passed to `plan_search`. All arguments are documented in `Manager.search`.
    """
    check_int("trials", trials, min=1)
    if timeout is not None:
        check_number("timeout", timeout, min=0, hint="`timeout` is a number of seconds")
    plan = plan_search(manager, space, monitor, workers=workers, base=base, **settings)
    records = SearchRecords(manager.store, plan.name)
    if warm_start and records.plan() is None:
        plan = replace(plan, warm_start=_known_points(manager, plan))
    plan = records.create_plan(plan)
    deadline = time.monotonic() + timeout if timeout is not None else float("inf")
    return run_search(manager, plan, trials, fixed_values(base), deadline, workers)


def _require(module: str, user: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(f"{user} needs: pip install 'trainmaster[search]'") from None


def plan_search(
    manager: Manager,
    space: Mapping[str, Any] | Space,
    monitor: str | Sequence[str] = "loss",
    *,
    mode: Mode | Sequence[Mode] | None = None,
    workers: int | Executor = 0,
    sampler: str = "tpe",
    pruner: str | None = None,
    seed: int = 0,
    epochs: int | None = None,
    base: Any = None,
    name: str | None = None,
    window: int | Literal["auto"] | None = "auto",
    replicates: int = 1,
) -> Plan:
    """Check the settings of a search, and return its plan. Nothing is stored."""
    optuna = _require("optuna", "search")
    check_int("replicates", replicates, min=1)
    check_int("seed", seed, min=0)
    space = space if isinstance(space, Space) else Space.of(space)
    fixed = fixed_values(base)
    _check_keys(manager, space, fixed)
    monitors = (monitor,) if isinstance(monitor, str) else tuple(monitor)
    sampler, pruner = sampler_named(sampler), pruner_named(pruner)
    _check_combination(space, monitors, sampler, pruner, replicates)
    example = manager.complete_config({**fixed, **space.example()})
    epochs = config_epochs(example) if epochs is None else epochs
    pruner_arguments = dict(PRUNERS[pruner])
    if pruner == "hyperband":
        if epochs is None:
            raise SettingError("hyperband needs the number of epochs", hint="give `epochs`, or `--epochs N`")
        pruner_arguments["max_resource"] = epochs
    sampler_arguments = dict(SAMPLERS[sampler])
    if sampler == "tpe" and len(monitors) > 1:
        sampler_arguments["multivariate"] = False
    num_workers = workers if isinstance(workers, int) else getattr(workers, "workers", 1)
    if window != "auto" and window is not None:
        check_int("window", window, min=1)
    plan = Plan(
        name="",
        space=space.to_dict(),
        base=_shared_identity(example, space),
        monitor=monitors,
        directions=_directions(monitors, mode),
        epochs=epochs,
        seed=seed,
        sampler=sampler,
        sampler_arguments=sampler_arguments,
        pruner=pruner,
        pruner_arguments=pruner_arguments,
        window=default_window(sampler, pruner, num_workers) if window == "auto" else window,
        num_replicates=replicates,
        warm_start=(),
        optuna=optuna.__version__,
    )
    plan = replace(plan, name=name if name is not None else _name_of(plan))
    records = SearchRecords(manager.store, plan.name)
    records.refuse_other_plan(plan)
    if records.plan() is None:
        for each in monitors:
            refuse_misspelled_metric(manager.store, each)
    return plan


def fixed_values(base: Any) -> dict[str, Any]:
    """Return the values that all trials share, by dotted key."""
    return Config(base.to_dict() if isinstance(base, ConfigBase) else {} if base is None else base).flatten()


def _check_combination(space: Space, monitors: Sequence[str], sampler: str, pruner: str, replicates: int) -> None:
    if sampler == "grid":
        space.check_is_countable()
    if sampler == "cmaes":
        _require("cmaes", "the sampler cmaes")
    if not monitors:
        raise SettingError("monitor=(): expected the name of a metric, or several")
    if len(monitors) > 1 and sampler not in SEVERAL_OBJECTIVES:
        raise SettingError(f"the sampler {sampler} searches for one metric only", known=", ".join(SEVERAL_OBJECTIVES))
    if len(monitors) > 1 and pruner != "none":
        raise SettingError("a search with several metrics cannot use a pruner: a pruner compares trials by one metric")
    if replicates > 1 and pruner not in ("none", "wilcoxon"):
        raise SettingError(f"the pruner {pruner} compares epochs, not replicates", hint="use the pruner wilcoxon with replicates")
    if pruner == "wilcoxon" and replicates < 3:
        raise SettingError("the pruner wilcoxon compares replicates", hint="give replicates=5, or --replicates 5")


def _directions(monitors: Sequence[str], mode: Mode | Sequence[Mode] | None) -> tuple[Literal["minimize", "maximize"], ...]:
    modes: list[str | None] = [*([None] * len(monitors) if mode is None else [mode] if isinstance(mode, str) else mode)]
    if len(modes) != len(monitors):
        raise SettingError(f"mode={mode!r}: expected one mode for each of {len(monitors)} metrics")
    found: list[Literal["minimize", "maximize"]] = []
    for name, given in zip(monitors, modes, strict=True):
        wanted = given or better_of(name)
        if wanted not in ("min", "max"):
            raise SettingError(
                f"is a smaller or a larger `{name}` better? The name does not show it"
                if given is None
                else f"mode={given!r}: expected min or max",
                hint="give mode='min' or mode='max', or `--mode min`",
            )
        found.append("minimize" if wanted == "min" else "maximize")
    return tuple(found)


def _name_of(plan: Plan) -> str:
    """Return a name that depends only on the settings, so that repeating a command continues the same search."""
    values = {key: value for key, value in plan.to_dict().items() if key not in ("name", "optuna", "window", "warm_start")}
    return f"{plan.sampler}-{hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]}"


def _check_keys(manager: Manager, space: Space, fixed: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for searched keys that the config does not contain, or that do not affect the result of a run."""
    try:
        config = manager.complete_config({**fixed, **_known_example(manager, space, fixed)})
    except ConfigError as error:
        if any(each != explain_lists(each) for each in error.problems):
            raise ConfigError.of("the search", map(explain_lists, error.problems)) from None
        raise
    values = config if isinstance(config, Config) else Config(config.to_dict())
    problems: list[Problem] = []
    for key, each in space.keys.items():
        if key in fixed:
            problems.append(Problem(key, "is both fixed and searched"))
        elif key in values and isinstance(values[key], Mapping) and each.sub_configuration is None and each.subspaces is None:
            problems.append(Problem(key, "is a group of keys, not a value", ", ".join(f"{key}.{name}" for name in values[key])))
        elif (problem := problem_of_key(manager, config, key)) is not None:
            problems.append(problem)
        else:
            problems += _refused_values(manager, fixed, key, extremes(each))
    if problems:
        raise ConfigError.of("the search space", problems)


def _known_example(manager: Manager, space: Space, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return example values for the searched keys if the config is not valid without them, otherwise an empty dict."""
    try:
        manager.complete_config(fixed)
    except ConfigError:
        return space.example()
    return {}


def _refused_values(manager: Manager, fixed: Mapping[str, Any], key: str, values: Sequence[Any]) -> list[Problem]:
    """If all values of a key are invalid, return a list that contains the problem with the first value.

    Otherwise, return an empty list, because the invalid values may be valid in combination with different values of other keys.
    """
    problems: list[Problem] = []
    for value in values:
        try:
            manager.complete_config({**fixed, key: value})
        except ConfigError as error:
            problems += [Problem(key, each.text, repr(value)) for each in error.problems if each.key.startswith(key)][:1]
    return [explain_lists(each) for each in problems[:1]] if values and len(problems) == len(values) else []


def _known_points(manager: Manager, plan: Plan) -> tuple[dict[str, Any], ...]:
    """Return a warm-start point for each stored run that has enough epochs and the same values as this search for all fixed keys."""
    space = plan.space_of()
    found: list[dict[str, Any]] = []
    for key, stats, config in manager.store.completed():
        if _shared_identity(config, space) != plan.base:
            continue
        if plan.epochs is not None and stats["epoch"] < plan.epochs:
            continue
        parameters = space.parameters_of(config)
        curves = [epoch_values(manager.store.run(key).history, name, plan.epochs) for name in plan.monitor]
        if parameters is not None and all(curves):
            found.append({"parameters": parameters, "values": [curve[max(curve)] for curve in curves if curve], "key": key})
    return tuple(sorted(found, key=lambda each: str(each["key"])))


def _shared_identity(config: Any, space: Space) -> dict[str, Any]:
    """Return the values that identify a config, except those of the searched keys. The returned values are the same in all trials."""
    searched = tuple(f"{key}." for key in space.keys)
    return {key: value for key, value in Config(identity_tree(config)).flatten().items() if not f"{key}.".startswith(searched)}
