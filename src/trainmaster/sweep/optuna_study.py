"""Asks Optuna's samplers for proposals, and its pruners for decisions.

No Optuna objects are stored. Each proposal is made by a new sampler with its own seed, in a study that is built from the
recorded trials. If a process kept its sampler, proposals would also depend on the sampler's internal state, which is lost
when the process dies.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.config.grid import shuffled
from trainmaster.errors import SearchError
from trainmaster.sweep.plan import Plan, Trial
from trainmaster.sweep.space import Space

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial


class Point(NamedTuple):
    """One proposed point in the search space."""

    parameters: dict[str, Any]
    values: dict[str, Any]
    """The values of the searched config keys."""
    notes: dict[str, Any]


class Proposer:
    """Proposes the points of one search, in order.

    For most samplers, each proposal uses a new study. CMA-ES keeps its state in the study, so each process builds only one study
    for it, by replaying all recorded proposals, and then continues this study.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.space = plan.space_of()
        self._replay = _Replay(plan, self.space) if plan.sampler == "cmaes" else None

    def propose(self, trials: Sequence[Trial], seen: Sequence[int] | None = None) -> Point | None:
        """Return proposal number `len(trials)`, or None if a grid has no more points.

        `seen` contains the numbers of the finished trials that the proposal is based on. If it is None, the
        proposal is based on the trials that it has to wait for (`Plan.finished_before`).
        """
        with quiet_optuna():
            number = len(trials)
            if self.plan.sampler == "grid":
                return self._grid_point(number)
            if self._replay is not None:
                return self._replay.propose(trials, seen)
            if self.plan.sampler == "qmc":
                study = build_study(self.plan, self.space, trials[:1])  # the first trial's parameters define the sequence's dimensions
            elif self.plan.samples_from_results:
                study = build_study(self.plan, self.space, visible_trials(self.plan, trials, number, seen))
            else:
                study = _empty_study(self.plan)
            study.sampler = make_sampler(self.plan, number)
            return _ask(study, self.space)

    def _grid_point(self, number: int) -> Point | None:
        from optuna.trial import FixedTrial

        if number >= self.space.num_points:
            return None
        order = shuffled(self.space.num_points, self.plan.seed)
        parameters = self.space.point(next(itertools.islice(order, number, None)))
        return Point(parameters, self.space.suggest(FixedTrial(parameters)), {})


class _Replay:
    """Rebuilds a study by replaying the recorded trials in their original order."""

    def __init__(self, plan: Plan, space: Space) -> None:
        self._plan, self._space = plan, space
        self._study: Study | None = None
        self._asked: list[Any] = []
        self._told: set[int] = set()

    def propose(self, trials: Sequence[Trial], seen: Sequence[int] | None) -> Point:
        if self._study is None or len(self._asked) > len(trials):
            self._study, self._asked, self._told = _empty_study(self._plan), [], set()
            self._study.add_trials(warm_trials(self._plan, self._space))
        for number in range(len(self._asked), len(trials)):
            point = self._ask(trials, number, trials[number].seen)
            if point.parameters != dict(trials[number].parameters):
                raise SearchError(
                    f"trial {number} of the search {self._plan.name} cannot be repeated",
                    why=f"recorded: {dict(trials[number].parameters)}; Optuna {optuna_version()} proposes {point.parameters}",
                    hint=f"continue it with optuna=={self._plan.optuna}, or start a search with another name",
                )
        return self._ask(trials, len(trials), seen)

    def _ask(self, trials: Sequence[Trial], number: int, seen: Sequence[int] | None) -> Point:
        assert self._study is not None
        not_run = (trial.number for trial in trials[:number] if not trial.counts)
        for finished in sorted({*not_run, *(self._plan.finished_before(number) if seen is None else seen)}):
            self._tell(trials[finished])
        self._study.sampler = make_sampler(self._plan, number)
        trial = self._study.ask()
        values = self._space.suggest(trial)
        self._asked.append(trial)
        return Point(dict(trial.params), values, {})

    def _tell(self, trial: Trial) -> None:
        from optuna.trial import TrialState

        if trial.number in self._told:
            return
        assert self._study is not None
        self._told.add(trial.number)
        asked = self._asked[trial.number]
        if trial.state == "complete":
            self._study.tell(asked, _usable(trial.values, self._plan))
        elif trial.state == "pruned":
            for step, value in trial.intermediate.items():
                asked.report(value, step)
            self._study.tell(asked, state=TrialState.PRUNED)
        else:
            self._study.tell(asked, state=TrialState.FAIL)


def judge(plan: Plan, trials: Sequence[Trial], number: int, intermediate: Mapping[int, float]) -> tuple[int | None, dict[str, Any]]:
    """Return the step at which the pruner stops trial `number`, and the notes that the pruner attaches to the trial.

    The step is None if the trial may continue. The pruner sees only those results of other trials
    that were visible to the sampler when it proposed this trial, so results that arrive later do not change the decision.
    """
    if plan.pruner == "none" or not intermediate:
        return None, {}
    with quiet_optuna():
        study = build_study(plan, plan.space_of(), visible_trials(plan, trials, number, trials[number].seen))
        study.pruner = make_pruner(plan)
        trial = study.ask()
        for step, value in sorted(intermediate.items()):
            trial.report(value, step)
            if trial.should_prune():
                return step, _notes(study.trials[trial.number])
        return None, _notes(study.trials[trial.number])


def build_study(plan: Plan, space: Space, trials: Sequence[Trial]) -> Study:
    """Build an Optuna study from the warm-start points and the trials of a search, in this order."""
    study = _empty_study(plan)
    study.add_trials([*warm_trials(plan, space), *(_frozen(trial, plan, space) for trial in trials)])
    return study


def importances(plan: Plan, trials: Sequence[Trial]) -> dict[str, float]:
    """Return how important each parameter is for the first objective. The values add up to 1.

    If there are too few results, the dict is empty.
    """
    from optuna.importance import get_param_importances

    complete = [trial for trial in trials if trial.state == "complete" and trial.is_finite]
    if len(complete) < 4 or len({trial.values for trial in complete}) < 2:
        return {}
    with quiet_optuna():
        study = build_study(plan, plan.space_of(), complete)
        target = (lambda each: each.values[0]) if len(plan.monitor) > 1 else None
        try:
            return dict(get_param_importances(study, target=target))
        except (RuntimeError, ValueError):  # for example, all values of a parameter are equal
            return {}


def visible_trials(plan: Plan, trials: Sequence[Trial], number: int, seen: Sequence[int] | None = None) -> list[Trial]:
    """Return the trials before trial `number`, in the states that the sampler and the pruner should see.

    A trial that proposal `number` does not wait for has the state "running", even if it has finished.
    """
    finished = set(plan.finished_before(number) if seen is None else seen)
    return [_as_seen(trial, trial.number in finished) for trial in trials[:number]]


def make_sampler(plan: Plan, number: int) -> BaseSampler:
    """Return a new sampler for proposal `number`."""
    from optuna import samplers

    seed, arguments = plan.seed_for(number), dict(plan.sampler_arguments)
    if plan.sampler == "qmc":
        return _make_qmc_sampler(plan, number)
    kind: Any = {
        "random": samplers.RandomSampler,
        "tpe": samplers.TPESampler,
        "gp": samplers.GPSampler,
        "cmaes": samplers.CmaEsSampler,
        "nsga2": samplers.NSGAIISampler,
    }[plan.sampler]
    sampler: BaseSampler = kind(seed=seed, **arguments)
    return sampler


def _make_qmc_sampler(plan: Plan, number: int) -> BaseSampler:
    """Return a sampler that proposes element `number` of the quasi-random sequence.

    Optuna's sampler would read its position in the sequence from the study, but here each proposal uses a new study.
    """
    from optuna import samplers

    class QMCElement(samplers.QMCSampler):
        def _find_sample_id(self, study: Study, search_space: Mapping[str, Any]) -> int:
            return number

    independent = samplers.RandomSampler(seed=plan.seed_for(number))  # for parameters that the first trial does not have
    return QMCElement(seed=plan.seed, independent_sampler=independent, **plan.sampler_arguments)


def make_pruner(plan: Plan) -> BasePruner:
    from optuna import pruners

    kind: Any = {
        "median": pruners.MedianPruner,
        "asha": pruners.SuccessiveHalvingPruner,
        "hyperband": pruners.HyperbandPruner,
        "wilcoxon": pruners.WilcoxonPruner,
    }[plan.pruner]
    pruner: BasePruner = kind(**plan.pruner_arguments)
    return pruner


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence Optuna's log and its warnings about experimental samplers."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)


def warm_trials(plan: Plan, space: Space) -> list[FrozenTrial]:
    return [_frozen(Trial(-1, each["parameters"], "complete", tuple(each["values"])), plan, space) for each in plan.warm_start]


def _empty_study(plan: Plan) -> Study:
    import optuna

    # Hyperband's brackets depend on the study's name, which is random by default.
    return optuna.create_study(study_name=plan.name, directions=list(plan.directions), sampler=optuna.samplers.RandomSampler(seed=0))


def _ask(study: Study, space: Space) -> Point:
    trial = study.ask()
    values = space.suggest(trial)
    return Point(dict(trial.params), values, _notes(study.trials[trial.number]))


def _frozen(trial: Trial, plan: Plan, space: Space) -> FrozenTrial:
    from optuna.trial import FixedTrial, TrialState, create_trial

    fixed = FixedTrial(dict(trial.parameters))
    space.suggest(fixed)
    state = {"running": TrialState.RUNNING, "complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}.get(trial.state, TrialState.FAIL)
    return create_trial(
        state=state,
        values=_usable(trial.values, plan) if state is TrialState.COMPLETE else None,
        params=dict(trial.parameters),
        distributions=fixed.distributions,
        system_attrs=dict(trial.notes),
        intermediate_values=dict(trial.intermediate),
    )


def _as_seen(trial: Trial, is_finished: bool) -> Trial:
    """Return the trial, with the state "running" unless `is_finished`.

    Trials that were not run, such as duplicates, are returned unchanged.
    """
    if is_finished or not trial.counts:
        return trial
    generation = {name: value for name, value in trial.notes.items() if not name.startswith("completed_rung_")}
    return trial._replace(state="running", values=None, intermediate={}, notes=generation)


def _usable(values: Sequence[float] | None, plan: Plan) -> list[float]:
    """Return the values to pass to Optuna. Missing and non-finite values are replaced by the worst possible value."""
    worst = [math.inf if direction == "minimize" else -math.inf for direction in plan.directions]
    given = values if values is not None else worst
    return [value if math.isfinite(value) else bad for value, bad in zip(given, worst, strict=True)]


def _notes(trial: FrozenTrial) -> dict[str, Any]:
    return {name: value for name, value in trial.system_attrs.items() if isinstance(value, int | float)}


def optuna_version() -> str:
    import optuna

    return str(optuna.__version__)
