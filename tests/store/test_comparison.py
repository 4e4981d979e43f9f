"""Two runs are compared bit for bit, in every kind of value and record except times."""

from __future__ import annotations

import json
import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from trainmaster.errors import UnknownRunError
from trainmaster.store import Run, Store
from trainmaster.store.comparison import ROW, TENSOR, VALUE, Comparison, Difference, Recorded, compare, compare_runs, recorded
from trainmaster.store.difference_causes import likely_causes, num_threads_of
from trainmaster.store.keys import attempt_folder

MANY = tuple(range(20))


# ---- values


def compare_values(one: Any, other: Any) -> Comparison:
    return compare(Recorded("ab12cd34", 1, 1, {}, one, None, []), Recorded("ab12cd34", 1, 1, {}, other, None, []))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        10**40,
        0.1,
        -0.0,
        math.nan,
        -math.inf,
        1 + 2j,
        "text",
        b"bytes",
        bytearray(b"more"),
        (1, [2.5, {"a": None}]),
        {1: "one", "1": "text", (1, 2): 3},
        OrderedDict(a=1),
        {1, 2.5, "x", (1, 2)},
        frozenset({1, math.inf}),
        MANY,
        np.float32(0.1),
        np.arange(6).reshape(2, 3),
        np.array(["a", "bc"]),
        torch.rand(3, 2),
        torch.tensor([math.nan, -0.0]),
        torch.rand(4).bfloat16(),
        torch.tensor([1 + 1j]),
        torch.tensor(True),
        torch.empty(0, 3),
        torch.rand(3, 2).t(),
        torch.rand(2).to(torch.float8_e5m2),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_a_value_is_the_same_as_its_copy(value: Any) -> None:
    again = value.clone() if isinstance(value, torch.Tensor) else value.copy() if hasattr(value, "copy") else value
    assert compare_values({"x": value}, {"x": again}).is_same


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (0.0, -0.0, "x: 0.0 against -0.0"),
        (True, 1, "x: True (bool) against 1 (int)"),
        (1, 1.0, "x: 1 (int) against 1.0 (float)"),
        (0.1 + 0.2, 0.3, "x: 0.30000000000000004 against 0.3"),
        ((1, 2), [1, 2], "x: (1, 2) (tuple) against [1, 2] (list)"),
        ([1, 2], [1, 2, 3], "x: [1, 2] against [1, 2, 3]"),
        ({"a": 1}, {"b": 1}, "x.a: 1 against missing"),
        ({1: 2}, {"1": 2}, "x.1: 2 against missing"),
        ({}, OrderedDict(), "x: {} (dict) against OrderedDict() (OrderedDict)"),
        ({1, 2}, {1}, "x: {1, 2} against {1}"),
        ({0.0}, {-0.0}, "x: {0.0} against {-0.0}"),
        (b"ab", b"ac", "x: b'ab' against b'ac'"),
        (b"ab", b"abc", "x: b'ab' against b'abc'"),
        (b"ab", bytearray(b"ab"), "x: b'ab' (bytes) against bytearray(b'ab') (bytearray)"),
        (None, 0, "x: None (NoneType) against 0 (int)"),
        ("a", "b", "x: 'a' against 'b'"),
        (MANY, (*MANY[:-2], -1, -2), "x: tuple of 20 against tuple of 20"),
        (np.float32(0.5), np.float64(0.5), "x: np.float32(0.5) (float32) against np.float64(0.5) (float64)"),
        (np.float32(0.5), np.float32(0.25), "x: np.float32(0.5) against np.float32(0.25)"),
        (torch.zeros(2), torch.tensor([0.0, -0.0]), "x: 1 of 2 elements differ, by up to 0"),
        (torch.zeros(2, 2), torch.tensor([[0.0, 3e-7], [0.0, 1e-7]]), "x: 2 of 4 elements differ, by up to 3e-07"),
        (torch.zeros(2), torch.zeros(2).double(), "x: float32 [2] against float64 [2]"),
        (torch.zeros(2), torch.zeros(2, 1), "x: float32 [2] against float32 [2, 1]"),
        (torch.tensor([math.nan]), torch.tensor([1.0]), "x: 1 of 1 elements differ"),
        (torch.tensor([True, False]), torch.tensor([True, True]), "x: 1 of 2 elements differ, by up to 1"),
        (torch.tensor([1 + 1j]), torch.tensor([1 - 2j]), "x: 1 of 1 elements differ, by up to 3"),
        (torch.zeros(2).bfloat16(), torch.ones(2).bfloat16(), "x: 2 of 2 elements differ, by up to 1"),
        (torch.zeros(2), np.zeros(2, np.float32), "x: float32 [2] (Tensor) against float32 [2] (ndarray)"),
        (torch.zeros(1), 0.0, "x: float32 [1] (Tensor) against 0.0 (float)"),
        (np.zeros(3), np.array([0.0, 0.0, 2.0]), "x: 1 of 3 elements differ, by up to 2"),
        (np.array(["a"]), np.array(["b"]), "x: 1 of 1 elements differ"),
    ],
    ids=str,
)
def test_values_that_differ_in_a_single_bit_or_in_their_type_are_reported(one: Any, other: Any, told: str) -> None:
    found = compare_values({"x": one, "y": 1}, {"y": 1, "x": other}).differences
    assert str(found[0]) == told
    is_tensor = isinstance(one, torch.Tensor | np.ndarray) and isinstance(other, torch.Tensor | np.ndarray)
    assert {each.kind for each in found} == {TENSOR if is_tensor else VALUE}


def test_compared_tensors_and_values_are_counted() -> None:
    value = {"w": torch.zeros(3), "a": np.zeros(2), "sizes": (1, 2.0, True), "words": MANY, "name": "x", "none": None}
    found = compare_values(value, value)
    assert (found.is_same, found.num_tensors, found.num_values) == (True, 2, 5)  # the fifth value is the context


def test_a_tensor_with_another_memory_layout_is_the_same() -> None:
    one = torch.rand(3, 2)
    assert compare_values(one, one.t().contiguous().t()).is_same
    assert compare_values(np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3))).is_same


# ---- runs


def saved(
    value: Any, rows: Sequence[Mapping[str, Any]] = (), context: Any = None, store: Store | None = None, **claim: Any
) -> tuple[Store, Run]:
    """Create a run with one checkpoint."""
    store = store or Store(None)
    key = store.configs.add({"lr": 0.1})
    with store.attempt(key, "process", facts=claim) as attempt:
        attempt.start(None)
        for row in rows:
            attempt.log.append({**row, "time": time.time()})
        attempt.save(4, value, {"epoch": 2, "toc": time.time()}, {}, context)
    return store, store.run(key)


def of_a_loop(weight: float = 1.0, **changes: Any) -> dict[str, Any]:
    state = {
        "progress": {"epoch_num": 2},
        "objects": {"model": {"w": torch.tensor([weight])}, "optimizer": {"state": {0: {"step": 4}}}},
        "extensions": {"stopwatch": {"seconds": time.time()}, "ema": {"decay": 0.9}},
        "observers": ("stopwatch",),
        "rng": {"torch": torch.zeros(4, dtype=torch.uint8)},
    }
    best = ("valid/loss", 0.5, 2, (1, 4, 1))
    return {"state": {**state, **changes}, "fixtures": {"epoch_num": 2}, "attribs": None, "best": best}


def test_times_names_of_checkpoints_and_observers_are_not_compared() -> None:
    one = of_a_loop()
    other = {**of_a_loop(), "best": ("valid/loss", 0.5, 2, (3, 4, 2))}
    rows = [{"tag": "train/loss", "value": 0.5, "step": 1}]
    found = compare_runs(saved(one, rows)[1], saved(other, rows)[1])
    assert (found.is_same, found.differences) == (True, ())
    assert (found.num_tensors, found.num_values, found.num_rows) == (2, 6, 1)
    assert (found.epoch, found.step) == (2, 4)


def test_an_additional_observer_makes_no_difference() -> None:
    bare = of_a_loop(extensions={"ema": {"decay": 0.9}}, observers=())
    assert compare_runs(saved(of_a_loop())[1], saved(bare)[1]).is_same


def test_weights_and_extensions_that_are_not_observers_are_reported_by_name() -> None:
    found = compare_runs(saved(of_a_loop())[1], saved(of_a_loop(1.5, extensions={"ema": {"decay": 0.8}}))[1])
    assert [str(each) for each in found.differences] == [
        "model.w: 1 of 1 elements differ, by up to 0.5",
        "extensions.ema.decay: 0.9 against 0.8",
    ]
    assert [found.of(kind)[0].name for kind in (TENSOR, VALUE)] == ["model.w", "extensions.ema.decay"]


def test_an_object_that_only_one_run_has_is_reported() -> None:
    objects = {"model": {"w": torch.tensor([1.0])}}
    found = compare_runs(saved(of_a_loop())[1], saved(of_a_loop(objects=objects))[1])
    assert [str(each) for each in found.differences] == ["optimizer.state.0.step: 4 against missing"]


def test_a_managers_own_checkpoint_is_compared_with_its_random_numbers() -> None:
    one, other = ({"x": torch.ones(2), "eval_records": {0: {"loss": 0.5}}} for _ in range(2))
    assert compare_runs(saved(one, context={"rng": {"torch": b"ab"}})[1], saved(other, context={"rng": {"torch": b"ab"}})[1]).is_same
    found = compare_runs(saved(one, context={"rng": {"torch": b"ab"}})[1], saved(other, context={"rng": {"torch": b"xb"}})[1])
    assert [str(each) for each in found.differences] == ["context.rng.torch: b'ab' against b'xb'"]


def test_the_first_difference_is_the_row_that_was_logged_first() -> None:
    rows = [{"tag": tag, "value": step + len(tag), "step": step} for step in range(3) for tag in ("loss", "accuracy")]
    changed = [row if row["step"] == 0 or (row["tag"] == "loss" and row["step"] == 1) else {**row, "value": 0.25} for row in rows]
    found = compare_runs(saved({}, rows)[1], saved({}, changed)[1])
    assert found.differences[0] == Difference(ROW, "accuracy", "9", "0.25", 1)
    assert (len(found.differences), found.num_rows) == (3, 6)


def test_rows_are_compared_in_order_within_a_tag_but_not_between_tags() -> None:
    """Observers write buffered rows when a checkpoint is saved, and an interrupted run saves more checkpoints."""
    a = [{"tag": "a", "value": 0.5 * step, "step": step} for step in range(3)]
    b = [{"tag": "b", "text": "x", "step": step} for step in range(3)]
    assert compare_runs(saved({}, [*a, *b])[1], saved({}, [a[0], b[0], a[1], b[1], b[2], a[2]])[1]).is_same
    assert not compare_runs(saved({}, [*a, *b])[1], saved({}, [a[1], a[0], a[2], *b])[1]).is_same


def test_a_missing_row_or_one_at_another_step_is_reported() -> None:
    rows = [{"tag": "a", "value": 0.5, "step": 1}, {"tag": "a", "value": 0.25, "step": 2}]
    assert str(compare_runs(saved({}, rows)[1], saved({}, rows[:1])[1]).differences[0]) == "a at 2: 0.25 against missing"
    moved = [rows[0], {**rows[1], "step": 3}]
    assert str(compare_runs(saved({}, rows)[1], saved({}, moved)[1]).differences[0]) == "a at 2: 0.25 at 2 against 0.25 at 3"


def test_evaluations_of_a_manager_are_rows_and_nan_equals_nan() -> None:
    rows = [{"epoch": 1, "eval": {"loss_test": math.nan, "acc": 0.5}}]
    found = compare_runs(saved({}, rows)[1], saved({}, rows)[1])
    assert (found.is_same, found.num_rows) == (True, 2)
    other = [{"epoch": 1, "eval": {"loss_test": 1.0, "acc": 0.5}}]
    assert str(compare_runs(saved({}, rows)[1], saved({}, other)[1]).differences[0]) == "loss_test at 1: nan against 1.0"


def test_rows_after_the_checkpoint_are_ignored() -> None:
    _, run = saved({}, [{"tag": "a", "value": 0.5, "step": 1}])
    longer = Store(None)
    key = longer.configs.add({"lr": 0.1})
    with longer.attempt(key, "process") as attempt:
        attempt.start(None)
        attempt.log.append({"tag": "a", "value": 0.5, "step": 1})
        attempt.save(4, {}, {"epoch": 2}, {})
        attempt.log.append({"tag": "a", "value": 0.25, "step": 2})
    assert compare_runs(run, longer.run(key)).is_same


def test_a_run_in_several_attempts_is_the_same_as_one_in_a_single_attempt() -> None:
    rows = [{"tag": "a", "value": 0.5, "step": 1}, {"tag": "a", "value": 0.25, "step": 2}]
    store = Store(None)
    key = store.configs.add({"lr": 0.1})
    for row in rows:
        with store.attempt(key, "process") as attempt:
            attempt.start(store.run(key).latest())
            attempt.log.append(row)
            attempt.save(4, {"x": 1}, {"epoch": 2}, {})
            attempt.log.append({"tag": "lost", "value": 1.0, "step": 9})
    assert compare_runs(saved({"x": 1}, rows)[1], store.run(key)).is_same


def test_a_run_without_a_checkpoint_cannot_be_compared() -> None:
    store = Store(None)
    run = store.run(store.configs.add({"lr": 0.1}))
    with pytest.raises(UnknownRunError, match=f"run {run.key} has no checkpoint"):
        compare_runs(run, run)


def test_an_epoch_whose_checkpoint_was_deleted_is_compared_by_its_rows() -> None:
    store = Store(None)
    key = store.configs.add({"lr": 0.1})
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        for epoch in range(4):
            attempt.log.append({"epoch": epoch, "eval": {"loss": 1.0 / (1 + epoch)}})
            attempt.save(epoch, {"x": epoch}, {"epoch": epoch}, {}, keep=2)
    run = store.run(key)
    there, gone = recorded(run, 2), recorded(run, 1)
    assert (there.has_state, there.value, there.step, len(there.rows)) == (True, {"x": 2}, 2, 3)
    assert (gone.has_state, gone.epoch, len(gone.rows)) == (False, 1, 4)
    short = saved({"x": 5}, [{"epoch": 0, "eval": {"loss": 1.0}}, {"epoch": 1, "eval": {"loss": 0.5}}])[1]
    found = compare(gone, recorded(short))
    assert (found.is_same, found.num_rows, found.num_values) == (True, 2, 0)
    wrong = saved({"x": 5}, [{"epoch": 0, "eval": {"loss": 1.0}}, {"epoch": 1, "eval": {"loss": 0.25}}])[1]
    assert [str(each) for each in compare(gone, recorded(wrong)).differences] == ["loss at 1: 0.5 against 0.25"]


# ---- likely causes


def noted(run: Run, facts: Any, snapshot: str) -> Run:
    folder = attempt_folder("previews", run.key, 1)
    run.files.replace(f"{folder}/environment.json", json.dumps(facts).encode())
    run.files.replace(f"{folder}/code/{snapshot}/code.json", b"{}")
    return run


def test_causes_are_facts_that_both_have_and_that_differ() -> None:
    facts = {"started": "then", "argv": ["a"], "torch": {"version": "2.1", "build": ["a"]}, "gpus": [{"name": "A"}], "cpu": "C", "only": 1}
    later = {"started": "now", "argv": ["b"], "torch": {"version": "2.2", "build": ["b"]}, "gpus": [{"name": "B"}], "cpu": "C"}
    one = noted(saved({}, num_threads=1)[1], facts, "3f2a91c0d1e2-77aa02bb")
    other = noted(saved({}, num_threads=2)[1], later, "3f2a91c0d1e2-8d1e02aa")
    assert likely_causes(one, other) == [
        "it was trained with 1 thread, this time with 2",
        "its code was commit 3f2a91c0d1e2 (tree 77aa02bb); now it is commit 3f2a91c0d1e2 (tree 8d1e02aa)",
        "torch.version was 2.1, now it is 2.2",
        "gpus was A, now it is B",
    ]
    assert num_threads_of(one) == 1


def test_commits_with_the_same_files_are_not_a_cause() -> None:
    one, other = noted(saved({})[1], {}, "3f2a91c0d1e2-8d1e02aa"), noted(saved({})[1], {}, "77aa02bb91c0-8d1e02aa")
    assert likely_causes(one, other) == []


def test_a_missing_code_snapshot_is_not_a_cause() -> None:
    one, other = noted(saved({})[1], {}, "3f2a91c0d1e2-8d1e02aa"), saved({})[1]
    other.files.replace(f"{attempt_folder('previews', other.key, 1)}/code/no-snapshot.txt", b"no git")
    assert likely_causes(one, other) == []


def test_records_without_facts_give_no_causes() -> None:
    assert likely_causes(saved({})[1], saved({}, num_threads=2)[1]) == []
    assert num_threads_of(saved({})[1]) is None


def test_a_changed_number_of_threads_is_reported() -> None:
    store, run = saved({}, num_threads=1)
    with store.attempt(run.key, "process", facts={"num_threads": 4}) as attempt:
        attempt.start(run.latest())
        attempt.save(5, {}, {"epoch": 3}, {})
    assert likely_causes(run, saved({}, num_threads=1)[1]) == [
        "it was trained in parts with 1, then 4 threads; this time with 1",
    ]
