"""A manager trains runs on several ranks: rank 0 holds the run, and all ranks train it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import rank_target
import ranks
import torch

from trainmaster.store import Store

pytestmark = pytest.mark.integration
TARGET = f"{rank_target.__file__}:make_loop"


def start(num: int, folder: Path, *words: str) -> list[Any]:
    return ranks.start(num, ["-m", "trainmaster", *words, "--store", "runs"], folder, stdout=-1, stderr=-1)


def end(processes: list[Any]) -> list[tuple[int, str, str]]:
    texts = [each.communicate(timeout=100) for each in processes]
    return [(each.returncode, *text) for each, text in zip(processes, texts, strict=True)]


def run(num: int, folder: Path, *words: str) -> list[tuple[int, str, str]]:
    return end(start(num, folder, "run", TARGET, *words))


def only_run(folder: Path) -> Any:
    store = Store(folder / "runs")
    (key,) = store.configs
    return store.run(key)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = only_run(folder).checkpoint("last").value["state"]["objects"]["model"]
    return found


def test_one_attempt_is_recorded_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    (code, out, err), other = run(2, whole)
    assert (code, other) == (0, (0, "", "")), err
    assert "2 ranks on cpu, each with a part of every batch; each rank has its own dropout masks" in out
    assert only_run(whole).attempts() == [1]
    assert only_run(whole).claim_of(1)["num_ranks"] == 2
    first, _ = run(2, parts, "--epochs", "1")
    second, other = run(2, parts)
    assert (first[0], second[0], other) == (0, 0, (0, "", ""))
    assert "resumes from epoch 1" in second[1]
    assert all(torch.equal(one, weights(parts)[name]) for name, one in weights(whole).items())
    found, other = run(2, parts)
    assert (found[0], other) == (0, (0, "", ""))
    assert "is at epoch 3 already" in found[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_any_rank_saves_the_run_once_and_it_resumes(tmp_path: Path, rank: int) -> None:
    wait = str(tmp_path / "here")
    processes = start(2, tmp_path, "run", TARGET, f"wait={wait}", "sleep=0.05")
    deadline = time.monotonic() + 100
    while not all(Path(f"{wait}.{each}").exists() for each in (0, 1)) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(processes[rank].pid, signal.SIGTERM)
    found = end(processes)
    assert found[rank][0] == 143
    assert found[1 - rank][0] == 0
    assert "is saved at epoch 0: SIGTERM" in found[0][1], found
    run_ = only_run(tmp_path)
    assert run_.outcome_of(1)["outcome"] in ("interrupted", "stopped")
    assert [each.attempt for each in run_.chain()] == [1]
    resumed, _ = run(2, tmp_path, f"wait={wait}", "sleep=0.05")
    assert resumed[0] == 0
    assert "is done: epoch 3" in resumed[1]


def test_the_error_of_another_rank_is_recorded(tmp_path: Path) -> None:
    (code, _, err), (other_code, _, other_err) = run(2, tmp_path, "at=raise", "rank=1", "step=4")
    assert (code, err) == (75, "")  # the process that started the ranks prints the reason
    assert other_code == 1
    assert "ValueError: boom" in other_err
    assert only_run(tmp_path).outcome_of(1)["error"].startswith("RankFailedError: rank 1 failed: ValueError: boom")


def test_all_ranks_exit_if_the_run_is_busy(tmp_path: Path) -> None:
    run(2, tmp_path, "--epochs", "1")
    store = Store(tmp_path / "runs")
    with store.attempt(next(iter(store.configs)), "process"):
        (code, _, err), other = run(2, tmp_path)
    assert code == 2
    assert "process" in err
    assert other == (0, "", "")


def test_a_manager_with_its_own_epochs_is_refused(tmp_path: Path) -> None:
    for code, _, err in end(start(2, tmp_path, "run", f"{rank_target.__file__}:OwnEpochs")):
        assert code == 2
        assert err.startswith("`OwnEpochs` writes its own epochs, which trainmaster cannot divide over 2 ranks\n")


def test_a_sweep_is_refused(tmp_path: Path) -> None:
    for code, _, err in end(start(2, tmp_path, "sweep", TARGET, "lr=[0.1,0.2]")):
        assert code == 2
        assert err.startswith("`batch` does not work with 2 ranks\n")
