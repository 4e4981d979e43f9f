"""Several ranks train one model in real processes that are connected by gloo."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import warm

from trainmaster.loop.many_ranks import ManyRanks
from trainmaster.loop.ranks import Ranks

pytestmark = pytest.mark.integration

IS_FULL = os.environ.get("TRAINMASTER_FAULTS") == "full"
SMALL: dict[str, Any] = {"epochs": 2, "rows": 67}
RANDOM = {**SMALL, "dropout": 0.2, "noise": 0.1, "workers": 1}
"""Options that use random numbers everywhere: shuffling, augmentation in a worker of each rank, and dropout."""


def distance(one: dict[str, Any], other: dict[str, Any], what: str = "weights") -> float:
    assert one[what].keys() == other[what].keys()
    return max((one[what][name] - other[what][name]).abs().max().item() for name in one[what])


def is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    same = all(torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"])
    return same and one["history"] == other["history"] and torch.equal(one["draw"], other["draw"])


def check_history(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-5) -> None:
    assert one["history"].keys() == other["history"].keys()
    for name, rows in one["history"].items():
        assert [x for x, _ in rows] == [x for x, _ in other["history"][name]]
        expected = [value for _, value in other["history"][name]]
        assert [value for _, value in rows] == pytest.approx(expected, rel=tolerance, nan_ok=True), name


def run(num: int, folder: Path, **options: Any) -> list[dict[str, Any]]:
    found = ranks.run(num, folder, options)
    assert [each["code"] for each in found] == [0] * num, found
    return found


@pytest.mark.parametrize(
    ("num", "options"),
    [
        (3, SMALL),  # the last batch has 3 samples
        (2, {**SMALL, "rows": 65, "torchmetrics": True}),  # the last batch has 1 sample, so one rank has none
        (2, {**SMALL, "as_list": True, "num_valid": 1}),
        (2, {**SMALL, "workers": 1, "eval_every": 0.5, "plateau": True}),
        (2, {**SMALL, "ignored": 1}),  # in some parts, all targets are ignored
    ],
    ids=["uneven", "empty part", "list", "workers", "ignored targets"],
)
def test_several_ranks_match_one_process_up_to_rounding_error(tmp_path: Path, num: int, options: dict[str, Any]) -> None:
    alone, found = ranks.train(options), run(num, tmp_path, **options)
    assert distance(alone, found[0]) < 1e-6
    assert all(distance(found[0], each) == 0 for each in found)
    check_history(alone, found[0])
    assert found[0]["lr"] == found[-1]["lr"] == alone["lr"]
    assert f"trainmaster: {num} ranks on cpu, each with a part of every batch\n" in found[0]["err"]
    assert "trainmaster" not in found[1]["err"]


@pytest.mark.parametrize("names", [["accumulate", "clip", "ema"], ["skip"], ["skip", "accumulate"], ["float16", "clip"], ["early"]])
def test_extensions_that_change_training_do_the_same_on_several_ranks(tmp_path: Path, names: list[str]) -> None:
    options = {**SMALL, "rows": 64, "extensions": names, **({"bad": 5} if "skip" in names else {})}
    with pytest.warns(UserWarning, match="skipped") if "skip" in names else pytest.MonkeyPatch.context():
        alone = ranks.train(options)
    found = run(2, tmp_path, **options)
    tolerance = 5e-3 if "float16" in names else 1e-6
    assert distance(alone, found[0]) < tolerance
    assert distance(found[0], found[1]) == 0
    assert alone["step"] == found[0]["step"] == found[1]["step"]
    if "ema" in names:
        assert distance(alone, found[1], "ema") < tolerance
    if "float16" not in names:
        check_history(alone, found[0])


def test_two_runs_are_bitwise_equal_and_each_rank_has_its_own_random_numbers(tmp_path: Path) -> None:
    one, other = run(2, tmp_path, **RANDOM), run(2, tmp_path, **RANDOM, eval_first=True)
    assert distance(one[0], other[0]) == 0
    assert one[0]["history"]["train/loss"] == other[0]["history"]["train/loss"]
    assert torch.equal(one[1]["draw"], other[1]["draw"])
    assert not torch.equal(one[0]["draw"], one[1]["draw"])
    assert "each rank has its own dropout masks" in one[0]["err"]


@pytest.mark.parametrize("num", [2, *([3] if IS_FULL else [])])
def test_training_resumes_bit_for_bit_after_a_kill_of_each_rank(tmp_path: Path, num: int) -> None:
    undisturbed = run(num, tmp_path, **{**RANDOM, "batch_norm": True, "rows": 64, "train_dir": str(tmp_path / "whole")})[0]
    for rank in range(num):
        options = {**RANDOM, "batch_norm": True, "rows": 64, "train_dir": str(tmp_path / f"kill-{rank}")}
        started = time.monotonic()
        killed = ranks.run(num, tmp_path, {**options, "at": ["kill", rank, 14]})
        assert killed[rank]["code"] == -9
        assert all(each["code"] == 1 for number, each in enumerate(killed) if number != rank)
        assert time.monotonic() - started < 60  # a deadlock would last for half an hour
        resumed = run(num, tmp_path, **options)[0]
        assert "replayed the 4 batches" in resumed["err"]
        assert is_same(undisturbed, resumed)


def test_another_number_of_ranks_resumes_up_to_rounding_error_and_says_so(tmp_path: Path) -> None:
    alone = ranks.train(SMALL)
    for first, second in ((2, 1), (1, 2)):
        options = {**SMALL, "train_dir": str(tmp_path / f"{first}-{second}")}
        for num, more in ((first, {"at": ["enough", 0, 5]}), (second, {})):
            found = run(num, tmp_path, **options, **more) if num > 1 else [in_process(options | more)]
        assert distance(alone, found[0]) < 1e-6
        if second > 1:
            assert (
                f"trained with {first} rank{'s' if first > 1 else ''} before, so results match an uninterrupted run up to rounding error"
                in found[0]["err"]
            )


def test_a_loss_with_class_weights_says_that_it_differs_from_one_process(tmp_path: Path) -> None:
    found = run(2, tmp_path, **SMALL, weighted=True)
    assert "CrossEntropyLoss(weight=...) is a weighted mean over each rank's part" in found[0]["err"]


def in_process(options: dict[str, Any]) -> dict[str, Any]:
    return ranks.train(options)


def test_a_stop_request_of_any_rank_stops_all_after_the_same_batch(tmp_path: Path) -> None:
    undisturbed = run(2, tmp_path, **RANDOM)[0]
    options = {**RANDOM, "train_dir": str(tmp_path / "run")}
    stopped = run(2, tmp_path, **options, at=["enough", 1, 5])
    assert [each["step"] for each in stopped] == [5, 5]
    assert [each.name for each in (tmp_path / "run" / "checkpoints").glob("0+5*")] == ["0+5.ckpt"]
    resumed = run(2, tmp_path, **options)[0]
    assert distance(undisturbed, resumed) == 0


def test_a_limit_ends_all_ranks(tmp_path: Path) -> None:
    assert [each["step"] for each in run(2, tmp_path, **SMALL, max_steps=7)] == [7, 7]


def test_an_error_on_one_rank_ends_all_ranks_and_the_others_name_it(tmp_path: Path) -> None:
    for rank in (0, 1):
        found = ranks.run(2, tmp_path, {**SMALL, "at": ["raise", rank, 3]})
        assert [each["code"] for each in found] == [1, 1]
        assert "ValueError: boom" in found[rank]["err"]
        assert found[1 - rank]["error"].startswith(f"RankFailedError: rank {rank} failed: ValueError: boom\n"), found


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("eval", "LoopError: `OnlyFirst.post_train_step_batch` runs on rank 0 only, but operations such as eval() and capture()"),
        ("capture", "LoopError: `OnlyFirst.post_train_step_batch` runs on rank 0 only, but operations such as eval() and capture()"),
        ("weights", "LoopError: the weights of rank 0 and rank 1 are no longer equal: `0.weight`"),
    ],
)
def test_a_hook_of_rank_0_cannot_call_operations_that_need_all_ranks(tmp_path: Path, what: str, message: str) -> None:
    found = ranks.run(2, tmp_path, {**SMALL, "only_first": what})
    assert found[0]["error"].startswith(message)
    assert found[1]["code"] == 1
    assert "on_every_rank = True" in found[0]["error"]


def test_a_hook_of_rank_0_may_predict(tmp_path: Path) -> None:
    assert distance(run(2, tmp_path, **SMALL, only_first="predict")[0], ranks.train(SMALL)) < 1e-6


def test_a_sharded_model_trains_saves_and_resumes_with_any_number_of_ranks(tmp_path: Path) -> None:
    options = {**SMALL, "extensions": ["accumulate", "clip"]}
    alone, found = ranks.train(options), run(2, tmp_path, **options, sharded=True)
    assert distance(alone, found[0]) < 1e-6
    check_history(alone, found[0])
    for second in (2, 3, 1):
        own = {**options, "train_dir": str(tmp_path / f"to-{second}")}
        run(2, tmp_path, **own, sharded=True, at=["enough", 1, 2])
        resumed = run(second, tmp_path, **own, sharded=True) if second > 1 else [ranks.train(own)]
        assert distance(resumed[0], found[0]) < 1e-6
        if second == 2:
            assert distance(resumed[0], found[0]) == 0


@pytest.mark.parametrize("name", ["ema", "skip"])
def test_extensions_that_need_whole_parameters_refuse_a_sharded_model(tmp_path: Path, name: str) -> None:
    found = ranks.run(2, tmp_path, {**SMALL, "extensions": [name], "sharded": True})
    assert "does not work with a model that fully_shard has divided" in found[0]["error"]


EXPECTED = {
    "stream": "SettingError: train_data cannot be divided over 2 ranks: Stream has no indices",
    "generator": "SettingError: train_data cannot be divided over 2 ranks: list_iterator has no indices",
    "tiny": "SettingError: the first batch of train_data has 1 sample, fewer than the 2 ranks",
    "crooked": "SettingError: batch 0 of train_data cannot be divided over 2 ranks",
    "sampler": "SettingError: train_data has a DistributedSampler, but the loop divides each batch over the 2 ranks itself",
    "avg": "SettingError: the extension `avg_loss` (Avg) needs whole batches",
    "sum": "SettingError: this Supervised cannot be built: `loss` is a sum over samples, but 2 ranks need a mean",
    "lazy": "SettingError: the model has parameters without a shape, but 2 ranks must start with the same weights",
    "sparse": "LossError: a gradient of the shape (3, 2) is sparse, and cannot be averaged over ranks",
    "device": "SettingError: rank 0 trains on cpu, but rank 1 on meta",
    "same device": "SettingError: ranks 0 and 1 use the same device meta",
    "data": "SettingError: rank 0 and rank 1 built different loops: train_data with the number of batches 4 and 5",
    "model": "SettingError: rank 0 and rank 1 built different loops: a model with the parameters",
    "components": "SettingError: a TrainTestLoop does not work with 2 ranks",
}


def test_a_loop_that_ranks_cannot_train_is_refused_on_all_of_them(tmp_path: Path) -> None:
    program = str(Path(ranks.__file__).with_name("rank_errors.py"))
    for process in ranks.start(2, [program], tmp_path, stdout=-1, stderr=-1):
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        found = json.loads(out)
        assert found.keys() == EXPECTED.keys()
        for name, text in EXPECTED.items():
            assert found[name].startswith(text), name


def test_torchrun_starts_ranks_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", ranks.__file__]
    found = warm.run([*command, json.dumps(SMALL), str(tmp_path / "out")], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert distance(torch.load(tmp_path / "out.1", weights_only=True), ranks.train(SMALL)) < 1e-6


def test_many_ranks_inherit_no_method_that_is_for_a_single_process() -> None:
    methods = {name for name, value in vars(Ranks).items() if callable(value) and not name.startswith("__")}
    assert methods - {"is_first"} <= vars(ManyRanks).keys()
