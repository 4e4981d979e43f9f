"""`trainmaster ls` selects, sorts and shows runs in columns."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from trainmaster import ConfigBase, Replicate, Stateless, configclass
from trainmaster.store import Store

Call = Callable[..., Any]


@configclass
class Folds(ConfigBase):
    lr: float
    fold: Replicate[int] = 0
    num_workers: Stateless[int] = 0


def keys_of(result: Any) -> list[str]:
    assert result.code == 0, result.err
    return [run["key"] for run in json.loads(result.out)]


def set_started(store: Store, key: str, moment: float) -> None:
    """Make a run look as if it was last started at another time."""
    os.utime(f"{store.root}/stats/{key[:2]}/{key}", (moment, moment))


def test_a_run_is_one_line_with_key_state_epoch_metrics_varying_values_and_tags(call: Call, make: Any, store: Store) -> None:
    one = make.run({"lr": 0.1, "model": {"arch": "ViT"}}, [{"loss": 2.0}, {"loss": 1.5}])
    other = make.run({"lr": 0.2, "model": {"arch": "ViT"}}, [{"loss": 0.25}], outcome="failed", error="boom")
    store.tags.add(one, ["best"])
    head, *rows = call("ls").out.splitlines()
    assert head.split() == ["KEY", "STATE", "EPOCH", "TIME", "AGE", "TAGS", "lr", "loss"]
    by_key = {row.split()[0]: row.split() for row in rows}
    assert by_key[one][1:3] == ["finished", "2"]
    assert by_key[one][-3:] == ["best", "0.1", "1.5"]
    assert by_key[other][1:3] == ["failed", "1"]
    assert by_key[other][-2:] == ["0.2", "0.25"]


def test_the_run_that_was_started_last_comes_first(call: Call, make: Any, store: Store) -> None:
    keys = [make.run({"seed": number}) for number in range(4)]
    for number, key in enumerate(keys):
        set_started(store, key, time.time() - 1000 * number)
    assert keys_of(call("ls", "--json")) == keys
    assert keys_of(call("ls", "--json", "--reverse")) == keys[::-1]


def test_a_run_that_was_never_started_is_sorted_by_the_time_its_config_was_added(call: Call, make: Any, store: Store) -> None:
    old = make.run({"seed": 1})
    set_started(store, old, time.time() - 1000)
    new = make.new(seed=2)
    assert keys_of(call("ls", "--json")) == [new, old]


def test_a_list_is_limited_and_reports_how_many_more_runs_there_are(call: Call, make: Any) -> None:
    make.store.configs.add_many({"seed": number} for number in range(30))
    found = call("ls")
    assert len(found.out.splitlines()) == 22
    assert "... and 10 more: --limit 0 shows all" in found.out
    assert len(call("ls", "--limit", 0).out.splitlines()) == 31
    assert len(keys_of(call("ls", "--limit", 7, "--json"))) == 7


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("loss", [1, 3, 2, 0, 4]),
        ("-loss", [2, 3, 1, 0, 4]),
        ("valid/loss", [1, 3, 2, 0, 4]),
        ("lr", [0, 1, 2, 3, 4]),
        ("-train.lr", [4, 3, 2, 1, 0]),
        ("-epoch", [2, 0, 1, 3, 4]),
    ],
)
def test_runs_are_sorted_by_metrics_and_config_with_nan_and_missing_last(
    call: Call, make: Any, store: Store, name: str, wanted: list[int]
) -> None:
    values: list[list[float]] = [[float("nan")], [0.1], [0.7, 0.9], [0.5]]
    keys = [make.run({"train": {"lr": number}}, [{"valid/loss": each} for each in losses]) for number, losses in enumerate(values)]
    keys.append(make.new(train={"lr": 4}))
    for number, key in enumerate(keys[:-1]):
        set_started(store, key, time.time() + 1000 - number)
    assert keys_of(call("ls", "--sort", name, "--json")) == [keys[number] for number in wanted]


def test_runs_can_be_sorted_by_key_and_by_time(call: Call, make: Any) -> None:
    keys = [make.run({"seed": number}) for number in range(4)]
    assert keys_of(call("ls", "--sort", "key", "--json")) == sorted(keys)
    assert keys_of(call("ls", "--sort", "time", "--json")) == keys
    assert keys_of(call("ls", "--sort", "time", "--reverse", "--json")) == keys[::-1]


def test_an_ambiguous_metric_name_is_refused_with_both_candidates(call: Call, make: Any) -> None:
    make.run({"lr": 1}, [{"valid/loss": 1.0, "test/loss": 2.0}])
    for args in (["--sort", "loss"], ["--where", "loss<3"]):
        found = call("ls", *args)
        assert found.code == 2
        assert "test/loss" in found.err
        assert "valid/loss" in found.err


def test_a_shortened_metric_name_prefers_evaluation_sets(call: Call, make: Any) -> None:
    make.run({"lr": 1}, [{"valid/loss": 1.0, "train/loss": 2.0}])
    assert "09703c87" in call("ls", "--where", "loss<1.5", "--sort", "loss").out


def test_a_condition_selects_by_config_metric_state_and_tag(call: Call, make: Any, store: Store) -> None:
    one = make.run({"lr": 0.1, "model": {"arch": "ViT"}}, [{"loss": 2.0}])
    other = make.run({"lr": 0.01, "model": {"arch": "ResNet18"}}, [{"loss": 0.5}], outcome="failed")
    new = make.new(lr=0.5, model={"arch": "ViT"})
    store.tags.add(other, ["best"])

    def found(where: str) -> set[str]:
        return {*keys_of(call("ls", "--json", "--where", where))}

    assert found("lr<0.05 and model.arch=ResNet18") == {other}
    assert found("arch=ViT") == {one, new}
    assert found("loss<1") == {other}
    assert found("arch=ViT and loss>1 or tag=best") == {one, other}
    assert found("state in (new, failed)") == {other, new}
    assert found("not epoch>=0") == {new}
    assert found(f"key={one}") == {one}
    assert found("arch~RESNET") == {other}
    assert found("lr=text") == set()


def test_runs_can_be_selected_by_labels_and_states(call: Call, make: Any, store: Store) -> None:
    one, other = make.run({"lr": 1}), make.run({"lr": 2}, outcome="failed")
    store.tags.add(one, ["best"])
    assert keys_of(call("ls", "--tag", "best", "--json")) == [one]
    assert keys_of(call("ls", "--state", "failed", "--json")) == [other]
    nothing = call("ls", "--tag", "none")
    assert (nothing.code, nothing.out) == (0, "no run matches\n")


def test_numbers_that_json_does_not_have_become_strings(call: Call, make: Any) -> None:
    make.run({"lr": float("inf")}, [{"loss": float("nan")}])
    found = json.loads(call("ls", "--json").out, parse_constant=pytest.fail)
    assert found[0]["metrics"] == {"loss": "nan"}
    assert found[0]["config"] == {"lr": "inf"}


def test_a_run_without_progress_is_reported(call: Call, make: Any, store: Store, hold: Call) -> None:
    """Fault L07: the process renews its lease, but its run makes no progress."""
    key = make.run({"lr": 1})
    hold(store, key)
    assert " running " in call("ls").out
    attempt = store.run(key).newest()
    path = f"{store.root}/{store.run(key).path(attempt, 'attempt.json')}"
    _age_claim(path, 4000)
    found = call("ls").out
    assert "running, no progress 1 h" in found
    assert "progress  1 h ago" in call("show", key).out


def _age_claim(path: str, seconds: float) -> None:
    """Make a claim look this many seconds old."""
    from trainmaster.store.checksummed_json import parse_record, record_bytes

    with open(path, "rb") as file:
        record = parse_record(file.read(), path)
    with open(path, "wb") as file:
        file.write(record_bytes({**record, "toc": time.time() - seconds}))


def test_a_damaged_run_is_listed_as_damaged_next_to_the_others(call: Call, make: Any, store: Store) -> None:
    good, bad = make.run({"lr": 1}), make.run({"lr": 2})
    with open(f"{store.root}/{store.run(bad).path(1, 'resume.json')}", "r+b") as file:
        file.write(b"XX")
    states = {run["key"]: run["state"] for run in json.loads(call("ls", "--json").out)}
    assert states == {good: "finished", bad: "damaged"}


def test_the_first_page_reads_no_more_runs_than_it_shows(call: Call, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault R01: a store may have 100,000 runs, so listing must not read all of them."""
    make.store.configs.add_many({"seed": number} for number in range(300))
    from trainmaster.store import summary

    read: list[str] = []
    original = summary.summarize
    monkeypatch.setattr(summary, "summarize", lambda store, key: read.append(key) or original(store, key))
    call("ls", "--limit", 5)
    assert len(read) == 5


def test_sorting_by_an_unknown_metric_lists_the_known_ones(call: Call, make: Any) -> None:
    make.run({"lr": 1}, [{"valid/loss": 1.0, "train/loss": 2.0}])
    found = call("ls", "--sort", "acuracy")
    assert found.code == 2
    assert "cannot sort by `acuracy`: no run has it" in found.err
    assert "metrics: train/loss, valid/loss" in found.err


@pytest.mark.parametrize("command", ["ls", "show"])
def test_a_table_shortens_very_long_texts(call: Call, make: Any, command: str) -> None:
    """A store may come from somebody else, and its names may have any length."""
    key = make.run({"lr": 1}, [{"x" * 10**6: 1.0}])
    found = call(command, *([key] if command == "show" else []))
    assert found.code == 0
    assert "xxxxx.." in found.out
    assert len(found.out) < 10_000


# ---- on a terminal


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that makes stdout look like a terminal with this many columns, without colors."""

    def set_columns(count: int) -> None:
        from rich.console import Console

        from trainmaster.cli import console

        monkeypatch.setattr(console, "make_console", lambda: Console(width=count, force_terminal=True, color_system=None))

    return set_columns


def of_a_sweep(make: Any) -> None:
    shared = {"data": {"path": "/data/digits", "size": 512}, "batch_size": 32}
    for lr in (0.1, 0.01):
        for width in (16, 32):
            metrics = {"valid/loss": lr, "test/loss": lr, "train/loss": lr, "valid/accuracy": 1 - lr}
            best = {"best": {"metric": "valid/loss", "value": lr, "step": 0}}
            make.run({**shared, "optimizer": {"lr": lr, "momentum": 0.9}, "model": {"width": width}}, [metrics], status=best)


@pytest.mark.parametrize("count", [60, 80, 120])
def test_a_narrow_terminal_keeps_the_varying_values_and_the_monitored_metric(call: Call, make: Any, columns: Any, count: int) -> None:
    of_a_sweep(make)
    columns(count)
    head, *rows = call("ls").out.splitlines()
    assert {"KEY", "STATE", "lr", "width", "valid/loss"} <= {*head.split()}
    assert max(map(len, [head, *rows[:4]])) <= count
    left_out = rows[-1].partition("too narrow for: ")[2].split(", ")
    assert ("train/loss" in head) != ("train/loss" in left_out)


def test_a_terminal_shortens_metric_names_to_what_distinguishes_them(call: Call, make: Any, columns: Any) -> None:
    of_a_sweep(make)
    columns(200)
    assert {"valid/loss", "test/loss", "train/loss"} <= {*call("ls").out.splitlines()[0].split()}
    make.run({"depth": 5}, [{"lab/valid/accuracy": 0.5, "lab/train/accuracy": 0.5, "lab/valid/f1": 0.5}])
    head = call("ls", "--where", "depth=5").out.splitlines()[0].split()
    assert {*head[5:]} == {"valid/accuracy", "train/accuracy", "f1"}


def test_two_different_values_never_look_the_same(call: Call, make: Any) -> None:
    for lr in (0.123451, 0.123452):
        make.run({"lr": lr})
    assert {row.split()[-2] for row in call("ls").out.splitlines()[1:]} == {"0.123451", "0.123452"}


def test_the_time_of_a_run_is_the_sum_over_the_attempts_it_resumed_from(call: Call, make: Any, store: Store) -> None:
    config = {"lr": 1}
    for _ in range(2):
        key = make.run(config, outcome="interrupted")
    for number in (1, 2):
        _age_claim(f"{store.root}/{store.run(key).path(number, 'attempt.json')}", 100)
    found = json.loads(call("ls", "--json").out)[0]["duration"]
    assert 199 <= found < 260
    head, row = call("ls").out.splitlines()
    assert row[head.index("TIME") - 6 :].split("min")[0].split()[-1] == "3"
    assert f"time     {found // 60:.0f} min" in call("show", key).out


# ---- replicates


def test_groups_show_mean_and_standard_deviation_over_the_seeds(call: Call, make: Any) -> None:
    for lr, losses in ((0.1, (1.0, 2.0, 3.0)), (0.2, (0.5,))):
        for seed, loss in enumerate(losses):
            make.run({"lr": lr, "seed": seed}, [{"valid/loss": loss}])
    lines = [line.split() for line in call("ls", "--group", "--sort", "loss").out.splitlines()]
    assert " ".join(lines.pop()).startswith("the first setting has a single run, which may have had a lucky seed")
    assert lines == [
        ["RUNS", "EPOCH", "lr", "valid/loss"],
        ["1", "1", "0.2", "0.5"],
        ["3", "1", "0.1", "2", "±", "1"],
    ]
    first, second = json.loads(call("ls", "--group", "--sort", "-loss", "--json").out)
    assert first["metrics"] == {"valid/loss": {"mean": 2.0, "std": 1.0, "n": 3}}
    assert (first["n"], len(first["keys"]), first["config"]) == (3, 3, {"lr": 0.1})
    assert second["metrics"]["valid/loss"] == {"mean": 0.5, "std": None, "n": 1}


def test_a_list_of_settings_says_how_many_at_the_top_have_a_single_run(call: Call, make: Any) -> None:
    for lr, losses in ((1, (0.1,)), (2, (0.2,)), (3, (0.3, 0.3)), (4, (0.4,)), (5, (float("nan"), 0.1))):
        for seed, loss in enumerate(losses):
            make.run({"lr": lr, "seed": seed}, [{"loss": loss}])
    said = "the first 2 settings have a single run each, which may have had a lucky seed; the first setting with several runs is in row 3"
    assert call("ls", "--group", "--sort", "loss").out.splitlines()[-1] == said
    assert call("ls", "--group", "--sort", "loss", "--limit", 1).out.splitlines()[-2] == said
    assert "lucky" not in call("ls", "--group").out
    assert "lucky" not in call("ls", "--group", "--sort", "loss", "--where", "lr>=3").out
    assert "lucky" not in call("ls", "--group", "--sort", "loss", "--where", "lr in (1, 2, 4, 5)").out


def test_a_mean_uses_finished_runs_only_and_each_seed_once(call: Call, make: Any) -> None:
    make.run({"lr": 1, "seed": 0}, [{"loss": 1.0}])
    make.run({"lr": 1}, [{"loss": 1.0}])  # has the same seed as the first run
    make.run({"lr": 1, "seed": 1}, [{"loss": 3.0}])
    make.run({"lr": 1, "seed": 2}, [{"loss": 500.0}], outcome="failed")
    make.new(lr=1, seed=3)
    assert [line.split() for line in call("ls", "--group").out.splitlines()][1] == ["2", "of", "4", "1", "2", "±", "1.4"]


def test_a_group_with_a_nan_has_a_nan_mean(call: Call, make: Any) -> None:
    for seed, loss in enumerate((1.0, float("nan"))):
        make.run({"lr": 1, "seed": seed}, [{"loss": loss}])
    assert call("ls", "--group").out.splitlines()[1].split()[-3:] == ["nan", "±", "nan"]


def test_groups_ignore_replicate_and_stateless_fields_of_a_typed_config(call: Call, make: Any) -> None:
    for fold, workers in ((0, 1), (1, 2), (2, 4)):
        make.run(Folds(lr=0.1, fold=fold, num_workers=workers), [{"loss": float(fold)}])
    assert [line.split() for line in call("ls", "--group").out.splitlines()][1] == ["3", "1", "1", "±", "1"]
    assert json.loads(call("ls", "--group", "--json").out)[0]["config"] == {"lr": 0.1}


def test_a_group_with_an_infinite_value_has_an_infinite_mean(call: Call, make: Any) -> None:
    for seed, loss in enumerate((1.0, float("inf"), 10**400)):
        make.run({"lr": 1, "seed": seed}, [{"loss": loss}])
    assert call("ls", "--group").out.splitlines()[1].split()[-3:] == ["inf", "±", "nan"]


def test_a_group_shows_how_many_runs_have_a_metric(call: Call, make: Any) -> None:
    make.run({"lr": 1, "seed": 0}, [{"loss": 1.0, "extra": 2.0}])
    make.run({"lr": 1, "seed": 1}, [{"loss": 3.0}])
    assert call("ls", "--group").out.splitlines()[1].split()[-5:] == ["2", "±", "1.4", "2", "(n=1)"]


def test_groups_are_limited_and_report_how_many_more_there_are(call: Call, make: Any) -> None:
    for lr in range(4):
        make.run({"lr": lr, "seed": 0})
    lines = call("ls", "--group", "--limit", 3).out.splitlines()
    assert (len(lines), lines[-1]) == (5, "... and 1 more group: --limit 0 shows all")


def test_the_limit_does_not_change_the_columns_of_groups(call: Call, make: Any) -> None:
    for width, lr in ((8, 0.1), (8, 0.2), (8, 0.3), (16, 0.4)):
        make.run({"width": width, "lr": lr}, [{"loss": lr}])
    few, all_groups = (call("ls", "--group", "--sort", "loss", "--limit", limit).out.splitlines() for limit in (3, 0))
    assert few[0].split() == all_groups[0].split() == ["RUNS", "EPOCH", "width", "lr", "loss"]
    assert [line.split()[2] for line in few[1:4]] == ["8", "8", "8"]
