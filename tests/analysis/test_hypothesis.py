"""Hypotheses end with correct verdicts, avoid typical mistakes of sequential tests, and refuse changed plans."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from toy_study import EPOCHS, Toy, hypothesis

from trainmaster import Manager, Replicate, Supervised, configclass
from trainmaster.analysis import Hypothesis, read_verdict, verify_hypothesis
from trainmaster.analysis.arms import RunValue
from trainmaster.analysis.hypothesis_driver import HypothesisRecords
from trainmaster.analysis.replicate_spread import find_spread
from trainmaster.analysis.verdict import HypothesisPlan, Pair, decide
from trainmaster.config import ConfigBase
from trainmaster.errors import ConfigError, MetricNameError, PlanError, SettingError

STATES = {"true": "supported", "false": "refuted", "small": "inconclusive"}


@pytest.fixture
def manager() -> Toy:
    return Toy(None, verbose=False)


def claim(**settings: Any) -> Hypothesis:
    given: dict[str, Any] = {"on": "accuracy", "epochs": EPOCHS, "budget": 10, **settings}
    return Hypothesis("act=gelu", better_than="act=relu", **given)


def plan_with(**settings: Any) -> HypothesisPlan:
    return claim(hopeless=0.0, **settings).plan()


def pairs_of(*differences: float | None, base: float = 0.5) -> list[Pair]:
    """Return pairs with these differences. None means that the claim's run failed."""
    return [
        Pair(seed, RunValue("a" * 8, None if each is None else base + each), RunValue("b" * 8, base))
        for seed, each in enumerate(differences)
    ]


# ---- verdicts


@pytest.mark.parametrize("name", STATES)
def test_true_false_and_borderline_claims_get_the_right_verdict(name: str, manager: Toy) -> None:
    verdict = hypothesis(name).test(manager)
    assert verdict.state == STATES[name]
    assert verify_hypothesis(manager.store, name).problems == []
    assert read_verdict(manager.store, name).to_dict() == verdict.to_dict() | {"why": read_verdict(manager.store, name).why}


def test_the_state_agrees_with_the_interval_and_the_margin(manager: Toy) -> None:
    for name, state in STATES.items():
        verdict = hypothesis(name).test(manager)
        by = verdict.plan.settings["by"]
        assert {"supported": verdict.low > by, "refuted": verdict.high < by, "inconclusive": verdict.low <= by <= verdict.high}[state]


def test_the_claim_can_be_that_a_metric_is_smaller(manager: Toy) -> None:
    class Loss(Toy):
        def eval(self) -> dict[str, float]:
            return {"loss": 1 - super().eval()["accuracy"]}

    turned = Hypothesis("act=gelu", better_than="act=relu", on="loss", by=0.005, base={"gain": 0.02}, epochs=EPOCHS, budget=10)
    assert turned.test(Loss(None, verbose=False)).mean == pytest.approx(hypothesis("true").test(manager).mean)


def test_a_verdict_contains_its_pairs_and_looks(manager: Toy) -> None:
    verdict = hypothesis("true").test(manager)
    assert [look.n for look in verdict.looks] == [*range(5, verdict.n + 1)]
    last = verdict.looks[-1]
    assert last.t is not None
    assert abs(last.t) >= last.critical == pytest.approx(verdict.plan.criticals[verdict.n])
    assert verdict.high - verdict.low == pytest.approx(2 * last.critical * last.sd / math.sqrt(verdict.n))
    for pair in verdict.pairs:
        for run, act in ((pair.a, "gelu"), (pair.b, "relu")):
            config = manager.configs[run.key]
            assert (config.act, config.seed, run.epoch, run.metric) == (act, pair.seed, EPOCHS, "accuracy")
            assert run.value == manager.previews[run.key]["accuracy"]


def test_testing_again_trains_nothing_and_returns_the_same_verdict(manager: Toy) -> None:
    first = hypothesis("true").test(manager)
    attempts = {key: manager.store.run(key).attempts() for key in manager.configs}
    assert hypothesis("true").test(manager).to_dict() == first.to_dict()
    assert {key: manager.store.run(key).attempts() for key in manager.configs} == attempts


def test_a_run_that_is_trained_further_keeps_its_result(manager: Toy) -> None:
    before = hypothesis("true").test(manager)
    manager.process(manager.configs[before.pairs[0].a.key], num_epochs=EPOCHS + 5)
    assert hypothesis("true").test(manager).to_dict() == before.to_dict()
    assert verify_hypothesis(manager.store, "true").is_confirmed


def test_the_text_of_a_verdict_contains_the_claim_and_the_reason(manager: Toy) -> None:
    text = str(hypothesis("true").test(manager))
    assert "act=gelu has a higher accuracy than act=relu by more than 0.005" in text
    assert "supported: after 5 pairs" in text
    assert "wholly above the margin 0.005" in text


def test_max_pairs_leaves_the_verdict_open_and_a_later_call_continues(manager: Toy) -> None:
    first = hypothesis("true").test(manager, max_pairs=3)
    assert (first.state, first.n, len(first.looks)) == ("pending", 3, 0)
    assert "there is no verdict before 5 pairs; 3 pairs were requested" in first.why
    assert hypothesis("true").test(manager).state == "supported"


def test_a_hypothesis_without_a_budget_can_be_continued(manager: Toy) -> None:
    with pytest.raises(SettingError, match="without a budget may never end"):
        hypothesis("small", budget=None).test(manager)
    first = hypothesis("small", budget=None).test(manager, max_pairs=6)
    assert (first.state, first.n) == ("pending", 6)
    second = hypothesis("small", budget=None).test(manager, max_pairs=8)
    assert (second.state, second.n, second.pairs[:6]) == ("pending", 8, first.pairs)


# ---- how the arms differ


class Wide(Toy):
    defaults = {**Toy.defaults, "width": 32, "epochs": EPOCHS}


def test_a_plan_shows_both_arms_with_the_same_keys_and_warns_about_a_key_that_only_one_names() -> None:
    manager = Wide(None, verbose=False)
    plan = Hypothesis(["act=gelu", "width=64"], better_than="act=relu", on="accuracy", budget=10).plan(manager)
    assert plan.claim == "act=gelu, width=64 has a higher accuracy than act=relu, width=32"
    assert plan.statement[0].startswith("warning: the arms differ in 2 keys: act, width; only one arm names width")
    assert "values that both arms share go into `--config FILE` or `base=...`" in str(plan)
    shared = Hypothesis("act=gelu", better_than="act=relu", base={"width": 64}, on="accuracy", budget=10).plan(manager)
    assert shared.claim == "act=gelu has a higher accuracy than act=relu"
    assert "warning" not in str(shared)


def test_a_claim_about_the_base_itself_shows_the_values_of_the_base_and_does_not_warn() -> None:
    plan = Hypothesis(["act=gelu", "width=64"], better_than="", on="accuracy", budget=10).plan(Wide(None, verbose=False))
    assert plan.claim == "act=gelu, width=64 has a higher accuracy than act=relu, width=32"
    assert "warning" not in str(plan)


def test_a_plan_without_a_manager_also_warns_about_a_key_that_only_one_arm_names() -> None:
    plan = Hypothesis(["act=gelu", "width=64"], better_than="act=relu", on="accuracy").plan()
    assert plan.claim == "act=gelu, width=64 has a higher accuracy than act=relu, the default width"
    assert "only one arm names width" in str(plan)


def test_arms_whose_epochs_differ_because_only_one_names_them_are_refused() -> None:
    manager, given = Wide(None, verbose=False), {"on": "accuracy", "budget": 10}
    confounded = Hypothesis(["act=gelu", "epochs=12"], better_than="act=relu", **given)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=f"only one of them names it: act=gelu, epochs=12 against act=relu, epochs={EPOCHS}"):
        confounded.plan(manager)
    with pytest.raises(SettingError, match="values that both arms share go into"):
        confounded.test(manager)
    assert [*manager.configs] == []
    both = Hypothesis(["act=gelu", "epochs=12"], better_than=["act=relu", "epochs=3"], **given)  # type: ignore[arg-type]
    assert "warning" not in str(both.plan(manager))
    only_epochs = Hypothesis("epochs=12", better_than="", **given)  # type: ignore[arg-type]
    assert only_epochs.plan(manager).claim == f"epochs=12 has a higher accuracy than epochs={EPOCHS}"


# ---- typical mistakes of sequential tests


def test_the_spread_is_estimated_from_other_configs_only(manager: Toy) -> None:
    for seed in range(4):
        for act in ("gelu", "relu"):
            manager.process({"act": act, "seed": seed, "gain": 5.0 * seed}, EPOCHS)
    arms = claim(base={"gain": 0.0}).arms(manager)
    assert find_spread(manager.store, "accuracy", EPOCHS, ()).sd is None, "no config has two seeds"
    for seed in range(4):
        manager.process({"act": "gelu", "seed": seed}, EPOCHS)
    groups = [arms.group(arm) for arm in arms.values]
    assert find_spread(manager.store, "accuracy", EPOCHS, groups).sd is None
    for seed in range(4):
        manager.process({"act": "tanh", "seed": seed}, EPOCHS)
    spread = find_spread(manager.store, "accuracy", EPOCHS, groups)
    assert spread.sd is not None
    assert spread.sd == pytest.approx(math.sqrt(2) * 0.011, rel=0.6)
    assert spread.source == "from 4 replicates of 1 other config in the store"


def test_a_pair_counts_only_when_all_pairs_before_it_are_done(manager: Toy) -> None:
    plan = hypothesis("true").plan(manager)
    records = HypothesisRecords(manager.store, plan.name)
    for index in (0, 1, 2, 3, 5, 6):
        records.add_pair(index, pairs_of(*[0.02 + 0.001 * each for each in range(7)])[index])
    assert [pair.seed for pair in records.pairs()] == [0, 1, 2, 3]
    assert read_verdict(manager.store, plan.name).state == "pending"


class Failing(Toy):
    """A toy manager in which one of the claim's runs fails or returns NaN."""

    how = "raise"

    def eval(self) -> dict[str, float]:
        if (self.config.act, self.config.seed) == ("gelu", 2) and self.epoch == EPOCHS:
            if self.how == "raise":
                raise RuntimeError("diverged")
            return {"accuracy": math.nan}
        return super().eval()


class NotANumber(Failing):
    how = "nan"


@pytest.mark.parametrize("kind", [Failing, NotANumber])
def test_a_failed_run_is_neither_dropped_nor_replaced(kind: type[Failing]) -> None:
    manager = kind(None, verbose=False)
    waiting = hypothesis("true").test(manager)
    assert (waiting.state, waiting.n) == ("pending", 2)
    assert "(seed 2) has no value: " in waiting.why
    assert ("diverged" if kind is Failing else "its accuracy is nan") in waiting.why
    manager = kind(None, verbose=False)
    worst = hypothesis("true", failed="worst", name="worst").test(manager)
    assert worst.pairs[2].a.value is None
    assert worst.n >= 5
    assert any("count as the worst value seen" in note for note in worst.notes)
    assert verify_hypothesis(manager.store, "worst").is_confirmed


@pytest.mark.parametrize("value", [math.nan, None])
def test_a_hypothesis_without_any_value_is_inconclusive(value: float | None) -> None:
    class Hopeless(Toy):
        def eval(self) -> dict[str, float]:
            if value is None:
                raise RuntimeError("diverged")
            return {"accuracy": value}

    manager = Hopeless(None, verbose=False)
    verdict = hypothesis("true", failed="worst", name="none", budget=5).test(manager)
    assert (verdict.state, verdict.n) == ("inconclusive", 5)
    assert verdict.why == "after 5 pairs, no run has a value; the budget of 5 pairs is used up"
    assert verdict.to_dict()["looks"][0]["mean"] is None
    hypothesis("true", failed="worst", name="later", budget=10).test(manager, max_pairs=5)
    assert read_verdict(manager.store, "later").why == "after 5 pairs, no run has a value"
    assert verify_hypothesis(manager.store, "none").is_confirmed
    assert verdict.figure() is not None


def test_a_failed_run_is_retried_and_then_counts() -> None:
    class Flaky(Failing):
        is_repaired = False

        def eval(self) -> dict[str, float]:
            return Toy.eval(self) if Flaky.is_repaired else super().eval()

    manager = Flaky(None, verbose=False)
    assert hypothesis("true").test(manager).state == "pending"
    Flaky.is_repaired = True
    assert hypothesis("true").test(manager).state == "supported"


def test_a_failed_run_counts_as_the_worst_run_of_both_arms_so_far() -> None:
    pairs = pairs_of(0.1, None, 0.3)
    from trainmaster.analysis.verdict import differences

    assert differences(plan_with(), pairs) == pytest.approx([0.1, 0.0, 0.3])
    assert differences(plan_with(direction="min"), pairs) == pytest.approx([-0.1, -0.3, -0.3])


@pytest.mark.parametrize("difference", [0.02, 0.05])
def test_equal_differences_give_no_verdict(difference: float) -> None:
    values = [0.5, 0.9, 0.3, 0.7, 0.1]
    pairs = [Pair(seed, RunValue("a" * 8, each + difference), RunValue("b" * 8, each)) for seed, each in enumerate(values)]
    verdict = decide(plan_with(), pairs)
    assert verdict.state == "pending"
    assert verdict.looks[-1].t is None
    assert math.isnan(verdict.low)
    last = decide(plan_with(budget=5), pairs)
    assert last.state == "inconclusive"
    assert "all differences are equal" in last.why


def test_looking_less_often_does_not_change_the_verdict() -> None:
    plan = plan_with(budget=20)
    data = [0.01, 0.03, -0.01, 0.02, 0.02, 0.01, 0.02, 0.03, 0.0, 0.02, 0.01, 0.02, 0.02, 0.03, 0.01, 0.01, 0.02, 0.02, 0.01, 0.02]
    every = next(verdict for n in range(1, 21) if (verdict := decide(plan, pairs_of(*data[:n]))).state != "pending")
    once = decide(plan, pairs_of(*data))
    assert (once.state, once.n, once.mean, once.low) == (every.state, every.n, every.mean, every.low)
    assert once.n < 20
    assert any("do not count" in note for note in once.notes)


def test_a_hypothesis_with_a_budget_cannot_be_extended(manager: Toy) -> None:
    assert hypothesis("small").test(manager).state == "inconclusive"
    num_runs = len(manager.configs)
    assert hypothesis("small").test(manager, max_pairs=50).state == "inconclusive"
    assert len(manager.configs) == num_runs
    with pytest.raises(PlanError, match="the hypothesis small exists with another plan") as caught:
        hypothesis("small", budget=30).test(manager)
    assert "budget: 10 → 30" in str(caught.value)


def test_a_new_hypothesis_uses_new_seeds_and_names_the_old_one(manager: Toy) -> None:
    old = hypothesis("small").test(manager)
    new = hypothesis("small", budget=12, name=None).test(manager)
    assert not {pair.seed for pair in old.pairs} & {pair.seed for pair in new.pairs}
    assert new.plan.earlier == ("small",)
    assert any("earlier hypotheses about the same runs: small" in note for note in new.notes)


def test_the_plan_is_recorded_before_the_first_pair() -> None:
    class Broken(Toy):
        def train(self) -> None:
            raise RuntimeError("broken")

    manager = Broken(None, verbose=False)
    assert hypothesis("true").test(manager).state == "pending"
    plan = HypothesisRecords(manager.store, "true").plan()
    assert (plan.budget, plan.settings["alpha"], plan.settings["by"]) == (10, 0.05, 0.005)
    assert plan.seeds == tuple(range(10))
    assert [round(each, 2) for each in plan.criticals if each] == [4.31, 3.93, 3.48, 3.14, 2.88, 2.67]
    assert HypothesisRecords(manager.store, "true").pairs() == []


def test_seeds_whose_runs_exist_are_not_used(manager: Toy) -> None:
    for seed in (0, 3):
        manager.process({"act": "relu", "gain": 0.02, "seed": seed}, EPOCHS)
    verdict = hypothesis("true").test(manager)
    assert [pair.seed for pair in verdict.pairs] == [1, 2, 4, 5, 6]
    assert verdict.known_seeds == ()


def test_known_seeds_are_used_last_and_the_verdict_names_them(manager: Toy) -> None:
    manager.process({"act": "gelu", "gain": 0.02, "seed": 1}, EPOCHS)
    verdict = hypothesis("true", seeds=[0, 1, 2, 3, 4], budget=5).test(manager)
    assert verdict.plan.seeds == (0, 2, 3, 4, 1)
    assert verdict.known_seeds == (1,)
    assert "the runs of the seeds 1" in verdict.notes[0]


# ---- plans


def test_a_plan_states_what_it_can_detect_before_anything_is_trained() -> None:
    text = str(claim(budget=20, by=0.005, effect=0.015, sd=0.01).plan())
    assert "at most 20 pairs, seeds 0 to 19; wrong verdicts: at most 0.05" in text
    assert "20 pairs find a true difference of 0.7" in text
    assert "critical |t|: 6.37 after 5, 3.65 after 10, 2.87 after 15, 2.46 after 20" in text
    assert "at a true improvement of 0.015, the chance of a verdict is 9" in text


def test_effect_and_spread_determine_the_budget() -> None:
    assert claim(budget="auto", by=0.005, effect=0.015, sd=0.01).plan().budget == 13
    assert claim(budget="auto").plan().budget == 20
    with pytest.raises(SettingError, match="needs the spread of the differences"):
        claim(budget="auto", effect=0.01).plan(Toy(None, verbose=False))
    with pytest.raises(SettingError, match="200 pairs do not distinguish the effect"):
        claim(budget="auto", effect=0.0001, sd=1.0).plan()


def test_a_plan_with_is_dry_records_nothing(manager: Toy) -> None:
    hypothesis("true").plan(manager, is_dry=True)
    assert manager.store.files.names("sweeps") == []
    assert len(manager.configs) == 0


def test_a_changed_default_is_refused(manager: Toy) -> None:
    hypothesis("true").test(manager, max_pairs=1)
    manager.defaults["helps"] = 0
    with pytest.raises(PlanError, match="exists with another plan") as caught:
        hypothesis("true").test(manager)
    assert "the defaults of the config, or `get_config`, have changed since the plan was made" in str(caught.value)


def test_a_secret_of_the_base_is_not_recorded(tmp_path: Path) -> None:
    class Secretive(Toy):
        defaults = {**Toy.defaults, "token": "none"}
        secrets = ("token",)

    manager = Secretive(tmp_path, verbose=False)
    hypothesis("true", base={"gain": 0.02, "token": "hunter2hunter2"}).test(manager, max_pairs=1)
    assert not any(b"hunter2" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_verdict_that_was_tampered_with_is_not_confirmed(tmp_path: Path) -> None:
    manager = Toy(tmp_path, verbose=False)
    verdict = hypothesis("true").test(manager)
    from trainmaster.store.checksummed_json import record_bytes

    path = tmp_path / "sweeps" / "true" / "pairs" / "000002.json"
    pair = verdict.pairs[2]
    path.write_bytes(record_bytes({"seed": pair.seed, "a": pair.a._replace(value=0.99)._asdict(), "b": pair.b._asdict()}))
    found = verify_hypothesis(manager.store, "true")
    assert any(f"run {pair.a.key} is recorded with accuracy 0.99 at epoch {EPOCHS}; its log has" in each for each in found.problems)
    path.write_bytes(record_bytes({"seed": 7, "a": pair.b._asdict(), "b": pair.a._asdict()}))
    problems = "\n".join(verify_hypothesis(manager.store, "true").problems)
    assert "pair 3 (seed 7) does not have the seed that the plan declares" in problems
    assert "has a different config than planned" in problems


# ---- wrong input


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"by": -0.005}, "`by` must be a number of at least 0, not -0.005"),
        ({"alpha": 0}, "`alpha` must be a number above 0 and below 1"),
        ({"alpha": 1.0}, "`alpha` must be a number above 0 and below 1"),
        ({"alpha": math.nan}, "`alpha` must be a number above 0 and below 1"),
        ({"power": 1}, "`power` must be a number above 0 and below 1"),
        ({"budget": 4}, "`budget` must be a whole number of at least 5, not 4"),
        ({"budget": 201}, "`budget` must be at most 200 pairs, not 201"),
        ({"budget": 7.5}, "`budget` must be a whole number of at least 5, not 7.5"),
        ({"hopeless": 0.9}, "`hopeless` must be a number"),
        ({"failed": "drop"}, '`failed` must be "wait" or "worst"'),
        ({"effect": 0.0}, "the effect and the margin are both 0"),
        ({"sd": 0.0}, "`sd` must be a number above 0"),
        ({"seeds": [0, 1, 1]}, "the seed 1 is given twice"),
        ({"seeds": [-1]}, "a seed must be a whole number of at least 0"),
        ({"on": ""}, "expected the name of a metric"),
        ({"on": "gap"}, "is a smaller or a larger `gap` better"),
        ({"direction": "up"}, "expected min or max"),
        ({"epochs": 0}, "`epochs` must be a whole number of at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingError) as caught:
        claim(**settings)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ("atc=gelu", "act=relu", "did you mean `act`?"),
        ("activation_function=gelu", "", "activation_function: the config has no such key"),
        ("seed=3", "act=relu", "seed: is the seed, which all arms share"),
        ("act=relu", "", "gives the same runs as claim: the config has these values already"),
    ],
)
def test_invalid_arms_are_refused_before_the_first_run(a: str, b: str, text: str, manager: Toy) -> None:
    with pytest.raises(ConfigError) as caught:
        Hypothesis(a, better_than=b, on="accuracy", epochs=EPOCHS).test(manager)
    assert text in str(caught.value)
    assert len(manager.configs) == 0
    assert manager.store.files.names("sweeps") == []


def test_both_sides_must_differ() -> None:
    with pytest.raises(SettingError, match="both sides of the hypothesis have the same values"):
        Hypothesis("act=relu", better_than={"act": "relu"}, on="accuracy")


def test_too_few_seeds_are_refused(manager: Toy) -> None:
    with pytest.raises(SettingError, match="10 pairs need 10 seeds, but there are 7"):
        claim(seeds=range(7)).test(manager)


def test_a_metric_that_no_run_has_is_refused_after_the_first_pair(manager: Toy) -> None:
    with pytest.raises(PlanError, match="there is no metric `accuracies`") as caught:
        claim(on="accuracies").test(manager)
    assert "accuracy" in str(caught.value)
    assert len(manager.configs) <= 2


def test_a_misspelled_metric_is_refused_before_anything_is_trained_or_recorded(manager: Toy) -> None:
    manager.process({"seed": 3}, EPOCHS)
    for is_dry in (True, False):
        with pytest.raises(MetricNameError, match=r"(?s)no run in the store has the metric `accurcy`.*did you mean `accuracy`\?"):
            claim(on="accurcy", name="first").plan(manager, is_dry)
    assert (len(manager.configs), manager.store.files.names("sweeps")) == (1, [])
    assert claim(name="first").plan(manager).settings["on"] == "accuracy"


def test_a_metric_that_is_not_in_the_preview_of_a_run_is_known_from_its_log(manager: Toy) -> None:
    manager.process({"seed": 3}, EPOCHS)
    manager.store.previews[manager.key] = {"acc": 0.5}
    assert claim().plan(manager).settings["on"] == "accuracy"


def test_a_metric_that_resembles_no_recorded_one_may_be_new(manager: Toy) -> None:
    manager.process({"seed": 3}, EPOCHS)
    assert claim(on="f1").plan(manager).settings["on"] == "f1"


def test_a_plan_that_was_made_by_mistake_can_be_deleted(tmp_path: Path) -> None:
    manager = Toy(tmp_path / "runs", verbose=False)
    with pytest.raises(PlanError, match="there is no metric `accurcy`"):
        claim(on="accurcy", name="first").test(manager)
    with pytest.raises(PlanError, match="on: 'accurcy' → 'accuracy'") as caught:
        claim(name="first").test(manager)
    folder = tmp_path / "runs" / "sweeps" / "first"
    assert f"if the recorded plan is a mistake, delete the folder {folder}: no run is deleted" in str(caught.value)
    shutil.rmtree(folder)
    assert claim(name="first").test(manager).state != "pending"
    assert manager.store.verify() == []


def test_every_progress_line_shows_the_arm_and_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    claim(name="first").test(Toy(None), max_pairs=1)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert [line.split("  ")[1:3] for line in lines] == [["act=gelu", "seed=0"], ["act=relu", "seed=0"]]


def test_a_metric_that_only_one_arm_has_is_refused() -> None:
    class Partial(Toy):
        def eval(self) -> dict[str, float]:
            return super().eval() if self.config.act == "gelu" else {"loss": 1.0}

    with pytest.raises(PlanError, match="there is no metric `accuracy`"):
        claim().test(Partial(None, verbose=False))


def test_a_constant_metric_is_inconclusive() -> None:
    class Constant(Toy):
        def eval(self) -> dict[str, float]:
            return {"accuracy": 0.9 + (self.config.act == "gelu") * 0.05}

    verdict = claim(budget=6).test(Constant(None, verbose=False))
    assert verdict.state == "inconclusive"
    assert "all differences are equal" in verdict.why
    assert "in each arm, all seeds gave the same value: does the program use the seed?" in verdict.notes


def test_values_that_differ_between_seeds_in_one_arm_need_no_note_about_the_seed() -> None:
    class HalfConstant(Toy):
        def eval(self) -> dict[str, float]:
            return {"accuracy": 1.0} if self.config.act == "gelu" else super().eval()

    assert not any("does the program use the seed" in note for note in claim(budget=6).test(HalfConstant(None, verbose=False)).notes)


def test_a_typed_config_needs_a_field_for_the_seed() -> None:
    @configclass
    class Seedless(ConfigBase):
        act: str = "relu"

    class Typed(Toy):
        defaults = Seedless

    with pytest.raises(SettingError, match="the config has no seed"):
        claim().test(Typed(None, verbose=False))


def test_a_seed_that_get_config_overwrites_is_refused() -> None:
    class Fixed(Toy):
        def get_config(self, config: Any = None) -> Any:
            found = super().get_config(config)
            found["seed"] = 7
            return found

    with pytest.raises(SettingError, match="runs with different seeds are the same run"):
        claim().test(Fixed(None, verbose=False))


def test_a_hypothesis_and_an_ablation_cannot_have_the_same_name(manager: Toy) -> None:
    from toy_study import ablation

    hypothesis("true").test(manager, max_pairs=1)
    with pytest.raises(PlanError, match="the name true belongs to a hypothesis of this store"):
        ablation(name="true").run(manager)
    with pytest.raises(SettingError, match="expected at most 64 letters"):
        hypothesis("true", name="../evil").test(manager)


def test_an_unknown_hypothesis_is_an_error_that_lists_similar_names(manager: Toy) -> None:
    hypothesis("true").test(manager, max_pairs=1)
    with pytest.raises(PlanError, match="no hypothesis is called 'tru'") as caught:
        read_verdict(manager.store, "tru")
    assert "did you mean `true`?" in str(caught.value)


def test_a_typed_config_is_paired_by_its_replicate_field() -> None:
    @configclass
    class Settings(ConfigBase):
        act: str = "relu"
        draw: Replicate[int] = 0

    class Typed(Manager):
        defaults = Settings

        def train(self) -> None: ...

        def eval(self) -> dict[str, float]:
            return {"accuracy": 0.5 + 0.01 * (self.config.draw % 3) + 0.1 * (self.config.act == "gelu") + 0.001 * hash_of(self.config)}

    def hash_of(config: Any) -> int:
        return (config.draw * 7 + len(config.act)) % 5 * (config.act == "gelu")

    manager = Typed(None, verbose=False)
    verdict = claim(epochs=1, budget=6).test(manager)
    assert [manager.configs[pair.a.key].draw for pair in verdict.pairs] == [pair.seed for pair in verdict.pairs]
    assert verdict.state == "supported"
    assert verify_hypothesis(manager.store, verdict.plan.name).is_confirmed


def test_runs_with_different_numbers_of_epochs_are_not_a_pair() -> None:
    def make_loop(config: Any) -> Supervised:
        x = torch.linspace(-1, 1, 16).unsqueeze(1)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), config.lr)
        return Supervised(model, nn.MSELoss(), epochs=3, train_data=[(x, x)], eval_data=[(x, x)], optimizer=optimizer)

    manager = Manager(None, {"lr": 0.1, "seed": 0}, make_loop=make_loop, verbose=False)
    faster = Hypothesis("lr=0.2", better_than="lr=0.1", on="valid/loss", budget=5, seeds=range(5), name="faster")
    faster.plan(manager)
    manager.process({"seed": 2}, num_epochs=1)
    with pytest.raises(PlanError, match=r"not trained for the same number of epochs: .* for 1 and .* for 3"):
        faster.test(manager)
    manager.process({"seed": 2}, num_epochs=3)
    assert faster.test(manager).n == 5


def test_numbers_in_text_have_the_types_of_the_values_that_they_replace() -> None:
    class Dropout(Toy):
        defaults = {**Toy.defaults, "dropout": 0.5}

    manager = Dropout(None, verbose=False)
    ints, floats, exact = (
        Hypothesis(claim, "", on="accuracy").plan(manager, is_dry=True) for claim in ("dropout=0", "dropout=0.0", {"dropout": 0})
    )
    assert (ints.groups, ints.name) == (floats.groups, floats.name)
    assert exact.groups != floats.groups, "a dict keeps its types"
