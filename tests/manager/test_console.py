"""A manager prints lines about its runs, and errors while printing do not stop training."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from typing import Any

import pytest

from trainmaster import Manager, key_of

KEY = key_of({"a": 1})


class Counting(Manager):
    extra: dict[Any, Any] = {}

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["x"] = 0

    def train(self) -> None:
        self.ckpt["x"] += 1

    def eval(self) -> Any:
        return {"loss_test": self.ckpt["x"] / 3, **self.extra}


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the printed lines, without their times."""
    found = capsys.readouterr()
    assert found.err == ""
    return [re.sub(r"  \d+\.\d\d s", "  T s", line) for line in found.out.splitlines()]


def test_a_new_run_prints_its_progress_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    Counting().process({"a": 1}, num_epochs=2)
    assert printed(capsys) == [
        f"run {KEY} starts, for 2 epochs",
        f"{KEY}  epoch 0 of 2  loss_test 0",
        f"{KEY}  epoch 1 of 2  T s  loss_test 0.3333",
        f"{KEY}  epoch 2 of 2  T s  loss_test 0.6667",
        f"run {KEY} is done: epoch 2",
    ]


def test_a_resumed_run_prints_its_starting_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=1)
    printed(capsys)
    manager.process({"a": 1}, num_epochs=2)
    assert printed(capsys) == [
        f"run {KEY} resumes from epoch 1, target 2",
        f"{KEY}  epoch 2 of 2  T s  loss_test 0.6667",
        f"run {KEY} is done: epoch 2",
    ]


def test_a_run_that_has_reached_its_target_prints_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting()
    manager.process({"a": 1}, num_epochs=1)
    printed(capsys)
    manager.process({"a": 1}, num_epochs=1)
    assert printed(capsys) == [f"run {KEY} is at epoch 1 already"]


def test_a_single_epoch_is_printed_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    Counting().process({"a": 1}, num_epochs=1)
    assert printed(capsys)[0] == f"run {KEY} starts, for 1 epoch"


def test_a_sweep_prints_its_number_of_combinations_and_their_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    Counting().sweep({"a": [1, 2]}, num_epochs=0)
    lines = printed(capsys)
    one, two = key_of({"a": 1}), key_of({"a": 2})
    best = min(one, two)  # both have the same loss
    assert (lines[0], lines[-6]) == ("sweep: 2 combinations", "batch: 2 done")
    assert lines[-5:-3] == ["best runs by their last loss_test (lower is better)", "RUN       a  loss_test"]
    assert [line.split()[0] for line in lines[-3:-1]] == sorted([one, two])
    assert lines[-1] == f'next: manager.fetch("{best}")'


def test_a_sweep_prints_the_counts_after_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(Counting):
        def train(self) -> None:
            super().train()
            if self.config["lr"]["start"] == 0.2:
                raise ValueError("no luck")

    manager = Failing()
    manager.process({"lr": {"start": 0.1}, "other": 1}, num_epochs=1)
    capsys.readouterr()
    manager.batch([{"lr": {"start": lr}, "other": 1} for lr in (0.1, 0.2, 0.3)], num_epochs=1, max_errors=5)
    told = [re.sub(r"[0-9a-f]{8}", "KEY", line) for line in printed(capsys) if line.startswith("[")]
    assert told == [
        "[2/3] failed KEY  start=0.2  (0 done, 1 already done, 1 failed)",
        "[3/3] done KEY  start=0.3  loss_test=0.3333  (1 done, 1 already done, 1 failed)",
    ]


def test_the_best_runs_of_a_sweep_are_ranked_in_the_right_direction(capsys: pytest.CaptureFixture[str]) -> None:
    class Scored(Counting):
        def eval(self) -> Any:
            return {"accuracy": self.config["x"], "zz": 1}

    Scored().sweep({"x": [0.1, 0.9, float("nan"), 0.5]}, num_epochs=0)
    lines = printed(capsys)
    start = lines.index("best runs by their last accuracy (higher is better)")
    assert [line.split()[1:] for line in lines[start + 1 : -2]] == [["x", "accuracy"], ["0.9", "0.9"], ["0.5", "0.5"], ["0.1", "0.1"]]


def test_a_sweep_with_several_seeds_also_names_the_setting_with_the_best_mean(capsys: pytest.CaptureFixture[str]) -> None:
    class Noisy(Counting):
        def eval(self) -> Any:
            config = self.config
            return {"loss_test": {(1, 0): 0.1, (1, 1): 0.9, (3, 1): float("nan")}.get((config["x"], config["seed"]), 0.2)}

    Noisy().sweep({"x": [1, 2, 3], "seed": [0, 1]}, num_epochs=0)
    lines = printed(capsys)
    assert lines[-2] == "best mean loss_test over seeds: 0.2 (2 seeds of x=2); all settings: Results(manager).groups(min_runs=2)"
    Noisy().sweep({"x": [1, 2], "seed": [0]}, num_epochs=0)
    assert "best mean" not in "\n".join(printed(capsys))


def test_only_the_ten_best_runs_and_the_first_failures_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    class Some(Counting):
        def eval(self) -> Any:
            if self.config["x"] >= 100:
                raise ValueError("no luck")
            return {"loss_test": self.config["x"]}

    Some().sweep({"x": [*range(100, 112), *range(12)]}, num_epochs=0, max_errors=50)
    lines = printed(capsys)
    start = lines.index("the 10 best of 12 by their last loss_test (lower is better)")
    assert [line.split()[-1] for line in lines[start + 2 : -1]] == [str(number) for number in range(10)]
    assert re.fullmatch(r"  (\w{8}, ){10}and 2 more: ValueError: no luck", lines[start - 2])
    assert "batch: 12 done, 12 failed" in lines


def test_secrets_are_masked_in_the_output_of_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting(secrets=("token",))
    manager.batch([{"a": 1, "token": "first-secret-value"}, {"a": 2, "token": "other-secret-value"}], num_epochs=0)
    assert "secret-value" not in "\n".join(printed(capsys))


def test_a_batch_prints_the_failed_runs_with_their_errors(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(Counting):
        def train(self) -> None:
            raise ValueError("no luck")

    Failing().batch([{"a": 1}], num_epochs=1, max_errors=1)
    assert printed(capsys)[-5:] == [
        f"run {KEY} failed: ValueError: no luck",
        f"[1/1] failed {KEY}  (0 done, 1 failed)",
        "batch: 1 failed",
        f"  {KEY}: ValueError: no luck",
        f'    try again: manager.process(manager.configs["{KEY}"])',
    ]


def test_a_batch_prints_the_runs_that_it_gives_up_on(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(Counting):
        def setup(self, config: Any) -> None:
            raise ValueError("no luck")

    manager = Failing()
    for _ in range(2):
        manager.batch([{"a": 1}], num_epochs=1, max_errors=1, max_attempts=1)
    assert printed(capsys)[-4:-2] == [
        f"the batch gives up on run {KEY}: 1 attempt in a row saved no new checkpoint; "
        "the last one: ValueError: no luck; train it alone to try it again",
        "batch: 1 given up",
    ]


def test_a_batch_that_raises_still_prints_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(Counting):
        def train(self) -> None:
            if self.config["a"] == 2:
                raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        Failing().batch([{"a": 1}, {"a": 2}], num_epochs=1)
    assert "batch: 1 done, 1 failed" in printed(capsys)


def test_verbose_false_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting(verbose=False)
    manager.process({"a": 1}, num_epochs=1)
    manager.process({"a": 1}, num_epochs=1)
    manager.sweep({"a": [1, 2]}, num_epochs=1)
    manager.overview()
    manager.fetch(KEY)
    assert printed(capsys) == []


def test_disp_interval_sets_how_often_epochs_are_printed_and_the_last_one_always_is(capsys: pytest.CaptureFixture[str]) -> None:
    Counting(disp_interval=3).process({"a": 1}, num_epochs=7)
    assert [found[1] for line in printed(capsys) if (found := re.search(r"epoch (\d+) of", line))] == ["0", "3", "6", "7"]


def test_at_most_six_metrics_are_printed_and_only_if_they_are_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting()
    manager.extra = {"name": "text", "is_good": True, "none": None} | {f"m{number}": number for number in range(9)}
    manager.process({"a": 1}, num_epochs=0)
    assert printed(capsys)[1] == f"{KEY}  epoch 0 of 0  loss_test 0  m0 0  m1 1  m2 2  m3 3  m4 4"


def test_nan_and_infinity_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting()
    manager.extra = {"x": float("nan"), "y": float("-inf")}
    manager.process({"a": 1}, num_epochs=0)
    assert printed(capsys)[1].endswith("x nan  y -inf")


def test_escape_sequences_in_names_are_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting()
    manager.extra = {"\x1b[2J\rloss\u202e": 1.0}
    manager.process({"a": 1}, num_epochs=0)
    assert printed(capsys)[1] == f"{KEY}  epoch 0 of 0  loss_test 0  \\x1b[2J\\rloss\\u202e 1"


def test_a_line_break_in_a_name_does_not_start_a_new_line(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting()
    manager.extra = {"x\nrun deadbeef is done: epoch 9": 1.0}
    manager.process({"a": 1}, num_epochs=0)
    assert not any(line.startswith("run deadbeef") for line in printed(capsys))


def test_letters_of_all_languages_are_printed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Counting()
    manager.extra = {"Fehlermaß": 1.0, "損失": 2.0}
    manager.process({"a": 1}, num_epochs=0)
    assert printed(capsys)[1].endswith("Fehlermaß 1  損失 2")


def closed() -> Any:
    stream = io.StringIO()
    stream.close()
    return stream


def broken_pipe() -> Any:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


def full_disk() -> Any:
    return open("/dev/full", "w")


def ascii_only() -> Any:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii")


def nothing() -> Any:
    return None


@pytest.mark.parametrize("stream", [closed, broken_pipe, full_disk, ascii_only, nothing], ids=lambda made: made.__name__)
def test_an_output_that_cannot_be_written_does_not_stop_training(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if stream is full_disk and not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    manager = Counting()
    manager.extra = {"損失": 2.0}
    out = stream()
    monkeypatch.setattr(sys, "stdout", out)
    manager.process({"a": 1}, num_epochs=2)
    monkeypatch.undo()
    with contextlib.suppress(OSError, AttributeError):
        out.close()
    assert manager.stats[KEY]["epoch"] == 2


def test_each_line_is_flushed_as_soon_as_it_is_printed() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with os.fdopen(writer, "w", buffering=65536) as out, contextlib.redirect_stdout(out):
        Counting().process({"a": 1}, num_epochs=0)
        assert os.read(reader, 10_000).decode().endswith(f"run {KEY} is done: epoch 0\n")
    os.close(reader)
