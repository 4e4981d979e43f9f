"""`Results` returns the right runs, columns, statistics and figures, and invents no numbers (contract A50)."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from planted_runs import add_run, planted_sweep

from trainmaster import Manager, ParallelConfig, RunConfig
from trainmaster.analysis import PlotAnalysis, Results
from trainmaster.errors import MetricNameError, SettingError, StoreError, StoreFormatError
from trainmaster.store import Store


@pytest.fixture
def store() -> Store:
    return Store(None)


@pytest.fixture(scope="module")
def sweep() -> Results:
    store = Store(None)
    planted_sweep(store)
    return Results(store)


# ---- selection


def test_results_contain_the_finished_runs_and_list_the_others(store: Store) -> None:
    good = add_run(store, {"lr": 1})
    failed = add_run(store, {"lr": 2}, outcome="failed", error="boom")
    stopped = add_run(store, {"lr": 3}, outcome="stopped")
    new = store.configs.add({"lr": 4})
    running = store.configs.add({"lr": 5})
    with store.attempt(running, "process") as attempt:
        attempt.start(None)
        attempt.save(1, {}, {"epoch": 1}, {"valid/loss": 0.0})
        results = Results(store)
    assert results.keys == [good]
    assert results.left_out == {"failed": [failed], "stopped": [stopped], "new": [new], "running": [running]}
    assert str(results.describe()) == "1 run; left out: 1 failed, 1 new, 1 running, 1 stopped"
    assert failed in results._repr_html_()


def test_a_condition_on_the_state_includes_other_states(store: Store) -> None:
    good, stopped = add_run(store, {"lr": 1}), add_run(store, {"lr": 3}, outcome="stopped")
    assert {*Results(store, where="state in (finished, stopped)").keys} == {good, stopped}
    assert {*Results(store, where="state=stopped")["lr<9"].keys} == {stopped}
    assert Results(store)["lr<9"].keys == [good]


def test_a_damaged_run_is_listed_and_never_included(tmp_path: Path) -> None:
    store = Store(tmp_path)
    key = add_run(store, {"lr": 1})
    (tmp_path / store.run(key).path(1, "resume.json")).write_bytes(b"XX")
    for where in (None, "state=damaged"):
        results = Results(tmp_path, where=where)
        assert len(results) == 0
        assert results.left_out == {"damaged": [key]}


def test_results_accept_a_store_its_folder_or_a_manager(tmp_path: Path) -> None:
    store = Store(tmp_path)
    key = add_run(store, {"lr": 1})
    for source in (store, tmp_path, str(tmp_path), Manager(tmp_path)):
        assert Results(source).keys == [key]


def test_reading_results_creates_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="there is no store at"):
        Results(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    with pytest.raises(SettingError, match="`source` must be a store, its folder or a manager"):
        Results(7)


def test_conditions_have_the_syntax_of_ls(sweep: Results) -> None:
    part = sweep["activation=gelu and lr<0.01"]
    assert 0 < len(part) < len(sweep)
    assert {run.config["model"]["activation"] for run in part} == {"gelu"}
    with pytest.raises(StoreError, match="no run has `activatoin`"):
        sweep["activatoin=gelu"]
    with pytest.raises(SettingError, match="selected by a condition"):
        sweep[0]  # type: ignore[index]


# ---- columns


def test_a_frame_has_a_row_per_run_with_dotted_config_columns_and_metrics_as_logged(sweep: Results) -> None:
    frame = sweep.df
    assert frame.index.name == "key"
    assert len(frame) == len(sweep) == 80
    assert {"optim.lr", "model.activation", "seed", "valid/loss", "state", "epoch"} <= {*frame.columns}
    assert str(frame["seed"].dtype) == "int64"
    run = next(iter(sweep))
    assert frame.loc[run.key, "valid/loss"] == run.metrics["valid/loss"]
    assert sweep.store.previews[run.key]["valid/loss"] == run.metrics["valid/loss"]


def test_a_metric_with_the_name_of_a_config_key_has_its_own_column(store: Store) -> None:
    add_run(store, {"lr": 0.5, "state": "x"}, [{"lr": 0.25, "valid/loss": 1.0}])
    frame = Results(store).df
    assert (frame["lr"].item(), frame["lr (metric)"].item(), frame["state"].item(), frame["state (run)"].item()) == (
        0.5,
        0.25,
        "x",
        "finished",
    )


def test_missing_values_are_nan_and_large_integers_stay_exact(store: Store) -> None:
    large = 2**60 + 1
    add_run(store, {"a": 1, "n": large}), add_run(store, {"b": None, "n": 2}), add_run(store, {"big": large})
    columns = Results(store).columns
    assert columns["a"].dtype == np.float64
    assert np.isnan(columns["a"]).sum() == 2
    assert large in columns["n"].tolist()
    assert large in columns["big"].tolist()
    assert columns["big"].dtype == object


def test_steps_contain_every_logged_value_by_key_and_step(sweep: Results) -> None:
    part = sweep["seed=0 and optim.batch_size=32"]
    frame = part.steps("loss")
    assert frame.index.names == ["key", "step"]
    assert len(frame) == 6 * len(part)
    assert frame["valid/loss"].iloc[5] == part.df["valid/loss"].iloc[0]
    assert {"over", "optim.lr", "model.activation"} <= {*frame.columns}
    assert {*frame["over"]} == {"epoch"}


def test_steps_of_different_axes_are_different_rows(store: Store) -> None:
    key = store.configs.add({"lr": 1})
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        for step in (1, 2):
            attempt.log.append({"tag": "train/loss", "value": float(step), "step": step, "over": "update"})
        attempt.log.append({"tag": "valid/loss", "value": math.nan, "step": 1, "over": "epoch"})
        attempt.save(2, {}, {"epoch": 1}, {"valid/loss": math.nan, "train/loss": 2.0})
        attempt.release("finished")
    frame = Results(store).steps()
    assert frame["over"].tolist() == ["epoch", "update", "update"]
    assert frame["train/loss"].tolist()[1:] == [1.0, 2.0]
    assert frame["valid/loss"].isna().all()


def test_a_log_that_was_damaged_in_the_meantime_is_left_out_with_a_warning(tmp_path: Path) -> None:
    store = Store(tmp_path)
    good, bad = add_run(store, {"lr": 1}), add_run(store, {"lr": 2})
    results = Results(store)
    (tmp_path / store.run(bad).path(1, "events.jsonl")).write_bytes(b"")
    with pytest.warns(UserWarning, match=f"the log of run {bad} cannot be read: 1 events were saved in it, and 0 can be read"):
        frame = results.steps("loss")
    assert {*frame.index.get_level_values("key")} == {good}


def test_a_run_that_was_removed_in_the_meantime_is_left_out(store: Store) -> None:
    good, gone = add_run(store, {"lr": 1}), add_run(store, {"lr": 2})
    results = Results(store)
    store.remove(gone)
    assert len(results.df) == 2  # `df` is a snapshot
    assert {*results.steps("loss").index.get_level_values("key")} == {good}


def test_logs_are_not_read_until_they_are_needed(sweep: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster.store import Run

    monkeypatch.setattr(Run, "event_lines", lambda *_: pytest.fail("a log was read"))
    results = Results(sweep.store)
    results.groups(), results.best(), results.df, results.importance(), results._repr_html_(), results.plot("lr")


# ---- statistics


def seeds(store: Store, values: list[float], **config: Any) -> None:
    for seed, value in enumerate(values):
        add_run(store, {**config, "seed": seed}, [{"valid/loss": value}], seed=seed)


def test_groups_are_replicates_with_students_t_interval(store: Store) -> None:
    seeds(store, [0.3, 0.5, 0.4], lr=1)
    seeds(store, [0.9, 0.7], lr=2)
    best, other = Results(store).groups()
    assert (best.values, best.n, other.n) == ({"lr": 1}, 3, 2)
    assert (best.mean, best.median) == (pytest.approx(0.4), 0.4)
    low, high = scipy.stats.t.interval(0.95, 2, 0.4, np.std([0.3, 0.5, 0.4], ddof=1) / math.sqrt(3))
    assert (best.low, best.high) == (pytest.approx(low), pytest.approx(high))


def test_equal_effective_seeds_count_once(store: Store) -> None:
    for config in ({"lr": 1}, {"lr": 1, "seed": 0}, {"lr": 1, "random_seed": 0}, {"lr": 1, "seed": 1}):
        add_run(store, config, [{"valid/loss": 1.0 + len(config)}])
    (group,) = Results(store).groups()
    assert (group.n, group.repeated) == (2, 2)


def test_a_group_with_one_seed_has_a_mean_but_no_interval(store: Store) -> None:
    seeds(store, [0.3], lr=1)
    (group,) = Results(store).groups()
    assert (group.n, group.mean) == (1, 0.3)
    assert math.isnan(group.low)
    assert math.isnan(group.sd)


def test_a_nan_is_not_dropped_and_its_group_comes_last(store: Store) -> None:
    seeds(store, [0.1, math.nan], lr=1)
    seeds(store, [5.0, 6.0], lr=2)
    first, last = Results(store).groups()
    assert first.values == {"lr": 2}
    assert last.n == 2
    assert math.isnan(last.mean)


def test_a_metric_that_only_some_runs_have_is_counted_as_missing(store: Store) -> None:
    seeds(store, [0.1, 0.2], lr=1)
    add_run(store, {"lr": 1, "seed": 9}, [{"train/loss": 1.0}])
    (group,) = Results(store).groups(metric="valid/loss")
    assert (group.n, group.missing) == (2, 1)


def test_grouping_by_a_key_averages_the_seeds_of_each_config_first(store: Store) -> None:
    """Three seeds of one config are not three independent settings."""
    for lr, level in ((1, 0.1), (2, 0.3)):
        seeds(store, [level - 0.01, level, level + 0.01], lr=lr, arch="a")
    groups = Results(store).groups(by="arch")
    assert (groups.unit, groups[0].n, len(groups[0].keys)) == ("config", 2, 6)
    assert groups[0].numbers == (pytest.approx(0.1), pytest.approx(0.3))


def test_the_best_run_follows_the_monitored_direction(store: Store) -> None:
    low, high = (add_run(store, {"n": n}, [{"score": n}], monitor=("score", "max")) for n in (1.0, 2.0))
    add_run(store, {"n": 3}, [{"score": math.nan}], monitor=("score", "max"))
    assert Results(store).best().key == high
    assert Results(store).ranked_by() == ("score", True)
    assert low != high


def test_the_name_of_a_metric_that_is_not_monitored_determines_its_direction(sweep: Results) -> None:
    assert sweep.ranked_by("accuracy") == ("valid/accuracy", True)
    assert sweep.best("accuracy").metrics["valid/accuracy"] == sweep.df["valid/accuracy"].max()


def test_a_metric_that_may_be_better_low_or_high_is_only_ranked_in_a_given_mode(store: Store) -> None:
    low, high = (add_run(store, {"n": n}, [{"quality": n, "valid/loss": 1.0}]) for n in (1.0, 2.0))
    results = Results(store)
    for ask, name in ((results.best, "best"), (results.groups, "groups")):
        with pytest.raises(SettingError) as error:
            ask(metric="quality")  # type: ignore[operator]
        assert error.value.fact == "nothing says whether lower or higher is better for 'quality'"
        assert f'{name}(metric="quality", mode="max")' in error.value.rows["hint"]
    assert (results.best("quality", mode="min").key, results.best("quality", mode="max").key) == (low, high)
    assert [group.keys for group in results.groups(metric="quality", mode="max")] == [(high,), (low,)]
    assert results.best("loss", mode="max").key in (low, high)
    with pytest.raises(SettingError, match='`mode` must be "min" or "max"'):
        results.best("quality", mode="up")  # type: ignore[arg-type]
    monitored = [add_run(store, {"n": n, "m": 0}, [{"quality": n}], monitor=("quality", "max")) for n in (3.0, 4.0)]
    assert Results(store).best("quality").key == monitored[1]


def test_figures_tables_and_comparisons_do_not_claim_an_unknown_direction(store: Store, sweep: Results) -> None:
    for n in range(40):
        add_run(store, {"n": n % 10, "seed": n // 10}, [{"quality": float(n), "valid/loss": 1.0}], seed=n // 10)
    results = Results(store)
    assert "for low values" in " ".join(results.importance("quality").notes)
    assert "for low values" not in " ".join(sweep.importance().notes)
    assert results.curves("quality").panels[0].title.endswith("lowest 6 of 10 groups")
    found = results.compare("n=1", "n=2", on="quality")
    assert found.is_greater_better is None
    assert str(found).startswith("quality, n=1 minus n=2")
    assert "quality" in results.to_latex("quality")


def test_runs_with_shared_seeds_are_compared_in_pairs(store: Store) -> None:
    a, b = [0.10, 0.31, 0.52, 0.73], [0.2, 0.4, 0.6, 0.8]
    seeds(store, a, act="gelu")
    seeds(store, [*b, 9.0], act="relu")
    found = Results(store).compare("act=gelu", "act=relu", on="loss")
    wanted = scipy.stats.ttest_rel(a, b)
    assert found.difference.method == "paired t"
    assert (found.unit, len(found.pairs), len(found.unpaired)) == ("seed", 4, 1)
    assert found.difference.p == pytest.approx(wanted.pvalue)
    assert "1 run without a partner left out" in str(found)


def test_runs_without_shared_seeds_are_compared_with_welchs_test(store: Store) -> None:
    a, b = [0.1, 0.2, 0.4], [0.5, 0.6, 0.9, 1.0]
    for start, act, values in ((0, "gelu", a), (10, "relu", b)):
        for seed, value in enumerate(values, start):
            add_run(store, {"act": act, "seed": seed}, [{"valid/loss": value}], seed=seed)
    found = Results(store).compare("act=gelu", "act=relu")
    assert found.difference.method == "Welch"
    assert found.difference.p == pytest.approx(scipy.stats.ttest_ind(a, b, equal_var=False).pvalue)


def test_a_comparison_reports_different_numbers_of_epochs(store: Store) -> None:
    for act, num in (("gelu", 3), ("relu", 9)):
        for seed in (0, 1, 2):
            add_run(store, {"act": act, "seed": seed}, [{"valid/loss": seed / num}] * num, seed=seed)
    found = Results(store).compare("act=gelu", "act=relu")
    assert len(found.epochs) == 2
    assert f"the runs were trained for {found.epochs[0]} to {found.epochs[1]} epochs" in str(found)
    seeds(store, [0.1, 0.2], act="silu")
    seeds(store, [0.3, 0.5], act="tanh")
    assert "epochs" not in str(Results(store).compare("act=silu", "act=tanh"))


def test_pairs_of_several_settings_count_settings_instead_of_seeds(store: Store) -> None:
    for lr in (1, 2, 3):
        seeds(store, [0.1 * lr, 0.1 * lr + 0.01], lr=lr, act="gelu")
        seeds(store, [0.2 * lr, 0.2 * lr + 0.01], lr=lr, act="relu")
    found = Results(store).compare("act=gelu", "act=relu")
    assert (found.unit, len(found.pairs), found.difference.n_a) == ("config", 6, 3)


def test_groups_with_few_runs_can_be_left_out(store: Store) -> None:
    seeds(store, [0.1], act="lucky")
    seeds(store, [0.2, 0.3, 0.4], act="good")
    seeds(store, [0.5, 0.6], act="poor")
    results = Results(store)
    assert [group.values["act"] for group in results.groups()] == ["lucky", "good", "poor"]
    assert results.groups().num_lucky == 1
    assert [group.values["act"] for group in results.groups(min_runs=2)] == ["good", "poor"]
    assert [group.values["act"] for group in results.groups("act", min_runs=3)] == ["good"]
    assert results["act=lucky"].groups().num_lucky == results.groups(min_runs=2).num_lucky == 0
    with pytest.raises(SettingError, match=r"(?s)no setting has 4 runs with `valid/loss`.*the most is 3.*seed=0,1,2"):
        results.groups(min_runs=4)
    with pytest.raises(SettingError, match="min_runs"):
        results.groups(min_runs=0)


@pytest.mark.parametrize(
    "values",
    [
        (1 / 3, 0.3333, 1 / 3 + 1e-12, 5e-324, 1e300, math.inf, math.nan, 1),
        ("relu", "re lu", 'a "b" \\ c', "none", "and", "1", "", "é\n", "lr=1, x"),
        (None, True, False, 0, "0", "true"),
        ([1, 2], [1, 3], [], [[1], [2]], ["a b", None, True, math.nan], [{"a": 1}], {"a": 1}),
    ],
    ids=["numbers", "texts", "constants", "lists"],
)
@pytest.mark.parametrize("name", ["lr", "model.lr rate", "not", "epoch"])
def test_the_condition_of_a_group_selects_exactly_its_runs(values: tuple[Any, ...], name: str, store: Store) -> None:
    for value in values:
        seeds(store, [0.1, 0.2], **{name: value})
    seeds(store, [0.3, 0.4], other=1)  # does not have the key
    results = Results(store)
    groups = results.groups()
    assert len(groups) == len(values) + 1
    for group in groups:
        assert {*results[group.where].keys} == {*group.keys}, group.where


def test_the_conditions_of_two_groups_are_compared_in_pairs(store: Store) -> None:
    seeds(store, [0.1, 0.2, 0.4], lr=0.0049751234)
    seeds(store, [0.2, 0.3, 0.6], lr=0.0049752345)
    one, two = Results(store).groups()
    assert one.label == two.label == "lr=0.004975"
    assert one.where == "lr=0.0049751234"
    assert len(Results(store).compare(one.where, two.where).pairs) == 3


def test_groups_that_differ_in_a_list_are_compared_in_pairs(store: Store) -> None:
    seeds(store, [0.1, 0.2, 0.4], lr=0.1, hidden=[16, 16])
    seeds(store, [0.2, 0.3, 0.6], lr=0.2, hidden=[16, 16])
    seeds(store, [0.5, 0.6, 0.7], lr=0.2, hidden=[16])
    one, two, three = Results(store).groups()
    assert [one.where, two.where] == ["lr=0.1 and hidden=[16, 16]", "lr=0.2 and hidden=[16, 16]"]
    for other in (two, three):
        compared = Results(store).compare(one.where, other.where)
        assert len(compared.pairs) == 3
        assert "not paired" not in str(compared)


def test_a_comparison_without_pairs_says_so(store: Store) -> None:
    seeds(store, [0.1, 0.2, 0.4], lr=0.1)
    seeds(store, [0.2, 0.3, 0.6], lr=0.2)
    one, two = Results(store).groups()
    compared = Results(store).compare(*(f"key in ({', '.join(each.keys)})" for each in (one, two)))
    assert compared.difference.method == "Welch"
    assert "the runs are not paired: none has a partner with the same seed and the same other settings" in str(compared)


def test_a_comparison_with_a_rounded_label_says_which_value_is_nearest(store: Store) -> None:
    seeds(store, [0.1, 0.2], lr=0.0049751234, act="relu")
    seeds(store, [0.1, 0.2], lr=0.1, act="relu")
    results = Results(store)
    with pytest.raises(SettingError) as caught:
        results.compare("lr=0.004975 and act=relu", "lr=0.1")
    assert "no finished run has lr=0.004975; the nearest value is 0.0049751234" in str(caught.value)
    assert "a label is rounded; `group.where` is the exact condition of a group" in str(caught.value)
    with pytest.raises(StoreError, match="join conditions with `and`"):
        results.compare("lr=0.004975, act=relu", "lr=0.1")
    with pytest.raises(SettingError, match="no finished run meets it"):
        results.compare("lr=0.1 and act=tanh", "lr=0.1")


def test_an_impossible_comparison_is_an_error_with_the_reason(store: Store) -> None:
    seeds(store, [0.1, 0.2], act="gelu")
    with pytest.raises(SettingError, match="meets both conditions"):
        Results(store).compare("act=gelu", "seed=0")
    with pytest.raises(SettingError, match="there is nothing to compare for `act=relu`"):
        Results(store).compare("act=gelu", "act=relu")


# ---- importance


def test_importance_finds_the_planted_effect_and_has_a_bar_for_the_seed(sweep: Results) -> None:
    found = sweep.importance()
    assert next(iter(found.values)) == "optim.lr"
    assert found.values["optim.lr"] > 0.5
    assert found.values["seed"] < 0.1
    assert sum(found.values.values()) == pytest.approx(1)
    assert "a share varies by about" in found.notes[-1]


def test_a_number_without_effect_and_with_few_values_is_not_important(store: Store) -> None:
    """If the batch size were treated as a range, its values 32, 64 and 128 would make it look important."""
    rng = np.random.default_rng(0)
    for number in range(300):
        lr = 10 ** rng.uniform(-4, -1)
        add_run(store, {"lr": lr, "batch_size": int(rng.choice([32, 64, 128])), "n": number}, [{"valid/loss": math.log10(lr) ** 2}])
    found = Results(store).importance()
    assert found.values["batch_size"] < 0.05
    assert found.values["lr"] > 0.8


def test_importance_lists_what_it_left_out(store: Store) -> None:
    for number in range(60):
        config = {"lr": number, "name": f"run {number}"} | ({"momentum": number / 7} if number % 2 else {})
        add_run(store, config, [{"valid/loss": math.nan if number == 5 else float(number)}])
    notes = Results(store).importance().notes
    assert "1 run repeated or without a finite valid/loss left out" in notes
    assert "name left out: it has 59 different values that are not numbers" in notes
    assert any(note.startswith("momentum left out: some runs do not have it") for note in notes)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1.0] * 12, "all 12 runs have the same value, 1"),
        ([1.0, 2.0], "2 finished runs with a finite `valid/loss`; at least 10 are needed"),
    ],
)
def test_an_importance_that_cannot_be_computed_is_an_error_with_the_reason(store: Store, values: list[float], why: str) -> None:
    for number, value in enumerate(values):
        add_run(store, {"n": number}, [{"valid/loss": value}])
    with pytest.raises(SettingError) as error:
        Results(store).importance()
    assert error.value.rows["why"] == why


# ---- no finished runs


def test_without_a_finished_run_every_method_raises_the_same_error(store: Store) -> None:
    add_run(store, {"lr": 1}, outcome="failed")
    results = Results(store)
    assert len(results.df) == 0
    for ask in (
        results.best,
        results.groups,
        results.importance,
        results.curves,
        results.parallel,
        lambda: results.plot("lr"),
        results.to_latex,
    ):
        with pytest.raises(SettingError) as error:
            ask()
        assert error.value.fact == "there is no finished run to analyze"
        assert error.value.rows["found"].startswith("1 failed, e.g. ")


def test_runs_that_monitor_different_metrics_need_a_named_metric(store: Store) -> None:
    add_run(store, {"n": 1}, [{"a": 1.0, "b": 2.0}], monitor=("a", "min"))
    add_run(store, {"n": 2}, [{"a": 1.0, "b": 2.0}], monitor=("b", "min"))
    with pytest.raises(MetricNameError) as error:
        Results(store).best()
    assert error.value.fact == "these runs monitor different metrics"
    assert "metric='a'" in error.value.rows["hint"]


# ---- figures


def test_numbers_get_a_regression_and_categories_violins(sweep: Results) -> None:
    (scatter,) = sweep.plot("lr").panels
    assert (scatter.is_log_x, len(scatter.xs)) == (True, 80)  # type: ignore[union-attr]
    assert scatter.fit.label.endswith("40 configs")  # type: ignore[union-attr]
    (violins,) = sweep.plot("batch_size", "accuracy").panels
    assert [name.split()[0] for name in violins.values] == ["32", "64", "128"]  # type: ignore[union-attr]


def test_the_regression_equals_that_of_scipy() -> None:
    from trainmaster.analysis.regression import fit_line

    rng = np.random.default_rng(1)
    x = rng.uniform(0, 5, 30)
    y = 2 * x + rng.normal(0, 1, 30)
    fit = fit_line(x, y)
    wanted = scipy.stats.linregress(x, y)
    assert fit is not None
    assert np.allclose(fit.ys, wanted.intercept + wanted.slope * fit.xs)
    at_mean = np.interp(x.mean(), fit.xs, fit.high) - np.interp(x.mean(), fit.xs, fit.ys)
    residual = math.sqrt(np.sum((y - wanted.intercept - wanted.slope * x) ** 2) / 28)
    assert at_mean == pytest.approx(scipy.stats.t.ppf(0.975, 28) * residual / math.sqrt(30), rel=1e-2)
    assert fit_line(np.array([1.0, 1.0, 1.0]), np.array([1.0, 2.0, 3.0])) is None


def test_curves_are_the_mean_over_seeds_where_all_seeds_have_a_value(store: Store) -> None:
    for seed, length in ((0, 4), (1, 3)):
        add_run(store, {"lr": 1, "seed": seed}, [{"valid/loss": epoch + seed} for epoch in range(length)], seed=seed)
    (panel,) = Results(store).curves().panels
    (line,) = panel.lines  # type: ignore[union-attr]
    assert list(line.xs) == [0, 1, 2]
    assert list(line.ys) == [0.5, 1.5, 2.5]
    margin = scipy.stats.t.ppf(0.975, 1) * math.sqrt(0.5) / math.sqrt(2)
    assert line.high[0] == pytest.approx(0.5 + margin)


def test_only_the_best_groups_are_drawn_and_the_title_shows_their_number(sweep: Results) -> None:
    (panel,) = sweep.curves().panels
    assert len(panel.lines) == 6  # type: ignore[union-attr]
    assert panel.title == "mean over seeds, 95 % interval, best 6 of 40 groups"
    assert len(sweep["seed=0 and batch_size=32"].curves(by="key").panels[0].lines) == 6  # type: ignore[union-attr]


def test_parallel_coordinates_end_at_the_metric(sweep: Results) -> None:
    (panel,) = sweep.parallel("accuracy").panels
    assert [axis.name for axis in panel.axes] == ["lr", "batch_size", "activation", "valid/accuracy"]  # type: ignore[union-attr]
    assert panel.is_reversed is False  # type: ignore[union-attr]


def test_figures_can_be_saved_as_png_and_as_html(sweep: Results, tmp_path: Path) -> None:
    drawings = {
        "plot": sweep.plot("lr"),
        "violins": sweep.plot("activation"),
        "parallel": sweep.parallel(),
        "bars": sweep.importance().figure(),
    }
    for name, drawing in drawings.items():
        drawing.save(tmp_path / name)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "Plotly.newPlot" in (tmp_path / f"{name}.html").read_text()
    with pytest.raises(SettingError, match=r"cannot be saved as `x\.pdf`"):
        drawings["plot"].save(tmp_path / "x.pdf")


# ---- trials of a search, and figures for all keys and metrics


RUN = {
    "model_config": {},
    "train_config": {"dataset": "digits", "batch_size": 4, "epochs": 2, "optimizer_config": {"name": "sgd", "arguments": {"lr": 0.1}}},
}
SPACE = {
    "train_config.batch_size": {"categorical_values": [2, 4]},
    "train_config.optimizer_config.arguments.lr": {"value_range": (0.01, 1.0), "log": True},
}


def test_results_of_a_config_are_the_trials_of_its_search(tmp_path: Path) -> None:
    store = Store(tmp_path)
    trials = [
        add_run(store, RunConfig(**RUN).override(f"train_config.batch_size={size}", f"train_config.optimizer_config.arguments.lr={lr}"))
        for size in (2, 4)
        for lr in (0.02, 0.5)
    ]
    add_run(store, RunConfig(**RUN).override("train_config.batch_size=8"))  # this batch size is not in the search space
    add_run(store, RunConfig(**RUN).override("train_config.epochs=3"))  # the search uses a different number of epochs
    results = Results(ParallelConfig(**RUN, search_space=SPACE), tmp_path)
    assert {*results.keys} == {*trials}
    assert results.steps("loss").index.names == ["key", "step"]
    analysis = PlotAnalysis(results)
    assert (analysis.numerical, analysis.categorical) == (["train_config.optimizer_config.arguments.lr"], ["train_config.batch_size"])


def test_the_config_of_a_single_run_is_refused(tmp_path: Path) -> None:
    Store(tmp_path)
    with pytest.raises(SettingError, match="need a ParallelConfig with a search space; this is the config of a single run"):
        Results(RunConfig(**RUN), tmp_path)
    with pytest.raises(SettingError, match="need the folder of its store"):
        Results(RunConfig(**RUN))


def test_figures_of_all_keys_and_metrics_are_written_and_an_unbalanced_design_is_reported(store: Store, tmp_path: Path) -> None:
    for number in range(24):
        config = {"arch": "ViT" if number % 8 else "MLP", "lr": 10 ** -(1 + number / 8)}
        add_run(store, config, [{"valid/loss": 1.0 + number, "valid-loss": 2.0}])
    analysis = PlotAnalysis(Results(store))
    assert (analysis.numerical, analysis.categorical) == (["lr"], ["arch"])
    with pytest.warns(UserWarning, match="the design is unbalanced in arch: 3 with MLP, 21 with ViT"):
        figures = analysis.make_figures(save_dir=tmp_path)
    assert {*figures} == {(metric, key) for metric in ("valid/loss", "valid-loss") for key in ("arch", "lr")}
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    assert len(written) == 4
    assert "valid-loss/arch.png" in written


def test_labels_in_figures_can_be_chosen(sweep: Results) -> None:
    figures = PlotAnalysis(sweep).make_figures({"loss": "validation loss"}, {"lr": "learning rate"})
    assert [*figures] == [("valid/loss", "optim.lr")]
    (panel,) = figures["valid/loss", "optim.lr"].panels
    assert (panel.x_label, panel.y_label) == ("learning rate", "validation loss")  # type: ignore[union-attr]


# ---- imports


def test_results_import_neither_torch_nor_pandas() -> None:
    heavy = ("torch", "pandas", "scipy", "optuna", "matplotlib")
    code = f"import sys; from trainmaster.analysis import Results; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
