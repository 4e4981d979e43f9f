"""Notebooks show objects as tables in which recorded text is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster import Manager, TrainManager
from trainmaster.manager.batch import BatchResult
from trainmaster.testing import ExtensionContract

HOSTILE = "<img src=x onerror=alert(1)>"


class Small(Manager):
    def make_loop(self, config: Any) -> TrainManager:
        return ExtensionContract().loop()


def test_a_loop_shows_its_progress_and_the_last_value_of_each_metric() -> None:
    loop = ExtensionContract().loop()
    loop.train()
    loop.writer.add_scalar(HOSTILE, 1.0, 3)
    shown = loop._repr_html_()
    assert "epoch 3 of 3" in shown
    assert f"<td>valid/loss</td><td>{loop.history['valid/loss'][-1][1]:.5g}</td><td>3</td>" in shown
    assert "<img" not in shown


def test_a_run_shows_its_epoch_and_its_metrics(tmp_path: Path) -> None:
    manager = Small(tmp_path, verbose=False)
    manager.process({"lr": 1})
    shown = manager.store.run(manager.key)._repr_html_()
    assert f"<caption>run {manager.key} at epoch 3</caption>" in shown
    assert "<td>valid/loss</td>" in shown


def test_a_run_that_was_never_started_has_no_epoch(tmp_path: Path) -> None:
    manager = Small(tmp_path, verbose=False)
    key = manager.store.configs.add({"lr": 1})
    assert f"<caption>run {key}</caption>" in manager.store.run(key)._repr_html_()


def test_a_batch_shows_each_run_with_its_outcome_and_error() -> None:
    result = BatchResult(done=["0" * 8], failed={"1" * 8: f"ValueError: {HOSTILE}"}, found=[f"{number:08}" for number in range(30)])
    shown = result._repr_html_()
    assert "<caption>1 done, 30 already done, 1 failed</caption>" in shown
    assert "<p>and 12 more</p>" in shown
    failed = BatchResult(failed={"1" * 8: f"ValueError: {HOSTILE}"})._repr_html_()
    assert "<td>11111111</td><td>failed</td><td>ValueError: &lt;img" in failed


def test_a_search_shows_its_best_trials(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    result = Small(tmp_path, verbose=False).search({"lr": [1, 2]}, trials=2, monitor="valid/loss", sampler="grid")
    shown = result._repr_html_()
    assert "2 complete" in shown
    assert "<th>trial</th><th>run</th><th>valid/loss</th><th>lr</th>" in shown
    assert result.best is not None
    assert f"<td>{result.best.keys[0]}</td>" in shown


def test_a_comparison_is_escaped(tmp_path: Path) -> None:
    from trainmaster.analysis import Results

    manager = Small(tmp_path, {"lr": 1, "name": "a", "seed": 0}, verbose=False)
    manager.sweep({"name": ["a", "<b>"], "seed": [0, 1]})
    shown = Results(manager).compare("name=a", "name='<b>'", on="valid/loss")._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
