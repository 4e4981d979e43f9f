"""The commands `trainmaster report` and `trainmaster ls --forecast`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_store
import warm

from trainmaster.store import Store

Call = Callable[..., Any]


def test_the_command_writes_one_file_and_prints_its_name(call: Call, store: Store) -> None:
    report_store.fill(store, num_seeds=2)
    found = call("report", "--title", "Does GELU beat ReLU?", "-o", "gelu.html")
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("wrote gelu.html, ")
    assert "<h1>Does GELU beat ReLU?</h1>" in Path("gelu.html").read_text()
    assert sorted(os.listdir()) == ["gelu.html", "runs"]


def test_the_command_replaces_a_report_but_no_other_file(call: Call, store: Store) -> None:
    report_store.fill(store, num_seeds=1, has_problems=False)
    assert call("report").code == call("report").code == 0
    Path("train.py").write_text("precious")
    found = call("report", "-o", "train.py")
    assert (found.code, found.err) == (
        2,
        "`train.py` exists and is not a report\n  try     choose another name, or remove the file\n",
    )
    assert Path("train.py").read_text() == "precious"


def test_wrong_input_is_refused_and_no_file_is_written(call: Call, store: Store) -> None:
    report_store.fill(store, num_seeds=1, has_problems=False)
    for args, text in (
        (["--where", "lr>5"], "there is no run to report"),
        (["--where", "lrr>5"], "lrr"),
        (["--metric", "acuracy"], "acuracy"),
        (["-o", "."], "is not the name of a file"),
        (["-o", "missing/report.html"], "there is no folder `missing`"),
    ):
        found = call("report", *args)
        assert found.code in (1, 2)
        assert text in found.err
        assert "Traceback" not in found.err
    assert os.listdir() == ["runs"]


def test_an_empty_store_prints_how_to_start(call: Call) -> None:
    found = call("report")
    assert found.code == 0
    assert "trainmaster run" in found.out + found.err
    assert not os.path.exists("report.html")


_FULL_DISK = """
import resource, signal, sys
from trainmaster.cli import main
from trainmaster.store import Store
Store("runs").index.runs()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.exit(main(["report"]))
"""


@pytest.mark.integration
def test_a_full_disk_leaves_no_file(store: Store) -> None:
    report_store.fill(store, num_seeds=1, has_problems=False)
    found = warm.run([sys.executable, "-c", _FULL_DISK], capture_output=True, text=True)
    assert found.returncode == 1
    assert "`report.html` cannot be written: File too large" in found.stderr
    assert os.listdir() == ["runs"]


def test_ls_forecasts_unfinished_runs(call: Call, store: Store) -> None:
    report_store.fill(store)
    found = call("ls", "--forecast", "--state", "stopped")
    head, *lines = found.out.splitlines()
    assert head.split()[-1] == "FORECAST"
    assert sum("[" in line for line in lines) == 5
    assert "bands for 90% of valid/accuracy at epoch 12, from 48 finished curves" in lines[5]
    assert "final values were inside" in lines[5]
    runs = json.loads(call("ls", "--forecast", "--json", "--limit", 0).out)
    forecasts = [run["forecast"] for run in runs if "forecast" in run]
    assert len(forecasts) == 5
    assert all(each["low"] < each["value"] < each["high"] and each["metric"] == "valid/accuracy" for each in forecasts)


def test_ls_prints_why_there_is_no_forecast(call: Call, store: Store) -> None:
    report_store.fill(store, num_seeds=1)
    found = call("ls", "--forecast", "--state", "stopped")
    assert sum(line.endswith(" none") for line in found.out.splitlines()) == 5
    assert found.out.splitlines()[-1] == "no forecast for 5 runs: 12 finished curves of this kind; a forecast needs 20"
    runs = json.loads(call("ls", "--forecast", "--json", "--state", "stopped").out)
    assert {run["forecast"]["reason"] for run in runs} == {"12 finished curves of this kind; a forecast needs 20"}


def test_ls_cannot_forecast_groups(call: Call, store: Store) -> None:
    report_store.fill(store, num_seeds=1, has_problems=False)
    found = call("ls", "--forecast", "--group")
    assert (found.code, found.err.splitlines()[0]) == (2, "`--group` and `--forecast` cannot be combined")


def test_forecasts_of_a_store_without_metrics_change_nothing(call: Call, store: Store) -> None:
    store.configs.add({"lr": 0.1})
    assert call("ls", "--forecast").out == call("ls").out
