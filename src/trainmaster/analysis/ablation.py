"""`Ablation`: measures what each part of a config contributes, by training all variants with the same seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from trainmaster.analysis.ablation_plan import BASE, DESIGNS, AblationPlan, DesignName, arms_of
from trainmaster.analysis.arms import Arms, Overrides, base_values, checked_seeds, direction_of, parse_overrides, plain, refuse_unsaved
from trainmaster.analysis.contributions import AblationReport, newest_plan, plan_path, report_of
from trainmaster.analysis.plan_records import PlanRecords
from trainmaster.arguments import check_choice, check_int, check_number, is_int
from trainmaster.config import Config
from trainmaster.config.difference import Difference, Missing
from trainmaster.config.identity import key_of
from trainmaster.config.seed import seed_of
from trainmaster.errors import PlanError, SettingError, shown
from trainmaster.manager.error_text import in_one_line
from trainmaster.manager.executor import StopCheck
from trainmaster.manager.job import Job
from trainmaster.manager.varied_keys import values_to_replace
from trainmaster.store.recorded_metrics import refuse_misspelled_metric

if TYPE_CHECKING:
    from trainmaster.manager.executor import Executor
    from trainmaster.manager.manager import Manager

_MAX_FAILED_FIRST = 3
"""An ablation stops if at least this many runs have failed and none has succeeded, because the program probably has a bug."""


@dataclass(frozen=True)
class Ablation:
    """Plans, trains and reports an ablation: variants of a config with parts removed or changed, all trained with the same seeds.

    The result of a run is the last value of the metric up to the run's target epoch.

    Args:
        base: the config values to start from, or None for the defaults.
        factors: maps the name of each part to the config values that remove it (leave-one-out) or change it (one-at-a-time, factorial).
        seeds: a list of seeds, or the number of seeds. If it is a number, the seeds count up from the seed in the config.
        design: "leave-one-out" estimates the result of the base minus the result without the part. "one-at-a-time" estimates the
            result with the change minus the result of the base. "factorial" trains all combinations, and also estimates how each pair
            of changes interacts.
        on: the metric, or the last part of its name if that is unambiguous.
        direction: "max" or "min"; by default, it is inferred from the name of the metric.
        alpha: the maximum probability of at least one false finding in the table.
        epochs: the number of epochs for every run; by default, the config or the loop sets it.
        name: the name of the ablation. The default name does not depend on the parts and seeds, so it stays the same
            when you add parts or seeds.
    """

    base: Any
    factors: Mapping[str, Overrides]
    seeds: int | Sequence[int] = 5
    design: DesignName = "leave-one-out"
    on: str = "loss"
    direction: Literal["min", "max"] | None = None
    alpha: float = 0.05
    epochs: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_choice("design", self.design, DESIGNS, hint="design='leave-one-out'")
        check_number("alpha", self.alpha, above=0, below=1)
        direction_of(self.on, self.direction)
        if self.epochs is not None:
            check_int("epochs", self.epochs, min=1)
        seeds = range(self.seeds) if is_int(self.seeds) else self.seeds  # type: ignore[arg-type]
        if len(checked_seeds(seeds)) < 2:  # type: ignore[arg-type]
            fact = "an ablation needs at least 2 seeds: one run of each config does not show how much results vary"
            raise SettingError(fact, hint="use seeds=5 or, better, seeds=8")
        if not isinstance(self.factors, Mapping) or not self.factors:
            raise SettingError(f"factors={shown(self.factors)}: expected at least one part", hint='{"dropout": {"model.dropout": 0}}')
        for name, values in self.factors.items():
            if not isinstance(name, str) or not name.strip() or name == BASE:
                raise SettingError(f"{shown(name)} cannot be the name of a part", hint=f"use a short text other than {BASE!r}")
            if not parse_overrides(values, f"the part {name}"):
                raise SettingError(f"the part {name} changes no value", hint='{"model.dropout": 0}')

    def extend(self, factors: Mapping[str, Overrides] | None = None, seeds: int | Sequence[int] | None = None) -> Ablation:
        """Return a copy of this ablation with additional parts. If `seeds` is not None, it replaces the seeds."""
        return replace(self, factors={**self.factors, **(factors or {})}, seeds=self.seeds if seeds is None else seeds)

    # ---- the plan

    def plan(self, manager: Manager, is_dry: bool = False) -> AblationPlan:
        """Check the ablation, record its plan in the store, and return the plan.

        If a plan is already recorded, new parts and seeds extend it. With `is_dry`, nothing is recorded.
        """
        arms = self.arms(manager)
        arms.check("the ablation")
        settings = self._settings(manager, arms)
        records = PlanRecords(manager.store, "ablation", self.name or _name_of(settings, arms.group(BASE)))
        wanted = AblationPlan(
            name=records.name,
            settings=settings,
            direction=settings["direction"],
            groups={arm: arms.group(arm) for arm in arms.values},
            keys={arm: [arms.key(arm, seed) for seed in settings["seeds"]] for arm in arms.values},
            changes={part: _describe(arms.differences(BASE, part)) for part in self.factors},
        )
        while True:
            recorded = newest_plan(records) if records.has(plan_path(1)) else None
            if recorded is not None:
                _refuse_changes(records, recorded, wanted)
                if recorded.settings == wanted.settings:
                    return recorded
                done = sum(run.value is not None for runs in report_of(manager.store, recorded).runs.values() for run in runs)
                wanted = replace(wanted, revision=recorded.revision + 1, num_done=done)
            else:
                refuse_misspelled_metric(manager.store, self.on)
            if is_dry:
                return wanted
            records.create(plan_path(wanted.revision), asdict(wanted))

    def run(self, manager: Manager, workers: int | Executor = 0) -> AblationReport:
        """Train the missing runs and return the report.

        After a crash, the same call continues the ablation. Several processes can make this call and share the work.
        `workers` is a number of worker processes or an executor.
        """
        manager.job_runner.refuse_if_busy()
        plan, arms, console = self.plan(manager), self.arms(manager), manager.job_runner.console

        def summarize(is_over: bool) -> None:
            for line in report_of(manager.store, plan).table.to_lines(console.width):
                console.print(line)

        arms.train(plan, AblationDriver(plan, arms), self.on, workers, summarize)
        return report_of(manager.store, plan)

    def arms(self, manager: Manager) -> Arms:
        return Arms(manager, base_values(self.base), arms_of(self.design, self._factors(manager)), self.epochs)

    def _factors(self, manager: Manager) -> dict[str, dict[str, Any]]:
        known = values_to_replace(manager, base_values(self.base))
        return {name: parse_overrides(values, f"the part {name}", known) for name, values in self.factors.items()}

    def _settings(self, manager: Manager, arms: Arms) -> dict[str, Any]:
        start = seed_of(manager.complete_config(dict(arms.base)))
        seeds = range(start, start + self.seeds) if isinstance(self.seeds, int) else self.seeds
        return {
            "base": arms.recorded_base(),
            "factors": {name: {key: plain(value) for key, value in values.items()} for name, values in self._factors(manager).items()},
            "seeds": list(seeds),
            "direction": direction_of(self.on, self.direction),
            **{name: getattr(self, name) for name in ("design", "on", "alpha", "epochs")},
        }


def _refuse_changes(records: PlanRecords, recorded: AblationPlan, wanted: AblationPlan) -> None:
    """Raise `PlanError` if the new plan removes or changes anything in the recorded one. New parts and seeds are allowed."""
    hint = "you can only add parts and seeds to an ablation; give a different ablation another name"
    old, new = dict(recorded.settings), dict(wanted.settings)
    if {*old["seeds"]} <= {*new["seeds"]}:
        old["seeds"] = new["seeds"] = []
    shared = {f"factors.{name}": values for name, values in old.pop("factors").items()}
    given = {f"factors.{name}": values for name, values in new.pop("factors").items() if f"factors.{name}" in shared}
    records.refuse_changes({**old, **shared}, {**new, **given}, hint)
    records.refuse_changes(
        {f"config of {arm}": group for arm, group in recorded.groups.items()},
        {f"config of {arm}": group for arm, group in wanted.groups.items() if arm in recorded.groups},
        f"the defaults of the config, or `get_config`, have changed since the plan was made; {hint}",
    )


def _describe(differences: Sequence[Difference]) -> str:
    """Describe which values a part changes, for example `lr=0.1 instead of 0.01`."""
    texts = {
        key: ["not set" if kind is Missing else str(plain(value)) for kind, value in (base, changed)] for key, base, changed in differences
    }
    return ", ".join(f"{key}={changed} instead of {base}" for key, (base, changed) in texts.items())


def _name_of(settings: Mapping[str, Any], group: str) -> str:
    """Return a name that does not change when parts and seeds are added."""
    fixed = {key: settings[key] for key in ("design", "on", "direction", "alpha", "epochs")}
    return f"ablation-{key_of(Config({**fixed, 'group': group}))}"


class AblationDriver:
    """Provides the jobs of an ablation to a batch, seed by seed, so that partial results are balanced across the variants."""

    def __init__(self, plan: AblationPlan, arms: Arms) -> None:
        self._plan, self._arms = plan, arms
        self._num_failed = self._num_ended = 0

    def __len__(self) -> int:
        return self._plan.num_runs

    def covering(self) -> list[Any]:
        """Return a few configs that show which keys differ between the runs. The progress lines show the values of these keys."""
        return self._arms.samples(self._plan.seeds)

    def __iter__(self) -> Iterator[Job]:
        for index, seed in enumerate(self._plan.seeds):
            for arm in self._arms.values:
                job, planned = self._arms.job(arm, seed), self._plan.keys[arm][index]
                if job.key != planned:
                    raise PlanError(f"the run of {arm} with seed {seed} was planned as {planned}, but is now {job.key}")
                yield job

    def is_finished(self, job: Job) -> bool:
        return False

    def stop_check(self, job: Job) -> StopCheck | None:
        return None

    def job_ended(self, key: str, kind: str, text: str) -> None:
        self._num_ended += 1
        if kind in ("done", "found"):  # raise an error if the run does not have the metric
            self._arms.read_value(key, self._plan.settings["on"])
        if kind not in ("failed", "given_up"):
            return
        self._num_failed += 1
        refuse_unsaved(key, text)
        if self._num_failed == self._num_ended >= _MAX_FAILED_FIRST:
            hint = "correct the program, then repeat the command"
            raise PlanError(f"the first {self._num_failed} runs failed", why=in_one_line(text), hint=hint)
