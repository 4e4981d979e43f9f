"""The live view of a batch fits on terminals of every width."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from trainmaster import Manager, TrainManager
from trainmaster.config.varying import VaryingKeys
from trainmaster.manager.batch import BatchResult
from trainmaster.manager.batch_view import BatchView, best_lines
from trainmaster.manager.executor import Report
from trainmaster.manager.job import Job
from trainmaster.manager.overview import Ranking


class Scene:
    """A batch of 100 runs, three of which are running."""

    def __init__(self, columns: int, **values: Any) -> None:
        self.console = Console(file=io.StringIO(), width=columns, height=40, color_system=None)
        self.result, self.running = BatchResult(), dict[str, Job]()
        self.view = BatchView(100, print, VaryingKeys(), self.result, self.running, self.console)
        for number in range(3):
            lr = 10 ** -(number + 1)
            job = Job(f"{number:08x}", "", {"optimizer": {"lr": lr}, "model": {"width": 8 << number, "kind": "mlp"}, **values}, 10)
            self.running[job.key] = job
            self.view.started(job)
            self.view.progress(Report(job.key, "progress", epoch=number, num_epochs=10, metric=("valid/loss", 0.25 * number)))

    def lines(self) -> list[str]:
        self.console.print(self.view.render())
        return [line.rstrip() for line in self.console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_each_running_run_has_a_row_with_its_swept_values_and_the_monitored_metric(columns: int) -> None:
    _, _, head, *rows = Scene(columns).lines()
    assert head.split() == ["RUN", "EPOCH", "lr", "width", "valid/loss"]
    assert [row.replace("━", "").replace("╸", "").split() for row in rows] == [
        ["00000000", "0/10", "0.1", "8", "0"],
        ["00000001", "1/10", "0.01", "16", "0.25"],
        ["00000002", "2/10", "0.001", "32", "0.5"],
    ]
    assert all("━" in row for row in rows[1:])
    assert max(map(len, [head, *rows])) <= columns


def test_the_counts_show_the_current_state_of_the_batch() -> None:
    scene = Scene(80)
    scene.result.done += ["a", "b"]
    scene.result.found += ["c"]
    scene.result.failed["d"] = scene.result.given_up["e"] = "no luck"
    head, counts, *_ = scene.lines()
    assert head.split()[:1] + head.split()[2:3] == ["runs", "5/100"]
    assert counts == "2 done, 1 already done, 1 failed, 1 given up, 3 running"


def test_long_values_keep_the_part_that_differs_and_numbers_are_not_shortened() -> None:
    console = Console(file=io.StringIO(), width=60, height=40, color_system=None)
    view = BatchView(None, print, VaryingKeys(), BatchResult(), {}, console)
    for number in range(2):
        job = Job(f"{number:08x}", "", {"path": f"/data/digits/{number}/{'long/' * 9}train.csv", "lr": 0.000123456 + number * 1e-9}, 10)
        view.started(job)
    console.print(view.render())
    rows = console.file.getvalue().splitlines()[-2:]  # type: ignore[attr-defined]
    assert [row.split()[-2:] for row in rows] == [["..s/0..n.csv", "0.000123456"], ["..s/1..n.csv", "0.000123457"]]
    assert max(map(len, rows)) <= 60


def test_a_narrow_table_leaves_out_the_last_values_and_shortens_no_number() -> None:
    configs = {f"{run:08x}": {f"key_{number}": 0.1234 * run + number for number in range(8)} for run in range(2)}
    ranking = Ranking("loss", False, [(0.5 + run, key) for run, key in enumerate(configs)])
    _, head, *rows = best_lines(ranking, configs, VaryingKeys(configs.values()), 40)
    assert head.split() == ["RUN", "key_0", "key_1", "key_2", "loss"]
    assert [row.split() for row in rows] == [
        ["00000000", "0", "1", "2", "0.5"],
        ["00000001", "0.1234", "1.123", "2.123", "1.5"],
    ]


def test_values_are_shortened_only_if_the_table_would_be_too_wide() -> None:
    configs = {f"{run:08x}": {"model": f"a_resnet_with_a_long_name_{run}"} for run in range(2)}
    ranking = Ranking("loss", False, [(0.5 + run, key) for run, key in enumerate(configs)])
    lines = {width: best_lines(ranking, configs, VaryingKeys(configs.values()), width) for width in (80, 40)}
    assert "a_resnet_with_a_long_name_1" in lines[80][-1]
    assert "a_resnet_with_a_long_name_1" not in lines[40][-1]
    assert max(map(len, lines[40][1:])) <= 40


def test_runs_that_do_not_fit_are_counted() -> None:
    console = Console(file=io.StringIO(), width=80, height=9, color_system=None)
    view = BatchView(None, print, VaryingKeys(), BatchResult(), {}, console)
    for number in range(20):
        view.started(Job(f"{number:08x}", "", {"x": number}, 10))
    console.print(view.render())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= 9
    assert lines[-1] == "... and 16 more"


def test_runs_that_monitor_different_metrics_show_the_names_of_the_metrics() -> None:
    scene = Scene(120)
    scene.view.progress(Report("00000001", "progress", epoch=1, num_epochs=10, metric=("valid/accuracy", 0.5)))
    _, _, head, *rows = scene.lines()
    assert "valid" not in head
    assert [row.split()[-2:] for row in rows] == [["valid/loss", "0"], ["valid/accuracy", "0.5"], ["valid/loss", "0.5"]]


def test_the_remaining_time_is_based_on_the_training_done_by_this_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that were already done, failed runs, and earlier parts of resumed runs do not affect the estimated speed."""
    from trainmaster.manager import batch_view

    clock = [0.0]
    monkeypatch.setattr(batch_view.time, "monotonic", lambda: clock[0])
    result, running = BatchResult(), dict[str, Job]()
    view = BatchView(10, lambda text: None, VaryingKeys(), result, running, Console(file=io.StringIO()))
    job = Job("00000000", "", {"x": 1}, 10)
    running[job.key] = job
    view.started(job)
    assert view.eta() is None
    result.found += ["a"] * 4
    result.failed["b"] = "no luck"
    view.progress(Report(job.key, "progress", epoch=5, num_epochs=10, is_first=True))
    clock[0] = 10.0
    view.progress(Report(job.key, "progress", epoch=10, num_epochs=10))
    result.done.append(job.key)
    view.ended(Report(job.key, "done"))
    assert view.eta() == pytest.approx(20.0 * 4)


def test_there_is_no_remaining_time_until_as_much_as_half_a_run_was_trained_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first percent of a run can be slow, because the batch waits for other processes or starts its workers."""
    from trainmaster.manager import batch_view

    clock = [0.0]
    monkeypatch.setattr(batch_view.time, "monotonic", lambda: clock[0])
    view = BatchView(24, lambda text: None, VaryingKeys(), BatchResult(found=[*"abcde"]), {}, Console(file=io.StringIO()))
    for number in range(2):
        view.started(Job(f"{number:08x}", "", {"x": number}, 10))
    clock[0] = 100.0
    view.progress(Report("00000000", "progress", num_epochs=10, share=0.01))
    assert view.eta() is None
    view.progress(Report("00000000", "progress", num_epochs=10, share=0.4))
    assert view.eta() is None
    view.progress(Report("00000000", "progress", num_epochs=10, share=0.5))
    view.progress(Report("00000001", "progress", num_epochs=10, share=0.5))
    assert view.eta() == pytest.approx(100.0 * (24 - 5 - 1))


def test_runs_that_the_end_of_the_batch_interrupts_do_not_count_as_progress() -> None:
    lines, result = list[str](), BatchResult(done=["a"])
    view = BatchView(9, lines.append, VaryingKeys(), result, {}, Console(file=io.StringIO()))
    for number, is_ending in enumerate((False, True)):  # the first run is stopped by a pruner, the second one by Ctrl-C
        job = Job(f"{number:08x}", "", {"x": number}, 10)
        view.started(job)
        if is_ending:
            view.ending()
        result.stopped[job.key] = "why"
        view.ended(Report(job.key, "stopped", "why"))
    assert [line.split()[0] for line in lines] == ["[2/9]", "[2/9]"]


@pytest.mark.parametrize("num_epochs", [1, 2, 4])
def test_the_remaining_time_is_right_for_runs_that_report_once_per_epoch(num_epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster.manager import batch_view

    clock = [0.0]
    monkeypatch.setattr(batch_view.time, "monotonic", lambda: clock[0])
    result = BatchResult()
    view = BatchView(10, lambda text: None, VaryingKeys(), result, {}, Console(file=io.StringIO()))
    for number in range(5):
        job = Job(f"{number:08x}", "", {"x": number}, num_epochs)
        view.started(job)
        view.progress(Report(job.key, "progress", epoch=0, num_epochs=num_epochs, is_first=True))
        for epoch in range(num_epochs):
            clock[0] += 8.0 / num_epochs
            view.progress(Report(job.key, "progress", epoch=epoch + 1, num_epochs=num_epochs))
        result.done.append(job.key)
        view.ended(Report(job.key, "done"))
    assert view.eta() == pytest.approx(40.0)


class Epochs(Manager):
    def train(self) -> None: ...

    def eval(self) -> Any:
        return {"loss_test": 1.0}


class Loops(Manager):
    def make_loop(self, config: Any) -> TrainManager:
        data = [torch.ones(2, 1)] * 2
        return TrainManager(nn.Linear(1, 1), lambda batch, out: out.mean(), 4, data, data, device="cpu", progress=False)


@pytest.mark.parametrize("kind", [Epochs, Loops])
def test_the_first_report_of_a_run_has_the_epoch_that_it_resumes_from(kind: type[Manager]) -> None:
    manager, reports = kind(None, verbose=False), list[Report]()
    manager.job_runner.configure(replace(manager.job_runner.invocation, report=reports.append))
    for num_epochs in (2, 4):
        reports.clear()
        manager.process({"lr": 1}, num_epochs=num_epochs)
        first, *others = reports
        assert (first.is_first, first.epoch, first.num_epochs) == (True, num_epochs - 2, num_epochs)
        assert {report.is_first for report in others} == {False}


def test_progress_within_an_epoch_moves_the_bar() -> None:
    scene = Scene(80)
    scene.view.progress(Report("00000000", "progress", epoch=0, num_epochs=10, share=0.5))
    assert scene.lines()[3].count("━") >= 9
