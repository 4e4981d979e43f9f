"""Ablations and hypotheses find the effects that were planted in real training runs."""

from __future__ import annotations

from typing import Any

import pytest
from planted_training import manager

from trainmaster.analysis import Ablation, Hypothesis, verify_hypothesis

pytestmark = pytest.mark.integration


def test_an_ablation_finds_the_planted_effects_and_interactions() -> None:
    parts = {"no x": "x=0", "no y": "y=0", "right labels": "shift=0", "idle": "idle=1"}
    trainer = manager(None)
    report = Ablation(None, parts, seeds=5, design="factorial", on="valid/loss").run(trainer)
    found = {each.part: each.verdict for each in report.contributions}
    assert {part: found[part] for part in parts} == {"no x": "hurts", "no y": "hurts", "right labels": "helps", "idle": "unclear"}
    assert {part: word for part, word in found.items() if part not in parts and word != "unclear"} == {"no x * no y": "interacts"}
    one_by_one = Ablation(None, parts, seeds=5, on="valid/loss").run(trainer)
    assert [each.verdict for each in one_by_one.contributions] == ["helps", "helps", "hurts", "unclear"]
    assert len(trainer.configs) == 16 * 5, "the other design reuses the runs of the factorial design"


@pytest.mark.parametrize(
    ("claim", "settings", "state"),
    [
        ("shift=0", {"by": 0.1, "budget": 15}, "supported"),
        ("x=0", {"by": 0.1, "budget": 15}, "refuted"),
        ("idle=1", {"budget": 8}, "inconclusive"),
    ],
    ids=["true", "false", "too small for its budget"],
)
def test_hypotheses_about_planted_effects_get_the_right_verdict(claim: str, settings: dict[str, Any], state: str) -> None:
    trainer = manager(None)
    verdict = Hypothesis(claim, better_than="", on="valid/loss", **settings).test(trainer)
    assert verdict.state == state
    assert verify_hypothesis(trainer.store, verdict.plan.name).is_confirmed
