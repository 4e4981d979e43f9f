"""The boundary of the sequential test matches the published table, and its power is computed correctly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainmaster.analysis.boundary import Design, budget_for, mean_pairs, power_of, smallest_distance

TABLE = {
    10: {5: 4.32, 6: 3.93, 8: 3.14, 10: 2.67},
    20: {5: 6.37, 8: 4.32, 10: 3.65, 15: 2.87, 20: 2.46},
    30: {5: 7.90, 10: 4.25, 15: 3.33, 20: 2.90, 30: 2.40},
}


@pytest.mark.parametrize(("budget", "n", "critical"), [(budget, n, c) for budget, row in TABLE.items() for n, c in row.items()])
def test_the_boundary_matches_the_published_table(budget: int, n: int, critical: float) -> None:
    assert Design(0.05, budget).criticals(budget)[n] == pytest.approx(critical, abs=0.0101)


def test_the_boundary_of_a_long_study_is_not_too_high() -> None:
    assert Design(0.05, 200).criticals(200)[200] == pytest.approx(2.33, abs=0.01)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_a_single_look_equals_students_t_test(alpha: float) -> None:
    from scipy import stats

    assert Design(alpha, 5).criticals(5)[5] == pytest.approx(stats.t.ppf(1 - alpha / 2, 4), rel=0.002)


def test_there_is_no_look_before_five_pairs() -> None:
    for budget in (5, 10, None):
        assert np.isinf(Design(0.05, budget).criticals(10 if budget is None else budget)[:5]).all()


def test_the_boundary_of_an_open_study_does_not_depend_on_its_length() -> None:
    design = Design(0.05, None)
    assert design.criticals(20) == pytest.approx(design.criticals(40)[:21])


def test_a_look_after_every_pair_raises_the_boundary_only_a_little() -> None:
    assert 2.26 < Design(0.05, 10).criticals(10)[10] < 2.7, "2.26 is the quantile of a test with one look at 10 pairs"


@pytest.mark.parametrize(
    ("distance", "power", "budget", "pairs"),
    [(0.6, 0.8, 28, 20), (0.8, 0.8, 17, 12.6), (1.0, 0.8, 12, 9.1), (1.5, 0.8, 7, 5.8), (1.0, 0.9, 15, 10.2)],
)
def test_the_budget_for_a_power_matches_the_published_table(distance: float, power: float, budget: int, pairs: float) -> None:
    assert budget_for(distance, power, 0.05, 0.0) == pytest.approx(budget, abs=1)
    assert mean_pairs(Design(0.05, budget), distance) == pytest.approx(pairs, abs=0.3)


@pytest.mark.parametrize(("budget", "distance"), [(5, 1.69), (10, 1.10), (20, 0.72), (30, 0.57)])
def test_the_smallest_distance_matches_the_published_table(budget: int, distance: float) -> None:
    assert smallest_distance(Design(0.05, budget), 0.8) == pytest.approx(distance, abs=0.02)


def test_the_power_at_the_margin_is_half_of_alpha() -> None:
    assert power_of(Design(0.05, 20), 0.0) == pytest.approx(0.025, abs=0.005)


def test_stopping_hopeless_studies_costs_power_and_the_budget_compensates_for_it() -> None:
    assert power_of(Design(0.05, 28, 0.05), 0.6) < power_of(Design(0.05, 28), 0.6)
    patient, hopeless = budget_for(0.6, 0.8, 0.05, 0.0), budget_for(0.6, 0.8, 0.05, 0.05)
    assert patient is not None
    assert hopeless is not None
    assert patient < hopeless <= patient + 3


def test_some_effects_are_too_small_for_any_budget() -> None:
    assert budget_for(0.1, 0.8, 0.05, 0.05) is None


def test_a_study_is_hopeless_only_from_half_of_its_budget_on() -> None:
    design = Design(0.05, 20, 0.05)
    last = float(design.criticals(20)[20])
    assert [n for n in range(5, 21) if design.is_hopeless(n, 0.0, last)] == [*range(10, 20)]
    assert not design.is_hopeless(10, 3.0, last)
    assert not Design(0.05, 20, 0.0).is_hopeless(15, 0.0, last)
    assert not Design(0.05, None, 0.05).is_hopeless(15, 0.0, math.inf)
