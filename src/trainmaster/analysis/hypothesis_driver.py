"""`PairDriver`: trains the pairs of runs for a hypothesis as a batch, and records their results.

All state is in the store, so a driver can be killed at any time, and any number of drivers can work on the same hypothesis.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmaster.analysis.arms import Arms, RunValue, refuse_unsaved
from trainmaster.analysis.hypothesis import A, B
from trainmaster.analysis.plan_records import PlanRecords
from trainmaster.analysis.verdict import HypothesisPlan, Pair, Verdict, decide
from trainmaster.errors import PlanError
from trainmaster.manager.error_text import in_one_line
from trainmaster.manager.job import is_done

if TYPE_CHECKING:
    from trainmaster.manager.executor import Executor
    from trainmaster.manager.job import Job
    from trainmaster.store import Store
    from trainmaster.store.events import RowsByName


class HypothesisRecords(PlanRecords):
    """Reads and writes the plan, pairs and verdict of one hypothesis.

    Records are cached after the first read, because they never change.
    """

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(store, "hypothesis", name)
        self._pairs: dict[int, Pair] = {}

    def plan(self) -> HypothesisPlan:
        return HypothesisPlan.from_dict(self.require("hypothesis.json"))

    def pair(self, index: int) -> Pair | None:
        if index not in self._pairs:
            found = self.read(f"pairs/{index:06}.json")
            if found is None:
                return None
            self._pairs[index] = Pair(found["seed"], RunValue(**found["a"]), RunValue(**found["b"]))
        return self._pairs[index]

    def add_pair(self, index: int, pair: Pair) -> None:
        self.create(f"pairs/{index:06}.json", {"seed": pair.seed, "a": pair.a._asdict(), "b": pair.b._asdict()})

    def pairs(self) -> list[Pair]:
        """Return the recorded pairs up to the first missing one.

        Later pairs are not used while an earlier one is missing, because pairs that finish early are not a random
        sample.
        """
        pairs: list[Pair] = []
        while (pair := self.pair(len(pairs))) is not None:
            pairs.append(pair)
        return pairs

    def has_verdict(self) -> bool:
        return self.has("verdict.json")

    def record_verdict(self, verdict: Verdict) -> None:
        if not self.has_verdict():
            found = verdict.to_dict()
            kept = {key: found[key] for key in ("state", "why", "n", "mean", "low", "high", "looks")}
            self.create("verdict.json", kept)


def read_verdict(store: Store, name: str) -> Verdict:
    """Return the verdict of a hypothesis, computed from the plan and the pairs in the store."""
    records = HypothesisRecords(store, name)
    return decide(records.plan(), records.pairs())


def run_hypothesis(plan: HypothesisPlan, arms: Arms, workers: int | Executor, max_pairs: int | None) -> Verdict:
    """Train the missing pairs of a hypothesis until there is a verdict."""
    driver = PairDriver(plan, arms, max_pairs)
    runner, store = arms.manager.job_runner, arms.manager.store

    def summarize(is_over: bool) -> None:
        for line in str(driver.verdict()).split("\n"):
            runner.console.print(line)
        if is_over and store.root is not None:
            runner.console.print(f"next: {runner.invocation.command(store, 'verify-hypothesis', plan.name)}")

    arms.train(plan, driver, plan.settings["on"], workers, summarize, driver.status)
    return driver.verdict()


class PairDriver:
    """Provides the jobs of a hypothesis to a batch, and records each pair when both of its runs are done."""

    def __init__(self, plan: HypothesisPlan, arms: Arms, max_pairs: int | None) -> None:
        self._plan, self._arms, self._store = plan, arms, arms.manager.store
        self._limit = min(len(plan.seeds), sys.maxsize if max_pairs is None else max_pairs)
        self.records = HypothesisRecords(self._store, plan.name)
        self._jobs: dict[str, int] = {}
        """Maps the key of each run to the number of its pair."""
        self._failures: dict[str, str] = {}
        self._wait = ""
        """Why no more pairs are started, for example because a run has failed. Empty if there is no such reason."""

    def __len__(self) -> int:
        """Return the maximum number of runs that remain to be trained. The live view shows this number."""
        return 2 * max(0, self._limit - len(self.records.pairs()))

    def covering(self) -> list[Any]:
        """Return a few configs that show which keys differ between the runs. The progress lines show the values of these keys."""
        return self._arms.samples(self._plan.seeds)

    def __iter__(self) -> Iterator[Job | None]:
        for index in range(self._limit):
            if self._wait or self.verdict().state != "pending":
                return
            if self.records.pair(index) is None:
                for arm in (A, B):
                    job = self._arms.job(arm, self._plan.seeds[index])
                    if self._jobs.setdefault(job.key, index) != index:
                        raise PlanError(f"two pairs of the hypothesis {self._plan.name} have the same run {job.key}")
                    yield job

    def verdict(self) -> Verdict:
        pairs = self.records.pairs()
        reason = self._wait or (f"{self._limit} pairs were requested" if len(pairs) >= self._limit else "not all pairs are complete")
        verdict = decide(self._plan, pairs, reason)
        if verdict.state != "pending":
            self.records.record_verdict(verdict)
        return verdict

    def status(self) -> str:
        """Return a status line for the live view."""
        verdict = self.verdict()
        look = verdict.looks[-1] if verdict.looks else None
        seen = f", |t| {abs(look.t):.2f} of {look.critical:.2f}" if look is not None and look.t is not None else ""
        mean = "" if math.isnan(verdict.mean) else f", improvement {verdict.mean:+.4g}"
        return f"hypothesis {self._plan.name}: {len(verdict.pairs)} pairs{mean}{seen}"

    # ---- called by the batch

    def is_finished(self, job: Job) -> bool:
        """Return whether the pair of a job has already been recorded, for example by another driver."""
        return self.records.pair(self._jobs[job.key]) is not None

    def stop_check(self, job: Job) -> VerdictCheck:
        return VerdictCheck(self._plan.name)

    def job_ended(self, key: str, kind: str, text: str) -> None:
        """Record a pair when both of its runs are done."""
        index = self._jobs[key]
        if self.records.pair(index) is not None:
            return
        seed = self._plan.seeds[index]
        if kind == "failed":
            refuse_unsaved(key, text)
        if kind == "stopped":
            if not self.records.has_verdict():
                self._wait = f"run {key} (seed {seed}) was stopped: {text}"
            return
        if kind in ("failed", "given_up"):
            self._fail(key, seed, in_one_line(text))
        self._record(index)

    def _fail(self, key: str, seed: int, reason: str) -> None:
        if self._plan.settings["failed"] == "worst":
            self._failures[key] = reason
        else:
            self._wait = f"run {key} (seed {seed}) has no value: {reason}; correct it and repeat the command, or plan with failed='worst'"

    def _record(self, index: int) -> None:
        seed = self._plan.seeds[index]
        a, b = (self._value(self._arms.job(arm, seed), seed) for arm in (A, B))
        if a is None or b is None:
            return
        comparable = [run for pair in [*self.records.pairs()[:1], Pair(seed, a, b)] for run in (pair.a, pair.b)]
        names = {run.metric for run in comparable if run.metric}
        if len(names) > 1:
            fact = f"`{self._plan.settings['on']}` is not the same metric in all runs: {' and '.join(sorted(names))}"
            raise PlanError(fact, hint="start a new hypothesis with the full name of the metric")
        trained_for = {run.target: run.key for run in comparable if run.target is not None}
        if len(trained_for) > 1:
            runs = " and ".join(f"{key} for {epochs}" for epochs, key in sorted(trained_for.items()))
            hint = "start a new hypothesis with `epochs`, or delete the run that differs and repeat the command"
            raise PlanError(f"the runs were not trained for the same number of epochs: {runs}", hint=hint)
        self.records.add_pair(index, Pair(seed, a, b))

    def _value(self, job: Job, seed: int) -> RunValue | None:
        """Return the result of a run. Return None if the run is not done or lacks a valid value, so the verdict has to wait."""
        if job.key in self._failures:
            return RunValue(job.key, None, why=self._failures[job.key])
        if not is_done(self._store, job):
            return None
        found = self._arms.read_value(job.key, self._plan.settings["on"])
        if found.value is None and self._plan.settings["failed"] == "wait":
            self._fail(job.key, seed, found.why)
            return None
        return found


@dataclass(frozen=True)
class VerdictCheck:
    """A check that workers call during a run. It stops the run if the hypothesis already has a verdict."""

    name: str

    def __call__(self, store: Store, history: RowsByName) -> str | None:
        return f"hypothesis {self.name} has a verdict" if HypothesisRecords(store, self.name).has_verdict() else None
