"""Runs are selected by a condition, and only the necessary files are read."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster.errors import MetricNameError, StoreError
from trainmaster.store import Run, Store
from trainmaster.store.query import parse_where
from trainmaster.store.run_query import select, sort


@pytest.fixture
def keys(store: Store) -> list[str]:
    """Create five runs, the last of which never started."""
    found = []
    for number in range(5):
        key = store.configs.add({"train": {"lr": number / 10, "loss": "mse"}, "arch": "ViT" if number % 2 else "MLP", "seed": number})
        found.append(key)
        if number < 4:
            with store.attempt(key, "process") as attempt:
                attempt.start(None)
                attempt.save(number, {}, {"epoch": number}, {"valid/score": 1 / (1 + number), "seed": 100.0})
                attempt.release("finished")
    return found


def chosen(store: Store, keys: list[str], text: str) -> list[int]:
    return sorted(keys.index(key) for key in select(store, parse_where(text)))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("train.lr<0.2", [0, 1]),
        ("lr<0.2", [0, 1]),
        ("arch=ViT and lr>0.2", [3]),
        ("score<0.4", [2, 3]),
        ("valid/score<0.4 or seed=0", [0, 2, 3]),
        ("seed<50", [0, 1, 2, 3, 4]),  # `seed` is the config key here, not the metric
        ("epoch>=2", [2, 3]),
        ("not epoch>=2", [0, 1, 4]),
        ("state=new", [4]),
        ("state=finished and arch=MLP", [0, 2]),
    ],
)
def test_runs_are_chosen_by_all_kinds_of_names(store: Store, keys: list[str], text: str, wanted: list[int]) -> None:
    assert chosen(store, keys, text) == wanted


def test_no_run_is_read_if_configs_decide(store: Store, keys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    newest = Run.newest
    monkeypatch.setattr(Run, "newest", lambda run: read.append(run.key) or newest(run))
    assert chosen(store, keys, "train.lr<0.2 and arch=ViT and not seed=7") == [1]
    assert read == []
    assert chosen(store, keys, "seed<2 and valid/score>0.9") == [0]
    assert {*read} == {*keys[:2]}


def test_the_error_for_a_name_that_no_run_has_suggests_the_nearest(store: Store, keys: list[str]) -> None:
    with pytest.raises(StoreError) as error:
        chosen(store, keys, "arch=ViT and scroe<1")
    assert error.value.fact == "no run has `scroe`"
    assert error.value.rows["where"].split("\n")[1].index("^") == len("arch=ViT and ")
    assert "did you mean `score`?" in error.value.rows["hint"]


def test_a_name_is_known_even_if_no_matching_run_has_it(store: Store, keys: list[str]) -> None:
    assert chosen(store, keys, "seed=4 and score<1") == []
    assert chosen(store, keys, "seed=99 and score<1") == []
    with pytest.raises(StoreError, match="no run has `scroe`"):
        chosen(store, keys, "seed=99 and scroe<1")


def test_a_last_part_that_is_both_a_key_and_a_metric_is_an_error(store: Store, keys: list[str]) -> None:
    key = store.configs.add({"x": 1})
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        attempt.save(0, {}, {"epoch": 0}, {"valid/loss": 1.0})
        attempt.release("finished")
    with pytest.raises(StoreError, match="is ambiguous"):
        select(store, parse_where("loss<1"))
    assert select(store, parse_where("valid/loss<=1")) == [key]
    assert len(select(store, parse_where("train.loss=mse"))) == 5


def test_nan_is_a_value_but_a_group_of_a_config_is_not(store: Store) -> None:
    key = store.configs.add({"train": {"lr": float("nan"), "more": {"deep": 3}}})
    assert select(store, parse_where("lr=nan and deep=3 and more.deep<4")) == [key]
    with pytest.raises(StoreError, match="no run has `train`"):
        select(store, parse_where("train=3"))
    with pytest.raises(StoreError, match="no run has `more`"):
        select(store, parse_where("more=3"))


def test_a_run_that_was_resumed_and_saved_nothing_keeps_its_metrics(store: Store, keys: list[str]) -> None:
    with store.attempt(keys[0], "process") as attempt:
        attempt.start(store.run(keys[0]).latest())
        attempt.release("interrupted")
    assert chosen(store, keys, "score=1 and epoch=0") == [0]


def test_an_empty_store_accepts_any_name(store: Store) -> None:
    assert select(store, parse_where("whatever<1")) == []


def test_a_damaged_run_does_not_hide_the_others(disk: Store) -> None:
    good, bad = (disk.configs.add({"seed": number}) for number in range(2))
    for key in (good, bad):
        with disk.attempt(key, "process") as attempt:
            attempt.start(None)
            attempt.save(0, {}, {"epoch": 0}, {"loss": 1.0})
            attempt.release("finished")
    for name in ("resume.json", "status.json"):
        with open(f"{disk.root}/{disk.run(bad).path(1, name)}", "w") as file:
            file.write("nonsense")
    assert select(disk, parse_where("loss=1")) == [good]
    assert select(disk, parse_where("state=damaged")) == [bad]


def values(store: Store, keys: list[str], name: str, **how: Any) -> list[int]:
    return [keys.index(key) for key in sort(store, keys, name, **how)]


def test_runs_without_a_value_are_sorted_last(store: Store, keys: list[str]) -> None:
    assert values(store, keys, "score") == [3, 2, 1, 0, 4]
    assert values(store, keys, "score", is_descending=True) == [0, 1, 2, 3, 4]
    assert values(store, keys, "train.lr", is_descending=True) == [4, 3, 2, 1, 0]
    assert values(store, keys, "lr") == [0, 1, 2, 3, 4]
    assert values(store, keys, "arch") == [0, 2, 4, 1, 3]
    assert values(store, keys, "epoch", is_descending=True) == [3, 2, 1, 0, 4]


def test_sorting_by_an_unknown_name_is_an_error_that_lists_the_known_names(store: Store, keys: list[str]) -> None:
    with pytest.raises(MetricNameError) as error:
        sort(store, keys, "scroe")
    assert str(error.value).split("\n") == [
        "cannot sort by `scroe`: no run has it",
        "  known   metrics: seed, valid/score",
        "          config: arch, seed, train.loss, train.lr",
        "          and key, time, epoch",
        "  try     did you mean `score`?",
    ]
    with pytest.raises(MetricNameError, match=r"(?s)cannot sort by.*metrics: seed, valid/score.*use one of these"):
        sort(store, keys, "precision")
