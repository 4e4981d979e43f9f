"""The commands `trainmaster show` and `trainmaster diff`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster.store import Store

Call = Callable[..., Any]


def test_show_prints_config_metrics_attempts_checkpoints_and_next_steps(call: Call, make: Any, store: Store) -> None:
    make.run({"lr": 0.1, "start_from": "81c0ffee"}, [{"loss": 4.0}, {"loss": 2.0}], outcome="interrupted", error="KeyboardInterrupt")
    key = make.run({"lr": 0.1, "start_from": "81c0ffee"}, [{"loss": 1.0}, {"loss": 3.0}], outcome="failed", error="boom")
    found = call("show", key)
    assert found.code == 0
    lines = [" ".join(line.split()) for line in found.out.splitlines()]
    assert lines[0] == f"run {key} failed"
    assert "state failed: boom" in lines
    assert "from 81c0ffee" in lines
    assert "lr 0.1" in lines
    assert "loss 3 1 4 @-_*" in lines
    assert any(line.startswith("2 ") and "from step 2 of attempt 1, failed: boom" in line for line in lines)
    assert any(line.startswith("1 ") and line.endswith("from scratch, interrupted: KeyboardInterrupt") for line in lines)
    assert any(line.startswith("attempt 2, step-000004 ") for line in lines)
    assert lines[-2:] == [f"trainmaster resume {key}", f"trainmaster logs {key}"]
    assert f"{store.root}/stats/{key[:2]}/{key}" in lines
    assert call("show", key, "--store", store.root).out.endswith(f"trainmaster logs {key} --store {store.root}\n")


def test_show_says_that_the_last_loss_is_not_finite(call: Call, make: Any) -> None:
    good = make.run({"lr": 0.1}, [{"loss": float("nan"), "lr": float("inf")}, {"loss": 2.0}])
    assert "not finite" not in call("show", good).out
    bad = make.run({"lr": 0.2}, [{"loss": 2.0}, {"loss": float("inf")}])
    assert "\n  the last loss is not finite: loss inf\n" in call("show", bad).out


def test_the_json_of_a_run_has_its_whole_history(call: Call, make: Any) -> None:
    key = make.run({"lr": 0.1}, [{"loss": 4.0}, {"loss": float("nan")}], status={"best": {"metric": "loss", "value": 4.0, "step": 1}})
    found = json.loads(call("show", key, "--json").out)
    assert found["history"] == {"loss": [[1.0, 4.0], [2.0, "nan"]]}
    assert found["attempts"][0]["outcome"] == "finished"
    assert found["best"] == {"metric": "loss", "value": 4.0, "step": 1}
    assert [each["name"] for each in found["checkpoints"]] == ["step-000002", "step-000001"]


def test_show_draws_the_curves_that_are_missing_or_outdated(call: Call, make: Any, store: Store) -> None:
    key = make.run({"lr": 0.1}, [{"loss": 4.0}, {"loss": 2.0}])
    path = Path(str(store.root)) / f"previews/{key[:2]}/{key}/attempt-0001/plots/curves.png"
    assert not path.exists()
    assert call("show", key, "--json").code == 0
    assert not path.exists(), "with --json, nothing is drawn"
    assert str(path) in call("show", key).out
    drawn = path.read_bytes()
    assert drawn.startswith(b"\x89PNG")
    path.write_bytes(b"mine")
    assert str(path) in call("show", key).out
    assert path.read_bytes() == b"mine", "the drawing is newer than the metrics"
    os.utime(path, (0, 0))
    call("show", key)
    assert path.read_bytes() == drawn
    assert store.verify() == []


@pytest.mark.parametrize("file", ["attempt.json", "resume.json", "status.json", "outcome.json", "events.jsonl"])
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_run_is_shown_even_if_one_of_its_files_is_damaged(call: Call, make: Any, store: Store, file: str, is_gone: bool) -> None:
    key = make.run({"lr": 0.1})
    path = f"{store.root}/{store.run(key).path(1, file)}"
    if is_gone:
        os.unlink(path)
    else:
        with open(path, "r+b") as opened:
            opened.write(b"\x00\xff\x1b[2J")
    found = call("show", key)
    assert found.code == 0
    assert found.out.startswith(f"run {key}")
    assert "\x1b" not in found.out


def test_a_run_with_a_damaged_config_is_shown_as_damaged(call: Call, make: Any, store: Store) -> None:
    key = make.run({"lr": 0.1})
    with open(f"{store.root}/configs/{key[:2]}/{key}.json", "r+b") as file:
        file.write(b"XX")
    found = call("show", key)
    assert found.code == 0
    assert "damaged" in found.out.splitlines()[0]


def test_two_runs_are_compared_value_by_value(call: Call, make: Any) -> None:
    one = make.run({"lr": 0.1, "model": {"width": 8}, "same": 1}, [{"loss": 1.0}])
    other = make.run({"lr": 0.2, "same": 1}, [{"loss": 2.0}])
    lines = [line.split() for line in call("diff", one, other).out.splitlines()]
    assert lines == [
        ["CONFIG", one, other],
        ["lr", "0.1", "0.2"],
        ["model.width", "8", "-"],
        ["METRIC", one, other],
        ["loss", "1", "2"],
    ]
    found = json.loads(call("diff", one, other, "--json").out)
    assert found["config"] == {"lr": {"one": 0.1, "other": 0.2}, "model.width": {"one": 8}}
    assert found["metrics"] == {"loss": {"one": 1.0, "other": 2.0}}


def test_comparing_a_run_with_itself_finds_no_difference(call: Call, make: Any) -> None:
    key = make.run({"lr": 0.1}, [{"loss": float("nan")}])
    assert call("diff", key, key[:5]).out == "both keys name the same run\n"


def test_an_error_with_several_lines_keeps_its_lines(call: Call, make: Any) -> None:
    key = make.run({"lr": 0.1}, outcome="failed", error="StateError: no such state\n  where   here")
    out = call("show", key).out
    assert "  state    failed: StateError: no such state\n             where   here\n" in out
    assert "failed: StateError: no such state\n" in out.partition("attempts")[2]
    assert "\\n" not in out
