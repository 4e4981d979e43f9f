"""Forecast bands for curves that stopped early have the stated coverage, and unsuitable curves get no forecast."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainmaster.analysis.forecast import LEVEL, Curve, FinishedCurves, Forecast, NoForecast

EPOCHS = 20


def draw_curves(rng: np.random.Generator, count: int, seeds: int = 1) -> tuple[list[Curve], list[str]]:
    """Draw power laws with different rates and floors. The seeds of one setting differ only by noise."""
    curves: list[Curve] = []
    x = np.arange(1, EPOCHS + 1)
    for _ in range(count // seeds):
        scale, rate, floor = rng.uniform(0.5, 2), rng.uniform(0.3, 1.5), rng.uniform(0.05, 0.6)
        for _ in range(seeds):
            own_floor = floor * math.exp(0.05 * rng.standard_normal())
            y = (own_floor + scale * x**-rate) * np.exp(0.02 * rng.standard_normal(EPOCHS))
            curves.append(dict(zip(x.tolist(), y.tolist(), strict=True)))
    return curves, [str(number // seeds) for number in range(len(curves))]


def cut(curve: Curve, epoch: int) -> Curve:
    return {each: value for each, value in curve.items() if each <= epoch}


def make_finished(count: int = 40, seeds: int = 1, number: int = 0) -> FinishedCurves:
    return FinishedCurves(*draw_curves(np.random.default_rng(number), count, seeds), EPOCHS)


@pytest.mark.parametrize(("count", "seeds"), [(20, 1), (100, 5)])
def test_bands_contain_the_final_value_of_new_curves_as_often_as_stated(count: int, seeds: int) -> None:
    inside, measured = [], []
    for number in range(40):
        rng = np.random.default_rng(number)
        finished = FinishedCurves(*draw_curves(rng, count, seeds), EPOCHS)
        for curve in draw_curves(rng, 10)[0]:
            found = finished.forecast(cut(curve, 8))
            if isinstance(found, Forecast):
                inside.append(found.low <= curve[EPOCHS] <= found.high)
                measured.append(found.coverage)
    assert len(inside) > 350
    assert np.mean(inside) == pytest.approx(LEVEL, abs=3 * math.sqrt(0.1 * 0.9 / 40))  # the 10 curves of a round share one calibration
    assert np.mean(measured) == pytest.approx(np.mean(inside), abs=0.05)


def test_a_later_forecast_is_narrower() -> None:
    finished = make_finished(100)
    curve = draw_curves(np.random.default_rng(7), 1)[0][0]
    early, late = (finished.forecast(cut(curve, epoch)) for epoch in (3, 16))
    assert isinstance(early, Forecast)
    assert isinstance(late, Forecast)
    assert late.high - late.low < (early.high - early.low) / 2


def test_whole_settings_are_held_out_if_there_are_enough_of_them() -> None:
    few, many = (make_finished(100, seeds).forecast(cut(draw_curves(np.random.default_rng(7), 1)[0][0], 8)) for seeds in (10, 5))
    assert isinstance(few, Forecast)
    assert isinstance(many, Forecast)
    assert (few.held_out, many.held_out) == ("curve", "setting")


def test_seeds_of_one_setting_do_not_make_the_measured_coverage_look_better() -> None:
    """Each of the 20 settings has 10 seeds with almost equal curves.

    A curve's own replicates would forecast it perfectly, but a new setting has none, so replicates must not be used to
    measure the coverage.
    """
    rng = np.random.default_rng(1)
    base, _ = draw_curves(rng, 20)
    curves = [{epoch: value * (1 + 1e-6 * rng.standard_normal()) for epoch, value in curve.items()} for curve in base for _ in range(10)]
    finished = FinishedCurves(curves, [str(number // 10) for number in range(200)], EPOCHS)
    inside = []
    for curve in draw_curves(np.random.default_rng(2), 60)[0]:
        found = finished.forecast(cut(curve, 8))
        if isinstance(found, Forecast):
            inside.append(found.low <= curve[EPOCHS] <= found.high)
    assert np.mean(inside) > 0.75


def test_there_is_no_forecast_from_19_finished_curves() -> None:
    curves, groups = draw_curves(np.random.default_rng(0), 20)
    curve = cut(curves[0], 8)
    assert isinstance(FinishedCurves(curves, groups, EPOCHS).forecast(curve), Forecast)
    assert FinishedCurves(curves[1:], groups[1:], EPOCHS).forecast(curve) == NoForecast(
        "19 finished curves of this kind; a forecast needs 20"
    )


def test_curves_with_another_end_or_other_epochs_are_not_used() -> None:
    curves, groups = draw_curves(np.random.default_rng(0), 25)
    shorter = [*curves[:19], *(cut(curve, EPOCHS - 1) for curve in curves[19:])]
    sparse = [*curves[:19], *({epoch: value for epoch, value in curve.items() if epoch % 2 == 0} for curve in curves[19:])]
    for each in (shorter, sparse):
        found = FinishedCurves(each, groups, EPOCHS).forecast(cut(curves[0], 8))
        assert isinstance(found, NoForecast)
        assert found.reason.startswith("19 finished curves")


def test_a_curve_unlike_all_finished_ones_has_no_forecast() -> None:
    found = make_finished().forecast({epoch: 50.0 + epoch for epoch in range(1, 9)})
    assert found == NoForecast("no finished curve began like this one")


def test_a_curve_with_nan_has_no_forecast() -> None:
    curves, groups = draw_curves(np.random.default_rng(0), 40)
    assert FinishedCurves(curves, groups, EPOCHS).forecast({1: 1.0, 2: math.nan}) == NoForecast("it contains NaN or infinity")
    with_nan = FinishedCurves([*curves[:25], *({**curve, EPOCHS: math.inf} for curve in curves[25:])], groups, EPOCHS)
    found = with_nan.forecast(cut(curves[0], 8))
    assert isinstance(found, Forecast)
    assert (found.num_curves, with_nan.num_not_finite) == (25, 15)
    assert math.isfinite(found.high)


def test_a_constant_metric_and_an_empty_curve_have_no_forecast() -> None:
    constant = [dict.fromkeys(range(1, EPOCHS + 1), 0.5)] * 30
    found = FinishedCurves(constant, [str(each) for each in range(30)], EPOCHS).forecast({1: 0.5})
    assert found == NoForecast("all finished curves of this kind end with the same value")
    assert make_finished().forecast({}) == NoForecast("it has no value yet")


def test_a_constant_start_does_not_divide_by_zero() -> None:
    curves, groups = draw_curves(np.random.default_rng(0), 30)
    found = FinishedCurves([{0: 1.0, **curve} for curve in curves], groups, EPOCHS).forecast({0: 1.0, **cut(curves[0], 4)})
    assert isinstance(found, Forecast)
    assert math.isfinite(found.low)


def test_the_order_of_the_curves_does_not_matter() -> None:
    curves, groups = draw_curves(np.random.default_rng(0), 60, 3)
    forward = FinishedCurves(curves, groups, EPOCHS).forecast(cut(curves[5], 8))
    assert forward == FinishedCurves(curves[::-1], groups[::-1], EPOCHS).forecast(cut(curves[5], 8))


def test_the_band_of_a_share_stays_between_0_and_1_and_the_band_of_a_loss_above_0() -> None:
    rng = np.random.default_rng(0)
    shares = [{epoch: float(value) for epoch, value in enumerate(rng.uniform(0, 1, 4))} for _ in range(30)]
    groups = [str(number) for number in range(30)]
    share = FinishedCurves(shares, groups, 3).forecast({0: 0.5, 1: 0.9})
    loss = FinishedCurves([{epoch: 5 * value for epoch, value in each.items()} for each in shares], groups, 3).forecast({0: 2.0, 1: 0.1})
    signed = FinishedCurves([{epoch: value - 0.5 for epoch, value in each.items()} for each in shares], groups, 3).forecast(
        {0: 0.0, 1: 0.4}
    )
    assert isinstance(share, Forecast)
    assert isinstance(loss, Forecast)
    assert isinstance(signed, Forecast)
    assert 0 <= share.low < share.high <= 1
    assert loss.low == 0
    assert signed.low < -0.5
