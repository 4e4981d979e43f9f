"""Ablations measure planted effects correctly, can be extended but not changed, and refuse wrong input."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn
from toy_study import EPOCHS, Toy, ablation

from trainmaster import Manager, Supervised
from trainmaster.analysis import Ablation, paired_difference, read_ablation
from trainmaster.analysis.ablation_plan import effects_of
from trainmaster.errors import ConfigError, MetricNameError, PlanError, SettingError


@pytest.fixture
def manager() -> Toy:
    return Toy(None, verbose=False)


def words(report: Any) -> dict[str, str]:
    return {each.part: each.verdict for each in report.contributions}


def test_parts_that_help_hurt_or_do_nothing_get_the_right_verdict(manager: Toy) -> None:
    report = ablation().run(manager)
    assert words(report) == {"helps": "helps", "hurts": "hurts", "idle": "unclear"}
    assert [round(each.mean, 2) for each in report.contributions] == [0.03, -0.03, 0.0]
    assert report.is_complete
    assert read_ablation(manager.store, "parts").to_dict() == report.to_dict()


def test_contributions_are_paired_differences_with_simultaneous_intervals_and_adjusted_p_values(manager: Toy) -> None:
    from scipy import stats
    from statsmodels.stats.multitest import multipletests

    report = ablation().run(manager)
    base = [run.value or 0.0 for run in report.runs["base"]]
    tests = []
    for each in report.contributions:
        values = [run.value or 0.0 for run in report.runs[each.part]]
        tests.append(stats.ttest_rel(base, values))
        expected = tests[-1].confidence_interval(1 - 0.05 / 3)
        assert (each.low, each.high) == pytest.approx((expected.low, expected.high))
        assert each.effect_size == pytest.approx(paired_difference(base, values).effect_size)
    assert [each.p for each in report.contributions] == pytest.approx(
        list(multipletests([test.pvalue for test in tests], method="holm")[1])
    )


def test_one_at_a_time_estimates_the_effect_of_a_change(manager: Toy) -> None:
    left, added = ablation().run(manager), ablation(design="one-at-a-time", name="added").run(manager)
    assert [each.mean for each in added.contributions] == pytest.approx([-each.mean for each in left.contributions])
    assert len(manager.configs) == 20, "both designs train the same runs"


def test_the_sign_is_reversed_for_a_metric_that_is_minimized() -> None:
    class Loss(Toy):
        def eval(self) -> dict[str, float]:
            return {"loss": 1 - super().eval()["accuracy"]}

    assert words(ablation(on="loss").run(Loss(None, verbose=False))) == {"helps": "helps", "hurts": "hurts", "idle": "unclear"}


def test_a_factorial_design_finds_an_interaction() -> None:
    class Interacting(Toy):
        def eval(self) -> dict[str, float]:
            both = self.config.helps * self.config.idle
            return {"accuracy": super().eval()["accuracy"] + 0.1 * both}

    report = ablation(design="factorial").run(Interacting(None, verbose=False))
    found = words(report)
    assert found["helps * idle"] == "interacts"
    assert found["helps * hurts"] == found["hurts * idle"] == "unclear"
    assert {each.part: round(each.mean, 1) for each in report.contributions}["helps * idle"] == 0.1
    assert len(report.runs) == 8


def test_effects_of_a_factorial_design_are_differences_of_means() -> None:
    main, other, interaction = effects_of("factorial", ["a", "b"])
    assert main.weights == {"base": -0.5, "a": 0.5, "b": -0.5, "a + b": 0.5}
    assert other.weights == {"base": -0.5, "a": -0.5, "b": 0.5, "a + b": 0.5}
    assert interaction.weights == {"base": 1, "a": -1, "b": -1, "a + b": 1}


def test_a_plan_shows_what_each_part_changes(manager: Toy) -> None:
    text = str(ablation().extend(factors={"both": {"act": "gelu", "idle": 0}}).plan(manager, is_dry=True))
    assert "  helps: helps=0 instead of 1\n" in text
    assert "  both: act=gelu instead of relu, idle=0 instead of 1\n" in text


def test_a_plan_states_which_effects_its_seeds_can_detect(manager: Toy) -> None:
    text = str(ablation(seeds=3).plan(manager))
    assert "4 configs x 3 seeds = 12 runs, leave-one-out" in text
    assert "with 3 seeds and 3 effects, an effect shows if it exceeds 4.4 sd of its differences" in text


# ---- extending


def test_more_seeds_and_parts_extend_an_ablation_and_train_only_new_runs(manager: Toy) -> None:
    first = ablation().run(manager)
    attempts = {key: manager.store.run(key).attempts() for key in manager.configs}
    more = ablation().extend(factors={"act": "act=gelu"}, seeds=7).run(manager)
    assert len(manager.configs) == 5 * 7
    assert more.runs["helps"][:5] == first.runs["helps"]
    assert more.plan.revision == 2
    assert all(manager.store.run(key).attempts() == numbers for key, numbers in attempts.items())
    assert any("extended after 20 runs had results" in note for note in more.notes)
    assert read_ablation(manager.store, "parts").to_dict() == more.to_dict()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"alpha": 0.1}, "alpha: 0.05 → 0.1"),
        ({"design": "one-at-a-time"}, "design: 'leave-one-out' → 'one-at-a-time'"),
        ({"seeds": 3}, "seeds: [0, 1, 2, 3, 4] → [0, 1, 2]"),
        ({"seeds": [7, 8, 9, 10, 11]}, "seeds: [0, 1, 2, 3, 4] → [7, 8, 9, 10, 11]"),
        ({"epochs": 3}, "epochs: 2 → 3"),
    ],
)
def test_a_changed_plan_is_refused_and_the_difference_is_listed(settings: dict[str, Any], text: str, manager: Toy) -> None:
    ablation().plan(manager)
    with pytest.raises(PlanError, match="the ablation parts exists with another plan") as caught:
        ablation(**settings).run(manager)
    assert text in str(caught.value)


def test_a_changed_part_is_refused(manager: Toy) -> None:
    ablation().plan(manager)
    changed = Ablation(
        {"wait": 0.0}, {"helps": "helps=2", "hurts": "hurts=0", "idle": "idle=0"}, on="accuracy", epochs=EPOCHS, name="parts"
    )
    with pytest.raises(PlanError) as caught:
        changed.run(manager)
    assert "factors.helps: {'helps': 0} → {'helps': 2}" in str(caught.value)


def test_without_a_name_the_same_base_continues_its_ablation(manager: Toy) -> None:
    first = ablation(name=None).plan(manager)
    assert ablation(name=None, seeds=8).plan(manager).name == first.name
    assert ablation(name=None, on="accuracy", design="factorial").plan(manager).name != first.name


# ---- runs without a result


def test_a_part_with_a_failed_run_has_no_verdict() -> None:
    class Failing(Toy):
        def train(self) -> None:
            if self.config.helps == 0 and self.config.seed == 1:
                raise RuntimeError("out of memory")
            super().train()

    report = ablation().run(Failing(None, verbose=False))
    found = {each.part: each for each in report.contributions}
    assert (found["helps"].verdict, found["helps"].n) == ("incomplete", 4)
    assert math.isnan(found["helps"].low)
    assert math.isnan(found["helps"].p)
    assert found["hurts"].verdict == "hurts"
    assert any("helps, seed 1, run " in note and "out of memory" in note for note in report.notes)
    assert not report.is_complete


def test_a_removed_run_makes_only_its_parts_incomplete_and_the_same_ablation_repairs_it(manager: Toy) -> None:
    before = ablation().run(manager)
    key = before.plan.keys["helps"][1]
    manager.store.remove(key)
    report = read_ablation(manager.store, before.plan.name)
    assert words(report) == words(before) | {"helps": "incomplete"}
    (missing,) = report.missing
    assert missing == f"helps, seed 1, run {key}: removed; the same `ablate` command (name {before.plan.name}) trains it again"
    assert words(ablation().run(manager)) == words(before)


def test_a_nan_is_not_dropped() -> None:
    class NaN(Toy):
        def eval(self) -> dict[str, float]:
            return {"accuracy": math.nan} if self.config.hurts == 0 and self.config.seed == 0 else super().eval()

    report = ablation().run(NaN(None, verbose=False))
    assert words(report)["hurts"] == "incomplete"
    assert any("its accuracy is nan" in note for note in report.notes)


def test_a_constant_difference_has_no_interval() -> None:
    class Constant(Toy):
        def eval(self) -> dict[str, float]:
            return {"accuracy": 0.9 + 0.01 * self.config.helps}

    report = ablation().run(Constant(None, verbose=False))
    assert words(report) == {"helps": "unclear", "hurts": "unclear", "idle": "unclear"}
    assert any("the differences are the same for all seeds" in note for note in report.notes)
    assert "in each arm, all seeds gave the same value: does the program use the seed?" in report.notes


def test_an_ablation_ends_if_its_first_runs_all_fail() -> None:
    class Broken(Toy):
        def train(self) -> None:
            raise RuntimeError("broken")

    manager = Broken(None, verbose=False)
    with pytest.raises(PlanError, match="the first 3 runs failed"):
        ablation().run(manager)
    assert len(manager.configs) == 3


def test_a_metric_that_no_run_has_is_refused_after_the_first_run(manager: Toy) -> None:
    with pytest.raises(PlanError, match="there is no metric `acc`"):
        ablation(on="acc").run(manager)
    assert len(manager.configs) == 1


def test_a_misspelled_metric_is_refused_before_anything_is_trained_or_recorded(manager: Toy) -> None:
    manager.process({"seed": 30}, EPOCHS)
    with pytest.raises(MetricNameError, match=r"(?s)no run in the store has the metric `acc`.*did you mean `accuracy`\?"):
        ablation(on="acc").run(manager)
    assert (len(manager.configs), manager.store.files.names("sweeps")) == (1, [])


def test_every_progress_line_shows_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    ablation().run(Toy(None))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert lines
    assert all("  seed=" in line for line in lines)


# ---- runs that were trained for a different number of epochs


def make_loop(config: Any) -> Supervised:
    x = torch.linspace(-1, 1, 16).unsqueeze(1)
    model = nn.Sequential(nn.Linear(1, config.width), nn.Tanh(), nn.Linear(config.width, 1))
    return Supervised(
        model, nn.MSELoss(), epochs=3, train_data=[(x, x)], eval_data=[(x, x)], optimizer=torch.optim.SGD(model.parameters(), 0.1)
    )


def loop_manager() -> Manager:
    return Manager(None, {"width": 4, "seed": 0}, make_loop=make_loop, verbose=False)


def test_a_run_that_is_trained_further_keeps_its_result() -> None:
    manager, parts = loop_manager(), Ablation(None, {"width": "width=2"}, seeds=2, on="valid/loss", name="width")
    before = parts.run(manager)
    manager.process({"seed": 1}, num_epochs=9)
    after = parts.run(manager)
    assert [(each.mean, each.low, each.p) for each in after.contributions] == [
        (each.mean, each.low, each.p) for each in before.contributions
    ]
    assert any("trained for 3 to 9 epochs, so only values up to epoch 3 are used" in note for note in after.notes)


def test_a_run_with_fewer_epochs_is_compared_at_its_last_epoch() -> None:
    manager, parts = loop_manager(), Ablation(None, {"width": "width=2"}, seeds=2, on="valid/loss", name="width")
    manager.process({"seed": 1}, num_epochs=1)
    report = parts.run(manager)
    assert {run.epoch for runs in report.runs.values() for run in runs} == {1}
    assert any("trained for 1 to 3 epochs" in note for note in report.notes)
    manager.process({"seed": 1}, num_epochs=3)
    report = parts.run(manager)
    assert {run.epoch for runs in report.runs.values() for run in runs} == {3}
    assert len(report.notes) == 1


# ---- reports


def test_a_report_can_be_exported_in_every_format(manager: Toy) -> None:
    report = ablation().run(manager)
    assert str(report).splitlines()[1].split() == ["part", "n", "contribution", "low", "high", "p", "(Holm)", "verdict"]
    assert report.to_markdown().count("\n| ") == 5
    latex = report.to_latex()
    assert latex.count(r"\\") == 4
    assert r"\begin{tabular}{lrrrrrl}" in latex
    assert report._repr_html_().count("<tr>") == 4
    json.dumps(report.to_dict(), allow_nan=False)


def test_hostile_names_are_escaped_in_every_format(manager: Toy) -> None:
    name = "<script>alert(1)</script>|$x_1$\x1b[2J"
    report = Ablation(None, {name: "helps=0"}, on="accuracy", epochs=EPOCHS, seeds=2).run(manager)
    assert "<script>" not in report._repr_html_()
    assert "<script>" not in report.to_markdown()
    assert "\x1b" not in str(report) + report.to_latex() + report.to_markdown() + report._repr_html_()
    assert r"\$x\_1\$" in report.to_latex()
    assert r"\|" in report.to_markdown()


# ---- wrong input


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"seeds": 1}, "needs at least 2 seeds"),
        ({"seeds": [4]}, "needs at least 2 seeds"),
        ({"seeds": [0, 0, 1]}, "the seed 0 is given twice"),
        ({"seeds": [0, -1]}, "a seed must be a whole number"),
        ({"seeds": 1.5}, "seeds=1.5 (float): expected a list of seeds"),
        ({"seeds": True}, "expected a list of seeds"),
        ({"seeds": "3"}, "expected a list of seeds"),
        ({"design": "leave one out"}, '`design` must be "leave-one-out", "one-at-a-time" or "factorial"'),
        ({"alpha": 1.5}, "`alpha` must be a number above 0 and below 1"),
        ({"on": "gap"}, "is a smaller or a larger `gap` better"),
        ({"factors": {}}, "expected at least one part"),
        ({"factors": {"base": "helps=0"}}, "'base' (str) cannot be the name of a part"),
        ({"factors": {"x": {}}}, "the part x changes no value"),
        ({"factors": {"x": 3}}, "the part x must be config values"),
        ({"epochs": 0}, "`epochs` must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"factors": {"helps": "helps=0"}, "on": "accuracy", **settings}
    with pytest.raises(SettingError) as caught:
        Ablation(None, **given)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("factors", "text"),
    [
        ({"x": "helsp=0"}, "did you mean `helps`?"),
        ({"x": "model.dropout=0", "y": "nothing=1"}, "2 problems in the ablation"),
        ({"x": "helps=1"}, "x: gives the same runs as base: the config has helps=1 already"),
        ({"x": "helps=0", "y": {"helps": 0}}, "y: gives the same runs as x"),
        ({"x": "seed=1"}, "seed: is the seed, which all arms share"),
    ],
)
def test_wrong_parts_are_refused_before_the_first_run(factors: dict[str, Any], text: str, manager: Toy) -> None:
    with pytest.raises(ConfigError) as caught:
        Ablation(None, factors, on="accuracy", epochs=EPOCHS).run(manager)
    assert text in str(caught.value)
    assert len(manager.configs) == 0
    assert manager.store.files.names("sweeps") == []


def test_a_misspelled_key_of_the_base_is_refused(manager: Toy) -> None:
    with pytest.raises(ConfigError, match="did you mean `helps`"):
        Ablation({"helsp": 0}, {"hurts": "hurts=0"}, on="accuracy", epochs=EPOCHS).plan(manager)


def test_factors_of_a_factorial_design_must_be_combinable(manager: Toy) -> None:
    with pytest.raises(ConfigError, match="problem") as caught:
        Ablation(None, {"x": "act=gelu", "y": "act=tanh"}, on="accuracy", design="factorial").run(manager)
    assert "act: is set by two factors" in str(caught.value)
    many = {f"f{number}": {f"key{number}": 1} for number in range(7)}
    with pytest.raises(SettingError, match="has 128 configs for each seed"):
        Ablation(None, many, on="accuracy", design="factorial").run(manager)


def test_a_misspelled_key_is_detected_without_defaults() -> None:
    class Free(Toy):
        defaults = None

    base = {**Toy.defaults}
    with pytest.raises(ConfigError) as caught:
        Ablation(base, {"x": "helsp=0"}, on="accuracy", epochs=EPOCHS).run(Free(None, verbose=False))
    assert "did you mean `helps`?" in str(caught.value)


def test_numbers_in_text_have_the_types_of_the_values_that_they_replace() -> None:
    class Dropout(Toy):
        defaults = {**Toy.defaults, "dropout": 0.5}

    manager = Dropout(None, verbose=False)
    arms = Ablation(None, {"int": "dropout=0", "exact": {"dropout": 0}}, on="accuracy").arms(manager)
    assert [type(arms.config(arm, 0).dropout) for arm in ("int", "exact")] == [float, int]
