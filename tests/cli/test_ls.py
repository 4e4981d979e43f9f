"""`trainmaster ls`: which runs, in which order, with which columns."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from trainmaster.store import Store

Call = Callable[..., Any]


def keys_of(result: Any) -> list[str]:
    assert result.code == 0, result.err
    return [run["key"] for run in json.loads(result.out)]


def set_started(store: Store, key: str, moment: float) -> None:
    """Let a run look as if it was last started at another time."""
    os.utime(f"{store.root}/stats/{key[:2]}/{key}", (moment, moment))


def test_a_run_is_one_line_with_key_state_epoch_metrics_what_varies_and_tags(call: Call, make: Any, store: Store) -> None:
    one = make.run({"lr": 0.1, "model": {"arch": "ViT"}}, [{"loss": 2.0}, {"loss": 1.5}])
    other = make.run({"lr": 0.2, "model": {"arch": "ViT"}}, [{"loss": 0.25}], outcome="failed", error="boom")
    store.tags.add(one, ["best"])
    head, *rows = call("ls").out.splitlines()
    assert head.split() == ["KEY", "STATE", "EPOCH", "AGE", "TAGS", "loss", "lr"]
    by_key = {row.split()[0]: row.split() for row in rows}
    assert by_key[one][1:3] == ["finished", "1"]
    assert by_key[one][-3:] == ["best", "1.5", "0.1"]
    assert by_key[other][1:3] == ["failed", "0"]
    assert by_key[other][-2:] == ["0.25", "0.2"]


def test_the_run_that_was_started_last_comes_first(call: Call, make: Any, store: Store) -> None:
    keys = [make.run({"seed": number}) for number in range(4)]
    for number, key in enumerate(keys):
        set_started(store, key, time.time() - 1000 * number)
    assert keys_of(call("ls", "--json")) == keys
    assert keys_of(call("ls", "--json", "--reverse")) == keys[::-1]


def test_a_run_that_was_never_started_stands_where_its_config_was_made(call: Call, make: Any, store: Store) -> None:
    old = make.run({"seed": 1})
    set_started(store, old, time.time() - 1000)
    new = make.new(seed=2)
    assert keys_of(call("ls", "--json")) == [new, old]


def test_the_page_is_cut_and_says_how_many_more_there_are(call: Call, make: Any) -> None:
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
        ("losses/valid/loss", [1, 3, 2, 0, 4]),
        ("lr", [0, 1, 2, 3, 4]),
        ("-train.lr", [4, 3, 2, 1, 0]),
        ("-epoch", [2, 0, 1, 3, 4]),
    ],
)
def test_runs_are_sorted_by_metrics_and_config_with_nan_and_missing_last(
    call: Call, make: Any, store: Store, name: str, wanted: list[int]
) -> None:
    values: list[list[float]] = [[float("nan")], [0.1], [0.7, 0.9], [0.5]]
    keys = [make.run({"train": {"lr": number}}, [{"losses/valid/loss": each} for each in losses]) for number, losses in enumerate(values)]
    keys.append(make.new(train={"lr": 4}))
    for number, key in enumerate(keys[:-1]):
        set_started(store, key, time.time() + 1000 - number)
    assert keys_of(call("ls", "--sort", name, "--json")) == [keys[number] for number in wanted]


def test_keys_and_times_are_orders_too(call: Call, make: Any) -> None:
    keys = [make.run({"seed": number}) for number in range(4)]
    assert keys_of(call("ls", "--sort", "key", "--json")) == sorted(keys)
    assert keys_of(call("ls", "--sort", "time", "--json")) == keys
    assert keys_of(call("ls", "--sort", "time", "--reverse", "--json")) == keys[::-1]


def test_a_shortened_metric_that_may_be_two_is_told_with_both(call: Call, make: Any) -> None:
    make.run({"lr": 1}, [{"losses/valid/loss": 1.0, "losses/test/loss": 2.0}])
    for args in (["--sort", "loss"], ["--where", "loss<3"]):
        found = call("ls", *args)
        assert found.code == 2
        assert "losses/test/loss" in found.err
        assert "losses/valid/loss" in found.err


def test_a_shortened_metric_is_that_of_an_evaluation(call: Call, make: Any) -> None:
    make.run({"lr": 1}, [{"losses/valid/loss": 1.0, "losses/train/loss": 2.0}])
    assert "09703c87" in call("ls", "--where", "loss<1.5", "--sort", "loss").out


def test_a_condition_chooses_by_config_metric_state_and_tag(call: Call, make: Any, store: Store) -> None:
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


def test_labels_and_states_choose_runs(call: Call, make: Any, store: Store) -> None:
    one, other = make.run({"lr": 1}), make.run({"lr": 2}, outcome="failed")
    store.tags.add(one, ["best"])
    assert keys_of(call("ls", "--tag", "best", "--json")) == [one]
    assert keys_of(call("ls", "--state", "failed", "--json")) == [other]
    nothing = call("ls", "--tag", "none")
    assert (nothing.code, nothing.out) == (0, "no run is like that\n")


def test_numbers_that_json_does_not_have_are_texts(call: Call, make: Any) -> None:
    make.run({"lr": float("inf")}, [{"loss": float("nan")}])
    found = json.loads(call("ls", "--json").out, parse_constant=pytest.fail)
    assert found[0]["metrics"] == {"loss": "nan"}
    assert found[0]["config"] == {"lr": "inf"}


def test_a_run_that_stands_still_is_told(call: Call, make: Any, store: Store, hold: Call) -> None:
    """L07: its lease is alive, and yet nothing happens."""
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
    """Let a claim look older."""
    from trainmaster.store.record import parse_record, record_bytes

    with open(path, "rb") as file:
        record = parse_record(file.read(), path)
    with open(path, "wb") as file:
        file.write(record_bytes({**record, "toc": time.time() - seconds}))


def test_a_damaged_run_is_listed_as_such_and_the_others_as_they_are(call: Call, make: Any, store: Store) -> None:
    good, bad = make.run({"lr": 1}), make.run({"lr": 2})
    with open(f"{store.root}/{store.run(bad).path(1, 'resume.json')}", "r+b") as file:
        file.write(b"XX")
    states = {run["key"]: run["state"] for run in json.loads(call("ls", "--json").out)}
    assert states == {good: "finished", bad: "damaged"}


def test_the_first_page_reads_no_more_runs_than_it_shows(call: Call, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """R01: a store may have 100,000."""
    make.store.configs.add_many({"seed": number} for number in range(300))
    from trainmaster.store import summary

    read: list[str] = []
    original = summary.summarize
    monkeypatch.setattr(summary, "summarize", lambda store, key: read.append(key) or original(store, key))
    call("ls", "--limit", 5)
    assert len(read) == 5
